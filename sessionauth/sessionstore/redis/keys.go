package redis

import (
	"crypto/sha256"
	"encoding/base64"
	"strconv"
	"time"

	"github.com/gatehouse-gateway/gatehouse/sessionauth/sessionstore"
)

// site has the beginnings of a site's keys.
type site struct {
	records string
	indexes string // an owner follows
}

func (s *Store) site(name string) site {
	h := hash(name)
	return site{records: s.conn.Prefix() + "s:" + h + ":", indexes: s.conn.Prefix() + "u:" + h + ":"}
}

func (s site) record(id sessionstore.ID) string { return s.records + idText(id) }

// appendEnds adds what the scripts read of each end: two keys (the index of its
// user, and its session or the index again) and three arguments.
func (s site) appendEnds(keys []string, args []any, ends []sessionstore.End) ([]string, []any) {
	for _, e := range ends {
		owner := hash(e.User)
		index, record, id, except := s.indexes+owner, s.indexes+owner, "", ""
		switch {
		case !e.ID.IsZero():
			record, id = s.record(e.ID), idText(e.ID)
		case !e.Except.IsZero():
			except = idText(e.Except)
		}
		keys = append(keys, index, record)
		args = append(args, owner, id, except)
	}
	return keys, args
}

// hash makes a key's part of a site or a user: 192 bits, 32 characters.
func hash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return base64.RawURLEncoding.EncodeToString(sum[:24])
}

func idText(id sessionstore.ID) string { return base64.RawURLEncoding.EncodeToString(id[:]) }

// parseID reads an id as idText writes it, and nothing else.
func parseID(s string) (id sessionstore.ID, ok bool) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(s)
	if err != nil || len(b) != len(id) || len(s) != base64.RawURLEncoding.EncodedLen(len(id)) {
		return id, false
	}
	return sessionstore.ID(b), true
}

func millis(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

func flag(b bool) string {
	if b {
		return "1"
	}
	return "0"
}
