package gc

import (
	"context"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/oci"
)

// claimManifests locks up to o.Limit due rows of gc_manifest_review_queue, oldest first,
// and returns them. It skips rows that other transactions have locked.
func claimManifests(ctx context.Context, tx pgx.Tx, o ReviewOptions) ([]queueRow, error) {
	after := any("-infinity")
	if o.After.set {
		after = o.After.after
	}
	rows, err := tx.Query(ctx, `
		SELECT top_level_namespace_id, repository_id, manifest_id, event, created_at, review_after
		FROM gc_manifest_review_queue
		WHERE set_aside_at IS NULL AND review_after <= now()
			AND (review_after, top_level_namespace_id, repository_id, manifest_id)
				> ($2::timestamptz, $3::bigint, $4::bigint, $5::bigint)
		ORDER BY review_after, top_level_namespace_id, repository_id, manifest_id LIMIT $1
		FOR UPDATE SKIP LOCKED`, o.Limit, after, o.After.namespace, o.After.repository, o.After.id)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (r queueRow, err error) {
		err = row.Scan(&r.namespace, &r.repository, &r.id, &r.event, &r.createdAt, &r.reviewAfter)
		return r, err
	})
}

// reviewManifests reviews the queue rows that claimManifests has locked. It deletes a
// manifest if no tag, no index and no existing subject references it, or if it is in a
// reference cycle that no tag keeps (see review_cycles.go). Triggers then queue the blobs,
// children and referrers of the deleted manifest for review, each with the review delay of
// its event.
//
// A manifest that a reporter holds stays too: see package hold. No event tells when a hold ends,
// so its row stays in the queue, and becomes due again (postponeHeld). The same is true for a
// manifest that a policy keeps (retain). The caller has taken the lock of deletions; `found` says
// which of these exceptions there are.
func (c *Collector) reviewManifests(ctx context.Context, tx pgx.Tx, rows []queueRow, found exceptions, dry bool, out *Review) error {
	var claimed manifestKeys
	for _, r := range rows {
		claimed.add(r.namespace, r.repository, r.id)
	}
	// Look.
	first, err := linkAndClassify(ctx, tx, claimed, found.holds)
	if err != nil {
		return err
	}
	kept, candidates, listedCycles := first.beforeLocks()
	// Lock.
	lockedIDs, locked, subjects, err := lockCandidates(ctx, tx, candidates, first.cycles)
	if err != nil {
		return err
	}
	if !dry {
		var nextBatch manifestKeys
		if locked, nextBatch, err = lockSubjects(ctx, tx, locked, subjects); err != nil {
			return err
		}
		candidates = candidates.without(nextBatch) // their rows stay due
		out.Claimed -= nextBatch.len()
	}
	// Look again.
	second, err := classify(ctx, tx, locked, found.holds)
	if err != nil {
		return err
	}
	unused, keptSince, postponed := second.underLocks(lockedIDs)
	postponed.join(first.unlinked)
	postponed.join(first.unqueued)
	retained := 0
	if found.untagged {
		if unused, retained, err = c.retain(ctx, tx, unused, second.cycles); err != nil {
			return err
		}
	}
	// Settle: drop the queue rows before deleting manifests. The triggers of a deletion
	// insert new queue rows for the manifests that lose a reference, perhaps for one that
	// this review keeps. To drop rows after the deletion would drop such a new row too.
	for _, settled := range []manifestKeys{kept, keptSince, first.gone} {
		if err := settleManifests(ctx, tx, settled); err != nil {
			return err
		}
	}
	if err := queueCycles(ctx, tx, listedCycles); err != nil {
		return err
	}
	held := append(first.held, second.held...)
	if err := postponeHeld(ctx, tx, held); err != nil {
		return err
	}
	// Delete.
	deleted, err := deleteManifests(ctx, tx, unused)
	if err != nil {
		return err
	}
	out.Deleted, out.Kept = len(deleted), kept.len()+keptSince.len()+len(held)+retained
	if dry {
		out.Gone, out.Postponed = first.gone.len(), candidates.len()-locked.len()+postponed.len()
		return listDryRunManifests(ctx, tx, rows, deleted, out)
	}
	// Settle the rows of candidates that couldn't be locked: each such manifest was deleted
	// meanwhile, or another transaction has locked it.
	out.Postponed, err = postponeLocked(ctx, tx, candidates, locked)
	if err == nil && postponed.len() > 0 {
		out.Postponed += postponed.len()
		_, err = tx.Exec(ctx, postponeManifests, postponed.args(PostponeDelay)...)
	}
	out.Gone = out.Claimed - out.Deleted - out.Kept - out.Postponed
	return err
}

