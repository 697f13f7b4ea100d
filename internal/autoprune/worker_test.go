package autoprune_test

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/autoprune/autoprunetest"
	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/autoprune/snapshot"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/policy"
)

func TestRunPrunesByNumberAndAge(t *testing.T) {
	t.Parallel()
	r := setup(t)
	a, b, other := r.Repository("app/a"), r.Repository("app/b"), r.Repository("other/a")
	for i := range 6 {
		for _, repo := range []string{"a", "b"} {
			target := a
			if repo == "b" {
				target = b
			}
			r.Tag(target, fmt.Sprintf("v%d", i), fmt.Sprintf("m%d", i), time.Duration(i)*day)
		}
		r.Tag(other, fmt.Sprintf("v%d", i), fmt.Sprintf("m%d", i), time.Duration(i)*day)
	}
	number := r.policy(policies.Target{Namespace: "app"}, `{"method": "number_of_tags", "numTags": 4}`)
	age := r.policy(policies.Target{Repository: "app/b"}, `{"method": "creation_date", "olderThan": "2d", "tagPattern": "v[0-9]"}`)
	r.run()
	if got, want := r.Tags(a), []string{"v0", "v1", "v2", "v3"}; !slices.Equal(got, want) {
		t.Errorf("a has %v, want %v", got, want)
	}
	if got, want := r.Tags(b), []string{"v0", "v1"}; !slices.Equal(got, want) {
		t.Errorf("b has %v, want %v", got, want)
	}
	if got := len(r.Tags(other)); got != 6 {
		t.Errorf("another namespace has %d tags, want 6", got)
	}
	runs, _, err := r.pruner.Runs(t.Context(), "app", "", 0)
	r.Must(err)
	if len(runs) != 1 || runs[0].State != "success" || runs[0].Deleted != 6 || runs[0].Tags != 12 || runs[0].Repositories != 2 {
		t.Fatalf("runs: %+v", runs)
	}
	details, err := r.pruner.GetRun(t.Context(), runs[0].ID)
	r.Must(err)
	if len(details.PerRepository) != 2 || details.PerRepository[0].Repository != "app/b" || details.PerRepository[0].Deleted != 4 ||
		details.PerRepository[0].Policies[number]+details.PerRepository[0].Policies[age] != 4 || details.PerRepository[1].Policies[number] != 2 {
		t.Errorf("per repository: %+v", details.PerRepository)
	}
	task, err := r.pruner.Task(t.Context(), "app")
	r.Must(err)
	if !strings.HasPrefix(task.Status, "success: deleted 6 of 12 tags, 2 repositories") || task.LastRan == nil {
		t.Errorf("task: %+v", task)
	}
	if n := autoprunetest.Value[int](r.Registry, `SELECT count(*) FROM auditlog WHERE kind = 'autoprune_tag_delete' AND run = $1
		AND tag IS NOT NULL AND digest IS NOT NULL AND repository_id IS NOT NULL AND policy IS NOT NULL AND namespace = 'app'`, runs[0].ID); n != 6 {
		t.Errorf("%d entries in the audit log, want 6", n)
	}
	if n := autoprunetest.Value[int](r.Registry, "SELECT count(*) FROM gc_manifest_review_queue WHERE event = 'tag_prune'"); n != 6 {
		t.Errorf("%d manifests queued for review, want 6", n)
	}
}

// TestRunGoesThroughAllPagesOfRepositories, whether the last page is full or not.
func TestRunGoesThroughAllPagesOfRepositories(t *testing.T) {
	t.Parallel()
	r := setup(t, func(o *autoprune.Options) { o.Page = 2 })
	for i := range 4 {
		r.Tag(r.Repository(fmt.Sprintf("full/r%d", i)), "v1", "m1", 10*day)
	}
	for i := range 5 {
		r.Tag(r.Repository(fmt.Sprintf("short/r%d", i)), "v1", "m1", 10*day)
	}
	for _, namespace := range []string{"full", "short"} {
		r.policy(policies.Target{Namespace: namespace}, `{"method": "creation_date", "olderThan": "1d"}`)
	}
	r.run()
	if left := autoprunetest.Values[string](r.Registry, "SELECT r.path FROM tags t JOIN repositories r ON r.id = t.repository_id ORDER BY r.path"); len(left) > 0 {
		t.Errorf("not pruned: %v", left)
	}
	for namespace, want := range map[string]int64{"full": 4, "short": 5} {
		if n := autoprunetest.Value[int64](r.Registry, "SELECT max(repositories) FROM autopruneruns WHERE namespace = $1", namespace); n != want {
			t.Errorf("a run went through %d repositories of %s, want %d", n, namespace, want)
		}
	}
}

