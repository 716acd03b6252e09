package sessionauth

import (
	"context"
	"hash/maphash"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gatehouse-gateway/gatehouse/sessionauth/sessionstore"
)

// Shared is the state of a gateway's sessions that outlives a reload of its
// configuration: sessions that this gateway knows to have ended, ends that wait
// for the store, and caches. It is safe for concurrent use.
type Shared struct {
	denials denials
	tokens  *tokenTable
	claims  claimsCache
	pending pendingEnds
}

// NewShared makes an empty Shared. Close ends it.
func NewShared() *Shared {
	s := &Shared{tokens: newTokenTable()}
	s.pending.ctx, s.pending.cancel = context.WithCancel(context.Background())
	return s
}

// Close stops what runs in the background and waits for it. Ends that still
// wait for the store are given up. Requests may still be served, without
// retries.
func (s *Shared) Close() error {
	s.pending.close()
	return nil
}

// Deny refuses a session in this gateway at once, whatever its token says. It is
// for those who end sessions from outside a request, after the store has ended
// it. Lasting is for how long a token of it could be believed without a look at
// the store: RefreshAfter and AcceptStale.
func (s *Shared) Deny(key sessionstore.Key, lasting time.Duration) {
	now := time.Now()
	s.denials.add(key, now, now.Add(lasting+denyMargin), false)
}

// Sizes of the caches. A token takes about 1 KiB, at most about 12.
const (
	tokenSlots = 4096
	claimSlots = 1024
	maxDenials = 100_000
	maxPending = 10_000
)

// opened is a token that was opened, with what requests need of it. It never
// changes but for checked.
type opened struct {
	token
	id     sessionstore.ID
	public string    // id as text
	field  string    // user, as the backend gets it
	set    *claimSet // the claims; nil where they are in the store

	value, site, cookie string
	ring                keyRing
	epoch               uint64

	checked atomic.Uint64 // the state of the denials at which id was not denied
}

func (o *opened) key() sessionstore.Key { return sessionstore.Key{Site: o.site, ID: o.id} }

// tokenTable is a cache of opened tokens: a fixed table in which a keyed hash
// of the cookie finds a slot. The full text decides, so that the hash only has
// to be hard to aim at. A newer token takes the slot of an older one.
type tokenTable struct {
	seed  maphash.Seed
	slots [tokenSlots]atomic.Pointer[opened]
}

func newTokenTable() *tokenTable { return &tokenTable{seed: maphash.MakeSeed()} }

func (t *tokenTable) slot(value string) *atomic.Pointer[opened] {
	return &t.slots[maphash.String(t.seed, value)%tokenSlots]
}

// claimsCache holds claims that are too large for their token. Ids are hashes
// of random numbers that clients cannot choose, so they serve as hashes here.
type claimsCache struct {
	slots [claimSlots]atomic.Pointer[cachedClaims]
}

type cachedClaims struct {
	key     sessionstore.Key
	version uint32
	read    time.Time
	set     *claimSet
}

func (c *claimsCache) slot(id sessionstore.ID) *atomic.Pointer[cachedClaims] {
	return &c.slots[(uint(id[0])<<8|uint(id[1]))%claimSlots]
}

func (c *claimsCache) put(key sessionstore.Key, version uint32, set *claimSet, now time.Time) {
	c.slot(key.ID).Store(&cachedClaims{key: key, version: version, read: now, set: set})
}

// get returns claims of the wanted version or a later one, and their age.
func (c *claimsCache) get(key sessionstore.Key, version uint32, now time.Time) (*claimSet, time.Duration, bool) {
	entry := c.slot(key.ID).Load()
	if entry == nil || entry.key != key || entry.version < version {
		return nil, 0, false
	}
	return entry.set, now.Sub(entry.read), true
}

// denials are the sessions that this gateway knows to have ended. Beyond
// maxDenials some are forgotten: they are then refused when their token is due,
// as on other gateways. Those whose end is not stored yet stay.
type denials struct {
	changes atomic.Uint64 // how often one was added
	mu      sync.RWMutex
	until   map[sessionstore.Key]denial
}

type denial struct {
	until  time.Time
	pinned bool // its end waits for the store
}

// add denies a session until then. A denial is never shortened, unless it was
// pinned.
func (d *denials) add(key sessionstore.Key, now, until time.Time, pinned bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.until == nil {
		d.until = map[sessionstore.Key]denial{}
	}
	old, known := d.until[key]
	if known && !old.pinned && !pinned && old.until.After(until) {
		return
	}
	if !known && len(d.until) >= maxDenials {
		d.pruneLocked(now)
	}
	d.until[key] = denial{until, pinned}
	// After the entry: whoever sees the new count finds the entry.
	d.changes.Add(1)
}

