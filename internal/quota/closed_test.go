package quota_test

import (
	"fmt"
	"testing"

	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/quota"
)

// TestQuotaOfLoweredLimits: tags are deleted before or after a limit is lowered, or while the
// content isn't counted yet, and pushed again one by one. What a slot has lost must not let the
// namespace grow beyond the limit; nor must the room without end that slots got from a push while
// the content wasn't counted.
func TestQuotaOfLoweredLimits(t *testing.T) {
	t.Parallel()
	low := int64(5)
	for _, order := range []string{"lowered, deleted", "deleted, lowered", "deleted, counted", "pushed, counted"} {
		t.Run(order, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			ctx := t.Context()
			image := catalogtest.Image(t, b.Push(t, "acme/app", "config"), nil, nil)
			limit := func() {
				t.Helper()
				if err := b.Quotas.Change(ctx, "acme", b.quota(t, "acme").ID, quota.Values{Tags: &low}); err != nil {
					t.Fatal(err)
				}
			}
			counted := order == "deleted, counted" || order == "pushed, counted"
			if !counted {
				b.Limit(t, "acme", quota.Usage{Tags: 20})
			}
			for i := range 20 {
				b.Put(t, "acme/app", image, fmt.Sprint("t", i))
			}
			switch {
			case order == "lowered, deleted":
				limit()
			case counted:
				o := quota.Values{Tags: &low, Steps: []quota.Step{{Kind: quota.Reject, Percent: 100}}}
				if err := b.Quotas.Create(ctx, "acme", o); err != nil {
					t.Fatal(err)
				}
			}
			for i := range 18 {
				if err := b.DeleteTag(ctx, "acme/app", fmt.Sprint("t", i)); err != nil {
					t.Fatal(err)
				}
			}
			first := 0
			if order == "pushed, counted" {
				b.Put(t, "acme/app", image, "n0")
				first = 1
			}
			switch {
			case order == "deleted, lowered":
				limit()
			case counted:
				if _, err := b.Quotas.Count(ctx); err != nil {
					t.Fatal(err)
				}
			}
			for i := first; i < 12; i++ {
				_, err := b.TryPut(ctx, "acme/app", image, fmt.Sprint("n", i))
				if refused := oci.CodeOf(err) == oci.Denied; refused != (i >= 3) || err != nil && !refused {
					t.Errorf("push %d beside 2 tags, of at most 5: %v", i, err)
				}
			}
			if q := b.quota(t, "acme"); q.Used.Tags != low {
				t.Errorf("the namespace uses %+v", q.Used)
			}
			b.exact(t)
		})
	}
}

// TestCountWaitsForWriters: a push links a blob after the transaction that makes a quota has begun,
// and before it is committed, so its trigger doesn't see the quota. The count of the content must
// wait for the push.
func TestCountWaitsForWriters(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Push(t, "acme/app", "x")
	b.Push(t, "other/app", "shared")
	quota, push := b.Session(t), b.Session(t)
	quota.Exec(t, "BEGIN")
	quota.Exec(t, "INSERT INTO namespacequotas (namespace_id, bytes_limit) SELECT id, 100 FROM top_level_namespaces WHERE name = 'acme'")
	quota.Exec(t, "INSERT INTO namespacequotaslots (namespace_id, slot) SELECT namespace_id, s FROM namespacequotas, generate_series(0, 7) s")
	push.Exec(t, "BEGIN")
	push.Exec(t, `INSERT INTO repository_blobs (top_level_namespace_id, repository_id, blob_digest)
		SELECT r.top_level_namespace_id, r.id, b.digest FROM repositories r, blobs b WHERE b.size = 6 AND r.path = 'acme/app'`)
	quota.Exec(t, "COMMIT")
	counted := catalogtest.Later(func() error { _, err := b.Quotas.Count(t.Context()); return err })
	catalogtest.Eventually(t, "the count waits", func() bool {
		var polls int
		err := b.DB.Pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND query LIKE '%transactionid::text = ANY%' AND pid <> pg_backend_pid()`).Scan(&polls)
		return err == nil && polls > 0
	})
	if b.quota(t, "acme").Counted {
		t.Error("the content was counted while the push was open")
	}
	push.Exec(t, "COMMIT")
	if err := catalogtest.Soon(t, "the count", counted); err != nil {
		t.Fatal(err)
	}
	if q := b.quota(t, "acme"); !q.Counted || q.Used.Bytes != 7 {
		t.Errorf("the quota is %+v", q)
	}
	b.exact(t)
}
