package autoprune_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/autoprune/autoprunetest"
	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/hold"
	"github.com/purser-registry/purser/internal/judge"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/testscale"
	"github.com/purser-registry/purser/internal/worker"
)

const old = `{"method": "creation_date", "olderThan": "1d"}`

// TestHeldTagsStay: a run and a preview leave the tags of held manifests, of their relatives and
// what is attached to them, and say who holds them. When the lease is over, they go.
func TestHeldTagsStay(t *testing.T) {
	t.Parallel()
	r := setup(t, func(o *autoprune.Options) { o.Batch, o.Page = 3, 4 })
	a := r.Repository("app/a")
	for _, name := range []string{"plain", "other", "index", "child", "sibling", "image"} {
		r.Tag(a, name, name, 10*day)
	}
	r.Exec(`INSERT INTO manifest_references (top_level_namespace_id, repository_id, parent_id, child_id)
		SELECT $1, $2, p, c FROM unnest($4::bigint[]) AS c, (SELECT $3::bigint AS p) x`, a.NamespaceID, a.ID, r.Manifest(a, "index", ""),
		[]int64{r.Manifest(a, "child", ""), r.Manifest(a, "sibling", "")})
	r.Manifest(a, "signature", "image")
	r.Tag(a, "signature", "signature", 10*day)
	r.Tag(a, "sha256-"+autoprunetest.DigestOf("image").Hex()+".sig", "cosigned", 10*day)
	r.Tag(a, "sha256-"+autoprunetest.DigestOf("plain").Hex()+".sig", "cosigned2", 10*day)
	r.Tag(a, "sha256-"+autoprunetest.DigestOf("absent").Hex()+".sig", "cosigned3", 10*day) // an orphan
	r.Manifest(a, "signature2", "absent2")
	r.Tag(a, "orphan2", "signature2", 10*day)
	r.Tag(a, "orphan3", "orphan3", 10*day)
	r.policy(policies.Target{Namespace: "app"}, old)
	r.Hold("app", "child", "image", "absent", "absent2", "never there")
	want := []string{
		"child", "image", "index", "orphan2", "sha256-" + autoprunetest.DigestOf("absent").Hex() + ".sig",
		"sha256-" + autoprunetest.DigestOf("image").Hex() + ".sig", "sibling", "signature",
	}
	slices.Sort(want)
	preview, err := r.pruner.Preview(t.Context(), policies.Target{Namespace: "app"}, autoprune.PreviewOptions{})
	r.Must(err)
	r.run()
	if got := r.Tags(a); !slices.Equal(got, want) {
		t.Errorf("there are %q\nwant %q", got, want)
	}
	if preview.Deleted != 4 || preview.Reasons[judge.Held] == 0 {
		t.Errorf("the preview: %+v", preview)
	}
	for _, tag := range preview.Staying {
		if tag.Tag == "child" && (tag.Code != judge.Held || tag.Policy == "" || !strings.HasPrefix(tag.Reason, "deployed: held by prod (pod child) until ")) {
			t.Errorf("%+v", tag)
		}
	}
	runs, _, err := r.pruner.Runs(t.Context(), "app", "", 1)
	r.Must(err)
	if runs[0].Deleted != 4 || runs[0].Held == 0 || runs[0].HeldBy["prod"] != runs[0].Held {
		t.Errorf("the run: %+v", runs[0])
	}
	r.Exec("UPDATE holdreporters SET expires_at = now() - interval '1 second'")
	r.run()
	if got := r.Tags(a); len(got) != 0 {
		t.Errorf("after the lease there are %q", got)
	}
	r.consistent()
}

