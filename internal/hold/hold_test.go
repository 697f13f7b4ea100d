package hold_test

import (
	"context"
	"encoding/binary"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/hold"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/testscale"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

// bundle has holds on a database that only this test uses. It has the namespaces acme and other.
type bundle struct {
	*hold.Holds
	d       *db.DB
	metrics *prometheus.Registry

	mu      sync.Mutex
	notices []string
}

func setup(t *testing.T, change ...func(*hold.Options)) *bundle {
	t.Helper()
	b := &bundle{d: dbtest.New(t), metrics: prometheus.NewRegistry()}
	o := hold.Options{DB: b.d, Metrics: b.metrics, Patience: 10 * time.Second,
		Notify: func(_ context.Context, _ db.Querier, event string, data any) error {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.notices = append(b.notices, event+" "+data.(hold.Notice).Reporter)
			return nil
		}}
	for _, f := range change {
		f(&o)
	}
	var err error
	if b.Holds, err = hold.New(o); err != nil {
		t.Fatal(err)
	}
	b.exec(t, "INSERT INTO top_level_namespaces (name) VALUES ('acme'), ('other')")
	return b
}

func (b *bundle) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	if _, err := b.d.Pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

func (b *bundle) number(t *testing.T, sql string, args ...any) (n int64) {
	t.Helper()
	if err := b.d.Pool.QueryRow(t.Context(), sql, args...).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

var acme = hold.Place{Namespace: "acme", Reporter: "prod"}

func digest(n int) oci.Digest {
	return oci.Compute(oci.SHA256, binary.BigEndian.AppendUint64(nil, uint64(n)))
}

// items returns the digests with the numbers from first up to, but without, last.
func items(first, last int, usedBy string) (list []hold.Item) {
	for i := first; i < last; i++ {
		list = append(list, hold.Item{Digest: digest(i), UsedBy: usedBy})
	}
	return list
}

// report sends a report, which may end holds unless it says by whom it is.
func (b *bundle) report(t *testing.T, p hold.Place, r hold.Report) hold.Reported {
	t.Helper()
	if r.By == (hold.By{}) {
		r.By.MayEnd = true
	}
	done, err := b.Report(t.Context(), p, r)
	if err != nil {
		t.Fatal(err)
	}
	return done
}

// TestReports: a whole list and differences change what a reporter holds, and only changes raise
// the revision.
func TestReports(t *testing.T) {
	t.Parallel()
	b := setup(t)
	base := func(n int64) *int64 { return &n }
	for _, step := range []struct {
		report                                    hold.Report
		revision, digests, added, removed, ending int64
	}{
		{hold.Report{Full: true, Items: items(0, 10, "a")}, 1, 10, 10, 0, 0},
		{hold.Report{Full: true, Items: items(0, 10, "a")}, 1, 10, 0, 0, 0},
		{hold.Report{Full: true, Items: items(0, 10, "b")}, 2, 10, 0, 0, 0},
		{hold.Report{Full: true, Items: append(items(5, 12, "b"), items(5, 6, "c")...)}, 3, 7, 2, 0, 5},
		{hold.Report{Base: base(3), Items: items(0, 2, ""), Remove: []oci.Digest{digest(11), digest(99)}}, 4, 8, 2, 1, 3},
		{hold.Report{Items: items(0, 1, ""), Remove: []oci.Digest{digest(0)}}, 4, 8, 0, 0, 3}, // who adds it holds it
		{hold.Report{Remove: []oci.Digest{digest(2), digest(3), digest(4)}}, 5, 8, 0, 3, 0},
		{hold.Report{}, 5, 8, 0, 0, 0},
		{hold.Report{Full: true, AllowEmpty: true}, 6, 0, 0, 0, 8},
	} {
		got := b.report(t, acme, step.report)
		if got.Revision != step.revision || got.Digests != step.digests || got.Added != step.added || got.Removed != step.removed || got.Ending != step.ending {
			t.Errorf("report %+v: got %+v", step, got)
		}
		if n := b.number(t, "SELECT count(*) FROM holds"); n != step.digests+step.ending {
			t.Errorf("%d holds are stored, want %d", n, step.digests+step.ending)
		}
	}
	if _, err := b.Report(t.Context(), acme, hold.Report{Base: base(4), By: hold.By{MayEnd: true}}); oci.CodeOf(err) != oci.Unsupported {
		t.Errorf("a difference to another revision: %v", err)
	}
	if n := b.number(t, "SELECT count(*) FROM auditlog WHERE kind = 'report_holds'"); n != 6 {
		t.Errorf("%d reports are in the audit log, want those 6 that changed something", n)
	}
}

// TestInvalidReports: nothing of an invalid report is stored.
func TestInvalidReports(t *testing.T) {
	t.Parallel()
	b := setup(t, func(o *hold.Options) { o.MaxDigests = 5 })
	for name, c := range map[string]struct {
		place  hold.Place
		report hold.Report
	}{
		"name":      {hold.Place{Namespace: "acme", Reporter: "-x"}, hold.Report{}},
		"namespace": {hold.Place{Namespace: "none", Reporter: "x"}, hold.Report{}},
		"short":     {acme, hold.Report{Lease: time.Second}},
		"long":      {acme, hold.Report{Lease: 31 * 24 * time.Hour}},
		"many":      {acme, hold.Report{Full: true, Items: items(0, 6, "")}},
		"digest":    {acme, hold.Report{Full: true, Items: []hold.Item{{}}}},
	} {
		if _, err := b.Report(t.Context(), c.place, c.report); oci.CodeOf(err) == "" {
			t.Errorf("%s: %v, want an error for the client", name, err)
		}
	}
	b.report(t, acme, hold.Report{Items: items(0, 4, "")})
	if _, err := b.Report(t.Context(), acme, hold.Report{Items: items(4, 7, ""), By: hold.By{MayEnd: true}}); oci.CodeOf(err) == "" {
		t.Errorf("a difference above the limit: %v", err)
	}
	if n := b.number(t, "SELECT count(*) FROM holds"); n != 4 {
		t.Errorf("%d holds, want 4", n)
	}
}

// TestPlaces: reporters of the same name in two namespaces and in the registry are different, and
// holds are in force where the reporter reports.
func TestPlaces(t *testing.T) {
	t.Parallel()
	b := setup(t)
	other, all := hold.Place{Namespace: "other", Reporter: "prod"}, hold.Place{Reporter: "prod"}
	b.report(t, acme, hold.Report{Full: true, Items: items(0, 1, "a")})
	b.report(t, other, hold.Report{Full: true, Items: items(1, 2, "b")})
	b.report(t, all, hold.Report{Full: true, Items: items(2, 3, "c")})
	for i, want := range map[int][2]int{0: {1, 0}, 1: {0, 1}, 2: {1, 1}} {
		for k, namespace := range []string{"acme", "other"} {
			if list, err := b.OfDigest(t.Context(), namespace, digest(i)); err != nil || len(list) != want[k] {
				t.Errorf("digest %d in %s: %v %v, want %d", i, namespace, list, err, want[k])
			}
		}
	}
	if list, _, err := b.List(t.Context(), "acme", "", 0); err != nil || len(list) != 1 || list[0].State != hold.Live || list[0].Namespace != "acme" {
		t.Errorf("%+v %v", list, err)
	}
	b.exec(t, "DELETE FROM top_level_namespaces WHERE name = 'acme'")
	if n := b.number(t, "SELECT count(*) FROM live_holds"); n != 2 {
		t.Errorf("%d live holds after a namespace was deleted, want 2", n)
	}
	if err := b.Delete(t.Context(), all); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Get(t.Context(), all); oci.CodeOf(err) != oci.NameUnknown {
		t.Errorf("a deleted reporter: %v", err)
	}
	for range 3 {
		if _, err := b.Watch(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if n := b.number(t, "SELECT count(*) FROM holds"); n != 1 {
		t.Errorf("%d holds are left after the clean-up, want 1", n)
	}
}

// TestSilence: a silent reporter is told of once, and again when its holds have ended; a report
// ends the silence.
func TestSilence(t *testing.T) {
	t.Parallel()
	b := setup(t)
	watch := func(want ...string) {
		t.Helper()
		for range 2 {
			if _, err := b.Watch(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		if len(b.notices) != len(want) || len(want) > 0 && b.notices[0] != want[0] {
			t.Errorf("notices %q, want %q", b.notices, want)
		}
		b.notices = nil
	}
	age := func(text string) {
		b.exec(t, "UPDATE holdreporters SET reported_at = reported_at - $1::interval, expires_at = expires_at - $1::interval", text)
	}
	b.report(t, acme, hold.Report{Full: true, Items: items(0, 3, ""), Lease: time.Hour})
	watch()
	age("31 minutes")
	watch("hold.reporter_silent prod")
	b.report(t, acme, hold.Report{})
	watch()
	age("31 minutes")
	watch("hold.reporter_silent prod")
	age("30 minutes")
	if list, err := b.OfDigest(t.Context(), "acme", digest(0)); err != nil || len(list) != 0 {
		t.Errorf("after the end of the lease: %v %v", list, err)
	}
	watch("hold.reporter_ended prod")
	if n := b.number(t, "SELECT count(*) FROM auditlog WHERE kind IN ('hold_reporter_silent', 'hold_reporter_ended')"); n != 3 {
		t.Errorf("%d entries of the audit log, want 3", n)
	}
	b.report(t, acme, hold.Report{})
	if list, err := b.OfDigest(t.Context(), "acme", digest(0)); err != nil || len(list) != 1 {
		t.Errorf("after a renewal: %v %v", list, err)
	}
	age("31 days")
	watch("hold.reporter_ended prod")
	if n := b.number(t, "SELECT count(*) FROM holdreporters"); n != 0 {
		t.Error("a reporter that ended 30 days ago is still there")
	}
}

// TestGaugesWithoutDatabase: nobody knows how the reporters are, and the metrics don't show how they
// were. An hour of the database's silence, which ends the batch's context, is no other case.
func TestGaugesWithoutDatabase(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.report(t, acme, hold.Report{Full: true, Items: items(0, 3, ""), Unresolved: []hold.Unresolved{{Name: "r.example/acme/a:v1"}, {Name: "r.example/acme/b:v1"}}})
	values := func() map[string]float64 {
		families, err := b.metrics.Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]float64{}
		for _, f := range families {
			for _, m := range f.Metric {
				if m.Gauge != nil {
					name := f.GetName()
					for _, l := range m.Label {
						name += " " + l.GetValue()
					}
					got[name] = m.GetGauge().GetValue()
				}
			}
		}
		return got
	}
	late, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	for name, fail := range map[string]func() context.Context{
		"a batch that takes too long": func() context.Context { return late },
		"a database that is gone": func() context.Context {
			b.exec(t, "ALTER TABLE holdreporters RENAME TO away")
			return t.Context()
		},
	} {
		if _, err := b.Watch(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := values(); got["purser_hold_reporters live"] != 1 || got["purser_held_digests"] != 3 || got["purser_hold_seconds_left acme prod"] <= 0 ||
			got["purser_hold_unresolved_images"] != 2 {
			t.Fatalf("the metrics are %v", got)
		}
		if _, err := b.Watch(fail()); err == nil {
			t.Errorf("%s: the watcher succeeds", name)
		}
		for metric, value := range values() {
			if !math.IsNaN(value) {
				t.Errorf("%s: %s is still %v", name, metric, value)
			}
		}
		b.exec(t, "ALTER TABLE IF EXISTS away RENAME TO holdreporters")
	}
	// The next whole list lacks one, and then the reporter's holds end.
	b.report(t, acme, hold.Report{Full: true, Items: items(0, 3, ""), Unresolved: []hold.Unresolved{{Name: "r.example/acme/b:v1"}}})
	for _, want := range []float64{1, 0} {
		if _, err := b.Watch(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := values(); got["purser_hold_unresolved_images"] != want {
			t.Errorf("the metrics are %v, want %v unresolved images", got, want)
		}
		b.exec(t, "UPDATE holdreporters SET reported_at = reported_at - 2 * lease, expires_at = expires_at - 2 * lease")
	}
}

// TestManyDigests: a report of 100,000 digests, a renewal and pages of them.
func TestManyDigests(t *testing.T) {
	t.Parallel()
	b := setup(t)
	n := testscale.Pick(20_000, 100_000)
	list := items(0, n, "pod shop/web-1234567890")
	all := int64(n)
	for i, want := range []int64{all, 0} {
		began := time.Now()
		if got := b.report(t, acme, hold.Report{Full: true, Items: list}); got.Added != want || got.Digests != all || got.Missing == nil || *got.Missing != all {
			t.Errorf("%+v", got)
		}
		t.Logf("report %d took %s", i+1, time.Since(began))
	}
	seen := 0
	var after oci.Digest
	for pages := 0; pages < n/hold.MaxPage+1; pages++ {
		page, next, err := b.Digests(t.Context(), acme, after, hold.MaxPage)
		if err != nil {
			t.Fatal(err)
		}
		seen += len(page)
		if after = next; next.IsZero() {
			break
		}
	}
	if seen != n {
		t.Errorf("%d digests are listed, want %d", seen, n)
	}
}
