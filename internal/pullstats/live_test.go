package pullstats

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/purser-registry/purser/internal/pullstats/redispulls"
)

// A client pulls. Before and after each flush, and after flushes that die at one of their
// steps, the test adds the live pulls to the statistics. The sum must always be the number
// of pulls.
func TestLive(t *testing.T) {
	t.Parallel()
	s := open(t, false, 2)
	r := startRedis(t).open(t, s.stats)
	reader, err := NewReader(Options{DB: s.stats, Redis: r})
	must(t, err)
	w := s.flusher(t, r)
	pull := func(repository int, tag, content string) {
		rec := s.recorder(t, r)
		rec.Pulled(t.Context(), s.client("a", repository, tag, content))
		finish(t, rec)
	}
	read := func() (tag, manifest Row) {
		t.Helper()
		live, err := reader.Live(t.Context(), s.repositories[0], func(ctx context.Context, reader *Reader) (err error) {
			if tag, err = reader.TagRow(ctx, s.repositories[0], "v1"); err == nil {
				manifest, err = reader.ManifestRow(ctx, s.repositories[0], digest("x"))
			}
			return err
		})
		must(t, err)
		return live.Tag(tag), live.Manifest(manifest)
	}
	pull(0, "v1", "x")
	pull(0, "v2", "x")
	pull(0, "", "x")
	pull(1, "v1", "x")
	if tag, m := read(); tag.Count != 1 || tag.Other != digest("x").String() || m.Count != 3 || m.Other != "v2" || m.Last.IsZero() {
		t.Errorf("before the flush: %+v, %+v", tag, m)
	}
	must(t, w.Flush(t.Context()))
	if tag, m := read(); tag.Count != 1 || m.Count != 3 {
		t.Errorf("after the flush: %+v, %+v", tag, m)
	}
	pull(0, "v1", "y")
	if tag, m := read(); tag.Count != 2 || tag.Other != digest("y").String() || m.Count != 3 {
		t.Errorf("after a pull more: %+v, %+v", tag, m)
	}
	for _, crashAt := range []string{"read", "before commit", "after commit", "settled"} {
		pull(0, "v1", "y")
		want := number(t, s.stats, "SELECT tag_pull_count FROM tagpullstatistics WHERE tag_name = 'v1' AND repository_id = $1", s.repositories[0]) + 1
		if crashAt == "read" {
			want++ // the dead worker hasn't flushed the pull above
		}
		func() {
			defer func() { recover() }() //nolint:errcheck // the test itself panics, as a crash
			w := s.flusher(t, r)
			w.crash = func(step string) {
				if step == crashAt {
					panic("the process ends here")
				}
			}
			w.Flush(t.Context()) //nolint:errcheck // it panics before it returns
		}()
		if tag, _ := read(); tag.Count != want {
			t.Errorf("flush died at %q: %d pulls, want %d", crashAt, tag.Count, want)
		}
		must(t, w.Flush(t.Context()))
		if tag, _ := read(); tag.Count != want {
			t.Errorf("flush went on after %q: %d pulls, want %d", crashAt, tag.Count, want)
		}
	}
}

// One process pulls and flushes while a reader adds up statistics and live pulls again and
// again. The sum must never fall from one reading to the next, and must end at the number of
// pulls.
func TestLiveDuringFlushes(t *testing.T) {
	t.Parallel()
	s := open(t, false, 1)
	r := startRedis(t).open(t, s.stats)
	reader, err := NewReader(Options{DB: s.stats, Redis: r})
	must(t, err)
	group, ctx := errgroup.WithContext(t.Context())
	const pulls = 300
	group.Go(func() error {
		for i := range pulls {
			rec := s.recorder(t, r)
			rec.Pulled(ctx, s.client("a", 0, "v1", string(rune('a'+rand.IntN(5)))))
			finish(t, rec)
			if i%10 == 9 {
				if err := s.flusher(t, r).Flush(ctx); err != nil {
					return err
				}
			}
		}
		return nil
	})
	var seen []int64
	for len(seen) == 0 || seen[len(seen)-1] < pulls {
		var tag Row
		live, err := reader.Live(ctx, s.repositories[0], func(ctx context.Context, reader *Reader) (err error) {
			tag, err = reader.TagRow(ctx, s.repositories[0], "v1")
			return err
		})
		if err != nil {
			t.Error(err) // Live must not fail during a flush

			break
		}
		seen = append(seen, live.Tag(tag).Count)
	}
	must(t, group.Wait())
	if !slices.IsSorted(seen) || len(seen) == 0 || seen[len(seen)-1] != pulls {
		t.Errorf("counts fell, or came to more than %d: %v", pulls, seen)
	}
}

// If there is no Redis, or it doesn't answer, Live must still call read, whose statistics
// are valid, and then return ErrNotLive.
func TestLiveWithoutRedis(t *testing.T) {
	t.Parallel()
	s := open(t, false, 1)
	server := startRedis(t)
	r := server.open(t, s.stats)
	server.Kill()
	for name, redis := range map[string]*redispulls.Client{"none": nil, "away": r} {
		reader, err := NewReader(Options{DB: s.stats, Redis: redis})
		must(t, err)
		calls := 0
		_, err = reader.Live(t.Context(), s.repositories[0], func(context.Context, *Reader) error { calls++; return nil })
		if !errors.Is(err, ErrNotLive) || calls == 0 {
			t.Errorf("%s: %v after %d readings, want ErrNotLive after one at least", name, err, calls)
		}
		broken := errors.New("broken")
		if _, err = reader.Live(t.Context(), s.repositories[0], func(context.Context, *Reader) error { return broken }); !errors.Is(err, broken) || errors.Is(err, ErrNotLive) {
			t.Errorf("%s: %v, want what read says", name, err)
		}
	}
}

// Merge must insert rows for names that only Redis has, at the place in the page where the
// order of names puts them.
func TestMerge(t *testing.T) {
	t.Parallel()
	add := func(r Row) Row { r.Count++; return r }
	for _, c := range []struct {
		page, live, want string
		after            string
		limit            int
	}{
		{"bd", "ace", "abcde", "", 9},
		{"bd", "ace", "abc", "", 3},
		{"bd", "ace", "ab", "", 2},
		{"bd", "bd", "bd", "", 2},
		{"de", "abce", "cde", "b", 3},
		{"", "cab", "abc", "", 3},
		{"", "cab", "c", "b", 3},
	} {
		var page []Row
		var live []string
		for _, n := range c.page {
			page = append(page, Row{Name: string(n), Count: 10})
		}
		for _, n := range c.live {
			live = append(live, string(n))
		}
		got := ""
		for _, r := range Merge(page, live, add, c.after, c.limit) {
			got += r.Name
		}
		if got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
}
