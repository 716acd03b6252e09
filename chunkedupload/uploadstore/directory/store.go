package directory

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/gatehouse-gateway/gatehouse/chunkedupload/uploadstore"
)

const (
	storeFile   = "store"
	tempFolder  = "tmp"
	trashFolder = "trash"
	idLength    = 32
)

// Options say where a store is.
type Options struct {
	// Path is the directory. It is made, for this user alone, with the first
	// upload.
	Path string
	// Logger takes what an operator should know. Default: nothing is logged.
	Logger *slog.Logger
	// Now is the gateway's own clock; only what passes on it matters.
	// Default: time.Now.
	Now func() time.Time
	// Fault is for tests.
	Fault Fault
}

// Store is an upload store in a directory. All gateways of a process should
// share one Store for a directory; several Stores work too, as gateways of
// different processes do.
type Store struct {
	path  string
	log   *slog.Logger
	now   func() time.Time
	token string // of this store, in every file that it makes
	disk  *disk
	clock *serverClock

	mu       sync.Mutex
	root     *folder   // nil until the directory was seen
	past     []*folder // roots that have vanished
	identity string    // of the directory, once seen
	closed   bool
	entries  map[string]*entry
	watched  map[string]sighting
}

var (
	errClosed  = errors.New("directory: the store is closed")
	errNoStore = errors.New("directory: no upload was ever made here")
)

var (
	_ uploadstore.Store         = (*Store)(nil)
	_ uploadstore.SpaceReporter = (*Store)(nil)
	_ uploadstore.Sweeper       = (*Store)(nil)
)

// Open returns the store in a directory. It touches no file: a directory that
// is away is an error of the operations.
func Open(o Options) (*Store, error) {
	if o.Path == "" {
		return nil, errors.New("directory: the path is empty")
	}
	path, err := filepath.Abs(o.Path)
	if err != nil {
		return nil, fmt.Errorf("directory: %w", err)
	}
	s := &Store{
		path: path, log: o.Logger, now: o.Now, token: rand.Text(), disk: &disk{fault: o.Fault},
		entries: map[string]*entry{}, watched: map[string]sighting{},
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.now == nil {
		s.now = time.Now
	}
	s.clock = &serverClock{now: s.now, log: s.log}
	return s, nil
}

// Close ends this store's writers, without a commit, and waits for what runs
// in the background. Claims stay, and lapse unless another store renews them.
func (s *Store) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	live := make([]*entry, 0, len(s.entries))
	for _, e := range s.entries {
		live = append(live, e)
	}
	s.mu.Unlock()
	for _, e := range live {
		e.end()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.root != nil {
		s.past = append(s.past, s.root)
	}
	for _, root := range s.past {
		root.close()
	}
	s.root, s.past = nil, nil
	return nil
}

// open returns the directory. With make it is created when it is missing,
// without errNoStore says that it is, unless it was seen before: then it has
// vanished, which is a fault.
func (s *Store) open(make bool) (*folder, error) {
	if err := s.disk.alive(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errClosed
	}
	if s.root != nil {
		return s.root, nil
	}
	root, err := os.OpenRoot(s.path)
	if absent(err) && make && s.identity == "" {
		if err := s.makePath(); err != nil {
			return nil, err
		}
		root, err = os.OpenRoot(s.path)
	}
	if err != nil {
		if absent(err) && s.identity == "" {
			return nil, errNoStore
		}
		return nil, fmt.Errorf("opening the upload directory: %v", err)
	}
	f := &folder{s.disk, root, ""}
	identity, err := s.identify(f, make)
	if err != nil {
		f.close()
		return nil, err
	}
	s.root, s.identity = f, identity
	return f, nil
}

// makePath makes the directory and its missing parents, durably.
func (s *Store) makePath() error {
	if err := s.disk.step("mkdir", "."); err != nil {
		return err
	}
	var missing []string
	for p := s.path; ; p = filepath.Dir(p) {
		if _, err := os.Stat(p); err == nil || p == filepath.Dir(p) {
			break
		}
		missing = append(missing, p)
	}
	if err := os.MkdirAll(s.path, 0o700); err != nil {
		return fmt.Errorf("making the upload directory: %w", full(err))
	}
	for _, p := range missing {
		parent, err := os.Open(filepath.Dir(p))
		if err != nil {
			continue // not ours to read; its file system will write it in time
		}
		err = parent.Sync()
		_ = parent.Close()
		if err != nil && !noDirSync(err) {
			return full(err)
		}
	}
	return nil
}

// identify reads the directory's own id, and gives it one if make is set.
func (s *Store) identify(f *folder, make bool) (string, error) {
	b, _, err := f.read(storeFile)
	if absent(err) && s.identity == "" {
		if !make {
			return "", errNoStore
		}
		if err := s.found(f); err != nil {
			return "", err
		}
		b, _, err = f.read(storeFile)
	}
	if err != nil {
		return "", fmt.Errorf("reading the upload directory's own file: %w", err)
	}
	payload, err := unseal(kindStore, b)
	if err != nil {
		return "", fmt.Errorf("%w: %s: %w", uploadstore.ErrBroken, storeFile, err)
	}
	var stored struct{ ID string }
	if err := json.Unmarshal(payload, &stored); err != nil {
		return "", fmt.Errorf("%w: %s: %v", uploadstore.ErrBroken, storeFile, err)
	}
	if s.identity != "" && stored.ID != s.identity {
		return "", errors.New("directory: another upload directory has taken this one's place")
	}
	return stored.ID, nil
}

// found makes what every store has. Several gateways may do so at once.
func (s *Store) found(f *folder) error {
	for _, name := range []string{tempFolder, trashFolder} {
		if err := f.mkdir(name); err != nil && !exists(err) {
			return fmt.Errorf("making the upload directory: %w", err)
		}
	}
	payload, err := json.Marshal(struct{ ID string }{rand.Text()})
	if err != nil {
		return err
	}
	if err := publish(f, storeFile, seal(kindStore, payload), true); err != nil && !exists(err) {
		return fmt.Errorf("making the upload directory: %w", err)
	}
	return f.sync()
}

// missing turns the absence of an upload's files into ErrNotFound, if the
// directory itself is still there.
func (s *Store) missing(root *folder) error {
	there, err := root.has(storeFile)
	if there {
		return uploadstore.ErrNotFound
	}
	s.forget(root)
	if err != nil {
		return fmt.Errorf("looking at the upload directory: %w", err)
	}
	return errors.New("directory: the upload directory has vanished")
}

// forget lets the next call open the directory by its path again.
func (s *Store) forget(root *folder) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.root == root { // others may be using it: it is closed with the store
		s.root = nil
		s.past = append(s.past, root)
	}
}

