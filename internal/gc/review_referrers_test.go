package gc_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/gc"
	"github.com/purser-registry/purser/internal/oci"
)

// referrersVariable is the environment variable with the number of referrers that
// TestSubjectOfManyReferrers inserts, by default 5,000.
const referrersVariable = "PURSER_TEST_REFERRERS"

// refer inserts n new referrers of the manifest with the digest `subject` into the
// repository r, without queueing them for review.
func (b bundle) refer(t *testing.T, subject oci.Digest, n int) {
	t.Helper()
	tx, err := b.DB.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context()) //nolint:errcheck // it is committed
	if _, err := tx.Exec(t.Context(), "SET LOCAL session_replication_role = replica"); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `
		INSERT INTO manifests (top_level_namespace_id, repository_id, digest, media_type, subject_digest, payload, total_size)
		SELECT r.top_level_namespace_id, r.id, '\x01'::bytea || sha256((random() || 'referrer' || i)::bytea), $3, $1, '{}', 1
		FROM repositories r, generate_series(1, $2::int) i WHERE r.path = 'r' ORDER BY i`,
		subject.Bytes(), n, oci.MediaTypeImageManifest); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// queueReferrers calls QueueReferrers, each time for up to `page` referrers, until no
// referrers are left to be queued. It returns the number of calls that queued some.
func (b bundle) queueReferrers(t *testing.T, page int) (pages int) {
	t.Helper()
	for {
		did, err := b.QueueReferrers(t.Context(), page)
		if err != nil {
			t.Fatal(err)
		}
		if !did {
			return pages
		}
		pages++
	}
}

