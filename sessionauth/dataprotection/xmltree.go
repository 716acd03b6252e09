package dataprotection

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Bounds of one element. Real keys have up to 15 nodes, 8 levels and 10 KiB.
const (
	maxElementBytes = 1 << 20
	maxElementNodes = 2_000
	maxElementDepth = 32
)

// node is an XML element, without its comments.
type node struct {
	name    xml.Name
	attrs   []xml.Attr
	content []content
}

// content is a child element or a piece of text.
type content struct {
	child *node
	text  string
}

// parseXML reads a document that is one element. Document types are refused,
// as .NET refuses them; entities beyond the five of XML do not exist. Errors
// never quote the document, which may hold keys.
func parseXML(document []byte) (*node, error) {
	if len(document) > maxElementBytes {
		return nil, fmt.Errorf("larger than %d bytes", maxElementBytes)
	}
	decoder := xml.NewDecoder(bytes.NewReader(bytes.TrimPrefix(document, []byte("\ufeff"))))
	var t treeBuilder
	for {
		token, err := decoder.Token()
		if err == io.EOF {
			return t.finish()
		}
		if err == nil {
			err = t.add(token)
		} else {
			err = errors.New("not well-formed XML")
		}
		if err != nil {
			line, _ := decoder.InputPos()
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
	}
}

// treeBuilder makes a tree of tokens.
type treeBuilder struct {
	root  *node
	open  []*node
	nodes int
}

func (t *treeBuilder) add(token xml.Token) error {
	switch token := token.(type) {
	case xml.StartElement:
		return t.start(token)
	case xml.EndElement:
		t.open = t.open[:len(t.open)-1]
	case xml.CharData:
		if len(t.open) > 0 {
			top := t.open[len(t.open)-1]
			top.content = append(top.content, content{text: string(token)})
		} else if len(bytes.TrimSpace(token)) > 0 {
			return errors.New("text outside of the element")
		}
	case xml.Directive:
		return errors.New("a document type is not allowed")
	}
	return nil
}

func (t *treeBuilder) start(token xml.StartElement) error {
	t.nodes++
	switch {
	case len(t.open) == 0 && t.root != nil:
		return errors.New("more than one element")
	case t.nodes > maxElementNodes || len(t.open) >= maxElementDepth:
		return errors.New("too many or too deep elements")
	}
	n := &node{name: token.Name, attrs: token.Attr}
	for i, attr := range n.attrs {
		for _, other := range n.attrs[:i] {
			if attr.Name == other.Name {
				return errors.New("an attribute is given twice")
			}
		}
	}
	if len(t.open) == 0 {
		t.root = n
	} else {
		top := t.open[len(t.open)-1]
		top.content = append(top.content, content{child: n})
	}
	t.open = append(t.open, n)
	return nil
}

func (t *treeBuilder) finish() (*node, error) {
	if t.root == nil || len(t.open) > 0 {
		return nil, errors.New("no complete element")
	}
	return t.root, nil
}

// attr returns the value of an attribute that has no namespace.
func (n *node) attr(name string) (string, bool) {
	for _, attr := range n.attrs {
		if attr.Name.Space == "" && attr.Name.Local == name {
			return attr.Value, true
		}
	}
	return "", false
}

// child returns the first child of that name, without a namespace, or nil.
func (n *node) child(name string) *node {
	for _, c := range n.content {
		if c.child != nil && c.child.name == (xml.Name{Local: name}) {
			return c.child
		}
	}
	return nil
}

// childText returns the trimmed text of the first child of that name, or "".
func (n *node) childText(name string) string {
	child := n.child(name)
	if child == nil {
		return ""
	}
	return strings.TrimSpace(child.text())
}

// only returns the one child element, or nil when there is not exactly one.
func (n *node) only() *node {
	var only *node
	for _, c := range n.content {
		if c.child == nil {
			continue
		}
		if only != nil {
			return nil
		}
		only = c.child
	}
	return only
}

// text returns all text inside of the element.
func (n *node) text() string {
	var b strings.Builder
	n.writeText(&b)
	return b.String()
}

func (n *node) writeText(b *strings.Builder) {
	for _, c := range n.content {
		if c.child != nil {
			c.child.writeText(b)
		} else {
			b.WriteString(c.text)
		}
	}
}
