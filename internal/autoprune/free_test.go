package autoprune_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/autoprune/autoprunetest"
	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/judge"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/protection"
)

// plan plans to free bytes of what wasn't used for two hours.
func (u *used) plan(namespace string, bytes int64) *autoprune.FreePlan {
	u.T.Helper()
	plan, err := u.pruner.PlanFree(u.T.Context(), namespace, autoprune.FreeOptions{Bytes: bytes, UnusedFor: "2h"})
	u.Must(err)
	return plan
}

// free carries out a plan.
func (u *used) free(plan *autoprune.FreePlan) {
	u.T.Helper()
	request, err := autoprune.ParseFreeRequest(plan.Plan)
	u.Must(err)
	_, err = u.pruner.Free(u.T.Context(), request)
	u.Must(err)
	u.run()
}

// stocked is a registry of three repositories with four images each, which were used one to four
// times three hours ago, and a little later in app/b and other/c.
func stocked(t *testing.T) (u *used, a, b, c catalog.Repository) {
	u = newUsed(t)
	a, b, c = u.Repository("app/a"), u.Repository("app/b"), u.Repository("other/c")
	for i := range 4 {
		age := time.Duration(i+1) * 3 * time.Hour
		u.image(a, fmt.Sprint("a", i), 100, age)
		u.image(b, fmt.Sprint("b", i), 100, age-time.Minute)
		u.image(c, fmt.Sprint("c", i), 100, age-2*time.Minute)
	}
	return u, a, b, c
}

// TestFree: the least recently used tags of the namespace go, as many as are needed, by a run that can
// be undone, and those that were used since the plan stay.
func TestFree(t *testing.T) {
	t.Parallel()
	u, a, b, c := stocked(t)
	plan := u.plan("app", 250)
	if plan.Tags != 3 || plan.Freed != 300 || !plan.Enough || !plan.Complete || len(plan.Repositories) != 2 {
		t.Fatalf("the plan is %+v", plan)
	}
	if got := len(u.Tags(a)) + len(u.Tags(b)); got != 8 {
		t.Fatalf("a plan deleted tags: %d are left", got)
	}
	request, err := autoprune.ParseFreeRequest(plan.Plan)
	u.Must(err)
	u.ages["b3"] = time.Minute // it was used since
	_, err = u.pruner.Free(t.Context(), request)
	u.Must(err)
	if _, err := u.pruner.Free(t.Context(), request); oci.CodeOf(err) != oci.Unsupported {
		t.Errorf("freeing twice at once: %v", err)
	}
	u.run()
	if got := strings.Join(slices.Concat(u.Tags(a), u.Tags(b), u.Tags(c)), " "); got != "a0 a1 b0 b1 b2 b3 c0 c1 c2 c3" {
		t.Errorf("the repositories have %s", got)
	}
	runs, _, err := u.pruner.Runs(t.Context(), "app", "", 0)
	u.Must(err)
	if len(runs) == 0 || runs[0].Deleted != 2 || runs[0].State != "success" {
		t.Fatalf("the runs are %+v", runs)
	}
	if n := autoprunetest.Value[int](u.Registry, "SELECT count(*) FROM auditlog WHERE kind = 'autoprune_tag_delete' AND policy = (SELECT policy FROM auditlog WHERE kind = 'free_space')"); n != 2 {
		t.Errorf("%d entries in the audit log name the request", n)
	}
	u.image(a, "new", 100, 50*time.Hour)
	u.run() // the request is done
	if got := u.Tags(a); !slices.Contains(got, "new") {
		t.Errorf("a later run goes on to free: %v", got)
	}
	undone, err := u.pruner.Undo(t.Context(), runs[0].ID, "", time.Minute)
	u.Must(err)
	if undone.Restored != 2 {
		t.Errorf("the undo is %+v", undone)
	}
	u.Exec("INSERT INTO autopruneruns (id, namespace_id, namespace, state, started_at, deleted) SELECT gen_random_uuid(), id, name, 'success', purser_today()::timestamp AT TIME ZONE 'UTC' - d, 7 FROM top_level_namespaces, unnest(ARRAY['1 microsecond', '1 day 1 microsecond']::interval[]) d")
	days, err := u.pruner.PrunedByDay(t.Context(), autoprunetest.Value[int64](u.Registry, "SELECT id FROM top_level_namespaces WHERE name = 'app'"), 2)
	u.Must(err)
	if len(days) != 2 || days[0].Deleted != 7 || days[1].Deleted != 2 || days[1].Restored != 2 || days[1].Day.Sub(days[0].Day) != 24*time.Hour {
		t.Errorf("in two days these were pruned: %+v", days)
	}
	// A restored tag isn't freed again, until somebody ends that.
	_, another := u.replica()
	_, err = another.Work(t.Context()) // its first housekeeping
	u.Must(err)
	if plan := u.plan("app", 1_000_000); plan.Tags != 6 {
		t.Errorf("after the undo, the plan is %+v", plan)
	}
	list, _, err := u.pruner.Policies.Exemptions(t.Context(), "app/a", policies.ExemptionPlace{}, 10)
	u.Must(err)
	if len(list) != 2 || list[0].Tag != "a2" || list[1].Tag != "a3" || list[0].Policy != "free" {
		t.Errorf("the exemptions are %+v", list)
	}
	if n, err := u.pruner.Policies.EndExemptions(t.Context(), "app/a", "a3"); err != nil || n != 1 {
		t.Errorf("%d exemptions were ended, %v", n, err)
	}
	if plan := u.plan("app", 1_000_000); plan.Tags != 7 {
		t.Errorf("after the end of an exemption, the plan is %+v", plan)
	}
}

