package catalogtest

import (
	"context"
	"log/slog"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/loosefk"
)

// LooseKeys returns a worker of loose foreign keys, which deletes the rows of deleted
// repositories and namespaces when the test runs it.
func (b Bundle) LooseKeys(t *testing.T, o loosefk.Options) *loosefk.Worker {
	t.Helper()
	cfg := b.DB.Pool.Config()
	delete(cfg.ConnConfig.RuntimeParams, "purser.replica")
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	o.Databases, o.Definitions, err = db.LooseForeignKeys(t.Context(), pool, pool)
	if err != nil {
		t.Fatal(err)
	}
	o.Log = slog.New(slog.DiscardHandler)
	w, err := loosefk.New(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := loosefk.Validate(t.Context(), o.Databases, o.Definitions); err != nil {
		t.Fatal(err)
	}
	return w
}

// Drain runs the worker until no rows of deleted repositories and namespaces are left to
// delete.
func (b Bundle) Drain(t *testing.T, w *loosefk.Worker) {
	t.Helper()
	for range 100 {
		r, err := w.RunOnce(t.Context(), "main")
		if err != nil {
			t.Fatal(err)
		}
		if r.Records == 0 {
			return
		}
	}
	t.Fatal("there is always more to drain")
}

// NoOrphans checks that no rows of deleted repositories or namespaces are left in the tables.
func (b Bundle) NoOrphans(t *testing.T) {
	t.Helper()
	for _, table := range []string{"tags", "manifest_references", "manifests", "repository_blobs", "layers", "gc_blobs_layers", "gc_blobs_configurations"} {
		if n := b.Count(t, "SELECT count(*) FROM "+table+" c WHERE NOT EXISTS (SELECT FROM repositories r WHERE r.id = c.repository_id)"); n != 0 {
			t.Errorf("%d rows of %s are left of repositories that are gone", n, table)
		}
	}
	if n := b.Count(t, `SELECT count(*) FROM repositories r
			WHERE NOT EXISTS (SELECT FROM top_level_namespaces n WHERE n.id = r.top_level_namespace_id)`); n != 0 {
		t.Errorf("%d repositories are left of namespaces that are gone", n)
	}
}

// Fill puts an image, an index that lists it, and a referrer of it into the repository path.
// It returns the image's digest.
func (b Bundle) Fill(t *testing.T, path string) (img oci.Digest) {
	t.Helper()
	config, layer := b.Push(t, path, "config"), b.Push(t, path, "layer of "+path)
	img = b.Put(t, path, Image(t, config, []oci.Digest{layer}, nil), "image", "also")
	b.Put(t, path, Index(t, img), "index")
	b.Put(t, path, Image(t, config, nil, map[string]any{"subject": map[string]any{
		"mediaType": oci.MediaTypeImageManifest, "digest": img.String(), "size": 1,
	}}))
	return img
}

// Alone waits until conn is the only connection to its database.
func Alone(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	Eventually(t, "all others have gone", func() bool {
		var n int
		if err := conn.QueryRow(context.WithoutCancel(t.Context()), "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n == 1
	})
}
