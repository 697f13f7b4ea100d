package quota

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// Notice says that a namespace has reached a part of one of its limits, or was refused
// something because of it.
type Notice struct {
	Namespace string `json:"namespace"`
	Quota     string `json:"quota"` // bytes, repositories or tags
	Kind      Kind   `json:"type"`
	Percent   int    `json:"threshold_percent"`
	Limit     int64  `json:"limit"` // the whole limit
	Used      int64  `json:"used"`
}

const (
	// backPercent is the percentage of a step's part below which the namespace must fall before
	// its next crossing is told.
	backPercent = 95
	// refusedLong is how long after the last refusal a further one is told.
	refusedLong = time.Hour
)

// Tell calls `tell` for each step that a namespace has crossed and that wasn't told yet,
// in the transaction that marks it as told, and returns the notices whose transactions are
// committed. So each crossing is told once, whichever process calls Tell. `tell` may be
// called again if its transaction fails, so it should do nothing outside of the transaction. A
// namespace crosses a step when it uses the step's part of a limit, and also when something is
// refused because of a hard limit. The next crossing is told after the namespace has used less
// than 95% of this part, and an hour after the last refusal.
func (k *Keeper) Tell(ctx context.Context, tell func(ctx context.Context, tx pgx.Tx, n Notice) error) (told []Notice, err error) {
	after := ""
	for {
		list, next, err := k.List(ctx, after, pageOfQuotas)
		if err != nil {
			return told, err
		}
		for _, q := range list {
			if !q.Counted || len(q.Steps) == 0 {
				continue
			}
			var notices []Notice
			err := k.db.Tx(ctx, func(tx pgx.Tx) (err error) {
				notices, err = tellSteps(ctx, tx, q, tell)
				return err
			})
			if err != nil {
				return told, fmt.Errorf("telling of the quota of %s: %w", q.Namespace, err)
			}
			told = append(told, notices...)
		}
		if after = next; after == "" {
			return told, nil
		}
	}
}

// lockedStep is a row of namespacequotalimits that the transaction has locked.
type lockedStep struct {
	ID      int64
	Kind    Kind
	Percent int
	Told    []string  // of which things a crossing was told
	Refused []byte    // a JSON object: when a thing was refused last
	Now     time.Time // by the database
}

// tellSteps tells of the steps of a quota, which was read a moment ago without a lock. It leaves out
// steps that another transaction has locked, since that one tells of them.
func tellSteps(ctx context.Context, tx pgx.Tx, q Quota, tell func(ctx context.Context, tx pgx.Tx, n Notice) error) (told []Notice, err error) {
	rows, err := tx.Query(ctx, `
		SELECT id, kind, percent, told, refused, now() FROM namespacequotalimits
		WHERE namespace_id = $1 ORDER BY id FOR UPDATE SKIP LOCKED`, q.namespaceID)
	if err != nil {
		return nil, err
	}
	steps, err := pgx.CollectRows(rows, pgx.RowToStructByPos[lockedStep])
	if err != nil {
		return nil, err
	}
	// Another process may have told, since q was read, of what the namespace has used since. By the
	// older numbers its crossing would be taken back, and be told again.
	q, err = readAgain(ctx, tx, q)
	if err != nil || !q.Counted {
		return nil, err
	}
	for _, s := range steps {
		above, crossed, err := s.compare(q)
		if err != nil {
			return nil, err
		}
		for _, what := range crossed {
			n := Notice{Namespace: q.Namespace, Quota: what, Kind: s.Kind, Percent: s.Percent, Limit: q.Limits.of(what), Used: q.Used.of(what)}
			if err := tell(ctx, tx, n); err != nil {
				return nil, err
			}
			told = append(told, n)
		}
		if !slices.Equal(above, s.Told) {
			if _, err := tx.Exec(ctx, "UPDATE namespacequotalimits SET told = $2 WHERE id = $1", s.ID, above); err != nil {
				return nil, err
			}
		}
	}
	return told, nil
}

// readAgain reads the quota of the same namespace in a transaction. If the namespace has none any
// more, the result isn't counted.
func readAgain(ctx context.Context, tx pgx.Tx, q Quota) (Quota, error) {
	rows, err := tx.Query(ctx, "SELECT * FROM shown_quotas WHERE namespace_id = $1", q.namespaceID)
	if err != nil {
		return Quota{}, err
	}
	again, err := pgx.CollectExactlyOneRow(rows, scan)
	if errors.Is(err, pgx.ErrNoRows) {
		return Quota{}, nil
	}
	return again, err
}

// compare returns for which things the namespace is above the step, and which of them weren't told.
func (s lockedStep) compare(q Quota) (above, crossed []string, err error) {
	var refused map[string]time.Time
	if err := json.Unmarshal(s.Refused, &refused); err != nil {
		return nil, nil, err
	}
	above = []string{}
	for _, what := range things {
		most, used := q.Limits.of(what), q.Used.of(what)
		was := slices.Contains(s.Told, what)
		recent := !refused[what].IsZero() && s.Now.Sub(refused[what]) < refusedLong
		switch {
		case most == 0:
		case used >= part(most, s.Percent) || recent:
			above = append(above, what)
			if !was {
				crossed = append(crossed, what)
			}
		case was && used >= part(part(most, s.Percent), backPercent):
			above = append(above, what)
		}
	}
	return above, crossed, nil
}

// Ratios returns, for each of the up to n namespaces that are nearest to one of their limits, and
// for each of its limits, which part of the limit is used. `more` is how many further namespaces have
// a limit.
func (k *Keeper) Ratios(ctx context.Context, n int, set func(namespace, what string, ratio float64)) (more int, err error) {
	rows, err := k.db.Pool.Query(ctx, `
		SELECT name, ARRAY[bytes_limit, repositories_limit, tags_limit], ARRAY[bytes, repositories, tags], count(*) OVER ()
		FROM shown_quotas
		WHERE counted AND (bytes_limit > 0 OR repositories_limit > 0 OR tags_limit > 0)
		ORDER BY GREATEST(bytes::float8 / NULLIF(bytes_limit, 0), repositories::float8 / NULLIF(repositories_limit, 0),
			tags::float8 / NULLIF(tags_limit, 0)) DESC, name
		LIMIT $1`, n)
	if err != nil {
		return 0, err
	}
	var name string
	var limits, used []int64
	var all int
	tag, err := pgx.ForEachRow(rows, []any{&name, &limits, &used, &all}, func() error {
		for i, what := range []string{"bytes", "repositories", "tags"} {
			if limits[i] > 0 {
				set(name, what, float64(used[i])/float64(limits[i]))
			}
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("measuring how full quotas are: %w", err)
	}
	return all - int(tag.RowsAffected()), nil
}
