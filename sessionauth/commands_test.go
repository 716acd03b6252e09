package sessionauth

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gatehouse-gateway/gatehouse/sessionauth/sessionstore"
)

func TestParseCommands(t *testing.T) {
	nested := strings.Repeat("[", 2000) + strings.Repeat("]", 2000)
	long := strings.Repeat("x", 255)
	claimsOf := func(n int) string { return `{"a":"` + strings.Repeat("x", n-8) + `"}` }
	for _, row := range []struct {
		name               string
		start, update, end string
		ok                 bool
	}{
		{"start", `{"user":"u1"}`, "", "", true},
		{"start, all members", ` { "user" : "u1" , "claims" : { "a" : [ 1 , true , null ] } , "persistent" : true } `, "", "", true},
		{"start, escapes", `{"user":"\u00fc\ud83d\ude00\"\\"}`, "", "", true},
		{"start, UTF-8", `{"user":"ü😀"}`, "", "", true},
		{"start, 255 bytes", `{"user":"` + long + `"}`, "", "", true},
		{"start, 256 bytes", `{"user":"` + long + `x"}`, "", "", false},
		{"start, 256 bytes in escapes", `{"user":"` + strings.Repeat(`\u00fc`, 128) + `"}`, "", "", false},
		{"start without user", `{"claims":{}}`, "", "", false},
		{"start, empty user", `{"user":""}`, "", "", false},
		{"start, user is a number", `{"user":1}`, "", "", false},
		{"start, user is null", `{"user":null}`, "", "", false},
		{"start, control character", `{"user":"a\u0000"}`, "", "", false},
		{"start, C1 control character", `{"user":"a\u0085"}`, "", "", false},
		{"start, raw tab in a string", "{\"user\":\"a\tb\"}", "", "", false},
		{"start, not UTF-8", "{\"user\":\"\xff\"}", "", "", false},
		{"start, half a surrogate", `{"user":"\ud83d"}`, "", "", false},
		{"start, half a surrogate in claims", `{"user":"u","claims":{"a":"\ude00"}}`, "", "", false},
		{"start, unknown member", `{"user":"u","role":"x"}`, "", "", false},
		{"start, member of another case", `{"User":"u"}`, "", "", false},
		{"start, duplicate", `{"user":"u","user":"v"}`, "", "", false},
		{"start, duplicate by escape", `{"user":"u","us\u0065r":"v"}`, "", "", false},
		{"start, duplicate in claims", `{"user":"u","claims":{"a":1,"a":2}}`, "", "", false},
		{"start, duplicate deep in claims", `{"user":"u","claims":{"a":[{"b":{"c":1,"c":2}}]}}`, "", "", false},
		{"start, claims are a list", `{"user":"u","claims":[]}`, "", "", false},
		{"start, claims are null", `{"user":"u","claims":null}`, "", "", false},
		{"start, persistent is text", `{"user":"u","persistent":"true"}`, "", "", false},
		{"start, two values", `{"user":"u"}{"user":"v"}`, "", "", false},
		{"start, text behind", `{"user":"u"} x`, "", "", false},
		{"start, comma behind", `{"user":"u",}`, "", "", false},
		{"start, not JSON", `user=u`, "", "", false},
		{"start, nothing", ` `, "", "", false},
		{"start, cut short", `{"user":"u"`, "", "", false},
		{"start, claims of 4096 bytes", `{"user":"u","claims":` + claimsOf(4096) + `}`, "", "", true},
		{"start, claims of 4097 bytes", `{"user":"u","claims":` + claimsOf(4097) + `}`, "", "", false},
		{"start, over 8 KiB", `{"user":"u"` + strings.Repeat(" ", 8<<10) + `}`, "", "", false},
		{"start, deep", `{"user":"u","claims":{"a":` + nested + `}}`, "", "", true},
		{"start, number", `{"user":"u","claims":{"a":-0.5e+7,"b":0,"c":10}}`, "", "", true},
		{"start, bad number", `{"user":"u","claims":{"a":01}}`, "", "", false},

		{"update", "", `{"claims":{"a":1}}`, "", true},
		{"update, rotate alone", "", `{"rotate":true}`, "", true},
		{"update, nothing", "", `{}`, "", true},
		{"update, user", "", `{"user":"u"}`, "", false},
		{"update, null claims", "", `{"claims":null}`, "", false},

		{"end current", "", "", "current", true},
		{"end others", "", "", "others", true},
		{"end user", "", "", "user", true},
		{"end one", "", "", "AAAAAAAAAAAAAAAAAAAAAQ", true},
		{"end, other case", "", "", "Current", false},
		{"end, not an id", "", "", "AAAAAAAAAAAAAAAAAAAAA", false},
		{"end, an id in another form", "", "", "AAAAAAAAAAAAAAAAAAAAAR", false},
		{"end, a list", "", "", "current, others", false},

		{"start and update", `{"user":"u"}`, `{}`, "", false},
		{"start and end others", `{"user":"u"}`, "", "others", true},
		{"start and end current", `{"user":"u"}`, "", "current", false},
		{"start and end user", `{"user":"u"}`, "", "user", false},
		{"update and end others", "", `{}`, "others", true},
		{"update and end one", "", `{}`, "AAAAAAAAAAAAAAAAAAAAAQ", false},
	} {
		t.Run(row.name, func(t *testing.T) {
			var raw rawCommands
			for i, value := range []string{row.start, row.update, row.end} {
				if value != "" {
					raw[i] = []string{value}
				}
			}
			if _, err := parseCommands(raw, AllCommands, true); (err == nil) != row.ok {
				t.Errorf("error %v, want ok=%v", err, row.ok)
			}
		})
	}
	one := func(field int, values ...string) (raw rawCommands) { raw[field] = values; return raw }
	for name, err := range map[string]error{
		"update without a session": second(parseCommands(one(fieldUpdate, "{}"), AllCommands, false)),
		"not allowed":              second(parseCommands(one(fieldEnd, "current"), CommandStart|CommandUpdate, true)),
		"none allowed":             second(parseCommands(one(fieldEnd, "current"), 0, true)),
		"twice":                    second(parseCommands(one(fieldEnd, "current", "current"), AllCommands, true)),
		"an event":                 second(parseCommands(one(fieldEvent, "{}"), AllCommands, true)),
	} {
		if err == nil {
			t.Errorf("%s: want an error", name)
		}
	}
	c, err := parseCommands(one(fieldStart, `{"user":"u","claims":{ "a" : "b c" }}`), CommandStart, false)
	if err != nil || string(c.start.claims) != `{"a":"b c"}` || c.start.user != "u" || c.start.persistent {
		t.Errorf("got %+v, %v", c.start, err)
	}
}

