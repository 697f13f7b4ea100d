package catalog_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
)

// subjectOf returns a manifest with a subject.
func subjectOf(t *testing.T, config, subject oci.Digest) []byte {
	t.Helper()
	return image(t, config, nil, map[string]any{"artifactType": "application/x", "subject": map[string]any{
		"mediaType": oci.MediaTypeImageManifest, "digest": subject.String(), "size": 1}})
}

// A referrer without its subject stays when the subject is put, also when the subject has a
// subject itself.
func TestAttackSubjectThatHasASubject(t *testing.T) {
	t.Parallel()
	b := setup(t)
	config := b.push(t, "r", "config")
	middle := subjectOf(t, config, oci.Compute(oci.SHA256, []byte("an image")))
	signature := b.put(t, "r", subjectOf(t, config, oci.Compute(oci.SHA256, middle)))
	b.dueNow(t)
	b.put(t, "r", middle)
	if out := b.review(t, catalog.ReviewOfManifests); out.Kept != 1 || out.Claimed != 1 {
		t.Errorf("review: %+v; want the signature kept", out)
	}
	if _, err := b.ManifestByDigest(t.Context(), "r", signature); err != nil {
		t.Error(err)
	}
}

// Tags are moved both ways between two manifests at once, without a deadlock.
func TestAttackTagsMovedBothWays(t *testing.T) {
	t.Parallel()
	b := replica(t, patientDSN(t))
	config := b.push(t, "r", "config")
	payload := func(n string) []byte {
		return image(t, config, nil, map[string]any{"annotations": map[string]string{"n": n}})
	}
	b.put(t, "r", payload("n"), "up")      // one has tag up, and tags move
	b.put(t, "r", payload("m"), "down")    // between it and the second;
	b.put(t, "r", payload("z"), "another") // the third is to make one wait
	b.exec(t, `INSERT INTO gc_manifest_review_queue (top_level_namespace_id, repository_id, manifest_id, event)
		SELECT top_level_namespace_id, repository_id, id, 'test' FROM manifests`)
	x, watch := b.session(t), b.session(t)
	x.exec(t, "BEGIN")
	x.exec(t, `SELECT FROM gc_manifest_review_queue WHERE manifest_id = (SELECT manifest_id FROM tags WHERE name = 'another') FOR UPDATE`)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	up := later(func() error { _, err := b.tryPut(ctx, "r", payload("m"), "up", "another"); return err })
	x.blocks(t, watch, 1)
	down := later(func() error { _, err := b.tryPut(ctx, "r", payload("n"), "down"); return err })
	b.stuck(t, down)
	x.exec(t, "COMMIT")
	for what, done := range map[string]<-chan error{"up": up, "down": down} {
		if err := soon(t, what, done); err != nil {
			t.Errorf("moving the tag %s: %v", what, err)
		}
	}
}

// stuck waits until both calls wait for locks, or the second, which may not need to wait, is
// done.
func (b bundle) stuck(t *testing.T, second <-chan error) {
	t.Helper()
	eventually(t, "both wait or one is done", func() bool { return len(second) > 0 || b.waiting(t) >= 2 })
}

