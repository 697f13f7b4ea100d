package pullstats

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
)

// pulled is the sum of those pulls in a batch that belong to one tag or to one manifest.
type pulled struct {
	repository int64
	name       string // name of the tag, or the digest
	count      int64
	last       time.Time
	other      string    // of the newest pull by tag: for a tag the digest, for a manifest the tag
	lastBoth   time.Time // time of that pull
}

// add adds n pulls to the sum p; the last of them happened at `at`. If p is the sum of a
// tag, `other` is the digest of the manifest that these pulls delivered. If p is the sum of
// a manifest, `other` is the tag by which the manifest was pulled; "" if it was pulled by
// digest.
func (p *pulled) add(n int64, at time.Time, other string) {
	p.count += n
	if at.After(p.last) {
		p.last = at
	}
	if other != "" && !at.Before(p.lastBoth) { // of two pulls at the same time, the one added later wins
		p.other, p.lastBoth = other, at
	}
}

// counts has the sums of a batch of pulls: one for each tag and one for each manifest. They
// are ordered by repository and name, so that all transactions lock the rows of the
// statistics tables in the same order.
type counts struct{ tags, manifests []pulled }

// adder adds up pulls.
type adder struct{ tags, manifests map[rowKey]*pulled }

type rowKey struct {
	repository int64
	name       string
}

func newAdder() adder { return adder{map[rowKey]*pulled{}, map[rowKey]*pulled{}} }

// add adds n pulls of the manifest with the digest d to the manifest's sum and, unless tag
// is "", to the tag's sum. `last` is the time of the last of these pulls.
func (a adder) add(repository int64, tag string, d oci.Digest, n int64, last time.Time) {
	addTo(a.tags, rowKey{repository, tag}, n, last, d.String())
	addTo(a.manifests, rowKey{repository, d.String()}, n, last, tag)
}

// addTag adds one pull to a tag's sum: a pull by digest that was joined with the client's
// HEAD of this tag. The SyncWorker counted the pull for the manifest d already when it read
// the pull. So addTag adds no pull to the manifest's sum; it only records there that the
// manifest was pulled by this tag at the time `at`.
func (a adder) addTag(repository int64, tag string, d oci.Digest, at time.Time) {
	addTo(a.tags, rowKey{repository, tag}, 1, at, d.String())
	addTo(a.manifests, rowKey{repository, d.String()}, 0, at, tag)
}

func addTo(rows map[rowKey]*pulled, k rowKey, n int64, last time.Time, other string) {
	if k.name == "" {
		return
	}
	if rows[k] == nil {
		rows[k] = &pulled{repository: k.repository, name: k.name}
	}
	rows[k].add(n, last, other)
}

func (a adder) counts() counts { return counts{ordered(a.tags), ordered(a.manifests)} }

func ordered(rows map[rowKey]*pulled) []pulled {
	list := make([]pulled, 0, len(rows))
	for _, p := range rows {
		list = append(list, *p)
	}
	slices.SortFunc(list, func(a, b pulled) int {
		return cmp.Or(cmp.Compare(a.repository, b.repository), cmp.Compare(a.name, b.name))
	})
	return list
}

// addPulls adds pulls of repositories that exist.
func (a adder) addPulls(pulls []audit.Pull) {
	for i := range pulls {
		p := &pulls[i]
		a.add(p.RepositoryID, p.Tag, p.Digest, int64(p.N), p.Time)
	}
}

