package directory

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gatehouse-gateway/gatehouse/chunkedupload/uploadstore"
)

const (
	tickEvery    = time.Second            // how often a serial writer shows life
	deadAfter    = 4 * time.Second        // how long it may show none
	idleAfter    = 3 * time.Second        // without bytes a writer that is asked yields
	askFor       = 10 * time.Second       // how long a wish to write is remembered
	lookEvery    = 100 * time.Millisecond // how often a newcomer looks
	settleWithin = time.Second            // how long another's takeover may take
	maxJournal   = 64 << 10               // a longer file is not continued
)

// errTaken means that another has taken over meanwhile: look again.
var errTaken = errors.New("another has taken over")

// writerView is how the serial writers of an upload stand.
type writerView struct {
	epoch    int64 // the latest; -1: nobody ever wrote
	ended    bool
	live     bool // not ended, and believed alive
	own      bool // this store made it
	starting bool // its start is not settled: offset is not known yet
	offset   int64
	progress time.Time // the latest commit
	file     journal
}

// readWriter reads the latest epoch. That it was the latest when its records
// were read is what makes its offset final: whoever takes over later creates
// its file first and finds these records then.
func (u *upload) readWriter(f *folder) (writerView, error) {
	for range 100 {
		n, err := writerChain.last(f)
		if err != nil || n < 0 {
			return writerView{epoch: -1, ended: true}, err
		}
		v, err := u.readEpoch(f, n)
		if absent(err) {
			continue // trimmed since
		}
		if err != nil {
			return v, err
		}
		next, err := writerChain.follow(f, n)
		if err != nil || next == n {
			return v, err
		}
	}
	return writerView{}, errors.New("the writers change too fast")
}

func (u *upload) readEpoch(f *folder, n int64) (writerView, error) {
	name := writerChain.name(n)
	j, raw, written, err := u.readJournal(f, kindWriter, name)
	v := writerView{epoch: n, file: j}
	if err != nil && !errors.Is(err, errHalfWritten) {
		if errors.Is(err, errGarbage) || errors.Is(err, errNewer) {
			err = broken(name, err)
		}
		return v, err
	}
	half := err != nil
	v.starting = true
	for _, r := range j.records {
		if r.kind == 's' || r.kind == 'r' {
			v.starting, v.offset, v.progress = false, max(v.offset, r.to), later(v.progress, r.time)
		}
	}
	v.own = j.token == u.store.token
	v.ended = !half && j.state != slotActive
	if v.ended {
		return v, nil
	}
	v.live, err = u.alive(v, raw, written, half || j.slotBad)
	return v, err
}

// alive reports whether a writer that has not ended is believed alive.
func (u *upload) alive(v writerView, raw []byte, written time.Time, noTick bool) (bool, error) {
	if v.own {
		return u.store.writes(u.id, v.epoch), nil
	}
	now, err := u.time()
	if err != nil {
		return false, err
	}
	tick := v.file.tick
	if noTick {
		tick = written
	}
	return now.Sub(tick) < uploadstore.WriterLapse && u.store.unchanged(u.id, v.epoch, raw) < deadAfter, nil
}

// writes reports whether a writer of this process has that epoch.
func (s *Store) writes(id string, epoch int64) bool {
	s.mu.Lock()
	e := s.entries[id]
	s.mu.Unlock()
	if e == nil {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	name := writerChain.name(epoch)
	j := e.open[name]
	return e.taking[name] > 0 || (j != nil && !j.abandoned.Load())
}

// beginTaking notes that this process makes an epoch, so that its own readers
// wait for it.
func (s *Store) beginTaking(id, name string) (end func(), err error) {
	e, err := s.hold(id)
	if err != nil {
		return nil, err
	}
	count := func(by int) {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.taking[name] += by; e.taking[name] == 0 {
			delete(e.taking, name)
		}
	}
	count(1)
	return func() { count(-1); s.drop(e) }, nil
}

// settledWriter reads the latest epoch with a known offset. Where somebody is
// just taking over it waits, and where that one died in between it settles the
// offset in its place.
func (u *upload) settledWriter(ctx context.Context, f *folder) (writerView, error) {
	began := u.store.now()
	for {
		v, err := u.readWriter(f)
		if err != nil || !v.starting || v.epoch < 0 {
			return v, err
		}
		if !v.live || u.store.now().Sub(began) > settleWithin {
			if err := u.closeEpoch(f, v.epoch); err != nil && !errors.Is(err, errTaken) {
				return v, err
			}
			continue
		}
		if err := wait(ctx, 10*time.Millisecond); err != nil {
			return v, err
		}
	}
}

func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// closeEpoch takes over from an epoch without writing: what its writer commits
// from now on does not count.
func (u *upload) closeEpoch(f *folder, epoch int64) error {
	_, err := u.takeOver(f, epoch+1, slotEnded)
	return err
}

// startLine is where an epoch's start stands. The place is kept from the
// beginning, so that a disk that is full cannot leave a start unsettled.
func startLine(offset int64, progress time.Time) []byte {
	return appendLine(nil, fmt.Sprintf("s %016d %016d", offset, progress.UnixMilli()))
}

// takeOver makes epoch n and settles where it starts. The order is what fences:
// the file is there before the older ones are read, and an older writer looks
// for it after its record is written.
func (u *upload) takeOver(f *folder, n int64, state int) (writerView, error) {
	now, err := u.time()
	if err != nil {
		return writerView{}, err
	}
	name := writerChain.name(n)
	begun, err := u.store.beginTaking(u.id, name)
	if err != nil {
		return writerView{}, err
	}
	defer begun()
	head := appendHeader(nil, kindWriter, u.store.token, n)
	slotAt := len(head)
	head = appendSlot(head, slotActive, now)
	blank := startLine(0, time.UnixMilli(0))
	for i := range blank[:len(blank)-1] {
		blank[i] = ' '
	}
	if err := u.publish(name, append(head, blank...), false); err != nil {
		if exists(err) {
			err = errTaken
		}
		return writerView{}, err
	}
	// A number made while the chain went on without it means nothing, and
	// where the chain was trimmed nothing may stay.
	if next, err := writerChain.follow(f, n); err != nil || next != n {
		if next > n+1 {
			_ = f.remove(name)
		}
		return writerView{}, cmpErr(err, errTaken)
	}
	offset, progress, err := u.offsetBefore(f, n)
	if err != nil {
		return writerView{}, err
	}
	start := append(appendSlot(nil, state, now), startLine(offset, progress)...)
	if err := f.show(name, start, int64(slotAt)); err != nil {
		return writerView{}, err
	}
	if next, err := writerChain.follow(f, n); err != nil || next != n {
		return writerView{}, cmpErr(err, errTaken)
	}
	size := int64(slotAt + len(start))
	return writerView{epoch: n, own: true, offset: offset, progress: progress,
		file: journal{slotAt: int64(slotAt), size: size, clean: true, token: u.store.token}}, nil
}

// offsetBefore returns what the epochs before n received. The latest whose
// start is settled speaks for all before it.
func (u *upload) offsetBefore(f *folder, n int64) (int64, time.Time, error) {
	for n--; n >= 0; n-- {
		v, err := u.readEpoch(f, n)
		if absent(err) {
			return 0, time.Time{}, errTaken // trimmed: others are far ahead
		}
		if err != nil {
			return 0, time.Time{}, err
		}
		if !v.starting {
			return v.offset, v.progress, nil
		}
	}
	return 0, u.info.Created, nil
}
