package chunkedupload

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gatehouse-gateway/gatehouse/chunkedupload/uploadstore"
)

// at is the status of an upload of some length with so many bytes received.
func at(received, length int64, change func(*uploadstore.Status)) uploadstore.Status {
	s := uploadstore.Status{Length: length}
	if received > 0 {
		s.Received = []uploadstore.Range{{From: 0, To: received}}
	}
	if change != nil {
		change(&s)
	}
	return s
}

func claimed(s *uploadstore.Status) { s.Claimed = true }
func lapsed(s *uploadstore.Status)  { s.Lapsed = true }
func writing(s *uploadstore.Status) { s.Writing = true }

func answered(status int) func(*uploadstore.Status) {
	return func(s *uploadstore.Status) {
		s.Outcome = &uploadstore.Outcome{State: uploadstore.StateDone, Status: status}
	}
}

func interrupted(s *uploadstore.Status) {
	o := interruptedOutcome(time.Time{})
	s.Outcome = &o
}

func TestAnswerHead(t *testing.T) {
	for name, c := range map[string]struct {
		status uploadstore.Status
		want   headAnswer
		offset int64
	}{
		"nothing yet":                {at(0, 10, nil), headOffset, 0},
		"half":                       {at(5, 10, nil), headOffset, 5},
		"one byte missing":           {at(9, 10, nil), headOffset, 9},
		"held back":                  {at(10, 10, nil), headOffset, 9},
		"one byte, held back":        {at(1, 1, nil), headOffset, 0},
		"running":                    {at(10, 10, claimed), headOffset, 9},
		"succeeded":                  {at(10, 10, answered(201)), headOffset, 10},
		"redirected":                 {at(10, 10, answered(303)), headOffset, 10},
		"refused":                    {at(10, 10, answered(422)), headGone, 9},
		"failed for good":            {at(10, 10, answered(500)), headGone, 9},
		"interrupted":                {at(10, 10, interrupted), headGone, 9},
		"lapsed":                     {at(10, 10, lapsed), headSettle, 9},
		"a writer is live":           {at(5, 10, writing), headWriter, 5},
		"empty, without an outcome":  {at(0, 0, nil), headLocked, 0},
		"empty, running":             {at(0, 0, claimed), headLocked, 0},
		"empty, succeeded":           {at(0, 0, answered(200)), headOffset, 0},
		"claimed before it is whole": {at(5, 10, claimed), headOffset, 5},
	} {
		if got := answerHead(&c.status); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
		if got := shownOffset(&c.status); got != c.offset {
			t.Errorf("%s: shows %d, want %d", name, got, c.offset)
		}
	}
}

func TestAnswerPatch(t *testing.T) {
	for name, c := range map[string]struct {
		status uploadstore.Status
		offset int64
		want   patchAnswer
	}{
		"goes on":                         {at(5, 10, nil), 5, patchWrite},
		"the last byte is missing":        {at(9, 10, nil), 9, patchWrite},
		"behind":                          {at(5, 10, nil), 4, patchMismatch},
		"ahead":                           {at(5, 10, nil), 6, patchMismatch},
		"ahead, at the last byte":         {at(5, 10, nil), 9, patchMismatch},
		"at the end of an open one":       {at(5, 10, nil), 10, patchMismatch},
		"the held byte":                   {at(10, 10, nil), 9, patchLast},
		"before the held byte":            {at(10, 10, nil), 8, patchMismatch},
		"past the held byte":              {at(10, 10, nil), 10, patchMismatch},
		"joins":                           {at(10, 10, claimed), 9, patchLast},
		"elsewhere while it runs":         {at(10, 10, claimed), 0, patchMismatch},
		"claimed before it is whole":      {at(5, 10, claimed), 5, patchLocked},
		"repeats after success":           {at(10, 10, answered(201)), 9, patchLast},
		"at the end after success":        {at(10, 10, answered(201)), 10, patchComplete},
		"elsewhere after success":         {at(10, 10, answered(201)), 3, patchMismatch},
		"repeats after a refusal":         {at(10, 10, answered(422)), 9, patchLast},
		"elsewhere after a refusal":       {at(10, 10, answered(422)), 3, patchGone},
		"repeats after an interruption":   {at(10, 10, interrupted), 9, patchLast},
		"elsewhere after an interruption": {at(10, 10, interrupted), 3, patchGone},
		"invalidated before it was whole": {at(5, 10, interrupted), 5, patchGone},
		"lapsed":                          {at(10, 10, lapsed), 9, patchSettle},
		"empty":                           {at(0, 0, nil), 0, patchComplete},
	} {
		if got := answerPatch(&c.status, c.offset); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

// A tus client takes offset = length for success, so it may see that only
// after one.
func TestShownOffsetNeverLiesUpwards(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		length := rapid.Int64Range(0, 1<<40).Draw(t, "length")
		s := at(rapid.Int64Range(0, length).Draw(t, "received"), length, rapid.SampledFrom([]func(*uploadstore.Status){
			nil, claimed, lapsed, writing, answered(200), answered(302), answered(404), answered(500), interrupted,
		}).Draw(t, "state"))
		shown, head := shownOffset(&s), answerHead(&s)
		if shown > s.Offset() || shown < 0 {
			t.Fatalf("shows %d of %d received", shown, s.Offset())
		}
		if head == headOffset && shown == length && stand(&s) != standingSucceeded {
			t.Fatalf("shows the length %d without a success", length)
		}
		if p := answerPatch(&s, shown); head == headOffset && p != patchWrite && p != patchLast && p != patchComplete && p != patchLocked {
			t.Fatalf("a client at the shown offset %d of %d is refused: %d", shown, length, p)
		}
	})
}

