package autoprune_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/policy"
	"github.com/purser-registry/purser/internal/testscale"
)

const day = 24 * time.Hour

func TestMain(m *testing.M) {
	testscale.Properties()
	dbtest.Main(m)
}

// registry is a test database with a catalog and a pruner. Its methods create repositories,
// tags and policies in the database.
type registry struct {
	t       testing.TB
	dsn     string
	db      *db.DB
	catalog *catalog.Catalog
	pruner  *autoprune.Pruner
}

func setup(t testing.TB, change ...func(*autoprune.Options)) *registry {
	t.Helper()
	r := &registry{t: t, dsn: dbtest.DSN(t)}
	r.db = dbtest.Open(t, r.dsn)
	r.catalog, r.pruner = r.replica(change...)
	return r
}

// replica is another process on the same database.
func (r *registry) replica(change ...func(*autoprune.Options)) (*catalog.Catalog, *autoprune.Pruner) {
	r.t.Helper()
	background, err := db.Open(r.t.Context(), db.Options{DSN: r.dsn, ApplicationName: "pruner", LockTimeout: 200 * time.Millisecond, Log: quiet})
	r.must(err)
	r.t.Cleanup(background.Close)
	c := catalog.New(catalog.Options{DB: r.db, CacheOff: true, Log: quiet})
	o := autoprune.Options{DB: r.db, Catalog: c, Background: background, Interval: time.Millisecond, Log: quiet}
	for _, f := range change {
		f(&o)
	}
	p, err := autoprune.New(o)
	r.must(err)
	return c, p
}

var quiet = slog.New(slog.DiscardHandler)

func (r *registry) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *registry) exec(sql string, args ...any) {
	r.t.Helper()
	if _, err := r.db.Pool.Exec(context.WithoutCancel(r.t.Context()), sql, args...); err != nil {
		r.t.Fatalf("%s: %v", sql, err)
	}
}

// value is the single value that a query returns.
func value[T any](r *registry, sql string, args ...any) (v T) {
	r.t.Helper()
	if err := r.db.Pool.QueryRow(r.t.Context(), sql, args...).Scan(&v); err != nil {
		r.t.Fatalf("%s: %v", sql, err)
	}
	return v
}

func values[T any](r *registry, sql string, args ...any) []T {
	r.t.Helper()
	rows, err := r.db.Pool.Query(r.t.Context(), sql, args...)
	r.must(err)
	out, err := pgx.CollectRows(rows, pgx.RowTo[T])
	r.must(err)
	return out
}

// repository makes a repository.
func (r *registry) repository(path string) catalog.Repository {
	r.t.Helper()
	r.exec("INSERT INTO top_level_namespaces (name) VALUES (split_part($1, '/', 1)) ON CONFLICT DO NOTHING", path)
	r.exec(`INSERT INTO repositories (top_level_namespace_id, path)
		SELECT id, $1 FROM top_level_namespaces WHERE name = split_part($1, '/', 1) ON CONFLICT DO NOTHING`, path)
	t, err := r.catalog.FindRepository(r.t.Context(), path)
	r.must(err)
	return t
}

// digestOf is the digest of the manifest called name.
func digestOf(name string) oci.Digest {
	d, err := oci.ParseDigest(fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(name))))
	if err != nil {
		panic(err)
	}
	return d
}

// prefixOf takes the name that a test gives to a manifest. It returns the prefix of the
// manifest's digest that a tag's name may contain.
func prefixOf(name string) oci.DigestPrefix {
	d, _, _ := oci.CutDigest("sha256-" + digestOf(name).Hex())
	return d
}

// manifest creates the manifest that the test calls `name`, if it doesn't exist, and
// returns its id. `subject` is the name of the manifest's subject, or "" if it has none.
func (r *registry) manifest(t catalog.Repository, name, subject string) int64 {
	r.t.Helper()
	var about []byte
	if subject != "" {
		about = digestOf(subject).Bytes()
	}
	r.exec(`INSERT INTO manifests (top_level_namespace_id, repository_id, digest, media_type, subject_digest, payload, total_size)
		VALUES ($1, $2, $3, 'application/vnd.oci.image.manifest.v1+json', $4, '{}', 2)
		ON CONFLICT DO NOTHING`, t.NamespaceID, t.ID, digestOf(name).Bytes(), about)
	return value[int64](r, "SELECT id FROM manifests WHERE repository_id = $1 AND digest = $2", t.ID, digestOf(name).Bytes())
}

// tag creates or moves a tag, as if a client had pushed it. The push was `age` ago.
func (r *registry) tag(t catalog.Repository, name, manifest string, age time.Duration) {
	r.t.Helper()
	id := r.manifest(t, manifest, "")
	r.exec(`INSERT INTO tags (top_level_namespace_id, repository_id, name, manifest_id, created_at)
		VALUES ($1, $2, $3, $4, now() - $5::interval)
		ON CONFLICT (repository_id, top_level_namespace_id, name) DO UPDATE
		SET manifest_id = EXCLUDED.manifest_id, updated_at = EXCLUDED.created_at`, t.NamespaceID, t.ID, name, id, age)
}

// layer gives a manifest a layer, whose blob has a size.
func (r *registry) layer(t catalog.Repository, manifest, name string, size int64) {
	r.t.Helper()
	r.exec("INSERT INTO blobs (digest, size, storage_key) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING", digestOf(name).Bytes(), size, name)
	r.exec(`INSERT INTO repository_blobs (top_level_namespace_id, repository_id, blob_digest) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING`,
		t.NamespaceID, t.ID, digestOf(name).Bytes())
	r.exec(`INSERT INTO layers (top_level_namespace_id, repository_id, manifest_id, digest, size, media_type)
		VALUES ($1, $2, $3, $4, $5, 'application/vnd.oci.image.layer.v1.tar')`,
		t.NamespaceID, t.ID, r.manifest(t, manifest, ""), digestOf(name).Bytes(), size)
}

// index lets a manifest list others.
func (r *registry) index(t catalog.Repository, parent string, children ...string) {
	r.t.Helper()
	for _, c := range children {
		r.exec(`INSERT INTO manifest_references (top_level_namespace_id, repository_id, parent_id, child_id) VALUES ($1, $2, $3, $4)`,
			t.NamespaceID, t.ID, r.manifest(t, parent, ""), r.manifest(t, c, ""))
	}
}

// tags are the names of a repository's tags.
func (r *registry) tags(t catalog.Repository) []string {
	r.t.Helper()
	return values[string](r, "SELECT name FROM tags WHERE repository_id = $1 ORDER BY name", t.ID)
}

// policy saves a policy.
func (r *registry) policy(t autoprune.Target, text string) string {
	r.t.Helper()
	p, err := policy.Parse([]byte(text))
	r.must(err)
	id, err := r.pruner.Create(r.t.Context(), t, p)
	r.must(err)
	return id
}

// run makes the tasks of all namespaces due, and lets the worker prune until every
// namespace was pruned once.
func (r *registry) run() {
	r.t.Helper()
	r.exec("UPDATE autoprunetaskstatus SET last_ran_ms = NULL")
	for range 1000 {
		_, err := r.pruner.Work(r.t.Context())
		r.must(err)
		if value[int](r, "SELECT count(*) FROM autoprunetaskstatus WHERE last_ran_ms IS NULL OR run IS NOT NULL") == 0 {
			return
		}
	}
	r.t.Fatal("there is always more to do")
}

// ensure lets the worker create tasks for the namespaces to which policies apply and that have none.
func (r *registry) ensure() {
	r.t.Helper()
	_, err := r.pruner.Work(r.t.Context())
	r.must(err)
}
