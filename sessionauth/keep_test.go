package sessionauth

import (
	"net/http"
	"reflect"
	"testing"

	"github.com/gatehouse-gateway/gatehouse/internal/handler"
)

// Fields that a handler in between declares as not the backend's survive the
// loss of the backend's response; commands that it set count all the same.
func TestKeepHeader(t *testing.T) {
	g := newGateway(t)
	between := func(command string, fields ...string) handler.Handler {
		return next(func(w http.ResponseWriter, r *http.Request) {
			for _, name := range fields {
				w.Header().Set(name, "between")
			}
			w.Header().Set("Gatehouse-Session-Start", command)
			FromContext(r.Context()).KeepHeader()
			w.Header().Set("X-Backend", "secret")
			w.WriteHeader(http.StatusOK)
		})
	}
	for name, fields := range map[string][]string{"few": {"Ratelimit"}, "many": {"A", "B", "C", "D", "Ratelimit"}} {
		w := newRecorder()
		wantCode(t, g.Middleware(g.route).ServeHTTP(w, request(""), between("bad", fields...)), "bad-session-command")
		want := http.Header{}
		for _, name := range fields {
			want.Set(name, "between")
		}
		if !reflect.DeepEqual(w.Header(), want) {
			t.Errorf("%s: dropped: %v, want %v", name, w.Header(), want)
		}
		w = newRecorder()
		if err := g.Middleware(g.route).ServeHTTP(w, request(""), between(`{"user":"ada"}`, fields...)); err != nil || cookieOf(w) == "" {
			t.Errorf("%s: command set before KeepHeader: %v %v", name, err, w.Header())
		}
	}
	FromContext(t.Context()).KeepHeader() // without a Middleware: nothing
}
