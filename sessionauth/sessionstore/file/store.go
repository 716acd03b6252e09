// Package file keeps sessions in one file, an embedded database (bbolt), for a
// gateway that stands alone.
//
// # Guarantees
//
//   - Every operation is one transaction. Start, Refresh, Update and End are on
//     the disk (synced) before they return, unless the file system lies. Writes
//     that wait at the same time share a transaction and its sync; each is
//     still done whole or not at all, and one that fails takes no other along.
//   - Nothing is created before the first session: opening a Store touches no
//     file, and on a file that does not exist a look-up finds nothing. The first
//     Start creates the folders (mode 0700) and the file (0600), complete or not
//     at all.
//   - One process holds the file. While another has it, operations answer
//     ErrLocked within about a quarter of a second and the next one tries again;
//     nothing reads as absent then.
//   - A file that is damaged or somebody else's is left as it is: operations
//     answer ErrDamaged with the reason. A single record that is damaged is an
//     error of its own (each has a checksum) and is let go when it was due to
//     expire. A record of another format version counts as absent and is kept.
//   - Expired records are deleted about once a minute, in small batches between
//     other writes. The file's pages are used again; the file does not shrink.
//
// # Limits
//
// The clock is this machine's. An operation whose context is done before it
// began does nothing. One that has begun (its transaction was taken up) runs to
// its end and tells the true outcome, whatever becomes of its context: with a
// disk that hangs it hangs as well. A reader may see a write shortly before it
// is on the disk.
package file

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/gatehouse-gateway/gatehouse/sessionauth/sessionstore"
)

// Errors that an operator can do something about. They wrap or stand beside
// the cause, which may name the file.
var (
	// ErrLocked means that another process holds the file.
	ErrLocked = errors.New("file session store: another process holds the file")
	// ErrDamaged means that the file is damaged or not a session database.
	ErrDamaged = errors.New("file session store: damaged or foreign file")
	// ErrClosed means that the Store was closed.
	ErrClosed = errors.New("file session store: closed")
)

// Options of a Store.
type Options struct {
	Path   string           // the file; its folder is created when needed
	Logger *slog.Logger     // nil discards
	Now    func() time.Time // the clock; nil: time.Now
}

// Store is a sessionstore.Store and sessionstore.Finder in one file.
type Store struct {
	path string
	log  *slog.Logger
	now  func() time.Time

	lastWarning atomic.Int64 // milliseconds; unreadable records are logged once a minute

	mu      sync.Mutex
	open    *handle  // nil until the file was opened
	attempt *attempt // opening, shared by those who wait for it
	verdict *verdict // on a file that made the database panic
	closed  bool
	running sync.WaitGroup // attempts and writers
}

var (
	_ sessionstore.Store  = (*Store)(nil)
	_ sessionstore.Finder = (*Store)(nil)
)

// Open makes a Store. It does no I/O beyond asking for the working folder; see
// the package comment. The caller calls Close.
func Open(o Options) (*Store, error) {
	if o.Path == "" {
		return nil, errors.New("file session store: no path")
	}
	path, err := filepath.Abs(o.Path)
	if err != nil {
		return nil, fmt.Errorf("file session store: %w", err)
	}
	s := &Store{path: path, log: o.Logger, now: o.Now}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.now == nil {
		s.now = time.Now
	}
	return s, nil
}

// Get implements sessionstore.Store.
func (s *Store) Get(ctx context.Context, key sessionstore.Key) (sessionstore.Record, time.Time, error) {
	if err := key.Check(); err != nil {
		return sessionstore.Record{}, time.Time{}, err
	}
	var e entry
	var now time.Time
	err := s.read(ctx, func(t *txn) (err error) {
		now = t.now
		e, err = t.load(key)
		return err
	})
	if err != nil {
		return sessionstore.Record{}, time.Time{}, err
	}
	return e.Record, now, nil
}

// Start implements sessionstore.Store.
func (s *Store) Start(ctx context.Context, start sessionstore.Start, ends ...sessionstore.End) (sessionstore.Record, []sessionstore.Ended, error) {
	if err := errors.Join(start.Check(), sessionstore.CheckEnds(start.Key.Site, ends)); err != nil {
		return sessionstore.Record{}, nil, err
	}
	var rec sessionstore.Record
	var ended []sessionstore.Ended
	err := s.write(ctx, true, func(t *txn) (err error) {
		rec, ended, err = t.start(start, ends)
		return err
	})
	if err != nil {
		return sessionstore.Record{}, nil, err
	}
	return rec, ended, nil
}

