package uploadstore

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestMergeHoldsTheSameBytes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const size = 64
		var bytes [size]bool
		ranges := rapid.SliceOf(rapid.Custom(func(t *rapid.T) Range {
			return Range{rapid.Int64Range(0, size).Draw(t, "from"), rapid.Int64Range(0, size).Draw(t, "to")}
		})).Draw(t, "ranges")
		for _, r := range ranges {
			for i := r.From; i < r.To; i++ {
				bytes[i] = true
			}
		}
		merged := Merge(slices.Clone(ranges))
		var got [size]bool
		for i, r := range merged {
			if r.From >= r.To {
				t.Fatalf("empty range in %v", merged)
			}
			if i > 0 && merged[i-1].To >= r.From {
				t.Fatalf("ranges touch in %v", merged)
			}
			for b := r.From; b < r.To; b++ {
				got[b] = true
			}
		}
		if got != bytes {
			t.Fatalf("Merge(%v) = %v holds other bytes", ranges, merged)
		}
		probe := Range{rapid.Int64Range(0, size).Draw(t, "probe from"), rapid.Int64Range(0, size).Draw(t, "probe to")}
		want := true
		for b := probe.From; b < probe.To; b++ {
			want = want && bytes[b]
		}
		if Contains(merged, probe) != want {
			t.Fatalf("Contains(%v, %v) = %v", merged, probe, !want)
		}
	})
}
