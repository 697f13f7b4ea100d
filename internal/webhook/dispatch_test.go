package webhook

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
)

// TestEventsOfANamespace: for each kind of event, the webhooks that ask for it must get a
// notice in the documented form, and other webhooks none.
func TestEventsOfANamespace(t *testing.T) {
	t.Parallel()
	s, d := hooked(t, Options{})
	exec(t, d, 1, "INSERT INTO top_level_namespaces (name) VALUES ('other')")
	logged(t, d, entryOf(audit.PushRepo, "app/web", "before"))
	all, pushes := subscribe(t, s, "http://127.0.0.1:1/all", Events()...), subscribe(t, s, "http://127.0.0.1:1/push", "repo_push")
	logged(t, d, entryOf(audit.PushRepo, "app/web", "v1"), entryOf(audit.PushRepo, "app/web", "v2"), entryOf(audit.MoveTag, "app/web", "v2"))
	logged(t, d, entryOf(audit.CreateTag, "app/web", "stable"))
	byPattern := entryOf(audit.DeleteTag, "app/web", "v1")
	byPattern.Run = uuid.New() // of a deletion, and no run of auto-pruning
	logged(t, d, byPattern, entryOf(audit.DeleteTag, "app/web", "v2"), entryOf(audit.DeleteManifest, "app/web", ""))
	logged(t, d, entryOf(audit.AutopruneTagDelete, "app/web", "old"))
	logged(t, d, entryOf(audit.DeleteRepo, "app/web", ""))
	logged(t, d, entryOf(audit.PushRepo, "other/web", "v1"), entryOf(audit.DeleteTag, "application", "v1"))
	logged(t, d, entryOf(audit.PullRepo, "app/web", "v1"), entryOf(audit.PullRepo, "app/web", "v1"), entryOf(audit.PullRepo, "app/api", ""))
	exec(t, d, 2, `INSERT INTO webhookcollected (namespace_id, repository, manifests)
		SELECT id, 'app/web', n FROM top_level_namespaces, (VALUES (3), (4)) v (n) WHERE name = 'app'`)
	dispatchAll(t, s)
	eventually(t, "counted", func() bool { dispatchAll(t, s); return len(bodies(t, d, all.ID)) == 8 })
	got := map[string][]map[string]any{}
	for _, b := range bodies(t, d, all.ID) {
		got[b["type"].(string)] = append(got[b["type"].(string)], b["data"].(map[string]any))
	}
	const where = `"namespace":"app","name":"web","repository":"app/web"`
	const by = `"actor":{"name":"ada"},"request":{"id":"r-1","addr":"192.0.2.7","useragent":"docker"}`
	for event, want := range map[string][]string{
		"push": {`{` + where + `,"updated_tags":["v1","v2"],"digest":"` + someDigest.String() + `",` + by + `}`},
		"tag":  {`{` + where + `,"updated_tags":["stable"],"digest":"` + someDigest.String() + `","change":"create_tag",` + by + `}`},
		"delete": {
			`{` + where + `,"repository_deleted":false,"tags_deleted":2,"deleted_tags":["v1","v2"],"manifests_deleted":1,"deleted_manifests":["` + someDigest.String() + `"],` + by + `}`,
			`{` + where + `,"repository_deleted":true,"tags_deleted":0,"deleted_tags":[],"manifests_deleted":0,"deleted_manifests":[],` + by + `}`,
		},
		"prune": {`{` + where + `,"repository_deleted":false,"tags_deleted":1,"deleted_tags":["old"],"manifests_deleted":0,"deleted_manifests":[],` + by + `}`},
	} {
		if len(got[event]) != len(want) {
			t.Errorf("%s: %v", event, got[event])
			continue
		}
		for i := range want {
			var w map[string]any
			must(t, json.Unmarshal([]byte(want[i]), &w))
			if a, b := fmt.Sprint(got[event][i]), fmt.Sprint(w); a != b {
				t.Errorf("%s:\n%s, want\n%s", event, a, b)
			}
		}
	}
	pulls := 0.0
	for _, p := range got["pull"] {
		pulls += p["pulls"].(float64)
	}
	if len(got["pull"]) != 2 || pulls != 3 || len(got["gc"]) != 1 || got["gc"][0]["manifests"] != 7.0 {
		t.Errorf("pulls %v, collected %v", got["pull"], got["gc"])
	}
	if list := bodies(t, d, pushes.ID); len(list) != 1 || list[0]["type"] != "push" {
		t.Errorf("who wants pushes is told %v", list)
	}
}

