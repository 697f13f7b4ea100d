package pullstats

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/purser-registry/purser/internal/audit"
)

// asked is what is known of when v1 and the manifest of "a" were used.
func (s *shop) asked(t testing.TB, r *Redis) (Uses, error) {
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

// When Redis is emptied, Uses fails until a flush has noted that statistics are complete
// only from then on. This holds whenever it happens during a flush, and also if nothing was
// ever flushed.
func TestRedisEmptied(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	c := server.client(t)
	for _, when := range []string{"never flushed", "flushed", "opened", "claimed", "before commit", "after commit", "settled"} {
		s := open(t, false, 1)
		must(t, c.FlushAll(t.Context()).Err())
		r := server.open(t, s.stats)
		rec := s.recorder(t, r, unlogged)
		w := s.flusher(t, r)
		must(t, w.Flush(t.Context()))
		s.since(t) // is there now
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
			if err := w.Flush(t.Context()); err != nil && !errors.Is(err, errRedisLost) {
				t.Errorf("%s: a flush: %v", when, err)
			}
		}
		if uses, err := s.asked(t, r); !errors.Is(err, errRedisLost) {
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
		drained(t, c)
	}
}

// A Redis that has the pulls of another registry is refused, and left as it is.
func TestRedisOfAnother(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	first, second := open(t, false, 1), open(t, false, 1)
	exec(t, second.stats, "UPDATE redisprocessingstate SET owner = gen_random_uuid()") // that of a template
	r := server.open(t, first.stats)
	list := []audit.Entry{first.pull(0, "v1", "a", noon)}
	recorded(t, first.recorder(t, r, unlogged), list...)
	other := server.open(t, second.stats)
	if err := second.flusher(t, other).Flush(t.Context()); !errors.Is(err, ErrNotOwner) {
		t.Errorf("a flush of another registry's Redis: %v, want %v", err, ErrNotOwner)
	}
	kept, err := second.recorder(t, other, unlogged).queue.record(t.Context(), waiting([]audit.Entry{second.pull(0, "v1", "b", noon)}))
	if !errors.Is(err, ErrNotOwner) || len(kept) != 1 {
		t.Errorf("a pull is recorded in another registry's Redis: %d kept, %v", len(kept), err)
	}
	if _, err := second.asked(t, other); !errors.Is(err, ErrNotOwner) {
		t.Errorf("uses are read in another registry's Redis: %v", err)
	}
	must(t, first.flusher(t, r).Flush(t.Context()))
	compare(t, first.books(t), truth(list))
	if n := len(second.books(t)); n > 0 {
		t.Errorf("the other registry has %d statistics", n)
	}
}

// Redis is killed and started again, again and again, while pulls are recorded and
// flushed, and PostgreSQL cuts all connections: what was answered counts once.
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
		w := s.flusher(t, r, func(o *FlushOptions) { o.Batch = 7 })
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
	unknown := map[string]bool{} // names whose pulls may have been counted
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
				case !refused[e]: // counted or not: leave what it touches out
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
		if round == 0 { // on a busy machine no flush may end within the next ones
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
			for deadline := time.Now().Add(time.Minute); cut() != nil; { // the pool has connections that were cut before
				if time.Now().After(deadline) {
					t.Fatal("the database can't be reached")
				}
			}
			server.Start(t)
		}
	}
	close(stop)
	must(t, group.Wait())
	s.expire(t)
	w := s.flusher(t, r)
	for deadline := time.Now().Add(time.Minute); ; { // connections of the pools are still those that were cut
		err := w.Flush(t.Context())
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	drained(t, server.client(t))
	s.accounted(t)
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

// A database that was restored has none of the batches that Redis knows. Later pulls are
// counted nevertheless, and claims of those batches are counted again, since what the
// batches added is lost.
func TestRedisFlushRestoredDatabase(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	for _, step := range []string{"", "claimed", "before commit", "after commit"} {
		s := open(t, false, 1)
		c := server.client(t)
		must(t, c.FlushAll(t.Context()).Err())
		r := server.open(t, s.stats)
		rec := s.recorder(t, r, unlogged)
		w := s.flusher(t, r)
		early := []audit.Entry{s.pull(0, "v1", "a", noon)}
		recorded(t, rec, early...)
		must(t, w.Flush(t.Context()))
		// The backup.
		for _, table := range []string{"redisflushbatches", "redisprocessingstate", "tagpullstatistics", "manifestpullstatistics"} {
			exec(t, s.stats, fmt.Sprintf("CREATE TABLE saved_%[1]s AS SELECT * FROM %[1]s", table))
		}
		seq := number(t, s.stats, "SELECT last_value FROM redisflushbatches_id_seq")
		// Several flushes come after it: their settled keys are done with greater numbers.
		for i := range 5 {
			recorded(t, rec, s.pull(0, "v1", "a", noon.Add(time.Duration(i+1)*time.Minute)))
			must(t, w.Flush(t.Context()))
		}
		claims := []audit.Entry{s.pull(0, "v2", "b", noon.Add(time.Hour))}
		recorded(t, rec, claims...)
		if step != "" {
			w.crash = at(step, crashHere)
			if died, err := dies(func() error { return w.Flush(t.Context()) }); !died {
				t.Fatalf("nothing has %s: %v", step, err)
			}
		}
		for _, table := range []string{"redisflushbatches", "redisprocessingstate", "tagpullstatistics", "manifestpullstatistics"} {
			overriding := ""
			if table == "redisflushbatches" || table == "redisprocessingstate" {
				overriding = "OVERRIDING SYSTEM VALUE"
			}
			exec(t, s.stats, "TRUNCATE "+table)
			exec(t, s.stats, fmt.Sprintf("INSERT INTO %[1]s %[2]s SELECT * FROM saved_%[1]s", table, overriding))
		}
		exec(t, s.stats, "SELECT setval('redisflushbatches_id_seq', $1)", seq)
		s.since(t) // is there now
		exec(t, s.stats, "UPDATE pullstatisticsprocessingstate SET recorded_since = $1", noon)
		late := []audit.Entry{s.pull(0, "v1", "a", noon.Add(2*time.Hour)), s.pull(0, "v3", "c", noon.Add(3*time.Hour))}
		recorded(t, rec, late...)
		w = s.flusher(t, r)
		must(t, w.Flush(t.Context()))
		if since := s.since(t); since.Before(time.Now().Add(-time.Minute)) {
			t.Errorf("statistics that miss pulls are complete since %v", since)
		}
		// What was added after the backup is gone with it, and the rest counts.
		compare(t, s.books(t), truth(append(append(early, claims...), late...)))
		drained(t, c)
		more := []audit.Entry{s.pull(0, "v1", "a", noon.Add(4*time.Hour))}
		recorded(t, rec, more...)
		must(t, w.Flush(t.Context()))
		compare(t, s.books(t), truth(append(append(append(early, claims...), late...), more...)))
		drained(t, c)
		if t.Failed() {
			t.Fatalf("restored after %q", step)
		}
	}
}

// A claim of an unknown batch stops the flush with an error that says what to do.
func TestRedisUnknownBatch(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	s := open(t, false, 1)
	c := server.client(t)
	r := server.open(t, s.stats)
	rec := s.recorder(t, r, unlogged)
	recorded(t, rec, s.pull(0, "v1", "a", noon))
	w := s.flusher(t, r)
	w.crash = at("claimed", crashHere)
	if died, err := dies(func() error { return w.Flush(t.Context()) }); !died {
		t.Fatal(err)
	}
	must(t, s.flusher(t, r).Flush(t.Context())) // there is a batch with a greater number
	recorded(t, rec, s.pull(0, "v2", "a", noon))
	must(t, s.flusher(t, r).Flush(t.Context()))
	exec(t, s.stats, "DELETE FROM redisflushbatches WHERE state = 'open'")
	if err := s.flusher(t, r).Flush(t.Context()); !errors.Is(err, errUnknownBatch) {
		t.Errorf("a flush over a claim of nobody: %v", err)
	}
	must(t, c.Del(t.Context(), pullKey(s.repositories[0], "v1", digest("a"))).Err())
	must(t, s.flusher(t, r).Flush(t.Context()))
	compare(t, s.books(t), truth([]audit.Entry{s.pull(0, "v2", "a", noon)}))
}
