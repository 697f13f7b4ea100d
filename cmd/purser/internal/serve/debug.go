package serve

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	checkTimeout = 2 * time.Second
	checkEvery   = time.Second
)

// readinessCheck tests one thing that the registry depends on, such as the database.
type readinessCheck struct {
	name string
	run  func(ctx context.Context) error
	// spare says that requests succeed even if this check fails. A failure is then shown in
	// the answer of /readyz, but the server stays ready.
	spare bool
}

// readiness answers /readyz: whether requests can succeed now. The result of the checks is
// reused for a second, so that they run at most once per second, however many clients ask.
type readiness struct {
	mu      sync.Mutex
	state   string // why the server isn't ready, before any checks; "" once it is up
	waiting string // what the start waits for
	checks  []readinessCheck
	checked time.Time
	ok      bool
	passed  []bool // of checks
	text    []byte
}

func newReadiness() *readiness { return &readiness{state: "starting"} }

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
	r.state, r.checks = "", checks
}

// stopping makes /readyz answer that the server isn't ready, until the process ends.
func (r *readiness) stopping() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state = "stopping"
}

func (r *readiness) answer(ctx context.Context) (bool, []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state != "" {
		return false, []byte(r.state + "\n")
	}
	r.check(ctx)
	return r.ok, r.text
}

// check runs the checks unless their last results are fresh. The caller has the lock.
func (r *readiness) check(ctx context.Context) {
	if r.text == nil || time.Since(r.checked) > checkEvery {
		r.ok, r.passed, r.text = runChecks(context.WithoutCancel(ctx), r.checks)
		r.checked = time.Now()
	}
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
	r.mu.Lock()
	defer r.mu.Unlock()
	gauge := func(d *prometheus.Desc, ok bool, labels ...string) {
		value := 0.0
		if ok {
			value = 1
		}
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	if r.state != "" {
		gauge(readyDesc, false)
		return
	}
	r.check(context.Background())
	gauge(readyDesc, r.ok)
	for i, c := range r.checks {
		gauge(checkDesc, r.passed[i], c.name)
	}
}

// runChecks runs the checks concurrently, for at most checkTimeout. It returns whether all
// of them succeeded, apart from those marked as spare, which of them did, and a text with one line
// per check.
func runChecks(ctx context.Context, checks []readinessCheck) (ok bool, passed []bool, lines []byte) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
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
