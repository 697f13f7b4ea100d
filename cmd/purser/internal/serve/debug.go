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

// readinessCheck tests something that the registry depends on.
type readinessCheck struct {
	name string
	run  func(ctx context.Context) error
	// spare says that requests succeed even if the check fails. Then the failure is
	// reported, but the server stays ready.
	spare bool
}

// readiness answers whether requests can succeed. An answer is reused for a second, so
// that any number of clients causes one check per second.
type readiness struct {
	mu      sync.Mutex
	state   string // why the server isn't ready, before any checks; "" once it is up
	checks  []readinessCheck
	checked time.Time
	ok      bool
	text    []byte
}

func newReadiness() *readiness { return &readiness{state: "starting"} }

// started sets the checks that decide from now on whether the server is ready.
func (r *readiness) started(checks ...readinessCheck) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state, r.checks = "", checks
}

// stopping makes the server not ready for good.
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

// runChecks runs the checks concurrently.
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
