package caddymodule

import (
	"context"
	"log/slog"
	"time"

	"github.com/gatehouse-gateway/gatehouse/internal/redisconn"
)

// policyEvery is how often a Redis is asked whether it may evict keys: it can
// be told to at any time.
const policyEvery = time.Minute

// policyWatch warns of a Redis that may evict keys.
type policyWatch struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// watchPolicy asks the server now and then, until stop. A server that is away
// is asked again soon; one that gives no right to ask is left alone.
func watchPolicy(conn *redisconn.Conn, server string, log *slog.Logger) *policyWatch {
	ctx, cancel := context.WithCancel(context.Background())
	w := &policyWatch{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		defer redisMayEvict.DeleteLabelValues(server)
		known := ""
		for {
			wait := policyEvery
			policy, err := conn.EvictionPolicy(ctx)
			switch {
			case err == nil:
				notePolicy(server, policy, policy != known, log)
				known = policy
			case redisconn.IsForbidden(err):
				log.Warn("redis: the user may not ask for INFO: whether the server may evict keys is not known", "server", server)
				return
			case known == "":
				wait = time.Second
			}
			select {
			case <-time.After(wait):
			case <-ctx.Done():
				return
			}
		}
	}()
	return w
}

func notePolicy(server, policy string, news bool, log *slog.Logger) {
	if !redisconn.MayEvict(policy) {
		redisMayEvict.WithLabelValues(server).Set(0)
		return
	}
	redisMayEvict.WithLabelValues(server).Set(1)
	if !news {
		return
	}
	log.Warn("redis: the server may evict keys when its memory is full, and would forget sessions and limits then: set maxmemory-policy noeviction",
		"server", server, "maxmemory_policy", policy)
}

// stop ends the watch; nil stands for one that never began.
func (w *policyWatch) stop() error {
	if w != nil {
		w.cancel()
		<-w.done
	}
	return nil
}
