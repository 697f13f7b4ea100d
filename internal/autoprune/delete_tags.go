package autoprune

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/autoprune/snapshot"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
)

// errBusy says that another transaction has locked rows of the repository, or that this
// transaction conflicted with another one and was rolled back. The caller may try again.
var errBusy = errors.New("other transactions have locked the repository")

// deletionTx is a transaction that deletes tags.
type deletionTx struct{ pgx.Tx }

// beginDeletion begins a transaction of which the trigger on tags knows that it prunes (see
// gc_track_deleted_tags), without hash joins and merge joins. DeleteTags joins a
// few rows by their physical places (ctid). With statistics from a time when the table was
// small, PostgreSQL would otherwise expect that reading the whole table is cheaper.
const beginDeletion = `BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off; SET LOCAL purser.pruning = on`

// deletion calls fn once, in a READ COMMITTED transaction on the pool for pruning, whose
// lock timeout is short. It returns errBusy if the transaction waited too long for a lock,
// or conflicted with another one, and was rolled back.
func (p *Pruner) deletion(ctx context.Context, fn func(tx deletionTx) error) error {
	err := pgx.BeginTxFunc(ctx, p.opt.Background.Pool, pgx.TxOptions{BeginQuery: beginDeletion}, func(tx pgx.Tx) error {
		return fn(deletionTx{tx})
	})
	if code := db.Code(err); code == db.CodeLockNotAvailable || db.Retryable(err) {
		return fmt.Errorf("%w: %w", errBusy, err)
	}
	return err
}

// errGone says that the repository was deleted. Its rows are already being removed, so the
// worker prunes nothing in it.
var errGone = errors.New("the repository is gone")

// LockRepository locks the repository's row against deletion until the transaction ends, and
// then takes the lock of deletions (see package hold). It returns whether any holds are in force
// in the namespace, by a later statement. Its error is errGone if the row doesn't exist.
func (tx deletionTx) LockRepository(ctx context.Context, t catalog.Repository) (holds bool, err error) {
	there := false
	b := new(pgx.Batch)
	b.Queue(`
		SELECT FROM repositories r
		WHERE r.id = $1 AND r.deleted_at IS NULL AND EXISTS (SELECT FROM live_namespaces n WHERE n.id = r.top_level_namespace_id)
		FOR KEY SHARE OF r`, t.ID).Exec(func(tag pgconn.CommandTag) error {
		there = tag.RowsAffected() > 0
		return nil
	})
	b.Queue("SELECT purser_holds_lock()")
	b.Queue("SELECT purser_any_holds($1)", t.NamespaceID).QueryRow(func(row pgx.Row) error { return row.Scan(&holds) })
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return false, fmt.Errorf("locking repository %s: %w", t.Path, err)
	}
	if !there {
		return false, errGone
	}
	return holds, nil
}

// tagBatch is a set of tags of one repository that are to be deleted, with the details for
// the audit entry of each.
type tagBatch struct {
	Target catalog.Repository
	Tags   []snapshot.TagRow
	// Why has, for each element of Tags, the index of its reason in Reasons. Most tags of a
	// batch have the same reason.
	Why     []int32
	Reasons []batchReason
	Run     uuid.UUID
}

// batchReason is the reason why a tag is deleted.
type batchReason struct {
	Policy uuid.UUID // zero: the log names no policy
	// Detail is a JSON object. DeleteTags stores it as the detail of the tag's audit entry,
	// and adds the tag's created_at, its updated_at if the tag was ever moved or pushed again,
	// and its expires_at if it had an expiration date.
	Detail string
}

