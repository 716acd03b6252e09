package directory

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"strconv"
	"strings"
	"time"
)

// formatVersion stands in every file. A file of a later version is neither
// read nor changed nor deleted.
const formatVersion = 1

// Why a state file could not be read.
var (
	errHalfWritten = errors.New("the file is not written to its end")
	errGarbage     = errors.New("the file is not of our making, or damaged")
	errNewer       = errors.New("the file was written by a later version")
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// The kinds of state files. Journals grow line by line, sealed files are whole.
const (
	kindWriter = "writer" // journal: one epoch of a serial upload
	kindChunks = "chunks" // journal: the chunks that one gateway received
	kindClaim  = "claim"  // journal without records: one claim
	kindNote   = "note"   // journal without records: somebody wants to write

	kindStore   = "store" // sealed files
	kindInfo    = "info"
	kindLength  = "length"
	kindOutcome = "outcome"
	kindAborted = "aborted"
)

const (
	maxHeader = 200
	slotSize  = len("t 1 0000000000000000 00000000\n")
)

// The states in a journal's slot.
const (
	slotEnded  = 0 // ended, released
	slotActive = 1 // alive as of the slot's time
	slotVoid   = 2 // a claim that was never used
)

// A line is a word of a record's kind, its values, and the CRC-32C of all
// before the last space. It stands on its own: one that is torn or damaged
// says nothing and takes no other line with it.
func appendLine(b []byte, text string) []byte {
	b = append(b, text...)
	return fmt.Appendf(b, " %08x\n", crc32.Checksum([]byte(text), castagnoli))
}

func parseLine(line []byte) (text []byte, ok bool) {
	i := len(line) - 9
	if i < 1 || line[i] != ' ' {
		return nil, false
	}
	sum, err := strconv.ParseUint(string(line[i+1:]), 16, 32)
	if err != nil || uint32(sum) != crc32.Checksum(line[:i], castagnoli) {
		return nil, false
	}
	return line[:i], true
}

// A journal file is a header line, a slot of fixed size that is written over
// and over (who watches the file sees that its writer lives), and records.
type journal struct {
	token   string // of the store that made the file
	number  int64  // meaning depends on the kind
	slotAt  int64  // where the slot begins
	state   int
	tick    time.Time // of the slot, by the file server's clock
	slotBad bool      // the slot is torn: being written, or cut by a crash
	records []record
	clean   bool  // the file ends with a good line
	size    int64 // bytes in the file
}

// A record is one thing that became durable.
//
//	s offset time   a serial writer began here; time is the latest commit's
//	r offset time   all bytes before offset are received
//	d from to time  these bytes are received
type record struct {
	kind     byte
	from, to int64 // from is unused in s and r
	time     time.Time
}

func (r record) appendTo(b []byte) []byte {
	if r.kind == 'd' {
		return appendLine(b, fmt.Sprintf("d %d %d %d", r.from, r.to, r.time.UnixMilli()))
	}
	return appendLine(b, fmt.Sprintf("%c %d %d", r.kind, r.to, r.time.UnixMilli()))
}

func parseRecord(text []byte) (record, bool) {
	kind, rest, more := bytes.Cut(text, []byte(" "))
	var values [3]int64
	n := 0
	for ; more; n++ {
		var field []byte
		field, rest, more = bytes.Cut(rest, []byte(" "))
		v, err := strconv.ParseInt(string(field), 10, 64)
		if n == len(values) || err != nil || v < 0 {
			return record{}, false
		}
		values[n] = v
	}
	switch k := string(kind); {
	case (k == "s" || k == "r") && n == 2:
		return record{kind: k[0], to: values[0], time: time.UnixMilli(values[1])}, true
	case k == "d" && n == 3 && values[0] < values[1]:
		return record{kind: 'd', from: values[0], to: values[1], time: time.UnixMilli(values[2])}, true
	}
	return record{}, false
}

func appendHeader(b []byte, kind, token string, number int64) []byte {
	return appendLine(b, fmt.Sprintf("gatehouse %s %d %s %d", kind, formatVersion, token, number))
}

func appendSlot(b []byte, state int, tick time.Time) []byte {
	return appendLine(b, fmt.Sprintf("t %d %016d", state, tick.UnixMilli()))
}

// parseJournal reads a journal. What is no whole line at the end is ignored:
// it was never acknowledged.
func parseJournal(kind string, b []byte) (journal, error) {
	text, rest, err := parseHeader(kind, b)
	if err != nil {
		return journal{}, err
	}
	j := journal{slotAt: int64(len(b) - len(rest)), size: int64(len(b))}
	if n, err := fmt.Sscanf(text, "%s %d", &j.token, &j.number); n != 2 || err != nil {
		return journal{}, errGarbage
	}
	if len(rest) < slotSize {
		return journal{}, errHalfWritten
	}
	j.readSlot(rest[:slotSize])
	j.readRecords(rest[slotSize:])
	return j, nil
}

func (j *journal) readSlot(line []byte) {
	text, ok := parseLine(line[:len(line)-1])
	var ms int64
	n, err := fmt.Sscanf(string(text), "t %d %d", &j.state, &ms)
	if !ok || n != 2 || err != nil || j.state < slotEnded || j.state > slotVoid {
		j.slotBad, j.state = true, slotActive
		return
	}
	j.tick = time.UnixMilli(ms)
}

func (j *journal) readRecords(b []byte) {
	j.clean = true
	for len(b) > 0 {
		end := bytes.IndexByte(b, '\n')
		if end < 0 {
			j.clean = false
			return
		}
		text, ok := parseLine(b[:end])
		r, known := parseRecord(text)
		if ok && known {
			j.records = append(j.records, r)
		}
		j.clean = ok
		b = b[end+1:]
	}
}

// parseHeader checks the first line of any state file and returns what stands
// in it after the version, and what follows it.
func parseHeader(kind string, b []byte) (text string, rest []byte, err error) {
	end := bytes.IndexByte(b[:min(len(b), maxHeader)], '\n')
	if end < 0 {
		// Zero bytes are what a crash of the file server leaves of a file
		// whose size was kept and whose content was not.
		if len(b) < maxHeader && (len(bytes.TrimLeft(b, "\x00")) == 0 || couldBegin(kind, b)) {
			return "", nil, errHalfWritten
		}
		return "", nil, errGarbage
	}
	after, ok := bytes.CutPrefix(b[:end], []byte("gatehouse "+kind+" "))
	if !ok {
		return "", nil, errGarbage
	}
	version, _, _ := bytes.Cut(after, []byte(" "))
	v, err := strconv.Atoi(string(version))
	if err != nil || v < 1 {
		return "", nil, errGarbage
	}
	if v > formatVersion {
		return "", nil, errNewer
	}
	line, ok := parseLine(b[:end])
	if !ok {
		return "", nil, errGarbage
	}
	_, text, ok = strings.Cut(strings.TrimPrefix(string(line), "gatehouse "+kind+" "), " ")
	if !ok {
		return "", nil, errGarbage
	}
	return text, b[end+1:], nil
}

// couldBegin reports whether b may be the first part of a header of kind.
func couldBegin(kind string, b []byte) bool {
	want := []byte("gatehouse " + kind + " ")
	n := min(len(want), len(b))
	return bytes.Equal(b[:n], want[:n])
}

// newerVersion reports whether b begins like a file of ours, of any kind, of a
// later version.
func newerVersion(b []byte) bool {
	fields := bytes.SplitN(b[:min(len(b), maxHeader)], []byte(" "), 4)
	if len(fields) < 4 || string(fields[0]) != "gatehouse" {
		return false
	}
	v, err := strconv.Atoi(string(fields[2]))
	return err == nil && v > formatVersion
}

// seal makes a file that is whole or visibly not.
func seal(kind string, payload []byte) []byte {
	head := fmt.Sprintf("gatehouse %s %d %d %08x", kind, formatVersion, len(payload), crc32.Checksum(payload, castagnoli))
	return append(appendLine(make([]byte, 0, len(head)+10+len(payload)), head), payload...)
}

// unseal returns the payload of a sealed file.
func unseal(kind string, b []byte) ([]byte, error) {
	text, payload, err := parseHeader(kind, b)
	if err != nil {
		return nil, err
	}
	var size int
	var sum uint32
	if n, err := fmt.Sscanf(text, "%d %x", &size, &sum); n != 2 || err != nil || size < 0 || len(payload) > size {
		return nil, errGarbage
	}
	if len(payload) < size {
		return nil, errHalfWritten
	}
	if crc32.Checksum(payload, castagnoli) != sum {
		return nil, errGarbage
	}
	return payload, nil
}
