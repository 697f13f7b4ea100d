package statsdb

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

// Sum is the sum of those pulls in a batch that belong to one tag or to one manifest.
type Sum struct {
	Repository int64
	Name       string // name of the tag, or the digest
	Count      int64
	Last       time.Time
	Other      string     // of the newest pull by tag: for a tag the digest, for a manifest the tag
	OtherAt    time.Time  // time of that pull
	days       []DayPulls // the pulls by day, the newest day first
}

// add adds n pulls of one day to the sum p; the last of them happened at `last`. If p is the
// sum of a tag, `other` is the digest of the manifest that these pulls delivered. If p is the
// sum of a manifest, `other` is the tag by which the manifest was pulled; "" if it was pulled
// by digest.
func (p *Sum) add(n int64, on, last time.Time, other string) {
	p.Count += n
	if n != 0 {
		p.addDay(on, n)
	}
	if last.After(p.Last) {
		p.Last = last
	}
	if other != "" && !last.Before(p.OtherAt) { // of two pulls at the same time, the one added later wins
		p.Other, p.OtherAt = other, last
	}
}

// Sums has the sums of a batch of pulls: one for each tag and one for each manifest. They
// are ordered by repository and name, so that all transactions lock the rows of the
// statistics tables in the same order. The other sums are those of days: see days.go.
type Sums struct {
	Tags, Manifests []Sum
	days            daySums
}

// Adder adds up pulls.
type Adder struct {
	tags, manifests map[rowKey]*Sum
	living          Living // the namespaces of the repositories, for the sums of days
}

type rowKey struct {
	repository int64
	name       string
}

// NewAdder makes an adder for pulls of the repositories `of`.
func NewAdder(of Living) Adder { return Adder{map[rowKey]*Sum{}, map[rowKey]*Sum{}, of} }

// Add adds n pulls of the manifest with the digest d to the manifest's sum and, unless tag
// is "", to the tag's sum. `last` is the time of the last of these pulls, which all happened
// on the day `on`.
func (a Adder) Add(repository int64, tag string, d oci.Digest, n int64, on, last time.Time) {
	addTo(a.tags, rowKey{repository, tag}, n, on, last, d.String())
	addTo(a.manifests, rowKey{repository, d.String()}, n, on, last, tag)
}

// AddTag adds one pull to a tag's sum: a pull by digest that was joined with the client's
// HEAD of this tag. pullstats.SyncWorker counted the pull for the manifest d already when it read
// the pull. So AddTag adds no pull to the manifest's sum; it only records there that the
// manifest was pulled by this tag at the time `at`.
func (a Adder) AddTag(repository int64, tag string, d oci.Digest, at time.Time) {
	addTo(a.tags, rowKey{repository, tag}, 1, DayOf(at), at, d.String())
	addTo(a.manifests, rowKey{repository, d.String()}, 0, DayOf(at), at, tag)
}

func addTo(rows map[rowKey]*Sum, k rowKey, n int64, on, last time.Time, other string) {
	if k.name == "" {
		return
	}
	if rows[k] == nil {
		rows[k] = &Sum{Repository: k.repository, Name: k.name}
	}
	rows[k].add(n, on, last, other)
}

// Sums returns the sums of all pulls that were added.
func (a Adder) Sums() Sums {
	s := Sums{Tags: ordered(a.tags), Manifests: ordered(a.manifests)}
	s.days = sumDays(s.Manifests, a.living)
	return s
}

func ordered(rows map[rowKey]*Sum) []Sum {
	list := make([]Sum, 0, len(rows))
	for _, p := range rows {
		list = append(list, *p)
	}
	slices.SortFunc(list, func(a, b Sum) int {
		return cmp.Or(cmp.Compare(a.Repository, b.Repository), cmp.Compare(a.Name, b.Name))
	})
	return list
}

// AddPulls adds pulls of repositories that exist. An entry of pulls by digest has the time of
// each pull, so that AddPulls knows their days. The pulls of another entry count for the day
// of the last of them: the audit log's recorder begins another entry at midnight, unless its
// buffer is full.
func (a Adder) AddPulls(pulls []audit.Pull) {
	for i := range pulls {
		p := &pulls[i]
		on := DayOf(p.Time)
		if p.Later != nil && p.First.Before(on) {
			if all, err := audit.Requests(audit.Request{Time: p.First}, p.Later); err == nil && len(all) == p.N {
				for _, q := range all {
					a.Add(p.RepositoryID, p.Tag, p.Digest, 1, DayOf(q.Time), q.Time)
				}
				continue
			}
		}
		a.Add(p.RepositoryID, p.Tag, p.Digest, int64(p.N), on, p.Time)
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

// Write adds the sums to the statistics, in the caller's transaction.
func (s Sums) Write(ctx context.Context, tx pgx.Tx) error { return s.write(ctx, tx, nil) }

// WriteFlushed adds sums that were flushed from Redis to the statistics, and stores the
// present time in the changed rows as the time of the flush (redis_last_processed).
func (s Sums) WriteFlushed(ctx context.Context, tx pgx.Tx) error {
	now := time.Now()
	return s.write(ctx, tx, &now)
}

// write sends its statements in one round trip. All transactions send them in the same order,
// so that they lock rows in the same order.
func (s Sums) write(ctx context.Context, tx pgx.Tx, flushed *time.Time) error {
	b := &pgx.Batch{}
	if len(s.Tags) > 0 {
		b.Queue(upsertTags, arguments(s.Tags, flushed))
	}
	if len(s.Manifests) > 0 {
		b.Queue(upsertManifests, arguments(s.Manifests, flushed))
	}
	if !s.days.empty() {
		b.Queue(upsertDays, s.days.arguments())
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
func arguments(rows []Sum, flushed *time.Time) db.Args {
	n := len(rows)
	repositories, numbers := make([]int64, n), make([]int64, n)
	names, others := make([]string, n), make([]string, n)
	lasts, boths := make([]time.Time, n), make([]*time.Time, n)
	days, pulls := make([]*time.Time, n), make([]*int64, n)
	var moreRepositories, morePulls []int64
	var moreNames []string
	var moreDays []time.Time
	for i, p := range rows {
		repositories[i], names[i], numbers[i], lasts[i], others[i] = p.Repository, p.Name, p.Count, p.Last, p.Other
		if !p.OtherAt.IsZero() {
			boths[i] = &rows[i].OtherAt
		}
		for j := range p.days {
			if j == 0 {
				days[i], pulls[i] = &p.days[0].Day, &p.days[0].Pulls
				continue
			}
			moreRepositories, moreNames = append(moreRepositories, p.Repository), append(moreNames, p.Name)
			moreDays, morePulls = append(moreDays, p.days[j].Day), append(morePulls, p.days[j].Pulls)
		}
	}
	return db.Args{"repositories": repositories, "names": names, "counts": numbers, "lasts": lasts, "others": others,
		"last_both": boths, "flushed": flushed, "days": days, "day_pulls": pulls,
		"more_repositories": moreRepositories, "more_names": moreNames, "more_days": moreDays, "more_pulls": morePulls}
}
