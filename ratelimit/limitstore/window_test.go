package limitstore

import "testing"

func TestWindowAt(t *testing.T) {
	tests := []struct {
		name   string
		stored Window
		now    int64
		want   Window
	}{
		{"nothing stored", Window{}, 2500, Window{End: 3000}},
		{"the window lasts", Window{End: 3000, Count: 7}, 2999, Window{End: 3000, Count: 7}},
		{"its end belongs to the next", Window{End: 3000, Count: 7}, 3000, Window{End: 4000}},
		{"its first millisecond belongs to it", Window{End: 3000, Count: 7}, 2000, Window{End: 3000, Count: 7}},
		{"long ended", Window{End: 3000, Count: 7}, 9100, Window{End: 10000}},
		{"the clock was set back a little", Window{End: 3000, Count: 7}, 1999, Window{End: 3000, Count: 7}},
		{"the clock was set back by more than a window", Window{End: 3000, Count: 7}, 999, Window{End: 1000}},
		{"an end that is no edge", Window{End: 2999, Count: 7}, 2500, Window{End: 3000}},
	}
	for _, tt := range tests {
		if got := tt.stored.At(tt.now, 1000); got != tt.want {
			t.Errorf("%s: got %+v, want %+v", tt.name, got, tt.want)
		}
	}
}

func TestGrantAndOutcome(t *testing.T) {
	limit := func(events, cost int64) Limit { return Limit{Events: events, Cost: cost} }
	advisory := func(events, cost int64) Limit { return Limit{Events: events, Cost: cost, Advisory: true} }
	tests := []struct {
		name    string
		limits  []Limit
		counts  []int64
		n       int64
		granted int64
		charged []int64
		last    []State // of the nth request
	}{
		{"all fit", []Limit{limit(10, 2)}, []int64{0}, 3, 3, []int64{6}, []State{{Remaining: 4}}},
		{"the first so many fit", []Limit{limit(10, 2)}, []int64{5}, 3, 2, []int64{4}, []State{{Remaining: 1, Refused: true}}},
		{"the narrowest decides", []Limit{limit(10, 2), limit(1, 1)}, []int64{0, 0}, 3, 1, []int64{2, 1}, []State{{Remaining: 8}, {Refused: true}}},
		{"a count above events", []Limit{limit(10, 1)}, []int64{12}, 1, 0, []int64{0}, []State{{Refused: true}}},
		{"cost 0", []Limit{limit(10, 0)}, []int64{12}, 2, 2, []int64{0}, []State{{}}},
		{"advisory never decides", []Limit{advisory(2, 1), limit(9, 1)}, []int64{0, 0}, 3, 3, []int64{2, 3}, []State{{Refused: true}, {Remaining: 6}}},
		{"advisory is charged what is granted", []Limit{advisory(9, 1), limit(2, 1)}, []int64{0, 0}, 3, 2, []int64{2, 2}, []State{{Remaining: 7}, {Refused: true}}},
		{"the largest amounts", []Limit{limit(MaxAmount, MaxAmount)}, []int64{0}, 2, 1, []int64{MaxAmount}, []State{{Refused: true}}},
	}
	for _, tt := range tests {
		if got := Grant(tt.limits, tt.counts, tt.n); got != tt.granted {
			t.Errorf("%s: granted %d, want %d", tt.name, got, tt.granted)
		}
		for i := range tt.limits {
			if got := tt.limits[i].Charged(tt.counts[i], tt.granted); got != tt.charged[i] {
				t.Errorf("%s: limit %d charged %d, want %d", tt.name, i, got, tt.charged[i])
			}
			if got := tt.limits[i].Outcome(tt.counts[i], tt.granted, tt.n); got != tt.last[i] {
				t.Errorf("%s: limit %d: got %+v, want %+v", tt.name, i, got, tt.last[i])
			}
		}
	}
}