// classification groups manifests by what references them.
type classification struct {
	referenced, unreferenced, gone manifestKeys
	// unlinked has manifests that were pushed after an index that lists them, or at the
	// same moment, and whose rows in manifest_references are still missing.
	unlinked manifestKeys
	// held has manifests that nothing references and that stay for some time all the same: a
	// reporter holds them, or their repository is in the trash and may come back.
	held []heldManifest
	// unqueued has referrers of a deleted subject that QueueReferrers hasn't queued yet.
	unqueued manifestKeys
	// maybeInCycle has the manifests that could be in a reference cycle: no tag references
	// them, an index or their subject does, and they have children or referrers themselves.
	// cycles has the cycles that were found among them.
	maybeInCycle cycleCandidates
	cycles       cycles
}

// cycleCandidates are manifests that may be in a cycle.
type cycleCandidates struct {
	list []cycleCandidate
	keys manifestKeys
}

type cycleCandidate struct {
	namespace, repository, id int64
	listed                    bool // an index lists it
}

// beforeLocks decides by a classification that was made before the manifests were locked.
// Manifests in `kept` stay. Manifests in `candidates` may be deleted: nothing references
// them, or they are in a cycle without tags and no index lists them. If a manifest is in a
// cycle without tags but an index lists it, it is in `kept` and its cycle in `listed`, so
// that the caller queues those manifests of the cycle that may be deleted.
func (l *classification) beforeLocks() (kept, candidates manifestKeys, listed []*cycle) {
	kept, candidates = l.referenced, l.unreferenced
	for _, s := range l.maybeInCycle.list {
		c, ok := l.cycles[s.id]
		if ok && !s.listed {
			candidates.add(s.namespace, s.repository, s.id)
			continue
		}
		kept.add(s.namespace, s.repository, s.id)
		if ok {
			listed = append(listed, c)
		}
	}
	return kept, candidates, listed
}

// underLocks decides by a classification that was made after the manifests were locked: the
// review deletes the manifests in `unused`, keeps those in `kept`, and postpones the
// reviews of those in `postponed`. The map `locked` has the ids of all locked manifests.
func (l *classification) underLocks(locked map[int64]bool) (unused, kept, postponed manifestKeys) {
	unused, kept, postponed = l.unreferenced, l.referenced, l.unlinked
	postponed.join(l.unqueued)
	for _, s := range l.maybeInCycle.list {
		c, ok := l.cycles[s.id]
		switch {
		case !ok:
			kept.add(s.namespace, s.repository, s.id)
		case !s.listed && c.lockedBy(locked):
			unused.add(s.namespace, s.repository, s.id)
		default:
			postponed.add(s.namespace, s.repository, s.id)
		}
	}
	return unused, kept, postponed
}

