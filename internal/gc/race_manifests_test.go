package gc_test

import (
	"context"
	"testing"

	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/oci"
)

// A review has found that a manifest has a tag and is about to drop the manifest's row in
// gc_manifest_review_queue. Then a client deletes or moves the last tag. The client must
// wait for the review and then insert the row again. The test fails if the review doesn't
// lock the row when it claims it, or if the triggers insert with ON CONFLICT DO NOTHING:
// the manifest would stay forever.
func TestRaceLastTagGoesWhileKept(t *testing.T) { catalogtest.AtBoth(t, testRaceLastTagGoesWhileKept) }

func testRaceLastTagGoesWhileKept(t *testing.T, dsn string) {
	b := replica(t, dsn)
	watch := b.Session(t)
	config := b.Push(t, "r", "config")
	for i, c := range []struct {
		event string
		do    func() error
	}{
		{"tag_delete", func() error { return b.DeleteTag(context.Background(), "r", "t") }},
		{"tag_switch", func() error {
			_, err := b.TryPut(context.Background(), "r", catalogtest.Numbered(t, 100, config), "t")
			return err
		}},
	} {
		for j, stop := range []string{beforeSettle, beforeCommit} {
			payload := catalogtest.Numbered(t, 2*i+j, config)
			b.Put(t, "r", payload)
			d := b.Put(t, "r", payload, "t")
			b.Exec(t, "UPDATE gc_manifest_review_queue SET review_after = now()")
			p := b.pausing(t, ofManifests())
			p.to(t, stop)
			done := catalogtest.Later(c.do)
			p.blocks(t, watch, 1)
			if out := p.ended(t); out.Kept != 1 || out.Deleted != 0 {
				t.Fatalf("%s, stopped at %s: %+v", c.event, stop, out)
			}
			if err := catalogtest.Soon(t, c.event, done); err != nil {
				t.Fatal(err)
			}
			if got := b.queued(t, d); got != c.event {
				t.Errorf("%s, stopped at %s: in review: %q", c.event, stop, got)
			}
			b.DueNow(t)
			if out := b.ReviewBatch(t, reviewingManifests); out.Deleted != 1 {
				t.Errorf("%s, stopped at %s: afterwards %+v", c.event, stop, out)
			}
			b.Exec(t, "DELETE FROM tags")
			b.Exec(t, "DELETE FROM manifests")
			b.Empty(t, "gc_manifest_review_queue")
		}
	}
}

// A client deletes the last tag of a manifest, and has locked the manifest's row in
// gc_manifest_review_queue, when a review comes. The review must skip the row, which
// afterwards must be as the deletion wrote it.
func TestRaceLastTagGoesFirst(t *testing.T) {
	t.Parallel()
	b := setup(t)
	payload := catalogtest.Image(t, b.Push(t, "r", "config"), nil, nil)
	b.Put(t, "r", payload)
	d := b.Put(t, "r", payload, "t")
	b.DueNow(t)
	x := b.Session(t)
	x.Exec(t, "BEGIN")
	x.Exec(t, "DELETE FROM tags")
	if out := b.pausing(t, ofManifests()).ended(t); out.Claimed != 0 {
		t.Errorf("review: %+v", out)
	}
	x.Exec(t, "COMMIT")
	if got := b.queued(t, d); got != "tag_delete" {
		t.Errorf("in review: %q", got)
	}
	if n := b.Count(t, "SELECT count(*) FROM gc_manifest_review_queue WHERE review_after > now() + interval '23 hours'"); n != 1 {
		t.Error("the tag's deletion grants no delay")
	}
}

// A review has found that an index lists a manifest, or that the manifest's subject exists,
// and is about to drop the manifest's row in gc_manifest_review_queue. Then a client
// deletes this index or subject. The manifest must be queued for review again.
func TestRaceHolderGoesWhileKept(t *testing.T) { catalogtest.AtBoth(t, testRaceHolderGoesWhileKept) }

