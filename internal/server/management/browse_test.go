package management_test

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/builtinpg/pgtest"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/pullstats"
	"github.com/purser-registry/purser/internal/server"
	"github.com/purser-registry/purser/internal/server/management"
	"github.com/purser-registry/purser/internal/server/servertest"
	"github.com/purser-registry/purser/loosefk"
)

// onDatabase starts a registry as setup does. It also opens a connection pool of the registry's
// database, and passes it to `change`, for options that need a pool of their own.
func onDatabase(t *testing.T, change func(o *servertest.Options, d *db.DB)) *registry {
	t.Helper()
	dsn := dbtest.DSN(t)
	d := dbtest.Open(t, dsn)
	r := replica(t, dsn, pgtest.TempDir(t), func(o *servertest.Options) { change(o, d) })
	r.Listen(t)
	return r
}

func TestAPINamespaces(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.Push(t, "acme/app", "content")
	if a := r.Manage(t, "POST", "/organization/", `{"name":"zoo"}`); a.StatusCode != 201 || string(a.Content) != "\"Created\"\n" {
		t.Errorf("creating a namespace: %d %q", a.StatusCode, a.Content)
	}
	for body, text := range map[string]string{
		`{"name":"zoo"}`:            "namespace zoo exists already",
		`{"name":"a/b"}`:            `^name: "a/b" has a slash`,
		`{"name":"Zoo"}`:            "^name: ",
		`{"name":""}`:               "name",
		`{"name":"x","nonsense":1}`: "nonsense",
	} {
		r.Manage(t, "POST", "/organization", body).Refused(t, 400, "invalid_request", text)
	}
	var list struct {
		Namespaces []struct {
			Name         string
			Repositories struct {
				Count int
				Exact bool
			}
		}
		NextPage string `json:"next_page"`
	}
	r.Manage(t, "GET", "/organization?limit=1", "").Into(t, 200, &list)
	if len(list.Namespaces) != 1 || list.Namespaces[0].Name != "acme" || list.Namespaces[0].Repositories.Count != 1 || !list.Namespaces[0].Repositories.Exact {
		t.Fatalf("%+v", list)
	}
	next := list.NextPage
	list.NextPage = ""
	r.Manage(t, "GET", "/organization?limit=1&next_page="+next, "").Into(t, 200, &list)
	if len(list.Namespaces) != 1 || list.Namespaces[0].Name != "zoo" || list.NextPage != "" {
		t.Fatalf("%+v", list)
	}
	var one struct {
		Repositories int
		Size         struct{ Blobs, Bytes int }
	}
	r.Manage(t, "GET", "/organization/acme", "").Into(t, 200, &one)
	if one.Repositories != 1 || one.Size.Blobs != 1 || one.Size.Bytes != 7 {
		t.Errorf("%+v", one)
	}
	r.Manage(t, "GET", "/organization/none", "").Refused(t, 404, "not_found", "namespace none is not known")
	r.Manage(t, "GET", "/organization?next_page=!", "").Refused(t, 400, "invalid_request", "next_page.*isn't a cursor")
	r.Manage(t, "GET", "/repository?next_page="+next, "").Refused(t, 400, "invalid_request", "next_page.*another list")
	r.Manage(t, "GET", "/organization?prefix=%00", "").Refused(t, 400, "invalid_request", "prefix: .* is not text")
	r.Manage(t, "GET", "/organization?limit=101", "").WantStatus(t, 200)
}

type repositories struct {
	Repositories []struct {
		Namespace, Name, Repository, Kind, State string
		IsPublic                                 bool   `json:"is_public"`
		LastModified                             *int64 `json:"last_modified"`
	}
	NextPage string `json:"next_page"`
}

func (l repositories) names() (names []string) {
	for _, r := range l.Repositories {
		names = append(names, r.Repository)
	}
	return names
}

