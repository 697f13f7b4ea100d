package pullstats

import (
	"context"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/pullstats/statsdb"
)

// slowly returns a recorder and a SyncWorker that reach the statistics by `stats`.
func (s *shop) slowly(t testing.TB, stats *db.DB) (*Recorder, *SyncWorker) {
	t.Helper()
	places := statsdb.Databases{Log: s.log, Stats: stats, Alive: namespaces}
	lastUsed, err := NewLastUsedRecorder(LastUsedOptions{Databases: places, Log: quiet})
	must(t, err)
	return s.recorder(t, nil, func(o *RecorderOptions) { o.LastUsed = lastUsed }), s.worker(t, func(o *SyncOptions) { o.Databases = places })
}

// The statistics' database executes a report that there are no unwritten uses when the process
// may already answer requests without another report. The report must change nothing, and the
// process must report that there may be unwritten uses.
func TestLateReportChangesNothing(t *testing.T) {
	t.Parallel()
	s := open(t, false, 1)
	stats, p := far(t, s.stats)
	rec, _ := s.slowly(t, stats)
	must(t, rec.Open(t.Context()))
	says := func(what string, reports int) {
		t.Helper()
		if n := number(t, s.stats, "SELECT count(*) FROM pullrecorders WHERE ended_at IS NULL AND reports = $1 AND (written_to IS NULL) = $2", reports, what == "quiet"); n != 1 {
			t.Errorf("the row isn't that of report %d, which says %q", reports, what)
		}
	}
	says("open", 1)
	report := func() {
		t.Helper()
		_, err := rec.presence.tick(t.Context())
		must(t, err)
	}
	p.mu.Lock()
	p.delay = quietTimeout + 300*time.Millisecond
	p.mu.Unlock()
	p.on(rec.presence.instance, 1, late)
	report()
	if p.times() != 1 {
		t.Fatalf("%d reports were late, want 1", p.times())
	}
	says("open", 3) // the second came too late
	report()
	says("quiet", 4)
}

// Each statement in the statistics' database takes a while. Settle must wait all the same until
// the uses are where Uses finds them.
func TestSettleOfSlowDatabase(t *testing.T) {
	t.Parallel()
	s := open(t, true, 1)
	stats, p := far(t, s.stats)
	rec, w := s.slowly(t, stats)
	must(t, w.Sync(t.Context()))
	must(t, rec.Open(t.Context()))
	p.lag(100*time.Millisecond, func() {
		stop := running(t, rec)
		defer stop()
		writing(t, rec.opt.Log)
		ctx, cancel := context.WithCancel(t.Context())
		written := make(chan struct{})
		go func() {
			defer close(written)
			rec.opt.LastUsed.Run(ctx) //nolint:errcheck // it returns nil
		}()
		defer func() { cancel(); <-written }()
		rec.Checked(t.Context(), s.client("a", 0, "checked", "x"))
		rec.Pulled(t.Context(), s.client("b", 0, "pulled", "y"))
		must(t, w.Settle(t.Context()))
		uses, err := w.Uses(t.Context(), s.repositories[0], []string{"checked", "pulled"}, nil)
		must(t, err)
		for _, tag := range []string{"checked", "pulled"} {
			if at := uses.Tags[tag]; time.Since(at) > time.Minute {
				t.Errorf("%s was used at %v", tag, at)
			}
		}
	})
	finish(t, rec)
}
