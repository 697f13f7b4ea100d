package management_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// TestShortDigest: the beginning of a digest finds the manifests of the repository that have it, all of
// them and of no other repository, for those who may pull.
func TestShortDigest(t *testing.T) {
	t.Parallel()
	r := closed(t)
	root := r.as("root")
	root.Push(t, "acme/app", "{}")
	one, two := servertest.Alike(t, func(i int) string {
		return image(t, digest("{}"), nil, object{"annotations": map[string]string{"n": fmt.Sprint(i)}})
	})
	root.Put(t, "acme/app", "one", one)
	root.Put(t, "acme/app", "uno", one)
	root.Put(t, "acme/app", digest(two).String(), two)
	list := index(t, digest(one))
	root.Put(t, "acme/app", "list", list)
	find := func(as, repository, begin string, status int) (found api.ShortManifests) {
		t.Helper()
		a := r.as(as).Manage(t, "GET", "/repository/"+repository+"/digest/"+begin, "")
		if status != 200 {
			a.WantStatus(t, status)
			return found
		}
		a.Into(t, 200, &found)
		return found
	}
	hex := digest(one).Hex()[:6]
	for _, begin := range []string{hex, "sha256:" + hex} {
		found := find("reader", "acme/app", begin, 200)
		if len(found.Manifests) != 2 || found.More || !strings.HasPrefix(found.Manifests[0].Digest.Hex(), hex) || found.Manifests[0].Digest.Hex() > found.Manifests[1].Digest.Hex() {
			t.Fatalf("%s: %+v", begin, found)
		}
		for _, m := range found.Manifests {
			tags := map[oci.Digest]string{digest(one): "one uno", digest(two): ""}[m.Digest]
			if strings.Join(m.Tags, " ") != tags || m.IsManifestList || m.Size != int64(len(one)+2) && m.Size != int64(len(two)+2) {
				t.Errorf("%s: %+v, want the tags %q", begin, m, tags)
			}
		}
	}
	for i := 7; i <= 64; i++ {
		if found := find("reader", "acme/app", digest(list).Hex()[:i], 200); len(found.Manifests) != 1 || found.Manifests[0].Digest != digest(list) || !found.Manifests[0].IsManifestList {
			t.Errorf("%d digits: %+v", i, found)
		}
	}
	if found := find("root", "other/app", hex, 200); len(found.Manifests) != 0 {
		t.Errorf("in another repository: %+v", found)
	}
	if found := find("reader", "acme/app", "sha512:"+hex, 200); len(found.Manifests) != 0 {
		t.Errorf("of another algorithm: %+v", found)
	}
	for _, begin := range []string{"abcde", "v1.0rc", "md5:abcdef", "ABCDEF", "sha256:"} {
		find("reader", "acme/app", begin, 400)
	}
	find("stranger", "acme/app", hex, 403)
	find("reader", "acme/none", hex, 404)
}

// TestShortDigestOfMany: more manifests than an answer lists are said to be more.
func TestShortDigestOfMany(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.Put(t, "acme/app", "v1", r.Simple(t, "acme/app", 1, nil))
	// So many digests that begin alike can't be found by trying: rows of the database have them.
	_, err := r.DB.Pool.Exec(t.Context(), `
		INSERT INTO manifests (top_level_namespace_id, repository_id, digest, media_type, payload, total_size)
		SELECT top_level_namespace_id, id, decode('01abcdef' || lpad(to_hex(i), 58, '0'), 'hex'), 'application/vnd.oci.image.manifest.v1+json', '{}', 2
		FROM repositories, generate_series(8, 18) i WHERE path = 'acme/app'`)
	if err != nil {
		t.Fatal(err)
	}
	for begin, want := range map[string]int{"abcdef": 10, "sha256:abcdef" + strings.Repeat("0", 57): 8} {
		var found api.ShortManifests
		r.Manage(t, "GET", "/repository/acme/app/digest/"+begin, "").Into(t, 200, &found)
		if len(found.Manifests) != want || found.More != (want == 10) {
			t.Errorf("%s: %d manifests, more: %v", begin, len(found.Manifests), found.More)
		}
	}
}
