package audit

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
)

// FormerTag says which manifest a tag pointed to until it was moved or deleted.
type FormerTag struct {
	Tag    string
	Digest oci.Digest
	// Start is when the tag was last pushed to or pointed at the digest. Zero: the log no
	// longer has that entry.
	Start time.Time
	End   time.Time
	Kind  Kind // MoveTag, RevertTag, DeleteTag or AutopruneTagDelete: how it ended
	// Cursor continues a list after this one.
	Cursor string
}

// FormerQuery selects former tags of a repository.
type FormerQuery struct {
	RepositoryID     int64
	Tag              string // "": all
	Prefix, Contains string // of names
	// EndsOnly leaves Start out, which costs one more lookup per tag.
	EndsOnly bool
}

// foundFormer is an entry that the statement examined.
type foundFormer struct {
	FormerTag
	selected, last bool
}

func scanFormer(row pgx.CollectableRow) (f foundFormer, err error) {
	var id int64
	var digest, startDigest []byte
	var previous string
	var start *time.Time
	err = row.Scan(&f.End, &id, &f.Kind, &f.Tag, &digest, &previous, &start, &startDigest, &f.selected, &f.last)
	if err != nil {
		return f, err
	}
	f.End, f.Cursor = f.End.UTC(), place{f.End, id}.String()
	switch {
	case !f.selected:
		return f, nil
	case previous != "":
		f.Digest, err = oci.ParseDigest(previous)
	default:
		f.Digest, err = oci.DigestFromBytes(digest)
	}
	if start != nil && bytes.Equal(startDigest, f.Digest.Bytes()) {
		f.Start = start.UTC()
	}
	return f, err
}

// FormerTags returns up to n former states of a repository's tags, those that ended last
// first, that come after cursor ("": from the first), and the cursor of the next page, ""
// when there is none. The log's retention decides how far back the log goes. Deleted
// repositories of the same name are not included.
//
// As with List, a page examines a bounded number of entries, and may have fewer than n and
// still a next page. Error: ErrCursor.
func (l *Log) FormerTags(ctx context.Context, q FormerQuery, cursor string, n int) (list []FormerTag, next string, err error) {
	after, err := parseCursor(cursor)
	if err != nil {
		return nil, "", err
	}
	if after == nil {
		after = &place{time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC), math.MaxInt64}
	}
	bound := scanned
	switch {
	case q.Prefix != "" || q.Contains != "":
	case q.Tag == "":
		bound = n + 1
	default: // a tag's entries include its pushes, which end nothing
		bound = 10 * (n + 1)
	}
	sql, args := formerOfRepository, db.Args{
		"repository": q.RepositoryID, "prefix": q.Prefix, "contains": q.Contains,
		"time": after.time, "id": after.id, "bound": bound, "limit": n + 1, "starts": !q.EndsOnly,
	}
	if q.Tag != "" {
		sql, args["tag"] = formerOfTag, q.Tag
	}
	rows, err := l.db.Pool.Query(ctx, sql, args)
	if err != nil {
		return nil, "", fmt.Errorf("reading the history of tags: %w", err)
	}
	all, err := pgx.CollectRows(rows, scanFormer)
	if err != nil {
		return nil, "", fmt.Errorf("reading the history of tags: %w", err)
	}
	for _, f := range all {
		switch {
		case f.selected && len(list) == n:
			return list, next, nil
		case f.selected:
			list = append(list, f.FormerTag)
		}
		if next = f.Cursor; f.last {
			return list, next, nil
		}
	}
	return list, "", nil
}

