package directory

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gatehouse-gateway/gatehouse/chunkedupload/uploadstore"
)

// A lived-in upload: some bytes, a claim that was given back, a length.
func livedIn(t *testing.T, chunkSize int64) (path string, u uploadstore.Upload) {
	t.Helper()
	path = filepath.Join(quickDir(t), "uploads")
	s := testStore(t, Options{Path: path})
	u, err := s.Create(t.Context(), uploadstore.Info{ID: killedID, Length: uploadstore.UnknownLength, ChunkSize: chunkSize, Created: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	w, err := u.Write(t.Context(), uploadstore.WriteOptions{Size: chunkSize})
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.Write(pattern(0, 8))
	if _, commitErr := w.Commit(t.Context()); err != nil || commitErr != nil {
		t.Fatal(err, commitErr)
	}
	if err := errors.Join(w.Close(), u.SetLength(t.Context(), 8)); err != nil {
		t.Fatal(err)
	}
	c, err := u.Claim(t.Context(), uploadstore.ClaimOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	return path, reopened(t, path)
}

func reopened(t *testing.T, path string) uploadstore.Upload {
	t.Helper()
	u, err := testStore(t, Options{Path: path}).Open(t.Context(), killedID)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func spoilFile(t *testing.T, path, content string, age time.Duration) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	then := time.Now().Add(-age)
	if err := os.Chtimes(path, then, then); err != nil {
		t.Fatal(err)
	}
}

// Half-written files are being written for a minute, and then what a crash left
// behind. Garbage and later versions are ErrBroken at once. Nothing is ever
// read as if it were not there.
func TestDamagedFiles(t *testing.T) {
	t.Parallel()
	young, old := time.Duration(0), uploadstore.HalfWritten+time.Second
	status := func(u uploadstore.Upload) (uploadstore.Status, error) { return u.Status(t.Context()) }
	isBroken := func(t *testing.T, _ uploadstore.Status, err error) {
		if !errors.Is(err, uploadstore.ErrBroken) {
			t.Errorf("Status: %v, want ErrBroken", err)
		}
	}
	holds := func(what string, ok func(uploadstore.Status) bool) func(*testing.T, uploadstore.Status, error) {
		return func(t *testing.T, s uploadstore.Status, err error) {
			if err != nil || !ok(s) {
				t.Errorf("Status: %+v, %v, want %s", s, err, what)
			}
		}
	}
	claimed := holds("a live claim", func(s uploadstore.Status) bool { return s.Claimed && !s.Lapsed })
	lapsed := holds("a lapsed claim", func(s uploadstore.Status) bool { return s.Lapsed && !s.Claimed })
	same := holds("the same offset", func(s uploadstore.Status) bool { return s.Offset() == 8 })
	noLength := holds("no length", func(s uploadstore.Status) bool { return s.Length == uploadstore.UnknownLength })

	tests := []struct {
		file, content string
		age           time.Duration
		want          func(*testing.T, uploadstore.Status, error)
	}{
		{"outcome", "", young, claimed},
		{"outcome", "\x00\x00\x00", young, claimed},
		{"outcome", "gatehouse outcome 1 4", young, claimed},
		{"outcome", string(seal(kindOutcome, []byte("{}"))[:40]), young, claimed},
		{"outcome", "", old, isBroken},
		{"outcome", "hello", young, isBroken},
		{"outcome", "gatehouse outcome 2 x y z\n{}", young, isBroken},
		{"outcome", string(seal(kindLength, []byte("8"))), young, isBroken},
		{"outcome", string(seal(kindOutcome, []byte("{}"))) + "more", young, isBroken},
		{"outcome", string(seal(kindOutcome, []byte("[]"))), young, isBroken},
		{"claim.1", "", young, claimed},
		{"claim.1", "gatehouse cl", young, claimed},
		{"claim.1", "", old, lapsed},
		{"claim.1", "PK\x03\x04", old, isBroken},
		{"claim.1", "gatehouse claim 7 x\n", young, isBroken},
		{"length", "", young, noLength},
		{"length", "", old, isBroken},
		{"length", "8", young, isBroken},
		{"length", string(seal(kindLength, []byte("-5"))), young, isBroken},
		{"w.1", "", young, same},
		{"w.1", "", old, same},
		{"w.1", "gatehouse writer 1 tok", old, same},
		{"w.0", "nonsense\n", young, isBroken},
		{"w.1", "gatehouse writer 9 later\n", young, isBroken},
		{"thumbs.db", "x", young, same},
		{"w.x", "x", young, same},
		{"j.5", "x", young, same},
		{"claim.5", "x", young, same},
	}
	for _, test := range tests {
		t.Run(fmt.Sprintf("%s %.12q %v", test.file, test.content, test.age), func(t *testing.T) {
			path, _ := livedIn(t, 0)
			spoilFile(t, filepath.Join(path, place(killedID), test.file), test.content, test.age)
			s, err := status(reopened(t, path))
			test.want(t, s, err)
		})
	}
	for content, age := range map[string]time.Duration{"": old, "gatehouse chu": old} {
		path, u := livedIn(t, 8)
		spoilFile(t, filepath.Join(path, place(killedID), "j.1"), content, young)
		if _, err := u.Claim(t.Context(), uploadstore.ClaimOptions{}); !errors.Is(err, uploadstore.ErrBusy) {
			t.Errorf("claim beside a journal that is being written: %v, want ErrBusy", err)
		}
		spoilFile(t, filepath.Join(path, place(killedID), "j.1"), content, age)
		if _, err := u.Claim(t.Context(), uploadstore.ClaimOptions{}); err != nil {
			t.Errorf("claim beside the trace of a crash: %v", err)
		}
	}
}

// A broken upload can be deleted, one of a later version cannot.
// Received bytes that are gone from the disk are not written past, since a hole
// would be delivered as if it had been sent.
func TestMissingBytes(t *testing.T) {
	t.Parallel()
	path := filepath.Join(quickDir(t), "uploads")
	u, err := testStore(t, Options{Path: path}).Create(t.Context(), uploadstore.Info{ID: killedID, Length: 16, Created: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	write := func(u uploadstore.Upload, offset int64) error {
		w, err := u.Write(t.Context(), uploadstore.WriteOptions{Offset: offset})
		if err != nil {
			return err
		}
		_, err = w.Write(pattern(offset, offset+8))
		_, commitErr := w.Commit(t.Context())
		return errors.Join(err, commitErr, w.Close())
	}
	if err := write(u, 0); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(path, place(killedID), "data"), 7); err != nil {
		t.Fatal(err)
	}
	u = reopened(t, path)
	for range 2 {
		if err := write(u, 8); !errors.Is(err, uploadstore.ErrBroken) {
			t.Errorf("writing behind missing bytes: %v, want ErrBroken", err)
		}
	}
	if s, err := u.Status(t.Context()); err != nil || s.Offset() != 8 || s.Writing {
		t.Errorf("Status: %+v, %v", s, err)
	}
}

func TestDeleteAndSweepSpareLaterVersions(t *testing.T) {
	path, u := livedIn(t, 0)
	outcome := filepath.Join(path, place(killedID), "outcome")
	spoilFile(t, outcome, "gatehouse outcome 2 new form\n", 0)
	if err := u.Delete(t.Context()); !errors.Is(err, uploadstore.ErrBroken) || !strings.Contains(err.Error(), "later version") {
		t.Errorf("Delete of a later version: %v", err)
	}
	spoilFile(t, filepath.Join(path, place(killedID), "aborted"), "", 0)
	s := testStore(t, Options{Path: path})
	if err := s.Sweep(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(outcome); err != nil {
		t.Errorf("a file of a later version is gone: %v", err)
	}
	if err := os.Remove(filepath.Join(path, place(killedID), "aborted")); err != nil {
		t.Fatal(err)
	}
	spoilFile(t, outcome, "garbage", 0)
	if err := u.Delete(t.Context()); err != nil {
		t.Errorf("Delete of a broken upload: %v", err)
	}
}

// A store of a later version is not touched.
func TestLaterStore(t *testing.T) {
	path, _ := livedIn(t, 0)
	spoilFile(t, filepath.Join(path, storeFile), "gatehouse store 2 other\n", 0)
	s := testStore(t, Options{Path: path})
	_, err := s.Open(t.Context(), killedID)
	if !errors.Is(err, uploadstore.ErrBroken) {
		t.Errorf("Open: %v, want ErrBroken", err)
	}
	if _, err = s.Create(t.Context(), uploadstore.Info{ID: strings.Repeat("n", 32)}); !errors.Is(err, uploadstore.ErrBroken) {
		t.Errorf("Create: %v, want ErrBroken", err)
	}
}

// Nothing is made before the first upload, and a store that vanishes is not an
// empty one.
func TestMissingAndVanishedRoot(t *testing.T) {
	path := filepath.Join(quickDir(t), "a", "b")
	s := testStore(t, Options{Path: path})
	if _, err := s.Open(t.Context(), killedID); !errors.Is(err, uploadstore.ErrNotFound) {
		t.Errorf("Open without a root: %v, want ErrNotFound", err)
	}
	for id, err := range s.All(t.Context()) {
		t.Errorf("All yields %q, %v", id, err)
	}
	if err := s.Sweep(t.Context()); err != nil {
		t.Errorf("Sweep: %v", err)
	}
	if free, total, err := s.Free(t.Context()); err != nil || free <= 0 || total < free {
		t.Errorf("Free = %d, %d, %v", free, total, err)
	}
	if _, err := os.Stat(filepath.Dir(path)); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("something was made: %v", err)
	}
	if _, err := s.Create(t.Context(), uploadstore.Info{ID: killedID}); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("root: %v, %v", info.Mode(), err)
	}
	if err := os.Rename(path, path+".away"); err != nil {
		t.Fatal(err)
	}
	vanished := func(root string) {
		t.Helper()
		if err := os.MkdirAll(root, 0o700); err != nil { // the empty mount point
			t.Fatal(err)
		}
		if _, err := s.Open(t.Context(), strings.Repeat("x", 32)); err == nil {
			t.Error("Open says nothing")
		}
	}
	vanished(path)
	// The share itself is gone: the root that is held open has nothing left.
	if err := os.RemoveAll(path + ".away"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := s.Open(t.Context(), killedID); err == nil || errors.Is(err, uploadstore.ErrNotFound) {
			t.Errorf("Open in a vanished root: %v, want a fault", err)
		}
	}
	if _, err := s.Create(t.Context(), uploadstore.Info{ID: strings.Repeat("y", 32)}); err == nil {
		t.Error("Create beside a vanished root succeeded")
	}
	for _, err := range s.All(t.Context()) {
		if err == nil {
			t.Error("All lists a vanished root")
		}
	}
}

// Sweep removes what crashes leave, and nothing else.
func TestSweep(t *testing.T) {
	path, u := livedIn(t, 0)
	day := staleOrphan + time.Minute
	make := func(name string, age time.Duration) string {
		full := filepath.Join(path, name)
		if err := os.MkdirAll(filepath.Dir(full), 0o700); err != nil {
			t.Fatal(err)
		}
		spoilFile(t, full, "x", age)
		then := time.Now().Add(-age)
		if err := os.Chtimes(filepath.Dir(full), then, then); err != nil {
			t.Fatal(err)
		}
		return full
	}
	orphan, fresh, aborted := strings.Repeat("o", 32), "of"+strings.Repeat("f", 30), "oa"+strings.Repeat("a", 30)
	gone := []string{make("trash/x/data", 0), make("tmp/old/data", 2*staleTemp), make(place(orphan)+"/data", day), make(place(aborted)+"/aborted", 0)}
	kept := []string{make("tmp/new/data", 0), make(place(fresh)+"/data", 0), make("no/upload/file", day), make("readme.txt", 0)}
	if err := testStore(t, Options{Path: path}).Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, name := range gone {
		if _, err := os.Stat(name); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is still there: %v", name, err)
		}
	}
	for _, name := range kept {
		if _, err := os.Stat(name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if s, err := u.Status(t.Context()); err != nil || s.Offset() != 8 {
		t.Errorf("the upload itself: %+v, %v", s, err)
	}
}

// An id can be all that it takes to use an upload, and errors end in logs.
func TestErrorsShowNoWholeID(t *testing.T) {
	t.Parallel()
	path := filepath.Join(quickDir(t), "uploads")
	s := testStore(t, Options{Path: path})
	u, err := s.Create(t.Context(), uploadstore.Info{ID: killedID, Length: 16, Created: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	w, err := u.Write(t.Context(), uploadstore.WriteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// Every file of the upload becomes a folder that is not empty, in turn, and
	// then the upload itself becomes a file.
	folder := filepath.Join(path, place(killedID))
	var seen []error
	look := func() {
		_, err := s.Open(t.Context(), killedID)
		_, statusErr := u.Status(t.Context())
		_, writeErr := u.Write(t.Context(), uploadstore.WriteOptions{})
		_, claimErr := u.Claim(t.Context(), uploadstore.ClaimOptions{})
		_, settleErr := u.Settle(t.Context(), uploadstore.Outcome{State: uploadstore.StateDone})
		_, createErr := s.Create(t.Context(), u.(*upload).info)
		seen = append(seen, err, statusErr, writeErr, claimErr, settleErr, createErr)
	}
	for _, name := range []string{"data", "w.0", "claim.0", "outcome", "info"} {
		_ = os.Remove(filepath.Join(folder, name))
		if err := os.MkdirAll(filepath.Join(folder, name, "in the way"), 0o700); err != nil {
			t.Fatal(err)
		}
		look()
	}
	_ = w.(*serialWriter).data.file.os.Close()
	_, err = w.Write([]byte("a"))
	seen = append(seen, err, w.Close(), u.Delete(t.Context()))
	if err := errors.Join(os.RemoveAll(folder), os.WriteFile(folder, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	look()
	faults := 0
	for _, err := range seen {
		if err == nil {
			continue
		}
		faults++
		if strings.Contains(err.Error(), killedID) {
			t.Errorf("an error shows the id: %v", err)
		}
	}
	if faults < 20 {
		t.Errorf("only %d faults", faults)
	}
}
