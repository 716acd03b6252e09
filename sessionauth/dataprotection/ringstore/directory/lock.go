package directory

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"time"
)

const (
	lockName = "key-creation.lock"
	// staleAfter is how long a waiter watches one unchanged lock before it
	// takes its holder for dead. A holder needs milliseconds. The waiter's own
	// monotonic clock decides, so machines with other clocks agree.
	staleAfter = 5 * time.Second
	lockPoll   = 25 * time.Millisecond
)

// Lock creates the lock file exclusively and waits while another process has
// it. The file of a dead holder is removed after five seconds. It creates the
// directory where that is missing.
func (r *Repository) Lock(ctx context.Context) (unlock func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	root, err := r.create()
	if err != nil {
		return nil, err
	}
	mark := rand.Text()
	if err := acquire(ctx, root, mark); err != nil {
		return nil, errors.Join(fmt.Errorf("locking the key ring directory: %w", classify(err)), root.Close())
	}
	return func() {
		// Not ours any more when a waiter took this process for dead.
		if holder, err := identify(root); err == nil && holder.mark == mark {
			_ = root.Remove(lockName)
		}
		_ = root.Close()
	}, nil
}

func acquire(ctx context.Context, root *os.Root, mark string) error {
	poll := time.NewTicker(lockPoll)
	defer poll.Stop()
	var seen holder
	var since time.Time
	for {
		err := tryCreate(root, mark)
		if !errors.Is(err, fs.ErrExist) {
			return err
		}
		switch current, err := identify(root); {
		case errors.Is(err, fs.ErrNotExist):
			continue // released meanwhile
		case err != nil:
			return err
		case current != seen:
			seen, since = current, time.Now()
		case time.Since(since) >= staleAfter:
			if err := evict(root, seen); err != nil {
				return err
			}
			continue
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-poll.C:
		}
	}
}

func tryCreate(root *os.Root, mark string) error {
	file, err := root.OpenFile(lockName, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.WriteString(file, mark)
	if err := errors.Join(err, file.Close()); err != nil {
		return errors.Join(err, root.Remove(lockName))
	}
	return nil
}

// holder tells one holding of the lock from another, also one that has not yet
// written its mark.
type holder struct {
	mark    string
	changed string
}

func identify(root *os.Root) (holder, error) { return identifyFile(root, lockName) }

func identifyFile(root *os.Root, name string) (holder, error) {
	file, err := root.Open(name)
	if err != nil {
		return holder{}, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return holder{}, err
	}
	mark, err := io.ReadAll(io.LimitReader(file, 128))
	if err != nil {
		return holder{}, err
	}
	return holder{mark: string(mark), changed: strconv.FormatInt(info.ModTime().UnixNano(), 36)}, nil
}

// evict removes the lock of a dead holder. Of several waiters that do so at
// once the rename lets one win; a waiter that caught a newer lock, because
// another was faster, puts it back.
func evict(root *os.Root, dead holder) error {
	aside := lockName + "." + rand.Text() + ".tmp"
	err := root.Rename(lockName, aside)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if caught, err := identifyFile(root, aside); err == nil && caught != dead {
		_ = root.Link(aside, lockName) // fails where a third one holds it already
	}
	return root.Remove(aside)
}
