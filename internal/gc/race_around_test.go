package gc_test

import (
	"context"
	"testing"

	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/gc"
	"github.com/purser-registry/purser/internal/oci"
)

// Each of the other race tests stops a review at a statement where one particular mistake
// would show. The tests of this file stop it before the remaining statements, and let
// several clients at once send requests that the review could affect. In whatever order the
// requests are executed, three things must hold. A client that was told that something
// exists must find it afterwards. Nothing that is referenced may be deleted. After all
// reviews, no unreferenced content may be left.

// around has, by name, functions that each send a client's request while a review is
// stopped. A function returns whether the client was told that something exists.
type around map[string]func() (exists bool, err error)

// meet sends the requests in `clients` one after the other, each as soon as the previous
// request has ended or waits for a lock. Then it lets the review finish. It returns by name
// which clients were told that something exists.
func (p *paused) meet(t *testing.T, b bundle, clients around) map[string]bool {
	t.Helper()
	type answer struct {
		exists bool
		err    error
	}
	answers := map[string]chan answer{}
	for name, client := range clients {
		waiting, done := b.Waiting(t), make(chan answer, 1)
		answers[name] = done
		go func() {
			exists, err := client()
			done <- answer{exists, err}
		}()
		catalogtest.Eventually(t, name+" ends or waits", func() bool { return len(done) > 0 || b.Waiting(t) > waiting })
	}
	p.ended(t)
	told := map[string]bool{}
	for name, done := range answers {
		a := <-done
		if a.err != nil {
			t.Errorf("%s: %v", name, a.err)
		}
		told[name] = a.exists
	}
	return told
}

// The function `either` returns whether a client was told that something exists: true if
// the error `err` of the client's request is nil, false if its code is in `codes`. It
// returns any other error unchanged.
func either(err error, codes ...oci.Code) (exists bool, _ error) {
	if err == nil || isOneOf(err, codes...) {
		return err == nil, nil
	}
	return false, err
}

// settle commits the transaction of the session `holds` and reviews everything. It checks
// that reviews delete nothing that is referenced, and leave neither garbage nor a reference
// to deleted content.
func (b bundle) settle(t *testing.T, holds catalogtest.Session) {
	t.Helper()
	b.Complete(t)
	b.Owned(t)
	holds.Exec(t, "COMMIT")
	b.AtOnce(t)
	for deleted := 1; deleted > 0; {
		b.DueNow(t)
		manifests, blobs := b.ReviewAll(t)
		deleted = manifests + blobs
	}
	b.Complete(t)
	b.Owned(t)
	b.nothingDangles(t)
}

func TestRaceAroundBlobs(t *testing.T) {
	t.Parallel()
	for name, stop := range map[string][]string{
		"claim":             {`FROM gc_blob_review_queue.*FOR UPDATE`},
		"second look":       {beforeBlobLook, beforeBlobLook},
		"count of links":    {`FROM repository_blobs WHERE blob_digest = d.digest OFFSET \$2`},
		"look at links":     {`SELECT \* FROM repository_blobs rb WHERE`},
		"after the links":   {beforeLinkDelete, beforeBlobSettle},
		"second settlement": {beforeBlobSettle, beforeBlobSettle},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			config, layer, stray, busy := b.Push(t, "r", "config"), b.Push(t, "r", "layer"), b.Push(t, "r", "stray"), b.Push(t, "r", "busy")
			b.Push(t, "other", "layer")
			b.Push(t, "other", "config")
			image := catalogtest.Image(t, config, []oci.Digest{layer}, nil)
			b.Put(t, "r", image, "t")
			b.Forget(t)
			b.Exec(t, "INSERT INTO gc_blob_review_queue (digest, event, review_after) SELECT digest, 'test', now() FROM blobs")
			holds := b.Session(t)
			holds.Exec(t, "BEGIN")
			holds.Exec(t, "SELECT FROM blobs WHERE digest = $1 FOR KEY SHARE", busy.Bytes())
			p := b.pausing(t, ofBlobs())
			for _, pattern := range stop {
				p.to(t, pattern)
			}
			ctx := context.Background()
			told := p.meet(t, b, around{
				"HEAD": func() (bool, error) {
					_, err := b.PromiseBlobExists(ctx, "r", stray)
					return either(err, oci.BlobUnknown)
				},
				"put": func() (bool, error) {
					_, err := b.TryPut(ctx, "r", catalogtest.Image(t, config, []oci.Digest{stray}, nil), "new")
					return either(err, oci.ManifestBlobUnknown)
				},
				"put by the other link": func() (bool, error) {
					_, err := b.TryPut(ctx, "other", image, "new")
					return either(err, oci.ManifestBlobUnknown)
				},
				"upload": func() (bool, error) {
					_, err := b.TryPush(ctx, "third", "stray")
					return err == nil, err
				},
				"mount": func() (bool, error) {
					_, err := b.Mount(ctx, "fourth", "r", busy)
					return err == nil, err
				},
			})
			if told["HEAD"] {
				if _, err := b.BlobNow(t.Context(), "r", stray); err != nil {
					t.Errorf("HEAD said that the blob exists: %v", err)
				}
			}
			for path, there := range map[string]bool{"r": told["put"], "other": told["put by the other link"]} {
				if there {
					b.Whole(t, path, "new")
				}
			}
			for path, d := range map[string]oci.Digest{"third": stray, "fourth": busy} {
				if _, err := b.BlobNow(t.Context(), path, d); err != nil {
					t.Errorf("what was pushed to %s: %v", path, err)
				}
			}
			b.Whole(t, "r", "t", config, layer)
			b.settle(t, holds)
		})
	}
}

