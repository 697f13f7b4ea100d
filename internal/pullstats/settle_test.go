package pullstats

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sync/errgroup"

	"github.com/purser-registry/purser/internal/pullstats/redispulls"
	"github.com/purser-registry/purser/internal/pullstats/statsdb"
	"github.com/purser-registry/purser/internal/testscale"
	"github.com/purser-registry/purser/internal/worker"
)

// A process has answered requests whose uses are in its memory only. Settle must name it and
// fail, until the uses are written, or until the process counts as killed. After a kill the
// statistics must be complete only from then on.
func TestSettle(t *testing.T) {
	t.Parallel()
	for name, use := range map[string]func(rec *Recorder, s *shop){
		"GET by tag":     func(rec *Recorder, s *shop) { rec.Pulled(t.Context(), s.client("a", 0, "v1", "x")) },
		"GET by digest":  func(rec *Recorder, s *shop) { rec.Pulled(t.Context(), s.client("a", 0, "", "x")) },
		"HEAD by tag":    func(rec *Recorder, s *shop) { rec.Checked(t.Context(), s.client("a", 0, "v1", "x")) },
		"HEAD by digest": func(rec *Recorder, s *shop) { rec.Checked(t.Context(), s.client("a", 0, "", "x")) },
	} {
		for _, how := range []string{"log", "redis"} {
			for _, killed := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%s/killed=%v", name, how, killed), func(t *testing.T) {
					t.Parallel()
					s := open(t, true, 1)
					var r *redispulls.Client
					if how == "redis" {
						r = startRedis(t).open(t, s.stats)
					}
					m := NewMetrics(prometheus.NewRegistry())
					w := s.worker(t, func(o *SyncOptions) { o.Redis, o.Metrics = r, m })
					must(t, w.Sync(t.Context()))
					exec(t, s.stats, "UPDATE pullstatisticsprocessingstate SET recorded_since = now() - interval '60 days', checks_since = now() - interval '60 days'")
					w.patience = 300 * time.Millisecond
					rec := s.recorder(t, r)
					must(t, rec.Open(t.Context()))
					_, err := rec.presence.tick(t.Context())
					must(t, err)
					must(t, w.Settle(t.Context()))
					rec.presence.gate.on.Store(false) // nothing runs that would report
					use(rec, s)
					tick := func() {
						_, err := rec.presence.tick(t.Context())
						must(t, err)
					}
					tick()
					tick() // it has learned what others ask
					if err := w.Settle(t.Context()); !errors.Is(err, ErrUnsettled) || !strings.Contains(err.Error(), rec.presence.instance) {
						t.Fatalf("before the use is written: %v", err)
					}
					tick()
					tick()
					if err := w.Settle(t.Context()); !errors.Is(err, ErrUnsettled) || testutil.ToFloat64(m.silent) != 1 {
						t.Fatalf("before the use is written, and reported: %v; waiting for %v", err, testutil.ToFloat64(m.silent))
					}
					if killed {
						exec(t, s.stats, "UPDATE pullrecorders SET seen_at = now() - interval '5 minutes'")
						if err := w.Settle(t.Context()); !errors.Is(err, ErrUnsettled) { // it finds the process dead
							t.Fatalf("while the process may be alive: %v", err)
						}
						must(t, w.Settle(t.Context()))
						if st := s.counts(t); time.Since(st.Since) > time.Minute || testutil.ToFloat64(m.lost) != 1 {
							t.Errorf("complete since %v though a process was killed; %v told", st.Since, testutil.ToFloat64(m.lost))
						}
						return
					}
					finish(t, rec)
					must(t, w.Settle(t.Context()))
					uses, err := w.Uses(t.Context(), s.repositories[0], []string{"v1"}, []string{digest("x").String()})
					must(t, err)
					if at := uses.Tags["v1"]; strings.HasSuffix(name, "tag") && time.Since(at) > time.Minute {
						t.Errorf("the tag was used at %v", at)
					}
					if at := uses.Manifests[digest("x").String()]; !strings.HasPrefix(name, "HEAD by tag") && time.Since(at) > time.Minute {
						t.Errorf("the manifest was used at %v", at)
					}
				})
			}
		}
	}
}

