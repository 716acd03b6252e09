package chunkedupload

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"mime"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/gatehouse-gateway/gatehouse/chunkedupload/uploadstore"
	"github.com/gatehouse-gateway/gatehouse/internal/handler"
	"github.com/gatehouse-gateway/gatehouse/internal/problem"
)

// tus 1.0.0, https://tus.io/protocols/resumable-upload.
const (
	tusVersion    = "1.0.0"
	tusExtensions = "creation,creation-with-upload,termination"
	tusMediaType  = "application/offset+octet-stream"
)

// tusOptions answers what the server can do.
func (h *Handler) tusOptions(w http.ResponseWriter) {
	head := w.Header()
	head.Set("Tus-Resumable", tusVersion)
	head.Set("Tus-Version", tusVersion)
	head.Set("Tus-Extension", tusExtensions)
	head.Set("Tus-Max-Size", formatInt(h.cfg.MaxSize))
	w.WriteHeader(http.StatusNoContent)
}

// admitTus checks what holds for every tus request, before anything of it has
// an effect.
func (h *Handler) admitTus(w http.ResponseWriter, r *http.Request) refusal {
	w.Header().Set("Tus-Resumable", tusVersion)
	switch versions := r.Header["Tus-Resumable"]; {
	case overridesMethod(r):
		return badRequest("X-HTTP-Method-Override is not accepted.", nil)
	case len(versions) != 1 || versions[0] != tusVersion:
		w.Header().Set("Tus-Version", tusVersion)
		return problem.New("upload-version", nil)
	case len(r.Header["Upload-Draft-Interop-Version"]) > 0, len(r.Header["Upload-Complete"]) > 0:
		return badRequest("The request speaks two upload protocols.", nil)
	case h.cfg.RequireSession && h.cfg.Owner(r) == "":
		return problem.New("session-required", nil)
	}
	return nil
}

// creation is a tus creation request, read and checked.
type creation struct {
	length   int64
	metadata string
	pairs    map[string]string
	carries  bool // its body is the beginning of the upload
}

// readCreation reads a creation request. What this server does not offer is
// refused: taken for something else it would be delivered as that.
func readCreation(r *http.Request) (creation, refusal) {
	var c creation
	var ok bool
	for _, name := range []string{"Upload-Concat", "Upload-Defer-Length", "Upload-Checksum"} {
		if len(r.Header[name]) > 0 {
			return c, badRequest(name+" is not offered here.", nil)
		}
	}
	if c.length, ok = readInt(r.Header["Upload-Length"]); !ok {
		return c, badRequest("Upload-Length must be one decimal number.", nil)
	}
	c.metadata = strings.Join(r.Header["Upload-Metadata"], ",")
	var err error
	if c.pairs, err = parseMetadata(c.metadata); err != nil {
		return c, badRequest("Upload-Metadata must be pairs of unique keys and base64 values, at most 4 KiB and 64 keys.", err)
	}
	if c.carries = hasTusBody(r); c.carries && r.ContentLength > c.length {
		return c, storeRefusal(uploadstore.ErrTooLong)
	}
	return c, nil
}

