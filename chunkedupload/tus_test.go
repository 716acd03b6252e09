package chunkedupload

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gatehouse-gateway/gatehouse/chunkedupload/uploadstore"
	"github.com/gatehouse-gateway/gatehouse/internal/handler"
)

func TestTusWholeUpload(t *testing.T) {
	eachStore(t, func(t *testing.T, store uploadstore.Store) {
		g := newGateway(t, store, nil)
		g.backend.set(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Photo", "7")
			w.Header().Set("Set-Cookie", "a=b")
			w.Header().Set("Gatehouse-Session-End", "current")
			w.Header().Set("Content-Type", "text/plain")
			w.Header().Set("Location", "/photos/7")
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, "made")
		})
		data := payload(3 << 20)
		const metadata = "filename cmVwb3J0IGZpbmFsLnBkZg==,filetype YXBwbGljYXRpb24vcGRm,draft"
		created := g.send("POST", "/files?album=3", nil, "Upload-Length", formatInt(int64(len(data))), "Upload-Metadata", metadata, "X-User", "u1", "Cookie", "c=1", "Authorization", "Bearer x")
		created.want(t, http.StatusCreated).wantHeader(t, "Tus-Resumable", "1.0.0")
		path := created.Header.Get("Location")
		if !strings.HasPrefix(path, "/files/") || !isID(idOf(path)) {
			t.Fatalf("Location is %q", path)
		}

		g.patch(path, 0, data[:1<<20], "X-User", "u1").want(t, http.StatusNoContent).wantHeader(t, "Upload-Offset", "1048576")
		g.head(path, "X-User", "u1").want(t, http.StatusOK).wantHeader(t, "Upload-Offset", "1048576").
			wantHeader(t, "Upload-Length", "3145728").wantHeader(t, "Cache-Control", "no-store").wantHeader(t, "Upload-Metadata", metadata)
		if n := len(g.backend.all()); n != 0 {
			t.Fatalf("%d deliveries before the last byte", n)
		}
		last := g.patch(path, 1<<20, data[1<<20:], "X-User", "u1", "Cookie", "c=1", "Authorization", "Bearer x", "Gatehouse-User", "forged")
		last.want(t, http.StatusNoContent).wantHeader(t, "Upload-Offset", "3145728").wantHeader(t, "X-Photo", "7").
			wantHeader(t, "Set-Cookie", "").wantHeader(t, "Gatehouse-Session-End", "").wantHeader(t, "Content-Type", "").wantHeader(t, "Location", "/photos/7")
		g.head(path, "X-User", "u1").want(t, http.StatusOK).wantHeader(t, "Upload-Offset", "3145728")

		got := g.backend.all()
		if len(got) != 1 {
			t.Fatalf("%d deliveries, want 1", len(got))
		}
		d := got[0]
		if !bytes.Equal(d.body, data) || d.length != int64(len(data)) {
			t.Errorf("delivered %d bytes, declared %d, want %d equal ones", len(d.body), d.length, len(data))
		}
		if d.method != "POST" || d.uri != "/files?album=3" {
			t.Errorf("delivered to %s %s", d.method, d.uri)
		}
		meta, _ := base64.RawURLEncoding.DecodeString(d.header.Get("Gatehouse-Upload-Metadata"))
		var pairs map[string]string
		if err := json.Unmarshal(meta, &pairs); err != nil || pairs["filename"] != "report final.pdf" {
			t.Errorf("metadata is %s (%v)", meta, err)
		}
		for name, want := range map[string]string{
			"Content-Type": "application/pdf", "Content-Disposition": `attachment; filename="report final.pdf"; filename*=UTF-8''report%20final.pdf`,
			"Gatehouse-Upload-Id": idOf(path), "Idempotency-Key": idOf(path), "Gatehouse-Upload-Length": "3145728", "Gatehouse-User": "u1",
			"Cookie": "", "Authorization": "", "Tus-Resumable": "", "Upload-Offset": "", "Upload-Metadata": "",
		} {
			if got := d.header.Get(name); got != want {
				t.Errorf("delivered %s %q, want %q", name, got, want)
			}
		}

		// Repeats are given the outcome and deliver nothing.
		g.patch(path, len(data), nil, "X-User", "u1").want(t, http.StatusNoContent).wantHeader(t, "X-Photo", "7")
		g.patch(path, len(data)-1, data[len(data)-1:], "X-User", "u1").want(t, http.StatusNoContent).wantHeader(t, "X-Photo", "7")
		g.patch(path, len(data)-1, []byte{^data[len(data)-1]}, "X-User", "u1").want(t, http.StatusConflict).wantCode(t, "upload-changed")
		g.patch(path, 5, data[5:9], "X-User", "u1").want(t, http.StatusConflict).wantCode(t, "upload-offset-mismatch")
		if n := len(g.backend.all()); n != 1 {
			t.Errorf("%d deliveries after repeats", n)
		}
		g.send("DELETE", path, nil, "X-User", "u1").want(t, http.StatusNoContent)
		g.head(path, "X-User", "u1").want(t, http.StatusNotFound).wantHeader(t, "Upload-Offset", "")
	})
}

