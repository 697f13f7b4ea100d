package e2e

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	// readyWithin is the time limit for a start; the first start may download PostgreSQL.
	readyWithin = 3 * time.Minute
	stopWithin  = time.Minute
)

// options says how to start a registry.
type options struct {
	dataDir string   // default: a new one, see dataDir
	env     []string // more environment
	args    []string // more arguments of serve
	program string   // default: binary()
}

// registry is a running Purser, or the other registry that is tested (target).
type registry struct {
	t     testing.TB
	opt   options
	p     *process // nil for the target
	host  string   // HOST:PORT of the API
	debug string   // HOST:PORT of metrics and health
	api   *api     // client of the API at host
}

// startRegistry starts a registry, which is stopped at the end of the test.
func startRegistry(t testing.TB, o options) *registry {
	t.Helper()
	if target() != "" {
		return &registry{t: t, host: target()}
	}
	if o.dataDir == "" {
		o.dataDir = dataDir(t, o.env)
	}
	r := &registry{t: t, opt: o}
	t.Cleanup(r.cleanup)
	r.start()
	return r
}

// start runs "purser serve" and waits until it is ready.
func (r *registry) start() {
	r.t.Helper()
	if err := r.tryStart(); err != nil {
		r.t.Fatal(err)
	}
}

func (r *registry) tryStart() error {
	p, err := startProcess("purser", r.command())
	if err != nil {
		return err
	}
	r.p = p
	return p.waitFor(context.Background(), readyWithin, func(context.Context) error { return r.readAddresses() })
}

func (r *registry) command() *exec.Cmd {
	args := slices.Concat([]string{"serve", "--data-dir", r.opt.dataDir,
		"--addr", "127.0.0.1:0", "--debug-addr", "127.0.0.1:0"}, r.opt.args)
	cmd := exec.Command(cmp.Or(r.opt.program, binary()), args...)
	cmd.Env = childEnv(r.opt.env...)
	return cmd
}

var (
	registryLine = regexp.MustCompile(`(?m)^\s*registry\s+https?://(\S+)$`)
	debugLine    = regexp.MustCompile(`(?m)^\s*debug\s+http://(\S+)$`)
)

// readAddresses reads the registry's addresses from the text that the server prints when it is
// ready. It returns an error if the server hasn't printed that yet.
func (r *registry) readAddresses() error {
	text := r.p.out.String()
	main, debug := registryLine.FindStringSubmatch(text), debugLine.FindStringSubmatch(text)
	if !strings.Contains(text, "Purser is ready.") || main == nil || debug == nil {
		return errors.New("it hasn't printed that it is ready, and where")
	}
	r.host, r.debug = main[1], debug[1]
	return nil
}

// URL returns the root of the API.
func (r *registry) URL() string { return "http://" + r.host }

// Ref returns the reference HOST/REPO:TAG or HOST/REPO@DIGEST that clients use.
func (r *registry) Ref(repo, reference string) string {
	if strings.Contains(reference, ":") {
		return r.host + "/" + repo + "@" + reference
	}
	return r.host + "/" + repo + ":" + reference
}

// Kill9 kills the process with SIGKILL.
func (r *registry) Kill9() {
	r.t.Helper()
	r.checkRaces()
	r.p.kill()
}

// Stop stops the process with SIGTERM, as an operator does. It must exit with status 0.
func (r *registry) Stop() {
	r.t.Helper()
	if err := r.p.signal(syscall.SIGTERM, stopWithin); err != nil {
		r.t.Fatalf("after SIGTERM: %v, want exit status 0\n%s", err, r.p.out.tail(40))
	}
}

// Restart starts a registry again that was stopped or killed, with the same data.
func (r *registry) Restart() {
	r.t.Helper()
	r.checkRaces()
	r.start()
}

// checkRaces fails the test if the registry's output has a report of the race detector or a
// panic.
func (r *registry) checkRaces() {
	r.t.Helper()
	if r.p == nil {
		return
	}
	if _, race, found := strings.Cut(r.p.out.String(), "WARNING: DATA RACE"); found {
		r.t.Errorf("purser has a data race:%s", race[:min(len(race), 32<<10)])
	}
	if _, failure, found := strings.Cut(r.p.out.String(), "\npanic: "); found {
		r.t.Errorf("purser panicked: %s", failure[:min(len(failure), 8<<10)])
	}
}

func (r *registry) cleanup() {
	if r.p == nil {
		return
	}
	if r.p.running() {
		err := r.p.signal(syscall.SIGTERM, stopWithin)
		if err != nil {
			r.t.Errorf("stopping at the end of the test: %v", err)
			r.p.kill()
		}
	}
	r.checkRaces()
	if r.t.Failed() {
		r.t.Logf("the last that purser printed:\n%s", r.p.out.tail(60))
	}
}

// getStatus returns the status of the answer to a GET, 0 if there is no answer.
func getStatus(ctx context.Context, url string) int {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0
	}
	res.Body.Close()
	return res.StatusCode
}

// purser runs the binary with a command until it ends. It returns the exit status and
// everything that it printed.
func purser(t testing.TB, env []string, args ...string) (int, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary(), args...)
	cmd.Env = childEnv(env...)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("purser %s: %v", strings.Join(args, " "), err)
	}
	return cmd.ProcessState.ExitCode(), string(out)
}
