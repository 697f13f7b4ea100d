// Package autoprunetest helps tests of auto-pruning. It writes repositories, manifests, tags and holds into a
// database of the test.
package autoprunetest

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/autoprune/warnings"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/hold"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/policy"
	"github.com/purser-registry/purser/internal/protection"
)

// Day is a day.
const Day = 24 * time.Hour

// Quiet logs nothing.
var Quiet = slog.New(slog.DiscardHandler)

// Registry is a test database with a catalog. Its methods create repositories and tags in the
// database.
type Registry struct {
	T       testing.TB
	DSN     string
	DB      *db.DB
	Catalog *catalog.Catalog
}

// New makes a registry with a database of its own.
func New(t testing.TB) *Registry {
	t.Helper()
	return In(t, dbtest.DSN(t))
}

// In makes a registry in a database.
func In(t testing.TB, dsn string) *Registry {
	t.Helper()
	r := &Registry{T: t, DSN: dsn, DB: dbtest.Open(t, dsn)}
	r.Catalog = r.NewCatalog()
	return r
}

// NewCatalog is the catalog of another process on the same database.
func (r *Registry) NewCatalog() *catalog.Catalog {
	return catalog.New(catalog.Options{DB: r.DB, CacheOff: true, Log: Quiet})
}

// Background opens the connection pool of a worker.
func (r *Registry) Background() *db.DB {
	r.T.Helper()
	pool, err := db.Open(r.T.Context(), db.Options{DSN: r.DSN, ApplicationName: "pruner", LockTimeout: 200 * time.Millisecond, Log: Quiet})
	r.Must(err)
	r.T.Cleanup(pool.Close)
	return pool
}

// Must ends the test if there is an error.
func (r *Registry) Must(err error) {
	r.T.Helper()
	if err != nil {
		r.T.Fatal(err)
	}
}

// Exec runs a statement.
func (r *Registry) Exec(sql string, args ...any) {
	r.T.Helper()
	if _, err := r.DB.Pool.Exec(context.WithoutCancel(r.T.Context()), sql, args...); err != nil {
		r.T.Fatalf("%s: %v", sql, err)
	}
}

// Value is the single value that a query returns.
func Value[T any](r *Registry, sql string, args ...any) (v T) {
	r.T.Helper()
	if err := r.DB.Pool.QueryRow(r.T.Context(), sql, args...).Scan(&v); err != nil {
		r.T.Fatalf("%s: %v", sql, err)
	}
	return v
}

// Values are the values that a query returns, one in each row.
func Values[T any](r *Registry, sql string, args ...any) []T {
	r.T.Helper()
	rows, err := r.DB.Pool.Query(r.T.Context(), sql, args...)
	r.Must(err)
	out, err := pgx.CollectRows(rows, pgx.RowTo[T])
	r.Must(err)
	return out
}

// Repository makes a repository.
func (r *Registry) Repository(path string) catalog.Repository {
	r.T.Helper()
	r.Exec("INSERT INTO top_level_namespaces (name) VALUES (split_part($1, '/', 1)) ON CONFLICT DO NOTHING", path)
	r.Exec(`INSERT INTO repositories (top_level_namespace_id, path)
		SELECT id, $1 FROM top_level_namespaces WHERE name = split_part($1, '/', 1) ON CONFLICT DO NOTHING`, path)
	t, err := r.Catalog.FindRepository(r.T.Context(), path)
	r.Must(err)
	return t
}

// DigestOf is the digest of the manifest called name.
func DigestOf(name string) oci.Digest {
	d, err := oci.ParseDigest(fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(name))))
	if err != nil {
		panic(err)
	}
	return d
}

// Manifest creates the manifest that the test calls `name`, if it doesn't exist, and
// returns its id. `subject` is the name of the manifest's subject, or "" if it has none.
func (r *Registry) Manifest(t catalog.Repository, name, subject string) int64 {
	r.T.Helper()
	var about []byte
	if subject != "" {
		about = DigestOf(subject).Bytes()
	}
	r.Exec(`INSERT INTO manifests (top_level_namespace_id, repository_id, digest, media_type, subject_digest, payload, total_size)
		VALUES ($1, $2, $3, 'application/vnd.oci.image.manifest.v1+json', $4, '{}', 2)
		ON CONFLICT DO NOTHING`, t.NamespaceID, t.ID, DigestOf(name).Bytes(), about)
	return Value[int64](r, "SELECT id FROM manifests WHERE repository_id = $1 AND digest = $2", t.ID, DigestOf(name).Bytes())
}

// Tag creates or moves a tag, as if a client had pushed it. The push was `age` ago.
func (r *Registry) Tag(t catalog.Repository, name, manifest string, age time.Duration) {
	r.T.Helper()
	id := r.Manifest(t, manifest, "")
	r.Exec(`INSERT INTO tags (top_level_namespace_id, repository_id, name, manifest_id, created_at)
		VALUES ($1, $2, $3, $4, now() - $5::interval)
		ON CONFLICT (repository_id, top_level_namespace_id, name) DO UPDATE
		SET manifest_id = EXCLUDED.manifest_id, updated_at = EXCLUDED.created_at`, t.NamespaceID, t.ID, name, id, age)
}

