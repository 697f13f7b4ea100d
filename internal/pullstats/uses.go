package pullstats

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/oci"
)

// Uses has the times at which tags and manifests of a repository were last used, by tag name
// and by digest. A tag or manifest without a time was not used since the time that
// Status.Since gives.
type Uses struct{ Tags, Manifests map[string]time.Time }

// Uses returns when tags and manifests of a repository were last used, that is, pulled or
// asked about by HEAD. It combines the statistics with those pulls in the audit log and in
// Redis that the statistics don't have yet. It can't see uses that the processes' recorders
// still have in memory, where they stay for some seconds: a caller that decides by the absence of
// a use calls Settle first. A returned time may be some minutes later than the use was.
//
// Uses reads Redis and the watermark before the statistics. So a pull that is no longer in
// Redis is in the statistics that Uses then reads, and so is a pull before the watermark.
// Uses reads pulls after the watermark from the audit log, even if a worker counts them at
// the same time.
//
// Uses returns ErrForeignLog or ErrUnseen in the states that these errors describe. It also
// returns an error if Redis or a database can't be read, if Redis has lost pulls, or if too
// many pulls in the audit log aren't counted yet and can't be counted now.
func (w *SyncWorker) Uses(ctx context.Context, repository int64, tags, digests []string) (Uses, error) {
	s, err := w.Status(ctx)
	if err != nil {
		return Uses{}, err
	}
	if s.Foreign {
		return Uses{}, ErrForeignLog
	}
	if s.Unseen {
		return Uses{}, ErrUnseen
	}
	uses := Uses{make(map[string]time.Time, len(tags)), make(map[string]time.Time, len(digests))}
	if w.opt.Redis != nil {
		if err := w.opt.Redis.Uses(ctx, repository, uses.add); err != nil {
			return Uses{}, err
		}
	}
	unread, err := w.unread(ctx, repository, s.Read)
	if err != nil {
		return Uses{}, err
	}
	for _, part := range []struct {
		sql   string
		names []string
		into  map[string]time.Time
	}{
		{"SELECT tag_name, last_tag_pull_date, last_check_date FROM tagpullstatistics WHERE repository_id = $1 AND tag_name = want.name", tags, uses.Tags},
		{"SELECT manifest_digest, last_pull_date, last_check_date FROM manifestpullstatistics WHERE repository_id = $1 AND manifest_digest = want.name", digests, uses.Manifests},
	} {
		if err := w.lasts(ctx, part.sql, repository, part.names, part.into); err != nil {
			return Uses{}, err
		}
	}
	for _, p := range unread {
		if p.CountedBy == audit.CountedByNone {
			continue
		}
		uses.add(p.Tag, p.Digest, p.Time)
	}
	return uses, nil
}

// add stores in u that the manifest with the digest d and, unless tag is "", the tag were
// used at the time `at`. A later time that u already has stays.
func (u Uses) add(tag string, d oci.Digest, at time.Time) {
	later(u.Tags, tag, at)
	later(u.Manifests, d.String(), at)
}

// later sets into[name] to `at`, unless the map already has a later time for name, or name
// is "".
func later(into map[string]time.Time, name string, at time.Time) {
	if name != "" && at.After(into[name]) {
		into[name] = at
	}
}

// catchUps is how often unread calls Sync before it gives up.
const catchUps = 3

// unread returns the repository's pulls that come after the position `read` in the audit
// log. The audit log searches only a limited number of pulls after a position, counting
// those of all repositories. If there are more than that, unread first lets Sync count
// them, which moves the watermark. If catchUps calls of Sync don't help, it returns an error.
func (w *SyncWorker) unread(ctx context.Context, repository int64, read audit.Position) ([]audit.Pull, error) {
	for range catchUps {
		list, all, err := w.audit.PullsOf(ctx, repository, read)
		if err != nil || all {
			return list, err
		}
		if err := w.Sync(ctx); err != nil {
			return nil, err
		}
		s, err := readState(ctx, w.opt.Stats.Pool, false)
		if err != nil {
			return nil, err
		}
		read = s.Read
	}
	return nil, fmt.Errorf("pull statistics are too far behind to tell what was pulled: an open transaction may hold them up (pg_stat_activity has it)")
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// lasts reads the last-used times of `names` from the statistics with the query `sql`. It
// stores each time in the map `into`, unless the map has a later one. The section "Plans"
// of package db explains OFFSET 0.
func (w *SyncWorker) lasts(ctx context.Context, sql string, repository int64, names []string, into map[string]time.Time) error {
	if len(names) == 0 {
		return nil
	}
	rows, err := w.opt.Stats.Pool.Query(ctx,
		"SELECT s.*, clock_timestamp() FROM unnest($2::text[]) AS want (name) CROSS JOIN LATERAL ("+sql+" OFFSET 0) s", repository, names)
	if err != nil {
		return fmt.Errorf("reading when images were pulled: %w", err)
	}
	var name string
	var last, check *time.Time
	var now time.Time
	_, err = pgx.ForEachRow(rows, []any{&name, &last, &check, &now}, func() error {
		if last != nil {
			later(into, name, *last)
		}
		// `check` is the last-used time that is stored, but the tag or manifest may have
		// been used for up to lastUsedSlack after it. So add this slack, but end at the
		// present time.
		if check != nil && check.Before(now) {
			*check = earlier(check.Add(lastUsedSlack), now)
		}
		if check != nil {
			later(into, name, *check)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("reading when images were pulled: %w", err)
	}
	return nil
}
