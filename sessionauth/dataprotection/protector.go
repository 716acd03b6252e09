package dataprotection

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"slices"
	"sync"
	"sync/atomic"
)

// maxTokenBytes bounds a token before its text encoding.
const maxTokenBytes = 1 << 20

// tokenText is the text form of tokens. It is strict, so that a token has one
// text form: no other value of the unused last bits opens.
var tokenText = base64.RawURLEncoding.Strict()

// Protector seals and opens tokens for one chain of purposes. It is safe for
// concurrent use, and cheap to keep: it holds derived state for each key that
// was used with it.
type Protector struct {
	ring     *Ring
	purposes []string
	state    atomic.Pointer[protectorState]
}

// protectorState holds the encryptors of a protector for one reading of the
// ring, in the order of its keys. They are made at first use.
type protectorState struct {
	ring       *keyring
	encryptors []atomic.Pointer[encryptor]
}

// Protector returns the protector of a chain of purposes, which ASP.NET Core
// calls CreateProtector(first, …). The application name comes before them.
// Purposes are UTF-8; an empty one counts.
func (r *Ring) Protector(purposes ...string) *Protector {
	return &Protector{ring: r, purposes: slices.Concat(r.purposes, purposes)}
}

// Seal returns a token for plaintext, in base64url without padding. Every
// token begins with "CfDJ8". Errors are ErrUnavailable, ErrBroken, ErrNoKey
// and ErrTooLarge.
func (p *Protector) Seal(ctx context.Context, plaintext []byte) (string, error) {
	if len(plaintext) > maxTokenBytes/2 {
		return "", ErrTooLarge
	}
	s, err := p.ring.sealing(ctx)
	if err != nil {
		return "", err
	}
	e := p.encryptor(s.ring, s.key)
	b := scratches.Get().(*scratch)
	defer b.release()

	start := room + headerSize
	end := start + e.randomSize()
	b.token = slices.Grow(b.token[:0], end+len(plaintext)+e.overhead())[:end]
	rand.Read(b.token[start:])
	b.token = e.seal(b.token, plaintext)
	wire := s.key.id.wire()
	copy(b.token[room:], magic[:])
	copy(b.token[room+magicSize:], wire[:])
	b.text = tokenText.AppendEncode(b.text[:0], b.token[room:])
	return string(b.text), nil
}

// Open returns the plaintext of a token. Every defect of the token is
// ErrUnreadable, some are ErrUnknownKey or ErrRevoked as well; ErrUnavailable
// and ErrBroken say that there is no ring to open it with. The dates of its key
// do not matter. An unknown key id reads the ring again, at most once a second.
func (p *Protector) Open(ctx context.Context, token string) (string, error) {
	b := scratches.Get().(*scratch)
	defer b.release()
	if err := b.decode(token); err != nil {
		return "", err
	}
	id := wireID(b.token[room+magicSize : room+headerSize])
	ring, err := p.ring.ring(ctx)
	if err != nil {
		return "", err
	}
	k := ring.find(id)
	if k == nil {
		if ring, k, err = p.ring.findUnknown(ctx, id); err != nil {
			return "", err
		}
	}
	if k.revoked {
		return "", ErrRevoked
	}
	if k.unusable != nil {
		return "", k.unusable
	}
	plaintext, err := p.encryptor(ring, k).open(b.token, room+headerSize)
	if err != nil {
		return "", err
	}
	return string(plaintext), nil
}

// encryptor returns the encryptor of one of the ring's keys.
func (p *Protector) encryptor(ring *keyring, k *listedKey) *encryptor {
	state := p.state.Load()
	if state == nil || state.ring != ring {
		state = p.renew(ring, state)
	}
	slot := &state.encryptors[k.index]
	e := slot.Load()
	if e == nil {
		// Two goroutines may both make it; either is good.
		e = newEncryptor(k.algorithm, k.master, label(k.id, p.purposes))
		slot.Store(e)
	}
	return e
}

// renew makes the state for another reading of the ring, with the encryptors
// of the keys that stayed.
func (p *Protector) renew(ring *keyring, old *protectorState) *protectorState {
	state := &protectorState{ring: ring, encryptors: make([]atomic.Pointer[encryptor], len(ring.keys))}
	if old != nil {
		for i, k := range ring.keys {
			if before := old.ring.find(k.id.wire()); before != nil && before.key == k.key {
				state.encryptors[i].Store(old.encryptors[before.index].Load())
			}
		}
	}
	p.state.Store(state)
	return state
}

// scratch is the working memory of one call.
type scratch struct {
	text  []byte
	token []byte // room, then the token
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// maxKept bounds the buffers that are kept for reuse.
const maxKept = 16 << 10

// release gives the memory back. What it held was sealed in a token that its
// caller has; the keys in it are gone already.
func (b *scratch) release() {
	if cap(b.text) <= maxKept && cap(b.token) <= maxKept {
		scratches.Put(b)
	}
}

// decode puts the token's bytes at b.token[room:] and checks its header.
func (b *scratch) decode(token string) error {
	// The decoder skips line breaks; without any the lengths fit exactly.
	size := tokenText.DecodedLen(len(token))
	if len(token)%4 == 1 || size > maxTokenBytes {
		return errForm
	}
	b.text = append(b.text[:0], token...)
	b.token = slices.Grow(b.token[:0], room+size)[:room+size]
	n, err := tokenText.Decode(b.token[room:], b.text)
	if err != nil || n != size {
		return errForm
	}
	return checkHeader(b.token[room:])
}

// checkHeader checks the magic number of a token and that a key id follows.
func checkHeader(token []byte) error {
	if len(token) < headerSize {
		return errSize
	}
	if token[0] != magic[0] || token[1] != magic[1] || token[2] != magic[2] || token[3]&0xf0 != magic[3] {
		return errHeader
	}
	if token[3]&0x0f != 0 {
		return errVersion
	}
	return nil
}
