package servers

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Postgres is a private PostgreSQL server with the superuser "postgres", who
// needs no password.
type Postgres struct {
	Addr string // 127.0.0.1:port

	dir  string
	bin  string
	port int
	args []string
	as   *syscall.Credential
	cmd  *exec.Cmd
	done chan struct{}
}

// StartPostgres starts a PostgreSQL server that ends with the test. Further
// arguments are passed to postgres ("-c", "max_connections=5").
func StartPostgres(t testing.TB, args ...string) *Postgres {
	t.Helper()
	dir, err := os.MkdirTemp("", "gatehouse-postgres-")
	if err != nil {
		t.Fatal(err)
	}
	p, err := NewPostgres(dir, args...)
	if err != nil {
		_ = os.RemoveAll(dir)
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Kill()
		_ = os.RemoveAll(dir)
	})
	return p
}

// NewPostgres makes a database in dir and starts a server on it, for callers
// without a test (TestMain). PostgreSQL refuses to run as root: there it runs
// as the user postgres, who gets dir. The caller calls Stop or Kill.
func NewPostgres(dir string, args ...string) (*Postgres, error) {
	bin, err := postgresPrograms()
	if err != nil {
		return nil, err
	}
	p := &Postgres{dir: dir, bin: bin, args: args}
	if os.Geteuid() == 0 {
		if p.as, err = postgresUser(); err != nil {
			return nil, err
		}
		if err := os.Chown(dir, int(p.as.Uid), int(p.as.Gid)); err != nil {
			return nil, err
		}
	}
	initdb := p.command("initdb", "-D", p.data(), "-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C")
	if out, err := initdb.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("initdb: %w: %s", err, out)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p.port = l.Addr().(*net.TCPAddr).Port
	l.Close()
	p.Addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(p.port))
	return p, p.Start()
}

// postgresPrograms returns the folder of the newest installed server.
func postgresPrograms() (string, error) {
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	if len(found) == 0 {
		if path, err := exec.LookPath("postgres"); err == nil {
			return filepath.Dir(path), nil
		}
		return "", errors.New("postgres is missing: apt-get install postgresql")
	}
	version := func(path string) int {
		n, _ := strconv.Atoi(strings.Split(path, "/")[4])
		return n
	}
	newest := slices.MaxFunc(found, func(a, b string) int { return version(a) - version(b) })
	return filepath.Dir(newest), nil
}

func postgresUser() (*syscall.Credential, error) {
	u, err := user.Lookup("postgres")
	if err != nil {
		return nil, fmt.Errorf("PostgreSQL does not run as root: %w", err)
	}
	uid, uidErr := strconv.ParseUint(u.Uid, 10, 32)
	gid, gidErr := strconv.ParseUint(u.Gid, 10, 32)
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, errors.Join(uidErr, gidErr)
}

func (p *Postgres) data() string { return filepath.Join(p.dir, "data") }

// command prepares one of the server's programs, which ends when this process
// does.
func (p *Postgres) command(program string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(p.bin, program), args...)
	cmd.Dir = p.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGQUIT, Credential: p.as}
	return cmd
}

// Start starts the server again on its port after Stop or Kill, with its data.
// It returns when the server takes commands.
func (p *Postgres) Start() error {
	log, err := os.OpenFile(filepath.Join(p.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	p.cmd = p.command("postgres", append([]string{
		"-D", p.data(), "-p", strconv.Itoa(p.port), "-h", "127.0.0.1", "-k", p.dir, "-c", "fsync=off",
	}, p.args...)...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	if err := p.cmd.Start(); err != nil {
		return err
	}
	p.done = make(chan struct{})
	go func(cmd *exec.Cmd, done chan struct{}) { _ = cmd.Wait(); close(done) }(p.cmd, p.done)
	for deadline := time.Now().Add(60 * time.Second); time.Now().Before(deadline); {
		select {
		case <-p.done:
			text, _ := os.ReadFile(log.Name())
			return fmt.Errorf("postgres ended at start: %s", text)
		default:
		}
		if p.command("pg_isready", "-q", "-h", "127.0.0.1", "-p", strconv.Itoa(p.port)).Run() == nil {
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	p.Kill()
	return errors.New("postgres did not answer within 60 s")
}

// DSN returns the URL of the database postgres for its superuser.
func (p *Postgres) DSN() string { return p.UserDSN("postgres", "") }

// UserDSN returns the URL for another user, who is let in with any password.
func (p *Postgres) UserDSN(user, password string) string {
	return fmt.Sprintf("postgres://%s:%s@%s/postgres?sslmode=disable", user, password, p.Addr)
}

// Stop shuts the server down in order: what runs is rolled back, clients are
// cut, data are kept.
func (p *Postgres) Stop() { p.end(syscall.SIGINT) }

// Kill ends the server at once, as a crash does (SIGQUIT, its immediate
// shutdown, which leaves no child behind). What was committed is there again
// after Start.
func (p *Postgres) Kill() { p.end(syscall.SIGQUIT) }

// Restart is Kill and Start.
func (p *Postgres) Restart() error {
	p.Kill()
	return p.Start()
}

func (p *Postgres) end(how syscall.Signal) {
	if p.cmd == nil || p.cmd.Process == nil {
		return
	}
	_ = p.cmd.Process.Signal(how)
	<-p.done
}
