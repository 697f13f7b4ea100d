package gc_test

import (
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/oci"
)

// events returns the events in the review queue `table`, sorted and separated by spaces.
func (b bundle) events(t *testing.T, table string) string {
	t.Helper()
	var s string
	if err := b.DB.Pool.QueryRow(t.Context(),
		"SELECT COALESCE(string_agg(event, ' ' ORDER BY event), '') FROM "+table).Scan(&s); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestTrackingOfImages(t *testing.T) { catalogtest.AtBoth(t, testTrackingOfImages) }

func testTrackingOfImages(t *testing.T, dsn string) {
	b := replica(t, dsn)
	config, layer := b.Push(t, "r", "config"), b.Push(t, "r", "layer")
	if got := b.events(t, "gc_blob_review_queue"); got != "blob_upload blob_upload" {
		t.Errorf("after uploads: %q", got)
	}
	one := b.Put(t, "r", catalogtest.Image(t, config, []oci.Digest{layer}, nil), "v1")
	if got := b.events(t, "gc_manifest_review_queue"); got != "" {
		t.Errorf("a tagged manifest is in review: %q", got)
	}
	if n := b.Count(t, "SELECT (SELECT count(*) FROM gc_blobs_layers) * 10 + (SELECT count(*) FROM gc_blobs_configurations)"); n != 11 {
		t.Errorf("layers and configurations tracked: %d, want one of each", n)
	}
	b.Put(t, "r", catalogtest.Image(t, config, nil, nil), "v1")
	if got := b.events(t, "gc_manifest_review_queue"); got != "tag_switch" {
		t.Errorf("after a tag moved: %q", got)
	}
	b.Exec(t, "DELETE FROM gc_manifest_review_queue")
	b.Exec(t, "DELETE FROM gc_blob_review_queue")
	if err := b.DeleteTag(t.Context(), "r", "v1"); err != nil {
		t.Fatal(err)
	}
	if got := b.events(t, "gc_manifest_review_queue"); got != "tag_delete" {
		t.Errorf("after a tag was deleted: %q", got)
	}
	if err := b.DeleteManifest(t.Context(), "r", one); err != nil {
		t.Fatal(err)
	}
	if got := b.events(t, "gc_blob_review_queue"); got != "layer_delete manifest_delete" {
		t.Errorf("after a manifest was deleted: %q", got)
	}
	if n := b.Count(t, "SELECT (SELECT count(*) FROM gc_blobs_layers) * 10 + (SELECT count(*) FROM gc_blobs_configurations)"); n != 1 {
		t.Errorf("layers and configurations tracked: %d, want the other image's configuration", n)
	}
}

func TestTrackingOfIndexesAndReferrers(t *testing.T) {
	catalogtest.AtBoth(t, testTrackingOfIndexesAndReferrers)
}

func testTrackingOfIndexesAndReferrers(t *testing.T, dsn string) {
	b := replica(t, dsn)
	config := b.Push(t, "r", "config")
	child := b.Put(t, "r", catalogtest.Image(t, config, nil, nil))
	list := b.Put(t, "r", catalogtest.Index(t, child), "multi")
	subject := map[string]any{"mediaType": oci.MediaTypeImageIndex, "digest": list.String(), "size": 1}
	b.Put(t, "r", catalogtest.Image(t, config, nil, map[string]any{"subject": subject, "artifactType": "application/x"}))

	err := b.DeleteManifest(t.Context(), "r", child)
	catalogtest.WantCode(t, err, oci.Denied)
	if !strings.Contains(err.Error(), list.String()) {
		t.Errorf("the refusal doesn't name the index: %v", err)
	}
	b.Exec(t, "DELETE FROM gc_manifest_review_queue")
	if err := b.DeleteManifest(t.Context(), "r", list); err != nil {
		t.Fatal(err)
	}
	if got := b.events(t, "gc_manifest_review_queue"); got != "manifest_list_delete subject_delete" {
		t.Errorf("after an index with a referrer was deleted: %q", got)
	}
	if err := b.DeleteManifest(t.Context(), "r", child); err != nil {
		t.Fatal(err)
	}
}

// One SQL statement deletes all manifests of a repository, indexes and their children
// together. It must succeed, and its triggers must queue the manifests' blobs for review.
func TestDeleteAllManifestsAtOnce(t *testing.T) { catalogtest.AtBoth(t, testDeleteAllManifestsAtOnce) }

func testDeleteAllManifestsAtOnce(t *testing.T, dsn string) {
	b := replica(t, dsn)
	config, layer := b.Push(t, "r", "config"), b.Push(t, "r", "layer")
	one := b.Put(t, "r", catalogtest.Image(t, config, []oci.Digest{layer}, nil))
	two := b.Put(t, "r", catalogtest.Image(t, config, []oci.Digest{layer}, map[string]any{"annotations": map[string]string{"n": "2"}}))
	inner := b.Put(t, "r", catalogtest.Index(t, one, two))
	b.Put(t, "r", catalogtest.Index(t, inner, two))
	b.Exec(t, "DELETE FROM gc_blob_review_queue")
	b.Exec(t, "DELETE FROM manifests")
	if n := b.Count(t, "SELECT (SELECT count(*) FROM layers) + (SELECT count(*) FROM gc_blobs_layers) + (SELECT count(*) FROM manifest_references)"); n != 0 {
		t.Errorf("%d rows are left behind", n)
	}
	if got := b.events(t, "gc_blob_review_queue"); got != "layer_delete manifest_delete" {
		t.Errorf("blobs in review: %q", got)
	}
}

// The test deletes rows from a partition of a table directly, without naming the
// partitioned table. The triggers must queue reviews for these rows as well.
func TestTrackingOnPartitions(t *testing.T) {
	t.Parallel()
	b := setup(t)
	config, layer := b.Push(t, "r", "config"), b.Push(t, "r", "layer")
	b.Put(t, "r", catalogtest.Image(t, config, []oci.Digest{layer}, nil), "v1")
	b.Exec(t, "DELETE FROM gc_blob_review_queue")
	for _, table := range []string{"tags", "manifests"} {
		for _, p := range []string{"0", "1", "2", "3"} {
			b.Exec(t, "DELETE FROM partitions."+table+"_p_"+p)
		}
	}
	if got := b.events(t, "gc_blob_review_queue"); got != "layer_delete manifest_delete" {
		t.Errorf("blobs in review: %q", got)
	}
}

func TestReviewDelays(t *testing.T) {
	t.Parallel()
	b := setup(t)
	delay := func(event string) time.Duration {
		var d time.Duration
		if err := b.DB.Pool.QueryRow(t.Context(), "SELECT gc_review_after($1) - now()", event).Scan(&d); err != nil {
			t.Fatal(err)
		}
		return d
	}
	if d := delay("tag_delete"); d < 24*time.Hour || d > 25*time.Hour {
		t.Errorf("without a setting: %v, want a day and at most an hour", d)
	}
	if err := b.SetReviewDelays(t.Context(), time.Hour, map[string]time.Duration{"tag_delete": 0}); err != nil {
		t.Fatal(err)
	}
	if d := delay("tag_delete"); d != 0 {
		t.Errorf("a delay of 0 became %v", d)
	}
	if d := delay("blob_upload"); d < time.Hour || d > 66*time.Minute {
		t.Errorf("an hour became %v", d)
	}
	if err := b.SetReviewDelays(t.Context(), time.Hour, map[string]time.Duration{"tag_delet": 0}); err == nil ||
		!strings.Contains(err.Error(), "tag_delet") {
		t.Errorf("unknown event: %v", err)
	}
}

// An operator changes a review delay in the table gc_review_after_defaults. When replicas
// start, they must keep the operator's value, unless the configured delay has changed since
// the last start.
func TestOperatorsDelaysStay(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	b := setup(t)
	start := func(all time.Duration, events map[string]time.Duration) {
		t.Helper()
		for range 2 { // replicas
			if err := b.SetReviewDelays(t.Context(), all, events); err != nil {
				t.Fatal(err)
			}
		}
	}
	set := func(sql string) {
		t.Helper()
		if _, err := b.DB.Pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	want := func(event string, want time.Duration) {
		t.Helper()
		var d time.Duration
		err := b.DB.Pool.QueryRow(t.Context(), "SELECT value FROM gc_review_after_defaults WHERE event = $1", event).Scan(&d)
		if err != nil || d != want {
			t.Errorf("the delay of %s is %v (%v), want %v", event, d, err, want)
		}
	}
	start(day, nil)
	set("UPDATE gc_review_after_defaults SET value = '5 minutes' WHERE event = 'tag_delete'")
	start(day, map[string]time.Duration{"tag_switch": time.Hour})
	want("tag_delete", 5*time.Minute)
	want("tag_switch", time.Hour)
	want("subject_delete", day)
	start(2*day, map[string]time.Duration{"tag_switch": time.Hour}) // now the configuration has changed
	want("tag_delete", 2*day)
	want("tag_switch", time.Hour)

	// No configured delay is known of a row that an operator has written (configured is NULL).
	// The next start must keep the row's delay.
	set("UPDATE gc_review_after_defaults SET value = '7 hours', configured = NULL WHERE event = 'blob_upload'")
	start(2*day, nil)
	want("blob_upload", 7*time.Hour)
	start(day, nil)
	want("blob_upload", day)
}

// An event must not shorten the review delay that an earlier event has given to a queue
// row.
func TestDelaysNeverShrink(t *testing.T) {
	t.Parallel()
	b := setup(t)
	layer := b.Push(t, "r", "layer")
	b.Exec(t, "UPDATE gc_blob_review_queue SET review_after = now() + interval '1 year', set_aside_at = now(), review_count = 3")
	if _, err := b.PromiseBlobExists(t.Context(), "r", layer); err != nil {
		t.Fatal(err)
	}
	b.Push(t, "other", "layer")
	if ok, err := b.Mount(t.Context(), "third", "r", layer); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if n := b.Count(t, "SELECT count(*) FROM gc_blob_review_queue WHERE review_after > now() + interval '360 days' AND set_aside_at IS NULL AND review_count = 0"); n != 1 {
		t.Error("a promise shortened another, or left the review failed")
	}
}