// TestEventsOfFormerNamespace: a namespace with a webhook is deleted, somebody else makes one under
// its name and deletes it, and the first one comes back. Its webhook is told nothing of what happened
// in the other one.
func TestEventsOfFormerNamespace(t *testing.T) {
	t.Parallel()
	s, d := hooked(t, Options{})
	hook := subscribe(t, s, "http://127.0.0.1:1/", Events()...)
	const away = `UPDATE top_level_namespaces SET name = '#' || id, deleted_name = name, deleted_at = now(), purge_after = now() + interval '1 day' WHERE id = $1`
	var first, other int64
	must(t, d.Pool.QueryRow(t.Context(), "SELECT id FROM top_level_namespaces WHERE name = 'app'").Scan(&first))
	exec(t, d, 1, away, first)
	must(t, d.Pool.QueryRow(t.Context(), "INSERT INTO top_level_namespaces (name) VALUES ('app') RETURNING id").Scan(&other))
	pull := entryOf(audit.PullRepo, "app/secret", "v1")
	must(t, d.Pool.QueryRow(t.Context(), "INSERT INTO repositories (top_level_namespace_id, path) VALUES ($1, 'app/secret') RETURNING id", other).Scan(&pull.RepositoryID))
	logged(t, d, entryOf(audit.PushRepo, "app/secret", "v1"), entryOf(audit.DeleteTag, "app/secret", "v1"), pull)
	exec(t, d, 1, away, other)
	exec(t, d, 1, "UPDATE top_level_namespaces SET name = 'app', deleted_name = NULL, deleted_at = NULL, purge_after = NULL WHERE id = $1", first)
	logged(t, d, entryOf(audit.PushRepo, "app/web", "v1"), entryOf(audit.PullRepo, "app/web", "v1"))
	dispatchAll(t, s)
	eventually(t, "counted", func() bool { dispatchAll(t, s); return len(bodies(t, d, hook.ID)) >= 2 })
	for _, b := range bodies(t, d, hook.ID) {
		if data := b["data"].(map[string]any); data["repository"] != "app/web" {
			t.Errorf("the webhook is told of the other namespace: %v", b)
		}
	}
}

