package pullstats

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/pullstats/redispulls"
)

// asked returns when, according to Uses, the tag v1 and the manifest with the content "a"
// were last used.
func (s *shop) asked(t testing.TB, r *redispulls.Client) (Uses, error) {
	t.Helper()
	w := s.worker(t, func(o *SyncOptions) { o.Redis = r })
	return w.Uses(t.Context(), s.repositories[0], []string{"v1"}, []string{digest("a").String()})
}

func (s *shop) since(t testing.TB) time.Time {
	t.Helper()
	st, err := s.worker(t).Status(t.Context())
	must(t, err)
	return st.Since
}

// Redis is emptied, at each step of a flush, between flushes, and before the first flush
// with pulls. Then Uses must fail until a flush has recorded that statistics are complete
// only from then on.
func TestRedisEmptied(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	c := server.client(t)
	for _, when := range []string{"never flushed", "flushed", "begun", "read", "before commit", "after commit", "settled"} {
		s := open(t, false, 1)
		must(t, c.FlushAll(t.Context()).Err())
		r := server.open(t, s.stats)
		rec := s.recorder(t, r, unlogged)
		w := s.flusher(t, r)
		must(t, w.Flush(t.Context()))
		s.since(t) // makes the state's row
		exec(t, s.stats, "UPDATE pullstatisticsprocessingstate SET recorded_since = $1", noon)
		if when != "never flushed" {
			recorded(t, rec, s.pull(0, "v0", "z", time.Now()))
			must(t, w.Flush(t.Context()))
		}
		recorded(t, rec, s.pull(0, "v1", "a", time.Now()))
		emptied := time.Now()
		empty := func() { must(t, c.FlushAll(t.Context()).Err()) }
		switch when {
		case "never flushed", "flushed":
			empty()
		default:
			w.crash = at(when, empty)
			if err := w.Flush(t.Context()); !errors.Is(err, redispulls.ErrLost) {
				t.Errorf("%s: a flush that was complete, or not for this: %v", when, err)
			}
		}
		if uses, err := s.asked(t, r); !errors.Is(err, redispulls.ErrLost) {
			t.Errorf("%s: when tags were used is known: %v, %v", when, uses, err)
		}
		must(t, w.Flush(t.Context()))
		if since := s.since(t); since.Before(emptied.Add(-time.Second)) {
			t.Errorf("%s: statistics are complete since %v, want since %v", when, since, emptied)
		}
		now := time.Now().Truncate(time.Second)
		recorded(t, rec, s.pull(0, "v1", "a", now))
		uses, err := s.asked(t, r)
		if err != nil || uses.Tags["v1"].Before(now) || uses.Manifests[digest("a").String()].Before(now) {
			t.Errorf("%s: later it was used at %v: %v", when, uses, err)
		}
		must(t, w.Flush(t.Context()))
		s.drained(t, c)
	}
}

// After a flush has got its number, and before it reads counters, Redis is emptied and gets
// new pulls. The flush must count none of the new pulls, since afterwards nothing would show
// which pulls in the audit log Redis has lost. The next flush must have all of them counted.
func TestRedisEmptiedAndFilled(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	s := open(t, false, 1)
	c := server.client(t)
	r := server.open(t, s.stats)
	w := s.flusher(t, r)
	must(t, w.Flush(t.Context()))
	w.crash = at("numbered", func() {
		for range 2 { // the first one loses its pulls
			rec := s.recorder(t, r)
			_, err := rec.presence.tick(t.Context())
			must(t, err)
			must(t, c.FlushAll(t.Context()).Err())
			rec.Pulled(t.Context(), s.client("a", 0, "v1", "a"))
			finish(t, rec)
		}
	})
	if err := w.Flush(t.Context()); !errors.Is(err, redispulls.ErrLost) {
		t.Errorf("a flush of a Redis that was emptied: %v, want %v", err, redispulls.ErrLost)
	}
	if n := len(s.books(t)); n > 0 {
		t.Errorf("that flush has counted pulls: %d statistics", n)
	}
	must(t, w.Flush(t.Context()))
	settle(t, s.worker(t))
	if n := s.books(t)[tagName(s, 0, "v1")].Count; n != 2 {
		t.Errorf("%d pulls are counted, want 2", n)
	}
}