func testRaceHolderGoesWhileKept(t *testing.T, dsn string) {
	b := replica(t, dsn)
	watch := b.Session(t)
	config := b.Push(t, "r", "config")
	for event, make := range map[string]func() (held, holder oci.Digest){
		"manifest_list_delete": func() (held, holder oci.Digest) {
			held = b.Put(t, "r", catalogtest.Numbered(t, 1, config))
			return held, b.Put(t, "r", catalogtest.Index(t, held), "t")
		},
		"subject_delete": func() (held, holder oci.Digest) {
			holder = b.Put(t, "r", catalogtest.Numbered(t, 2, config), "t")
			return b.Put(t, "r", catalogtest.SubjectOf(t, config, holder)), holder
		},
	} {
		for _, stop := range []string{beforeSettle, beforeCommit} {
			held, holder := make()
			b.Exec(t, "UPDATE gc_manifest_review_queue SET review_after = now()")
			p := b.pausing(t, ofManifests())
			p.to(t, stop)
			done := catalogtest.Later(func() error { return b.DeleteManifest(context.Background(), "r", holder) })
			p.blocks(t, watch, 1)
			if out := p.ended(t); out.Kept != 1 || out.Deleted != 0 {
				t.Fatalf("%s, stopped at %s: %+v", event, stop, out)
			}
			if err := catalogtest.Soon(t, event, done); err != nil {
				t.Fatal(err)
			}
			if got := b.queued(t, held); got != event {
				t.Errorf("%s, stopped at %s: in review: %q", event, stop, got)
			}
			b.DueNow(t)
			b.ReviewBatch(t, reviewingManifests)
			b.Empty(t, "manifests", "manifest_references", "gc_manifest_review_queue")
		}
	}
}

// A review finds two manifests unused. Before it locks them, a client tags one of them, and
// puts an index that lists the other. Both manifests must stay. The test fails if the
// review doesn't look for references again after it has locked: a foreign key error would
// then end the review.
func TestRaceHeldBetweenLookAndLock(t *testing.T) {
	catalogtest.AtBoth(t, testRaceHeldBetweenLookAndLock)
}

func testRaceHeldBetweenLookAndLock(t *testing.T, dsn string) {
	b := replica(t, dsn)
	config := b.Push(t, "r", "config")
	payload := catalogtest.Numbered(t, 1, config)
	tagged, child := b.Put(t, "r", payload), b.Put(t, "r", catalogtest.Numbered(t, 2, config))
	b.Put(t, "r", catalogtest.Numbered(t, 3, config))
	b.DueNow(t)
	p := b.pausing(t, ofManifests(), "default_transaction_isolation", "repeatable read")
	p.to(t, beforeLock)
	b.Put(t, "r", payload, "t")
	b.Put(t, "r", catalogtest.Index(t, child), "list")
	if out := p.ended(t); out.Kept != 2 || out.Deleted != 1 {
		t.Errorf("review: %+v; want what is held by now kept, and the third deleted", out)
	}
	b.Whole(t, "r", "t", config)
	b.Whole(t, "r", "list")
	for _, d := range []oci.Digest{tagged, child} {
		if _, err := b.ManifestByDigest(t.Context(), "r", d); err != nil {
			t.Error(err)
		}
	}
	b.Empty(t, "gc_manifest_review_queue")
}

// While a review deletes a manifest, one client puts the manifest again with a tag, and
// another client puts an index that lists the manifest. Both puts must wait for the review.
// Then the put with the tag must store the manifest anew. The put of the index must be
// refused, unless the manifest has been stored anew by then.
func TestRaceHeldWhileDeleted(t *testing.T) { catalogtest.AtBoth(t, testRaceHeldWhileDeleted) }

func testRaceHeldWhileDeleted(t *testing.T, dsn string) {
	b := replica(t, dsn)
	watch := b.Session(t)
	config := b.Push(t, "r", "config")
	for _, stop := range []string{beforeDelete, beforeCommit} {
		payload := catalogtest.Numbered(t, 1, config)
		d := b.Put(t, "r", payload)
		b.Exec(t, "UPDATE gc_manifest_review_queue SET review_after = now()")
		p := b.pausing(t, ofManifests())
		p.to(t, stop)
		listed := catalogtest.Later(func() error {
			_, err := b.TryPut(context.Background(), "r", catalogtest.Index(t, d), "list")
			return err
		})
		p.blocks(t, watch, 1)
		tagged := catalogtest.Later(func() error { _, err := b.TryPut(context.Background(), "r", payload, "t"); return err })
		p.blocks(t, watch, 2)
		if out := p.ended(t); out.Deleted != 1 {
			t.Fatalf("stopped at %s: %+v", stop, out)
		}
		if err := catalogtest.Soon(t, "tag", tagged); err != nil {
			t.Errorf("stopped at %s: %v", stop, err)
		}
		// The index's put finds the manifest either deleted or stored anew.
		if err := catalogtest.Soon(t, "index", listed); err != nil {
			catalogtest.WantCode(t, err, oci.ManifestBlobUnknown)
		} else {
			b.Whole(t, "r", "list")
		}
		b.Whole(t, "r", "t", config)
		b.Exec(t, "DELETE FROM tags")
		b.Exec(t, "DELETE FROM manifests")
		b.Exec(t, "DELETE FROM gc_manifest_review_queue")
	}
}

