package redis

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
)

// errNotAnElement does not quote what was handed in, which may be a key.
var errNotAnElement = errors.New("not one well-formed XML element")

// compact returns the element as .NET writes it into a list: what stands
// before it and its indentation are gone, everything else is kept to the byte.
func compact(document []byte) ([]byte, error) {
	document = bytes.TrimPrefix(document, []byte("\ufeff"))
	decoder := xml.NewDecoder(bytes.NewReader(document))
	var (
		out     = make([]byte, 0, len(document))
		depth   int
		roots   int
		opened  bool   // a start tag was just read
		pending []byte // white space that may be indentation
	)
	for {
		start := decoder.InputOffset()
		token, err := decoder.Token()
		if err == io.EOF && roots == 1 {
			return out, nil
		}
		if err != nil {
			return nil, errNotAnElement
		}
		raw := document[start:decoder.InputOffset()]
		if _, ok := token.(xml.CharData); ok && isIndentation(raw) {
			pending = raw
			continue
		}
		_, ends := token.(xml.EndElement)
		if opened && ends { // all that the element holds
			out = append(out, pending...)
		}
		pending, opened = nil, false
		switch token.(type) {
		case xml.StartElement:
			if depth == 0 {
				roots++
			}
			depth++
			opened = true
		case xml.EndElement:
			depth--
		case xml.CharData:
			if depth == 0 && len(bytes.TrimSpace(raw)) > 0 {
				return nil, errNotAnElement
			}
		case xml.Directive: // .NET refuses document types
			return nil, errNotAnElement
		}
		if depth > 0 || ends {
			out = append(out, raw...)
		}
		if roots > 1 {
			return nil, errNotAnElement
		}
	}
}

// isIndentation reports whether text is white space with a line break, written
// as it is.
func isIndentation(raw []byte) bool {
	return bytes.ContainsRune(raw, '\n') && len(bytes.Trim(raw, " \t\r\n")) == 0
}
