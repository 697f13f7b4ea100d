package distribution_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/builtinpg/pgtest"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/pullstats"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// TestChangesAreLogged: a client makes changes of every kind through the API. For each change
// the registry must write audit entries with the client's address, User-Agent and request id.
func TestChangesAreLogged(t *testing.T) {
	t.Parallel()
	r := setup(t)
	const path = "acme/team/app"
	r.Do(t, "POST", "/v2/"+path+"/blobs/uploads/", "")
	one := r.Simple(t, path, 1, nil)
	two := r.Simple(t, path, 2, nil)
	d1, d2 := digest(one), digest(two)
	m := "/v2/" + path + "/manifests/"
	tag := func(kind, tag string, d oci.Digest, more ...string) string {
		return strings.Join(append([]string{fmt.Sprintf("%s acme %s %s %.15s", kind, path, tag, d)}, more...), " ")
	}
	previous := func(d oci.Digest) string { return fmt.Sprintf(`{"previous_digest": %q}`, d) }
	other := r.Push(t, path, "other")
	for _, step := range []struct {
		name string
		do   func()
		want []string
	}{
		{"push", func() { r.Put(t, path, "v1", one) }, []string{tag("push_repo", "v1", d1)}},
		{"the same again", func() { r.Put(t, path, "v1", one) }, []string{tag("push_repo", "v1", d1)}},
		{"move by a new manifest", func() { r.Put(t, path, "v1", two) },
			[]string{tag("push_repo", "v1", d2), tag("move_tag", "v1", d2, previous(d1))}},
		{"move by one that is there", func() { r.Put(t, path, "v1", one) },
			[]string{tag("push_repo", "v1", d1), tag("move_tag", "v1", d1, previous(d2))}},
		{"by digest", func() { r.Put(t, path, d2.String(), two) }, []string{tag("push_repo", "", d2)}},
		{"by digest with tags", func() { r.Do(t, "PUT", m+d2.String()+"?tag=v1&tag=v2", two).Want(t, 201, "") },
			[]string{tag("push_repo", "v1", d2), tag("move_tag", "v1", d2, previous(d1)), tag("push_repo", "v2", d2)}},
		{"refused", func() {
			r.Do(t, "PUT", m+"v9", image(t, digest("missing"), nil, nil)).Want(t, 400, oci.ManifestBlobUnknown)
		}, nil},
		{"delete a tag", func() { r.Do(t, "DELETE", m+"v2", "").Want(t, 202, "") }, []string{tag("delete_tag", "v2", d2)}},
		{"that isn't there", func() { r.Do(t, "DELETE", m+"v2", "").Want(t, 404, oci.ManifestUnknown) }, nil},
		{"restore", func() {
			r.Manage(t, "POST", "/repository/"+path+"/tag/v2/restore", encode(t, object{"manifest_digest": d1})).WantStatus(t, 200)
		},
			[]string{tag("revert_tag", "v2", d1)}},
		{"restore to another", func() {
			r.Manage(t, "POST", "/repository/"+path+"/tag/v2/restore", encode(t, object{"manifest_digest": d2})).WantStatus(t, 200)
		},
			[]string{tag("revert_tag", "v2", d2, previous(d1))}},
		{"delete a manifest", func() { r.Do(t, "DELETE", m+d2.String(), "").Want(t, 202, "") },
			[]string{tag("delete_manifest", "", d2), tag("delete_tag", "v1", d2), tag("delete_tag", "v2", d2)}},
		{"delete a blob", func() { r.Do(t, "DELETE", "/v2/"+path+"/blobs/"+other.String(), "").Want(t, 202, "") },
			[]string{tag("delete_blob", "", other)}},
		{"delete the repository", func() { r.Do(t, "DELETE", "/api/v1/repository/"+path, "") }, []string{"delete_repo acme " + path + "  "}},
		{"delete the namespace", func() { r.Do(t, "DELETE", "/api/v1/organization/acme", "") }, []string{"org_delete acme   "}},
	} {
		f := r.Since(t)
		step.do()
		t.Log(step.name)
		r.WantLog(t, f, step.want...)
	}
	r.WantLog(t, audit.Filter{Kinds: []audit.Kind{audit.CreateNamespace, audit.CreateRepo}},
		"org_create acme   ", "create_repo acme "+path+"  ")
	for _, e := range r.Entries(t, audit.Filter{}) {
		if e.Address != "127.0.0.1" || !strings.HasPrefix(e.UserAgent, "Go-http-client") || e.RequestID == "" {
			t.Errorf("%s is from %q, %q, %q", e.Kind, e.Address, e.UserAgent, e.RequestID)
		}
		if gone := e.Kind == audit.DeleteRepo || e.Repository == ""; gone != (e.RepositoryID == 0) {
			t.Errorf("%s has the repository's id %d", e.Kind, e.RepositoryID)
		}
	}
}

