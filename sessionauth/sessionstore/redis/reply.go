package redis

import (
	"errors"
	"math"
	"strconv"
	"time"

	"github.com/gatehouse-gateway/gatehouse/sessionauth/sessionstore"
)

// errMalformed is a reply or a stored session that is not as the scripts make
// them.
var errMalformed = errors.New("redis session store: malformed reply or stored session")

// versionError is the format version of a session that cannot be read.
type versionError string

func (v versionError) Error() string { return "session of another format version" }

// reply is what a script answers: a list that begins with a word.
type reply []any

// parse returns a reply of success, or what the other ones mean.
func parse(v any) (reply, error) {
	list, ok := v.([]any)
	if !ok {
		return nil, errMalformed
	}
	r := reply(list)
	word, err := r.text(0)
	if err != nil {
		return nil, err
	}
	switch word {
	case "ok":
		return r, nil
	case "absent":
		return nil, sessionstore.ErrNotFound
	case "conflict":
		return nil, sessionstore.ErrConflict
	case "exists":
		return nil, sessionstore.ErrExists
	case "version":
		version, err := r.text(1)
		if err != nil {
			return nil, err
		}
		return nil, versionError(version)
	}
	return nil, errMalformed
}

func (r reply) text(i int) (string, error) {
	if i >= len(r) {
		return "", errMalformed
	}
	s, ok := r[i].(string)
	if !ok {
		return "", errMalformed
	}
	return s, nil
}

func (r reply) list(i int) (reply, error) {
	if i >= len(r) {
		return nil, errMalformed
	}
	list, ok := r[i].([]any)
	if !ok {
		return nil, errMalformed
	}
	return list, nil
}

// timedRecord reads {'ok', time, fields}.
func (r reply) timedRecord() (sessionstore.Record, time.Time, error) {
	if len(r) != 3 {
		return sessionstore.Record{}, time.Time{}, errMalformed
	}
	text, err := r.text(1)
	if err != nil {
		return sessionstore.Record{}, time.Time{}, err
	}
	now, err := instant(text)
	if err != nil || now.IsZero() {
		return sessionstore.Record{}, time.Time{}, errMalformed
	}
	fields, err := r.list(2)
	if err != nil {
		return sessionstore.Record{}, time.Time{}, err
	}
	rec, err := fields.record()
	if err != nil {
		return sessionstore.Record{}, time.Time{}, err
	}
	return rec, now, nil
}

// recordAndEnded reads {'ok', time, fields, ended}.
func (r reply) recordAndEnded(ends []sessionstore.End) (sessionstore.Record, []sessionstore.Ended, error) {
	if len(r) != 4 {
		return sessionstore.Record{}, nil, errMalformed
	}
	rec, _, err := r[:3].timedRecord()
	if err != nil {
		return sessionstore.Record{}, nil, err
	}
	ended, err := r.ended(3, ends)
	if err != nil {
		return sessionstore.Record{}, nil, err
	}
	return rec, ended, nil
}

// ended reads the last place, a list of {number of the end, id, ...}.
func (r reply) ended(i int, ends []sessionstore.End) ([]sessionstore.Ended, error) {
	list, err := r.list(i)
	if err != nil || len(list)%2 != 0 || len(r) != i+1 {
		return nil, errMalformed
	}
	var ended []sessionstore.Ended
	for j := 0; j < len(list); j += 2 {
		n, ok := list[j].(int64)
		text, err := list.text(j + 1)
		id, valid := parseID(text)
		if !ok || n < 1 || n > int64(len(ends)) || err != nil || !valid {
			return nil, errMalformed
		}
		ended = append(ended, sessionstore.Ended{ID: id, User: ends[n-1].User})
	}
	return ended, nil
}

// user reads {'ok', user}; none where the session could not be read.
func (r reply) user() (string, error) {
	user, err := r.text(1)
	if err != nil || len(r) != 2 || len(user) > sessionstore.MaxUser {
		return "", errMalformed
	}
	return user, nil
}

