package chunkedupload

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// Whatever a client sends, the answer is no server error, nothing panics, and
// no success is told of that the backend did not confirm.
func FuzzTusRequest(f *testing.F) {
	f.Add(0, "", "1.0.0", "10", "", "filename YQ==", tusMediaType, "", []byte("abc"))
	f.Add(1, "", "1.0.0", "", "0", "", tusMediaType, "", []byte("abc"))
	f.Add(1, "", "1.0.0", "10", "00", "", tusMediaType+"; a=b", "sha1 x", []byte("0123456789ab"))
	f.Add(2, "/", "1.0.0", "", "", "", "", "", []byte{})
	f.Add(3, "x", "0.2.2", "-1", "+0", ",,", "text/plain", "partial", []byte{})
	f.Add(4, "/../x", "1.0.0", "9223372036854775808", "9223372036854775807", "a\x00", "", "final;/a /b", []byte{0})
	f.Fuzz(func(t *testing.T, verb int, suffix, version, length, offset, metadata, media, extra string, body []byte) {
		store, delivered := newFakeStore(), 0
		h, err := New(Config{Store: store, Base: "/files", MaxSize: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		defer h.Close()
		h.patience = 0
		served := h.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Idempotency-Key") != "" {
				delivered++
			}
			w.WriteHeader(http.StatusTeapot)
		}))
		up := newTusUpload(t, h, 10)
		methods := []string{"POST", "PATCH", "HEAD", "DELETE", "OPTIONS", "GET"}
		method := methods[uint(verb)%uint(len(methods))]
		path := "/files"
		if method != "POST" {
			path += "/" + up
		}
		r := httptest.NewRequest(method, path, bytes.NewReader(body))
		r.URL.Path += suffix
		if verb%2 == 0 {
			r.ContentLength = -1
		}
		for name, value := range map[string]string{
			"Tus-Resumable": version, "Upload-Length": length, "Upload-Offset": offset, "Upload-Metadata": metadata,
			"Content-Type": media, "Upload-Concat": extra, "Upload-Checksum": extra,
		} {
			if value != "" {
				r.Header[name] = []string{value}
			}
		}
		w := httptest.NewRecorder()
		served.ServeHTTP(w, r)
		if w.Code >= 500 {
			t.Errorf("%s %q: status %d %s", method, r.URL.Path, w.Code, w.Body)
		}
		if at := w.Header().Get("Upload-Offset"); delivered == 0 && at != "" && at == w.Header().Get("Upload-Length") {
			t.Errorf("%s: shows the end %s without a delivery", method, at)
		}
		if strings.ContainsAny(w.Header().Get("Location"), " \\\r\n\x00") {
			t.Errorf("Location %q", w.Header().Get("Location"))
		}
	})
}

func newTusUpload(t *testing.T, h *Handler, length int64) string {
	t.Helper()
	info := h.newInfo(httptest.NewRequest("POST", "/files", nil), &creation{length: length})
	if _, err := h.store.Create(t.Context(), info); err != nil {
		t.Fatal(err)
	}
	return info.ID
}
