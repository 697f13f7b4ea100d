package gc

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/worker"
)

// GCStatus describes what garbage collection still has to do, and what it did in the last hour
// and day.
type GCStatus struct {
	AsOf time.Time `json:"as_of"` // by the database's clock
	// Stored counts the blobs in the database, each of which the store keeps once.
	Stored StoredBlobs `json:"stored"`
	// Reclaimable counts the blobs in the review queue to which no manifest refers. Their
	// reviews delete them, unless a manifest refers to them by then.
	Reclaimable BlobCount   `json:"reclaimable"`
	Manifests   QueueStatus `json:"manifests"`
	Blobs       QueueStatus `json:"blobs"`
	// Failed has, for each kind of review, the five reviews that were most recently marked as
	// failed for good, the latest first.
	Failed []FailedReview `json:"set_aside"`
	Doomed PendingStatus  `json:"doomed"`
	// Lost counts the blobs whose objects the store has lost, and that nobody has pushed
	// again since.
	Lost     catalog.Count `json:"lost"`
	Uploads  UploadStatus  `json:"uploads"`
	LastHour Reclaimed     `json:"last_hour"`
	LastDay  Reclaimed     `json:"last_day"`
	// Resting says why nothing is deleted now, "" if it may be.
	Resting string `json:"resting,omitempty"`
}

// GCBacklog is the part of GCStatus that is cheap enough to be queried every few seconds.
type GCBacklog struct {
	Manifests QueueStatus    `json:"manifests"`
	Blobs     QueueStatus    `json:"blobs"`
	Doomed    PendingBacklog `json:"doomed"`
	Lost      catalog.Count  `json:"lost"` // blobs whose objects the store has lost
}

// BlobCount counts blobs.
type BlobCount struct {
	Blobs catalog.Count `json:"blobs"`
	Bytes int64         `json:"bytes"` // as exact as Blobs
}

// StoredBlobs counts blobs, and tells how many bytes of them several repositories share.
type StoredBlobs struct {
	BlobCount
	// Shared counts the blobs that more than one repository has. If there are more than
	// sampleLimit blobs, it is estimated from a random sample.
	Shared BlobCount `json:"shared"`
}

// QueueStatus counts the rows of one review queue by state: due, waiting for the review delay
// to pass, or failed (not tried again after too many failures).
type QueueStatus struct {
	Due     catalog.Count `json:"due"`
	Waiting catalog.Count `json:"waiting"`
	Failed  catalog.Count `json:"set_aside"` // failed too often: see RetryFailed
	// OldestOverdueSeconds is the time since the oldest due row became due; 0 if no row is
	// due.
	OldestOverdueSeconds int64 `json:"oldest_overdue_seconds"`
	// NextDue is the time at which the next waiting row becomes due; nil if no row is waiting.
	NextDue *time.Time `json:"next_due"`
}

// FailedReview is a review that failed too often: see RetryFailed.
type FailedReview struct {
	Kind       ReviewKind `json:"kind"`
	Repository string     `json:"repository,omitempty"` // of a manifest
	Digest     oci.Digest `json:"digest"`               // "" if the manifest doesn't exist
	Event      string     `json:"event"`                // why it was queued
	FailedAt   time.Time  `json:"set_aside_at"`
	LastError  string     `json:"last_error"`
}

// PendingBacklog counts the pending deletions. Objects counts all of them except those in
// SecondSweeps, including those that a sweeper has claimed. Due counts the pending
// deletions that a sweeper can claim now.
type PendingBacklog struct {
	Objects catalog.Count `json:"objects"`
	// SecondSweeps counts pending deletions whose objects were deleted, and will be deleted
	// once more, in case a request that began before the first deletion writes them again.
	// The second deletion comes when all such requests must be over.
	SecondSweeps catalog.Count `json:"second_sweeps"`
	Due          catalog.Count `json:"due"`
	Bytes        int64         `json:"bytes"` // as exact as Objects
	// Kept counts pending deletions in Objects that aren't due, because their objects are
	// kept for gc.keep_doomed, or for a day after a repair.
	Kept      catalog.Count `json:"kept"`
	KeptBytes int64         `json:"kept_bytes"` // as exact as Kept
	// Foreign counts the objects of another registry's storage that no blob names any more. They
	// aren't in Objects: they stay until the import of that storage is finished.
	Foreign      catalog.Count `json:"foreign"`
	ForeignBytes int64         `json:"foreign_bytes"` // as exact as Foreign
}