// One client is putting an index and has locked the index's child; another is putting a tag
// and has locked the tagged manifest. A review must postpone the rows of the child and of
// the tagged manifest in gc_manifest_review_queue. The test fails if the review takes
// manifests that it can't lock for deleted, or leaves their rows due.
func TestRacePutHoldsManifests(t *testing.T) {
	t.Parallel()
	b := setup(t)
	config := b.Push(t, "r", "config")
	tagged, child := b.Put(t, "r", catalogtest.Numbered(t, 1, config)), b.Put(t, "r", catalogtest.Numbered(t, 2, config))
	b.Put(t, "r", catalogtest.Numbered(t, 3, config), "list")
	b.DueNow(t)
	x, watch := b.Session(t), b.Session(t)
	x.Exec(t, "BEGIN")
	x.Exec(t, "SELECT FROM manifests WHERE digest = $1 FOR KEY SHARE", tagged.Bytes()) // as putExisting does
	x.Exec(t, "SELECT FROM tags FOR UPDATE")
	put := catalogtest.Later(func() error {
		_, err := b.TryPut(context.Background(), "r", catalogtest.Index(t, child), "list")
		return err
	})
	x.Blocks(t, watch, 1)
	if out := b.pausing(t, ofManifests()).ended(t); out.Postponed != 2 || out.Claimed != 2 {
		t.Errorf("review: %+v; want both locked", out)
	}
	b.putOff(t, "gc_manifest_review_queue", 2)
	if out := b.ReviewBatch(t, reviewingManifests); out.Claimed != 0 {
		t.Errorf("the next review: %+v", out)
	}
	x.Exec(t, "COMMIT")
	if err := catalogtest.Soon(t, "put", put); err != nil {
		t.Fatal(err)
	}
	b.DueNow(t)
	if out := b.ReviewBatch(t, reviewingManifests); out.Kept != 1 || out.Deleted != 2 {
		t.Errorf("afterwards: %+v; want the child kept", out)
	}
	b.Whole(t, "r", "list")
}

// A client deletes a manifest while a review has locked the manifest's row in
// gc_manifest_review_queue. The review must postpone the row, since it can't lock the
// manifest. The client's transaction must wait for the review, and then delete the manifest
// and the row.
func TestRaceDeletedByAClient(t *testing.T) {
	t.Parallel()
	b := setup(t)
	config := b.Push(t, "r", "config")
	watch := b.Session(t)
	for _, stop := range []string{beforeLook, beforeLock} {
		d := b.Put(t, "r", catalogtest.Image(t, config, nil, nil))
		b.Exec(t, "UPDATE gc_manifest_review_queue SET review_after = now()")
		p := b.pausing(t, ofManifests())
		p.to(t, stop)
		deleted := catalogtest.Later(func() error { return b.DeleteManifest(context.Background(), "r", d) })
		p.blocks(t, watch, 1)
		if out := p.ended(t); out.Postponed != 1 {
			t.Errorf("stopped at %s: %+v; want the manifest left to the client", stop, out)
		}
		if err := catalogtest.Soon(t, "deletion", deleted); err != nil {
			t.Error(err)
		}
		b.Empty(t, "manifests", "gc_manifest_review_queue")
	}
}

// One row in gc_manifest_review_queue names a manifest that doesn't exist, another names a
// manifest that a client has locked. A review must drop the first row and postpone the
// second.
func TestRaceManifestIsGone(t *testing.T) {
	t.Parallel()
	b := setup(t)
	d := b.Put(t, "r", catalogtest.Image(t, b.Push(t, "r", "config"), nil, nil))
	b.Exec(t, `INSERT INTO gc_manifest_review_queue (top_level_namespace_id, repository_id, manifest_id, event)
		SELECT top_level_namespace_id, repository_id, id + 1000, 'test' FROM manifests`)
	b.DueNow(t)
	x := b.Session(t)
	x.Exec(t, "BEGIN")
	x.Exec(t, "SELECT FROM manifests WHERE digest = $1 FOR KEY SHARE", d.Bytes())
	if out := b.pausing(t, ofManifests()).ended(t); out.Gone != 1 || out.Postponed != 1 {
		t.Errorf("review: %+v", out)
	}
	b.putOff(t, "gc_manifest_review_queue", 1)
	if n := b.Rows(t, "gc_manifest_review_queue"); n != 1 {
		t.Errorf("%d rows in the queue, want one", n)
	}
}

