package directory

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"github.com/gatehouse-gateway/gatehouse/chunkedupload/uploadstore"
	"pgregory.net/rapid"
)

func sampleJournal() []byte {
	b := appendSlot(appendHeader(nil, kindWriter, "TOKEN", 3), slotActive, time.UnixMilli(1700000000000))
	b = append(b, startLine(5, time.UnixMilli(6))...)
	b = record{kind: 'r', to: 70, time: time.UnixMilli(8)}.appendTo(b)
	return record{kind: 'd', from: 1, to: 9, time: time.UnixMilli(9)}.appendTo(b)
}

func TestJournalRoundTrip(t *testing.T) {
	j, err := parseJournal(kindWriter, sampleJournal())
	if err != nil || j.token != "TOKEN" || j.number != 3 || j.state != slotActive || !j.clean || j.slotBad {
		t.Fatalf("%+v, %v", j, err)
	}
	want := []record{{'s', 0, 5, time.UnixMilli(6)}, {'r', 0, 70, time.UnixMilli(8)}, {'d', 1, 9, time.UnixMilli(9)}}
	if !slices.Equal(j.records, want) {
		t.Errorf("records = %+v, want %+v", j.records, want)
	}
}

// A journal that is cut anywhere gives a prefix of its records, or says that
// it is half written; it never gives others.
func TestJournalCutAnywhere(t *testing.T) {
	whole := sampleJournal()
	all, err := parseJournal(kindWriter, whole)
	if err != nil {
		t.Fatal(err)
	}
	for n := range whole {
		j, err := parseJournal(kindWriter, whole[:n])
		if err == nil && !slices.Equal(j.records, all.records[:len(j.records)]) {
			t.Errorf("cut at %d: %+v", n, j.records)
		}
		if err != nil && err != errHalfWritten {
			t.Errorf("cut at %d: %v", n, err)
		}
		if _, err := unseal(kindInfo, seal(kindInfo, whole)[:n]); err != errHalfWritten {
			t.Errorf("sealed file cut at %d: %v", n, err)
		}
	}
}

// One damaged byte never changes what a line says.
func TestDamagedByteIsNoticed(t *testing.T) {
	whole := sampleJournal()
	all, _ := parseJournal(kindWriter, whole)
	rapid.Check(t, func(t *rapid.T) {
		b := bytes.Clone(whole)
		at := rapid.IntRange(0, len(b)-1).Draw(t, "at")
		b[at] ^= byte(rapid.IntRange(1, 255).Draw(t, "flip"))
		j, err := parseJournal(kindWriter, b)
		if err != nil {
			return
		}
		for _, r := range j.records {
			if !slices.Contains(all.records, r) {
				t.Fatalf("damage at %d reads as %+v", at, r)
			}
		}
		if !j.slotBad && (j.state != all.state || !j.tick.Equal(all.tick)) {
			t.Fatalf("damage at %d reads as state %d, tick %v", at, j.state, j.tick)
		}
	})
}

func FuzzParseJournal(f *testing.F) {
	f.Add(sampleJournal())
	f.Add([]byte("gatehouse writer 2 x y\n"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		j, err := parseJournal(kindWriter, b)
		if err != nil {
			return
		}
		if j.slotAt+int64(slotSize) > j.size || j.size != int64(len(b)) || j.state < slotEnded || j.state > slotVoid {
			t.Fatalf("%+v", j)
		}
		for _, r := range j.records {
			if r.to < 0 || r.from < 0 || (r.kind == 'd' && r.from >= r.to) {
				t.Fatalf("record %+v", r)
			}
			again, err := parseJournal(kindWriter, r.appendTo(bytes.Clone(b[:j.slotAt+int64(slotSize)])))
			if err != nil || len(again.records) != 1 || again.records[0] != r {
				t.Fatalf("record %+v reads again as %+v, %v", r, again.records, err)
			}
		}
	})
}

func FuzzUnseal(f *testing.F) {
	f.Add(seal(kindOutcome, []byte(`{"state":"done","status":200,"header":[{"name":"A","values":["b"]}]}`)))
	f.Add(seal(kindInfo, []byte(`{"id":"x","filename":{"base64":"/w=="}}`)))
	f.Add([]byte("gatehouse outcome 1 0 00000000"))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, kind := range []string{kindOutcome, kindInfo} {
			payload, err := unseal(kind, b)
			if err != nil {
				continue
			}
			if !bytes.HasSuffix(b, payload) {
				t.Fatalf("payload %q is not the file's end", payload)
			}
			if o, err := decodeOutcome(payload); err == nil {
				if _, err := encodeOutcome(o); err != nil && o.Time.Year() < 10000 {
					t.Fatalf("outcome %+v cannot be stored again: %v", o, err)
				}
			}
		}
		if info, _, err := decodeInfo(b); err == nil {
			again, err := encodeInfo(info, "")
			if err != nil {
				return // a year beyond what the format holds
			}
			got, _, err := decodeInfo(again)
			if err != nil || got.Filename != info.Filename || got.Length != info.Length {
				t.Fatalf("%+v reads again as %+v, %v", info, got, err)
			}
		}
	})
}

// Whatever a client sends as a name or a field comes back byte for byte.
func TestInfoKeepsAnyBytes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		anyText := func(label string) string {
			return string(rapid.SliceOfN(rapid.Byte(), 0, 20).Draw(t, label))
		}
		info := uploadstore.Info{Filename: anyText("filename"), Metadata: anyText("metadata"), Owner: anyText("owner"),
			Target: uploadstore.Target{URI: anyText("uri"), Header: map[string][]string{anyText("name"): {anyText("value")}}}}
		b, err := encodeInfo(info, "token")
		if err != nil {
			t.Fatal(err)
		}
		got, token, err := decodeInfo(b)
		if err != nil || token != "token" || got.Filename != info.Filename || got.Metadata != info.Metadata ||
			got.Owner != info.Owner || got.Target.URI != info.Target.URI {
			t.Fatalf("got %+v, want %+v, %v", got, info, err)
		}
		for name, values := range info.Target.Header {
			if !slices.Equal(got.Target.Header[name], values) {
				t.Fatalf("field %q = %q, want %q", name, got.Target.Header[name], values)
			}
		}
	})
}
