package catalog_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/oci"
)

// meanwhile runs `sql` in a transaction, calls fn, waits until fn waits for the transaction, and
// commits it. It returns fn's error.
func (b bundle) meanwhile(t *testing.T, fn func() error, sql string, args ...any) error {
	t.Helper()
	x := b.Session(t)
	x.Exec(t, "BEGIN")
	x.Exec(t, sql, args...)
	done := catalogtest.Later(fn)
	x.Blocks(t, b.Session(t), 1)
	x.Exec(t, "COMMIT")
	return catalogtest.Soon(t, "the other call", done)
}

// beside runs `sql`, which locks rows, in a transaction, and fn, which must not wait for them. Then it
// rolls the transaction back.
func (b bundle) beside(t *testing.T, fn func(ctx context.Context) error, sql ...string) {
	t.Helper()
	x := b.Session(t)
	x.Exec(t, "BEGIN")
	for _, s := range sql {
		x.Exec(t, s)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := fn(ctx); err != nil {
		t.Errorf("beside another transaction: %v", err)
	}
	x.Exec(t, "ROLLBACK")
}

// TestImmutableMeanwhile: a tag is made immutable by a transaction that isn't committed yet, when a
// client changes the tag. The client must wait for the commit, and be refused.
func TestImmutableMeanwhile(t *testing.T) {
	t.Parallel()
	const path = "acme/app"
	for what, change := range map[string]func(ctx context.Context, b bundle, one oci.Digest, payloads [][]byte) error{
		"push of a new manifest": func(ctx context.Context, b bundle, _ oci.Digest, payloads [][]byte) error {
			_, err := b.TryPut(ctx, path, payloads[2], "v1")
			return err
		},
		"push of one that is there": func(ctx context.Context, b bundle, _ oci.Digest, payloads [][]byte) error {
			_, err := b.TryPut(ctx, path, payloads[1], "v1")
			return err
		},
		"deletion": func(ctx context.Context, b bundle, _ oci.Digest, _ [][]byte) error {
			return b.DeleteTag(ctx, path, "v1")
		},
		"deletion of the manifest": func(ctx context.Context, b bundle, one oci.Digest, _ [][]byte) error {
			return b.DeleteManifest(ctx, path, one)
		},
		"expiration": func(ctx context.Context, b bundle, _ oci.Digest, _ [][]byte) error {
			return b.SetTagExpiration(ctx, path, "v1", time.Now().Add(time.Hour))
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			payloads := b.variants(t, path, 3)
			one := b.Put(t, path, payloads[0], "v1")
			b.Put(t, path, payloads[1], "v2")
			err := b.meanwhile(t, func() error { return change(t.Context(), b, one, payloads) }, "UPDATE tags SET immutable = true WHERE name = 'v1'")
			if oci.CodeOf(err) != oci.Denied {
				t.Errorf("%v, want a refusal", err)
			}
			if n := b.Count(t, `SELECT count(*) FROM tags t JOIN manifests m ON m.id = t.manifest_id
				WHERE t.name = 'v1' AND m.digest = $1 AND t.immutable AND t.expires_at IS NULL`, one.Bytes()); n != 1 {
				t.Error("the immutable tag was changed")
			}
		})
	}
}

// TestMutableMeanwhile: a tag is made immutable by a transaction that isn't committed yet, when a
// client says that it is mutable. That must come afterwards, and not find that nothing is to do.
func TestMutableMeanwhile(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Put(t, "acme/app", b.variants(t, "acme/app", 1)[0], "v1")
	if err := b.meanwhile(t, func() error { return b.SetTagImmutable(t.Context(), "acme/app", "v1", false) }, "UPDATE tags SET immutable = true"); err != nil {
		t.Error(err)
	}
	if n := b.Count(t, "SELECT count(*) FROM tags WHERE immutable"); n != 0 {
		t.Error("the tag is immutable")
	}
}

// TestLabelsMeanwhile: a transaction that isn't committed yet lets labels decide about tags, when a
// client says that they don't. That must come afterwards, and not find that nothing is to do.
func TestLabelsMeanwhile(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Push(t, "acme/app", "x")
	if err := b.meanwhile(t, func() error { return b.SetTagLabels(t.Context(), "acme", catalog.TagLabels{}) }, "UPDATE top_level_namespaces SET immutable_labels = true"); err != nil {
		t.Error(err)
	}
	if n := b.Count(t, "SELECT count(*) FROM top_level_namespaces WHERE immutable_labels"); n != 0 {
		t.Error("labels decide about tags")
	}
}