// PendingStatus is a PendingBacklog, together with the deletions that failed.
type PendingStatus struct {
	PendingBacklog
	Failing catalog.Count `json:"failing"` // the store failed to delete them at least once
	// LastError and FailingSince describe the oldest pending deletion with a failed attempt:
	// its last error, and the time when the pending deletion was recorded (before its first
	// attempt). They are "" and nil if no deletion has failed.
	LastError    string     `json:"last_error"`
	FailingSince *time.Time `json:"failing_since"`
}

// UploadStatus counts the uploads in progress, including abandoned ones.
type UploadStatus struct {
	Uploads catalog.Count `json:"uploads"`
	Bytes   int64         `json:"bytes"` // as exact as Uploads
}

// Reclaimed counts what garbage collection deleted in a period.
type Reclaimed struct {
	Manifests int64 `json:"manifests"`
	Blobs     int64 `json:"blobs"`
	Objects   int64 `json:"objects"` // objects in the store; all objects of an upload count as one
	Bytes     int64 `json:"bytes"`   // of those objects
}

const (
	// statusLimit is the number of rows up to which GCStatus counts exactly. It estimates
	// larger numbers.
	statusLimit = 10_000
	// backlogLimit is the number of rows up to which GCBacklog counts exactly.
	backlogLimit = 10_000
	// sampleLimit is the number of blobs up to which GCStatus looks at each blob's uses. Of
	// more blobs it looks at about so many, and estimates.
	sampleLimit = 1_000
	// failedShown is how many failed reviews of each kind GCStatus lists.
	failedShown = 5
)

// GCStatus returns the status. Its cost doesn't grow with the queues: it takes one round
// trip to the database on each of two connections at once, and one more if some numbers of rows
// exceed statusLimit and have to be estimated.
func (c *Collector) GCStatus(ctx context.Context) (GCStatus, error) {
	s := GCStatus{Failed: []FailedReview{}}
	var backlog GCBacklog
	v := newStatusQuery(statusLimit)
	v.backlog(&backlog, c.opt.KeepDoomed)
	v.row([]any{&s.AsOf}, "SELECT now()")
	v.count(tally{from: "blobs", rows: &s.Stored.Blobs, bytes: &s.Stored.Bytes})
	v.failedReviews(&s.Failed)
	v.count(tally{from: "gc_doomed_objects WHERE attempts > 0", rows: &s.Doomed.Failing})
	v.row([]any{&s.Doomed.LastError, &s.Doomed.FailingSince}, `
		SELECT COALESCE(last_error, ''), doomed_at
		FROM (SELECT) one LEFT JOIN (
			SELECT last_error, doomed_at FROM gc_doomed_objects WHERE attempts > 0 ORDER BY doomed_at LIMIT 1) f ON true`)
	// Uploads without a repository belong to no client yet: they were created in advance for
	// future requests.
	v.count(tally{from: "uploads WHERE repository <> ''", rows: &s.Uploads.Uploads, bytes: &s.Uploads.Bytes})
	v.reclaimed(&s.LastHour, time.Hour)
	v.reclaimed(&s.LastDay, 24*time.Hour)
	uses := newStatusQuery(statusLimit)
	shared, reclaimable := uses.sharedBlobs(), uses.reclaimableBlobs()
	all, parallel := errgroup.WithContext(ctx)
	for _, q := range []*statusQuery{v, uses} {
		all.Go(func() error { return q.take(parallel, c.db) })
	}
	if err := all.Wait(); err != nil {
		return GCStatus{}, fmt.Errorf("asking for the state of garbage collection: %w", err)
	}
	s.Manifests, s.Blobs, s.Doomed.PendingBacklog, s.Lost = backlog.Manifests, backlog.Blobs, backlog.Doomed, backlog.Lost
	s.Stored.Shared = shared.of(s.Stored.BlobCount)
	s.Reclaimable = reclaimable.of(BlobCount{Blobs: s.Blobs.rows()})
	if err := c.rest(ctx); errors.Is(err, worker.ErrRest) {
		s.Resting = err.Error()
	}
	return s, nil
}

// GCBacklog is like GCStatus, but returns only the backlog, and estimates numbers above
// backlogLimit. It uses the connection pool of the reviews, so that it answers even while
// requests use all other connections.
func (c *Collector) GCBacklog(ctx context.Context) (GCBacklog, error) {
	var s GCBacklog
	v := newStatusQuery(backlogLimit)
	v.backlog(&s, c.opt.KeepDoomed)
	if err := v.take(ctx, c.opt.Reviews); err != nil {
		return GCBacklog{}, fmt.Errorf("asking for the backlog of garbage collection: %w", err)
	}
	return s, nil
}

