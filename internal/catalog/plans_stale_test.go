package catalog_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/catalog/browse"
	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/testscale"
)

// manyRows is the number of manifests, and of tags, in the repository of
// TestPlansOfLargeRepository.
const manyRows = 3000

// TestPlansOfLargeRepository works in a repository that is much larger than all others. The
// planner's statistics are from a time when there were no repositories, or only small ones.
// With these statistics, a database index that leads to a whole repository looks as good as
// the index that leads to a single row. After db.AnalyzeGrown has analyzed the tables that
// have grown, no operation may read the whole repository.
func TestPlansOfLargeRepository(t *testing.T) {
	t.Parallel()
	const repositories = 1000
	for name, before := range map[string]struct {
		namespaces, filled int
		night              bool // only with the build tag "all"
	}{
		"never analyzed": {1, -1, false}, "analyzed empty": {1, 0, true}, "analyzed with many repositories": {1, 300, true},
		// The planner expects the product of what the namespace and the repository select, so
		// that an index that leads to a repository seems to lead to less than one row.
		"analyzed with many namespaces": {200, repositories, false},
	} {
		if before.night && !testscale.All {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn := dbtest.DSN(t)
			conn, err := pgx.Connect(t.Context(), dsn)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close(t.Context()) //nolint:errcheck // the database goes anyway
			exec := func(sql string, args ...any) {
				t.Helper()
				if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
					t.Fatal(err)
				}
			}
			exec(`INSERT INTO top_level_namespaces (name) SELECT CASE WHEN i = 1 THEN 'acme' ELSE 'acme' || i END FROM generate_series(1, $1::int) i`, before.namespaces)
			exec(`INSERT INTO repositories (top_level_namespace_id, path)
				SELECT n.id, n.name || '/small' || i FROM top_level_namespaces n, generate_series(1, $1::int / $2::int) i`, max(before.filled, 300), before.namespaces)
			if before.filled > 0 {
				exec(fillRepositories, "acme%/small%")
			}
			if before.filled >= 0 {
				exec("ANALYZE")
			}
			exec(`INSERT INTO repositories (top_level_namespace_id, path) SELECT id, 'acme/large' FROM top_level_namespaces WHERE name = 'acme'`)
			d := dbtest.Open(t, dsn)
			for _, sql := range fillLarge {
				exec(sql, manyRows)
				exec("SELECT pg_stat_force_next_flush()")
				if _, err := d.AnalyzeGrown(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if tables, err := d.AnalyzeGrown(t.Context()); err != nil || len(tables) > 0 {
				t.Fatalf("%v were analyzed twice, %v", tables, err)
			}
			d.Close()
			run := func(name string, limit int64, op func(b bundle, i int) error) {
				t.Helper()
				before := catalogtest.RowsRead(t, conn)
				t.Run(name, func(t *testing.T) { // the subtest's end closes its pools, and so publishes how many rows they read
					b := replica(t, dsn)
					for i := range 7 { // from the sixth run on PostgreSQL may use a generic plan
						if err := op(b, i); err != nil {
							t.Fatal(err)
						}
					}
				})
				catalogtest.Alone(t, conn)
				total := int64(0)
				var most string
				for index, n := range catalogtest.RowsRead(t, conn) {
					if n -= before[index]; n > 0 {
						total += n
						most += fmt.Sprintf(" %s: %d", index, n)
					}
				}
				if total > limit*7 {
					t.Errorf("%s reads %d rows:%s", name, total/7, most)
				}
			}
			staleOperations(t, run)
		})
	}
}

