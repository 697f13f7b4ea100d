package pullstats

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/oci"
)

// Row is the statistics of a tag or a manifest.
type Row struct {
	Name  string // of the tag, or the digest
	Count int64
	Last  time.Time // zero: when it was isn't known
	// Other is, of a tag, the digest of what was last pulled by it; of a manifest, the
	// tag that it was last pulled by, "" if it never was by one.
	Other string
}

// TagPage are up to n statistics of tags of a repository whose names come after one,
// in the order of names. The tags need not be there any more.
func (r *Reader) TagPage(ctx context.Context, repository int64, after string, n int) ([]Row, error) {
	return r.page(ctx, `
		SELECT tag_name, tag_pull_count, last_tag_pull_date, COALESCE(current_manifest_digest, '') FROM tagpullstatistics
		WHERE repository_id = $1 AND tag_name > $2 ORDER BY tag_name LIMIT $3`, repository, after, n)
}

// ManifestPage is TagPage for manifests, by digest.
func (r *Reader) ManifestPage(ctx context.Context, repository int64, after string, n int) ([]Row, error) {
	return r.page(ctx, `
		SELECT manifest_digest, total_pull_count, last_pull_date, COALESCE(last_tag_pulled, '') FROM manifestpullstatistics
		WHERE repository_id = $1 AND manifest_digest > $2 ORDER BY manifest_digest LIMIT $3`, repository, after, n)
}

// ManifestRow is the statistics of a manifest. Of one that was never pulled it is
// zero but for its name.
func (r *Reader) ManifestRow(ctx context.Context, repository int64, d oci.Digest) (Row, error) {
	list, err := r.page(ctx, `
		SELECT manifest_digest, total_pull_count, last_pull_date, COALESCE(last_tag_pulled, '') FROM manifestpullstatistics
		WHERE repository_id = $1 AND manifest_digest = $2 LIMIT $3`, repository, d.String(), 1)
	if err != nil || len(list) == 0 {
		return Row{Name: d.String()}, err
	}
	return list[0], nil
}

func (r *Reader) page(ctx context.Context, sql string, repository int64, after string, n int) ([]Row, error) {
	rows, err := r.db.Pool.Query(ctx, sql, repository, after, n)
	if err != nil {
		return nil, fmt.Errorf("listing pull statistics: %w", err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (out Row, err error) {
		var last *time.Time
		if err = row.Scan(&out.Name, &out.Count, &last, &out.Other); last != nil {
			out.Last = last.UTC()
		}
		return out, err
	})
	if err != nil {
		return nil, fmt.Errorf("listing pull statistics: %w", err)
	}
	return list, nil
}

// Since is the time from which on statistics are complete: what has none wasn't
// pulled since. It is zero before anything was counted.
func (r *Reader) Since(ctx context.Context) (time.Time, error) {
	s, err := readState(ctx, r.db.Pool)
	if errors.Is(err, errNoState) {
		return time.Time{}, nil
	}
	return s.Since, err
}