// upsertTags and upsertManifests add the sums of a batch of pulls to the rows of tags and
// of manifests. They set current_manifest_digest and last_tag_pulled from the newest pull;
// a pull that is older than the newest one, but counted after it, changes neither column.
const (
	upsertTags = `
		INSERT INTO tagpullstatistics AS s (repository_id, tag_name, tag_pull_count, last_tag_pull_date, current_manifest_digest, redis_last_processed)
		SELECT repository_id, name, count, last, NULLIF(other, ''), @flushed
		FROM unnest(@repositories::bigint[], @names::text[], @counts::bigint[], @lasts::timestamptz[], @others::text[], @last_both::timestamptz[])
			AS p (repository_id, name, count, last, other, last_both)
		ON CONFLICT (repository_id, tag_name) DO UPDATE SET
			tag_pull_count = s.tag_pull_count + EXCLUDED.tag_pull_count,
			last_tag_pull_date = GREATEST(s.last_tag_pull_date, EXCLUDED.last_tag_pull_date),
			current_manifest_digest = CASE WHEN s.last_tag_pull_date > EXCLUDED.last_tag_pull_date
				THEN s.current_manifest_digest
				ELSE COALESCE(EXCLUDED.current_manifest_digest, s.current_manifest_digest) END,
			redis_last_processed = COALESCE(EXCLUDED.redis_last_processed, s.redis_last_processed)`
	upsertManifests = `
		INSERT INTO manifestpullstatistics AS s
			(repository_id, manifest_digest, total_pull_count, last_pull_date, last_tag_pulled, last_tag_pull_date, redis_last_processed)
		SELECT repository_id, name, count, last, NULLIF(other, ''), last_both, @flushed
		FROM unnest(@repositories::bigint[], @names::text[], @counts::bigint[], @lasts::timestamptz[], @others::text[], @last_both::timestamptz[])
			AS p (repository_id, name, count, last, other, last_both)
		ON CONFLICT (repository_id, manifest_digest) DO UPDATE SET
			total_pull_count = s.total_pull_count + EXCLUDED.total_pull_count,
			last_pull_date = GREATEST(s.last_pull_date, EXCLUDED.last_pull_date),
			last_tag_pulled = CASE WHEN EXCLUDED.last_tag_pull_date IS NULL OR s.last_tag_pull_date > EXCLUDED.last_tag_pull_date
				THEN s.last_tag_pulled ELSE EXCLUDED.last_tag_pulled END,
			last_tag_pull_date = GREATEST(s.last_tag_pull_date, EXCLUDED.last_tag_pull_date),
			redis_last_processed = COALESCE(EXCLUDED.redis_last_processed, s.redis_last_processed)`
)

// write adds the counts to the statistics, in the caller's transaction.
func (c counts) write(ctx context.Context, tx pgx.Tx) error { return c.add(ctx, tx, nil) }

// writeFlushed adds counts that were flushed from Redis to the statistics, and stores the
// present time in the changed rows as the time of the flush (redis_last_processed).
func (c counts) writeFlushed(ctx context.Context, tx pgx.Tx) error {
	now := time.Now()
	return c.add(ctx, tx, &now)
}

func (c counts) add(ctx context.Context, tx pgx.Tx, flushed *time.Time) error {
	for _, part := range []struct {
		sql  string
		rows []pulled
		of   string
	}{{upsertTags, c.tags, "tags"}, {upsertManifests, c.manifests, "manifests"}} {
		if len(part.rows) == 0 {
			continue
		}
		if _, err := tx.Exec(ctx, part.sql, arguments(part.rows, flushed)); err != nil {
			return fmt.Errorf("adding to the pull statistics of %s: %w", part.of, err)
		}
	}
	return nil
}

// arguments returns the arguments of upsertTags or upsertManifests for the given sums.
// `flushed` is the time of the flush from Redis; nil if the pulls were counted from the
// audit log.
func arguments(rows []pulled, flushed *time.Time) db.Args {
	n := len(rows)
	repositories, numbers := make([]int64, n), make([]int64, n)
	names, others := make([]string, n), make([]string, n)
	lasts, boths := make([]time.Time, n), make([]*time.Time, n)
	for i, p := range rows {
		repositories[i], names[i], numbers[i], lasts[i], others[i] = p.repository, p.name, p.count, p.last, p.other
		if !p.lastBoth.IsZero() {
			boths[i] = &rows[i].lastBoth
		}
	}
	return db.Args{"repositories": repositories, "names": names, "counts": numbers, "lasts": lasts, "others": others,
		"last_both": boths, "flushed": flushed}
}
