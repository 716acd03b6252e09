package caddymodule

import (
	"context"
	"log/slog"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap/exp/zapslog"
)

// processLogger logs for what outlives a configuration: each record goes to
// the logger of the configuration that runs when it is written.
func processLogger(module caddy.Module) *slog.Logger {
	return slog.New(processHandler{name: string(module.CaddyModule().ID)})
}

type processHandler struct {
	name string
	with []func(slog.Handler) slog.Handler // attributes and groups, in order
}

func (h processHandler) handler() slog.Handler {
	var current slog.Handler = zapslog.NewHandler(caddy.Log().Core(), zapslog.WithName(h.name), zapslog.AddStacktraceAt(slog.Level(127)))
	for _, add := range h.with {
		current = add(current)
	}
	return current
}

func (h processHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.handler().Enabled(ctx, level)
}

func (h processHandler) Handle(ctx context.Context, record slog.Record) error {
	return h.handler().Handle(ctx, record)
}

func (h processHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return h.plus(func(inner slog.Handler) slog.Handler { return inner.WithAttrs(attrs) })
}

func (h processHandler) WithGroup(name string) slog.Handler {
	return h.plus(func(inner slog.Handler) slog.Handler { return inner.WithGroup(name) })
}

func (h processHandler) plus(add func(slog.Handler) slog.Handler) slog.Handler {
	h.with = append(append([]func(slog.Handler) slog.Handler{}, h.with...), add)
	return h
}

// featureLogger is the logger that a feature gets. Caddy's own adds a stack
// trace to every error that is logged in a request's context; the features log
// faults of stores and backends, where a trace of this process tells nothing.
func featureLogger(ctx caddy.Context) *slog.Logger {
	return slog.New(outOfContext{ctx.Slogger().Handler()})
}

// outOfContext logs without the request's context.
type outOfContext struct{ slog.Handler }

func (h outOfContext) Handle(_ context.Context, record slog.Record) error {
	return h.Handler.Handle(context.Background(), record)
}

func (h outOfContext) WithAttrs(attrs []slog.Attr) slog.Handler {
	return outOfContext{h.Handler.WithAttrs(attrs)}
}

func (h outOfContext) WithGroup(name string) slog.Handler {
	return outOfContext{h.Handler.WithGroup(name)}
}

var (
	_ slog.Handler = processHandler{}
	_ slog.Handler = outOfContext{}
)
