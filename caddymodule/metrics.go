package caddymodule

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gatehouse-gateway/gatehouse/chunkedupload"
	"github.com/gatehouse-gateway/gatehouse/ratelimit"
	"github.com/gatehouse-gateway/gatehouse/sessionauth"
)

// The collectors are made once for the process, so that counts go on over
// reloads, and registered with every configuration's registry. Labels come from
// the configuration and from fixed sets, never from clients.
var (
	sessionDecisions = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "gatehouse_session_decisions_total",
		Help: "Decisions of session_auth on requests and refreshes, by outcome.",
	}, []string{"outcome"})
	sessionStoreSeconds = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "gatehouse_session_store_seconds",
		Help:    "Time of session store calls in seconds, by operation.",
		Buckets: storeBuckets,
	}, []string{"operation"})
	sessionStoreErrors = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "gatehouse_session_store_errors_total",
		Help: "Session store calls that failed, by operation.",
	}, []string{"operation"})
	sessionCommands = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "gatehouse_session_commands_total",
		Help: "Session commands of backends, by command and result (done, refused).",
	}, []string{"command", "result"})
	sessionsStarted = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "gatehouse_sessions_started_total",
		Help: "Sessions started.",
	})
	sessionsEnded = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "gatehouse_sessions_ended_total",
		Help: "Sessions ended, by reason.",
	}, []string{"reason"})

	limitDecisions = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "gatehouse_limit_decisions_total",
		Help: "Decisions of client_rate_limit, by zone and result.",
	}, []string{"zone", "result"})
	limitRemembered = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "gatehouse_limit_remembered_refusals_total",
		Help: "Refusals that were remembered and saved a call of the store, by zone.",
	}, []string{"zone"})
	limitStoreSeconds = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "gatehouse_limit_store_seconds",
		Help:    "Time of limit store calls in seconds.",
		Buckets: storeBuckets,
	})
	limitStoreErrors = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "gatehouse_limit_store_errors_total",
		Help: "Limit store calls that failed.",
	})
	limitBreakerOpen = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "gatehouse_limit_breaker_open",
		Help: "1 while the limit store is given up and only probed, else 0.",
	})

	redisMayEvict = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "gatehouse_redis_may_evict",
		Help: "1 while a Redis server's maxmemory-policy lets it evict keys, else 0, by server.",
	}, []string{"server"})

	uploadEvents = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "gatehouse_upload_events_total",
		Help: "What happened to uploads, by event.",
	}, []string{"event"})
	uploadBytes = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "gatehouse_upload_received_bytes_total",
		Help: "Bytes of uploads received and made durable.",
	})
	uploadDeliverySeconds = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "gatehouse_upload_delivery_seconds",
		Help:    "Time of deliveries to backends in seconds.",
		Buckets: []float64{0.01, 0.05, 0.1, 0.5, 1, 5, 15, 60, 300, 1800},
	})
)

var storeBuckets = []float64{0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1}

// registerMetrics registers the collectors with a configuration's registry.
func registerMetrics(registry *prometheus.Registry) error {
	if registry == nil {
		return nil
	}
	for _, c := range []prometheus.Collector{
		sessionDecisions, sessionStoreSeconds, sessionStoreErrors, sessionCommands, sessionsStarted, sessionsEnded,
		limitDecisions, limitRemembered, limitStoreSeconds, limitStoreErrors, limitBreakerOpen,
		redisMayEvict, uploadEvents, uploadBytes, uploadDeliverySeconds,
	} {
		if err := registry.Register(c); err != nil {
			if _, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); !ok {
				return err
			}
		}
	}
	return nil
}

// sessionObserver counts what session_auth does, and emits its events.
type sessionObserver struct {
	app      *App
	outcomes []prometheus.Counter // by outcome, so that a request pays no look-up
}

func newSessionObserver(app *App) *sessionObserver {
	o := &sessionObserver{app: app}
	for outcome := sessionauth.Outcome(0); outcome.String() != "unknown"; outcome++ {
		o.outcomes = append(o.outcomes, sessionDecisions.WithLabelValues(outcome.String()))
	}
	return o
}

