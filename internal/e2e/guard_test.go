package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// siteOfGuard has a Gatehouse handler in one nested place only; the sites
// beside it and the error routes are plain.
const siteOfGuard = `
{
	{GLOBAL}
}
http://nested.test:{PORT} {
	handle /outer/* {
		handle /outer/inner/* {
			session_auth
			reverse_proxy {APP}
		}
		reverse_proxy {APP}
	}
	reverse_proxy {APP}
}
http://plain.test:{PORT} {
	reverse_proxy {APP}
}
http://error.test:{PORT} {
	error 404
	handle_errors 404 {
		reverse_proxy {APP}
	}
}
`

// places are requests that reach the application on different ways.
var places = []struct{ name, host, path string }{
	{"behind the handler", "nested.test", "/outer/inner/page"},
	{"beside the handler", "nested.test", "/outer/page"},
	{"outside its block", "nested.test", "/page"},
	{"a site without it", "plain.test", "/page"},
	{"an error route", "error.test", "/page"},
}

// spellings of field names in the gateway's namespace.
var spellings = []string{
	"Gatehouse-User", "gatehouse-user", "GATEHOUSE-USER", "gAtEhOuSe-UsEr",
	"Gatehouse_User", "gatehouse_user", "Gatehouse.User", "Gatehouse~User",
	"Gatehouse!User", "Gatehouse#User", "Gatehouse$User", "Gatehouse%User",
	"Gatehouse&User", "Gatehouse'User", "Gatehouse*User", "Gatehouse+User",
	"Gatehouse^User", "Gatehouse`User", "Gatehouse|User", "Gatehouse--User",
	"Gatehouse-Session", "Gatehouse_Session-State", "Gatehouse-Claims",
	"Gatehouse-Upload-Id", "Gatehouse-Assertion", "Gatehouse-", "Gatehouse-Anything-Else",
}

// received is what the application says that it got.
type received struct {
	Headers  [][2]string
	Trailers []string
	Size     int
}

func ask(t testing.TB, addr, request string) (received, *http.Response) {
	t.Helper()
	res, err := lastResponse(raw(t, addr, request))
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	var got received
	if res.StatusCode == http.StatusOK {
		if err := json.Unmarshal(body, &got); err != nil {
			t.Fatalf("the application answered %q: %v", body, err)
		}
	}
	return got, res
}

func (r received) has(field string) bool {
	for _, h := range r.Headers {
		if h[0]+": "+h[1] == field {
			return true
		}
	}
	return false
}

// forged lists what reached the application with the mark of a forgery.
func (r received) forged() []string {
	var found []string
	for _, h := range r.Headers {
		if strings.Contains(h[1], "mallory") || reserved(h[0]) && h[1] != "" {
			found = append(found, h[0]+": "+h[1])
		}
	}
	for _, field := range r.Trailers {
		if name, _, _ := strings.Cut(field, ":"); reserved(name) || strings.Contains(field, "mallory") {
			found = append(found, "trailer "+field)
		}
	}
	return found
}

// TestForgedHeaders shows that nothing that a client sends in the gateway's
// namespace reaches the application, anywhere on the server.
func TestForgedHeaders(t *testing.T) {
	gate := startGateway(t, "gate", replace(siteOfGuard, "{APP}", startApp(t)))
	for _, place := range places {
		t.Run(place.name, func(t *testing.T) {
			head := fmt.Sprintf("GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\nX-Plain: yes\r\n", place.path, place.host)
			for _, name := range spellings {
				got, res := ask(t, gate.addr, head+name+": mallory\r\n\r\n")
				if res.StatusCode != http.StatusOK || !got.has("X-Plain: yes") {
					t.Fatalf("%s: status %d, %v: the request did not arrive as it should", name, res.StatusCode, got)
				}
				for _, field := range got.forged() {
					t.Errorf("%s arrived as %q", name, field)
				}
			}
			all := head
			for _, name := range spellings {
				all += name + ": mallory\r\n" + name + ": mallory again\r\n"
			}
			if got, _ := ask(t, gate.addr, all+"\r\n"); len(got.forged()) > 0 {
				t.Errorf("of all spellings at once arrived %q", got.forged())
			}
		})
	}
}