func TestAPIRepositories(t *testing.T) {
	t.Parallel()
	r := setup(t)
	a := r.Manage(t, "POST", "/repository", `{"namespace":"acme","repository":"web/api","visibility":"public","description":""}`)
	var created struct{ Namespace, Name, Kind string }
	if a.Into(t, 201, &created); created.Namespace != "acme" || created.Name != "web/api" || created.Kind != "image" {
		t.Errorf("created %+v", created)
	}
	r.Manage(t, "POST", "/repository", `{"repository":"alone"}`).Into(t, 201, &created)
	for body, text := range map[string]string{
		`{"namespace":"acme","repository":"web/api"}`:        "repository acme/web/api exists already",
		`{"namespace":"a/b","repository":"c"}`:               "^namespace: .* has a slash",
		`{"namespace":"acme","repository":"../x"}`:           "^repository: ",
		`{"repository":"a","visibility":"secret"}`:           "visibility",
		`{"repository":"a","namespace":"b","repo_kind":"x"}`: "repo_kind",
	} {
		r.Manage(t, "POST", "/repository", body).Refused(t, 400, "invalid_request", text)
	}
	r.Put(t, "acme/app", "v1", r.Simple(t, "acme/app", 1, nil))
	var list repositories
	r.Manage(t, "GET", "/repository?namespace=acme&last_modified=true&public=true", "").Into(t, 200, &list)
	if got := list.names(); !slices.Equal(got, []string{"acme/app", "acme/web/api"}) {
		t.Fatalf("%q", got)
	}
	if first := list.Repositories[0]; first.Namespace != "acme" || first.Name != "app" || !first.IsPublic || first.Kind != "image" ||
		first.State != "NORMAL" || first.LastModified == nil || time.Since(time.Unix(*first.LastModified, 0)) > time.Minute {
		t.Errorf("%+v", first)
	}
	if list.Repositories[1].LastModified != nil {
		t.Error("nothing was ever pushed there")
	}
	var got []string
	for next := ""; ; {
		list = repositories{}
		r.Manage(t, "GET", "/repository?limit=1&sort=-created&next_page="+next, "").Into(t, 200, &list)
		got = append(got, list.names()...)
		if next = list.NextPage; next == "" {
			break
		}
	}
	if !slices.Equal(got, []string{"acme/app", "alone", "acme/web/api"}) {
		t.Errorf("newest first: %q", got)
	}
	var one struct {
		Repository string
		Tags       int `json:"tags_count"`
		Manifests  int `json:"manifests_count"`
		Size       struct {
			Blobs, Bytes int
			Own          int `json:"own_bytes"`
		}
	}
	r.Manage(t, "GET", "/repository/acme/app", "").Into(t, 200, &one)
	if one.Repository != "acme/app" || one.Tags != 1 || one.Manifests != 1 || one.Size.Blobs != 1 || one.Size.Bytes != 2 || one.Size.Own != 2 {
		t.Errorf("%+v", one)
	}
	r.Push(t, "acme/app", "another blob")
	for _, path := range []string{"/repository/acme/app", "/organization/acme"} {
		for links, exact := range map[string]bool{"": true, "?size_links=2": true, "?size_links=1": false} {
			var sized struct{ Size struct{ Exact bool } }
			if r.Manage(t, "GET", path+links, "").Into(t, 200, &sized); sized.Size.Exact != exact {
				t.Errorf("%s%s: exact is %v", path, links, sized.Size.Exact)
			}
		}
		r.Manage(t, "GET", path+"?size_links=0", "").Refused(t, 400, "invalid_request", "size_links")
	}
	r.Manage(t, "GET", "/repository/none", "").Refused(t, 404, "not_found", "repository none is not known")
	r.Manage(t, "GET", "/repository?namespace=none", "").Refused(t, 404, "not_found", "namespace none is not known")
	r.Manage(t, "GET", "/repository?sort=size", "").Refused(t, 400, "invalid_request", "sort")
	r.Manage(t, "GET", "/repository?contain=a", "").Refused(t, 400, "invalid_request", "contain")
}

type tagList struct {
	Tags []struct {
		Name           string
		ManifestDigest oci.Digest `json:"manifest_digest"`
		StartTS        int64      `json:"start_ts"`
		LastModified   string     `json:"last_modified"`
		IsManifestList bool       `json:"is_manifest_list"`
		Size           int
		PushedAt       time.Time  `json:"pushed_at"`
		LastPulledAt   *time.Time `json:"last_pulled_at"`
		PullCount      *int64     `json:"pull_count"`
	}
	Page          int
	HasAdditional bool   `json:"has_additional"`
	NextPage      string `json:"next_page"`
}

func (l tagList) names() string {
	var names []string
	for _, tag := range l.Tags {
		names = append(names, tag.Name)
	}
	return strings.Join(names, " ")
}

