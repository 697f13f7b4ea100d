// Package catalogtest has helpers for tests that need a catalog with a database of their own:
// for pushes and manifests, for database sessions in the place of concurrent clients, and for
// checks of the tables. It imports package gc, so that tests of the catalog can run garbage
// collection.
package catalogtest

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/catalog/trash"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/gc"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/protection"
	"github.com/purser-registry/purser/internal/quota"
	"github.com/purser-registry/purser/internal/testscale"
)

// Bundle is a catalog on a database that belongs to one test, with a garbage collector, with the
// quotas of namespaces and with the trash.
type Bundle struct {
	*catalog.Catalog
	*gc.Collector
	DB     *db.DB
	Quotas *quota.Keeper
	Trash  *trash.Can
	// Protection changes the rules that protect tags.
	Protection *protection.Keeper
}

// Setup makes a database that belongs to the test, and opens a catalog on it.
func Setup(t *testing.T) Bundle {
	t.Helper()
	return Replica(t, dbtest.DSN(t))
}

// AtBoth runs a test on a database with the default number of hash partitions, and with the build
// tag "all" on one with 64 too. AlwaysAtBoth does both in "make test": to clone a database with 64
// partitions takes 0.26 s of CPU instead of 0.04 s.
func AtBoth(t *testing.T, test func(t *testing.T, dsn string)) {
	t.Helper()
	partitions := []int{db.DefaultPartitions}
	if testscale.All {
		partitions = append(partitions, 64)
	}
	at(t, partitions, test)
}

// AlwaysAtBoth runs a test on a database with the default number of hash partitions and on one
// with 64.
func AlwaysAtBoth(t *testing.T, test func(t *testing.T, dsn string)) {
	t.Helper()
	at(t, []int{db.DefaultPartitions, 64}, test)
}

func at(t *testing.T, partitions []int, test func(t *testing.T, dsn string)) {
	t.Parallel()
	for _, n := range partitions {
		t.Run(fmt.Sprintf("%d partitions", n), func(t *testing.T) {
			t.Parallel()
			test(t, dbtest.DSNPartitions(t, n))
		})
	}
}

// Replica opens another catalog on the database dsn, with a replica id of its own, as another
// process of the registry would. `change` changes its options. What is deleted isn't kept.
func Replica(t *testing.T, dsn string, change ...func(*catalog.Options)) Bundle {
	t.Helper()
	return WithTrash(t, dsn, 0, change...)
}