// readInt reads a field that is one plain decimal number.
func readInt(values []string) (int64, bool) {
	if len(values) != 1 || values[0] == "" || strings.Trim(values[0], "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.ParseInt(values[0], 10, 64)
	return n, err == nil
}

func hasTusBody(r *http.Request) bool {
	media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	return err == nil && media == tusMediaType
}

// tusCreate makes an upload, takes its beginning where the request carries
// one, and completes it where that is all of it.
func (h *Handler) tusCreate(w http.ResponseWriter, r *http.Request, next handler.Handler) refusal {
	if e := h.admitTus(w, r); e != nil {
		return e
	}
	c, e := readCreation(r)
	switch {
	case e != nil:
		return e
	case c.length > h.cfg.MaxSize:
		return problem.New("upload-too-large", nil).WithDetail("An upload may have at most %d bytes.", h.cfg.MaxSize)
	case c.length == 0:
		return h.tusCreateEmpty(w, r, next, c)
	}
	if e := h.hasRoom(r.Context(), c.length); e != nil {
		return e
	}
	q := h.newTusRequest(r, c.length)
	fields := http.Header{"Upload-Length": {formatInt(c.length)}}
	if c.carries {
		fields.Set("Content-Type", tusMediaType)
	}
	q.creation = &c
	q.throughTusd(w, "/", withVersion(fields))
	switch {
	case q.upload == nil, q.refusal != nil && !q.brokeOff():
		return q.refusal
	case !q.finished: // the beginning, or what came of it before it broke off
		if c.carries {
			w.Header().Set("Upload-Offset", formatInt(q.durable))
		}
		return h.created(w, r, q.status.Info.ID)
	}
	return h.tusCompleteCreation(w, r, next, q.upload, q.status)
}

// tusCompleteCreation answers a POST that brought all of its upload. While
// there is no outcome the client is told to go on with the last byte, since a
// repeated POST would be a second upload.
func (h *Handler) tusCompleteCreation(w http.ResponseWriter, r *http.Request, next handler.Handler, up uploadstore.Upload, st uploadstore.Status) refusal {
	defer h.extendWrite(w)()
	o, e := h.complete(r, next, up, st)
	switch {
	case e != nil && temporary(e):
		w.Header().Set("Upload-Offset", formatInt(st.Length-1))
		return h.created(w, r, st.Info.ID)
	case e != nil:
		return e
	case !isSuccess(o.Status):
		replay(w, o)
		return nil
	}
	copyOutcomeHeader(w.Header(), o, append(bodyFields, "Location")...)
	w.Header().Set("Upload-Offset", formatInt(st.Length))
	return h.created(w, r, st.Info.ID)
}

// tusCreateEmpty makes an upload without bytes, whose creation completes it.
// Without an outcome there is no Location either, which a client would take
// for success; its repeated POST finds the same upload again.
func (h *Handler) tusCreateEmpty(w http.ResponseWriter, r *http.Request, next handler.Handler, c creation) refusal {
	key := h.emptyKey(r, &c)
	up, st, err := h.joinEmpty(r, key)
	if errors.Is(err, uploadstore.ErrNotFound) {
		q := h.newTusRequest(r, 0)
		q.creation = &c
		q.throughTusd(w, "/", withVersion(http.Header{"Upload-Length": {"0"}}))
		if q.refusal != nil {
			return q.refusal
		}
		up, st, err = q.upload, q.status, nil
		h.shared.noteEmpty(key, st.Info.ID, h.cfg.Now())
	}
	if err != nil {
		return storeRefusal(err)
	}
	defer h.extendWrite(w)()
	o, e := h.complete(r, next, up, st)
	if e != nil && temporary(e) {
		return e
	}
	h.shared.forgetEmpty(key)
	switch {
	case e != nil:
		return e
	case !isSuccess(o.Status):
		replay(w, o)
		return nil
	}
	copyOutcomeHeader(w.Header(), o, append(bodyFields, "Location")...)
	w.Header().Set("Upload-Offset", "0")
	return h.created(w, r, st.Info.ID)
}

// emptyKey tells repeated creations apart from others. Without a session the
// client is told by its address and program.
func (h *Handler) emptyKey(r *http.Request, c *creation) emptyKey {
	parts := []string{h.cfg.Site(r), h.cfg.Owner(r), r.Host, r.URL.RequestURI(), c.metadata}
	if h.cfg.Owner(r) == "" {
		host, _, _ := net.SplitHostPort(r.RemoteAddr)
		parts = append(parts, host, r.UserAgent())
	}
	var b []byte
	for _, part := range parts { // with lengths, so that parts cannot run together
		b = append(binary.AppendUvarint(b, uint64(len(part))), part...)
	}
	return sha256.Sum256(b)
}

func (h *Handler) joinEmpty(r *http.Request, key emptyKey) (uploadstore.Upload, uploadstore.Status, error) {
	id := h.shared.notedEmpty(key, h.cfg.Now())
	up, st, err := h.find(r.Context(), r, id, protocolTus)
	if err == nil && stand(&st) == standingLapsed {
		st, err = h.status(r.Context(), up)
	}
	return up, st, err
}

// created answers 201 with the upload's URL: a path from the URI as the client
// sent it. Slashes before it are cut to one, so that it names no other host.
func (h *Handler) created(w http.ResponseWriter, r *http.Request, id string) refusal {
	path := strings.Trim(h.cfg.OriginalURI(r).EscapedPath(), "/")
	if path != "" {
		path = "/" + path
	}
	w.Header().Set("Location", path+"/"+id)
	w.WriteHeader(http.StatusCreated)
	return nil
}

// hasRoom refuses an upload that cannot be kept, where the store can tell.
func (h *Handler) hasRoom(ctx context.Context, length int64) refusal {
	reporter, ok := h.store.(uploadstore.SpaceReporter)
	if !ok {
		return nil
	}
	free, _, err := reporter.Free(ctx)
	switch {
	case err != nil:
		return storeRefusal(err)
	case length > free:
		return storeRefusal(uploadstore.ErrFull)
	}
	return nil
}

// tusUpload answers HEAD, PATCH and DELETE of an upload.
func (h *Handler) tusUpload(w http.ResponseWriter, r *http.Request, next handler.Handler, id string) refusal {
	w.Header().Set("Tus-Resumable", tusVersion)
	if isTus(r) {
		if e := h.admitTus(w, r); e != nil {
			return e
		}
	}
	up, st, err := h.find(r.Context(), r, id, protocolTus)
	switch {
	case err == nil && !isTus(r): // it is ours: the missing version matters
		if e := h.admitTus(w, r); e != nil {
			return e
		}
	case err != nil && r.Method == http.MethodHead:
		return neverServerError(storeRefusal(err))
	case err != nil:
		return storeRefusal(err)
	}
	switch r.Method {
	case http.MethodHead:
		return h.tusHead(w, r, up, st)
	case http.MethodPatch:
		return h.tusPatch(w, r, next, up, st)
	default:
		q := h.newTusRequest(r, 0)
		q.upload, q.status = up, st
		q.throughTusd(w, "/"+id, withVersion(http.Header{}))
		if q.refusal == nil {
			w.WriteHeader(http.StatusNoContent)
		}
		return q.refusal
	}
}

// unmarkedHead answers a HEAD that does not say which protocol it speaks, if
// it names an upload, and passes it on otherwise.
func (h *Handler) unmarkedHead(w http.ResponseWriter, r *http.Request, next handler.Handler, id string) error {
	up, err := h.store.Open(r.Context(), id)
	if errors.Is(err, uploadstore.ErrNotFound) {
		return next.ServeHTTP(w, r)
	}
	w.Header().Set("Tus-Resumable", tusVersion)
	if err != nil {
		return neverServerError(storeRefusal(err))
	}
	st, err := up.Status(r.Context())
	switch {
	case err != nil:
		return neverServerError(storeRefusal(err))
	case h.cfg.RequireSession && h.cfg.Owner(r) == "":
		return problem.New("session-required", nil)
	case !mayUse(&st.Info, protocolTus, h.cfg.Site(r), h.cfg.Owner(r)):
		return problem.New("upload-not-found", nil)
	}
	if e := h.tusHead(w, r, up, st); e != nil {
		return e
	}
	return nil
}

// tusHead tells a client where to go on. It is never a server error, and it
// never ends a request that still receives bytes.
func (h *Handler) tusHead(w http.ResponseWriter, r *http.Request, up uploadstore.Upload, st uploadstore.Status) refusal {
	w.Header().Set("Cache-Control", "no-store")
	var err error
	switch answerHead(&st) {
	case headSettle:
		st, err = h.status(r.Context(), up)
	case headWriter:
		st, err = awaitWriter(r.Context(), up, &st, h.patience)
	}
	if err != nil {
		return neverServerError(storeRefusal(err))
	}
	switch answerHead(&st) {
	case headOffset:
	case headGone:
		return problem.New("upload-closed", nil)
	case headWriter, headLocked, headSettle:
		return locked(nil)
	}
	head := w.Header()
	head.Set("Upload-Offset", formatInt(shownOffset(&st)))
	head.Set("Upload-Length", formatInt(st.Length))
	if st.Info.Metadata != "" {
		head.Set("Upload-Metadata", st.Info.Metadata)
	}
	w.WriteHeader(http.StatusOK)
	return nil
}

// awaitWriter asks for the upload as a writer would, so that an idle request
// yields it, and reads where it stands then.
func awaitWriter(ctx context.Context, up uploadstore.Upload, st *uploadstore.Status, patience time.Duration) (uploadstore.Status, error) {
	w, err := up.Write(ctx, uploadstore.WriteOptions{Offset: st.Offset(), Patience: patience})
	switch {
	case err == nil:
		if err := w.Close(); err != nil {
			return *st, err
		}
	case errors.Is(err, uploadstore.ErrOffset), errors.Is(err, uploadstore.ErrRunning), errors.Is(err, uploadstore.ErrClosed):
		// The writer has ended with more than was known.
	default:
		return *st, err
	}
	return up.Status(ctx)
}

// tusPatch takes bytes, and completes the upload where they are its last.
func (h *Handler) tusPatch(w http.ResponseWriter, r *http.Request, next handler.Handler, up uploadstore.Upload, st uploadstore.Status) refusal {
	offset, e := readPatch(r, &st)
	if e != nil {
		return e
	}
	if stand(&st) == standingLapsed {
		var err error
		if st, err = h.status(r.Context(), up); err != nil {
			return storeRefusal(err)
		}
	}
	q := h.newTusRequest(r, st.Length-offset)
	q.upload, q.status, q.durable = up, st, offset
	q.may = answerPatch(&st, offset)
	if e := refusePatch(q.may, &st); e != nil {
		if q.may == patchMismatch {
			w.Header().Set("Upload-Offset", formatInt(shownOffset(&st)))
		}
		return e
	}
	q.throughTusd(w, "/"+st.Info.ID, withVersion(http.Header{
		"Content-Type": {tusMediaType}, "Upload-Offset": {formatInt(offset)},
	}))
	switch {
	case q.refusal != nil:
		q.showOffset(w)
		return q.refusal
	case q.finished || q.may == patchComplete:
		return h.tusCompletePatch(w, r, next, up, q.status)
	}
	w.Header().Set("Upload-Offset", formatInt(q.durable))
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// refusePatch is the refusal of a PATCH that may not go on; nil: it may.
func refusePatch(may patchAnswer, st *uploadstore.Status) refusal {
	switch may {
	case patchGone:
		if _, e := ended(st.Outcome); e != nil {
			return e
		}
		return problem.New("upload-closed", nil)
	case patchLocked, patchSettle:
		return running(nil)
	case patchMismatch:
		return problem.New("upload-offset-mismatch", nil)
	}
	return nil
}

// readPatch reads what a PATCH says of itself.
func readPatch(r *http.Request, st *uploadstore.Status) (offset int64, e refusal) {
	if !hasTusBody(r) {
		return 0, problem.New("upload-bad-media-type", nil).WithDetail("A PATCH carries %s.", tusMediaType)
	}
	offset, ok := readInt(r.Header["Upload-Offset"])
	if !ok {
		return 0, badRequest("Upload-Offset must be one decimal number.", nil)
	}
	if len(r.Header["Upload-Checksum"]) > 0 || len(r.Trailer["Upload-Checksum"]) > 0 {
		return 0, badRequest("Upload-Checksum is not offered here.", nil)
	}
	if values := r.Header["Upload-Length"]; len(values) > 0 {
		if length, ok := readInt(values); !ok || length != st.Length {
			return 0, badRequest("Upload-Length differs from the one at creation.", nil)
		}
	}
	return offset, nil
}

// tusCompletePatch answers the PATCH of the last byte.
func (h *Handler) tusCompletePatch(w http.ResponseWriter, r *http.Request, next handler.Handler, up uploadstore.Upload, st uploadstore.Status) refusal {
	defer h.extendWrite(w)()
	o, e := h.complete(r, next, up, st)
	switch {
	case e != nil && temporary(e):
		w.Header().Set("Upload-Offset", formatInt(max(st.Length-1, 0)))
		return e
	case e != nil:
		return e
	case !isSuccess(o.Status):
		replay(w, o)
		return nil
	}
	copyOutcomeHeader(w.Header(), o, bodyFields...)
	w.Header().Set("Upload-Offset", formatInt(st.Length))
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func isSuccess(status int) bool { return status >= 200 && status < 300 }

// extendWrite gives the answer time to come after the wait, whatever the
// server's write timeout is. The deadline must be taken off again: it would
// stay with the connection.
func (h *Handler) extendWrite(w http.ResponseWriter) (restore func()) {
	rc := http.NewResponseController(w)
	_ = rc.SetWriteDeadline(time.Now().Add(h.cfg.Wait + time.Minute))
	return func() { _ = rc.SetWriteDeadline(time.Time{}) }
}

func withVersion(fields http.Header) http.Header {
	fields.Set("Tus-Resumable", tusVersion)
	return fields
}

func (h *Handler) newTusRequest(r *http.Request, room int64) *tusRequest {
	body := r.Body
	if body == nil {
		body = http.NoBody
	}
	return &tusRequest{h: h, r: r, watch: &watchedBody{ReadCloser: body, allowed: room}}
}

// create stores the new upload.
func (q *tusRequest) create() error {
	info := q.h.newInfo(q.r, q.creation)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(q.r.Context()), storePatience)
	defer cancel()
	up, err := q.h.store.Create(ctx, info)
	if err != nil {
		return err
	}
	q.upload = up
	q.status = uploadstore.Status{Info: info, Length: info.Length, Progress: info.Created}
	q.h.observe(ctx, EventCreated, &info, Event{Bytes: info.Length})
	return nil
}

// newInfo is what is kept of a creation.
func (h *Handler) newInfo(r *http.Request, c *creation) uploadstore.Info {
	return uploadstore.Info{
		ID: newID(), Site: h.cfg.Site(r), Owner: h.cfg.Owner(r), Protocol: protocolTus,
		Length: c.length, Metadata: c.metadata,
		Filename:    firstOf(c.pairs, "filename", "name"),
		ContentType: firstOf(c.pairs, "filetype", "type"),
		Target:      uploadstore.Target{Method: http.MethodPost, Host: r.Host, URI: h.cfg.OriginalURI(r).RequestURI()},
		Created:     h.cfg.Now(),
		Attributes: map[string]string{
			attrRouteURI:    r.URL.RequestURI(),
			attrExpireAfter: h.cfg.ExpireAfter.String(),
		},
	}
}

// take takes what the request brings. Where other requests moved the upload on
// since its state was read, and nothing of the body was, it is decided again.
func (q *tusRequest) take(offset int64, src io.Reader) (int64, error) {
	for again := 3; ; again-- {
		if q.may == patchLast {
			return q.repeatLast(src)
		}
		n, err := q.store(offset, src)
		if !movedOn(err) || n > 0 || q.creation != nil || again == 0 || !q.watch.untouched() {
			return n, err
		}
		st, err := q.h.status(q.r.Context(), q.upload)
		if err != nil {
			return 0, err
		}
		q.status, q.may, q.storeErr = st, answerPatch(&st, offset), nil
		if q.refusal = refusePatch(q.may, &st); q.refusal != nil {
			return 0, q.refusal
		}
	}
}

// movedOn reports an error of beginning to write that tells of another state
// than the one that was read before.
func movedOn(err error) bool {
	return errors.Is(err, uploadstore.ErrOffset) || errors.Is(err, uploadstore.ErrRunning) || errors.Is(err, uploadstore.ErrClosed)
}

// store takes the body's bytes.
func (q *tusRequest) store(offset int64, src io.Reader) (int64, error) {
	n, err := receive(q.r.Context(), q.upload, offset, q.h.patience, src, q.line.interrupt)
	q.durable, q.storeErr = offset+n, err
	if n > 0 {
		q.status.Received = []uploadstore.Range{{From: 0, To: q.durable}}
		q.h.observe(q.r.Context(), EventReceived, &q.status.Info, Event{Bytes: n})
	}
	return n, err
}

// repeatLast takes the last byte again. It must be the same one.
func (q *tusRequest) repeatLast(src io.Reader) (int64, error) {
	var p [2]byte
	n, _ := io.ReadFull(src, p[:]) // to the end: tusd's reader allows one byte
	if n == 0 {
		return 0, nil
	}
	same, err := sameLastByte(q.r.Context(), q.upload, q.status.Length, p[0])
	switch {
	case err != nil:
		return 0, err
	case !same:
		q.refusal = problem.New("upload-changed", nil).WithDetail("The last byte differs from the one that is stored: the file has changed.")
		return 0, q.refusal
	}
	return 1, nil
}

// remove deletes the upload and stops its delivery. Other gateways learn of it
// when they renew their claim.
func (q *tusRequest) remove() error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(q.r.Context()), storePatience)
	defer cancel()
	if err := q.upload.Delete(ctx); err != nil {
		return err
	}
	q.h.shared.abort(q.status.Info.ID, uploadstore.ErrAborted)
	q.h.observe(ctx, EventDeleted, &q.status.Info, Event{})
	return nil
}

// showOffset tells the client of a refused PATCH where the upload stands, if
// that is certain.
func (q *tusRequest) showOffset(w http.ResponseWriter) {
	switch code := q.refusal.Code; {
	case code == "upload-not-found", code == "upload-closed":
		return
	case errors.Is(q.storeErr, errYielded):
		// What this request brought is durable, whoever writes now.
	case code == "upload-offset-mismatch", code == "upload-locked":
		// Another request may have moved it.
		st, err := q.upload.Status(q.r.Context())
		if err != nil || st.Writing {
			return
		}
		q.status = st
	}
	w.Header().Set("Upload-Offset", formatInt(shownOffset(&q.status)))
}