func TestAPITags(t *testing.T) {
	t.Parallel()
	r := onDatabase(t, func(o *servertest.Options, d *db.DB) {
		var err error
		if o.Management.Pulls, err = pullstats.NewReader(pullstats.Options{DB: d}); err != nil {
			t.Fatal(err)
		}
	})
	for i := range 5 {
		r.Put(t, "acme/app", fmt.Sprintf("v%d", i), r.Simple(t, "acme/app", i, nil))
	}
	_, err := r.DB.Pool.Exec(t.Context(), `
		INSERT INTO tagpullstatistics (repository_id, tag_name, tag_pull_count, last_tag_pull_date)
		SELECT id, tag.name, tag.n, tag.at::timestamptz FROM repositories, (VALUES ('v1', '2026-03-01Z', 3), ('v3', '2026-02-01Z', 7)) AS tag (name, at, n)
		WHERE path = 'acme/app'`)
	if err != nil {
		t.Fatal(err)
	}
	const tags = "/repository/acme/app/tag/"
	for query, want := range map[string]string{
		"":                                    "v4 v3 v2 v1 v0",
		"?sort=name":                          "v0 v1 v2 v3 v4",
		"?sort=pushed&limit=2":                "v0 v1 …",
		"?sort=-last_pulled":                  "v1 v3 v4 v2 v0",
		"?sort=-last_pulled&limit=1":          "v1 …",
		"?sort=-pull_count":                   "v3 v1 v4 v2 v0",
		"?sort=pull_count&limit=4":            "v0 v2 v4 v1 …",
		"?sort=-size&specificTag=v2":          "v2",
		"?specificTag=nope":                   "",
		"?filter_tag_name=like:3":             "v3",
		"?filter_tag_name=eq:v1":              "v1",
		"?filter_tag_name=eq:v":               "",
		"?prefix=v&contains=2":                "v2",
		"?limit=2&page=2&onlyActiveTags=true": "v2 v1 …",
		"?limit=2&page=3":                     "v0",
		"?limit=2&page=9":                     "",
	} {
		var list tagList
		r.Manage(t, "GET", tags+query, "").Into(t, 200, &list)
		got := list.names()
		if list.HasAdditional {
			got += " …"
		}
		if got != want || list.HasAdditional != (list.NextPage != "") {
			t.Errorf("%s: %q, want %q", query, got, want)
		}
	}
	var list tagList
	r.Manage(t, "GET", tags+"?specificTag=v1", "").Into(t, 200, &list)
	first := list.Tags[0]
	if first.LastPulledAt == nil || first.PullCount == nil || *first.PullCount != 3 || first.StartTS != first.PushedAt.Unix() ||
		first.LastModified != first.PushedAt.Format("Mon, 02 Jan 2006 15:04:05 -0000") || first.IsManifestList || first.Size == 0 {
		t.Errorf("%+v", first)
	}
	for query, text := range map[string]string{
		"?filter_tag_name=v1":                "filter_tag_name.*like:TEXT or eq:TAG",
		"?filter_tag_name=like:a&contains=b": "filter_tag_name",
		"?specificTag=-":                     "specificTag",
		"?page=1000":                         "page.*use next_page",
		"?page=99999999999":                  "page.*use next_page",
		"?page=0":                            "page",
		"?sort=age":                          "sort",
		"?next_page=e30":                     "next_page.*another",
		"?next_page=" + url.QueryEscape("%"): "next_page.*isn't a cursor",
		"?sort=name&next_page=eyJvIjoidGFnIG5hbWUiLCJwIjoxfQ": "next_page.*isn't a cursor",
	} {
		r.Manage(t, "GET", tags+query, "").Refused(t, 400, "invalid_request", text)
	}
	r.Manage(t, "GET", "/repository/none/tag/", "").Refused(t, 404, "not_found", "repository none is not known")
}

