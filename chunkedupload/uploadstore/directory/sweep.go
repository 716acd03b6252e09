package directory

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/gatehouse-gateway/gatehouse/chunkedupload/uploadstore"
)

const (
	staleTemp   = time.Hour      // what is still being made after that long is left over
	staleOrphan = 24 * time.Hour // a folder without info
)

// Delete implements [uploadstore.Upload]. From the mark on the upload is gone
// for everybody, wherever a crash stops the rest.
func (u *upload) Delete(ctx context.Context) error {
	return u.with(ctx, "deleting upload", func(f *folder) error {
		if err := checkVersions(f); err != nil {
			return err
		}
		root, err := u.store.open(false)
		if err != nil {
			return err
		}
		err = writeNew(f, "aborted", seal(kindAborted, nil), false)
		switch {
		case exists(err):
			return uploadstore.ErrNotFound // somebody else deletes it
		case errors.Is(err, uploadstore.ErrFull):
			// Moving it away needs no space, and is as good a mark.
		case err != nil:
			return err
		default:
			if err := f.sync(); err != nil {
				return err
			}
		}
		u.store.discard(root, u.id)
		if there, err := u.there(root); err != nil || there {
			return cmpErr(err, errors.New("the upload could neither be marked nor moved"))
		}
		return nil
	})
}

// there reports whether Open would find the upload.
func (u *upload) there(root *folder) (bool, error) {
	aborted, err := root.has(place(u.id) + "/aborted")
	if err != nil || aborted {
		return false, err
	}
	return root.has(place(u.id) + "/info")
}

// discard moves an upload's folder away in one step and removes it. What fails
// is done by a later Sweep.
func (s *Store) discard(root *folder, id string) {
	trash := trashFolder + "/" + id + "." + rand.Text()
	err := root.rename(place(id), trash)
	if err == nil {
		if parent, subErr := root.sub(id[:2]); subErr == nil {
			err = parent.sync()
			parent.close()
		}
		err = cmpErr(err, removeAll(root, trash))
	}
	if err != nil && !absent(err) && !errors.Is(err, ErrKilled) {
		s.log.Warn("a deleted upload's files are still there", "upload", shortID(id), "error", err)
	}
}

// removeAll removes a folder of ours and the files in it.
func removeAll(root *folder, name string) error {
	f, err := root.sub(name)
	if absent(err) {
		return nil
	}
	if err != nil {
		return err
	}
	var names []string
	err = f.names(func(e fs.DirEntry) bool { names = append(names, e.Name()); return true })
	for _, n := range names {
		if n == "aborted" || n == "info" {
			continue
		}
		if rmErr := f.remove(n); rmErr != nil && !absent(rmErr) {
			err = cmpErr(err, rmErr)
		}
	}
	// The marks go last, for those who hold the folder open.
	for _, n := range []string{"info", "aborted"} {
		if rmErr := f.remove(n); rmErr != nil && !absent(rmErr) {
			err = cmpErr(err, rmErr)
		}
	}
	f.close()
	if rmErr := root.remove(name); rmErr != nil && !absent(rmErr) {
		err = cmpErr(err, rmErr)
	}
	return err
}

// checkVersions refuses a folder in which any file is of a later version.
func checkVersions(f *folder) error {
	var newer string
	err := f.names(func(e fs.DirEntry) bool {
		if e.Name() != "data" && e.Type().IsRegular() && isNewer(f, e.Name()) {
			newer = e.Name()
		}
		return newer == ""
	})
	if newer != "" {
		return broken(newer, errNewer)
	}
	return err
}

func isNewer(f *folder, name string) bool {
	file, err := f.open(name)
	if err != nil {
		return false
	}
	defer file.Close()
	b := make([]byte, maxHeader)
	n, _ := file.ReadAt(b, 0)
	return newerVersion(b[:n])
}

// Sweep implements [uploadstore.Sweeper]: it removes the trash, what crashes
// left half made, uploads whose deletion was cut off, and folders that have had
// no info for a day. Files that are not of our making stay.
func (s *Store) Sweep(ctx context.Context) error {
	root, err := s.open(false)
	if errors.Is(err, errNoStore) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("sweeping uploads: %w", err)
	}
	now := s.clock.time(root)
	err = errors.Join(
		s.sweepFolder(ctx, root, trashFolder, now, 0),
		s.sweepFolder(ctx, root, tempFolder, now, staleTemp),
		s.each(ctx, root, func(parent *folder, id string) bool {
			s.sweepUpload(root, parent, id, now)
			return true
		}))
	if err != nil {
		return fmt.Errorf("sweeping uploads: %w", err)
	}
	return nil
}

func (s *Store) sweepFolder(ctx context.Context, root *folder, name string, now time.Time, age time.Duration) error {
	f, err := root.sub(name)
	if err != nil {
		return err
	}
	defer f.close()
	var stopped error
	err = f.names(func(e fs.DirEntry) bool {
		if stopped = ctx.Err(); stopped != nil {
			return false
		}
		if age > 0 && !olderThan(e, now, age) {
			return true
		}
		var err error
		if e.IsDir() {
			if below, openErr := f.sub(e.Name()); openErr == nil {
				err = checkVersions(below)
				below.close()
			}
			if err == nil {
				err = removeAll(f, e.Name())
			}
		} else {
			err = f.remove(e.Name())
		}
		if err != nil && !absent(err) && !errors.Is(err, ErrKilled) {
			s.log.Warn("a leftover could not be removed", "error", err)
		}
		return true
	})
	return cmpErr(stopped, err)
}

func olderThan(e fs.DirEntry, now time.Time, age time.Duration) bool {
	info, err := e.Info()
	return err == nil && now.Sub(info.ModTime()) > age
}

func (s *Store) sweepUpload(root, parent *folder, id string, now time.Time) {
	aborted, err := parent.has(id + "/aborted")
	if err != nil {
		return
	}
	if !aborted {
		there, err := parent.has(id + "/info")
		if err != nil || there || !s.orphan(parent, id, now) {
			return
		}
	}
	f, err := parent.sub(id)
	if err != nil {
		return
	}
	err = checkVersions(f)
	f.close()
	if err == nil {
		s.discard(root, id)
	}
}

func (s *Store) orphan(parent *folder, id string, now time.Time) bool {
	f, err := parent.open(id)
	if err != nil {
		return false
	}
	defer f.Close()
	info, err := f.Stat()
	return err == nil && now.Sub(info.ModTime()) > staleOrphan
}

// Free implements [uploadstore.SpaceReporter], for the file system that the
// directory is on or will be made on. Quotas of the file system are not seen.
func (s *Store) Free(ctx context.Context) (free, total int64, err error) {
	if err := ctx.Err(); err != nil {
		return 0, 0, err
	}
	for path := s.path; ; path = filepath.Dir(path) {
		free, total, err = space(path)
		if !errors.Is(err, os.ErrNotExist) || path == filepath.Dir(path) {
			break
		}
	}
	if err != nil {
		return 0, 0, fmt.Errorf("asking for free space: %w", err)
	}
	return free, total, nil
}
