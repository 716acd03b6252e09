package dataprotection

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/xml"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/gatehouse-gateway/gatehouse/sessionauth/dataprotection/ringstore"
)

// listedKey is a key and what the ring says about it.
type listedKey struct {
	*key
	revoked bool
	index   int // in the ring's keys
}

// canSeal reports whether the key is good for sealing, dates apart.
func (k listedKey) canSeal() bool { return !k.revoked && k.unusable == nil }

// keyring is the ring as it was read once. It is immutable.
type keyring struct {
	source        [sha256.Size]byte
	keys          []listedKey // by creation, then id
	byID          map[wireID]int
	revokedBefore time.Time // the latest mass revocation

	choice atomic.Pointer[choice] // cached; see choose
}

// fingerprint recognizes an unchanged ring.
func fingerprint(elements []ringstore.Element) [sha256.Size]byte {
	h := sha256.New()
	var size [8]byte
	for _, element := range elements {
		binary.BigEndian.PutUint64(size[:], uint64(len(element.XML)))
		h.Write(size[:])
		h.Write(element.XML)
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// parseRing makes a ring of elements. Keys that are unchanged since the
// previous ring, which may be nil, are taken over from it. What is skipped is
// logged. The error says which element is at fault and quotes none.
func parseRing(elements []ringstore.Element, previous *keyring, log *slog.Logger) (*keyring, error) {
	ring := &keyring{source: fingerprint(elements), byID: make(map[wireID]int)}
	var revoked revocations
	seen := make(map[KeyID]bool)
	for _, element := range elements {
		n, err := parseXML(element.XML)
		if err != nil {
			return nil, fmt.Errorf("element %s: %w", shown(element.Name), err)
		}
		switch n.name {
		case xml.Name{Local: "revocation"}:
			if err := revoked.add(n); err != nil {
				return nil, fmt.Errorf("element %s: %w", shown(element.Name), err)
			}
		case xml.Name{Local: "key"}:
			k, err := parseKey(n)
			if err != nil {
				log.Warn("key ring: malformed key skipped", "element", element.Name, "error", err)
				continue
			}
			if seen[k.id] {
				return nil, fmt.Errorf("element %s: key %s is there twice", shown(element.Name), k.id)
			}
			seen[k.id] = true
			k.source = sha256.Sum256(element.XML)
			if known := previous.find(k.id.wire()); known != nil && known.source == k.source {
				k = known.key
			}
			ring.keys = append(ring.keys, listedKey{key: k})
		default:
			log.Warn("key ring: unknown element skipped", "element", element.Name)
		}
	}
	ring.apply(&revoked, log)
	return ring, nil
}

// apply sorts the keys and marks the revoked ones. Revocations come last
// because elements are in any order.
func (r *keyring) apply(revoked *revocations, log *slog.Logger) {
	slices.SortFunc(r.keys, func(a, b listedKey) int {
		return cmp.Or(a.created.Compare(b.created), a.id.compare(b.id))
	})
	for i := range r.keys {
		r.keys[i].index = i
		r.keys[i].revoked = revoked.covers(r.keys[i].key)
		r.byID[r.keys[i].id.wire()] = i
	}
	r.revokedBefore = revoked.before
	for id := range revoked.ids {
		if r.find(id.wire()) == nil {
			log.Info("key ring: revocation of a key that is not in the ring", "key", id.String())
		}
	}
}

// find returns the key of that id, or nil. The ring may be nil.
func (r *keyring) find(id wireID) *listedKey {
	if r == nil {
		return nil
	}
	i, ok := r.byID[id]
	if !ok {
		return nil
	}
	return &r.keys[i]
}

// forgets reports whether a token that opens with r may not open with next:
// a key was removed, revoked or replaced.
func (r *keyring) forgets(next *keyring) bool {
	if r == nil {
		return false
	}
	for _, k := range r.keys {
		now := next.find(k.id.wire())
		if k.canSeal() && (now == nil || !now.canSeal() || !bytes.Equal(k.master, now.master)) {
			return true
		}
	}
	return false
}

// oldest returns the first key in order of creation that has a master key,
// revoked or not, or nil.
func (r *keyring) oldest() *key {
	for _, k := range r.keys {
		if k.unusable == nil {
			return k.key
		}
	}
	return nil
}
