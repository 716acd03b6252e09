// Command bench measures what Gatehouse costs: the CPU time of the gateway
// process per request, as a ratio to plain reverse_proxy of the same binary,
// measured in the same run with equal garbage collection; and the memory that a
// large upload takes.
//
// Every variant's slice of load stands between two slices of the plain proxy,
// and the median of the rounds' ratios counts, so that a noisy machine moves the
// figures little. It needs wrk and redis-server.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gatehouse-gateway/gatehouse/internal/servers"
)

func main() {
	starts := flag.Int("starts", 3, "starts of each variant")
	rounds := flag.Int("rounds", 4, "rounds of each start")
	slice := flag.Duration("slice", 2*time.Second, "length of one slice of load")
	only := flag.String("only", "", "comma list of variants; default: all")
	upload := flag.Int64("upload", 1<<30, "bytes of the upload; 0: none")
	binary := flag.String("binary", "", "gateway binary; default: built from this module")
	flag.Parse()
	if err := run(*starts, *rounds, *slice, *only, *upload, *binary); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// variant is one way to serve the same request.
type variant struct {
	name   string
	bar    float64 // at most this ratio to plain
	goal   bool    // the bar is one to come near to: missing it is no failure
	site   string  // directives before reverse_proxy
	redis  bool
	cookie bool   // sign in first
	script string // Lua for wrk
	bare   bool   // no header of a browser, only the cookie
	refuse bool   // answers are 429
}

const limitZone = `client_rate_limit {
		zone all {
			key %s
			window 1h
			events %d
		}
	}
`

func variants() []variant {
	return []variant{
		{name: "session", bar: 1.10, goal: true, site: "session_auth\n", cookie: true},
		{name: "limit-memory", bar: 1.03, goal: true, site: fmt.Sprintf(limitZone, "{client_ip}", 1<<40)},
		{name: "session-limit-memory", bar: 1.12, site: "session_auth\n" + fmt.Sprintf(limitZone, "{client_ip}", 1<<40), cookie: true},
		{name: "session-limit-memory-bare", bar: 1.12, site: "session_auth\n" + fmt.Sprintf(limitZone, "{client_ip}", 1<<40), cookie: true, bare: true},
		{name: "limit-redis-many-keys", bar: 1.25, site: fmt.Sprintf(limitZone, "{query.k}", 1<<40), redis: true, script: manyKeys},
		{name: "limit-redis-one-key", bar: 1.25, site: fmt.Sprintf(limitZone, "{client_ip}", 1<<40), redis: true},
		{name: "refusals-memory", bar: 0.42, site: fmt.Sprintf(limitZone, "{client_ip}", 1), refuse: true},
	}
}

const manyKeys = `
local n = 0
request = function()
  n = n + 1
  return wrk.format("GET", "/?k=" .. (n % 50000))
end
`

// browserHeaders are what Chromium sends with a fetch of a page's script; both
// sides of a comparison get them.
var browserHeaders = []string{
	"-H", "Connection: keep-alive", "-H", `sec-ch-ua-platform: "Linux"`,
	"-H", "User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0.0.0 Safari/537.36",
	"-H", "Accept: application/json", "-H", `sec-ch-ua: "Chromium";v="140", "Not=A?Brand";v="24"`, "-H", "sec-ch-ua-mobile: ?0",
	"-H", "Sec-Fetch-Site: same-origin", "-H", "Sec-Fetch-Mode: cors", "-H", "Sec-Fetch-Dest: empty",
	"-H", "Referer: http://localhost/", "-H", "Accept-Encoding: gzip, deflate, br, zstd", "-H", "Accept-Language: en-GB,en;q=0.9",
}

type bench struct {
	dir     string
	binary  string
	backend string
	redis   *servers.Redis
}

func run(starts, rounds int, slice time.Duration, only string, upload int64, binary string) error {
	if _, err := exec.LookPath("wrk"); err != nil {
		return errors.New("wrk is missing: apt-get install wrk")
	}
	dir, err := os.MkdirTemp("", "gatehouse-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	b := &bench{dir: dir, binary: binary}
	if b.binary == "" {
		b.binary = filepath.Join(dir, "gatehouse")
		build := exec.Command("go", "build", "-o", b.binary, "github.com/gatehouse-gateway/gatehouse/caddymodule/gatehouse")
		build.Stdout, build.Stderr = os.Stderr, os.Stderr
		if err := build.Run(); err != nil {
			return fmt.Errorf("building the gateway: %w", err)
		}
	}
	redisDir := filepath.Join(dir, "redis")
	if err := os.Mkdir(redisDir, 0o700); err != nil {
		return err
	}
	if b.redis, err = servers.NewRedis(redisDir); err != nil {
		return err
	}
	defer b.redis.Kill()

	backend, err := b.start("backend", "", `respond "ok"`)
	if err != nil {
		return err
	}
	defer backend.stop()
	b.backend = backend.addr

	failed := false
	for _, v := range variants() {
		if only != "" && !slices.Contains(strings.Split(only, ","), v.name) {
			continue
		}
		ok, err := b.measure(v, starts, rounds, slice)
		if err != nil {
			return fmt.Errorf("%s: %w", v.name, err)
		}
		failed = failed || !ok
	}
	if upload > 0 && only == "" {
		ok, err := b.measureUpload(upload)
		if err != nil {
			return fmt.Errorf("upload: %w", err)
		}
		failed = failed || !ok
	}
	if failed {
		return errors.New("a bar was not met")
	}
	return nil
}

func (b *bench) proxy() string {
	return "reverse_proxy " + b.backend + ` {
		transport http {
			keepalive_idle_conns_per_host 64
		}
	}
`
}

func (b *bench) option(redis bool) string {
	if !redis {
		return ""
	}
	return "gatehouse {\n store redis redis://" + b.redis.Addr + "/0\n}\n"
}

// figures are what the slices of a variant gave.
type figures struct {
	ratios, costs, base []float64 // CPU time per request: ours to plain; ours, plain in us
	redis, requests     float64   // Redis's CPU time in us, for so many requests
}

// measure prints the median ratio of a variant and reports whether it is
// within its bar. The processes are started several times, since where one
// lies in memory alone moves it by some percent.
func (b *bench) measure(v variant, starts, rounds int, slice time.Duration) (bool, error) {
	var f figures
	for range starts {
		if err := b.sample(&f, v, rounds, slice); err != nil {
			return false, err
		}
	}
	ratio := median(f.ratios)
	verdict := "ok"
	switch {
	case ratio > v.bar && v.goal:
		verdict = "above the goal"
	case ratio > v.bar:
		verdict = "ABOVE THE BAR"
	}
	line := fmt.Sprintf("%-26s ratio %.3f  bar %.2f  %6.1f us/request (plain %.1f)", v.name, ratio, v.bar, median(f.costs), median(f.base))
	if v.redis {
		line += fmt.Sprintf("  redis %.1f us/request", f.redis/f.requests)
	}
	fmt.Println(line, "", verdict)
	return ratio <= v.bar || v.goal, nil
}

// sample starts a plain and our gateway and adds what their slices give to f.
func (b *bench) sample(f *figures, v variant, rounds int, slice time.Duration) error {
	signIn, stopSignIn, err := signInBackend()
	if err != nil {
		return err
	}
	defer stopSignIn()
	// Both have the same routes and get the same requests; only ours is added.
	routes := "handle /sign-in {\n reverse_proxy " + signIn + "\n}\n" + b.proxy()
	plain, err := b.start("plain", "", routes)
	if err != nil {
		return err
	}
	defer plain.stop()
	gateway, err := b.start("variant", b.option(v.redis), v.site+routes)
	if err != nil {
		return err
	}
	defer gateway.stop()
	var args []string
	if !v.bare {
		args = slices.Clone(browserHeaders)
	}
	if v.cookie {
		cookie, err := signInTo(gateway.addr)
		if err != nil {
			return err
		}
		args = append(args, "-H", "Cookie: "+cookie)
	}
	if v.script != "" {
		script := filepath.Join(b.dir, "wrk.lua")
		if err := os.WriteFile(script, []byte(v.script), 0o600); err != nil {
			return err
		}
		args = append(args, "-s", script)
	}

	load := func(g *process, refuse bool) (float64, error) { return g.load(slice, refuse, args) }
	for _, warm := range []*process{plain, gateway} { // connections, caches, the collector's pace
		if _, err := load(warm, warm == gateway && v.refuse); err != nil {
			return err
		}
	}
	before, err := load(plain, false)
	if err != nil {
		return err
	}
	redisBefore := cpuTicks(b.redis.Pid())
	for range rounds {
		cost, err := load(gateway, v.refuse)
		if err != nil {
			return err
		}
		f.requests += gateway.lastRequests
		after, err := load(plain, false)
		if err != nil {
			return err
		}
		mean := (before + after) / 2
		f.ratios, f.costs, f.base = append(f.ratios, cost/mean), append(f.costs, cost), append(f.base, mean)
		before = after
	}
	f.redis += float64(cpuTicks(b.redis.Pid())-redisBefore) * 1e4
	return nil
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// process is a running gateway process.
type process struct {
	addr         string
	cmd          *exec.Cmd
	log          *bytes.Buffer
	lastRequests float64
}

func (b *bench) start(name, option, site string) (*process, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	addr := l.Addr().String()
	l.Close()
	config := "{\nadmin off\npersist_config off\nauto_https off\nlog {\n level ERROR\n}\nservers {\n protocols h1\n}\n" + option + "}\nhttp://" + addr + " {\n" + site + "\n}\n"
	file := filepath.Join(b.dir, name+".Caddyfile")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return nil, err
	}
	data, err := os.MkdirTemp(b.dir, name)
	if err != nil {
		return nil, err
	}
	g := &process{addr: addr, log: new(bytes.Buffer)}
	g.cmd = exec.Command(b.binary, "run", "--config", file, "--adapter", "caddyfile")
	g.cmd.Env = append(os.Environ(), "GOGC=400", "XDG_DATA_HOME="+data, "XDG_CONFIG_HOME="+data)
	g.cmd.Stdout, g.cmd.Stderr = g.log, g.log
	g.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := g.cmd.Start(); err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if c, err := net.Dial("tcp", addr); err == nil {
			c.Close()
			return g, nil
		}
	}
	g.stop()
	return nil, fmt.Errorf("the gateway %s did not start: %s", name, g.log)
}

func (g *process) stop() {
	_ = g.cmd.Process.Kill()
	_ = g.cmd.Wait()
}

var (
	wrkRequests = regexp.MustCompile(`(\d+) requests in`)
	wrkFailures = regexp.MustCompile(`Non-2xx or 3xx responses: (\d+)`)
)

// load runs wrk for one slice and returns the CPU time of the gateway per
// request, in microseconds.
func (g *process) load(slice time.Duration, refuse bool, args []string) (float64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), slice+20*time.Second)
	defer cancel()
	args = append([]string{"-t1", "-c32", "-d" + strconv.Itoa(int(slice/time.Second)) + "s"}, append(args, "http://"+g.addr+"/")...)
	before := cpuTicks(g.cmd.Process.Pid)
	out, err := exec.CommandContext(ctx, "wrk", args...).CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("wrk: %w: %s", err, out)
	}
	ticks := cpuTicks(g.cmd.Process.Pid) - before
	match := wrkRequests.FindSubmatch(out)
	if match == nil {
		return 0, fmt.Errorf("wrk printed no count: %s", out)
	}
	requests, _ := strconv.ParseFloat(string(match[1]), 64)
	failures := 0.0
	if m := wrkFailures.FindSubmatch(out); m != nil {
		failures, _ = strconv.ParseFloat(string(m[1]), 64)
	}
	if refuse != (failures > requests/2) || (!refuse && failures > 0) {
		return 0, fmt.Errorf("%v of %v answers were no success: %s", failures, requests, g.log)
	}
	g.lastRequests = requests
	return float64(ticks) * 1e4 / requests, nil // a tick is 10 ms
}