// pages returns how many 8 kB pages of the tables of manifests and review queues, and of
// their indexes, all database connections that have ended have read together.
func pages(t *testing.T, conn *pgx.Conn) (n int) {
	t.Helper()
	if err := conn.QueryRow(t.Context(), `
		SELECT sum(heap_blks_read + heap_blks_hit + COALESCE(idx_blks_read + idx_blks_hit, 0))::int
		FROM pg_statio_user_tables WHERE relname ~ '^(manifests|gc_)'`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestSubjectOfManyReferrers puts and deletes a subject with thousands of referrers. The
// number of database pages that PostgreSQL reads for this must not depend on the number of
// referrers: the test fails if the put or the deletion reads all of them. Each count of
// waiting reviews must include the referrers that are still to be queued.
func TestSubjectOfManyReferrers(t *testing.T) {
	t.Parallel()
	n := 5000
	if text := os.Getenv(referrersVariable); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	dsn := dbtest.DSN(t)
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context()) //nolint:errcheck // the database goes anyway
	var subject oci.Digest
	var payload []byte
	// step runs `do` with database connections of its own, because PostgreSQL's statistics
	// count what a connection has read when the connection ends.
	step := func(what string, most int, do func(b bundle)) {
		catalogtest.Alone(t, conn)
		before := pages(t, conn)
		t.Run(what, func(t *testing.T) { do(replica(t, dsn)) })
		catalogtest.Alone(t, conn)
		read := pages(t, conn) - before
		t.Logf("%s read %d pages", what, read)
		if most > 0 && read > most {
			t.Errorf("%s read %d pages, want at most %d", what, read, most)
		}
	}
	step("filling", 0, func(b bundle) {
		config := b.Push(t, "r", "config")
		payload = catalogtest.Image(t, config, nil, nil)
		subject = oci.Compute(oci.SHA256, payload)
		b.Delays(t, "subject_delete")
		b.refer(t, subject, n)
		b.refer(t, oci.Compute(oci.SHA256, []byte("another")), 50)
		b.Exec(t, "VACUUM (ANALYZE) manifests")
	})
	put := func(b bundle) {
		if _, err := b.TryPut(t.Context(), "r", payload, "t"); err != nil {
			t.Fatal(err)
		}
	}
	step("a put of the subject", 300, put)
	step("another put of the subject", 300, put)
	step("a deletion of the subject", 2500, func(b bundle) {
		if err := b.DeleteManifest(t.Context(), "r", subject); err != nil {
			t.Fatal(err)
		}
		if rows := b.Rows(t, "gc_manifest_review_queue"); rows != 100 {
			t.Errorf("the deletion queued %d referrers, want 100", rows)
		}
	})
	// The digest of this other subject is lower than that of the first one. So in the
	// database index its one referrer comes before the first subject's many referrers.
	step("a deletion of another subject", 900, func(b bundle) {
		config := oci.Compute(oci.SHA256, []byte("config"))
		for i := 0; ; i++ {
			other := catalogtest.Numbered(t, i, config)
			d := oci.Compute(oci.SHA256, other)
			if bytes.Compare(d.Bytes(), subject.Bytes()) > 0 {
				continue
			}
			b.Push(t, "r", "config")
			b.Put(t, "r", other, "t")
			b.refer(t, d, 1)
			if err := b.DeleteManifest(t.Context(), "r", d); err != nil {
				t.Fatal(err)
			}
			b.Exec(t, "DELETE FROM manifests WHERE subject_digest = $1", d.Bytes())
			break
		}
	})
	b := replica(t, dsn)
	var last []byte
	if err := conn.QueryRow(t.Context(), "SELECT digest FROM manifests WHERE subject_digest = $1 ORDER BY id DESC LIMIT 1", subject.Bytes()).Scan(&last); err != nil {
		t.Fatal(err)
	}
	digest, err := oci.DigestFromBytes(last)
	if err != nil {
		t.Fatal(err)
	}
	told := func(when string) {
		t.Helper()
		s, err := b.GCStatus(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		backlog, err := b.GCBacklog(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, q := range []gc.QueueStatus{s.Manifests, backlog.Manifests} {
			if q.Due.Rows != 0 || q.Waiting.Exact && q.Waiting.Rows != int64(n) || q.NextDue == nil || time.Until(*q.NextDue) < 23*time.Hour {
				t.Errorf("%s: %+v; want %d waiting for a day", when, q, n)
			}
		}
		e, err := b.ExplainManifest(t.Context(), "r", digest)
		if err != nil {
			t.Fatal(err)
		}
		if e.Fate != "waiting" || e.Review == nil || e.Review.Event != "subject_delete" || time.Until(e.Review.ReviewAfter) < 23*time.Hour {
			t.Errorf("%s: the last referrer is explained by %s, %+v", when, e.Fate, e.Review)
		}
	}
	told("before pages were queued")
	if next, err := b.NextReview(t.Context(), reviewingManifests, time.Minute); err != nil || next != 0 {
		t.Errorf("the next review is in %v, %v; want now, since there are referrers to be queued", next, err)
	}
	if got, want := b.queueReferrers(t, 500), (n-100+499)/500; got != want {
		t.Errorf("%d pages, want %d", got, want)
	}
	b.Empty(t, "gc_subject_review_queue")
	if rows := b.Rows(t, "gc_manifest_review_queue"); rows != n {
		t.Errorf("%d referrers are queued, want %d", rows, n)
	}
	told("after pages were queued")
}

// manyReferrers creates a repository r with 250 referrers of a subject that was deleted.
// 100 of the referrers are queued for review, and 150 are still to be queued.
func manyReferrers(t *testing.T) (b bundle, subject []byte, digest oci.Digest) {
	t.Helper()
	b = setup(t)
	b.Delays(t)
	config := b.Push(t, "r", "config")
	subject = catalogtest.Image(t, config, nil, nil)
	digest = b.Put(t, "r", subject, "t")
	b.refer(t, digest, 250)
	b.Forget(t)
	if err := b.DeleteManifest(t.Context(), "r", digest); err != nil {
		t.Fatal(err)
	}
	return b, subject, digest
}

// The method `left` checks that `queued` referrers are queued for review. If `pending` is
// true, further referrers of a deleted subject must still have to be queued; else none.
func (b bundle) left(t *testing.T, queued int, pending bool) {
	t.Helper()
	if n := b.Rows(t, "gc_manifest_review_queue"); n != queued {
		t.Errorf("%d referrers are queued, want %d", n, queued)
	}
	if n := b.Rows(t, "gc_subject_review_queue"); (n == 1) != pending {
		t.Errorf("%d subjects have referrers to be queued", n)
	}
}

// A worker is killed while its transaction queues 100 referrers for review. None of these
// may stay queued, and the next call of QueueReferrers must queue them.
func TestReferrersPageIsCutOff(t *testing.T) {
	t.Parallel()
	b, _, _ := manyReferrers(t)
	x := b.Session(t)
	x.Exec(t, "BEGIN")
	x.Exec(t, "SELECT gc_queue_more_referrers(100)")
	if did, err := b.QueueReferrers(t.Context(), 100); did || err != nil {
		t.Errorf("another worker: %v, %v; want it to find nothing", did, err)
	}
	b.Exec(t, "SELECT pg_terminate_backend($1)", int32(x.PID))
	catalogtest.Eventually(t, "the worker is gone", func() bool {
		return b.Count(t, "SELECT count(*) FROM pg_stat_activity WHERE pid = $1", int32(x.PID)) == 0
	})
	b.left(t, 100, true)
	if n := b.queueReferrers(t, 100); n != 2 {
		t.Errorf("%d pages, want 2", n)
	}
	b.left(t, 250, false)
	if m, _ := b.ReviewAll(t); m != 250 {
		t.Errorf("%d manifests were deleted, want 250", m)
	}
}

// A subject is deleted, put again while its referrers are still being queued for review,
// and deleted a second time. Its referrers must stay while the subject exists. The second
// deletion must queue all referrers, from the first one on. There are three cases.
// QueueReferrers isn't called while the subject exists again ("not"), is called until
// nothing is left to queue ("before"), or is still running during the second deletion
// ("meanwhile").
func TestReferrersOfSubjectPutAgain(t *testing.T) {
	t.Parallel()
	for _, seen := range []string{"not", "before", "meanwhile"} {
		t.Run(seen, func(t *testing.T) {
			t.Parallel()
			b, subject, digest := manyReferrers(t)
			if did, err := b.QueueReferrers(t.Context(), 50); !did || err != nil {
				t.Fatal(did, err)
			}
			b.Put(t, "r", subject, "t")
			b.left(t, 150, true)
			if m, _ := b.ReviewAll(t); m != 0 {
				t.Fatalf("%d manifests were deleted whose subject lives", m)
			}
			b.left(t, 0, true)
			x, watch := b.Session(t), b.Session(t)
			switch seen {
			case "before":
				b.queueReferrers(t, 50)
				b.left(t, 0, false)
			case "meanwhile":
				x.Exec(t, "BEGIN")
				x.Exec(t, "SELECT gc_queue_more_referrers(50)") // drops the row
			}
			deleted := catalogtest.Later(func() error { return b.DeleteManifest(context.Background(), "r", digest) })
			if seen == "meanwhile" {
				x.Blocks(t, watch, 1)
				x.Exec(t, "COMMIT")
			}
			if err := catalogtest.Soon(t, "deletion", deleted); err != nil {
				t.Fatal(err)
			}
			b.left(t, 100, true)
			b.queueReferrers(t, 50)
			b.left(t, 250, false)
			if m, _ := b.ReviewAll(t); m != 250 {
				t.Errorf("%d manifests were deleted, want 250", m)
			}
		})
	}
}

// A subject was deleted. One of its referrers hasn't been queued for this reason yet, but
// has a due row in gc_manifest_review_queue for another reason. The review must not delete
// this referrer, since the event subject_delete may give it a longer review delay.
func TestReferrerIsReviewedBeforeItIsQueued(t *testing.T) {
	t.Parallel()
	b, _, _ := manyReferrers(t)
	b.Exec(t, "UPDATE gc_subject_review_queue SET review_after = now() + interval '1 day'")
	b.Forget(t)
	b.Exec(t, `INSERT INTO gc_manifest_review_queue (top_level_namespace_id, repository_id, manifest_id, review_after, event)
		SELECT top_level_namespace_id, repository_id, id, now(), 'tag_delete' FROM manifests ORDER BY id DESC LIMIT 1`)
	if out := b.ReviewBatch(t, reviewingManifests); out.Claimed != 1 || out.Postponed != 1 {
		t.Errorf("review: %+v; want the referrer put off", out)
	}
	b.putOff(t, "gc_manifest_review_queue", 1)
	b.queueReferrers(t, 500)
	if n := b.Count(t, "SELECT count(*) FROM gc_manifest_review_queue WHERE review_after > now() + interval '23 hours'"); n != 150 {
		t.Errorf("%d referrers wait for a day, want 150", n)
	}
}

// A client has locked the row of a referrer in gc_manifest_review_queue. QueueReferrers
// must not wait for the row: it must give up, and a later call must queue this referrer and
// the others of the same page.
func TestReferrersPageGivesWay(t *testing.T) {
	t.Parallel()
	b, _, _ := manyReferrers(t)
	b.Exec(t, `INSERT INTO gc_manifest_review_queue (top_level_namespace_id, repository_id, manifest_id, event)
		SELECT top_level_namespace_id, repository_id, id, 'test' FROM manifests ORDER BY id DESC LIMIT 1`)
	x := b.Session(t)
	x.Exec(t, "BEGIN")
	x.Exec(t, "SELECT FROM gc_manifest_review_queue WHERE event = 'test' FOR UPDATE")
	p := b.pausingAt(t, func(ctx context.Context, c *gc.Collector) (out gc.Review, err error) {
		_, err = c.QueueReferrers(ctx, 500)
		return out, err
	})
	p.ended(t)
	b.left(t, 101, true)
	if next, err := b.NextReview(t.Context(), reviewingManifests, time.Minute); err != nil || next > 0 { // those that are queued
		t.Error(next, err)
	}
	if n := b.Count(t, `SELECT count(*) FROM gc_subject_review_queue
			WHERE expand_after > now() + interval '1 s' AND expand_after <= now() + interval '5 s'`); n != 1 {
		t.Error("the page wasn't put off by 5 s")
	}
	x.Exec(t, "COMMIT")
	b.Exec(t, "UPDATE gc_subject_review_queue SET expand_after = now()")
	b.queueReferrers(t, 500)
	b.left(t, 250, false)
}

// A repository with referrers that are still to be queued is deleted. QueueReferrers must
// not queue these referrers any more.
func TestReferrersOfDeletedRepository(t *testing.T) {
	t.Parallel()
	b, _, _ := manyReferrers(t)
	b.Exec(t, "DELETE FROM repositories")
	b.queueReferrers(t, 50)
	b.left(t, 100, false)
}

// 500 referrers are due, two for each of 250 subjects. A review takes an advisory lock per
// subject, and PostgreSQL's memory for locks is limited, so one review takes at most 200
// such locks. So the first review must claim only 400 of the referrers, and leave the rows
// of the others due.
func TestReviewOfManySubjects(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Delays(t)
	b.Push(t, "r", "config")
	for i := range 250 {
		b.refer(t, oci.Compute(oci.SHA256, fmt.Append(nil, "subject", i)), 2)
	}
	b.Exec(t, `INSERT INTO gc_manifest_review_queue (top_level_namespace_id, repository_id, manifest_id, review_after, event)
		SELECT top_level_namespace_id, repository_id, id, now(), 'test' FROM manifests`)
	if out := b.ReviewBatch(t, reviewingManifests); out.Claimed != 400 || out.Deleted != 400 {
		t.Errorf("first review: %+v; want 400 of 500 claimed and deleted", out)
	}
	if out := b.ReviewBatch(t, reviewingManifests); out.Claimed != 100 || out.Deleted != 100 {
		t.Errorf("second review: %+v; want the other 100 claimed and deleted", out)
	}
	b.Empty(t, "manifests", "gc_manifest_review_queue")
}

// TestConcurrentSubjects puts and deletes a subject again and again while slow reviewers
// delete its referrers. A referrer that exists when a put of the subject has returned must
// stay until the subject is deleted, and must be deleted afterwards. The test fails if
// reviews or puts don't lock the subject's digest.
func TestConcurrentSubjects(t *testing.T) {
	t.Parallel()
	s := newStorm(t, dbtest.DSN(t))
	b := s.a
	b.Delays(t)
	config := b.Push(t, "r", "config")
	ctx, stop := context.WithCancel(t.Context())
	var workers sync.WaitGroup
	defer workers.Wait()
	defer stop()
	for i := range 3 {
		rng := rand.New(rand.NewPCG(rand.Uint64(), uint64(i)))
		usual, hasty := s.reviewer(t, "200ms", "0"), s.reviewer(t, "200ms", "6ms")
		workers.Go(func() {
			if err := s.review(ctx, reviewingManifests, usual, hasty, rng); err != nil {
				t.Error(err)
			}
		})
		workers.Go(func() {
			for ctx.Err() == nil {
				did, err := usual.QueueReferrers(ctx, 1+rand.IntN(40))
				if err != nil && ctx.Err() == nil {
					t.Error(err)
				}
				if !did {
					select { // leaves the processor to others
					case <-ctx.Done():
					case <-time.After(time.Millisecond):
					}
				}
			}
		})
	}
	const existing = "SELECT COALESCE(array_agg(id), '{}') FROM manifests WHERE subject_digest = $1"
	// reviewed waits until `ok` returns true. In the meantime it makes postponed and failed
	// reviews due at once.
	reviewed := func(what string, ok func() bool) {
		catalogtest.Eventually(t, what, func() bool {
			b.Exec(t, "UPDATE gc_manifest_review_queue SET review_after = now(), set_aside_at = NULL WHERE review_after > now() OR set_aside_at IS NOT NULL")
			return ok()
		})
	}
	drained := func(what string) {
		reviewed(what, func() bool {
			return b.Rows(t, "gc_manifest_review_queue")+b.Rows(t, "gc_subject_review_queue") == 0
		})
	}
	referrers := func(subject oci.Digest) int {
		return b.Count(t, "SELECT count(*) FROM manifests WHERE subject_digest = $1", subject.Bytes())
	}
	saved := 0
	for i := range 15 {
		subject := catalogtest.Numbered(t, i, config)
		d := oci.Compute(oci.SHA256, subject)
		b.refer(t, d, 130)
		b.Exec(t, `INSERT INTO gc_manifest_review_queue (top_level_namespace_id, repository_id, manifest_id, review_after, event)
			SELECT top_level_namespace_id, repository_id, id, now(), 'test' FROM manifests WHERE subject_digest = $1
			ON CONFLICT DO NOTHING`, d.Bytes())
		left := rand.IntN(130)
		reviewed("some referrers are deleted", func() bool { return referrers(d) <= left })
		s.b.Put(t, "r", subject, "t")
		var there, still []int64
		if err := b.DB.Pool.QueryRow(t.Context(), existing, d.Bytes()).Scan(&there); err != nil {
			t.Fatal(err)
		}
		drained("all referrers of a subject that lives are reviewed")
		if err := b.DB.Pool.QueryRow(t.Context(), existing, d.Bytes()).Scan(&still); err != nil {
			t.Fatal(err)
		}
		if len(still) != len(there) {
			t.Fatalf("round %d: %d referrers were there when the put had returned, %d of them since deleted", i, len(there), len(there)-len(still))
		}
		saved += len(there)
		b.refer(t, d, 120)
		if err := s.b.DeleteManifest(t.Context(), "r", d); err != nil {
			t.Fatal(err)
		}
		if rand.IntN(2) == 0 { // and comes again while its referrers are being queued
			left := rand.IntN(120)
			reviewed("some referrers are deleted", func() bool { return referrers(d) <= left })
			s.b.Put(t, "r", subject, "t")
			if err := s.b.DeleteManifest(t.Context(), "r", d); err != nil {
				t.Fatal(err)
			}
		}
		drained("all referrers of a deleted subject are reviewed")
		if n := referrers(d); n != 0 {
			t.Fatalf("round %d: %d referrers are left behind", i, n)
		}
	}
	t.Logf("%d referrers were there when their subject came", saved)
}
