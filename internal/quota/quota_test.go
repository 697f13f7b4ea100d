package quota_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/quota"
	"github.com/purser-registry/purser/loosefk"
)

func (b bundle) quota(t *testing.T, namespace string) quota.Quota {
	t.Helper()
	q, some, err := b.Quotas.Of(t.Context(), namespace)
	if err != nil || !some {
		t.Fatalf("quota of %s: %v, %v", namespace, some, err)
	}
	return q
}

// exact checks that every quota's numbers are the sums over its namespace's content.
func (b bundle) exact(t *testing.T) {
	t.Helper()
	n, err := b.Quotas.Drifts(t.Context(), func(d quota.Drift) error {
		t.Errorf("the quota of %s says %+v, its content is %+v", d.Namespace, d.Stored, d.Content)
		return nil
	})
	if err != nil || n == 0 {
		t.Errorf("compared %d quotas: %v", n, err)
	}
}

// wantQuota checks that err says that the quota has refused something, with these numbers.
func wantQuota(t *testing.T, err error, text string) {
	t.Helper()
	catalogtest.WantCode(t, err, oci.Denied)
	if e, ok := errors.AsType[*oci.Error](err); !ok || !strings.Contains(e.Error(), text) {
		t.Errorf("the error is %v, want one with %q", err, text)
	}
}

func TestQuotaCountsEachBlobOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx := t.Context()
	old := b.Push(t, "acme/app", "four") // before there is a quota
	b.Push(t, "other/app", "elsewhere")
	b.Limit(t, "acme", quota.Usage{Bytes: 20, Repositories: 2, Tags: 3})
	if q := b.quota(t, "acme"); !q.Counted || q.Used != (quota.Usage{Bytes: 4, Repositories: 1}) {
		t.Errorf("at first: %+v", q)
	}
	if ok, err := b.Mount(ctx, "acme/web", "acme/app", old); err != nil || !ok {
		t.Fatal(ok, err)
	}
	b.Push(t, "acme/web", "four") // again
	layer := b.Push(t, "acme/app", "twelve bytes")
	if q := b.quota(t, "acme"); q.Used != (quota.Usage{Bytes: 16, Repositories: 2}) {
		t.Errorf("after pushes: %+v", q.Used)
	}
	_, err := b.TryPush(ctx, "acme/web", "fives")
	wantQuota(t, err, "namespace acme may have 20.0 Byte of blobs, has 16.0 Byte, and this needs 5.0 Byte more")
	if ok, err := b.Mount(ctx, "acme/web", "acme/app", layer); err != nil || !ok { // needs nothing
		t.Error(ok, err)
	}
	foreign := oci.Compute(oci.SHA256, []byte("elsewhere"))
	_, err = b.Mount(ctx, "acme/web", "other/app", foreign)
	wantQuota(t, err, "needs 9.0 Byte more")
	wantQuota(t, b.CreateRepository(ctx, "acme/third"), "namespace acme may have 2 repositories, has 2")
	_, err = b.TryPush(ctx, "acme/third", "1")
	wantQuota(t, err, "may have 2 repositories")
	b.exact(t)
	if err := b.DeleteBlob(ctx, "acme/web", layer); err != nil {
		t.Fatal(err)
	}
	if q := b.quota(t, "acme"); q.Used.Bytes != 16 {
		t.Errorf("one of two links was deleted: %d bytes", q.Used.Bytes)
	}
	if err := b.DeleteBlob(ctx, "acme/app", layer); err != nil {
		t.Fatal(err)
	}
	if q := b.quota(t, "acme"); q.Used.Bytes != 4 {
		t.Errorf("both links were deleted: %d bytes", q.Used.Bytes)
	}
	b.exact(t)
}