// TestFreeRegistry: over the whole registry the order is one, and a blob that all images have is freed
// with the last of them.
func TestFreeRegistry(t *testing.T) {
	t.Parallel()
	u, a, b, c := stocked(t)
	if plan := u.plan("", 1_000_000); plan.Tags != 12 || plan.Freed != 1200+1000 || plan.Enough {
		t.Errorf("the plan of everything is %+v", plan)
	}
	if plan := u.plan("app", 1_000_000); plan.Tags != 8 || plan.Freed != 800 {
		t.Errorf("the plan of a namespace is %+v", plan)
	}
	plan := u.plan("", 400)
	if plan.Tags != 4 || plan.Freed != 400 || len(plan.Repositories) != 3 || !strings.Contains(plan.Unproved, "in 2 namespaces: app, other") {
		t.Fatalf("the plan is %+v", plan)
	}
	short, err := u.pruner.PlanFree(t.Context(), "", autoprune.FreeOptions{Bytes: 400, UnusedFor: "59m"})
	u.Must(err)
	if plan.ShortAge != "" || short.ShortAge != "59m is 59 minutes, and not months: write 1770d for those" {
		t.Errorf("of the ages the plans say %q and %q", plan.ShortAge, short.ShortAge)
	}
	u.free(plan)
	if got := strings.Join(slices.Concat(u.Tags(a), u.Tags(b), u.Tags(c)), " "); got != "a0 a1 b0 b1 b2 c0 c1 c2" {
		t.Errorf("the repositories have %s", got)
	}
}

// TestFreeRespects: what is protected, immutable, kept by a policy, pushed again or in an exception
// stays, when the plan is made and when it is carried out.
func TestFreeRespects(t *testing.T) {
	t.Parallel()
	for _, before := range []bool{true, false} {
		u, a, b, _ := stocked(t)
		respect := func() {
			u.Must(u.Protect(protection.Scope{Namespace: "app"}, "^a3$"))
			u.Must(u.Catalog.SetTagImmutable(t.Context(), "app/a", "a2", true))
			u.policy(policies.Target{Namespace: "app"}, `{"method": "creation_date", "olderThan": "90y", "keep": [{"tagPattern": "^a1$"}]}`)
			u.Tag(a, "a0", "a0", time.Minute)
			u.Must(u.pruner.Policies.Except(t.Context(), "app/b", nil))
		}
		if before {
			respect()
		}
		plan := u.plan("app", 1_000_000)
		if !before {
			respect()
			u.free(plan)
		} else if plan.Tags != 0 || plan.Plan != "" {
			t.Errorf("the plan is %+v", plan)
		}
		if got := len(u.Tags(a)) + len(u.Tags(b)); got != 8 {
			t.Errorf("protected before the plan: %t; %v and %v are left", before, u.Tags(a), u.Tags(b))
		}
	}
}

// TestFreeKeepsUnknown: while it isn't known what was used, nothing is freed.
func TestFreeKeepsUnknown(t *testing.T) {
	t.Parallel()
	for name, pulls := range map[string]judge.PullRecord{
		"no statistics":    {},
		"young statistics": {Since: time.Now().Add(-time.Hour)},
		"late statistics":  {Since: time.Now().Add(-1000 * day), Behind: 2 * time.Hour},
		"not readable":     {Since: time.Now().Add(-1000 * day), Unknown: "they are away"},
	} {
		u, _, _, _ := stocked(t)
		good := u.plan("app", 100)
		u.pulls = pulls
		if plan := u.plan("app", 100); plan.Tags != 0 || len(plan.Notices) == 0 {
			t.Errorf("%s: the plan is %+v", name, plan)
		}
		u.free(good) // the statistics went between the plan and the run
		if n := autoprunetest.Value[int](u.Registry, "SELECT count(*) FROM tags"); n != 12 {
			t.Errorf("%s: %d tags are left", name, n)
		}
	}
}

// TestFreeUnplaced: tags without a use since statistics began go first, in the order of their pushes.
func TestFreeUnplaced(t *testing.T) {
	t.Parallel()
	u, a, _, _ := stocked(t)
	u.pulls.Since = time.Now().Add(-5 * day)
	u.Tag(a, "forgotten", "forgotten", 20*day)
	u.Layer(a, "forgotten", "layer of forgotten", 10)
	u.Tag(a, "lately", "lately", 15*day)
	u.Layer(a, "lately", "layer of lately", 10)
	u.free(u.plan("app", 10))
	if got := u.Tags(a); slices.Contains(got, "forgotten") || !slices.Contains(got, "lately") || len(got) != 5 {
		t.Errorf("the repository has %v", got)
	}
}

// TestFreeBesideHolds: a report that is answered between the plan and the run holds its images.
func TestFreeBesideHolds(t *testing.T) {
	t.Parallel()
	u, a, b, _ := stocked(t)
	plan := u.plan("app", 1_000_000)
	u.Hold("app", "a3", "b0")
	u.free(plan)
	if got := strings.Join(slices.Concat(u.Tags(a), u.Tags(b)), " "); got != "a3 b0" {
		t.Errorf("the repositories have %s", got)
	}
}

// TestFreeWithoutTime: a plan for which there was no time deletes nothing, rather than every tag.
func TestFreeWithoutTime(t *testing.T) {
	t.Parallel()
	if tags, freed, err := autoprune.EnoughWithoutTime(t.Context()); tags != 0 || freed != 0 || err == nil {
		t.Errorf("%d tags, %d bytes, %v", tags, freed, err)
	}
}

// TestFreeWaitsForGrace: a plan takes nothing that a policy kept which was deleted since, as long as the
// grace period lasts.
func TestFreeWaitsForGrace(t *testing.T) {
	t.Parallel()
	u, a, b, _ := stocked(t)
	u.free(u.plan("app", 1_000_000)) // nothing is uncovered: all goes
	if got := len(u.Tags(a)) + len(u.Tags(b)); got != 0 {
		t.Fatalf("%d tags are left", got)
	}
	u, a, b, _ = stocked(t)
	plan := u.plan("app", 1_000_000)
	u.Exec(`INSERT INTO autopruneuncovered (namespace_id, repository_id, until) SELECT id, 0, now() + interval '1 hour' FROM top_level_namespaces WHERE name = 'app'`)
	u.free(plan)
	if got := len(u.Tags(a)) + len(u.Tags(b)); got != 8 {
		t.Errorf("of 8 tags in a grace period %d are left", got)
	}
}

// TestFreeRequiresReporters: a repository with a policy that requires a silent reporter stays whole, when
// the plan is made, when it is carried out, and when the reporter falls silent just before the
// deletion. The others don't.
func TestFreeRequiresReporters(t *testing.T) {
	t.Parallel()
	left := func(u *used, a, b catalog.Repository) string {
		u.T.Helper()
		return fmt.Sprint(len(u.Tags(a)), " ", len(u.Tags(b)))
	}
	require := func(u *used, a catalog.Repository) {
		u.T.Helper()
		u.policy(policies.Target{Repository: "app/a"}, `{"method": "creation_date", "olderThan": "90y", "requireReporter": ["prod-eu"], "mode": "observe"}`)
		u.Reporter(a.NamespaceID, "prod-eu", time.Hour)
	}
	const silent = "UPDATE holdreporters SET reported_at = reported_at - lease"
	u, a, b, _ := stocked(t)
	require(u, a)
	live := u.plan("app", 1_000_000)
	u.Exec(silent)
	plan := u.plan("app", 1_000_000)
	if live.Tags != 8 || live.Unproved != "" || plan.Unproved == "" || plan.Tags != 4 || len(plan.Repositories) != 1 || plan.Repositories[0].Repository != "app/b" ||
		!strings.Contains(strings.Join(plan.Notices, "\n"), "require a reporter: reporter prod-eu has been silent since") {
		t.Errorf("the plans are %+v and %+v", live, plan)
	}
	u.free(live)
	if got := left(u, a, b); got != "4 0" {
		t.Errorf("without the reporter, so many tags are left: %s", got)
	}
	runs, _, err := u.pruner.Runs(t.Context(), "app", "", 0)
	u.Must(err)
	if len(runs) == 0 || !strings.Contains(fmt.Sprint(runs[0]), "it rests without its reporters: reporter prod-eu") {
		t.Errorf("the runs don't say why: %+v", runs)
	}

	u, a, b, _ = stocked(t)
	require(u, a)
	live = u.plan("app", 1_000_000)
	u.asked = func(*judge.Tag) { // once the run has looked for reporters
		u.asked = nil
		u.Exec(silent)
	}
	u.free(live)
	if got := left(u, a, b); got != "4 0" {
		t.Errorf("the reporter fell silent during the run, and so many tags are left: %s", got)
	}
}
