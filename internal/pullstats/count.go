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
	other      string     // of the newest pull by tag: for a tag the digest, for a manifest the tag
	lastBoth   time.Time  // time of that pull
	days       []dayPulls // the pulls by day, the newest day first
}

// add adds n pulls of one day to the sum p; the last of them happened at `last`. If p is the
// sum of a tag, `other` is the digest of the manifest that these pulls delivered. If p is the
// sum of a manifest, `other` is the tag by which the manifest was pulled; "" if it was pulled
// by digest.
func (p *pulled) add(n int64, on, last time.Time, other string) {
	p.count += n
	if n != 0 {
		p.addDay(on, n)
	}
	if last.After(p.last) {
		p.last = last
	}
	if other != "" && !last.Before(p.lastBoth) { // of two pulls at the same time, the one added later wins
		p.other, p.lastBoth = other, last
	}
}

// counts has the sums of a batch of pulls: one for each tag and one for each manifest. They
// are ordered by repository and name, so that all transactions lock the rows of the
// statistics tables in the same order. The other sums are those of days: see history.go.
type counts struct {
	tags, manifests []pulled
	sums            daySums
}

// adder adds up pulls.
type adder struct {
	tags, manifests map[rowKey]*pulled
	living          living // the namespaces of the repositories, for the sums of days
}

type rowKey struct {
	repository int64
	name       string
}

// newAdder makes an adder for pulls of the repositories `of`.
func newAdder(of living) adder { return adder{map[rowKey]*pulled{}, map[rowKey]*pulled{}, of} }

// add adds n pulls of the manifest with the digest d to the manifest's sum and, unless tag
// is "", to the tag's sum. `last` is the time of the last of these pulls, which all happened
// on the day `on`.
func (a adder) add(repository int64, tag string, d oci.Digest, n int64, on, last time.Time) {
	addTo(a.tags, rowKey{repository, tag}, n, on, last, d.String())
	addTo(a.manifests, rowKey{repository, d.String()}, n, on, last, tag)
}

// addTag adds one pull to a tag's sum: a pull by digest that was joined with the client's
// HEAD of this tag. The SyncWorker counted the pull for the manifest d already when it read
// the pull. So addTag adds no pull to the manifest's sum; it only records there that the
// manifest was pulled by this tag at the time `at`.
func (a adder) addTag(repository int64, tag string, d oci.Digest, at time.Time) {
	addTo(a.tags, rowKey{repository, tag}, 1, dayOf(at), at, d.String())
	addTo(a.manifests, rowKey{repository, d.String()}, 0, dayOf(at), at, tag)
}

func addTo(rows map[rowKey]*pulled, k rowKey, n int64, on, last time.Time, other string) {
	if k.name == "" {
		return
	}
	if rows[k] == nil {
		rows[k] = &pulled{repository: k.repository, name: k.name}
	}
	rows[k].add(n, on, last, other)
}

func (a adder) counts() counts {
	c := counts{tags: ordered(a.tags), manifests: ordered(a.manifests)}
	c.sums = sumDays(c.manifests, a.living)
	return c
}

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

// addPulls adds pulls of repositories that exist. An entry of pulls by digest has the time of
// each pull, so that addPulls knows their days. The pulls of another entry count for the day
// of the last of them: the audit log's recorder begins another entry at midnight, unless its
// buffer is full.
func (a adder) addPulls(pulls []audit.Pull) {
	for i := range pulls {
		p := &pulls[i]
		on := dayOf(p.Time)
		if p.Later != nil && p.First.Before(on) {
			if all, err := audit.Requests(audit.Request{Time: p.First}, p.Later); err == nil && len(all) == p.N {
				for _, q := range all {
					a.add(p.RepositoryID, p.Tag, p.Digest, 1, dayOf(q.Time), q.Time)
				}
				continue
			}
		}
		a.add(p.RepositoryID, p.Tag, p.Digest, int64(p.N), on, p.Time)
	}
}