func TestQuotaOfTags(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx := t.Context()
	config := b.Push(t, "acme/app", "{}")
	one, two := catalogtest.Numbered(t, 1, config), catalogtest.Numbered(t, 2, config)
	first := b.Put(t, "acme/app", one, "a", "b")
	b.Limit(t, "acme", quota.Usage{Tags: 3})
	b.Put(t, "acme/app", two, "c")
	b.Put(t, "acme/app", two, "c", "b") // pushed again, and moved
	_, err := b.TryPut(ctx, "acme/app", two, "c", "d")
	wantQuota(t, err, "namespace acme may have 3 tags, has 3, and this needs 1 more")
	wantQuota(t, b.RestoreTag(ctx, "acme/app", "e", first), "may have 3 tags")
	b.Put(t, "acme/app", catalogtest.Numbered(t, 3, config)) // without a tag
	if err := b.DeleteTag(ctx, "acme/app", "c"); err != nil {
		t.Fatal(err)
	}
	if err := b.DeleteManifest(ctx, "acme/app", first); err != nil {
		t.Fatal(err)
	}
	if q := b.quota(t, "acme"); q.Used.Tags != 1 {
		t.Errorf("%d tags", q.Used.Tags)
	}
	b.exact(t)
}

// TestQuotaDecidesByTriggers has a process that believes that there is room: the triggers refuse,
// with the same answer, and nothing is changed.
func TestQuotaDecidesByTriggers(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx := t.Context()
	config := b.Push(t, "acme/app", "{}")
	b.Limit(t, "acme", quota.Usage{Bytes: 1000, Repositories: 10, Tags: 10})
	if err := b.Quotas.AdmitBlob(ctx, "acme/app", uuid.Nil, oci.Digest{}, 1); err != nil { // now in memory
		t.Fatal(err)
	}
	b.Exec(t, "UPDATE namespacequotas SET bytes_limit = 2, repositories_limit = 1, tags_limit = 1")
	_, err := b.TryPush(ctx, "acme/app", "more")
	wantQuota(t, err, "namespace acme may have 2.0 Byte of blobs, has 2.0 Byte, and this needs 4.0 Byte more")
	b.Exec(t, "UPDATE namespacequotas SET bytes_limit = 1000")
	catalogtest.WantCode(t, b.CreateRepository(ctx, "acme/web"), oci.Denied)
	b.Put(t, "acme/app", catalogtest.Image(t, config, nil, nil), "a")
	_, err = b.TryPut(ctx, "acme/app", catalogtest.Image(t, config, nil, nil), "b")
	catalogtest.WantCode(t, err, oci.Denied)
	if q := b.quota(t, "acme"); q.Used != (quota.Usage{Bytes: 2, Repositories: 1, Tags: 1}) {
		t.Errorf("used: %+v", q.Used)
	}
	b.exact(t)
}

// TestQuotaAfterDeletions deletes content in every way in which it can be deleted.
func TestQuotaAfterDeletions(t *testing.T) {
	t.Parallel()
	dsn := catalogtest.PatientDSN(t)
	b := replica(t, dsn)
	b.AtOnce(t)
	ctx := t.Context()
	w := b.LooseKeys(t, loosefk.Options{})
	for _, path := range []string{"acme/app", "acme/web", "other/app"} {
		b.Fill(t, path)
		shared := b.Push(t, path, "shared by all")
		b.Put(t, path, catalogtest.Image(t, shared, nil, nil), "shared")
		b.Push(t, path, "unused in "+path)
	}
	b.Limit(t, "acme", quota.Usage{Bytes: 1 << 20})
	b.Limit(t, "other", quota.Usage{Bytes: 1 << 20})
	before := b.quota(t, "acme").Used
	b.ReviewAll(t)
	b.exact(t)
	if now := b.quota(t, "acme").Used; now.Bytes >= before.Bytes {
		t.Errorf("garbage collection left %d of %d bytes", now.Bytes, before.Bytes)
	}
	if err := b.Trash.DeleteRepository(ctx, "acme/web"); err != nil {
		t.Fatal(err)
	}
	b.exact(t)
	b.Drain(t, w)
	b.exact(t)
	if now := b.quota(t, "acme").Used; now.Repositories != 1 || now.Bytes == 0 {
		t.Errorf("after the deletion of a repository: %+v", now)
	}
	b.ReviewAll(t)
	b.exact(t)
	if err := b.Trash.DeleteNamespace(ctx, "acme"); err != nil {
		t.Fatal(err)
	}
	_, _, err := b.Quotas.Of(ctx, "acme")
	catalogtest.WantCode(t, err, oci.NameUnknown)
	b.Drain(t, w)
	b.exact(t)
	if n := b.Count(t, "SELECT count(*) FROM namespacequotas"); n != 1 {
		t.Errorf("%d quotas are left, want that of other", n)
	}
}

