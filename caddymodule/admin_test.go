package caddymodule

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

const adminAddr = "http://localhost:2999"

// An operator sees a user's sessions and ends one: this gateway refuses it at
// once, although its token is not due.
func TestAdminEndsSession(t *testing.T) {
	isolate(t)
	backend := newSeen(t, app)
	start(t, fmt.Sprintf(`{
		%s
	}
	http://localhost:9080 {
		session_auth
		reverse_proxy %s
	}`, globals, backend.addr()))
	c := browser(t)
	get(t, c, site+"/sign-in?user=grace")
	get(t, c, site+"/") // the token is in the cache of opened ones
	var list struct {
		Sessions []struct{ ID, User string }
	}
	answer := get(t, c, adminAddr+"/gatehouse/sessions?site=localhost&user=grace")
	if err := json.Unmarshal([]byte(answer.body), &list); err != nil || len(list.Sessions) != 1 || list.Sessions[0].User != "grace" {
		t.Fatalf("sessions: %v %s", err, answer.body)
	}
	for _, want := range []int{http.StatusNoContent, http.StatusNotFound} {
		req, _ := http.NewRequest(http.MethodDelete, adminAddr+"/gatehouse/sessions/"+list.Sessions[0].ID+"?site=localhost", nil)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("ending the session: %d, want %d", res.StatusCode, want)
		}
	}
	if got := get(t, c, site+"/").body; got != "user= state=" {
		t.Errorf("after its end: %q", got)
	}
}

func TestAdminRoutes(t *testing.T) {
	isolate(t)
	start(t, `{`+globals+`
		metrics
	}
	http://localhost:9080 {
		session_auth
		client_rate_limit {
			zone admin_test {
				window 1m
				events 500
			}
		}
		chunked_upload /files*
		respond "ok"
	}`)
	c := browser(t)
	req, _ := http.NewRequest(http.MethodPost, site+"/files", nil)
	req.Header.Set("Tus-Resumable", "1.0.0")
	req.Header.Set("Upload-Length", "5")
	res, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusCreated {
		t.Fatalf("creating an upload: %d", res.StatusCode)
	}
	for path, want := range map[string]string{
		"/gatehouse/stores":                 `"store":"memory","healthy":true`,
		"/gatehouse/uploads?site=localhost": `"length":5`,
		"/gatehouse/uploads?site=other":     `{"uploads":[]}`,
		"/metrics":                          `gatehouse_limit_decisions_total{result="admitted",zone="admin_test"}`,
	} {
		if got := get(t, c, adminAddr+path); got.status != 200 || !strings.Contains(got.body, want) {
			t.Errorf("%s: %d, want %s in\n%.400s", path, got.status, want, got.body)
		}
	}
	if got := get(t, c, adminAddr+"/gatehouse/sessions?site=localhost"); got.status != 400 {
		t.Errorf("sessions without a user: %d", got.status)
	}
	if got := get(t, c, adminAddr+"/gatehouse/uploads/cleanup"); got.status != 405 {
		t.Errorf("cleanup by GET: %d", got.status)
	}
	post, err := c.Post(adminAddr+"/gatehouse/uploads/cleanup", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	post.Body.Close()
	if post.StatusCode != http.StatusNoContent {
		t.Errorf("cleanup: %d", post.StatusCode)
	}
}
