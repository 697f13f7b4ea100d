package gc

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// Manifests can keep each other alive in a reference cycle. An index keeps its children,
// and a subject keeps its referrers. So if an index has a subject that is also the index's
// child, at any depth, the index and the child keep each other. If no tag keeps such a
// cycle, it is garbage, though each of its manifests is referenced.
//
// A manifest's holders are the manifests that keep it, directly or indirectly: the indexes
// that list it, its existing subject, and the holders of these indexes and this subject. A
// manifest is in a cycle if it is one of its own holders. If neither the manifest nor a
// holder has a tag, the manifest and all its holders are garbage. A review finds and breaks
// a cycle as follows:
//
//   - A review deletes a manifest of a cycle without tags if no index lists the manifest,
//     so that only its subject references it. This deletion breaks the cycle, and triggers
//     queue the manifests that the deleted manifest referenced.
//
//     Every cycle without tags has a manifest that no index of the cycle lists. For a
//     manifest names its children and its subject by digest, and a digest can be named only
//     when its manifest's content is final. So manifests can't name each other in a circle,
//     and at least one manifest of the cycle isn't named by any other of them. An index
//     names the manifests that it lists, so no index of the cycle lists that manifest.
//
//     The manifest that no index of the cycle lists may be listed by an index outside of
//     the cycle. Such an index is one of the manifest's holders, so the index is garbage
//     too, and is deleted first. The same holds for the index's own holders: following them
//     leads to a manifest that nothing references, or to another cycle, and reviews begin
//     there.
//
//   - A cycle becomes garbage when the last tag, index or subject that kept it from outside
//     is deleted. This event queues the manifest that lost the reference. If an index lists
//     that manifest, its review can't delete it. Instead the review queues those of the
//     manifest's holders that no index lists, in the transaction that drops the manifest's
//     own queue row.
//
//   - Before a review deletes a manifest of a cycle, it locks the manifest and all its
//     holders (the manifests that keep it), and then computes the holders again in a new
//     statement. A transaction that makes a tag or an index takes KEY SHARE on the
//     manifests that it references. So after the locks no holder can get a tag or another
//     holder, and the new statement sees the tags and holders from before the locks.
//
//   - A review deletes only manifests whose queue rows it has claimed. It doesn't delete
//     holders that it has only locked, so that promises of existence for those holders are
//     kept.
//
//   - If a client pushes a subject of a manifest of the cycle during the review, the review
//     doesn't wait for the push: the result is the same as if the review had come first.
//
// Only a manifest that is referenced, and itself has children or referrers, can be in a cycle.
// The function classify searches for cycles only among such manifests, so that the review of
// ordinary manifests needs no further statement.

// maxHolders bounds the holders that a review reads, and may have to lock, for one
// manifest. A cycle with more holders is kept: a manifest with so many untagged indexes,
// all in cycles, isn't worth a transaction of unlimited size.
const maxHolders = 2000

// firstHolders bounds the holders of each manifest that findCycles reads in its first
// statement.
const firstHolders = 32

// cycle has the holders of a manifest that is in a cycle: the manifest is one of its own
// holders, and no holder has a tag.
type cycle struct {
	namespace, repository int64
	holders               []int64 // manifest ids
}

// cycles maps the id of a manifest in a cycle to its cycle.
type cycles map[int64]*cycle

// The method `of` returns the cycles of the given manifests, and each cycle only once.
func (found cycles) of(keys manifestKeys) map[*cycle]bool {
	list := map[*cycle]bool{}
	for _, id := range keys.ids {
		if c, ok := found[id]; ok {
			list[c] = true
		}
	}
	return list
}

