package directory

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/gatehouse-gateway/gatehouse/chunkedupload/uploadstore"
)

// Fault is called before every step that changes the directory, with the step
// and the file's path below the root. It is for tests: an error makes the step
// fail, and one that wraps ErrKilled makes the store do nothing from then on,
// as if its process had been killed there.
type Fault func(step, name string) error

// What a Fault may return. ErrTorn kills in the middle of a write.
var (
	ErrKilled = errors.New("directory: killed by a test")
	ErrTorn   = fmt.Errorf("%w in a write", ErrKilled)
)

// disk is where every file operation passes, so that faults can be put in.
type disk struct {
	fault Fault
	dead  atomic.Bool
}

func (d *disk) step(step, name string) error {
	if d.fault == nil {
		return nil
	}
	if d.dead.Load() {
		return ErrKilled
	}
	err := d.fault(step, name)
	if errors.Is(err, ErrKilled) {
		d.dead.Store(true)
	}
	return full(err)
}

// alive fails reads of a store that a test has killed.
func (d *disk) alive() error {
	if d.fault != nil && d.dead.Load() {
		return ErrKilled
	}
	return nil
}

// full marks errors that mean no space as ErrFull, and keeps whole ids out of
// all errors: they end in logs, and an id can be all that it takes to use an
// upload.
func full(err error) error {
	hideIDs(err)
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EFBIG) || platformFull(err) {
		return fmt.Errorf("%w: %w", uploadstore.ErrFull, err)
	}
	return err
}

// hideIDs shortens the ids in the paths of an error of package os.
func hideIDs(err error) {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		e.Path = shortPath(e.Path)
	}
	if e, ok := errors.AsType[*os.LinkError](err); ok {
		e.Old, e.New = shortPath(e.Old), shortPath(e.New)
	}
	if e, ok := errors.AsType[*os.SyscallError](err); ok {
		hideIDs(e.Err)
	}
}

// shortPath shortens the names in a path that begin with an id.
func shortPath(path string) string {
	elements := strings.Split(path, string(filepath.Separator))
	for i, name := range elements {
		if len(name) >= idLength && validID(name[:idLength]) {
			elements[i] = shortID(name) + name[idLength:]
		}
	}
	return strings.Join(elements, string(filepath.Separator))
}

// shortID is what errors and logs show of an id.
func shortID(id string) string { return id[:min(len(id), 8)] }

func absent(err error) bool { return errors.Is(err, fs.ErrNotExist) }
func exists(err error) bool { return errors.Is(err, fs.ErrExist) }

// folder is an open directory. Names are of our making and have one element,
// but at the root, where they may name files of an upload.
type folder struct {
	disk *disk
	root *os.Root
	path string // below the store's root, for faults
}

func (f *folder) close() { _ = f.root.Close() }

func (f *folder) step(step, name string) error {
	if f.disk.fault == nil {
		return nil
	}
	return f.disk.step(step, path.Join(f.path, name))
}

// sub opens a folder below.
func (f *folder) sub(name string) (*folder, error) {
	if err := f.disk.alive(); err != nil {
		return nil, err
	}
	root, err := f.root.OpenRoot(name)
	if err != nil {
		return nil, full(err)
	}
	return &folder{f.disk, root, path.Join(f.path, name)}, nil
}

// open opens a file to read. It is how the store learns whether a file is
// there: clients of file servers answer a stat or a listing from old memory,
// but ask the server when a file is opened.
func (f *folder) open(name string) (*os.File, error) {
	if err := f.disk.alive(); err != nil {
		return nil, err
	}
	file, err := f.root.Open(name)
	return file, full(err)
}