// pruneLocked forgets what has lapsed and, where that is not enough, others.
func (d *denials) pruneLocked(now time.Time) {
	for key, entry := range d.until {
		if !now.Before(entry.until) {
			delete(d.until, key)
		}
	}
	for key, entry := range d.until {
		if len(d.until) < maxDenials*9/10 {
			return
		}
		if !entry.pinned {
			delete(d.until, key)
		}
	}
}

// denied reports whether the token's session is denied. As long as nothing was
// added since the token was last found not to be, that is one comparison.
func (d *denials) denied(o *opened, now time.Time) bool {
	changes := d.changes.Load()
	if o.checked.Load() == changes {
		return false
	}
	d.mu.RLock()
	entry, ok := d.until[o.key()]
	d.mu.RUnlock()
	if ok && now.Before(entry.until) {
		return true
	}
	o.checked.Store(changes)
	return false
}

// pendingEnd is an end that the store has not taken yet.
type pendingEnd struct {
	manager *Manager
	site    string
	ends    []sessionstore.End
	reason  EndReason
	at      time.Time // when it was commanded
	until   time.Time // when the sessions have expired by themselves
}

// pendingEnds is the queue of ends that wait for the store. One goroutine works
// on it while it is not empty.
type pendingEnds struct {
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu      sync.Mutex
	queue   []*pendingEnd
	running bool
	closed  bool
}

// retry queues an end. It reports whether there was room.
func (s *Shared) retry(e *pendingEnd) bool {
	p := &s.pending
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || len(p.queue) >= maxPending {
		return false
	}
	p.queue = append(p.queue, e)
	if !p.running {
		p.running = true
		p.wg.Go(p.work)
	}
	return true
}

func (p *pendingEnds) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.cancel()
	p.wg.Wait()
}

// The pause between attempts doubles up to the longest.
const (
	firstPause   = 250 * time.Millisecond
	longestPause = 15 * time.Second
)

func (p *pendingEnds) work() {
	pause := firstPause
	for p.wait(pause) {
		if p.attempt() {
			pause = firstPause
		} else {
			pause = min(2*pause, longestPause)
		}
		p.mu.Lock()
		if len(p.queue) == 0 {
			p.queue, p.running = nil, false
			p.mu.Unlock()
			return
		}
		p.mu.Unlock()
	}
}

// wait waits for about the pause, unless the queue is closed.
func (p *pendingEnds) wait(pause time.Duration) bool {
	timer := time.NewTimer(pause/2 + rand.N(pause/2))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-p.ctx.Done():
		return false
	}
}

// attempt tries every end in the queue once, the oldest first, and reports
// whether all went through. After a failure the rest for the same store waits.
func (p *pendingEnds) attempt() bool {
	p.mu.Lock()
	batch := p.queue
	p.queue = nil
	p.mu.Unlock()
	away := map[*Manager]bool{}
	var left []*pendingEnd
	for _, e := range batch {
		if !e.manager.now().Before(e.until) {
			continue
		}
		if away[e.manager] || e.try(p.ctx) != nil {
			away[e.manager] = true
			left = append(left, e)
		}
	}
	p.mu.Lock()
	p.queue = append(left, p.queue...)
	p.mu.Unlock()
	return len(left) == 0
}

// try ends the sessions. Those of a whole user are ended one by one, and only
// those that had begun at the time of the command, with a margin for clocks that
// differ: who signed in again meanwhile stays signed in.
func (e *pendingEnd) try(ctx context.Context) error {
	var ends []sessionstore.End
	for _, end := range e.ends {
		if !end.ID.IsZero() {
			ends = append(ends, end)
			continue
		}
		listed, err := e.list(ctx, end.User)
		if err != nil {
			return err
		}
		for _, l := range listed {
			if l.ID != end.Except && !l.Record.Created.After(e.at.Add(denyMargin)) {
				ends = append(ends, sessionstore.End{User: end.User, ID: l.ID})
			}
		}
	}
	if len(ends) == 0 {
		return nil
	}
	if err := e.manager.end(ctx, e.site, ends[0].ID, always(e.reason), ends...); err != nil {
		return err
	}
	for _, end := range ends {
		e.manager.deny(e.site, end.ID) // no longer pinned
	}
	return nil
}

func (e *pendingEnd) list(ctx context.Context, user string) (listed []sessionstore.Listed, err error) {
	err = e.manager.write(ctx, "list", sessionstore.ID{}, func(ctx context.Context) error {
		listed, err = e.manager.store.List(ctx, e.site, user)
		return err
	})
	return listed, err
}
