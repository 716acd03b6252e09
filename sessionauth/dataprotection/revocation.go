package dataprotection

import (
	"encoding/xml"
	"errors"
	"fmt"
	"strings"
	"time"
)

// revocations is what all <revocation> elements say together.
type revocations struct {
	ids map[KeyID]bool
	// before revokes every key that was created before it; zero: none.
	before time.Time
}

// add reads one <revocation> element. It accepts nothing that it does not
// understand in full: a revocation that is overlooked would bring a key back.
func (r *revocations) add(n *node) error {
	var keys []*node
	for _, c := range n.content {
		if c.child != nil && c.child.name == (xml.Name{Local: "key"}) {
			keys = append(keys, c.child)
		}
	}
	if len(keys) != 1 {
		return errors.New("revocation names no single key")
	}
	text, _ := keys[0].attr("id")
	if text == "*" {
		date, err := parseDate(n.childText("revocationDate"))
		if err != nil {
			return fmt.Errorf("revocationDate: %w", err)
		}
		if date.After(r.before) {
			r.before = date
		}
		return nil
	}
	// The date of a single revocation does not matter.
	id, err := ParseKeyID(strings.TrimSpace(text))
	if err != nil {
		return fmt.Errorf("revoked key: %w", err)
	}
	if r.ids == nil {
		r.ids = make(map[KeyID]bool)
	}
	r.ids[id] = true
	return nil
}

func (r *revocations) covers(k *key) bool {
	return r.ids[k.id] || k.created.Before(r.before)
}
