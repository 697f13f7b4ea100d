package gc_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/gc"
	"github.com/purser-registry/purser/internal/oci"
)

// circular returns the payload of an index that lists the children and has the given
// subject.
func circular(t *testing.T, subject oci.Digest, children ...oci.Digest) []byte {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal(catalogtest.Index(t, children...), &m); err != nil {
		t.Fatal(err)
	}
	m["artifactType"] = "application/x"
	m["subject"] = map[string]any{"mediaType": oci.MediaTypeImageManifest, "digest": subject.String(), "size": 1}
	payload, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return payload
}

// cycleForms has several forms of cycles, by name. Each function puts the manifests of one
// or more cycles without tags and returns their payloads.
var cycleForms = map[string]func(t *testing.T, b bundle, config oci.Digest) [][]byte{
	"depth 1": func(t *testing.T, b bundle, config oci.Digest) [][]byte { return nested(t, b, config, 1) },
	"depth 2": func(t *testing.T, b bundle, config oci.Digest) [][]byte { return nested(t, b, config, 2) },
	"depth 3": func(t *testing.T, b bundle, config oci.Digest) [][]byte { return nested(t, b, config, 3) },
	// The manifest s is an image, x is a referrer of s, and the index r lists s and has x
	// as its subject. x is put last and has no child.
	"through a referrer": func(t *testing.T, b bundle, config oci.Digest) [][]byte {
		s := catalogtest.Numbered(t, 1, config)
		x := catalogtest.SubjectOf(t, config, oci.Compute(oci.SHA256, s))
		r := circular(t, oci.Compute(oci.SHA256, x), oci.Compute(oci.SHA256, s))
		for _, payload := range [][]byte{s, r, x} {
			b.Put(t, "r", payload)
		}
		return [][]byte{s, r, x}
	},
	// Two indexes each form a cycle with the same image, and a third index forms a cycle
	// with the first index.
	"cycles on cycles": func(t *testing.T, b bundle, config oci.Digest) [][]byte {
		s := catalogtest.Numbered(t, 1, config)
		one := b.Put(t, "r", s)
		first, second := circular(t, one, one), circular(t, one, one, one)
		above := circular(t, b.Put(t, "r", first), oci.Compute(oci.SHA256, first))
		b.Put(t, "r", second)
		b.Put(t, "r", above)
		return [][]byte{s, first, second, above}
	},
}

// nested puts an image, an index of the image, an index of that index, and so on, with
// `depth` indexes. The image is the subject of the outermost index, so the image and all
// indexes form a cycle. nested returns their payloads, the image's first.
func nested(t *testing.T, b bundle, config oci.Digest, depth int) [][]byte {
	payload := catalogtest.Numbered(t, 1, config)
	list := [][]byte{payload}
	image := b.Put(t, "r", payload)
	for inner := image; depth > 0; depth-- {
		payload = catalogtest.Index(t, inner)
		if depth == 1 {
			payload = circular(t, image, inner)
		}
		inner = b.Put(t, "r", payload)
		list = append(list, payload)
	}
	return list
}

// untilSettled reviews manifests until no review is due, and returns how many manifests
// were deleted.
func (b bundle) untilSettled(t *testing.T) (deleted int) {
	t.Helper()
	for {
		out := b.ReviewBatch(t, reviewingManifests)
		deleted += out.Deleted
		if out.Claimed == 0 {
			return deleted
		}
	}
}

// Reviews must delete a cycle that no tag keeps. If any manifest of the cycle has a tag,
// the whole cycle must stay until the tag is deleted, and reviews must delete it then. The
// test fails if a review looks for cycles only when it reviews an index with a subject: the
// last tag may be on another manifest of the cycle.
func TestReviewOfCycles(t *testing.T) { catalogtest.AtBoth(t, testReviewOfCycles) }

func testReviewOfCycles(t *testing.T, dsn string) {
	b := replica(t, dsn)
	b.AtOnce(t)
	config := b.Push(t, "r", "config")
	gone := func(what string, want int) {
		t.Helper()
		if m := b.untilSettled(t); m != want {
			t.Errorf("%s: %d manifests were deleted, want %d", what, m, want)
		}
		b.Empty(t, "manifests", "manifest_references", "gc_manifest_review_queue")
	}
	for name, form := range cycleForms {
		list := form(t, b, config)
		gone(name+", never tagged", len(list))
		for i := range list {
			what := fmt.Sprintf("%s, tag on %d", name, i)
			form(t, b, config)
			b.Put(t, "r", list[i], "t")
			if name == "cycles on cycles" && (i == 2 || i == 3) {
				// Here the test doesn't demand that reviews keep all manifests. It only
				// checks, below, that the tagged manifest stays, and that reviews delete
				// all remaining manifests after the tag's deletion.
				b.untilSettled(t)
			} else if m := b.untilSettled(t); m != 0 && name != "cycles on cycles" {
				t.Errorf("%s: %d manifests were deleted that the tag holds", what, m)
			}
			left := b.Rows(t, "manifests")
			b.Empty(t, "gc_manifest_review_queue")
			b.Whole(t, "r", "t")
			if err := b.DeleteTag(t.Context(), "r", "t"); err != nil {
				t.Fatal(err)
			}
			gone(what, left)
		}
	}
}

