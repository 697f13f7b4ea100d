package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/purser-registry/purser/internal/db/dbtest"
)

// remote runs a command that calls this registry over the network, as from another machine.
// The command must succeed; remote returns its output.
func (r *registry) remote(args ...string) string {
	r.t.Helper()
	code, out := purser(r.t, []string{"PURSER_SERVER=" + r.URL()}, args...)
	if code != 0 {
		r.t.Fatalf("purser %s exited with %d:\n%s", strings.Join(args, " "), code, out)
	}
	return out
}

// says fails the test unless text contains all of want.
func says(t testing.TB, text string, want ...string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(text, w) {
			t.Errorf("nothing of %q in:\n%s", w, text)
		}
	}
}

// With commands and clients, the test previews an auto-prune policy, saves it, waits until the
// registry has deleted tags by it, and undoes the run.
func TestPruneFromPreviewToUndo(t *testing.T) {
	beginOwn(t)
	r := startRegistry(t, options{env: []string{"PURSER_AUTOPRUNE_INTERVAL=1s"}})
	crane := toolClient(t, "crane")
	digests := map[string]string{}
	for i := range 5 {
		name := fmt.Sprintf("v%d", i)
		image := newImage(t, 1, 4<<10)
		digests[name] = digestOf(t, image)
		crane.Run("push", writeImage(t, image, "v1"), r.Ref("app/web", name))
	}
	signature := "sha256-" + strings.TrimPrefix(digests["v0"], "sha256:") + ".sig"
	crane.Run("push", writeImage(t, newImage(t, 1, 1<<10), "v1"), r.Ref("app/web", signature))
	r.remote("protection", "add", "app", "v1")

	preview := r.remote("prune", "preview", "app", "--num-tags", "2")
	says(t, preview, "app/web:v0", "app/web:v2", "app/web:"+signature, "not among the newest 2", "belongs to an image that loses its last tag",
		"3 of 6 tags in 1 repository would be deleted")
	if strings.Contains(preview, "app/web:v1 ") {
		t.Errorf("a protected tag would go:\n%s", preview)
	}
	says(t, r.remote("policy", "create", "app", "--num-tags", "2"), "Created policy")
	says(t, r.remote("prune", "run", "app"), "success: deleted") // the worker may have come by itself before
	if got, want := strings.Fields(crane.Run("ls", r.host+"/app/web")), []string{"v1", "v3", "v4"}; !slices.Equal(got, want) {
		t.Errorf("tags after the run: %v, want %v", got, want)
	}
	var runs []struct {
		ID      string
		Deleted int64 `json:"tags_deleted"`
	}
	if err := json.Unmarshal([]byte(r.remote("prune", "runs", "app", "-o", "json")), &runs); err != nil {
		t.Fatal(err)
	}
	run := runs[len(runs)-1] // the first
	if run.Deleted != 3 {
		t.Fatalf("runs: %+v", runs)
	}
	says(t, r.remote("prune", "show", run.ID), "app/web")
	says(t, r.remote("audit", "list", "app", "--run", run.ID), "autoprune_tag_delete", "app/web:v0", "app/web:v2", signature)
	says(t, r.remote("prune", "undo", run.ID), "Restored 3 tags")
	for name, digest := range digests {
		if got := strings.TrimSpace(crane.Run("digest", r.Ref("app/web", name))); got != digest {
			t.Errorf("%s is %s after the undo, want %s", name, got, digest)
		}
	}
	says(t, r.remote("prune", "run", "app"), "success: deleted 0 of 6 tags")
	if code, out := purser(t, []string{"PURSER_SERVER=" + r.URL()}, "policy", "create", "app", "--older-than", "0d"); code != 2 || !strings.Contains(out, "--older-than") {
		t.Errorf("0d: exit code %d:\n%s", code, out)
	}
}

