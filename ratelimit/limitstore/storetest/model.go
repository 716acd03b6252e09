package storetest

import (
	"math/big"
	"testing"

	"pgregory.net/rapid"

	"github.com/gatehouse-gateway/gatehouse/ratelimit/limitstore"
)

// model is the reference: counts in exact integers, in windows that do not end.
type model map[limitstore.Key]*big.Int

func (m model) count(k limitstore.Key) *big.Int {
	if m[k] == nil {
		m[k] = new(big.Int)
	}
	return m[k]
}

func (m model) fits(l limitstore.Limit) bool {
	sum := new(big.Int).Add(m.count(l.Key), big.NewInt(l.Cost))
	return l.Cost == 0 || sum.Cmp(big.NewInt(l.Events)) <= 0
}

// decide returns whether the request is admitted and which limits refuse it.
func (m model) decide(limits []limitstore.Limit) (admitted bool, refused []bool) {
	admitted = true
	for _, l := range limits {
		fits := m.fits(l)
		refused = append(refused, !fits)
		admitted = admitted && (fits || l.Advisory)
	}
	for i, l := range limits {
		if admitted && !refused[i] {
			m[l.Key].Add(m.count(l.Key), big.NewInt(l.Cost))
		}
	}
	return admitted, refused
}

func (m model) remaining(l limitstore.Limit) int64 {
	left := new(big.Int).Sub(big.NewInt(l.Events), m.count(l.Key))
	return max(left.Int64(), 0)
}

// testModel compares the store with the model, decision by decision.
func testModel(t *testing.T, s limitstore.Store) {
	rapid.Check(t, func(rt *rapid.T) {
		m := model{}
		var zones [4]limitstore.Limit
		for i := range zones {
			zones[i] = Limit(Amounts(1).Draw(rt, "events"), 0)
			zones[i].Advisory = rapid.IntRange(0, 3).Draw(rt, "advisory") == 0
		}
		for range rapid.IntRange(1, 25).Draw(rt, "requests") {
			limits := rapid.SliceOfNDistinct(rapid.SampledFrom(zones[:]), 1, 4, func(l limitstore.Limit) limitstore.Key { return l.Key }).Draw(rt, "limits")
			for i := range limits {
				limits[i].Cost = Amounts(0).Draw(rt, "cost")
				if rapid.IntRange(0, 9).Draw(rt, "change") == 0 {
					limits[i].Events = Amounts(1).Draw(rt, "changed events")
				}
			}
			d, err := Try(t.Context(), s, limits...)
			if err != nil {
				rt.Fatalf("Decide: %v", err)
			}
			admitted, refused := m.decide(limits)
			if d.Admitted != admitted {
				rt.Fatalf("admitted %v, want %v", d.Admitted, admitted)
			}
			for i, l := range limits {
				if got := d.States[i]; got.Refused != refused[i] || got.Remaining != m.remaining(l) {
					rt.Fatalf("limit %d: got %+v, want refused %v, %d left", i, got, refused[i], m.remaining(l))
				}
			}
		}
	})
}

// Amounts draws events and costs: mostly small, sometimes near the bound.
func Amounts(least int64) *rapid.Generator[int64] {
	return rapid.OneOf(
		rapid.Int64Range(least, 6),
		rapid.Int64Range(least, 6),
		rapid.Int64Range(limitstore.MaxAmount-3, limitstore.MaxAmount),
		rapid.Int64Range(least, limitstore.MaxAmount),
	)
}
