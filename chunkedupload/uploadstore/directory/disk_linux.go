package directory

import (
	"errors"
	"os"
	"syscall"
)

// syncData makes content and size durable and leaves times to a later moment.
func syncData(f *os.File) error { return control(f, syscall.Fdatasync) }

func control(f *os.File, call func(fd int) error) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var callErr error
	err = conn.Control(func(fd uintptr) {
		for {
			if callErr = call(int(fd)); !errors.Is(callErr, syscall.EINTR) {
				return
			}
		}
	})
	return errors.Join(err, callErr)
}
