package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

const cookieName = "gatehouse" // the session cookie over plain HTTP

// answer is a response that was read to its end.
type answer struct {
	status int
	header http.Header
	body   []byte
	took   time.Duration
}

// code returns the code of a problem document.
func (a *answer) code() string {
	var doc struct{ Code string }
	_ = json.Unmarshal(a.body, &doc)
	return doc.Code
}

// sessionCookies returns the values that the answer sets.
func (a *answer) sessionCookies() []*http.Cookie {
	var found []*http.Cookie
	for _, c := range (&http.Response{Header: a.header}).Cookies() {
		if c.Name == cookieName {
			found = append(found, c)
		}
	}
	return found
}

// visitor is a browser as far as a test needs one: it keeps the session cookie
// of one host. It is used by one goroutine.
type visitor struct {
	client *http.Client
	host   string
	agent  string
	cookie string // value; empty: none
}

func newVisitor(t testing.TB, host, agent string) *visitor {
	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	t.Cleanup(transport.CloseIdleConnections)
	return &visitor{
		client: &http.Client{
			Transport:     transport,
			Timeout:       60 * time.Second,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		host: host, agent: agent,
	}
}

// with returns a visitor with the same connections and another cookie.
func (v *visitor) with(host, cookie string) *visitor {
	other := *v
	other.host, other.cookie = host, cookie
	return &other
}

// try makes a request with fields of the form "Name: value" and follows the
// cookies that come back.
func (v *visitor) try(addr, method, path string, fields ...string) (*answer, error) {
	req, err := http.NewRequest(method, "http://"+addr+path, nil)
	if err != nil {
		return nil, err
	}
	req.Host = v.host
	req.Header.Set("User-Agent", v.agent)
	req.Header.Set("Sec-Fetch-Site", "same-origin")
	if v.cookie != "" {
		req.Header.Set("Cookie", cookieName+"="+v.cookie)
	}
	for _, field := range fields {
		name, value, _ := strings.Cut(field, ": ")
		req.Header.Set(name, value)
	}
	began := time.Now()
	res, err := v.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, err
	}
	a := &answer{status: res.StatusCode, header: res.Header, body: body, took: time.Since(began)}
	for _, c := range a.sessionCookies() {
		v.cookie = c.Value
		if c.MaxAge < 0 {
			v.cookie = ""
		}
	}
	return a, nil
}

// do is try for requests that must get an answer.
func (v *visitor) do(t testing.TB, addr, method, path string, fields ...string) *answer {
	t.Helper()
	a, err := v.try(addr, method, path, fields...)
	if err != nil {
		t.Fatalf("%s %s at %s: %v", method, path, addr, err)
	}
	return a
}

// want makes a request that must get this status.
func (v *visitor) want(t testing.TB, status int, addr, method, path string, fields ...string) *answer {
	t.Helper()
	a := v.do(t, addr, method, path, fields...)
	if a.status != status {
		t.Fatalf("%s %s%s: got %d, want %d\n%v\n%s", method, v.host, path, a.status, status, a.header, a.body)
	}
	return a
}

// whoami returns the user that the application is told of.
func (v *visitor) whoami(t testing.TB, addr string) string {
	t.Helper()
	a := v.want(t, http.StatusOK, addr, "GET", "/api/whoami")
	var doc struct{ User string }
	if err := json.Unmarshal(a.body, &doc); err != nil {
		t.Fatalf("whoami answered %q: %v", a.body, err)
	}
	return doc.User
}

// raw sends bytes on a new connection and returns all that comes back. The
// request must ask for the connection to be closed.
func raw(t testing.TB, addr, request string) string {
	t.Helper()
	c, err := net.DialTimeout("tcp", addr, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.WriteString(c, request); err != nil {
		t.Fatalf("sending to %s: %v", addr, err)
	}
	text, err := io.ReadAll(c)
	if err != nil {
		t.Fatalf("reading from %s: %v (got %q)", addr, err, text)
	}
	return string(text)
}

// lastResponse reads the final response out of all bytes of a connection.
func lastResponse(text string) (*http.Response, error) {
	reader := bufio.NewReader(strings.NewReader(text))
	for {
		res, err := http.ReadResponse(reader, nil)
		if err != nil {
			return nil, fmt.Errorf("reading the response %q: %w", text, err)
		}
		if res.StatusCode >= 200 {
			return res, nil
		}
	}
}