// reporting calls fn, and lets the recorder report meanwhile, as often as it does when it is asked.
func reporting(t testing.TB, rec *Recorder, fn func()) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan error, 1)
	go func() {
		var err error
		for err == nil && ctx.Err() == nil {
			_, err = rec.presence.tick(context.WithoutCancel(ctx))
			worker.Sleep(ctx, 10*time.Millisecond) //nolint:errcheck // then the loop ends
		}
		done <- err
	}()
	fn()
	stop()
	must(t, <-done)
}

// A batch of pulls is on its way to a Redis that hangs, so that these pulls are in no queue, not in
// Redis, and not in the audit log. Settle must name the process and fail, until they are written.
func TestSettleInFlight(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*RecorderOptions){"logged": func(*RecorderOptions) {}, "not logged": unlogged} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t, true, 1)
			r, p := startRedis(t).behind(t, s.stats)
			w := s.worker(t, func(o *SyncOptions) { o.Redis, o.Patience = r, time.Second })
			must(t, w.Sync(t.Context()))
			rec := s.recorder(t, r, change)
			must(t, rec.Open(t.Context()))
			rec.presence.gate.on.Store(false)                  // nothing runs that would report
			recorded(t, rec, s.pull(0, "v0", "z", time.Now())) // loads the scripts
			begun := time.Now().Add(-time.Second)              // for the clocks' offset
			reached, resume := p.hang("evalsha")
			defer resume()
			rec.Pulled(t.Context(), s.client("a", 0, "v1", "x"))
			sent := make(chan struct{})
			go func() {
				defer close(sent)
				rec.queue.send(context.WithoutCancel(t.Context()), time.Now(), time.Now().Add(time.Minute)) //nolint:errcheck // Redis may have hung too long
			}()
			<-reached
			reporting(t, rec, func() {
				if err := w.Settle(t.Context()); !errors.Is(err, ErrUnsettled) || !strings.Contains(err.Error(), rec.presence.instance) {
					t.Errorf("while Redis hangs: %v", err)
				}
			})
			resume()
			<-sent
			finish(t, rec)
			must(t, w.Settle(t.Context()))
			uses, err := w.Uses(t.Context(), s.repositories[0], []string{"v1"}, nil)
			must(t, err)
			if at := uses.Tags["v1"]; at.Before(begun) {
				t.Errorf("the tag was used at %v, want since %v", at, begun)
			}
		})
	}
}

// Recorders of several processes record uses, some of them in Redis. New ones start, others end,
// and the clocks of the processes differ. In one case Redis hangs now and then, and is slow for the
// recorders. Whoever calls Settle, and then Uses, must see each use
// that was answered before the call.
func TestSettleStorm(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"log", "redis", "redis, and not logged", hangingRedis} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			server := startRedis(t)
			s := open(t, true, 2)
			r, p := server.behind(t, s.stats)
			w := s.worker(t, func(o *SyncOptions) { o.Redis = server.open(t, s.stats) })
			must(t, w.Sync(t.Context()))
			storm := &useStorm{s: s, redis: r, how: how, answered: map[string]time.Time{}}
			group, ctx := errgroup.WithContext(t.Context())
			ctx, stop := context.WithCancel(ctx)
			defer stop()
			for i := range 4 {
				group.Go(func() error { return storm.process(ctx, t, i) })
			}
			for range 2 {
				group.Go(func() error { return storm.judge(ctx, w) })
			}
			if how == hangingRedis {
				group.Go(func() error { return storm.hinder(ctx, t, server, p) })
			}
			group.Go(func() error {
				storm.last(ctx, testscale.Pick(3*time.Second, time.Minute))
				stop()
				return nil
			})
			must(t, group.Wait())
			if storm.tooLittle() {
				t.Errorf("%d uses, %d looks: too few", storm.uses.Load(), storm.looks.Load())
			}
			t.Logf("%d uses by %d processes, %d looks", storm.uses.Load(), storm.processes.Load(), storm.looks.Load())
		})
	}
}

// hangingRedis is the case of TestSettleStorm whose Redis hangs now and then.
const hangingRedis = "redis that hangs"

