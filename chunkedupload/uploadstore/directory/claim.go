package directory

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/gatehouse-gateway/gatehouse/chunkedupload/uploadstore"
)

type claimState int

const (
	claimNone   claimState = iota // never claimed, or given back
	claimLive                     // renewed less than ClaimLapse ago
	claimLapsed                   // not given back, not renewed
)

// claimView is the claim that counts: the newest that was not void.
type claimView struct {
	newest     int64 // number of the newest, void ones included; -1: none
	counts     int64 // number of the one that counts; -1: none
	state      claimState
	tick       time.Time // the latest renewal
	deliveries int       // claims up to and with this one
}

// lastClaim finds the claim that counts.
func (u *upload) lastClaim(f *folder) (claimView, error) {
	newest, err := claimChain.last(f)
	v := claimView{newest: newest, counts: newest}
	for ; err == nil && v.counts >= 0; v.counts-- {
		var void bool
		if void, err = u.readClaim(f, &v); err != nil || !void {
			return v, err
		}
	}
	return v, err
}

// readClaim reads claim v.counts into v.
func (u *upload) readClaim(f *folder, v *claimView) (void bool, err error) {
	name := claimChain.name(v.counts)
	b, written, err := f.read(name)
	if err != nil {
		return false, err
	}
	j, err := parseJournal(kindClaim, b)
	switch {
	case errors.Is(err, errHalfWritten):
		j.state, j.tick = slotActive, written
	case err != nil:
		return false, broken(name, err)
	case j.slotBad:
		j.tick = written
	}
	if j.state == slotVoid {
		return true, nil
	}
	now, err := u.time()
	v.tick, v.deliveries = j.tick, int(j.number)+1
	switch {
	case j.state == slotEnded:
		v.state = claimNone
	case now.Sub(j.tick) < uploadstore.ClaimLapse:
		v.state = claimLive
	default:
		v.state = claimLapsed
	}
	return false, err
}

// Claim implements [uploadstore.Upload].
func (u *upload) Claim(ctx context.Context, o uploadstore.ClaimOptions) (c uploadstore.Claim, err error) {
	err = u.with(ctx, "claiming upload", func(f *folder) error {
		for {
			before, err := u.claimable(f, o)
			if err != nil {
				return err
			}
			mine, err := u.newClaim(f, before)
			if exists(err) {
				continue // somebody was faster; look again who
			}
			if err != nil {
				return err
			}
			if err := u.checkClaim(f, mine, before); err != nil {
				return errors.Join(err, mine.set(f, slotVoid))
			}
			c = mine
			return nil
		}
	})
	return c, err
}

// claimable says why there can be no claim now, if so, before a file is made.
func (u *upload) claimable(f *folder, o uploadstore.ClaimOptions) (claimView, error) {
	outcome, writing, err := u.readOutcome(f)
	switch {
	case err != nil:
		return claimView{}, err
	case outcome != nil:
		return claimView{}, uploadstore.ErrClosed
	case writing:
		return claimView{}, uploadstore.ErrRunning
	}
	last, err := u.lastClaim(f)
	if err != nil {
		return last, err
	}
	if last.state == claimLive || (last.state == claimLapsed && !o.TakeOver) {
		return last, uploadstore.ErrRunning
	}
	live, err := u.beingWritten(f)
	if err == nil && live {
		err = uploadstore.ErrBusy
	}
	return last, err
}

// newClaim makes the next claim, durably: after a power loss it must be known
// that a delivery had begun.
func (u *upload) newClaim(f *folder, before claimView) (*claim, error) {
	now, err := u.time()
	if err != nil {
		return nil, err
	}
	number := before.newest + 1
	token := rand.Text()
	head := appendHeader(nil, kindClaim, token, int64(before.deliveries))
	c := &claim{upload: u, number: number, slotAt: int64(len(head))}
	err = u.publish(claimChain.name(number), appendSlot(head, slotActive, now), true)
	if exists(err) && c.bears(f, token) {
		err = nil // the file server was asked twice, and this is its second answer
	}
	if err != nil {
		return nil, err
	}
	if err := f.sync(); err != nil {
		return nil, errors.Join(err, c.set(f, slotVoid))
	}
	return c, nil
}