func TestRaceAroundManifests(t *testing.T) {
	t.Parallel()
	for name, stop := range map[string][]string{
		"claim":                 {`FROM gc_manifest_review_queue.*FOR UPDATE`},
		"after a held cycle":    {`INSERT INTO gc_manifest_review_queue`, beforeDelete},
		"whether they are gone": {`SELECT w.namespace, w.repository, w.id, EXISTS`},
		"postponement":          {`UPDATE gc_manifest_review_queue`},
		"end":                   {`UPDATE gc_manifest_review_queue`, beforeCommit},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			config := b.Push(t, "r", "config")
			free, busy := catalogtest.Numbered(t, 1, config), catalogtest.Numbered(t, 2, config)
			unused, child := b.Put(t, "r", free), b.Put(t, "r", catalogtest.Numbered(t, 3, config))
			held := b.Put(t, "r", busy)
			b.Put(t, "r", catalogtest.Numbered(t, 4, config), "t")
			b.Put(t, "r", catalogtest.Numbered(t, 5, config), "last")
			nested(t, b, b.Push(t, "r", "another"), 2)
			b.DueNow(t)
			holds := b.Session(t)
			holds.Exec(t, "BEGIN")
			holds.Exec(t, "SELECT FROM manifests WHERE digest = $1 FOR KEY SHARE", held.Bytes())
			p := b.pausing(t, ofManifests())
			for _, pattern := range stop {
				p.to(t, pattern)
			}
			ctx := context.Background()
			told := p.meet(t, b, around{
				"HEAD": func() (bool, error) {
					_, err := b.PromiseManifestExists(ctx, "r", child)
					return either(err, oci.ManifestUnknown)
				},
				"tag": func() (bool, error) {
					_, err := b.TryPut(ctx, "r", free, "new")
					return err == nil, err
				},
				"tag the locked": func() (bool, error) {
					_, err := b.TryPut(ctx, "r", busy, "busy")
					return err == nil, err
				},
				"index": func() (bool, error) {
					_, err := b.TryPut(ctx, "r", catalogtest.Index(t, child), "list")
					return either(err, oci.ManifestBlobUnknown)
				},
				"referrer": func() (bool, error) {
					_, err := b.TryPut(ctx, "r", catalogtest.SubjectOf(t, config, unused))
					return err == nil, err
				},
				"last tag": func() (bool, error) { return true, b.DeleteTag(ctx, "r", "last") },
			})
			if told["HEAD"] {
				if _, err := b.ManifestByDigest(t.Context(), "r", child); err != nil {
					t.Errorf("HEAD said that the manifest exists: %v", err)
				}
			}
			if told["index"] {
				b.Whole(t, "r", "list")
			}
			for _, tag := range []string{"t", "new", "busy"} {
				b.Whole(t, "r", tag, config)
			}
			b.settle(t, holds)
			for _, tag := range []string{"t", "new", "busy"} {
				b.Whole(t, "r", tag, config)
			}
		})
	}
}