// hinder lets Redis hang, and then be slow for the recorders, in turns until ctx ends.
func (u *useStorm) hinder(ctx context.Context, t testing.TB, server redisServer, p *proxy) error {
	some := func() { worker.Sleep(ctx, 400*time.Millisecond) } //nolint:errcheck // then the loop ends
	for ctx.Err() == nil {
		some()
		server.Suspend(t)
		some()
		server.Resume(t)
		some()
		p.lag(150*time.Millisecond, some)
	}
	return nil
}

// useStorm is the state of TestSettleStorm.
type useStorm struct {
	s     *shop
	redis *redispulls.Client
	how   string

	mu       sync.Mutex
	answered map[string]time.Time // by tag: when its last use was answered

	uses, looks, processes atomic.Int64
}

// tooLittle says whether so little has happened that the test proves nothing yet.
func (u *useStorm) tooLittle() bool { return u.uses.Load() < 100 || u.looks.Load() < 4 }

// last returns after the time d, and on a busy machine only when enough has happened, up to two
// minutes later.
func (u *useStorm) last(ctx context.Context, d time.Duration) {
	for most := time.Now().Add(d + 2*time.Minute); worker.Sleep(ctx, d) == nil && u.tooLittle() && time.Now().Before(most); {
		d = 100 * time.Millisecond
	}
}

// process runs processes one after another. Each of them records uses of random tags for some
// time, as fast or as slowly as clients come, and then ends.
func (u *useStorm) process(ctx context.Context, t testing.TB, i int) error {
	random := rand.New(rand.NewPCG(uint64(i), stormSeed))
	for ctx.Err() == nil {
		u.processes.Add(1)
		var counts *redispulls.Client
		if u.how != "log" && random.IntN(4) > 0 {
			counts = u.redis
		}
		rec := u.s.recorder(t, counts, func(o *RecorderOptions) {
			if u.how == "redis, and not logged" && counts != nil {
				o.Log = nil
			}
		})
		ahead := time.Duration(random.IntN(7200)-3600) * time.Second
		rec.presence.wall = func() time.Time { return time.Now().Add(ahead) }
		if err := rec.Open(context.WithoutCancel(ctx)); err != nil {
			return err
		}
		life, end := context.WithTimeout(context.WithoutCancel(ctx), time.Duration(500+random.IntN(3000))*time.Millisecond)
		var running errgroup.Group
		running.Go(func() error { return rec.Run(life) })
		running.Go(func() error { return rec.opt.LastUsed.Run(life) })
		if rec.opt.Log != nil {
			running.Go(func() error { return rec.opt.Log.Run(life) })
		}
		quiet := time.Duration(1+random.IntN(300)) * time.Millisecond
		for life.Err() == nil && ctx.Err() == nil {
			u.use(t, rec, random)
			worker.Sleep(life, time.Duration(random.Int64N(int64(quiet)))) //nolint:errcheck // then the loop ends
		}
		end()
		if err := running.Wait(); err != nil {
			return err
		}
		finish(t, rec)
	}
	return nil
}

