package serve

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"
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
	text    []byte
}

func newReadiness() *readiness { return &readiness{state: "starting"} }

// waits says what the start waits for now.
func (r *readiness) waits(what string) {
	r.mu.Lock()
	defer r.mu.Unlock()
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
	if r.text == nil || time.Since(r.checked) > checkEvery {
		r.ok, r.text = runChecks(context.WithoutCancel(ctx), r.checks)
		r.checked = time.Now()
	}
	return r.ok, r.text
}

// runChecks runs the checks concurrently, for at most checkTimeout. It returns whether all
// of them succeeded, apart from those marked as spare, and a text with one line per check.
func runChecks(ctx context.Context, checks []readinessCheck) (bool, []byte) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	errs := make([]error, len(checks))
	var wg sync.WaitGroup
	for i, c := range checks {
		wg.Go(func() { errs[i] = c.run(ctx) })
	}
	wg.Wait()
	var text bytes.Buffer
	ok := true
	for i, c := range checks {
		if errs[i] != nil {
			ok = ok && c.spare
			fmt.Fprintf(&text, "%s: %v\n", c.name, errs[i])
			continue
		}
		fmt.Fprintf(&text, "%s: ok\n", c.name)
	}
	return ok, text.Bytes()
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