func TestTusCreationWithUpload(t *testing.T) {
	eachStore(t, func(t *testing.T, store uploadstore.Store) {
		g := newGateway(t, store, nil)
		data := payload(5000)
		part := g.send("POST", "/files/", bytes.NewReader(data[:2000]), "Upload-Length", "5000", "Content-Type", tusMediaType)
		part.want(t, http.StatusCreated).wantHeader(t, "Upload-Offset", "2000")
		g.patch(part.Header.Get("Location"), 2000, data[2000:]).want(t, http.StatusNoContent).wantHeader(t, "Upload-Offset", "5000")

		g.backend.set(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "/photos/7")
			w.WriteHeader(http.StatusCreated)
		})
		whole := g.send("POST", "/files", bytes.NewReader(data), "Upload-Length", "5000", "Content-Type", tusMediaType)
		whole.want(t, http.StatusCreated).wantHeader(t, "Upload-Offset", "5000")
		if path := whole.Header.Get("Location"); !strings.HasPrefix(path, "/files/") {
			t.Errorf("Location is %q, want the upload's", path)
		}

		// Without an outcome the client goes on with the last byte.
		g.backend.set(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
		held := g.send("POST", "/files", bytes.NewReader(data), "Upload-Length", "5000", "Content-Type", tusMediaType)
		held.want(t, http.StatusCreated).wantHeader(t, "Upload-Offset", "4999")
		g.backend.set(nil)
		g.patch(held.Header.Get("Location"), 4999, data[4999:]).want(t, http.StatusNoContent)

		g.backend.set(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusUnprocessableEntity) })
		g.send("POST", "/files", bytes.NewReader(data), "Upload-Length", "5000", "Content-Type", tusMediaType).
			want(t, http.StatusUnprocessableEntity).wantHeader(t, "Location", "")

		// Another media type makes a plain creation.
		g.send("POST", "/files", bytes.NewReader(data), "Upload-Length", "5000", "Content-Type", "text/plain").
			want(t, http.StatusCreated).wantHeader(t, "Upload-Offset", "")
		g.send("POST", "/files", bytes.NewReader(data), "Upload-Length", "4999", "Content-Type", tusMediaType).want(t, http.StatusRequestEntityTooLarge)
	})
}

func TestTusResumesAfterCuts(t *testing.T) {
	eachStore(t, func(t *testing.T, store uploadstore.Store) {
		g := newGateway(t, store, nil)
		data := payload(1 << 20)
		path := g.create(len(data))
		offset := 0
		for range 4 {
			c := g.begin(path, offset, len(data)-offset, data[offset:offset+200_000])
			c.Close()
			want := offset + 200_000
			eventually(t, "what arrived before the cut is kept", func() bool {
				a := g.head(path)
				return a.StatusCode == http.StatusOK && a.Header.Get("Upload-Offset") == formatInt(int64(want))
			})
			offset = want
		}
		g.patch(path, offset, data[offset:]).want(t, http.StatusNoContent)
		if got := g.backend.all(); len(got) != 1 || !bytes.Equal(got[0].body, data) {
			t.Errorf("%d deliveries, or other bytes", len(got))
		}
	})
}