// A client puts a subject while a review deletes the subject's referrers. The put must wait
// for the review and then succeed. If the put comes before the review has locked the
// subject's digest, the referrer must stay. The test fails if reviews don't lock the
// digest: then the put doesn't wait, and after it the review still deletes a referrer that
// the client has seen.
func TestRaceSubjectComes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	config := b.Push(t, "r", "config")
	watch := b.Session(t)
	subject := catalogtest.Numbered(t, 1, config)
	waits := catalogtest.SubjectOf(t, config, oci.Compute(oci.SHA256, subject))
	const beforeSubjectLock = "pg_try_advisory_xact_lock_shared"
	for _, s := range []struct {
		stops []string
		kept  bool
	}{
		{[]string{beforeLook}, true},
		{[]string{beforeLock}, true},
		{[]string{beforeSubjectLock}, true},
		{[]string{beforeSubjectLock, beforeLook}, false},
		{[]string{beforeDelete}, false},
		{[]string{beforeCommit}, false},
	} {
		b.Put(t, "r", waits)
		b.DueNow(t)
		p := b.pausing(t, ofManifests())
		for _, stop := range s.stops {
			p.to(t, stop)
		}
		put := catalogtest.Later(func() error { _, err := b.TryPut(context.Background(), "r", subject, "t"); return err })
		if !s.kept {
			p.blocks(t, watch, 1)
		} else if err := catalogtest.Soon(t, "put", put); err != nil {
			t.Fatal(err)
		}
		out := p.ended(t)
		if s.kept && out.Kept != 1 || !s.kept && out.Deleted != 1 {
			t.Errorf("stopped at %s: %+v", s.stops, out)
		}
		if !s.kept {
			if err := catalogtest.Soon(t, "put", put); err != nil {
				t.Fatal(err)
			}
		}
		if err := b.DeleteManifest(t.Context(), "r", oci.Compute(oci.SHA256, subject)); err != nil {
			t.Fatal(err)
		}
	}
}

// A client is putting the subject of a referrer that is due for review. The review must not
// wait for the put, and must postpone the referrer's row.
func TestRaceSubjectIsBeingPut(t *testing.T) {
	t.Parallel()
	b := setup(t)
	config := b.Push(t, "r", "config")
	subject := catalogtest.Numbered(t, 1, config)
	b.Put(t, "r", catalogtest.Numbered(t, 2, config), "t")
	b.Forget(t)
	referrer := b.Put(t, "r", catalogtest.SubjectOf(t, config, oci.Compute(oci.SHA256, subject)))
	b.DueNow(t)
	x, watch := b.Session(t), b.Session(t)
	x.Exec(t, "BEGIN")
	x.Exec(t, "SELECT FROM tags FOR UPDATE")
	put := catalogtest.Later(func() error { _, err := b.TryPut(context.Background(), "r", subject, "t"); return err })
	x.Blocks(t, watch, 1) // it is about to move the tag
	if out := b.pausing(t, ofManifests()).ended(t); out.Postponed != 1 || out.Claimed != 1 {
		t.Errorf("review: %+v; want the referrer put off", out)
	}
	b.putOff(t, "gc_manifest_review_queue", 1)
	x.Exec(t, "COMMIT")
	if err := catalogtest.Soon(t, "put", put); err != nil {
		t.Fatal(err)
	}
	b.DueNow(t)
	b.ReviewBatch(t, reviewingManifests)
	if _, err := b.ManifestByDigest(t.Context(), "r", referrer); err != nil {
		t.Error(err)
	}
}

// A client puts a referrer while another transaction, which can't see the referrer yet,
// deletes its subject. The put must wait for the deletion. The test fails if the put
// doesn't lock the subject: then a review of the referrer before the deletion's commit
// still sees the subject and drops the referrer's row in gc_manifest_review_queue, so
// nobody reviews the referrer again.
func TestRaceReferrerPutWhileSubjectGoes(t *testing.T) {
	catalogtest.AtBoth(t, testRaceReferrerPutWhileSubjectGoes)
}

