package directory

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/gatehouse-gateway/gatehouse/chunkedupload/uploadstore"
)

// upload is one upload. It holds no file open.
type upload struct {
	store *Store
	id    string
	info  uploadstore.Info
}

// folder opens the upload's folder, or says ErrNotFound, also when the upload
// is being deleted.
func (u *upload) folder() (*folder, error) {
	root, err := u.store.open(false)
	if errors.Is(err, errNoStore) {
		return nil, uploadstore.ErrNotFound
	}
	if err != nil {
		return nil, err
	}
	f, err := root.sub(place(u.id))
	if absent(err) {
		return nil, u.store.missing(root)
	}
	if err != nil {
		if stale(err) {
			u.store.forget(root) // the next call opens it by its path
		}
		return nil, fmt.Errorf("opening upload %s: %w", shortID(u.id), err)
	}
	aborted, err := f.has("aborted")
	if err == nil && !aborted {
		return f, nil
	}
	f.close()
	if err != nil {
		return nil, fmt.Errorf("opening upload %s: %w", shortID(u.id), err)
	}
	return nil, uploadstore.ErrNotFound
}

// with runs do in the upload's folder and says which upload an error is about.
func (u *upload) with(ctx context.Context, what string, do func(*folder) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	f, err := u.folder()
	if err != nil {
		return err
	}
	defer f.close()
	if err := do(f); err != nil {
		return fmt.Errorf("%s %s: %w", what, shortID(u.id), err)
	}
	return nil
}

// whole is with, for what only reads: an answer that was read from a folder
// while it was being removed is ErrNotFound.
func (u *upload) whole(ctx context.Context, what string, do func(*folder) error) error {
	return u.with(ctx, what, func(f *folder) error {
		err := do(f)
		if gone, goneErr := u.gone(f); gone || goneErr != nil {
			return cmpErr(goneErr, uploadstore.ErrNotFound)
		}
		return err
	})
}

// time is the file server's time now.
func (u *upload) time() (time.Time, error) {
	root, err := u.store.open(false)
	if err != nil {
		return time.Time{}, err
	}
	return u.store.clock.time(root), nil
}

// Status implements [uploadstore.Upload].
func (u *upload) Status(ctx context.Context) (status uploadstore.Status, err error) {
	err = u.whole(ctx, "reading the state of upload", func(f *folder) error {
		status, err = u.status(ctx, f)
		return err
	})
	return status, err
}

func (u *upload) status(ctx context.Context, f *folder) (uploadstore.Status, error) {
	s := uploadstore.Status{Info: u.info, Progress: u.info.Created}
	if err := u.readReceived(ctx, f, &s); err != nil {
		return s, err
	}
	// What comes last in an upload's life is read last, so that an outcome is
	// never shown with less than its bytes.
	last, err := u.lastClaim(f)
	if err != nil {
		return s, err
	}
	s.Deliveries, s.Claimed, s.Lapsed = last.deliveries, last.state == claimLive, last.state == claimLapsed
	outcome, writing, err := u.readOutcome(f)
	if err != nil {
		return s, err
	}
	s.Claimed = s.Claimed || writing
	if s.Outcome = outcome; outcome != nil {
		s.Claimed, s.Lapsed = false, false
	}
	return s, nil
}

