package browse_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/catalog/browse"
	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/oci"
)

// library is a registry to search in. It returns the digest of the image acme/api:v1.2.
func library(t *testing.T, b bundle) (image, config, layer oci.Digest) {
	t.Helper()
	for _, tag := range []string{"v1.2:acme/api", "v1.2:acme/web", "v2.0-rc1:acme/api", "nightly_arm64:tools/api", "V1:tools/api", "cafe01:tools/cafe01"} {
		name, path, _ := strings.Cut(tag, ":")
		config := b.Push(t, path, "config "+tag)
		b.Put(t, path, catalogtest.Image(t, config, []oci.Digest{b.Push(t, path, "layer "+tag)}, nil), name)
	}
	config, layer = b.Push(t, "acme/api", "config v1.2:acme/api"), b.Push(t, "acme/api", "layer v1.2:acme/api")
	image = oci.Compute(oci.SHA256, catalogtest.Image(t, config, []oci.Digest{layer}, nil))
	return image, config, layer
}

// lines returns what was found as text.
func lines(f browse.Found) (list []string) {
	for _, name := range f.Namespaces {
		list = append(list, "namespace "+name)
	}
	list = append(list, f.Repositories...)
	for _, tag := range f.Tags {
		list = append(list, tag.Repository+":"+tag.Name)
	}
	for _, m := range f.Manifests {
		of := ""
		if m.Blob != (oci.Digest{}) {
			of = " has " + m.Blob.String()[7:13]
		}
		list = append(list, fmt.Sprintf("%s@%s %v%s", m.Repository, m.Digest.String()[7:13], m.Tags, of))
	}
	return list
}

// TestFind: the search finds namespaces, repositories, tags and digests, whole or short, and takes
// what was typed literally.
func TestFind(t *testing.T) {
	t.Parallel()
	b := setup(t)
	image, config, layer := library(t, b)
	b.Exec(t, `INSERT INTO manifests (top_level_namespace_id, repository_id, digest, media_type, payload, total_size)
		SELECT top_level_namespace_id, id, '\x02'::bytea || sha512('m'), 'application/vnd.oci.image.manifest.v1+json', '{}', 2 FROM repositories WHERE path = 'tools/api'`)
	b.Push(t, "gone/api", "gone")
	b.Put(t, "gone/api", catalogtest.Image(t, b.Push(t, "gone/api", "gone"), nil, nil), "v1.2", "v1.gone")
	b.Exec(t, `UPDATE repositories SET deleted_at = now(), purge_after = now(), deleted_path = path, path = '#' || id || '/' || path WHERE path = 'gone/api'`)
	text, short := image.String(), image.String()[7:13]
	for _, c := range []struct {
		typed string
		want  string
	}{
		{"acme", "namespace acme, acme/api, acme/web"},
		{"ACME/API", "acme/api"},
		{"api", "acme/api, tools/api"},
		{"v1", "acme/api:v1.2, acme/web:v1.2"},
		{"v1.gone", ""},
		{"V1", "tools/api:V1"},
		{"arm64", "tools/api:nightly_arm64"},
		{"rc1", "acme/api:v2.0-rc1"},
		{"acme/api:v1.2", "acme/api, acme/api:v1.2"},
		{"acme/api:rc", "acme/api, acme/api:v2.0-rc1"},
		{"web:v", "acme/web, acme/web:v1.2"},
		{"  registry.example.com:5000/acme/api:v1.2 ", "acme/api, acme/api:v1.2"},
		{"https://Registry.example.com:5000/acme/api:v1.2", "acme/api, acme/api:v1.2"},
		{"other.example.com/acme/api:v1.2", ""},
		{text, "acme/api@" + short + " [v1.2]"},
		{short, "acme/api@" + short + " [v1.2]"},
		{"sha256:" + short, "acme/api@" + short + " [v1.2]"},
		{short[:6] + "…", "acme/api@" + short + " [v1.2]"},
		{"acme/api@" + text, "acme/api, acme/api@" + short + " [v1.2]"},
		{"acme/api:v1.2@" + text, "acme/api, acme/api@" + short + " [v1.2]"},
		{"acme/web@" + text, "acme/web"},
		{config.String()[:20], "acme/api@" + short + " [v1.2] has " + config.String()[7:13]},
		{layer.String()[7:20], "acme/api@" + short + " [v1.2] has " + layer.String()[7:13]},
		{"cafe01", "tools/cafe01, tools/cafe01:cafe01"},
		{"sha512:", ""},
		{"v1%", ""},
		{"v1_2", ""},
		{`v1\.`, ""},
		{"^v1", ""},
		{"v*", ""},
		{"_arm", "tools/api:nightly_arm64"},
		{"", ""},
	} {
		found, err := b.Find(t.Context(), browse.Everyone, browse.ParseWanted(c.typed, "registry.example.com:5000"), 10)
		if err != nil {
			t.Fatalf("%q: %v", c.typed, err)
		}
		if got := strings.Join(lines(found), ", "); got != c.want {
			t.Errorf("%q finds %s; want %s", c.typed, got, c.want)
		}
		// The other way to search, one repository after the other.
		all := browse.Viewer{All: true, Patterns: []string{""}}
		found, err = b.Find(t.Context(), all, browse.ParseWanted(c.typed, "registry.example.com:5000"), 10)
		if err != nil {
			t.Fatalf("%q: %v", c.typed, err)
		}
		if got := strings.Join(lines(found), ", "); got != c.want {
			t.Errorf("%q finds %s one by one; want %s", c.typed, got, c.want)
		}
	}
	found, err := b.Find(t.Context(), browse.Everyone, browse.ParseWanted(fmt.Sprintf("%x", strings.Repeat("a", 40)), ""), 10)
	if err != nil || len(lines(found)) != 0 {
		t.Errorf("80 digits find %v, %v", lines(found), err)
	}
}