// TestRuleOfWhatGoes: a repository or a namespace goes into the trash while somebody makes a rule
// that protects its tags. There must be no such rule.
func TestRuleOfWhatGoes(t *testing.T) {
	t.Parallel()
	for deletion, scope := range map[string]catalog.ProtectionScope{deleteRepository: {Repository: "acme/app"}, deleteNamespace: {Namespace: "acme"}} {
		b := withTrash(t, dbtest.DSN(t))
		b.Push(t, "acme/app", "x")
		catalogtest.WantCode(t, b.meanwhile(t, func() error {
			_, err := b.CreateProtectionRule(t.Context(), scope, tagPattern(t, "v1"))
			return err
		}, deletion), oci.NameUnknown)
	}
}

// TestExpirationPassesOver: the expiration of tags passes over one that another transaction has
// locked, and doesn't wait for it.
func TestExpirationPassesOver(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Put(t, "acme/app", b.variants(t, "acme/app", 1)[0], "v1", "v2")
	b.Exec(t, "UPDATE tags SET expires_at = now() - interval '1 s'")
	expire := func(ctx context.Context) error {
		done, err := b.ExpireTags(ctx)
		if done.Deleted != 1 {
			t.Errorf("%+v, want one tag deleted", done)
		}
		return err
	}
	b.beside(t, expire, "SELECT FROM tags WHERE name = 'v1' FOR UPDATE")
	if err := expire(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestPurgePassesOver: the purge of what is due passes over what another transaction has locked, which
// may be restoring it, and doesn't wait for it.
func TestPurgePassesOver(t *testing.T) {
	t.Parallel()
	b := withTrash(t, dbtest.DSN(t))
	b.Fill(t, "acme/app")
	b.Fill(t, "zoo/app")
	for _, err := range []error{b.DeleteRepository(t.Context(), "acme/app"), b.DeleteNamespace(t.Context(), "zoo")} {
		if err != nil {
			t.Fatal(err)
		}
	}
	b.expire(t)
	purge := func(ctx context.Context) error { _, err := b.PurgeExpired(ctx); return err }
	b.beside(t, purge, "SELECT FROM repositories WHERE deleted_at IS NOT NULL FOR UPDATE", "SELECT FROM top_level_namespaces WHERE deleted_at IS NOT NULL FOR UPDATE")
	if list := b.trash(t); len(list) != 2 {
		t.Errorf("the trash has %+v, want the two that were locked", list)
	}
	if err := purge(t.Context()); err != nil || len(b.trash(t)) != 0 {
		t.Errorf("the trash has %+v, %v; want nothing", b.trash(t), err)
	}
}

// TestQuotaTellsOnce: a process tells of a quota, and isn't ready yet. Another one must not wait for
// it, and must not tell of the same.
func TestQuotaTellsOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Push(t, "acme/app", "123456789")
	b.limit(t, "acme", catalog.Usage{Bytes: 10})
	tell := func(want int) func(ctx context.Context) error {
		return func(ctx context.Context) error {
			told, err := b.TellQuotas(ctx, func(context.Context, pgx.Tx, catalog.QuotaNotice) error { return nil })
			if len(told) != want {
				t.Errorf("told %+v, want %d", told, want)
			}
			return err
		}
	}
	b.beside(t, tell(0), "SELECT FROM namespacequotalimits FOR UPDATE")
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
	q := b.limit(t, "acme", catalog.Usage{Bytes: 10})
	catalogtest.WantCode(t, b.meanwhile(t, func() error {
		return b.AddQuotaStep(t.Context(), "acme", q.ID, catalog.QuotaStep{Kind: catalog.QuotaWarning, Percent: 50})
	}, "DELETE FROM namespacequotas"), oci.NameUnknown)
}

// TestReserveOfLostUpload: another request takes an upload over, in a transaction that isn't committed
// yet, when the first one asks for room. The upload must not be promised the first one's room.
func TestReserveOfLostUpload(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Push(t, "acme/app", "x")
	b.limit(t, "acme", catalog.Usage{Bytes: 100})
	u, err := b.promised(t, 10)
	if err != nil {
		t.Fatal(err)
	}
	const expected = "SELECT expected FROM uploads WHERE id = $1"
	before := b.Count(t, expected, u.ID)
	first := b.Session(t)
	if err := b.meanwhile(t, func() error {
		_, err := first.Conn.Exec(t.Context(), "SELECT purser_quota_reserve($1, $2, 'acme', 60, 0, NULL, '30 s')", u.ID, u.Attempt)
		return err
	}, "UPDATE uploads SET attempt = attempt + 1 WHERE id = $1", u.ID); err != nil {
		t.Error(err)
	}
	if after := b.Count(t, expected, u.ID); after != before {
		t.Errorf("the upload was promised room for %d bytes, and had %d", after, before)
	}
}
