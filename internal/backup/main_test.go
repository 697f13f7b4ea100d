package backup

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/builtinpg/pgtest"
	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/oci"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

var quiet = slog.New(slog.DiscardHandler)

// registry is a catalog and a blob store that belong together.
type registry struct {
	catalogtest.Bundle
	t     *testing.T
	dsn   string
	store *blob.Dir
	id    string
}

func setup(t *testing.T) *registry {
	t.Helper()
	dsn := dbtest.DSN(t)
	r := &registry{catalogtest.Replica(t, dsn), t, dsn, newStore(t), uuid.NewString()}
	if err := r.store.SetIdentity(t.Context(), r.id, false); err != nil {
		t.Fatal(err)
	}
	r.Exec(t, "INSERT INTO store_identity (id, place, confirmed_at) VALUES ($1, 'here', now())", r.id)
	return r
}

func newStore(t *testing.T) *blob.Dir {
	t.Helper()
	s, err := blob.OpenDir(blob.DirOptions{Path: pgtest.TempDir(t)})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func newTarget(t *testing.T) Target {
	t.Helper()
	target, err := InDirectory(filepath.Join(pgtest.TempDir(t), "backup"))
	if err != nil {
		t.Fatal(err)
	}
	return target
}

// push stores content as a blob of acme/app, and puts an image with it under a tag.
func (r *registry) push(tag, content string) oci.Digest {
	r.t.Helper()
	base := blob.NewBase()
	key := base + "-0"
	if err := r.store.Put(r.t.Context(), key, int64(len(content)), strings.NewReader(content)); err != nil {
		r.t.Fatal(err)
	}
	d := r.Push(r.t, "acme/app", content)
	r.Exec(r.t, "UPDATE blobs SET storage_key = $2 WHERE digest = $1", d.Bytes(), key)
	r.Put(r.t, "acme/app", catalogtest.Image(r.t, d, nil, nil), tag)
	return d
}

func (r *registry) options(target Target) Options {
	return Options{Main: r.dsn, Target: target, Store: r.store, Identity: r.id, Place: "here", Blobs: Copy, Purser: "test", Log: quiet}
}

func (r *registry) backup(target Target, change ...func(*Options)) Result {
	r.t.Helper()
	o := r.options(target)
	for _, f := range change {
		f(&o)
	}
	res, err := Run(r.t.Context(), o)
	if err != nil {
		r.t.Fatal(err)
	}
	return res
}

// collect deletes a blob's manifests and then the blob, as garbage collection does.
func (r *registry) collect(d oci.Digest) {
	r.t.Helper()
	r.Exec(r.t, "DELETE FROM tags WHERE manifest_id IN (SELECT id FROM manifests WHERE configuration_blob_digest = $1)", d.Bytes())
	r.Exec(r.t, "DELETE FROM manifests WHERE configuration_blob_digest = $1", d.Bytes())
	r.Exec(r.t, `WITH d AS (DELETE FROM blobs WHERE digest = $1 RETURNING storage_key, size)
		INSERT INTO gc_doomed_objects (storage_key, size) SELECT storage_key, size FROM d`, d.Bytes())
}

// loses deletes the objects of blobs from the store, and marks the blobs as lost, as a check does.
func (r *registry) loses(digests ...oci.Digest) {
	r.t.Helper()
	for _, d := range digests {
		if err := r.store.Delete(r.t.Context(), []string{r.key(d)}); err != nil {
			r.t.Fatal(err)
		}
		r.Exec(r.t, "UPDATE blobs SET lost_at = now() - interval '1 hour' WHERE digest = $1", d.Bytes())
	}
}

func find(t *testing.T, target Target, id string) *Manifest {
	t.Helper()
	m, err := Find(t.Context(), target, id)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// restoreOptions are options for a restore of the newest backup into a new registry, whose database has
// its tables already, as after a server was started on it. That is quicker than to make them.
func restoreOptions(t *testing.T, target Target) RestoreOptions {
	t.Helper()
	return RestoreOptions{Main: dbtest.DSN(t), Target: target, Manifest: find(t, target, ""), Store: newStore(t), Place: "there", Log: quiet}
}

// emptyRestoreOptions are restoreOptions for a database without tables.
func emptyRestoreOptions(t *testing.T, target Target) RestoreOptions {
	t.Helper()
	o := restoreOptions(t, target)
	o.Main = dbtest.EmptyDSN(t)
	return o
}

// dump returns all rows of a database, by tables and sorted, without the tables and columns that
// a restore changes on purpose.
func dump(t *testing.T, dsn string) map[string][]string {
	t.Helper()
	conn, done, err := db.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	s, err := readSource(t.Context(), conn)
	if err != nil {
		t.Fatal(err)
	}
	out := make(map[string][]string)
	for _, table := range s.tables {
		if slices.Contains([]string{"webhookposition", "pullstatisticsprocessingstate", "store_identity", "uploads", "gc_doomed_objects"}, table.Name) {
			continue
		}
		table.Columns = slices.DeleteFunc(table.Columns, func(c string) bool { return c == "xid" })
		var b bytes.Buffer
		if _, err := conn.PgConn().CopyTo(t.Context(), &b, copyOut(table)); err != nil {
			t.Fatal(err)
		}
		lines := slices.Sorted(strings.Lines(b.String()))
		out[table.Name] = lines
	}
	return out
}

func wantSame(t *testing.T, got, want map[string][]string) {
	t.Helper()
	for table, rows := range want {
		if !slices.Equal(got[table], rows) {
			t.Errorf("table %s has\n%v, want\n%v", table, got[table], rows)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d tables, want %d", len(got), len(want))
	}
}

// wantObjects expects that the store has an object of each blob of the database, with the
// blob's content.
func wantObjects(t *testing.T, dsn string, s blob.Store) {
	t.Helper()
	d := dbtest.Open(t, dsn)
	rows, err := d.Pool.Query(t.Context(), "SELECT storage_key, size, digest FROM blobs")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	n := 0
	for rows.Next() {
		var o object
		if err := rows.Scan(&o.key, &o.size, &o.digest); err != nil {
			t.Fatal(err)
		}
		r, err := s.Open(t.Context(), o.key, 0, -1)
		if err == nil {
			_, err = io.Copy(io.Discard, newVerifier(o, r))
			err = errors.Join(err, r.Close())
		}
		if err != nil {
			t.Errorf("object %s: %v", o.key, err)
		}
		n++
	}
	if rows.Err() != nil || n == 0 {
		t.Errorf("%d blobs, %v", n, rows.Err())
	}
}

var errKilled = errors.New("killed")
