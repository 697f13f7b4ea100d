package autoprune_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/autoprune/autoprunetest"
	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/judge"
)

// TestObserve: a policy that observes must delete nothing, and its runs must say what would be
// deleted. Equal runs share a row, and the audit log has one entry for each change. When the
// policy is switched on, it deletes exactly these tags.
func TestObserve(t *testing.T) {
	t.Parallel()
	r := setup(t)
	web := r.Repository("app/web")
	for i := range 5 {
		r.Tag(web, fmt.Sprint("v", i), fmt.Sprint("m", i), time.Duration(10-i)*time.Hour)
	}
	target := policies.Target{Namespace: "app"}
	id := r.policy(target, `{"method": "number_of_tags", "numTags": 3, "mode": "observe"}`)
	observed := func() []string {
		t.Helper()
		runs, _, err := r.pruner.Runs(t.Context(), "app", "", 10)
		r.Must(err)
		details, err := r.pruner.GetRun(t.Context(), runs[0].ID)
		r.Must(err)
		var names []string
		for _, one := range details.Observed {
			names = append(names, one.Tag)
			if one.Repository != "app/web" || one.Policy != id || one.Code != judge.BeyondNewest || one.Reason != "not among the newest 3" {
				t.Errorf("the run says %+v", one)
			}
		}
		if details.Would != int64(len(names)) || details.Deleted != 0 {
			t.Errorf("the run deleted %d tags and would have deleted %d", details.Deleted, details.Would)
		}
		return names
	}
	entries := func() int {
		return autoprunetest.Value[int](r.Registry, "SELECT count(*) FROM auditlog WHERE kind = $1 AND namespace = 'app' AND run IS NOT NULL", string(audit.ObserveAutoprune))
	}
	r.run()
	r.run()
	if got := observed(); !slices.Equal(got, []string{"v0", "v1"}) || len(r.Tags(web)) != 5 || entries() != 1 {
		t.Fatalf("%v would be deleted, %v are there, %d entries", got, r.Tags(web), entries())
	}
	if n := autoprunetest.Value[int](r.Registry, "SELECT count(*) FROM autopruneruns"); n != 1 {
		t.Errorf("two equal runs have %d rows", n)
	}
	if status := autoprunetest.Value[string](r.Registry, "SELECT status FROM autoprunetaskstatus"); !strings.HasSuffix(status, "; 2 tags would be deleted") {
		t.Errorf("the state is %q", status)
	}
	r.Tag(web, "v9", "m9", 0)
	r.run()
	if got := observed(); !slices.Equal(got, []string{"v0", "v1", "v2"}) || entries() != 2 {
		t.Fatalf("%v would be deleted, %d entries", got, entries())
	}
	p := autoprunetest.Parsed(t, `{"method": "number_of_tags", "numTags": 3}`)
	r.Must(r.pruner.Policies.Update(t.Context(), target, id, p))
	r.run()
	if got := r.Tags(web); !slices.Equal(got, []string{"v3", "v4", "v9"}) {
		t.Errorf("when the policy is on, %v stay", got)
	}
	if entries() != 2 {
		t.Errorf("there are %d entries", entries())
	}
}

// TestObservedPreviewSaysWhyTagsStay: while policies observe, the preview gives the reasons that keep tags
// when the policies are on, and doesn't say of tags that they stay because the policies are off.
func TestObservedPreviewSaysWhyTagsStay(t *testing.T) {
	t.Parallel()
	r := setup(t)
	web := r.Repository("app/web")
	for i := range 5 {
		r.Tag(web, fmt.Sprint("v", i), fmt.Sprint("m", i), time.Duration(10-i)*time.Hour)
	}
	r.Tag(web, "prod", "prod", time.Hour)
	target := policies.Target{Namespace: "app"}
	r.policy(target, `{"method": "number_of_tags", "numTags": 3, "tagPattern": "^v", "mode": "observe"}`)
	p, err := r.pruner.Preview(t.Context(), target, autoprune.PreviewOptions{Limit: 10})
	r.Must(err)
	want := map[judge.Code]int64{judge.Observed: 2, judge.AmongNewest: 3, judge.NotMatched: 1}
	if p.Deleted != 0 || p.WouldDelete != 2 || !maps.Equal(p.Reasons, want) {
		t.Errorf("%d tags go, %d would, by the reasons %v, want %v", p.Deleted, p.WouldDelete, p.Reasons, want)
	}
	for _, tag := range p.Staying {
		if tag.Tag == "v4" && (tag.Code != judge.AmongNewest || tag.Reason != `among the newest 3 that match "^v"`) {
			t.Errorf("v4 stays: %s, %q", tag.Code, tag.Reason)
		}
	}
}

// TestObserveInSlices: a run in several time slices must count each tag that would be deleted
// once.
func TestObserveInSlices(t *testing.T) {
	t.Parallel()
	r := setup(t, func(o *autoprune.Options) { o.Turn = time.Nanosecond })
	for i := range 4 {
		web := r.Repository(fmt.Sprint("app/web", i))
		r.Tag(web, "old", "m", 10*time.Hour)
		r.Tag(web, "young", "m", 0)
	}
	r.policy(policies.Target{Namespace: "app"}, `{"method": "creation_date", "olderThan": "1h", "mode": "observe"}`)
	r.run()
	runs, _, err := r.pruner.Runs(t.Context(), "app", "", 10)
	r.Must(err)
	details, err := r.pruner.GetRun(t.Context(), runs[0].ID)
	r.Must(err)
	if len(runs) != 1 || runs[0].Would != 4 || len(details.Observed) != 4 {
		t.Errorf("the runs %+v would have deleted %v", runs, details.Observed)
	}
}

// TestWindowClosesDuringRun: when a window closes between the judgement of tags and their
// deletion, nothing must be deleted. The database's clock is made to run ahead of its
// snapshots.
func TestWindowClosesDuringRun(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.Exec(`CREATE SCHEMA fake`)
	r.Exec(`CREATE TABLE fake.shift AS SELECT '0'::interval AS ahead`)
	r.Exec(`CREATE FUNCTION fake.clock_timestamp() RETURNS timestamptz LANGUAGE sql
		AS 'SELECT pg_catalog.clock_timestamp() + ahead FROM fake.shift'`)
	r.DSN += "&search_path=fake,public,pg_catalog"
	_, pruner := r.replica()
	web := r.Repository("app/web")
	r.Tag(web, "old", "m", 10*time.Hour)
	now := time.Now().UTC()
	r.policy(policies.Target{Namespace: "app"}, fmt.Sprintf(`{"method": "creation_date", "olderThan": "1h", "windows": [{"from": %q, "to": %q}]}`,
		now.Add(-2*time.Hour).Format("15:04"), now.Add(2*time.Hour).Format("15:04")))
	r.Exec("UPDATE fake.shift SET ahead = '3h'")
	for range 3 {
		_, err := pruner.Work(t.Context())
		r.Must(err)
	}
	if got := r.Tags(web); len(got) != 1 {
		t.Fatal("the tag was deleted outside the window")
	}
	if autoprunetest.Value[int](r.Registry, "SELECT count(*) FROM autopruneruns WHERE state = 'running'") != 1 {
		t.Error("no run was begun")
	}
	r.Exec("UPDATE fake.shift SET ahead = '0'")
	r.Exec("UPDATE autoprunetaskstatus SET leased_until = NULL")
	_, err := pruner.Work(t.Context())
	r.Must(err)
	if got := r.Tags(web); len(got) != 0 {
		t.Error("the tag wasn't deleted in the window")
	}
}