// TestDeletionLocksTheLogLast: a transaction has locked the review row of a blob in
// gc_blob_review_queue, and a client deletes a manifest that uses the blob, with its tag. While
// the deletion waits for the review row, it must not have locked the audit log yet. Otherwise
// three sides could block each other: the deletion waits for the transaction, the transaction
// waits for a change of the audit log's partitions, and this change waits for the deletion.
func TestDeletionLocksTheLogLast(t *testing.T) {
	t.Parallel()
	r := setup(t)
	const path = "acme/app"
	manifest := r.Simple(t, path, 1, nil)
	r.Put(t, path, "v1", manifest)
	tx, err := r.DB.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // nothing is lost
	_, err = tx.Exec(t.Context(), `
		INSERT INTO gc_blob_review_queue (digest, review_after, event)
		SELECT digest, now() + interval '1 day', 'layer_delete' FROM blobs
		ON CONFLICT (digest) DO UPDATE SET review_after = EXCLUDED.review_after`)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan answer, 1)
	go func() {
		a, err := r.Try(t.Context(), "DELETE", "/v2/"+path+"/manifests/"+digest(manifest).String(), nil)
		if err != nil {
			t.Error(err)
		}
		done <- a
	}()
	var logs int
	eventually(t, "the deletion waits for a review row", func() (waits bool) {
		err := r.DB.Pool.QueryRow(t.Context(), `
			SELECT count(DISTINCT a.pid) > 0, count(l.pid) FROM pg_stat_activity a
			LEFT JOIN pg_locks l ON l.pid = a.pid AND l.relation IN (
				SELECT 'auditlog'::regclass UNION ALL SELECT inhrelid FROM pg_inherits WHERE inhparent = 'auditlog'::regclass)
			WHERE $1 = ANY (pg_blocking_pids(a.pid))`, tx.Conn().PgConn().PID()).Scan(&waits, &logs)
		if err != nil {
			t.Fatal(err)
		}
		return waits
	})
	if logs > 0 {
		t.Errorf("the deletion has %d locks on the audit log while it waits for another row", logs)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if a := <-done; a.StatusCode != 202 {
		t.Errorf("the deletion is answered %d", a.StatusCode)
	}
}

// TestConcurrentPushesAreLogged: twelve clients push different manifests to the same new tag at
// the same time. The audit log must have one push_repo entry for each push, and one move_tag
// entry for each push except the first. No two move_tag entries may name the same previous
// manifest.
func TestConcurrentPushesAreLogged(t *testing.T) {
	t.Parallel()
	r := setup(t)
	const path, clients = "acme/app", 12
	var payloads []string
	for i := range clients {
		payloads = append(payloads, r.Simple(t, path, i, nil))
	}
	var group sync.WaitGroup
	for _, p := range payloads {
		group.Go(func() {
			a, err := r.Try(t.Context(), "PUT", "/v2/"+path+"/manifests/latest", strings.NewReader(p))
			if err != nil || a.StatusCode != 201 {
				t.Errorf("push: %v %d %s", err, a.StatusCode, a.Content)
			}
		})
	}
	group.Wait()
	if n := len(r.Entries(t, audit.Filter{Kinds: []audit.Kind{audit.PushRepo}})); n != clients {
		t.Errorf("%d pushes, want %d", n, clients)
	}
	next := map[string]string{}
	for _, e := range r.Entries(t, audit.Filter{Kinds: []audit.Kind{audit.MoveTag}}) {
		var detail struct {
			Previous string `json:"previous_digest"`
		}
		if err := json.Unmarshal(e.Detail.(json.RawMessage), &detail); err != nil {
			t.Fatal(err)
		}
		if next[detail.Previous] != "" {
			t.Errorf("the tag was moved away from %s twice", detail.Previous)
		}
		next[detail.Previous] = e.Digest.String()
	}
	if len(next) != clients-1 {
		t.Errorf("%d moves, want %d", len(next), clients-1)
	}
}

// recording starts a registry that records pulls in its audit log. It returns the registry and
// the recorder that writes the pulls.
func recording(t *testing.T) (*registry, *audit.Recorder) {
	t.Helper()
	dsn := dbtest.DSN(t)
	recorder := audit.NewRecorder(audit.RecorderOptions{DB: dbtest.Open(t, dsn), Alive: catalog.AliveRepositories})
	r := replica(t, dsn, pgtest.TempDir(t), func(o *servertest.Options) {
		o.Recorder = pullstats.NewRecorder(pullstats.RecorderOptions{Log: recorder})
	})
	r.Listen(t)
	return r, recorder
}