// statusQuery is a set of queries, many of them counts of rows, that are sent in one round
// trip.
type statusQuery struct {
	pgx.Batch
	limit   int // the number of rows up to which each tally counts exactly
	tallies []tally
}

// tally is a query that counts rows and, if bytes is set, adds up their sizes.
type tally struct {
	from  string // table and condition
	rows  *catalog.Count
	bytes *int64
	// index names a database index that contains exactly the rows to be counted. If there
	// are too many rows to count, their number is estimated as the number of the index's
	// entries in PostgreSQL's statistics. If index is "", the planner estimates the number.
	index string
}

func newStatusQuery(limit int) *statusQuery { return &statusQuery{limit: limit} }

func (v *statusQuery) backlog(s *GCBacklog, keep time.Duration) {
	v.queue(ReviewOfManifests, &s.Manifests)
	v.queue(ReviewOfBlobs, &s.Blobs)
	v.count(tally{from: "gc_doomed_objects WHERE again_at IS DISTINCT FROM delete_after", index: "gc_doomed_objects_first_idx",
		rows: &s.Doomed.Objects, bytes: &s.Doomed.Bytes})
	v.count(tally{from: "gc_doomed_objects WHERE again_at = delete_after", index: "gc_doomed_objects_again_idx", rows: &s.Doomed.SecondSweeps})
	// The value of `keep` is written into the SQL text, and not passed as a parameter, so
	// that the planner can use the value when it estimates numbers of rows.
	kept := fmt.Sprintf("now() - interval '%d ms'", keep.Milliseconds())
	v.count(tally{from: "gc_doomed_objects WHERE (of_upload OR sweeping) AND delete_after <= now()" +
		" OR NOT (of_upload OR sweeping) AND delete_after <= " + kept, rows: &s.Doomed.Due})
	v.count(tally{from: "gc_doomed_objects WHERE NOT (of_upload OR sweeping) AND delete_after > " + kept,
		rows: &s.Doomed.Kept, bytes: &s.Doomed.KeptBytes})
	v.count(tally{from: "gc_foreign_objects", rows: &s.Doomed.Foreign, bytes: &s.Doomed.ForeignBytes})
	v.count(tally{from: "blobs WHERE lost_at IS NOT NULL", rows: &s.Lost})
}

func (v *statusQuery) queue(kind ReviewKind, s *QueueStatus) {
	const due, waiting = "set_aside_at IS NULL AND review_after <= now()", "set_aside_at IS NULL AND review_after > now()"
	v.count(tally{from: kind.planned() + " WHERE " + due, rows: &s.Due})
	v.count(tally{from: kind.planned() + " WHERE " + waiting, rows: &s.Waiting})
	v.count(tally{from: kind.queue() + " WHERE set_aside_at IS NOT NULL", rows: &s.Failed})
	// All referrers of a deleted subject that still have to be queued get the review_after
	// of the subject's row in gc_subject_review_queue.
	v.row([]any{&s.OldestOverdueSeconds, &s.NextDue}, `
		SELECT
			COALESCE(extract(epoch FROM now() - LEAST(
				(SELECT review_after FROM `+kind.queue()+` WHERE `+due+` ORDER BY review_after LIMIT 1),
				(SELECT min(review_after) FROM gc_subject_review_queue WHERE $1 AND review_after <= now())))::bigint, 0),
			LEAST(
				(SELECT review_after FROM `+kind.queue()+` WHERE `+waiting+` ORDER BY review_after LIMIT 1),
				(SELECT min(review_after) FROM gc_subject_review_queue WHERE $1 AND review_after > now()))`, kind == ReviewOfManifests)
}

// row adds a query that returns one row, and scans this row into dest.
func (v *statusQuery) row(dest []any, sql string, args ...any) {
	v.Queue(sql, args...).QueryRow(func(row pgx.Row) error { return row.Scan(dest...) })
}

func (v *statusQuery) count(t tally) {
	v.tallies = append(v.tallies, t)
	size := "0::bigint AS size"
	if t.bytes == nil {
		t.bytes = new(int64)
	} else {
		size = "size"
	}
	// The limit is written into the SQL text, and not passed as a parameter, so that the
	// planner chooses a plan for this number of rows.
	v.row([]any{&t.rows.Rows, t.bytes}, fmt.Sprintf(
		"SELECT count(*), LEAST(COALESCE(sum(size), 0), 9223372036854775807)::bigint FROM (SELECT %s FROM %s LIMIT %d) counted", size, t.from, v.limit+1))
}

