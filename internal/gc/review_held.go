package gc

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// heldManifest is a manifest that nothing references and that stays until `expires`: a reporter
// holds it, or its repository is in the trash.
type heldManifest struct {
	namespace, repository, id int64
	expires                   time.Time
}

// exceptions says what may make manifests stay that nothing references.
type exceptions struct {
	holds    bool // reporters hold digests: see package hold
	untagged bool // policies keep untagged manifests: see review_untagged.go
}

// anyUntagged asks whether any policy may keep untagged manifests.
const anyUntagged = `
	SELECT EXISTS (SELECT FROM namespaceautoprunepolicy WHERE policy LIKE ANY (p))
		OR EXISTS (SELECT FROM repositoryautoprunepolicy WHERE policy LIKE ANY (p))
		OR EXISTS (SELECT FROM defaultautoprunepolicy WHERE policy LIKE ANY (p))
	FROM (VALUES (ARRAY['%"keepUntagged"%', '%"untagged"%'])) AS v (p)`

// lockHolds takes the lock of deletions, as the first lock of a review, and returns which
// exceptions there are: see the protocol in package hold. None can be added until the review's
// transaction ends.
func lockHolds(ctx context.Context, tx pgx.Tx) (found exceptions, err error) {
	b := new(pgx.Batch)
	b.Queue("SELECT purser_holds_lock()")
	b.Queue("SELECT EXISTS (SELECT FROM holdreporters WHERE expires_at > now() AND digests > 0)").
		QueryRow(func(row pgx.Row) error { return row.Scan(&found.holds) })
	b.Queue(anyUntagged).QueryRow(func(row pgx.Row) error { return row.Scan(&found.untagged) })
	return found, tx.SendBatch(ctx, b).Close()
}

// findHeld moves the manifests that would be deleted and are held to l.held.
func (l *classification) findHeld(ctx context.Context, tx pgx.Tx) error {
	asked := manifestKeys{slices.Clone(l.unreferenced.namespaces), slices.Clone(l.unreferenced.repositories), slices.Clone(l.unreferenced.ids)}
	for _, s := range l.maybeInCycle.list {
		if l.cycles[s.id] != nil && !s.listed {
			asked.add(s.namespace, s.repository, s.id)
		}
	}
	if asked.len() == 0 {
		return nil
	}
	rows, err := tx.Query(ctx, `
		SELECT w.namespace, w.repository, h.manifest_id, max(h.expires_at)
		FROM (
			SELECT namespace, repository, array_agg(id) AS ids
			FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) AS w (namespace, repository, id)
			GROUP BY namespace, repository) w
		CROSS JOIN LATERAL purser_held(w.namespace, w.repository, w.ids) h
		GROUP BY w.namespace, w.repository, h.manifest_id`, asked.args()...)
	if err != nil {
		return err
	}
	var keys manifestKeys
	var h heldManifest
	_, err = pgx.ForEachRow(rows, []any{&h.namespace, &h.repository, &h.id, &h.expires}, func() error {
		l.held = append(l.held, h)
		keys.add(h.namespace, h.repository, h.id)
		return nil
	})
	if err != nil || keys.len() == 0 {
		return err
	}
	l.unreferenced = l.unreferenced.without(keys)
	l.maybeInCycle.list = slices.DeleteFunc(l.maybeInCycle.list, func(s cycleCandidate) bool { return slices.Contains(keys.ids, s.id) })
	return nil
}

// postponeHeld postpones the reviews of held manifests to the end of the hold or by one review
// delay, whichever is earlier, but by at least five minutes. The failures of earlier reviews
// stay as they are.
func postponeHeld(ctx context.Context, tx pgx.Tx, held []heldManifest) error {
	if len(held) == 0 {
		return nil
	}
	var keys manifestKeys
	expires := make([]time.Time, len(held))
	for i, h := range held {
		keys.add(h.namespace, h.repository, h.id)
		expires[i] = h.expires
	}
	_, err := tx.Exec(ctx, `
		UPDATE gc_manifest_review_queue q
		SET review_after = GREATEST(q.review_after, now() + interval '5 minutes' * (1 + random() / 10), LEAST(w.expires, gc_review_after(q.event)))
		FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::timestamptz[]) AS w (namespace, repository, id, expires)
		WHERE q.top_level_namespace_id = w.namespace AND q.repository_id = w.repository AND q.manifest_id = w.id`,
		keys.args(expires)...)
	return err
}
