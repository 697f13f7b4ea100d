package pullstats

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/audit"
)

// Uses has the times at which tags, by name, and manifests, by digest, of a repository were
// last used. What isn't in it was not used since Status.Since.
type Uses struct{ Tags, Manifests map[string]time.Time }

// Uses returns when tags and manifests of a repository were last pulled or asked about. It
// combines the statistics with those pulls in the log and in Redis that the statistics
// don't have yet. It can't see uses that recorders still have in memory, for some seconds.
// A time may be some minutes later than the use was.
//
// It reads the watermark first: a pull before it is in the statistics, and a pull behind it
// is read from the log, even if it is counted meanwhile. Redis keeps last-used times for
// hours, flushed or not. Errors: ErrForeignLog, ErrUnseen, or that Redis can't be read.
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
	unread, err := w.unread(ctx, repository, s.Read)
	if err != nil {
		return Uses{}, err
	}
	uses := Uses{make(map[string]time.Time, len(tags)), make(map[string]time.Time, len(digests))}
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
	if w.opt.Redis != nil {
		if err := w.usesInRedis(ctx, repository, tags, digests, uses); err != nil {
			return Uses{}, err
		}
	}
	later := func(into map[string]time.Time, name string, at time.Time) {
		if name != "" && at.After(into[name]) {
			into[name] = at
		}
	}
	for _, p := range unread {
		if p.CountedBy == audit.CountedByNone {
			continue
		}
		later(uses.Tags, p.Tag, p.Time)
		later(uses.Manifests, p.Digest.String(), p.Time)
	}
	return uses, nil
}

// usesInRedis adds the last-used times that Redis has.
func (w *SyncWorker) usesInRedis(ctx context.Context, repository int64, tags, digests []string, uses Uses) error {
	found, err := w.opt.Redis.uses(ctx, repository, slices.Concat(tags, digests))
	if err != nil {
		return err
	}
	for _, part := range []struct {
		names []string
		into  map[string]time.Time
	}{{tags, uses.Tags}, {digests, uses.Manifests}} {
		for _, name := range part.names {
			if at := found[name]; at.After(part.into[name]) {
				part.into[name] = at
			}
		}
	}
	return nil
}

// catchUps is how often Uses counts unread pulls before it gives up.
const catchUps = 3

// unread returns the repository's pulls behind a position. If too many pulls of all
// repositories are behind it, they are counted first.
func (w *SyncWorker) unread(ctx context.Context, repository int64, read audit.Position) ([]audit.Pull, error) {
	for range catchUps {
		list, all, err := w.audit.PullsOf(ctx, repository, read)
		if err != nil || all {
			return list, err
		}
		if err := w.Sync(ctx); err != nil {
			return nil, err
		}
		s, err := readState(ctx, w.opt.Stats.Pool)
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

// lasts adds the times in the statistics, by name.
func (w *SyncWorker) lasts(ctx context.Context, sql string, repository int64, names []string, into map[string]time.Time) error {
	if len(names) == 0 {
		return nil
	}
	rows, err := w.opt.Stats.Pool.Query(ctx,
		"SELECT s.* FROM unnest($2::text[]) AS want (name) CROSS JOIN LATERAL ("+sql+" OFFSET 0) s", repository, names)
	if err != nil {
		return fmt.Errorf("reading when images were pulled: %w", err)
	}
	var name string
	var last, check *time.Time
	_, err = pgx.ForEachRow(rows, []any{&name, &last, &check}, func() error {
		if last != nil {
			into[name] = *last
		}
		// The name may have been used after its last-used time was written.
		if now := time.Now(); check != nil && check.Before(now) {
			*check = earlier(check.Add(markSlack), now)
		}
		if check != nil && check.After(into[name]) {
			into[name] = *check
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("reading when images were pulled: %w", err)
	}
	return nil
}
