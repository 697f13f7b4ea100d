package serve

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/purser-registry/purser/internal/blob"
)

const (
	checkTimeout = 2 * time.Second
	checkEvery   = time.Second
	// checkGrace is how much longer a check may take to say why it has given up.
	checkGrace = 500 * time.Millisecond
)

// readinessCheck tests one thing that the registry depends on, such as the database.
type readinessCheck struct {
	name string
	run  func(ctx context.Context) error
	// spare says that requests succeed even if this check fails. A failure is then shown in
	// the answer of /readyz, but the server stays ready.
	spare bool
}

// inTime returns the check so that it fails after checkTimeout even if it doesn't heed its context, as a
// call in a file system whose server hangs. Until that call has returned, it isn't made again.
func (c readinessCheck) inTime() readinessCheck {
	run, calls := c.run, new(blob.Question[struct{}])
	c.run = func(ctx context.Context) error {
		patience, cancel := context.WithTimeout(ctx, checkTimeout+checkGrace)
		defer cancel()
		_, err := calls.Ask(patience, func() (struct{}, error) {
			ctx, cancel := context.WithTimeout(ctx, checkTimeout)
			defer cancel()
			return struct{}{}, run(ctx)
		})
		return err
	}
	return c
}

// readiness answers /readyz: whether requests can succeed now. The result of the checks is
// reused for a second, so that they run at most once per second, however many clients ask.
type readiness struct {
	mu      sync.Mutex // is never held while checks run
	state   string     // why the server isn't ready, before any checks; "" once it is up
	waiting string     // what the start waits for
	checks  []readinessCheck

	// turn has room for one: who runs the checks, or reads or writes what follows.
	turn    chan struct{}
	checked time.Time
	last    results
}

// results are what the checks have found.
type results struct {
	ok     bool
	passed []bool // of the checks
	text   []byte
}

func newReadiness() *readiness { return &readiness{state: "starting", turn: make(chan struct{}, 1)} }

// waits says what the start waits for now. When the server has started, workers may wait for the same,
// which doesn't concern requests.
func (r *readiness) waits(what string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.checks != nil {
		return
	}
	r.state, r.waiting = "starting: it waits for "+what, what
}

// waitsFor returns what the start waits for.
func (r *readiness) waitsFor() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.waiting
}

// started ends the state "starting". From now on, `checks` decide whether the server is
// ready.
func (r *readiness) started(checks ...readinessCheck) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state, r.checks = "", nil
	for _, c := range checks {
		r.checks = append(r.checks, c.inTime())
	}
}

// stopping makes /readyz answer that the server isn't ready, until the process ends.
func (r *readiness) stopping() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state = "stopping"
}

// now returns why the server isn't ready, before any checks, and the checks.
func (r *readiness) now() (state string, checks []readinessCheck) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state, r.checks
}

func (r *readiness) answer(ctx context.Context) (bool, []byte) {
	state, checks := r.now()
	if state != "" {
		return false, []byte(state + "\n")
	}
	found := r.check(ctx, checks)
	return found.ok, found.text
}

// check runs the checks unless their last results are fresh.
func (r *readiness) check(ctx context.Context, checks []readinessCheck) results {
	r.turn <- struct{}{}
	defer func() { <-r.turn }()
	if r.last.text == nil || time.Since(r.checked) > checkEvery {
		r.last.ok, r.last.passed, r.last.text = runChecks(context.WithoutCancel(ctx), checks)
		r.checked = time.Now()
	}
	return r.last
}

var (
	readyDesc = prometheus.NewDesc("purser_ready", "1 if requests can succeed, as /readyz says, else 0.", nil, nil)
	checkDesc = prometheus.NewDesc("purser_ready_check", "1 if a check of /readyz succeeds, else 0. There is none while the server starts and stops.", []string{"check"}, nil)
)

// Describe implements prometheus.Collector.
func (r *readiness) Describe(ch chan<- *prometheus.Desc) {
	ch <- readyDesc
	ch <- checkDesc
}

// Collect implements prometheus.Collector. It runs the checks, so that the metrics tell of a database
// that is away although no client asks for anything.
func (r *readiness) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, ok bool, labels ...string) {
		value := 0.0
		if ok {
			value = 1
		}
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	state, checks := r.now()
	if state != "" {
		gauge(readyDesc, false)
		return
	}
	found := r.check(context.Background(), checks)
	gauge(readyDesc, found.ok)
	for i, c := range checks {
		gauge(checkDesc, found.passed[i], c.name)
	}
}

// runChecks runs the checks concurrently and waits for all of them: see inTime. It returns whether all
// of them succeeded, apart from those marked as spare, which of them did, and a text with one line
// per check.
func runChecks(ctx context.Context, checks []readinessCheck) (ok bool, passed []bool, lines []byte) {
	errs := make([]error, len(checks))
	var wg sync.WaitGroup
	for i, c := range checks {
		wg.Go(func() { errs[i] = c.run(ctx) })
	}
	wg.Wait()
	var text bytes.Buffer
	ok = true
	for i, c := range checks {
		passed = append(passed, errs[i] == nil)
		if errs[i] != nil {
			ok = ok && c.spare
			fmt.Fprintf(&text, "%s: %v\n", c.name, errs[i])
			continue
		}
		fmt.Fprintf(&text, "%s: ok\n", c.name)
	}
	return ok, passed, text.Bytes()
}

func (r *readiness) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	ok, text := r.answer(req.Context())
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	if !ok {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	w.Write(text) //nolint:errcheck // the client is gone
}