// TestIdleRunsShareARow: consecutive runs that delete nothing must be counted in one row,
// and a run that deletes a tag must get a row of its own.
func TestIdleRunsShareARow(t *testing.T) {
	t.Parallel()
	r := setup(t)
	a := r.Repository("app/a")
	r.Tag(a, "v1", "m1", 0)
	r.policy(policies.Target{Namespace: "app"}, `{"method": "number_of_tags", "numTags": 1}`)
	for range 3 {
		r.run()
	}
	r.Tag(a, "v2", "m2", 0)
	for range 3 {
		r.run()
	}
	runs, _, err := r.pruner.Runs(t.Context(), "app", "", 0)
	r.Must(err)
	var got []string
	for _, run := range runs {
		got = append(got, fmt.Sprintf("%s %d times %d", run.State, run.Times, run.Deleted))
	}
	if want := []string{"success 2 times 0", "success 1 times 1", "success 3 times 0"}; !slices.Equal(got, want) {
		t.Errorf("runs: %v, want %v", got, want)
	}
	page, next, err := r.pruner.Runs(t.Context(), "", "", 2)
	r.Must(err)
	rest, end, err := r.pruner.Runs(t.Context(), "", next, 2)
	r.Must(err)
	if len(page) != 2 || len(rest) != 1 || end != "" || rest[0].ID != runs[2].ID {
		t.Errorf("pages of %d and %d", len(page), len(rest))
	}
}

// TestTaskGoesWithItsPolicies: a client deletes the only policy of a namespace. The worker
// must delete the namespace's task and prune nothing.
func TestTaskGoesWithItsPolicies(t *testing.T) {
	t.Parallel()
	r := setup(t)
	a := r.Repository("app/a")
	r.Tag(a, "v1", "m1", 10*day)
	target := policies.Target{Namespace: "app"}
	id := r.policy(target, `{"method": "creation_date", "olderThan": "1d"}`)
	r.Must(r.pruner.Policies.Delete(t.Context(), target, id))
	if n := autoprunetest.Value[int](r.Registry, "SELECT count(*) FROM autoprunetaskstatus"); n != 1 {
		t.Fatalf("%d tasks before the worker came, want 1", n)
	}
	_, err := r.pruner.Work(t.Context())
	r.Must(err)
	if n := autoprunetest.Value[int](r.Registry, "SELECT count(*) FROM autoprunetaskstatus"); n != 0 {
		t.Errorf("%d tasks, want none", n)
	}
	if got := r.Tags(a); len(got) != 1 {
		t.Errorf("tags: %v", got)
	}
	if task, err := r.pruner.Task(t.Context(), "app"); task != nil || err != nil {
		t.Errorf("task: %+v, %v", task, err)
	}
}

