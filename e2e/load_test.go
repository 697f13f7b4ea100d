package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
)

// load is a number of workers that push images until they are stopped. It records which pushes
// the registry has acknowledged.
type load struct {
	t    testing.TB
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu       sync.Mutex
	acked    map[string]digest.Digest // REPOSITORY:TAG → manifest
	progress chan struct{}            // has one element after an acknowledgement
	busy     int                      // answers 503
	failures []error
}

// startLoad starts the workers, each of which pushes one image after another. If a push fails,
// it counts as a failure unless `tolerate` returns true for the error. A 503 with Retry-After
// never counts as a failure.
func startLoad(t testing.TB, a *api, workers int, tolerate func(error) bool) *load {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	l := &load{t: t, stop: cancel, acked: map[string]digest.Digest{}, progress: make(chan struct{}, 1)}
	shared := randomBytes(32 << 10) // a base layer that all images have
	for worker := range workers {
		l.wg.Go(func() {
			repo := fmt.Sprintf("load/worker%d", worker)
			for i := 0; ctx.Err() == nil; i++ {
				l.push(ctx, a, repo, fmt.Sprintf("v%d", i), shared, tolerate)
			}
		})
	}
	t.Cleanup(l.Stop)
	return l
}

func (l *load) push(ctx context.Context, a *api, repo, tag string, shared []byte, tolerate func(error) bool) {
	// When the load is stopped, a push that has begun still continues to its end, so that the
	// test knows whether the registry has acknowledged it.
	d, err := a.pushImage(context.WithoutCancel(ctx), repo, tag, shared, randomBytes(64<<10), randomBytes(16<<10))
	l.mu.Lock()
	defer l.mu.Unlock()
	var answer *statusError
	switch {
	case err == nil:
		l.acked[repo+":"+tag] = d
		select {
		case l.progress <- struct{}{}:
		default:
		}
	case errors.As(err, &answer) && answer.status == http.StatusServiceUnavailable && answer.header.Get("Retry-After") != "":
		l.busy++
		time.Sleep(50 * time.Millisecond) // shorter than Retry-After, for more requests
	case !tolerate(err):
		l.failures = append(l.failures, err)
		time.Sleep(50 * time.Millisecond)
	default:
		time.Sleep(5 * time.Millisecond)
	}
}

// Await waits until the registry has acknowledged n more images.
func (l *load) Await(n int, within time.Duration) {
	l.t.Helper()
	timeout := time.After(within)
	for want := l.count() + n; l.count() < want; {
		select {
		case <-l.progress:
		case <-timeout:
			l.mu.Lock()
			defer l.mu.Unlock()
			l.t.Fatalf("%d images were acknowledged within %v, want %d more; answers 503: %d; errors: %v",
				len(l.acked), within, n, l.busy, errors.Join(l.failures...))
		}
	}
}

func (l *load) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.acked)
}

// Stop ends the workers and waits for them.
func (l *load) Stop() {
	l.stop()
	l.wg.Wait()
}

// Check stops the load and fails the test for each failed push. Then it pulls every image that
// the registry has acknowledged, with all of its content, through the client `a`.
func (l *load) Check(a *api) {
	l.t.Helper()
	l.Stop()
	for i, err := range l.failures {
		if i == 5 {
			l.t.Errorf("and %d more", len(l.failures)-i)
			break
		}
		l.t.Errorf("a request failed: %v", err)
	}
	l.t.Logf("acknowledged %d images, answered 503 %d times", len(l.acked), l.busy)
	l.CheckWhole(a)
}

// CheckWhole pulls every image that the registry has acknowledged, with all of its content,
// through the client `a`.
func (l *load) CheckWhole(a *api) {
	l.t.Helper()
	var wg sync.WaitGroup
	slots := make(chan struct{}, 4)
	for name, d := range l.acked {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			repo, tag := splitRef(name)
			a.checkWhole(l.t, repo, tag, d.String())
		})
	}
	wg.Wait()
}