func second[T any](_ T, err error) error { return err }

func FuzzReadObject(f *testing.F) {
	for _, s := range []string{`{"user":"u","claims":{"a":[1,{"b":null}]}}`, `{"a":1,"a":2}`, `{"a":"\ud83d\ude00"}`, `{"a":-0.0e1}`, "{\"\xff\":1}", `[`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		members := map[string]string{}
		err := readObject(text, func(name, raw string) error { members[name] = raw; return nil })
		if err != nil {
			return
		}
		// What is accepted is what encoding/json reads, and means the same.
		var got map[string]json.RawMessage
		if err := json.Unmarshal([]byte(text), &got); err != nil {
			t.Fatalf("accepted, but encoding/json says %v", err)
		}
		if len(got) != len(members) {
			t.Fatalf("%d members, encoding/json has %d", len(members), len(got))
		}
		for name, raw := range members {
			if string(got[name]) != raw {
				t.Fatalf("member %q is %q, encoding/json has %q", name, raw, got[name])
			}
		}
	})
}

func TestBadCommandReplacesTheResponse(t *testing.T) {
	g := newGateway(t)
	cookie := g.signIn(u1)
	for name, fields := range map[string][]string{
		"malformed":   {"Gatehouse-Session-Start: {"},
		"repeated":    {"Gatehouse-Session-End: current", "Gatehouse-Session-End: current"},
		"two cases":   {"Gatehouse-Session-End: current", "gatehouse-session-end: current"},
		"contradicts": {"Gatehouse-Session-End: current", "Gatehouse-Session-Update: {}"},
	} {
		t.Run(name, func(t *testing.T) {
			w, _ := g.do(request(cookie), append(fields, "Set-Cookie: a=b", "Etag: x", "X-Secret: y", "Content-Length: 4")...)
			if w.Code != 502 || !strings.Contains(w.Body.String(), `"bad-session-command"`) || strings.Contains(w.Body.String(), "body") {
				t.Errorf("status %d, body %s", w.Code, w.Body)
			}
			for _, name := range []string{"Set-Cookie", "Etag", "X-Secret"} {
				if w.Header().Get(name) != "" {
					t.Errorf("%s of the backend is left", name)
				}
			}
			if g.store.size() != 1 || g.store.count("end")+g.store.count("start") != 0 {
				t.Error("something was changed")
			}
		})
	}
	g.route.Commands = CommandStart
	if w, _ := g.do(request(cookie), "Gatehouse-Session-End: current"); w.Code != 502 {
		t.Errorf("a command that is not allowed: status %d", w.Code)
	}
	if w, _ := g.do(request(""), "Gatehouse-Session-Update: {}"); w.Code != 502 {
		t.Errorf("update without a session: status %d", w.Code)
	}
}

