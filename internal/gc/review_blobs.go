package gc

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/oci"
)

// claimBlobs locks up to o.Limit due rows of gc_blob_review_queue, oldest first, and
// returns them. It skips rows that other transactions have locked.
func claimBlobs(ctx context.Context, tx pgx.Tx, o ReviewOptions) ([]queueRow, error) {
	after, digest := any("-infinity"), []byte{}
	if o.After.set {
		after, digest = o.After.after, o.After.digest
	}
	rows, err := tx.Query(ctx, `
		SELECT digest, event, created_at, review_after FROM gc_blob_review_queue
		WHERE set_aside_at IS NULL AND review_after <= now() AND (review_after, digest) > ($2::timestamptz, $3::bytea)
		ORDER BY review_after, digest LIMIT $1
		FOR UPDATE SKIP LOCKED`, o.Limit, after, digest)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (r queueRow, err error) {
		err = row.Scan(&r.digest, &r.event, &r.createdAt, &r.reviewAfter)
		return r, err
	})
}

// reviewBlobs reviews the queue rows that claimBlobs has locked. It deletes each blob to
// which no manifest of any repository refers, and records the blob's object for deletion in
// the same statement. For each blob in use, it deletes the links (rows of repository_blobs)
// of repositories in which no manifest uses the blob.
func (c *Collector) reviewBlobs(ctx context.Context, tx pgx.Tx, rows []queueRow, dry bool, out *Review) error {
	claimed := make([][]byte, len(rows))
	for i, r := range rows {
		claimed[i] = r.digest
	}
	// Look.
	used, candidates, err := splitReferenced(ctx, tx, claimed)
	if err != nil {
		return err
	}
	// Lock.
	locked, err := lockBlobs(ctx, tx, candidates)
	if err != nil {
		return err
	}
	// Look again.
	usedSince, unused, err := splitReferenced(ctx, tx, locked)
	if err != nil {
		return err
	}
	used = append(used, usedSince...)
	// Delete.
	deleted, err := c.deleteBlobs(ctx, tx, unused, out)
	if err != nil {
		return err
	}
	elsewhere, err := lockedElsewhere(ctx, tx, without(candidates, locked))
	if err != nil {
		return err
	}
	// Remove unused links of the blobs in use.
	fewLinks, manyLinked, err := splitManyLinked(ctx, tx, used)
	if err != nil {
		return err
	}
	unsettled, err := unlinkUnused(ctx, tx, fewLinks, out)
	if err != nil {
		return err
	}
	out.Deleted, out.Kept, out.Postponed = len(deleted), len(used), len(elsewhere)
	out.Gone = out.Claimed - out.Deleted - out.Kept - out.Postponed
	if dry {
		return listDryRunBlobs(rows, deleted, out)
	}
	// Settle.
	if out.ManyLinked, err = postponeManyLinked(ctx, tx, manyLinked); err != nil {
		return err
	}
	postponed := append(elsewhere, unsettled...)
	return settleBlobs(ctx, tx, without(without(claimed, manyLinked), postponed), postponed)
}

// splitReferenced splits `digests` into those to which a manifest refers, and the others.
// "Plans" in the comment of package db says why lookups have OFFSET 0.
func splitReferenced(ctx context.Context, tx pgx.Tx, digests [][]byte) (used, unused [][]byte, err error) {
	if len(digests) == 0 {
		return nil, nil, nil
	}
	rows, err := tx.Query(ctx, `
		SELECT d.digest, l.found OR c.found
		FROM unnest($1::bytea[]) AS d (digest)
		CROSS JOIN LATERAL (SELECT EXISTS (
			SELECT FROM gc_blobs_layers l WHERE l.digest = d.digest OFFSET 0) AS found) l
		CROSS JOIN LATERAL (SELECT NOT l.found AND EXISTS (
			SELECT FROM gc_blobs_configurations c WHERE c.digest = d.digest OFFSET 0) AS found) c`, digests)
	if err != nil {
		return nil, nil, err
	}
	var digest []byte
	var isUsed bool
	_, err = pgx.ForEachRow(rows, []any{&digest, &isUsed}, func() error {
		if isUsed {
			used = append(used, digest)
		} else {
			unused = append(unused, digest)
		}
		return nil
	})
	return used, unused, err
}

// lockBlobs locks the blobs FOR UPDATE, so that no other transaction can delete them or
// make references to them, and returns the digests of the locked blobs. It skips blobs that
// other transactions have locked.
func lockBlobs(ctx context.Context, tx pgx.Tx, digests [][]byte) ([][]byte, error) {
	if len(digests) == 0 {
		return nil, nil
	}
	rows, err := tx.Query(ctx, `
		SELECT b.digest FROM (SELECT digest FROM unnest($1::bytea[]) AS digest ORDER BY digest) want
		CROSS JOIN LATERAL (SELECT digest FROM blobs WHERE digest = want.digest FOR UPDATE SKIP LOCKED) b`, digests)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[[]byte])
}

