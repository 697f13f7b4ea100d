package gc_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/builtinpg/pgtest"
	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/gc"
	"github.com/purser-registry/purser/internal/hold"
	"github.com/purser-registry/purser/internal/oci"
)

// report lets the reporter prod of the whole registry hold these digests, and no others.
func (b bundle) report(t *testing.T, digests ...oci.Digest) error {
	t.Helper()
	h, err := hold.New(hold.Options{DB: b.DB})
	if err != nil {
		t.Fatal(err)
	}
	r := hold.Report{Full: true, Kind: "kubernetes", By: hold.By{MayEnd: true}}
	for _, d := range digests {
		r.Items = append(r.Items, hold.Item{Digest: d, UsedBy: "pod web"})
	}
	place := hold.Place{Reporter: "prod"}
	// A digest that a list leaves out stays held for a while, so the reporter begins anew.
	if err := h.Delete(context.WithoutCancel(t.Context()), place); err != nil && oci.CodeOf(err) != oci.NameUnknown {
		return err
	}
	_, err = h.Report(context.WithoutCancel(t.Context()), place, r)
	return err
}

func (b bundle) held(t *testing.T, digests ...oci.Digest) {
	t.Helper()
	if err := b.report(t, digests...); err != nil {
		t.Fatal(err)
	}
}

// TestHeldManifestStays: a held manifest without a tag stays, with its relatives, and its review
// comes again. When nobody holds it any more, it goes.
func TestHeldManifestStays(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.AtOnce(t)
	config := b.Push(t, "r", "config")
	lone := b.Put(t, "r", catalogtest.Numbered(t, 1, config))
	child := b.Put(t, "r", catalogtest.Numbered(t, 2, config))
	sibling := b.Put(t, "r", catalogtest.Numbered(t, 3, config))
	index := b.Put(t, "r", catalogtest.Index(t, child, sibling))
	referrer := b.Put(t, "r", catalogtest.SubjectOf(t, config, index))
	free := b.Put(t, "r", catalogtest.Numbered(t, 4, config))
	orphan := b.Put(t, "r", catalogtest.SubjectOf(t, config, absent))
	b.held(t, lone, child, absent)
	b.DueNow(t)
	for range 5 {
		b.ReviewBatch(t, reviewingManifests)
	}
	for d, want := range map[oci.Digest]bool{lone: true, child: true, sibling: true, index: true, referrer: true, orphan: true, free: false} {
		if _, err := b.ExplainManifest(t.Context(), "r", d); err == nil != want {
			t.Errorf("manifest %s: %v, want it there: %v", d, err, want)
		}
	}
	e, err := b.ExplainManifest(t.Context(), "r", index)
	if err != nil || e.Fate != "kept" || len(e.HeldBy) != 1 || e.HeldBy[0].Reporter != "prod" || e.HeldBy[0].Digest != child {
		t.Errorf("%+v %v", e, err)
	}
	if e.Review == nil || e.Review.ReviewAfter.Before(e.AsOf.Add(4*time.Minute)) || e.Review.ReviewAfter.After(e.AsOf.Add(25*time.Hour)) || e.Review.ReviewCount != 0 {
		t.Errorf("the review: %+v", e.Review)
	}
	b.held(t)
	b.DueNow(t)
	for range 5 {
		b.DueNow(t)
		b.ReviewBatch(t, reviewingManifests)
	}
	if n := b.Rows(t, "manifests"); n != 0 {
		t.Errorf("%d manifests are left after the hold", n)
	}
}

var absent = oci.Compute(oci.SHA256, []byte("absent"))

// TestHeldCycleStays: manifests that keep each other in a cycle are garbage, unless one of them is
// held.
func TestHeldCycleStays(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.AtOnce(t)
	config := b.Push(t, "r", "config")
	b.held(t, oci.Compute(oci.SHA256, nested(t, b, config, 2)[0]))
	n := b.Rows(t, "manifests")
	for range 5 {
		b.DueNow(t)
		b.ReviewBatch(t, reviewingManifests)
	}
	if now := b.Rows(t, "manifests"); now != n || n < 2 {
		t.Errorf("%d of %d manifests are left", now, n)
	}
	b.held(t)
	for range 8 {
		b.DueNow(t)
		b.ReviewBatch(t, reviewingManifests)
	}
	b.Empty(t, "manifests")
}

// A review has looked for holds and is about to delete a manifest. Then a reporter reports it. The
// report must wait for the review, and its answer must count the manifest as missing. The test
// fails if reviews don't take the lock of deletions: the report would be acknowledged, and the
// manifest go nevertheless.
func TestRaceReportDuringReview(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.AtOnce(t)
	watch := b.Session(t)
	config := b.Push(t, "r", "config")
	for i, stops := range [][]string{{`purser_held`}, {beforeLock}, {`purser_held`, `purser_held`}, {beforeDelete}, {beforeCommit}} {
		d := b.Put(t, "r", catalogtest.Numbered(t, i, config))
		b.held(t, absent) // reviews look for holds only if there are any
		b.DueNow(t)
		p := b.pausing(t, ofManifests())
		for _, stop := range stops {
			p.to(t, stop)
		}
		done := catalogtest.Later(func() error { return b.report(t, d) })
		p.blocks(t, watch, 1)
		if out := p.ended(t); out.Deleted != 1 {
			t.Errorf("stopped at %v: %+v", stops, out)
		}
		if err := catalogtest.Soon(t, "report", done); err != nil {
			t.Error(err)
		}
		b.held(t)
	}
}

