package chunkedupload

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	tusd "github.com/tus/tusd/v2/pkg/handler"
	"golang.org/x/exp/slog" // what tusd's configuration asks for

	"github.com/gatehouse-gateway/gatehouse/chunkedupload/uploadstore"
	"github.com/gatehouse-gateway/gatehouse/internal/problem"
)

// This file is all that knows tusd. Its handler parses POST, PATCH and DELETE;
// what they do is in tusRequest, which it finds in the context.

// tusdReadTimeout is how long a body may be silent.
const tusdReadTimeout = time.Minute

// newTusd makes tusd's handler over the adapter. There is no locker: the store
// keeps writers apart, over all gateways. There are no callbacks: delivery
// happens after tusd is done, so that its contexts and deadlines cannot end it.
func newTusd(h *Handler, maxSize int64) (*tusd.UnroutedHandler, error) {
	composer := tusd.NewStoreComposer()
	composer.UseCore(tusStore{h})
	composer.UseTerminater(tusStore{h})
	return tusd.NewUnroutedHandler(tusd.Config{
		StoreComposer:                    composer,
		MaxSize:                          maxSize,
		DisableDownload:                  true,
		DisableConcatenation:             true,
		Cors:                             &tusd.CorsConfig{Disable: true},
		Logger:                           slog.New(silent{}),
		GracefulRequestCompletionTimeout: time.Millisecond, // the adapter does not use its context
		NetworkTimeout:                   tusdReadTimeout,
	})
}

// silent discards tusd's log lines: they name upload URLs.
type silent struct{}

func (silent) Enabled(context.Context, slog.Level) bool  { return false }
func (silent) Handle(context.Context, slog.Record) error { return nil }
func (s silent) WithAttrs([]slog.Attr) slog.Handler      { return s }
func (s silent) WithGroup(string) slog.Handler           { return s }

// tusRequest is one request on its way through tusd.
type tusRequest struct {
	h     *Handler
	r     *http.Request
	watch *watchedBody
	line  *tusdAnswer

	creation *creation // of a POST
	upload   uploadstore.Upload
	status   uploadstore.Status // as it was before the request, and what it received
	may      patchAnswer

	// What came of it.
	durable  int64   // the offset up to which bytes are durable
	storeErr error   // what stopped the store's writer
	finished bool    // all bytes are here: complete it
	refusal  refusal // what stopped it, in our words
}

type tusRequestKey struct{}

func tusRequestOf(ctx context.Context) *tusRequest {
	return ctx.Value(tusRequestKey{}).(*tusRequest)
}

// throughTusd lets tusd parse the request and call back. It is given a request
// that holds nothing but the protocol's own fields, parsed and known to be
// good, so that it can neither see forwarding fields nor take other protocols'.
func (q *tusRequest) throughTusd(w http.ResponseWriter, path string, fields http.Header) {
	q.line = &tusdAnswer{to: http.NewResponseController(w), header: make(http.Header)}
	ctx, cancel := context.WithCancel(context.WithValue(q.r.Context(), tusRequestKey{}, q))
	defer cancel() // lets tusd's goroutines go

	in := q.r.WithContext(ctx)
	in.Header, in.URL, in.Body = fields, &url.URL{Path: path}, q.watch
	t := q.h.tus
	parse := map[string]http.HandlerFunc{
		http.MethodPost: t.PostFile, http.MethodPatch: t.PatchFile, http.MethodDelete: t.DelFile,
	}[q.r.Method]
	t.Middleware(parse).ServeHTTP(q.line, in)

	q.line.release(q.watch.atEnd())
	if q.refusal == nil {
		q.refusal = q.tusdRefusal()
	}
}

// tusdRefusal is tusd's own refusal in our words.
func (q *tusRequest) tusdRefusal() refusal {
	code, cause := q.line.failure()
	switch {
	case code == "":
		return nil
	case q.watch.exceeded() || code == "ERR_UPLOAD_SIZE_EXCEEDED":
		return storeRefusal(uploadstore.ErrTooLong)
	case code == "ERR_MAX_SIZE_EXCEEDED":
		return problem.New("upload-too-large", cause)
	case code == "ERR_UNSUPPORTED_VERSION":
		return problem.New("upload-version", cause)
	case code == "ERR_INVALID_CONTENT_TYPE":
		return problem.New("upload-bad-media-type", cause)
	case code == "ERR_UPLOAD_NOT_FOUND":
		return problem.New("upload-not-found", cause)
	case code == "ERR_MISMATCHED_OFFSET":
		return problem.New("upload-offset-mismatch", cause)
	case code == "ERR_READ_TIMEOUT", code == "ERR_CONNECTION_RESET":
		return locked(cause).WithDetail("The request's body stopped; go on from the offset.")
	case q.watch.failure() != nil:
		return badRequest("The request's body broke off.", q.watch.failure())
	case q.line.status >= http.StatusInternalServerError:
		return problem.New("upload-store-unavailable", cause).WithRetryAfter(retryStore)
	default:
		return badRequest("The request does not follow the tus protocol.", cause)
	}
}

// brokeOff reports a body that ended early while the store had no trouble.
func (q *tusRequest) brokeOff() bool { return q.watch.failure() != nil && q.storeErr == nil }

