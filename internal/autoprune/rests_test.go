package autoprune_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/autoprune/autoprunetest"
	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/judge"
	"github.com/purser-registry/purser/internal/policy"
)

// restNotices records the notices of policies that rest.
type restNotices struct {
	events []string
	data   []autoprune.RestsNotice
}

func (n *restNotices) take(o *autoprune.Options) {
	o.Notify = func(_ context.Context, _ db.Querier, event string, data any) error {
		if d, ok := data.(autoprune.RestsNotice); ok {
			n.events, n.data = append(n.events, event), append(n.data, d)
		}
		return nil
	}
}

// want fails unless there were these notices in all.
func (n *restNotices) want(t *testing.T, events ...string) {
	t.Helper()
	if !slices.Equal(n.events, events) {
		t.Errorf("the notices are %v, want %v", n.events, events)
	}
}

func (n *restNotices) last() autoprune.RestsNotice {
	if len(n.data) == 0 {
		return autoprune.RestsNotice{Policy: &policies.NoticePolicy{}}
	}
	return n.data[len(n.data)-1]
}

// TestRestsBeforeFirstDeletion: a policy that was harmless when it was saved and isn't when it would
// delete its first tag must rest, say so, and wait for a confirmation, which isn't asked for again.
func TestRestsBeforeFirstDeletion(t *testing.T) {
	t.Parallel()
	n := new(restNotices)
	r := setup(t, n.take)
	web := r.Repository("app/web")
	app := policies.Target{Namespace: "app"}
	p := autoprunetest.Parsed(t, `{"method": "creation_date", "olderThan": "1d"}`)
	id, err := r.pruner.Policies.CreateConfirmed(t.Context(), app, p, policies.Consent{Confirmed: []policy.WarningCode{policy.SelectsMost}})
	r.Must(err)
	r.run()
	r.Tag(web, "latest", "m1", 48*time.Hour)
	r.Tag(web, "main", "m2", 48*time.Hour)
	r.run()
	r.run()
	if got := r.Tags(web); len(got) != 2 {
		t.Fatalf("%v stay", got)
	}
	rests, err := r.pruner.Policies.Rests(t.Context(), "app")
	r.Must(err)
	if len(rests) != 1 || rests[0].Policy != id || len(rests[0].Warnings) != 1 || rests[0].Warnings[0].Code != policy.SelectsLatest {
		t.Fatalf("these rest: %+v", rests)
	}
	state, err := r.pruner.Task(t.Context(), "app")
	r.Must(err)
	if !strings.Contains(state.Status, "1 policy rests") || len(state.Rests) != 1 {
		t.Errorf("the state is %+v", state)
	}
	entries := func(kind audit.Kind) int {
		return autoprunetest.Value[int](r.Registry, "SELECT count(*) FROM auditlog WHERE kind = $1 AND policy = $2::uuid", string(kind), id)
	}
	if n := entries(audit.RestAutoprune); n != 1 {
		t.Errorf("the audit log has %d entries", n)
	}
	n.want(t, "autoprune.rests")
	if got := n.last(); got.Namespace != "app" || got.Policy.ID != id || got.Version != 1 || len(got.Warnings) != 1 || !strings.Contains(got.Text, "confirms") {
		t.Errorf("the notice says %+v", got)
	}
	if found, err := policies.FindTroubles(t.Context(), r.DB.Pool); err != nil || found.Unconfirmed != 1 || found.UnconfirmedIn != "app" || found.Unreported != 0 {
		t.Errorf("the doctor finds %+v, %v", found, err)
	}
	preview, err := r.pruner.Preview(t.Context(), app, autoprune.PreviewOptions{})
	r.Must(err)
	if preview.Deleted != 0 || preview.WouldDelete != 2 || preview.Reasons[judge.AwaitsConfirmation] != 2 || !strings.Contains(preview.Policies[0].Notice, "confirms") {
		t.Errorf("the preview says %+v", preview)
	}
	if err := r.pruner.ConfirmRest(t.Context(), "app", id, 1, []policy.WarningCode{policy.SelectsReleases}); err == nil {
		t.Error("another warning was confirmed")
	}
	if err := r.pruner.ConfirmRest(t.Context(), "app", id, 2, []policy.WarningCode{policy.SelectsLatest}); err == nil {
		t.Error("another version was confirmed")
	}
	r.Must(r.pruner.Policies.UpdateConfirmed(t.Context(), app, id, p, 0, policies.Consent{Confirmed: []policy.WarningCode{policy.SelectsMost}})) // unchanged: it rests on
	r.run()
	if got := r.Tags(web); len(got) != 2 {
		t.Fatalf("%v stay after saving the policy unchanged", got)
	}
	r.Must(r.pruner.ConfirmRest(t.Context(), "app", id, 2, []policy.WarningCode{policy.SelectsLatest}))
	r.run()
	if got := r.Tags(web); len(got) != 0 || entries(audit.ConfirmAutoprune) != 1 {
		t.Fatalf("after the confirmation, %v stay", got)
	}
	r.Tag(web, "latest", "m1", 48*time.Hour)
	r.run()
	if got := r.Tags(web); len(got) != 0 || entries(audit.RestAutoprune) != 1 {
		t.Errorf("the policy asks again: %v stay", got)
	}
	n.want(t, "autoprune.rests")
}

// TestRestsInLaterNamespace: a default policy whose warnings were confirmed for the namespaces that
// there were must rest in a later one, and in no other.
func TestRestsInLaterNamespace(t *testing.T) {
	t.Parallel()
	r := setup(t)
	old := r.Repository("old/web")
	r.Tag(old, "a", "m1", 48*time.Hour)
	p := autoprunetest.Parsed(t, `{"method": "creation_date", "olderThan": "1d"}`)
	_, err := r.pruner.Policies.CreateConfirmed(t.Context(), policies.Target{}, p, policies.Consent{Confirmed: []policy.WarningCode{policy.Reaches, policy.SelectsMost}})
	r.Must(err)
	later := r.Repository("later/web")
	r.Tag(later, "v1.0.0", "m1", 48*time.Hour)
	r.ensure()
	r.run()
	if a, b := r.Tags(old), r.Tags(later); len(a) != 0 || len(b) != 1 {
		t.Errorf("%v and %v stay", a, b)
	}
	for namespace, n := range map[string]int{"old": 0, "later": 1} {
		rests, err := r.pruner.Policies.Rests(t.Context(), namespace)
		if r.Must(err); len(rests) != n {
			t.Errorf("in %s these rest: %+v", namespace, rests)
		}
	}
}

// TestNotAllJudged: if there is no time to judge a policy by all tags, this must be told when it is
// saved, and the policy must rest before its first deletion, unless that was confirmed.
func TestNotAllJudged(t *testing.T) {
	t.Parallel()
	r := setup(t, func(o *autoprune.Options) { o.JudgeWithin, o.Turn = time.Nanosecond, time.Nanosecond })
	app, other := r.Repository("app/web"), r.Repository("other/web")
	r.Tag(app, "pr-1", "m", 48*time.Hour)
	r.Tag(other, "pr-1", "m", 48*time.Hour)
	const text = `{"method": "creation_date", "olderThan": "1d", "tagPattern": "^pr-"}`
	namespace := policies.Target{Namespace: "app"}
	if found := r.OfPolicy(r.pruner.Warnings, namespace, text); len(found) != 1 || found[policy.NotAllJudged].Text == "" {
		t.Fatalf("the warnings are %+v", found)
	}
	id, err := r.pruner.Policies.CreateConfirmed(t.Context(), namespace, autoprunetest.Parsed(t, text), policies.Consent{Confirmed: []policy.WarningCode{}})
	r.Must(err)
	_, err = r.pruner.Policies.CreateConfirmed(t.Context(), policies.Target{Namespace: "other"}, autoprunetest.Parsed(t, text), policies.Consent{Confirmed: []policy.WarningCode{policy.NotAllJudged}})
	r.Must(err)
	r.run()
	if a, b := r.Tags(app), r.Tags(other); len(a) != 1 || len(b) != 0 {
		t.Fatalf("%v and %v stay", a, b)
	}
	rests, err := r.pruner.Policies.Rests(t.Context(), "app")
	r.Must(err)
	if len(rests) != 1 || len(rests[0].Warnings) != 1 || rests[0].Warnings[0].Code != policy.NotAllJudged || !strings.Contains(rests[0].Text, "no time to judge it by all tags") {
		t.Errorf("these rest: %+v", rests)
	}
	r.Must(r.pruner.ConfirmRest(t.Context(), "app", id, 1, []policy.WarningCode{policy.NotAllJudged}))
	r.run()
	if got := r.Tags(app); len(got) != 0 {
		t.Errorf("after the confirmation, %v stay", got)
	}
}

// TestRequireReporter: a policy must delete nothing unless each of its reporters is live in the
// namespace, and say why.
func TestRequireReporter(t *testing.T) {
	t.Parallel()
	notices := new(restNotices)
	r := setup(t, notices.take)
	web := r.Repository("app/web")
	app := policies.Target{Namespace: "app"}
	id := r.policy(app, `{"method": "creation_date", "olderThan": "1d", "requireReporter": ["prod-eu", "prod-us"]}`)
	r.policy(app, `{"method": "creation_date", "olderThan": "1d", "tagPattern": "^pr-"}`)
	r.Tag(web, "main", "m1", 48*time.Hour)
	r.Tag(web, "pr-1", "m2", 48*time.Hour)
	rests := func(want string) {
		t.Helper()
		r.run()
		if got := r.Tags(web); !slices.Equal(got, []string{"main"}) {
			t.Fatalf("%v stay", got)
		}
		list, err := r.pruner.Policies.Rests(t.Context(), "app")
		r.Must(err)
		if len(list) != 1 || list[0].Policy != id || !strings.Contains(list[0].Text, want) {
			t.Errorf("these rest: %+v, want %q", list, want)
		}
		preview, err := r.pruner.Preview(t.Context(), app, autoprune.PreviewOptions{})
		r.Must(err)
		if preview.Deleted != 0 || preview.WouldDelete != 1 || preview.Reasons[judge.NoReporter] != 1 {
			t.Errorf("the preview says %+v", preview)
		}
	}
	entries := func() int {
		return autoprunetest.Value[int](r.Registry, "SELECT count(*) FROM auditlog WHERE kind = 'rest_autoprune' AND policy = $1::uuid", id)
	}
	rests("there is no reporter prod-eu; there is no reporter prod-us")
	other := r.Repository("other/web")
	r.Reporter(web.NamespaceID, "prod-eu", time.Hour)
	r.Reporter(other.NamespaceID, "prod-us", time.Hour) // of another namespace
	rests("there is no reporter prod-us")
	rests("there is no reporter prod-us")
	if n := entries(); n != 2 {
		t.Errorf("the audit log has %d entries", n)
	}
	notices.want(t, "autoprune.rests", "autoprune.rests")
	if got := notices.last(); got.Namespace != "app" || got.Policy.ID != id || got.Version != 1 || !slices.Equal(got.Reporters, []string{"prod-us"}) ||
		!strings.Contains(got.Text, "there is no reporter prod-us") {
		t.Errorf("the notice says %+v", got)
	}
	r.Reporter(nil, "prod-us", time.Hour) // of the whole registry
	r.Exec("UPDATE holdreporters SET reported_at = now() - lease / 2 WHERE name = 'prod-eu'")
	rests("reporter prod-eu has been silent since")
	r.Reporter(web.NamespaceID, "prod-eu", time.Hour)
	r.run()
	if got := r.Tags(web); len(got) != 0 {
		t.Errorf("with its reporters, %v stay", got)
	}
	if n := entries(); n != 4 {
		t.Errorf("the audit log has %d entries at the end", n)
	}
	r.run()
	notices.want(t, "autoprune.rests", "autoprune.rests", "autoprune.rests", "autoprune.resumed")
	if got := notices.last(); got.Policy.ID != id || got.Text != "" {
		t.Errorf("the notice says %+v", got)
	}
	found := r.OfPolicy(r.pruner.Warnings, app, `{"method": "creation_date", "olderThan": "1d", "tagPattern": "^pr-", "requireReporter": ["prd-eu"]}`)
	if w := found[policy.UnknownReporter]; !slices.Equal(w.Examples, []string{"prd-eu"}) {
		t.Errorf("a name that never reported: %+v", found)
	}
}

// TestReporterEndsDuringRun: when a reporter falls silent between the judgement of tags and their
// deletion, nothing must be deleted.
func TestReporterEndsDuringRun(t *testing.T) {
	t.Parallel()
	var r *registry
	since := time.Now().Add(-1000 * time.Hour)
	r = setup(t, func(o *autoprune.Options) {
		o.Pulls = func(context.Context) (judge.PullRecord, error) {
			return judge.PullRecord{Since: since}, nil
		}
		o.Used = func(context.Context, int64, []*judge.Tag) error { return nil }
		o.Settle = func(context.Context) error { // just before the deletion
			r.Exec("UPDATE holdreporters SET reported_at = reported_at - lease")
			return nil
		}
	})
	web := r.Repository("app/web")
	r.Tag(web, "old", "m", 48*time.Hour)
	r.Reporter(web.NamespaceID, "prod-eu", time.Hour)
	r.policy(policies.Target{Namespace: "app"}, `{"method": "last_pulled", "olderThan": "1d", "requireReporter": ["prod-eu"]}`)
	r.run()
	if got := r.Tags(web); len(got) != 1 {
		t.Fatal("the tag was deleted without the reporter")
	}
	if list, err := r.pruner.Policies.Rests(t.Context(), "app"); err != nil || len(list) != 1 {
		t.Errorf("these rest: %+v, %v", list, err)
	}
	r.policy(policies.Target{Namespace: "app"}, `{"method": "max_bytes", "maxBytes": "1TiB"}`)
	want := policies.Troubles{Unreported: 1, UnreportedIn: "app", Unproved: 2, UnprovedIn: "app"}
	if found, err := policies.FindTroubles(t.Context(), r.DB.Pool); err != nil || found != want {
		t.Errorf("the doctor finds %+v, %v", found, err)
	}
}

// TestExemptionOfRepositoryPolicyEnds: what an undo has exempted from a policy of a repository must be
// selected again once the policy has another rule.
func TestExemptionOfRepositoryPolicyEnds(t *testing.T) {
	t.Parallel()
	r := setup(t)
	web := r.Repository("app/web")
	of := policies.Target{Repository: "app/web"}
	r.Tag(web, "old", "m", 48*time.Hour)
	id := r.policy(of, `{"method": "creation_date", "olderThan": "1d"}`)
	r.run()
	runs, _, err := r.pruner.Runs(t.Context(), "app", "", 10)
	r.Must(err)
	_, err = r.pruner.Undo(t.Context(), runs[0].ID, "", time.Minute)
	r.Must(err)
	r.run()
	if got := r.Tags(web); len(got) != 1 {
		t.Fatal("the restored tag was deleted again")
	}
	r.Must(r.pruner.Policies.Update(t.Context(), of, id, autoprunetest.Parsed(t, `{"method": "creation_date", "olderThan": "2h"}`)))
	r.run()
	if got := r.Tags(web); len(got) != 0 {
		t.Error("the tag is exempt from another rule, too")
	}
}