// TestForgedTrailers shows the same for the trailers of requests.
func TestForgedTrailers(t *testing.T) {
	gate := startGateway(t, "gate", replace(siteOfGuard, "{APP}", startApp(t)))
	for _, place := range places {
		t.Run(place.name, func(t *testing.T) {
			request := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n"+
				"Trailer: Gatehouse-User, gatehouse_claims, X-Plain\r\n\r\n5\r\nhello\r\n0\r\n"+
				"Gatehouse-User: mallory\r\ngatehouse_claims: mallory\r\nGatehouse~Session: mallory\r\nX-Plain: yes\r\n\r\n", place.path, place.host)
			got, res := ask(t, gate.addr, request)
			if res.StatusCode != http.StatusOK || got.Size != len("hello") {
				t.Fatalf("status %d, %d bytes: the request did not arrive as it should", res.StatusCode, got.Size)
			}
			for _, field := range got.forged() {
				t.Errorf("%q arrived", field)
			}
		})
	}
}

// TestConnectionNamesGatewayHeader shows that a client cannot have a header of
// the gateway removed on the way.
func TestConnectionNamesGatewayHeader(t *testing.T) {
	gate := startGateway(t, "gate", replace(siteOfGuard, "{APP}", startApp(t)))
	for _, place := range places {
		t.Run(place.name, func(t *testing.T) {
			for _, fields := range []string{
				"Connection: close, Gatehouse-User\r\n",
				"Connection: close\r\nConnection: keep-alive , gatehouse_user\r\n",
				"Connection: GATEHOUSE-SESSION,close\r\n",
			} {
				request := fmt.Sprintf("GET %s HTTP/1.1\r\nHost: %s\r\n%s\r\n", place.path, place.host, fields)
				res, err := lastResponse(raw(t, gate.addr, request))
				if err != nil {
					t.Fatal(err)
				}
				body, _ := io.ReadAll(res.Body)
				if res.StatusCode != http.StatusBadRequest {
					t.Errorf("%q: status %d, want 400\n%s", fields, res.StatusCode, body)
				}
			}
		})
	}
}

// TestGenuineHeaders shows that forgeries beside a real session change nothing
// about what the application is told.
func TestGenuineHeaders(t *testing.T) {
	gate := startGateway(t, "gate", replace(siteWithDefaults, "{APP}", startApp(t)))
	ada := newVisitor(t, "a.test", "device")
	ada.want(t, http.StatusNoContent, gate.addr, "POST", "/sign-in?name=ada")
	for _, name := range spellings {
		got, _ := ask(t, gate.addr, "GET /page HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\nUser-Agent: device\r\nSec-Fetch-Site: same-origin\r\n"+
			"Cookie: "+cookieName+"="+ada.cookie+"\r\n"+name+": mallory\r\n\r\n")
		if !got.has("Gatehouse-User: ada") {
			t.Fatalf("%s: the application is not told of ada: %v", name, got.Headers)
		}
		for _, h := range got.Headers {
			if strings.Contains(h[1], "mallory") {
				t.Errorf("%s arrived as %q", name, h)
			}
			if strings.EqualFold(h[0], "Cookie") {
				t.Errorf("the application sees the token: %q", h)
			}
		}
	}
}

// TestResponsesOfPlainSites shows that the application's fields of the
// namespace stop at the gateway on sites without a handler too.
func TestResponsesOfPlainSites(t *testing.T) {
	gate := startGateway(t, "gate", replace(siteOfGuard, "{APP}", startApp(t)))
	for _, path := range []string{"/early", "/trailers"} {
		text := raw(t, gate.addr, "GET "+path+" HTTP/1.1\r\nHost: plain.test\r\nTE: trailers\r\nConnection: close\r\n\r\n")
		for line := range strings.Lines(text) {
			if name, _, ok := strings.Cut(line, ":"); ok && reserved(name) {
				t.Errorf("%s: the client got %q", path, line)
			}
		}
	}
	text := raw(t, gate.addr, "POST /command?Gatehouse-Session-End=user&gatehouse_x=1&X-Plain=yes HTTP/1.1\r\nHost: plain.test\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
	if !strings.Contains(text, "X-Plain: yes") || strings.Contains(strings.ToLower(text), "gatehouse") {
		t.Errorf("the client got:\n%s", text)
	}
}
