package file

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"runtime/debug"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/gatehouse-gateway/gatehouse/sessionauth/sessionstore"
)

// lockWait is how long an attempt waits for another process to let go of the
// file, a gateway that is about to end for instance.
const lockWait = 250 * time.Millisecond

// The buckets, and the mark by which a file is known as ours.
var (
	bucketMark    = []byte("gatehouse")
	bucketRecords = []byte("records")
	bucketUsers   = []byte("users")
	bucketQueue   = []byte("queue")

	markKey   = []byte("sessions")
	markValue = []byte("layout 1")
)

// attempt is one try to open the file. All who need it meanwhile wait for it.
type attempt struct {
	create bool
	done   chan struct{}
	handle *handle // after done
	err    error   // after done
}

// verdict is kept on a file in which the database lost its footing while
// opening. Such a try cannot be cleaned up after, so it is not repeated until
// the file changes.
type verdict struct {
	info os.FileInfo
	err  error
}

// handle returns the open file, opening it when needed. Without create a file
// that does not exist is ErrNotFound.
func (s *Store) handle(ctx context.Context, create bool) (*handle, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		h, a, err := s.openOrJoin(create)
		if h != nil || err != nil {
			return h, err
		}
		select {
		case <-a.done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if errors.Is(a.err, sessionstore.ErrNotFound) && create && !a.create {
			continue // a look-up's attempt found no file; ours creates it
		}
		return a.handle, a.err
	}
}

// openOrJoin returns the open file or an attempt to wait for.
func (s *Store) openOrJoin(create bool) (*handle, *attempt, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return nil, nil, ErrClosed
	case s.open != nil && !s.open.retired():
		return s.open, nil, nil
	case s.attempt != nil:
		return nil, s.attempt, nil
	}
	s.open = nil
	a := &attempt{create: create, done: make(chan struct{})}
	s.attempt = a
	s.running.Go(func() {
		db, err := s.openFile(create)
		s.mu.Lock()
		defer s.mu.Unlock()
		switch {
		case err != nil:
			a.err = err
		case s.closed:
			a.err = errors.Join(ErrClosed, db.Close())
		default:
			a.handle = newHandle(s, db)
			s.open = a.handle
			s.running.Go(a.handle.run)
		}
		s.attempt = nil
		close(a.done)
	})
	return nil, a, nil
}

func (s *Store) openFile(create bool) (*bbolt.DB, error) {
	info, err := os.Stat(s.path)
	switch {
	case err == nil:
	case !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("file session store: %w", err)
	case !create:
		return nil, sessionstore.ErrNotFound
	default:
		if err := createFile(s.path); err != nil {
			return nil, fmt.Errorf("file session store: creating %s: %w", s.path, err)
		}
		s.log.Info("session database created", slog.String("file", s.path))
	}
	if v := s.verdict; v != nil && info != nil && sameContent(v.info, info) {
		return nil, v.err
	}
	var db *bbolt.DB
	err = guarded(func() (err error) {
		db, err = openDatabase(s.path)
		return err
	})
	if _, panicked := errors.AsType[panicError](err); panicked && info != nil {
		s.verdict = &verdict{info: info, err: err}
	}
	return db, err
}

func sameContent(a, b os.FileInfo) bool {
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}

// openDatabase opens and checks a database that exists.
func openDatabase(path string) (*bbolt.DB, error) {
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{
		Timeout: lockWait, FreelistType: bbolt.FreelistMapType,
		OpenFile: func(name string, flag int, mode os.FileMode) (*os.File, error) {
			return os.OpenFile(name, flag&^os.O_CREATE, mode)
		},
	})
	switch {
	case errors.Is(err, bolterrors.ErrTimeout):
		return nil, fmt.Errorf("%w: %s", ErrLocked, path)
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("file session store: %v", err) // gone since a moment ago: not known to be absent
	case errors.Is(err, bolterrors.ErrInvalid), errors.Is(err, bolterrors.ErrVersionMismatch), errors.Is(err, bolterrors.ErrChecksum):
		return nil, fmt.Errorf("%w: %s: %v", ErrDamaged, path, err)
	case err != nil:
		return nil, fmt.Errorf("file session store: opening %s: %w", path, err)
	}
	if err := prepare(db); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

// prepare lays out an empty database and makes sure that another one is ours
// and whole.
func prepare(db *bbolt.DB) error {
	err := db.View(func(tx *bbolt.Tx) error { return check(db, tx) })
	if !errors.Is(err, errEmpty) {
		return err
	}
	return db.Update(func(tx *bbolt.Tx) error {
		mark, err := tx.CreateBucket(bucketMark)
		if err != nil {
			return err
		}
		for _, name := range [][]byte{bucketRecords, bucketUsers, bucketQueue} {
			if _, err := tx.CreateBucket(name); err != nil {
				return err
			}
		}
		return mark.Put(markKey, markValue)
	})
}

var errEmpty = errors.New("no buckets")

func check(db *bbolt.DB, tx *bbolt.Tx) error {
	info, err := os.Stat(db.Path())
	if err != nil {
		return fmt.Errorf("file session store: %v", err)
	}
	if info.Size() < tx.Size() {
		return fmt.Errorf("%w: %s: cut off at %d of %d bytes", ErrDamaged, db.Path(), info.Size(), tx.Size())
	}
	if k, _ := tx.Cursor().First(); k == nil {
		return errEmpty
	}
	mark := tx.Bucket(bucketMark)
	if mark == nil {
		return fmt.Errorf("%w: %s: a database of something else", ErrDamaged, db.Path())
	}
	if got := mark.Get(markKey); string(got) != string(markValue) {
		return fmt.Errorf("%w: %s: has %q, this version reads %q", ErrDamaged, db.Path(), got, markValue)
	}
	for _, name := range [][]byte{bucketRecords, bucketUsers, bucketQueue} {
		if tx.Bucket(name) == nil {
			return fmt.Errorf("%w: %s: no bucket %q", ErrDamaged, db.Path(), name)
		}
	}
	return nil
}

// panicError is a panic of the database, which is how it reports damaged
// pages.
type panicError struct{ text string }

func (p panicError) Error() string { return ErrDamaged.Error() + ": " + p.text }
func (p panicError) Unwrap() error { return ErrDamaged }

// guarded runs f and turns panics into errors, memory faults included: a page
// beyond the end of a file that was cut off is such a fault, and would end the
// whole gateway otherwise.
func guarded(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = panicError{fmt.Sprint(p)}
		}
	}()
	return f()
}