func testRaceReferrerPutWhileSubjectGoes(t *testing.T, dsn string) {
	b := replica(t, dsn)
	b.Delays(t)
	config := b.Push(t, "r", "config")
	subject := b.Put(t, "r", catalogtest.Numbered(t, 1, config))
	b.Exec(t, "DELETE FROM gc_manifest_review_queue")
	x := b.Session(t)
	x.Exec(t, "BEGIN")
	x.Exec(t, "DELETE FROM manifests WHERE digest = $1", subject.Bytes())
	put := catalogtest.Later(func() error {
		_, err := b.TryPut(context.Background(), "r", catalogtest.SubjectOf(t, config, subject))
		return err
	})
	catalogtest.Eventually(t, "the put waits or is done", func() bool { return len(put) > 0 || b.Waiting(t) > 0 })
	b.pausing(t, ofManifests()).ended(t)
	x.Exec(t, "COMMIT")
	if err := catalogtest.Soon(t, "put", put); err != nil {
		t.Fatal(err)
	}
	b.ReviewAll(t)
	b.Empty(t, "manifests", "gc_manifest_review_queue")
}

// A client puts a referrer while another client deletes the subject. The put must leave the
// referrer's row in gc_manifest_review_queue, although the subject still exists: the
// deletion may not see the referrer (see TestRaceReferrerPutWhileSubjectGoes). If the
// deletion comes after the put, the deletion finds and queues the referrer itself.
func TestRaceSubjectGoesWhileReferrerIsPut(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Delays(t, "blob_upload")
	config := b.Push(t, "r", "config")
	subject := b.Put(t, "r", catalogtest.Numbered(t, 1, config), "t")
	x, watch := b.Session(t), b.Session(t)
	x.Exec(t, "BEGIN")
	x.Exec(t, "SELECT FROM tags FOR UPDATE")
	// The put also tags the referrer. The test deletes this tag at the end, so that only
	// an existing subject could keep the referrer.
	put := catalogtest.Later(func() error {
		_, err := b.TryPut(context.Background(), "r", catalogtest.SubjectOf(t, config, subject), "t")
		return err
	})
	x.Blocks(t, watch, 1)
	deleted := catalogtest.Later(func() error { return b.DeleteManifest(context.Background(), "r", subject) })
	catalogtest.Eventually(t, "both wait", func() bool { return b.Waiting(t) >= 2 })
	x.Exec(t, "COMMIT")
	if err := catalogtest.Soon(t, "put", put); err != nil {
		t.Fatal(err)
	}
	if err := catalogtest.Soon(t, "deletion", deleted); err != nil {
		t.Fatal(err)
	}
	if err := b.DeleteTag(t.Context(), "r", "t"); err != nil {
		t.Fatal(err)
	}
	b.ReviewAll(t)
	b.Empty(t, "manifests", "gc_manifest_review_queue")
}

// PostgreSQL checks the foreign key from an index to its child when a transaction commits.
// So no transaction can delete a child whose index stays, but one transaction can delete
// the child and the index together.
func TestRaceDeferredKey(t *testing.T) { catalogtest.AtBoth(t, testRaceDeferredKey) }

func testRaceDeferredKey(t *testing.T, dsn string) {
	b := replica(t, dsn)
	config := b.Push(t, "r", "config")
	child := b.Put(t, "r", catalogtest.Numbered(t, 1, config))
	list := b.Put(t, "r", catalogtest.Index(t, child), "t")
	x := b.Session(t)
	x.Exec(t, "BEGIN")
	x.Exec(t, "DELETE FROM manifests WHERE digest = $1", child.Bytes())
	if _, err := x.Conn.Exec(t.Context(), "COMMIT"); err == nil {
		t.Error("a child of an index was deleted")
	}
	b.Whole(t, "r", "t")
	if _, err := b.ManifestByDigest(t.Context(), "r", child); err != nil {
		t.Error(err)
	}
	x.Exec(t, "DELETE FROM tags")
	x.Exec(t, "DELETE FROM manifests WHERE digest = ANY ($1)", [][]byte{child.Bytes(), list.Bytes()})
	b.Empty(t, "manifests", "manifest_references", "gc_blobs_configurations")
	// When the index's references were deleted, a trigger queued the child for review. The
	// child no longer exists, so the review must find it gone.
	b.DueNow(t)
	if out := b.ReviewBatch(t, reviewingManifests); out.Gone != out.Claimed {
		t.Errorf("then: %+v", out)
	}
}