func (o *sessionObserver) Decided(outcome sessionauth.Outcome) {
	if int(outcome) < len(o.outcomes) {
		o.outcomes[outcome].Inc()
	}
}

func (o *sessionObserver) StoreAsked(operation string, took time.Duration, err error) {
	sessionStoreSeconds.WithLabelValues(operation).Observe(took.Seconds())
	if err != nil {
		sessionStoreErrors.WithLabelValues(operation).Inc()
	}
}

func (o *sessionObserver) Commanded(command string, refused bool) {
	result := "done"
	if refused {
		result = "refused"
	}
	if command == "" {
		command = "bad"
	}
	sessionCommands.WithLabelValues(command, result).Inc()
}

func (o *sessionObserver) SessionStarted(site, user, id string) {
	sessionsStarted.Inc()
	o.app.emit("session_started", map[string]any{"site": site, "user": user, "session": id})
}

func (o *sessionObserver) SessionEnded(site, user, id string, reason sessionauth.EndReason) {
	sessionsEnded.WithLabelValues(string(reason)).Inc()
	o.app.emit("session_ended", map[string]any{"site": site, "user": user, "session": id, "reason": string(reason)})
}

// limitObserver counts what client_rate_limit does.
type limitObserver struct {
	admitted map[string]prometheus.Counter // by zone, for the common result
}

func newLimitObserver(zones []*LimitZone) *limitObserver {
	o := &limitObserver{admitted: make(map[string]prometheus.Counter)}
	for _, zone := range zones {
		o.admitted[zone.Name] = limitDecisions.WithLabelValues(zone.Name, string(ratelimit.Admitted))
	}
	return o
}

func (o *limitObserver) Decided(zone string, result ratelimit.Result) {
	if result == ratelimit.Admitted {
		if c := o.admitted[zone]; c != nil {
			c.Inc()
			return
		}
	}
	limitDecisions.WithLabelValues(zone, string(result)).Inc()
}

func (o *limitObserver) DenialCacheHit(zone string) { limitRemembered.WithLabelValues(zone).Inc() }

func (o *limitObserver) StoreAnswered(took time.Duration, err error) {
	limitStoreSeconds.Observe(took.Seconds())
	if err != nil {
		limitStoreErrors.Inc()
	}
}

func (o *limitObserver) BreakerChanged(open bool) {
	if open {
		limitBreakerOpen.Set(1)
		return
	}
	limitBreakerOpen.Set(0)
}

// uploadObserver counts what chunked_upload does, and emits its events.
type uploadObserver struct{ app *App }

func (o *uploadObserver) ObserveUpload(_ context.Context, e chunkedupload.Event) {
	uploadEvents.WithLabelValues(string(e.Kind)).Inc()
	switch e.Kind {
	case chunkedupload.EventReceived:
		uploadBytes.Add(float64(e.Bytes))
	case chunkedupload.EventCompleted, chunkedupload.EventInterrupted:
		uploadDeliverySeconds.Observe(e.Duration.Seconds())
		data := map[string]any{"site": e.Site, "user": e.Owner, "protocol": e.Protocol, "length": e.Bytes, "status": e.Status}
		if e.Owner != "" { // without an owner the id is all that it takes to use the upload
			data["id"] = e.ID
		}
		o.app.emit("upload_"+string(e.Kind), data)
	}
}

// emitLimitExceeded tells of a refusal. Events are for operators to act on, and
// name no client: the request's own fields are in the access log.
func (a *App) emitLimitExceeded(site string, refused *ratelimit.Refused) {
	a.emit("limit_exceeded", map[string]any{"site": site, "zone": refused.Zone})
}

var (
	_ sessionauth.Observer   = (*sessionObserver)(nil)
	_ ratelimit.Observer     = (*limitObserver)(nil)
	_ chunkedupload.Observer = (*uploadObserver)(nil)
)