// TestHoldCountsNothing: a held tag takes nobody's place among the newest, and makes no policy
// delete another tag.
func TestHoldCountsNothing(t *testing.T) {
	t.Parallel()
	r := setup(t)
	a := r.Repository("app/a")
	for i := range 6 {
		r.Tag(a, fmt.Sprintf("v%d", i), fmt.Sprintf("m%d", i), time.Duration(i+1)*day)
	}
	r.policy(policies.Target{Namespace: "app"}, `{"method": "number_of_tags", "numTags": 2}`)
	r.Hold("app", "m0", "m4")
	r.run()
	if got := r.Tags(a); !slices.Equal(got, []string{"v0", "v1", "v4"}) {
		t.Errorf("there are %q, want the newest two and the held one", got)
	}
}

// TestHeldMeanwhile: a hold is reported after a run has judged the tags, and before it deletes
// them. The look in the deletion's transaction must find it.
func TestHeldMeanwhile(t *testing.T) {
	t.Parallel()
	m := inTheMiddle(t, policies.Target{Namespace: "app"})
	m.timeSlice(func(context.Context, []*judge.Tag) error {
		m.Hold("app", "m2")
		return nil
	})
	if got := m.Tags(m.a); !slices.Equal(got, []string{"v2"}) {
		t.Errorf("there are %v, want v2", got)
	}
}