// Layer gives a manifest a layer, whose blob has a size.
func (r *Registry) Layer(t catalog.Repository, manifest, name string, size int64) {
	r.T.Helper()
	r.Exec("INSERT INTO blobs (digest, size, storage_key) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING", DigestOf(name).Bytes(), size, name)
	r.Exec(`INSERT INTO repository_blobs (top_level_namespace_id, repository_id, blob_digest) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING`,
		t.NamespaceID, t.ID, DigestOf(name).Bytes())
	r.Exec(`INSERT INTO layers (top_level_namespace_id, repository_id, manifest_id, digest, size, media_type)
		VALUES ($1, $2, $3, $4, $5, 'application/vnd.oci.image.layer.v1.tar')`,
		t.NamespaceID, t.ID, r.Manifest(t, manifest, ""), DigestOf(name).Bytes(), size)
}

// Index lets a manifest list others.
func (r *Registry) Index(t catalog.Repository, parent string, children ...string) {
	r.T.Helper()
	for _, c := range children {
		r.Exec(`INSERT INTO manifest_references (top_level_namespace_id, repository_id, parent_id, child_id) VALUES ($1, $2, $3, $4)`,
			t.NamespaceID, t.ID, r.Manifest(t, parent, ""), r.Manifest(t, c, ""))
	}
}

// Tags are the names of a repository's tags.
func (r *Registry) Tags(t catalog.Repository) []string {
	r.T.Helper()
	return Values[string](r, "SELECT name FROM tags WHERE repository_id = $1 ORDER BY name", t.ID)
}

// Holds returns the holds of the registry's database.
func (r *Registry) Holds() *hold.Holds {
	r.T.Helper()
	h, err := hold.New(hold.Options{DB: r.DB, Log: Quiet})
	r.Must(err)
	return h
}

// Hold lets the reporter prod of a namespace hold the manifests with these names, and no others.
func (r *Registry) Hold(namespace string, manifests ...string) hold.Reported {
	r.T.Helper()
	done, err := r.Report(context.WithoutCancel(r.T.Context()), namespace, manifests...)
	r.Must(err)
	return done
}

// Report is Hold, and returns the error.
func (r *Registry) Report(ctx context.Context, namespace string, manifests ...string) (hold.Reported, error) {
	report := hold.Report{Full: true, By: hold.By{MayEnd: true}}
	for _, name := range manifests {
		report.Items = append(report.Items, hold.Item{Digest: DigestOf(name), UsedBy: "pod " + name})
	}
	return r.Holds().Report(ctx, hold.Place{Namespace: namespace, Reporter: "prod"}, report)
}

// Protect protects the tags whose names match a pattern.
func (r *Registry) Protect(s protection.Scope, pattern string) error {
	p, err := oci.ParseTagPattern(pattern)
	if err != nil {
		return err
	}
	_, err = protection.New(protection.Options{DB: r.Catalog.DB()}).Create(context.WithoutCancel(r.T.Context()), s, p)
	return err
}

// Reporter lets a reporter report that it runs nothing.
func (r *Registry) Reporter(namespace any, name string, lease time.Duration) {
	r.T.Helper()
	r.Exec(`INSERT INTO holdreporters (namespace_id, name, lease, expires_at) VALUES ($1, $2, $3, now() + $3::interval)
		ON CONFLICT (namespace_id, name) DO UPDATE SET reported_at = now(), expires_at = now() + $3::interval`, namespace, name, lease)
}

// Await waits until a query returns true.
func (r *Registry) Await(sql string) {
	r.T.Helper()
	for end := time.Now().Add(2 * time.Minute); !Value[bool](r, sql); {
		if time.Now().After(end) {
			r.T.Fatalf("still not so: %s", sql)
		}
		time.Sleep(time.Millisecond)
	}
}

// Parsed parses a policy that must be right.
func Parsed(t rapid.TB, text string) policy.Policy {
	t.Helper()
	p, err := policy.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Policy saves a policy, and returns its id.
func (r *Registry) Policy(s *policies.Store, t policies.Target, text string) string {
	r.T.Helper()
	id, err := s.Create(r.T.Context(), t, Parsed(r.T, text))
	r.Must(err)
	return id
}

// OfPolicy returns the warnings of a new policy by code.
func (r *Registry) OfPolicy(f *warnings.Finder, t policies.Target, text string) map[policy.WarningCode]policy.Warning {
	r.T.Helper()
	p := Parsed(r.T, text)
	return r.OfChange(f, t, warnings.Change{Policy: &p})
}

// OfChange returns the warnings of a change of policies by code.
func (r *Registry) OfChange(f *warnings.Finder, t policies.Target, c warnings.Change) map[policy.WarningCode]policy.Warning {
	r.T.Helper()
	list, err := f.OfChange(r.T.Context(), t, c)
	r.Must(err)
	found := make(map[policy.WarningCode]policy.Warning)
	for _, w := range list {
		found[w.Code] = w
	}
	return found
}
