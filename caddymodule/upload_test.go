package caddymodule

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// tus sends a tus request.
func tus(t *testing.T, method, rawURL, body string, fields ...string) answer {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, rawURL, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Tus-Resumable", "1.0.0")
	r.Header.Set("Content-Type", "application/offset+octet-stream")
	for i := 0; i < len(fields); i += 2 {
		r.Header.Set(fields[i], fields[i+1])
	}
	r.SetBasicAuth("ada", "gatehouse")
	return do(t, browser(t), r)
}

// upload creates an upload and sends all of it in one PATCH.
func upload(t *testing.T, target, body string) answer {
	t.Helper()
	created := tus(t, "POST", target, "", "Upload-Length", fmt.Sprint(len(body)))
	if created.status != 201 {
		t.Fatalf("creation: %d %s", created.status, created.body)
	}
	return tus(t, "PATCH", site+created.header.Get("Location"), body, "Upload-Offset", "0")
}

// What follows chunked_upload sees the delivery as the request that the client
// would have sent without it.
func TestDeliveryIsTheClientsRequest(t *testing.T) {
	isolate(t)
	backend := newSeen(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(201) })
	start(t, fmt.Sprintf(`{
		%s
	}
	http://localhost:9080 {
		handle_path /api/* {
			route {
				basic_auth {
					ada $2a$04$DM2GyewTgBHF7ePnKu152ehB8V4XuI5jTDLBOwk.FSMDy.kJ85Voi
				}
				@file path_regexp kind ^/(f)iles
				map {http.request.method} {sent} {
					default "by {http.request.method}"
				}
				vars team red
				request_header @file X-Unused {re.kind.1}
				chunked_upload {
					base /files
				}
				reverse_proxy %s {
					header_up X-User {http.auth.user.id}
					header_up X-Kind {re.kind.1}
					header_up X-Sent {sent}
					header_up X-Team {vars.team}
					header_up X-Tus "{http.request.header.upload-offset}"
					header_up X-Original "{http.request.orig_method} {http.request.orig_uri}"
					header_up X-Routed "{http.request.method} {http.request.uri}"
				}
			}
		}
	}`, globals, backend.addr()))
	if got := upload(t, site+"/api/files?a=b", "abc"); got.status != 204 {
		t.Fatalf("%d %s", got.status, got.body)
	}
	header, _ := backend.last(t)
	for name, want := range map[string]string{
		"X-User": "ada", "X-Kind": "f", "X-Team": "red", "X-Sent": "by PATCH", "X-Tus": "",
		"X-Original": "POST /api/files?a=b", "X-Routed": "POST /files?a=b",
	} {
		if got := header.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

// Nobody who takes the upload confirms it: neither a route without a responder
// nor a proxy that drops an answer.
func TestUnansweredDeliveryIsNoSuccess(t *testing.T) {
	isolate(t)
	backend := newSeen(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "Upgrade")
		w.Header().Set("Upgrade", "other")
		w.WriteHeader(http.StatusSwitchingProtocols)
	})
	start(t, fmt.Sprintf(`{
		%s
	}
	http://localhost:9080 {
		handle /none* {
			chunked_upload /none*
		}
		handle /switched* {
			chunked_upload /switched*
			reverse_proxy %s
		}
	}`, globals, backend.addr()))
	if got := upload(t, site+"/none", "abc"); got.status != 503 || got.code() != "upload-backend-unavailable" {
		t.Errorf("without a responder: %d %s", got.status, got.body)
	}
	if got := upload(t, site+"/switched", "abc"); got.status != 409 || got.code() != "upload-interrupted" {
		t.Errorf("switched protocols: %d %s", got.status, got.body)
	}
}

// A delivery keeps the session of the request that it came from, also where a
// session_auth behind chunked_upload asks for one.
func TestDeliveryKeepsTheSession(t *testing.T) {
	isolate(t)
	backend := newSeen(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			app(w, r)
			return
		}
		w.WriteHeader(http.StatusCreated)
	})
	start(t, fmt.Sprintf(`{
		%s
	}
	http://localhost:9080 {
		route {
			session_auth
			chunked_upload /files*
			session_auth /files* {
				require
			}
			reverse_proxy %s
		}
	}`, globals, backend.addr()))
	cookie := cookieFrom(t, "/sign-in?user=ada")
	for _, c := range []struct {
		cookie, user string
		status       int
	}{{cookie, "ada", 204}, {"", "", 401}} {
		created := tus(t, "POST", site+"/files", "", "Upload-Length", "4", "Cookie", c.cookie)
		if created.status != 201 {
			t.Fatalf("user %q: creation: %d %s", c.user, created.status, created.body)
		}
		before := backend.count()
		sent := tus(t, "PATCH", site+created.header.Get("Location"), "data", "Upload-Offset", "0", "Cookie", c.cookie)
		if sent.status != c.status || (backend.count() > before) != (c.user != "") {
			t.Errorf("user %q: %d %s, %d deliveries", c.user, sent.status, sent.body, backend.count()-before)
		}
		if header, _ := backend.last(t); c.user != "" && (header.Get("Gatehouse-User") != c.user || header.Get("Gatehouse-Session") == "") {
			t.Errorf("user %q: the delivery had %v", c.user, header)
		}
	}
}
