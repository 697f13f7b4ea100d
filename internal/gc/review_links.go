package gc

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// maxUnlinked bounds the unused links that one batch reads and removes.
	maxUnlinked = 1000
	// manyLinks is the largest number of links of one blob that a batch reviews. If a blob
	// has more, since any number of repositories may link a base layer, UnlinkInPages
	// reviews its links in pages, each page in a transaction of its own.
	manyLinks = 1000
	// linksPerPage is the number of links that one transaction of UnlinkInPages reviews.
	linksPerPage = 5000
	// pagesPause is how long the row of a blob in gc_blob_review_queue is postponed while
	// UnlinkInPages reviews the blob's links, so that no other reviewer takes the row.
	pagesPause = 10 * time.Minute
)

// blobLink is a link of a repository to a blob, a row of repository_blobs.
type blobLink struct {
	namespace, repository int64
	digest                []byte
}

// unlinkUnused removes links of blobs in use: a repository that has no manifest with the
// blob loses its link, so that it no longer serves the blob. The digests in `unsettled`
// need another review, because another transaction had locked a link, or because
// unlinkUnused found maxUnlinked unused links and read no more. Most blobs are layers, so
// CASE in the statement searches the table layers first; with OR, the planner would choose
// the order by estimated cost. "Plans" in the comment of package db says why lookups have
// OFFSET 0.
func unlinkUnused(ctx context.Context, tx pgx.Tx, digests [][]byte, out *Review) (unsettled [][]byte, err error) {
	if len(digests) == 0 {
		return nil, nil
	}
	unused, err := collectLinks(ctx, tx, `
		SELECT rb.top_level_namespace_id, rb.repository_id, rb.blob_digest
		FROM unnest($1::bytea[]) AS d (digest)
		CROSS JOIN LATERAL (
			SELECT * FROM repository_blobs rb WHERE rb.blob_digest = d.digest OFFSET 0) rb
		WHERE NOT CASE
			WHEN EXISTS (
				SELECT FROM layers l
				WHERE l.top_level_namespace_id = rb.top_level_namespace_id AND l.repository_id = rb.repository_id
					AND l.digest = rb.blob_digest OFFSET 0)
			THEN true
			ELSE EXISTS (
				SELECT FROM manifests m
				WHERE m.top_level_namespace_id = rb.top_level_namespace_id AND m.repository_id = rb.repository_id
					AND m.configuration_blob_digest = rb.blob_digest OFFSET 0)
			END
		LIMIT $2`, digests, maxUnlinked)
	if err != nil || len(unused) == 0 {
		return nil, err
	}
	locked, removed, err := unlink(ctx, tx, unused)
	if err != nil {
		return nil, err
	}
	out.Links = removed
	switch {
	case len(unused) == maxUnlinked: // further links weren't read
		unsettled = digests
	case locked < len(unused):
		_, _, blobs := linkColumns(unused)
		slices.SortFunc(blobs, slices.Compare)
		unsettled = slices.CompactFunc(blobs, slices.Equal)
	}
	return unsettled, nil
}

// unlink removes those of the given links that are still unused. A put of a manifest locks
// the links to the manifest's blobs. So unlink first locks the given links, which makes
// later puts wait. Then it checks in a new statement, which sees the puts that were
// committed before, which of the links are unused. It skips links that other transactions
// have locked. `locked` is the number of links that unlink has locked, `removed` the number
// of links that it has removed.
func unlink(ctx context.Context, tx pgx.Tx, unused []blobLink) (locked, removed int, err error) {
	if len(unused) == 0 {
		return 0, 0, nil
	}
	namespaces, repositories, blobs := linkColumns(unused)
	links, err := collectLinks(ctx, tx, `
		SELECT l.* FROM (
			SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bytea[]) AS w (namespace, repository, digest)
			ORDER BY 1, 2, 3) w
		CROSS JOIN LATERAL (
			SELECT top_level_namespace_id, repository_id, blob_digest FROM repository_blobs
			WHERE top_level_namespace_id = w.namespace AND repository_id = w.repository AND blob_digest = w.digest
			FOR UPDATE SKIP LOCKED) l`, namespaces, repositories, blobs)
	if err != nil {
		return 0, 0, err
	}
	namespaces, repositories, blobs = linkColumns(links)
	done, err := tx.Exec(ctx, `
		DELETE FROM repository_blobs rb
		USING unnest($1::bigint[], $2::bigint[], $3::bytea[]) AS w (namespace, repository, digest)
		WHERE rb.top_level_namespace_id = w.namespace AND rb.repository_id = w.repository AND rb.blob_digest = w.digest
			AND NOT CASE
			WHEN EXISTS (
				SELECT FROM layers l
				WHERE l.top_level_namespace_id = rb.top_level_namespace_id AND l.repository_id = rb.repository_id
					AND l.digest = rb.blob_digest OFFSET 0)
			THEN true
			ELSE EXISTS (
				SELECT FROM manifests m
				WHERE m.top_level_namespace_id = rb.top_level_namespace_id AND m.repository_id = rb.repository_id
					AND m.configuration_blob_digest = rb.blob_digest OFFSET 0)
			END`, namespaces, repositories, blobs)
	return len(links), int(done.RowsAffected()), err
}

func collectLinks(ctx context.Context, tx pgx.Tx, sql string, args ...any) ([]blobLink, error) {
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (l blobLink, err error) {
		err = row.Scan(&l.namespace, &l.repository, &l.digest)
		return l, err
	})
}

func linkColumns(list []blobLink) (namespaces, repositories []int64, digests [][]byte) {
	for _, l := range list {
		namespaces = append(namespaces, l.namespace)
		repositories = append(repositories, l.repository)
		digests = append(digests, l.digest)
	}
	return namespaces, repositories, digests
}

