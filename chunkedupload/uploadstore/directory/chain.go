package directory

import "strconv"

// A chain is a series of files name.0, name.1, … in which each next number is
// made by exclusive create. Its end is found by opening names alone. So that a
// long chain needs few files and few looks, files may be removed from it once a
// later one has made them meaningless, but for heads: the first of each group
// of 16 stays until the first of the next 256 is there, and the first of each
// 256 stays for good. Whoever created a number, or believes one to be the last,
// while the chain went on and was trimmed, finds a later head.
type chain string

const (
	groupSize   = 16
	segmentSize = 256
)

const (
	writerChain chain = "w."
	chunkChain  chain = "j."
	claimChain  chain = "claim."
)

func (c chain) name(n int64) string { return string(c) + strconv.FormatInt(n, 10) }

// last returns the highest number, or -1.
func (c chain) last(f *folder) (int64, error) {
	n := int64(0)
	if there, err := f.has(c.name(0)); err != nil || !there {
		return -1, err
	}
	for _, stride := range []int64{segmentSize, groupSize, 1} {
		for {
			there, err := f.has(c.name(n + stride))
			if err != nil {
				return -1, err
			}
			if !there {
				break
			}
			n += stride
		}
	}
	return n, nil
}

// follow returns a number behind n that exists, or n if it was the last at the
// time of the call, whatever has been trimmed. The order of the looks matters:
// a missing next file was there and trimmed only if a head after it is there.
func (c chain) follow(f *folder, n int64) (int64, error) {
	for _, next := range []int64{n + 1, nextHead(n, groupSize), nextHead(n, segmentSize)} {
		if there, err := f.has(c.name(next)); err != nil || there {
			return next, err
		}
	}
	return n, nil
}

func nextHead(n, size int64) int64 { return (n/size + 1) * size }

// trimmed returns the numbers that nobody needs once n is durable and holds
// all that matters of the files before it. Only the first few of a group name
// any, which is often enough.
func trimmed(n int64) []int64 {
	var gone []int64
	if start := n / groupSize * groupSize; start > 0 && n-start < 4 {
		for i := start - groupSize + 1; i < start; i++ {
			gone = append(gone, i)
		}
	}
	if start := n / segmentSize * segmentSize; start > 0 && n-start < 4 {
		for i := start - segmentSize + groupSize; i < start; i += groupSize {
			gone = append(gone, i)
		}
	}
	return gone
}