// holders is an SQL statement that returns, for each of the given manifests, the ids of its
// holders, or NULL if a holder has a tag; it stops reading when it has found a tag. The CTE
// named holders has a row for each holder: the id, the digest of the holder's own subject,
// and whether the holder has a tag. The first half of the CTE finds the manifest's direct
// holders. The second half finds the direct holders of each holder found so far (alias
// below). "Plans" in the comment of package db says why lookups have OFFSET 0.
const holders = `
	SELECT w.namespace, w.repository, w.id, found.ids
	FROM (
		SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) AS w (namespace, repository, id)
		ORDER BY 1, 2, 3) w
	CROSS JOIN LATERAL (
		SELECT subject_digest FROM manifests
		WHERE top_level_namespace_id = w.namespace AND repository_id = w.repository AND id = w.id
		OFFSET 0) m
	CROSS JOIN LATERAL (
		WITH RECURSIVE holders (id, subject, tagged) AS (
			SELECT h.id, h.subject_digest, EXISTS (
				SELECT FROM tags t
				WHERE t.top_level_namespace_id = w.namespace AND t.repository_id = w.repository
					AND t.manifest_id = h.id OFFSET 0)
			FROM (
				SELECT p.id, p.subject_digest
				FROM (
					SELECT parent_id FROM manifest_references
					WHERE top_level_namespace_id = w.namespace AND repository_id = w.repository
						AND child_id = w.id OFFSET 0) x
				CROSS JOIN LATERAL (
					SELECT id, subject_digest FROM manifests
					WHERE top_level_namespace_id = w.namespace AND repository_id = w.repository
						AND id = x.parent_id OFFSET 0) p
				UNION ALL
				SELECT id, subject_digest FROM manifests
				WHERE top_level_namespace_id = w.namespace AND repository_id = w.repository
					AND digest = m.subject_digest) h
			UNION
			SELECT up.* FROM holders below
			CROSS JOIN LATERAL (
			SELECT h.id, h.subject_digest, EXISTS (
				SELECT FROM tags t
				WHERE t.top_level_namespace_id = w.namespace AND t.repository_id = w.repository
					AND t.manifest_id = h.id OFFSET 0)
			FROM (
				SELECT p.id, p.subject_digest
				FROM (
					SELECT parent_id FROM manifest_references
					WHERE top_level_namespace_id = w.namespace AND repository_id = w.repository
						AND child_id = below.id OFFSET 0) x
				CROSS JOIN LATERAL (
					SELECT id, subject_digest FROM manifests
					WHERE top_level_namespace_id = w.namespace AND repository_id = w.repository
						AND id = x.parent_id OFFSET 0) p
				UNION ALL
				SELECT id, subject_digest FROM manifests
				WHERE top_level_namespace_id = w.namespace AND repository_id = w.repository
					AND digest = below.subject) h) up (id, subject, tagged)
			WHERE NOT below.tagged
		)
		SELECT CASE WHEN NOT EXISTS (SELECT FROM (SELECT tagged FROM holders LIMIT $4) h WHERE h.tagged)
			THEN ARRAY(SELECT id FROM holders LIMIT $4) END AS ids
		OFFSET 0) found`

// findCycles returns, by manifest id, the cycle of each given manifest that is in a cycle
// without tags. It may also return this cycle for a given manifest that isn't in the cycle
// itself but is one of its holders, and so is garbage too. The given manifests must have no
// tags of their own.
func findCycles(ctx context.Context, tx pgx.Tx, keys manifestKeys) (cycles, error) {
	found := cycles{}
	if keys.len() == 0 {
		return found, nil
	}
	// Most manifests have few holders, or a holder with a tag. The manifests with more than
	// firstHolders holders are read one by one: if such a manifest is in a cycle, its
	// holders are garbage too, so the holders of these holders needn't be read again.
	unread, err := readHolders(ctx, tx, keys, firstHolders, found)
	if err != nil {
		return nil, err
	}
	garbage := cycles{}
	for i, id := range unread.ids {
		if c, ok := garbage[id]; ok {
			found[id] = c
			continue
		}
		var one manifestKeys
		one.add(unread.namespaces[i], unread.repositories[i], id)
		if _, err := readHolders(ctx, tx, one, maxHolders, found); err != nil {
			return nil, err
		}
		if c, ok := found[id]; ok {
			for _, holder := range c.holders {
				garbage[holder] = c
			}
		}
	}
	return found, nil
}

// InCycle says whether a reference cycle without tags is all that keeps the manifest. It
// decides by the same SQL statement as a review. The manifest must be referenced and have
// no tag of its own.
func InCycle(ctx context.Context, tx pgx.Tx, namespace, repository, id int64) (bool, error) {
	var key manifestKeys
	key.add(namespace, repository, id)
	found, err := findCycles(ctx, tx, key)
	return found[id] != nil, err
}