func TestPullsAreLogged(t *testing.T) {
	t.Parallel()
	r, recorder := recording(t)
	const path = "acme/app"
	payload := r.Simple(t, path, 1, nil)
	d := r.Put(t, path, "v1", payload)
	m, f := "/v2/"+path+"/manifests/", r.Since(t)
	agent := strings.Repeat("a", 5000)
	r.Do(t, "GET", m+"v1", "", "User-Agent", agent).Want(t, 200, "")
	r.Do(t, "GET", m+"v1?x="+agent, "").Want(t, 200, "") // cached
	r.Do(t, "GET", m+d.String(), "").Want(t, 200, "")
	r.Do(t, "GET", m+d.String(), "", "If-None-Match", `"`+d.String()+`"`).Want(t, 304, "") // a check, not a pull
	r.Do(t, "GET", m+"v1", "", "If-None-Match", `"`+d.String()+`"`).Want(t, 304, "")
	r.Do(t, "HEAD", m+"v1", "").Want(t, 200, "")
	r.Do(t, "HEAD", m+d.String(), "").Want(t, 200, "")
	r.Do(t, "GET", m+"v2", "").Want(t, 404, oci.ManifestUnknown)
	r.Do(t, "GET", "/v2/"+path+"/tags/list", "").Want(t, 200, "")
	if err := recorder.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.WantLog(t, f, fmt.Sprintf("pull_repo acme %s v1 %.15s", path, d), fmt.Sprintf("pull_repo acme %s v1 %.15s", path, d),
		fmt.Sprintf("pull_repo acme %s  %.15s", path, d))
	var id int64
	if err := r.DB.Pool.QueryRow(t.Context(), "SELECT id FROM repositories WHERE path = $1", path).Scan(&id); err != nil {
		t.Fatal(err)
	}
	for _, e := range r.Entries(t, f) {
		if e.RepositoryID != id || e.Address != "127.0.0.1" || e.UserAgent == "" || len(e.UserAgent) > 1024 || e.RequestID == "" || e.Digest != d {
			t.Errorf("the entry is %+v", e)
		}
	}
}

// TestPullCostsNoRoundTrip: a client pulls a manifest that is in the cache, from a registry
// that records pulls in the audit log. The pull must make no round trip to the database. The
// tests of the recorder check that a failing or slow audit log doesn't delay pulls.
func TestPullCostsNoRoundTrip(t *testing.T) {
	t.Parallel()
	r, recorder := recording(t)
	r.Put(t, "app", "v1", r.Simple(t, "app", 1, nil))
	r.Do(t, "GET", "/v2/app/manifests/v1", "").Want(t, 200, "")
	eventually(t, "it is cached", func() bool {
		before := r.DB.Pool.Stat().AcquireCount()
		r.Do(t, "GET", "/v2/app/manifests/v1", "").Want(t, 200, "")
		return r.DB.Pool.Stat().AcquireCount() == before
	})
	if recorder.Pending() == 0 { // both pulls become one entry
		t.Errorf("%d pulls are pending", recorder.Pending())
	}
}

// TestActsAreLogged: an operator starts garbage collection, starts a check of the store, and
// retries failed reviews. Each of these must leave one audit entry. A retry that finds no
// failed review must leave none.
func TestActsAreLogged(t *testing.T) {
	t.Parallel()
	r := setup(t)
	for path, kind := range map[string]audit.Kind{"/gc/run": audit.RunGC, "/check": audit.RunCheck} {
		var started struct{ ID string }
		a := r.Manage(t, "POST", path, "{}").WantStatus(t, 202)
		if err := json.Unmarshal(a.Content, &started); err != nil {
			t.Fatal(err)
		}
		eventually(t, "an entry of "+path, func() bool {
			list := r.Entries(t, audit.Filter{Kinds: []audit.Kind{kind}})
			return len(list) == 1 && strings.Contains(string(list[0].Detail.(json.RawMessage)), started.ID) && list[0].Address == "127.0.0.1"
		})
	}
	if err := r.Distribution.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := r.DB.Pool.Exec(t.Context(), `INSERT INTO gc_blob_review_queue (digest, event, set_aside_at)
		SELECT decode(lpad(n::text, 66, '01'), 'hex'), 'blob_upload', now() FROM generate_series(1, 3) n`); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second finds nothing
		r.Manage(t, "POST", "/gc/retry", "{}").WantStatus(t, 200)
	}
	r.WantLog(t, audit.Filter{Kinds: []audit.Kind{audit.RetryGC}}, `retry_gc     {"kind": "blob", "reviews": 3}`)
}