// The row of a counter in redispullcounters must stay for a day after a flush last found the
// counter in Redis, and then be deleted. The row of a counter that Redis still has must
// stay.
func TestRedisForgetsCounters(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	s := open(t, false, 1)
	c := server.client(t)
	r := server.open(t, s.stats)
	w := s.flusher(t, r)
	list := []audit.Entry{s.pull(0, "stays", "a", noon), s.pull(0, "goes", "a", noon)}
	recorded(t, s.recorder(t, r, unlogged), list...)
	must(t, w.Flush(t.Context()))
	must(t, c.Del(t.Context(), counterKey(s.repositories[0], "goes", digest("a"))).Err())
	for _, age := range []string{"23 hours", "25 hours"} {
		exec(t, s.stats, "UPDATE redispullcounters SET updated_at = now() - $1::text::interval", age)
		must(t, s.flusher(t, r).Flush(t.Context()))
		want := map[string]int64{"23 hours": 2, "25 hours": 1}[age]
		if n := number(t, s.stats, "SELECT count(*) FROM redispullcounters"); n != want {
			t.Errorf("%d counters are known after %s, want %d", n, age, want)
		}
		must(t, w.Flush(t.Context())) // w deletes no rows: it has looked for old ones within the hour
	}
	compare(t, s.books(t), truth(list))
}

// Two registries are configured with the same Redis, which has pulls of the first one. Every
// method of the second registry must return redispulls.ErrNotOwner and change nothing in Redis.
func TestRedisOfAnother(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	first, second := open(t, false, 1), open(t, false, 1)
	exec(t, second.stats, "UPDATE redisprocessingstate SET owner = gen_random_uuid()") // otherwise both databases have the owner of their template
	r := server.open(t, first.stats)
	list := []audit.Entry{first.pull(0, "v1", "a", noon)}
	recorded(t, first.recorder(t, r, unlogged), list...)
	other := server.open(t, second.stats)
	if err := second.flusher(t, other).Flush(t.Context()); !errors.Is(err, redispulls.ErrNotOwner) {
		t.Errorf("a flush of another registry's Redis: %v, want %v", err, redispulls.ErrNotOwner)
	}
	kept, err := second.recorder(t, other, unlogged).queue.record(t.Context(), waiting([]audit.Entry{second.pull(0, "v1", "b", noon)}))
	if !errors.Is(err, redispulls.ErrNotOwner) || len(kept) != 1 {
		t.Errorf("a pull is recorded in another registry's Redis: %d kept, %v", len(kept), err)
	}
	if _, err := second.asked(t, other); !errors.Is(err, redispulls.ErrNotOwner) {
		t.Errorf("uses are read in another registry's Redis: %v", err)
	}
	must(t, first.flusher(t, r).Flush(t.Context()))
	compare(t, first.books(t), truth(list))
	if n := len(second.books(t)); n > 0 {
		t.Errorf("the other registry has %d statistics", n)
	}
}