// DeleteTags deletes those tags of the batch that are still as the snapshot showed them:
// the same row, with the same manifest, not pushed again, not immutable. It skips tags that another
// transaction has locked. It locks tags in the order of their names, as the push of a
// manifest does. deleted[i] is the number of tags that were deleted for the reason
// b.Reasons[i].
//
// The condition on id, manifest and push time compares by IS NOT DISTINCT FROM, for which
// PostgreSQL can't use a database index. Therefore it can only find a row by the tag's
// name, and delete it by its physical place (ctid). With the operator = and statistics that
// show few tags per manifest, PostgreSQL chose the database index on manifest_id: each tag
// of a manifest with 60,000 tags then cost a scan of all 60,000.
//
// The CTE "locked" locks the newest version of each row and checks the conditions on that
// version, which nobody can change from then on. The CTE "gone" finds this version by its
// place, if the statement's snapshot can see it. A version that the snapshot can't see was
// written after the statement began; such a tag stays. The CTE "logged" makes the audit
// entries from the deleted rows, so that names and digests aren't sent to this process and
// back. It joins the deleted rows with the table manifests, which loses no entry, since a
// tag's manifest always exists, also while the tag is deleted.
func (tx deletionTx) DeleteTags(ctx context.Context, b tagBatch) (deleted []int64, err error) {
	ids, names, manifests, pushed := columns(b.Tags)
	policies, details := make([]pgtype.UUID, len(b.Reasons)), make([]string, len(b.Reasons))
	for i, r := range b.Reasons {
		policies[i], details[i] = pgtype.UUID{Bytes: r.Policy, Valid: r.Policy != uuid.Nil}, r.Detail
	}
	rows, err := tx.Query(ctx, `
		WITH want AS (
			SELECT * FROM unnest(@ids::bigint[], @names::text[], @manifests::bigint[], @pushed::timestamptz[], @why::integer[])
				AS w (id, name, manifest_id, pushed, why)
			ORDER BY name COLLATE "C"
		), locked AS MATERIALIZED (
			SELECT w.*, t.tableoid, t.ctid FROM want w
			CROSS JOIN LATERAL (
				SELECT tableoid, ctid FROM tags
				WHERE repository_id = @repository AND top_level_namespace_id = @namespace AND name = w.name
					AND (id, manifest_id, COALESCE(updated_at, created_at)) IS NOT DISTINCT FROM (w.id, w.manifest_id, w.pushed) AND NOT immutable
				FOR UPDATE SKIP LOCKED) t
		), gone AS (
			DELETE FROM tags t USING locked l
			WHERE t.top_level_namespace_id = @namespace AND t.ctid = l.ctid AND t.tableoid = l.tableoid
			RETURNING t.name, t.manifest_id, t.created_at, t.updated_at, t.expires_at, l.why
		), logged AS (
			INSERT INTO auditlog (kind, actor, address, user_agent, request_id, namespace, repository, repository_id, tag, digest,
				policy, run, detail)
			SELECT 'autoprune_tag_delete', @actor, @address, @user_agent, @request_id, split_part(@path::text, '/', 1), @path, @repository,
				g.name, m.digest, (@policies::uuid[])[g.why + 1], @run::uuid,
				(@details::jsonb[])[g.why + 1] || jsonb_strip_nulls(jsonb_build_object('created_at', g.created_at, 'updated_at', g.updated_at, 'expires_at', g.expires_at))
			FROM gone g CROSS JOIN LATERAL (
				SELECT digest FROM manifests
				WHERE top_level_namespace_id = @namespace AND repository_id = @repository AND id BETWEEN g.manifest_id AND g.manifest_id
				ORDER BY id LIMIT 1) m
		)
		SELECT why, count(*) FROM gone GROUP BY why`, audit.Args(ctx, db.Args{
		"namespace": b.Target.NamespaceID, "repository": b.Target.ID, "path": b.Target.Path,
		"ids": ids, "names": names, "manifests": manifests, "pushed": pushed, "why": b.Why,
		"policies": policies, "details": details, "run": b.Run,
	}))
	if err != nil {
		return nil, fmt.Errorf("deleting tags of %s: %w", b.Target.Path, err)
	}
	deleted = make([]int64, len(b.Reasons))
	var why int32
	var n int64
	_, err = pgx.ForEachRow(rows, []any{&why, &n}, func() error {
		deleted[why] = n
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("deleting tags of %s: %w", b.Target.Path, err)
	}
	return deleted, nil
}

func columns(tags []snapshot.TagRow) (ids []int64, names []string, manifests []int64, pushed []time.Time) {
	n := len(tags)
	ids, names, manifests, pushed = make([]int64, n), make([]string, n), make([]int64, n), make([]time.Time, n)
	for i, t := range tags {
		ids[i], names[i], manifests[i], pushed[i] = t.ID, t.Name, t.Manifest, t.Pushed
	}
	return ids, names, manifests, pushed
}

// LockImages locks the given images, which are ids of manifests of the repository, so that
// no client can tag them until the transaction ends. It returns those images that no tag
// reaches now, neither directly nor through an index above them. Without the locks, a
// client could tag an image right after LockImages has looked for tags: tagging a manifest,
// and putting an index, first locks the manifest. An image that doesn't exist any more
// isn't returned: if a client has pushed it again, it has a new id.
//
// LockImages locks the indexes above the images too, level by level. No index can be
// added above an image that is locked, since putting an index locks its children.
// Section "Plans" of package db says why the query has OFFSET 0.
func (tx deletionTx) LockImages(ctx context.Context, t catalog.Repository, images []int64) ([]int64, error) {
	for level := images; len(level) > 0; {
		_, err := tx.Exec(ctx, `
			SELECT FROM (SELECT id FROM unnest($3::bigint[]) AS id ORDER BY id) w
			CROSS JOIN LATERAL (
				SELECT FROM manifests WHERE top_level_namespace_id = $1 AND repository_id = $2 AND id BETWEEN w.id AND w.id
				ORDER BY id LIMIT 1 FOR UPDATE) m`, t.NamespaceID, t.ID, level)
		if err != nil {
			return nil, fmt.Errorf("locking images in %s: %w", t.Path, err)
		}
		rows, err := tx.Query(ctx, `
			SELECT DISTINCT x.parent_id FROM unnest($3::bigint[]) AS want (id)
			CROSS JOIN LATERAL (
				SELECT parent_id FROM manifest_references
				WHERE top_level_namespace_id = $1 AND repository_id = $2 AND child_id BETWEEN want.id AND want.id
				ORDER BY child_id OFFSET 0) x`, t.NamespaceID, t.ID, level)
		if err == nil {
			level, err = pgx.CollectRows(rows, pgx.RowTo[int64])
		}
		if err != nil {
			return nil, fmt.Errorf("locking images in %s: %w", t.Path, err)
		}
	}
	rows, err := tx.Query(ctx, `
		SELECT want.id FROM unnest($3::bigint[]) AS want (id)
		CROSS JOIN LATERAL (
			SELECT FROM manifests WHERE top_level_namespace_id = $1 AND repository_id = $2 AND id BETWEEN want.id AND want.id
			ORDER BY id LIMIT 1) m
		WHERE NOT EXISTS (
			WITH RECURSIVE above AS (
				SELECT want.id
				UNION
				SELECT x.parent_id FROM above a
				CROSS JOIN LATERAL (
					SELECT parent_id FROM manifest_references
					WHERE top_level_namespace_id = $1 AND repository_id = $2 AND child_id BETWEEN a.id AND a.id
					ORDER BY child_id OFFSET 0) x
			)
			SELECT FROM above a
			CROSS JOIN LATERAL (
				SELECT name FROM tags
				WHERE top_level_namespace_id = $1 AND repository_id = $2 AND manifest_id BETWEEN a.id AND a.id
				ORDER BY manifest_id LIMIT 1) t)`,
		t.NamespaceID, t.ID, images)
	if err != nil {
		return nil, fmt.Errorf("looking for references to images in %s: %w", t.Path, err)
	}
	free, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return nil, fmt.Errorf("looking for references to images in %s: %w", t.Path, err)
	}
	return free, nil
}

// BlockPushes blocks pushes to the repository until the transaction ends. The result
// `absent` says of each given digest whether the repository has no manifest with it. The
// result `alone` has those of the given manifests (ids) whose subject isn't in the
// repository, or that have no subject.
func (tx deletionTx) BlockPushes(ctx context.Context, t catalog.Repository, digests []oci.DigestPrefix, manifests []int64) (absent map[oci.DigestPrefix]bool, alone map[int64]bool, err error) {
	if _, err := tx.Exec(ctx, "SELECT FROM repositories WHERE id = $1 FOR UPDATE", t.ID); err != nil {
		return nil, nil, fmt.Errorf("locking repository %s: %w", t.Path, err)
	}
	s := snapshot.In(tx, t) // here each statement has its own snapshot
	found, err := s.Manifests(ctx, digests)
	if err != nil {
		return nil, nil, err
	}
	links, err := s.Subjects(ctx, manifests)
	if err != nil {
		return nil, nil, err
	}
	absent, alone = make(map[oci.DigestPrefix]bool), make(map[int64]bool)
	for _, d := range digests {
		_, there := found[d]
		absent[d] = !there
	}
	for _, m := range manifests {
		alone[m] = true
	}
	for _, l := range links {
		delete(alone, l.Kept)
	}
	return absent, alone, nil
}
