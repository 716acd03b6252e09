package e2e

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gatehouse-gateway/gatehouse/internal/servers"
)

// process is a child that listens on an address and writes a log.
type process struct {
	name string
	addr string
	args []string
	env  []string
	log  string // path

	cmd  *exec.Cmd
	done chan struct{}
}

// newProcess prepares a child that ends with the test. Its log is shown when
// the test has failed.
func newProcess(t testing.TB, name, addr string, env []string, args ...string) *process {
	t.Helper()
	p := &process{name: name, addr: addr, args: args, env: env, log: filepath.Join(t.TempDir(), name+".log")}
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("the log of %s ends:\n%s", name, p.logTail(60))
		}
	})
	return p
}

func (p *process) logTail(lines int) string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// start starts the child and waits until it listens.
func (p *process) start(t testing.TB) {
	t.Helper()
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	p.cmd = exec.Command(p.args[0], p.args[1:]...)
	p.cmd.Dir = repository
	p.cmd.Env = append(os.Environ(), p.env...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("starting %s: %v", p.name, err)
	}
	p.done = make(chan struct{})
	go func(cmd *exec.Cmd, done chan struct{}) { _ = cmd.Wait(); close(done) }(p.cmd, p.done)
	eventually(t, 30*time.Second, p.name+" listens", func() bool {
		select {
		case <-p.done:
			t.Fatalf("%s ended at start:\n%s", p.name, p.logTail(30))
		default:
		}
		c, err := net.DialTimeout("tcp", p.addr, time.Second)
		if err != nil {
			return false
		}
		c.Close()
		return true
	})
}

// kill ends the child at once (SIGKILL) and waits for its end.
func (p *process) kill() { p.end(syscall.SIGKILL) }

// stop ends the child in an orderly way and waits for its end.
func (p *process) stop() { p.end(syscall.SIGTERM) }

func (p *process) end(signal syscall.Signal) {
	if p.done == nil {
		return
	}
	_ = p.cmd.Process.Signal(signal)
	<-p.done
}

// eventually waits until condition holds, and fails the test after limit.
func eventually(t testing.TB, limit time.Duration, what string, condition func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(limit); !condition(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", limit, what)
		}
	}
}

// globalOptions begin every configuration of a test: nothing is reachable from
// outside, nothing is left behind.
const globalOptions = `admin off
	persist_config off
	auto_https off
	skip_install_trust
	default_bind 127.0.0.1`

// gateway is a Gatehouse process.
type gateway struct {
	*process
	data string // Caddy's data directory is below it
}

// newGateway prepares a gateway. In config, {PORT} stands for its port,
// {GLOBAL} for globalOptions and {NAME} for its name.
func newGateway(t testing.TB, name, config string) *gateway {
	t.Helper()
	port := strconv.Itoa(servers.FreePort(t))
	dir := t.TempDir()
	file := filepath.Join(dir, "Caddyfile")
	text := strings.NewReplacer("{PORT}", port, "{GLOBAL}", globalOptions, "{NAME}", name).Replace(strings.TrimPrefix(config, "\n"))
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p := newProcess(t, name, "127.0.0.1:"+port, homeIn(dir), binary, "run", "--config", file)
	return &gateway{process: p, data: dir}
}

// startGateway starts a gateway that ends with the test.
func startGateway(t testing.TB, name, config string) *gateway {
	t.Helper()
	g := newGateway(t, name, config)
	g.start(t)
	return g
}

// homeIn makes dir the place where the program keeps what it keeps by default.
func homeIn(dir string) []string {
	return []string{"HOME=" + dir, "XDG_DATA_HOME=" + filepath.Join(dir, "data"), "XDG_CONFIG_HOME=" + filepath.Join(dir, "config")}
}

// startApp starts the application of testdata and returns its address.
func startApp(t testing.TB, env ...string) string {
	t.Helper()
	python := program(t, "apt-get install python3", "python3")
	addr := "127.0.0.1:" + strconv.Itoa(servers.FreePort(t))
	p := newProcess(t, "app", addr, append(env, "PYTHONDONTWRITEBYTECODE=1"), python, "-u", "internal/e2e/testdata/app.py", addr)
	p.start(t)
	return addr
}

// node runs a program of the folder node and returns what it printed.
func node(t testing.TB, env []string, script string, args ...string) ([]byte, error) {
	t.Helper()
	install := "apt-get install nodejs npm"
	path := program(t, install, "node", "nodejs")
	dir := filepath.Join(repository, "internal", "e2e", "node")
	installNodePackages(t, program(t, install, "npm"), dir)
	cmd := exec.CommandContext(t.Context(), path, append([]string{script}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	var out, complaints bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaints
	err := cmd.Run()
	if err != nil {
		t.Logf("%s printed:\n%s%s", script, out.Bytes(), complaints.Bytes())
	}
	return out.Bytes(), err
}

// installNodePackages runs npm ci when node_modules is missing or older than
// the lock file.
func installNodePackages(t testing.TB, npm, dir string) {
	t.Helper()
	lock, err := os.Stat(filepath.Join(dir, "package-lock.json"))
	if err != nil {
		t.Fatal(err)
	}
	mark, err := os.Stat(filepath.Join(dir, "node_modules", ".package-lock.json"))
	if err == nil && !mark.ModTime().Before(lock.ModTime()) {
		return
	}
	cmd := exec.CommandContext(t.Context(), npm, "ci")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("npm ci: %v\n%s", err, out)
	}
}