// TestDefaults: the registry's default policies must apply exactly to those namespaces that
// have no policies of their own and haven't refused the defaults.
func TestDefaults(t *testing.T) {
	t.Parallel()
	r := setup(t)
	targets := []catalog.Repository{r.Repository("plain/a"), r.Repository("own/a"), r.Repository("off/a")}
	for _, target := range targets {
		for i, name := range []string{"v1", "v2", "v3"} {
			r.Tag(target, name, name, time.Duration(i)*day)
		}
	}
	r.policy(policies.Target{Namespace: "own"}, `{"method": "number_of_tags", "numTags": 2}`)
	r.Must(r.pruner.Policies.UseDefaults(t.Context(), "off", false))
	id := r.policy(policies.Target{}, `{"method": "number_of_tags", "numTags": 1}`)
	r.ensure()
	r.run()
	for i, want := range []int{1, 2, 3} {
		if got := r.Tags(targets[i]); len(got) != want {
			t.Errorf("%s has %v, want %d", targets[i].Path, got, want)
		}
	}
	if on, err := r.pruner.Policies.UsesDefaults(t.Context(), "off"); on || err != nil {
		t.Errorf("uses defaults: %t, %v", on, err)
	}
	r.Must(r.pruner.Policies.UseDefaults(t.Context(), "off", true))
	r.run()
	if got := r.Tags(targets[2]); len(got) != 1 {
		t.Errorf("with the defaults on again: %v", got)
	}
	r.Must(r.pruner.Policies.Delete(t.Context(), policies.Target{}, id))
	r.run()
	if got := autoprunetest.Values[string](r.Registry, "SELECT n.name FROM autoprunetaskstatus t JOIN top_level_namespaces n ON n.id = t.namespace_id"); !slices.Equal(got, []string{"own"}) {
		t.Errorf("tasks of %v, want own alone", got)
	}
}

// TestPoliciesInsertedBySQL: policies of a namespace and of a repository that no client's transaction
// saved must get a task by the worker, and be applied. A namespace without a policy, and one that was
// deleted, get none; nor do the tasks come back after the policies are gone.
func TestPoliciesInsertedBySQL(t *testing.T) {
	t.Parallel()
	r := setup(t)
	var targets []catalog.Repository
	for _, path := range []string{"whole/a", "part/a", "part/b", "none/a", "trash/a"} {
		targets = append(targets, r.Repository(path))
		r.Tag(targets[len(targets)-1], "v1", "m1", 10*day)
	}
	const policy = `{"method": "creation_date", "olderThan": "1d"}`
	for _, i := range []int{0, 4} {
		r.Exec("INSERT INTO namespaceautoprunepolicy (uuid, namespace_id, policy) VALUES (gen_random_uuid(), $1, $2)", targets[i].NamespaceID, policy)
	}
	r.Exec("INSERT INTO repositoryautoprunepolicy (uuid, namespace_id, repository_id, policy) VALUES (gen_random_uuid(), $1, $2, $3)",
		targets[1].NamespaceID, targets[1].ID, policy)
	r.Exec("UPDATE top_level_namespaces SET name = '#trash', deleted_name = name, deleted_at = now(), purge_after = now() + interval '1 day' WHERE name = 'trash'")
	r.ensure()
	tasks := func() []string {
		return autoprunetest.Values[string](r.Registry, "SELECT n.name FROM autoprunetaskstatus t JOIN top_level_namespaces n ON n.id = t.namespace_id ORDER BY n.name")
	}
	if got := tasks(); !slices.Equal(got, []string{"part", "whole"}) {
		t.Errorf("tasks of %v, want part and whole", got)
	}
	r.run()
	for i, want := range []int{0, 0, 1, 1, 1} {
		if got := r.Tags(targets[i]); len(got) != want {
			t.Errorf("%s has %v, want %d", targets[i].Path, got, want)
		}
	}
	r.Exec("DELETE FROM namespaceautoprunepolicy")
	r.Exec("DELETE FROM repositoryautoprunepolicy")
	r.run()
	r.ensure()
	if got := tasks(); len(got) != 0 {
		t.Errorf("tasks of %v after the policies were deleted, want none", got)
	}
}

