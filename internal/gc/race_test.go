package gc_test

import (
	"context"
	"errors"
	"regexp"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/gc"
	"github.com/purser-registry/purser/internal/oci"
)

// Each test named TestRace… runs one interleaving of a real review with a client's request.
// The test stops the review between two SQL statements, and then sends the request. Its
// comment names the plausible wrong implementation that the test catches.

// bundle is a catalog on a database that only this test uses, with its garbage collection.
type bundle struct{ catalogtest.Bundle }

func setup(t *testing.T) bundle {
	t.Helper()
	return bundle{catalogtest.Setup(t)}
}

// replica opens the catalog of the database dsn as another process would.
func replica(t *testing.T, dsn string) bundle {
	t.Helper()
	return bundle{catalogtest.Replica(t, dsn)}
}

// paused is a review that the test runs one SQL statement at a time.
type paused struct {
	at   chan string   // the statement that is about to be sent
	next chan struct{} // lets it be sent
	done chan struct{}
	pid  uint32 // of the review's PostgreSQL backend; 0 until its first statement
	held bool   // the method paused.to has stopped it before a statement
	sent sequence
	out  gc.Review
	err  error
}

// pausing starts a review and stops it before its first statement. `settings` are names and
// values of PostgreSQL settings for the review's connection, in addition to its lock
// timeout.
func (b bundle) pausing(t *testing.T, o gc.ReviewOptions, settings ...string) *paused {
	t.Helper()
	if o.Limit == 0 {
		o.Limit = 1000
	}
	return b.pausingAt(t, func(ctx context.Context, c *gc.Collector) (gc.Review, error) { return c.Review(ctx, o) }, settings...)
}

// pausingAt is like pausing, but calls the function `review` instead of Collector.Review.
func (b bundle) pausingAt(t *testing.T, review func(context.Context, *gc.Collector) (gc.Review, error), settings ...string) *paused {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	p := &paused{at: make(chan string), next: make(chan struct{}), done: make(chan struct{})}
	cfg := b.DB.Pool.Config()
	cfg.MaxConns, cfg.MinIdleConns = 1, 0
	cfg.ConnConfig.Tracer = p
	// The pool configures each new connection before the following code does, so these
	// settings override the pool's.
	settings = append([]string{"lock_timeout", "200", "purser.replica", ""}, settings...)
	configure := cfg.ConnConfig.AfterConnect
	cfg.ConnConfig.AfterConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		if err := configure(ctx, conn); err != nil {
			return err
		}
		for i := 0; i < len(settings); i += 2 {
			if r := conn.ExecParams(ctx, "SELECT set_config($1, $2, false)",
				[][]byte{[]byte(settings[i]), []byte(settings[i+1])}, nil, nil, nil).Read(); r.Err != nil {
				return r.Err
			}
		}
		return nil
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	c := gc.New(gc.Options{Catalog: b.Catalog, DB: b.DB, Reviews: &db.DB{Pool: db.PoolOver(pool)}, Untagged: untagged})
	go func() {
		p.out, p.err = review(ctx, c)
		close(p.done)
	}()
	t.Cleanup(func() {
		cancel()
		<-p.done
		pool.Close()
	})
	return p
}

// TraceQueryStart stops the review before each statement, until the test continues it.
func (p *paused) TraceQueryStart(ctx context.Context, conn *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	p.pid = conn.PgConn().PID()
	select {
	case p.at <- q.SQL:
		select {
		case <-p.next:
		case <-ctx.Done():
		}
	case <-ctx.Done():
	}
	return ctx
}

// TraceQueryEnd does nothing.
func (p *paused) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// The method `to` lets the review continue until it is about to send a statement that
// matches `pattern`. If the review is stopped before such a statement now, that statement
// doesn't count.
func (p *paused) to(t *testing.T, pattern string) {
	t.Helper()
	match := regexp.MustCompile("(?s)" + pattern)
	if p.held {
		p.held = false
		p.next <- struct{}{}
	}
	late := time.After(2 * time.Minute)
	for {
		select {
		case sql := <-p.at:
			p.sent.next(sql)
			if match.MatchString(sql) {
				p.held = true
				p.sent.stopped()
				return
			}
			p.next <- struct{}{}
		case <-p.done:
			t.Fatalf("the review ended before a statement like %s: %+v, %v", pattern, p.out, p.err)
		case <-late:
			t.Fatalf("the review is stuck before a statement like %s", pattern)
		}
	}
}

