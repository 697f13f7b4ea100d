package pullstats

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/pullstats/statsdb"
)

// History is how many pulls there were on each day of a span of days. The last day is today.
type History struct {
	// Since is the first day of the history: nothing is known about earlier days. Of the pulls
	// of this first day some may be missing. Zero: nothing was ever counted.
	Since time.Time
	Days  []statsdb.DayPulls // the days from Since on, oldest first, those without pulls too
	Total int64              // pulls of all these days
}

// span is the days of a history.
type span struct{ since, from, to time.Time }

// RegistryHistory returns the pulls of the registry on each of the last n days.
func (r *Reader) RegistryHistory(ctx context.Context, n int) (History, error) {
	return r.history(ctx, n, func(s span) (pgx.Rows, error) {
		return r.q.Query(ctx, "SELECT day, pulls FROM pullhistory WHERE day >= $1 AND day <= $2", s.from, s.to)
	})
}

// NamespaceHistory returns the pulls of a namespace on each of the last n days, those of
// deleted repositories included.
func (r *Reader) NamespaceHistory(ctx context.Context, namespace int64, n int) (History, error) {
	return r.history(ctx, n, func(s span) (pgx.Rows, error) {
		return r.q.Query(ctx, "SELECT day, pulls FROM namespacepullhistory WHERE namespace_id = $1 AND day >= $2 AND day <= $3", namespace, s.from, s.to)
	})
}

// HistoryOf returns the pulls of namespaces and of further repositories on each of the last n days,
// each pull once.
func (r *Reader) HistoryOf(ctx context.Context, namespaces, repositories []int64, n int) (History, error) {
	return r.history(ctx, n, func(s span) (pgx.Rows, error) {
		return r.q.Query(ctx, `
			SELECT day, sum(pulls)::bigint FROM (
				SELECT day, pulls FROM namespacepullhistory WHERE namespace_id = ANY ($1) AND day >= $3 AND day <= $4
				UNION ALL
				SELECT day, pulls FROM repositorypullhistory
				WHERE repository_id = ANY ($2) AND namespace_id <> ALL ($1) AND day >= $3 AND day <= $4) p
			GROUP BY day`, append([]int64{}, namespaces...), append([]int64{}, repositories...), s.from, s.to)
	})
}

// RepositoryHistory returns the pulls of a repository on each of the last n days, those of
// deleted tags and manifests included.
func (r *Reader) RepositoryHistory(ctx context.Context, repository int64, n int) (History, error) {
	return r.history(ctx, n, func(s span) (pgx.Rows, error) {
		return r.q.Query(ctx, "SELECT day, pulls FROM repositorypullhistory WHERE repository_id = $1 AND day >= $2 AND day <= $3", repository, s.from, s.to)
	})
}

// TagHistory returns the pulls of a tag on each of the last n days.
func (r *Reader) TagHistory(ctx context.Context, repository int64, name string, n int) (History, error) {
	return r.history(ctx, n, func(s span) (pgx.Rows, error) {
		return r.q.Query(ctx, `
			SELECT day, pulls FROM tagpullhistory WHERE repository_id = $1 AND tag_name = $2 AND day >= $3 AND day <= $4
			UNION ALL
			SELECT day, day_pulls FROM tagpullstatistics WHERE repository_id = $1 AND tag_name = $2 AND day >= $3 AND day <= $4`, repository, name, s.from, s.to)
	})
}

// ManifestHistory returns the pulls of a manifest, by any tag or by digest, on each of the last
// n days.
func (r *Reader) ManifestHistory(ctx context.Context, repository int64, d oci.Digest, n int) (History, error) {
	return r.history(ctx, n, func(s span) (pgx.Rows, error) {
		return r.q.Query(ctx, `
			SELECT day, pulls FROM manifestpullhistory WHERE repository_id = $1 AND manifest_digest = $2 AND day >= $3 AND day <= $4
			UNION ALL
			SELECT day, day_pulls FROM manifestpullstatistics WHERE repository_id = $1 AND manifest_digest = $2 AND day >= $3 AND day <= $4`, repository, d.String(), s.from, s.to)
	})
}

// history makes the history of the last n days of the rows that `read` returns: days and
// pulls, in any order.
func (r *Reader) history(ctx context.Context, n int, read func(s span) (pgx.Rows, error)) (h History, err error) {
	s, err := r.span(ctx, n)
	if err != nil || s.since.IsZero() {
		return h, err
	}
	h.Since = s.since
	for day := s.from; !day.After(s.to); day = day.AddDate(0, 0, 1) {
		h.Days = append(h.Days, statsdb.DayPulls{Day: day})
	}
	rows, err := read(s)
	if err != nil {
		return History{}, fmt.Errorf("reading the history of pulls: %w", err)
	}
	var day time.Time
	var pulls int64
	if _, err := pgx.ForEachRow(rows, []any{&day, &pulls}, func() error {
		h.Days[int(day.Sub(s.from)/(24*time.Hour))].Pulls += pulls
		h.Total += pulls
		return nil
	}); err != nil {
		return History{}, fmt.Errorf("reading the history of pulls: %w", err)
	}
	return h, nil
}

// span returns the last n days, as far as there is a history of them. Its `since` is zero if
// nothing was ever counted.
func (r *Reader) span(ctx context.Context, n int) (s span, err error) {
	var began time.Time
	err = r.q.QueryRow(ctx, "SELECT history_since, now() FROM pullstatisticsprocessingstate").Scan(&began, &s.to)
	if errors.Is(err, pgx.ErrNoRows) {
		return span{}, nil
	}
	if err != nil {
		return span{}, fmt.Errorf("reading since when there is a history of pulls: %w", err)
	}
	s.since, s.to = statsdb.DayOf(began), statsdb.DayOf(s.to)
	if r.retention > 0 {
		s.since = latest(s.since, firstKept(s.to, r.retention))
	}
	s.from = latest(s.since, s.to.AddDate(0, 0, 1-n))
	return s, nil
}