// TestQuotaOfRunningPushes makes a quota while transactions are under way that don't know it.
func TestQuotaOfRunningPushes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx := t.Context()
	b.Push(t, "acme/app", "seven b")
	running := b.Session(t)
	running.Exec(t, "BEGIN")
	running.Exec(t, `INSERT INTO blobs (digest, size, storage_key) VALUES ('\x01aa', 100, 'key')`)
	running.Exec(t, `INSERT INTO repository_blobs (top_level_namespace_id, repository_id, blob_digest)
		SELECT top_level_namespace_id, id, '\x01aa' FROM repositories`)
	most := int64(1000)
	if err := b.Quotas.Create(ctx, "acme", quota.Values{Bytes: &most}); err != nil {
		t.Fatal(err)
	}
	counted := catalogtest.Later(func() error { _, err := b.Quotas.Count(context.WithoutCancel(ctx)); return err })
	b.Push(t, "acme/app", "meanwhile") // it doesn't wait
	if q := b.quota(t, "acme"); q.Counted || q.Used.Bytes != 9 {
		t.Errorf("while a transaction is under way: %+v", q)
	}
	running.Exec(t, "COMMIT")
	if err := catalogtest.Soon(t, "counting", counted); err != nil {
		t.Fatal(err)
	}
	if q := b.quota(t, "acme"); !q.Counted || q.Used != (quota.Usage{Bytes: 116, Repositories: 1}) {
		t.Errorf("counted: %+v", q)
	}
	b.exact(t)
}

// TestRecountQuota spoils the numbers, as psql may, and counts again beside pushes.
func TestRecountQuota(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx := t.Context()
	b.Push(t, "acme/app", "seven b")
	id := b.Limit(t, "acme", quota.Usage{Bytes: 1000}).ID
	b.Exec(t, "UPDATE namespacequotas SET bytes = 3, tags = 4, repositories = 0")
	b.Push(t, "acme/app", "more")
	if err := b.Quotas.Recount(ctx, "acme", id); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Quotas.Count(ctx); err != nil {
		t.Fatal(err)
	}
	if q := b.quota(t, "acme"); q.Used != (quota.Usage{Bytes: 11, Repositories: 1}) {
		t.Errorf("used: %+v", q.Used)
	}
	catalogtest.WantCode(t, b.Quotas.Recount(ctx, "acme", id+1), oci.NameUnknown)
	if err := b.Quotas.Delete(ctx, "acme", id); err != nil {
		t.Fatal(err)
	}
	if _, some, err := b.Quotas.Of(ctx, "acme"); some || err != nil {
		t.Error(some, err)
	}
}

func TestTellQuotas(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx := t.Context()
	b.Push(t, "acme/app", "12345")
	b.Limit(t, "acme", quota.Usage{Bytes: 10})
	tell := func(want ...quota.Notice) {
		t.Helper()
		var told []quota.Notice
		committed, err := b.Quotas.Tell(ctx, func(_ context.Context, _ pgx.Tx, n quota.Notice) error {
			told = append(told, n)
			return nil
		})
		if err != nil || !slices.Equal(told, want) || !slices.Equal(committed, want) {
			t.Fatalf("told %+v, committed %+v, %v, want %+v", told, committed, err, want)
		}
	}
	tell()
	d := b.Push(t, "acme/app", "123")
	soft := quota.Notice{Namespace: "acme", Quota: "bytes", Kind: quota.Warning, Percent: 80, Limit: 10, Used: 8}
	tell(soft)
	tell()
	if _, err := b.TryPush(ctx, "acme/app", "1234"); err == nil {
		t.Error("not refused")
	}
	tell(quota.Notice{Namespace: "acme", Quota: "bytes", Kind: quota.Reject, Percent: 100, Limit: 10, Used: 8})
	tell()
	if err := b.DeleteBlob(ctx, "acme/app", d); err != nil {
		t.Fatal(err)
	}
	tell()
	b.Push(t, "acme/app", "abc")
	tell(soft)
}

