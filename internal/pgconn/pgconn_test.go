package pgconn

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/goleak"

	"github.com/gatehouse-gateway/gatehouse/internal/servers"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t *testing.T, o Options) *Conn {
	t.Helper()
	c, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestClassify(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	late, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	for _, c := range []struct {
		name string
		ctx  context.Context
		err  error
		kind error
		also error
		text string
	}{
		{"refused", t.Context(), &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, ErrUnavailable, nil, "connection refused"},
		{"cut", t.Context(), io.ErrUnexpectedEOF, ErrUnavailable, nil, "lost"},
		{"name", t.Context(), &net.DNSError{Name: "secret", IsNotFound: true}, ErrUnavailable, nil, "name is unknown"},
		{"late", late, errors.New("secret"), ErrUnavailable, context.DeadlineExceeded, "no answer in time"},
		{"cancelled", ended, errors.New("secret"), ErrUnavailable, context.Canceled, "gave up"},
		{"replica when connecting", t.Context(), fmt.Errorf("x: %w", pgconn.ErrReadOnlyConnection), ErrReadOnly, nil, "no writes"},
		{"replica", t.Context(), &pgconn.PgError{Code: "25006"}, ErrReadOnly, nil, "no writes"},
		{"right", t.Context(), &pgconn.PgError{Code: "42501", Message: "secret"}, ErrPermission, nil, "lacks a right"},
		{"password", t.Context(), &pgconn.PgError{Code: "28P01", Message: "secret"}, ErrPermission, nil, "password"},
		{"disk", t.Context(), &pgconn.PgError{Code: "53100"}, ErrDiskFull, nil, "disk is full"},
		{"connections", t.Context(), &pgconn.PgError{Code: "53300"}, ErrUnavailable, nil, "too many connections"},
		{"memory", t.Context(), &pgconn.PgError{Code: "53200"}, ErrUnavailable, nil, "resources"},
		{"starting", t.Context(), &pgconn.PgError{Code: "57P03"}, ErrUnavailable, nil, "starting up"},
		{"shutting down", t.Context(), &pgconn.PgError{Code: "57P01"}, ErrUnavailable, nil, "shutting down"},
		{"statement timeout", t.Context(), &pgconn.PgError{Code: "57014"}, ErrUnavailable, nil, "timeouts"},
		{"lock timeout", t.Context(), &pgconn.PgError{Code: "55P03"}, ErrUnavailable, nil, "timeouts"},
		{"pgbouncer", t.Context(), &pgconn.PgError{Code: "08P01"}, ErrUnavailable, nil, "connection failed"},
		{"serialization", t.Context(), &pgconn.PgError{Code: "40001"}, ErrUnavailable, nil, "rolled back"},
		{"broken", t.Context(), &pgconn.PgError{Code: "XX001"}, ErrUnavailable, nil, "fault of its own"},
		{"table", t.Context(), &pgconn.PgError{Code: CodeUndefinedTable}, nil, nil, "table does not exist"},
		{"database", t.Context(), &pgconn.PgError{Code: "3D000"}, nil, nil, "database does not exist"},
		{"value", t.Context(), &pgconn.PgError{Code: "22P02", Message: "secret"}, nil, nil, "refused the statement"},
		{"no code", t.Context(), &pgconn.PgError{}, nil, nil, "refused the statement"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := Classify(c.ctx, c.err)
			for _, kind := range []error{ErrUnavailable, ErrPermission, ErrDiskFull, ErrReadOnly} {
				if errors.Is(got, kind) != (kind == c.kind) {
					t.Errorf("got %v, want the kind %v", got, c.kind)
				}
			}
			if c.also != nil && !errors.Is(got, c.also) {
				t.Errorf("got %v, want also %v", got, c.also)
			}
			if want := c.kind == ErrUnavailable || c.kind == ErrReadOnly; Unavailable(got) != want {
				t.Errorf("Unavailable: got %v, want %v", !want, want)
			}
			if text := got.Error(); !strings.Contains(text, c.text) || strings.Contains(text, "secret") {
				t.Errorf("got the text %q, want %q in it and no secret", text, c.text)
			}
			if server, ok := errors.AsType[*pgconn.PgError](c.err); ok && Code(fmt.Errorf("x: %w", got)) != server.Code {
				t.Errorf("got the code %q, want %q", Code(got), server.Code)
			}
		})
	}
}

