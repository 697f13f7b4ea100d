package worker_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/purser-registry/purser/internal/worker"
)

// running is a loop that runs in a goroutine with the test's artificial clock (synctest).
type running struct {
	*worker.Loop
	stop func() // ends the loop and waits for it
}

func run(t *testing.T, o worker.Options) running {
	t.Helper()
	if o.Name == "" {
		o.Name = "test"
	}
	if o.Log == nil {
		o.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	l := worker.New(o)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	return running{l, func() {
		t.Helper()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v, want nil", err)
		}
	}}
}

func TestLoopDoesNotSleepWhileWorkIsDue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := 0
		start := time.Now()
		l := run(t, worker.Options{Batch: func(context.Context) (bool, error) {
			n++
			return n < 1000, nil
		}})
		synctest.Wait()
		if n != 1000 || !time.Now().Equal(start) {
			t.Errorf("%d batches after %v, want 1000 at once", n, time.Since(start))
		}
		l.stop()
	})
}

func TestLoopIdlesAtMostAMinute(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]worker.Options{
		"long Idle": {Idle: time.Hour},
		"long Next": {Next: func(context.Context) (time.Duration, error) { return time.Hour, nil }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var at []time.Time
				o.Batch = func(context.Context) (bool, error) {
					at = append(at, time.Now())
					return false, nil
				}
				l := run(t, o)
				time.Sleep(10 * time.Minute)
				l.stop()
				if len(at) < 10 {
					t.Fatalf("%d batches in 10 minutes, want at least 10", len(at))
				}
				gaps := map[time.Duration]bool{}
				for i := 1; i < len(at); i++ {
					gap := at[i].Sub(at[i-1])
					gaps[gap] = true
					if gap > time.Minute || gap < 50*time.Second {
						t.Errorf("slept %v, want a little below a minute", gap)
					}
				}
				if len(gaps) < 2 {
					t.Error("the sleeps have no jitter")
				}
			})
		})
	}
}

func TestLoopSleepsUntilWorkIsDue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		due := time.Now().Add(20 * time.Second)
		var late []time.Duration
		l := run(t, worker.Options{
			Batch: func(context.Context) (bool, error) {
				late = append(late, time.Since(due))
				return false, nil
			},
			Next: func(context.Context) (time.Duration, error) { return time.Until(due), nil },
		})
		time.Sleep(22 * time.Second)
		synctest.Wait()
		// The second batch must run when the work is due and not before. After that, Next says
		// that work is due, but the loop must sleep between batches.
		if len(late) < 2 || late[1] < 0 || late[1] > 2*time.Second {
			t.Errorf("batches at %v after the work was due", late)
		}
		if len(late) > 50 {
			t.Errorf("%d batches: the loop spins", len(late))
		}
		l.stop()
	})
}

func TestWake(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := 0
		start := time.Now()
		l := run(t, worker.Options{Batch: func(context.Context) (bool, error) {
			n++
			return false, nil
		}})
		for want := 2; want < 10; want++ {
			synctest.Wait()
			l.Wake()
			synctest.Wait()
			if n != want {
				t.Fatalf("%d batches, want %d", n, want)
			}
		}
		if !time.Now().Equal(start) {
			t.Errorf("waking took %v", time.Since(start))
		}
		l.stop()
	})
}

// TestWakeAfterAFailure: with WakeFailed, Wake ends the sleep after a failure too.
func TestWakeAfterAFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n, start := 0, time.Now()
		l := run(t, worker.Options{WakeFailed: true, BackoffMin: time.Hour, Batch: func(context.Context) (bool, error) {
			n++
			return false, errors.New("no luck")
		}})
		for want := 2; want < 5; want++ {
			synctest.Wait()
			l.Wake()
			synctest.Wait()
			if n != want || !time.Now().Equal(start) {
				t.Fatalf("%d batches after %v, want %d at once", n, time.Since(start), want)
			}
		}
		l.stop()
	})
}

// TestRest: a loop that may not work does nothing, without a failure, and works as soon as it may. A
// batch may say so too.
func TestRest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		var mu sync.Mutex // guards what the loop and the test use
		why, inBatch, asked, n := worker.ErrRest, false, 0, 0
		locked := func(fn func()) {
			mu.Lock()
			defer mu.Unlock()
			fn()
		}
		l := run(t, worker.Options{
			Log: slog.New(slog.NewTextHandler(&log, nil)),
			May: func(context.Context) (err error) {
				locked(func() { asked, err = asked+1, why })
				return err
			},
			Batch: func(context.Context) (more bool, err error) {
				locked(func() {
					if n++; inBatch {
						more, err = true, fmt.Errorf("in the middle: %w", worker.ErrRest)
					}
				})
				return more, err
			},
		})
		time.Sleep(59 * time.Second)
		synctest.Wait()
		locked(func() {
			if n != 0 || asked < 5 || asked > 6 {
				t.Errorf("%d batches, asked %d times", n, asked)
			}
			why, inBatch = nil, true
		})
		time.Sleep(12 * time.Second)
		synctest.Wait()
		locked(func() {
			if n != 1 && n != 2 {
				t.Errorf("%d batches that rest in 12 s, want one each 10 s", n)
			}
			why = errors.New("nobody can tell")
		})
		time.Sleep(30 * time.Second)
		l.stop()
		if text := log.String(); strings.Contains(text, "rest") || !strings.Contains(text, "nobody can tell") {
			t.Errorf("only the failure to ask is to be logged, and the log has: %s", text)
		}
	})
}

func TestWakeDuringABatchIsNotLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := 0
		var l running
		started, goOn := make(chan struct{}), make(chan struct{})
		l = run(t, worker.Options{Batch: func(context.Context) (bool, error) {
			if n++; n == 1 {
				close(started)
				<-goOn
			}
			return false, nil
		}})
		<-started
		l.Wake()
		l.Wake()
		close(goOn)
		synctest.Wait()
		if n != 2 {
			t.Errorf("%d batches, want one more for both wakes", n)
		}
		l.stop()
	})
}

func TestFailuresBackOff(t *testing.T) {
	t.Parallel()
	fail := func() error { return errors.New("no luck") }
	for name, batch := range map[string]func() error{
		"error": fail,
		"panic": func() error { panic("no luck") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { testBackoff(t, batch) })
		})
	}
}

func testBackoff(t *testing.T, fail func() error) {
	var log bytes.Buffer
	reg := prometheus.NewRegistry()
	metrics := worker.NewMetrics(reg)
	var at []time.Time
	l := run(t, worker.Options{
		Name: "unlucky", BackoffMin: time.Second, BackoffMax: 8 * time.Second,
		Log: slog.New(slog.NewTextHandler(&log, nil)), Metrics: metrics,
		Batch: func(context.Context) (bool, error) {
			if at = append(at, time.Now()); len(at) <= 8 {
				return true, fail()
			}
			return false, nil
		},
	})
	l.Wake() // must not cut a backoff short
	time.Sleep(time.Minute)
	l.stop()
	if len(at) < 9 {
		t.Fatalf("%d batches in a minute, want at least 9", len(at))
	}
	for i := range 8 {
		most := min(time.Second<<i, 8*time.Second)
		if gap := at[i+1].Sub(at[i]); gap < most/2 || gap > most {
			t.Errorf("failure %d: backed off %v, want %v to %v", i+1, gap, most/2, most)
		}
	}
	for _, want := range []string{"worker=unlucky", "no luck", "failures=8", "succeeds again"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log lacks %q:\n%s", want, &log)
		}
	}
	const counts = `
		# HELP purser_worker_batches_total Batches of background work, by result: ok or error.
		# TYPE purser_worker_batches_total counter
		purser_worker_batches_total{result="error",worker="unlucky"} 8
		purser_worker_batches_total{result="ok",worker="unlucky"} 2
	`
	if len(at) == 10 {
		if err := testutil.GatherAndCompare(reg, strings.NewReader(counts), "purser_worker_batches_total"); err != nil {
			t.Error(err)
		}
	}
}

func TestFailureOfNextBacksOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := 0
		l := run(t, worker.Options{
			Batch: func(context.Context) (bool, error) { n++; return false, nil },
			Next:  func(context.Context) (time.Duration, error) { return 0, errors.New("no luck") },
		})
		time.Sleep(10 * time.Second)
		l.stop()
		if n < 3 || n > 12 {
			t.Errorf("%d batches in 10 s, want a few", n)
		}
	})
}

func TestBatchIsTimedOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var took time.Duration
		l := run(t, worker.Options{Timeout: 3 * time.Second, Batch: func(ctx context.Context) (bool, error) {
			if took == 0 {
				<-ctx.Done()
				took = time.Since(start)
			}
			return false, ctx.Err()
		}})
		time.Sleep(4 * time.Second)
		synctest.Wait()
		if took != 3*time.Second {
			t.Errorf("the batch was ended after %v, want 3s", took)
		}
		l.stop()
	})
}

func TestStopEndsBatchAndSleep(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		over := false
		l := run(t, worker.Options{
			Log: slog.New(slog.NewTextHandler(&log, nil)),
			Batch: func(ctx context.Context) (bool, error) {
				<-ctx.Done()
				over = true
				return true, ctx.Err()
			}})
		synctest.Wait()
		start := time.Now()
		l.stop()
		if !over {
			t.Error("Run returned before its batch")
		}
		if log.Len() > 0 {
			t.Errorf("a batch that was cut off is logged as a failure:\n%s", &log)
		}
		idle := run(t, worker.Options{Batch: func(context.Context) (bool, error) { return false, nil }})
		synctest.Wait()
		idle.stop()
		if !time.Now().Equal(start) {
			t.Errorf("stopping took %v", time.Since(start))
		}
	})
}

func TestRunTwice(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := run(t, worker.Options{Batch: func(context.Context) (bool, error) { return false, nil }})
		synctest.Wait()
		if err := l.Run(t.Context()); !errors.Is(err, worker.ErrRunning) {
			t.Errorf("second Run: %v, want ErrRunning", err)
		}
		l.stop()
	})
}

func TestBackoffStaysInBounds(t *testing.T) {
	t.Parallel()
	for failures := range 200 {
		d := worker.Backoff(failures, time.Second, time.Hour)
		if d < time.Second/2 || d > time.Hour {
			t.Errorf("Backoff(%d) = %v", failures, d)
		}
	}
}

// A loop whose work has never succeeded has a time of its last success all the same, the start, so
// that an alert on old successes can fire.
func TestWorkThatNeverSucceeds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewRegistry()
		began := time.Now()
		l := run(t, worker.Options{Name: "hopeless", Metrics: worker.NewMetrics(reg),
			Batch: func(context.Context) (bool, error) { return false, errors.New("no database") }})
		time.Sleep(time.Hour)
		synctest.Wait()
		l.stop()
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() != "purser_worker_last_success_timestamp_seconds" {
				continue
			}
			if at := f.GetMetric()[0].GetGauge().GetValue(); at != float64(began.Unix()) {
				t.Errorf("the last success was at %v, want the start, %v", at, began.Unix())
			}
			return
		}
		t.Error("an alert can't see that nothing has succeeded")
	})
}