func TestAPITagChanges(t *testing.T) {
	t.Parallel()
	r := setup(t)
	d := r.Put(t, "acme/app", "v1", r.Simple(t, "acme/app", 1, nil))
	other := r.Put(t, "acme/app", "v2", r.Simple(t, "acme/app", 2, nil))
	const tag = "/repository/acme/app/tag/new"
	r.Manage(t, "GET", tag, "").Refused(t, 404, "not_found", "repository acme/app has no tag new")
	for _, to := range []oci.Digest{d, other} {
		if a := r.Manage(t, "PUT", tag, `{"manifest_digest":"`+to.String()+`"}`); a.StatusCode != 201 || string(a.Content) != "\"Updated\"\n" {
			t.Fatalf("%d %s", a.StatusCode, a.Content)
		}
		var got struct {
			Digest oci.Digest `json:"manifest_digest"`
		}
		if r.Manage(t, "GET", tag, "").Into(t, 200, &got); got.Digest != to {
			t.Errorf("the tag points to %s, want %s", got.Digest, to)
		}
		r.Do(t, "HEAD", "/v2/acme/app/manifests/new", "").Want(t, 200, "", "Docker-Content-Digest", to.String())
	}
	r.Manage(t, "PUT", tag, `{"manifest_digest":"`+digest("x").String()+`"}`).Refused(t, 404, "not_found", "is not in repository acme/app")
	r.Manage(t, "PUT", tag, `{"expiration":1}`).Refused(t, 400, "invalid_request", "expiration")
	r.Manage(t, "PUT", tag, `{"manifest_digest":"x"}`).Refused(t, 400, "invalid_request", "manifest_digest")
	r.Manage(t, "PUT", tag, `{}`).Refused(t, 400, "invalid_request", "manifest_digest")
	r.Manage(t, "PUT", "/repository/acme/app/tag/-", `{"manifest_digest":"`+d.String()+`"}`).Refused(t, 400, "invalid_request", "tag")
	if a := r.Manage(t, "DELETE", tag, ""); a.StatusCode != 204 || len(a.Content) != 0 {
		t.Fatalf("%d %s", a.StatusCode, a.Content)
	}
	r.Do(t, "HEAD", "/v2/acme/app/manifests/new", "").Want(t, 404, "")
	r.Manage(t, "DELETE", tag, "").Refused(t, 404, "not_found", "new")
}

func TestAPIOverridesProtection(t *testing.T) {
	t.Parallel()
	r := setup(t, func(o *servertest.Options) {
		o.Server.Authorize = func(ctx context.Context, a auth.Access, of auth.Resource) error {
			if a == auth.Administer && of.Repository == "acme/app" && server.Observed(ctx).ID != "permitted" {
				return oci.Errorf(oci.Denied, "%s of <%s>", a, of.Repository)
			}
			return nil
		}
	})
	r.Put(t, "acme/app", "v1", r.Simple(t, "acme/app", 1, nil))
	r.Manage(t, "POST", "/organization/acme/tagprotection", `{"pattern":"v.*"}`).Into(t, 201, &struct{}{})
	const tag = "/repository/acme/app/tag/v1"
	r.Manage(t, "DELETE", tag, "").Refused(t, 409, "invalid_request", "protected")
	r.Manage(t, "DELETE", tag+"?override_protection=true", "").Refused(t, 403, "insufficient_scope", "admin of <acme/app>")
	r.Do(t, "HEAD", "/v2/acme/app/manifests/v1", "").Want(t, 200, "")
	if a := r.Manage(t, "DELETE", tag+"?override_protection=true", "", "X-Request-Id", "permitted"); a.StatusCode != 204 {
		t.Errorf("with the right: %d %s", a.StatusCode, a.Content)
	}
	r.Do(t, "HEAD", "/v2/acme/app/manifests/v1", "").Want(t, 404, "")
}

