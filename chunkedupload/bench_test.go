package chunkedupload

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"testing"
	"time"

	"github.com/gatehouse-gateway/gatehouse/chunkedupload/uploadstore/directory"
)

// endless is a body that costs nothing.
type endless struct{ left int64 }

func (e *endless) Read(p []byte) (int, error) {
	if e.left == 0 {
		return 0, io.EOF
	}
	n := int(min(int64(len(p)), e.left))
	e.left -= int64(n)
	return n, nil
}

// benchGateway is a handler over a directory whose backend reads the body.
func benchGateway(b testing.TB) *httptest.Server {
	store, err := directory.Open(directory.Options{Path: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	h, err := New(Config{Store: store, Base: "/files"})
	if err != nil {
		b.Fatal(err)
	}
	srv := httptest.NewServer(h.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			b.Error(err)
		}
		w.WriteHeader(http.StatusCreated)
	})))
	b.Cleanup(func() {
		srv.Close()
		_ = h.Close()
		_ = store.Close()
	})
	return srv
}

// tusCall sends one request and returns the Location of its answer.
func tusCall(b testing.TB, c *http.Client, method, url string, body io.Reader, length int64, fields map[string]string) string {
	r, err := http.NewRequest(method, url, body)
	if err != nil {
		b.Fatal(err)
	}
	r.ContentLength = length
	r.Header.Set("Tus-Resumable", tusVersion)
	for name, value := range fields {
		r.Header.Set(name, value)
	}
	resp, err := c.Do(r)
	if err != nil {
		b.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode >= 300 {
		b.Fatalf("%s: status %d", method, resp.StatusCode)
	}
	return resp.Header.Get("Location")
}

func uploadInOnePatch(b testing.TB, srv *httptest.Server, size int64) {
	path := tusCall(b, srv.Client(), "POST", srv.URL+"/files", nil, 0, map[string]string{"Upload-Length": formatInt(size)})
	tusCall(b, srv.Client(), "PATCH", srv.URL+path, &endless{size}, size, map[string]string{"Upload-Offset": "0", "Content-Type": tusMediaType})
	tusCall(b, srv.Client(), "DELETE", srv.URL+path, nil, 0, nil)
}

func BenchmarkOnePatch(b *testing.B) {
	srv := benchGateway(b)
	const size = 256 << 20
	b.SetBytes(size)
	b.ReportAllocs()
	for b.Loop() {
		uploadInOnePatch(b, srv, size)
	}
}

func BenchmarkSmallUploads(b *testing.B) {
	srv := benchGateway(b)
	body := payload(64 << 10)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			tusCall(b, srv.Client(), "POST", srv.URL+"/files", bytes.NewReader(body), int64(len(body)),
				map[string]string{"Upload-Length": formatInt(int64(len(body))), "Content-Type": tusMediaType})
		}
	})
}

// A large upload in one request, received and delivered, must not grow with
// its size.
func TestMemoryIsConstant(t *testing.T) {
	srv := benchGateway(t)
	uploadInOnePatch(t, srv, 1<<20)
	var before, now runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	peak := before.HeapInuse
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-quit:
				return
			case <-tick.C:
				runtime.ReadMemStats(&now)
				peak = max(peak, now.HeapInuse)
			}
		}
	}()
	uploadInOnePatch(t, srv, 128<<20)
	close(quit)
	<-done
	if grown := int64(peak) - int64(before.HeapInuse); grown > 16<<20 {
		t.Errorf("the heap grew by %d MiB", grown>>20)
	} else {
		t.Logf("the heap grew by %d KiB", grown>>10)
	}
}