// waiting returns the number of backends that wait for a lock.
func (b bundle) waiting(t *testing.T) int {
	t.Helper()
	return b.count(t, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
}

// A manifest with several tags is deleted while these tags are moved away.
func TestAttackTagsMovedWhileManifestIsDeleted(t *testing.T) {
	t.Parallel()
	b := replica(t, patientDSN(t))
	config := b.push(t, "r", "config")
	old := image(t, config, nil, map[string]any{"annotations": map[string]string{"n": "old"}})
	for _, tag := range []string{"b", "c", "a"} {
		b.put(t, "r", old, tag)
	}
	x, watch := b.session(t), b.session(t)
	x.exec(t, "BEGIN")
	x.exec(t, "SELECT FROM tags WHERE name = 'c' FOR UPDATE")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	deleted := later(func() error { return b.DeleteManifest(ctx, "r", oci.Compute(oci.SHA256, old)) })
	x.blocks(t, watch, 1)
	moved := later(func() error { _, err := b.tryPut(ctx, "r", image(t, config, nil, nil), "a", "b"); return err })
	b.stuck(t, moved)
	x.exec(t, "COMMIT")
	for what, done := range map[string]<-chan error{"deletion": deleted, "put": moved} {
		if err := soon(t, what, done); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// A subject is put under the tag of one of its referrers while that tag is
// moved elsewhere.
func TestAttackSubjectUnderItsReferrersTag(t *testing.T) {
	t.Parallel()
	b := replica(t, patientDSN(t))
	config := b.push(t, "r", "config")
	subject := image(t, config, nil, nil)
	b.put(t, "r", subjectOf(t, config, oci.Compute(oci.SHA256, subject)), "t")
	b.exec(t, `INSERT INTO gc_manifest_review_queue (top_level_namespace_id, repository_id, manifest_id, event)
		SELECT top_level_namespace_id, repository_id, id, 'test' FROM manifests`)
	x, watch := b.session(t), b.session(t)
	x.exec(t, "BEGIN")
	x.exec(t, "SELECT FROM tags WHERE name = 't' FOR UPDATE")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	deleted := later(func() error { return b.DeleteTag(ctx, "r", "t") })
	x.blocks(t, watch, 1)
	put := later(func() error { _, err := b.tryPut(ctx, "r", subject, "t"); return err })
	b.stuck(t, put)
	x.exec(t, "COMMIT")
	for what, done := range map[string]<-chan error{"deletion": deleted, "put": put} {
		if err := soon(t, what, done); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// Manifests that share blobs, one's layer the other's configuration, are
// deleted at once.
func TestAttackLayerAndConfiguration(t *testing.T) {
	t.Parallel()
	b := replica(t, patientDSN(t))
	var blobs []oci.Digest
	for _, content := range []string{"1", "2", "3", "4"} {
		blobs = append(blobs, b.push(t, "r", content))
	}
	sortDigests(blobs)
	low, mid, high := blobs[0], blobs[1], blobs[2]
	one := b.put(t, "r", image(t, high, []oci.Digest{low, mid}, nil))      // queues high, then low and mid
	two := b.put(t, "r", image(t, blobs[3], []oci.Digest{mid, high}, nil)) // queues mid and high
	x, watch := b.session(t), b.session(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	x.exec(t, "BEGIN")
	x.exec(t, "SELECT FROM gc_blob_review_queue WHERE digest = $1 FOR UPDATE", low.Bytes())
	first := later(func() error { return b.DeleteManifest(ctx, "r", one) })
	x.blocks(t, watch, 1) // has high
	second := later(func() error { return b.DeleteManifest(ctx, "r", two) })
	b.stuck(t, second) // the second has mid, unless it waits for the first before
	x.exec(t, "COMMIT")
	for what, done := range map[string]<-chan error{"first": first, "second": second} {
		if err := soon(t, what, done); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func sortDigests(list []oci.Digest) {
	for i := range list {
		for j := i + 1; j < len(list); j++ {
			if list[j].String() < list[i].String() {
				list[i], list[j] = list[j], list[i]
			}
		}
	}
}

// The put of an index waits for a child that is being deleted, and then reports it as missing.
func TestAttackChildGoes(t *testing.T) {
	t.Parallel()
	for _, kept := range []bool{false, true} {
		b := setup(t)
		child := b.put(t, "r", image(t, b.push(t, "r", "config"), nil, nil))
		gc, watch := b.session(t), b.session(t)
		gc.exec(t, "BEGIN")
		gc.exec(t, "SELECT FROM manifests WHERE digest = $1 FOR UPDATE SKIP LOCKED", child.Bytes())
		done := later(func() error { _, err := b.tryPut(context.Background(), "r", index(t, child), "t"); return err })
		gc.blocks(t, watch, 1)
		if kept {
			gc.exec(t, "ROLLBACK")
			if err := soon(t, "put", done); err != nil {
				t.Fatal(err)
			}
			continue
		}
		gc.exec(t, "DELETE FROM manifests WHERE digest = $1", child.Bytes())
		gc.exec(t, "COMMIT")
		wantCode(t, soon(t, "put", done), oci.ManifestBlobUnknown)
		if n := b.count(t, "SELECT count(*) FROM manifests"); n != 0 {
			t.Errorf("%d manifests are left by a put that failed", n)
		}
	}
}

// A manifest that is being deleted while it is put again is stored anew.
func TestAttackPutAgainWhileDeleted(t *testing.T) {
	t.Parallel()
	b := setup(t)
	payload := image(t, b.push(t, "r", "config"), nil, nil)
	d := b.put(t, "r", payload)
	gc, watch := b.session(t), b.session(t)
	gc.exec(t, "BEGIN")
	gc.exec(t, "SELECT FROM manifests WHERE digest = $1 FOR UPDATE", d.Bytes())
	done := later(func() error { _, err := b.tryPut(context.Background(), "r", payload, "t"); return err })
	gc.blocks(t, watch, 1)
	gc.exec(t, "DELETE FROM manifests WHERE digest = $1", d.Bytes())
	gc.exec(t, "COMMIT")
	if err := soon(t, "put", done); err != nil {
		t.Fatal(err)
	}
	if m, err := b.ManifestByTag(t.Context(), "r", "t"); err != nil || m.Digest != d {
		t.Fatal(m, err)
	}
}

// A repository that is being deleted is made anew by a push that waited for it.
func TestAttackRepositoryGoes(t *testing.T) {
	t.Parallel()
	for what, push := range map[string]func(b bundle) error{
		"upload": func(b bundle) error { _, err := b.tryPush(context.Background(), "r", "x"); return err },
		"mount": func(b bundle) error {
			_, err := b.Mount(context.Background(), "r", "other", oci.Compute(oci.SHA256, []byte("layer")))
			return err
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.listen(t)
			b.push(t, "other", "layer")
			b.push(t, "r", "config")
			x, watch := b.session(t), b.session(t)
			x.exec(t, "BEGIN")
			x.exec(t, "DELETE FROM repositories WHERE path = 'r'")
			x.exec(t, "DELETE FROM top_level_namespaces WHERE name = 'r'")
			done := later(func() error { return push(b) })
			x.blocks(t, watch, 1)
			x.exec(t, "COMMIT")
			if err := soon(t, what, done); err != nil {
				t.Fatal(err)
			}
			if n := b.count(t, `SELECT count(*) FROM repository_blobs rb JOIN repositories r ON r.id = rb.repository_id
				JOIN top_level_namespaces n ON n.id = r.top_level_namespace_id WHERE r.path = 'r'`); n != 1 {
				t.Errorf("%d blobs in the repository that was made anew, want 1", n)
			}
		})
	}
}

// A batch reports an error that occurs at its commit, and changes nothing; the same if a
// later statement fails.
func TestAttackBatchReportsItsCommit(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec(t, "CREATE TABLE parents (id int PRIMARY KEY)")
	b.exec(t, "CREATE TABLE children (id int REFERENCES parents DEFERRABLE INITIALLY DEFERRED)")
	batch := func(statements ...string) error {
		x := new(pgx.Batch)
		for _, sql := range statements {
			x.Queue(sql)
		}
		return b.db.Pool.SendBatch(t.Context(), x).Close()
	}
	for range 2 { // once with the statements prepared anew, once from the cache
		err := batch("INSERT INTO parents VALUES (1)", "INSERT INTO children VALUES (2)")
		if db.Code(err) != db.CodeForeignKeyViolation {
			t.Errorf("an error at the commit was reported as %v", err)
		}
		if err := batch("INSERT INTO parents VALUES (3)", "SELECT purser_require(false, 'PU001')"); db.Code(err) != "PU001" {
			t.Errorf("a failed statement was reported as %v", err)
		}
		if n := b.count(t, "SELECT (SELECT count(*) FROM parents) + (SELECT count(*) FROM children)"); n != 0 {
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
