package e2e

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestServiceManager: a service manager that speaks systemd's protocols passes the socket, which
// replaces the configured address, and hears when the server answers, that it lives, and that it
// stops. A client that connects at any moment of a restart gets an answer.
func TestServiceManager(t *testing.T) {
	beginOwn(t)
	passed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer passed.Close()
	m := newServiceManager(t, passed)
	dir := dataDir(t, nil)

	first := m.start(dir)
	m.hears("READY=1")
	if status := getStatus(t.Context(), first.URL()+"/v2/"); status != http.StatusOK {
		t.Errorf("after READY=1: status %d, want 200", status)
	}
	m.hears("WATCHDOG=1")

	stop, failed := make(chan struct{}), make(chan []error)
	go func() { failed <- requestUntil(stop, first.URL()+"/v2/") }()
	first.Stop()
	m.hears("STOPPING=1")
	second := m.start(dir)
	m.hears("READY=1")
	close(stop)
	if errs := <-failed; len(errs) > 0 {
		t.Errorf("%d requests failed during a restart; the first: %v", len(errs), errs[0])
	}
	second.Stop()
}

// requestUntil sends requests, each over a new connection, until `stop` is closed, and returns
// the errors.
func requestUntil(stop <-chan struct{}, url string) []error {
	var errs []error
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}
	for {
		select {
		case <-stop:
			return errs
		case <-time.After(2 * time.Millisecond):
		}
		res, err := client.Get(url)
		if err == nil {
			res.Body.Close()
			if res.StatusCode != http.StatusOK {
				err = fmt.Errorf("status %d", res.StatusCode)
			}
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("at %s: %w", time.Now().UTC().Format("15:04:05.000"), err))
		}
	}
}

// serviceManager starts servers as systemd does, with a socket that is open all the time.
type serviceManager struct {
	t      *testing.T
	passed net.Listener
	news   *net.UnixConn
	path   string // of the socket for news
	heard  []string
}

func newServiceManager(t *testing.T, passed net.Listener) *serviceManager {
	t.Helper()
	m := &serviceManager{t: t, passed: passed, path: fmt.Sprintf("@purser-e2e-%d-%d", os.Getpid(), passed.Addr().(*net.TCPAddr).Port)}
	var err error
	if m.news, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Name: m.path, Net: "unixgram"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.news.Close() })
	return m
}

// start starts a server. Unless `args` say otherwise, its configured address is one that it can't
// listen on.
func (m *serviceManager) start(dataDir string, args ...string) *registry {
	m.t.Helper()
	f, err := m.passed.(*net.TCPListener).File()
	if err != nil {
		m.t.Fatal(err)
	}
	defer f.Close()
	r := &registry{t: m.t, opt: options{dataDir: dataDir}, host: m.passed.Addr().String()}
	args = slices.Concat([]string{"-c", `export LISTEN_PID=$$; exec "$0" "$@"`, binary(), "serve", "--data-dir", dataDir,
		"--debug-addr", "127.0.0.1:0", "--addr", "192.0.2.1:5000"}, args)
	cmd := exec.Command("/bin/sh", args...)
	cmd.Env = childEnv("LISTEN_FDS=1", "LISTEN_FDNAMES=purser.socket", "NOTIFY_SOCKET="+m.path, "WATCHDOG_USEC=300000")
	cmd.ExtraFiles = []*os.File{f}
	if r.p, err = startProcess("purser", cmd); err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(r.cleanup)
	return r
}

// hears waits for a message that has the assignment as a line.
func (m *serviceManager) hears(assignment string) {
	m.t.Helper()
	if err := m.news.SetReadDeadline(time.Now().Add(readyWithin)); err != nil {
		m.t.Fatal(err)
	}
	buf := make([]byte, 4096)
	for {
		n, err := m.news.Read(buf)
		if err != nil {
			m.t.Fatalf("waiting for %s: %v; before it came %q", assignment, err, m.heard)
		}
		m.heard = append(m.heard, string(buf[:n]))
		if slices.Contains(strings.Split(string(buf[:n]), "\n"), assignment) {
			return
		}
	}
}

// TestUnits: systemd takes the units of deploy/systemd without a complaint, and rates the
// service's exposure as low. It finds ExecStart's program only if that exists.
func TestUnits(t *testing.T) {
	beginOwn(t)
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		lacking(t, "systemd-analyze isn't installed")
	}
	dir := t.TempDir()
	units, err := filepath.Glob("../deploy/systemd/*")
	units = slices.DeleteFunc(units, func(file string) bool { return filepath.Ext(file) == ".sysusers" })
	if err != nil || len(units) != 6 {
		t.Fatalf("%d units, want 6, %v", len(units), err)
	}
	calls := [][]string{{"verify", "--man=no"}}
	for _, file := range units {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.Join(dir, filepath.Base(file))
		unit := strings.ReplaceAll(string(text), "/usr/bin/purser", binary())
		if err := os.WriteFile(name, []byte(unit), 0o644); err != nil {
			t.Fatal(err)
		}
		calls[0] = append(calls[0], name)
		if strings.HasSuffix(name, ".service") {
			calls = append(calls, []string{"security", "--offline=true", "--threshold=25", "--no-pager", name}) // of 100, which is the worst
		}
	}
	for _, args := range calls {
		out, err := exec.Command(analyze, args...).CombinedOutput()
		if err != nil || args[0] == "verify" && len(out) > 0 {
			t.Errorf("systemd-analyze %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}
