package pullstats

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sync/errgroup"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/pullstats/redispulls"
)

// request is a client's request for a manifest: a HEAD or a GET, by tag or, if tag is "", by
// digest.
type request struct {
	head bool
	tag  string
}

// habits are sequences of requests that a client may make. The fields `v1`, `v2` and
// `manifest` are the numbers of pulls that must then be counted for the tag v1, for the tag
// v2, and for the manifest that both tags point to.
var habits = []struct {
	name             string
	requests         []request
	v1, v2, manifest int64
}{
	{"in two requests", []request{{true, "v1"}, {false, ""}}, 1, 0, 1},
	{"in two requests, and once more by digest", []request{{true, "v1"}, {false, ""}, {false, ""}}, 1, 0, 2},
	{"twice in two requests", []request{{true, "v1"}, {false, ""}, {true, "v1"}, {false, ""}}, 2, 0, 2},
	{"by digest, then in two requests", []request{{false, ""}, {true, "v2"}, {false, ""}}, 0, 1, 2},
	{"by digest, then the question", []request{{false, ""}, {true, "v1"}}, 0, 0, 1},
	{"by tag", []request{{false, "v1"}}, 1, 0, 1},
	{"the question alone", []request{{true, "v2"}}, 0, 0, 0},
	{"two questions and a pull", []request{{true, "v1"}, {true, "v2"}, {false, ""}}, 0, 1, 1},
	{"two questions and two pulls", []request{{true, "v1"}, {true, "v2"}, {false, ""}, {false, ""}}, 1, 1, 2},
}

// replicas are the recorders of several processes.
type replicas []*Recorder

func (list replicas) ask(t testing.TB, random *rand.Rand, e audit.Entry, r request) {
	rec := list[random.IntN(len(list))]
	if e.Tag = r.tag; r.head {
		rec.Checked(t.Context(), e)
	} else {
		rec.Pulled(t.Context(), e)
	}
}

// 600 clients make requests according to habits. One process answers them all, or three
// processes answer them in random order; pulls are counted from the audit log or in Redis.
// The counts must be those that belong to the clients' habits.
func TestCountsAreWhatClientsDid(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"log", "redis"} {
		for _, n := range []int{1, 3} {
			t.Run(fmt.Sprintf("%s/%d", how, n), func(t *testing.T) {
				t.Parallel()
				s := open(t, n == 3, 3)
				var r *redispulls.Client
				if how == "redis" {
					r = startRedis(t).open(t, s.stats)
				}
				list := s.replicas(t, r, n, nil)
				want := s.visit(t, list, 0, 600)
				for _, rec := range list {
					finish(t, rec)
				}
				s.count(t, r)
				s.wantCounts(t, want)
			})
		}
	}
}

// visit lets n clients, up to 16 of them at once, make the requests of randomly chosen
// habits. The clients of each round are other clients than those of earlier rounds. visit
// returns the number of pulls that must be counted, by tag and by manifest.
func (s *shop) visit(t testing.TB, list replicas, round, n int) map[string]int64 {
	var mu sync.Mutex
	want := map[string]int64{}
	var group errgroup.Group
	group.SetLimit(16)
	for i := range n {
		group.Go(func() error {
			random := rand.New(rand.NewPCG(uint64(i), 11))
			habit := habits[random.IntN(len(habits))]
			repository := random.IntN(len(s.repositories))
			e := s.client(fmt.Sprint("client ", i, " of ", round), repository, "", "x")
			for _, r := range habit.requests {
				list.ask(t, random, e, r)
				time.Sleep(time.Duration(1+random.IntN(5)) * time.Millisecond) // until the client has the answer
			}
			mu.Lock()
			defer mu.Unlock()
			want[tagName(s, repository, "v1")] += habit.v1
			want[tagName(s, repository, "v2")] += habit.v2
			want[manifestName(s, repository, "x")] += habit.manifest
			return nil
		})
	}
	must(t, group.Wait())
	return want
}

func (s *shop) wantCounts(t testing.TB, want map[string]int64) {
	t.Helper()
	got := s.books(t)
	for name, n := range want {
		if got[name].Count != n {
			t.Errorf("%s: %d pulls, want %d", name, got[name].Count, n)
		}
	}
}

