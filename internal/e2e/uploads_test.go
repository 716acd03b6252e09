package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// siteOfUploads has two gateways over one upload folder and no other store.
const siteOfUploads = `
{
	{GLOBAL}
}
http://:{PORT} {
	chunked_upload /files* {
		store directory {SHARED}/uploads
		max_size 1GiB
	}
	reverse_proxy {APP}
}
`

func startUploadPair(t *testing.T, app string) [2]*gateway {
	t.Helper()
	config := replace(siteOfUploads, "{APP}", app, "{SHARED}", t.TempDir())
	return [2]*gateway{startGateway(t, "gate0", config), startGateway(t, "gate1", config)}
}

// noise returns n bytes that do not repeat, and their SHA-256 in hex.
func noise(n int) ([]byte, string) {
	data := make([]byte, n)
	source := rand.NewChaCha8([32]byte{byte(n), byte(n >> 8), byte(n >> 16)})
	_, _ = source.Read(data)
	sum := sha256.Sum256(data)
	return data, hex.EncodeToString(sum[:])
}

// delivery is a request with a finished upload, as the application saw it.
type delivery struct {
	ID     string
	Key    string
	Status int
	Length int64
	SHA256 string
}

func deliveriesAt(t testing.TB, app string) []delivery {
	t.Helper()
	a := newVisitor(t, app, "test").want(t, http.StatusOK, app, "GET", "/deliveries")
	var list []delivery
	if err := json.Unmarshal(a.body, &list); err != nil {
		t.Fatal(err)
	}
	return list
}

// checkDelivered checks that the application was given the upload whole, and
// exactly once with success; before that it may have failed.
func checkDelivered(t testing.TB, app string, failures int, length int, sum string) {
	t.Helper()
	list := deliveriesAt(t, app)
	if len(list) != failures+1 {
		t.Fatalf("the application saw %d deliveries, want %d: %+v", len(list), failures+1, list)
	}
	for i, d := range list {
		want := http.StatusServiceUnavailable
		if i == failures {
			want = http.StatusCreated
		}
		if d.Status != want {
			t.Errorf("delivery %d was answered %d, want %d", i, d.Status, want)
		}
		if d.ID == "" || d.ID != list[0].ID || d.Key != d.ID {
			t.Errorf("delivery %d is of the upload %q with the key %q; the first is of %q", i, d.ID, d.Key, list[0].ID)
		}
	}
	if last := list[failures]; last.Length != int64(length) || last.SHA256 != sum {
		t.Errorf("the application got %d bytes with the SHA-256 %s, want %d and %s", last.Length, last.SHA256, length, sum)
	}
}

// TestUploadOverBadNetwork has tus-js-client send 200 MiB through two gateways
// in turn, over connections that break, to an application that fails twice.
func TestUploadOverBadNetwork(t *testing.T) {
	const length, cuts = 200 << 20, 8
	app := startApp(t, "FAIL_UPLOADS=2")
	gates := startUploadPair(t, app)
	network := startCutter(t, cuts, gates[0].addr, gates[1].addr)

	data, sum := noise(length)
	file := filepath.Join(t.TempDir(), "large.bin")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := node(t, nil, "upload.mjs", "http://"+network.addr+"/files", file, strconv.Itoa(32<<20))
	if err != nil {
		t.Fatalf("the client did not succeed: %v", err)
	}
	var report struct {
		Stored, URL string
		Status      int
		Requests    []string
	}
	if err := json.Unmarshal(out, &report); err != nil {
		t.Fatalf("the client printed %q: %v", out, err)
	}
	t.Logf("requests: %q", report.Requests)
	if report.Stored != sum {
		t.Errorf("the client saw X-Stored: %q, want %s", report.Stored, sum)
	}
	if network.cuts() < cuts {
		t.Errorf("only %d connections were cut, want %d", network.cuts(), cuts)
	}
	checkDelivered(t, app, 2, length, sum)
}

