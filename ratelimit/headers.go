package ratelimit

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// The fields of draft-ietf-httpapi-ratelimit-headers-10, as net/http spells
// them.
const (
	fieldPolicy = "Ratelimit-Policy"
	fieldLimit  = "Ratelimit"
)

// announce adds the fields for the zones that apply and are not dry runs: all
// of them to the policy, those whose state is known to the limit. Values that
// are there already are kept, and a backend's that are added later too.
func (l *Limiter) announce(h http.Header, q *question) {
	if !l.config.Headers {
		return
	}
	// One array for both fields; neither can grow into the other.
	values := make([]string, 0, 2)
	if policy := l.policy(q); policy != "" {
		values = append(values, policy)
		addField(h, fieldPolicy, values[0:1:1])
	}
	if limit := q.limits(); len(limit) > 0 {
		values = append(values, string(limit))
		addField(h, fieldLimit, values[len(values)-1:len(values):len(values)])
	}
}

func addField(h http.Header, name string, value []string) {
	if present := h[name]; len(present) > 0 {
		value = append(present, value...)
	}
	h[name] = value
}

// policy is ready made unless only some of several zones apply.
func (l *Limiter) policy(q *question) string {
	switch {
	case len(q.zones) == len(l.zones):
		return l.policies
	case len(q.zones) == 1 && !q.zones[0].DryRun:
		return q.zones[0].policy
	}
	q.text = appendPolicies(q.text[:0], q.zones)
	return string(q.text)
}

func appendPolicies(b []byte, zones []*zone) []byte {
	for _, z := range zones {
		if z.DryRun {
			continue
		}
		if len(b) > 0 {
			b = append(b, ", "...)
		}
		b = append(b, z.policy...)
	}
	return b
}

// limits is the value of RateLimit, valid until the next call.
func (q *question) limits() []byte {
	q.text = q.text[:0]
	for i, z := range q.zones {
		if z.DryRun || q.known&(1<<i) == 0 {
			continue
		}
		if len(q.text) > 0 {
			q.text = append(q.text, ", "...)
		}
		st := &q.decision.States[i]
		q.text = append(q.text, z.item...)
		q.text = strconv.AppendInt(q.text, st.Remaining, 10)
		q.text = append(q.text, ";t="...)
		q.text = strconv.AppendInt(q.text, wholeSeconds(st.Reset), 10)
	}
	return q.text
}

// wholeSeconds rounds up, so that t never promises too much and Retry-After,
// which does the same, never points to an earlier moment.
func wholeSeconds(d time.Duration) int64 {
	return int64((d + time.Second - 1) / time.Second)
}

// printable reports whether s can be a String of RFC 9651, section 3.3.3.
func printable(s string) bool {
	for i := range len(s) {
		if s[i] < 0x20 || s[i] > 0x7e {
			return false
		}
	}
	return true
}

// quote writes s as a String of RFC 9651, section 4.1.6.
func quote(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
}