// use records a use of a random tag, and takes note that it was answered.
func (u *useStorm) use(t testing.TB, rec *Recorder, random *rand.Rand) {
	repository, tag := random.IntN(2), fmt.Sprint("v", u.uses.Add(1)/3)
	e := u.s.client(fmt.Sprint("client ", random.IntN(20)), repository, tag, tag)
	switch random.IntN(3) {
	case 0:
		rec.Checked(t.Context(), e)
	case 1:
		rec.Pulled(t.Context(), e)
	case 2:
		e.Tag = ""
		rec.Pulled(t.Context(), e)
	}
	name := fmt.Sprint(repository, " ", tag)
	if e.Tag == "" {
		name = fmt.Sprint(repository, " ", e.Digest)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.answered[name] = time.Now()
}

// judge asks when tags were last used, as a run of auto-pruning does.
func (u *useStorm) judge(ctx context.Context, w *SyncWorker) error {
look:
	for ctx.Err() == nil {
		before := map[string]time.Time{}
		u.mu.Lock()
		for name, at := range u.answered {
			before[name] = at
		}
		u.mu.Unlock()
		if err := w.Settle(context.WithoutCancel(ctx)); u.unknown(err) {
			continue
		} else if err != nil {
			return err
		}
		for repository, id := range u.s.repositories {
			var tags, digests []string
			for name := range before {
				if of, name, _ := strings.Cut(name, " "); of == fmt.Sprint(repository) {
					if strings.Contains(name, ":") {
						digests = append(digests, name)
					} else {
						tags = append(tags, name)
					}
				}
			}
			uses, err := w.Uses(context.WithoutCancel(ctx), id, tags, digests)
			if u.unknown(err) {
				continue look
			} else if err != nil {
				return err
			}
			for _, list := range []map[string]time.Time{uses.Tags, uses.Manifests} {
				for name, at := range list {
					delete(before, fmt.Sprint(repository, " ", name))
					if !u.plausible(at) {
						return fmt.Errorf("%s was used at %v", name, at)
					}
				}
			}
		}
		for name, at := range before {
			return fmt.Errorf("the use of %s, answered %v ago, isn't known", name, time.Since(at))
		}
		u.looks.Add(1)
		worker.Sleep(ctx, time.Duration(rand.IntN(200))*time.Millisecond) //nolint:errcheck // then the loop ends
	}
	return nil
}

// unknown says whether the judge got no answer because Redis hangs. It deletes nothing then.
func (u *useStorm) unknown(err error) bool { return err != nil && u.how == hangingRedis }

// plausible says whether a use of this test may have happened at `at`, by the database's clock.
func (u *useStorm) plausible(at time.Time) bool { return time.Since(at).Abs() < 2*time.Minute }

// A process without unwritten uses must change its row before it answers the next request.
func TestIdleProcessTellsFirst(t *testing.T) {
	t.Parallel()
	s := open(t, false, 1)
	rec := s.recorder(t, nil)
	must(t, rec.Open(t.Context()))
	running(t, rec)
	stopped, stop := context.WithCancel(context.Background())
	defer stop()
	go rec.opt.LastUsed.Run(stopped) //nolint:errcheck // it returns nil
	writing(t, rec.opt.Log)
	idle := func() bool {
		return number(t, s.stats, "SELECT count(*) FROM pullrecorders WHERE written_to IS NULL") == 1
	}
	for i := range testscale.Pick(3, 20) {
		until(t, "the process has written everything", idle)
		e := s.client("a", 0, fmt.Sprint("v", i), "x")
		if i%2 == 0 {
			rec.Pulled(t.Context(), e)
		} else {
			rec.Checked(t.Context(), e)
		}
		if idle() {
			t.Fatal("the process has answered a request, and others take it for one without unwritten uses")
		}
	}
}

// A request must wait at the gate until the row is changed, or until nobody trusts the row any
// more and the database can't be reached.
func TestGate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := &gate{base: time.Now(), changed: make(chan struct{})}
		pass := func() time.Duration {
			begun := time.Now()
			g.pass(t.Context(), func() {})
			return time.Since(begun)
		}
		in := func(d time.Duration, open bool, err error) {
			time.AfterFunc(d, func() { g.told(time.Now(), open, err) })
		}
		want := func(what string, got, want time.Duration) {
			t.Helper()
			if got != want {
				t.Errorf("%s: a request waited for %v, want %v", what, got, want)
			}
		}
		want("before reports begin", pass(), 0)
		g.on.Store(true)
		g.shut()
		g.told(time.Now(), false, nil)
		in(time.Second, true, nil)
		want("the row is changed", pass(), time.Second)
		want("the row says so", pass(), 0)
		time.Sleep(statsdb.GoneAfter)
		in(time.Second, true, nil)
		want("the process was stopped for a minute", pass(), time.Second)
		time.Sleep(time.Second)
		g.shut()
		for d := range 30 { // also the report that was to say that there are no unwritten uses
			in(time.Duration(d)*time.Second+time.Millisecond, false, errCrash)
		}
		want("the database is away", pass(), trustedFor+time.Millisecond)
		want("the database is still away", pass(), 0)
		time.Sleep(time.Minute)
		g.shut()
		g.told(time.Now(), false, nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begun := time.Now()
		if g.pass(ctx, func() {}) || time.Since(begun) != time.Second {
			t.Errorf("a request that has ended waited for %v", time.Since(begun))
		}
	})
}
