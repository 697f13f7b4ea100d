package quota_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/quota"
)

// meet runs sql1 in an open transaction, starts sql2, which must wait for it or may end, and then
// commits the first.
func (b bundle) meet(t *testing.T, sql1, sql2 string, args ...any) error {
	t.Helper()
	first, second := b.Session(t), b.Session(t)
	first.Exec(t, "BEGIN")
	first.Exec(t, sql1, args...)
	done := catalogtest.Later(func() error { _, err := second.Conn.Exec(t.Context(), sql2, args...); return err })
	catalogtest.Eventually(t, "the second transaction waits or ends", func() bool { return len(done) == 1 || b.Waiting(t) > 0 })
	first.Exec(t, "COMMIT")
	return catalogtest.Soon(t, "the second transaction", done)
}

// tagsNamed returns a statement that makes n tags of the only manifest.
func tagsNamed(prefix string, n int) string {
	return fmt.Sprintf(`INSERT INTO tags (top_level_namespace_id, repository_id, name, manifest_id)
		SELECT top_level_namespace_id, repository_id, '%s' || i, id FROM manifests, generate_series(1, %d) i`, prefix, n)
}

// TestQuotaLocksRowBeforeSlots: a transaction has changed a limit, and closes the slots. One that
// adds the slots up must wait for it without having locked a slot, or they would deadlock.
func TestQuotaLocksRowBeforeSlots(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Put(t, "acme/app", catalogtest.Image(t, b.Push(t, "acme/app", "config"), nil, nil))
	b.Limit(t, "acme", quota.Usage{Tags: 80}) // the slots are closed now
	limits, push := b.Session(t), b.Session(t)
	limits.Exec(t, "BEGIN")
	limits.Exec(t, "UPDATE namespacequotas SET tags_limit = 90")
	done := catalogtest.Later(func() error { _, err := push.Conn.Exec(t.Context(), tagsNamed("t", 1)); return err })
	limits.Blocks(t, b.Session(t), 1)
	limits.Exec(t, "SELECT purser_quota_close(namespace_id) FROM namespacequotas")
	limits.Exec(t, "COMMIT")
	if err := catalogtest.Soon(t, "the push", done); err != nil {
		t.Error(err)
	}
	b.exact(t)
}

// TestQuotaAddsUpLockedSlots: a transaction has changed its slot when another one adds the slots
// up and sets them to 0. What the first has added must not be lost.
func TestQuotaAddsUpLockedSlots(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Put(t, "acme/app", catalogtest.Image(t, b.Push(t, "acme/app", "config"), nil, nil))
	b.Limit(t, "acme", quota.Usage{Tags: 80})
	b.Exec(t, tagsNamed("opens", 1)) // now each slot has room for 9
	if err := b.meet(t, tagsNamed("one", 5), tagsNamed("many", 20)); err != nil {
		t.Error(err)
	}
	if q := b.quota(t, "acme"); q.Used.Tags != 26 {
		t.Errorf("the namespace has %d tags by its quota, want 26", q.Used.Tags)
	}
	b.exact(t)
}

// TestQuotaOfFewAndManyBlobs: a transaction links so many blobs that it locks the namespace
// instead of each blob, and another one links one of them, in both orders. The blob must count once.
func TestQuotaOfFewAndManyBlobs(t *testing.T) {
	t.Parallel()
	for _, manyFirst := range []bool{true, false} {
		t.Run(fmt.Sprint("many first ", manyFirst), func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.Push(t, "acme/one", "one")
			b.Push(t, "acme/two", "two")
			b.Limit(t, "acme", quota.Usage{Bytes: 1 << 40})
			b.Exec(t, `INSERT INTO blobs (digest, size, storage_key)
				SELECT '\x01'::bytea || sha256(i::text::bytea), 1000, 'key' || i FROM generate_series(1, 65) i`)
			link := func(path string, n int) string {
				return fmt.Sprintf(`INSERT INTO repository_blobs (top_level_namespace_id, repository_id, blob_digest)
					SELECT r.top_level_namespace_id, r.id, b.digest
					FROM repositories r, (SELECT digest FROM blobs WHERE size = 1000 ORDER BY digest LIMIT %d) b WHERE r.path = '%s'`, n, path)
			}
			first, second := link("acme/one", 65), link("acme/two", 1)
			if !manyFirst {
				first, second = second, first
			}
			if err := b.meet(t, first, second); err != nil {
				t.Error(err)
			}
			if q := b.quota(t, "acme"); q.Used.Bytes != 65*1000+6 {
				t.Errorf("the namespace uses %d bytes by its quota, want %d", q.Used.Bytes, 65*1000+6)
			}
			b.exact(t)
		})
	}
}