func latest(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// MaxTopDays is how many pairs of a repository and a day a top list reads at most. MaxTop is
// how many repositories or tags it ranks at most.
const (
	MaxTopDays = 1_000_000
	MaxTop     = 100_000
)

func (r *Reader) mostDays() int64 { return cmp.Or(r.topDays, MaxTopDays) }

// ErrTooMuchHistory says that a top list would have to read more than MaxTopDays.
var ErrTooMuchHistory = errors.New("too many repositories or tags were pulled in these days")

// Top is a list of those repositories or tags that were pulled most in a span of days.
type Top[K any] struct {
	Since time.Time // the first of these days
	List  []Ranked[K]
	// All is false if more than MaxTop were pulled. Then the list has the first MaxTop.
	All bool
}

// Ranked is a repository (by id) or a tag (by name) in a top list.
type Ranked[K any] struct {
	Key   K
	Pulls int64
}

// TopRepositories returns the repositories that were pulled in the last n days, in the order of
// their pulls, most first: those of a namespace or, if namespace is 0, all. Repositories that
// are in the trash are among them. Error: ErrTooMuchHistory.
func (r *Reader) TopRepositories(ctx context.Context, namespace int64, n int) (Top[int64], error) {
	return top[int64](ctx, r, n, func(s span) (pgx.Rows, error) {
		if namespace == 0 {
			return r.q.Query(ctx, `
				SELECT repository_id, sum(pulls)::bigint, (sum(count(*)) OVER ())::bigint FROM (
					SELECT repository_id, pulls FROM repositorypullhistory WHERE day >= $1 AND day <= $2 LIMIT $3) h
				GROUP BY repository_id ORDER BY 2 DESC, 1 LIMIT $4`, s.from, s.to, r.mostDays()+1, MaxTop+1)
		}
		return r.q.Query(ctx, `
			SELECT repository_id, sum(pulls)::bigint, (sum(count(*)) OVER ())::bigint FROM (
				SELECT repository_id, pulls FROM repositorypullhistory WHERE namespace_id = $5 AND day >= $1 AND day <= $2 LIMIT $3) h
			GROUP BY repository_id ORDER BY 2 DESC, 1 LIMIT $4`, s.from, s.to, r.mostDays()+1, MaxTop+1, namespace)
	})
}

// TopTags returns the tags of a repository that were pulled in the last n days, in the order of
// their pulls, most first. Deleted tags may be among them. Error: ErrTooMuchHistory.
func (r *Reader) TopTags(ctx context.Context, repository int64, n int) (Top[string], error) {
	return top[string](ctx, r, n, func(s span) (pgx.Rows, error) {
		return r.q.Query(ctx, `
			SELECT tag_name, sum(pulls)::bigint, (sum(count(*)) OVER ())::bigint FROM (
				(SELECT tag_name, pulls FROM tagpullhistory WHERE repository_id = $5 AND day >= $1 AND day <= $2 LIMIT $3)
				UNION ALL
				(SELECT tag_name, day_pulls FROM tagpullstatistics WHERE repository_id = $5 AND day >= $1 AND day <= $2 LIMIT $3)) h
			GROUP BY tag_name ORDER BY 2 DESC, 1 LIMIT $4`, s.from, s.to, r.mostDays()+1, MaxTop+1, repository)
	})
}

// top makes a top list of the rows that `read` returns: key, pulls, and how many rows of
// history it has read in all.
func top[K any](ctx context.Context, r *Reader, n int, read func(s span) (pgx.Rows, error)) (t Top[K], err error) {
	s, err := r.span(ctx, n)
	if err != nil || s.since.IsZero() {
		return Top[K]{All: true}, err
	}
	rows, err := read(s)
	if err != nil {
		return t, fmt.Errorf("reading what was pulled most: %w", err)
	}
	var of Ranked[K]
	var examined int64
	if _, err := pgx.ForEachRow(rows, []any{&of.Key, &of.Pulls, &examined}, func() error {
		t.List = append(t.List, of)
		return nil
	}); err != nil {
		return Top[K]{}, fmt.Errorf("reading what was pulled most: %w", err)
	}
	if examined > r.mostDays() {
		return Top[K]{}, ErrTooMuchHistory
	}
	t.Since, t.All = s.from, len(t.List) <= MaxTop
	t.List = t.List[:min(len(t.List), MaxTop)]
	return t, nil
}

// Pulled says which of the repositories were pulled in the last n days, and since when this is
// known: the first of these days of which there is a history.
func (r *Reader) Pulled(ctx context.Context, repositories []int64, n int) (pulled map[int64]bool, since time.Time, err error) {
	s, err := r.span(ctx, n)
	if err != nil {
		return nil, since, err
	}
	rows, err := r.q.Query(ctx, `
		SELECT want.id FROM unnest($1::bigint[]) AS want (id)
		WHERE EXISTS (SELECT FROM repositorypullhistory WHERE repository_id = want.id AND day >= $2 AND day <= $3 OFFSET 0)`, repositories, s.from, s.to)
	if err != nil {
		return nil, since, fmt.Errorf("reading which repositories were pulled: %w", err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return nil, since, fmt.Errorf("reading which repositories were pulled: %w", err)
	}
	pulled = make(map[int64]bool, len(ids))
	for _, id := range ids {
		pulled[id] = true
	}
	return pulled, s.from, nil
}