// upsertTags and upsertManifests add the sums of a batch of pulls to the rows of tags and
// of manifests. They set current_manifest_digest and last_tag_pulled from the newest pull;
// a pull that is older than the newest one, but counted after it, changes neither column.
//
// They also add the pulls to the history. The pulls of the newest day are in the row of the
// statistics itself. If the batch has pulls of a newer day, the row's pulls of the day before
// go to the history table; if it has pulls of an older day alone, these go there. RETURNING
// returns either, in earlier_day and earlier_pulls. If a sum has pulls of several days, the
// arguments more_… have those of all but the newest day.
const (
	upsertTags = `
		WITH counted AS (
			INSERT INTO tagpullstatistics AS s
				(repository_id, tag_name, tag_pull_count, last_tag_pull_date, current_manifest_digest, redis_last_processed, day, day_pulls)
			SELECT repository_id, name, count, last, NULLIF(other, ''), @flushed, day, day_pulls
			FROM unnest(@repositories::bigint[], @names::text[], @counts::bigint[], @lasts::timestamptz[], @others::text[], @last_both::timestamptz[],
				@days::date[], @day_pulls::bigint[]) AS p (repository_id, name, count, last, other, last_both, day, day_pulls)
			ON CONFLICT (repository_id, tag_name) DO UPDATE SET
				tag_pull_count = s.tag_pull_count + EXCLUDED.tag_pull_count,
				last_tag_pull_date = GREATEST(s.last_tag_pull_date, EXCLUDED.last_tag_pull_date),
				current_manifest_digest = CASE WHEN s.last_tag_pull_date > EXCLUDED.last_tag_pull_date
					THEN s.current_manifest_digest
					ELSE COALESCE(EXCLUDED.current_manifest_digest, s.current_manifest_digest) END,
				redis_last_processed = COALESCE(EXCLUDED.redis_last_processed, s.redis_last_processed),
				day = GREATEST(s.day, EXCLUDED.day),
				day_pulls = CASE WHEN s.day > EXCLUDED.day THEN s.day_pulls WHEN s.day = EXCLUDED.day THEN s.day_pulls + EXCLUDED.day_pulls
					ELSE COALESCE(EXCLUDED.day_pulls, s.day_pulls) END,
				earlier_day = CASE WHEN s.day <> EXCLUDED.day THEN LEAST(s.day, EXCLUDED.day) END,
				earlier_pulls = CASE WHEN s.day < EXCLUDED.day THEN s.day_pulls WHEN s.day > EXCLUDED.day THEN EXCLUDED.day_pulls END
			RETURNING repository_id, tag_name, earlier_day, earlier_pulls)
		INSERT INTO tagpullhistory AS h (repository_id, tag_name, day, pulls)
		SELECT repository_id, name, day, sum(pulls)::bigint FROM (
			SELECT * FROM counted WHERE earlier_day IS NOT NULL
			UNION ALL
			SELECT * FROM unnest(@more_repositories::bigint[], @more_names::text[], @more_days::date[], @more_pulls::bigint[])
		) AS earlier (repository_id, name, day, pulls)
		GROUP BY repository_id, name, day ORDER BY repository_id, name, day
		ON CONFLICT (repository_id, tag_name, day) DO UPDATE SET pulls = h.pulls + EXCLUDED.pulls`
	upsertManifests = `
		WITH counted AS (
			INSERT INTO manifestpullstatistics AS s
				(repository_id, manifest_digest, total_pull_count, last_pull_date, last_tag_pulled, last_tag_pull_date, redis_last_processed, day, day_pulls)
			SELECT repository_id, name, count, last, NULLIF(other, ''), last_both, @flushed, day, day_pulls
			FROM unnest(@repositories::bigint[], @names::text[], @counts::bigint[], @lasts::timestamptz[], @others::text[], @last_both::timestamptz[],
				@days::date[], @day_pulls::bigint[]) AS p (repository_id, name, count, last, other, last_both, day, day_pulls)
			ON CONFLICT (repository_id, manifest_digest) DO UPDATE SET
				total_pull_count = s.total_pull_count + EXCLUDED.total_pull_count,
				last_pull_date = GREATEST(s.last_pull_date, EXCLUDED.last_pull_date),
				last_tag_pulled = CASE WHEN EXCLUDED.last_tag_pull_date IS NULL OR s.last_tag_pull_date > EXCLUDED.last_tag_pull_date
					THEN s.last_tag_pulled ELSE EXCLUDED.last_tag_pulled END,
				last_tag_pull_date = GREATEST(s.last_tag_pull_date, EXCLUDED.last_tag_pull_date),
				redis_last_processed = COALESCE(EXCLUDED.redis_last_processed, s.redis_last_processed),
				day = GREATEST(s.day, EXCLUDED.day),
				day_pulls = CASE WHEN s.day > EXCLUDED.day THEN s.day_pulls WHEN s.day = EXCLUDED.day THEN s.day_pulls + EXCLUDED.day_pulls
					ELSE COALESCE(EXCLUDED.day_pulls, s.day_pulls) END,
				earlier_day = CASE WHEN s.day <> EXCLUDED.day THEN LEAST(s.day, EXCLUDED.day) END,
				earlier_pulls = CASE WHEN s.day < EXCLUDED.day THEN s.day_pulls WHEN s.day > EXCLUDED.day THEN EXCLUDED.day_pulls END
			RETURNING repository_id, manifest_digest, earlier_day, earlier_pulls)
		INSERT INTO manifestpullhistory AS h (repository_id, manifest_digest, day, pulls)
		SELECT repository_id, name, day, sum(pulls)::bigint FROM (
			SELECT * FROM counted WHERE earlier_day IS NOT NULL
			UNION ALL
			SELECT * FROM unnest(@more_repositories::bigint[], @more_names::text[], @more_days::date[], @more_pulls::bigint[])
		) AS earlier (repository_id, name, day, pulls)
		GROUP BY repository_id, name, day ORDER BY repository_id, name, day
		ON CONFLICT (repository_id, manifest_digest, day) DO UPDATE SET pulls = h.pulls + EXCLUDED.pulls`
)

