package autoprune_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/autoprune/autoprunetest"
	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/judge"
	"github.com/purser-registry/purser/internal/oci"
)

func isAnswer(err error) bool {
	_, ok := errors.AsType[*oci.Error](err)
	return ok
}

// undone returns a registry in which a run has deleted the tags v1 to v3 and an undo has
// restored them, and the id of the run.
func undone(t *testing.T) (m *middle, run string) {
	t.Helper()
	m = inTheMiddle(t, policies.Target{Namespace: "app"})
	m.timeSlice(func(context.Context, []*judge.Tag) error { return nil })
	runs, _, err := m.pruner.Runs(t.Context(), "app", "", 1)
	m.Must(err)
	u, err := m.pruner.Undo(t.Context(), runs[0].ID, "", time.Minute)
	m.Must(err)
	if u.Restored != 3 {
		t.Fatalf("undone: %+v", u)
	}
	return m, runs[0].ID
}

// TestExemptionEnds: an undo has exempted tags from a policy. A tag's exemption must end when the
// tag is deleted, when somebody ends it, and when the policy gets another rule; not when the tag is
// pushed or the policy is saved with the same rule. It must not apply to other policies.
func TestExemptionEnds(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		do   func(m *middle) error
		stay []string
	}{
		"nothing":          {func(*middle) error { return nil }, []string{"v1", "v2", "v3"}},
		"it was made anew": {func(m *middle) error { return m.renew("v1") }, []string{"v2", "v3"}},
		"it was pushed again": {func(m *middle) error {
			m.Exec("UPDATE tags SET updated_at = created_at - interval '1h' WHERE name = 'v1'")
			return nil
		}, []string{"v1", "v2", "v3"}},
		"the policy was saved unchanged": {func(m *middle) error {
			return m.pruner.Policies.Update(m.T.Context(), m.scope, m.policy, autoprunetest.Parsed(m.T, unused))
		}, []string{"v1", "v2", "v3"}},
		"its safeguards and keep rules changed, again and again": {func(m *middle) error {
			for _, more := range []string{`, "maxDeleted": 100`, `, "mode": "observe"`, `, "neverBelow": 1`, `, "keep": [{"newest": 1}]`, ``} {
				text := strings.TrimSuffix(strings.TrimSpace(unused), "}") + more + "}"
				if err := m.pruner.Policies.Update(m.T.Context(), m.scope, m.policy, autoprunetest.Parsed(m.T, text)); err != nil {
					return err
				}
			}
			return nil
		}, []string{"v1", "v2", "v3"}},
		"its rule changed": {func(m *middle) error {
			return m.pruner.Policies.Update(m.T.Context(), m.scope, m.policy, autoprunetest.Parsed(m.T, `{"method": "creation_date", "olderThan": "1h"}`))
		}, nil},
		"its rule changed and came back": {func(m *middle) error {
			if err := m.pruner.Policies.Update(m.T.Context(), m.scope, m.policy, autoprunetest.Parsed(m.T, `{"method": "number_of_tags", "numTags": 100}`)); err != nil {
				return err
			}
			return m.pruner.Policies.Update(m.T.Context(), m.scope, m.policy, autoprunetest.Parsed(m.T, unused))
		}, nil},
		"somebody ended one": {func(m *middle) error {
			_, err := m.pruner.Policies.EndExemptions(m.T.Context(), m.a.Path, "v2")
			return err
		}, []string{"v1", "v3"}},
		"somebody ended all": {func(m *middle) error {
			n, err := m.pruner.Policies.EndExemptions(m.T.Context(), m.a.Path, "")
			if err == nil && n != 3 {
				m.T.Errorf("%d exemptions ended, want 3", n)
			}
			return err
		}, nil},
		"another policy came": {func(m *middle) error {
			_, err := m.pruner.Policies.Create(m.T.Context(), m.scope, autoprunetest.Parsed(m.T, `{"method": "creation_date", "olderThan": "1d", "tagPattern": "v[23]"}`))
			return err
		}, []string{"v1"}},
		"the policy was made anew": {func(m *middle) error {
			if err := m.pruner.Policies.Delete(m.T.Context(), m.scope, m.policy); err != nil {
				return err
			}
			_, err := m.pruner.Policies.Create(m.T.Context(), m.scope, autoprunetest.Parsed(m.T, unused))
			return err
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m, _ := undone(t)
			m.Must(c.do(m))
			m.run()
			if got := m.Tags(m.a); !slices.Equal(got, c.stay) {
				t.Errorf("there are %v, want %v", got, c.stay)
			}
			m.consistent()
		})
	}
}

// renew makes a tag again that looks the same.
func (m *middle) renew(tag string) error {
	m.Exec(`WITH gone AS (DELETE FROM tags WHERE name = $1 RETURNING *)
		INSERT INTO tags (top_level_namespace_id, repository_id, name, manifest_id, created_at)
		SELECT top_level_namespace_id, repository_id, 'other', manifest_id, created_at FROM gone`, tag)
	m.Exec("UPDATE tags SET name = $1 WHERE name = 'other'", tag)
	return nil
}