// No manifest of a cycle has a tag, but either an index outside the cycle lists one of its
// manifests and has a tag, or one of its manifests has a subject outside the cycle. The
// cycle must stay until this tag or this subject is deleted.
func TestReviewOfHeldCycles(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.AtOnce(t)
	config := b.Push(t, "r", "config")
	for what, hold := range map[string]func(list [][]byte){
		"an index of the top":   func(list [][]byte) { b.Put(t, "r", catalogtest.Index(t, oci.Compute(oci.SHA256, list[2])), "t") },
		"an index of the image": func(list [][]byte) { b.Put(t, "r", catalogtest.Index(t, oci.Compute(oci.SHA256, list[0])), "t") },
		"an index of an index of the middle": func(list [][]byte) {
			b.Put(t, "r", catalogtest.Index(t, b.Put(t, "r", catalogtest.Index(t, oci.Compute(oci.SHA256, list[1])))), "t")
		},
	} {
		hold(nested(t, b, config, 2))
		n := b.Rows(t, "manifests")
		if m := b.untilSettled(t); m != 0 {
			t.Errorf("%s: %d manifests were deleted, none should be", what, m)
		}
		b.Empty(t, "gc_manifest_review_queue")
		if err := b.DeleteTag(t.Context(), "r", "t"); err != nil {
			t.Fatal(err)
		}
		if m := b.untilSettled(t); m != n {
			t.Errorf("%s: %d manifests were deleted without the tag, want %d", what, m, n)
		}
		b.Empty(t, "manifests", "gc_manifest_review_queue")
	}

	// The image of this cycle has a tagged subject that isn't in the cycle. Reviews must
	// keep the cycle until the subject is deleted.
	above := catalogtest.Numbered(t, 9, config)
	subject := b.Put(t, "r", above, "t")
	image := b.Put(t, "r", catalogtest.SubjectOf(t, config, subject))
	b.Put(t, "r", circular(t, image, image))
	if m := b.untilSettled(t); m != 0 {
		t.Errorf("%d manifests were deleted whose subject is tagged", m)
	}
	if err := b.DeleteManifest(t.Context(), "r", subject); err != nil {
		t.Fatal(err)
	}
	if m := b.untilSettled(t); m != 2 {
		t.Errorf("%d manifests were deleted after the subject, want 2", m)
	}
	b.Empty(t, "manifests", "gc_manifest_review_queue")
}

// A client was told that one manifest of a cycle without tags exists. That manifest must
// stay until its review delay is over, even if reviews delete the rest of the cycle before.
func TestReviewOfPromisedCycles(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Delays(t)
	config := b.Push(t, "r", "config")
	list := nested(t, b, config, 2)
	b.Delays(t, "manifest_upload")
	image := oci.Compute(oci.SHA256, list[0])
	if _, err := b.PromiseManifestExists(t.Context(), "r", image); err != nil {
		t.Fatal(err)
	}
	if m := b.untilSettled(t); m != 2 {
		t.Errorf("%d manifests were deleted, want the two indexes", m)
	}
	if _, err := b.ManifestByDigest(t.Context(), "r", image); err != nil {
		t.Error(err)
	}
	b.DueNow(t)
	if m := b.untilSettled(t); m != 1 {
		t.Errorf("%d manifests were deleted then, want the image", m)
	}

	// Here the client was told that the outermost index exists. Only the deletion of this
	// index breaks the cycle, so the whole cycle must stay until the index's review delay
	// is over.
	nested(t, b, config, 2)
	b.Exec(t, "UPDATE gc_manifest_review_queue SET review_after = now()")
	if _, err := b.PromiseManifestExists(t.Context(), "r", oci.Compute(oci.SHA256, list[2])); err != nil {
		t.Fatal(err)
	}
	if m := b.untilSettled(t); m != 0 {
		t.Errorf("%d manifests were deleted of a cycle whose outermost index is promised", m)
	}
	if n := b.Count(t, "SELECT count(*) FROM gc_manifest_review_queue WHERE review_after > now() + interval '23 hours'"); n != 1 {
		t.Errorf("%d rows are in review for later, want one", n)
	}
	b.DueNow(t)
	if m := b.untilSettled(t); m != 3 {
		t.Errorf("%d manifests were deleted then, want all 3", m)
	}
}

