package uploadstore

import "context"

// SpaceReporter is the optional ability of a store to tell how much space is
// left, so that an upload that cannot fit is refused before its bytes come.
type SpaceReporter interface {
	// Free returns the bytes that this process may still write and the size
	// of the whole. It is a snapshot; ErrFull may come all the same.
	Free(ctx context.Context) (free, total int64, err error)
}

// Sweeper is the optional ability of a store to remove what crashes left
// behind and what belongs to no upload. It is called by the clean-up loop, on
// every gateway, at any time.
type Sweeper interface {
	Sweep(ctx context.Context) error
}
