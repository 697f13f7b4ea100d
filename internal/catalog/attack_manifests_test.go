package catalog_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
)

// A signature was pushed before the manifest that it signs, its subject. The signature is due
// for review when a client pushes the subject. The review must keep the signature, although
// the subject itself names a subject that doesn't exist.
func TestAttackSubjectThatHasASubject(t *testing.T) {
	t.Parallel()
	b := setup(t)
	config := b.Push(t, "r", "config")
	middle := catalogtest.SubjectOf(t, config, oci.Compute(oci.SHA256, []byte("an image")))
	signature := b.Put(t, "r", catalogtest.SubjectOf(t, config, oci.Compute(oci.SHA256, middle)))
	b.DueNow(t)
	b.Put(t, "r", middle)
	if out := b.ReviewBatch(t, "manifest"); out.Kept != 1 || out.Claimed != 1 {
		t.Errorf("review: %+v; want the signature kept", out)
	}
	if _, err := b.ManifestByDigest(t.Context(), "r", signature); err != nil {
		t.Error(err)
	}
}

// Two clients at once move tags between the same two manifests, in opposite directions. They
// must not deadlock.
func TestAttackTagsMovedBothWays(t *testing.T) {
	t.Parallel()
	b := replica(t, catalogtest.PatientDSN(t))
	config := b.Push(t, "r", "config")
	payload := func(n string) []byte {
		return catalogtest.Image(t, config, nil, map[string]any{"annotations": map[string]string{"n": n}})
	}
	b.Put(t, "r", payload("n"), "up")      // the first manifest, and
	b.Put(t, "r", payload("m"), "down")    // the second one, exchange tags;
	b.Put(t, "r", payload("z"), "another") // the third one's queue row is locked
	b.Exec(t, `INSERT INTO gc_manifest_review_queue (top_level_namespace_id, repository_id, manifest_id, event)
		SELECT top_level_namespace_id, repository_id, id, 'test' FROM manifests`)
	x, watch := b.Session(t), b.Session(t)
	x.Exec(t, "BEGIN")
	x.Exec(t, `SELECT FROM gc_manifest_review_queue WHERE manifest_id = (SELECT manifest_id FROM tags WHERE name = 'another') FOR UPDATE`)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	up := catalogtest.Later(func() error { _, err := b.TryPut(ctx, "r", payload("m"), "up", "another"); return err })
	x.Blocks(t, watch, 1)
	down := catalogtest.Later(func() error { _, err := b.TryPut(ctx, "r", payload("n"), "down"); return err })
	b.stuck(t, down)
	x.Exec(t, "COMMIT")
	for what, done := range map[string]<-chan error{"up": up, "down": down} {
		if err := catalogtest.Soon(t, what, done); err != nil {
			t.Errorf("moving the tag %s: %v", what, err)
		}
	}
}

// stuck waits until two calls wait for locks, or until the second call has sent its result to
// the channel `second`, because the second call doesn't always have to wait for a lock.
func (b bundle) stuck(t *testing.T, second <-chan error) {
	t.Helper()
	catalogtest.Eventually(t, "both wait or one is done", func() bool { return len(second) > 0 || b.Waiting(t) >= 2 })
}