func TestTusHoldBack(t *testing.T) {
	eachStore(t, func(t *testing.T, store uploadstore.Store) {
		g := newGateway(t, store, nil)
		data := payload(1000)
		var tries int
		g.backend.set(func(w http.ResponseWriter, _ *http.Request) {
			if tries++; tries < 3 {
				w.Header().Set("Retry-After", "7")
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			w.WriteHeader(http.StatusCreated)
		})
		path := g.create(len(data))
		g.patch(path, 0, data).want(t, http.StatusServiceUnavailable).wantCode(t, "upload-backend-unavailable").
			wantHeader(t, "Upload-Offset", "999").wantHeader(t, "Retry-After", "7")
		g.head(path).want(t, http.StatusOK).wantHeader(t, "Upload-Offset", "999")
		g.patch(path, 999, nil).want(t, http.StatusNoContent).wantHeader(t, "Upload-Offset", "999")
		g.patch(path, 1000, nil).want(t, http.StatusConflict)
		g.patch(path, 999, []byte{data[999] ^ 1}).want(t, http.StatusConflict).wantCode(t, "upload-changed")
		g.patch(path, 999, data[999:]).want(t, http.StatusServiceUnavailable)
		g.patch(path, 999, data[999:]).want(t, http.StatusNoContent).wantHeader(t, "Upload-Offset", "1000")
		got := g.backend.all()
		if len(got) != 3 || got[0].header.Get("Idempotency-Key") != got[2].header.Get("Idempotency-Key") {
			t.Errorf("%d deliveries, want 3 with one key", len(got))
		}
	})
}

func TestTusFinalRefusal(t *testing.T) {
	eachStore(t, func(t *testing.T, store uploadstore.Store) {
		g := newGateway(t, store, nil)
		g.backend.set(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusUnprocessableEntity)
			_, _ = io.WriteString(w, `{"error":"not a photo"}`)
		})
		path := g.create(10)
		for range 2 {
			a := g.send("PATCH", path, bytes.NewReader(payload(10)), "Upload-Offset", "0")
			if a.StatusCode == http.StatusGone { // the second time
				a = g.patch(path, 9, payload(10)[9:])
			}
			a.want(t, http.StatusUnprocessableEntity).wantHeader(t, "Content-Type", "application/json")
			if a.text != `{"error":"not a photo"}` {
				t.Errorf("body is %q", a.text)
			}
		}
		g.head(path).want(t, http.StatusGone).wantHeader(t, "Upload-Offset", "")
		if n := len(g.backend.all()); n != 1 {
			t.Errorf("%d deliveries", n)
		}
	})
}

func TestTusInterrupted(t *testing.T) {
	for name, broken := range map[string]handler.Func{
		"error": func(_ http.ResponseWriter, r *http.Request) error {
			_, _ = io.ReadFull(r.Body, make([]byte, 1))
			return errors.New("connection reset")
		},
		"panic": func(_ http.ResponseWriter, r *http.Request) error {
			_, _ = io.Copy(io.Discard, r.Body)
			panic(http.ErrAbortHandler)
		},
		"cut short": func(w http.ResponseWriter, _ *http.Request) error {
			w.Header().Set("Content-Length", "9")
			_, err := w.Write([]byte("a"))
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHandler(t, newFakeStore(), nil)
			g := &gateway{t: t, h: h, backend: &backend{}}
			g.serve(func(w http.ResponseWriter, r *http.Request) error { return h.ServeHTTP(w, r, broken) })
			path := g.create(3)
			g.patch(path, 0, []byte("abc")).want(t, http.StatusConflict).wantCode(t, "upload-interrupted")
			g.patch(path, 2, []byte("c")).want(t, http.StatusConflict).wantCode(t, "upload-interrupted")
			g.head(path).want(t, http.StatusGone)
		})
	}
}

func TestTusUnreachedBackend(t *testing.T) {
	up := false
	unreachable := errors.New("no such backend")
	untouched := false // an error before a byte of the body was read
	h := newHandler(t, newFakeStore(), func(c *Config) { c.Unreached = func(err error) bool { return err == unreachable } })
	g := &gateway{t: t, h: h, backend: &backend{}}
	g.serve(func(w http.ResponseWriter, r *http.Request) error {
		return h.ServeHTTP(w, r, handler.Func(func(w http.ResponseWriter, r *http.Request) error {
			if untouched {
				return errors.New("server closed idle connection")
			}
			if !up {
				_, _ = io.Copy(io.Discard, r.Body)
				return unreachable
			}
			g.backend.ServeHTTP(w, r)
			return nil
		}))
	})
	path := g.create(3)
	g.patch(path, 0, []byte("abc")).want(t, http.StatusServiceUnavailable).wantHeader(t, "Retry-After", "5")
	untouched = true
	g.patch(path, 2, []byte("c")).want(t, http.StatusServiceUnavailable)
	up, untouched = true, false
	g.patch(path, 2, []byte("c")).want(t, http.StatusNoContent)
	if got := g.backend.all(); len(got) != 1 || string(got[0].body) != "abc" {
		t.Errorf("delivered %v", got)
	}
}

// serve puts a handler that returns errors on a socket.
func (g *gateway) serve(f handler.Func) {
	g.srv = newServer(g.t, f)
}

