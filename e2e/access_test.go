package e2e

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/testscale"
)

// accountPassword is the password of all people's accounts in closed registries.
const accountPassword = "correct horse battery staple"

// startClosed starts a registry with access control, and returns it with the secret of a robot.
// The registry has an administrator, admin; in the namespace acme a writer, a reader and the
// robot ci, which is a writer; and an account stranger without a role.
func startClosed(t *testing.T, env ...string) (r *registry, robotSecret string) {
	t.Helper()
	beginOwn(t)
	env = append(env, "PURSER_DATABASE_MAIN="+dbtest.EmptyDSN(t), "PURSER_AUTH_ENABLED=true", "PURSER_AUTH_INITIAL_PASSWORD="+accountPassword)
	r = startRegistry(t, options{env: append(storages["filesystem"](t), env...)})
	r.administer(t, "POST", "/organization", `{"name":"acme"}`, http.StatusCreated)
	for _, name := range []string{"writer", "reader", "stranger"} {
		r.administer(t, "POST", "/superuser/users/", fmt.Sprintf(`{"username":%q,"password":%q}`, name, accountPassword), http.StatusOK)
	}
	var robot struct{ Token string }
	if err := json.Unmarshal(r.administer(t, "PUT", "/organization/acme/robots/ci", "{}", http.StatusCreated), &robot); err != nil {
		t.Fatal(err)
	}
	for name, role := range map[string]string{"writer": "writer", "acme+ci": "writer", "reader": "reader"} {
		r.administer(t, "PUT", "/organization/acme/permissions/user/"+name, fmt.Sprintf(`{"role":%q}`, role), http.StatusOK)
	}
	return r, robot.Token
}

// administer sends a request to the management API as admin, and returns the answer's body.
func (r *registry) administer(t *testing.T, method, path, body string, want int) []byte {
	t.Helper()
	credentials := base64.StdEncoding.EncodeToString([]byte("admin:" + accountPassword))
	res, err := r.API().do(t.Context(), request{method: method, path: "/api/v1" + path, body: []byte(body), want: want,
		header: map[string]string{"Content-Type": "application/json", "Authorization": "Basic " + credentials}})
	if err != nil {
		t.Fatal(err)
	}
	return res.body
}

// accessClient is a client that can log in. Its functions return what it says if it fails.
type accessClient struct {
	login func(name, password string) error // nil: it only sends what it was given with the requests
	push  func(repo, tag string) error
	pull  func(repo, tag string) error
	tags  func(repo string) ([]string, error) // nil: it can't list tags
	// copies copies v1 from one repository to another, and mounts its layers. Nil: it can't.
	copies func(from, to string) error
	// catalog returns the registry's repositories. Nil: it can't.
	catalog func() ([]string, error)
	// lateLogin says that the client doesn't check a password when it logs in.
	lateLogin bool
}

// accessClients has, by name, a function that returns a new client, which isn't logged in. It
// pushes the image in the OCI layout `dir`, under the tag v1 there.
var accessClients = map[string]func(t *testing.T, r *registry, dir string) accessClient{
	"crane":   craneAccess,
	"skopeo":  skopeoAccess,
	"podman":  podmanAccess,
	"regctl":  regctlAccess,
	"oras-go": orasAccess,
}

// run returns a function's error only.
func (c *client) run(args ...string) error {
	_, err := c.Try("", args...)
	return err
}

func craneAccess(t *testing.T, r *registry, dir string) accessClient {
	crane := toolClient(t, "crane")
	return accessClient{
		lateLogin: true,
		login:     func(name, pass string) error { return crane.run("auth", "login", r.host, "-u", name, "-p", pass) },
		push:      func(repo, tag string) error { return crane.run("push", dir, r.Ref(repo, tag)) },
		pull:      func(repo, tag string) error { return crane.run("pull", r.Ref(repo, tag), newDir(t)+"/pulled") },
		tags: func(repo string) ([]string, error) {
			out, err := crane.Try("", "ls", r.host+"/"+repo)
			return lines(out), err
		},
		catalog: func() ([]string, error) {
			out, err := crane.Try("", "catalog", r.host)
			return lines(out), err
		},
		copies: func(from, to string) error { return crane.run("copy", r.Ref(from, "v1"), r.Ref(to, "v1")) },
	}
}

