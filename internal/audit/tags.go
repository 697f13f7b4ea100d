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

// FormerTag is a former state of a tag: the manifest that the tag pointed to from Start
// until it was moved or deleted at End.
type FormerTag struct {
	Tag    string
	Digest oci.Digest
	// Start is when the tag was pointed to the digest, or when it was last pushed again
	// with this digest. It is zero if the audit log no longer has the entry of that push.
	Start time.Time
	End   time.Time
	Kind  Kind // MoveTag, RevertTag, DeleteTag or AutopruneTagDelete: how it ended
	// Cursor can be passed to FormerTags to continue the listing after this state.
	Cursor string
}

// FormerQuery selects former states of the tags of a repository.
type FormerQuery struct {
	RepositoryID     int64
	Tag              string // "": all
	Prefix, Contains string // of names
	// EndsOnly makes FormerTags leave Start zero, which saves one index lookup per state.
	EndsOnly bool
}

// foundFormer is an entry that the statement of FormerTags examined. `selected` says that
// this entry ended a former state of a tag; `last` says that it is the last entry that the
// statement examined.
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

// FormerTags returns one page of the listing of former states of a repository's tags: up to
// `n` states after `cursor` (from the first if it is ""), the most recently ended first.
// `next` is the cursor of the following page, or "" if there is none. States are missing
// whose end is so long ago that the audit log has dropped its entry, and so are the states
// of a deleted repository with the same name.
//
// As with List, each call examines a bounded number of entries of the audit log. It may
// therefore return fewer than n states although there is a next page. It returns ErrCursor
// if it can't have issued the cursor.
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

// Each of the two statements examines up to @bound entries: formerOfRepository those of a
// repository, formerOfTag those of a single tag. It selects the entries that ended a state
// of a tag. It also returns the last entry that it examined, selected or not, because the
// next page's cursor is made from it. The lists of kinds must equal those of the indexes
// auditlog_tag_ends_idx and auditlog_tags_idx.
//
// To find when a state of a tag began, the statement reads the tag's entries that are older
// than the state's end, at most ten, newest first. The state began with the first of these
// that set the tag or pushed it again. Ten entries are more than enough: as a rule already
// the first one set the tag.
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
