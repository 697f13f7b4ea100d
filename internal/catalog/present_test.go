package catalog_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/oci"
)

// indexOf is an index of manifests.
func indexOf(name string, children ...oci.Digest) []byte {
	list := ""
	for i, d := range children {
		if i > 0 {
			list += ","
		}
		list += fmt.Sprintf(`{"mediaType":%q,"digest":%q,"size":1}`, oci.MediaTypeImageIndex, d)
	}
	return fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":%q,"manifests":[%s],"annotations":{"name":%q}}`, oci.MediaTypeImageIndex, list, name)
}

func TestPresent(t *testing.T) {
	t.Parallel()
	s := setup(t)
	a := s.Put(t, "app", indexOf("a"), "v1", "v2")
	b := s.Put(t, "app", indexOf("b"))
	s.Put(t, "web", indexOf("c"), "v3")
	none := oci.Compute(oci.SHA256, []byte("none"))
	p, err := s.Present(t.Context(), "app", []string{"v1", "v3", "v2"}, []oci.Digest{a, none, b})
	if err != nil || len(p.Tags) != 2 || p.Tags["v1"] != a || p.Tags["v2"] != a || len(p.Manifests) != 2 || !p.Manifests[a] || !p.Manifests[b] || p.Repository == 0 {
		t.Errorf("%+v, %v", p, err)
	}
	if _, err := s.Present(t.Context(), "none", nil, nil); oci.CodeOf(err) != oci.NameUnknown {
		t.Errorf("a repository that isn't there: %v", err)
	}
}

// TestPresentIn looks up tags and manifests in several repositories at once, one of which was
// deleted.
func TestPresentIn(t *testing.T) {
	catalogtest.AtBoth(t, func(t *testing.T, dsn string) {
		s := replica(t, dsn)
		a, b := s.Put(t, "app", indexOf("a"), "v1", "v2"), s.Put(t, "acme/web", indexOf("b"), "v2")
		c := s.Put(t, "gone", indexOf("c"), "v1")
		id := func(path string) int64 {
			t.Helper()
			p, err := s.Present(t.Context(), path, nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			return p.Repository
		}
		app, web, gone := id("app"), id("acme/web"), id("gone")
		if err := s.Trash.DeleteNamespace(t.Context(), "gone"); err != nil {
			t.Fatal(err)
		}
		tags, err := s.PresentTags(t.Context(), []int64{web, app, app, web, gone, 999_999, app}, []string{"v2", "v2", "v3", "v1", "v1", "v1", "v1"})
		if want := []bool{true, true, false, false, false, false, true}; err != nil || !slices.Equal(tags, want) {
			t.Errorf("tags: %v, %v, want %v", tags, err, want)
		}
		manifests, err := s.PresentManifests(t.Context(), []int64{app, web, app, web, gone}, []oci.Digest{a, b, b, a, c})
		if want := []bool{true, true, false, false, false}; err != nil || !slices.Equal(manifests, want) {
			t.Errorf("manifests: %v, %v, want %v", manifests, err, want)
		}
		if none, err := s.PresentTags(t.Context(), nil, nil); err != nil || len(none) != 0 {
			t.Errorf("nothing: %v, %v", none, err)
		}
	})
}

// TestPresentInTrash: what is in the trash exists for the statistics of pulls, because it may come
// back: a repository, and a namespace with all that is in it. Once it is purged, it doesn't.
func TestPresentInTrash(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := catalogtest.WithTrash(t, dbtest.DSN(t), time.Hour)
	a, b := s.Put(t, "acme/app", indexOf("a"), "v1"), s.Put(t, "zoo/web", indexOf("b"), "v1")
	var ids []int64
	for _, path := range []string{"acme/app", "zoo/web"} {
		p, err := s.Present(ctx, path, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, p.Repository)
	}
	want := func(when string, want ...bool) {
		t.Helper()
		if tags, err := s.PresentTags(ctx, ids, []string{"v1", "v1"}); err != nil || !slices.Equal(tags, want) {
			t.Errorf("tags %s: %v, %v, want %v", when, tags, err, want)
		}
		if manifests, err := s.PresentManifests(ctx, ids, []oci.Digest{a, b}); err != nil || !slices.Equal(manifests, want) {
			t.Errorf("manifests %s: %v, %v, want %v", when, manifests, err, want)
		}
	}
	repository, err := s.Trash.RemoveRepository(ctx, "acme/app")
	if err != nil {
		t.Fatal(err)
	}
	namespace, err := s.Trash.RemoveNamespace(ctx, "zoo")
	if err != nil {
		t.Fatal(err)
	}
	want("in the trash", true, true)
	for _, id := range []string{repository, namespace} {
		if err := s.Trash.Purge(ctx, id); err != nil {
			t.Fatal(err)
		}
	}
	want("after the purge", false, false)
}