// deletedBlob describes a blob that was deleted.
type deletedBlob struct {
	digest []byte
	size   int64
}

// deleteBlobs deletes blobs and their links, and records the blobs' objects for deletion. If any
// namespace has a quota, it deletes the links by a statement before, since the trigger that
// counts what a namespace uses needs the sizes of the blobs. No new link to a blob can appear,
// since the blobs are locked.
//
// While a blob is younger than LongestWrite, a write of its object may still be under way:
// for example, if the store received a write twice, it may execute the second one late. So
// for such a blob deleteBlobs sets again_at, which makes the sweeper delete the object a
// second time when the blob has reached that age.
func (c *Collector) deleteBlobs(ctx context.Context, tx pgx.Tx, digests [][]byte, out *Review) ([]deletedBlob, error) {
	if len(digests) == 0 {
		return nil, nil
	}
	_, err := tx.Exec(ctx, `
		DELETE FROM repository_blobs WHERE blob_digest = ANY ($1::bytea[]) AND EXISTS (SELECT FROM namespacequotas)`, digests)
	if err != nil {
		return nil, err
	}
	rows, err := tx.Query(ctx, `
		WITH d AS (
			DELETE FROM blobs b USING unnest($1::bytea[]) AS want (digest) WHERE b.digest = want.digest
			RETURNING b.digest, b.size, b.storage_key, b.created_at + $2::interval AS late
		), pending AS (
			INSERT INTO gc_doomed_objects (storage_key, size, again_at)
			SELECT storage_key, size, CASE WHEN late > now() THEN late END FROM d
		)
		SELECT digest, size FROM d`, digests, c.opt.Catalog.LongestWrite())
	if err != nil {
		return nil, err
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (d deletedBlob, err error) {
		err = row.Scan(&d.digest, &d.size)
		return d, err
	})
	for _, d := range list {
		out.Bytes = oci.AddSizes(out.Bytes, d.size)
	}
	return list, err
}

// lockedElsewhere gets the digests of the blobs that the caller couldn't lock, and returns
// those whose blobs still exist: another transaction has locked these blobs. The other
// blobs were deleted.
func lockedElsewhere(ctx context.Context, tx pgx.Tx, digests [][]byte) ([][]byte, error) {
	if len(digests) == 0 {
		return nil, nil
	}
	rows, err := tx.Query(ctx, `
		SELECT d.digest FROM unnest($1::bytea[]) AS d (digest)
		CROSS JOIN LATERAL (SELECT FROM blobs WHERE digest = d.digest LIMIT 1) b`, digests)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[[]byte])
}

const postponeBlobs = `
	UPDATE gc_blob_review_queue SET review_after = GREATEST(review_after, now() + $2::interval)
	WHERE digest = ANY ($1::bytea[])`

// settleBlobs drops the rows of gc_blob_review_queue with the digests in `settled`, and
// postpones the rows with the digests in `postponed` by PostponeDelay.
func settleBlobs(ctx context.Context, tx pgx.Tx, settled, postponed [][]byte) error {
	if len(postponed) > 0 {
		if _, err := tx.Exec(ctx, postponeBlobs, postponed, PostponeDelay); err != nil {
			return err
		}
	}
	if len(settled) == 0 {
		return nil
	}
	_, err := tx.Exec(ctx, "DELETE FROM gc_blob_review_queue WHERE digest = ANY ($1::bytea[])", settled)
	return err
}

// without returns the digests of `list` that are not in `others`.
func without(list, others [][]byte) [][]byte {
	if len(others) == 0 {
		return list
	}
	skip := make(map[string]bool, len(others))
	for _, d := range others {
		skip[string(d)] = true
	}
	return slices.DeleteFunc(slices.Clone(list), func(d []byte) bool { return skip[string(d)] })
}

// listDryRunBlobs adds the blobs that a dry run deleted to out.WouldDelete.
func listDryRunBlobs(rows []queueRow, deleted []deletedBlob, out *Review) error {
	queued := make(map[string]queueRow, len(rows))
	for _, r := range rows {
		queued[string(r.digest)] = r
	}
	for _, b := range deleted {
		d, err := oci.DigestFromBytes(b.digest)
		if err != nil {
			return err
		}
		r := queued[string(b.digest)]
		out.WouldDelete = append(out.WouldDelete, DryRunDeletion{
			Kind: ReviewOfBlobs, Digest: d, Size: b.size, Event: r.event, QueuedAt: r.createdAt, ReviewAfter: r.reviewAfter,
		})
	}
	return nil
}