// cpuTicks reads the user and system time of a process.
func cpuTicks(pid int) int64 {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+1:]))
	user, _ := strconv.ParseInt(fields[11], 10, 64)
	system, _ := strconv.ParseInt(fields[12], 10, 64)
	return user + system
}

// signInBackend answers every request with a command to start a session whose
// token is about 300 bytes long.
func signInBackend() (addr string, stop func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	claims := `{"name":"Ada Lovelace","email":"ada@example.com","roles":["admin","editor"]}`
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Gatehouse-Session-Start", `{"user":"ada","claims":`+claims+`}`)
	})}
	go func() { _ = srv.Serve(l) }()
	return l.Addr().String(), func() { _ = srv.Close() }, nil
}

func signInTo(addr string) (string, error) {
	res, err := http.Post("http://"+addr+"/sign-in", "text/plain", nil)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	for _, c := range res.Cookies() {
		return c.Name + "=" + c.Value, nil
	}
	body, _ := io.ReadAll(res.Body)
	return "", fmt.Errorf("sign-in gave no cookie: %s %s", res.Status, body)
}

// measureUpload sends one upload in one PATCH and reports how far the gateway's
// resident memory grows, delivery included, and how much it writes.
func (b *bench) measureUpload(size int64) (bool, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return false, err
	}
	var got int64
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(http.StatusCreated)
	})}
	go func() { _ = srv.Serve(l) }()
	defer srv.Close()
	g, err := b.start("upload", "", "chunked_upload /files* {\n store directory "+filepath.Join(b.dir, "uploads")+"\n wait 5m\n}\nreverse_proxy "+l.Addr().String())
	if err != nil {
		return false, err
	}
	defer g.stop()
	send := func(size int64) (time.Duration, error) {
		begin := time.Now()
		req, _ := http.NewRequest(http.MethodPost, "http://"+g.addr+"/files", nil)
		req.Header.Set("Tus-Resumable", "1.0.0")
		req.Header.Set("Upload-Length", strconv.FormatInt(size, 10))
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return 0, err
		}
		res.Body.Close()
		req, _ = http.NewRequest(http.MethodPatch, "http://"+g.addr+res.Header.Get("Location"), io.LimitReader(zeros{}, size))
		req.ContentLength = size
		req.Header.Set("Tus-Resumable", "1.0.0")
		req.Header.Set("Upload-Offset", "0")
		req.Header.Set("Content-Type", "application/offset+octet-stream")
		if res, err = http.DefaultClient.Do(req); err != nil {
			return 0, err
		}
		res.Body.Close()
		if res.StatusCode != http.StatusNoContent {
			return 0, fmt.Errorf("PATCH: %s: %s", res.Status, g.log)
		}
		return time.Since(begin), nil
	}
	if _, err := send(8 << 20); err != nil { // warm
		return false, err
	}
	pid := g.cmd.Process.Pid
	before, written, ticks := procField(pid, "status", "VmRSS:"), procField(pid, "io", "write_bytes:"), cpuTicks(pid)
	_ = os.WriteFile("/proc/"+strconv.Itoa(pid)+"/clear_refs", []byte("5"), 0) // reset the peak
	took, err := send(size)
	if err != nil {
		return false, err
	}
	if got != size {
		return false, fmt.Errorf("the backend received %d of %d bytes", got, size)
	}
	growth := procField(pid, "status", "VmHWM:") - before
	verdict := "ok"
	if growth >= 32<<10 {
		verdict = "ABOVE THE BAR"
	}
	fmt.Printf("upload of %d MiB, one PATCH: memory grows by %.1f MiB (bar 32), written %.2f times, %.2f CPU s/GiB, %.1f s  %s\n",
		size>>20, float64(growth)/1024, float64(procField(pid, "io", "write_bytes:")-written)/float64(size),
		float64(cpuTicks(pid)-ticks)/100/(float64(size)/(1<<30)), took.Seconds(), verdict)
	return verdict == "ok", nil
}

// procField reads a number from /proc/<pid>/<file>.
func procField(pid int, file, field string) int64 {
	raw, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/" + file)
	for line := range strings.SplitSeq(string(raw), "\n") {
		if rest, ok := strings.CutPrefix(line, field); ok {
			n, _ := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return n
		}
	}
	return 0
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }
