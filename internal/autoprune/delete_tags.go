package autoprune

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
)

// errBusy says that a lock on the repository's rows wasn't available: try again.
var errBusy = errors.New("other transactions have locked the repository")

// deletionTx is a transaction that deletes tags.
type deletionTx struct{ pgx.Tx }

// beginDeletion begins a transaction without hash and merge joins: Delete joins a few rows by
// their physical places, and statistics from when the table was small would make reading the
// whole table look cheaper.
const beginDeletion = `BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off`

// deletion calls fn in a READ COMMITTED transaction of the pool for pruning, whose lock
// timeout is short. It runs fn once; errBusy says that the transaction lost a race and was
// rolled back.
func (p *Pruner) deletion(ctx context.Context, fn func(tx deletionTx) error) error {
	err := pgx.BeginTxFunc(ctx, p.opt.Background.Pool, pgx.TxOptions{BeginQuery: beginDeletion}, func(tx pgx.Tx) error {
		return fn(deletionTx{tx})
	})
	if code := db.Code(err); code == db.CodeLockNotAvailable || db.Retryable(err) {
		return fmt.Errorf("%w: %w", errBusy, err)
	}
	return err
}

// errGone says that the repository was deleted. Its rows are being removed anyway,
// so nothing of it is pruned.
var errGone = errors.New("the repository is gone")

// LockRepository locks the repository against deletion until the transaction ends. Error:
// errGone.
func (tx deletionTx) LockRepository(ctx context.Context, t catalog.Repository) error {
	done, err := tx.Exec(ctx, "SELECT FROM repositories WHERE id = $1 FOR KEY SHARE", t.ID)
	if err != nil {
		return fmt.Errorf("locking repository %s: %w", t.Path, err)
	}
	if done.RowsAffected() == 0 {
		return errGone
	}
	return nil
}

// tagBatch is a set of tags of a repository that are to be deleted, with the audit log's
// details for each.
type tagBatch struct {
	Target catalog.Repository
	Tags   []tagRow
	// Why has, for each of the tags, the index of its reason in Reasons: most tags of a
	// batch share one reason.
	Why     []int32
	Reasons []batchReason
	Run     uuid.UUID
}

// batchReason is the reason why a tag is deleted.
type batchReason struct {
	Policy uuid.UUID // zero: the log names no policy
	// Detail is a JSON object. A tag's audit entry has it, plus the tag's created_at, and
	// updated_at if the tag was ever moved or pushed again.
	Detail string
}

// DeleteTags deletes those of the tags that are still as they were read: the same row, with the
// same manifest, not pushed again. It skips tags that another transaction has locked. It
// locks tags in the order of their names, as a put does. It returns the number of deleted
// tags for each of the reasons.
//
// IS NOT DISTINCT FROM can't use an index. So a row can only be found by its name, and
// deleted by its physical place (ctid). Otherwise, with statistics that show few tags per
// manifest, each row of a manifest with 60,000 tags cost a scan of all 60,000.
//
// The statement locks the rows and checks the conditions on the locked, newest version. The
// deletion finds that version by its place, if the statement's snapshot can see it, and
// checks again. A version that the snapshot can't see was written after the statement began,
// and stays. The same statement makes the audit entries from the deleted rows, so that names
// and digests aren't sent back and forth. A tag's manifest always exists, also for the
// statement that deletes the tag.
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
					AND (id, manifest_id, COALESCE(updated_at, created_at)) IS NOT DISTINCT FROM (w.id, w.manifest_id, w.pushed)
				FOR UPDATE SKIP LOCKED) t
		), gone AS (
			DELETE FROM tags t USING locked l
			WHERE t.top_level_namespace_id = @namespace AND t.ctid = l.ctid AND t.tableoid = l.tableoid
				AND (t.id, t.manifest_id, COALESCE(t.updated_at, t.created_at)) IS NOT DISTINCT FROM (l.id, l.manifest_id, l.pushed)
			RETURNING t.name, t.manifest_id, t.created_at, t.updated_at, l.why
		), logged AS (
			INSERT INTO auditlog (kind, actor, address, user_agent, request_id, namespace, repository, repository_id, tag, digest,
				policy, run, detail)
			SELECT 'autoprune_tag_delete', @actor, @address, @user_agent, @request_id, split_part(@path::text, '/', 1), @path, @repository,
				g.name, m.digest, (@policies::uuid[])[g.why + 1], @run::uuid,
				(@details::jsonb[])[g.why + 1] || CASE WHEN g.updated_at IS NULL
					THEN jsonb_build_object('created_at', g.created_at)
					ELSE jsonb_build_object('created_at', g.created_at, 'updated_at', g.updated_at) END
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

func columns(tags []tagRow) (ids []int64, names []string, manifests []int64, pushed []time.Time) {
	n := len(tags)
	ids, names, manifests, pushed = make([]int64, n), make([]string, n), make([]int64, n), make([]time.Time, n)
	for i, t := range tags {
		ids[i], names[i], manifests[i], pushed[i] = t.ID, t.Name, t.Manifest, t.Pushed
	}
	return ids, names, manifests, pushed
}

// LockImages locks the images, which are manifests of the repository, against getting a tag
// until the transaction ends. It returns those that no tag reaches now, neither directly nor
// through an index above them. Only the locks make that certain: whoever tags a manifest, or
// puts an index, locks the manifest first. An image that doesn't exist any more isn't
// returned: it may have been pushed again, and then is another manifest with another id.
//
// The indexes above are locked too. No index can be added meanwhile, since a new index locks
// its children. For OFFSET 0 see "Plans" in package db.
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

// BlockPushes blocks pushes to the repository until the transaction ends. It returns the
// digests that aren't manifests of it, and the manifests that have no subject in it.
func (tx deletionTx) BlockPushes(ctx context.Context, t catalog.Repository, digests []oci.DigestPrefix, manifests []int64) (absent map[oci.DigestPrefix]bool, alone map[int64]bool, err error) {
	if _, err := tx.Exec(ctx, "SELECT FROM repositories WHERE id = $1 FOR UPDATE", t.ID); err != nil {
		return nil, nil, fmt.Errorf("locking repository %s: %w", t.Path, err)
	}
	s := &snapshot{tx: tx, target: t, subjects: true} // here each statement has its own snapshot
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