// publish makes a whole file under a name that must be free (an error that is
// fs.ErrExist otherwise). Readers see all of it or nothing, and a full disk
// leaves nothing; but on file systems without links the file may be half
// written for a moment. Names are relative to the root. With durable the content is
// on disk before the name is there; the name itself is the caller's to sync.
func publish(root *folder, name string, content []byte, durable bool) error {
	temp := tempFolder + "/" + rand.Text()
	err := writeNew(root, temp, content, durable)
	if err == nil {
		if err = root.link(temp, name); err != nil && noLinks(err) {
			err = writeNew(root, name, content, durable)
		}
	}
	if removeErr := root.remove(temp); err == nil && removeErr != nil && !absent(removeErr) {
		err = removeErr
	}
	return err
}

// writeNew makes a file by exclusive create, and makes its content durable if
// asked to.
func writeNew(f *folder, name string, content []byte, durable bool) error {
	file, err := f.create(name)
	if err != nil {
		return err
	}
	if err = file.writeAt(content, 0); err == nil && durable {
		err = file.sync()
	}
	return errors.Join(err, file.close())
}

// validID reports whether an id is of our form, so that it can be a name.
func validID(id string) bool {
	if len(id) != idLength {
		return false
	}
	for i := range len(id) {
		c := id[i]
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_') {
			return false
		}
	}
	return true
}

// place returns an upload's folder below the root. Forward slashes are right
// for os.Root everywhere.
func place(id string) string { return id[:2] + "/" + id }

// Create implements [uploadstore.Store]. The upload is made whole aside and
// moved to its place in one step.
func (s *Store) Create(ctx context.Context, info uploadstore.Info) (uploadstore.Upload, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if !validID(info.ID) || info.Length < uploadstore.UnknownLength || info.ChunkSize < 0 {
		return nil, errors.New("directory: id, length or chunk size is not valid")
	}
	root, err := s.open(true)
	if err != nil {
		return nil, err
	}
	token := rand.Text()
	payload, err := encodeInfo(info, token)
	if err != nil {
		return nil, fmt.Errorf("creating an upload: %w", err)
	}
	if err := s.create(root, info.ID, token, seal(kindInfo, payload)); err != nil {
		return nil, fmt.Errorf("creating upload %s: %w", shortID(info.ID), err)
	}
	stored, _, err := decodeInfo(payload) // as a later Open sees it
	return &upload{store: s, id: info.ID, info: stored}, err
}