// classify finds out what references each of the manifests and, if there are holds, which of
// the others are held. In a repository that is in the trash, manifests that may be unused are
// held until the trash may be emptied of the repository. "Plans" in the comment of package db says
// why lookups have OFFSET 0.
func classify(ctx context.Context, tx pgx.Tx, keys manifestKeys, holds bool) (l classification, err error) {
	if keys.len() == 0 {
		return l, nil
	}
	rows, err := tx.Query(ctx, `
		SELECT w.namespace, w.repository, w.id,
			CASE WHEN m.id IS NULL THEN 'gone'
			WHEN EXISTS (
				SELECT FROM missing_children c
				WHERE c.child_digest = m.digest AND c.repository_id = w.repository
					AND c.top_level_namespace_id = w.namespace OFFSET 0) THEN 'unlinked'
			WHEN EXISTS (
				SELECT FROM tags t
				WHERE t.top_level_namespace_id = w.namespace AND t.repository_id = w.repository
					AND t.manifest_id = w.id OFFSET 0) THEN 'referenced'
			WHEN EXISTS (
				SELECT FROM manifest_references x
				WHERE x.top_level_namespace_id = w.namespace AND x.repository_id = w.repository
					AND x.child_id = w.id OFFSET 0) THEN CASE WHEN (
				EXISTS (
					SELECT FROM manifest_references x
					WHERE x.top_level_namespace_id = w.namespace AND x.repository_id = w.repository
						AND x.parent_id = w.id OFFSET 0)
				OR EXISTS (
					SELECT FROM manifests r
					WHERE r.top_level_namespace_id = w.namespace AND r.repository_id = w.repository
						AND r.subject_digest = m.digest OFFSET 0)) THEN 'listed' ELSE 'referenced' END
			WHEN m.subject_digest IS NOT NULL AND EXISTS (
				SELECT FROM manifests s
				WHERE s.top_level_namespace_id = w.namespace AND s.repository_id = w.repository
					AND s.digest = m.subject_digest OFFSET 0) THEN CASE WHEN (
				EXISTS (
					SELECT FROM manifest_references x
					WHERE x.top_level_namespace_id = w.namespace AND x.repository_id = w.repository
						AND x.parent_id = w.id OFFSET 0)
				OR EXISTS (
					SELECT FROM manifests r
					WHERE r.top_level_namespace_id = w.namespace AND r.repository_id = w.repository
						AND r.subject_digest = m.digest OFFSET 0)) THEN 'refers' ELSE 'referenced' END
			WHEN m.subject_digest IS NOT NULL AND EXISTS (
				SELECT FROM gc_subject_review_queue s
				WHERE s.subject_digest = m.subject_digest AND s.repository_id = w.repository
					AND s.top_level_namespace_id = w.namespace AND s.next_id <= w.id OFFSET 0) THEN 'unqueued'
			ELSE 'unreferenced' END, d.purge_after
		FROM (
			SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) AS w (namespace, repository, id)
			ORDER BY 1, 2, 3) w
		LEFT JOIN LATERAL (
			SELECT id, digest, subject_digest FROM manifests
			WHERE top_level_namespace_id = w.namespace AND repository_id = w.repository AND id = w.id
			OFFSET 0) m ON true
		LEFT JOIN LATERAL (
			SELECT GREATEST(r.purge_after, n.purge_after) AS purge_after
			FROM repositories r JOIN top_level_namespaces n ON n.id = r.top_level_namespace_id
			WHERE r.id = w.repository AND (r.deleted_at IS NOT NULL OR n.deleted_at IS NOT NULL) OFFSET 0) d ON true`, keys.args()...)
	if err != nil {
		return l, err
	}
	if err := l.sort(rows); err != nil {
		return l, err
	}
	if l.cycles, err = findCycles(ctx, tx, l.maybeInCycle.keys); err == nil && holds {
		err = l.findHeld(ctx, tx)
	}
	return l, err
}

// linkMissing inserts the missing rows of manifest_references for manifests that were
// pushed after an index that lists them, and deletes the rows of missing_children that
// recorded them as missing.
func linkMissing(ctx context.Context, tx pgx.Tx, keys manifestKeys) error {
	_, err := tx.Exec(ctx, "SELECT gc_link_missing_children($1::bigint[], $2::bigint[], $3::bigint[])", keys.args()...)
	return err
}

// linkAndClassify is like classify. If classify finds manifests that were pushed after an
// index that lists them, linkAndClassify inserts the missing references, and then
// classifies all manifests again.
func linkAndClassify(ctx context.Context, tx pgx.Tx, keys manifestKeys, holds bool) (classification, error) {
	found, err := classify(ctx, tx, keys, holds)
	if err != nil || found.unlinked.len() == 0 {
		return found, err
	}
	if err := linkMissing(ctx, tx, found.unlinked); err != nil {
		return found, err
	}
	return classify(ctx, tx, keys, holds)
}

