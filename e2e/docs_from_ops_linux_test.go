//go:build all

package e2e

import (
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	foreign "github.com/google/go-containerregistry/pkg/registry"
)

// startProduct starts a registry that stands for another product's, with two tags of acme/app and one of
// acme/team/web and of library/alpine. It has a catalog or not, and an API with answers as the product
// documents them, by path. It returns the registry's HOST:PORT.
func (d *daily) startProduct(catalog bool, api map[string]string) string {
	d.t.Helper()
	images := foreign.New(foreign.Logger(log.New(io.Discard, "", 0)), foreign.WithReferrersSupport(true))
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, ok := api[r.URL.Path]
		switch {
		case ok:
			w.Header().Set("Content-Type", "application/json")
			io.WriteString(w, answer) //nolint:errcheck // the client may have gone
		case !catalog && r.URL.Path == "/v2/_catalog":
			w.WriteHeader(http.StatusUnauthorized)
		default:
			images.ServeHTTP(w, r)
		}
	}))
	d.t.Cleanup(s.Close)
	host := strings.TrimPrefix(s.URL, "http://")
	for _, ref := range []string{"acme/app:v1", "acme/app:v2", "acme/team/web:v1", "library/alpine:3.20"} {
		_, tag, _ := strings.Cut(ref, ":")
		d.im.crane.Run("push", writeImage(d.t, newImage(d.t, 1, 1<<10), tag), host+"/"+ref)
	}
	return host
}

// fromOther runs the commands of a page about another product. They give rights in the repository acme/app,
// and copy two tags to `app`, and tags to the other repositories.
func (d *daily) fromOther(app string, others ...string) {
	d.t.Helper()
	d.values["purser policy create"] = "purser policy create --yes"
	d.push("acme/app:v0")
	d.values["purser namespace create acme"] = "purser namespace show acme" // the push has made it
	for _, b := range d.blocks {
		b.used = true
		d.RunBlock(b)
	}
	for _, repo := range others {
		d.command("purser tag list " + repo)
	}
	d.expect(d.command("purser tag list "+app), "v1", "v2")
	d.expect(d.command("purser policy list acme"), "observe")
}

func TestOpsDocsFromHarbor(t *testing.T) {
	d := newDaily(t, "docs/from-harbor.md")
	d.values["--namespace acme"] = "--namespace acme --yes"
	d.values["harbor.example.com"] = d.startProduct(false, map[string]string{
		"/api/v2.0/projects/acme":                 `{"project_id":2,"name":"acme","metadata":{}}`,
		"/api/v2.0/projects/acme/members":         `[]`,
		"/api/v2.0/robots":                        `[{"name":"robot$acme+ci","expires_at":-1,"permissions":[{"access":[{"resource":"repository","action":"push"}]}]}]`,
		"/api/v2.0/projects":                      `[{"project_id":1,"name":"library"},{"project_id":2,"name":"acme"}]`,
		"/api/v2.0/projects/library/repositories": `[{"id":1,"name":"library/alpine"}]`,
		"/api/v2.0/projects/acme/repositories":    `[{"id":2,"name":"acme/app"},{"id":3,"name":"acme/team/web"}]`,
	})
	d.fromOther("acme/app", "acme/team/web", "library/alpine")
}

func TestOpsDocsFromQuay(t *testing.T) {
	d := newDaily(t, "docs/from-quay.md")
	d.values["--namespace acme"] = "--namespace acme --yes"
	d.values["quay.example.com"] = d.startProduct(true, map[string]string{
		"/api/v1/organization/acme":                             `{"name":"acme","teams":{"developers":{"name":"developers","role":"member"}}}`,
		"/api/v1/organization/acme/team/developers/members":     `{"members":[]}`,
		"/api/v1/organization/acme/team/developers/permissions": `{"permissions":[{"repository":{"name":"app"},"role":"write"}]}`,
		"/api/v1/organization/acme/robots":                      `{"robots":[{"name":"acme+build","description":""}]}`,
		"/api/v1/organization/acme/robots/build/permissions":    `{"permissions":[]}`,
		"/api/v1/organization/acme/autoprunepolicy/":            `{"policies":[{"uuid":"1","method":"number_of_tags","value":10}]}`,
		"/api/v1/repository":                                    `{"repositories":[{"namespace":"acme","name":"app"}]}`,
	})
	d.fromOther("acme/app", "acme/team/web")
	public := d.startProduct(false, map[string]string{"/api/v1/repository": `{"repositories":[{"namespace":"acme","name":"app"}]}`})
	d.values["quay.io"] = public
	d.expect(d.Inline("purser copy quay.io/acme/ --catalog quay"), "2 tags of 1 repository")
}

func TestOpsDocsFromGitLab(t *testing.T) {
	d := newDaily(t, "docs/from-gitlab.md")
	host := d.startProduct(false, map[string]string{"/api/v4/groups/acme/registry/repositories": `[{"id":1,"name":"","path":"acme/app"},{"id":2,"name":"web","path":"acme/team/web"}]`})
	d.values["registry.gitlab.com/acme/ --catalog gitlab"] = host + "/acme/ --catalog gitlab=" + host
	d.values["registry.gitlab.com/acme/ mirror --catalog gitlab"] = host + "/acme/ mirror --catalog gitlab=" + host
	d.values["registry.gitlab.example.com/acme/ --catalog gitlab=gitlab.example.com"] = host + "/acme/ --catalog gitlab=" + host
	d.fromOther("acme/app", "acme/team/web")
	d.Inline("purser copy registry.gitlab.com/acme/ mirror --catalog gitlab")
	d.expect(d.command("purser tag list mirror/acme/app"), "v1", "v2")
}

func TestOpsDocsFromNexus(t *testing.T) {
	d := newDaily(t, "docs/from-nexus.md")
	d.values["nexus.example.com:8082"] = d.startProduct(true, nil)
	d.fromOther("acme/acme/app", "acme/library/alpine")
}

func TestOpsDocsFromDockerHub(t *testing.T) {
	d := newDaily(t, "docs/from-docker-hub.md")
	host := d.startProduct(false, map[string]string{"/v2/namespaces/acme/repositories": `{"count":1,"next":null,"results":[{"namespace":"acme","name":"app"}]}`})
	d.values["docker.io/acme/ --catalog dockerhub"] = host + "/acme/ --catalog dockerhub=" + host
	d.values["docker.io/library/alpine"] = host + "/library/alpine"
	d.fromOther("acme/app", "mirror/alpine")
}