func TestDispose(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	old, fresh := now.Add(-25*time.Hour), now.Add(-23*time.Hour)
	progress := func(at time.Time) func(*uploadstore.Status) {
		return func(s *uploadstore.Status) { s.Progress = at }
	}
	and := func(fs ...func(*uploadstore.Status)) func(*uploadstore.Status) {
		return func(s *uploadstore.Status) {
			for _, f := range fs {
				f(s)
			}
		}
	}
	ended := func(at time.Time) func(*uploadstore.Status) {
		return func(s *uploadstore.Status) { s.Outcome.Time = at }
	}
	own := func(after string) func(*uploadstore.Status) {
		return func(s *uploadstore.Status) { s.Info.Attributes = map[string]string{attrExpireAfter: after} }
	}
	for name, c := range map[string]struct {
		status uploadstore.Status
		want   disposal
	}{
		"open and fresh":                 {at(5, 10, progress(fresh)), keep},
		"open and old":                   {at(5, 10, progress(old)), expire},
		"held and old":                   {at(10, 10, progress(old)), expire},
		"old, but written":               {at(5, 10, and(progress(old), writing)), keep},
		"old, but delivered":             {at(10, 10, and(progress(old), claimed)), keep},
		"lapsed":                         {at(10, 10, and(progress(old), lapsed)), settle},
		"lapsed and fresh":               {at(10, 10, and(progress(fresh), lapsed)), settle},
		"outcome, fresh":                 {at(10, 10, and(progress(old), answered(200), ended(fresh))), keep},
		"outcome, old":                   {at(10, 10, and(progress(old), answered(200), ended(old))), remove},
		"its own time, longer":           {at(5, 10, and(progress(old), own("48h"))), keep},
		"its own time, shorter":          {at(5, 10, and(progress(fresh), own("1h0m0s"))), expire},
		"its own time, unreadable":       {at(5, 10, and(progress(old), own("soon"))), expire},
		"its own time, none of the sort": {at(5, 10, and(progress(fresh), own("-1h"))), keep},
	} {
		if got := dispose(&c.status, 24*time.Hour, now); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

func TestMayUse(t *testing.T) {
	owned := uploadstore.Info{Protocol: protocolTus, Site: "a", Owner: "u1"}
	free := uploadstore.Info{Protocol: protocolTus, Site: "a"}
	for _, c := range []struct {
		info                  uploadstore.Info
		protocol, site, owner string
		want                  bool
	}{
		{owned, protocolTus, "a", "u1", true},
		{owned, protocolTus, "a", "u2", false},
		{owned, protocolTus, "a", "", false},
		{owned, protocolTus, "b", "u1", false},
		{owned, "rufh", "a", "u1", false},
		{free, protocolTus, "a", "", true},
		{free, protocolTus, "a", "u2", true},
		{free, protocolTus, "b", "", false},
	} {
		if got := mayUse(&c.info, c.protocol, c.site, c.owner); got != c.want {
			t.Errorf("%+v for %s %s %s: %t", c.info, c.protocol, c.site, c.owner, got)
		}
	}
}

func TestIDs(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		id := newID()
		if !isID(id) || seen[id] {
			t.Fatalf("id %q", id)
		}
		seen[id] = true
	}
}