// Refresh implements sessionstore.Store.
func (s *Store) Refresh(ctx context.Context, key sessionstore.Key, r sessionstore.Refresh) (sessionstore.Record, error) {
	if err := errors.Join(key.Check(), r.Check()); err != nil {
		return sessionstore.Record{}, err
	}
	var rec sessionstore.Record
	err := s.write(ctx, false, func(t *txn) (err error) {
		rec, err = t.refresh(key, r)
		return err
	})
	if err != nil {
		return sessionstore.Record{}, err
	}
	return rec, nil
}

// Update implements sessionstore.Store.
func (s *Store) Update(ctx context.Context, key sessionstore.Key, u sessionstore.Update, ends ...sessionstore.End) (sessionstore.Record, []sessionstore.Ended, error) {
	if err := errors.Join(key.Check(), u.Check(), sessionstore.CheckEnds(key.Site, ends)); err != nil {
		return sessionstore.Record{}, nil, err
	}
	var rec sessionstore.Record
	var ended []sessionstore.Ended
	err := s.write(ctx, false, func(t *txn) (err error) {
		rec, ended, err = t.update(key, u, ends)
		return err
	})
	if err != nil {
		return sessionstore.Record{}, nil, err
	}
	return rec, ended, nil
}

// End implements sessionstore.Store.
func (s *Store) End(ctx context.Context, site string, ends ...sessionstore.End) ([]sessionstore.Ended, error) {
	if err := sessionstore.CheckEnds(site, ends); err != nil {
		return nil, err
	}
	return s.endWith(ctx, func(t *txn) ([]sessionstore.Ended, error) { return t.end(site, ends) })
}

// Remove implements sessionstore.Finder.
func (s *Store) Remove(ctx context.Context, key sessionstore.Key) ([]sessionstore.Ended, error) {
	if err := key.Check(); err != nil {
		return nil, err
	}
	return s.endWith(ctx, func(t *txn) ([]sessionstore.Ended, error) { return t.removeAny(key) })
}

func (s *Store) endWith(ctx context.Context, step func(*txn) ([]sessionstore.Ended, error)) ([]sessionstore.Ended, error) {
	var ended []sessionstore.Ended
	err := s.write(ctx, false, func(t *txn) (err error) {
		ended, err = step(t)
		return err
	})
	if errors.Is(err, sessionstore.ErrNotFound) { // there is no file
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return ended, nil
}

// List implements sessionstore.Store.
func (s *Store) List(ctx context.Context, site, user string) ([]sessionstore.Listed, error) {
	if err := sessionstore.CheckUser(site, user); err != nil {
		return nil, err
	}
	var list []sessionstore.Listed
	err := s.read(ctx, func(t *txn) (err error) {
		list, err = t.list(site, user)
		return err
	})
	if errors.Is(err, sessionstore.ErrNotFound) { // there is no file
		return nil, nil
	}
	return list, err
}

// Close ends the clean-up, waits for the writes that have begun and closes the
// file. Writes that wait get ErrClosed, like everything afterwards.
func (s *Store) Close() error {
	s.mu.Lock()
	s.closed = true
	h := s.open
	s.open = nil
	s.mu.Unlock()
	if h != nil {
		close(h.stop)
	}
	s.running.Wait()
	if h != nil {
		return h.db.Close()
	}
	return nil
}

// read runs a step in a transaction of its own that cannot write.
func (s *Store) read(ctx context.Context, step func(*txn) error) error {
	h, err := s.handle(ctx, false)
	if err != nil {
		return err
	}
	err = guarded(func() error {
		return h.db.View(func(tx *bbolt.Tx) error { return step(s.txn(tx)) })
	})
	if errors.Is(err, bolterrors.ErrDatabaseNotOpen) {
		return ErrClosed
	}
	return err
}

// write runs a step in the next shared transaction. Only a step that may
// create a session creates the file.
func (s *Store) write(ctx context.Context, create bool, step func(*txn) error) error {
	h, err := s.handle(ctx, create)
	if err != nil {
		return err
	}
	return h.submit(ctx, step)
}

func (s *Store) txn(tx *bbolt.Tx) *txn {
	return &txn{
		records: tx.Bucket(bucketRecords), users: tx.Bucket(bucketUsers), queue: tx.Bucket(bucketQueue),
		now: millis(s.now().UnixMilli()), warn: s.warn,
	}
}

// warn logs a record that cannot be read, once a minute at most.
func (s *Store) warn(err error) {
	now, last := s.now().UnixMilli(), s.lastWarning.Load()
	if last != 0 && now-last < time.Minute.Milliseconds() && now >= last || !s.lastWarning.CompareAndSwap(last, now) {
		return
	}
	s.log.Warn("session record cannot be read", slog.String("file", s.path), slog.Any("error", err))
}