// Redis is killed and started again many times while pulls are recorded and flushed, and the
// connections to PostgreSQL are cut. Each pull that Redis answered must count once.
func TestRedisRestarts(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	s := open(t, false, 3)
	r := server.open(t, s.stats)
	rec := s.recorder(t, r, unlogged)
	stop := make(chan struct{})
	var group errgroup.Group
	flushed, failed, first := 0, 0, make(chan struct{})
	group.Go(func() error {
		w := s.flusher(t, r, func(o *redispulls.FlushOptions) { o.Batch = 7 })
		for {
			select {
			case <-stop:
				return nil
			default:
			}
			if err := w.Flush(t.Context()); err != nil {
				failed++
			} else if flushed++; flushed == 1 {
				close(first)
			}
		}
	})
	random := rand.New(rand.NewPCG(5, 5))
	var all []audit.Entry
	unknown := map[string]bool{} // tags and manifests with pulls that may or may not have been counted
	lost := 0
	for round := range 6 {
		killed := make(chan struct{})
		if round > 0 {
			go func() {
				defer close(killed)
				time.Sleep(time.Duration(random.IntN(30)) * time.Millisecond)
				server.Kill()
			}()
		} else {
			close(killed)
		}
		for n := range 150 {
			var list []audit.Entry
			for range 1 + n%20 {
				list = append(list, s.pull(n%3, fmt.Sprint("v", len(all)%9), fmt.Sprint(len(all)%4), noon.Add(time.Duration(round*100000+n*100+len(list))*time.Millisecond)))
			}
			batch := waiting(list)
			kept, err := rec.queue.record(t.Context(), batch)
			refused := map[*event]bool{}
			for _, e := range kept {
				refused[e] = true
			}
			for _, e := range batch {
				switch {
				case err == nil:
					all = append(all, e.Entry)
				case !refused[e]: // counted or not, so its tag and manifest aren't compared
					lost++
					for name := range truth([]audit.Entry{e.Entry}) {
						unknown[name] = true
					}
				}
			}
			if err != nil {
				break
			}
		}
		<-killed
		if round == 0 { // on a busy machine the other rounds may be too short for a flush
			select {
			case <-first:
			case <-time.After(time.Minute):
				t.Error("nothing is flushed")
			}
		}
		if round > 0 {
			cut := func() error {
				_, err := s.stats.Pool.Exec(t.Context(), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")
				return err
			}
			for deadline := time.Now().Add(time.Minute); cut() != nil; { // the pool may still have connections that an earlier round has cut
				if time.Now().After(deadline) {
					t.Fatal("the database can't be reached")
				}
			}
			server.Start(t)
		}
	}
	close(stop)
	must(t, group.Wait())
	w := s.flusher(t, r)
	for deadline := time.Now().Add(time.Minute); ; { // the pools may still have connections that were cut
		err := w.Flush(t.Context())
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	s.drained(t, server.client(t))
	got, want := s.books(t), truth(all)
	for name := range unknown {
		if n := got[name].Count - want[name].Count; n < 0 || n > int64(lost) {
			t.Errorf("%s: %d pulls, want %d and at most %d more", name, got[name].Count, want[name].Count, lost)
		}
		delete(got, name)
		delete(want, name)
	}
	compare(t, got, want)
	if flushed == 0 || failed == 0 {
		t.Errorf("%d flushes succeeded and %d failed", flushed, failed)
	}
	t.Logf("%d pulls were answered, %d not; %d flushes succeeded, %d failed", len(all), lost, flushed, failed)
}

// The statistics' database is set back to an older state, after several steps of a flush.
// Pulls that the database has lost must be counted again as far as Redis has them,
// statistics must count as incomplete, and later pulls must be counted too.
func TestRedisFlushRestoredDatabase(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	tables := []string{"redispullcounters", "redisprocessingstate", "tagpullstatistics", "manifestpullstatistics",
		"tagpullhistory", "manifestpullhistory", "repositorypullhistory", "namespacepullhistory", "pullhistory"}
	for _, step := range append([]string{""}, steps...) {
		s := open(t, false, 1)
		c := server.client(t)
		must(t, c.FlushAll(t.Context()).Err())
		r := server.open(t, s.stats)
		rec := s.recorder(t, r, unlogged)
		w := s.flusher(t, r)
		all := []audit.Entry{s.pull(0, "v1", "a", noon)}
		pull := func(tag, content string, after time.Duration) {
			t.Helper()
			e := s.pull(0, tag, content, noon.Add(after))
			recorded(t, rec, e)
			all = append(all, e)
		}
		recorded(t, rec, all...)
		must(t, w.Flush(t.Context()))
		for _, table := range tables { // makes the backup
			exec(t, s.stats, fmt.Sprintf("CREATE TABLE saved_%[1]s AS SELECT * FROM %[1]s", table))
		}
		for i := range 5 {
			pull("v1", "a", time.Duration(i+1)*time.Minute)
			must(t, w.Flush(t.Context()))
		}
		pull("v2", "b", time.Hour)
		if step != "" {
			w.crash = at(step, crashHere)
			if died, err := dies(func() error { return w.Flush(t.Context()) }); !died {
				t.Fatalf("nothing has %s: %v", step, err)
			}
		}
		for _, table := range tables {
			exec(t, s.stats, "TRUNCATE "+table)
			exec(t, s.stats, fmt.Sprintf("INSERT INTO %[1]s SELECT * FROM saved_%[1]s", table))
		}
		s.since(t) // makes the state's row
		exec(t, s.stats, "UPDATE pullstatisticsprocessingstate SET recorded_since = $1", noon)
		pull("v1", "a", 2*time.Hour)
		pull("v3", "c", 3*time.Hour)
		w = s.flusher(t, r)
		must(t, w.Flush(t.Context()))
		if since := s.since(t); since.Before(time.Now().Add(-time.Minute)) {
			t.Errorf("statistics that may miss pulls are complete since %v", since)
		}
		compare(t, s.books(t), truth(all))
		s.drained(t, c)
		exec(t, s.stats, "UPDATE pullstatisticsprocessingstate SET recorded_since = $1", noon)
		pull("v1", "a", 4*time.Hour)
		must(t, w.Flush(t.Context()))
		compare(t, s.books(t), truth(all))
		s.drained(t, c)
		if since := s.since(t); !since.Equal(noon) {
			t.Errorf("statistics are complete since %v, though nothing is missing any more", since)
		}
		if t.Failed() {
			t.Fatalf("restored after %q", step)
		}
	}
}