func TestTusLongBackend(t *testing.T) {
	eachStore(t, func(t *testing.T, store uploadstore.Store) {
		g := newGateway(t, store, func(c *Config) { c.Wait = 300 * time.Millisecond })
		free := make(chan struct{})
		g.backend.set(func(w http.ResponseWriter, r *http.Request) {
			select {
			case <-free:
			case <-r.Context().Done():
				t.Error("the delivery ended with its client")
			}
			w.Header().Set("X-Done", "1")
		})
		path := g.create(4)
		g.patch(path, 0, []byte("abcd")).want(t, http.StatusLocked).wantCode(t, "upload-locked").
			wantHeader(t, "Retry-After", "5").wantHeader(t, "Upload-Offset", "3")
		g.head(path).want(t, http.StatusOK).wantHeader(t, "Upload-Offset", "3")
		g.patch(path, 3, []byte("d")).want(t, http.StatusLocked)
		g.patch(path, 0, []byte("abcd")).want(t, http.StatusConflict)

		// A second gateway joins over the store.
		other := newGateway(t, store, func(c *Config) { c.Wait = 300 * time.Millisecond })
		other.patch(path, 3, []byte("d")).want(t, http.StatusLocked)

		var wg sync.WaitGroup
		for _, at := range []*gateway{g, other} {
			at.h.cfg.Wait = 10 * time.Second
			wg.Go(func() { at.patch(path, 3, []byte("d")).want(t, http.StatusNoContent).wantHeader(t, "X-Done", "1") })
		}
		close(free)
		wg.Wait()
		if n := len(g.backend.all()) + len(other.backend.all()); n != 1 {
			t.Errorf("%d deliveries", n)
		}
	})
}

func TestTusClientLeavesDuringDelivery(t *testing.T) {
	g := newGateway(t, newFakeStore(), nil)
	free, started := make(chan struct{}), make(chan struct{})
	g.backend.set(func(http.ResponseWriter, *http.Request) { close(started); <-free })
	path := g.create(4)
	c := g.begin(path, 0, 4, []byte("abcd"))
	<-started
	c.Close()
	close(free)
	eventually(t, "the outcome is stored", func() bool { return g.head(path).Header.Get("Upload-Offset") == "4" })
}

func TestTusDeleteDuringDelivery(t *testing.T) {
	eachStore(t, func(t *testing.T, store uploadstore.Store) {
		g := newGateway(t, store, nil)
		started, ended := make(chan struct{}), make(chan struct{})
		g.backend.set(func(_ http.ResponseWriter, r *http.Request) {
			close(started)
			<-r.Context().Done()
			close(ended)
		})
		path := g.create(4)
		c := g.begin(path, 0, 4, []byte("abcd"))
		<-started
		g.send("DELETE", path, nil).want(t, http.StatusNoContent)
		<-ended
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusNotFound {
			t.Errorf("the waiting client got %d, want 404", resp.StatusCode)
		}
		g.head(path).want(t, http.StatusNotFound)
		g.send("DELETE", path, nil).want(t, http.StatusNotFound)
	})
}

func TestTusOwners(t *testing.T) {
	g := newGateway(t, newFakeStore(), nil)
	owned, free := g.create(4, "X-User", "u1"), g.create(4)
	forged := "/files/" + strings.Repeat("A", 32)
	for name, c := range map[string]struct {
		path   string
		fields []string
		status int
	}{
		"stranger":           {owned, []string{"X-User", "u2"}, 404},
		"nobody":             {owned, nil, 404},
		"other site":         {owned, []string{"X-User", "u1", "X-Site", "b"}, 404},
		"owner":              {owned, []string{"X-User", "u1"}, 200},
		"url, with session":  {free, []string{"X-User", "u9"}, 200},
		"url, no session":    {free, nil, 200},
		"forged":             {forged, nil, 404},
		"malformed":          {"/files/short", nil, 404},
		"too many segments":  {"/files/" + strings.Repeat("A", 32) + "/x", nil, 404},
		"escaped traversal":  {"/files/%2e%2e%2f" + strings.Repeat("A", 23), nil, 404},
		"nul in the id":      {"/files/" + strings.Repeat("A", 31) + "%00", nil, 404},
		"owned by the empty": {owned, []string{"X-User", ""}, 404},
	} {
		t.Run(name, func(t *testing.T) {
			g := &gateway{t: t, h: g.h, srv: g.srv, backend: g.backend}
			g.h.cfg.Site = func(r *http.Request) string { return r.Header.Get("X-Site") + hostSite(r) }
			head := g.head(c.path, c.fields...).want(t, c.status)
			if c.status == 200 {
				return
			}
			head.wantHeader(t, "Upload-Offset", "")
			g.patch(c.path, 0, []byte("a"), c.fields...).want(t, 404).wantCode(t, "upload-not-found").wantHeader(t, "Upload-Offset", "")
			g.send("DELETE", c.path, nil, c.fields...).want(t, 404).wantCode(t, "upload-not-found")
		})
	}
	g.head(owned, "X-User", "u1").want(t, 200).wantHeader(t, "Upload-Offset", "0")
}

