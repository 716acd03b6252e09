package file

import (
	"encoding/binary"

	"github.com/gatehouse-gateway/gatehouse/sessionauth/sessionstore"
)

// Keys are made of length-prefixed parts, so no site and no user can stand for
// another.
//
//	records   site, id                      -> the record
//	users     site, user, id                -> nothing
//	queue     due (8 bytes), site, id       -> the user
//
// Each record has one entry in users and one in queue.

func recordKey(site string, id sessionstore.ID) []byte {
	return append(appendText(make([]byte, 0, 2+len(site)+len(id)), site), id[:]...)
}

// userPrefix begins the keys of a user's sessions; the id follows.
func userPrefix(site, user string) []byte {
	return appendText(appendText(make([]byte, 0, 4+len(site)+len(user)+len(sessionstore.ID{})), site), user)
}

func userKey(site, user string, id sessionstore.ID) []byte {
	return append(userPrefix(site, user), id[:]...)
}

// queueKey sorts by due time: milliseconds since 1970, which are positive.
func queueKey(due int64, site string, id sessionstore.ID) []byte {
	b := binary.BigEndian.AppendUint64(make([]byte, 0, 8+2+len(site)+len(id)), uint64(due))
	return append(appendText(b, site), id[:]...)
}

// splitQueueKey takes a queue key apart.
func splitQueueKey(k []byte) (due int64, site string, id sessionstore.ID, ok bool) {
	r := reader{rest: k}
	due = r.int64()
	site = string(r.text(sessionstore.MaxSite))
	rest := r.take(len(id))
	if r.short || len(r.rest) != 0 {
		return 0, "", id, false
	}
	return due, site, sessionstore.ID(rest), true
}
