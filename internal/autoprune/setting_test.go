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
	"github.com/purser-registry/purser/internal/policy"
)

// withDefault returns the option of a pruner whose configuration has the given default
// policy; "" stands for none.
func (r *registry) withDefault(text string) func(*autoprune.Options) {
	r.T.Helper()
	if text == "" {
		return func(*autoprune.Options) {}
	}
	policy, err := policy.Parse([]byte(text))
	r.Must(err)
	return func(o *autoprune.Options) { o.Default = &policy }
}

// restart replaces the pruner by that of a process that has just started with the given
// default policy, and lets it prune all namespaces.
func (r *registry) restart(text string) {
	r.T.Helper()
	_, r.pruner = r.replica(r.withDefault(text))
	r.ensure()
	r.run()
}

// fresh fills a repository with the tags v0 to v9, of which v0 was pushed last.
func (r *registry) fresh(path string) {
	r.T.Helper()
	t := r.Repository(path)
	for i := range 10 {
		r.Tag(t, fmt.Sprint("v", i), fmt.Sprint("m", i), 0)
		r.Exec("UPDATE tags SET created_at = now() - $2::int * interval '1 hour', updated_at = NULL WHERE repository_id = $1 AND name = $3", t.ID, i, fmt.Sprint("v", i))
	}
}

// TestDefaultPolicyOfConfiguration: the configuration has a default policy. It must apply
// in every namespace, in addition to the namespace's own policies, except in a namespace
// that refuses the defaults. When a process starts whose configuration has no default
// policy, the policy must no longer apply.
func TestDefaultPolicyOfConfiguration(t *testing.T) {
	t.Parallel()
	r := setup(t)
	paths := []string{"none/a", "own/a", "off/a", "repo/a"}
	left := func() (n []int) {
		for _, path := range paths {
			n = append(n, len(r.Tags(r.Repository(path))))
		}
		return n
	}
	for _, path := range paths {
		r.fresh(path)
	}
	r.policy(policies.Target{Namespace: "own"}, `{"method": "creation_date", "olderThan": "1y"}`)
	r.policy(policies.Target{Repository: "repo/a"}, `{"method": "number_of_tags", "numTags": 2}`)
	r.Must(r.pruner.Policies.UseDefaults(t.Context(), "off", false))
	r.restart(`{"method": "number_of_tags", "value": 7}`)
	if got := left(); !slices.Equal(got, []int{7, 7, 10, 2}) {
		t.Errorf("left %v", got)
	}
	list, err := r.pruner.Policies.List(t.Context(), policies.Target{})
	r.Must(err)
	if len(list) != 1 || !list[0].Setting || list[0].Version != 1 {
		t.Fatalf("%+v", list)
	}
	id := list[0].ID
	r.restart(`{"method": "number_of_tags", "numTags": 7}`) // the same: nothing changes
	other, err := policy.Parse([]byte(`{"method": "number_of_tags", "numTags": 1}`))
	r.Must(err)
	for _, err := range []error{r.pruner.Policies.Update(t.Context(), policies.Target{}, id, other), r.pruner.Policies.Delete(t.Context(), policies.Target{}, id)} {
		if err == nil || !strings.Contains(err.Error(), "autoprune.default_policy") {
			t.Errorf("changed by hand: %v", err)
		}
	}
	r.restart(`{"method": "number_of_tags", "numTags": 5}`)
	if got := left(); !slices.Equal(got, []int{5, 5, 10, 2}) {
		t.Errorf("left %v", got)
	}
	if list, err = r.pruner.Policies.List(t.Context(), policies.Target{}); err != nil || len(list) != 1 || list[0].ID != id || list[0].Version != 2 {
		t.Errorf("%+v, %v", list, err)
	}
	r.fresh("none/a")
	r.fresh("own/a")
	r.restart("")
	if got := left(); !slices.Equal(got, []int{10, 10, 10, 2}) {
		t.Errorf("left %v", got)
	}
	if kinds := autoprunetest.Values[string](r.Registry, "SELECT detail->>'change' FROM auditlog WHERE detail->>'setting' = 'autoprune.default_policy' ORDER BY id"); !slices.Equal(kinds, []string{"create", "update", "delete"}) {
		t.Errorf("logged: %v", kinds)
	}
}

// TestDefaultPolicyOfDifferentReplicas: two processes have different default policies in
// their configurations. The policy of the process that started last must apply, also in the
// process that was running before.
func TestDefaultPolicyOfDifferentReplicas(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.fresh("app/a")
	r.restart(`{"method": "number_of_tags", "numTags": 8}`)
	first := r.pruner
	r.restart(`{"method": "number_of_tags", "numTags": 6}`)
	r.pruner = first
	r.fresh("app/a")
	r.run()
	if n := len(r.Tags(r.Repository("app/a"))); n != 6 {
		t.Errorf("%d tags", n)
	}
	r.restart("") // this process has no such setting, but the older processes still have one
	for _, p := range []*autoprune.Pruner{first, r.pruner} {
		r.pruner = p
		r.fresh("app/a")
		r.ensure()
		r.run()
	}
	if n := len(r.Tags(r.Repository("app/a"))); n != 10 {
		t.Errorf("%d tags", n)
	}
}

