//go:build linux && (amd64 || arm64)

package directory

import (
	"os"
	"syscall"
)

// writeBack writes [from, to) to the disk and waits until it is there. It makes
// nothing durable, and reports no errors that a later sync would not report.
func writeBack(f *os.File, from, to int64) error {
	const waitBefore, write, waitAfter = 1, 2, 4 // SYNC_FILE_RANGE_*, linux/fs.h
	return control(f, func(fd int) error {
		return syscall.SyncFileRange(fd, from, to-from, waitBefore|write|waitAfter)
	})
}
