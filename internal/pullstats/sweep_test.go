package pullstats

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/worker"
)

// inventory tells a sweeper which tags and manifests exist.
type inventory struct {
	mu   sync.Mutex
	here map[string]bool
	look func(n int) // called before each lookup, with the lookup's number
	n    int
}

func thing(repository int64, name string) string { return fmt.Sprint(repository, " ", name) }

func (v *inventory) set(name string, here bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.here[name] = here
}

func (v *inventory) tags(_ context.Context, repositories []int64, names []string) ([]bool, error) {
	v.mu.Lock()
	v.n++
	n, look := v.n, v.look
	v.mu.Unlock()
	if look != nil {
		look(n)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	here := make([]bool, len(names))
	for i := range names {
		here[i] = v.here[thing(repositories[i], names[i])]
	}
	return here, nil
}

func (v *inventory) manifests(ctx context.Context, repositories []int64, digests []oci.Digest) ([]bool, error) {
	names := make([]string, len(digests))
	for i, d := range digests {
		names[i] = d.String()
	}
	return v.tags(ctx, repositories, names)
}

func (v *inventory) sweeper(t testing.TB, stats *db.DB, change ...func(*SweeperOptions)) *Sweeper {
	t.Helper()
	o := SweeperOptions{Stats: stats, Tags: v.tags, Manifests: v.manifests, Logger: quiet}
	for _, f := range change {
		f(&o)
	}
	w, err := NewSweeper(o)
	must(t, err)
	return w
}

// sweepAll sweeps both statistics tables once, and returns the number of pages.
func sweepAll(t testing.TB, w *Sweeper) (pages int) {
	t.Helper()
	for {
		end, err := w.page(t.Context())
		must(t, err)
		if pages++; end {
			return pages
		}
	}
}

// swept returns a string for each row of the two tables of statistics: the repository's id,
// a space, and the name of the tag or the digest of the manifest. An asterisk follows if the
// row is marked as gone (gone_since).
func swept(t testing.TB, stats *db.DB) []string {
	t.Helper()
	rows, err := stats.Pool.Query(t.Context(), `
		SELECT repository_id || ' ' || tag_name || CASE WHEN gone_since IS NULL THEN '' ELSE '*' END FROM tagpullstatistics
		UNION ALL
		SELECT repository_id || ' ' || manifest_digest || CASE WHEN gone_since IS NULL THEN '' ELSE '*' END FROM manifestpullstatistics ORDER BY 1`)
	must(t, err)
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	must(t, err)
	return list
}

func expect(t testing.TB, stats *db.DB, when string, want ...string) {
	t.Helper()
	slices.Sort(want)
	if got := swept(t, stats); !slices.Equal(got, want) {
		t.Errorf("%s:\n%q, want\n%q", when, got, want)
	}
}

// A sweep must mark the rows of missing tags and manifests, and delete them after the whole
// Window. It must remove the mark of a tag or manifest that exists again, and keep a row
// that was used within the Window.
func TestSweep(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"tag", "manifest"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			s := open(t, false, 1)
			table, name, count, last := "tagpullstatistics", "tag_name", "tag_pull_count", "last_tag_pull_date"
			label := func(n string) string { return n }
			if kind == "manifest" {
				table, name, count, last = "manifestpullstatistics", "manifest_digest", "total_pull_count", "last_pull_date"
				label = func(n string) string { return digest(n).String() }
			}
			key := func(n string) string { return thing(7, label(n)) }
			v := &inventory{here: map[string]bool{key("here"): true, key("other"): true, thing(8, label("missing")): true}}
			w := v.sweeper(t, s.stats)
			for _, n := range []string{"here", "missing", "back", "used", "checked", "waiting"} {
				exec(t, s.stats, fmt.Sprintf("INSERT INTO %s (repository_id, %s, %s, %s) VALUES (7, $1, 3, now() - interval '100 days')", table, name, count, last), label(n))
			}
			exec(t, s.stats, fmt.Sprintf("INSERT INTO %s (repository_id, %s, %s) VALUES (8, $1, 3)", table, name, count), label("missing"))
			marked := []string{key("here"), key("missing") + "*", key("back") + "*", key("used") + "*", key("checked") + "*", key("waiting") + "*", thing(8, label("missing"))}
			sweepAll(t, w)
			expect(t, s.stats, "after the first sweep", marked...)
			first := number(t, s.stats, "SELECT max((extract(epoch FROM gone_since) * 1e6)::bigint) FROM "+table)
			sweepAll(t, w)
			expect(t, s.stats, "after the second", marked...)
			if again := number(t, s.stats, "SELECT max((extract(epoch FROM gone_since) * 1e6)::bigint) FROM "+table); again != first {
				t.Errorf("the second sweep sets the mark anew")
			}

			v.set(key("back"), true)
			ago := func(interval, of string) {
				t.Helper()
				exec(t, s.stats, fmt.Sprintf("UPDATE %s SET gone_since = now() - $1::text::interval WHERE repository_id = 7 AND %s = $2", table, name), interval, label(of))
			}
			for _, n := range []string{"missing", "back", "used", "checked"} {
				ago("31 days", n)
			}
			ago("29 days", "waiting")
			// The tag exists, but its row has a mark from 31 days ago, because a process
			// died before it could remove the mark.
			ago("31 days", "here")
			exec(t, s.stats, fmt.Sprintf("UPDATE %s SET %s = now() - interval '1 day' WHERE %s = $1", table, last, name), label("used"))
			exec(t, s.stats, fmt.Sprintf("UPDATE %s SET last_check_date = now() - interval '1 day' WHERE %s = $1", table, name), label("checked"))
			sweepAll(t, w)
			left := []string{key("here"), key("back"), key("used") + "*", key("checked") + "*", key("waiting") + "*", thing(8, label("missing"))}
			expect(t, s.stats, "after the window", left...)
			if n := number(t, s.stats, fmt.Sprintf("SELECT %s FROM %s WHERE %s = $1", count, table, name), label("back")); n != 3 {
				t.Errorf("what is back has %d pulls", n)
			}
			sweepAll(t, w)
			expect(t, s.stats, "after one more", left...)
		})
	}
}

