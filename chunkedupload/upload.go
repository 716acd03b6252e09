package chunkedupload

import (
	"crypto/rand"
	"encoding/base64"
	"net/http"
	"time"

	"github.com/gatehouse-gateway/gatehouse/chunkedupload/uploadstore"
)

// The protocols, as they are kept in uploadstore.Info.
const protocolTus = "tus"

// The attributes that this package keeps with an upload.
const (
	attrExpireAfter = "expire_after" // a duration, fixed at creation
	attrRouteURI    = "route_uri"    // path and query as this handler saw them
)

// idLength is the length of an id: 24 random bytes in base64url.
const idLength = 32

// newID draws an id that nobody can guess.
func newID() string {
	var b [idLength * 3 / 4]byte
	_, _ = rand.Read(b[:]) // never fails
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// isID reports whether s has the form of an id.
func isID(s string) bool {
	if len(s) != idLength {
		return false
	}
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '_':
		default:
			return false
		}
	}
	return true
}

// shortID is what logs may show of an id.
func shortID(id string) string { return id[:min(len(id), 8)] }

// standing is where an upload stands, as clients are told.
type standing int

const (
	standingOpen        standing = iota // bytes are missing
	standingHeld                        // all bytes are here, nobody delivers
	standingRunning                     // claimed
	standingLapsed                      // whoever delivered is gone: to be settled
	standingSucceeded                   // the application took it (status below 400)
	standingRefused                     // the application's answer is an error, for good
	standingInterrupted                 // ended without anybody knowing
)

// stand finds where an upload stands.
func stand(s *uploadstore.Status) standing {
	switch o := s.Outcome; {
	case o != nil && o.State != uploadstore.StateDone:
		return standingInterrupted
	case o != nil && o.Status >= http.StatusBadRequest:
		return standingRefused
	case o != nil:
		return standingSucceeded
	case s.Lapsed:
		return standingLapsed
	case s.Claimed:
		return standingRunning
	case s.Complete():
		return standingHeld
	default:
		return standingOpen
	}
}

// state is where an upload stands in the store's words.
func state(s *uploadstore.Status) uploadstore.State {
	switch {
	case s.Outcome != nil:
		return s.Outcome.State
	case s.Claimed:
		return uploadstore.StateRunning
	default:
		return uploadstore.StateOpen
	}
}

// shownOffset is the offset that a tus client may see: below the length until
// the application has taken the upload, since equality means success to it.
func shownOffset(s *uploadstore.Status) int64 {
	offset := s.Offset()
	if s.Length > 0 && offset >= s.Length && stand(s) != standingSucceeded {
		return s.Length - 1
	}
	return offset
}

// headAnswer is how a tus HEAD is answered.
type headAnswer int

const (
	headOffset headAnswer = iota // 200 with the offset
	headWriter                   // a writer is live: wait for it, else locked
	headLocked                   // 423
	headGone                     // 410
	headSettle                   // settle the lapsed delivery, then look again
)

// answerHead decides about a tus HEAD.
func answerHead(s *uploadstore.Status) headAnswer {
	switch stand(s) {
	case standingSucceeded:
		return headOffset
	case standingRefused, standingInterrupted:
		return headGone
	case standingLapsed:
		return headSettle
	}
	switch {
	case s.Length == 0: // the only offset there is would tell of a success
		return headLocked
	case s.Writing:
		return headWriter
	default:
		return headOffset
	}
}

// patchAnswer is what a tus PATCH may do.
type patchAnswer int

const (
	patchWrite    patchAnswer = iota // its bytes are wanted
	patchLast                        // it repeats the last byte, to complete
	patchComplete                    // it stands behind the last byte, to complete
	patchMismatch                    // 409, the offset is elsewhere
	patchLocked                      // 423, claimed while bytes are missing
	patchGone                        // 410, the upload has failed
	patchSettle                      // settle the lapsed delivery, then look again
)

// answerPatch decides about a tus PATCH at an offset.
func answerPatch(s *uploadstore.Status, offset int64) patchAnswer {
	where, complete := stand(s), s.Complete()
	ended := where == standingSucceeded || where == standingRefused || where == standingInterrupted
	switch {
	case where == standingLapsed:
		return patchSettle
	case complete && offset == s.Length && (ended || s.Length == 0):
		return patchComplete
	case complete && offset == s.Length-1:
		return patchLast
	case where == standingRefused, where == standingInterrupted:
		return patchGone
	case where == standingRunning && !complete:
		return patchLocked
	case complete, offset != s.Offset():
		return patchMismatch
	default:
		return patchWrite
	}
}

// disposal is what clean-up does with an upload.
type disposal int

const (
	keep   disposal = iota
	settle          // end a lapsed delivery as interrupted
	remove          // it has its outcome, and its time is over
	expire          // it has none and made no progress for too long
)

// dispose decides what clean-up does with an upload. An upload that somebody
// writes or delivers is kept.
func dispose(s *uploadstore.Status, fallback time.Duration, now time.Time) disposal {
	after := expireAfter(&s.Info, fallback)
	switch {
	case s.Outcome != nil && now.Sub(s.Outcome.Time) > after:
		return remove
	case s.Outcome != nil:
		return keep
	case s.Lapsed:
		return settle
	case !s.Claimed && !s.Writing && now.Sub(s.Progress) > after:
		return expire
	default:
		return keep
	}
}

// expireAfter is the upload's own time until expiry: handlers that share a
// store may differ, and the one that cleans up need not be the one that made it.
func expireAfter(info *uploadstore.Info, fallback time.Duration) time.Duration {
	if d, err := time.ParseDuration(info.Attributes[attrExpireAfter]); err == nil && d > 0 {
		return d
	}
	return fallback
}

// mayUse reports whether a request of this site and user may use the upload.
func mayUse(info *uploadstore.Info, protocol, site, owner string) bool {
	return info.Protocol == protocol && info.Site == site && (info.Owner == "" || info.Owner == owner)
}
