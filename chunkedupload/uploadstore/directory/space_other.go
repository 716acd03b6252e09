//go:build !(linux || darwin || freebsd)

package directory

import (
	"errors"
	"math"
	"syscall"
)

// platformFull knows the words of Windows: ERROR_HANDLE_DISK_FULL and
// ERROR_DISK_FULL.
func platformFull(err error) bool {
	return errors.Is(err, syscall.Errno(39)) || errors.Is(err, syscall.Errno(112))
}

// Directories cannot be synced here.
func noDirSync(error) bool { return true }

// Any failure of a link is answered by an exclusive create, which decides as
// well.
func noLinks(err error) bool { return !exists(err) && !absent(err) }

func stale(error) bool { return false }

// space is not known here: nothing is refused beforehand.
func space(string) (free, total int64, err error) { return math.MaxInt64, math.MaxInt64, nil }
