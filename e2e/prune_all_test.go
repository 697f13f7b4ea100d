//go:build all

package e2e

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/purser-registry/purser/internal/db/dbtest"
)

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