// readHolders reads up to `limit` holders of each manifest. If a manifest is in a cycle
// without tags, it adds the cycle to `found`. It returns as `unread` the manifests that
// have more than `limit` holders, if none of the holders read so far has a tag.
func readHolders(ctx context.Context, tx pgx.Tx, keys manifestKeys, limit int, found cycles) (unread manifestKeys, err error) {
	rows, err := tx.Query(ctx, holders, keys.args(limit+1)...)
	if err != nil {
		return unread, err
	}
	var id int64
	var c cycle
	_, err = pgx.ForEachRow(rows, []any{&c.namespace, &c.repository, &id, &c.holders}, func() error {
		switch {
		case len(c.holders) > limit:
			unread.add(c.namespace, c.repository, id)
		case slices.Contains(c.holders, id):
			found[id] = &cycle{c.namespace, c.repository, slices.Clone(c.holders)}
		}
		c.holders = nil
		return nil
	})
	return unread, err
}

// lockedBy says whether `locked` has the ids of all holders of the cycle.
func (c *cycle) lockedBy(locked map[int64]bool) bool {
	return !slices.ContainsFunc(c.holders, func(id int64) bool { return !locked[id] })
}

// queueCycles queues, for each cycle in `list`, those of its holders that no index lists.
// If such a holder is in the review queue already, queueCycles doesn't shorten its review
// delay.
func queueCycles(ctx context.Context, tx pgx.Tx, list []*cycle) error {
	if len(list) == 0 {
		return nil
	}
	var all manifestKeys
	seen := map[int64]bool{}
	for _, c := range list {
		for _, id := range c.holders {
			if !seen[id] {
				seen[id] = true
				all.add(c.namespace, c.repository, id)
			}
		}
	}
	_, err := tx.Exec(ctx, `
		INSERT INTO gc_manifest_review_queue AS q (top_level_namespace_id, repository_id, manifest_id, review_after, event, unused_since)
		SELECT w.namespace, w.repository, w.id, gc_review_after('manifest_list_delete'), 'circle', now()
		FROM (
			SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) AS w (namespace, repository, id)
			ORDER BY 1, 2, 3) w
		WHERE NOT EXISTS (
			SELECT FROM manifest_references x
			WHERE x.top_level_namespace_id = w.namespace AND x.repository_id = w.repository
				AND x.child_id = w.id OFFSET 0)
		ON CONFLICT (top_level_namespace_id, repository_id, manifest_id) DO UPDATE SET
			review_after = GREATEST(q.review_after, EXCLUDED.review_after),
			review_count = 0, event = EXCLUDED.event,
			unused_since = GREATEST(q.unused_since, EXCLUDED.unused_since), set_aside_at = NULL`, all.args()...)
	return err
}

// sort reads what classify's statement says of each manifest: those that something references,
// and that may be part of a cycle, become candidates.
func (l *classification) sort(rows pgx.Rows) error {
	var s cycleCandidate
	var what string
	var trashed *time.Time
	_, err := pgx.ForEachRow(rows, []any{&s.namespace, &s.repository, &s.id, &what, &trashed}, func() error {
		if trashed != nil && (what == "unreferenced" || what == "listed" || what == "refers") {
			l.held = append(l.held, heldManifest{s.namespace, s.repository, s.id, *trashed})
			return nil
		}
		switch what {
		case "gone":
			l.gone.add(s.namespace, s.repository, s.id)
		case "unlinked":
			l.unlinked.add(s.namespace, s.repository, s.id)
		case "unqueued":
			l.unqueued.add(s.namespace, s.repository, s.id)
		case "referenced":
			l.referenced.add(s.namespace, s.repository, s.id)
		case "unreferenced":
			l.unreferenced.add(s.namespace, s.repository, s.id)
		default:
			s.listed = what == "listed"
			l.maybeInCycle.list = append(l.maybeInCycle.list, s)
			l.maybeInCycle.keys.add(s.namespace, s.repository, s.id)
		}
		return nil
	})
	return err
}
