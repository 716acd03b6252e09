package storetest

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gatehouse-gateway/gatehouse/chunkedupload/uploadstore"
)

func testCreation(t *testing.T, place Place) {
	s := place(t, Gateway{})
	info := serial(10)
	_, err := s.Open(t.Context(), info.ID)
	wantError(t, "Open before Create", err, uploadstore.ErrNotFound)
	u := create(t, s, info)
	_, err = s.Create(t.Context(), info)
	wantError(t, "second Create", err, uploadstore.ErrExists)
	_, err = place(t, Gateway{}).Create(t.Context(), info)
	wantError(t, "Create elsewhere", err, uploadstore.ErrExists)
	got := status(t, u)
	if got.Length != 10 || got.Offset() != 0 || got.Writing || got.Claimed || got.Lapsed || got.Deliveries != 0 || got.Outcome != nil {
		t.Errorf("new upload: %+v", got)
	}
	if got.Progress.Sub(info.Created).Abs() > time.Millisecond {
		t.Errorf("Progress = %v, want the creation %v", got.Progress, info.Created)
	}
}

func testExactInfo(t *testing.T, place Place) {
	info := chunked(100, 8)
	info.Owner, info.Metadata, info.Filename, info.ContentType = "ü1", "a Zg==,b", "\xff\x00../x", "text/plain; é"
	info.Target = uploadstore.Target{Method: "POST", Host: "h:1", URI: "/a%20b?c=\xfe", Header: http.Header{"A": {"1", "2\x80"}, "B": {""}}}
	info.Attributes = map[string]string{"later": "kept", "": "\x00"}
	create(t, place(t, Gateway{}), info)
	got := status(t, open(t, place(t, Gateway{}), info.ID)).Info
	if !got.Created.Equal(info.Created) {
		t.Errorf("Created = %v, want %v", got.Created, info.Created)
	}
	got.Created = info.Created
	if !reflect.DeepEqual(got, info) {
		t.Errorf("Info = %+v\nwant  %+v", got, info)
	}
}

func testIDs(t *testing.T, place Place) {
	s := place(t, Gateway{})
	create(t, s, serial(1))
	for _, id := range []string{"", "x", "../../../../../../../../../etc/pw", strings.Repeat("a", 31), strings.Repeat("a", 33),
		strings.Repeat("a", 31) + "/", strings.Repeat("a", 30) + "..", strings.Repeat("a", 31) + "\x00", strings.Repeat("é", 16)} {
		if _, err := s.Open(t.Context(), id); err == nil {
			t.Errorf("Open(%q) succeeded", id)
		} else {
			wantError(t, "Open", err, uploadstore.ErrNotFound)
		}
		info := serial(1)
		info.ID = id
		if _, err := s.Create(t.Context(), info); err == nil {
			t.Errorf("Create(%q) succeeded", id)
		}
	}
	info := serial(1)
	info.ID = "--" + strings.Repeat("_", 30)
	create(t, s, info)
	open(t, s, info.ID)
}