func TestTusRequireSession(t *testing.T) {
	g := newGateway(t, newFakeStore(), func(c *Config) { c.RequireSession = true })
	path := g.create(4, "X-User", "u1")
	g.send("POST", "/files", nil, "Upload-Length", "4").want(t, 401).wantCode(t, "session-required").wantHeader(t, "Tus-Resumable", "1.0.0")
	g.head(path).want(t, 401)
	g.head(path, "Tus-Resumable", "").want(t, 401)
	g.patch(path, 0, []byte("a")).want(t, 401)
	g.send("DELETE", path, nil).want(t, 401)
	g.send("OPTIONS", "/files", nil).want(t, 204)
}

func TestTusPassesOthersOn(t *testing.T) {
	g := newGateway(t, newFakeStore(), nil)
	g.backend.set(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })
	mine := g.create(4)
	foreign := "/files/" + strings.Repeat("A", 32)
	for _, c := range []struct {
		method, path string
		fields       []string
		status       int
	}{
		{"POST", "/files", []string{"Tus-Resumable", ""}, 418},
		{"POST", "/files/sub", nil, 418},
		{"POST", "/elsewhere", nil, 418},
		{"POST", "/filesystem", nil, 418},
		{"GET", "/files", nil, 418},
		{"GET", mine, nil, 418},
		{"PUT", mine, nil, 418},
		{"PATCH", "/files/7", []string{"Tus-Resumable", ""}, 418},
		{"PATCH", foreign, []string{"Tus-Resumable", ""}, 404},
		{"DELETE", foreign, []string{"Tus-Resumable", ""}, 404},
		{"HEAD", foreign, []string{"Tus-Resumable", ""}, 418},
		{"HEAD", mine, []string{"Tus-Resumable", ""}, 200},
		{"PATCH", mine, []string{"Tus-Resumable", ""}, 412},
		{"DELETE", mine, []string{"Tus-Resumable", "0.2.2"}, 412},
		{"POST", "/files", []string{"Tus-Resumable", "2.0.0"}, 412},
		{"POST", mine, []string{"X-HTTP-Method-Override", "DELETE"}, 400},
		{"POST", "/files", []string{"X-HTTP-Method-Override", "PATCH"}, 400},
		{"OPTIONS", "/files", []string{"Tus-Resumable", ""}, 204},
		{"OPTIONS", mine, nil, 204},
		{"OPTIONS", "/files", []string{"Origin", "https://a.example", "Access-Control-Request-Method", "PATCH"}, 418},
		{"OPTIONS", "/other", nil, 418},
	} {
		a := g.send(c.method, c.path, nil, c.fields...)
		if a.StatusCode != c.status {
			t.Errorf("%s %s %v: status %d, want %d", c.method, c.path, c.fields, a.StatusCode, c.status)
		}
		if ours := c.status != 418; ours != (a.Header.Get("Tus-Resumable") != "") {
			t.Errorf("%s %s %v: Tus-Resumable is %q", c.method, c.path, c.fields, a.Header.Get("Tus-Resumable"))
		}
		if c.status == 412 {
			a.wantHeader(t, "Tus-Version", "1.0.0")
		}
	}
	g.send("OPTIONS", "/files", nil).wantHeader(t, "Tus-Extension", "creation,creation-with-upload,termination").
		wantHeader(t, "Tus-Max-Size", "67108864").wantHeader(t, "Tus-Version", "1.0.0")
}

