package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gatehouse-gateway/gatehouse/internal/pgconn"
	"github.com/gatehouse-gateway/gatehouse/internal/servers"
	"github.com/gatehouse-gateway/gatehouse/shortlived"
	"github.com/gatehouse-gateway/gatehouse/shortlived/storetest"
)

var server *servers.Postgres

func TestMain(m *testing.M) {
	servers.Main(m, func(dir string) (stop func(), err error) {
		server, err = servers.NewPostgres(dir, "-c", "max_connections=200")
		return server.Stop, err
	})
}

// patience is the timeout of connections to a server that should answer, on a
// machine that may be busy.
const patience = 5 * time.Second

var tables atomic.Int64

// newTable returns a name that no other test has. It needs its quotes.
func newTable() string { return fmt.Sprintf(`Test "%d`, tables.Add(1)) }

// quoted is a name as SQL has it.
func quoted(t testing.TB, table string) string {
	t.Helper()
	name, err := splitName(table)
	if err != nil {
		t.Fatal(err)
	}
	return name.Sanitize()
}

func connect(t testing.TB, o pgconn.Options) *pgconn.Conn {
	t.Helper()
	if o.URL == "" {
		o.URL = server.DSN()
	}
	if o.Timeout == 0 {
		o.Timeout = patience
	}
	conn, err := pgconn.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	return conn
}

// open makes a store that is cleaned by hand only.
func open(t testing.TB, table string, o pgconn.Options) (*Store, *pgconn.Conn) {
	t.Helper()
	conn := connect(t, o)
	s, err := New(Options{Conn: conn, Table: table, CleanEvery: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s, conn
}

// through is the server's URL by way of a proxy.
func through(p *servers.Proxy) string { return strings.Replace(server.DSN(), server.Addr, p.Addr, 1) }

func TestConformance(t *testing.T) {
	storetest.Run(t, func(t *testing.T) []shortlived.Store {
		table := newTable()
		a, _ := open(t, table, pgconn.Options{})
		b, _ := open(t, table, pgconn.Options{})
		return []shortlived.Store{a, b}
	})
}

func TestLostReplies(t *testing.T) {
	storetest.RunLost(t, func(t *testing.T) storetest.Flaky {
		table, p := newTable(), servers.StartProxy(t, server.Addr)
		direct, _ := open(t, table, pgconn.Options{})
		lossy, _ := open(t, table, pgconn.Options{URL: through(p), PoolSize: 1})
		return storetest.Flaky{
			Direct: direct, Lossy: lossy, Down: p.Down,
			LoseNextReply: func() {
				// The connection is made and the table is there, so the next
				// thing the server says is the reply.
				if _, err := lossy.Get(t.Context(), "warm"); !errors.Is(err, shortlived.ErrNotFound) {
					t.Fatalf("warming up: %v", err)
				}
				p.LoseNext()
			},
		}
	})
}

// TestLateReplyIsNobodys delays a reply beyond the timeout and lets it through
// afterwards: it must not be taken for the reply of a later statement.
func TestLateReplyIsNobodys(t *testing.T) {
	p := servers.StartProxy(t, server.Addr)
	s, _ := open(t, newTable(), pgconn.Options{URL: through(p), Timeout: 300 * time.Millisecond, PoolSize: 1})
	await(t, "a connection", func() bool {
		_, err := s.TryAdd(t.Context(), "one", []byte("1st"), time.Hour)
		return err == nil
	})
	p.Hold(true)
	begin := time.Now()
	v, err := s.Get(t.Context(), "one")
	if !errors.Is(err, pgconn.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Get without a reply: got %q, %v, want unavailable", v, err)
	}
	if took := time.Since(begin); took > patience {
		t.Errorf("Get without a reply took %v", took)
	}
	p.Hold(false)
	await(t, "an answer", func() bool {
		v, err := s.Get(t.Context(), "two")
		if err == nil {
			t.Fatalf("Get of what is absent: got the other key's %q", v)
		}
		return errors.Is(err, shortlived.ErrNotFound)
	})
}

func TestFirstUseByManyStoresAtOnce(t *testing.T) {
	for range 5 {
		table := newTable()
		var stores []*Store
		for range 8 {
			s, _ := open(t, table, pgconn.Options{PoolSize: 2})
			stores = append(stores, s)
		}
		var wg sync.WaitGroup
		start := make(chan struct{})
		for _, s := range stores {
			for range 2 {
				wg.Go(func() {
					<-start
					if _, err := s.Increment(t.Context(), "n", 1, time.Hour); err != nil {
						t.Errorf("first use: %v", err)
					}
				})
			}
		}
		close(start)
		wg.Wait()
		if v, err := stores[0].Get(t.Context(), "n"); err != nil || string(v) != "16" {
			t.Errorf("got %q, %v, want 16", v, err)
		}
	}
}

func TestRestartUnderLoad(t *testing.T) {
	own := servers.StartPostgres(t)
	s, _ := open(t, "", pgconn.Options{URL: own.DSN(), Timeout: time.Second})
	if _, err := s.Increment(t.Context(), "n", 1, time.Hour); err != nil {
		t.Fatal(err)
	}
	var counted, failed, unsure atomic.Int64
	counted.Store(1)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for last := int64(0); ; {
				select {
				case <-stop:
					return
				default:
				}
				n, err := s.Increment(t.Context(), "n", 1, time.Hour)
				switch {
				case err == nil && n > last:
					last = n
					counted.Add(1)
				case err == nil:
					t.Errorf("got the count %d after %d", n, last)
				case !errors.Is(err, pgconn.ErrUnavailable):
					t.Errorf("got %v, want unavailable", err)
				default:
					failed.Add(1)
					unsure.Add(1)
				}
			}
		})
	}
	await(t, "load", func() bool { return counted.Load() > 50 })
	own.Kill()
	await(t, "errors", func() bool { return failed.Load() > 20 })
	if err := own.Start(); err != nil {
		t.Fatal(err)
	}
	back := counted.Load()
	await(t, "recovery", func() bool { return counted.Load() > back+50 })
	close(stop)
	wg.Wait()
	n, err := s.Increment(t.Context(), "n", 0, time.Hour)
	if err != nil || n < counted.Load() || n > counted.Load()+unsure.Load() {
		t.Errorf("got the count %d, %v, want %d to %d", n, err, counted.Load(), counted.Load()+unsure.Load())
	}
}

