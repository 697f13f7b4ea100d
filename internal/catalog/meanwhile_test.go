package catalog_test

import (
	"context"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/quota"
)

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
			err := b.Meanwhile(t, func() error { return change(t.Context(), b, one, payloads) }, "UPDATE tags SET immutable = true WHERE name = 'v1'")
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
	if err := b.Meanwhile(t, func() error { return b.SetTagImmutable(t.Context(), "acme/app", "v1", false) }, "UPDATE tags SET immutable = true"); err != nil {
		t.Error(err)
	}
	if n := b.Count(t, "SELECT count(*) FROM tags WHERE immutable"); n != 0 {
		t.Error("the tag is immutable")
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
	b.Beside(t, expire, "SELECT FROM tags WHERE name = 'v1' FOR UPDATE")
	if err := expire(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestReserveOfLostUpload: another request takes an upload over, in a transaction that isn't committed
// yet, when the first one asks for room. The upload must not be promised the first one's room.
func TestReserveOfLostUpload(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Push(t, "acme/app", "x")
	b.Limit(t, "acme", quota.Usage{Bytes: 100})
	u, err := b.promised(t, 10)
	if err != nil {
		t.Fatal(err)
	}
	const expected = "SELECT expected FROM uploads WHERE id = $1"
	before := b.Count(t, expected, u.ID)
	first := b.Session(t)
	if err := b.Meanwhile(t, func() error {
		_, err := first.Conn.Exec(t.Context(), "SELECT purser_quota_reserve($1, $2, 'acme', 60, 0, NULL, '30 s')", u.ID, u.Attempt)
		return err
	}, "UPDATE uploads SET attempt = attempt + 1 WHERE id = $1", u.ID); err != nil {
		t.Error(err)
	}
	if after := b.Count(t, expected, u.ID); after != before {
		t.Errorf("the upload was promised room for %d bytes, and had %d", after, before)
	}
}