func staleOperations(t *testing.T, run func(name string, limit int64, op func(b bundle, i int) error)) {
	ctx := t.Context()
	path := "acme/large"
	manifest := func(i int) oci.Digest { return oci.Compute(oci.SHA256, fmt.Appendf(nil, "manifest %d", i)) }
	blob := func(i int) oci.Digest { return oci.Compute(oci.SHA256, fmt.Appendf(nil, "blob %d", i)) }
	run("manifest by tag", 100, func(b bundle, i int) error { return second(b.ManifestByTag(ctx, path, fmt.Sprint("t", i+1))) })
	run("manifest by digest", 100, func(b bundle, i int) error { return second(b.ManifestByDigest(ctx, path, manifest(i+1))) })
	run("promised manifest", 100, func(b bundle, i int) error { return second(b.PromiseManifestExists(ctx, path, manifest(i+1))) })
	run("blob", 100, func(b bundle, i int) error { return second(b.Blob(ctx, path, blob(i+1))) })
	run("promised blob", 100, func(b bundle, i int) error { return second(b.PromiseBlobExists(ctx, path, blob(i+1))) })
	run("mounted blob", 100, func(b bundle, i int) error { return second(b.Mount(ctx, "acme/small1", path, blob(i+1))) })
	run("sources of a blob", 100, func(b bundle, i int) error {
		return second(browse.New(b.Catalog).Sources(ctx, browse.Everyone, blob(i+1), 10))
	})
	run("explained manifest", 600, func(b bundle, i int) error { return second(b.ExplainManifest(ctx, path, manifest(i+1))) })
	run("explained blob", 200, func(b bundle, i int) error { return second(b.ExplainBlob(ctx, blob(i+1))) })
	run("described manifest", 600, func(b bundle, i int) error {
		return second(browse.New(b.Catalog).DescribeManifest(ctx, path, manifest(i+1)))
	})
	run("described index", 400, func(b bundle, i int) error {
		return second(browse.New(b.Catalog).DescribeManifest(ctx, path, manifest(manyRows-i)))
	})
	run("manifests by a short digest", 100, func(b bundle, i int) error {
		begin, err := oci.ParseShortDigest(manifest(i + 1).Hex()[:6])
		if err != nil {
			return err
		}
		found, more, err := browse.New(b.Catalog).ManifestsByShortDigest(ctx, path, begin)
		if err == nil && (len(found) == 0 || more) {
			return fmt.Errorf("%d manifests begin with %s", len(found), begin)
		}
		return err
	})
	run("page of tags", 200, func(b bundle, i int) error { _, _, err := b.Tags(ctx, path, "t5", 10); return err })
	run("details of tags", 800, func(b bundle, i int) error {
		return second(browse.New(b.Catalog).Tags(ctx, path, browse.TagQuery{NameFilter: browse.NameFilter{Prefix: "t"}, Descending: true, Limit: 10}))
	})
	run("details of repositories", 2500, func(b bundle, i int) error {
		_, _, err := browse.New(b.Catalog).Repositories(ctx, browse.Everyone, browse.RepositoryQuery{NameFilter: browse.NameFilter{Prefix: path}, Limit: 10})
		return err
	})
	run("referrers", 200, func(b bundle, i int) error {
		_, _, err := b.Referrers(ctx, path, manifest(i+1), "", 0, 10)
		return err
	})
	run("present", 400, func(b bundle, i int) error {
		return second(b.Present(ctx, path, []string{"t1", "t2"}, []oci.Digest{manifest(i + 1), manifest(i + 2)}))
	})
	image := func(i int) []byte {
		return catalogtest.Image(t, blob(i+1), []oci.Digest{blob(i + 2), blob(i + 3)}, nil)
	}
	put := func(b bundle, payload []byte, tags ...string) error {
		return second(b.TryPut(ctx, path, payload, tags...))
	}
	run("put image", 300, func(b bundle, i int) error { return put(b, image(i), fmt.Sprint("new", i)) })
	run("put image again", 300, func(b bundle, i int) error { return put(b, image(i), fmt.Sprint("new", i)) })
	run("put image without a tag", 300, func(b bundle, i int) error { return put(b, image(i+20)) })
	run("put over a tag", 300, func(b bundle, i int) error { return put(b, image(i), fmt.Sprint("t", i+30)) })
	run("put index", 400, func(b bundle, i int) error {
		return put(b, catalogtest.Index(t, oci.Compute(oci.SHA256, image(i))), fmt.Sprint("i", i))
	})
	run("delete tag", 200, func(b bundle, i int) error { return b.DeleteTag(ctx, path, fmt.Sprint("t", i+200)) })
	run("delete tag of many", 200, func(b bundle, i int) error { return b.DeleteTag(ctx, path, fmt.Sprint("many", i+200)) })
	run("restore tag", 200, func(b bundle, i int) error { return b.RestoreTag(ctx, path, fmt.Sprint("t", i+200), manifest(i+200)) })
	run("delete manifest", 500, func(b bundle, i int) error { return b.DeleteManifest(ctx, path, manifest(manyRows*17/20+i)) })
	run("delete index", 500, func(b bundle, i int) error { return b.DeleteManifest(ctx, path, manifest(manyRows-i-3)) })
	run("delete blob", 300, func(b bundle, i int) error { return b.DeleteBlob(ctx, path, blob(manyRows+i+1)) })
	reviewed := func(n int, err error) error {
		if err == nil && n == 0 {
			err = errors.New("nothing was reviewed")
		}
		return err
	}
	run("make all due", 2*manyRows, func(b bundle, i int) error {
		if i > 0 {
			return nil
		}
		b.DueNow(t)
		_, err := b.DB.Pool.Exec(ctx, "VACUUM gc_manifest_review_queue, gc_blob_review_queue")
		return err
	})
	run("review of manifests", 1000, func(b bundle, i int) error { return reviewed(b.TryReview(ctx, "manifest", 10)) })
	run("review of blobs", 1000, func(b bundle, i int) error { return reviewed(b.TryReview(ctx, "blob", 10)) })
}