// A review keeps a manifest that is held, and is about to postpone its row, or has just done so.
// Then the reporter drops the manifest. The report must wait, and the row must stay in the queue,
// so that a later review deletes the manifest.
func TestRaceDropWhilePostponed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.AtOnce(t)
	watch := b.Session(t)
	config := b.Push(t, "r", "config")
	for i, more := range [][]string{nil, {"."}} { // "." is the statement after that
		d := b.Put(t, "r", catalogtest.Numbered(t, i, config))
		b.held(t, d)
		b.DueNow(t)
		p := b.pausing(t, ofManifests())
		for _, stop := range append([]string{`GREATEST\(q.review_after, now\(\) \+ interval '5 minutes'`}, more...) {
			p.to(t, stop)
		}
		done := catalogtest.Later(func() error { return b.report(t) })
		p.blocks(t, watch, 1)
		if out := p.ended(t); out.Kept != 1 || out.Deleted != 0 {
			t.Errorf("%+v", out)
		}
		if err := catalogtest.Soon(t, "report", done); err != nil {
			t.Error(err)
		}
		b.DueNow(t)
		if out := b.ReviewBatch(t, reviewingManifests); out.Deleted != 1 {
			t.Errorf("afterwards: %+v", out)
		}
	}
}

// A report is committed before a review takes the lock of deletions. The review must see it.
func TestRaceReportBeforeReview(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.AtOnce(t)
	config := b.Push(t, "r", "config")
	d := b.Put(t, "r", catalogtest.Numbered(t, 1, config))
	b.DueNow(t)
	p := b.pausing(t, ofManifests())
	p.to(t, "^begin")
	b.held(t, d)
	if out := p.ended(t); out.Deleted != 0 || out.Kept != 1 {
		t.Errorf("%+v", out)
	}
	b.DueNow(t)
	if out := b.ReviewBatch(t, gc.ReviewOfManifests); out.Deleted != 0 || out.Kept != 1 {
		t.Errorf("%+v", out)
	}
}

// A deletion is under way, and a report waits for it. So no review can begin: its wait for the lock
// of deletions times out. A run of garbage collection must try again until the report has had the
// lock, and so must a dry run.
func TestCollectDuringReport(t *testing.T) {
	t.Parallel()
	store, err := blob.OpenDir(blob.DirOptions{Path: pgtest.TempDir(t)})
	if err != nil {
		t.Fatal(err)
	}
	b := setup(t)
	b.AtOnce(t)
	b.Put(t, "r", catalogtest.Numbered(t, 1, b.Push(t, "r", "config")))
	deletion, report, watch := b.Session(t), b.Session(t), b.Session(t)
	for _, dry := range []bool{true, false} {
		deletion.Exec(t, "BEGIN")
		deletion.Exec(t, "SELECT pg_advisory_xact_lock_shared(1886745447, 0)")
		reported := catalogtest.Later(func() error {
			_, err := report.Conn.Exec(t.Context(), "SELECT pg_advisory_xact_lock(1886745447, 0)")
			return err
		})
		deletion.Blocks(t, watch, 1)
		var p gc.Progress
		collected := catalogtest.Later(func() (err error) {
			p, err = gc.Collect(t.Context(), gc.CollectOptions{Collector: b.Collector, Store: store, DryRun: dry, Log: slog.New(slog.DiscardHandler)})
			return err
		})
		waits := map[time.Time]bool{} // by the beginnings of their transactions
		catalogtest.Eventually(t, "the run waits for the second time", func() bool {
			var began *time.Time
			if err := watch.QueryRow(t.Context(), `
				SELECT max(a.xact_start) FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
				WHERE l.locktype = 'advisory' AND l.classid = 1886745447 AND l.objid = 0 AND l.mode = 'ShareLock' AND NOT l.granted
					AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())`).Scan(&began); err != nil {
				t.Fatal(err)
			}
			if began != nil {
				waits[*began] = true
			}
			return len(waits) > 1 || len(collected) > 0
		})
		deletion.Exec(t, "COMMIT")
		if err := catalogtest.Soon(t, "report", reported); err != nil {
			t.Error(err)
		}
		if err := catalogtest.Soon(t, "run", collected); err != nil || p.ManifestsDeleted != 1 {
			t.Errorf("dry: %v: %+v, %v", dry, p, err)
		}
	}
	b.Empty(t, "manifests")
}
