package catalog_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/protection"
)

func tagPattern(t testing.TB, text string) oci.TagPattern {
	t.Helper()
	p, err := oci.ParseTagPattern(text)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// protect makes a rule.
func (b bundle) protect(t testing.TB, s protection.Scope, pattern string) protection.Rule {
	t.Helper()
	r, err := b.Protection.Create(t.Context(), s, tagPattern(t, pattern))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// variants returns n different manifests.
func (b bundle) variants(t *testing.T, path string, n int) (payloads [][]byte) {
	t.Helper()
	config := b.Push(t, path, "config")
	for i := range n {
		payloads = append(payloads, catalogtest.Image(t, config, nil, map[string]any{"annotations": map[string]string{"n": fmt.Sprint(i)}}))
	}
	return payloads
}

// wantProtected checks that err refuses to change the protected tag, with status 409, and
// names the tag and the rule's pattern.
func wantProtected(t *testing.T, err error, tag, pattern string) {
	t.Helper()
	catalogtest.WantCode(t, err, oci.Denied)
	e := err.(*oci.Error)
	if e.HTTPStatus() != http.StatusConflict || !strings.Contains(e.Message, "tag "+tag+" of") || !strings.Contains(e.Message, pattern) {
		t.Errorf("the refusal is %d %q; want 409 that names %s and %s", e.HTTPStatus(), e.Message, tag, pattern)
	}
}

func (b bundle) wantTag(t *testing.T, path, tag string, want oci.Digest) {
	t.Helper()
	if m, err := b.ManifestByTag(t.Context(), path, tag); err != nil || m.Digest != want {
		t.Errorf("tag %s is %v, %v; want %s", tag, m, err, want)
	}
}

func TestProtectedTags(t *testing.T) { catalogtest.AtBoth(t, testProtectedTags) }

func testProtectedTags(t *testing.T, dsn string) {
	b := replica(t, dsn)
	b.Listen(t)
	const path = "acme/app"
	p := b.variants(t, path, 3)
	one := b.Put(t, path, p[0], "v1", "latest")
	two := b.Put(t, path, p[1], "v2")
	b.protect(t, protection.Scope{Repository: path}, "v[0-9]+")
	ctx := t.Context()

	for what, f := range map[string]func() error{
		"push of a new manifest":    func() error { _, err := b.TryPut(ctx, path, p[2], "v1"); return err },
		"push of one that is there": func() error { _, err := b.TryPut(ctx, path, p[1], "latest", "v1"); return err },
		"restore":                   func() error { return b.RestoreTag(ctx, path, "v1", two) },
		"deletion":                  func() error { return b.DeleteTag(ctx, path, "v1") },
		"deletion of the manifest":  func() error { return b.DeleteManifest(ctx, path, one) },
	} {
		t.Log(what)
		wantProtected(t, f(), "v1", "v[0-9]+")
	}
	b.wantTag(t, path, "v1", one)
	b.wantTag(t, path, "latest", one) // nothing of a refused push is stored
	if n := b.Rows(t, "manifests"); n != 2 {
		t.Errorf("%d manifests, want 2", n)
	}

	b.Put(t, path, p[0], "v1") // pushing the same manifest again is allowed
	three := b.Put(t, path, p[2], "v3", "latest")
	b.wantTag(t, path, "v3", three)
	for _, err := range []error{
		b.RestoreTag(ctx, path, "v1", one), b.RestoreTag(ctx, path, "v4", one), b.DeleteTag(ctx, path, "latest"),
		b.DeleteTag(ctx, path, "v4", catalog.OverrideProtection),
	} {
		if err != nil {
			t.Error(err)
		}
	}
	catalogtest.WantCode(t, b.DeleteTag(ctx, path, "v9"), oci.ManifestUnknown)
	if err := b.Trash.DeleteRepository(ctx, path); err != nil {
		t.Error(err)
	}
	q := b.variants(t, path, 2) // no rule applies to the other repository
	b.Put(t, path, q[0], "v1")
	b.Put(t, path, q[1], "v1")
}

// A rule must protect the tags in its scope (the registry, a namespace or a repository) and no
// other tags.
func TestProtectionScopes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	paths := []string{"acme/app", "acme/web", "other/app"}
	payloads := map[string][][]byte{}
	for _, path := range paths {
		payloads[path] = b.variants(t, path, 2)
		b.Put(t, path, payloads[path][0], "all", "namespace", "repository", "free")
	}
	scopes := map[string]protection.Scope{
		"all": {}, "namespace": {Namespace: "acme"}, "repository": {Repository: "acme/app"},
	}
	for pattern, scope := range scopes {
		b.protect(t, scope, pattern)
	}
	want := map[string]string{"acme/app": "all namespace repository", "acme/web": "all namespace", "other/app": "all"}
	for _, path := range paths {
		for _, tag := range []string{"all", "namespace", "repository", "free"} {
			_, err := b.TryPut(t.Context(), path, payloads[path][1], tag)
			if strings.Contains(want[path], tag) {
				wantProtected(t, err, tag, tag)
			} else if err != nil {
				t.Errorf("%s:%s: %v", path, tag, err)
			}
		}
		target, err := b.FindRepository(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		rules, err := protection.In(t.Context(), b.DB.Pool, target.NamespaceID)
		rules = slices.DeleteFunc(rules, func(r protection.Rule) bool { return !r.HoldsIn(target.NamespaceID, target.ID) })
		if err != nil || len(rules) != len(strings.Fields(want[path])) {
			t.Errorf("%s: %d rules, %v", path, len(rules), err)
		}
	}
}

// One process changes the rules that protect tags. Other processes must follow the new rules
// at once, even if they weren't notified of the change.
func TestProtectionIsExact(t *testing.T) {
	t.Parallel()
	dsn := dbtest.DSN(t)
	// Process b only puts manifests, c only deletes tags, d only deletes manifests, e only deletes
	// expired tags and f only gives tags a date. So each of them learns of a change of the rules
	// only if this kind of request compares the rules' versions.
	a, b, c, d, e, f := replica(t, dsn), replica(t, dsn), replica(t, dsn), replica(t, dsn), replica(t, dsn), replica(t, dsn)
	const path = "acme/app"
	p := a.variants(t, path, 2)
	ctx := t.Context()
	expire := func(want catalog.Expired) {
		t.Helper()
		a.Exec(t, "UPDATE tags SET expires_at = now() - interval '1 s' WHERE name = 'v1'")
		if done, err := e.ExpireTags(ctx); err != nil || done != want {
			t.Errorf("the expiration of v1: %+v, %v; want %+v", done, err, want)
		}
	}
	for range 2 {
		one := a.Put(t, path, p[0], "v1", "v2")
		rule := a.protect(t, protection.Scope{Namespace: "acme"}, "v1")
		_, err := b.TryPut(ctx, path, p[1], "v1")
		wantProtected(t, err, "v1", "v1")
		wantProtected(t, c.DeleteTag(ctx, path, "v1"), "v1", "v1")
		wantProtected(t, d.DeleteManifest(ctx, path, one), "v1", "v1")
		wantProtected(t, f.SetTagExpiration(ctx, path, "v1", time.Now().Add(time.Hour)), "v1", "v1")
		expire(catalog.Expired{Kept: 1})
		if err := a.Protection.Delete(ctx, protection.Scope{Namespace: "acme"}, rule.ID); err != nil {
			t.Fatal(err)
		}
		b.Put(t, path, p[1], "v1")
		if err := c.DeleteTag(ctx, path, "v1"); err != nil {
			t.Error(err)
		}
		a.Put(t, path, p[0], "v1")
		if err := f.SetTagExpiration(ctx, path, "v1", time.Now().Add(time.Hour)); err != nil {
			t.Error(err)
		}
		expire(catalog.Expired{Deleted: 1})
		a.Put(t, path, p[0], "v1")
		if err := d.DeleteManifest(ctx, path, one); err != nil {
			t.Error(err)
		}
	}
	a.Put(t, path, p[0], "v1")
	counted, n := db.WithCounter(ctx)
	if _, err := b.TryPut(counted, path, p[1], "v1"); err != nil || n.Count() != 3 {
		t.Errorf("a put of a known manifest: %d round trips, %v; want 3, the look at the repository included", n.Count(), err)
	}
}

// Twelve clients at once push different manifests under the same new tag, which a rule
// protects. Exactly one of them must succeed.
func TestProtectedTagIsMadeOnce(t *testing.T) {
	t.Parallel()
	dsn := dbtest.DSN(t)
	a, b := replica(t, dsn), replica(t, dsn)
	const path, clients = "acme/app", 12
	p := a.variants(t, path, clients)
	a.protect(t, protection.Scope{}, "release-.*")
	for round := range 3 {
		tag := fmt.Sprintf("release-%d", round)
		var mu sync.Mutex
		var made []oci.Digest
		var group sync.WaitGroup
		for i, payload := range p {
			group.Go(func() {
				d, err := []bundle{a, b}[i%2].TryPut(context.Background(), path, payload, tag)
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					made = append(made, d)
				} else if oci.CodeOf(err) != oci.Denied {
					t.Error(err)
				}
			})
		}
		group.Wait()
		if len(made) != 1 {
			t.Fatalf("%s was made %d times", tag, len(made))
		}
		b.wantTag(t, path, tag, made[0])
	}
}

// A client pushes again the manifest to which a protected tag already points. The push must
// succeed, since it doesn't move the tag.
func TestPushedAgain(t *testing.T) {
	t.Parallel()
	b := setup(t)
	payload := b.variants(t, "r", 1)[0]
	d := b.Put(t, "r", payload, "v1", "v2")
	old := "UPDATE tags SET created_at = now() - interval '30 d', updated_at = NULLIF($1, 'never')::timestamptz"
	for _, before := range []string{"never", "2001-01-01"} {
		for what, again := range map[string]func() error{
			"push":    func() error { _, err := b.TryPut(t.Context(), "r", payload, "v1"); return err },
			"restore": func() error { return b.RestoreTag(t.Context(), "r", "v1", d) },
		} {
			if _, err := b.DB.Pool.Exec(t.Context(), old, before); err != nil {
				t.Fatal(err)
			}
			if err := again(); err != nil {
				t.Fatal(err)
			}
			if n := b.Count(t, "SELECT count(*) FROM tags WHERE name = 'v1' AND updated_at > now() - interval '1 min' AND created_at < now() - interval '29 d'"); n != 1 {
				t.Errorf("%s, %s before: the tag wasn't renewed", what, before)
			}
		}
	}
	if n := b.Count(t, "SELECT count(*) FROM tags WHERE name = 'v2' AND updated_at > now() - interval '1 d'"); n != 0 {
		t.Error("another tag was renewed")
	}
	if n := b.Rows(t, "gc_manifest_review_queue"); n != 0 {
		t.Errorf("%d manifests are to be reviewed: a tag counts as moved", n)
	}
}

// DeleteManifest reads the manifest's tags, and before it locks the manifest, another client
// gives the manifest a further tag. If a rule protects this tag, the manifest must stay with
// all its tags; otherwise the tag must be deleted with the manifest.
func TestRaceTagOfDeletedManifest(t *testing.T) { catalogtest.AtBoth(t, testRaceTagOfDeletedManifest) }

func testRaceTagOfDeletedManifest(t *testing.T, dsn string) {
	b := replica(t, dsn)
	const path = "acme/app"
	payloads := b.variants(t, path, 2)
	b.protect(t, protection.Scope{Repository: path}, "keep-.+")
	watch := b.Session(t)
	for i, tag := range []string{"keep-this", "latest"} {
		d := b.Put(t, path, payloads[i], "first")
		x := b.Session(t)
		x.Exec(t, "BEGIN")
		x.Exec(t, "SELECT FROM manifests WHERE digest = $1 FOR SHARE", d.Bytes())
		deleted := catalogtest.Later(func() error { return b.DeleteManifest(context.Background(), path, d) })
		x.Blocks(t, watch, 1)
		x.Exec(t, `INSERT INTO tags (top_level_namespace_id, repository_id, name, manifest_id)
			SELECT top_level_namespace_id, repository_id, $2, id FROM manifests WHERE digest = $1`, d.Bytes(), tag)
		x.Exec(t, "COMMIT")
		err := catalogtest.Soon(t, "deletion", deleted)
		want := 0
		if tag == "latest" {
			if err != nil {
				t.Errorf("with the tag %s: %v", tag, err)
			}
		} else {
			wantProtected(t, err, tag, "keep-.+")
			want = 2
		}
		if n := b.Count(t, "SELECT count(*) FROM tags t JOIN manifests m ON m.id = t.manifest_id WHERE m.digest = $1", d.Bytes()); n != want {
			t.Errorf("%d tags are left beside the tag %s, want %d", n, tag, want)
		}
	}
}
