package catalog_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/oci"
)

// stepper stops a call before its round trip to the database with the number `stop`, begin and
// commit included.
type stepper struct {
	stop     int64
	sent     atomic.Int64
	at, next chan struct{}
}

func (s *stepper) step(ctx context.Context) context.Context {
	if s.sent.Add(1) == s.stop {
		close(s.at)
		select {
		case <-s.next:
		case <-ctx.Done():
		}
	}
	return ctx
}

func (s *stepper) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return s.step(ctx)
}

func (s *stepper) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return s.step(ctx)
}

func (*stepper) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData)     {}
func (*stepper) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (*stepper) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}

// interleave runs first(b), stops it before its round trip n, and runs second(b) until that has
// ended or waits for a lock. Then it lets both end. `stopped` is false if first has fewer round
// trips.
func (b bundle) interleave(t *testing.T, n int, first, second func(b bundle) error) (stopped bool, err, err2 error) {
	t.Helper()
	s := &stepper{stop: int64(n), at: make(chan struct{}), next: make(chan struct{})}
	cfg := b.DB.Pool.Config()
	cfg.ConnConfig.Tracer = s
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	d := &db.DB{Pool: db.PoolOver(pool)}
	c := catalog.New(catalog.Options{DB: d, Background: d, CacheOff: true, TrashKeep: time.Hour})
	done := catalogtest.Later(func() error { return first(bundle{catalogtest.Bundle{Catalog: c, Collector: b.Collector, DB: d}}) })
	select {
	case <-s.at:
	case err := <-done:
		return false, err, nil
	}
	done2 := catalogtest.Later(func() error { return second(b) })
	catalogtest.Eventually(t, "the second call ends or waits", func() bool { return len(done2) == 1 || b.Waiting(t) > 0 })
	close(s.next)
	return true, catalogtest.Soon(t, "the first call", done), catalogtest.Soon(t, "the second call", done2)
}

// eachStep calls `test` with rising numbers of round trips, until it returns false.
func eachStep(t *testing.T, test func(t *testing.T, n int) (stopped bool)) {
	t.Helper()
	for n := 1; test(t, n); n++ {
		if n > 50 {
			t.Fatal("the call doesn't end")
		}
	}
}

// TestRestoreAgainstPurge stops a restoration before each of its statements and purges then, and
// the other way round. One of them wins: what is in the trash comes back whole, or is gone.
func TestRestoreAgainstPurge(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"repository", "namespace"} {
		for _, how := range []string{"purge", "expire"} {
			for _, restoreFirst := range []bool{true, false} {
				t.Run(fmt.Sprint(kind, " ", how, " ", restoreFirst), func(t *testing.T) {
					t.Parallel()
					b := withTrash(t, dbtest.DSN(t))
					restored, purged := 0, 0
					eachStep(t, func(t *testing.T, n int) bool {
						ctx, path := t.Context(), fmt.Sprintf("acme%d/app", n)
						b.Fill(t, path)
						id, err := b.RemoveRepository(ctx, path)
						if kind == "namespace" {
							b.Fill(t, path)
							id, err = b.RemoveNamespace(ctx, path[:len(path)-4])
						}
						if err != nil {
							t.Fatal(err)
						}
						b.expire(t)
						restore := func(b bundle) error { _, err := b.RestoreTrashed(ctx, id, ""); return err }
						purge := func(b bundle) error { return b.PurgeTrashed(ctx, id) }
						if how == "expire" {
							purge = func(b bundle) error { _, err := b.PurgeExpired(ctx); return err }
						}
						first, second := restore, purge
						if !restoreFirst {
							first, second = purge, restore
						}
						stopped, err, err2 := b.interleave(t, n, first, second)
						if !stopped {
							return false
						}
						back, gone := err, err2
						if !restoreFirst {
							back, gone = err2, err
						}
						if back == nil {
							restored++
							b.Whole(t, path, "image")
						} else {
							purged++
							catalogtest.WantCode(t, back, oci.NameUnknown)
							_, err := b.ManifestByTag(ctx, path, "image")
							catalogtest.WantCode(t, err, oci.NameUnknown)
						}
						if how == "expire" && gone != nil || how == "purge" && (gone == nil) == (back == nil) || gone != nil && oci.CodeOf(gone) != oci.NameUnknown {
							t.Errorf("step %d: restoration: %v; purge: %v", n, back, gone)
						}
						return true
					})
					if restored == 0 || purged == 0 && restoreFirst {
						t.Errorf("%d restored, %d purged", restored, purged)
					}
				})
			}
		}
	}
}