// TestDispatchersDie: several dispatchers run at once, and their transactions often fail.
// Each push must nevertheless give exactly one notice, and each pull must be counted
// exactly once.
func TestDispatchersDie(t *testing.T) {
	t.Parallel()
	s, d := hooked(t, Options{})
	hook := subscribe(t, s, "http://127.0.0.1:1/", EventPush, EventPull, EventGC)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	const writers, each = 4, 60
	var writing, dispatching sync.WaitGroup
	for w := range writers {
		writing.Go(func() {
			random := rand.New(rand.NewPCG(seed, uint64(w)))
			for i := range each {
				err := d.Tx(t.Context(), func(tx pgx.Tx) error {
					entries := []audit.Entry{entryOf(audit.PushRepo, "app/web", fmt.Sprintf("t-%d-%d", w, i))}
					for range 3 {
						entries = append(entries, entryOf(audit.PullRepo, "app/web", "x"))
					}
					if err := audit.Append(t.Context(), tx, entries...); err != nil {
						return err
					}
					_, err := tx.Exec(t.Context(), `INSERT INTO webhookcollected (namespace_id, repository, manifests)
						SELECT id, 'app/web', 2 FROM top_level_namespaces WHERE name = 'app'`)
					if err == nil && random.IntN(4) == 0 { // transactions with later ids commit first
						_, err = tx.Exec(t.Context(), "SELECT pg_sleep($1)", float64(random.IntN(20))/1000)
					}
					return err
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	// Of the statements that write notices or move the position, the triggers make about a
	// third fail at random, as if the dispatcher had died.
	exec(t, d, 0, `
		CREATE FUNCTION kill() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			IF random() < 0.33 THEN
				RAISE EXCEPTION USING ERRCODE = 'P0001', MESSAGE = 'killed';
			END IF;
			RETURN NULL;
		END $$;
		CREATE TRIGGER kill BEFORE INSERT ON webhooknotices FOR EACH STATEMENT EXECUTE FUNCTION kill();
		CREATE TRIGGER kill AFTER UPDATE ON webhookposition FOR EACH STATEMENT EXECUTE FUNCTION kill()`)
	done := make(chan struct{})
	var deaths, rounds [3]int
	for n := range 3 {
		dispatching.Go(func() {
			one := newSender(t, Options{DB: d, AllowPrivateHooks: true, Pulls: true, Window: time.Millisecond})
			for {
				rounds[n]++
				switch _, err := one.dispatchBatch(t.Context()); {
				case db.Code(err) == "P0001":
					deaths[n]++
				case err != nil:
					t.Error(err)
				}
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	writing.Wait()
	close(done)
	dispatching.Wait()
	exec(t, d, 0, "DROP FUNCTION kill CASCADE")
	count := func() (pushes map[string]int, pulls, collected float64) {
		pushes = make(map[string]int)
		for _, b := range bodies(t, d, hook.ID) {
			data := b["data"].(map[string]any)
			switch b["type"] {
			case EventPush:
				pushes[fmt.Sprint(data["updated_tags"])]++
			case EventPull:
				pulls += data["pulls"].(float64)
			case EventGC:
				collected += data["manifests"].(float64)
			}
		}
		return pushes, pulls, collected
	}
	eventually(t, "all is told", func() bool {
		dispatchAll(t, s)
		pushes, pulls, collected := count()
		return len(pushes) >= writers*each && pulls >= 3*writers*each && collected >= 2*writers*each
	})
	pushes, pulls, collected := count()
	for tag, n := range pushes {
		if n != 1 {
			t.Errorf("the push of %s was told %d times", tag, n)
		}
	}
	if len(pushes) != writers*each || pulls != 3*writers*each || collected != 2*writers*each {
		t.Errorf("%d pushes, %v pulls, %v collected", len(pushes), pulls, collected)
	}
	t.Logf("%v rounds, %v deaths", rounds, deaths)
}

// TestOpenTransactionIsWaitedFor: a transaction has written an audit entry and is still
// open, while a later transaction has committed one. The dispatcher must make notices of
// both entries once the first transaction has committed, and of neither before.
func TestOpenTransactionIsWaitedFor(t *testing.T) {
	t.Parallel()
	s, d := hooked(t, Options{})
	hook := subscribe(t, s, "http://127.0.0.1:1/", EventPush)
	tx, err := d.Pool.Begin(t.Context())
	must(t, err)
	must(t, audit.Append(t.Context(), tx, entryOf(audit.PushRepo, "app/web", "early")))
	logged(t, d, entryOf(audit.PushRepo, "app/web", "late"))
	dispatchReadable(t, s)
	if n := len(bodies(t, d, hook.ID)); n != 0 {
		t.Errorf("%d are told before the first transaction is over", n)
	}
	must(t, tx.Commit(t.Context()))
	dispatchAll(t, s)
	if n := len(bodies(t, d, hook.ID)); n != 2 {
		t.Errorf("%d are told, want 2", n)
	}
}

// TestLargeTransactions: one transaction has written more audit entries than the dispatcher
// reads in one batch. The dispatcher must make notices of all of them, in several parts. Of
// each smaller transaction it must make a single notice.
func TestLargeTransactions(t *testing.T) {
	t.Parallel()
	s, d := hooked(t, Options{})
	hook := subscribe(t, s, "http://127.0.0.1:1/", EventDelete)
	total := 0
	for _, n := range []int{300, 400, 2*maxChanges + 7, 1} {
		var entries []audit.Entry
		for i := range n {
			entries = append(entries, entryOf(audit.DeleteTag, "app/web", fmt.Sprintf("t%d", i)))
		}
		logged(t, d, entries...)
		total += n
	}
	dispatchAll(t, s)
	var sizes []int
	for _, b := range bodies(t, d, hook.ID) {
		data := b["data"].(map[string]any)
		n := int(data["tags_deleted"].(float64))
		if names := len(data["deleted_tags"].([]any)); names != min(n, maxNames) {
			t.Errorf("%d names of %d tags", names, n)
		}
		sizes = append(sizes, n)
		total -= n
	}
	if total != 0 || len(sizes) > 6 || sizes[0] != 300 || sizes[1] != 400 {
		t.Errorf("%d are missing; sizes %v", total, sizes)
	}
}

// TestTagsOfOneTransaction: one transaction moves tags to two different manifests, as an
// undo does. The dispatcher must make one notice for each manifest, with the tags that were
// moved to it.
func TestTagsOfOneTransaction(t *testing.T) {
	t.Parallel()
	s, d := hooked(t, Options{})
	h := subscribe(t, s, "http://127.0.0.1:1/", EventTag)
	a, b, c := entryOf(audit.RevertTag, "app/web", "v1"), entryOf(audit.RevertTag, "app/web", "v2"), entryOf(audit.RevertTag, "app/web", "v3")
	b.Digest = oci.Compute(oci.SHA256, []byte("another"))
	logged(t, d, a, b, c)
	eventually(t, "told", func() bool { dispatchAll(t, s); return len(bodies(t, d, h.ID)) > 0 })
	got := map[string]string{}
	for _, n := range bodies(t, d, h.ID) {
		data := n["data"].(map[string]any)
		got[fmt.Sprint(data["digest"])] = fmt.Sprint(data["updated_tags"])
	}
	if len(got) != 2 || got[a.Digest.String()] != "[v1 v3]" || got[b.Digest.String()] != "[v2]" {
		t.Errorf("told %v", got)
	}
}

// TestRestoredLog: the database was restored, and its transaction ids have begun anew. The
// dispatcher must make notices only of entries that are written afterwards.
func TestRestoredLog(t *testing.T) {
	t.Parallel()
	s, d := hooked(t, Options{})
	h := subscribe(t, s, "http://127.0.0.1:1/", EventPush)
	exec(t, d, 1, "UPDATE webhookposition SET xid = '900000000000', id = 5")
	logged(t, d, entryOf(audit.PushRepo, "app/web", "old"))
	exec(t, d, 1, "UPDATE auditlog SET xid = '900000000' WHERE kind = 'push_repo'")
	dispatchAll(t, s)
	logged(t, d, entryOf(audit.PushRepo, "app/web", "new"))
	dispatchAll(t, s)
	if list := bodies(t, d, h.ID); len(list) != 1 || fmt.Sprint(list[0]["data"].(map[string]any)["updated_tags"]) != "[new]" {
		t.Errorf("%v", list)
	}
}

// TestIdleDispatcher: there are no webhooks. The dispatcher must not read the audit log,
// and must sleep for a minute.
func TestIdleDispatcher(t *testing.T) {
	t.Parallel()
	s, d := hooked(t, Options{})
	for i := range 5 {
		logged(t, d, entryOf(audit.PushRepo, "app/web", fmt.Sprint(i)))
	}
	if work, err := s.lookAround(t.Context()); work || err != nil {
		t.Errorf("%v %v", work, err)
	}
	if next, err := s.nextLook(context.Background()); next < time.Minute || err != nil {
		t.Errorf("%v %v", next, err)
	}
	subscribe(t, s, "http://127.0.0.1:1/", EventGC)
	if work, err := s.lookAround(t.Context()); work || err != nil {
		t.Errorf("who wants to know of garbage collection makes the log be read: %v %v", work, err)
	}
	if next, _ := s.nextLook(context.Background()); next != s.opt.Look {
		t.Errorf("%v", next)
	}
}
