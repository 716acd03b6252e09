package file

import (
	"bytes"
	"errors"
	"slices"
	"time"

	"go.etcd.io/bbolt"

	"github.com/gatehouse-gateway/gatehouse/sessionauth/sessionstore"
)

// txn is what a step sees of a transaction. Each step decides before it
// writes, so one that answers with an error of the contract has changed
// nothing.
type txn struct {
	records, users, queue *bbolt.Bucket

	now   time.Time // of the step, in milliseconds
	warn  func(error)
	dirty bool // something was written
}

// fault is a write that the database refused half-way; the transaction is
// rolled back and the step alone fails.
type fault struct{ error }

func (f fault) Unwrap() error { return f.error }

func (t *txn) put(b *bbolt.Bucket, key, value []byte) error {
	t.dirty = true
	if err := b.Put(key, value); err != nil {
		return fault{err}
	}
	return nil
}

func (t *txn) delete(b *bbolt.Bucket, key []byte) error {
	t.dirty = true
	if err := b.Delete(key); err != nil {
		return fault{err}
	}
	return nil
}

// load returns a live record.
func (t *txn) load(key sessionstore.Key) (entry, error) {
	raw := t.records.Get(recordKey(key.Site, key.ID))
	if raw == nil {
		return entry{}, sessionstore.ErrNotFound
	}
	e, err := decode(raw)
	if v, ok := errors.AsType[versionError](err); ok {
		t.warn(v)
		return entry{}, sessionstore.ErrNotFound
	}
	if err != nil {
		return entry{}, err
	}
	if !e.Live(t.now) {
		return entry{}, sessionstore.ErrNotFound
	}
	return e, nil
}

// free makes sure that an id can be taken. An expired record that clean-up has
// not reached yet makes way.
func (t *txn) free(key sessionstore.Key) error {
	raw := t.records.Get(recordKey(key.Site, key.ID))
	if raw == nil {
		return nil
	}
	e, err := decode(raw)
	if err != nil || e.Live(t.now) {
		return sessionstore.ErrExists
	}
	return t.remove(key, e.User)
}

// insert stores a record that is new under its id.
func (t *txn) insert(key sessionstore.Key, e entry) error {
	e.queued = e.Expires().UnixMilli()
	if err := t.put(t.records, recordKey(key.Site, key.ID), e.encode()); err != nil {
		return err
	}
	if err := t.put(t.users, userKey(key.Site, e.User, key.ID), nil); err != nil {
		return err
	}
	return t.put(t.queue, queueKey(e.queued, key.Site, key.ID), []byte(e.User))
}

// remove deletes a record, also one that cannot be read, with its entries.
// Where the head is damaged the queue's entry stays until it is due.
func (t *txn) remove(key sessionstore.Key, user string) error {
	k := recordKey(key.Site, key.ID)
	if raw := t.records.Get(k); raw != nil {
		if h, err := decodeHead(raw); err == nil {
			if err := t.delete(t.queue, queueKey(h.queued, key.Site, key.ID)); err != nil {
				return err
			}
		}
		if err := t.delete(t.records, k); err != nil {
			return err
		}
	}
	return t.delete(t.users, userKey(key.Site, user, key.ID))
}

func (t *txn) start(s sessionstore.Start, ends []sessionstore.End) (sessionstore.Record, []sessionstore.Ended, error) {
	if err := t.free(s.Key); err != nil {
		return sessionstore.Record{}, nil, err
	}
	e := entry{Record: sessionstore.Record{
		User: s.User, Claims: bytes.Clone(s.Claims), ClaimsVersion: 1, Created: t.now, Refreshed: t.now,
		Lifetime: s.Lifetime.Truncate(time.Millisecond), Persistent: s.Persistent, Device: s.Device, IP: s.IP,
	}}
	if s.MaxAge > 0 {
		e.Until = t.now.Add(s.MaxAge.Truncate(time.Millisecond))
	}
	if err := t.insert(s.Key, e); err != nil {
		return sessionstore.Record{}, nil, err
	}
	ended, err := t.end(s.Key.Site, ends, s.Key.ID)
	return e.Record, ended, err
}

func (t *txn) refresh(key sessionstore.Key, r sessionstore.Refresh) (sessionstore.Record, error) {
	e, err := t.load(key)
	if err != nil {
		return sessionstore.Record{}, err
	}
	if e.Generation != r.Generation {
		return sessionstore.Record{}, sessionstore.ErrConflict
	}
	e.Generation++
	e.Refreshed, e.Lifetime = t.now, r.Lifetime.Truncate(time.Millisecond)
	e.Device, e.IP = r.Device, r.IP
	// The queue keeps its entry: clean-up finds the record alive then and
	// queues it anew. So a refresh writes one page path, not three.
	return e.Record, t.put(t.records, recordKey(key.Site, key.ID), e.encode())
}

func (t *txn) update(key sessionstore.Key, u sessionstore.Update, ends []sessionstore.End) (sessionstore.Record, []sessionstore.Ended, error) {
	e, err := t.load(key)
	if err != nil {
		return sessionstore.Record{}, nil, err
	}
	moved := sessionstore.Key{Site: key.Site, ID: u.NewID}
	if !u.NewID.IsZero() {
		if err := t.free(moved); err != nil {
			return sessionstore.Record{}, nil, err
		}
	}
	if u.Claims != nil {
		e.Claims = bytes.Clone(u.Claims)
		e.ClaimsVersion++
	}
	switch {
	case !u.NewID.IsZero():
		e.Generation, e.Refreshed = 0, t.now
		if err := t.remove(key, e.User); err != nil {
			return sessionstore.Record{}, nil, err
		}
		err = t.insert(moved, e)
	case u.Claims != nil:
		err = t.put(t.records, recordKey(key.Site, key.ID), e.encode())
	}
	if err != nil {
		return sessionstore.Record{}, nil, err
	}
	ended, err := t.end(key.Site, ends, key.ID, u.NewID)
	return e.Record, ended, err
}