// TestQuotasAreToldOnce: after a process has read the quotas, and before it locks the steps of zoo,
// another process tells that zoo crosses its step. The first one mustn't go by what it has read: it
// would take the crossing back, so that it is told again, or tell of one that is over.
func TestQuotasAreToldOnce(t *testing.T) {
	t.Parallel()
	for _, crossed := range []bool{false, true} { // what the first process reads of zoo
		t.Run(fmt.Sprint("crossed ", crossed), func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			tell := func(meanwhile func(), want ...string) {
				t.Helper()
				told, err := b.Quotas.Tell(t.Context(), func(_ context.Context, _ pgx.Tx, n quota.Notice) error {
					if n.Namespace == "acme" && meanwhile != nil {
						meanwhile()
					}
					return nil
				})
				var namespaces []string
				for _, n := range told {
					namespaces = append(namespaces, n.Namespace)
				}
				if err != nil || !slices.Equal(namespaces, want) {
					t.Errorf("told of %v, %v, want %v", namespaces, err, want)
				}
			}
			b.Push(t, "acme/app", "12345678")
			b.Limit(t, "acme", quota.Usage{Bytes: 10})
			b.Push(t, "zoo/app", "12345")
			b.Limit(t, "zoo", quota.Usage{Bytes: 10})
			if !crossed {
				tell(func() {
					b.Push(t, "zoo/app", "678")
					tell(nil, "zoo") // acme's steps are locked
				}, "acme")
				tell(nil)
				return
			}
			d := b.Push(t, "zoo/app", "678")
			tell(func() {
				tell(nil, "zoo")
				if err := b.DeleteBlob(t.Context(), "zoo/app", d); err != nil {
					t.Error(err)
				}
				tell(nil)
			}, "acme")
			tell(nil)
		})
	}
}

// TestQuotaToldInATransaction: a notice whose transaction fails wasn't told, and is told by the next look.
func TestQuotaToldInATransaction(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Push(t, "acme/app", "12345678")
	b.Limit(t, "acme", quota.Usage{Bytes: 10})
	fails := errors.New("the notice can't be queued")
	for _, want := range []error{fails, nil} {
		told, err := b.Quotas.Tell(t.Context(), func(context.Context, pgx.Tx, quota.Notice) error { return want })
		if !errors.Is(err, want) || (len(told) == 1) != (want == nil) {
			t.Errorf("told %+v, %v, want %v", told, err, want)
		}
	}
}

// TestRefusalSaysWhenRoomComes: what is deleted counts until garbage collection, as long as the
// database's delays say.
func TestRefusalSaysWhenRoomComes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx := t.Context()
	b.Push(t, "acme/app", "four")
	b.Limit(t, "acme", quota.Usage{Bytes: 5, Repositories: 1, Tags: 1})
	for _, c := range []struct{ tag, prune, layer, want string }{
		{"1 day", "7 days", "1 day", "delete something first (it counts for about 2 days more, and for 8 days if a policy deletes it), or ask"},
		{"6 hours", "6 hours", "6 hours", "delete something first (it counts for about 12 hours more), or ask"},
		{"10 min", "3 hours", "0", "delete something first (it counts for about 10 minutes more, and for 3 hours if a policy deletes it), or ask"},
		{"0", "0", "0", "delete something first (it counts for about two minutes more), or ask"},
	} {
		for event, delay := range map[string]string{"tag_delete": c.tag, "tag_prune": c.prune, "layer_delete": c.layer, "manifest_delete": c.layer} {
			b.Exec(t, `INSERT INTO gc_review_after_defaults (event, value) VALUES ($1, $2::text::interval)
				ON CONFLICT (event) DO UPDATE SET value = EXCLUDED.value`, event, delay)
		}
		wantQuota(t, b.Quotas.AdmitBlob(ctx, "acme/app", uuid.Nil, oci.Digest{}, 3), c.want)
	}
	wantQuota(t, b.CreateRepository(ctx, "acme/second"), "delete something first, or ask")
}