// has reports whether a file is there.
func (f *folder) has(name string) (bool, error) {
	file, err := f.open(name)
	if absent(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, full(file.Close())
}

// maxStateFile bounds what is read of a state file; all are far smaller.
const maxStateFile = 64 << 20

// read returns a whole state file and when it was last written.
func (f *folder) read(name string) (b []byte, written time.Time, err error) {
	file, err := f.open(name)
	if err != nil {
		return nil, time.Time{}, err
	}
	defer file.Close()
	stat, err := file.Stat()
	if err != nil {
		return nil, time.Time{}, full(err)
	}
	if stat.Size() > maxStateFile || !stat.Mode().IsRegular() {
		return nil, stat.ModTime(), fmt.Errorf("%s: %w", name, errGarbage)
	}
	b = make([]byte, stat.Size(), stat.Size()+1)
	n, err := io.ReadFull(file, b)
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		err = nil
	}
	return b[:n], stat.ModTime(), full(err)
}

// create makes a file that must not have been there.
func (f *folder) create(name string) (*file, error) {
	if err := f.step("create", name); err != nil {
		return nil, err
	}
	osFile, err := f.root.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, full(err)
	}
	return &file{f, osFile, name}, nil
}

// edit opens a file that is there to write at offsets.
func (f *folder) edit(name string) (*file, error) {
	if err := f.disk.alive(); err != nil {
		return nil, err
	}
	osFile, err := f.root.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return nil, full(err)
	}
	return &file{f, osFile, name}, nil
}

// show writes so that others see it: clients of file servers send what they
// hold back when a file is closed. It is not durable.
func (f *folder) show(name string, b []byte, offset int64) error {
	file, err := f.edit(name)
	if err != nil {
		return err
	}
	return errors.Join(file.writeAt(b, offset), file.close())
}

func (f *folder) mkdir(name string) error {
	if err := f.step("mkdir", name); err != nil {
		return err
	}
	return full(f.root.Mkdir(name, 0o700))
}

func (f *folder) rename(from, to string) error {
	if err := f.step("rename", to); err != nil {
		return err
	}
	return full(f.root.Rename(from, to))
}

func (f *folder) link(from, to string) error {
	if err := f.step("link", to); err != nil {
		return err
	}
	return full(f.root.Link(from, to))
}

func (f *folder) remove(name string) error {
	if err := f.step("remove", name); err != nil {
		return err
	}
	return full(f.root.Remove(name))
}

// sync makes names created, renamed or removed in the folder durable, as far
// as the file system can.
func (f *folder) sync() error {
	if err := f.step("syncdir", ""); err != nil {
		return err
	}
	dir, err := f.root.Open(".")
	if err != nil {
		return full(err)
	}
	defer dir.Close()
	if err := dir.Sync(); err != nil && !noDirSync(err) {
		return full(err)
	}
	return nil
}

// names lists the folder, in pieces so that a large one costs no memory. It is
// for clean-up and enumeration; nothing is decided by what it leaves out.
func (f *folder) names(yield func(fs.DirEntry) bool) error {
	dir, err := f.open(".")
	if err != nil {
		return err
	}
	defer dir.Close()
	for {
		entries, err := dir.ReadDir(256)
		for _, e := range entries {
			if !yield(e) {
				return nil
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return full(err)
		}
	}
}

// file is an open file of ours.
type file struct {
	folder *folder
	os     *os.File
	name   string
}

func (f *file) writeAt(b []byte, offset int64) error {
	if err := f.folder.step("write", f.name); err != nil {
		if errors.Is(err, ErrTorn) {
			_, _ = f.os.WriteAt(b[:len(b)/2], offset)
		}
		return err
	}
	_, err := f.os.WriteAt(b, offset)
	return full(err)
}

// sync makes the file's content durable. Disks and file servers report here
// what went wrong with earlier writes.
func (f *file) sync() error {
	if err := f.folder.step("sync", f.name); err != nil {
		return err
	}
	return full(syncData(f.os))
}

func (f *file) close() error {
	if err := f.folder.step("close", f.name); err != nil {
		_ = f.os.Close()
		return err
	}
	return full(f.os.Close())
}

// put writes a file that may be there already and means nothing when it is
// torn.
func (f *folder) put(name string, b []byte) error {
	if err := f.step("put", name); err != nil {
		return err
	}
	osFile, err := f.root.OpenFile(name, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return full(err)
	}
	out := &file{f, osFile, name}
	return errors.Join(out.writeAt(b, 0), out.close())
}
