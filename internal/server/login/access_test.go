package login_test

import (
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// closed starts a registry with access control, an administrator root and the accounts of
// `roles` with a role in the namespace acme, which has the repository acme/app with the tag v1.
func closed(t *testing.T, roles map[string]auth.Role, change ...func(*servertest.Options)) *servertest.Registry {
	t.Helper()
	r := servertest.Setup(t, func(o *servertest.Options) {
		o.Access = &auth.Options{AnonymousPull: true}
		for _, f := range change {
			f(o)
		}
	})
	r.AddAccount(t, "root", true)
	root := r.With(servertest.As("root"))
	root.Put(t, "acme/app", "v1", root.Simple(t, "acme/app", 1, nil))
	for name, role := range roles {
		r.AddAccount(t, name, false)
		if role != auth.NoRole {
			r.Grant(t, "acme", name, role)
		}
	}
	return r
}

// TestTokenFlow: a client without a token is told where to get one, gets one with what its
// account may do, and pulls with it.
func TestTokenFlow(t *testing.T) {
	t.Parallel()
	r := closed(t, map[string]auth.Role{"reader": auth.Reader, "stranger": auth.NoRole})
	const manifest = "/v2/acme/app/manifests/v1"
	base := strings.TrimSuffix(r.URL, "/")
	r.Do(t, "GET", "/v2/", "").Want(t, 401, oci.Unauthorized, "Www-Authenticate", `Bearer realm="`+base+`/token",service="purser"`)
	r.Do(t, "GET", manifest, "").Want(t, 401, oci.Unauthorized,
		"Www-Authenticate", `Bearer realm="`+base+`/token",service="purser",scope="repository:acme/app:pull"`)
	token := r.Token(t, servertest.As("reader"), "repository:acme/app:pull,push")
	r.Do(t, "GET", "/v2/", "", servertest.Bearer(token)...).Want(t, 200, "")
	r.Do(t, "GET", manifest, "", servertest.Bearer(token)...).Want(t, 200, "")
	r.Do(t, "PUT", "/v2/acme/app/manifests/v2", "{}", servertest.Bearer(token)...).Want(t, 403, oci.Denied)
	r.Do(t, "DELETE", manifest, "", servertest.Bearer(token)...).Want(t, 401, oci.Unauthorized,
		"Www-Authenticate", `Bearer realm="`+base+`/token",service="purser",scope="repository:acme/app:delete",error="insufficient_scope"`)
	none := r.Token(t, servertest.As("stranger"), "repository:acme/app:pull")
	r.Do(t, "GET", manifest, "", servertest.Bearer(none)...).Want(t, 403, oci.Denied)
	anonymous := r.Token(t, nil, "repository:acme/app:pull")
	r.Do(t, "GET", manifest, "", servertest.Bearer(anonymous)...).Want(t, 401, oci.Unauthorized,
		"Www-Authenticate", `Bearer realm="`+base+`/token",service="purser",scope="repository:acme/app:pull",error="insufficient_scope"`)
	r.Do(t, "GET", manifest, "", servertest.Bearer("wrong")...).Want(t, 401, oci.Unauthorized,
		"Www-Authenticate", `Bearer realm="`+base+`/token",service="purser",scope="repository:acme/app:pull",error="invalid_token"`)
	r.Do(t, "GET", manifest, "", servertest.As("reader")...).Want(t, 200, "")
	r.Do(t, "GET", manifest, "", servertest.As("stranger")...).Want(t, 403, oci.Denied)
	r.Do(t, "GET", manifest, "", servertest.Basic("reader", "wrong")...).Want(t, 401, oci.Unauthorized)
	r.Do(t, "GET", "/token", "", servertest.Basic("reader", "wrong")...).WantStatus(t, 401)
	r.Do(t, "GET", "/token", "", servertest.Basic("nobody", "wrong")...).WantStatus(t, 401)
}

// TestCatalogRefused: a client that asked for a token for the catalog in vain is told so, and one
// that hasn't asked is told to. Nobody without an account is told anything but to log in.
func TestCatalogRefused(t *testing.T) {
	t.Parallel()
	r := closed(t, map[string]auth.Role{"reader": auth.Reader})
	_, secret, err := r.Auth.CreateRobot(t.Context(), "acme", "pusher", "", auth.Limits{Actions: []auth.Action{auth.ActionPush}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	pusher := servertest.Basic("acme+pusher", secret)
	const catalog, other = "registry:catalog:*", "repository:acme/app:push"
	ask := "Bearer realm=\"" + strings.TrimSuffix(r.URL, "/") + "/token\",service=\"purser\",scope=\"registry:catalog:*\",error=\"insufficient_scope\""
	get := func(credentials []string, scopes ...string) servertest.Answer {
		return r.Do(t, "GET", "/v2/_catalog", "", servertest.Bearer(r.Token(t, credentials, scopes...))...)
	}
	get(pusher, catalog).Want(t, 403, oci.Denied)
	get(pusher, other, catalog).Want(t, 403, oci.Denied)
	get(pusher, other).Want(t, 401, oci.Unauthorized, "Www-Authenticate", ask)
	get(pusher, "repository:catalog:*").Want(t, 401, oci.Unauthorized, "Www-Authenticate", ask)
	r.Do(t, "GET", "/v2/_catalog", "", pusher...).Want(t, 403, oci.Denied)
	get(servertest.As("reader"), other).Want(t, 401, oci.Unauthorized, "Www-Authenticate", ask)
	get(servertest.As("reader"), catalog).WantStatus(t, 200)
	get(nil, other).Want(t, 401, oci.Unauthorized, "Www-Authenticate", ask)
	get(nil, catalog).WantStatus(t, 200)
}

// TestCatalogAsksForCredentials: a client that sends its credentials only when it is asked sees all
// that its account may read, and one without an account sees what is public. Neither must see less
// because it has sent nothing at first. What isn't filtered needs no question: a public
// repository's tags and referrers.
func TestCatalogAsksForCredentials(t *testing.T) {
	t.Parallel()
	for _, byDefault := range []bool{false, true} {
		r := closed(t, map[string]auth.Role{"reader": auth.Reader}, func(o *servertest.Options) { o.Access.PublicByDefault = byDefault })
		root := r.With(servertest.As("root"))
		root.Put(t, "acme/open", "v1", root.Simple(t, "acme/open", 1, nil))
		visibility(t, r, "acme/open", true)
		visibility(t, r, "acme/app", false)
		const scope = "registry:catalog:*"
		ask := "Bearer realm=\"" + strings.TrimSuffix(r.URL, "/") + "/token\",service=\"purser\",scope=\"" + scope + "\""
		for _, query := range []string{"", "?n=1", "?n=0"} {
			r.Do(t, "GET", "/v2/_catalog"+query, "").Want(t, 401, oci.Unauthorized, "Www-Authenticate", ask)
			r.Do(t, "HEAD", "/v2/_catalog"+query, "").Want(t, 401, "", "Www-Authenticate", ask)
		}
		catalog := func(credentials []string) string {
			return string(r.Do(t, "GET", "/v2/_catalog", "", credentials...).WantStatus(t, 200).Content)
		}
		if got := catalog(servertest.Bearer(r.Token(t, nil, scope))); !strings.Contains(got, "acme/open") || strings.Contains(got, "acme/app") {
			t.Errorf("with an anonymous token: %s", got)
		}
		for _, credentials := range [][]string{servertest.As("reader"), servertest.Bearer(r.Token(t, servertest.As("reader"), scope))} {
			if got := catalog(credentials); !strings.Contains(got, "acme/open") || !strings.Contains(got, "acme/app") {
				t.Errorf("with an account: %s", got)
			}
		}
		r.Do(t, "GET", "/v2/acme/open/tags/list", "").Want(t, 200, "", "Www-Authenticate", "")
		r.Do(t, "GET", "/v2/acme/open/referrers/"+oci.Compute(oci.SHA256, nil).String(), "").Want(t, 200, "", "Www-Authenticate", "")
		for _, path := range []string{"/repository", "/organization", "/repository?namespace=acme"} {
			for want, credentials := range map[string][]string{`Basic realm="Purser", charset="UTF-8"`: nil, "": servertest.As("reader")} {
				a := r.Do(t, "GET", "/api/v1"+path, "", credentials...).WantStatus(t, 200)
				if got := a.Header.Get("Www-Authenticate"); got != want {
					t.Errorf("%s with %q: challenge %q, want %q", path, credentials, got, want)
				}
			}
		}
	}
}

// TestCatalogWithoutAnonymousPull: a registry that serves nobody without an account answers an
// anonymous request for the catalog in the same way as one for a repository.
func TestCatalogWithoutAnonymousPull(t *testing.T) {
	t.Parallel()
	r := closed(t, nil, func(o *servertest.Options) { o.Access.AnonymousPull = false })
	for _, path := range []string{"/v2/_catalog", "/v2/acme/app/manifests/v1", "/token?scope=registry:catalog:*", "/token?scope=repository:acme/app:pull"} {
		r.Do(t, "GET", path, "").WantStatus(t, 401)
	}
}

// TestTokenOfFormerNamespace: a namespace is deleted, in the trash or for good, and made again for somebody
// else. A registry token that was granted in the former one opens nothing in it, on no replica, and a
// token of the new one does.
func TestTokenOfFormerNamespace(t *testing.T) {
	t.Parallel()
	for _, purge := range []string{"", "?purge=true"} {
		r := closed(t, map[string]auth.Role{"alice": auth.Administrator})
		r.AddAccount(t, "bob", false)
		root := r.With(servertest.As("root"))
		scopes := []string{"repository:acme/app:pull,push,delete", "repository:acme/secret:pull,push"}
		old := servertest.Bearer(r.Token(t, servertest.As("alice"), scopes...))
		admin := servertest.Bearer(r.Token(t, servertest.As("root"), scopes...))
		const manifest = "/v2/acme/app/manifests/v1"
		r.Do(t, "GET", manifest, "", old...).WantStatus(t, 200)
		root.Manage(t, "DELETE", "/organization/acme"+purge, "").WantStatus(t, 204)
		r.Do(t, "GET", manifest, "", old...).WantStatus(t, 401)
		r.Do(t, "POST", "/v2/acme/app/blobs/uploads/", "", old...).WantStatus(t, 401)
		root.Manage(t, "POST", "/organization/", `{"name": "acme"}`).WantStatus(t, 201)
		r.Do(t, "POST", "/v2/acme/app/blobs/uploads/", "", admin...).WantStatus(t, 202)
		r.Grant(t, "acme", "bob", auth.Administrator)
		bob := r.With(servertest.As("bob"))
		bob.Put(t, "acme/app", "v1", bob.Simple(t, "acme/app", 1, nil))
		bob.Put(t, "acme/secret", "v1", bob.Simple(t, "acme/secret", 1, nil))
		for _, path := range []string{"app", "secret"} {
			r.Do(t, "GET", "/v2/acme/"+path+"/manifests/v1", "", old...).WantStatus(t, 401)
			r.Do(t, "POST", "/v2/acme/"+path+"/blobs/uploads/", "", old...).WantStatus(t, 401)
		}
		r.Do(t, "DELETE", manifest, "", old...).WantStatus(t, 401)
		own := servertest.Bearer(r.Token(t, servertest.As("bob"), scopes...))
		r.Do(t, "GET", "/v2/acme/secret/manifests/v1", "", own...).WantStatus(t, 200)
		r.Do(t, "GET", "/v2/acme/secret/manifests/v1", "", admin...).WantStatus(t, 200)
	}
}
