package sessionstore

import (
	"bytes"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"
)

// Bounds of what a store accepts, in bytes. Anything beyond is ErrInvalid:
// a store never cuts what it is given, since callers compare what comes back.
const (
	MaxSite   = 512
	MaxUser   = 255
	MaxClaims = 4096
	MaxDevice = 512
	MaxIP     = 128
)

// MinLifetime is the shortest lifetime; lifetimes are cut to whole
// milliseconds.
const MinLifetime = time.Millisecond

// ErrInvalid means that the caller broke a bound of the contract. Nothing was
// asked of the store.
var ErrInvalid = errors.New("sessionstore: invalid argument")

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalid, fmt.Sprintf(format, args...))
}

// Check returns ErrInvalid when the key names no session.
func (k Key) Check() error {
	if k.ID.IsZero() {
		return invalid("no id")
	}
	return checkSite(k.Site)
}

// Check returns ErrInvalid when a part is out of bounds.
func (s Start) Check() error {
	return errors.Join(s.Key.Check(), checkUser(s.User), checkClaims(s.Claims), checkLifetime(s.Lifetime),
		checkMaxAge(s.MaxAge), checkClient(s.Device, s.IP))
}

// Check returns ErrInvalid when a part is out of bounds.
func (r Refresh) Check() error {
	return errors.Join(checkLifetime(r.Lifetime), checkClient(r.Device, r.IP))
}

// Check returns ErrInvalid when a part is out of bounds.
func (u Update) Check() error { return checkClaims(u.Claims) }

// CheckEnds returns ErrInvalid when the site or one of the ends is out of
// bounds.
func CheckEnds(site string, ends []End) error {
	err := checkSite(site)
	for _, e := range ends {
		err = errors.Join(err, checkUser(e.User))
	}
	return err
}

// CheckUser returns ErrInvalid when the site or the user is out of bounds.
func CheckUser(site, user string) error {
	return errors.Join(checkSite(site), checkUser(user))
}

func checkSite(site string) error {
	if site == "" || len(site) > MaxSite {
		return invalid("a site of %d bytes", len(site))
	}
	return nil
}

func checkUser(user string) error {
	if user == "" || len(user) > MaxUser {
		return invalid("a user of %d bytes", len(user))
	}
	if !utf8.ValidString(user) {
		return invalid("a user that is not UTF-8")
	}
	return nil
}

func checkClaims(claims []byte) error {
	if len(claims) > MaxClaims {
		return invalid("claims of %d bytes", len(claims))
	}
	return nil
}

func checkLifetime(d time.Duration) error {
	if d < MinLifetime {
		return invalid("a lifetime of %v", d)
	}
	return nil
}

func checkMaxAge(d time.Duration) error {
	if d < 0 || d > 0 && d < MinLifetime {
		return invalid("an absolute lifetime of %v", d)
	}
	return nil
}

func checkClient(device, ip string) error {
	if len(device) > MaxDevice {
		return invalid("a device of %d bytes", len(device))
	}
	if len(ip) > MaxIP {
		return invalid("an address of %d bytes", len(ip))
	}
	return nil
}

// Live reports whether the record has not expired at now, a time of the
// store's clock.
func (r *Record) Live(now time.Time) bool { return now.Before(r.Expires()) }

// CompareNewest orders sessions as List returns them: the newest first, by id
// where they began in the same millisecond.
func CompareNewest(a, b Listed) int {
	if c := b.Record.Created.Compare(a.Record.Created); c != 0 {
		return c
	}
	return bytes.Compare(a.ID[:], b.ID[:])
}