// tusStore is tusd's data store.
type tusStore struct{ h *Handler }

func (tusStore) NewUpload(ctx context.Context, _ tusd.FileInfo) (tusd.Upload, error) {
	q := tusRequestOf(ctx)
	if err := q.create(); err != nil {
		q.refusal = storeRefusal(err)
		return nil, err
	}
	return tusdUpload{q}, nil
}

func (tusStore) GetUpload(ctx context.Context, _ string) (tusd.Upload, error) {
	return tusdUpload{tusRequestOf(ctx)}, nil
}

func (tusStore) AsTerminatableUpload(u tusd.Upload) tusd.TerminatableUpload {
	return u.(tusdUpload)
}

// tusdUpload is tusd's view of an upload.
type tusdUpload struct{ q *tusRequest }

// GetInfo shows the offset that this request may go on from.
func (u tusdUpload) GetInfo(context.Context) (tusd.FileInfo, error) {
	st := &u.q.status
	info := tusd.FileInfo{ID: st.Info.ID, Size: st.Length, Offset: shownOffset(st)}
	switch u.q.may {
	case patchLast:
		info.Offset = st.Length - 1
	case patchComplete:
		info.Offset = st.Length
	}
	return info, nil
}

func (u tusdUpload) WriteChunk(_ context.Context, offset int64, src io.Reader) (int64, error) {
	q := u.q
	n, err := q.take(offset, src)
	if err != nil && q.refusal == nil {
		q.refusal = storeRefusal(err)
	}
	return n, err
}

// FinishUpload is called when all bytes are here. A body that went on after
// them is not this upload: it stays held, and the client is told.
func (u tusdUpload) FinishUpload(context.Context) error {
	if u.q.watch.exceeded() {
		return uploadstore.ErrTooLong
	}
	u.q.finished = true
	return nil
}

func (u tusdUpload) Terminate(context.Context) error {
	err := u.q.remove()
	if err != nil {
		u.q.refusal = storeRefusal(err)
	}
	return err
}

// GetReader is never called: downloads are off.
func (u tusdUpload) GetReader(ctx context.Context) (io.ReadCloser, error) {
	return u.q.upload.Reader(ctx, 0)
}

// tusdAnswer takes tusd's answer, of which only success or failure counts, and
// passes its deadlines on.
type tusdAnswer struct {
	to     *http.ResponseController
	header http.Header
	status int
	text   []byte

	mu  sync.Mutex
	cut bool
}

func (a *tusdAnswer) Header() http.Header { return a.header }

func (a *tusdAnswer) WriteHeader(status int) {
	if a.status == 0 && status >= 200 {
		a.status = status
	}
}

func (a *tusdAnswer) Write(p []byte) (int, error) {
	const enough = 256
	a.text = append(a.text, p[:min(len(p), enough-len(a.text))]...)
	return len(p), nil
}

// failure returns tusd's error code; "" if there was none.
func (a *tusdAnswer) failure() (code string, cause error) {
	if a.status != 0 && a.status < 400 {
		return "", nil
	}
	text := strings.TrimSpace(string(a.text))
	code, _, _ = strings.Cut(text, ":")
	return cmp.Or(code, "ERR_UNKNOWN"), errors.New(text)
}

// SetReadDeadline is called by tusd before and after each read. Once the
// request has been cut its calls do not count.
func (a *tusdAnswer) SetReadDeadline(t time.Time) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.cut {
		return nil
	}
	return a.to.SetReadDeadline(t)
}

// SetWriteDeadline is called by tusd along with the one for reads.
func (a *tusdAnswer) SetWriteDeadline(t time.Time) error { return a.to.SetWriteDeadline(t) }

// interrupt ends a blocked read of the body.
func (a *tusdAnswer) interrupt() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.cut = true
	_ = a.to.SetReadDeadline(time.Unix(1, 0)) // where there is no deadline, the client's end is waited for
}

// release takes tusd's deadlines off. While a body is unread its read deadline
// stays, since net/http reads on. After its end it must go: the connection's
// background read would fail and cancel the request (golang/go#70834).
func (a *tusdAnswer) release(bodyEnded bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if bodyEnded && !a.cut {
		_ = a.to.SetReadDeadline(time.Time{})
	}
	_ = a.to.SetWriteDeadline(time.Time{})
}

// watchedBody is a request's body, of which it is told how far it was read.
type watchedBody struct {
	io.ReadCloser
	allowed int64 // bytes that the upload still has room for

	mu   sync.Mutex
	read int64
	end  bool
	err  error
}

func (b *watchedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.read += int64(n)
	switch {
	case err == io.EOF:
		b.end = true
	case err != nil && b.err == nil:
		b.err = err
	}
	return n, err
}

func (b *watchedBody) untouched() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.read == 0 && !b.end && b.err == nil
}

func (b *watchedBody) exceeded() bool { b.mu.Lock(); defer b.mu.Unlock(); return b.read > b.allowed }
func (b *watchedBody) atEnd() bool    { b.mu.Lock(); defer b.mu.Unlock(); return b.end }
func (b *watchedBody) failure() error { b.mu.Lock(); defer b.mu.Unlock(); return b.err }

// formatInt writes an offset or a length.
func formatInt(n int64) string { return strconv.FormatInt(n, 10) }
