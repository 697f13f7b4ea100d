package catalog

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
)

// Manifests can hold each other in a circle: an index holds its children, and a
// subject its referrers, so an index whose subject is a child of its own, at any
// depth, is held by what it holds. Without a tag such a circle is garbage though
// each of it is held. How a review finds and breaks one:
//
//   - What holds a manifest are its indexes and its living subject, what holds
//     those, and so on: its holders. When no holder has a tag, then nothing that
//     isn't a holder holds any of them, so all are garbage. When the manifest is
//     among its own holders, then it is in a circle, and nobody but a review that
//     knows of circles deletes it.
//   - A manifest of a circle that no index contains can be deleted: only its
//     subject holds it. The circle is broken, and triggers queue what it held. There
//     always is one: a manifest names its children and its subject by digest, so of
//     those in a circle one is named by no other. If an index outside of the circle
//     contains it, then that is a holder, of a circle of its own or held by nothing.
//   - What makes a circle garbage (a tag, an index or a subject that goes) queues
//     the manifest that lost it, which may have an index. Its review queues those
//     holders that have none, in the transaction that drops its own row.
//   - Before a manifest of a circle is deleted, it and all its holders are locked,
//     and looked for again in a new statement. A tag and a new index take KEY SHARE
//     on what they point to. So from then on no holder gets a tag or another holder,
//     and what came before is seen. What promises say stays true: only what was
//     claimed is deleted, and never a holder that wasn't.
//   - A subject that comes while this happens is not waited for: it is as if the
//     review had been first.
//
// Only what holds something while it is held itself can be in a circle. Other
// manifests are told apart when they are looked at, and their review costs no
// statement more.

// circleLimit is how many holders a review looks at, and may have to lock. A
// circle with more is kept: that many indexes of one manifest, none of them
// tagged and all of them in circles, aren't worth transactions without a bound.
const circleLimit = 2000

// circleNear is how many holders of each are looked at first.
const circleNear = 32

// circle is what holds a manifest that is among its own holders, none of which
// has a tag.
type circle struct {
	namespace, repository int64
	holders               []int64 // identities
}

// circles keeps them by the identities of manifests whose holders they contain.
type circles map[int64]*circle

// of is the circles of some manifests, each once.
func (found circles) of(keys manifestKeys) map[*circle]bool {
	list := map[*circle]bool{}
	for _, id := range keys.ids {
		if c, ok := found[id]; ok {
			list[c] = true
		}
	}
	return list
}

// holdersOf is the SQL of the direct holders of a manifest of w's repository, by
// its identity and its subject's digest: their own, and whether they are tagged.
func holdersOf(id, subject string) string {
	return fmt.Sprintf(`
		SELECT h.id, h.subject_digest, EXISTS (
			SELECT FROM tags t
			WHERE t.top_level_namespace_id = w.namespace AND t.repository_id = w.repository
				AND t.manifest_id = h.id OFFSET 0)
		FROM (
			SELECT p.id, p.subject_digest
			FROM (
				SELECT parent_id FROM manifest_references
				WHERE top_level_namespace_id = w.namespace AND repository_id = w.repository
					AND child_id = %s OFFSET 0) x
			CROSS JOIN LATERAL (
				SELECT id, subject_digest FROM manifests
				WHERE top_level_namespace_id = w.namespace AND repository_id = w.repository
					AND id = x.parent_id OFFSET 0) p
			UNION ALL
			SELECT id, subject_digest FROM manifests
			WHERE top_level_namespace_id = w.namespace AND repository_id = w.repository
				AND digest = %s) h`, id, subject)
}

// holders is one statement: for each manifest of wantedManifests its holders, or
// NULL if one of them is tagged. It stops at the first that is.
var holders = `
	SELECT w.namespace, w.repository, w.id, found.ids
	FROM ` + wantedManifests + `
	CROSS JOIN LATERAL (
		SELECT subject_digest FROM manifests
		WHERE top_level_namespace_id = w.namespace AND repository_id = w.repository AND id = w.id
		OFFSET 0) m
	CROSS JOIN LATERAL (
		WITH RECURSIVE holders (id, subject, tagged) AS (
			` + holdersOf("w.id", "m.subject_digest") + `
			UNION
			SELECT up.* FROM holders held
			CROSS JOIN LATERAL (` + holdersOf("held.id", "held.subject") + `) up (id, subject, tagged)
			WHERE NOT held.tagged
		)
		SELECT CASE WHEN NOT EXISTS (SELECT FROM (SELECT tagged FROM holders LIMIT $4) h WHERE h.tagged)
			THEN ARRAY(SELECT id FROM holders LIMIT $4) END AS ids
		OFFSET 0) found`

// findCircles returns those of the manifests that are in a circle, or held by one.
// Each of them has no tag of its own.
func findCircles(ctx context.Context, tx pgx.Tx, keys manifestKeys) (circles, error) {
	found := circles{}
	if keys.len() == 0 {
		return found, nil
	}
	// Most have a holder with a tag, or few holders. The others are looked at one by
	// one: the holders of a circle's manifest are garbage like it.
	far, err := walkUp(ctx, tx, keys, circleNear, found)
	if err != nil {
		return nil, err
	}
	garbage := circles{}
	for i, id := range far.ids {
		if c, ok := garbage[id]; ok {
			found[id] = c
			continue
		}
		var one manifestKeys
		one.add(far.namespaces[i], far.repositories[i], id)
		if _, err := walkUp(ctx, tx, one, circleLimit, found); err != nil {
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

// walkUp looks at up to limit holders of each manifest, adds the circles to found
// and returns those manifests that have more holders, none of them tagged so far.
func walkUp(ctx context.Context, tx pgx.Tx, keys manifestKeys, limit int, found circles) (far manifestKeys, err error) {
	rows, err := tx.Query(ctx, holders, keys.args(limit+1)...)
	if err != nil {
		return far, err
	}
	var id int64
	var c circle
	_, err = pgx.ForEachRow(rows, []any{&c.namespace, &c.repository, &id, &c.holders}, func() error {
		switch {
		case len(c.holders) > limit:
			far.add(c.namespace, c.repository, id)
		case slices.Contains(c.holders, id):
			found[id] = &circle{c.namespace, c.repository, slices.Clone(c.holders)}
		}
		c.holders = nil
		return nil
	})
	return far, err
}

// lockedBy says whether all its holders are among the locked.
func (c *circle) lockedBy(locked map[int64]bool) bool {
	return !slices.ContainsFunc(c.holders, func(id int64) bool { return !locked[id] })
}

// queueCircles queues the holders of each circle that no index contains. A delay
// that they have been promised stays.
func queueCircles(ctx context.Context, tx pgx.Tx, list []*circle) error {
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
		INSERT INTO gc_manifest_review_queue AS q (top_level_namespace_id, repository_id, manifest_id, review_after, event)
		SELECT w.namespace, w.repository, w.id, gc_review_after('manifest_list_delete'), 'circle'
		FROM `+wantedManifests+`
		WHERE NOT EXISTS (
			SELECT FROM manifest_references x
			WHERE x.top_level_namespace_id = w.namespace AND x.repository_id = w.repository
				AND x.child_id = w.id OFFSET 0)
		ON CONFLICT (top_level_namespace_id, repository_id, manifest_id) DO UPDATE SET
			review_after = GREATEST(q.review_after, EXCLUDED.review_after),
			review_count = 0, event = EXCLUDED.event, set_aside_at = NULL`, all.args()...)
	return err
}