// listed reads {'ok', {id, fields, ...}, versions}.
func (r reply) listed() (list []sessionstore.Listed, versions []string, err error) {
	pairs, err := r.list(1)
	if err != nil || len(pairs)%2 != 0 || len(r) != 3 {
		return nil, nil, errMalformed
	}
	for i := 0; i < len(pairs); i += 2 {
		l, err := pairs.session(i)
		if err != nil {
			return nil, nil, err
		}
		list = append(list, l)
	}
	others, err := r.list(2)
	if err != nil {
		return nil, nil, err
	}
	for i := range others {
		v, err := others.text(i)
		if err != nil {
			return nil, nil, err
		}
		versions = append(versions, v)
	}
	return list, versions, nil
}

// session reads an id and the fields behind it.
func (r reply) session(i int) (l sessionstore.Listed, err error) {
	text, err := r.text(i)
	if err != nil {
		return l, err
	}
	fields, err := r.list(i + 1)
	if err != nil {
		return l, err
	}
	id, ok := parseID(text)
	if !ok {
		return l, errMalformed
	}
	rec, err := fields.record()
	return sessionstore.Listed{ID: id, Record: rec}, err
}

// The fields of a session in the order of FIELDS in lib.lua.
const (
	fieldVersion = iota
	fieldOwner
	fieldUser
	fieldClaims
	fieldClaimsVersion
	fieldGeneration
	fieldCreated
	fieldRefreshed
	fieldLifetime
	fieldUntil
	fieldPersistent
	fieldDevice
	fieldIP
	fieldCount
)

// record reads the fields of a session, which are checked like a caller's: they
// come from a server that others may write to.
func (r reply) record() (sessionstore.Record, error) {
	if len(r) != fieldCount {
		return sessionstore.Record{}, errMalformed
	}
	var f [fieldCount]string
	for i := range f {
		s, ok := r[i].(string)
		if !ok {
			return sessionstore.Record{}, errMalformed
		}
		f[i] = s
	}
	claimsVersion, err1 := strconv.ParseUint(f[fieldClaimsVersion], 10, 32)
	generation, err2 := strconv.ParseUint(f[fieldGeneration], 10, 32)
	created, err3 := instant(f[fieldCreated])
	refreshed, err4 := instant(f[fieldRefreshed])
	lifetime, err5 := strconv.ParseInt(f[fieldLifetime], 10, 64)
	until, err6 := instant(f[fieldUntil])
	if err1 != nil || err2 != nil || err3 != nil || err4 != nil || err5 != nil || err6 != nil ||
		f[fieldVersion] != "1" || f[fieldOwner] != hash(f[fieldUser]) ||
		lifetime < 1 || lifetime > math.MaxInt64/int64(time.Millisecond) ||
		f[fieldPersistent] != "0" && f[fieldPersistent] != "1" ||
		f[fieldUser] == "" || len(f[fieldUser]) > sessionstore.MaxUser || len(f[fieldClaims]) > sessionstore.MaxClaims ||
		len(f[fieldDevice]) > sessionstore.MaxDevice || len(f[fieldIP]) > sessionstore.MaxIP {
		return sessionstore.Record{}, errMalformed
	}
	return sessionstore.Record{
		User: f[fieldUser], Claims: []byte(f[fieldClaims]),
		ClaimsVersion: uint32(claimsVersion), Generation: uint32(generation),
		Created: created, Refreshed: refreshed,
		Lifetime: time.Duration(lifetime) * time.Millisecond, Until: until,
		Persistent: f[fieldPersistent] == "1", Device: f[fieldDevice], IP: f[fieldIP],
	}, nil
}

// instant reads milliseconds since 1970; 0 is no time.
func instant(s string) (time.Time, error) {
	ms, err := strconv.ParseUint(s, 10, 50)
	if err != nil || ms == 0 {
		return time.Time{}, err
	}
	return time.UnixMilli(int64(ms)).UTC(), nil
}