// A sweep of several pages must check every row, on whichever page the row is.
func TestSweepPages(t *testing.T) {
	t.Parallel()
	s := open(t, false, 1)
	v := &inventory{here: map[string]bool{}}
	w := v.sweeper(t, s.stats)
	if n := sweepAll(t, w); n != 2 {
		t.Errorf("%d pages of nothing", n)
	}
	exec(t, s.stats, "INSERT INTO tagpullstatistics (repository_id, tag_name) SELECT 1 + n / 700, 't' || n FROM generate_series(0, 1999) n")
	exec(t, s.stats, "INSERT INTO manifestpullstatistics (repository_id, manifest_digest) SELECT 1 + n / 700, 'sha256:' || encode(sha256(n::text::bytea), 'hex') FROM generate_series(0, 2100) n")
	if n := sweepAll(t, w); n != 3+3 {
		t.Errorf("%d pages", n)
	}
	const left = "SELECT (SELECT count(*) FROM tagpullstatistics WHERE %s) + (SELECT count(*) FROM manifestpullstatistics WHERE %[1]s)"
	if n := number(t, s.stats, fmt.Sprintf(left, "gone_since IS NULL")); n != 0 {
		t.Errorf("%d rows aren't marked", n)
	}
	exec(t, s.stats, "UPDATE tagpullstatistics SET gone_since = now() - interval '31 days'")
	exec(t, s.stats, "UPDATE manifestpullstatistics SET gone_since = now() - interval '31 days'")
	sweepAll(t, w)
	if n := number(t, s.stats, fmt.Sprintf(left, "true")); n != 0 {
		t.Errorf("%d rows are left", n)
	}
}