// TestQuotaPromisesOneAfterAnother: two uploads ask for more than half of the room each. The
// second must see what the first was promised.
func TestQuotaPromisesOneAfterAnother(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Push(t, "acme/app", "x")
	b.Limit(t, "acme", quota.Usage{Bytes: 100})
	reserve := func() string {
		u := b.Begun(t, "acme/app")
		return fmt.Sprintf("SELECT purser_quota_reserve('%s', %d, 'acme', 60, 0, NULL, '30 s')", u.ID, u.Attempt)
	}
	if err := b.meet(t, reserve(), reserve()); db.Code(err) != "PQ001" {
		t.Errorf("the second upload: %v, want that the quota is exceeded", err)
	}
}

// TestQuotaPromiseBesideACommit: while an upload asks for room, another one is committed, so that its
// bytes move from the unfinished uploads to the namespace's blobs. They must be counted in one of them.
func TestQuotaPromiseBesideACommit(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Push(t, "acme/app", "x")
	b.Limit(t, "acme", quota.Usage{Bytes: 100})
	content := strings.Repeat("y", 60)
	done := b.Begun(t, "acme/app")
	done.Size, done.Tail = 60, []byte(content)
	done, err := b.SaveUpload(t.Context(), done)
	if err != nil {
		t.Fatal(err)
	}
	asks := b.Begun(t, "acme/app")
	b.Exec(t, "ALTER FUNCTION purser_quota_slots RENAME TO slots_at_once")
	b.Exec(t, `CREATE FUNCTION purser_quota_slots (namespace bigint, OUT bytes bigint, OUT repositories bigint, OUT tags bigint)
		LANGUAGE plpgsql STABLE AS $$
		BEGIN
			SELECT s.bytes, s.repositories, s.tags INTO bytes, repositories, tags FROM slots_at_once(namespace) s;
			IF current_setting('test.waits', true) = 'on' THEN
				PERFORM pg_advisory_xact_lock_shared(1);
			END IF;
		END $$`)
	gate, session := b.Session(t), b.Session(t)
	gate.Exec(t, "SELECT pg_advisory_lock(1)")
	session.Exec(t, "SET test.waits = 'on'")
	asked := catalogtest.Later(func() error {
		_, err := session.Conn.Exec(t.Context(), "SELECT purser_quota_reserve($1, $2, 'acme', 60, 0, NULL, '30 s')", asks.ID, asks.Attempt)
		return err
	})
	catalogtest.Eventually(t, "the upload that asks has read what is used", func() bool { return b.Waiting(t) > 0 })
	if err := b.CommitUpload(t.Context(), done, oci.Compute(oci.SHA256, []byte(content)), done.StorageKey, false); err != nil {
		t.Fatal(err)
	}
	gate.Exec(t, "SELECT pg_advisory_unlock(1)")
	if err := catalogtest.Soon(t, "the upload that asks", asked); db.Code(err) != "PQ001" {
		t.Errorf("60 bytes beside 61 of 100: %v, want that the quota is exceeded", err)
	}
}

// TestQuotaIsCountedOnce stops a repair of a quota before each of its statements, and repairs it
// then. The difference must be added once.
func TestQuotaIsCountedOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Push(t, "acme/app", "seven b")
	b.Limit(t, "acme", quota.Usage{Bytes: 1000})
	catalogtest.EachStep(t, func(t *testing.T, n int) bool {
		b.Exec(t, "UPDATE namespacequotas SET bytes = bytes + 100")
		var drift quota.Drift
		if _, err := b.Quotas.Drifts(t.Context(), func(d quota.Drift) error { drift = d; return nil }); err != nil {
			t.Fatal(err)
		}
		repair := func(b catalogtest.Bundle) error { return b.Quotas.Repair(t.Context(), drift) }
		stopped, err, err2 := b.Interleave(t, n, repair, repair)
		if err != nil || err2 != nil {
			t.Errorf("step %d: %v, %v", n, err, err2)
		}
		b.exact(t)
		return stopped
	})
}
