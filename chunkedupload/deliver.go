package chunkedupload

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/gatehouse-gateway/gatehouse/chunkedupload/uploadstore"
	"github.com/gatehouse-gateway/gatehouse/internal/handler"
)

// delivery is all that it takes to hand an upload to the application.
type delivery struct {
	upload  uploadstore.Upload
	info    uploadstore.Info
	length  int64
	request *http.Request // detached; its body is set when it is sent
	next    handler.Handler
}

// errNoAnswer: the next handler returned and wrote nothing. That confirms
// nothing: a route without a responder does so too.
var errNoAnswer = errors.New("chunkedupload: nobody answered the delivery")

// forwardedFields tell of the client's address. The proxy that follows judges
// whether to believe them, as it does for every request.
var forwardedFields = []string{"X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "Forwarded"}

// newDelivery prepares the request that an upload stands for. It carries the
// identity of the completing request r and nothing else of it that a client
// wrote into a header.
func (h *Handler) newDelivery(r *http.Request, next handler.Handler, up uploadstore.Upload, st *uploadstore.Status) (*delivery, error) {
	d := &delivery{upload: up, info: st.Info, length: st.Length, next: next}
	original, routed, err := targetURLs(&st.Info)
	if err != nil {
		return nil, err
	}
	out := r.WithContext(r.Context()) // a shallow copy
	out.Header = deliveryHeader(&st.Info, st.Length, r.Header)
	out.Method, out.Host = st.Info.Target.Method, st.Info.Target.Host
	out.URL, out.RequestURI = original, original.RequestURI()
	out.ContentLength, out.TransferEncoding = st.Length, nil
	out.Body, out.GetBody = http.NoBody, nil // without GetBody no transport sends it twice
	out.Trailer, out.Form, out.PostForm, out.MultipartForm = nil, nil, nil, nil
	out = h.cfg.Detach(out)
	out.URL, out.RequestURI = routed, routed.RequestURI()
	d.request = out
	return d, nil
}

// targetURLs are where the delivery goes: the creation's path and query as the
// client sent them, and as this handler saw them, after whatever rewriting
// stands before it.
func targetURLs(info *uploadstore.Info) (original, routed *url.URL, err error) {
	if original, err = url.ParseRequestURI(info.Target.URI); err == nil {
		routed, err = url.ParseRequestURI(cmp.Or(info.Attributes[attrRouteURI], info.Target.URI))
	}
	if err != nil {
		return nil, nil, fmt.Errorf("reading the target of upload %s: %w", shortID(info.ID), err)
	}
	return original, routed, nil
}

// deliveryHeader makes the header of a delivery.
func deliveryHeader(info *uploadstore.Info, length int64, completing http.Header) http.Header {
	out := make(http.Header)
	maps.Copy(out, info.Target.Header.Clone())
	for name, values := range completing {
		if strings.HasPrefix(plainName(name), "gatehouse-") || slices.Contains(forwardedFields, name) {
			out[name] = slices.Clone(values)
		}
	}
	for name := range out { // only ours count
		if strings.HasPrefix(plainName(name), "gatehouse-upload-") {
			delete(out, name)
		}
	}
	size := strconv.FormatInt(length, 10)
	out.Set("Content-Type", contentType(info.ContentType))
	out.Set("Content-Length", size)
	out.Set("Content-Disposition", contentDisposition(info.Filename))
	out.Set("Gatehouse-Upload-Id", info.ID)
	out.Set("Gatehouse-Upload-Length", size)
	out.Set("Gatehouse-Upload-Metadata", metadataField(info))
	out.Set("Idempotency-Key", info.ID)
	return out
}

// metadataField is the decoded metadata as a JSON object in base64url without
// padding. Bytes that are no UTF-8 appear as U+FFFD.
func metadataField(info *uploadstore.Info) string {
	pairs, err := parseMetadata(info.Metadata)
	if err != nil { // was checked at creation
		pairs = map[string]string{}
	}
	doc, err := json.Marshal(pairs)
	if err != nil { // a map of strings can be written
		panic("chunkedupload: " + err.Error())
	}
	return base64.RawURLEncoding.EncodeToString(doc)
}

// send hands the upload to the application and reports what was seen.
func (h *Handler) send(ctx context.Context, d *delivery) (*exchange, *capture) {
	x, answer := &exchange{}, newCapture()
	body, err := d.upload.Reader(ctx, 0)
	if err != nil {
		x.err, x.bodyErr = err, err
		return x, answer
	}
	sent := &deliveryBody{from: body, left: d.length}
	defer sent.Close()

	// The detached request's context carries values, ctx the cancelling.
	reqCtx, cancel := context.WithCancelCause(d.request.Context())
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })()
	request := d.request.WithContext(reqCtx)
	if d.length > 0 {
		request.Body = sent
	}

	x.err, x.panicked = h.call(d, answer, request)
	x.status, x.header, x.written = answer.seen()
	if x.status == 0 && x.err == nil {
		x.err = errNoAnswer
	}
	// An error before the first byte was taken from us, as on a kept connection
	// that the application closed at that moment, or on a route without a
	// responder: nobody can have the upload.
	x.unreached = x.err != nil && (h.cfg.Unreached(x.err) || d.length > 0 && sent.untouched(d.length))
	x.bodyErr = sent.fault()
	return x, answer
}

