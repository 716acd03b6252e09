package sessionauth

import (
	"testing"
	"time"

	"github.com/gatehouse-gateway/gatehouse/sessionauth/sessionstore"
)

func TestDecide(t *testing.T) {
	start := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	o := timing{refreshAfter: 10 * time.Minute, grace: 5 * time.Minute}
	bridging := o
	bridging.acceptStale = 5 * time.Minute
	shortRefresh := timing{refreshAfter: time.Minute, grace: 5 * time.Minute}

	base := token{user: "u", generation: 3, claimsVersion: 1, refreshed: start, lifetime: 24 * time.Hour, until: start.Add(90 * 24 * time.Hour)}
	at := func(d time.Duration) time.Time { return start.Add(d) }
	with := func(change func(*token)) token { tok := base; change(&tok); return tok }
	found := func(now time.Duration, change func(*sessionstore.Record)) *lookup {
		r := sessionstore.Record{
			User: "u", Generation: 3, ClaimsVersion: 1, Refreshed: start, Lifetime: 24 * time.Hour,
			Until: start.Add(90 * 24 * time.Hour), Device: "browser",
		}
		if change != nil {
			change(&r)
		}
		return &lookup{record: r, now: at(now)}
	}
	moved := func(generation uint32, since time.Duration, device string) func(*sessionstore.Record) {
		return func(r *sessionstore.Record) {
			r.Generation, r.Refreshed, r.Device = generation, at(since), device
		}
	}
	absent, failed := &lookup{absent: true}, &lookup{failed: true}
	lookUp := decision{action: actLookUp}
	refuse := decision{action: actRefuse, outcome: OutcomeStoreUnavailable}
	fresh := decision{action: actAccept, outcome: OutcomeFresh}
	validated := decision{action: actAccept, outcome: OutcomeValidated}
	stale := decision{action: actAccept, outcome: OutcomeStale}
	mismatch := decision{action: actAnonymous, outcome: OutcomeMismatch, clear: true, end: true}
	ended := decision{action: actAnonymous, outcome: OutcomeEnded, clear: true}
	expired := decision{action: actAnonymous, outcome: OutcomeExpired, clear: true}

	for _, row := range []struct {
		rule  string
		token token
		look  *lookup
		now   time.Duration
		c     circumstances
		o     timing
		want  decision
	}{
		{"fresh: no store access", base, nil, time.Minute, circumstances{}, o, fresh},
		{"fresh to the last moment", base, nil, 10 * time.Minute, circumstances{}, o, fresh},
		{"due a moment later: look up", base, nil, 10*time.Minute + 1, circumstances{}, o, lookUp},
		{"refreshed in the future is not due", base, nil, -time.Hour, circumstances{}, o, fresh},
		{"forced: look up", base, nil, 0, circumstances{force: true}, o, lookUp},
		{"denied in this gateway: refused at once, though fresh", base, nil, 0, circumstances{denied: true}, o, ended},
		{"denied while looked up", base, found(time.Hour, nil), time.Hour, circumstances{denied: true}, o, ended},
		{"claims in the store and not cached: look up", base, nil, 0, circumstances{claims: stockNone}, o, lookUp},
		{"claims cached too long ago: look up", base, nil, 0, circumstances{claims: stockOld}, o, lookUp},
		{"lifetime below refresh_after, over: look up", with(func(t *token) { t.lifetime = time.Minute }), nil, time.Minute, circumstances{}, o, lookUp},
		{"absolute end reached: look up", with(func(t *token) { t.until = at(time.Minute) }), nil, time.Minute, circumstances{}, o, lookUp},

		{"due, current: refresh", base, found(11*time.Minute, nil), 11 * time.Minute, circumstances{}, o,
			decision{action: actAccept, outcome: OutcomeDue, refresh: true}},
		{"due by this clock, not by the store's: no refresh", base, found(9*time.Minute, nil), 11 * time.Minute, circumstances{}, o, validated},
		{"forced, current: nothing issued", base, found(time.Minute, nil), time.Minute, circumstances{force: true}, o, validated},
		{"forced, other claims: sent again, generation unchanged", base, found(time.Minute, func(r *sessionstore.Record) { r.ClaimsVersion = 2 }),
			time.Minute, circumstances{force: true}, o, decision{action: actAccept, outcome: OutcomeValidated, reissue: true}},
		{"due, other claims: both", base, found(11*time.Minute, func(r *sessionstore.Record) { r.ClaimsVersion = 2 }),
			11 * time.Minute, circumstances{}, o, decision{action: actAccept, outcome: OutcomeDue, refresh: true, reissue: true}},

		{"record missing", base, absent, 11 * time.Minute, circumstances{}, o, ended},
		{"record missing, token expired", base, absent, 25 * time.Hour, circumstances{}, o, expired},
		{"record expired by the store's clock", base, found(24*time.Hour, nil), time.Hour, circumstances{}, o, ended},
		{"record at its absolute end", base, found(time.Hour, func(r *sessionstore.Record) { r.Until = at(time.Hour) }), time.Hour, circumstances{}, o, ended},
		{"token expired, record refreshed meanwhile, same generation: the record counts", base,
			found(25*time.Hour, func(r *sessionstore.Record) { r.Lifetime = 48 * time.Hour }), 25 * time.Hour, circumstances{}, o,
			decision{action: actAccept, outcome: OutcomeDue, refresh: true}},

		{"previous generation in grace, same device", base, found(12*time.Minute, moved(4, 11*time.Minute, "browser")), 12 * time.Minute,
			circumstances{device: "browser"}, o, decision{action: actAccept, outcome: OutcomeValidated, reissue: true}},
		{"previous generation at the end of grace", base, found(16*time.Minute, moved(4, 11*time.Minute, "browser")), 16 * time.Minute,
			circumstances{device: "browser"}, o, decision{action: actAccept, outcome: OutcomeValidated, reissue: true}},
		{"previous generation after grace", base, found(16*time.Minute+1, moved(4, 11*time.Minute, "browser")), 16 * time.Minute,
			circumstances{device: "browser"}, o, mismatch},
		{"previous generation in grace, other device", base, found(12*time.Minute, moved(4, 11*time.Minute, "browser")), 12 * time.Minute,
			circumstances{device: "other"}, o, mismatch},
		{"grace goes by the store's clock", base, found(12*time.Minute, moved(4, 11*time.Minute, "browser")), 40 * time.Minute,
			circumstances{device: "browser"}, o, decision{action: actAccept, outcome: OutcomeValidated, reissue: true}},
		{"two generations behind", base, found(12*time.Minute, moved(5, 11*time.Minute, "browser")), 12 * time.Minute,
			circumstances{device: "browser"}, o, mismatch},
		{"ahead of the record", base, found(12*time.Minute, moved(2, 11*time.Minute, "browser")), 12 * time.Minute,
			circumstances{device: "browser"}, o, mismatch},
		{"generations wrap around", with(func(t *token) { t.generation = 1<<32 - 1 }), found(12*time.Minute, moved(0, 11*time.Minute, "browser")), 12 * time.Minute,
			circumstances{device: "browser"}, o, decision{action: actAccept, outcome: OutcomeValidated, reissue: true}},
		{"refresh_after shorter than grace still rotates", base, found(14*time.Minute, moved(4, 11*time.Minute, "browser")), 14 * time.Minute,
			circumstances{device: "browser"}, shortRefresh, decision{action: actAccept, outcome: OutcomeDue, refresh: true, reissue: true}},
		{"another user's record", base, found(time.Minute, func(r *sessionstore.Record) { r.User = "v" }), time.Minute,
			circumstances{force: true}, o, mismatch},
		{"current generation from another device", base, found(11*time.Minute, nil), 11 * time.Minute, circumstances{device: "other"}, o,
			decision{action: actAccept, outcome: OutcomeDue, refresh: true}},

		{"store down, due", base, failed, 11 * time.Minute, circumstances{}, o, refuse},
		{"store down, due, bridged", base, failed, 11 * time.Minute, circumstances{}, bridging, stale},
		{"store down, bridged to the last moment", base, failed, 15 * time.Minute, circumstances{}, bridging, stale},
		{"store down, longer than bridged", base, failed, 15*time.Minute + 1, circumstances{}, bridging, refuse},
		{"store down, forced: never bridged", base, failed, 11 * time.Minute, circumstances{force: true}, bridging, refuse},
		{"store down, fresh but forced", base, failed, time.Minute, circumstances{force: true}, bridging, refuse},
		{"store down, expired: never bridged", with(func(t *token) { t.lifetime = 11 * time.Minute }), failed, 11 * time.Minute, circumstances{}, bridging, refuse},
		{"store down, absolute end: never bridged", with(func(t *token) { t.until = at(11 * time.Minute) }), failed, 11 * time.Minute, circumstances{}, bridging, refuse},
		{"store down, claims unknown", base, failed, time.Minute, circumstances{claims: stockNone}, bridging, refuse},
		{"store down, old claims bridged", base, failed, time.Minute, circumstances{claims: stockOld}, bridging, stale},
		{"store down, old claims not bridged", base, failed, time.Minute, circumstances{claims: stockOld}, o, refuse},
	} {
		t.Run(row.rule, func(t *testing.T) {
			if got := decide(&row.token, row.look, at(row.now), row.c, row.o); got != row.want {
				t.Errorf("got %+v, want %+v", got, row.want)
			}
		})
	}
}