// These statements look at up to @bound entries of a repository or of a tag, and select
// those that ended a tag's state. They return the last of the entries whether or not it is
// selected, for the next cursor. The kinds are those of the indexes auditlog_tag_ends_idx and
// auditlog_tags_idx.
//
// A state begins with the newest entry of the tag before its end, apart from entries that
// were written along with it or change nothing: it is enough to look at ten.
const (
	formerOfRepository = `
		WITH entries AS MATERIALIZED (
			SELECT time, id, kind, tag, digest, detail->>'previous_digest' AS previous FROM auditlog
			WHERE repository_id = @repository AND kind IN ('move_tag', 'revert_tag', 'delete_tag', 'autoprune_tag_delete')
				AND time <= @time AND (time, id) < (@time, @id)
			ORDER BY time DESC, id DESC LIMIT @bound
		), examined AS (
			SELECT *, row_number() OVER (ORDER BY time DESC, id DESC) = @bound AS last,
				kind IN ('move_tag', 'revert_tag', 'delete_tag', 'autoprune_tag_delete') AND tag IS NOT NULL
					AND (kind <> 'revert_tag' OR previous IS NOT NULL) AND (digest IS NOT NULL OR previous IS NOT NULL)
					AND starts_with(tag, @prefix::text) AND (@contains::text = '' OR strpos(tag, @contains::text) > 0) AS selected
			FROM entries
		)
		SELECT e.time, e.id, e.kind, COALESCE(e.tag, ''), e.digest, COALESCE(e.previous, ''), s.time, s.digest, e.selected, e.last
		FROM (SELECT * FROM examined WHERE selected OR last ORDER BY time DESC, id DESC LIMIT @limit) e
		LEFT JOIN LATERAL (
			SELECT b.time, b.digest FROM (
				SELECT time, id, kind, digest FROM auditlog
				WHERE repository_id = @repository AND tag = e.tag
					AND kind IN ('push_repo', 'create_tag', 'move_tag', 'revert_tag', 'delete_tag', 'autoprune_tag_delete')
					AND time < e.time
				ORDER BY time DESC, id DESC LIMIT 10) b
			WHERE b.kind IN ('push_repo', 'create_tag', 'move_tag', 'revert_tag')
			ORDER BY b.time DESC, b.id DESC LIMIT 1) s ON @starts::boolean AND e.selected
		ORDER BY e.time DESC, e.id DESC`

	formerOfTag = `
		WITH entries AS MATERIALIZED (
			SELECT time, id, kind, tag, digest, detail->>'previous_digest' AS previous FROM auditlog
			WHERE repository_id = @repository AND tag = @tag
				AND kind IN ('push_repo', 'create_tag', 'move_tag', 'revert_tag', 'delete_tag', 'autoprune_tag_delete')
				AND time <= @time AND (time, id) < (@time, @id)
			ORDER BY time DESC, id DESC LIMIT @bound
		), examined AS (
			SELECT *, row_number() OVER (ORDER BY time DESC, id DESC) = @bound AS last,
				kind IN ('move_tag', 'revert_tag', 'delete_tag', 'autoprune_tag_delete') AND tag IS NOT NULL
					AND (kind <> 'revert_tag' OR previous IS NOT NULL) AND (digest IS NOT NULL OR previous IS NOT NULL)
					AND starts_with(tag, @prefix::text) AND (@contains::text = '' OR strpos(tag, @contains::text) > 0) AS selected
			FROM entries
		)
		SELECT e.time, e.id, e.kind, COALESCE(e.tag, ''), e.digest, COALESCE(e.previous, ''), s.time, s.digest, e.selected, e.last
		FROM (SELECT * FROM examined WHERE selected OR last ORDER BY time DESC, id DESC LIMIT @limit) e
		LEFT JOIN LATERAL (
			SELECT b.time, b.digest FROM (
				SELECT time, id, kind, digest FROM auditlog
				WHERE repository_id = @repository AND tag = e.tag
					AND kind IN ('push_repo', 'create_tag', 'move_tag', 'revert_tag', 'delete_tag', 'autoprune_tag_delete')
					AND time < e.time
				ORDER BY time DESC, id DESC LIMIT 10) b
			WHERE b.kind IN ('push_repo', 'create_tag', 'move_tag', 'revert_tag')
			ORDER BY b.time DESC, b.id DESC LIMIT 1) s ON @starts::boolean AND e.selected
		ORDER BY e.time DESC, e.id DESC`
)