// failedReviews adds queries for the few reviews of each kind that failed for good last,
// the latest first. The manifest is looked up by a range, in the order of its id: only one index has
// this order, and without it the planner might use one that reads the whole repository.
func (v *statusQuery) failedReviews(list *[]FailedReview) {
	for kind, sql := range map[ReviewKind]string{
		ReviewOfManifests: `
			SELECT COALESCE(r.path, ''), m.digest, q.event, q.set_aside_at, COALESCE(q.last_error, '')
			FROM (SELECT * FROM gc_manifest_review_queue WHERE set_aside_at IS NOT NULL
				ORDER BY set_aside_at DESC LIMIT $1) q
			LEFT JOIN named_repositories r ON r.id = q.repository_id
			LEFT JOIN LATERAL (
				SELECT digest FROM manifests
				WHERE top_level_namespace_id = q.top_level_namespace_id AND repository_id = q.repository_id
					AND id BETWEEN q.manifest_id AND q.manifest_id ORDER BY id LIMIT 1) m ON true`,
		ReviewOfBlobs: `
			SELECT '', digest, event, set_aside_at, COALESCE(last_error, '') FROM gc_blob_review_queue
			WHERE set_aside_at IS NOT NULL ORDER BY set_aside_at DESC LIMIT $1`,
	} {
		v.Queue(sql, failedShown).Query(func(rows pgx.Rows) error {
			found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (FailedReview, error) {
				s := FailedReview{Kind: kind}
				var digest []byte
				err := row.Scan(&s.Repository, &digest, &s.Event, &s.FailedAt, &s.LastError)
				if d, err := oci.DigestFromBytes(digest); err == nil {
					s.Digest = d
				}
				return s, err
			})
			*list = append(*list, found...)
			slices.SortStableFunc(*list, func(a, b FailedReview) int { return b.FailedAt.Compare(a.FailedAt) })
			return err
		})
	}
}

func (v *statusQuery) reclaimed(r *Reclaimed, within time.Duration) {
	v.row([]any{&r.Manifests, &r.Blobs, &r.Objects, &r.Bytes}, `
		SELECT COALESCE(sum(manifests_deleted), 0)::bigint, COALESCE(sum(blobs_deleted), 0)::bigint,
			COALESCE(sum(objects_swept), 0)::bigint, LEAST(COALESCE(sum(bytes_swept), 0), 9223372036854775807)::bigint
		FROM gc_activity WHERE minute > now() - $1::interval`, within)
}

// take sends all queries of v in one round trip. If some counts exceed v.limit, it then
// sends a second batch of queries that estimate these numbers.
func (v *statusQuery) take(ctx context.Context, on *db.DB) error {
	if err := on.Pool.SendBatch(ctx, &v.Batch).Close(); err != nil {
		return err
	}
	estimates := new(pgx.Batch)
	for _, t := range v.tallies {
		if t.rows.Exact = t.rows.Rows <= int64(v.limit); !t.rows.Exact {
			estimate(estimates, t)
		}
	}
	if estimates.Len() == 0 {
		return nil
	}
	return on.Pool.SendBatch(ctx, estimates).Close()
}

// estimate adds to the batch `b` a query that replaces t's count of rows by an estimate, if
// the estimate is larger. If t.index is set, the estimate is the number of entries that
// PostgreSQL last recorded for the index, else the planner's estimate. For the sum of sizes,
// estimate assumes that all rows have the average size of the counted rows.
func estimate(b *pgx.Batch, t tally) {
	use := func(rows float64) {
		if rows <= float64(t.rows.Rows) {
			return
		}
		if t.bytes != nil {
			all := float64(*t.bytes) / float64(t.rows.Rows) * rows
			*t.bytes = math.MaxInt64
			if all < math.MaxInt64 {
				*t.bytes = int64(all)
			}
		}
		t.rows.Rows = int64(rows)
	}
	if t.index != "" {
		b.Queue("SELECT reltuples FROM pg_class WHERE oid = $1::regclass", t.index).QueryRow(func(row pgx.Row) error {
			var rows float64
			err := row.Scan(&rows)
			use(rows)
			return err
		})
		return
	}
	b.Queue("EXPLAIN (FORMAT JSON) SELECT FROM " + t.from).QueryRow(func(row pgx.Row) error {
		var plans []struct {
			Plan struct {
				Rows float64 `json:"Plan Rows"`
			}
		}
		err := row.Scan(&plans)
		if len(plans) > 0 {
			use(plans[0].Plan.Rows)
		}
		return err
	})
}