func (u *upload) readReceived(ctx context.Context, f *folder, s *uploadstore.Status) error {
	length, err := u.length(f)
	if err != nil {
		return err
	}
	if u.info.ChunkSize > 0 {
		received, err := u.readChunks(f)
		if err != nil {
			return err
		}
		s.Received, s.Writing = received.ranges, received.live
		s.Progress = later(s.Progress, received.progress)
	} else {
		v, err := u.settledWriter(ctx, f)
		if err != nil {
			return err
		}
		if v.offset > 0 {
			s.Received = []uploadstore.Range{{From: 0, To: v.offset}}
		}
		s.Writing = v.live
		s.Progress = later(s.Progress, v.progress)
	}
	if length == uploadstore.UnknownLength { // it may have been given meanwhile
		if length, err = u.length(f); err != nil {
			return err
		}
	}
	s.Length = length
	s.Received = clamp(s.Received, length)
	return nil
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// clamp cuts merged ranges at a known length.
func clamp(ranges []uploadstore.Range, length int64) []uploadstore.Range {
	if length < 0 {
		return ranges
	}
	for i := range ranges {
		ranges[i].To = min(ranges[i].To, length)
	}
	return uploadstore.Merge(ranges)
}

// length is the declared length, or the one settled later, or UnknownLength.
func (u *upload) length(f *folder) (int64, error) {
	if u.info.Length >= 0 {
		return u.info.Length, nil
	}
	b, written, err := f.read("length")
	if absent(err) {
		return uploadstore.UnknownLength, nil
	}
	if err != nil {
		return 0, err
	}
	payload, err := unseal(kindLength, b)
	if errors.Is(err, errHalfWritten) {
		recent, timeErr := u.recent(written)
		if timeErr != nil {
			return 0, timeErr
		}
		if recent {
			return uploadstore.UnknownLength, nil
		}
	}
	if err != nil {
		return 0, broken("length", err)
	}
	length, err := strconv.ParseInt(string(payload), 10, 64)
	if err != nil || length < 0 {
		return 0, broken("length", errGarbage)
	}
	return length, nil
}

// recent reports whether a file that was last written then may still be being
// written.
func (u *upload) recent(written time.Time) (bool, error) {
	now, err := u.time()
	return now.Sub(written) < uploadstore.HalfWritten, err
}

// SetLength implements [uploadstore.Upload].
func (u *upload) SetLength(ctx context.Context, length int64) error {
	return u.whole(ctx, "settling the length of upload", func(f *folder) error {
		if length < 0 {
			return errors.New("the length is negative")
		}
		var s uploadstore.Status
		if err := u.readReceived(ctx, f, &s); err != nil {
			return err
		}
		if s.Length == length {
			return nil
		}
		if s.Length >= 0 || s.Offset() > length {
			return uploadstore.ErrTooLong
		}
		return u.publishLength(f, length)
	})
}

func (u *upload) publishLength(f *folder, length int64) error {
	err := u.publishDurably(f, "length", seal(kindLength, strconv.AppendInt(nil, length, 10)))
	if err != nil && !exists(err) {
		return err
	}
	settled, err := u.length(f)
	switch {
	case err != nil:
		return err
	case settled == uploadstore.UnknownLength:
		return errors.New("another length is being written")
	case settled != length:
		return uploadstore.ErrTooLong
	}
	return nil
}

// publish makes a whole file in the upload's folder, under a name that must be
// free.
func (u *upload) publish(name string, content []byte, durable bool) error {
	root, err := u.store.open(false)
	if err != nil {
		return err
	}
	err = publish(root, place(u.id)+"/"+name, content, durable)
	if absent(err) {
		return uploadstore.ErrNotFound // moved away by Delete
	}
	return err
}

// publishDurably does so, name and content, also when it finds that another
// has made the file: whoever acts on it must find it again.
func (u *upload) publishDurably(f *folder, name string, content []byte) error {
	err := u.publish(name, content, true)
	if err != nil && !exists(err) {
		return err
	}
	return cmpErr(f.sync(), err)
}

// Reader implements [uploadstore.Upload]. It ends where the run of received
// bytes ends that offset lies in.
func (u *upload) Reader(ctx context.Context, offset int64) (r io.ReadCloser, err error) {
	err = u.whole(ctx, "reading upload", func(f *folder) error {
		var s uploadstore.Status
		if err := u.readReceived(ctx, f, &s); err != nil {
			return err
		}
		end, ok := runEnd(s.Received, offset)
		if !ok {
			return uploadstore.ErrOffset
		}
		data, err := f.open("data")
		if err != nil {
			return err
		}
		r = &reader{io.NewSectionReader(data, offset, end-offset), data, end}
		return nil
	})
	if err != nil && r != nil {
		_ = r.Close()
		r = nil
	}
	return r, err
}

// runEnd returns the end of the run that holds offset or ends there.
func runEnd(received []uploadstore.Range, offset int64) (end int64, ok bool) {
	for _, r := range received {
		if r.From <= offset && offset <= r.To {
			end, ok = r.To, true
		}
	}
	return end, ok || offset == 0
}

// reader reads received bytes. Bytes that are received and not in the file are
// an error, not the end.
type reader struct {
	*io.SectionReader
	data *os.File
	end  int64
}

func (r *reader) Read(b []byte) (int, error) {
	n, err := r.SectionReader.Read(b)
	hideIDs(err)
	if err == io.EOF {
		if at, _ := r.Seek(0, io.SeekCurrent); at+r.start() < r.end {
			err = io.ErrUnexpectedEOF
		}
	}
	return n, err
}

func (r *reader) start() int64 { _, off, _ := r.Outer(); return off }

func (r *reader) Close() error { return r.data.Close() }

// Write implements [uploadstore.Upload].
func (u *upload) Write(ctx context.Context, o uploadstore.WriteOptions) (uploadstore.Writer, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if o.Offset < 0 {
		return nil, uploadstore.ErrOffset
	}
	w, err := u.write(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("writing upload %s: %w", shortID(u.id), err)
	}
	return w, nil
}

func (u *upload) write(ctx context.Context, o uploadstore.WriteOptions) (uploadstore.Writer, error) {
	if u.info.ChunkSize > 0 {
		return nilIfFailed(u.writeChunk(o))
	}
	return nilIfFailed(u.writeSerial(ctx, o))
}

func nilIfFailed[W uploadstore.Writer](w W, err error) (uploadstore.Writer, error) {
	if err != nil {
		return nil, err
	}
	return w, nil
}

// takesBytes says why an upload takes no bytes now, if so: it has its outcome,
// or a claim that was not given back.
func (u *upload) takesBytes(f *folder) error {
	outcome, writing, err := u.readOutcome(f)
	switch {
	case err != nil:
		return err
	case outcome != nil:
		return uploadstore.ErrClosed
	case writing:
		return uploadstore.ErrRunning
	}
	last, err := u.lastClaim(f)
	if err == nil && last.state != claimNone {
		err = uploadstore.ErrRunning
	}
	return err
}

// gone reports whether the upload was deleted, from its folder's own handle
// and by its name.
func (u *upload) gone(f *folder) (bool, error) {
	if aborted, err := f.has("aborted"); err != nil || aborted {
		return aborted, err
	}
	root, err := u.store.open(false)
	if err != nil {
		return false, err
	}
	there, err := root.has(place(u.id) + "/info")
	if err != nil || there {
		return false, err
	}
	if err := u.store.missing(root); !errors.Is(err, uploadstore.ErrNotFound) {
		return false, err
	}
	return true, nil
}
