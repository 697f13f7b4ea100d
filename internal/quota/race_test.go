package quota_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/quota"
)

// TestQuotaRowIsLockedFirst has two transactions that link, and then unlink, the same blob in two
// repositories of a namespace, without the locks that package catalog takes. The second must wait
// before it looks for links, or the blob would be counted twice, and then not be taken away.
func TestQuotaRowIsLockedFirst(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Push(t, "acme/one", "x")
	b.Push(t, "acme/two", "x")
	b.Push(t, "other/app", "shared")
	b.Limit(t, "acme", quota.Usage{Bytes: 1000})
	first, second := b.Session(t), b.Session(t)
	for _, change := range []string{
		`INSERT INTO repository_blobs (top_level_namespace_id, repository_id, blob_digest)
			SELECT r.top_level_namespace_id, r.id, b.digest FROM repositories r, blobs b WHERE b.size = 6 AND r.path = `,
		`DELETE FROM repository_blobs l USING repositories r, blobs b
			WHERE l.repository_id = r.id AND l.blob_digest = b.digest AND b.size = 6 AND r.path = `,
	} {
		first.Exec(t, "BEGIN")
		first.Exec(t, change+"'acme/one'")
		done := catalogtest.Later(func() error { _, err := second.Conn.Exec(t.Context(), change+"'acme/two'"); return err })
		catalogtest.Eventually(t, "the second transaction waits", func() bool { return b.Waiting(t) > 0 })
		first.Exec(t, "COMMIT")
		if err := catalogtest.Soon(t, "the second transaction", done); err != nil {
			t.Fatal(err)
		}
		b.exact(t)
	}
	if q := b.quota(t, "acme"); q.Used.Bytes != 1 {
		t.Errorf("%d bytes are left, want 1", q.Used.Bytes)
	}
}

// TestQuotaRoomIsAskedOfTheLockedSlot has two transactions of one slot add a tag each, and the
// namespace has room for one. Both find the room before either is committed. The second must look
// again when it has the slot's row, or the namespace would exceed its limit.
func TestQuotaRoomIsAskedOfTheLockedSlot(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const most = 16
	image := catalogtest.Image(t, b.Push(t, "acme/app", "config"), nil, nil)
	b.Limit(t, "acme", quota.Usage{Tags: most})
	b.Put(t, "acme/app", image, numbered("t", most-1)...)
	first := b.Session(t)
	slot, second := first.PID%8, b.Session(t)
	for second.PID%8 != slot {
		second.Close(t.Context()) //nolint:errcheck // nothing is lost
		second = b.Session(t)
	}
	b.Exec(t, "UPDATE namespacequotaslots SET tags_room = 1 WHERE slot = $1", slot) // the last tag's
	const tag = `INSERT INTO tags (top_level_namespace_id, repository_id, name, manifest_id)
		SELECT top_level_namespace_id, repository_id, $1, id FROM manifests`
	first.Exec(t, "BEGIN")
	first.Exec(t, tag, "first")
	done := catalogtest.Later(func() error { _, err := second.Conn.Exec(t.Context(), tag, "second"); return err })
	first.Blocks(t, b.Session(t), 1)
	first.Exec(t, "COMMIT")
	if err := catalogtest.Soon(t, "the second transaction", done); db.Code(err) != "40001" {
		t.Errorf("the second transaction: %v, want a serialization failure", err)
	}
	if _, err := second.Conn.Exec(t.Context(), tag, "second"); db.Code(err) != "PQ001" {
		t.Errorf("the second transaction, again: %v, want that the quota is exceeded", err)
	}
	if q := b.quota(t, "acme"); q.Used.Tags != most {
		t.Errorf("the namespace has %d tags, and may have %d", q.Used.Tags, most)
	}
	b.exact(t)
}

func numbered(prefix string, n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprint(prefix, i))
	}
	return names
}

// TestQuotaTellsOnce: a process tells of a quota, and isn't ready yet. Another one must not wait for
// it, and must not tell of the same.
func TestQuotaTellsOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Push(t, "acme/app", "123456789")
	b.Limit(t, "acme", quota.Usage{Bytes: 10})
	tell := func(want int) func(ctx context.Context) error {
		return func(ctx context.Context) error {
			told, err := b.Quotas.Tell(ctx, func(context.Context, pgx.Tx, quota.Notice) error { return nil })
			if len(told) != want {
				t.Errorf("told %+v, want %d", told, want)
			}
			return err
		}
	}
	b.Beside(t, tell(0), "SELECT FROM namespacequotalimits FOR UPDATE")
	if err := tell(1)(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestQuotaGoesMeanwhile: a quota is deleted by a transaction that isn't committed yet, when somebody
// adds a step to it. That must be refused.
func TestQuotaGoesMeanwhile(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Push(t, "acme/app", "x")
	q := b.Limit(t, "acme", quota.Usage{Bytes: 10})
	catalogtest.WantCode(t, b.Meanwhile(t, func() error {
		return b.Quotas.AddStep(t.Context(), "acme", q.ID, quota.Step{Kind: quota.Warning, Percent: 50})
	}, "DELETE FROM namespacequotas"), oci.NameUnknown)
}

// TestQuotaOfWhatGoes: a namespace is put into the trash by a transaction that isn't committed yet, when
// somebody gives it a quota. That must be refused, or the namespace would come back with a quota that
// nobody has seen.
func TestQuotaOfWhatGoes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Push(t, "acme/app", "x")
	catalogtest.WantCode(t, b.Meanwhile(t, func() error {
		return b.Quotas.Create(t.Context(), "acme", quota.Values{Tags: new(int64(10))})
	}, catalogtest.TrashNamespace), oci.NameUnknown)
}