// TestAttachedTagsGoWithTheirImage: a number_of_tags policy must not count attached tags. A
// run must delete an attached tag with its image, and must keep it while any tag reaches
// the image.
func TestAttachedTagsGoWithTheirImage(t *testing.T) {
	t.Parallel()
	r := setup(t)
	a := r.Repository("app/a")
	attached := func(image string) string { return "sha256-" + autoprunetest.DigestOf(image).Hex() + ".sig" }
	for i, name := range []string{"new", "old", "shared", "child"} {
		r.Tag(a, name, name, time.Duration(i*10)*day)
		r.Tag(a, attached(name), "signature of "+name, time.Duration(i*10)*day)
	}
	r.Tag(a, "also-shared", "shared", 0)
	r.Tag(a, "list", "index", 0)
	r.Index(a, "index", "child")
	id := r.Manifest(a, "sbom of old", "old")
	r.Exec(`INSERT INTO tags (top_level_namespace_id, repository_id, name, manifest_id) VALUES ($1, $2, 'sbom', $3)`, a.NamespaceID, a.ID, id)
	r.Tag(a, attached("nothing"), "orphan", 2*day)
	r.Tag(a, attached("not yet"), "early", 0)
	r.policy(policies.Target{Repository: "app/a"}, `{"method": "number_of_tags", "numTags": 4}`) // new, list, also-shared, and what came too early
	r.run()
	want := []string{"also-shared", "list", "new", attached("new"), attached("shared"), attached("child"), attached("not yet")}
	slices.Sort(want)
	if got := r.Tags(a); !slices.Equal(got, want) {
		t.Errorf("tags:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if n := autoprunetest.Value[int](r.Registry, "SELECT count(*) FROM auditlog WHERE detail ->> 'code' = 'image_goes'"); n != 2 {
		t.Errorf("%d went with their image, want 2", n)
	}
	if n := autoprunetest.Value[int](r.Registry, "SELECT count(*) FROM auditlog WHERE detail ->> 'code' = 'beyond_newest'"); n != 4 {
		t.Errorf("%d went by their number, the orphan among them, want 4", n)
	}
}

// TestUndo: an undo must restore the tags of a run with their old times, and leave alone
// tags that were created since. The next run must keep the restored tags; once the policy
// has another rule, a run must delete them.
func TestUndo(t *testing.T) {
	t.Parallel()
	r := setup(t)
	a, gone := r.Repository("app/a"), r.Repository("app/gone")
	for i := range 5 {
		r.Tag(a, fmt.Sprintf("v%d", i), fmt.Sprintf("m%d", i), time.Duration(i)*10*day)
	}
	r.Tag(gone, "v1", "m1", 20*day)
	target := policies.Target{Namespace: "app"}
	id := r.policy(target, `{"method": "creation_date", "olderThan": "5d"}`)
	r.policy(policies.Target{Repository: "app/a"}, `{"method": "number_of_tags", "numTags": 3}`)
	r.Exec("UPDATE tags SET updated_at = created_at + interval '1 hour' WHERE repository_id = $1 AND name = 'v4'", a.ID) // moved once
	r.Exec("UPDATE tags SET expires_at = now() + CASE name WHEN 'v1' THEN interval '9 days' ELSE interval '-1 second' END WHERE name IN ('v1', 'v4')")
	before := autoprunetest.Values[time.Time](r.Registry, "SELECT created_at FROM tags WHERE repository_id = $1 ORDER BY name", a.ID)
	r.run()
	if got := r.Tags(a); !slices.Equal(got, []string{"v0"}) {
		t.Fatalf("after the run: %v", got)
	}
	runs, _, err := r.pruner.Runs(t.Context(), "app", "", 1)
	r.Must(err)
	r.Tag(a, "v2", "new", 0)                                                                                             // made since
	r.Exec("DELETE FROM manifests WHERE repository_id = $1 AND digest = $2", a.ID, autoprunetest.DigestOf("m3").Bytes()) // collected since
	r.Exec("DELETE FROM repositories WHERE id = $1", gone.ID)
	undone, err := r.pruner.Undo(t.Context(), runs[0].ID, "", time.Minute)
	r.Must(err)
	if undone.Restored != 2 || undone.Exists != 1 || undone.Gone != 2 || undone.Next != "" || len(undone.GoneTags) != 2 {
		t.Errorf("undone: %+v", undone)
	}
	if got := r.Tags(a); !slices.Equal(got, []string{"v0", "v1", "v2", "v4"}) {
		t.Errorf("after the undo: %v", got)
	}
	after := autoprunetest.Values[time.Time](r.Registry, "SELECT created_at FROM tags WHERE repository_id = $1 AND name IN ('v1', 'v4') ORDER BY name", a.ID)
	if !after[0].Equal(before[1]) || !after[1].Equal(before[4]) {
		t.Errorf("the tags aren't as old as they were: %v, %v", after, before)
	}
	moved := autoprunetest.Values[string](r.Registry, `SELECT COALESCE((updated_at - created_at)::text, 'never') FROM tags
		WHERE repository_id = $1 AND name IN ('v1', 'v4') ORDER BY name`, a.ID)
	if want := []string{"never", "01:00:00"}; !slices.Equal(moved, want) {
		t.Errorf("the tags were moved so long after they were made: %v, want %v", moved, want)
	}
	if got := autoprunetest.Value[string](r.Registry, "SELECT string_agg(name, ' ') FROM tags WHERE expires_at > now() + interval '8 days'"); got != "v1" {
		t.Errorf("the tags that have an expiration date again are %s, want v1", got)
	}
	if n := autoprunetest.Value[int](r.Registry, "SELECT count(*) FROM tags WHERE expires_at IS NOT NULL"); n != 1 {
		t.Errorf("%d tags have an expiration date, want one: a date that is over would delete its tag again", n)
	}
	if autoprunetest.Value[[]byte](r.Registry, "SELECT m.digest FROM tags t JOIN manifests m ON m.id = t.manifest_id WHERE t.name = 'v2' AND t.repository_id = $1", a.ID)[1] != autoprunetest.DigestOf("new").Bytes()[1] {
		t.Error("the tag that was made since was overwritten")
	}
	r.run()
	if got := r.Tags(a); !slices.Equal(got, []string{"v0", "v1", "v2", "v4"}) {
		t.Errorf("the next run took again: %v", got)
	}
	again, err := r.pruner.Undo(t.Context(), runs[0].ID, "", time.Minute)
	r.Must(err)
	if again.Restored != 0 || again.Exists != 3 {
		t.Errorf("undone again: %+v", again)
	}
	r.Exec("UPDATE tags SET updated_at = now() - interval '40 days' WHERE repository_id = $1 AND name = 'v4'", a.ID) // pushed again
	r.run()
	if got := r.Tags(a); !slices.Equal(got, []string{"v0", "v1", "v2", "v4"}) {
		t.Errorf("a tag that was pushed again isn't exempt any more: %v", got)
	}
	p, err := r.pruner.Policies.Get(t.Context(), target, id)
	r.Must(err)
	r.Must(r.pruner.Policies.Update(t.Context(), target, id, p.Policy))
	r.run()
	if got := r.Tags(a); !slices.Equal(got, []string{"v0", "v1", "v2", "v4"}) {
		t.Errorf("after the policy was saved unchanged: %v", got)
	}
	other, err := policy.Parse([]byte(`{"method": "creation_date", "olderThan": "6d"}`))
	r.Must(err)
	r.Must(r.pruner.Policies.Update(t.Context(), target, id, other))
	r.run()
	if got := r.Tags(a); !slices.Equal(got, []string{"v0", "v2"}) {
		t.Errorf("after the policy got another rule: %v", got)
	}
	if n := autoprunetest.Value[int64](r.Registry, "SELECT restored FROM autopruneruns WHERE id = $1", runs[0].ID); n != 2 {
		t.Errorf("the run has %d restored, want 2", n)
	}
	if n := autoprunetest.Value[int](r.Registry, "SELECT count(*) FROM auditlog WHERE kind = 'revert_tag' AND run = $1", runs[0].ID); n != 2 {
		t.Errorf("%d entries of restored tags, want 2", n)
	}
}

// TestMovedTagStays: after tags were read from a snapshot, one is moved, one pushed again,
// and one deleted and created again. DeleteTags must delete only the tag that is unchanged.
func TestMovedTagStays(t *testing.T) {
	t.Parallel()
	r := setup(t)
	a := r.Repository("app/a")
	for _, name := range []string{"kept", "moved", "pushed", "remade"} {
		r.Tag(a, name, name, 10*day)
	}
	r.Manifest(a, "other", "")
	var page []snapshot.TagRow
	r.Must(snapshot.Read(t.Context(), r.DB.Pool, a, func(s *snapshot.Snapshot) error {
		return s.Tags(t.Context(), "", 1000, func(row snapshot.TagRow) { page = append(page, row) })
	}))
	r.Tag(a, "moved", "other", 9*day)
	r.Exec("UPDATE tags SET updated_at = now() WHERE name = 'pushed'")
	r.Exec("DELETE FROM tags WHERE name = 'remade'")
	r.Tag(a, "remade", "remade", 10*day)
	var gone []int64
	r.Must(r.pruner.Deletion(t.Context(), func(tx autoprune.DeletionTx) (err error) {
		gone, err = tx.DeleteTags(t.Context(), autoprune.TagBatch{
			Target: a, Tags: page, Why: make([]int32, len(page)), Reasons: []autoprune.BatchReason{{Detail: "{}"}},
		})
		return err
	}))
	if want := []int64{1}; !slices.Equal(gone, want) {
		t.Errorf("deleted for each reason: %v, want %v", gone, want)
	}
	if got, want := r.Tags(a), []string{"moved", "pushed", "remade"}; !slices.Equal(got, want) {
		t.Errorf("left: %v, want %v", got, want)
	}
	logged := autoprunetest.Values[string](r.Registry, "SELECT tag || ' ' || encode(digest, 'hex') FROM auditlog WHERE kind = 'autoprune_tag_delete'")
	if want := []string{"kept " + hex.EncodeToString(autoprunetest.DigestOf("kept").Bytes())}; !slices.Equal(logged, want) {
		t.Errorf("entries: %v, want %v", logged, want)
	}
}

// TestProtectedTagsStay: protection rules of the repository, of the namespace and of the
// registry match some tags. A run must keep these tags, although a policy selects them.
func TestProtectedTagsStay(t *testing.T) {
	t.Parallel()
	r := setup(t)
	a, b := r.Repository("app/a"), r.Repository("app/b")
	for _, target := range []catalog.Repository{a, b} {
		for _, name := range []string{"prod", "release-1", "stable", "v1"} {
			r.Tag(target, name, name, 10*day)
		}
	}
	protect := func(pattern string, namespace, repository any) {
		r.Exec("INSERT INTO tagprotectionrules (uuid, namespace_id, repository_id, pattern) VALUES (gen_random_uuid(), $1, $2, $3)",
			namespace, repository, pattern)
	}
	protect("prod", nil, nil)
	protect("release-.*", a.NamespaceID, nil)
	protect("stable", a.NamespaceID, a.ID)
	r.policy(policies.Target{Namespace: "app"}, `{"method": "creation_date", "olderThan": "1d"}`)
	r.run()
	if got := r.Tags(a); !slices.Equal(got, []string{"prod", "release-1", "stable"}) {
		t.Errorf("a has %v", got)
	}
	if got := r.Tags(b); !slices.Equal(got, []string{"prod", "release-1"}) {
		t.Errorf("b has %v", got)
	}
}

// TestLastPulledSelectsNothingWithoutStatistics, and says so.
func TestLastPulledSelectsNothingWithoutStatistics(t *testing.T) {
	t.Parallel()
	r := setup(t)
	a := r.Repository("app/a")
	r.Tag(a, "v1", "m1", 1000*day)
	id := r.policy(policies.Target{Namespace: "app"}, `{"method": "last_pulled", "olderThan": "90d"}`)
	r.run()
	if got := r.Tags(a); len(got) != 1 {
		t.Errorf("tags: %v", got)
	}
	runs, _, err := r.pruner.Runs(t.Context(), "app", "", 1)
	r.Must(err)
	if runs[0].Notices[id] != "there are no pull statistics yet" {
		t.Errorf("notices: %v", runs[0].Notices)
	}
}
