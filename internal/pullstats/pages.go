package pullstats

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/oci"
)

// Row is the statistics of a tag or a manifest.
type Row struct {
	Name  string // name of the tag, or the digest
	Count int64
	Last  time.Time // zero: the time isn't known
	Check time.Time // the last HEAD, to some minutes; zero: there was none
	// Other is, for a tag, the digest that its last pull delivered; for a manifest, the tag
	// by which it was last pulled, "" if it was never pulled by tag.
	Other string
}

// TagPage returns the statistics of up to n tags of a repository, in the order of names:
// those whose names come after the name `after`. It leaves out tags that were never pulled.
// The tags may have been deleted.
func (r *Reader) TagPage(ctx context.Context, repository int64, after string, n int) ([]Row, error) {
	return r.page(ctx, `
		SELECT tag_name, tag_pull_count, last_tag_pull_date, last_check_date, COALESCE(current_manifest_digest, '') FROM tagpullstatistics
		WHERE repository_id = $1 AND tag_name > $2 AND tag_pull_count > 0 ORDER BY tag_name LIMIT $3`, repository, after, n)
}

// ManifestPage returns the statistics of up to n manifests of a repository, in the order of
// digests: those whose digests come after the digest `after`. It leaves out manifests that
// were never pulled. The manifests may have been deleted.
func (r *Reader) ManifestPage(ctx context.Context, repository int64, after string, n int) ([]Row, error) {
	return r.page(ctx, `
		SELECT manifest_digest, total_pull_count, last_pull_date, last_check_date, COALESCE(last_tag_pulled, '') FROM manifestpullstatistics
		WHERE repository_id = $1 AND manifest_digest > $2 AND total_pull_count > 0 ORDER BY manifest_digest LIMIT $3`, repository, after, n)
}

// TagRow returns the statistics of a tag. For a tag that has none, only the name is set.
func (r *Reader) TagRow(ctx context.Context, repository int64, name string) (Row, error) {
	list, err := r.page(ctx, `
		SELECT tag_name, tag_pull_count, last_tag_pull_date, last_check_date, COALESCE(current_manifest_digest, '') FROM tagpullstatistics
		WHERE repository_id = $1 AND tag_name = $2 LIMIT $3`, repository, name, 1)
	if err != nil || len(list) == 0 {
		return Row{Name: name}, err
	}
	return list[0], nil
}

// ManifestRow returns the statistics of a manifest. For a manifest that has none, only the
// name (the digest) is set.
func (r *Reader) ManifestRow(ctx context.Context, repository int64, d oci.Digest) (Row, error) {
	list, err := r.page(ctx, `
		SELECT manifest_digest, total_pull_count, last_pull_date, last_check_date, COALESCE(last_tag_pulled, '') FROM manifestpullstatistics
		WHERE repository_id = $1 AND manifest_digest = $2 LIMIT $3`, repository, d.String(), 1)
	if err != nil || len(list) == 0 {
		return Row{Name: d.String()}, err
	}
	return list[0], nil
}

func (r *Reader) page(ctx context.Context, sql string, repository int64, after string, n int) ([]Row, error) {
	rows, err := r.q.Query(ctx, sql, repository, after, n)
	if err != nil {
		return nil, fmt.Errorf("listing pull statistics: %w", err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (out Row, err error) {
		var last, check *time.Time
		if err = row.Scan(&out.Name, &out.Count, &last, &check, &out.Other); last != nil {
			out.Last = last.UTC()
		}
		if check != nil {
			out.Check = check.UTC()
		}
		return out, err
	})
	if err != nil {
		return nil, fmt.Errorf("listing pull statistics: %w", err)
	}
	return list, nil
}

// Since returns the time from which on every pull is counted; zero if nothing was ever
// counted.
func (r *Reader) Since(ctx context.Context) (time.Time, error) {
	s, err := readState(ctx, r.q, false)
	if errors.Is(err, errNoState) {
		return time.Time{}, nil
	}
	return s.Counts, err
}

// Merge adds live pulls, which are in Redis and not yet in the statistics, to a page of a
// listing of statistics. `page` has the statistics of the first names after the name
// `after`, at most `limit` of them. `live` has the names with live pulls, in any order. For
// each name in `live` that the page lacks, Merge inserts a row where the order of names
// puts it. It replaces every row by the result of `add`, which adds the row's live pulls,
// and returns at most `limit` rows.
func Merge(page []Row, live []string, add func(Row) Row, after string, limit int) []Row {
	known := make(map[string]bool, len(page))
	for i, r := range page {
		known[r.Name] = true
		page[i] = add(r)
	}
	last := ""
	if len(page) == limit {
		last = page[limit-1].Name
	}
	for _, name := range live {
		// If the page is full, names after the last name on it belong to a later page.
		if !known[name] && name > after && (last == "" || name < last) {
			page = append(page, add(Row{Name: name}))
		}
	}
	slices.SortFunc(page, func(a, b Row) int { return cmp.Compare(a.Name, b.Name) })
	return page[:min(len(page), limit)]
}
