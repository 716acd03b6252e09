package file

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"time"

	"github.com/gatehouse-gateway/gatehouse/sessionauth/sessionstore"
)

// A stored record:
//
//	version    1 byte
//	checksum   4 bytes  CRC-32C of everything behind it
//	expires    8 bytes  milliseconds since 1970
//	queued     8 bytes  the due time of its entry in the clean-up queue
//	body       as the version says
//
// Numbers are big-endian. The head, all before the body, keeps its meaning in
// every version: clean-up removes also what it cannot read. The checksum is
// there because bbolt has none on its data pages; a damaged record must be an
// error, not another session.
const (
	recordVersion = 1
	headSize      = 1 + 4 + 8 + 8
)

const (
	flagPersistent = 1 << iota
	flagsKnown     = 1<<iota - 1
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// errDamagedRecord is a value that is of our version and still no record.
var errDamagedRecord = errors.New("file session store: a record is damaged")

// versionError is a record of another version; it counts as absent.
type versionError byte

func (v versionError) Error() string { return fmt.Sprintf("record version %d", byte(v)) }

// head is what every version keeps.
type head struct{ expires, queued int64 }

func (h head) live(now time.Time) bool { return now.UnixMilli() < h.expires }

// entry is a record with its place in the clean-up queue.
type entry struct {
	sessionstore.Record
	queued int64
}

func (e *entry) encode() []byte {
	b := make([]byte, headSize, headSize+1+2*4+4*8+4*2+len(e.User)+len(e.Claims)+len(e.Device)+len(e.IP))
	b[0] = recordVersion
	binary.BigEndian.PutUint64(b[5:], uint64(e.Expires().UnixMilli()))
	binary.BigEndian.PutUint64(b[13:], uint64(e.queued))
	var flags byte
	if e.Persistent {
		flags |= flagPersistent
	}
	b = append(b, flags)
	b = binary.BigEndian.AppendUint32(b, e.ClaimsVersion)
	b = binary.BigEndian.AppendUint32(b, e.Generation)
	b = binary.BigEndian.AppendUint64(b, uint64(e.Created.UnixMilli()))
	b = binary.BigEndian.AppendUint64(b, uint64(e.Refreshed.UnixMilli()))
	b = binary.BigEndian.AppendUint64(b, uint64(e.Lifetime.Milliseconds()))
	var until int64
	if !e.Until.IsZero() {
		until = e.Until.UnixMilli()
	}
	b = binary.BigEndian.AppendUint64(b, uint64(until))
	b = appendText(b, e.User)
	b = appendText(b, e.Claims)
	b = appendText(b, e.Device)
	b = appendText(b, e.IP)
	return seal(b)
}

// seal sets the checksum.
func seal(b []byte) []byte {
	binary.BigEndian.PutUint32(b[1:], crc32.Checksum(b[5:], castagnoli))
	return b
}

func appendText[T string | []byte](b []byte, s T) []byte {
	b = binary.BigEndian.AppendUint16(b, uint16(len(s)))
	return append(b, s...)
}

// decodeHead reads the part that is the same in every version.
func decodeHead(b []byte) (head, error) {
	if len(b) < headSize || binary.BigEndian.Uint32(b[1:]) != crc32.Checksum(b[5:], castagnoli) {
		return head{}, errDamagedRecord
	}
	return head{
		expires: int64(binary.BigEndian.Uint64(b[5:])),
		queued:  int64(binary.BigEndian.Uint64(b[13:])),
	}, nil
}

// withQueued returns a copy of a stored record, of any version, with another
// place in the clean-up queue.
func withQueued(b []byte, queued int64) []byte {
	b = append([]byte(nil), b...)
	binary.BigEndian.PutUint64(b[13:], uint64(queued))
	return seal(b)
}

// decode reads a stored record. Nothing of the result points into b.
func decode(b []byte) (entry, error) {
	h, err := decodeHead(b)
	if err != nil {
		return entry{}, err
	}
	if b[0] != recordVersion {
		return entry{}, versionError(b[0])
	}
	r := reader{rest: b[headSize:]}
	flags := r.take(1)
	e := entry{queued: h.queued}
	e.ClaimsVersion, e.Generation = r.uint32(), r.uint32()
	created, refreshed, lifetime, until := r.int64(), r.int64(), r.int64(), r.int64()
	e.User = string(r.text(sessionstore.MaxUser))
	e.Claims = append([]byte(nil), r.text(sessionstore.MaxClaims)...)
	e.Device = string(r.text(sessionstore.MaxDevice))
	e.IP = string(r.text(sessionstore.MaxIP))
	if r.short || len(r.rest) != 0 || flags[0]&^flagsKnown != 0 || e.User == "" ||
		lifetime < 1 || lifetime > math.MaxInt64/int64(time.Millisecond) || until < 0 {
		return entry{}, errDamagedRecord
	}
	e.Persistent = flags[0]&flagPersistent != 0
	e.Created, e.Refreshed = millis(created), millis(refreshed)
	e.Lifetime = time.Duration(lifetime) * time.Millisecond
	if until != 0 {
		e.Until = millis(until)
	}
	if e.Expires().UnixMilli() != h.expires {
		return entry{}, errDamagedRecord
	}
	return e, nil
}

func millis(ms int64) time.Time { return time.UnixMilli(ms).UTC() }

// reader takes parts off a record; after the first that is missing or too long
// it gives zeros.
type reader struct {
	rest  []byte
	short bool
}

var zeros [8]byte

func (r *reader) take(n int) []byte {
	if r.short || n > len(r.rest) {
		r.short = true
		return zeros[:min(n, len(zeros))]
	}
	b := r.rest[:n]
	r.rest = r.rest[n:]
	return b
}

func (r *reader) uint32() uint32 { return binary.BigEndian.Uint32(r.take(4)) }
func (r *reader) int64() int64   { return int64(binary.BigEndian.Uint64(r.take(8))) }

func (r *reader) text(limit int) []byte {
	n := int(binary.BigEndian.Uint16(r.take(2)))
	if n > limit {
		r.short = true
	}
	b := r.take(n)
	if r.short {
		return nil
	}
	return b
}