func TestStartReplacesThePresented(t *testing.T) {
	g := newGateway(t)
	old := g.signIn(u1)
	other := g.signIn(u1)
	stranger := g.signIn(`{"user":"u2"}`)
	w, _ := g.do(request(old), `Gatehouse-Session-Start: {"user":"u1"}`, "Gatehouse-Session-End: others")
	events := g.observer.takeEvents()
	slices.Sort(events)
	if want := []string{"ended u1 replaced", "ended u1 signed-out", "started u1"}; !slices.Equal(events, want) {
		t.Errorf("events %q, want %q", events, want)
	}
	for cookie, want := range map[string]string{old: "", other: "", stranger: "u2", cookieOf(w): "u1"} {
		if _, saw := g.do(request(cookie)); saw.user() != want {
			t.Errorf("user %q, want %q", saw.user(), want)
		}
	}
	if g.store.size() != 2 {
		t.Errorf("%d records, want 2", g.store.size())
	}
}

func TestUpdate(t *testing.T) {
	g := newGateway(t)
	cookie := g.signIn(u1)
	w, _ := g.do(request(cookie), `Gatehouse-Session-Update: {"claims":{"role":"user"}}`)
	if w.Header().Get("Cache-Control") != "no-store" {
		t.Error("an update that sets the cookie may be cached")
	}
	updated := cookieOf(w)
	if _, saw := g.do(request(updated)); saw.header.Get("Gatehouse-Claims") != "eyJyb2xlIjoidXNlciJ9" || g.store.count("get") != 0 {
		t.Errorf("claims %q", saw.header.Get("Gatehouse-Claims"))
	}
	// Another holder sees them at its next validation and gets the new token.
	g.route.ForceValidate = true
	w, saw := g.do(request(cookie))
	if string(saw.session.Claims) != `{"role":"user"}` || !strings.HasPrefix(cookieOf(w), cleared+magic) || g.store.record(t).Generation != 0 {
		t.Errorf("another holder: claims %s", saw.session.Claims)
	}
	g.route.ForceValidate = false

	w, _ = g.do(request(updated), `Gatehouse-Session-Update: {"rotate":true}`)
	rotated := cookieOf(w)
	if _, saw := g.do(request(updated)); saw.user() != "" {
		t.Error("the old id is accepted after a rotation")
	}
	if _, saw := g.do(request(rotated)); saw.user() != "u1" || string(saw.session.Claims) != `{"role":"user"}` {
		t.Error("the new id is not accepted, or the claims changed")
	}
	if got := g.observer.takeEvents(); len(got) != 0 {
		t.Errorf("events %q: a rotation ends no session", got)
	}
}

func TestUpdateDoesNotStopTheRefresh(t *testing.T) {
	g := newGateway(t)
	cookie := g.signIn(u1)
	g.clock.advance(11 * time.Minute)
	w, _ := g.do(request(cookie), `Gatehouse-Session-Update: {"claims":{"n":1}}`)
	if r := g.store.record(t); r.Generation != 1 || r.ClaimsVersion != 2 {
		t.Errorf("record %+v, want generation 1, claims 2", r)
	}
	if _, saw := g.do(request(cookieOf(w))); saw.session.Generation != 1 || string(saw.session.Claims) != `{"n":1}` {
		t.Errorf("session %+v", saw.session)
	}
}