func testAll(t *testing.T, place Place) {
	s := place(t, Gateway{})
	for range s.All(t.Context()) {
		t.Fatal("All yields something in an empty store")
	}
	var want []string
	for range 20 {
		info := serial(1)
		create(t, s, info)
		want = append(want, info.ID)
	}
	if err := open(t, s, want[0]).Delete(t.Context()); err != nil {
		t.Fatal(err)
	}
	var got []string
	for id, err := range place(t, Gateway{}).All(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, id)
	}
	slices.Sort(got)
	slices.Sort(want[1:])
	if !slices.Equal(got, want[1:]) {
		t.Errorf("All = %v, want %v", got, want[1:])
	}
	n := 0
	for range s.All(t.Context()) {
		if n++; n == 3 {
			break
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, err := range s.All(ctx) {
		wantError(t, "All", err, context.Canceled)
	}
}

func testSerial(t *testing.T, place Place) {
	s := place(t, Gateway{})
	u := create(t, s, serial(100))
	w := write(t, u, uploadstore.WriteOptions{})
	for at := int64(0); at < 60; at += 20 {
		must[int](t)(w.Write(content(at, at+20)))
		if offset := must[int64](t)(w.Commit(t.Context())); offset != at+20 {
			t.Fatalf("Commit = %d, want %d", offset, at+20)
		}
		wantReceived(t, u, uploadstore.Range{From: 0, To: at + 20})
	}
	if got := status(t, u); !got.Writing || got.Complete() {
		t.Errorf("while writing: %+v", got)
	}
	if offset := must[int64](t)(w.Commit(t.Context())); offset != 60 {
		t.Errorf("Commit of nothing = %d, want 60", offset)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte{1}); err == nil {
		t.Error("Write after Close succeeded")
	}
	if _, err := w.Commit(t.Context()); err == nil {
		t.Error("Commit after Close succeeded")
	}
	for _, offset := range []int64{0, 59, 61, -1} {
		_, err := u.Write(t.Context(), uploadstore.WriteOptions{Offset: offset})
		wantError(t, "Write elsewhere", err, uploadstore.ErrOffset)
	}
	before := status(t, u)
	fillSerial(t, u, 60, 100)
	got := status(t, open(t, place(t, Gateway{}), before.Info.ID))
	if got.Writing || !got.Complete() || got.Progress.Before(before.Progress) {
		t.Errorf("complete: %+v", got)
	}
	wantReceived(t, u, uploadstore.Range{From: 0, To: 100})
}

func testUncommitted(t *testing.T, place Place) {
	u := create(t, place(t, Gateway{}), serial(100))
	fillSerial(t, u, 0, 10)
	w := write(t, u, uploadstore.WriteOptions{Offset: 10})
	must[int](t)(w.Write(bytes.Repeat([]byte{0}, 50)))
	wantReceived(t, u, uploadstore.Range{From: 0, To: 10})
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	wantReceived(t, u, uploadstore.Range{From: 0, To: 10})
	fillSerial(t, u, 10, 30)
	wantReceived(t, u, uploadstore.Range{From: 0, To: 30})
}

func testTooLong(t *testing.T, place Place) {
	u := create(t, place(t, Gateway{}), serial(10))
	w := write(t, u, uploadstore.WriteOptions{})
	n, err := w.Write(content(0, 11))
	wantError(t, "Write past the length", err, uploadstore.ErrTooLong)
	if n > 10 {
		t.Errorf("%d bytes written of 10", n)
	}
	must[int64](t)(w.Commit(t.Context()))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	fillSerial(t, u, int64(n), 10)
	wantReceived(t, u, uploadstore.Range{From: 0, To: 10})

	empty := create(t, place(t, Gateway{}), serial(0))
	if got := status(t, empty); !got.Complete() {
		t.Errorf("an empty upload is not complete: %+v", got)
	}
}

func testDeferredLength(t *testing.T, place Place) {
	info := serial(uploadstore.UnknownLength)
	u := create(t, place(t, Gateway{}), info)
	other := open(t, place(t, Gateway{}), info.ID)
	fillSerial(t, u, 0, 10)
	if got := status(t, u); got.Length != uploadstore.UnknownLength || got.Complete() {
		t.Errorf("length is not given: %+v", got)
	}
	wantError(t, "a length below the offset", u.SetLength(t.Context(), 9), uploadstore.ErrTooLong)
	for range 2 {
		if err := u.SetLength(t.Context(), 15); err != nil {
			t.Fatal(err)
		}
	}
	wantError(t, "another length", other.SetLength(t.Context(), 16), uploadstore.ErrTooLong)
	if got := status(t, other); got.Length != 15 || got.Info.Length != uploadstore.UnknownLength {
		t.Errorf("length 15: %+v", got)
	}
	w := write(t, u, uploadstore.WriteOptions{Offset: 10})
	_, err := w.Write(content(10, 16))
	wantError(t, "Write past a given length", err, uploadstore.ErrTooLong)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	fillSerial(t, other, 10, 15)
	wantReceived(t, u, uploadstore.Range{From: 0, To: 15})
	known := create(t, place(t, Gateway{}), serial(5))
	if err := known.SetLength(t.Context(), 5); err != nil {
		t.Errorf("the same length: %v", err)
	}
	wantError(t, "a length against the declared", known.SetLength(t.Context(), 6), uploadstore.ErrTooLong)
}

func testReader(t *testing.T, place Place) {
	s := place(t, Gateway{})
	u := create(t, s, chunked(32, 8))
	if b := readAll(t, u, 0); len(b) != 0 {
		t.Errorf("%d bytes read of an empty upload", len(b))
	}
	fillChunk(t, u, 0, 8)
	fillChunk(t, u, 16, 24)
	if b := readAll(t, u, 3); !bytes.Equal(b, content(3, 8)) {
		t.Errorf("read %d bytes up to the hole, want 5", len(b))
	}
	if b := readAll(t, u, 8); len(b) != 0 {
		t.Errorf("read %d bytes at the hole", len(b))
	}
	if b := readAll(t, u, 17); !bytes.Equal(b, content(17, 24)) {
		t.Errorf("read %d bytes behind the hole, want 7", len(b))
	}
	_, err := u.Reader(t.Context(), 12)
	wantError(t, "Reader in the hole", err, uploadstore.ErrOffset)
	fillChunk(t, u, 8, 16)
	r := must[io.ReadCloser](t)(u.Reader(t.Context(), 0))
	defer r.Close()
	final := create(t, s, serial(24)) // as a concatenation is made
	w := write(t, final, uploadstore.WriteOptions{})
	must[int64](t)(io.Copy(w, r))
	must[int64](t)(w.Commit(t.Context()))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	wantReceived(t, final, uploadstore.Range{From: 0, To: 24})
}

// Many short writes one after the other, as an upload in small pieces makes.
func testWritersInTurn(t *testing.T, place Place) {
	u := create(t, place(t, Gateway{}), serial(50))
	for at := int64(0); at < 50; at++ {
		fillSerial(t, u, at, at+1)
	}
	wantReceived(t, u, uploadstore.Range{From: 0, To: 50})
}

func testChunks(t *testing.T, place Place) {
	info := chunked(27, 8)
	a := create(t, place(t, Gateway{}), info)
	b := open(t, place(t, Gateway{}), info.ID)
	fillChunk(t, a, 8, 16)
	wantReceived(t, b, uploadstore.Range{From: 8, To: 16})
	fillChunk(t, b, 24, 27)
	wantReceived(t, a, uploadstore.Range{From: 8, To: 16}, uploadstore.Range{From: 24, To: 27})
	one := write(t, a, uploadstore.WriteOptions{Offset: 0, Size: 8})
	two := write(t, b, uploadstore.WriteOptions{Offset: 16, Size: 8})
	must[int](t)(one.Write(content(0, 5)))
	must[int](t)(two.Write(content(16, 24)))
	if _, err := one.Commit(t.Context()); err == nil {
		t.Error("Commit of a chunk that is not all there succeeded")
	}
	must[int64](t)(two.Commit(t.Context()))
	if _, err := two.Commit(t.Context()); err == nil {
		t.Error("second Commit of a chunk succeeded")
	}
	wantReceived(t, a, uploadstore.Range{From: 8, To: 27})
	must[int](t)(one.Write(content(5, 8)))
	must[int64](t)(one.Commit(t.Context()))
	if got := status(t, b); !got.Writing || !got.Complete() {
		t.Errorf("all chunks there, writers open: %+v", got)
	}
	if err := one.Close(); err != nil {
		t.Fatal(err)
	}
	if err := two.Close(); err != nil {
		t.Fatal(err)
	}
	if got := status(t, b); got.Writing {
		t.Error("Writing after the writers were closed")
	}
}

// What is received stays as it is, whatever is sent again.
func testChunkRepeats(t *testing.T, place Place) {
	info := chunked(16, 8)
	a := create(t, place(t, Gateway{}), info)
	b := open(t, place(t, Gateway{}), info.ID)
	fillChunk(t, a, 0, 8)
	for _, u := range []uploadstore.Upload{a, b} {
		w := write(t, u, uploadstore.WriteOptions{Offset: 0, Size: 8})
		must[int](t)(w.Write(make([]byte, 8)))
		if offset := must[int64](t)(w.Commit(t.Context())); offset != 8 {
			t.Errorf("Commit of a repeat = %d, want 8", offset)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		wantReceived(t, u, uploadstore.Range{From: 0, To: 8})
	}
}

func testChunkRefusals(t *testing.T, place Place) {
	u := create(t, place(t, Gateway{}), chunked(20, 8))
	for _, o := range []uploadstore.WriteOptions{{Offset: 0, Size: 9}, {Offset: 16, Size: 5}, {Offset: 24, Size: 1}} {
		_, err := u.Write(t.Context(), o)
		wantError(t, "Write past the end", err, uploadstore.ErrTooLong)
	}
	_, err := u.Write(t.Context(), uploadstore.WriteOptions{Offset: 3, Size: 4})
	wantError(t, "Write between chunks", err, uploadstore.ErrOffset)
	w := write(t, u, uploadstore.WriteOptions{Offset: 8, Size: 8})
	_, err = u.Write(t.Context(), uploadstore.WriteOptions{Offset: 8, Size: 8})
	wantError(t, "the same chunk twice", err, uploadstore.ErrBusy)
	_, err = w.Write(content(8, 17))
	wantError(t, "more bytes than the chunk has", err, uploadstore.ErrTooLong)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	wantReceived(t, u)
}

func testClaims(t *testing.T, place Place) {
	info := serial(5)
	u := create(t, place(t, Gateway{}), info)
	other := open(t, place(t, Gateway{}), info.ID)
	fillSerial(t, u, 0, 5)
	for n := 1; n <= 20; n++ {
		c := must[uploadstore.Claim](t)(u.Claim(t.Context(), uploadstore.ClaimOptions{}))
		for _, second := range []uploadstore.Upload{u, other} {
			_, err := second.Claim(t.Context(), uploadstore.ClaimOptions{TakeOver: true})
			wantError(t, "second claim", err, uploadstore.ErrRunning)
			_, err = second.Write(t.Context(), uploadstore.WriteOptions{Offset: 5})
			wantError(t, "Write under a claim", err, uploadstore.ErrRunning)
		}
		if got := status(t, other); !got.Claimed || got.Lapsed || got.Deliveries != n {
			t.Fatalf("claim %d: %+v", n, got)
		}
		if err := c.Renew(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := c.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := status(t, other); got.Claimed || got.Lapsed || got.Deliveries != n {
			t.Fatalf("after release %d: %+v", n, got)
		}
		u, other = other, u
	}
}

func testClaimAndWriters(t *testing.T, place Place) {
	for _, info := range []uploadstore.Info{serial(8), chunked(8, 8)} {
		u := create(t, place(t, Gateway{}), info)
		other := open(t, place(t, Gateway{}), info.ID)
		w := write(t, u, uploadstore.WriteOptions{Size: info.ChunkSize})
		for _, claimer := range []uploadstore.Upload{u, other} {
			_, err := claimer.Claim(t.Context(), uploadstore.ClaimOptions{})
			wantError(t, "claim while written", err, uploadstore.ErrBusy)
		}
		must[int](t)(w.Write(content(0, 8)))
		must[int64](t)(w.Commit(t.Context()))
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		c := must[uploadstore.Claim](t)(other.Claim(t.Context(), uploadstore.ClaimOptions{}))
		if got := status(t, u); got.Deliveries != 1 || !got.Claimed {
			t.Errorf("claims refused count as deliveries: %+v", got)
		}
		stored := must[uploadstore.Outcome](t)(c.Finish(t.Context(), done(200)))
		if stored.Status != 200 {
			t.Errorf("outcome %+v", stored)
		}
		_, err := u.Write(t.Context(), uploadstore.WriteOptions{Offset: 8, Size: info.ChunkSize})
		if info.ChunkSize == 0 {
			wantError(t, "Write after the outcome", err, uploadstore.ErrClosed)
		} else if err == nil {
			t.Error("Write after the outcome succeeded")
		}
		_, err = u.Claim(t.Context(), uploadstore.ClaimOptions{})
		wantError(t, "claim after the outcome", err, uploadstore.ErrClosed)
	}
}

func testLapse(t *testing.T, place Place) {
	info := serial(5)
	var clock Clock
	u := create(t, place(t, Gateway{}), info)
	other := open(t, place(t, Gateway{Now: clock.Now}), info.ID)
	fillSerial(t, u, 0, 5)
	c := must[uploadstore.Claim](t)(u.Claim(t.Context(), uploadstore.ClaimOptions{}))
	status(t, other)
	clock.Advance(uploadstore.ClaimLapse - 5*time.Second)
	if got := status(t, other); !got.Claimed || got.Lapsed {
		t.Errorf("before the lapse: %+v", got)
	}
	clock.Advance(6 * time.Second)
	if got := status(t, other); got.Claimed || !got.Lapsed || got.Deliveries != 1 {
		t.Errorf("after the lapse: %+v", got)
	}
	_, err := other.Claim(t.Context(), uploadstore.ClaimOptions{})
	wantError(t, "claim over a lapsed one", err, uploadstore.ErrRunning)
	_, err = other.Write(t.Context(), uploadstore.WriteOptions{Offset: 5})
	wantError(t, "Write over a lapsed claim", err, uploadstore.ErrRunning)
	second := must[uploadstore.Claim](t)(other.Claim(t.Context(), uploadstore.ClaimOptions{TakeOver: true}))
	if got := status(t, other); !got.Claimed || got.Deliveries != 2 {
		t.Errorf("taken over: %+v", got)
	}
	wantError(t, "Renew of the lapsed", c.Renew(t.Context()), uploadstore.ErrLost)
	_, err = c.Finish(t.Context(), done(201))
	wantError(t, "Finish of the lapsed", err, uploadstore.ErrLost)
	wantError(t, "Release of the lapsed", c.Release(t.Context()), uploadstore.ErrLost)
	stored := must[uploadstore.Outcome](t)(second.Finish(t.Context(), done(202)))
	if stored.Status != 202 || status(t, u).Outcome.Status != 202 {
		t.Errorf("outcome %+v", stored)
	}
}

func testOutcomes(t *testing.T, place Place) {
	info := serial(0)
	u := create(t, place(t, Gateway{}), info)
	c := must[uploadstore.Claim](t)(u.Claim(t.Context(), uploadstore.ClaimOptions{}))
	want := done(422)
	first := must[uploadstore.Outcome](t)(c.Finish(t.Context(), want))
	second := must[uploadstore.Outcome](t)(c.Finish(t.Context(), done(200)))
	got := status(t, open(t, place(t, Gateway{}), info.ID))
	for _, o := range []uploadstore.Outcome{first, second, *got.Outcome} {
		if !o.Time.Equal(want.Time) {
			t.Errorf("Time = %v, want %v", o.Time, want.Time)
		}
		o.Time = want.Time
		if !reflect.DeepEqual(o, want) {
			t.Errorf("outcome = %+v, want %+v", o, want)
		}
	}
	if got.Claimed || got.Lapsed || got.Deliveries != 1 {
		t.Errorf("finished: %+v", got)
	}
	wantError(t, "Renew after the outcome", c.Renew(t.Context()), uploadstore.ErrLost)
}

func testSettle(t *testing.T, place Place) {
	info := serial(5)
	u := create(t, place(t, Gateway{}), info)
	w := write(t, u, uploadstore.WriteOptions{})
	must[int](t)(w.Write(content(0, 5)))
	other := open(t, place(t, Gateway{}), info.ID)
	want := uploadstore.Outcome{State: uploadstore.StateInterrupted, Time: time.Now()}
	if got := must[uploadstore.Outcome](t)(other.Settle(t.Context(), want)); got.State != want.State {
		t.Errorf("settled %+v", got)
	}
	if got := must[uploadstore.Outcome](t)(u.Settle(t.Context(), done(200))); got.State != want.State {
		t.Errorf("second outcome counts: %+v", got)
	}
	_, err := w.Commit(t.Context())
	wantError(t, "Commit after the outcome", err, uploadstore.ErrClosed)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

func testDeletion(t *testing.T, place Place) {
	info := serial(5)
	s, elsewhere := place(t, Gateway{}), place(t, Gateway{})
	u := create(t, s, info)
	other := open(t, elsewhere, info.ID)
	w := write(t, u, uploadstore.WriteOptions{})
	must[int](t)(w.Write(content(0, 5)))
	must[int64](t)(w.Commit(t.Context()))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	c := must[uploadstore.Claim](t)(u.Claim(t.Context(), uploadstore.ClaimOptions{}))
	if err := other.Delete(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantError(t, "Renew", c.Renew(t.Context()), uploadstore.ErrAborted)
	_, err := c.Finish(t.Context(), done(200))
	wantError(t, "Finish", err, uploadstore.ErrAborted)
	for _, gone := range []uploadstore.Upload{u, other} {
		_, err = gone.Status(t.Context())
		wantError(t, "Status", err, uploadstore.ErrNotFound)
		_, err = gone.Write(t.Context(), uploadstore.WriteOptions{})
		wantError(t, "Write", err, uploadstore.ErrNotFound)
		_, err = gone.Reader(t.Context(), 0)
		wantError(t, "Reader", err, uploadstore.ErrNotFound)
		_, err = gone.Claim(t.Context(), uploadstore.ClaimOptions{})
		wantError(t, "Claim", err, uploadstore.ErrNotFound)
		_, err = gone.Settle(t.Context(), done(200))
		wantError(t, "Settle", err, uploadstore.ErrNotFound)
		wantError(t, "SetLength", gone.SetLength(t.Context(), 5), uploadstore.ErrNotFound)
		wantError(t, "Delete", gone.Delete(t.Context()), uploadstore.ErrNotFound)
	}
	_, err = elsewhere.Open(t.Context(), info.ID)
	wantError(t, "Open", err, uploadstore.ErrNotFound)

	for _, info := range []uploadstore.Info{serial(8), chunked(8, 8)} {
		u := create(t, s, info)
		w := write(t, u, uploadstore.WriteOptions{Size: info.ChunkSize})
		must[int](t)(w.Write(content(0, 8)))
		if err := open(t, elsewhere, info.ID).Delete(t.Context()); err != nil {
			t.Fatal(err)
		}
		_, err = w.Commit(t.Context())
		wantError(t, "Commit", err, uploadstore.ErrAborted)
		_ = w.Close()
	}
}

func testContexts(t *testing.T, place Place) {
	s := place(t, Gateway{})
	info := serial(5)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := s.Create(ctx, info)
	wantError(t, "Create", err, context.Canceled)
	_, err = s.Open(t.Context(), info.ID)
	wantError(t, "Open", err, uploadstore.ErrNotFound)
	u := create(t, s, info)
	_, err = s.Open(ctx, info.ID)
	wantError(t, "Open", err, context.Canceled)
	_, err = u.Status(ctx)
	wantError(t, "Status", err, context.Canceled)
	_, err = u.Claim(ctx, uploadstore.ClaimOptions{})
	wantError(t, "Claim", err, context.Canceled)
	wantError(t, "Delete", u.Delete(ctx), context.Canceled)
	w := write(t, u, uploadstore.WriteOptions{})
	must[int](t)(w.Write(content(0, 5)))
	_, err = w.Commit(ctx)
	wantError(t, "Commit", err, context.Canceled)
	wantReceived(t, u)
	if offset := must[int64](t)(w.Commit(t.Context())); offset != 5 {
		t.Errorf("Commit = %d after a cancelled one, want 5", offset)
	}
	busy, cancelBusy := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancelBusy()
	_, err = u.Write(busy, uploadstore.WriteOptions{Offset: 5, Patience: time.Minute})
	wantError(t, "waiting Write", err, context.DeadlineExceeded)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}
