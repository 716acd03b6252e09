package dataprotection

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"strings"
)

// KeyID is the id of a key, a GUID, in the order of its text form.
type KeyID [16]byte

// wireID is a key id as tokens carry it: .NET writes the first three fields of
// a GUID little-endian.
type wireID [16]byte

func (id KeyID) wire() wireID {
	return wireID{
		id[3], id[2], id[1], id[0], id[5], id[4], id[7], id[6],
		id[8], id[9], id[10], id[11], id[12], id[13], id[14], id[15],
	}
}

// String returns the lower-case form 8-4-4-4-12.
func (id KeyID) String() string {
	var text [36]byte
	hex.Encode(text[0:8], id[0:4])
	hex.Encode(text[9:13], id[4:6])
	hex.Encode(text[14:18], id[6:8])
	hex.Encode(text[19:23], id[8:10])
	hex.Encode(text[24:36], id[10:16])
	text[8], text[13], text[18], text[23] = '-', '-', '-', '-'
	return string(text[:])
}

// compare orders ids as their text does.
func (id KeyID) compare(other KeyID) int { return bytes.Compare(id[:], other[:]) }

var errKeyID = errors.New("not a GUID")

// ParseKeyID reads the form 8-4-4-4-12 in any case, with or without braces.
func ParseKeyID(s string) (KeyID, error) {
	if inner, ok := strings.CutPrefix(s, "{"); ok {
		if s, ok = strings.CutSuffix(inner, "}"); !ok {
			return KeyID{}, errKeyID
		}
	}
	if len(s) != 36 || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
		return KeyID{}, errKeyID
	}
	var id KeyID
	digits := s[0:8] + s[9:13] + s[14:18] + s[19:23] + s[24:36]
	if _, err := hex.Decode(id[:], []byte(digits)); err != nil {
		return KeyID{}, errKeyID
	}
	return id, nil
}

// newKeyID returns a random id (RFC 9562, version 4).
func newKeyID() KeyID {
	var id KeyID
	rand.Read(id[:])
	id[6] = id[6]&0x0f | 0x40
	id[8] = id[8]&0x3f | 0x80
	return id
}
