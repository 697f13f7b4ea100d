package autoprune_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/autoprune/autoprunetest"
	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/policy"
	"github.com/purser-registry/purser/internal/testscale"
)

// asking is a registry that records the notices of policies that ask.
type asking struct {
	*registry
	notices []autoprune.AsksNotice
	app     policies.Target
}

// capped makes a registry with repositories app/web0, app/web1, … that have so many old tags
// each, and a young one.
func capped(t *testing.T, repositories, tags int, change ...func(*autoprune.Options)) *asking {
	t.Helper()
	n := &asking{app: policies.Target{Namespace: "app"}}
	change = append(change, func(o *autoprune.Options) {
		o.Notify = func(_ context.Context, _ db.Querier, event string, data any) error {
			if event == autoprune.EventAsks {
				n.notices = append(n.notices, data.(autoprune.AsksNotice))
			}
			return nil
		}
	})
	n.registry = setup(t, change...)
	for i := range repositories {
		n.push(i, "old", tags)
		n.Tag(n.Repository(fmt.Sprint("app/web", i)), "young", "m", 0)
	}
	return n
}

// push adds old tags to app/web<i>.
func (n *asking) push(i int, prefix string, tags int) {
	n.T.Helper()
	web := n.Repository(fmt.Sprint("app/web", i))
	for k := range tags {
		n.Tag(web, fmt.Sprint(prefix, k), "m", 10*time.Hour)
	}
}

// old returns how many old tags are there.
func (n *asking) old() int {
	n.T.Helper()
	return autoprunetest.Value[int](n.Registry, "SELECT count(*) FROM tags WHERE name <> 'young'")
}

// asks fails unless exactly one policy asks for so many tags. It returns the policy.
func (n *asking) asks(would int64) autoprune.Ask {
	n.T.Helper()
	list, err := n.pruner.Asks(n.T.Context(), "app")
	n.Must(err)
	if len(list) != 1 || list[0].Would != would {
		n.T.Fatalf("policies ask: %+v; want one with %d tags", list, would)
	}
	return list[0]
}

// quiet fails if a policy asks.
func (n *asking) quiet() {
	n.T.Helper()
	list, err := n.pruner.Asks(n.T.Context(), "app")
	n.Must(err)
	if len(list) != 0 {
		n.T.Errorf("policies ask: %+v", list)
	}
}

// told fails unless there were so many notices in all, and entries of them in the audit log.
func (n *asking) told(want int) {
	n.T.Helper()
	entries := autoprunetest.Value[int](n.Registry, "SELECT count(*) FROM auditlog WHERE kind = $1 AND policy IS NOT NULL AND run IS NOT NULL", string(audit.AskAutoprune))
	if len(n.notices) != want || entries != want {
		n.T.Errorf("%d notices and %d entries, want %d", len(n.notices), entries, want)
	}
}

// last returns the newest run.
func (n *asking) last() autoprune.RunDetails {
	n.T.Helper()
	runs, _, err := n.pruner.Runs(n.T.Context(), "app", "", 1)
	n.Must(err)
	d, err := n.pruner.GetRun(n.T.Context(), runs[0].ID)
	n.Must(err)
	return d
}

func (n *asking) approve(a autoprune.Ask, tags int64) {
	n.T.Helper()
	_, err := n.pruner.Approve(n.T.Context(), "app", a.Policy, a.Version, tags)
	n.Must(err)
}

const capOf5 = `{"method": "creation_date", "olderThan": "1h", "maxDeleted": 5}`

// TestCap: a policy that would delete more than its cap must delete nothing and ask. An approval
// must serve one run.
func TestCap(t *testing.T) {
	t.Parallel()
	n := capped(t, 3, 2)
	id := n.policy(n.app, capOf5)
	n.run()
	n.run()
	ask := n.asks(6)
	if n.old() != 6 || ask.Policy != id || ask.Scope != policy.NamespaceScope || ask.Version != 1 || ask.Most != 5 || ask.Approved != nil {
		t.Fatalf("%d old tags are left, and %+v asks", n.old(), ask)
	}
	n.told(1)
	if got := n.notices[0]; got.Namespace != "app" || got.Policy.ID != id || got.Version != 1 || got.Would != 6 || got.Most != 5 {
		t.Errorf("the notice says %+v", got)
	}
	d := n.last()
	if len(d.Asks) != 1 || d.Asks[0] != ask.RunAsk || d.ID != n.notices[0].Run || d.Times != 2 || d.Would != 6 || d.Observed[0].Policy != id ||
		!strings.Contains(d.Notices[id], "it would delete 6 tags, more than its cap of 5: it asks for an approval") {
		t.Errorf("the run says %+v", d)
	}
	if status := autoprunetest.Value[string](n.Registry, "SELECT status FROM autoprunetaskstatus"); !strings.Contains(status, "; 1 policy asks for an approval") {
		t.Errorf("the state is %q", status)
	}
	n.refused(id, 1, 5, 409)
	n.refused(id, 2, 6, 409)
	n.refused("another", 1, 6, 404)
	n.approve(ask, 6)
	if again := n.asks(6); again.Approved == nil || *again.Approved != 6 || again.Until.Before(time.Now().Add(6*24*time.Hour)) {
		t.Errorf("after the approval, %+v asks", again)
	}
	n.run()
	if n.quiet(); n.old() != 0 || len(n.last().Asks) != 0 {
		t.Fatalf("after the approval, %d old tags are left", n.old())
	}
	n.push(0, "more", 6)
	n.run()
	if n.old() != 6 {
		t.Fatal("an approval served two runs")
	}
	n.told(2)
	if autoprunetest.Value[int](n.Registry, "SELECT count(*) FROM autopruneruns WHERE limits IS NOT NULL") != 0 {
		t.Error("a run that has ended has limits")
	}
	if autoprunetest.Value[int](n.Registry, "SELECT count(*) FROM auditlog WHERE kind = $1 AND policy IS NOT NULL AND detail->>'approved' = '6'", string(audit.ApproveAutoprune)) != 1 {
		t.Error("the audit log lacks the approval")
	}
}

// refused fails unless an approval is refused with the status.
func (n *asking) refused(policy string, version, tags int64, status int) {
	n.T.Helper()
	_, err := n.pruner.Approve(n.T.Context(), "app", policy, version, tags)
	if e, ok := errors.AsType[*oci.Error](err); !ok || e.Status != status {
		n.T.Errorf("approving %d tags of version %d: %v, want status %d", tags, version, err, status)
	}
}

// TestCapWithin: a policy that stays within its cap must delete as without the cap. Percentages
// are of the tags that the policy looks at, and at least one tag.
func TestCapWithin(t *testing.T) {
	t.Parallel()
	n := capped(t, 2, 3) // 8 tags, 6 of them old
	for guard, asks := range map[string]bool{
		`"maxDeleted": 6`: false, `"maxDeleted": 5`: true, `"maxDeletedPercent": 75`: false, `"maxDeletedPercent": 74`: true,
		`"maxDeletedPercent": 100`: false, `"maxDeleted": 6, "maxDeletedPercent": 74`: true, `"maxDeleted": 5, "maxDeletedPercent": 100`: true,
		`"maxDeletedPercent": 99, "tagPattern": "^old"`: true, `"maxDeletedPercent": 100, "tagPattern": "^old"`: false,
		`"maxDeletedPercent": 1, "tagPattern": "^old0", "repositories": ["app/web1"]`: false,
		`"maxDeleted": 5, "mode": "observe"`:                                          false,
	} {
		p := autoprunetest.Parsed(t, `{"method": "creation_date", "olderThan": "1h", `+guard+`}`)
		preview, err := n.pruner.Preview(t.Context(), n.app, autoprune.PreviewOptions{Policy: &p})
		n.Must(err)
		if got := len(preview.Asks) == 1; got != asks || asks && (preview.Deleted != 0 || preview.WouldDelete != 6 || preview.Asks[0].Would != 6) {
			t.Errorf("%s: %d tags go, %d would, and %+v asks", guard, preview.Deleted, preview.WouldDelete, preview.Asks)
		}
	}
	n.policy(n.app, `{"method": "creation_date", "olderThan": "1h", "maxDeletedPercent": 75}`)
	n.run()
	if n.quiet(); n.old() != 0 || n.last().Deleted != 6 {
		t.Errorf("%d old tags are left", n.old())
	}
	n.told(0)
}

// TestCapAsksAgain: a policy must ask again only if the number has grown by a tenth, and must
// forget its question and the approval when its cap is enough again, or it is changed.
func TestCapAsksAgain(t *testing.T) {
	t.Parallel()
	n := capped(t, 1, 20)
	id := n.policy(n.app, capOf5)
	n.run()
	n.told(1)
	n.push(0, "a", 1) // 21
	n.run()
	n.told(1)
	n.approve(n.asks(21), 21)
	n.push(0, "b", 1) // 22: more than was approved, and a tenth more than was told
	n.run()
	n.told(2)
	if ask := n.asks(22); n.old() != 22 || ask.Approved == nil || *ask.Approved != 21 {
		t.Errorf("%d old tags are left, and %+v asks", n.old(), ask)
	}
	n.Exec("DELETE FROM tags WHERE name = 'old0'")
	n.run() // 21 tags are approved
	if n.quiet(); n.old() != 0 {
		t.Errorf("%d old tags are left of an approved number", n.old())
	}
	n.push(0, "c", 6)
	n.run()
	n.told(3)
	n.approve(n.asks(6), 6)
	n.Must(n.pruner.Policies.Update(t.Context(), n.app, id, autoprunetest.Parsed(t, `{"method": "creation_date", "olderThan": "2h", "maxDeleted": 5}`)))
	n.quiet()
	n.run()
	n.told(4)
	if ask := n.asks(6); n.old() != 6 || ask.Version != 2 || ask.Approved != nil {
		t.Errorf("an approval of another version counts: %d old tags, %+v", n.old(), ask)
	}
	n.approve(n.asks(6), 6)
	n.Exec("UPDATE autopruneasks SET approved_until = now()")
	n.run()
	if ask := n.asks(6); n.old() != 6 || ask.Approved != nil || ask.Until != nil {
		t.Errorf("an approval that has ended counts: %+v", ask)
	}
	n.Exec("DELETE FROM tags WHERE name = 'c0'")
	n.run()
	if n.quiet(); n.old() != 0 {
		t.Errorf("within the cap, %d old tags are left", n.old())
	}
	n.told(4)
	n.push(0, "d", 6)
	n.run()
	n.Must(n.pruner.Policies.Delete(t.Context(), n.app, id))
	_, later := n.replica()
	_, err := later.Work(t.Context()) // which begins with housekeeping
	n.Must(err)
	if autoprunetest.Value[int](n.Registry, "SELECT count(*) FROM autopruneasks") != 0 {
		t.Error("the question of a policy that was deleted is left")
	}
}

// TestCapWhileWaiting: outside its windows and in its grace period, a policy must ask, and its
// approval must not be forgotten.
func TestCapWhileWaiting(t *testing.T) {
	t.Parallel()
	n := capped(t, 2, 3)
	now := time.Now().UTC()
	closed := fmt.Sprintf(`"windows": [{"from": %q, "to": %q}]`, now.Add(2*time.Hour).Format("15:04"), now.Add(3*time.Hour).Format("15:04"))
	n.policy(n.app, `{"method": "creation_date", "olderThan": "1h", "maxDeleted": 5, "grace": "7d", `+closed+`}`)
	n.run()
	n.run()
	n.approve(n.asks(6), 7)
	n.run()
	if ask := n.asks(6); n.old() != 6 || ask.Approved == nil {
		t.Fatalf("in the grace period, %d old tags are left and %+v asks", n.old(), ask)
	}
	n.Exec("UPDATE namespaceautoprunepolicy SET active_from = now()")
	n.run()
	if ask := n.asks(6); n.old() != 6 || ask.Approved == nil {
		t.Fatalf("outside the windows, %d old tags are left and %+v asks", n.old(), ask)
	}
	n.push(0, "more", 1)
	n.run()
	n.asks(7)
	n.Exec("UPDATE namespaceautoprunepolicy SET policy = (policy::jsonb - 'windows')::text")
	n.run()
	if n.quiet(); n.old() != 0 {
		t.Errorf("in the window, %d old tags are left", n.old())
	}
	n.told(1)
}

// TestCapLeavesOutWhatStays: tags that are held or that a keep rule keeps must not count.
func TestCapLeavesOutWhatStays(t *testing.T) {
	t.Parallel()
	n := capped(t, 1, 0)
	web := n.Repository("app/web0")
	for i := range 7 {
		n.Tag(web, fmt.Sprint("v", i), fmt.Sprint("m", i), 10*time.Hour)
	}
	n.Hold("app", "m3")
	n.policy(n.app, `{"method": "creation_date", "olderThan": "1h", "maxDeleted": 5, "keep": [{"tagPattern": "^v4$"}]}`)
	preview, err := n.pruner.Preview(t.Context(), n.app, autoprune.PreviewOptions{})
	n.Must(err)
	if len(preview.Asks) != 0 || preview.Deleted != 5 {
		t.Errorf("a preview deletes %d tags, and %+v asks", preview.Deleted, preview.Asks)
	}
	n.run()
	n.quiet()
	if got := n.Tags(web); !slices.Equal(got, []string{"v3", "v4", "young"}) {
		t.Errorf("%v are left", got)
	}
}

// TestCapInSlices: a run in many time slices must count in all of them. A policy that is changed
// or created while the run counts makes it count again; later, the policy waits for the next run.
func TestCapInSlices(t *testing.T) {
	t.Parallel()
	n := capped(t, 4, 2, func(o *autoprune.Options) { o.Turn = time.Nanosecond })
	id := n.policy(n.app, capOf5)
	n.run()
	n.approve(n.asks(8), 8)
	n.run()
	if n.quiet(); n.old() != 0 || n.last().Repositories != 4 || n.last().Tags != 12 {
		t.Fatalf("%d old tags are left: %+v", n.old(), n.last())
	}
	for slices := range testscale.Pick(4, 8) { // change the policy after so many time slices of a run
		n.push(1, "again", 6)
		n.Exec("UPDATE autoprunetaskstatus SET last_ran_ms = NULL")
		for range slices {
			_, err := n.pruner.Work(t.Context())
			n.Must(err)
		}
		n.Must(n.pruner.Policies.Update(t.Context(), n.app, id, autoprunetest.Parsed(t, fmt.Sprintf(`{"method": "creation_date", "olderThan": "%dm", "maxDeleted": 5}`, 60+slices))))
		n.run()
		n.run()
		n.approve(n.asks(6), 6)
		n.run()
		if n.quiet(); n.old() != 0 {
			t.Fatalf("with a change after %d time slices, %d old tags are left", slices, n.old())
		}
	}
}

// TestCapOfDefaults: a cap of a default policy must be of each namespace, and that of a
// repository's policy of the repository alone.
func TestCapOfDefaults(t *testing.T) {
	t.Parallel()
	n := capped(t, 2, 3)
	n.Tag(n.Repository("other/web"), "old", "m", 10*time.Hour)
	n.policy(policies.Target{}, capOf5)
	n.ensure()
	n.run()
	if ask := n.asks(6); n.old() != 6 || ask.Scope != policy.DefaultScope {
		t.Errorf("%d old tags are left and %+v asks", n.old(), ask)
	}
	n.Must(n.pruner.Policies.UseDefaults(t.Context(), "app", false))
	n.quiet()
	one := policies.Target{Repository: "app/web1"}
	n.policy(one, `{"method": "creation_date", "olderThan": "1h", "maxDeleted": 2}`)
	n.policy(n.app, `{"method": "creation_date", "olderThan": "1h", "maxDeletedPercent": 50, "repositories": ["app/web0"]}`)
	n.run()
	list, err := n.pruner.Asks(t.Context(), "app")
	n.Must(err)
	if len(list) != 2 || list[1].Repository != "app/web1" || list[1].Would != 3 || list[0].Would != 3 || list[0].Most != 2 || n.old() != 6 {
		t.Fatalf("%d old tags are left and %+v asks", n.old(), list)
	}
	n.approve(list[1], 3)
	preview, err := n.pruner.Preview(t.Context(), one, autoprune.PreviewOptions{})
	n.Must(err)
	if preview.Deleted != 3 || len(preview.Asks) != 1 {
		t.Errorf("after the approval, a preview deletes %d and %+v asks", preview.Deleted, preview.Asks)
	}
	n.run()
	if got := n.Tags(n.Repository("app/web1")); !slices.Equal(got, []string{"young"}) || n.old() != 3 {
		t.Errorf("after the approval, %v stay", got)
	}
	preview, err = n.pruner.Preview(t.Context(), n.app, autoprune.PreviewOptions{Within: time.Nanosecond})
	n.Must(err)
	if preview.Deleted != 0 {
		t.Error("a preview that couldn't count deletes tags")
	}
}

// TestCapParsed: caps must be whole numbers in their ranges, and must survive being written.
func TestCapParsed(t *testing.T) {
	t.Parallel()
	for members, want := range map[string]string{
		`"maxDeleted": 1`:    "at most 1 in a run",
		`"maxDeleted": null`: "",
		`"maxDeleted": 1000000000, "maxDeletedPercent": 100`: "at most 1000000000 in a run, at most 100% in a run",
		`"maxDeletedPercent": 1, "maxDeleted": null`:         "at most 1% in a run",
		`"maxDeleted": 0`:                  "maxDeleted",
		`"maxDeleted": 1000000001`:         "maxDeleted",
		`"maxDeleted": 1.5`:                "maxDeleted",
		`"maxDeleted": "5"`:                "maxDeleted",
		`"maxDeleted": [5]`:                "maxDeleted",
		`"maxDeletedPercent": 0`:           "maxDeletedPercent",
		`"maxDeletedPercent": 101`:         "maxDeletedPercent",
		`"maxDeletedPercent": -1`:          "maxDeletedPercent",
		`"maxDeletedPercent": "20%"`:       "maxDeletedPercent",
		`"maxdeleted": 5`:                  "maxdeleted",
		`"maxDeleted": 5, "maxDeleted": 6`: "maxDeleted",
	} {
		p, err := policy.Parse([]byte(`{"method": "number_of_tags", "numTags": 3, ` + members + `}`))
		if field, ok := errors.AsType[*policy.FieldError](err); ok {
			if field.Field != want {
				t.Errorf("%s: %v, want an error of %s", members, err, want)
			}
			continue
		}
		text, marshalErr := p.MarshalJSON()
		if got := p.Safeguards.String(); err != nil || marshalErr != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", members, got, err, want)
		}
		if again := autoprunetest.Parsed(t, string(text)); !again.Equal(p) || want != "" && again.Equal(autoprunetest.Parsed(t, `{"method": "number_of_tags", "numTags": 3}`)) {
			t.Errorf("%s is written as %s", members, text)
		}
	}
}