// TestReportWaitsForDeletion: a deletion has looked for holds, and stalls before its commit. A
// report must wait for it: if it were acknowledged now, a held tag would be deleted afterwards.
// A second deletion queues behind the report, and then sees the hold.
func TestReportWaitsForDeletion(t *testing.T) {
	t.Parallel()
	r := setup(t)
	patient, err := db.Open(t.Context(), db.Options{DSN: r.DSN, ApplicationName: "pruner", LockTimeout: 20 * time.Second, Log: quiet})
	r.Must(err)
	t.Cleanup(patient.Close)
	_, r.pruner = r.replica(func(o *autoprune.Options) { o.Background, o.Batch = patient, 1 })
	a := r.Repository("app/a")
	r.Tag(a, "v1", "m1", 10*day)
	r.Tag(a, "v2", "m2", 10*day)
	r.policy(policies.Target{Namespace: "app"}, old)

	// The trigger of the first deletion waits for this session, which has its row in the queue.
	blocker, err := r.DB.Pool.Begin(t.Context())
	r.Must(err)
	defer blocker.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // it was committed
	_, err = blocker.Exec(t.Context(), "SELECT FROM gc_manifest_review_queue WHERE manifest_id = $1 FOR UPDATE", r.Manifest(a, "m1", ""))
	r.Must(err)
	var wait sync.WaitGroup
	wait.Go(func() {
		for range 3 {
			if _, err := r.pruner.Work(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
	r.until("the deletion stalls", "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = 'pruner' AND wait_event_type = 'Lock' AND datname = current_database())")
	reported := make(chan hold.Reported, 1)
	wait.Go(func() {
		done, err := r.Report(context.WithoutCancel(t.Context()), "app", "m1", "m2")
		if err != nil {
			t.Error(err)
		}
		reported <- done
	})
	r.until("the report waits", `SELECT EXISTS (
		SELECT FROM pg_locks WHERE locktype = 'advisory' AND classid = 1886745447 AND NOT granted
			AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))`)
	select {
	case <-reported:
		t.Error("the report was acknowledged before the deletion was committed")
	default:
	}
	r.Must(blocker.Commit(t.Context()))
	wait.Wait()
	if got := r.Tags(a); !slices.Equal(got, []string{"v2"}) {
		t.Errorf("there are %v, want v2: it was held before its deletion looked", got)
	}
}

// until waits until a query returns true.
func (r *registry) until(what, sql string) {
	r.T.Helper()
	for began := time.Now(); !autoprunetest.Value[bool](r.Registry, sql); {
		if time.Since(began) > time.Minute {
			r.T.Fatalf("never: %s", what)
		}
	}
}

// TestHoldsStorm: two workers prune while clients push old tags and reporters report. At each
// acknowledged report, all tags that are there and whose manifests are held must still be there
// when the next report of the same reporter drops them.
func TestHoldsStorm(t *testing.T) {
	t.Parallel()
	r := setup(t, func(o *autoprune.Options) { o.Batch, o.Page, o.Turn = 3, 7, 20*time.Millisecond })
	_, second := r.replica(func(o *autoprune.Options) { o.Batch, o.Page, o.Turn = 2, 5, 10*time.Millisecond })
	a := r.Repository("app/a")
	r.policy(policies.Target{Namespace: "app"}, old)
	r.policy(policies.Target{Namespace: "app"}, `{"method": "number_of_tags", "numTags": 1}`)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var workers, clients sync.WaitGroup
	for _, p := range []*autoprune.Pruner{r.pruner, second} {
		workers.Go(func() {
			for ctx.Err() == nil {
				if _, err := p.Work(ctx); err != nil && ctx.Err() == nil {
					t.Errorf("pruning: %v", err)
				}
			}
		})
	}
	// This trigger makes each task due again at once.
	r.Exec(`CREATE FUNCTION again() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.last_ran_ms := NULL; RETURN NEW; END'`)
	r.Exec(`CREATE TRIGGER again BEFORE UPDATE ON autoprunetaskstatus FOR EACH ROW WHEN (NEW.run IS NULL) EXECUTE FUNCTION again()`)
	// This trigger keeps each deletion busy for a while between its look for holds and its commit.
	r.Exec(`CREATE FUNCTION busy() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM count(*) FROM generate_series(1, 300000); RETURN NULL; END'`)
	r.Exec("CREATE TRIGGER busy AFTER DELETE ON tags FOR EACH STATEMENT EXECUTE FUNCTION busy()")
	var kept atomic.Int64
	for c := range 3 {
		clients.Go(func() {
			h, place := r.Holds(), hold.Place{Namespace: "app", Reporter: fmt.Sprintf("r%d", c)}
			var former []oci.Digest // whose hold ends with the report of the next
			for round := 0; ctx.Err() == nil; round++ {
				name := fmt.Sprintf("c%d-%d", c, round)
				r.Tag(a, name, name, 10*day)
				_, err := h.Report(context.WithoutCancel(ctx), place, hold.Report{By: hold.By{MayEnd: true}, Items: []hold.Item{{Digest: autoprunetest.DigestOf(name)}}, Remove: former})
				former = []oci.Digest{autoprunetest.DigestOf(name)}
				r.Must(err)
				there := autoprunetest.Value[bool](r.Registry, "SELECT EXISTS (SELECT FROM tags WHERE repository_id = $1 AND name = $2)", a.ID, name)
				deleted := "SELECT count(*) FROM auditlog WHERE tag = $1"
				for range 5 {
					if now := autoprunetest.Value[bool](r.Registry, "SELECT EXISTS (SELECT FROM tags WHERE repository_id = $1 AND name = $2)", a.ID, name); there != now {
						t.Errorf("%s was there when its hold was acknowledged, and went (%d deletions)", name, autoprunetest.Value[int](r.Registry, deleted, name))
						return
					}
				}
				if there {
					kept.Add(1)
				}
			}
		})
	}
	gone := func() int {
		return autoprunetest.Value[int](r.Registry, "SELECT count(*) FROM auditlog WHERE kind = 'autoprune_tag_delete'")
	}
	tooLittle := func() bool { return kept.Load() < 10 || gone() < 10 }
	pause := testscale.Pick(3*time.Second, 30*time.Second)
	for most := time.Now().Add(pause + 2*time.Minute); worker.Sleep(ctx, pause) == nil && tooLittle() && time.Now().Before(most); {
		pause = 100 * time.Millisecond
	}
	stop()
	clients.Wait()
	workers.Wait()
	t.Logf("held and kept: %d, deleted: %d", kept.Load(), gone())
	if tooLittle() {
		t.Errorf("too little happened: kept %d, deleted %d", kept.Load(), gone())
	}
}
