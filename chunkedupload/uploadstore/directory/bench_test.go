package directory

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gatehouse-gateway/gatehouse/chunkedupload/uploadstore"
	"github.com/gatehouse-gateway/gatehouse/chunkedupload/uploadstore/storetest"
)

func benchSize() int64 {
	if testing.Short() {
		return 256 << 20
	}
	return 1 << 30
}

func benchUpload(b *testing.B, s *Store, length, chunkSize int64) uploadstore.Upload {
	b.Helper()
	u, err := s.Create(b.Context(), uploadstore.Info{ID: storetest.NewID(), Length: length, ChunkSize: chunkSize, Created: time.Now()})
	if err != nil {
		b.Fatal(err)
	}
	return u
}

func benchWrite(b *testing.B, u uploadstore.Upload, from, to, size int64, piece []byte) {
	b.Helper()
	w, err := u.Write(b.Context(), uploadstore.WriteOptions{Offset: from, Size: size})
	if err != nil {
		b.Fatal(err)
	}
	for ; from < to; from += int64(len(piece)) {
		if _, err := w.Write(piece); err != nil {
			b.Fatal(err)
		}
	}
	if _, err := w.Commit(b.Context()); err != nil {
		b.Fatal(err)
	}
	if err := w.Close(); err != nil {
		b.Fatal(err)
	}
}

// One large upload in one go, durable at the end.
func BenchmarkWriteInOneGo(b *testing.B) {
	s := testStore(b, Options{Path: b.TempDir()})
	piece := []byte(strings.Repeat("x", 1<<20))
	b.SetBytes(benchSize())
	b.ReportAllocs()
	for b.Loop() {
		u := benchUpload(b, s, benchSize(), 0)
		benchWrite(b, u, 0, benchSize(), 0, piece)
		b.StopTimer()
		_ = u.Delete(b.Context())
		b.StartTimer()
	}
}

// The same in pieces of 5 MiB, each durable: a writer and a commit a piece.
func BenchmarkWriteInPieces(b *testing.B) {
	const each = 5 << 20
	s := testStore(b, Options{Path: b.TempDir()})
	piece := []byte(strings.Repeat("x", 1<<20))
	size := benchSize() / each * each
	b.SetBytes(size)
	b.ReportAllocs()
	for b.Loop() {
		u := benchUpload(b, s, size, 0)
		for at := int64(0); at < size; at += each {
			benchWrite(b, u, at, at+each, 0, piece)
		}
		b.StopTimer()
		_ = u.Delete(b.Context())
		b.StartTimer()
	}
}

// A small upload from creation to the outcome, on a file system where a sync
// costs nothing (a), and on the disk (b).
func BenchmarkSmallUpload(b *testing.B) {
	for name, path := range map[string]string{"memory": quickDir(b), "disk": b.TempDir()} {
		b.Run(name, func(b *testing.B) {
			s := testStore(b, Options{Path: filepath.Join(path, "uploads")})
			piece := make([]byte, 64<<10)
			b.ReportAllocs()
			for b.Loop() {
				u := benchUpload(b, s, 64<<10, 0)
				benchWrite(b, u, 0, 64<<10, 0, piece)
				c, err := u.Claim(b.Context(), uploadstore.ClaimOptions{})
				if err != nil {
					b.Fatal(err)
				}
				if _, err := c.Finish(b.Context(), uploadstore.Outcome{State: uploadstore.StateDone, Status: 200}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// One call of Write with what a body is read with.
func BenchmarkWriterWrite(b *testing.B) {
	s := testStore(b, Options{Path: quickDir(b)})
	piece := make([]byte, 32<<10)
	b.SetBytes(int64(len(piece)))
	b.ReportAllocs()
	u := benchUpload(b, s, uploadstore.UnknownLength, 0)
	w, err := u.Write(b.Context(), uploadstore.WriteOptions{})
	if err != nil {
		b.Fatal(err)
	}
	defer w.Close()
	data := w.(*serialWriter).data
	for b.Loop() {
		if _, err := w.Write(piece); err != nil {
			b.Fatal(err)
		}
		if data.offset > 64<<20 { // not to fill the memory
			data.offset, data.window = 0, 0
		}
	}
}

func BenchmarkStatus(b *testing.B) {
	b.Run("serial", func(b *testing.B) {
		u := benchUpload(b, testStore(b, Options{Path: quickDir(b)}), 1<<20, 0)
		benchWrite(b, u, 0, 1<<20, 0, make([]byte, 1<<20))
		benchStatus(b, u, 1<<20)
	})
	b.Run("1280 chunks", func(b *testing.B) {
		const chunk, count = 1 << 10, 1280
		path := quickDir(b)
		u := benchUpload(b, testStore(b, Options{Path: path}), chunk*count, chunk)
		for n := range int64(count) {
			at := (n*7 + 3) % count * chunk
			benchWrite(b, u, at, at+chunk, chunk, make([]byte, chunk))
		}
		benchStatus(b, u, chunk*count)
	})
}

func benchStatus(b *testing.B, u uploadstore.Upload, want int64) {
	b.ReportAllocs()
	for b.Loop() {
		if s, err := u.Status(b.Context()); err != nil || s.Offset() != want {
			b.Fatal(s.Offset(), err)
		}
	}
}