// The row of a missing tag is due for deletion. Between the sweeper's two lookups the tag
// comes back, or somebody changes the row. Then the sweeper must not delete the row.
func TestSweepRaces(t *testing.T) {
	t.Parallel()
	const old = "UPDATE tagpullstatistics SET gone_since = now() - interval '31 days'"
	for name, tc := range map[string]struct {
		then string // SQL that runs before the second lookup
		back bool   // the tag exists at the second lookup
		want []string
	}{
		"nothing":            {want: nil},
		"a restore":          {back: true, want: []string{"1 v1*"}},
		"a pull":             {then: "UPDATE tagpullstatistics SET tag_pull_count = tag_pull_count + 1, last_tag_pull_date = now()", want: []string{"1 v1*"}},
		"a late pull":        {then: "UPDATE tagpullstatistics SET tag_pull_count = tag_pull_count + 1", want: []string{"1 v1*"}},
		"a HEAD":             {then: "UPDATE tagpullstatistics SET last_check_date = now()", want: []string{"1 v1*"}},
		"another time":       {then: "UPDATE tagpullstatistics SET last_tag_pull_date = now() - interval '40 days'", want: []string{"1 v1*"}},
		"another sweep":      {then: "UPDATE tagpullstatistics SET gone_since = NULL", want: []string{"1 v1"}},
		"a new mark":         {then: "UPDATE tagpullstatistics SET gone_since = now()", want: []string{"1 v1*"}},
		"an end of the row":  {then: "DELETE FROM tagpullstatistics", want: nil},
		"a change of others": {then: "UPDATE tagpullstatistics SET redis_last_processed = now()", want: nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t, false, 1)
			v := &inventory{here: map[string]bool{}}
			w := v.sweeper(t, s.stats)
			exec(t, s.stats, "INSERT INTO tagpullstatistics (repository_id, tag_name, tag_pull_count) VALUES (1, 'v1', 5)")
			exec(t, s.stats, old)
			v.look = func(n int) {
				if n != 2 {
					return
				}
				if tc.then != "" {
					exec(t, s.stats, tc.then)
				}
				if tc.back {
					v.set("1 v1", true)
				}
			}
			if _, err := w.page(t.Context()); err != nil {
				t.Fatal(err)
			}
			if v.n != 2 {
				t.Errorf("%d looks", v.n)
			}
			expect(t, s.stats, "afterwards", tc.want...)
		})
	}
}

// A transaction has locked two rows. A sweep must not wait for them, and must not mark or
// delete them.
func TestSweepDoesNotWait(t *testing.T) {
	t.Parallel()
	s := open(t, false, 1)
	v := &inventory{here: map[string]bool{}}
	w := v.sweeper(t, s.stats)
	exec(t, s.stats, `INSERT INTO tagpullstatistics (repository_id, tag_name, gone_since)
		SELECT 1, name, CASE WHEN name < 'c' THEN now() - interval '31 days' END FROM unnest('{a,b,c,d}'::text[]) name`)
	tx, err := s.stats.Pool.Begin(t.Context())
	must(t, err)
	defer tx.Rollback(context.Background()) //nolint:errcheck // after the commit
	_, err = tx.Exec(t.Context(), "UPDATE tagpullstatistics SET tag_pull_count = tag_pull_count + 1 WHERE tag_name IN ('a', 'c')")
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if _, err := w.page(ctx); err != nil {
		t.Fatalf("with rows that are held: %v", err)
	}
	must(t, tx.Commit(t.Context()))
	expect(t, s.stats, "afterwards", "1 a*", "1 c", "1 d*")
	w.table = 0
	sweepAll(t, w)
	expect(t, s.stats, "after the next sweep", "1 c*", "1 d*")
}

// The sweeper's loop must begin one sweep after another.
func TestSweeperRuns(t *testing.T) {
	t.Parallel()
	s := open(t, false, 1)
	exec(t, s.stats, "INSERT INTO tagpullstatistics (repository_id, tag_name) VALUES (1, 'v1'), (1, 'v2')")
	sweeps := make(chan int, 100)
	v := &inventory{here: map[string]bool{"1 v2": true}, look: func(n int) { sweeps <- n }}
	w := v.sweeper(t, s.stats, func(o *SweeperOptions) { o.Interval, o.Window = time.Millisecond, time.Microsecond })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- w.Run(ctx) }()
	// The first sweep looks v1 up and marks its row. The second sweep looks v1 up twice and
	// deletes the row. With the fourth lookup the third sweep begins; wait for it.
	for n := 0; n < 4; {
		select {
		case n = <-sweeps:
		case <-time.After(time.Minute):
			t.Fatal("nothing is swept")
		}
	}
	cancel()
	must(t, <-done)
	expect(t, s.stats, "in the end", "1 v2")
}