func TestUpdateOfAnEndedSession(t *testing.T) {
	g := newGateway(t)
	cookie := g.signIn(u1)
	_, _ = g.store.End(t.Context(), "app.example", sessionstore.End{User: "u1"})
	w, _ := g.do(request(cookie), `Gatehouse-Session-Update: {"claims":{"n":1}}`)
	if w.Code != 200 || cookieOf(w) != cleared || g.store.size() != 0 {
		t.Errorf("status %d, cookie %q: want the response, the cookie cleared, the session ended", w.Code, cookieOf(w))
	}
	if _, saw := g.do(request(cookie)); saw.user() != "" {
		t.Error("the ended session is accepted")
	}
}

func TestEnd(t *testing.T) {
	for _, row := range []struct {
		command string   // ID2 stands for the public id of the second session
		cookie  string   // what the first client gets: "", or cleared
		left    []string // users of the sessions 1, 2 (both of u1) and 3 (of u2) here, afterwards
	}{
		{"current", cleared, []string{"", "u1", "u2"}},
		{"others", "", []string{"u1", "", "u2"}},
		{"user", cleared, []string{"", "", "u2"}},
		{"ID1", cleared, []string{"", "u1", "u2"}},
		{"ID2", "", []string{"u1", "", "u2"}},
		{"ID3", "", []string{"u1", "u1", "u2"}},
		{"AAAAAAAAAAAAAAAAAAAAAQ", "", []string{"u1", "u1", "u2"}},
		{"AAAAAAAAAAAAAAAAAAAAAA", "", []string{"u1", "u1", "u2"}},
	} {
		t.Run(row.command, func(t *testing.T) {
			g := newGateway(t)
			clients := []string{g.signIn(u1), g.signIn(u1), g.signIn(`{"user":"u2"}`)}
			command := row.command
			for i, c := range clients {
				_, saw := g.do(request(c))
				command = strings.ReplaceAll(command, fmt.Sprintf("ID%d", i+1), saw.session.ID)
			}
			w, _ := g.do(request(clients[0]), "Gatehouse-Session-End: "+command)
			if w.Code != 200 || cookieOf(w) != row.cookie {
				t.Errorf("status %d, cookie %q, want %q", w.Code, cookieOf(w), row.cookie)
			}
			alive := 0
			for i, want := range row.left {
				if _, saw := g.do(request(clients[i])); saw.user() != want {
					t.Errorf("session %d: user %q, want %q", i+1, saw.user(), want)
				}
				if want != "" {
					alive++
				}
			}
			if g.store.size() != alive {
				t.Errorf("%d records, want %d", g.store.size(), alive)
			}
		})
	}
}

func TestEndWithoutASession(t *testing.T) {
	g := newGateway(t)
	for _, command := range []string{"current", "others", "user", "AAAAAAAAAAAAAAAAAAAAAQ"} {
		if w, _ := g.do(request(""), "Gatehouse-Session-End: "+command); w.Code != 200 || cookieOf(w) != cleared {
			t.Errorf("%s: status %d, cookie %q", command, w.Code, cookieOf(w))
		}
	}
	if g.store.count("end") != 0 {
		t.Error("the store was asked")
	}
}

func TestEndActsOnARejectedToken(t *testing.T) {
	g := newGateway(t)
	first, second := g.signIn(u1), g.signIn(u1)
	g.do(request(first), "Gatehouse-Session-End: current")
	if w, saw := g.do(request(first), "Gatehouse-Session-End: user"); saw.user() != "" || w.Code != 200 || g.store.size() != 0 {
		t.Errorf("status %d, %d records: want the user's other session ended", w.Code, g.store.size())
	}
	if _, saw := g.do(request(second)); saw.user() != "" {
		t.Error("the other session is accepted")
	}
}

func TestEndOfOthersRefreshesThisOne(t *testing.T) {
	g := newGateway(t)
	cookie := g.signIn(u1)
	g.clock.advance(11 * time.Minute)
	w, _ := g.do(request(cookie), "Gatehouse-Session-End: others")
	if !strings.HasPrefix(cookieOf(w), cleared+magic) || g.store.record(t).Generation != 1 {
		t.Errorf("cookie %q", cookieOf(w))
	}
}