// TestUndoTwiceAtOnce: four clients undo the same run at the same time. Each tag must be
// restored once and counted once.
func TestUndoTwiceAtOnce(t *testing.T) {
	t.Parallel()
	m, run := undone(t)
	m.Exec("DELETE FROM tags")
	m.Exec("UPDATE autopruneruns SET restored = 0")
	var all sync.WaitGroup
	var mu sync.Mutex
	var restored, exists int64
	for range 4 {
		all.Go(func() {
			u, err := m.pruner.Undo(t.Context(), run, "", time.Minute)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Errorf("an undo: %v", err)
			}
			restored, exists = restored+u.Restored, exists+u.Exists
		})
	}
	all.Wait()
	if restored != 3 || exists != 9 || autoprunetest.Value[int64](m.Registry, "SELECT restored FROM autopruneruns WHERE id = $1", run) != 3 {
		t.Errorf("%d were restored and %d existed", restored, exists)
	}
	m.run()
	if got := m.Tags(m.a); len(got) != 3 {
		t.Errorf("the next run took again: only %v are left", got)
	}
}

// TestUndoWhileAManifestGoes: an undo meets a transaction that deletes the manifest of a tag. It waits
// for that transaction, and then restores the other tags. (If it found out by the foreign key only, the
// whole batch would begin anew, as often as a manifest goes.)
func TestUndoWhileAManifestGoes(t *testing.T) {
	t.Parallel()
	r := setup(t)
	a := r.Repository("app/a")
	r.Manifest(a, "goes", "")
	r.Manifest(a, "stays", "")
	deletion, err := r.DB.Pool.Begin(t.Context())
	r.Must(err)
	defer deletion.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // it may have ended
	_, err = deletion.Exec(t.Context(), "SELECT FROM manifests WHERE digest = $1 FOR UPDATE", autoprunetest.DigestOf("goes").Bytes())
	r.Must(err)
	undo, err := r.DB.Pool.Begin(t.Context())
	r.Must(err)
	defer undo.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // it may have ended
	type outcome struct {
		restored, gone []string
		err            error
	}
	done := make(chan outcome, 1)
	go func() {
		var o outcome
		var tags []catalog.RestoredTag
		tags, o.err = catalog.RestoreTags(t.Context(), undo, a, []catalog.DeletedTag{
			{Name: "v1", Digest: autoprunetest.DigestOf("goes"), Created: time.Now()}, {Name: "v2", Digest: autoprunetest.DigestOf("stays"), Created: time.Now()}})
		for _, tag := range tags {
			switch {
			case tag.Gone:
				o.gone = append(o.gone, tag.Name)
			case !tag.Exists:
				o.restored = append(o.restored, tag.Name)
			}
		}
		done <- o
	}()
	waits := func() bool {
		return autoprunetest.Value[int](r.Registry, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'") > 0
	}
	for !waits() {
		select {
		case o := <-done:
			t.Fatalf("the undo didn't wait for the deletion: %+v", o)
		case <-time.After(time.Millisecond):
		}
	}
	_, err = deletion.Exec(t.Context(), "DELETE FROM manifests WHERE digest = $1", autoprunetest.DigestOf("goes").Bytes())
	r.Must(err)
	r.Must(deletion.Commit(t.Context()))
	if o := <-done; o.err != nil || !slices.Equal(o.restored, []string{"v2"}) || !slices.Equal(o.gone, []string{"v1"}) {
		t.Errorf("the undo: %+v", o)
	}
}

// TestUndoOfARunThatRuns is refused.
func TestUndoOfARunThatRuns(t *testing.T) {
	t.Parallel()
	m := inTheMiddle(t, policies.Target{Namespace: "app"})
	m.timeSlice(func(ctx context.Context, _ []*judge.Tag) error {
		runs, _, err := m.pruner.Runs(ctx, "app", "", 1)
		m.Must(err)
		if _, err := m.pruner.Undo(ctx, runs[0].ID, "", time.Minute); !isAnswer(err) {
			t.Errorf("undone while it ran: %v", err)
		}
		return nil
	})
	if got := m.Tags(m.a); len(got) != 0 {
		t.Errorf("there are %v", got)
	}
}

// TestExemptionsOfDeletedTags: housekeeping deletes the exemptions of tags that are gone, and no others.
func TestExemptionsOfDeletedTags(t *testing.T) {
	t.Parallel()
	m, _ := undone(t)
	m.Exec("DELETE FROM tags WHERE name = 'v1'")
	_, another := m.replica() // which does its first housekeeping
	_, err := another.Work(t.Context())
	m.Must(err)
	left := autoprunetest.Values[string](m.Registry, "SELECT t.name FROM autopruneexemptions e JOIN tags t ON t.id = e.tag_id ORDER BY 1")
	if n := autoprunetest.Value[int](m.Registry, "SELECT count(*) FROM autopruneexemptions"); n != 2 || !slices.Equal(left, []string{"v2", "v3"}) {
		t.Errorf("%d exemptions, of %v", n, left)
	}
}