func (s *Store) create(root *folder, id, token string, info []byte) error {
	temp := tempFolder + "/" + token
	if err := s.prepare(root, temp, info); err != nil {
		removeAll(root, temp)
		return err
	}
	if err := root.mkdir(id[:2]); err == nil {
		if err := root.sync(); err != nil {
			return err
		}
	} else if !exists(err) {
		removeAll(root, temp)
		return err
	}
	if err := root.rename(temp, place(id)); err != nil {
		// The name is taken, or the file server was asked twice and this
		// answer is the second.
		mine, there := s.made(root, id, token)
		if !mine {
			removeAll(root, temp)
			if there || exists(err) {
				return uploadstore.ErrExists
			}
			return err
		}
	}
	parent, err := root.sub(id[:2])
	if err != nil {
		return err
	}
	defer parent.close()
	return parent.sync()
}

// prepare makes an upload's folder aside.
func (s *Store) prepare(root *folder, temp string, info []byte) error {
	if err := root.mkdir(temp); err != nil {
		return err
	}
	f, err := root.sub(temp)
	if err != nil {
		return err
	}
	defer f.close()
	if err := writeNew(f, "info", info, true); err != nil {
		return err
	}
	data, err := f.create("data")
	if err != nil {
		return err
	}
	if err := data.close(); err != nil {
		return err
	}
	return f.sync()
}

func (s *Store) made(root *folder, id, token string) (mine, there bool) {
	b, _, err := root.read(place(id) + "/info")
	if err != nil {
		return false, false
	}
	payload, err := unseal(kindInfo, b)
	if err != nil {
		return false, true
	}
	_, got, err := decodeInfo(payload)
	return err == nil && got == token, true
}

// Open implements [uploadstore.Store].
func (s *Store) Open(ctx context.Context, id string) (uploadstore.Upload, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if !validID(id) {
		return nil, uploadstore.ErrNotFound
	}
	u := &upload{store: s, id: id}
	f, err := u.folder()
	if err != nil {
		return nil, err
	}
	defer f.close()
	u.info, err = readInfo(f, id)
	if absent(err) {
		return nil, uploadstore.ErrNotFound // an orphan, or just being removed
	}
	if err != nil {
		return nil, err
	}
	return u, nil
}

func readInfo(f *folder, id string) (uploadstore.Info, error) {
	b, _, err := f.read("info")
	if err != nil {
		return uploadstore.Info{}, err
	}
	payload, err := unseal(kindInfo, b)
	if err != nil {
		return uploadstore.Info{}, broken("info", err)
	}
	info, _, err := decodeInfo(payload)
	if err != nil {
		return uploadstore.Info{}, broken("info", err)
	}
	if info.ID != id { // a file system that does not tell a from A
		return uploadstore.Info{}, fs.ErrNotExist
	}
	return info, nil
}

func broken(name string, err error) error {
	return fmt.Errorf("%w: %s: %w", uploadstore.ErrBroken, name, err)
}

// All implements [uploadstore.Store].
func (s *Store) All(ctx context.Context) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		root, err := s.open(false)
		if errors.Is(err, errNoStore) {
			return
		}
		if err == nil {
			err = s.each(ctx, root, func(_ *folder, id string) bool { return yield(id, nil) })
		}
		if err != nil {
			yield("", fmt.Errorf("listing uploads: %w", err))
		}
	}
}

// each calls do for every folder that has the name of an upload, with the
// folder above it, until do says no.
func (s *Store) each(ctx context.Context, root *folder, do func(parent *folder, id string) bool) error {
	if there, err := root.has(storeFile); err != nil || !there {
		return cmpErr(err, s.missing(root))
	}
	var inner error
	more := true
	err := root.names(func(e fs.DirEntry) bool {
		if !e.IsDir() || len(e.Name()) != 2 {
			return true
		}
		more, inner = s.eachBelow(ctx, root, e.Name(), do)
		return more && inner == nil
	})
	return cmpErr(inner, err)
}

func (s *Store) eachBelow(ctx context.Context, root *folder, prefix string, do func(*folder, string) bool) (more bool, err error) {
	parent, err := root.sub(prefix)
	if err != nil {
		return true, err
	}
	defer parent.close()
	more = true
	var done error
	err = parent.names(func(e fs.DirEntry) bool {
		if done = ctx.Err(); done != nil {
			return false
		}
		if id := e.Name(); e.IsDir() && validID(id) && id[:2] == prefix {
			more = do(parent, id)
		}
		return more
	})
	return more, cmpErr(done, err)
}

// cmpErr returns the first error that is one.
func cmpErr(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
