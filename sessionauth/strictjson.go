package sessionauth

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// A command must mean one thing to everybody who reads it, so it is read more
// strictly than encoding/json does: no member twice in any object, valid UTF-8
// and whole surrogate pairs, nothing after the value. RFC 8259 for the grammar,
// RFC 7493 (I-JSON) for the rest. Callers bound the text's length, which bounds
// the depth.

var errJSON = errors.New("malformed JSON")

// readObject reads text as one JSON object and calls member with the name and
// the raw value of each of its members.
func readObject(text string, member func(name, raw string) error) error {
	s := jsonScanner{text: text}
	s.space()
	if s.peek() != '{' {
		return errors.New("not a JSON object")
	}
	if err := s.object(member); err != nil {
		return err
	}
	s.space()
	if s.pos != len(s.text) {
		return errors.New("text after the JSON object")
	}
	return nil
}

// readString decodes a raw JSON string.
func readString(raw string) (string, error) {
	s := jsonScanner{text: raw}
	if s.peek() != '"' {
		return "", errors.New("not a JSON string")
	}
	return s.string()
}

// readBool decodes a raw JSON true or false.
func readBool(raw string) (bool, error) {
	if raw != "true" && raw != "false" {
		return false, errors.New("neither true nor false")
	}
	return raw == "true", nil
}

type jsonScanner struct {
	text string
	pos  int
}

// peek returns the next byte, or 0 at the end; a 0 in the text is never valid.
func (s *jsonScanner) peek() byte {
	if s.pos < len(s.text) {
		return s.text[s.pos]
	}
	return 0
}

func (s *jsonScanner) space() {
	for s.pos < len(s.text) && strings.IndexByte(" \t\r\n", s.text[s.pos]) >= 0 {
		s.pos++
	}
}

// expect consumes c, with the space around it.
func (s *jsonScanner) expect(c byte) bool {
	s.space()
	if s.peek() != c {
		return false
	}
	s.pos++
	s.space()
	return true
}

func (s *jsonScanner) value() error {
	switch c := s.peek(); {
	case c == '{':
		return s.object(nil)
	case c == '[':
		return s.array()
	case c == '"':
		_, err := s.string()
		return err
	case c == '-' || isDigit(c):
		return s.number()
	}
	for _, word := range [...]string{"true", "false", "null"} {
		if strings.HasPrefix(s.text[s.pos:], word) {
			s.pos += len(word)
			return nil
		}
	}
	return errJSON
}

func (s *jsonScanner) object(member func(name, raw string) error) error {
	s.expect('{')
	if s.expect('}') {
		return nil
	}
	seen := map[string]struct{}{}
	for {
		if s.peek() != '"' {
			return errJSON
		}
		name, err := s.string()
		if err != nil {
			return err
		}
		if _, twice := seen[name]; twice {
			return errors.New("a JSON member stands twice")
		}
		seen[name] = struct{}{}
		if !s.expect(':') {
			return errJSON
		}
		from := s.pos
		if err := s.value(); err != nil {
			return err
		}
		if member != nil {
			if err := member(name, s.text[from:s.pos]); err != nil {
				return fmt.Errorf("member %q: %w", name, err)
			}
		}
		if !s.expect(',') {
			break
		}
	}
	if !s.expect('}') {
		return errJSON
	}
	return nil
}

func (s *jsonScanner) array() error {
	s.expect('[')
	if s.expect(']') {
		return nil
	}
	for {
		if err := s.value(); err != nil {
			return err
		}
		if !s.expect(',') {
			break
		}
	}
	if !s.expect(']') {
		return errJSON
	}
	return nil
}

// string reads a string and decodes it.
func (s *jsonScanner) string() (string, error) {
	s.pos++ // the quote
	var b strings.Builder
	from := s.pos
	for s.pos < len(s.text) {
		switch c := s.text[s.pos]; {
		case c == '"':
			b.WriteString(s.text[from:s.pos])
			s.pos++
			return b.String(), nil
		case c < 0x20:
			return "", errJSON
		case c == '\\':
			b.WriteString(s.text[from:s.pos])
			if err := s.escape(&b); err != nil {
				return "", err
			}
			from = s.pos
		case c < utf8.RuneSelf:
			s.pos++
		default:
			r, size := utf8.DecodeRuneInString(s.text[s.pos:])
			if r == utf8.RuneError && size == 1 {
				return "", errors.New("not UTF-8")
			}
			s.pos += size
		}
	}
	return "", errJSON
}

// escape reads what begins with a backslash.
func (s *jsonScanner) escape(b *strings.Builder) error {
	s.pos++
	c := s.peek()
	s.pos++
	if c == 'u' {
		return s.unicode(b)
	}
	const letters, meanings = `"\/bfnrt`, "\"\\/\b\f\n\r\t"
	i := strings.IndexByte(letters, c)
	if i < 0 {
		return errJSON
	}
	b.WriteByte(meanings[i])
	return nil
}

// unicode reads four hex digits, and a second escape where they are half of a
// pair.
func (s *jsonScanner) unicode(b *strings.Builder) error {
	r, err := s.hex4()
	if err != nil {
		return err
	}
	if utf16.IsSurrogate(r) {
		if !strings.HasPrefix(s.text[s.pos:], `\u`) {
			return errors.New("half of a surrogate pair")
		}
		s.pos += 2
		low, err := s.hex4()
		if err != nil {
			return err
		}
		if r = utf16.DecodeRune(r, low); r == utf8.RuneError {
			return errors.New("half of a surrogate pair")
		}
	}
	b.WriteRune(r)
	return nil
}

func (s *jsonScanner) hex4() (rune, error) {
	if len(s.text)-s.pos < 4 {
		return 0, errJSON
	}
	var r rune
	for _, c := range []byte(s.text[s.pos : s.pos+4]) {
		switch {
		case isDigit(c):
			r = r<<4 | rune(c-'0')
		case 'a' <= c|0x20 && c|0x20 <= 'f':
			r = r<<4 | rune(c|0x20-'a'+10)
		default:
			return 0, errJSON
		}
	}
	s.pos += 4
	return r, nil
}

func (s *jsonScanner) number() error {
	if s.peek() == '-' {
		s.pos++
	}
	if s.peek() == '0' {
		s.pos++
	} else if !s.digits() {
		return errJSON
	}
	if s.peek() == '.' {
		s.pos++
		if !s.digits() {
			return errJSON
		}
	}
	if s.peek()|0x20 == 'e' {
		s.pos++
		if c := s.peek(); c == '+' || c == '-' {
			s.pos++
		}
		if !s.digits() {
			return errJSON
		}
	}
	return nil
}

// digits consumes one digit or more.
func (s *jsonScanner) digits() bool {
	from := s.pos
	for isDigit(s.peek()) {
		s.pos++
	}
	return s.pos > from
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }
