package autoprune_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/autoprune/autoprunetest"
	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/policy"
)

// noticed is a registry that records the announcements of policies.
type noticed struct {
	*registry
	notices []autoprune.AnnouncedNotice
}

func announcing(t *testing.T, change ...func(*autoprune.Options)) *noticed {
	t.Helper()
	n := &noticed{}
	change = append(change, func(o *autoprune.Options) {
		o.Notify = func(_ context.Context, _ db.Querier, event string, data any) error {
			if event == autoprune.EventAnnounced {
				n.notices = append(n.notices, data.(autoprune.AnnouncedNotice))
			}
			return nil
		}
	})
	n.registry = setup(t, change...)
	return n
}

// repositories makes repositories with an old and a young tag.
func (n *noticed) repositories(number int) {
	n.T.Helper()
	for i := range number {
		web := n.Repository(fmt.Sprint("app/web", i))
		n.Tag(web, "old", "m", 10*time.Hour)
		n.Tag(web, "young", "m", 0)
	}
}

func (n *noticed) left() int {
	n.T.Helper()
	return autoprunetest.Value[int](n.Registry, "SELECT count(*) FROM tags WHERE name = 'old'")
}

// told fails unless there were so many announcements in all, and entries of them in the audit log.
func (n *noticed) told(want int) {
	n.T.Helper()
	entries := autoprunetest.Value[int](n.Registry, "SELECT count(*) FROM auditlog WHERE kind = $1 AND policy IS NOT NULL AND run IS NOT NULL", string(audit.AnnounceAutoprune))
	if len(n.notices) != want || entries != want {
		n.T.Errorf("%d announcements and %d entries, want %d", len(n.notices), entries, want)
	}
}

const inGrace = `{"method": "creation_date", "olderThan": "1h", "grace": "7d"}`

// TestGrace: a policy in its grace period must be announced once and delete nothing, and after
// the period delete.
func TestGrace(t *testing.T) {
	t.Parallel()
	n := announcing(t)
	n.repositories(3)
	target := policies.Target{Namespace: "app"}
	id := n.policy(target, inGrace)
	n.run()
	n.run()
	n.told(1)
	if n.left() != 3 {
		t.Fatal("a policy in its grace period has deleted tags")
	}
	saved, err := n.pruner.Policies.Get(t.Context(), target, id)
	n.Must(err)
	first := n.notices[0]
	if in := time.Until(*saved.ActiveFrom); in < 167*time.Hour || in > 168*time.Hour || !first.ActiveFrom.Equal(*saved.ActiveFrom) {
		t.Errorf("the grace period ends in %s", in)
	}
	if first.Would != 3 || !slices.Equal(first.Tags, []string{"app/web0:old", "app/web1:old", "app/web2:old"}) || first.Version != 1 ||
		first.Policy.ID != id || first.Policy.Scope != policy.NamespaceScope || first.Namespace != "app" {
		t.Errorf("the announcement is %+v", first)
	}
	var detail struct {
		Would int64 `json:"tags_would_delete"`
	}
	n.Must(json.Unmarshal(autoprunetest.Value[[]byte](n.Registry, "SELECT detail FROM auditlog WHERE kind = 'announce_autoprune'"), &detail))
	if detail.Would != 3 {
		t.Errorf("the entry in the audit log says %+v", detail)
	}
	n.Must(n.pruner.Policies.Update(t.Context(), target, id, autoprunetest.Parsed(t, inGrace)))
	again, err := n.pruner.Policies.Get(t.Context(), target, id)
	n.Must(err)
	if n.run(); !again.ActiveFrom.Equal(*saved.ActiveFrom) {
		t.Error("saving the policy unchanged has begun a new grace period")
	}
	n.told(1)
	n.Must(n.pruner.Policies.Update(t.Context(), target, id, autoprunetest.Parsed(t, `{"method": "creation_date", "olderThan": "2h", "grace": "8d"}`)))
	changed, err := n.pruner.Policies.Get(t.Context(), target, id)
	n.Must(err)
	if n.run(); !changed.ActiveFrom.After(*saved.ActiveFrom) || n.left() != 3 {
		t.Error("a change has begun no new grace period")
	}
	n.told(2)
	n.Exec("UPDATE namespaceautoprunepolicy SET active_from = now()")
	if n.run(); n.left() != 0 {
		t.Error("after its grace period, the policy deletes nothing")
	}
	n.told(2)
}

// TestGraceNeedsAnnouncement: a policy whose grace period has ended while nobody pruned must be
// announced before it deletes. Default policies are announced in each namespace.
func TestGraceNeedsAnnouncement(t *testing.T) {
	t.Parallel()
	n := announcing(t)
	n.repositories(1)
	other := n.Repository("other/web")
	n.Tag(other, "old", "m", 10*time.Hour)
	n.policy(policies.Target{}, inGrace)
	n.Exec("UPDATE defaultautoprunepolicy SET active_from = now() - interval '1 day'")
	n.Exec("INSERT INTO autoprunetaskstatus (namespace_id, status) SELECT id, 'queued' FROM top_level_namespaces")
	n.run()
	n.told(2)
	if n.left() != 2 {
		t.Fatal("a policy that wasn't announced has deleted tags")
	}
	if n.run(); n.left() != 0 {
		t.Error("a policy that was announced doesn't delete")
	}
	n.told(2)
	n.Exec("DELETE FROM defaultautoprunepolicy")
	_, later := n.replica()
	_, err := later.Work(t.Context()) // which begins with housekeeping
	n.Must(err)
	if autoprunetest.Value[int](n.Registry, "SELECT count(*) FROM autopruneannouncements") != 0 {
		t.Error("announcements of a policy that was deleted are left")
	}
}

// TestGraceOfSetting: the setting must apply to policies without a grace period of their own,
// and only to those that are on.
func TestGraceOfSetting(t *testing.T) {
	t.Parallel()
	own := autoprunetest.Parsed(t, `{"method": "number_of_tags", "numTags": 1000}`)
	n := announcing(t, func(o *autoprune.Options) { o.Grace, o.Default = time.Hour, &own })
	n.repositories(1)
	target := policies.Target{Repository: "app/web0"}
	for text, want := range map[string]bool{
		`{"method": "number_of_tags", "numTags": 1}`:                               true,
		`{"method": "number_of_tags", "numTags": 2, "grace": null}`:                true,
		`{"method": "number_of_tags", "numTags": 3, "grace": "0s"}`:                false,
		`{"method": "number_of_tags", "numTags": 4, "mode": "observe"}`:            false,
		`{"method": "number_of_tags", "numTags": 5, "mode": "off", "grace": "1d"}`: false,
		`{"method": "number_of_tags", "numTags": 6, "mode": "on", "grace": "1d"}`:  true,
	} {
		saved, err := n.pruner.Policies.Get(t.Context(), target, n.policy(target, text))
		n.Must(err)
		if has := saved.ActiveFrom != nil; has != want {
			t.Errorf("%s has a grace period: %v", text, has)
		}
	}
	n.run()
	n.told(4)
	if n.left() != 1 {
		t.Error("a policy in the setting's grace period has deleted a tag")
	}
	if !autoprunetest.Value[bool](n.Registry, "SELECT active_from > now() FROM defaultautoprunepolicy WHERE setting") {
		t.Error("the policy of the configuration has no grace period")
	}
}

// TestGraceInSlices: a run in many time slices must count in all of them. When a policy is
// changed in the middle, only a later run knows what it would delete in all repositories.
func TestGraceInSlices(t *testing.T) {
	t.Parallel()
	n := announcing(t, func(o *autoprune.Options) { o.Turn = time.Nanosecond })
	n.repositories(4)
	target := policies.Target{Namespace: "app"}
	id := n.policy(target, inGrace)
	n.run()
	n.told(1)
	n.Exec("UPDATE autoprunetaskstatus SET last_ran_ms = NULL")
	for range 2 {
		_, err := n.pruner.Work(t.Context())
		n.Must(err)
	}
	n.Must(n.pruner.Policies.Update(t.Context(), target, id, autoprunetest.Parsed(t, `{"method": "creation_date", "olderThan": "2h", "grace": "8d"}`)))
	n.run()
	n.run()
	n.told(2)
	for _, notice := range n.notices {
		if notice.Would != 4 || len(notice.Tags) != 4 {
			t.Errorf("the announcement says %+v", notice)
		}
	}
	if autoprunetest.Value[int](n.Registry, "SELECT count(*) FROM autopruneruns WHERE tally IS NOT NULL") != 0 {
		t.Error("a run that has ended has a tally")
	}
}
