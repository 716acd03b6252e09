//go:build linux && (amd64 || arm64)

package directory

import (
	"os"
	"syscall"
)

// writeBack starts to write [from, to) to the disk and waits until the window
// of the same size before it is there, so that a fast sender cannot fill the
// memory with unwritten bytes and the commit finds little left to do. It makes
// nothing durable and reports no errors that a later sync would not report.
func writeBack(f *os.File, from, to int64) error {
	const waitBefore, write, waitAfter = 1, 2, 4 // SYNC_FILE_RANGE_*, linux/fs.h
	size := to - from
	return control(f, func(fd int) error {
		if from >= size {
			_ = syscall.SyncFileRange(fd, from-size, size, waitBefore|write|waitAfter)
		}
		return syscall.SyncFileRange(fd, from, size, write)
	})
}