// TestKilledGatewayLosesNothing kills a gateway while it takes bytes, several
// times: the other gateway shows at least what was acknowledged, the upload
// goes on there, and the application gets every byte.
func TestKilledGatewayLosesNothing(t *testing.T) {
	const first, length = 5 << 20, 48 << 20
	data, sum := noise(length)
	for _, more := range []int{0, 300_000, 2 << 20, 17 << 20} { // bytes of the second piece before the kill
		t.Run(fmt.Sprintf("%d bytes later", more), func(t *testing.T) {
			app := startApp(t)
			gates := startUploadPair(t, app)
			path := createUpload(t, gates[0].addr, length)
			if got := sendPiece(t, gates[0].addr, path, 0, data[:first]); got != first {
				t.Fatalf("the first piece was acknowledged to %d, want %d", got, first)
			}
			conn := beginPiece(t, gates[0].addr, path, first, data[first:], more)
			gates[0].kill()
			conn.Close()

			offset := -1
			eventually(t, 90*time.Second, "the other gateway shows an offset", func() bool {
				offset = headOffset(t, gates[1].addr, path)
				return offset >= 0
			})
			if offset < first || offset > first+more {
				t.Fatalf("the offset is %d, want at least the acknowledged %d and at most the %d sent", offset, first, first+more)
			}
			t.Logf("acknowledged %d, sent %d, kept %d", first, first+more, offset)
			var end int
			eventually(t, 90*time.Second, "the other gateway takes the rest", func() bool {
				end = tryPiece(t, gates[1].addr, path, offset, data[offset:])
				return end >= 0
			})
			if end != length {
				t.Fatalf("the upload ended at %d, want %d", end, length)
			}
			checkDelivered(t, app, 0, length, sum)

			gates[0].start(t)
			if got := headOffset(t, gates[0].addr, path); got != length {
				t.Errorf("the gateway that was killed shows %d afterwards, want %d", got, length)
			}
		})
	}
}

func tusRequest(t testing.TB, method, url string, body io.Reader, fields ...string) *answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Tus-Resumable", "1.0.0")
	for i := 0; i < len(fields); i += 2 {
		req.Header.Set(fields[i], fields[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatalf("%s %s: %v", method, url, err)
	}
	defer res.Body.Close()
	text, _ := io.ReadAll(res.Body)
	return &answer{status: res.StatusCode, header: res.Header, body: text}
}

// createUpload creates an upload and returns its path.
func createUpload(t testing.TB, addr string, length int) string {
	t.Helper()
	a := tusRequest(t, "POST", "http://"+addr+"/files", nil, "Upload-Length", strconv.Itoa(length))
	path := a.header.Get("Location")
	if a.status != http.StatusCreated || path == "" || path[0] != '/' {
		t.Fatalf("creation: status %d, Location %q: %s", a.status, path, a.body)
	}
	return path
}

// tryPiece sends bytes and returns the acknowledged offset, or -1 when the
// gateway says that another still has the upload.
func tryPiece(t testing.TB, addr, path string, offset int, piece []byte) int {
	t.Helper()
	a := tusRequest(t, "PATCH", "http://"+addr+path, bytes.NewReader(piece),
		"Content-Type", "application/offset+octet-stream", "Upload-Offset", strconv.Itoa(offset))
	switch a.status {
	case http.StatusNoContent:
		end, _ := strconv.Atoi(a.header.Get("Upload-Offset"))
		return end
	case http.StatusLocked:
		return -1
	}
	t.Fatalf("PATCH at %d: status %d: %s", offset, a.status, a.body)
	return -1
}

func sendPiece(t testing.TB, addr, path string, offset int, piece []byte) int {
	t.Helper()
	return tryPiece(t, addr, path, offset, piece)
}

// beginPiece starts a PATCH with the whole piece and sends the first bytes of
// it. When it returns, the gateway has all of them but what the kernel buffers.
func beginPiece(t testing.TB, addr, path string, offset int, piece []byte, bytes int) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	_, err = fmt.Fprintf(conn, "PATCH %s HTTP/1.1\r\nHost: %s\r\nTus-Resumable: 1.0.0\r\nContent-Type: application/offset+octet-stream\r\n"+
		"Upload-Offset: %d\r\nContent-Length: %d\r\n\r\n", path, addr, offset, len(piece))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write(piece[:bytes]); err != nil {
		t.Fatal(err)
	}
	return conn
}

// headOffset returns the offset that a gateway shows, or -1 when it says that
// another still has the upload.
func headOffset(t testing.TB, addr, path string) int {
	t.Helper()
	a := tusRequest(t, "HEAD", "http://"+addr+path, nil)
	switch a.status {
	case http.StatusOK, http.StatusNoContent:
		offset, err := strconv.Atoi(a.header.Get("Upload-Offset"))
		if err != nil {
			t.Fatalf("HEAD shows the offset %q", a.header.Get("Upload-Offset"))
		}
		return offset
	case http.StatusLocked:
		return -1
	}
	t.Fatalf("HEAD: status %d", a.status)
	return -1
}
