// Package servers starts private servers for tests: on loopback, on free
// ports, in folders of their own, ended by their own process id. A missing
// program fails the test with the command that installs it.
package servers

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// FreePort returns a loopback TCP port that was free a moment ago.
func FreePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("finding a free port: %v", err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// Redis is a private Redis server.
type Redis struct {
	Addr string // 127.0.0.1:port

	dir  string
	port int
	args []string
	cmd  *exec.Cmd
	done chan struct{}
}

// StartRedis starts a Redis server without persistence that ends with the
// test. Further arguments are passed to redis-server.
func StartRedis(t testing.TB, args ...string) *Redis {
	t.Helper()
	dir, err := os.MkdirTemp("", "gatehouse-redis-")
	if err != nil {
		t.Fatal(err)
	}
	r, err := NewRedis(dir, args...)
	if err != nil {
		_ = os.RemoveAll(dir)
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.Kill()
		_ = os.RemoveAll(dir)
	})
	return r
}

// NewRedis starts a Redis server in dir, for callers without a test (TestMain).
// The caller calls Kill.
func NewRedis(dir string, args ...string) (*Redis, error) {
	if _, err := exec.LookPath("redis-server"); err != nil {
		return nil, errors.New("redis-server is missing: apt-get install redis-server")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	r := &Redis{Addr: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), dir: dir, port: port, args: args}
	return r, r.Start()
}

// Start starts the server again on its port after Kill. Its data are gone.
func (r *Redis) Start() error {
	args := append([]string{
		"--port", strconv.Itoa(r.port), "--bind", "127.0.0.1", "--dir", r.dir,
		"--save", "", "--appendonly", "no", "--logfile", filepath.Join(r.dir, "log"),
	}, r.args...)
	r.cmd = exec.Command("redis-server", args...)
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := r.cmd.Start(); err != nil {
		return err
	}
	r.done = make(chan struct{})
	go func(cmd *exec.Cmd, done chan struct{}) { _ = cmd.Wait(); close(done) }(r.cmd, r.done)
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); {
		select {
		case <-r.done:
			log, _ := os.ReadFile(filepath.Join(r.dir, "log"))
			return fmt.Errorf("redis-server ended at start: %s", log)
		default:
		}
		if r.ping() {
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	r.Kill()
	return errors.New("redis-server did not answer within 20 s")
}

// ping needs no rights: an answer of any kind, also NOAUTH, is a sign of life.
func (r *Redis) ping() bool {
	c, err := net.DialTimeout("tcp", r.Addr, time.Second)
	if err != nil {
		return false
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Second))
	if _, err := c.Write([]byte("PING\r\n")); err != nil {
		return false
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	return err == nil && !strings.HasPrefix(line, "-LOADING")
}

// Kill ends the server at once (SIGKILL) and waits for its end.
func (r *Redis) Kill() {
	if r.cmd == nil || r.cmd.Process == nil {
		return
	}
	_ = r.cmd.Process.Signal(syscall.SIGCONT)
	_ = r.cmd.Process.Kill()
	<-r.done
}

// Pause stops the process (SIGSTOP): it holds its connections and answers
// nothing.
func (r *Redis) Pause() error { return r.cmd.Process.Signal(syscall.SIGSTOP) }

// Resume lets a paused process go on.
func (r *Redis) Resume() error { return r.cmd.Process.Signal(syscall.SIGCONT) }

// Pid returns the server's process id.
func (r *Redis) Pid() int { return r.cmd.Process.Pid }