// TestDefaultPolicyOfConfigurationIsJudged: before the default policy of the configuration deletes its
// first tag of a namespace, it must be judged there, and rest if it would do what it surely wasn't meant
// to do. That must hold again for each change of the policy between two starts, and in a namespace that is
// made later. A process that was started before, with another policy, must rest too.
func TestDefaultPolicyOfConfigurationIsJudged(t *testing.T) {
	t.Parallel()
	n := new(restNotices)
	r := setup(t)
	start := func(text string) {
		t.Helper()
		_, r.pruner = r.replica(r.withDefault(text), n.take)
		r.ensure()
		r.run()
	}
	rests := func(namespace string, version int64) {
		t.Helper()
		list, err := r.pruner.Policies.Rests(t.Context(), namespace)
		r.Must(err)
		switch {
		case version == 0 && len(list) != 0:
			t.Errorf("in %s these rest: %+v", namespace, list)
		case version != 0 && (len(list) != 1 || list[0].Version != version || !slices.Equal(policy.Codes(list[0].Warnings), []policy.WarningCode{policy.SelectsLatest})):
			t.Errorf("in %s these rest, want version %d: %+v", namespace, version, list)
		}
	}
	confirm := func(namespace string, version int64) {
		t.Helper()
		id := autoprunetest.Value[string](r.Registry, "SELECT uuid FROM defaultautoprunepolicy WHERE setting")
		r.Must(r.pruner.ConfirmRest(t.Context(), namespace, id, version, []policy.WarningCode{policy.SelectsLatest}))
		r.run()
	}
	app := r.Repository("app/web")
	fill := func(repository catalog.Repository) {
		r.Tag(repository, "latest", "m1", 48*time.Hour)
		r.Tag(repository, "a", "m2", time.Minute)
		r.Tag(repository, "b", "m3", time.Minute)
	}
	left := func(repository catalog.Repository, n int) {
		t.Helper()
		if got := r.Tags(repository); len(got) != n {
			t.Errorf("%s has %v, want %d tags", repository.Path, got, n)
		}
	}
	fill(app)
	start(`{"method": "creation_date", "olderThan": "1d"}`)
	left(app, 3)
	rests("app", 1)
	n.want(t, "autoprune.rests")
	first := r.pruner
	start(`{"method": "creation_date", "value": "1d"}`) // the same: it isn't told again
	n.want(t, "autoprune.rests")
	confirm("app", 1)
	left(app, 2)
	rests("app", 0)
	fill(app)
	r.run()
	left(app, 2) // it asks once

	later := r.Repository("later/web")
	fill(later)
	r.ensure()
	r.run()
	left(later, 3)
	rests("later", 1)

	fill(app)
	start(`{"method": "creation_date", "olderThan": "2h"}`)
	left(app, 3)
	rests("app", 2)
	rests("later", 2)
	r.pruner = first
	r.run()
	left(app, 3)
	confirm("later", 2)
	left(later, 2)
	left(app, 3)
	start("")
	left(app, 3)
	rests("app", 0)
}

// TestDefaultPolicyFindsNoRoom: if the other policies that apply are already as many as
// MaxPolicies allows, Combine must leave out the default policy of the configuration.
func TestDefaultPolicyFindsNoRoom(t *testing.T) {
	t.Parallel()
	many := func(scope policy.Scope, n int) (list []judge.Applied) {
		for i := range n {
			list = append(list, judge.Applied{ID: fmt.Sprint(scope, i), Scope: scope})
		}
		return list
	}
	defaults := append(many(policy.DefaultScope, 2), judge.Applied{ID: "setting", Scope: policy.DefaultScope, Everywhere: true})
	for _, tt := range []struct{ namespace, repository, want int }{{0, 0, 3}, {1, 0, 2}, {1, 1, 3}, {32, 31, 64}, {32, 32, 64}} {
		got := judge.Combine(defaults, many(policy.NamespaceScope, tt.namespace), many(policy.RepositoryScope, tt.repository), false)
		if len(got) != tt.want {
			t.Errorf("%d and %d: %d apply, want %d", tt.namespace, tt.repository, len(got), tt.want)
		}
	}
	if got := judge.Combine(defaults, nil, nil, true); len(got) != 0 {
		t.Errorf("refused, and %d apply", len(got))
	}
}