// ManyLinkedBlob is a blob in use with more than manyLinks links. A batch that reviews such
// a blob doesn't review the links itself, but leaves them to UnlinkInPages.
type ManyLinkedBlob struct {
	digest  []byte
	version string // xmin of the blob's queue row: each promise or event changes it
}

// splitManyLinked splits `digests` into those of blobs with up to manyLinks links, and
// those of blobs with more.
func splitManyLinked(ctx context.Context, tx pgx.Tx, digests [][]byte) (fewLinks, many [][]byte, err error) {
	if len(digests) == 0 {
		return nil, nil, nil
	}
	rows, err := tx.Query(ctx, `
		SELECT d.digest FROM unnest($1::bytea[]) AS d (digest)
		CROSS JOIN LATERAL (
			SELECT FROM repository_blobs WHERE blob_digest = d.digest OFFSET $2 LIMIT 1) l`, digests, manyLinks)
	if err != nil {
		return nil, nil, err
	}
	if many, err = pgx.CollectRows(rows, pgx.RowTo[[]byte]); err != nil {
		return nil, nil, err
	}
	return without(digests, many), many, nil
}

// postponeManyLinked postpones the rows of blobs with many links in gc_blob_review_queue by
// pagesPause, so that no other reviewer takes these rows while UnlinkInPages works. It
// returns the blobs for UnlinkInPages.
func postponeManyLinked(ctx context.Context, tx pgx.Tx, digests [][]byte) ([]ManyLinkedBlob, error) {
	if len(digests) == 0 {
		return nil, nil
	}
	rows, err := tx.Query(ctx, `
		UPDATE gc_blob_review_queue SET review_after = now() + $2::interval WHERE digest = ANY ($1::bytea[])
		RETURNING digest, xmin::text`, digests, pagesPause)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (w ManyLinkedBlob, err error) {
		err = row.Scan(&w.digest, &w.version)
		return w, err
	})
}

// UnlinkInPages removes the links to a blob from repositories in which no manifest uses it,
// and returns the number of removed links. It reviews linksPerPage links (a page) per
// transaction. Each transaction locks the blob's queue row and checks that the row hasn't
// changed since the review: a promise of existence would have changed it. If the row has
// changed or is locked, UnlinkInPages stops. After the last page it drops the queue row,
// unless another transaction had locked a link. If the row stays, or the process dies, the
// row becomes due again, and a later review begins with the first page.
func (c *Collector) UnlinkInPages(ctx context.Context, w ManyLinkedBlob) (removed int, err error) {
	p := pagedUnlinking{ManyLinkedBlob: w}
	for !p.done && err == nil {
		err = pgx.BeginTxFunc(ctx, c.opt.Reviews.Pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
			return p.page(ctx, tx)
		})
	}
	if err != nil {
		return p.removed, fmt.Errorf("removing unused links of %s: %w", queueRow{digest: w.digest}.name(ReviewOfBlobs), err)
	}
	return p.removed, nil
}

// pagedUnlinking is the progress of UnlinkInPages.
type pagedUnlinking struct {
	ManyLinkedBlob
	after         int64 // id of the last repository whose link was read
	removed       int
	skippedLocked bool // another transaction had locked a link
	done          bool
}

func (p *pagedUnlinking) page(ctx context.Context, tx pgx.Tx) error {
	found, err := tx.Exec(ctx, `
		SELECT FROM gc_blob_review_queue WHERE digest = $1 AND xmin::text = $2 FOR UPDATE SKIP LOCKED`, p.digest, p.version)
	if err != nil || found.RowsAffected() == 0 {
		p.done = true
		return err
	}
	unused, n, err := p.unusedLinks(ctx, tx)
	if err != nil {
		return err
	}
	locked, removed, err := unlink(ctx, tx, unused)
	if err != nil {
		return err
	}
	p.removed += removed
	p.skippedLocked = p.skippedLocked || locked < len(unused)
	p.done = n < linksPerPage
	if !p.done || p.skippedLocked {
		return nil
	}
	_, err = tx.Exec(ctx, "DELETE FROM gc_blob_review_queue WHERE digest = $1", p.digest)
	return err
}

// unusedLinks reads the next page of the blob's links. It returns those that seem unused,
// and `n`, the number of all links in the page.
func (p *pagedUnlinking) unusedLinks(ctx context.Context, tx pgx.Tx) (unused []blobLink, n int, err error) {
	rows, err := tx.Query(ctx, `
		SELECT rb.top_level_namespace_id, rb.repository_id, rb.blob_digest, CASE
			WHEN EXISTS (
				SELECT FROM layers l
				WHERE l.top_level_namespace_id = rb.top_level_namespace_id AND l.repository_id = rb.repository_id
					AND l.digest = rb.blob_digest OFFSET 0)
			THEN true
			ELSE EXISTS (
				SELECT FROM manifests m
				WHERE m.top_level_namespace_id = rb.top_level_namespace_id AND m.repository_id = rb.repository_id
					AND m.configuration_blob_digest = rb.blob_digest OFFSET 0)
			END
		FROM (
			SELECT * FROM repository_blobs WHERE blob_digest = $1 AND repository_id > $2
			ORDER BY repository_id LIMIT $3) rb
		ORDER BY rb.repository_id`, p.digest, p.after, linksPerPage)
	if err != nil {
		return nil, 0, err
	}
	var l blobLink
	var used bool
	_, err = pgx.ForEachRow(rows, []any{&l.namespace, &l.repository, &l.digest, &used}, func() error {
		n++
		p.after = l.repository
		if !used {
			unused = append(unused, l)
		}
		return nil
	})
	return unused, n, err
}