func TestCommandsWithTheStoreDown(t *testing.T) {
	for _, row := range []struct {
		field, code, cookie string
		denied              bool
	}{
		{"Gatehouse-Session-Start: " + u1, "session-store-unavailable", "", false},
		{"Gatehouse-Session-Update: {}", "session-store-unavailable", "", false},
		{`Gatehouse-Session-Update: {"rotate":true}`, "session-store-unavailable", "", false},
		{"Gatehouse-Session-End: current", "session-end-not-durable", cleared, true},
		{"Gatehouse-Session-End: user", "session-end-not-durable", cleared, true},
		{"Gatehouse-Session-End: others", "session-end-not-durable", "", false},
	} {
		t.Run(row.field, func(t *testing.T) {
			g := newGateway(t)
			cookie := g.signIn(u1)
			g.store.failWith(errDown)
			w, _ := g.do(request(cookie), row.field, "X-Backend: 1", "Set-Cookie: x=y")
			if w.Code != 503 || !strings.Contains(w.Body.String(), `"`+row.code+`"`) || w.Header().Get("Retry-After") == "" || w.Header().Get("X-Backend") != "" {
				t.Errorf("status %d, header %v, body %s", w.Code, w.Header(), w.Body)
			}
			if cookieOf(w) != row.cookie || row.cookie == "" && len(w.Header()["Set-Cookie"]) > 0 {
				t.Errorf("Set-Cookie %q, want %q", w.Header()["Set-Cookie"], row.cookie)
			}
			if row.cookie != "" && w.Header().Get("Cache-Control") != "no-store" {
				t.Error("may be cached")
			}
			if _, saw := g.do(request(cookie)); (saw.user() == "") != row.denied {
				t.Errorf("afterwards: user %q", saw.user())
			}
		})
	}
}

func TestEndIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGateway(t, func(s *Settings) { s.Now = nil })
		g.store.clock.nanos.Store(time.Now().UnixNano())
		first, second := g.signIn(u1), g.signIn(u1)
		g.store.failWith(errDown)
		g.do(request(first), "Gatehouse-Session-End: user")
		time.Sleep(2 * time.Minute)
		if g.store.count("list") < 5 {
			t.Error("not tried again")
		}
		// Signed in again after the command: stays.
		g.store.failWith(nil)
		g.store.clock.nanos.Store(time.Now().UnixNano())
		later := g.signIn(u1)
		time.Sleep(time.Minute)
		for name, row := range map[string]struct{ cookie, want string }{
			"the session": {first, ""}, "another of the user": {second, ""}, "a later one": {later, "u1"},
		} {
			if _, saw := g.do(request(row.cookie)); saw.user() != row.want {
				t.Errorf("%s: user %q, want %q", name, saw.user(), row.want)
			}
		}
		if g.store.size() != 1 {
			t.Errorf("%d records, want 1", g.store.size())
		}
		if got := g.observer.takeEvents(); !slices.Contains(got, "ended u1 signed-out") {
			t.Errorf("events %q", got)
		}
	})
}

func TestCloseStopsRetries(t *testing.T) {
	g := newGateway(t)
	cookie := g.signIn(u1)
	g.store.failWith(errDown)
	g.do(request(cookie), "Gatehouse-Session-End: current")
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	if w, _ := g.do(request(cookie), "Gatehouse-Session-End: current"); w.Code != 503 {
		t.Errorf("after Close: status %d", w.Code)
	}
}

func TestARefreshUnderWayRevivesNothing(t *testing.T) {
	g := newGateway(t)
	cookie := g.signIn(u1)
	g.clock.advance(11 * time.Minute)
	looked, ended := make(chan struct{}), make(chan struct{})
	done := make(chan string)
	go func() {
		w := newRecorder()
		g.Middleware(g.route).Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			close(looked)
			<-ended
		})).ServeHTTP(w, request(cookie))
		done <- cookieOf(w)
	}()
	<-looked
	g.do(request(cookie), "Gatehouse-Session-End: current")
	close(ended)
	if set := <-done; set != "" || g.store.size() != 0 {
		t.Errorf("cookie %q, %d records: the session is back", set, g.store.size())
	}
}
