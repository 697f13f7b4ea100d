package gc_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/gc"
	"github.com/purser-registry/purser/internal/oci"
)

// untagged asks the policies in the database. Instead of package autoprune, which tests of this
// package can't import, it reads policies of the form {"keepUntagged": "72h", "repository": "app/r"}.
func untagged(ctx context.Context, tx pgx.Tx, namespaces, repositories, manifests []int64) (map[int64]gc.Retention, error) {
	found := make(map[int64]gc.Retention)
	b := new(pgx.Batch) // stops of race tests ignore it
	b.Queue(`
		SELECT m.id, p.uuid, p.keep FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) AS m (namespace, repository, id)
		JOIN repositories r ON r.id = m.repository
		JOIN (SELECT uuid, namespace_id, policy::json ->> 'keepUntagged' AS keep, policy::json ->> 'repository' AS path
			FROM namespaceautoprunepolicy) p ON p.namespace_id = m.namespace AND (p.path IS NULL OR p.path = r.path)
		ORDER BY p.keep::interval`, namespaces, repositories, manifests).Query(func(rows pgx.Rows) error {
		var id int64
		var policy, keep string
		_, err := pgx.ForEachRow(rows, []any{&id, &policy, &keep}, func() (err error) {
			r := gc.Retention{By: "policy " + policy}
			r.For, err = time.ParseDuration(keep)
			found[id] = r
			return err
		})
		return err
	})
	return found, tx.SendBatch(ctx, b).Close()
}

// keeping makes a registry whose reviews ask policies.
func keeping(t *testing.T) bundle {
	t.Helper()
	b := setup(t)
	b.Collector = gc.New(gc.Options{Catalog: b.Catalog, DB: b.DB, Untagged: untagged})
	return b
}

// change changes the policies of the namespace app as package autoprune does.
func (b bundle) change(sql string, args ...any) error {
	return pgx.BeginFunc(context.Background(), b.DB.Pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(context.Background(), sql, args...); err != nil {
			return err
		}
		_, err := tx.Exec(context.Background(), "SELECT pg_advisory_xact_lock(1886745447, 0)")
		return err
	})
}

const newPolicy = "INSERT INTO namespaceautoprunepolicy (uuid, namespace_id, policy) SELECT $1, id, $2 FROM top_level_namespaces WHERE name = 'app'"

