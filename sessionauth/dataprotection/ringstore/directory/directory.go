// Package directory keeps a key ring as files in one directory, in the layout
// that ASP.NET Core Data Protection uses for its file system repository: every
// *.xml file is one element.
//
// Files are written to a temporary name, synced, renamed, and the directory is
// synced, so a reader sees a whole element or none and an acknowledged element
// survives a power loss. Several processes, on several machines, may share the
// directory over NFS or SMB.
package directory

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/gatehouse-gateway/gatehouse/sessionauth/dataprotection/ringstore"
)

const (
	extension    = ".xml"
	maxFileBytes = 1 << 20 // of one element; real ones have up to 10 KiB
	maxFiles     = 10_000  // elements of a ring
	listAttempts = 5       // of reading a directory that changes meanwhile
)

// header begins every file that is written: a byte order mark and the XML
// declaration, as .NET writes them.
const header = "\ufeff<?xml version=\"1.0\" encoding=\"utf-8\"?>\n"

// goodName is what .NET accepts as the name of an element.
var goodName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,200}$`)

// Repository is a directory of elements. It is safe for concurrent use and
// holds nothing open between calls.
type Repository struct {
	path string
	seen atomic.Bool // the directory has existed
}

var (
	_ ringstore.Repository = (*Repository)(nil)
	_ ringstore.Locker     = (*Repository)(nil)
)

// New returns the repository at path. It does no I/O: a directory that does
// not exist is an empty ring, and the first Add creates it with mode 0700.
func New(path string) *Repository { return &Repository{path: path} }

// Elements reads every *.xml file of the directory, not of those below it. One
// file that cannot be read fails the whole call. A directory that was there
// before and is gone is ringstore.ErrUnavailable, not an empty ring: most
// likely its file system is not mounted.
func (r *Repository) Elements(ctx context.Context) ([]ringstore.Element, error) {
	for attempt := 1; ; attempt++ {
		elements, err := r.readAll(ctx)
		// A file that vanished between the listing and the reading: look again.
		if errors.Is(err, errVanished) && attempt < listAttempts {
			continue
		}
		return elements, err
	}
}

var errVanished = errors.New("a listed file has vanished")

func (r *Repository) readAll(ctx context.Context) ([]ringstore.Element, error) {
	root, err := os.OpenRoot(r.path)
	if errors.Is(err, fs.ErrNotExist) {
		if r.seen.Load() {
			return nil, fmt.Errorf("%w: the key ring directory has vanished", ringstore.ErrUnavailable)
		}
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("opening the key ring directory: %w", classify(err))
	}
	defer root.Close()
	r.seen.Store(true)

	names, err := list(root)
	if err != nil {
		return nil, fmt.Errorf("listing the key ring directory: %w", classify(err))
	}
	elements := make([]ringstore.Element, 0, len(names))
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		content, err := readFile(root, name)
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", name, classify(err))
		}
		elements = append(elements, ringstore.Element{Name: strings.TrimSuffix(name, extension), XML: content})
	}
	return elements, nil
}

// list returns the names of the element files, sorted.
func list(root *os.Root) ([]string, error) {
	dir, err := root.Open(".")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	entries, err := dir.ReadDir(-1)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, entry := range entries {
		if strings.HasSuffix(entry.Name(), extension) && !entry.IsDir() {
			names = append(names, entry.Name())
		}
	}
	if len(names) > maxFiles {
		return nil, fmt.Errorf("more than %d elements", maxFiles)
	}
	slices.Sort(names)
	return names, nil
}

func readFile(root *os.Root, name string) ([]byte, error) {
	// Look before opening: opening a named pipe would wait for its writer.
	info, err := root.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errVanished
	}
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("not a regular file")
	}
	file, err := root.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errVanished
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, maxFileBytes+1))
	if err != nil {
		return nil, err
	}
	if len(content) > maxFileBytes {
		return nil, fmt.Errorf("larger than %d bytes", maxFileBytes)
	}
	return content, nil
}

// Add writes the element to <name>.xml with mode 0600. A name that is not made
// of letters, digits, "-" and "_" is replaced by a fresh one, as .NET does. A
// file of that name is never overwritten: the error is fs.ErrExist.
func (r *Repository) Add(ctx context.Context, name string, xml []byte) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	root, err := r.create()
	if err != nil {
		return err
	}
	defer root.Close()
	if !goodName.MatchString(name) {
		name = rand.Text()
	}
	if err := writeFile(root, name+extension, xml); err != nil {
		return fmt.Errorf("storing %s: %w", name+extension, classify(err))
	}
	return nil
}

// create opens the directory, and makes it first where it is missing.
func (r *Repository) create() (*os.Root, error) {
	if err := os.MkdirAll(r.path, 0o700); err != nil {
		return nil, fmt.Errorf("creating the key ring directory: %w", classify(err))
	}
	root, err := os.OpenRoot(r.path)
	if err != nil {
		return nil, fmt.Errorf("opening the key ring directory: %w", classify(err))
	}
	r.seen.Store(true)
	return root, nil
}

func writeFile(root *os.Root, name string, xml []byte) (err error) {
	if _, err := root.Lstat(name); err == nil {
		return fs.ErrExist
	}
	temp := rand.Text() + ".tmp"
	file, err := root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = root.Remove(temp)
		}
	}()
	_, err = io.Copy(file, io.MultiReader(strings.NewReader(header), bytes.NewReader(xml)))
	if err == nil {
		err = file.Sync()
	}
	if err := errors.Join(err, file.Close()); err != nil {
		return err
	}
	if err := root.Rename(temp, name); err != nil {
		return err
	}
	return syncDirectory(root)
}

// syncDirectory makes a rename durable.
func syncDirectory(root *os.Root) error {
	dir, err := root.Open(".")
	if err != nil {
		return err
	}
	err = dir.Sync()
	// Some file systems cannot sync a directory; their renames are durable by
	// themselves or not at all.
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, errors.ErrUnsupported) {
		err = nil
	}
	return errors.Join(err, dir.Close())
}

// away are the errors of a network file system whose server does not answer.
var away = []error{
	syscall.ESTALE, syscall.ETIMEDOUT, syscall.EHOSTDOWN, syscall.EHOSTUNREACH,
	syscall.ENETUNREACH, syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.ENOTCONN,
}

// classify tells a share that is away from files that cannot be read.
func classify(err error) error {
	for _, cause := range away {
		if errors.Is(err, cause) {
			return fmt.Errorf("%w: %w", ringstore.ErrUnavailable, err)
		}
	}
	return err
}