func (c *claim) bears(f *folder, token string) bool {
	b, _, err := f.read(claimChain.name(c.number))
	if err != nil {
		return false
	}
	j, err := parseJournal(kindClaim, b)
	return err == nil && j.token == token
}

// checkClaim looks, now that others can see the claim, at what would forbid it.
func (u *upload) checkClaim(f *folder, c *claim, before claimView) error {
	if next, err := claimChain.follow(f, c.number); err != nil || next != c.number {
		return cmpErr(err, uploadstore.ErrRunning) // made so slowly that it lapsed
	}
	if err := u.fenceWriters(f); err != nil {
		return err
	}
	if before.state == claimLapsed {
		// Its holder may have come back to life; it looks for this claim after
		// its renewal.
		again := claimView{counts: before.counts}
		if _, err := u.readClaim(f, &again); err != nil {
			return err
		}
		if !again.tick.Equal(before.tick) || again.state != claimLapsed {
			return uploadstore.ErrRunning
		}
	}
	outcome, writing, err := u.readOutcome(f)
	switch {
	case err != nil:
		return err
	case outcome != nil:
		return uploadstore.ErrClosed
	case writing:
		return uploadstore.ErrRunning
	}
	if gone, err := u.gone(f); err != nil || gone {
		return cmpErr(err, uploadstore.ErrNotFound)
	}
	return nil
}

// beingWritten reports whether a live writer exists.
func (u *upload) beingWritten(f *folder) (bool, error) {
	if u.info.ChunkSize > 0 {
		received, err := u.readChunks(f)
		return received.live, err
	}
	v, err := u.readWriter(f)
	return v.live, err
}

// fenceWriters says ErrBusy if a writer is live, and makes sure that a dead
// one that comes back commits nothing more.
func (u *upload) fenceWriters(f *folder) error {
	if u.info.ChunkSize > 0 { // a chunk's writer looks for a claim before it commits
		received, err := u.readChunks(f)
		if err == nil && received.live {
			err = uploadstore.ErrBusy
		}
		return err
	}
	v, err := u.readWriter(f)
	switch {
	case err != nil:
		return err
	case v.live:
		return uploadstore.ErrBusy
	case v.ended && !v.starting, v.epoch < 0:
		return nil
	}
	err = u.closeEpoch(f, v.epoch)
	if errors.Is(err, errTaken) {
		err = uploadstore.ErrBusy
	}
	return err
}

// claim is the right to deliver.
type claim struct {
	upload *upload
	number int64
	slotAt int64

	mu sync.Mutex
}

var _ uploadstore.Claim = (*claim)(nil)

// set writes the claim's slot. Only its time must outlive a crash of the file
// server, not each renewal.
func (c *claim) set(f *folder, state int) error {
	now, err := c.upload.time()
	if err != nil {
		return err
	}
	return f.show(claimChain.name(c.number), appendSlot(nil, state, now), c.slotAt)
}

// with opens the folder for a holder, who is told of a deletion as ErrAborted.
func (c *claim) with(ctx context.Context, what string, do func(*folder) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.upload.with(ctx, what, do)
	if errors.Is(err, uploadstore.ErrNotFound) {
		return uploadstore.ErrAborted
	}
	return err
}

// Renew implements [uploadstore.Claim].
func (c *claim) Renew(ctx context.Context) error {
	return c.with(ctx, "renewing the claim of upload", func(f *folder) error {
		outcome, _, err := c.upload.readOutcome(f)
		if err != nil {
			return err
		}
		if outcome != nil {
			return uploadstore.ErrLost
		}
		return c.renew(f)
	})
}