// fillRepositories inserts a blob, a manifest and a tag into each repository whose path is
// LIKE $1.
const fillRepositories = `
	WITH r AS (SELECT * FROM repositories WHERE path LIKE $1), b AS (
		INSERT INTO blobs (digest, size, storage_key)
		SELECT '\x01'::bytea || sha256(('small ' || id)::bytea), 1, 'small' || id FROM r RETURNING digest, storage_key
	), l AS (
		INSERT INTO repository_blobs (top_level_namespace_id, repository_id, blob_digest)
		SELECT r.top_level_namespace_id, r.id, b.digest FROM r JOIN b ON b.storage_key = 'small' || r.id
	), m AS (
		INSERT INTO manifests (top_level_namespace_id, repository_id, digest, media_type, configuration_blob_digest, payload, total_size)
		SELECT r.top_level_namespace_id, r.id, '\x01'::bytea || sha256(('small manifest ' || r.id)::bytea), 'm', b.digest, '{}', 1
		FROM r JOIN b ON b.storage_key = 'small' || r.id RETURNING *
	), y AS (
		INSERT INTO layers (top_level_namespace_id, repository_id, manifest_id, digest, size, media_type)
		SELECT top_level_namespace_id, repository_id, id, configuration_blob_digest, 1, 'm' FROM m)
	INSERT INTO tags (top_level_namespace_id, repository_id, name, manifest_id)
	SELECT top_level_namespace_id, repository_id, 'latest', id FROM m`

// fillLarge fills acme/large with $1 manifests: 80 % are images with a blob each, 10 % are
// images whose subject is one of the first fifty, and 10 % are indexes of eight images. Each
// manifest has a tag, and the first image has $1 further tags. A few blobs are unused.
var fillLarge = []string{`
	INSERT INTO blobs (digest, size, storage_key)
	SELECT '\x01'::bytea || sha256(('blob ' || i)::bytea), 1, 'large' || i FROM generate_series(1, $1::int + 10) i`, `
	INSERT INTO repository_blobs (top_level_namespace_id, repository_id, blob_digest)
	SELECT r.top_level_namespace_id, r.id, b.digest FROM repositories r, blobs b WHERE r.path = 'acme/large' AND $1::int > 0 AND b.storage_key LIKE 'large%'`, `
	INSERT INTO manifests (top_level_namespace_id, repository_id, digest, media_type, configuration_blob_digest, subject_digest, payload, total_size)
	SELECT r.top_level_namespace_id, r.id, '\x01'::bytea || sha256(('manifest ' || i)::bytea), 'm',
		CASE WHEN i <= $1::int * 0.9 THEN '\x01'::bytea || sha256(('blob ' || i)::bytea) END,
		CASE WHEN i > $1::int * 0.8 AND i <= $1::int * 0.9 THEN '\x01'::bytea || sha256(('manifest ' || i % 50)::bytea) END,
		('{"n": ' || i || '}')::bytea, 1
	FROM repositories r, generate_series(1, $1::int) i WHERE r.path = 'acme/large' ORDER BY i`, `
	INSERT INTO layers (top_level_namespace_id, repository_id, manifest_id, digest, size, media_type)
	SELECT m.top_level_namespace_id, m.repository_id, m.id, m.configuration_blob_digest, 1, 'm'
	FROM manifests m JOIN repositories r ON r.id = m.repository_id WHERE r.path = 'acme/large' AND m.configuration_blob_digest IS NOT NULL AND $1::int > 0`, `
	INSERT INTO manifest_references (top_level_namespace_id, repository_id, parent_id, child_id)
	SELECT p.top_level_namespace_id, p.repository_id, p.id, c.id
	FROM (SELECT m.*, row_number() OVER (ORDER BY m.id) n FROM manifests m JOIN repositories r ON r.id = m.repository_id WHERE r.path = 'acme/large') p
	JOIN (SELECT m.*, row_number() OVER (ORDER BY m.id) n FROM manifests m JOIN repositories r ON r.id = m.repository_id WHERE r.path = 'acme/large') c
		ON c.n BETWEEN (p.n - $1::int * 0.9) * 8 + 1 AND (p.n - $1::int * 0.9) * 8 + 8
	WHERE p.n > $1::int * 0.9`, `
	INSERT INTO tags (top_level_namespace_id, repository_id, name, manifest_id)
	SELECT top_level_namespace_id, repository_id, 't' || n, id
	FROM (SELECT m.*, row_number() OVER (ORDER BY m.id) n FROM manifests m JOIN repositories r ON r.id = m.repository_id WHERE r.path = 'acme/large') m
	WHERE $1::int > 0`, `
	INSERT INTO tags (top_level_namespace_id, repository_id, name, manifest_id)
	SELECT m.top_level_namespace_id, m.repository_id, 'many' || i, m.id
	FROM (SELECT m.* FROM manifests m JOIN repositories r ON r.id = m.repository_id WHERE r.path = 'acme/large' ORDER BY m.id LIMIT 1) m, generate_series(1, $1::int) i`,
}