// TestRefusalSaysHowLongTrashCounts: what is in the trash counts until it is purged, and a refusal says
// for how long that is.
func TestRefusalSaysHowLongTrashCounts(t *testing.T) {
	t.Parallel()
	b := bundle{catalogtest.WithTrash(t, dbtest.DSN(t), 72*time.Hour)}
	ctx := t.Context()
	for _, namespace := range []string{"acme", "zoo"} {
		config := b.Push(t, namespace+"/app", "four")
		b.Put(t, namespace+"/app", catalogtest.Image(t, config, nil, nil), "v1")
	}
	b.Limit(t, "acme", quota.Usage{Bytes: 5, Repositories: 1, Tags: 1})
	b.Limit(t, "zoo", quota.Usage{Bytes: 1000, Repositories: 5, Tags: 1})
	for _, path := range []string{"acme/app", "zoo/app"} {
		if err := b.Trash.DeleteRepository(ctx, path); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ prune, want string }{
		{"7 days", "(it counts for about 2 days more, for 8 days if a policy deletes it, and for 3 days if its repository is deleted), or ask"},
		{"1 day", "(it counts for about 2 days more, and for 3 days if its repository is deleted), or ask"},
	} {
		for event, delay := range map[string]string{"tag_delete": "1 day", "tag_prune": c.prune, "layer_delete": "1 day", "manifest_delete": "1 day"} {
			b.Exec(t, `INSERT INTO gc_review_after_defaults (event, value) VALUES ($1, $2::text::interval)
				ON CONFLICT (event) DO UPDATE SET value = EXCLUDED.value`, event, delay)
		}
		wantQuota(t, b.Quotas.AdmitBlob(ctx, "acme/app", uuid.Nil, oci.Digest{}, 3), c.want)
	}
	wantQuota(t, b.CreateRepository(ctx, "acme/second"), "(a deleted repository counts until it is purged from the trash, for 3 days), or ask")
	config := b.Push(t, "zoo/second", "four")
	_, err := b.TryPut(ctx, "zoo/second", catalogtest.Image(t, config, nil, nil), "v1")
	wantQuota(t, err, "(those of a deleted repository count until it is purged from the trash, for 3 days), or ask")
}

// TestQuotaRatiosOfTheFullest: if not all namespaces can be shown, those are that are nearest to one of
// their limits, whatever their names, and the others are counted.
func TestQuotaRatiosOfTheFullest(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for name, limits := range map[string]quota.Values{
		"aaa":   {Bytes: new(int64(1000)), Tags: new(int64(100))},
		"mmm":   {Tags: new(int64(3))},
		"unset": {},
		"zzz":   {Bytes: new(int64(1_000_000)), Tags: new(int64(2))},
	} {
		config := b.Push(t, name+"/app", "config")
		b.Put(t, name+"/app", catalogtest.Image(t, config, nil, nil), "v1")
		if err := b.Quotas.Create(t.Context(), name, limits); err != nil {
			t.Fatal(err)
		}
	}
	for more, err := true, error(nil); more; {
		if more, err = b.Quotas.Count(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for n, want := range []string{"map[] 0", "map[zzz bytes:6e-06 zzz tags:0.5] 2", "map[mmm tags:0.3333333333333333 zzz bytes:6e-06 zzz tags:0.5] 1",
		"map[aaa bytes:0.006 aaa tags:0.01 mmm tags:0.3333333333333333 zzz bytes:6e-06 zzz tags:0.5] 0"} {
		if n == 0 {
			continue
		}
		got := map[string]float64{}
		more, err := b.Quotas.Ratios(t.Context(), n, func(namespace, what string, ratio float64) { got[namespace+" "+what] = ratio })
		if text := fmt.Sprint(got, " ", more); err != nil || text != want {
			t.Errorf("of %d: %s, want %s (%v)", n, text, want, err)
		}
	}
}