// policy replaces the policies of the namespace app by one; "" for none.
func (b bundle) policy(t *testing.T, text string) {
	t.Helper()
	err := b.change("DELETE FROM namespaceautoprunepolicy")
	if err == nil && text != "" {
		err = b.change(newPolicy, "one", text)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// age moves the time of everything in the queue into the past.
func (b bundle) age(t *testing.T, by string) {
	t.Helper()
	b.Exec(t, "UPDATE gc_manifest_review_queue SET review_after = review_after - $1::interval, unused_since = unused_since - $1::interval", by)
}

// TestUntaggedStays: what a policy keeps stays until the retention ends, and its review comes
// again each day; what no policy keeps goes after the review delay.
func TestUntaggedStays(t *testing.T) {
	t.Parallel()
	b := keeping(t)
	config := b.Push(t, "app/r", "config")
	b.Push(t, "app/other", "config")
	kept := b.Put(t, "app/r", catalogtest.Numbered(t, 1, config), "old")
	child := b.Put(t, "app/r", catalogtest.Numbered(t, 2, config))
	index := b.Put(t, "app/r", catalogtest.Index(t, child))
	b.Put(t, "app/other", catalogtest.Numbered(t, 4, config))
	b.policy(t, `{"keepUntagged": "72h", "repository": "app/r"}`)
	if err := b.DeleteTag(t.Context(), "app/r", "old"); err != nil {
		t.Fatal(err)
	}
	there := func(d oci.Digest) bool {
		t.Helper()
		_, err := b.ExplainManifest(t.Context(), "app/r", d)
		return err == nil
	}
	e, err := b.ExplainManifest(t.Context(), "app/r", kept)
	if err != nil || e.Fate != "kept" || e.RetainedUntil == nil || e.RetainedBy != "policy one" || e.RetainedUntil.Sub(e.AsOf).Round(24*time.Hour) != 72*time.Hour {
		t.Errorf("before the review: %+v %v", e, err)
	}
	b.age(t, "1 day 2 hours")
	out := b.ReviewBatch(t, reviewingManifests)
	if out.Deleted != 1 || out.Kept != 3 {
		t.Errorf("the first review: %+v", out)
	}
	if out := b.ReviewBatch(t, reviewingManifests); out.Claimed != 0 {
		t.Errorf("a second review at once: %+v", out)
	}
	if e, err = b.ExplainManifest(t.Context(), "app/r", index); err != nil || e.Review == nil || e.Review.Event != "keep_untagged" ||
		!strings.HasPrefix(e.Sentences()[0], "kept until ") || e.Review.ReviewAfter.After(e.AsOf.Add(27*time.Hour)) || !e.Review.ReviewAfter.After(e.AsOf.Add(23*time.Hour)) {
		t.Errorf("after the first review: %+v %v", e, err)
	}
	b.age(t, "1 day 3 hours")
	b.ReviewBatch(t, reviewingManifests)
	if e, err = b.ExplainManifest(t.Context(), "app/r", index); err != nil || e.RetainedUntil == nil || !e.Review.ReviewAfter.Equal(*e.RetainedUntil) {
		t.Errorf("the last review isn't at the end of the retention: %+v %v", e, err)
	}
	b.age(t, "1 day")
	if out := b.ReviewBatch(t, reviewingManifests); out.Deleted != 2 || there(index) || there(kept) || !there(child) {
		t.Errorf("the review at the end: %+v", out)
	}
	if e, err = b.ExplainManifest(t.Context(), "app/r", child); err != nil || e.Review == nil || e.Review.Event != "manifest_list_delete" || e.RetainedUntil == nil {
		t.Errorf("the time of a child begins when its index is deleted: %+v %v", e, err)
	}
	b.age(t, "1 day 2 hours")
	b.ReviewBatch(t, reviewingManifests)
	b.policy(t, "")
	b.age(t, "1 day 3 hours")
	if out := b.ReviewBatch(t, reviewingManifests); out.Deleted != 1 || there(child) {
		t.Errorf("without the policy: %+v", out)
	}
}

// TestRetentionBegins: the time of a manifest counts from the last event that might have made it
// unused, also if clients have asked for it long before, or it had a tag again.
func TestRetentionBegins(t *testing.T) {
	t.Parallel()
	b := keeping(t)
	config := b.Push(t, "app/r", "config")
	b.policy(t, `{"keepUntagged": "72h"}`)
	payload := catalogtest.Numbered(t, 1, config)
	d := b.Put(t, "app/r", payload, "tag")
	if _, err := b.PromiseManifestExists(t.Context(), "app/r", d); err != nil {
		t.Fatal(err)
	}
	b.Exec(t, "UPDATE gc_manifest_review_queue SET created_at = created_at - interval '50 days'")
	for range 2 {
		if err := b.DeleteTag(t.Context(), "app/r", "tag"); err != nil {
			t.Fatal(err)
		}
		b.age(t, "1 day 2 hours")
		if out := b.ReviewBatch(t, reviewingManifests); out.Kept != 1 {
			t.Errorf("the first review: %+v", out)
		}
		b.age(t, "1 day 3 hours")
		if e, err := b.ExplainManifest(t.Context(), "app/r", d); err != nil || e.RetainedUntil == nil || e.RetainedUntil.Sub(e.AsOf) > 24*time.Hour {
			t.Errorf("after two days: %+v %v", e, err)
		}
		b.Put(t, "app/r", payload, "tag")
	}
}

// TestRetentionOutlivesDelay: the time of a manifest counts from its event, also if the delay of the
// event becomes longer before the review.
func TestRetentionOutlivesDelay(t *testing.T) {
	t.Parallel()
	b := keeping(t)
	delay := func(d time.Duration) {
		t.Helper()
		if err := b.SetReviewDelays(t.Context(), d, nil); err != nil {
			t.Fatal(err)
		}
	}
	delay(24 * time.Hour)
	config := b.Push(t, "app/r", "config")
	b.policy(t, `{"keepUntagged": "240h"}`)
	list := map[string]oci.Digest{
		"manifest_upload":      b.Put(t, "app/r", catalogtest.Numbered(t, 1, config)),
		"tag_delete":           b.Put(t, "app/r", catalogtest.Numbered(t, 2, config), "deleted"),
		"tag_switch":           b.Put(t, "app/r", catalogtest.Numbered(t, 3, config), "moved"),
		"manifest_list_delete": b.Put(t, "app/r", catalogtest.Numbered(t, 4, config), "child"),
	}
	subject := b.Put(t, "app/r", catalogtest.Index(t, list["manifest_list_delete"]), "index")
	list["subject_delete"] = b.Put(t, "app/r", catalogtest.SubjectOf(t, config, subject), "signature")
	for _, d := range list { // clients have asked for them long ago
		if _, err := b.PromiseManifestExists(t.Context(), "app/r", d); err != nil {
			t.Fatal(err)
		}
	}
	b.Exec(t, "UPDATE gc_manifest_review_queue SET created_at = created_at - interval '50 days'")
	b.Put(t, "app/r", catalogtest.Numbered(t, 5, config), "moved")
	for _, tag := range []string{"deleted", "child", "signature"} {
		if err := b.DeleteTag(t.Context(), "app/r", tag); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.DeleteManifest(t.Context(), "app/r", subject); err != nil {
		t.Fatal(err)
	}
	delay(14 * 24 * time.Hour)
	for event, d := range list {
		e, err := b.ExplainManifest(t.Context(), "app/r", d)
		if err != nil || e.Review == nil || e.Review.Event != event || e.RetainedUntil == nil || e.RetainedUntil.Sub(e.AsOf).Round(24*time.Hour) != 240*time.Hour {
			t.Errorf("%s: %+v %v", event, e, err)
		}
	}
	b.age(t, "1 day 2 hours")
	if out := b.ReviewBatch(t, reviewingManifests); out.Kept != len(list) || out.Deleted != 0 {
		t.Errorf("the first review: %+v", out)
	}
	b.age(t, "10 days")
	if out := b.ReviewBatch(t, reviewingManifests); out.Deleted != len(list) {
		t.Errorf("the review at the end: %+v", out)
	}
}

// TestUnknownRetention: without anybody to ask, everything stays that policies may keep.
func TestUnknownRetention(t *testing.T) {
	t.Parallel()
	b := keeping(t)
	config := b.Push(t, "app/r", "config")
	b.Put(t, "app/r", catalogtest.Numbered(t, 1, config))
	b.policy(t, `{"keepUntagged": "1s"}`)
	b.age(t, "2 days")
	blind := gc.New(gc.Options{Catalog: b.Catalog, DB: b.DB})
	if out, err := blind.Review(t.Context(), gc.ReviewOptions{Kind: reviewingManifests, Limit: 10}); err != nil || out.Kept != 1 {
		t.Errorf("without anybody to ask: %+v %v", out, err)
	}
	b.age(t, "2 days")
	if out := b.ReviewBatch(t, reviewingManifests); out.Deleted != 1 {
		t.Errorf("with somebody to ask: %+v", out)
	}
}

// A policy is saved while a review is under way that is about to delete a manifest. The client's
// answer must wait for the review. If the policy was saved before the review began to look, the
// review must keep the manifest.
func TestRacePolicyDuringReview(t *testing.T) {
	t.Parallel()
	b := keeping(t)
	watch := b.Session(t)
	config := b.Push(t, "app/r", "config")
	for i, stop := range []string{"^begin", beforeLock, beforeDelete, beforeCommit, "WITH retained", "WITH retained."} {
		b.Put(t, "app/r", catalogtest.Numbered(t, i, config))
		b.age(t, "1 day 2 hours")
		if strings.HasPrefix(stop, "WITH") { // a policy is there, and keeps less
			b.policy(t, `{"keepUntagged": "1s"}`)
		}
		one := b.pausing(t, ofManifests())
		one.to(t, strings.TrimSuffix(stop, "."))
		if strings.HasSuffix(stop, ".") {
			one.to(t, ".")
		}
		done := catalogtest.Later(func() error { return b.change(newPolicy, "two", `{"keepUntagged": "240h"}`) })
		want := 0
		if stop != "^begin" {
			one.blocks(t, watch, 1)
			want = 1
		} else if err := catalogtest.Soon(t, "policy", done); err != nil {
			t.Error(err)
		}
		if out := one.ended(t); out.Deleted != want || out.Kept != 1-want {
			t.Errorf("stopped at %s: %+v", stop, out)
		}
		if want == 1 {
			if err := catalogtest.Soon(t, "policy", done); err != nil {
				t.Error(err)
			}
		}
		b.policy(t, "")
		b.age(t, "1 day 3 hours")
		b.ReviewBatch(t, reviewingManifests)
	}
}