// lockCandidates locks the candidates for deletion and, for each candidate in a cycle, all
// its holders (defined in review_cycles.go). It returns the ids of all manifests that it
// locked, the keys of the locked candidates, and, by manifest id, the keys of the advisory
// locks on the subjects of all locked manifests.
func lockCandidates(ctx context.Context, tx pgx.Tx, candidates manifestKeys, found cycles) (ids map[int64]bool, locked manifestKeys, subjects map[int64]int32, err error) {
	want := make(map[int64]bool, candidates.len()) // ids are unique across repositories
	for _, id := range candidates.ids {
		want[id] = true
	}
	all := manifestKeys{slices.Clone(candidates.namespaces), slices.Clone(candidates.repositories), slices.Clone(candidates.ids)}
	seen := maps.Clone(want)
	for c := range found.of(candidates) {
		for _, id := range c.holders {
			if !seen[id] {
				seen[id] = true
				all.add(c.namespace, c.repository, id)
			}
		}
	}
	got, subjects, err := lockManifests(ctx, tx, all)
	if err != nil {
		return nil, locked, nil, err
	}
	ids = make(map[int64]bool, got.len())
	for i, id := range got.ids {
		ids[id] = true
		if want[id] {
			locked.add(got.namespaces[i], got.repositories[i], id)
		}
	}
	return ids, locked, subjects, nil
}

// lockManifests locks the manifests, and skips those that other transactions have locked.
// It returns the keys of the locked manifests. The map `subjects` has the key of the
// advisory lock on the manifest's subject, by id of each locked manifest with a subject.
func lockManifests(ctx context.Context, tx pgx.Tx, keys manifestKeys) (locked manifestKeys, subjects map[int64]int32, err error) {
	if keys.len() == 0 {
		return locked, nil, nil
	}
	rows, err := tx.Query(ctx, `
		SELECT m.top_level_namespace_id, m.repository_id, m.id,
			hashtext(m.repository_id || ':' || encode(m.subject_digest, 'hex'))
		FROM (
			SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) AS w (namespace, repository, id)
			ORDER BY 1, 2, 3) w
		CROSS JOIN LATERAL (
			SELECT top_level_namespace_id, repository_id, id, subject_digest FROM manifests
			WHERE top_level_namespace_id = w.namespace AND repository_id = w.repository AND id = w.id
			FOR UPDATE SKIP LOCKED) m`, keys.args()...)
	if err != nil {
		return locked, nil, err
	}
	subjects = make(map[int64]int32)
	var namespace, repository, id int64
	var subject *int32
	_, err = pgx.ForEachRow(rows, []any{&namespace, &repository, &id, &subject}, func() error {
		locked.add(namespace, repository, id)
		if subject != nil {
			subjects[id] = *subject
		}
		return nil
	})
	return locked, subjects, err
}

// deletedManifest describes a manifest that was deleted.
type deletedManifest struct {
	repository, id int64
	digest         []byte
	size           int64
}

// deleteManifests deletes manifests. Cascades and triggers delete the manifests'
// references, layers and queue rows. For namespaces with a webhook for the event gc, it
// also records how many manifests it deleted from each repository.
func deleteManifests(ctx context.Context, tx pgx.Tx, keys manifestKeys) ([]deletedManifest, error) {
	if keys.len() == 0 {
		return nil, nil
	}
	rows, err := tx.Query(ctx, `
		WITH gone AS (
			DELETE FROM manifests m USING unnest($1::bigint[], $2::bigint[], $3::bigint[]) AS w (namespace, repository, id)
			WHERE m.top_level_namespace_id = w.namespace AND m.repository_id = w.repository AND m.id = w.id
			RETURNING w.namespace, m.repository_id AS repository, m.id, m.digest, octet_length(m.payload) AS size
		), noted AS ( -- for webhooks, see package webhook
			INSERT INTO webhookcollected (namespace_id, repository, manifests)
			SELECT c.namespace, r.path, c.manifests
			FROM (SELECT namespace, repository, count(*) AS manifests FROM gone GROUP BY namespace, repository) c
			JOIN live_repositories r ON r.id = c.repository
			WHERE EXISTS (
				SELECT FROM webhooks h
				WHERE h.namespace_id = c.namespace AND h.enabled AND 'gc' = ANY (h.events))
		)
		SELECT repository, id, digest, size FROM gone`, keys.args()...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (d deletedManifest, err error) {
		err = row.Scan(&d.repository, &d.id, &d.digest, &d.size)
		return d, err
	})
}

