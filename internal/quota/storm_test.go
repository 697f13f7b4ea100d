package quota_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/quota"
	"github.com/purser-registry/purser/loosefk"
)

// quotaStorm is the size of a storm. Its clients reach the limits again and again.
type quotaStorm struct {
	limits   quota.Usage
	contents int // the lengths of blobs, and so their number
	tags     int // names of tags
}

// quotaStorms: with the small limits each change is compared with what the whole namespace uses;
// with the large ones most changes fit into the room of their slot.
var quotaStorms = map[string]quotaStorm{
	"small": {quota.Usage{Bytes: 60, Repositories: 4, Tags: 9}, 12, 6},
	"large": {quota.Usage{Bytes: 2000, Repositories: 5, Tags: 60}, 100, 20},
}

// TestQuotaStorm has clients of two processes that push, mount, tag and delete at random in two
// namespaces with quotas, and give up some requests in the middle, beside garbage collection, the
// clean-up of deleted repositories, and recounts. In each snapshot that a poller reads, the
// numbers of the quotas must be those of the content, and no hard limit may be exceeded.
func TestQuotaStorm(t *testing.T) {
	t.Parallel()
	for name, s := range quotaStorms {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s.run(t)
		})
	}
}

func (s quotaStorm) run(t *testing.T) {
	dsn := catalogtest.PatientDSN(t)
	a, b := replica(t, dsn), replica(t, dsn)
	a.AtOnce(t)
	w := a.LooseKeys(t, loosefk.Options{})
	for _, namespace := range []string{"n0", "n1"} {
		a.Push(t, namespace+"/r0", "x")
		a.Limit(t, namespace, s.limits)
	}
	background, stop := context.WithCancel(t.Context())
	var workers errgroup.Group
	polls := 0
	workers.Go(func() error {
		for background.Err() == nil {
			if err := a.withinLimits(s.limits); err != nil {
				return err
			}
			polls++
		}
		return nil
	})
	workers.Go(func() error { // garbage collection, the clean-up, recounts
		for i := 0; background.Err() == nil; i++ {
			ctx := context.WithoutCancel(background)
			_, first := b.TryReview(ctx, "manifest", 20)
			_, second := b.TryReview(ctx, "blob", 20)
			_, third := w.RunOnce(ctx, "main")
			if err := errors.Join(first, second, third); err != nil {
				return err
			}
			if i%5 == 0 {
				if _, err := b.DB.Pool.Exec(ctx, "UPDATE namespacequotas SET recount = true"); err != nil {
					return err
				}
				if _, err := b.Quotas.Count(ctx); err != nil {
					return err
				}
			}
		}
		return nil
	})
	clients, ctx := errgroup.WithContext(t.Context())
	refused := make([]int, 6)
	for n := range refused {
		rng := rand.New(rand.NewPCG(uint64(n), 7))
		x := []bundle{a, b}[n%2]
		clients.Go(func() error {
			for i := range 120 {
				err := x.stormStep(ctx, t, rng, s)
				if oci.CodeOf(err) == oci.Denied {
					refused[n]++
				} else if err != nil {
					return fmt.Errorf("client %d, step %d: %w", n, i, err)
				}
			}
			return nil
		})
	}
	if err := clients.Wait(); err != nil {
		t.Error(err)
	}
	stop()
	if err := workers.Wait(); err != nil {
		t.Error(err)
	}
	if err := a.withinLimits(s.limits); err != nil {
		t.Error(err)
	}
	a.Drain(t, w)
	a.ReviewAll(t)
	a.exact(t)
	t.Logf("%d polls, refused %v, used %+v", polls, refused, a.quota(t, "n0").Used)
}

// withinLimits returns an error if a quota's numbers aren't those of its namespace's content, or
// exceed a hard limit.
func (b bundle) withinLimits(most quota.Usage) error {
	ctx := context.Background()
	compared, err := b.Quotas.Drifts(ctx, func(d quota.Drift) error {
		return fmt.Errorf("the quota of %s says %+v, its content is %+v", d.Namespace, d.Stored, d.Content)
	})
	if err == nil && compared != 2 {
		err = fmt.Errorf("%d quotas were compared", compared)
	}
	if err != nil {
		return err
	}
	list, _, err := b.Quotas.List(ctx, "", 10)
	for _, q := range list {
		if q.Used.Bytes > most.Bytes || q.Used.Repositories > most.Repositories || q.Used.Tags > most.Tags {
			return fmt.Errorf("namespace %s uses %+v, the limits are %+v", q.Namespace, q.Used, most)
		}
	}
	return err
}

// stormStep makes a random request. Some requests are given up after a moment.
func (b bundle) stormStep(ctx context.Context, t *testing.T, rng *rand.Rand, s quotaStorm) error {
	path := fmt.Sprintf("n%d/r%d", rng.IntN(2), rng.IntN(6))
	other := fmt.Sprintf("n%d/r%d", rng.IntN(2), rng.IntN(6))
	tag := fmt.Sprint("t", rng.IntN(s.tags))
	content := fmt.Sprintf("content %*d", rng.IntN(s.contents), rng.IntN(4))
	given := ctx
	if rng.IntN(8) == 0 {
		var cancel context.CancelFunc
		given, cancel = context.WithTimeout(ctx, time.Duration(rng.IntN(4000))*time.Microsecond)
		defer cancel()
	}
	err := b.stormRequest(given, t, rng.IntN(12), path, other, tag, content)
	switch code := oci.CodeOf(err); {
	case given.Err() != nil && ctx.Err() == nil: // given up, with any error
		return nil
	case code == oci.NameUnknown || code == oci.ManifestUnknown || code == oci.BlobUnknown || code == oci.ManifestBlobUnknown:
		return nil
	}
	return err
}

func (b bundle) stormRequest(ctx context.Context, t *testing.T, kind int, path, other, tag, content string) error {
	d := oci.Compute(oci.SHA256, []byte(content))
	switch kind {
	case 0:
		return b.DeleteTag(ctx, path, tag)
	case 1:
		m, err := b.ManifestByTag(ctx, path, tag)
		if err == nil {
			err = b.DeleteManifest(ctx, path, m.Digest)
		}
		return err
	case 2, 3:
		return b.DeleteBlob(ctx, path, d)
	case 4:
		return b.Trash.DeleteRepository(ctx, path)
	case 5, 6, 7:
		_, err := b.Mount(ctx, path, other, d)
		return err
	case 8:
		_, err := b.TryPush(ctx, path, content)
		return err
	}
	if _, err := b.TryPush(ctx, path, content); err != nil {
		return err
	}
	_, err := b.TryPut(ctx, path, catalogtest.Image(t, d, nil, nil), tag, "also-"+tag)
	return err
}
