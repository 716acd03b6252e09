package servers

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// Main runs a package's tests with a server that start makes in a folder of its
// own, for TestMain. Goroutines that are left fail the package. It ends the
// process.
func Main(m *testing.M, start func(dir string) (stop func(), err error)) {
	os.Exit(run(m, start))
}

// MainRedis is Main with a Redis server.
func MainRedis(m *testing.M, server **Redis, args ...string) {
	Main(m, func(dir string) (stop func(), err error) {
		*server, err = NewRedis(dir, args...)
		return (*server).Kill, err
	})
}

func run(m *testing.M, start func(dir string) (stop func(), err error)) int {
	dir, err := os.MkdirTemp("", "gatehouse-tests-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	stop, err := start(dir)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	stop() // before goroutines are counted
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return code
}