// Clients make requests as in TestCountsAreWhatClientsDid, while workers that count from the
// audit log die at every step, or while Redis is killed and started again. The test expects
// that no pull is missing, except pulls that Redis didn't answer.
func TestCountsAreWhatClientsDidUnderFaults(t *testing.T) {
	t.Parallel()
	t.Run("log", func(t *testing.T) {
		t.Parallel()
		s := open(t, true, 3)
		list := s.replicas(t, nil, 3, nil)
		ctx, stop := context.WithCancel(t.Context())
		var workers errgroup.Group
		var died crashes
		for i := range 2 {
			workers.Go(func() error { return s.crashing(t, ctx, uint64(i), &died) })
		}
		want := s.visit(t, list, 0, 600)
		for _, rec := range list {
			finish(t, rec)
		}
		stop()
		must(t, workers.Wait())
		settle(t, s.worker(t))
		s.wantCounts(t, want)
	})
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		server := startRedis(t)
		s := open(t, false, 3)
		m := NewMetrics(prometheus.NewRegistry())
		list := s.replicas(t, server.open(t, s.stats), 3, m)
		want := map[string]int64{}
		for round := range 3 {
			var kill errgroup.Group
			kill.Go(func() error {
				time.Sleep(time.Duration(50+100*round) * time.Millisecond)
				server.Kill()
				return nil
			})
			for name, n := range s.visit(t, list, round, 300) {
				want[name] += n
			}
			must(t, kill.Wait())
			server.Start(t)
		}
		for _, rec := range list {
			finish(t, rec)
		}
		s.count(t, server.open(t, s.stats))
		lost := int64(testutil.ToFloat64(m.events.WithLabelValues(eventUnanswered)))
		got := s.books(t)
		for name, n := range want {
			if off := n - got[name].Count; off < 0 || off > lost {
				t.Errorf("%s: %d pulls, want %d, or %d less", name, got[name].Count, n, lost)
			}
		}
		t.Logf("%d pulls weren't answered by Redis", lost)
	})
}

// replicas starts n recorders with the metrics m. Their pulls are counted in Redis or, if r
// is nil, from the audit log.
func (s *shop) replicas(t testing.TB, r *redispulls.Client, n int, m *Metrics) (list replicas) {
	for range n {
		rec := s.recorder(t, r, func(o *RecorderOptions) { o.Metrics = m })
		running(t, rec)
		writing(t, rec.opt.Log)
		list = append(list, rec)
	}
	return list
}

// Three processes have clocks that are 10 seconds apart, and each client's requests reach
// different processes. The recorders must correct their clocks' offsets, so that a GET after
// a HEAD is joined and a GET before a HEAD isn't.
func TestClocks(t *testing.T) {
	t.Parallel()
	s := open(t, false, 1)
	list := s.replicas(t, nil, 3, nil)
	for i, rec := range list {
		rec.presence.mu.Lock()
		rec.presence.wall = func() time.Time { return time.Now().Add(time.Duration(i-1) * 10 * time.Second) }
		rec.presence.samples = nil
		rec.presence.mu.Unlock()
		for range clockSamples {
			_, err := rec.presence.tick(t.Context())
			must(t, err)
		}
	}
	for i := range 30 {
		e := s.client(fmt.Sprint("client", i), 0, "v1", "x")
		list[i%3].Checked(t.Context(), e)
		time.Sleep(20 * time.Millisecond) // until the client has the answer
		e.Tag = ""
		list[(i+1)%3].Pulled(t.Context(), e)
		e.Address += "'"
		list[i%3].Pulled(t.Context(), e)
		time.Sleep(20 * time.Millisecond)
		e.Tag = "v2"
		list[(i+2)%3].Checked(t.Context(), e)
	}
	for _, rec := range list {
		finish(t, rec)
	}
	settle(t, s.worker(t))
	s.wantCounts(t, map[string]int64{tagName(s, 0, "v1"): 30, tagName(s, 0, "v2"): 0, manifestName(s, 0, "x"): 60})
}

