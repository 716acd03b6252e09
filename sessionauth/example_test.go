package sessionauth_test

import (
	"cmp"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"os"
	"path/filepath"

	"github.com/gatehouse-gateway/gatehouse/sessionauth"
	"github.com/gatehouse-gateway/gatehouse/sessionauth/dataprotection"
	"github.com/gatehouse-gateway/gatehouse/sessionauth/dataprotection/ringstore/directory"
	"github.com/gatehouse-gateway/gatehouse/sessionauth/sessionstore/file"
)

// An application that keeps no session state: it says in the header of its
// response that a user has signed in or out, and reads in the header of each
// request who is there.
func Example() {
	dir, err := os.MkdirTemp("", "sessionauth-example-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)

	ring, err := dataprotection.New(dataprotection.Options{
		Repository: directory.New(filepath.Join(dir, "keys")), ApplicationName: "example", AutoGenerate: true,
	})
	if err != nil {
		log.Fatal(err)
	}
	defer ring.Close()
	store, err := file.Open(file.Options{Path: filepath.Join(dir, "sessions")})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	sessions, err := sessionauth.NewManager(sessionauth.Settings{Ring: ring, Store: store})
	if err != nil {
		log.Fatal(err)
	}
	defer sessions.Close()

	app := http.NewServeMux()
	app.HandleFunc("/login", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Gatehouse-Session-Start", `{"user":"ada","claims":{"role":"admin"}}`)
	})
	app.HandleFunc("/logout", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Gatehouse-Session-End", "current")
	})
	app.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		role, _ := sessionauth.FromContext(r.Context()).ClaimsPath("role")
		fmt.Fprintf(w, "user %q, role %q", r.Header.Get("Gatehouse-User"), role)
	})
	route := sessions.Middleware(sessionauth.Route{Commands: sessionauth.AllCommands})
	server := httptest.NewServer(route.Wrap(app))
	defer server.Close()

	jar, _ := cookiejar.New(nil)
	browser := &http.Client{Jar: jar}
	for _, path := range []string{"/", "/login", "/", "/logout", "/"} {
		response, err := browser.Get(server.URL + path)
		if err != nil {
			log.Fatal(err)
		}
		body, _ := io.ReadAll(response.Body)
		response.Body.Close()
		fmt.Printf("%s %s\n", path, cmp.Or(string(body), "(empty)"))
	}
	browser.CloseIdleConnections()
	// Output:
	// / user "", role ""
	// /login (empty)
	// / user "ada", role "admin"
	// /logout (empty)
	// / user "", role ""
}
