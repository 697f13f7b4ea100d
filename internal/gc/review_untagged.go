package gc

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// This file keeps manifests that nothing references for longer than the review delay, if
// policies say so (keepUntagged). It never shortens the delay.

// Retention says for how long a policy keeps a manifest from when nothing references it.
type Retention struct {
	For time.Duration
	By  string // which policy keeps it, for how long
}

// unknownRetention is for how long manifests stay if policies may keep them and the collector
// can't tell which.
var unknownRetention = Retention{For: 100 * 365 * 24 * time.Hour, By: "policies may keep it, and this process can't read them"}

// retentions returns the retentions of those manifests that policies keep, by id.
func (c *Collector) retentions(ctx context.Context, tx pgx.Tx, keys manifestKeys) (map[int64]Retention, error) {
	if c.opt.Untagged != nil {
		return c.opt.Untagged(ctx, tx, keys.namespaces, keys.repositories, keys.ids)
	}
	all := make(map[int64]Retention, keys.len())
	for _, id := range keys.ids {
		all[id] = unknownRetention
	}
	return all, nil
}

// retain returns those of the unused manifests that no policy keeps any longer, and how many are
// kept. It postpones the reviews of the kept ones to the end of the retention or by about a day,
// whichever is earlier, so that a changed policy has its effect within a day. The caller has
// locked their rows in the queue.
//
// The time counts from the event that queued the manifest, which has written it into
// unused_since, whatever the delay of this event has become since: see purser_unused_since.
// (created_at may be older: a client that asks whether the manifest exists makes a row, too.)
// retain stores the time there again, together with the event keep_untagged; the next event
// replaces that.
//
// If a policy keeps a manifest of a cycle, the review keeps all manifests of the cycle.
func (c *Collector) retain(ctx context.Context, tx pgx.Tx, unused manifestKeys, found cycles) (rest manifestKeys, kept int, err error) {
	if unused.len() == 0 {
		return unused, 0, nil
	}
	asked := manifestKeys{append([]int64{}, unused.namespaces...), append([]int64{}, unused.repositories...), append([]int64{}, unused.ids...)}
	for one := range found.of(unused) {
		for _, id := range one.holders {
			asked.add(one.namespace, one.repository, id)
		}
	}
	retentions, err := c.retentions(ctx, tx, asked)
	if err != nil || len(retentions) == 0 {
		return unused, 0, err
	}
	var keys manifestKeys
	var times []time.Duration
	for i, id := range unused.ids {
		longest := retentions[id].For
		if one := found[id]; one != nil {
			for _, holder := range one.holders {
				longest = max(longest, retentions[holder].For)
			}
		}
		if longest > 0 {
			keys.add(unused.namespaces[i], unused.repositories[i], id)
			times = append(times, longest)
		}
	}
	done, err := postponeRetained(ctx, tx, keys, times)
	return unused.without(done), done.len(), err
}

// postponeRetained postpones the reviews of those manifests whose retention hasn't ended, and
// returns these manifests.
func postponeRetained(ctx context.Context, tx pgx.Tx, keys manifestKeys, times []time.Duration) (done manifestKeys, err error) {
	if keys.len() == 0 {
		return done, nil
	}
	rows, err := tx.Query(ctx, `
		WITH retained AS MATERIALIZED (
			SELECT w.*, purser_unused_since(q.event, COALESCE(q.unused_since, q.created_at), q.review_after) AS since, now() + interval '1 day' * (1 + random() / 10) AS tomorrow
			FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::interval[]) AS w (namespace, repository, id, keep)
			CROSS JOIN LATERAL (
				SELECT event, unused_since, created_at, review_after FROM gc_manifest_review_queue
				WHERE top_level_namespace_id = w.namespace AND repository_id = w.repository AND manifest_id = w.id OFFSET 0) q
		)
		UPDATE gc_manifest_review_queue q
		SET review_after = LEAST(r.since + r.keep, r.tomorrow), unused_since = r.since, event = 'keep_untagged'
		FROM retained r
		WHERE q.top_level_namespace_id = r.namespace AND q.repository_id = r.repository AND q.manifest_id = r.id
			AND r.since + r.keep > now()
		RETURNING r.namespace, r.repository, r.id`, keys.args(times)...)
	if err != nil {
		return done, err
	}
	var namespace, repository, id int64
	_, err = pgx.ForEachRow(rows, []any{&namespace, &repository, &id}, func() error {
		done.add(namespace, repository, id)
		return nil
	})
	return done, err
}

// Retained returns the retention of a manifest by policies and when it ends, for an explanation.
// The manifest's review must be planned: a referrer that isn't in the queue yet has the time at
// which its subject was deleted, in created_at. ok is false if no policy keeps the manifest now.
func (c *Collector) Retained(ctx context.Context, tx pgx.Tx, namespace, repository, id int64) (r Retention, until time.Time, ok bool, err error) {
	var any, ends bool
	if err := tx.QueryRow(ctx, anyUntagged).Scan(&any); err != nil || !any {
		return r, until, false, err
	}
	var keys manifestKeys
	keys.add(namespace, repository, id)
	retentions, err := c.retentions(ctx, tx, keys)
	if r, ok = retentions[id]; err != nil || !ok {
		return r, until, false, err
	}
	err = tx.QueryRow(ctx, `
		SELECT since + $4::interval, since + $4::interval > now()
		FROM gc_planned_manifest_reviews q
		CROSS JOIN LATERAL purser_unused_since(q.event, COALESCE((
			SELECT unused_since FROM gc_manifest_review_queue
			WHERE top_level_namespace_id = $1 AND repository_id = $2 AND manifest_id = $3), q.created_at), q.review_after) AS since
		WHERE top_level_namespace_id = $1 AND repository_id = $2 AND manifest_id = $3`, namespace, repository, id, r.For).Scan(&until, &ends)
	return r, until, err == nil && ends, err
}
