package dataprotection

import (
	"crypto/sha512"
	"encoding"
	"encoding/binary"
	"hash"
	"sync"
)

// derivation makes the keys of single tokens from a master key: SP 800-108 in
// counter mode with HMAC-SHA512. Block i of the output is
//
//	HMAC(master, i | label | 00 | context header | context | output bits)
//
// Only the context, a token's key modifier, differs between tokens of one key
// and one chain of purposes. So the hash states up to there are kept, and a
// token costs the hashing of what follows.
type derivation struct {
	inner [][]byte // per output block: the state after key, counter, label, header
	outer []byte   // the state after the outer key block
	size  int      // of the output, in bytes
}

func newDerivation(master, label, header []byte, size int) *derivation {
	if len(master) > sha512.BlockSize { // FIPS 198-1, step 2
		sum := sha512.Sum512(master)
		master = sum[:]
	}
	d := &derivation{size: size}
	var block [sha512.BlockSize]byte
	pad(block[:], master, 0x5c)
	d.outer = hashState(block[:])
	pad(block[:], master, 0x36)
	for i := range (size + sha512.Size - 1) / sha512.Size {
		counter := binary.BigEndian.AppendUint32(nil, uint32(i+1))
		d.inner = append(d.inner, hashState(block[:], counter, label, []byte{0}, header))
	}
	clear(block[:])
	return d
}

// hashState returns the state of SHA-512 after the parts.
func hashState(parts ...[]byte) []byte {
	h := sha512.New()
	for _, part := range parts {
		h.Write(part)
	}
	return must(h.(encoding.BinaryMarshaler).MarshalBinary())
}

// hasher is a SHA-512 whose state can be set, with room for what goes through
// it: arguments of interface calls would otherwise be allocated.
type hasher struct {
	hash.Hash
	set  encoding.BinaryUnmarshaler
	tail []byte
	sum  [sha512.Size]byte
}

var hashers = sync.Pool{New: func() any {
	h := sha512.New()
	return &hasher{Hash: h, set: h.(encoding.BinaryUnmarshaler), tail: make([]byte, 0, modifierSize+4)}
}}

// derive fills out with the keys for a context. It is safe for concurrent use.
func (d *derivation) derive(out, context []byte) {
	h := hashers.Get().(*hasher)
	h.tail = append(h.tail[:0], context...)
	h.tail = binary.BigEndian.AppendUint32(h.tail, uint32(d.size)*8)
	for i, state := range d.inner {
		h.finish(state, h.tail)
		h.finish(d.outer, h.sum[:])
		copy(out[i*sha512.Size:d.size], h.sum[:])
	}
	clear(h.sum[:])
	hashers.Put(h)
}

// finish sets h.sum to the hash of a kept state and the rest of its message.
func (h *hasher) finish(state, rest []byte) {
	if err := h.set.UnmarshalBinary(state); err != nil {
		panic("dataprotection: kept hash state: " + err.Error())
	}
	h.Write(rest)
	h.Sum(h.sum[:0])
}