// A dry run of a review has deleted a manifest in its transaction, and is about to look up
// the manifest's repository. Then a client puts the same manifest with a tag. The put must
// wait until the dry run has rolled its transaction back, and then find the registry
// unchanged.
func TestRaceAroundDryRun(t *testing.T) {
	t.Parallel()
	b := setup(t)
	config := b.Push(t, "r", "config")
	payload := catalogtest.Numbered(t, 1, config)
	b.Put(t, "r", payload)
	b.DueNow(t)
	holds := b.Session(t)
	holds.Exec(t, "BEGIN")
	p := b.pausing(t, gc.ReviewOptions{Kind: reviewingManifests, DryRun: true})
	p.to(t, `FROM named_repositories WHERE id`)
	p.meet(t, b, around{"tag": func() (bool, error) {
		_, err := b.TryPut(context.Background(), "r", payload, "t")
		return err == nil, err
	}})
	if p.out.Deleted != 1 || b.Rows(t, "manifests") != 1 {
		t.Errorf("the dry run: %+v", p.out)
	}
	b.Whole(t, "r", "t", config)
	b.settle(t, holds)
}

// Very many repositories have an unused link to a blob, and UnlinkInPages removes these
// links in several transactions. Between two statements of one of these transactions, a
// client mounts the blob, and another asks whether the blob exists. Both must be told that
// it exists, and the mounted blob must be there afterwards.
func TestRaceAroundPages(t *testing.T) {
	t.Parallel()
	for name, stop := range map[string][]string{
		"claim":  {`xmin::text = \$2 FOR UPDATE`},
		"look":   {`ORDER BY repository_id LIMIT \$3`},
		"settle": {`DELETE FROM gc_blob_review_queue WHERE digest = \$1`},
		"commit": {`DELETE FROM gc_blob_review_queue WHERE digest = \$1`, beforeCommit},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			config, wide := b.Push(t, "r", "config"), b.Push(t, "r", "wide")
			image := catalogtest.Image(t, config, []oci.Digest{wide}, nil)
			b.Put(t, "r", image, "t")
			b.linkFrom(t, wide, 1000, manyLinks)
			b.Push(t, "look", "config")
			b.DueNow(t)
			out := b.ReviewBatch(t, reviewingBlobs)
			if len(out.ManyLinked) != 1 {
				t.Fatalf("review: %+v; want one blob with many links", out)
			}
			p := b.pausingAt(t, func(ctx context.Context, c *gc.Collector) (r gc.Review, err error) {
				r.Links, err = c.UnlinkInPages(ctx, out.ManyLinked[0])
				return r, err
			})
			for _, pattern := range stop {
				p.to(t, pattern)
			}
			ctx := context.Background()
			told := p.meet(t, b, around{
				"mount": func() (bool, error) {
					_, err := b.Mount(ctx, "new", "r", wide)
					return err == nil, err
				},
				"HEAD": func() (bool, error) {
					_, err := b.PromiseBlobExists(ctx, "r", wide)
					return err == nil, err
				},
			})
			if !told["mount"] || !told["HEAD"] {
				t.Errorf("the blob is used, and clients were told %v", told)
			}
			if _, err := b.BlobNow(t.Context(), "new", wide); err != nil {
				t.Errorf("what was mounted: %v", err)
			}
			b.Whole(t, "r", "t", config, wide)
			b.Owned(t)
		})
	}
}

// A worker is about to queue referrers of a deleted subject for review. Then clients put
// the subject again and put another referrer. No referrer may be deleted, since the subject
// exists again.
func TestRaceAroundReferrers(t *testing.T) {
	t.Parallel()
	b, subject, digest := manyReferrers(t)
	config := b.Push(t, "r", "config")
	holds := b.Session(t)
	holds.Exec(t, "BEGIN")
	p := b.pausingAt(t, func(ctx context.Context, c *gc.Collector) (out gc.Review, err error) {
		_, err = c.QueueReferrers(ctx, 500)
		return out, err
	})
	p.to(t, `gc_queue_more_referrers`)
	referrers := b.Rows(t, "manifests")
	p.meet(t, b, around{
		"subject": func() (bool, error) {
			_, err := b.TryPut(context.Background(), "r", subject, "t")
			return err == nil, err
		},
		"referrer": func() (bool, error) {
			_, err := b.TryPut(context.Background(), "r", catalogtest.SubjectOf(t, config, digest))
			return err == nil, err
		},
	})
	b.settle(t, holds)
	if n := b.Rows(t, "manifests"); n != referrers+2 {
		t.Errorf("%d manifests are left of %d with their subject", n, referrers+2)
	}
}