// renew proves life first and then looks for who took over, who looks for this
// sign of life after its own claim is there.
func (c *claim) renew(f *folder) error {
	if err := c.set(f, slotActive); err != nil {
		return err
	}
	last, err := c.upload.lastClaim(f)
	if err == nil && last.counts != c.number {
		err = uploadstore.ErrLost
	}
	return err
}

// Finish implements [uploadstore.Claim].
func (c *claim) Finish(ctx context.Context, o uploadstore.Outcome) (stored uploadstore.Outcome, err error) {
	err = c.with(ctx, "finishing upload", func(f *folder) error {
		first, _, err := c.upload.readOutcome(f)
		if err != nil {
			return err
		}
		if first != nil {
			stored = *first
			return nil
		}
		if err := c.renew(f); err != nil {
			return err
		}
		stored, err = c.upload.settle(f, o)
		return err
	})
	return stored, err
}

// Release implements [uploadstore.Claim]. It can be repeated when it failed.
func (c *claim) Release(ctx context.Context) error {
	return c.with(ctx, "releasing the claim of upload", func(f *folder) error {
		last, err := c.upload.lastClaim(f)
		if err != nil {
			return err
		}
		if last.counts != c.number {
			return uploadstore.ErrLost
		}
		if err := c.set(f, slotEnded); err != nil {
			return err
		}
		return c.syncSlot(f)
	})
}

// syncSlot makes a release durable, so that a crash of the file server does
// not turn it into a lapse.
func (c *claim) syncSlot(f *folder) error {
	file, err := f.edit(claimChain.name(c.number))
	if err != nil {
		return err
	}
	return errors.Join(file.sync(), file.close())
}

// Settle implements [uploadstore.Upload].
func (u *upload) Settle(ctx context.Context, o uploadstore.Outcome) (stored uploadstore.Outcome, err error) {
	err = u.with(ctx, "settling upload", func(f *folder) error {
		stored, err = u.settle(f, o)
		return err
	})
	return stored, err
}

// settle stores an outcome unless there is one, and returns the one that is
// there.
func (u *upload) settle(f *folder, o uploadstore.Outcome) (uploadstore.Outcome, error) {
	first, writing, err := u.readOutcome(f)
	if err == nil && first == nil && !writing {
		payload, encodeErr := encodeOutcome(o)
		if encodeErr != nil {
			return uploadstore.Outcome{}, encodeErr
		}
		if err = u.publishDurably(f, "outcome", seal(kindOutcome, payload)); err == nil {
			return decodeOutcome(payload)
		}
		if !exists(err) {
			return uploadstore.Outcome{}, err
		}
		first, writing, err = u.readOutcome(f)
	}
	switch {
	case err != nil:
		return uploadstore.Outcome{}, err
	case writing:
		return uploadstore.Outcome{}, errors.New("another outcome is being written")
	case first == nil:
		return uploadstore.Outcome{}, errors.New("the outcome was stored and is not there")
	}
	return *first, nil
}

// readOutcome returns the outcome, or nil; writing says that one is just being
// written.
func (u *upload) readOutcome(f *folder) (o *uploadstore.Outcome, writing bool, err error) {
	b, written, err := f.read("outcome")
	if absent(err) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	payload, err := unseal(kindOutcome, b)
	if errors.Is(err, errHalfWritten) {
		recent, timeErr := u.recent(written)
		if timeErr != nil {
			return nil, false, timeErr
		}
		if recent {
			return nil, true, nil
		}
	}
	if err != nil {
		return nil, false, broken("outcome", err)
	}
	// Its maker may not have come to make the name durable, and what is shown
	// must stay.
	if recent, err := u.recent(written); err != nil || recent {
		if err := cmpErr(err, f.sync()); err != nil {
			return nil, false, err
		}
	}
	stored, err := decodeOutcome(payload)
	if err != nil {
		return nil, false, broken("outcome", fmt.Errorf("%w: %v", errGarbage, err))
	}
	return &stored, false, nil
}
