package redis

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"

	"github.com/gatehouse-gateway/gatehouse/sessionauth/dataprotection/ringstore"
)

// Bounds of a list. A key has up to 10 KiB, and a ring gains four a year.
const (
	maxBytes   = 4 << 20
	maxEntries = 10_000
	// maxReply leaves room for what the protocol puts around the entries.
	maxReply = maxBytes + maxEntries*16 + 32
)

// bounded takes in a reply up to maxReply; the client drops the connection of
// a larger one.
type bounded struct{ bytes []byte }

func (b *bounded) Write(p []byte) (int, error) {
	if len(b.bytes)+len(p) > maxReply {
		return 0, ErrTooLarge
	}
	b.bytes = append(b.bytes, p...)
	return len(p), nil
}

// errReply means that the server's answer is not what LRANGE answers.
var errReply = errors.New("the answer is not a list of strings")

// serverError is an error that the server answered.
type serverError string

func (e serverError) Error() string { return string(e) }
func (serverError) RedisError()     {}

// parseList reads the reply of LRANGE in the Redis protocol (RESP): an array of
// bulk strings, or an error. The elements share the reply's memory.
func parseList(reply []byte) ([]ringstore.Element, error) {
	kind, count, rest, err := parseHeader(reply)
	switch {
	case err != nil:
		return nil, err
	case kind != '*':
		return nil, errReply
	case count > maxEntries:
		return nil, ErrTooLarge
	}
	elements := make([]ringstore.Element, 0, min(count, len(rest)/5))
	total := 0
	for i := range count {
		var size int
		kind, size, rest, err = parseHeader(rest)
		if err != nil {
			return nil, err
		}
		if kind != '$' || len(rest)-2 < size || rest[size] != '\r' || rest[size+1] != '\n' {
			return nil, errReply
		}
		if total += size; total > maxBytes {
			return nil, ErrTooLarge
		}
		elements = append(elements, ringstore.Element{Name: fmt.Sprintf("entry %d", i), XML: rest[:size:size]})
		rest = rest[size+2:]
	}
	if len(rest) > 0 {
		return nil, errReply
	}
	return elements, nil
}

// parseHeader reads a line such as "*3" or "$11". An error that stands there is
// returned as such.
func parseHeader(reply []byte) (kind byte, n int, rest []byte, err error) {
	line, rest, ok := bytes.Cut(reply, []byte("\r\n"))
	if !ok || len(line) == 0 {
		return 0, 0, nil, errReply
	}
	if line[0] == '-' {
		return 0, 0, nil, serverError(line[1:])
	}
	size, err := strconv.ParseUint(string(line[1:]), 10, 31)
	if err != nil {
		return 0, 0, nil, errReply
	}
	return line[0], int(size), rest, nil
}
