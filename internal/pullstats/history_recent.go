package pullstats

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Recent is how often and when repositories were pulled lately.
type Recent struct {
	// Since is the first of the days: the first of the last n, or of the history if that began
	// later. Zero: nothing was ever counted.
	Since time.Time
	// Repositories has the pulls of each repository that was asked for, by its id.
	Repositories map[int64]RecentPulls
}

// RecentPulls is how often and when a repository was pulled lately.
type RecentPulls struct {
	Days  []int64   // pulls on each day from Recent.Since to today
	Total int64     // of these days
	Last  time.Time // of the manifests that the repository has; zero: none of them was pulled
}

// Recent returns the pulls of repositories on each of the last n days, and the times of their last
// pulls, by two statements for all of them. It reads up to n rows of history for each repository.
// The section "Plans" of package db explains OFFSET 0.
func (r *Reader) Recent(ctx context.Context, repositories []int64, n int) (out Recent, err error) {
	s, err := r.span(ctx, n)
	if err != nil {
		return out, err
	}
	out.Since, out.Repositories = s.from, make(map[int64]RecentPulls, len(repositories))
	days := 0
	if s.since.IsZero() {
		out.Since = time.Time{}
	} else {
		days = int(s.to.Sub(s.from)/(24*time.Hour)) + 1
	}
	for _, id := range repositories {
		out.Repositories[id] = RecentPulls{Days: make([]int64, days)}
	}
	if days > 0 {
		if err := r.addDays(ctx, repositories, s, out); err != nil {
			return Recent{}, err
		}
	}
	if err := r.addLast(ctx, repositories, out); err != nil {
		return Recent{}, err
	}
	return out, nil
}

// addDays adds the pulls of the days of s.
func (r *Reader) addDays(ctx context.Context, repositories []int64, s span, out Recent) error {
	rows, err := r.q.Query(ctx, `
		SELECT want.id, h.day, h.pulls FROM unnest($1::bigint[]) AS want (id)
		CROSS JOIN LATERAL (
			SELECT day, pulls FROM repositorypullhistory WHERE repository_id = want.id AND day >= $2 AND day <= $3 OFFSET 0) h`, repositories, s.from, s.to)
	if err != nil {
		return fmt.Errorf("reading the history of pulls: %w", err)
	}
	var id, pulls int64
	var day time.Time
	if _, err := pgx.ForEachRow(rows, []any{&id, &day, &pulls}, func() error {
		p := out.Repositories[id]
		p.Days[int(day.Sub(s.from)/(24*time.Hour))] = pulls
		p.Total += pulls
		out.Repositories[id] = p
		return nil
	}); err != nil {
		return fmt.Errorf("reading the history of pulls: %w", err)
	}
	return nil
}

// addLast adds the times of the last pulls.
func (r *Reader) addLast(ctx context.Context, repositories []int64, out Recent) error {
	rows, err := r.q.Query(ctx, `
		SELECT want.id, m.last FROM unnest($1::bigint[]) AS want (id)
		CROSS JOIN LATERAL (
			SELECT last_pull_date AS last FROM manifestpullstatistics WHERE repository_id = want.id AND last_pull_date IS NOT NULL
			ORDER BY last_pull_date DESC LIMIT 1) m`, repositories)
	if err != nil {
		return fmt.Errorf("reading when repositories were pulled last: %w", err)
	}
	var id int64
	var last time.Time
	if _, err := pgx.ForEachRow(rows, []any{&id, &last}, func() error {
		p := out.Repositories[id]
		p.Last = last.UTC()
		out.Repositories[id] = p
		return nil
	}); err != nil {
		return fmt.Errorf("reading when repositories were pulled last: %w", err)
	}
	return nil
}
