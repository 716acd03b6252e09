package dataprotection

import "time"

// The periods of ASP.NET Core Data Protection that decide when keys are made
// and used. They are fixed there and so they are here.
const (
	// propagation is how long a new key takes to reach every server.
	propagation = 48 * time.Hour
	// refreshPeriod is how long an ASP.NET Core application goes without
	// reading the ring.
	refreshPeriod = 24 * time.Hour
	// clockSkew is how far apart servers' clocks may be.
	clockSkew = 5 * time.Minute
)

// The periods in which one new key is enough. They matter only in odd rings,
// where the default key stays undecided although a key was just made: a revoked
// key with a later activation stands in its way. Every server would make
// another key, again and again.
const (
	newKeyIsEnough  = 2 * clockSkew
	rotationIsUnder = 20 * time.Hour
)

// resolveDefault returns the default key, or nil, and the key to use for want
// of one, or nil. Only the most recently activated key can be the default: if
// it is revoked or expired, older ones are not preferred.
func resolveDefault(keys []listedKey, now time.Time) (def, fallback *listedKey) {
	preferred := mostRecentlyActivated(keys, now.Add(clockSkew))
	if preferred != nil && preferred.canSeal() && preferred.expires.After(now) {
		return preferred, nil
	}
	return nil, resolveFallback(keys, preferred, now.Add(-propagation))
}

// mostRecentlyActivated breaks ties by the smaller id.
func mostRecentlyActivated(keys []listedKey, at time.Time) *listedKey {
	var best *listedKey
	for i := range keys {
		k := &keys[i]
		if k.activates.After(at) {
			continue
		}
		if best == nil || k.activates.After(best.activates) ||
			k.activates.Equal(best.activates) && k.id.compare(best.id) < 0 {
			best = k
		}
	}
	return best
}

// resolveFallback prefers the newest key that every server has by now, then
// the oldest of the others. Expired keys are allowed. The keys are sorted by
// creation.
func resolveFallback(keys []listedKey, preferred *listedKey, propagated time.Time) *listedKey {
	split := 0
	for split < len(keys) && !keys[split].created.After(propagated) {
		split++
	}
	for i := split - 1; i >= 0; i-- {
		if k := &keys[i]; k != preferred && k.canSeal() {
			return k
		}
	}
	for i := split; i < len(keys); i++ {
		if k := &keys[i]; k.canSeal() {
			return k
		}
	}
	return nil
}

// needsSuccessor reports whether the default key expires so soon that the key
// to follow it should be made now, and is not there.
func needsSuccessor(keys []listedKey, def *listedKey, now time.Time) bool {
	horizon := now.Add(refreshPeriod + propagation)
	if !def.expires.Before(horizon) {
		return false
	}
	next, _ := resolveDefault(keys, def.expires)
	return next == nil || next.expires.Before(horizon)
}

// choice is which key seals, and whether one has to be made.
type choice struct {
	seal *listedKey // nil: none before one is made
	// generate asks for a new key that becomes active at activates.
	generate  bool
	activates time.Time
	// standby is used when the key cannot be made, or may not.
	standby *listedKey

	from, until time.Time // the choice holds from <= now < until
}

// choose decides for a moment, as if new keys could be made.
func choose(keys []listedKey, now time.Time) *choice {
	c := &choice{from: now, until: nextChange(keys, now)}
	def, fallback := resolveDefault(keys, now)
	if def != nil {
		c.seal, c.standby, c.activates = def, def, def.expires
		c.generate = needsSuccessor(keys, def, now) && !rotatedLately(keys, def, now)
		return c
	}
	c.standby, c.activates = fallback, now
	if madeLately(keys, now) {
		c.seal = fallback // there is one: at least the key just made
		return c
	}
	c.generate = true
	return c
}

// madeLately reports whether a good key was made a moment ago.
func madeLately(keys []listedKey, now time.Time) bool {
	for _, k := range keys {
		if k.canSeal() && k.created.After(now.Add(-newKeyIsEnough)) && k.expires.After(now) &&
			!k.activates.After(now.Add(clockSkew)) {
			return true
		}
	}
	return false
}

// rotatedLately reports whether a good key to follow def was made today.
func rotatedLately(keys []listedKey, def *listedKey, now time.Time) bool {
	for i := range keys {
		k := &keys[i]
		if k != def && k.canSeal() && k.created.After(now.Add(-rotationIsUnder)) &&
			!k.activates.After(def.expires.Add(clockSkew)) && k.activates.After(def.activates) &&
			!k.expires.Before(now.Add(refreshPeriod+propagation)) {
			return true
		}
	}
	return false
}

// nextChange returns the first moment after now at which choose may decide
// otherwise for the same keys: each of its comparisons with now flips at one of
// these.
func nextChange(keys []listedKey, now time.Time) time.Time {
	next := now.Add(24 * time.Hour)
	consider := func(at time.Time) {
		// A comparison may flip at the moment itself or just after it.
		for _, at := range []time.Time{at, at.Add(1)} {
			if at.After(now) && at.Before(next) {
				next = at
			}
		}
	}
	for _, k := range keys {
		consider(k.activates.Add(-clockSkew))
		consider(k.expires)
		consider(k.expires.Add(-refreshPeriod - propagation))
		consider(k.created.Add(propagation))
		consider(k.created.Add(newKeyIsEnough))
		consider(k.created.Add(rotationIsUnder))
	}
	return next
}

// chosen returns the choice for now. It is computed only when it may have
// changed.
func (r *keyring) chosen(now time.Time) *choice {
	if c := r.choice.Load(); c != nil && !now.Before(c.from) && now.Before(c.until) {
		return c
	}
	c := choose(r.keys, now)
	r.choice.Store(c)
	return c
}