func TestTusBadRequests(t *testing.T) {
	g := newGateway(t, newFakeStore(), nil)
	path := g.create(4)
	for _, c := range []struct {
		method string
		fields []string
		status int
	}{
		{"POST", nil, 400},
		{"POST", []string{"Upload-Length", "-1"}, 400},
		{"POST", []string{"Upload-Length", "+1"}, 400},
		{"POST", []string{"Upload-Length", "1, 2"}, 400},
		{"POST", []string{"Upload-Length", "99999999999999999999"}, 400},
		{"POST", []string{"Upload-Length", "67108865"}, 413},
		{"POST", []string{"Upload-Defer-Length", "1"}, 400},
		{"POST", []string{"Upload-Length", "4", "Upload-Concat", "partial"}, 400},
		{"POST", []string{"Upload-Length", "4", "Upload-Metadata", "a !"}, 400},
		{"POST", []string{"Upload-Length", "4", "Upload-Draft-Interop-Version", "6"}, 400},
		{"PATCH", []string{"Upload-Offset", "0", "Content-Type", "text/plain"}, 415},
		{"PATCH", []string{"Upload-Offset", "0", "Content-Type", ""}, 415},
		{"PATCH", nil, 400},
		{"PATCH", []string{"Upload-Offset", "x"}, 400},
		{"PATCH", []string{"Upload-Offset", "1"}, 409},
		{"PATCH", []string{"Upload-Offset", "0", "Upload-Checksum", "sha1 x"}, 400},
		{"PATCH", []string{"Upload-Offset", "0", "Upload-Length", "5"}, 400},
	} {
		to := path
		if c.method == "POST" {
			to = "/files"
		}
		a := g.send(c.method, to, strings.NewReader("a"), c.fields...)
		if a.StatusCode != c.status || a.Header.Get("Tus-Resumable") != "1.0.0" {
			t.Errorf("%s %v: status %d %s, want %d", c.method, c.fields, a.StatusCode, a.text, c.status)
		}
	}
	g.head(path).want(t, 200).wantHeader(t, "Upload-Offset", "0")
}

func TestTusBodyLongerThanDeclared(t *testing.T) {
	eachStore(t, func(t *testing.T, store uploadstore.Store) {
		g := newGateway(t, store, nil)
		path := g.create(4)
		g.patch(path, 0, []byte("abcdef")).want(t, http.StatusRequestEntityTooLarge)
		g.head(path).want(t, 200).wantHeader(t, "Upload-Offset", "0")

		chunked := struct{ io.Reader }{strings.NewReader("abcdef")} // its length is not known
		g.send("PATCH", path, chunked, "Upload-Offset", "0").want(t, http.StatusRequestEntityTooLarge).wantCode(t, "upload-too-large")
		g.head(path).want(t, 200).wantHeader(t, "Upload-Offset", "3")
		if n := len(g.backend.all()); n != 0 {
			t.Fatalf("%d deliveries of a body that went on", n)
		}
		chunked.Reader = strings.NewReader("dx")
		g.send("PATCH", path, chunked, "Upload-Offset", "3").want(t, http.StatusRequestEntityTooLarge)
		chunked.Reader = strings.NewReader("d")
		g.send("PATCH", path, chunked, "Upload-Offset", "3").want(t, http.StatusNoContent)
		if got := g.backend.all(); len(got) != 1 || string(got[0].body) != "abcd" {
			t.Errorf("delivered %v", got)
		}
		chunked.Reader = strings.NewReader("abcdef")
		g.send("POST", "/files", chunked, "Upload-Length", "4", "Content-Type", tusMediaType).want(t, http.StatusRequestEntityTooLarge)
	})
}

func TestTusHeadDuringPatch(t *testing.T) {
	t.Parallel()
	eachStoreAt(t, func(t *testing.T, open func(func() time.Time) uploadstore.Store) {
		t.Parallel()
		store := open(time.Now)
		g, other := newGateway(t, store, nil), newGateway(t, open(time.Now), nil)
		path := g.create(1 << 20)

		// A request that receives bytes is left alone.
		c := g.begin(path, 0, 1<<20, payload(1000))
		quit := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			tick := time.NewTicker(100 * time.Millisecond)
			defer tick.Stop()
			for n := 0; ; n++ {
				select {
				case <-quit:
					return
				case <-tick.C:
					if _, err := c.Write([]byte("x")); err != nil {
						t.Errorf("the running PATCH was ended: %v", err)
						return
					}
				}
			}
		})
		eventually(t, "the PATCH writes", func() bool {
			up, err := store.Open(t.Context(), idOf(path))
			if err != nil {
				t.Fatal(err)
			}
			st, err := up.Status(t.Context())
			return err == nil && st.Writing
		})
		g.h.patience = 500 * time.Millisecond
		g.head(path).want(t, http.StatusLocked).wantHeader(t, "Retry-After", "3").wantHeader(t, "Upload-Offset", "")
		eventually(t, "a second PATCH is told to wait", func() bool {
			up, _ := store.Open(t.Context(), idOf(path))
			st, _ := up.Status(t.Context())
			return g.patch(path, int(st.Offset()), []byte("a")).StatusCode == http.StatusLocked
		})
		g.h.patience = writePatience
		close(quit)
		wg.Wait()

		// An idle one yields, also to another gateway, and is told so.
		began := time.Now()
		head := other.head(path).want(t, http.StatusOK)
		if took := time.Since(began); took < 2*time.Second || took > 5*time.Second {
			t.Errorf("yielding took %s, want about 3s", took)
		}
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusLocked || resp.Header.Get("Upload-Offset") != head.Header.Get("Upload-Offset") {
			t.Errorf("the idle client got %d at %s, HEAD said %s", resp.StatusCode, resp.Header.Get("Upload-Offset"), head.Header.Get("Upload-Offset"))
		}
	})
}