func skopeoAccess(t *testing.T, r *registry, dir string) accessClient {
	skopeo := skopeo(t)
	docker := func(repo, tag string) string { return "docker://" + r.Ref(repo, tag) }
	return accessClient{
		login: func(name, pass string) error {
			return skopeo.run("login", "--tls-verify=false", "-u", name, "-p", pass, r.host)
		},
		push: func(repo, tag string) error {
			return skopeo.run("copy", "--dest-tls-verify=false", "oci:"+dir+":v1", docker(repo, tag))
		},
		pull: func(repo, tag string) error {
			return skopeo.run("copy", "--src-tls-verify=false", docker(repo, tag), "oci:"+newDir(t)+"/pulled:v1")
		},
		tags: func(repo string) ([]string, error) {
			out, err := skopeo.Try("", "list-tags", "--tls-verify=false", "docker://"+r.host+"/"+repo)
			_, list, _ := strings.Cut(out, "[")
			return lines(strings.NewReplacer(`"`, "", ",", "", "]", "", "}", "").Replace(list)), err
		},
		copies: func(from, to string) error {
			return skopeo.run("copy", "--src-tls-verify=false", "--dest-tls-verify=false", docker(from, "v1"), docker(to, "v1"))
		},
	}
}

func podmanAccess(t *testing.T, r *registry, dir string) accessClient {
	podman := podman(t)
	return accessClient{
		login: func(name, pass string) error {
			return podman.run("login", "--tls-verify=false", "-u", name, "-p", pass, r.host)
		},
		push: func(repo, tag string) error {
			id, err := podman.Try("", "pull", "--quiet", "oci:"+dir+":v1")
			if err != nil {
				return err
			}
			return podman.run("push", "--tls-verify=false", id, r.Ref(repo, tag))
		},
		pull: func(repo, tag string) error { return podman.run("pull", "--tls-verify=false", r.Ref(repo, tag)) },
	}
}

func regctlAccess(t *testing.T, r *registry, dir string) accessClient {
	regctl := regctl(t, r)
	return accessClient{
		login: func(name, pass string) error { return regctl.run("registry", "login", r.host, "-u", name, "-p", pass) },
		push: func(repo, tag string) error {
			return regctl.run("image", "copy", "ocidir://"+dir+":v1", r.Ref(repo, tag))
		},
		pull: func(repo, tag string) error {
			return regctl.run("image", "copy", r.Ref(repo, tag), "ocidir://"+newDir(t)+"/pulled:v1")
		},
		tags: func(repo string) ([]string, error) {
			out, err := regctl.Try("", "tag", "ls", r.host+"/"+repo)
			return lines(out), err
		},
		catalog: func() ([]string, error) {
			out, err := regctl.Try("", "repo", "ls", r.host)
			return lines(out), err
		},
		copies: func(from, to string) error { return regctl.run("image", "copy", r.Ref(from, "v1"), r.Ref(to, "v1")) },
	}
}

// eachAccessClient runs a test with each client, or with crane alone in "make test",
// against one registry. The test gets a function that makes a client, which isn't
// logged in.
func eachAccessClient(t *testing.T, test func(t *testing.T, r *registry, robotSecret, name string, newClient func() accessClient)) {
	r, robotSecret := startClosed(t)
	dir := writeImage(t, newImage(t, 2, 16<<10), "v1")
	for name, start := range accessClients {
		if !testscale.All && name != "crane" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			test(t, r, robotSecret, name, func() accessClient { return start(t, r, dir) })
		})
	}
}

// TestClientsLogIn: a client logs in with a password or with a robot's secret, and pushes, pulls,
// lists tags and copies between repositories.
func TestClientsLogIn(t *testing.T) {
	eachAccessClient(t, func(t *testing.T, r *registry, robotSecret, name string, newClient func() accessClient) {
		for i, account := range []string{"writer", "acme+ci", "$token"} {
			c, repo, secret := newClient(), fmt.Sprintf("acme/%s-%d", name, i), robotSecret
			if i == 0 {
				secret = accountPassword
			}
			wants(t, account+" logs in", c.login(account, secret))
			wants(t, account+" pushes", c.push(repo, "v1"))
			wants(t, account+" pulls", c.pull(repo, "v1"))
			if c.tags != nil {
				if got, err := c.tags(repo); err != nil || !slices.Equal(got, []string{"v1"}) {
					t.Errorf("tags of %s: %q (%v), want v1", repo, got, err)
				}
			}
			if c.copies == nil {
				continue
			}
			wants(t, account+" copies", c.copies(repo, "acme/copies/"+repo))
			wants(t, account+" pulls the copy", c.pull("acme/copies/"+repo, "v1"))
			eventually(t, time.Minute, func() error { return r.mounted("acme/copies/" + repo) })
		}
	})
}

// wants fails the test if what a client did failed.
func wants(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// mounted returns an error unless the log has a request that mounted a blob in a repository. The
// clients here never send a blob in a POST, so an answer with 201 to one says that.
func (r *registry) mounted(repo string) error {
	if line := fmt.Sprintf(`"http.request.method":"POST","url.path":"/v2/%s/blobs/uploads/","http.response.status_code":201`, repo); !strings.Contains(r.p.out.String(), line) {
		return fmt.Errorf("the log has no mount in %s", repo)
	}
	return nil
}