// settleManifests drops the manifests' rows from gc_manifest_review_queue.
func settleManifests(ctx context.Context, tx pgx.Tx, keys manifestKeys) error {
	if keys.len() == 0 {
		return nil
	}
	_, err := tx.Exec(ctx, `
		DELETE FROM gc_manifest_review_queue q
		USING unnest($1::bigint[], $2::bigint[], $3::bigint[]) AS w (namespace, repository, id)
		WHERE q.top_level_namespace_id = w.namespace AND q.repository_id = w.repository AND q.manifest_id = w.id`,
		keys.args()...)
	return err
}

const postponeManifests = `
	UPDATE gc_manifest_review_queue q SET review_after = GREATEST(q.review_after, now() + $4::interval)
	FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) AS w (namespace, repository, id)
	WHERE q.top_level_namespace_id = w.namespace AND q.repository_id = w.repository AND q.manifest_id = w.id`

// postponeLocked settles the queue rows of the manifests that are in `all` but not in
// `locked`, since the review couldn't lock them. It postpones the row if the manifest
// exists, drops the row if the manifest was deleted, and returns the number of postponed
// rows.
func postponeLocked(ctx context.Context, tx pgx.Tx, all, locked manifestKeys) (int, error) {
	if all.len() == locked.len() {
		return 0, nil
	}
	rest := all.without(locked)
	gone, there, err := splitGone(ctx, tx, rest)
	if err != nil {
		return 0, err
	}
	if err := settleManifests(ctx, tx, gone); err != nil {
		return 0, err
	}
	if there.len() == 0 {
		return 0, nil
	}
	_, err = tx.Exec(ctx, postponeManifests, there.args(PostponeDelay)...)
	return there.len(), err
}

// splitGone splits `keys` into manifests that don't exist (`gone`) and manifests that do.
func splitGone(ctx context.Context, tx pgx.Tx, keys manifestKeys) (gone, there manifestKeys, err error) {
	rows, err := tx.Query(ctx, `
		SELECT w.namespace, w.repository, w.id, EXISTS (
			SELECT FROM manifests m
			WHERE m.top_level_namespace_id = w.namespace AND m.repository_id = w.repository AND m.id = w.id OFFSET 0)
		FROM (
			SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) AS w (namespace, repository, id)
			ORDER BY 1, 2, 3) w`, keys.args()...)
	if err != nil {
		return gone, there, err
	}
	var namespace, repository, id int64
	var exists bool
	_, err = pgx.ForEachRow(rows, []any{&namespace, &repository, &id, &exists}, func() error {
		if exists {
			there.add(namespace, repository, id)
		} else {
			gone.add(namespace, repository, id)
		}
		return nil
	})
	return gone, there, err
}

// listDryRunManifests adds the manifests that a dry run deleted to out.WouldDelete.
func listDryRunManifests(ctx context.Context, tx pgx.Tx, rows []queueRow, deleted []deletedManifest, out *Review) error {
	if len(deleted) == 0 {
		return nil
	}
	queued := make(map[int64]queueRow, len(rows))
	repositories := make([]int64, 0, len(rows))
	for _, r := range rows {
		queued[r.id] = r
		repositories = append(repositories, r.repository)
	}
	named, err := tx.Query(ctx, "SELECT id, path FROM named_repositories WHERE id = ANY ($1)", repositories)
	if err != nil {
		return err
	}
	paths := make(map[int64]string)
	var id int64
	var path string
	if _, err := pgx.ForEachRow(named, []any{&id, &path}, func() error {
		paths[id] = path
		return nil
	}); err != nil {
		return err
	}
	for _, m := range deleted {
		d, err := oci.DigestFromBytes(m.digest)
		if err != nil {
			return err
		}
		r := queued[m.id]
		out.WouldDelete = append(out.WouldDelete, DryRunDeletion{
			Kind: ReviewOfManifests, Repository: paths[m.repository], Digest: d, Size: m.size,
			Event: r.event, QueuedAt: r.createdAt, ReviewAfter: r.reviewAfter,
		})
	}
	return nil
}