// finish lets the review run to its end and returns its result.
func (p *paused) finish(t *testing.T) (gc.Review, error) {
	t.Helper()
	if p.held {
		p.held = false
		p.next <- struct{}{}
	}
	late := time.After(2 * time.Minute)
	for {
		select {
		case sql := <-p.at:
			p.sent.next(sql)
			p.next <- struct{}{}
		case <-p.done:
			return p.out, p.err
		case <-late:
			t.Fatal("the review doesn't end")
		}
	}
}

// ended is like finish, but fails the test if the review fails.
func (p *paused) ended(t *testing.T) gc.Review {
	t.Helper()
	out, err := p.finish(t)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// blocks waits until n other database sessions wait for locks of the review.
func (p *paused) blocks(t *testing.T, watch catalogtest.Session, n int) {
	t.Helper()
	catalogtest.Session{PID: p.pid}.Blocks(t, watch, n)
}

// These patterns match the statements before which tests stop reviews.
const (
	beforeBlobLook   = `gc_blobs_layers`
	beforeBlobLock   = `FROM blobs.*FOR UPDATE`
	beforeBlobDelete = `DELETE FROM blobs`
	beforeLinkLock   = `FROM repository_blobs.*FOR UPDATE`
	beforeLinkDelete = `DELETE FROM repository_blobs`
	beforeBlobSettle = `(UPDATE|DELETE FROM) gc_blob_review_queue`
	beforeLook       = `manifest_references`
	beforeLock       = `FROM manifests.*FOR UPDATE`
	beforeDelete     = `DELETE FROM manifests`
	beforeSettle     = `(UPDATE|DELETE FROM) gc_manifest_review_queue`
	beforeCommit     = `^commit$`
)

const (
	reviewingBlobs     = gc.ReviewOfBlobs
	reviewingManifests = gc.ReviewOfManifests
)

func ofBlobs() gc.ReviewOptions     { return gc.ReviewOptions{Kind: reviewingBlobs} }
func ofManifests() gc.ReviewOptions { return gc.ReviewOptions{Kind: reviewingManifests} }

// failure returns err as a ReviewError. It fails the test if err is of another type.
func failure(t *testing.T, err error) *gc.ReviewError {
	t.Helper()
	failed, ok := errors.AsType[*gc.ReviewError](err)
	if !ok {
		t.Fatalf("the review ended with %v; want it to fail", err)
	}
	return failed
}

// contended returns err as a ReviewError. It fails the test unless the review was rolled
// back because it didn't get a lock.
func contended(t *testing.T, err error) *gc.ReviewError {
	t.Helper()
	failed := failure(t, err)
	if !failed.Contended() {
		t.Fatalf("the review ended with %v; want it to give way", err)
	}
	return failed
}

// queued returns the event in the review queue's row for the manifest or blob with the
// digest d, "" if there is no row.
func (b bundle) queued(t *testing.T, d oci.Digest) string {
	t.Helper()
	var s string
	if err := b.DB.Pool.QueryRow(t.Context(), `
		SELECT COALESCE(string_agg(event, ' '), '') FROM (
			SELECT event FROM gc_blob_review_queue WHERE digest = $1
			UNION ALL
			SELECT q.event FROM gc_manifest_review_queue q JOIN manifests m ON m.id = q.manifest_id WHERE m.digest = $1) x`,
		d.Bytes()).Scan(&s); err != nil {
		t.Fatal(err)
	}
	return s
}

// putOff checks that the table `queue` has the given number of rows that are postponed by
// about 5 s and have no failure counted. A review postpones a row by this time if another
// transaction has locked the manifest or blob.
func (b bundle) putOff(t *testing.T, queue string, rows int) {
	t.Helper()
	if n := b.Count(t, "SELECT count(*) FROM "+queue+` WHERE review_count = 0
			AND review_after > now() + interval '1 s' AND review_after <= now() + interval '5 s'`); n != rows {
		t.Errorf("%d rows of %s are put off by 5 s, want %d", n, queue, rows)
	}
}

// forgotten checks that gc_blob_review_queue has exactly one row, and that the next review
// drops it because its blob doesn't exist.
func (b bundle) forgotten(t *testing.T) {
	t.Helper()
	b.DueNow(t)
	if out := b.ReviewBatch(t, gc.ReviewOfBlobs); out.Claimed != 1 || out.Gone != 1 {
		t.Errorf("a review of a promise without its blob: %+v", out)
	}
}