func TestTusEmptyUpload(t *testing.T) {
	eachStore(t, func(t *testing.T, store uploadstore.Store) {
		g := newGateway(t, store, nil)
		g.backend.set(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
		empty := func(name string) *answer {
			return g.send("POST", "/files", nil, "Upload-Length", "0", "Upload-Metadata", "filename "+name)
		}
		empty("YQ==").want(t, http.StatusServiceUnavailable).wantHeader(t, "Location", "").wantHeader(t, "Retry-After", "5")
		g.backend.set(func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X-Photo", "7") })
		first := empty("YQ==").want(t, http.StatusCreated).wantHeader(t, "X-Photo", "7")
		got := g.backend.all()
		if len(got) != 2 || got[0].header.Get("Idempotency-Key") != got[1].header.Get("Idempotency-Key") || len(got[1].body) != 0 {
			t.Errorf("%d deliveries, want two of one upload", len(got))
		}
		g.head(first.Header.Get("Location")).want(t, 200).wantHeader(t, "Upload-Offset", "0").wantHeader(t, "Upload-Length", "0")
		second := empty("YQ==").want(t, http.StatusCreated) // the first was answered, this is another
		if first.Header.Get("Location") == second.Header.Get("Location") {
			t.Error("a new upload joined one whose outcome was given")
		}
	})
}

func TestTusStoreTrouble(t *testing.T) {
	store := newFakeStore()
	g := newGateway(t, store, nil)
	path := g.create(100)
	away := errors.New("the disk is away")
	failing := func(ops string, err error) {
		store.setFail(func(op string) error {
			if strings.Contains(ops, op) {
				return err
			}
			return nil
		})
	}
	for _, ops := range []string{"open", "status"} {
		failing(ops, away)
		g.head(path).want(t, http.StatusLocked).wantHeader(t, "Retry-After", "3")
		g.head(path, "Tus-Resumable", "").want(t, http.StatusLocked)
		g.patch(path, 0, []byte("a")).want(t, http.StatusServiceUnavailable).wantCode(t, "upload-store-unavailable").wantHeader(t, "Retry-After", "5")
		g.send("DELETE", path, nil).want(t, http.StatusServiceUnavailable)
	}
	failing("create", away)
	g.send("POST", "/files", nil, "Upload-Length", "4").want(t, http.StatusServiceUnavailable).wantHeader(t, "Location", "")
	failing("create", uploadstore.ErrFull)
	g.send("POST", "/files", nil, "Upload-Length", "4").want(t, http.StatusInsufficientStorage).wantCode(t, "upload-store-full")
	for ops, status := range map[string]int{"append": 507, "commit": 507, "write": 507} {
		failing(ops, uploadstore.ErrFull)
		g.patch(path, 0, []byte("abc")).want(t, status).wantCode(t, "upload-store-full").wantHeader(t, "Upload-Offset", "0")
	}
	failing("delete", away)
	g.send("DELETE", path, nil).want(t, http.StatusServiceUnavailable)
	failing("", nil)
	store.free = 99
	g.send("POST", "/files", nil, "Upload-Length", "100").want(t, http.StatusInsufficientStorage)
	g.send("POST", "/files", nil, "Upload-Length", "99").want(t, http.StatusCreated)

	// The store fails while the backend reads: it has not had the request.
	g.patch(path, 0, payload(99)).want(t, http.StatusNoContent)
	failing("read", away)
	h := g.h
	g2 := &gateway{t: t, h: h, backend: g.backend}
	g2.serve(func(w http.ResponseWriter, r *http.Request) error {
		return h.ServeHTTP(w, r, handler.Func(func(_ http.ResponseWriter, r *http.Request) error {
			_, err := io.Copy(io.Discard, r.Body)
			return err
		}))
	})
	g2.patch(path, 99, payload(100)[99:]).want(t, http.StatusServiceUnavailable).wantCode(t, "upload-store-unavailable").wantHeader(t, "Upload-Offset", "99")
	failing("", nil)
	g.patch(path, 99, payload(100)[99:]).want(t, http.StatusNoContent)
}

func TestTusLocation(t *testing.T) {
	for original, want := range map[string]string{
		"/app/files":     "/app/files/",
		"/app/files/":    "/app/files/",
		"//evil/files":   "/evil/files/",
		"/a%2Fb/files?x": "/a%2Fb/files/",
		`/\evil/files`:   "/%5Cevil/files/",
	} {
		h := newHandler(t, newFakeStore(), func(c *Config) {
			c.OriginalURI = func(*http.Request) *url.URL {
				u, err := url.ParseRequestURI(original)
				if err != nil {
					t.Fatal(err)
				}
				return u
			}
		})
		g := &gateway{t: t, h: h, backend: &backend{}}
		g.serve(func(w http.ResponseWriter, r *http.Request) error {
			return h.ServeHTTP(w, r, handler.FromHTTP(g.backend))
		})
		a := g.send("POST", "/files", nil, "Upload-Length", "4", "X-Forwarded-Host", "evil.example", "X-Forwarded-Proto", "https", "Forwarded", "host=evil.example")
		if got, ok := strings.CutPrefix(a.Header.Get("Location"), want); !ok || !isID(got) {
			t.Errorf("from %s: Location %q, want %s<id>", original, a.Header.Get("Location"), want)
		}
	}
}

// The same over HTTP/2, where streams have deadlines of their own.
func TestTusIdleStreamYields(t *testing.T) {
	t.Parallel()
	g := newGateway(t, newFakeStore(), nil)
	secure := httptest.NewUnstartedServer(g.srv.Config.Handler)
	secure.EnableHTTP2 = true
	secure.StartTLS()
	t.Cleanup(secure.Close)
	path := g.create(100)
	body, feed := io.Pipe()
	t.Cleanup(func() { feed.Close() })
	request := func(method string, body io.Reader) *http.Response {
		r, err := http.NewRequestWithContext(t.Context(), method, secure.URL+path, body)
		if err != nil {
			t.Error(err)
			return nil
		}
		r.Header.Set("Tus-Resumable", "1.0.0")
		r.Header.Set("Upload-Offset", "0")
		r.Header.Set("Content-Type", tusMediaType)
		resp, err := secure.Client().Do(r)
		if err != nil {
			t.Error(err)
			return nil
		}
		resp.Body.Close()
		return resp
	}
	idle := make(chan *http.Response, 1)
	go func() { idle <- request("PATCH", body) }()
	if _, err := feed.Write(payload(10)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the bytes are durable", func() bool {
		up, _ := g.h.store.Open(t.Context(), idOf(path))
		st, _ := up.Status(t.Context())
		return st.Offset() == 10
	})
	head := request("HEAD", nil)
	if head == nil || head.ProtoMajor != 2 || head.StatusCode != 200 || head.Header.Get("Upload-Offset") != "10" {
		t.Errorf("HEAD got %+v", head)
	}
	if patch := <-idle; patch == nil || patch.StatusCode != 423 || patch.Header.Get("Upload-Offset") != "10" {
		t.Errorf("the idle PATCH got %+v", patch)
	}
}

// Another request completes the upload between the moment at which this one
// learns where it stands and the moment at which it begins to write.
func TestTusOvertaken(t *testing.T) {
	answer := func(status int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }
	}
	for name, c := range map[string]struct {
		backend    http.HandlerFunc // of the other request
		offset     int
		body       string
		status     int
		code       string
		deliveries int
	}{
		"taken":                 {answer(201), 2, "c", 204, "", 1},
		"refused":               {answer(422), 2, "c", 422, "", 1},
		"without outcome":       {answer(503), 2, "c", 204, "", 2},
		"another byte":          {answer(201), 2, "d", 409, "upload-changed", 1},
		"more bytes":            {answer(201), 1, "bc", 409, "upload-offset-mismatch", 1},
		"interrupted":           {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, 2, "c", 409, "upload-interrupted", 1},
		"more, and interrupted": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, 1, "bc", 409, "upload-interrupted", 1},
	} {
		t.Run(name, func(t *testing.T) {
			store := newFakeStore()
			g := newGateway(t, store, nil)
			path := g.create(3)
			g.patch(path, 0, []byte("abc")[:c.offset]).want(t, 204)
			var once sync.Once
			store.setFail(func(op string) error {
				if op == "write" {
					once.Do(func() {
						store.setFail(nil)
						g.backend.set(c.backend)
						_, err := g.try(t.Context(), "PATCH", path, strings.NewReader("abc"[c.offset:]), "Upload-Offset", formatInt(int64(c.offset)))
						if err != nil {
							t.Error(err)
						}
						g.backend.set(nil)
					})
				}
				return nil
			})
			a := g.patch(path, c.offset, []byte(c.body)).want(t, c.status)
			if c.code != "" {
				a.wantCode(t, c.code)
			}
			if got := len(g.backend.all()); got != c.deliveries {
				t.Errorf("%d deliveries, want %d", got, c.deliveries)
			}
		})
	}
}