// A client sends a HEAD to one process and then a GET by digest to another. The GET is
// written to the log before the HEAD, and the worker reads the GET and the HEAD in
// different batches. The worker must not decide about the GET until the HEAD is written,
// and must then join them.
func TestJoinWaits(t *testing.T) {
	t.Parallel()
	s := open(t, true, 1)
	w := s.worker(t, func(o *SyncOptions) { o.Batch = 1 })
	one, two := s.recorder(t, nil), s.recorder(t, nil)
	for _, rec := range []*Recorder{one, two} {
		rec.Checked(t.Context(), s.client("someone else", 0, "v9", "x"))
		_, err := rec.presence.tick(t.Context()) // the recorder reports an unwritten HEAD
		must(t, err)
	}
	one.Checked(t.Context(), s.client("a", 0, "v1", "x"))
	two.Pulled(t.Context(), s.client("a", 0, "", "x"))
	must(t, two.opt.Log.Close(t.Context())) // the GET is in the log, and its HEAD isn't
	must(t, two.Leave(t.Context(), false))
	until(t, "the pull is counted", func() bool {
		must(t, w.Sync(t.Context()))
		return s.books(t)[manifestName(s, 0, "x")].Count == 1
	})
	if n := number(t, s.stats, "SELECT count(*) FROM pullstatisticspending WHERE NOT head"); n != 1 {
		t.Fatalf("%d pulls wait for HEADs that aren't written, want 1", n)
	}
	finish(t, one)
	settle(t, w)
	s.wantCounts(t, map[string]int64{tagName(s, 0, "v1"): 1, manifestName(s, 0, "x"): 1})
	if n := number(t, s.log, "SELECT count(*) FROM pullheads"); n != 0 {
		t.Errorf("%d HEADs that were read are still there", n)
	}
}

// Two workers look at the same GET by digest, which is the older of two, and the second worker joins
// it first. The first worker then finds the other GET, for whose repository it has not asked. It must
// not take this repository for a deleted one: the GET must count for its tag.
func TestJoinOfTwoWorkers(t *testing.T) {
	t.Parallel()
	each(t, 2, func(t *testing.T, s *shop) {
		rec := s.recorder(t, nil)
		for i, tag := range []string{"v1", "v2"} {
			rec.Checked(t.Context(), s.client("a", i, tag, "x"))
			rec.Pulled(t.Context(), s.client("a", i, "", "x"))
		}
		finish(t, rec)
		one := func(o *SyncOptions) { o.Batch = 1 }
		first, second := s.worker(t, one), s.worker(t, one)
		met := false
		first.crash = func(step string) error {
			// When both HEADs and both GETs are pending, the log has nothing more, so that the watermark stays.
			if met || step != "read" || number(t, s.stats, "SELECT count(*) FROM pullstatisticspending") != 4 {
				return nil
			}
			met = true
			_, err := second.batch(t.Context())
			return err
		}
		settle(t, first)
		if !met {
			t.Fatal("the workers don't meet")
		}
		s.wantCounts(t, map[string]int64{
			tagName(s, 0, "v1"): 1, manifestName(s, 0, "x"): 1, tagName(s, 1, "v2"): 1, manifestName(s, 1, "x"): 1,
		})
	})
}

// Join = -1 switches joining off. With Join = 1 ms a GET that comes 5 ms after the HEAD
// isn't joined. In both cases the GET must count for the manifest alone.
func TestJoinSettings(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"log", "redis"} {
		s := open(t, false, 1)
		var r *redispulls.Client
		if how == "redis" {
			r = startRedis(t).open(t, s.stats)
		}
		off := s.recorder(t, r, func(o *RecorderOptions) { o.Join = -1 })
		off.Checked(t.Context(), s.client("a", 0, "v1", "x"))
		off.Pulled(t.Context(), s.client("a", 0, "", "x"))
		finish(t, off)
		short := s.recorder(t, r, func(o *RecorderOptions) { o.Join = time.Millisecond })
		short.Checked(t.Context(), s.client("b", 0, "v1", "x"))
		time.Sleep(5 * time.Millisecond)
		short.Pulled(t.Context(), s.client("b", 0, "", "x"))
		finish(t, short)
		if r != nil {
			must(t, s.flusher(t, r).Flush(t.Context()))
		}
		settle(t, s.worker(t, func(o *SyncOptions) { o.Join = time.Millisecond }))
		s.wantCounts(t, map[string]int64{tagName(s, 0, "v1"): 0, manifestName(s, 0, "x"): 2})
	}
}