func TestAPIManifest(t *testing.T) {
	t.Parallel()
	r := setup(t)
	config := `{"os":"linux","architecture":"arm64","variant":"v8","created":"2026-01-01T00:00:00Z","author":"somebody",` +
		`"config":{"Entrypoint":["/app"]},"history":[{"created_by":"ENV x","empty_layer":true},{"created_by":"COPY app /","comment":"c"}]}`
	c, l := r.Push(t, "acme/app", config), r.Push(t, "acme/app", "layer")
	payload := image(t, c, []oci.Digest{l}, nil)
	d := r.Put(t, "acme/app", "v1", payload)
	list := index(t, d)
	top := r.Put(t, "acme/app", "all", list)
	about := r.Put(t, "acme/app", "sig", r.Simple(t, "acme/app", 1, object{"subject": descriptor(oci.MediaTypeImageManifest, d, len(payload))}))
	type answer struct {
		Data      string `json:"manifest_data"`
		IsList    bool   `json:"is_manifest_list"`
		Type      string `json:"config_media_type"`
		Size      int
		Tags      []string
		Indexes   []oci.Digest
		Subject   oci.Digest
		Manifests []struct{ Digest oci.Digest }
		Referrers struct{ Count int }
		Config    struct {
			Platform, Author string
			Config           map[string]any
		}
		Layers []struct {
			Index   int
			Digest  oci.Digest `json:"blob_digest"`
			Size    int        `json:"compressed_size"`
			Command []string
			Comment string
		}
	}
	get := func(d oci.Digest) (m answer) {
		r.Manage(t, "GET", "/repository/acme/app/manifest/"+d.String(), "").Into(t, 200, &m)
		return m
	}
	m := get(d)
	if m.Data != payload || m.IsList || m.Type != servertest.ConfigType || m.Size != len(payload)+len(config)+len("layer") || m.Referrers.Count != 1 ||
		!slices.Equal(m.Tags, []string{"v1"}) || !slices.Equal(m.Indexes, []oci.Digest{top}) {
		t.Errorf("%+v", m)
	}
	if m.Config.Platform != "linux/arm64/v8" || m.Config.Author != "somebody" || m.Config.Config["Entrypoint"] == nil {
		t.Errorf("%+v", m.Config)
	}
	if len(m.Layers) != 1 || m.Layers[0].Digest != l || !slices.Equal(m.Layers[0].Command, []string{"COPY app /"}) || m.Layers[0].Comment != "c" {
		t.Errorf("%+v", m.Layers)
	}
	if m = get(top); !m.IsList || m.Layers != nil || len(m.Manifests) != 1 || m.Manifests[0].Digest != d || m.Size != len(list)+len(payload)+len(config)+len("layer") {
		t.Errorf("%+v", m)
	}
	if m = get(about); m.Subject != d || m.Config.Platform != "" {
		t.Errorf("%+v", m)
	}
	r.Manage(t, "GET", "/repository/acme/app/manifest/"+digest("x").String(), "").Refused(t, 404, "not_found", "manifest")
	r.Manage(t, "GET", "/repository/acme/app/manifest/latest", "").Refused(t, 400, "invalid_request", "digest")
}

func TestAPISystem(t *testing.T) {
	t.Parallel()
	var other *db.DB
	r := onDatabase(t, func(o *servertest.Options, d *db.DB) {
		other = d
		o.Management.System = management.System{Version: "v1.2.3", Replica: "me", Storage: "filesystem", Database: d}
	})
	var s struct {
		Version, Replica  string
		Database, Storage struct {
			OK      bool
			Version string
		}
	}
	r.Manage(t, "GET", "/system", "").Into(t, 200, &s)
	if s.Version != "v1.2.3" || s.Replica != "me" || !s.Database.OK || s.Database.Version == "" || !s.Storage.OK {
		t.Errorf("%+v", s)
	}
	other.Close()
	r.Manage(t, "GET", "/system", "").Into(t, 200, &s)
	if s.Database.OK || !s.Storage.OK {
		t.Errorf("without a database: %+v", s)
	}
}

func TestAPILooseKeys(t *testing.T) {
	t.Parallel()
	r := onDatabase(t, func(o *servertest.Options, d *db.DB) {
		dbs, defs, err := db.LooseForeignKeys(t.Context(), d.Pool.Pool, d.Pool.Pool)
		if err != nil {
			t.Fatal(err)
		}
		w, err := loosefk.New(loosefk.Options{Databases: dbs, Definitions: defs})
		if err != nil {
			t.Fatal(err)
		}
		o.Management.LooseKeys = &management.LooseKeys{Database: &dbs[0], Worker: w}
	})
	r.Push(t, "acme/app", "content")
	if err := r.Trash.DeleteRepository(t.Context(), "acme/app"); err != nil {
		t.Fatal(err)
	}
	pending := func() (n int) {
		var s struct {
			Pending []struct {
				Table string
				Count int
			}
		}
		r.Manage(t, "GET", "/loosefk/status", "").Into(t, 200, &s)
		for _, p := range s.Pending {
			n += p.Count
		}
		return n
	}
	if n := pending(); n != 1 {
		t.Fatalf("%d are pending", n)
	}
	type status struct {
		ID, State, Error string
		Result           *struct{ Processed int }
	}
	var run status
	r.Manage(t, "POST", "/loosefk/run", "").Into(t, 202, &run)
	id := run.ID
	eventually(t, "the run ended", func() bool {
		run = status{}
		r.Manage(t, "GET", "/loosefk/run/"+id, "").Into(t, 200, &run)
		return run.State != "running"
	})
	if run.State != "succeeded" || run.Result == nil || run.Result.Processed != 1 || pending() != 0 {
		t.Errorf("%+v", run)
	}
	other := setup(t)
	other.Manage(t, "GET", "/loosefk/status", "").Refused(t, 503, "unavailable", "loose foreign keys")
	other.Manage(t, "POST", "/loosefk/run", "").Refused(t, 503, "unavailable", "loose foreign keys")
}