// TestFindShowsNothingHidden: what a search answers doesn't depend on
// what the viewer may not read, however much of that there is.
func TestFindShowsNothingHidden(t *testing.T) {
	t.Parallel()
	dsn := dbtest.DSN(t)
	b := replica(t, dsn)
	image, config, _ := library(t, b)
	v := browse.Viewer{Public: true}
	for _, path := range []string{"acme/api"} {
		id, err := b.RepositoryID(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		v.Repositories = append(v.Repositories, id)
	}
	b.Exec(t, "UPDATE repositories SET is_public = false")
	texts := []string{"acme", "api", "v1", "rc1", "tools", "cafe01", "e", "tools/api:V1", "tools/api", image.String()[7:13], config.String(), image.String()[7:8], "zz"}
	search := func() (all []browse.Found) {
		for _, text := range texts {
			found, err := b.Find(t.Context(), v, browse.ParseWanted(text, ""), 2)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, found)
		}
		return all
	}
	before := search()
	if got := strings.Join(lines(before[2]), ", "); got != "acme/api:v1.2" {
		t.Errorf("v1 finds %s", got)
	}
	if got := strings.Join(append(lines(before[4]), lines(before[5])...), ", "); got != "" {
		t.Errorf("what is hidden is found: %s", got)
	}
	b.Exec(t, `INSERT INTO top_level_namespaces (name) SELECT 'acme-' || i FROM generate_series(1, 50) i`)
	b.Exec(t, `INSERT INTO repositories (top_level_namespace_id, path, is_public)
		SELECT id, name || '/api' || i, false FROM top_level_namespaces, generate_series(1, 20) i WHERE name LIKE 'acme-%'`)
	b.Exec(t, `WITH m AS (
			INSERT INTO manifests (top_level_namespace_id, repository_id, digest, media_type, payload, total_size)
			SELECT top_level_namespace_id, id, $1, 'application/vnd.oci.image.manifest.v1+json', '{}', 2 FROM repositories WHERE path LIKE 'acme-%'
			RETURNING *)
		INSERT INTO tags (top_level_namespace_id, repository_id, name, manifest_id)
		SELECT top_level_namespace_id, repository_id, name, id FROM m, unnest('{v1.2,v1.1,rc1,zz,x-rc1}'::text[]) name`, image.Bytes())
	b.Exec(t, "ANALYZE")
	if after := search(); !reflect.DeepEqual(before, after) {
		for i := range texts {
			t.Errorf("%q: %v %v, and %v %v with hidden repositories", texts[i], lines(before[i]), before[i].More, lines(after[i]), after[i].More)
		}
	}
}

// TestFindSaysWhenThereIsMore: a list that is cut says so, with the exact name first.
func TestFindSaysWhenThereIsMore(t *testing.T) {
	t.Parallel()
	b := setup(t)
	library(t, b)
	b.Exec(t, `INSERT INTO repositories (top_level_namespace_id, path) SELECT id, 'acme/aapi' || i FROM top_level_namespaces, generate_series(1, 20) i WHERE name = 'acme'`)
	found, err := b.Find(t.Context(), browse.Everyone, browse.ParseWanted("api", ""), 3)
	if err != nil || strings.Join(found.Repositories, " ") != "acme/api tools/api acme/aapi1" || !found.More.Repositories || found.More.Tags {
		t.Errorf("found %v, more %v, %v", found.Repositories, found.More, err)
	}
}

// TestFindExactTagAmongMany: however many tags begin with a text, a search in many repositories finds first the
// tag that has the text as its name.
func TestFindExactTagAmongMany(t *testing.T) {
	t.Parallel()
	b := setup(t)
	image := catalogtest.Image(t, b.Push(t, "acme/zzz", "config"), nil, nil)
	b.Put(t, "acme/zzz", image, "v1")
	digest := oci.Compute(oci.SHA256, image)
	b.Exec(t, `INSERT INTO repositories (top_level_namespace_id, path) SELECT id, 'acme/a' || i FROM top_level_namespaces, generate_series(1, 800) i WHERE name = 'acme'`)
	b.Exec(t, `WITH m AS (
			INSERT INTO manifests (top_level_namespace_id, repository_id, digest, media_type, payload, total_size)
			SELECT top_level_namespace_id, id, $1, 'application/vnd.oci.image.manifest.v1+json', '{}', 2 FROM repositories WHERE path LIKE 'acme/a%'
			RETURNING *)
		INSERT INTO tags (top_level_namespace_id, repository_id, name, manifest_id)
		SELECT top_level_namespace_id, repository_id, name, id FROM m, unnest('{v1.1,v1.2,v1.3}'::text[]) name`, digest.Bytes())
	for name, v := range map[string]browse.Viewer{
		"who may read everything": browse.Everyone, "who may read what matches": {All: true, Patterns: []string{"^acme/"}}, "of what is public": {Public: true, PublicByDefault: true},
	} {
		found, err := b.Find(t.Context(), v, browse.ParseWanted("v1", ""), 2)
		if err != nil {
			t.Fatal(err)
		}
		if len(found.Tags) != 2 || found.Tags[0].Repository != "acme/zzz" || found.Tags[0].Name != "v1" || !found.More.Tags {
			t.Errorf("a viewer %s finds %v, more %v", name, lines(found), found.More)
		}
	}
}