// end ends sessions, but for those to keep. Ownership is read from the user's
// entries, not from the records: also a record that cannot be read is ended.
func (t *txn) end(site string, ends []sessionstore.End, keep ...sessionstore.ID) ([]sessionstore.Ended, error) {
	var ended []sessionstore.Ended
	for _, e := range ends {
		for _, id := range t.owned(site, e) {
			if slices.Contains(keep, id) {
				continue
			}
			alive := t.alive(site, id)
			if err := t.remove(sessionstore.Key{Site: site, ID: id}, e.User); err != nil {
				return nil, err
			}
			if alive {
				ended = append(ended, sessionstore.Ended{ID: id, User: e.User})
			}
		}
	}
	return ended, nil
}

// owned returns the ids that an End names and its user has.
func (t *txn) owned(site string, e sessionstore.End) []sessionstore.ID {
	if e.ID.IsZero() {
		return slices.DeleteFunc(t.ids(site, e.User), func(id sessionstore.ID) bool { return id == e.Except })
	}
	key := userKey(site, e.User, e.ID)
	if k, _ := t.users.Cursor().Seek(key); !bytes.Equal(k, key) {
		return nil
	}
	return []sessionstore.ID{e.ID}
}

// ids returns the ids of a user's sessions, expired ones among them.
func (t *txn) ids(site, user string) []sessionstore.ID {
	var ids []sessionstore.ID
	prefix := userPrefix(site, user)
	c := t.users.Cursor()
	for k, _ := c.Seek(prefix); bytes.HasPrefix(k, prefix); k, _ = c.Next() {
		if len(k) == len(prefix)+len(sessionstore.ID{}) {
			ids = append(ids, sessionstore.ID(k[len(prefix):]))
		}
	}
	return ids
}

// alive reports whether a record is there and not known to have expired.
func (t *txn) alive(site string, id sessionstore.ID) bool {
	raw := t.records.Get(recordKey(site, id))
	if raw == nil {
		return false
	}
	h, err := decodeHead(raw)
	return err != nil || h.live(t.now)
}

// removeAny ends the session with an id, whoever owns it.
func (t *txn) removeAny(key sessionstore.Key) ([]sessionstore.Ended, error) {
	raw := t.records.Get(recordKey(key.Site, key.ID))
	if raw == nil {
		return nil, nil
	}
	user, alive := t.owner(key, raw), t.alive(key.Site, key.ID)
	if err := t.remove(key, user); err != nil || !alive {
		return nil, err
	}
	return []sessionstore.Ended{{ID: key.ID, User: user}}, nil
}

// owner returns the user of a record: from the record, else from the queue.
func (t *txn) owner(key sessionstore.Key, raw []byte) string {
	if e, err := decode(raw); err == nil {
		return e.User
	}
	if h, err := decodeHead(raw); err == nil {
		return string(t.queue.Get(queueKey(h.queued, key.Site, key.ID)))
	}
	return ""
}

func (t *txn) list(site, user string) ([]sessionstore.Listed, error) {
	var list []sessionstore.Listed
	for _, id := range t.ids(site, user) {
		e, err := t.load(sessionstore.Key{Site: site, ID: id})
		if errors.Is(err, sessionstore.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		list = append(list, sessionstore.Listed{ID: id, Record: e.Record})
	}
	slices.SortFunc(list, sessionstore.CompareNewest)
	return list, nil
}

// clean takes up to limit entries that are due off the queue: expired records
// are deleted, refreshed ones are queued anew. It reports whether there may be
// more. The record itself is asked inside the transaction, so a session that
// was refreshed a moment ago is never deleted.
func (t *txn) clean(limit int) (more bool, err error) {
	var due [][]byte
	c := t.queue.Cursor()
	for k, _ := c.First(); k != nil && len(due) < limit; k, _ = c.Next() {
		if at, _, _, ok := splitQueueKey(k); ok && at > t.now.UnixMilli() {
			break
		}
		due = append(due, bytes.Clone(k))
	}
	for _, k := range due {
		if err := t.cleanOne(k); err != nil {
			return false, err
		}
	}
	return len(due) == limit, nil
}

func (t *txn) cleanOne(k []byte) error {
	user := string(t.queue.Get(k))
	if err := t.delete(t.queue, k); err != nil {
		return err
	}
	due, site, id, ok := splitQueueKey(k)
	if !ok {
		return nil
	}
	key := sessionstore.Key{Site: site, ID: id}
	raw := t.records.Get(recordKey(site, id))
	h, err := decodeHead(raw)
	switch {
	case raw == nil:
		return nil
	case err != nil:
		// It has served nobody since it was damaged; now it is let go.
		t.warn(err)
	case h.queued != due:
		return nil // an entry that a damaged record left; the right one will come
	case h.live(t.now):
		if err := t.put(t.records, recordKey(site, id), withQueued(raw, h.expires)); err != nil {
			return err
		}
		return t.put(t.queue, queueKey(h.expires, site, id), []byte(user))
	}
	return t.remove(key, user)
}