// TestRestoreAgainstPush stops a restoration before each of its statements, and pushes to the same
// name then, and the other way round. The push succeeds, in the restored repository or in a new
// one. With a new one the restoration is refused, and is possible under another name.
func TestRestoreAgainstPush(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"repository", "namespace"} {
		for _, restoreFirst := range []bool{true, false} {
			t.Run(fmt.Sprint(kind, " ", restoreFirst), func(t *testing.T) {
				t.Parallel()
				b := withTrash(t, dbtest.DSN(t))
				restored, refused := 0, 0
				eachStep(t, func(t *testing.T, n int) bool {
					ctx, namespace := t.Context(), fmt.Sprintf("acme%d", n)
					path := namespace + "/app"
					b.Fill(t, path)
					remove, of, other := b.RemoveRepository, path, namespace+"/other"
					if kind == "namespace" {
						remove, of, other = b.RemoveNamespace, namespace, fmt.Sprintf("other%d", n)
					}
					id, err := remove(ctx, of)
					if err != nil {
						t.Fatal(err)
					}
					restore := func(b bundle) error { _, err := b.RestoreTrashed(ctx, id, ""); return err }
					push := func(b bundle) error { return b.trashPush(t, path, "new") }
					first, second := restore, push
					if !restoreFirst {
						first, second = push, restore
					}
					stopped, err, err2 := b.interleave(t, n, first, second)
					if !stopped {
						return false
					}
					back, pushed := err, err2
					if !restoreFirst {
						back, pushed = err2, err
					}
					if pushed != nil {
						t.Errorf("step %d: push: %v", n, pushed)
					}
					b.Whole(t, path, "new")
					if back == nil {
						restored++
						b.Whole(t, path, "image")
					} else {
						refused++
						catalogtest.WantCode(t, back, oci.Denied)
						if _, err := b.RestoreTrashed(ctx, id, other); err != nil {
							t.Fatal(err)
						}
						if kind == "namespace" {
							other += "/app"
						}
						b.Whole(t, other, "image")
					}
					if live := b.Count(t, "SELECT count(*) FROM live_repositories WHERE path = '"+path+"'"); live != 1 {
						t.Errorf("step %d: %d repositories %s", n, live, path)
					}
					return true
				})
				if restored == 0 || refused == 0 {
					t.Errorf("%d restored, %d refused", restored, refused)
				}
			})
		}
	}
}

// TestLateChangeInTrash: a change below a repository or a namespace in the trash, such as a review
// makes without locking its row, commits after the restoration. Then other replicas must drop what
// they have cached in between, whatever the name is now.
func TestLateChangeInTrash(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"repository", "namespace"} {
		for what, change := range map[string]string{
			"link": "DELETE FROM repository_blobs WHERE blob_digest = $1",
			"blob": "UPDATE blobs SET size = size WHERE digest = $1",
		} {
			t.Run(kind+" "+what, func(t *testing.T) {
				t.Parallel()
				ctx := t.Context()
				b := withTrash(t, dbtest.DSN(t))
				b.Listen(t)
				b.Fill(t, "acme/app")
				unused := b.Push(t, "acme/app", "unused")
				remove, of, as := b.RemoveRepository, "acme/app", "acme/web"
				if kind == "namespace" {
					remove, of, as = b.RemoveNamespace, "acme", "web"
				}
				id, err := remove(ctx, of)
				if err != nil {
					t.Fatal(err)
				}
				review, replica := b.Session(t), b.Session(t)
				review.Exec(t, "BEGIN")
				review.Exec(t, change, unused.Bytes())
				if _, err := b.RestoreTrashed(ctx, id, as); err != nil {
					t.Fatal(err)
				}
				replica.Exec(t, "LISTEN purser_changed")
				review.Exec(t, "COMMIT")
				n, err := replica.Conn.WaitForNotification(ctx)
				if err != nil || n.Payload != "*" {
					t.Errorf("notified %+v, %v", n, err)
				}
			})
		}
	}
}