// write adds the counts to the statistics, in the caller's transaction.
func (c counts) write(ctx context.Context, tx pgx.Tx) error { return c.add(ctx, tx, nil) }

// writeFlushed adds counts that were flushed from Redis to the statistics, and stores the
// present time in the changed rows as the time of the flush (redis_last_processed).
func (c counts) writeFlushed(ctx context.Context, tx pgx.Tx) error {
	now := time.Now()
	return c.add(ctx, tx, &now)
}

// add sends its statements in one round trip. All transactions send them in the same order,
// so that they lock rows in the same order.
func (c counts) add(ctx context.Context, tx pgx.Tx, flushed *time.Time) error {
	b := &pgx.Batch{}
	if len(c.tags) > 0 {
		b.Queue(upsertTags, arguments(c.tags, flushed))
	}
	if len(c.manifests) > 0 {
		b.Queue(upsertManifests, arguments(c.manifests, flushed))
	}
	if !c.sums.empty() {
		b.Queue(upsertDays, c.sums.arguments())
	}
	if b.Len() == 0 {
		return nil
	}
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return fmt.Errorf("adding to the pull statistics: %w", err)
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
	days, pulls := make([]*time.Time, n), make([]*int64, n)
	var moreRepositories, morePulls []int64
	var moreNames []string
	var moreDays []time.Time
	for i, p := range rows {
		repositories[i], names[i], numbers[i], lasts[i], others[i] = p.repository, p.name, p.count, p.last, p.other
		if !p.lastBoth.IsZero() {
			boths[i] = &rows[i].lastBoth
		}
		for j := range p.days {
			if j == 0 {
				days[i], pulls[i] = &p.days[0].day, &p.days[0].pulls
				continue
			}
			moreRepositories, moreNames = append(moreRepositories, p.repository), append(moreNames, p.name)
			moreDays, morePulls = append(moreDays, p.days[j].day), append(morePulls, p.days[j].pulls)
		}
	}
	return db.Args{"repositories": repositories, "names": names, "counts": numbers, "lasts": lasts, "others": others,
		"last_both": boths, "flushed": flushed, "days": days, "day_pulls": pulls,
		"more_repositories": moreRepositories, "more_names": moreNames, "more_days": moreDays, "more_pulls": morePulls}
}
