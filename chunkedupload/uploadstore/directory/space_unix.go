//go:build linux || darwin || freebsd

package directory

import (
	"errors"
	"syscall"
)

func platformFull(error) bool { return false }

// noDirSync reports whether err says that this file system cannot sync
// directories, as on SMB: then the server's own order has to do.
func noDirSync(err error) bool {
	return errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOTSUP) || errors.Is(err, syscall.EBADF)
}

// noLinks reports whether err says that the file system has no hard links.
func noLinks(err error) bool {
	return errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOTSUP) || errors.Is(err, syscall.ENOSYS) ||
		errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.EMLINK)
}

// stale reports whether err says that a file server has forgotten our handle.
func stale(err error) bool { return errors.Is(err, syscall.ESTALE) }

func space(path string) (free, total int64, err error) {
	var s syscall.Statfs_t
	for {
		if err = syscall.Statfs(path, &s); !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	return int64(s.Bavail) * int64(s.Bsize), int64(s.Blocks) * int64(s.Bsize), err
}
