package check

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/purser-registry/purser/internal/db"
)

// The first release computed total_size of a manifest from the sizes that the manifest
// declares. CorrectSizes compares total_size of all manifests with the stored sizes, in the
// order of the manifests' ids, and updates the rows that differ. The stored sizes of
// manifests and blobs never change, so any process may compare a manifest at any time. The
// row of manifest_size_corrections records the progress. One process at a time locks this
// row, and updates it in the transaction that corrects the sizes. CorrectSizes waits for no
// lock: it skips a manifest that another transaction has locked, for example to delete it,
// and compares that manifest again in the second pass.

const (
	// sizePasses is how often all manifests are compared. A second pass is needed because a
	// process of the first release may still run and store a manifest whose id the first
	// pass has already passed.
	sizePasses = 2
	// sizePassAfter is the pause between the first and the second pass. By its end the
	// upgrade must have replaced all processes of the first release.
	sizePassAfter = 24 * time.Hour
	// sizePageBytes bounds the payloads of the manifests that one call compares, and thereby
	// the number of their references. A call compares at least one manifest.
	sizePageBytes = 4 << 20
)

// SizeCorrection is the result of one call of CorrectSizes.
type SizeCorrection struct {
	Compared, Corrected int64 // manifests, by this call
	// Next is how long it is until the next call of CorrectSizes has something to do; 0: at
	// once.
	Next time.Duration
	// Over says that all passes are finished. ComparedInAll and CorrectedInAll are the
	// totals of all calls.
	Over                          bool
	ComparedInAll, CorrectedInAll int64
}

// sizePass is the row of manifest_size_corrections: the progress of the passes.
type sizePass struct {
	pass                int
	after               int64 // the id of the last manifest that was compared
	compared, corrected int64
	dueIn               float64 // seconds
	finished            bool
}

// CorrectSizes compares total_size of up to n further manifests with the stored sizes, and
// corrects total_size where it is wrong. It does nothing while another process runs
// CorrectSizes.
func CorrectSizes(ctx context.Context, pool *db.DB, n int) (done SizeCorrection, err error) {
	err = pool.Tx(ctx, func(tx pgx.Tx) error {
		done = SizeCorrection{}
		p, err := lockSizePass(ctx, tx)
		switch {
		case errors.Is(err, pgx.ErrNoRows): // another process has locked it
			done.Next = time.Minute
			return nil
		case err != nil:
			return err
		}
		done.ComparedInAll, done.CorrectedInAll, done.Over = p.compared, p.corrected, p.finished
		if done.Next = time.Duration(p.dueIn * float64(time.Second)); done.Over || done.Next > 0 {
			return nil
		}
		done.Next = 0
		wrong, last, compared, err := wrongSizes(ctx, tx, p.after, n)
		if err != nil {
			return err
		}
		if compared == 0 {
			done.Over, done.Next = p.pass >= sizePasses, sizePassAfter
			return endSizePass(ctx, tx, done.Over)
		}
		if done.Corrected, err = writeSizes(ctx, tx, wrong); err != nil {
			return err
		}
		done.Compared = compared
		done.ComparedInAll += compared
		done.CorrectedInAll += done.Corrected
		_, err = tx.Exec(ctx, "UPDATE manifest_size_corrections SET manifest_id = $1, compared = $2, corrected = $3",
			last, done.ComparedInAll, done.CorrectedInAll)
		return err
	})
	if err != nil {
		return SizeCorrection{}, fmt.Errorf("correcting the sizes of manifests: %w", err)
	}
	return done, nil
}

func lockSizePass(ctx context.Context, tx pgx.Tx) (p sizePass, err error) {
	err = tx.QueryRow(ctx, `
		SELECT pass, manifest_id, compared, corrected, extract(epoch FROM due_at - now())::float8, finished_at IS NOT NULL
		FROM manifest_size_corrections FOR UPDATE SKIP LOCKED`).
		Scan(&p.pass, &p.after, &p.compared, &p.corrected, &p.dueIn, &p.finished)
	return p, err
}

// wrongSize is a manifest whose total_size is wrong, with the right size.
type wrongSize struct{ namespace, repository, id, size int64 }

// wrongSizesSQL computes the right total_size of the next manifests. It looks up the sizes
// of each manifest's blobs and children by a database index. The section "Plans" of package
// db explains OFFSET 0.
const wrongSizesSQL = `
	WITH page AS MATERIALIZED (
		SELECT *, sum(own) OVER (ORDER BY id) - own AS before FROM (
			SELECT top_level_namespace_id, repository_id, id, configuration_blob_digest, total_size,
				octet_length(payload)::bigint AS own
			FROM manifests WHERE id > @after ORDER BY id LIMIT @n) m
	)
	SELECT p.top_level_namespace_id, p.repository_id, p.id, p.total_size,
		LEAST(p.own + COALESCE(blobs.size, 0) + COALESCE(children.size, 0), 9223372036854775807)::bigint
	FROM page p
	CROSS JOIN LATERAL (
		SELECT sum(b.size) AS size FROM (
			SELECT digest FROM layers
			WHERE top_level_namespace_id = p.top_level_namespace_id AND repository_id = p.repository_id AND manifest_id = p.id
			UNION
			SELECT p.configuration_blob_digest) own
		CROSS JOIN LATERAL (SELECT size FROM blobs WHERE digest = own.digest OFFSET 0) b) blobs
	CROSS JOIN LATERAL (
		SELECT sum(c.size) AS size FROM (
			SELECT child_id FROM manifest_references
			WHERE top_level_namespace_id = p.top_level_namespace_id AND repository_id = p.repository_id AND parent_id = p.id
			OFFSET 0) x
		CROSS JOIN LATERAL (
			SELECT octet_length(payload) AS size FROM manifests
			WHERE top_level_namespace_id = p.top_level_namespace_id AND repository_id = p.repository_id
				AND id BETWEEN x.child_id AND x.child_id ORDER BY id LIMIT 1) c) children
	WHERE p.before < @bytes
	ORDER BY p.id`

// wrongSizes compares up to n manifests whose ids are greater than `after`. It returns
// those whose total_size is wrong, the id of the last manifest compared, and the number of
// manifests compared.
func wrongSizes(ctx context.Context, tx pgx.Tx, after int64, n int) (wrong []wrongSize, last, compared int64, err error) {
	rows, err := tx.Query(ctx, wrongSizesSQL, pgx.NamedArgs{"after": after, "n": n, "bytes": sizePageBytes})
	if err != nil {
		return nil, 0, 0, err
	}
	var w wrongSize
	var total int64
	_, err = pgx.ForEachRow(rows, []any{&w.namespace, &w.repository, &w.id, &total, &w.size}, func() error {
		compared, last = compared+1, w.id
		if total != w.size {
			wrong = append(wrong, w)
		}
		return nil
	})
	return wrong, last, compared, err
}

// writeSizes corrects the total_size of the manifests in `wrong`, except in rows that
// another transaction has locked, and returns the number of corrected rows.
func writeSizes(ctx context.Context, tx pgx.Tx, wrong []wrongSize) (corrected int64, err error) {
	b := new(pgx.Batch)
	for _, w := range wrong {
		b.Queue(`
			WITH free AS MATERIALIZED (
				SELECT tableoid, ctid FROM manifests
				WHERE top_level_namespace_id = $1 AND repository_id = $2 AND id BETWEEN $3 AND $3
				ORDER BY id LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED)
			UPDATE manifests SET total_size = $4
			WHERE top_level_namespace_id = $1 AND tableoid = (SELECT tableoid FROM free) AND ctid = (SELECT ctid FROM free)`,
			w.namespace, w.repository, w.id, w.size).
			Exec(func(tag pgconn.CommandTag) error {
				corrected += tag.RowsAffected()
				return nil
			})
	}
	err = tx.SendBatch(ctx, b).Close()
	return corrected, err
}

// endSizePass ends a pass; the next pass is due after sizePassAfter. If `all` is set, the
// pass was the last one.
func endSizePass(ctx context.Context, tx pgx.Tx, all bool) error {
	_, err := tx.Exec(ctx, `
		UPDATE manifest_size_corrections SET pass = pass + CASE WHEN $1 THEN 0 ELSE 1 END, manifest_id = 0,
			due_at = now() + $2::interval, finished_at = CASE WHEN $1 THEN now() END`, all, sizePassAfter)
	return err
}
