package chunkedupload

import (
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gatehouse-gateway/gatehouse/chunkedupload/uploadstore"
	"github.com/gatehouse-gateway/gatehouse/internal/problem"
)

// maxOutcomeBody bounds the part of the application's answer that is kept.
const maxOutcomeBody = 1 << 20

// verdict is what a delivery came to.
type verdict int

const (
	verdictOutcome verdict = iota // the answer is the outcome
	verdictAgain                  // there is no outcome, deliver again later
	verdictUnknown                // the application may have processed it
)

// exchange is what was seen of one delivery.
type exchange struct {
	err       error // of the next handler
	unreached bool  // err means that the application was never reached
	panicked  bool
	bodyErr   error // the store failed while the body was read
	status    int   // the final one; 0: none was written
	header    http.Header
	written   int64 // bytes of the answer's body
}

// judge decides what a delivery came to.
//
// An error without an answer leaves it open whether the application got the
// request, but for two cases: nobody was reached, or the body broke off on our
// side, so that no server can have seen the whole request.
func judge(x *exchange) verdict {
	switch {
	case x.unreached, x.err != nil && refusedBefore(x.err):
		return verdictAgain
	case x.bodyErr != nil && (x.status == 0 || x.err != nil || x.panicked):
		return verdictAgain
	case x.panicked, x.err != nil, x.status < 200, cutShort(x):
		return verdictUnknown
	case retryableStatus(x.status):
		return verdictAgain
	default:
		return verdictOutcome
	}
}

// retryableStatus: the application says itself that it has not done it. It
// answered, so this is no lost connection.
func retryableStatus(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests,
		http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// refusedBefore reports a refusal of this gateway's own that happens before
// the application is called: the rest of the route limits requests.
func refusedBefore(err error) bool {
	e, ok := errors.AsType[*problem.Error](err)
	return ok && slices.Contains([]string{"rate-limited", "rate-limit-store-unavailable", "too-many-requests-in-flight"}, e.Code)
}

// cutShort reports an answer with fewer bytes than it declares.
func cutShort(x *exchange) bool {
	if x.status == http.StatusNoContent || x.status == http.StatusNotModified {
		return false
	}
	declared, err := strconv.ParseInt(x.header.Get("Content-Length"), 10, 64)
	return err == nil && x.written < declared
}

// retryAfter reads Retry-After (RFC 9110, section 10.2.3), at most an hour.
func retryAfter(h http.Header, now time.Time) time.Duration {
	const longest = time.Hour
	v := strings.TrimSpace(h.Get("Retry-After"))
	if seconds, err := strconv.ParseUint(v, 10, 31); err == nil {
		return min(max(time.Duration(seconds)*time.Second, time.Second), longest)
	}
	if at, err := http.ParseTime(v); err == nil {
		return min(max(at.Sub(now), time.Second), longest)
	}
	return retryBackend
}

// interruptedOutcome is the outcome of an upload whose delivery nobody knows
// the end of.
func interruptedOutcome(now time.Time) uploadstore.Outcome {
	return uploadstore.Outcome{State: uploadstore.StateInterrupted, Status: http.StatusConflict, Time: now}
}

// outcomeHeader returns the fields of an answer that are kept: none that
// belong to the connection or to one client.
func outcomeHeader(answer http.Header) http.Header {
	kept := make(http.Header, len(answer))
	for name, values := range answer {
		if keepsField(name) && !namedByConnection(answer, name) {
			kept[http.CanonicalHeaderKey(name)] = slices.Clone(values)
		}
	}
	return kept
}

func keepsField(name string) bool {
	switch plain := plainName(name); plain {
	case "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection",
		"te", "trailer", "transfer-encoding", "upgrade": // RFC 9110, section 7.6.1
		return false
	case "content-length", "set-cookie", "date":
		return false
	default:
		return !strings.HasPrefix(plain, "gatehouse-") && !strings.HasPrefix(name, http.TrailerPrefix)
	}
}

// plainName reads a field's name as careless servers do: any case, every
// character that is no letter or digit as a hyphen.
func plainName(name string) string {
	return strings.Map(func(c rune) rune {
		switch {
		case 'A' <= c && c <= 'Z':
			return c + 'a' - 'A'
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9':
			return c
		default:
			return '-'
		}
	}, name)
}

func namedByConnection(h http.Header, name string) bool {
	for _, value := range h["Connection"] {
		for token := range strings.SplitSeq(value, ",") {
			if strings.EqualFold(strings.TrimSpace(token), name) {
				return true
			}
		}
	}
	return false
}

// bodyFields describe a body, and go when it does.
var bodyFields = []string{"Content-Type", "Content-Encoding", "Content-Language", "Content-Disposition", "Content-Range"}

// copyOutcomeHeader puts the application's fields on an answer, but for those
// that skip names and those that the upload protocols speak with.
func copyOutcomeHeader(to http.Header, o *uploadstore.Outcome, skip ...string) {
	for name, values := range o.Header {
		if !slices.Contains(skip, name) && !strings.HasPrefix(name, "Upload-") && !strings.HasPrefix(name, "Tus-") {
			to[name] = slices.Clone(values)
		}
	}
}

// replay answers with the outcome as the application gave it.
func replay(w http.ResponseWriter, o *uploadstore.Outcome) {
	h := w.Header()
	hasBody := len(o.Body) > 0 && o.Status != http.StatusNoContent && o.Status != http.StatusNotModified
	if hasBody {
		copyOutcomeHeader(h, o)
		h.Set("Content-Length", strconv.Itoa(len(o.Body)))
	} else {
		copyOutcomeHeader(h, o, bodyFields...)
	}
	w.WriteHeader(o.Status)
	if hasBody {
		_, _ = w.Write(o.Body)
	}
}