// Reviews must delete a cycle of 1,002 manifests, and keep a cycle with more manifests than
// a review reads (2,000).
func TestReviewOfLargeCycles(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.AtOnce(t)
	config := b.Push(t, "r", "config")
	list := nested(t, b, config, 1)
	many := func(n int) {
		t.Helper()
		b.Exec(t, `WITH s AS (SELECT * FROM manifests WHERE digest = $1), m AS (
				INSERT INTO manifests (top_level_namespace_id, repository_id, digest, subject_digest, media_type, payload, total_size)
				SELECT top_level_namespace_id, repository_id, '\x01'::bytea || sha256(i::text::bytea), s.digest, media_type, payload, 0
				FROM s, generate_series(1, $2::int) i RETURNING *)
			INSERT INTO manifest_references (top_level_namespace_id, repository_id, parent_id, child_id)
			SELECT m.top_level_namespace_id, m.repository_id, m.id, s.id FROM m, s`, oci.Compute(oci.SHA256, list[0]).Bytes(), n)
		b.Exec(t, "ANALYZE manifests, manifest_references, tags")
	}
	many(1000)
	start := time.Now()
	if m := b.untilSettled(t); m != 1002 {
		t.Errorf("%d manifests were deleted of a cycle with 1,001 indexes", m)
	}
	t.Logf("1,001 indexes of one image took %v", time.Since(start))
	b.Empty(t, "manifests")

	nested(t, b, config, 1)
	many(2500)
	b.Exec(t, "DELETE FROM gc_manifest_review_queue")
	b.Put(t, "r", list[1])
	if m := b.untilSettled(t); m != 0 {
		t.Errorf("%d manifests were deleted of a cycle that is too large", m)
	}
	b.Exec(t, `DELETE FROM manifests m WHERE subject_digest IS NOT NULL
		AND id NOT IN (SELECT min(id) FROM manifests WHERE subject_digest IS NOT NULL)`)
	if m := b.untilSettled(t); m != 2 {
		t.Errorf("%d manifests were deleted when it was no longer, want 2", m)
	}
}

// A dry run must report the outermost index, whose deletion would break the cycle, and
// delete nothing.
func TestDryRunOfCycles(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.AtOnce(t)
	config := b.Push(t, "r", "config")
	list := nested(t, b, config, 2)
	out, err := b.Review(t.Context(), gc.ReviewOptions{Kind: reviewingManifests, Limit: 10, DryRun: true})
	top := oci.Compute(oci.SHA256, list[2])
	if err != nil || len(out.WouldDelete) != 1 || out.WouldDelete[0].Digest != top || out.Kept != 2 {
		t.Errorf("dry run: %+v, %v; want %s found and two kept", out, err, top)
	}
	if n := b.Rows(t, "manifests"); n != 3 {
		t.Errorf("%d manifests are left, want 3", n)
	}
	if n := b.Count(t, "SELECT count(*) FROM gc_manifest_review_queue WHERE event = 'circle'"); n != 0 {
		t.Errorf("%d rows were queued by a dry run", n)
	}
}

// A review must not send the SQL statement that looks for cycles when it reviews only
// manifests that can't be in a cycle.
func TestReviewLooksForCyclesOnlyWhereTheyCanBe(t *testing.T) {
	t.Parallel()
	b := setup(t)
	config := b.Push(t, "r", "config")
	child := b.Put(t, "r", catalogtest.Numbered(t, 1, config))
	b.Put(t, "r", catalogtest.Index(t, child), "t")
	b.Put(t, "r", catalogtest.Numbered(t, 2, config))
	b.Put(t, "r", catalogtest.SubjectOf(t, config, b.Put(t, "r", catalogtest.Numbered(t, 3, config), "u")))
	b.DueNow(t)
	p := b.pausing(t, ofManifests())
	var sent []string
	for done := false; !done; {
		select {
		case sql := <-p.at:
			sent = append(sent, sql)
			p.next <- struct{}{}
		case <-p.done:
			done = true
		}
	}
	if p.err != nil || p.out.Kept != 2 || p.out.Deleted != 1 {
		t.Fatalf("review: %+v, %v", p.out, p.err)
	}
	if slices.ContainsFunc(sent, func(sql string) bool { return walk.MatchString(sql) }) {
		t.Errorf("it looks for cycles: %q", sent)
	}

	b.Put(t, "r", circular(t, child, child))
	b.DueNow(t)
	p = b.pausing(t, ofManifests())
	p.to(t, beforeWalk)
	if out := p.ended(t); out.Kept != 1 {
		t.Errorf("then: %+v", out)
	}
}