// call runs the next handler and survives its panic: http.ErrAbortHandler is
// how proxies say that an answer broke off.
func (h *Handler) call(d *delivery, w http.ResponseWriter, r *http.Request) (err error, panicked bool) {
	defer func() {
		v := recover()
		if v == nil {
			return
		}
		err, panicked = fmt.Errorf("panic: %v", v), true
		if v != http.ErrAbortHandler {
			h.log.Error("delivery panicked", "upload", shortID(d.info.ID), "error", err, "stack", string(debug.Stack()))
		}
	}()
	return d.next.ServeHTTP(w, r), false
}

// deliveryBody streams an upload from the store. It remembers a failure of the
// store, and may be closed while it is read.
type deliveryBody struct {
	mu   sync.Mutex
	from io.ReadCloser
	left int64
	err  error
	shut bool
}

func (b *deliveryBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.shut:
		return 0, http.ErrBodyReadAfterClose
	case b.err != nil:
		return 0, b.err
	case b.left == 0:
		return 0, io.EOF
	}
	n, err := b.from.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	switch {
	case b.left == 0:
		return n, io.EOF
	case errors.Is(err, io.EOF):
		b.err = fmt.Errorf("reading an upload: %w", io.ErrUnexpectedEOF)
	case err != nil:
		b.err = fmt.Errorf("reading an upload: %w", err)
	}
	return n, b.err
}

func (b *deliveryBody) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.shut {
		return nil
	}
	b.shut = true
	return b.from.Close()
}

// untouched reports whether nobody has read a byte of the body yet.
func (b *deliveryBody) untouched(length int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.left == length
}

func (b *deliveryBody) fault() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err
}

// capture is the ResponseWriter of a delivery. It keeps the final status, the
// header as it was then, and the beginning of the body. It does not unwrap:
// nothing may reach the completing client past it.
type capture struct {
	header http.Header

	mu      sync.Mutex
	status  int
	frozen  http.Header
	body    bytes.Buffer
	written int64
}

func newCapture() *capture { return &capture{header: make(http.Header)} }

func (c *capture) Header() http.Header { return c.header }

func (c *capture) WriteHeader(status int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writeHeaderLocked(status)
}

func (c *capture) writeHeaderLocked(status int) {
	if status < 100 || status > 999 { // as net/http does
		panic(fmt.Sprintf("invalid WriteHeader code %v", status))
	}
	if c.status != 0 || (status < 200 && status != http.StatusSwitchingProtocols) {
		return // informational, or superfluous
	}
	c.status, c.frozen = status, c.header.Clone()
}

func (c *capture) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writeHeaderLocked(http.StatusOK)
	c.written += int64(len(p))
	if room := maxOutcomeBody - c.body.Len(); room > 0 {
		c.body.Write(p[:min(len(p), room)])
	}
	return len(p), nil
}

// Flush does nothing but what a first write would: nobody waits for parts.
func (c *capture) Flush() { c.WriteHeader(http.StatusOK) }

// seen returns what was captured; status 0: nothing was written.
func (c *capture) seen() (status int, header http.Header, written int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.status, c.frozen, c.written
}

// outcome makes the outcome of the captured answer. A body that is too large
// is dropped whole, since a part of it would be a lie.
func (c *capture) outcome() uploadstore.Outcome {
	c.mu.Lock()
	defer c.mu.Unlock()
	o := uploadstore.Outcome{State: uploadstore.StateDone, Status: c.status, Header: outcomeHeader(c.frozen)}
	if c.written > maxOutcomeBody {
		o.BodyDropped = true
	} else {
		o.Body = c.body.Bytes()
	}
	return o
}
