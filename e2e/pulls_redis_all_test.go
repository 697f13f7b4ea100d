//go:build all

package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// freeze suspends Redis while a function runs.
func (s *redisServer) freeze(during func()) {
	s.t.Helper()
	if err := s.p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		s.t.Fatal(err)
	}
	defer s.p.cmd.Process.Signal(syscall.SIGCONT) //nolint:errcheck // without it the test fails
	during()
}

// metric returns the current value of the metric `name`, which includes the labels.
func (r *registry) metric(name string) int64 {
	r.t.Helper()
	res, err := http.Get("http://" + r.debug + "/metrics")
	if err != nil {
		r.t.Fatal(err)
	}
	defer res.Body.Close()
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		if value, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
			n, err := strconv.ParseFloat(value, 64)
			if err != nil {
				r.t.Fatalf("the metric %s: %v", name, err)
			}
			return int64(n)
		}
	}
	r.t.Fatalf("there is no metric %s", name)
	return 0
}

// events returns the value of the metric purser_redis_pull_events_total for this result,
// summed over all replicas.
func (s *pullScene) events(result string) (n int64) {
	s.t.Helper()
	for _, r := range s.replicas {
		n += r.metric(fmt.Sprintf("purser_redis_pull_events_total{result=%q}", result))
	}
	return n
}

// Clients pull through two replicas. Three times the test kills Redis, lets the replicas go on
// without it, and starts it again. Then it suspends Redis until the replicas have given up
// waiting for answers; when Redis resumes, it executes the requests that they had sent. No
// pull may fail. Each must be counted once, except that pulls for which Redis didn't answer in
// time may be missing.
func TestPullsSurviveRedisKill9(t *testing.T) {
	beginOwn(t)
	redis := startRedis(t)
	s := newPullScene(t, 2, redis.env()...)
	img := newImage(t, 1, 1<<10)
	digest := digestOf(t, img)
	s.push("app", "v1", img)

	var pulled atomic.Int64
	wait := s.pullAlways("app", &pulled)
	more := func(n int64) { // waits for n more pulls
		t.Helper()
		until := pulled.Load() + n
		eventually(t, time.Minute, func() error {
			if got := pulled.Load(); got < until {
				return fmt.Errorf("%d pulls, want %d", got, until)
			}
			return nil
		})
	}
	for range 3 {
		more(200)
		redis.p.kill()
		more(200)
		redis.Start()
		eventually(t, time.Minute, s.tryFlush)
	}
	more(200)
	redis.freeze(func() {
		before := s.events("unanswered")
		eventually(t, time.Minute, func() error {
			if s.events("unanswered") == before {
				return errors.New("everything is answered")
			}
			return nil
		})
		more(200)
	})
	more(200)
	wait()

	all := pulled.Load()
	eventually(t, time.Minute, func() error {
		if n := s.events("recorded") + s.events("logged") + s.events("unanswered"); n != all {
			return fmt.Errorf("%d of %d pulls have come to something", n, all)
		}
		return nil
	})
	least := all - s.events("unanswered")
	eventually(t, time.Minute, func() error {
		s.r.remote("pulls", "flush")
		if n := s.manifestPulls("app", digest); n < least {
			return fmt.Errorf("%d pulls are counted, want at least %d of %d", n, least, all)
		}
		return nil
	})
	s.r.remote("pulls", "flush")
	if n := s.manifestPulls("app", digest); n < least || n > all {
		t.Errorf("%d pulls are counted, want %d to %d", n, least, all)
	}
	if n := s.tagPulls("app", "v1"); n != s.manifestPulls("app", digest) {
		t.Errorf("%d pulls of the tag, and %d of the manifest", n, s.manifestPulls("app", digest))
	}
	if n := s.events("dropped"); n > 0 {
		t.Errorf("%d pulls were dropped", n)
	}
	t.Logf("%d pulls: %d recorded, %d logged, %d unanswered; %d are counted",
		all, s.events("recorded"), s.events("logged"), s.events("unanswered"), s.manifestPulls("app", digest))
}

// tryFlush asks the first replica to add the pulls that are in Redis to the statistics.
func (s *pullScene) tryFlush() error {
	s.t.Helper()
	if code, out := purser(s.t, []string{"PURSER_SERVER=" + s.r.URL()}, "pulls", "flush"); code != 0 {
		return errors.New(out)
	}
	return nil
}

// pullAlways pulls the tag v1 through all replicas again and again, until stop is called.
func (s *pullScene) pullAlways(repo string, pulled *atomic.Int64) (stop func()) {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.t.Context())
	var wg sync.WaitGroup
	for _, r := range s.replicas {
		api := r.API()
		for range 2 {
			wg.Go(func() {
				for ctx.Err() == nil {
					if _, _, err := api.manifest(s.t.Context(), repo, "v1"); err != nil {
						s.t.Errorf("pulling: %v", err)
						return
					}
					pulled.Add(1)
				}
			})
		}
	}
	stop = sync.OnceFunc(func() { cancel(); wg.Wait() })
	s.t.Cleanup(stop)
	return stop
}
