package limitstore

// Window is the state of a fixed window.
type Window struct {
	End   int64 // when it ends, in milliseconds since the Unix epoch
	Count int64 // what was charged to it
}

// At returns the window that counts at now, for windows of the given length:
// w itself while it lasts, else a new one. Both numbers are milliseconds.
//
// A clock that is set back a little must not give a window out twice, so the
// window just ahead stays in force. One further ahead can only come from a
// clock that was wrong, and would lock its clients out for as long.
func (w Window) At(now, length int64) Window {
	end := (now/length + 1) * length
	if w.End == end || w.End == end+length {
		return w
	}
	return Window{End: end}
}

// Grant returns how many of n equal requests with these limits are admitted,
// when counts are what the limits' windows already hold.
func Grant(limits []Limit, counts []int64, n int64) int64 {
	for i := range limits {
		if l := &limits[i]; !l.Advisory && l.Cost > 0 {
			n = min(n, l.fits(counts[i]))
		}
	}
	return n
}

// Charged returns what the limit is charged when granted requests are
// admitted at the count.
func (l *Limit) Charged(count, granted int64) int64 {
	if l.Cost == 0 {
		return 0
	}
	return min(granted, l.fits(count)) * l.Cost
}

// Outcome returns the state, without Reset, of the nth (from 1) of several
// equal requests of which the first granted ones were admitted at the count.
func (l *Limit) Outcome(count, granted, nth int64) State {
	before := count + l.Charged(count, min(granted, nth-1))
	after := count + l.Charged(count, min(granted, nth))
	return State{
		Remaining: max(l.Events-after, 0),
		Refused:   l.Cost > 0 && l.fits(before) == 0,
	}
}

// fits returns how many requests have room at the count, which is above
// Events after the limit was lowered.
func (l *Limit) fits(count int64) int64 {
	return max(l.Events-count, 0) / l.Cost
}