// Two replicas prune many namespaces, and one of them is killed meanwhile. In the end every
// repository must have its newest tags, the audit log must have every deleted tag once, and
// every run must have ended.
func TestPruneSurvivesKill9(t *testing.T) {
	beginOwn(t)
	const namespaces, repositories, tags, keep = 6, 4, 1500, 20
	dsn := dbtest.EmptyDSN(t)
	store := newDir(t)
	env := []string{
		"PURSER_DATABASE_MAIN=" + dsn, "PURSER_STORAGE_FILESYSTEM_PATH=" + store, "PURSER_AUTOPRUNE_INTERVAL=1s",
		"PURSER_LOG_ACCESS=false",
	}
	a := startRegistry(t, options{env: env})
	b := startRegistry(t, options{env: env})
	db := openPool(t, dsn)
	fillForPruning(t, db, namespaces, repositories, tags)
	for i := range namespaces {
		a.manage("POST", fmt.Sprintf("/organization/n%d/autoprunepolicy", i), map[string]any{"method": "number_of_tags", "numTags": keep}, nil, 201)
	}
	deleted := func() int {
		return column[int](t, db, "SELECT count(*) FROM auditlog WHERE kind = 'autoprune_tag_delete'")[0]
	}
	eventually(t, time.Minute, func() error {
		if n := deleted(); n == 0 {
			return errors.New("nothing is pruned")
		}
		return nil
	})
	a.Kill9()
	const all = namespaces * repositories * (tags - keep)
	eventually(t, 3*time.Minute, func() error { // the killed replica's lease must end
		if n := deleted(); n < all {
			return fmt.Errorf("%d of %d tags are pruned", n, all)
		}
		return nil
	})
	eventually(t, 2*time.Minute, func() error {
		if n := column[int](t, db, "SELECT count(*) FROM autopruneruns WHERE state = 'running'")[0]; n > 0 {
			return fmt.Errorf("%d runs have not ended", n)
		}
		return nil
	})
	for _, left := range column[string](t, db, `
		SELECT r.path || ' ' || count(*) || ' ' || min(t.created_at) FROM tags t JOIN repositories r ON r.id = t.repository_id
		GROUP BY r.id HAVING count(*) <> $1 OR min(t.created_at) < now() - interval '1 minute' * ($1 + 30)`, keep) {
		t.Errorf("a repository has other tags than the newest %d: %s", keep, left)
	}
	if n := column[int](t, db, "SELECT count(DISTINCT (repository, tag)) FROM auditlog WHERE kind = 'autoprune_tag_delete'")[0]; n != all || deleted() != all {
		t.Errorf("%d entries about %d tags, want %d", deleted(), n, all)
	}
	if n := column[int64](t, db, "SELECT sum(deleted)::bigint FROM autopruneruns")[0]; n != all {
		t.Errorf("the runs count %d tags, want %d", n, all)
	}
	says(t, b.remote("prune", "status", "n0"), "success")
}

// fillForPruning inserts namespaces, repositories and tags. In each repository, tag i was
// pushed i minutes ago.
func fillForPruning(t testing.TB, db *pgxpool.Pool, namespaces, repositories, tags int) {
	t.Helper()
	mustExec(t, db, "INSERT INTO top_level_namespaces (name) SELECT 'n' || i FROM generate_series(0, $1::int - 1) AS i", namespaces)
	mustExec(t, db, `INSERT INTO repositories (top_level_namespace_id, path)
		SELECT id, name || '/r' || i FROM top_level_namespaces, generate_series(1, $1::int) AS i`, repositories)
	mustExec(t, db, `INSERT INTO manifests (top_level_namespace_id, repository_id, digest, media_type, payload, total_size)
		SELECT top_level_namespace_id, id, '\x01'::bytea || sha256(convert_to(path, 'UTF8')), 'application/vnd.oci.image.manifest.v1+json', '{}', 2
		FROM repositories`)
	mustExec(t, db, `INSERT INTO tags (top_level_namespace_id, repository_id, name, manifest_id, created_at)
		SELECT m.top_level_namespace_id, m.repository_id, 't' || i, m.id, now() - interval '1 minute' * i
		FROM manifests m, generate_series(1, $1::int) AS i`, tags)
}
