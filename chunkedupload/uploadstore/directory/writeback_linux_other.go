//go:build linux && !amd64 && !arm64

package directory

import "os"

// writeBack is not needed for correctness: the commit writes all.
func writeBack(*os.File, int64, int64) error { return nil }
