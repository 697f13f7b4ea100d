package audit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
)

// TagEvent is an entry about a tag: a push, a move, a restoration or a deletion.
type TagEvent struct {
	Tag  string
	Time time.Time
	// Kind is PushRepo, CreateTag, MoveTag, RevertTag, DeleteTag or AutopruneTagDelete. A push
	// that moves a tag has the two entries PushRepo and MoveTag of the same time.
	Kind Kind
	// Digest is the manifest that the tag points to since then, or pointed to until its
	// deletion. Previous is the manifest that a moved tag pointed to before; it is zero in
	// entries of other events.
	Digest, Previous oci.Digest
	// Pushed is set in entries of AutopruneTagDelete: when the deleted tag was last pushed.
	Pushed time.Time
	// Undone says that the undo of a run of auto-pruning, or of a deletion by a pattern, restored the
	// tag with its old times.
	Undone bool
}

// TagEvents calls `each` with the entries about tags of a repository that are later than
// `after`, in the order of the tags' names, and those of a tag in the order of their times. It
// ends with the first error that `each` returns. It reads what q sees.
func TagEvents(ctx context.Context, q db.Querier, repository int64, after time.Time, each func(TagEvent) error) error {
	rows, err := q.Query(ctx, `
		SELECT tag, time, kind, digest, COALESCE(detail->>'previous_digest', ''), kind = 'revert_tag' AND run IS NOT NULL,
			CASE WHEN kind = 'autoprune_tag_delete' THEN COALESCE(detail->>'updated_at', detail->>'created_at')::timestamptz END
		FROM auditlog
		WHERE repository_id = $1 AND tag IS NOT NULL AND time > $2
			AND kind IN ('push_repo', 'create_tag', 'move_tag', 'revert_tag', 'delete_tag', 'autoprune_tag_delete') -- as the index auditlog_tags_idx has them
		ORDER BY tag, time, id`, repository, after)
	if err != nil {
		return fmt.Errorf("reading the history of tags: %w", err)
	}
	return scanTagEvents(rows, each)
}

// LastTagEvents returns, by tag, the last entry about each of the given tags of a repository
// that isn't later than `until`. A tag without such an entry isn't in the map.
func LastTagEvents(ctx context.Context, q db.Querier, repository int64, tags []string, until time.Time) (map[string]TagEvent, error) {
	rows, err := q.Query(ctx, `
		SELECT w.tag, e.* FROM unnest($2::text[]) AS w (tag) CROSS JOIN LATERAL (
			SELECT time, kind, digest, COALESCE(detail->>'previous_digest', ''), kind = 'revert_tag' AND run IS NOT NULL,
				CASE WHEN kind = 'autoprune_tag_delete' THEN COALESCE(detail->>'updated_at', detail->>'created_at')::timestamptz END
			FROM auditlog
			WHERE repository_id = $1 AND tag = w.tag AND time <= $3
				AND kind IN ('push_repo', 'create_tag', 'move_tag', 'revert_tag', 'delete_tag', 'autoprune_tag_delete') -- as the index auditlog_tags_idx has them
			ORDER BY time DESC, id DESC LIMIT 1) e`, repository, tags, until)
	if err != nil {
		return nil, fmt.Errorf("reading the history of tags: %w", err)
	}
	found := make(map[string]TagEvent, len(tags))
	err = scanTagEvents(rows, func(e TagEvent) error {
		found[e.Tag] = e
		return nil
	})
	return found, err
}

func scanTagEvents(rows pgx.Rows, each func(TagEvent) error) error {
	var e TagEvent
	var digest []byte
	var previous string
	var pushed *time.Time
	var stop error
	_, err := pgx.ForEachRow(rows, []any{&e.Tag, &e.Time, &e.Kind, &digest, &previous, &e.Undone, &pushed}, func() (err error) {
		out := e
		if digest != nil {
			if out.Digest, err = oci.DigestFromBytes(digest); err != nil {
				return err
			}
		}
		if previous != "" {
			if out.Previous, err = oci.ParseDigest(previous); err != nil {
				return err
			}
		}
		if pushed != nil {
			out.Pushed = *pushed
		}
		stop = each(out)
		return stop
	})
	if err != nil && !errors.Is(err, stop) {
		return fmt.Errorf("reading the history of tags: %w", err)
	}
	return err
}

// Beginning returns the time of the log's oldest entry; zero if the log is empty. Older entries
// were dropped, or there were none.
func Beginning(ctx context.Context, q db.Querier) (time.Time, error) {
	var first *time.Time
	err := q.QueryRow(ctx, "SELECT (SELECT time FROM auditlog ORDER BY time, id LIMIT 1)").Scan(&first)
	if err != nil {
		return time.Time{}, fmt.Errorf("looking for the oldest entry of the audit log: %w", err)
	}
	if first == nil {
		return time.Time{}, nil
	}
	return *first, nil
}