// While the clock is in doubt, the loop must sweep nothing, neither mark nor delete.
func TestSweepInDoubt(t *testing.T) {
	t.Parallel()
	s := open(t, false, 1)
	exec(t, s.stats, "INSERT INTO tagpullstatistics (repository_id, tag_name, gone_since) VALUES (1, 'v1', now() - interval '31 days'), (1, 'v2', NULL)")
	looked, asked := make(chan struct{}, 100), make(chan struct{}, 100)
	v := &inventory{here: map[string]bool{}, look: func(int) { looked <- struct{}{} }}
	w := v.sweeper(t, s.stats, func(o *SweeperOptions) {
		o.Interval = time.Nanosecond
		o.MayDelete = func(context.Context) error {
			asked <- struct{}{}
			return fmt.Errorf("the clocks disagree: %w", worker.ErrRest)
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- w.Run(ctx) }()
	select {
	case <-asked:
	case <-looked:
		t.Error("it sweeps in doubt")
	}
	cancel()
	must(t, <-done)
	expect(t, s.stats, "in doubt", "1 v1*", "1 v2")
}

// Three sweepers run while writers count pulls. Tags that exist all the time must lose no
// pull, and no deadlock may occur.
func TestSweepStorm(t *testing.T) {
	t.Parallel()
	s := open(t, false, 1)
	const names, rounds = 60, 150
	v := &inventory{here: map[string]bool{}}
	for i := range names {
		v.here[thing(1, fmt.Sprint("t", i))] = i%3 > 0
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var writers, sweepers sync.WaitGroup
	stop := make(chan struct{})
	for range 3 {
		w := v.sweeper(t, s.stats, func(o *SweeperOptions) { o.Window = time.Microsecond })
		sweepers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := w.page(ctx); err != nil {
					t.Errorf("sweeping: %v", err)
					return
				}
			}
		})
	}
	var mu sync.Mutex
	truth := map[string]int64{}
	for range 4 {
		writers.Go(func() {
			for range rounds {
				var batch []string
				for i := range names {
					if rand.IntN(3) == 0 {
						batch = append(batch, fmt.Sprint("t", i))
					}
				}
				slices.Sort(batch)
				if i := rand.IntN(names); i%3 == 2 { // these tags come and go, and are pulled while they exist
					v.set(thing(1, fmt.Sprint("t", i)), rand.IntN(2) == 0)
				}
				_, err := s.stats.Pool.Exec(ctx, `
					INSERT INTO tagpullstatistics AS s (repository_id, tag_name, tag_pull_count, last_tag_pull_date)
					SELECT 1, name, 1, now() FROM unnest($1::text[]) name
					ON CONFLICT (repository_id, tag_name) DO UPDATE SET tag_pull_count = s.tag_pull_count + 1, last_tag_pull_date = now()`, batch)
				if err != nil {
					t.Errorf("counting: %v", err)
					return
				}
				mu.Lock()
				for _, name := range batch {
					truth[name]++
				}
				mu.Unlock()
			}
		})
	}
	writers.Wait()
	close(stop)
	sweepers.Wait()
	for i := range names {
		name := fmt.Sprint("t", i)
		if i%3 != 1 {
			continue
		}
		if n := number(t, s.stats, "SELECT tag_pull_count FROM tagpullstatistics WHERE tag_name = $1", name); n != truth[name] {
			t.Errorf("%s: %d pulls, want %d", name, n, truth[name])
		}
	}
	// No writer runs any more, so two sweeps must mark and delete the rows of missing tags.
	w := v.sweeper(t, s.stats, func(o *SweeperOptions) { o.Window = time.Microsecond })
	sweepAll(t, w)
	sweepAll(t, w)
	if n := number(t, s.stats, "SELECT count(*) FROM tagpullstatistics WHERE gone_since IS NOT NULL"); n != 0 {
		t.Errorf("%d rows of what is gone are left", n)
	}
}