// One client deletes a manifest that has several tags, while another moves these tags to
// another manifest. They must not deadlock.
func TestAttackTagsMovedWhileManifestIsDeleted(t *testing.T) {
	t.Parallel()
	b := replica(t, catalogtest.PatientDSN(t))
	config := b.Push(t, "r", "config")
	old := catalogtest.Image(t, config, nil, map[string]any{"annotations": map[string]string{"n": "old"}})
	for _, tag := range []string{"b", "c", "a"} {
		b.Put(t, "r", old, tag)
	}
	x, watch := b.Session(t), b.Session(t)
	x.Exec(t, "BEGIN")
	x.Exec(t, "SELECT FROM tags WHERE name = 'c' FOR UPDATE")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	deleted := catalogtest.Later(func() error { return b.DeleteManifest(ctx, "r", oci.Compute(oci.SHA256, old)) })
	x.Blocks(t, watch, 1)
	moved := catalogtest.Later(func() error {
		_, err := b.TryPut(ctx, "r", catalogtest.Image(t, config, nil, nil), "a", "b")
		return err
	})
	b.stuck(t, moved)
	x.Exec(t, "COMMIT")
	for what, done := range map[string]<-chan error{"deletion": deleted, "put": moved} {
		if err := catalogtest.Soon(t, what, done); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// A client puts a subject under the tag that one of the subject's referrers has, while another
// client deletes this tag. They must not deadlock.
func TestAttackSubjectUnderItsReferrersTag(t *testing.T) {
	t.Parallel()
	b := replica(t, catalogtest.PatientDSN(t))
	config := b.Push(t, "r", "config")
	subject := catalogtest.Image(t, config, nil, nil)
	b.Put(t, "r", catalogtest.SubjectOf(t, config, oci.Compute(oci.SHA256, subject)), "t")
	b.Exec(t, `INSERT INTO gc_manifest_review_queue (top_level_namespace_id, repository_id, manifest_id, event)
		SELECT top_level_namespace_id, repository_id, id, 'test' FROM manifests`)
	x, watch := b.Session(t), b.Session(t)
	x.Exec(t, "BEGIN")
	x.Exec(t, "SELECT FROM tags WHERE name = 't' FOR UPDATE")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	deleted := catalogtest.Later(func() error { return b.DeleteTag(ctx, "r", "t") })
	x.Blocks(t, watch, 1)
	put := catalogtest.Later(func() error { _, err := b.TryPut(ctx, "r", subject, "t"); return err })
	b.stuck(t, put)
	x.Exec(t, "COMMIT")
	for what, done := range map[string]<-chan error{"deletion": deleted, "put": put} {
		if err := catalogtest.Soon(t, what, done); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// Two clients delete two manifests at once; a layer of one manifest is the other's
// configuration. They must not deadlock.
func TestAttackLayerAndConfiguration(t *testing.T) {
	t.Parallel()
	b := replica(t, catalogtest.PatientDSN(t))
	var blobs []oci.Digest
	for _, content := range []string{"1", "2", "3", "4"} {
		blobs = append(blobs, b.Push(t, "r", content))
	}
	catalogtest.SortDigests(blobs)
	low, mid, high := blobs[0], blobs[1], blobs[2]
	one := b.Put(t, "r", catalogtest.Image(t, high, []oci.Digest{low, mid}, nil))      // queues high, then low and mid
	two := b.Put(t, "r", catalogtest.Image(t, blobs[3], []oci.Digest{mid, high}, nil)) // queues mid and high
	x, watch := b.Session(t), b.Session(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	x.Exec(t, "BEGIN")
	x.Exec(t, "SELECT FROM gc_blob_review_queue WHERE digest = $1 FOR UPDATE", low.Bytes())
	first := catalogtest.Later(func() error { return b.DeleteManifest(ctx, "r", one) })
	x.Blocks(t, watch, 1) // x has locked high
	second := catalogtest.Later(func() error { return b.DeleteManifest(ctx, "r", two) })
	b.stuck(t, second) // the second deletion has locked mid, unless it waits for the first one earlier
	x.Exec(t, "COMMIT")
	for what, done := range map[string]<-chan error{"first": first, "second": second} {
		if err := catalogtest.Soon(t, what, done); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// A client puts an index while garbage collection has locked one of its children. The put must
// wait. If the child is then deleted, the put must fail and name the child as missing; if it
// is kept, the put must succeed.
func TestAttackChildGoes(t *testing.T) {
	t.Parallel()
	for _, kept := range []bool{false, true} {
		b := setup(t)
		child := b.Put(t, "r", catalogtest.Image(t, b.Push(t, "r", "config"), nil, nil))
		gc, watch := b.Session(t), b.Session(t)
		gc.Exec(t, "BEGIN")
		gc.Exec(t, "SELECT FROM manifests WHERE digest = $1 FOR UPDATE SKIP LOCKED", child.Bytes())
		done := catalogtest.Later(func() error {
			_, err := b.TryPut(context.Background(), "r", catalogtest.Index(t, child), "t")
			return err
		})
		gc.Blocks(t, watch, 1)
		if kept {
			gc.Exec(t, "ROLLBACK")
			if err := catalogtest.Soon(t, "put", done); err != nil {
				t.Fatal(err)
			}
			continue
		}
		gc.Exec(t, "DELETE FROM manifests WHERE digest = $1", child.Bytes())
		gc.Exec(t, "COMMIT")
		catalogtest.WantCode(t, catalogtest.Soon(t, "put", done), oci.ManifestBlobUnknown)
		if n := b.Count(t, "SELECT count(*) FROM manifests"); n != 0 {
			t.Errorf("%d manifests are left by a put that failed", n)
		}
	}
}

// A client puts a manifest again while garbage collection is deleting it. The put must wait
// for the deletion, and then store the manifest anew.
func TestAttackPutAgainWhileDeleted(t *testing.T) {
	t.Parallel()
	b := setup(t)
	payload := catalogtest.Image(t, b.Push(t, "r", "config"), nil, nil)
	d := b.Put(t, "r", payload)
	gc, watch := b.Session(t), b.Session(t)
	gc.Exec(t, "BEGIN")
	gc.Exec(t, "SELECT FROM manifests WHERE digest = $1 FOR UPDATE", d.Bytes())
	done := catalogtest.Later(func() error { _, err := b.TryPut(context.Background(), "r", payload, "t"); return err })
	gc.Blocks(t, watch, 1)
	gc.Exec(t, "DELETE FROM manifests WHERE digest = $1", d.Bytes())
	gc.Exec(t, "COMMIT")
	if err := catalogtest.Soon(t, "put", done); err != nil {
		t.Fatal(err)
	}
	if m, err := b.ManifestByTag(t.Context(), "r", "t"); err != nil || m.Digest != d {
		t.Fatal(m, err)
	}
}

// A client uploads to or mounts in a repository whose deletion isn't committed yet. The
// request must wait for the deletion, and then make the repository anew.
func TestAttackRepositoryGoes(t *testing.T) {
	t.Parallel()
	for what, push := range map[string]func(b bundle) error{
		"upload": func(b bundle) error { _, err := b.TryPush(context.Background(), "r", "x"); return err },
		"mount": func(b bundle) error {
			_, err := b.Mount(context.Background(), "r", "other", oci.Compute(oci.SHA256, []byte("layer")))
			return err
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.Listen(t)
			b.Push(t, "other", "layer")
			b.Push(t, "r", "config")
			x, watch := b.Session(t), b.Session(t)
			x.Exec(t, "BEGIN")
			x.Exec(t, "DELETE FROM repositories WHERE path = 'r'")
			x.Exec(t, "DELETE FROM top_level_namespaces WHERE name = 'r'")
			done := catalogtest.Later(func() error { return push(b) })
			x.Blocks(t, watch, 1)
			x.Exec(t, "COMMIT")
			if err := catalogtest.Soon(t, what, done); err != nil {
				t.Fatal(err)
			}
			if n := b.Count(t, `SELECT count(*) FROM repository_blobs rb JOIN repositories r ON r.id = rb.repository_id
				JOIN top_level_namespaces n ON n.id = r.top_level_namespace_id WHERE r.path = 'r'`); n != 1 {
				t.Errorf("%d blobs in the repository that was made anew, want 1", n)
			}
		})
	}
}

// If PostgreSQL raises an error when a pgx batch is committed, the batch must return this
// error, and none of its statements may have changed anything. The same must hold if a later
// statement of the batch fails.
func TestAttackBatchReportsItsCommit(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Exec(t, "CREATE TABLE parents (id int PRIMARY KEY)")
	b.Exec(t, "CREATE TABLE children (id int REFERENCES parents DEFERRABLE INITIALLY DEFERRED)")
	batch := func(statements ...string) error {
		x := new(pgx.Batch)
		for _, sql := range statements {
			x.Queue(sql)
		}
		return b.DB.Pool.SendBatch(t.Context(), x).Close()
	}
	for range 2 { // first with newly prepared statements, then with cached ones
		err := batch("INSERT INTO parents VALUES (1)", "INSERT INTO children VALUES (2)")
		if db.Code(err) != db.CodeForeignKeyViolation {
			t.Errorf("an error at the commit was reported as %v", err)
		}
		if err := batch("INSERT INTO parents VALUES (3)", "SELECT purser_require(false, 'PU001')"); db.Code(err) != "PU001" {
			t.Errorf("a failed statement was reported as %v", err)
		}
		if n := b.Count(t, "SELECT (SELECT count(*) FROM parents) + (SELECT count(*) FROM children)"); n != 0 {
			t.Errorf("%d rows are left by batches that failed", n)
		}
	}
	if err := batch("INSERT INTO parents VALUES (2)", "INSERT INTO children VALUES (2)"); err != nil {
		t.Error(err)
	}
	if errors.Is(batch("SELECT 1"), pgx.ErrNoRows) {
		t.Error("rows that nobody reads are missed")
	}
}
