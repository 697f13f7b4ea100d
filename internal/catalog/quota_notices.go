package catalog

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// QuotaNotice says that a namespace has reached a part of one of its limits, or was refused
// something because of it.
type QuotaNotice struct {
	Namespace string    `json:"namespace"`
	Quota     string    `json:"quota"` // bytes, repositories or tags
	Kind      QuotaKind `json:"type"`
	Percent   int       `json:"threshold_percent"`
	Limit     int64     `json:"limit"` // the whole limit
	Used      int64     `json:"used"`
}

const (
	// quotaBack is the percentage of a step's part below which the namespace must fall before
	// its next crossing is told.
	quotaBack = 95
	// refusedLong is how long after the last refusal a further one is told.
	refusedLong = time.Hour
)

// TellQuotas calls `tell` for each step that a namespace has crossed and that wasn't told yet,
// in the transaction that marks it as told. So each crossing is told once, whichever process
// calls TellQuotas. A namespace crosses a step when it uses the step's part of a limit, and also
// when something is refused because of a hard limit. The next crossing is told after the
// namespace has used less than 95% of this part, and an hour after the last refusal.
func (c *Catalog) TellQuotas(ctx context.Context, tell func(ctx context.Context, tx pgx.Tx, n QuotaNotice) error) (told int, err error) {
	after := ""
	for {
		list, next, err := c.Quotas(ctx, after, quotaBatch)
		if err != nil {
			return told, err
		}
		for _, q := range list {
			if !q.Counted || len(q.Steps) == 0 {
				continue
			}
			var n int
			err := c.db.Tx(ctx, func(tx pgx.Tx) (err error) {
				n, err = tellSteps(ctx, tx, q, tell)
				return err
			})
			if err != nil {
				return told, fmt.Errorf("telling of the quota of %s: %w", q.Namespace, err)
			}
			told += n
		}
		if after = next; after == "" {
			return told, nil
		}
	}
}

// tellSteps tells of the steps of one quota. `q` was read a moment ago, without a lock.
func tellSteps(ctx context.Context, tx pgx.Tx, q Quota, tell func(ctx context.Context, tx pgx.Tx, n QuotaNotice) error) (told int, err error) {
	rows, err := tx.Query(ctx, `
		SELECT id, kind, percent, told, refused, now() FROM namespacequotalimits
		WHERE namespace_id = $1 ORDER BY id FOR UPDATE SKIP LOCKED`, q.namespaceID)
	if err != nil {
		return 0, err
	}
	type row struct {
		ID      int64
		Kind    QuotaKind
		Percent int
		Told    []string
		Refused []byte
		Now     time.Time
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[row])
	if err != nil {
		return 0, err
	}
	for _, r := range list {
		var refused map[string]time.Time
		if err := json.Unmarshal(r.Refused, &refused); err != nil {
			return told, err
		}
		now := []string{}
		for _, what := range quotaThings {
			most, used := q.Limits.of(what), q.Used.of(what)
			was := slices.Contains(r.Told, what)
			recent := !refused[what].IsZero() && r.Now.Sub(refused[what]) < refusedLong
			switch {
			case most == 0:
			case used >= part(most, r.Percent) || recent:
				now = append(now, what)
				if was {
					break
				}
				told++
				n := QuotaNotice{Namespace: q.Namespace, Quota: what, Kind: r.Kind, Percent: r.Percent, Limit: most, Used: used}
				if err := tell(ctx, tx, n); err != nil {
					return told, err
				}
			case was && used >= part(part(most, r.Percent), quotaBack):
				now = append(now, what)
			}
		}
		if !slices.Equal(now, r.Told) {
			if _, err := tx.Exec(ctx, "UPDATE namespacequotalimits SET told = $2 WHERE id = $1", r.ID, now); err != nil {
				return told, err
			}
		}
	}
	return told, nil
}

// QuotaRatios returns, for each of the up to n namespaces that are nearest to one of their limits, and
// for each of its limits, which part of the limit is used. `more` is how many further namespaces have
// a limit.
func (c *Catalog) QuotaRatios(ctx context.Context, n int, set func(namespace, what string, ratio float64)) (more int, err error) {
	rows, err := c.db.Pool.Query(ctx, `
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