// WithTrash is like Replica, with a trash that keeps for as long what is deleted.
func WithTrash(t *testing.T, dsn string, keep time.Duration, change ...func(*catalog.Options)) Bundle {
	t.Helper()
	id := uuid.New()
	d, err := db.Open(t.Context(), db.Options{DSN: dsn, Replica: id.String(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	reviews, err := db.Open(t.Context(), db.Options{DSN: dsn, LockTimeout: 200 * time.Millisecond, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(reviews.Close)
	log := slog.New(slog.DiscardHandler)
	o := catalog.Options{DB: d, Background: reviews, Replica: id, Log: log}
	for _, f := range change {
		f(&o)
	}
	return open(o, keep)
}

// open makes the parts of a bundle.
func open(o catalog.Options, keep time.Duration) Bundle {
	o.Quotas = quota.New(quota.Options{DB: o.DB, TrashKeep: keep, Log: o.Log})
	c := catalog.New(o)
	return Bundle{
		Catalog: c, Collector: gc.New(gc.Options{Catalog: c, DB: o.DB, Reviews: o.Background, Log: o.Log}), DB: o.DB, Quotas: o.Quotas,
		Trash:      trash.New(trash.Options{Catalog: c, Background: o.Background, Keep: keep, CheckTime: o.CheckTime}),
		Protection: protection.New(protection.Options{DB: o.DB}),
	}
}

// Listen runs Catalog.Listen until the test ends. It returns when requests may use the caches.
func (b Bundle) Listen(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- b.Catalog.Listen(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("listening: %v", err)
		}
	})
	b.WaitCaching(t)
}

func (b Bundle) WaitCaching(t *testing.T) {
	t.Helper()
	Eventually(t, "caches in use", b.Caching)
}

// Eventually waits until `ok` returns true. It fails the test if this takes longer than 2 min;
// `what` names the awaited event in the message.
func Eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// Push stores content as a blob in repository path.
func (b Bundle) Push(t *testing.T, path, content string) oci.Digest {
	t.Helper()
	d, err := b.TryPush(t.Context(), path, content)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func (b Bundle) TryPush(ctx context.Context, path, content string) (oci.Digest, error) {
	d := oci.Compute(oci.SHA256, []byte(content))
	list, err := b.StartUploads(ctx, catalog.StartOptions{N: 1})
	if err != nil {
		return d, err
	}
	u := list[0]
	u.Repository, u.Size = path, int64(len(content))
	return d, b.CommitUpload(ctx, u, d, fmt.Sprintf("%s-%d", u.StorageKey, u.Ticket), false)
}

// Image returns a manifest of existing blobs.
func Image(t *testing.T, config oci.Digest, layers []oci.Digest, more map[string]any) []byte {
	t.Helper()
	descriptor := func(mt string, d oci.Digest) map[string]any {
		return map[string]any{"mediaType": mt, "digest": d.String(), "size": 1}
	}
	m := map[string]any{
		"schemaVersion": 2, "mediaType": oci.MediaTypeImageManifest,
		"config": descriptor("application/vnd.oci.image.config.v1+json", config),
	}
	list := []any{}
	for _, l := range layers {
		list = append(list, descriptor("application/vnd.oci.image.layer.v1.tar+gzip", l))
	}
	m["layers"] = list
	for k, v := range more {
		m[k] = v
	}
	payload, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return payload
}

func Index(t *testing.T, children ...oci.Digest) []byte {
	t.Helper()
	list := []any{}
	for _, d := range children {
		list = append(list, map[string]any{"mediaType": oci.MediaTypeImageManifest, "digest": d.String(), "size": 1})
	}
	payload, err := json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": oci.MediaTypeImageIndex, "manifests": list})
	if err != nil {
		t.Fatal(err)
	}
	return payload
}

// SubjectOf returns a manifest with a subject.
func SubjectOf(t *testing.T, config, subject oci.Digest) []byte {
	t.Helper()
	return Image(t, config, nil, map[string]any{"artifactType": "application/x", "subject": map[string]any{
		"mediaType": oci.MediaTypeImageManifest, "digest": subject.String(), "size": 1}})
}

// Numbered returns an image manifest that has n in an annotation, so that different numbers
// make different manifests.
func Numbered(t *testing.T, n int, config oci.Digest, layers ...oci.Digest) []byte {
	t.Helper()
	return Image(t, config, layers, map[string]any{"annotations": map[string]string{"n": fmt.Sprint(n)}})
}

func (b Bundle) Put(t *testing.T, path string, payload []byte, tags ...string) oci.Digest {
	t.Helper()
	d, err := b.TryPut(t.Context(), path, payload, tags...)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func (b Bundle) TryPut(ctx context.Context, path string, payload []byte, tags ...string) (oci.Digest, error) {
	d := oci.Compute(oci.SHA256, payload)
	m, err := oci.ParseManifest("", payload)
	if err != nil {
		return d, err
	}
	return d, b.PutManifest(ctx, catalog.NewManifest{Repository: path, Digest: d, Manifest: m, Payload: payload, Tags: tags})
}

// Count returns the number that a query returns.
func (b Bundle) Count(t *testing.T, sql string, args ...any) int {
	t.Helper()
	var n int
	if err := b.DB.Pool.QueryRow(t.Context(), sql, args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return n
}

func (b Bundle) Exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	if _, err := b.DB.Pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func (b Bundle) Rows(t *testing.T, table string) int {
	t.Helper()
	return b.Count(t, "SELECT count(*) FROM "+table)
}

// Limit gives a namespace a quota with hard limits, 0 for none, and counts what is there.
func (b Bundle) Limit(t *testing.T, namespace string, most quota.Usage) quota.Quota {
	t.Helper()
	ctx := t.Context()
	o := quota.Values{Bytes: &most.Bytes, Repositories: &most.Repositories, Tags: &most.Tags,
		Steps: []quota.Step{{Kind: quota.Reject, Percent: 100}, {Kind: quota.Warning, Percent: 80}}}
	if err := b.Quotas.Create(ctx, namespace, o); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Quotas.Count(ctx); err != nil {
		t.Fatal(err)
	}
	q, some, err := b.Quotas.Of(ctx, namespace)
	if err != nil || !some {
		t.Fatalf("quota of %s: %v, %v", namespace, some, err)
	}
	return q
}

func WantCode(t *testing.T, err error, code oci.Code) {
	t.Helper()
	if oci.CodeOf(err) != code {
		t.Fatalf("error is %v, want %s", err, code)
	}
}

func SortDigests(list []oci.Digest) {
	for i := range list {
		for j := i + 1; j < len(list); j++ {
			if list[j].String() < list[i].String() {
				list[i], list[j] = list[j], list[i]
			}
		}
	}
}

// Begun starts an upload to the repository `path` and claims the upload, as a request does
// before it writes an object. It returns the claimed upload.
func (b Bundle) Begun(t *testing.T, path string) catalog.Upload {
	t.Helper()
	list, err := b.StartUploads(t.Context(), catalog.StartOptions{N: 1})
	if err != nil {
		t.Fatal(err)
	}
	u := list[0]
	u.Repository = path
	claim, err := b.ClaimUpload(t.Context(), u, 1, catalog.UploadNeed{})
	if u.Attempt = claim.Attempt; err != nil {
		t.Fatal(err)
	}
	return u
}

func (b Bundle) Commit(u catalog.Upload, content string) error {
	u.Size = int64(len(content))
	return b.CommitUpload(context.Background(), u, oci.Compute(oci.SHA256, []byte(content)), u.StorageKey+"-1", false)
}