func TestOpenRefuses(t *testing.T) {
	for _, raw := range []string{
		"", "host=h password=secret", "mysql://u:secret@h/db", "postgres://u:secret@h:notaport/db",
		"postgres://u:secret@h/db?sslmode=secret", "postgres://u:secret%zz@h/db", "postgres://u:secret@h/db?pool_max_conns=secret",
	} {
		c, err := Open(Options{URL: raw})
		if err == nil {
			c.Close()
			t.Errorf("%q: got no error", raw)
		} else if strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: the error holds a secret: %v", raw, err)
		}
	}
}

// TestOpenDoesNoIO opens a database where a listener counts who comes.
func TestOpenDoesNoIO(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c := open(t, Options{URL: "postgres://u:p@" + l.Addr().String() + "/db?sslmode=disable&pool_min_conns=3"})
	came := make(chan struct{})
	go func() {
		defer close(came)
		conn, err := l.Accept()
		if err == nil {
			conn.Close()
		}
	}()
	select {
	case <-came:
		t.Error("Open connected")
	case <-time.After(100 * time.Millisecond):
	}
	if err := c.Ping(t.Context()); !errors.Is(err, ErrUnavailable) {
		t.Errorf("got %v, want unavailable", err)
	}
	<-came
	if c.Timeout() != DefaultTimeout {
		t.Errorf("got the timeout %v", c.Timeout())
	}
}

func TestPoolSize(t *testing.T) {
	for _, c := range []struct {
		o    Options
		want int32
	}{
		{Options{URL: "postgres://h/db"}, defaultPoolSize},
		{Options{URL: "postgres://a:1,b:2/db?pool_max_conns=3"}, 3},
		{Options{URL: "postgres://h/db?pool_max_conns=3", PoolSize: 7}, 7},
	} {
		if got := open(t, c.o).pool.Config().MaxConns; got != c.want {
			t.Errorf("%+v: got %d, want %d", c.o, got, c.want)
		}
	}
}

func TestAgainstAServer(t *testing.T) {
	server := servers.StartPostgres(t, "-c", "max_connections=5", "-c", "superuser_reserved_connections=0")
	const patience = 5 * time.Second
	c := open(t, Options{URL: server.DSN(), Timeout: patience, PoolSize: 1})

	t.Run("a statement that takes too long", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		begin := time.Now()
		if _, err := c.Exec(ctx, `SELECT pg_sleep(30)`); !errors.Is(err, ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		if took := time.Since(begin); took > patience {
			t.Errorf("took %v", took)
		}
		if err := c.Ping(t.Context()); err != nil {
			t.Errorf("afterwards: %v", err)
		}
	})
	t.Run("a database that is not there", func(t *testing.T) {
		other := open(t, Options{URL: strings.Replace(server.DSN(), "/postgres?", "/none?", 1), Timeout: patience})
		if err := other.Ping(t.Context()); Code(err) != "3D000" || Unavailable(err) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("a user who is not there", func(t *testing.T) {
		other := open(t, Options{URL: server.UserDSN("nobody", "secret"), Timeout: patience})
		if err := other.Ping(t.Context()); !errors.Is(err, ErrPermission) || strings.Contains(err.Error(), "secret") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("too many connections", func(t *testing.T) {
		many := open(t, Options{URL: server.DSN(), Timeout: patience, PoolSize: 8})
		ctx, release := context.WithCancel(t.Context())
		defer release()
		results := make(chan error, 8)
		for range cap(results) {
			go func() {
				_, err := many.Exec(ctx, `SELECT pg_sleep(30)`)
				results <- err
			}()
		}
		if err := <-results; Code(err) != "53300" || !Unavailable(err) {
			t.Errorf("got %v, want too many connections", err)
		}
		release()
		for range cap(results) - 1 {
			<-results
		}
	})
	t.Run("a server that is shut down in order and comes back", func(t *testing.T) {
		server.Stop()
		for range 3 {
			if err := c.Ping(t.Context()); !errors.Is(err, ErrUnavailable) {
				t.Errorf("got %v, want unavailable", err)
			}
		}
		if err := server.Start(); err != nil {
			t.Fatal(err)
		}
		if err := c.Ping(t.Context()); err != nil {
			t.Errorf("after the start: %v", err)
		}
	})
}