// TestCleanersSpareWhatIsRenewed lets two clean while others renew rows that
// have just expired or are about to.
func TestCleanersSpareWhatIsRenewed(t *testing.T) {
	table := newTable()
	a, conn := open(t, table, pgconn.Options{})
	b, _ := open(t, table, pgconn.Options{})
	if _, err := a.Increment(t.Context(), "first", 1, time.Millisecond); err != nil {
		t.Fatal(err)
	}
	const rows = 4000
	_, err := conn.Exec(t.Context(), `INSERT INTO `+quoted(t, table)+`
		SELECT convert_to('k' || i, 'UTF8'), '5', now() - interval '1 minute' FROM generate_series(1, $1::bigint) i`, int64(rows))
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var deleted, renewed atomic.Int64
	start := make(chan struct{})
	for _, s := range []*Store{a, b} {
		wg.Go(func() {
			<-start
			n, err := s.Cleanup(t.Context())
			if err != nil {
				t.Errorf("Cleanup: %v", err)
			}
			deleted.Add(n)
		})
	}
	for worker := range 4 {
		wg.Go(func() {
			<-start
			for i := rows - worker*7; i > 0; i -= 28 {
				key := fmt.Sprint("k", i)
				if n, err := b.Increment(t.Context(), key, 1, time.Hour); err != nil || n != 1 {
					t.Errorf("renewing %s: got %d, %v, want 1", key, n, err)
				}
				renewed.Add(1)
			}
		})
	}
	close(start)
	wg.Wait()
	for range 2 { // what was held while the others passed
		n, err := a.Cleanup(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		deleted.Add(n)
	}
	var left int64
	if _, err := conn.QueryRow(t.Context(), []any{&left}, `SELECT count(*) FROM `+quoted(t, table)+` WHERE value = '1' AND expires > now()`); err != nil {
		t.Fatal(err)
	}
	if left != renewed.Load() {
		t.Errorf("%d rows were renewed and %d are left", renewed.Load(), left)
	}
	if d := deleted.Load(); d < rows+1-renewed.Load() || d > rows+1 {
		t.Errorf("got %d rows deleted of %d with %d renewed", d, rows+1, renewed.Load())
	}
}

// TestCleanupPassesOverHeldRows holds an expired row in a transaction.
func TestCleanupPassesOverHeldRows(t *testing.T) {
	table := newTable()
	s, conn := open(t, table, pgconn.Options{})
	for _, key := range []string{"held", "free"} {
		if _, err := s.TryAdd(t.Context(), key, []byte("v"), time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
	awaitAbsent(t, s, "free")
	awaitAbsent(t, s, "held")
	holding := make(chan error, 1)
	ctx, release := context.WithCancel(t.Context())
	go func() {
		holding <- conn.Script(ctx, `SELECT FROM `+quoted(t, table)+` WHERE key = 'held' FOR UPDATE; SELECT pg_sleep(60)`)
	}()
	await(t, "the row to be held", func() bool {
		var held int64
		_, err := conn.QueryRow(t.Context(), []any{&held}, `SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'`)
		return err == nil && held == 1
	})
	if n, err := s.Cleanup(t.Context()); err != nil || n != 1 {
		t.Errorf("got %d rows deleted, %v, want the free one", n, err)
	}
	release()
	<-holding
	await(t, "the held row to go", func() bool {
		n, err := s.Cleanup(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return n == 1
	})
}

func TestTheCleanerRunsByItself(t *testing.T) {
	table := newTable()
	conn := connect(t, pgconn.Options{})
	s, err := New(Options{Conn: conn, Table: table, CleanEvery: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.TryAdd(t.Context(), "brief", nil, time.Millisecond); err != nil {
		t.Fatal(err)
	}
	await(t, "the row to go", func() bool {
		var rows int64
		_, err := conn.QueryRow(t.Context(), []any{&rows}, `SELECT count(*) FROM `+quoted(t, table))
		return err == nil && rows == 0
	})
	if err := errors.Join(s.Close(), s.Close()); err != nil {
		t.Errorf("Close: %v", err)
	}
}

func TestCleanupWithoutATable(t *testing.T) {
	s, _ := open(t, newTable(), pgconn.Options{})
	if n, err := s.Cleanup(t.Context()); n != 0 || err != nil {
		t.Errorf("got %d, %v", n, err)
	}
}

// role makes a user who may log in and no more, and returns the user's name and
// URL.
func role(t *testing.T, admin *pgconn.Conn) (name, url string) {
	t.Helper()
	name = fmt.Sprint("role", tables.Add(1))
	if err := admin.Script(t.Context(), `CREATE ROLE `+name+` LOGIN`); err != nil {
		t.Fatal(err)
	}
	return name, server.UserDSN(name, "secret-password")
}

func TestAUserWithoutTheRightToCreate(t *testing.T) {
	admin, table := connect(t, pgconn.Options{}), newTable()
	user, dsn := role(t, admin)
	s, _ := open(t, table, pgconn.Options{URL: dsn})
	_, err := s.TryAdd(t.Context(), "k", []byte("v"), time.Hour)
	schema, schemaErr := Schema(table)
	if schemaErr != nil {
		t.Fatal(schemaErr)
	}
	if !errors.Is(err, pgconn.ErrPermission) || !strings.Contains(err.Error(), schema) {
		t.Fatalf("without the table: got %v, want an error that names the SQL", err)
	}
	if strings.Contains(err.Error(), "secret") {
		t.Errorf("the error holds the password: %v", err)
	}
	if _, again := s.Get(t.Context(), "k"); !errors.Is(again, pgconn.ErrPermission) {
		t.Errorf("again: got %v", again)
	}
	if err := admin.Script(t.Context(), schema); err != nil {
		t.Fatalf("the schema as printed: %v", err)
	}
	if _, err := s.Get(t.Context(), "k"); !errors.Is(err, pgconn.ErrPermission) || errors.Is(err, shortlived.ErrNotFound) {
		t.Errorf("without rights on the table: got %v, want ErrPermission", err)
	}
	if err := admin.Script(t.Context(), `GRANT SELECT, INSERT, UPDATE, DELETE ON `+quoted(t, table)+` TO `+user); err != nil {
		t.Fatal(err)
	}
	if added, err := s.TryAdd(t.Context(), "k", []byte("v"), time.Hour); err != nil || !added {
		t.Errorf("with the table: got %v, %v", added, err)
	}
	if n, err := s.Increment(t.Context(), "n", 1, time.Hour); err != nil || n != 1 {
		t.Errorf("Increment: got %v, %v", n, err)
	}
	if _, err := s.Cleanup(t.Context()); err != nil {
		t.Errorf("Cleanup: %v", err)
	}
}

func TestASchemaOfItsOwn(t *testing.T) {
	admin, schema := connect(t, pgconn.Options{}), newTable()
	table := schema + "." + strings.Repeat("t", 63)
	s, _ := open(t, table, pgconn.Options{})
	if _, err := s.Get(t.Context(), "k"); err == nil || errors.Is(err, shortlived.ErrNotFound) || pgconn.Code(err) != pgconn.CodeInvalidSchema {
		t.Errorf("without the schema: got %v", err)
	}
	if err := admin.Script(t.Context(), `CREATE SCHEMA `+quoted(t, schema)); err != nil {
		t.Fatal(err)
	}
	s, _ = open(t, table, pgconn.Options{})
	if added, err := s.TryAdd(t.Context(), "k", nil, time.Hour); err != nil || !added {
		t.Errorf("with the schema: got %v, %v", added, err)
	}
}

func TestReadOnly(t *testing.T) {
	admin, table := connect(t, pgconn.Options{}), newTable()
	user, dsn := role(t, admin)
	if err := admin.Script(t.Context(), `GRANT pg_write_all_data, pg_read_all_data TO `+user); err != nil {
		t.Fatal(err)
	}
	owner, _ := open(t, table, pgconn.Options{})
	if _, err := owner.TryAdd(t.Context(), "k", []byte("v"), time.Hour); err != nil {
		t.Fatal(err)
	}
	s, conn := open(t, table, pgconn.Options{URL: dsn, PoolSize: 1})
	if v, err := s.Get(t.Context(), "k"); err != nil || string(v) != "v" {
		t.Fatalf("got %q, %v", v, err)
	}
	// The one connection turns read-only, then the whole role does.
	if err := conn.Script(t.Context(), `SET default_transaction_read_only = on`); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Take(t.Context(), "k"); !errors.Is(err, pgconn.ErrReadOnly) || !pgconn.Unavailable(err) {
		t.Errorf("Take: got %v, want ErrReadOnly", err)
	}
	if n, err := s.Increment(t.Context(), "n", 1, time.Hour); err != nil || n != 1 {
		t.Errorf("after another connection was made: got %d, %v", n, err)
	}
	if err := admin.Script(t.Context(), `ALTER ROLE `+user+` SET default_transaction_read_only = on`); err != nil {
		t.Fatal(err)
	}
	s, _ = open(t, table, pgconn.Options{URL: dsn})
	_, getErr := s.Get(t.Context(), "k")
	_, addErr := s.TryAdd(t.Context(), "k", nil, time.Hour)
	for _, err := range []error{getErr, addErr} {
		if !errors.Is(err, pgconn.ErrReadOnly) || strings.Contains(err.Error(), "secret") {
			t.Errorf("at a read-only server: got %v, want ErrReadOnly", err)
		}
	}
}

// TestUnreadableValuesAreAbsent puts values there that another version, or
// another program, might write.
func TestUnreadableValuesAreAbsent(t *testing.T) {
	table := newTable()
	conn := connect(t, pgconn.Options{})
	for i, stored := range []string{"B2", "B", "", "\x00", "text", "007", "1.5", "-", "-0", "1\n", "9223372036854775808", "99999999999999999999"} {
		t.Run(fmt.Sprintf("%q", stored), func(t *testing.T) {
			var log bytes.Buffer
			s, err := New(Options{Conn: conn, Table: table, CleanEvery: -1, Logger: slog.New(slog.NewTextHandler(&log, nil))})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			key := fmt.Sprint("secret-key-", i)
			put := func() {
				t.Helper()
				if err := s.Remove(t.Context(), key); err != nil { // creates the table
					t.Fatal(err)
				}
				if _, err := conn.Exec(t.Context(), `INSERT INTO `+quoted(t, table)+` VALUES ($1, $2, now() + interval '1 hour')`, []byte(key), []byte(stored)); err != nil {
					t.Fatal(err)
				}
			}
			put()
			if v, err := s.Get(t.Context(), key); !errors.Is(err, shortlived.ErrNotFound) || v != nil {
				t.Errorf("Get: got %q, %v, want ErrNotFound", v, err)
			}
			if added, err := s.TryAdd(t.Context(), key, []byte("new"), time.Hour); err != nil || !added {
				t.Errorf("TryAdd: got %v, %v, want true", added, err)
			}
			if v, err := s.Take(t.Context(), key); err != nil || string(v) != "new" {
				t.Errorf("Take of what was added: got %q, %v", v, err)
			}
			put()
			if n, err := s.Increment(t.Context(), key, 3, time.Minute); err != nil || n != 3 {
				t.Errorf("Increment: got %d, %v, want 3", n, err)
			}
			put()
			if v, err := s.Take(t.Context(), key); !errors.Is(err, shortlived.ErrNotFound) || v != nil {
				t.Errorf("Take: got %q, %v, want ErrNotFound", v, err)
			}
			if got := strings.Count(log.String(), "level=WARN"); got != 4 || s.Unreadable() != 4 {
				t.Errorf("got %d warnings and a count of %d, want 4:\n%s", got, s.Unreadable(), &log)
			}
			if strings.Contains(log.String(), "secret-key") {
				t.Errorf("the log names the key:\n%s", &log)
			}
		})
	}
}

// TestNothingIsKeptInTheSession looks for named statements, which a server
// session behind PgBouncer would not have, and for one transaction an
// operation.
func TestNothingIsKeptInTheSession(t *testing.T) {
	s, conn := open(t, newTable(), pgconn.Options{PoolSize: 1, ApplicationName: "gatehouse test"})
	for range 3 {
		_, addErr := s.TryAdd(t.Context(), "k", []byte("v"), time.Hour)
		_, getErr := s.Get(t.Context(), "k")
		_, incErr := s.Increment(t.Context(), "n", 1, time.Hour)
		_, takeErr := s.Take(t.Context(), "k")
		if err := errors.Join(addErr, getErr, incErr, takeErr, s.Remove(t.Context(), "n")); err != nil {
			t.Fatal(err)
		}
	}
	var statements int64
	var name string
	if _, err := conn.QueryRow(t.Context(), []any{&statements, &name}, `SELECT (SELECT count(*) FROM pg_prepared_statements), current_setting('application_name')`); err != nil {
		t.Fatal(err)
	}
	if statements != 0 || name != "gatehouse test" {
		t.Errorf("got %d prepared statements and the name %q", statements, name)
	}
}

// TestCleanupUsesTheIndex asks how the clean-up finds its rows.
func TestCleanupUsesTheIndex(t *testing.T) {
	table := newTable()
	s, conn := open(t, table, pgconn.Options{PoolSize: 1})
	if err := s.Remove(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
	var plan []byte
	if err := conn.Script(t.Context(), `SET enable_seqscan = off`); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.QueryRow(t.Context(), []any{&plan}, `EXPLAIN (FORMAT JSON) `+s.sql.cleanup); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(plan), "_expires") || strings.Contains(string(plan), "Seq Scan") {
		t.Errorf("the clean-up does not use the index:\n%s", plan)
	}
}

func TestTableNames(t *testing.T) {
	for name, want := range map[string]string{
		"":               `"gatehouse_short_lived"`,
		"t":              `"t"`,
		"Schema.T":       `"Schema"."T"`,
		`x"; DROP TABLE`: `"x""; DROP TABLE"`,
	} {
		sql, err := Schema(name)
		if err != nil || !strings.Contains(sql, "CREATE TABLE IF NOT EXISTS "+want+" (") || !strings.Contains(sql, " ON "+want+" (expires)") {
			t.Errorf("%q: got %v, %s", name, err, sql)
		}
	}
	for _, name := range []string{".", "a.", ".b", "a.b.c", strings.Repeat("x", 64), "\xff", "a\x00"} {
		if sql, err := Schema(name); err == nil || sql != "" {
			t.Errorf("%q: got no error", name)
		}
		if _, err := New(Options{Table: name}); err == nil {
			t.Errorf("New with %q: got no error", name)
		}
	}
}

func TestErrorsNameNoKeysOrValues(t *testing.T) {
	dsn := url.URL{Scheme: "postgres", User: url.UserPassword("u", "secret-password"), Host: fmt.Sprint("127.0.0.1:", servers.FreePort(t)), Path: "/db"}
	s, _ := open(t, "", pgconn.Options{URL: dsn.String(), Timeout: 250 * time.Millisecond})
	_, addErr := s.TryAdd(t.Context(), "secret-key", []byte("secret-value"), time.Hour)
	_, getErr := s.Get(t.Context(), "secret-key")
	for _, err := range []error{addErr, getErr} {
		if !errors.Is(err, pgconn.ErrUnavailable) || strings.Contains(err.Error(), "secret") {
			t.Errorf("got %v, want an error without the key and value", err)
		}
	}
}

// TestLimitsWithRandomBytes stores the longest key and value, which cannot be
// compressed on their way into the index and the table.
func TestLimitsWithRandomBytes(t *testing.T) {
	s, _ := open(t, newTable(), pgconn.Options{})
	var seed [32]byte
	random := rand.NewChaCha8(seed)
	key, value := make([]byte, shortlived.MaxKey), make([]byte, shortlived.MaxValue)
	_, _ = random.Read(key)
	_, _ = random.Read(value)
	if added, err := s.TryAdd(t.Context(), string(key), value, time.Hour); err != nil || !added {
		t.Fatalf("TryAdd: got %v, %v", added, err)
	}
	if _, err := s.Increment(t.Context(), string(key), 1, time.Hour); !errors.Is(err, shortlived.ErrNotCounter) {
		t.Errorf("Increment: got %v, want ErrNotCounter", err)
	}
	if v, err := s.Take(t.Context(), string(key)); err != nil || !bytes.Equal(v, value) {
		t.Errorf("Take: got %d bytes, %v", len(v), err)
	}
	if _, err := s.TryAdd(t.Context(), string(key)+"k", nil, time.Hour); !errors.Is(err, shortlived.ErrInvalid) {
		t.Errorf("too long a key: got %v", err)
	}
	if _, err := s.TryAdd(t.Context(), "k", append(value, 0), time.Hour); !errors.Is(err, shortlived.ErrInvalid) {
		t.Errorf("too long a value: got %v", err)
	}
}

func TestFullDiskIsFull(t *testing.T) {
	full := fault("adding", &pgconn.Error{Kind: pgconn.ErrDiskFull, Code: "53100"})
	if !errors.Is(full, shortlived.ErrFull) || !errors.Is(full, pgconn.ErrDiskFull) {
		t.Errorf("got %v, want ErrFull", full)
	}
	if err := fault("adding", &pgconn.Error{Kind: pgconn.ErrUnavailable}); errors.Is(err, shortlived.ErrFull) {
		t.Errorf("got %v, want no ErrFull", err)
	}
}

func awaitAbsent(t *testing.T, s *Store, key string) {
	t.Helper()
	await(t, key+" to expire", func() bool {
		_, err := s.Get(t.Context(), key)
		return errors.Is(err, shortlived.ErrNotFound)
	})
}

// await polls until the condition holds.
func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(20 * time.Second); !done(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

func BenchmarkIncrementOneKey(b *testing.B) {
	s, _ := open(b, newTable(), pgconn.Options{})
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Increment(b.Context(), "key", 1, time.Minute); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAddGetTake(b *testing.B) {
	s, _ := open(b, newTable(), pgconn.Options{})
	value := make([]byte, 200)
	b.ReportAllocs()
	for b.Loop() {
		_, _ = s.TryAdd(b.Context(), "key", value, time.Minute)
		_, _ = s.Get(b.Context(), "key")
		if _, err := s.Take(b.Context(), "key"); err != nil {
			b.Fatal(err)
		}
	}
}
