package login_test

import (
	"encoding/json"
	"fmt"
	"net/url"
	"testing"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// twoNamespaces starts a registry with the repositories acme/app and other/app, in which ann
// administers acme and has no role in other, and max maintains acme. The administrator root has
// made them. The digest is of the manifest in other/app, which acme/app doesn't have.
func twoNamespaces(t *testing.T) (root, ann, max *servertest.Registry, digest string) {
	t.Helper()
	r := whole(t, &auth.Options{AnonymousPull: true})
	person(t, r, "root", true)
	root, ann, max = r.With(secret("root")), r.With(secret("ann")), r.With(secret("max"))
	root.Put(t, "acme/app", "v1", root.Simple(t, "acme/app", 1, nil))
	theirs := root.Simple(t, "other/app", 2, nil)
	root.Put(t, "other/app", "v1", theirs)
	for name, role := range map[string]auth.Role{"ann": auth.Administrator, "max": auth.Maintainer} {
		person(t, r, name, false)
		r.Grant(t, "acme", name, role)
	}
	return root, ann, max, servertest.Digest(theirs).String()
}

// uuidOf returns the identifier of what a request has made.
func uuidOf(t *testing.T, a servertest.Answer) string {
	t.Helper()
	var made struct{ UUID string }
	if err := json.Unmarshal(a.WantStatus(t, 201).Content, &made); err != nil || made.UUID == "" {
		t.Fatalf("%v: %s", err, a.Content)
	}
	return made.UUID
}

// TestItemsOfOtherPlaces: an administrator of a namespace names webhooks, policies and rules of
// another namespace, whose identifiers are known, under the path of the own one. None of them may
// be found, and all must stay as they are.
func TestItemsOfOtherPlaces(t *testing.T) {
	t.Parallel()
	root, ann, _, _ := twoNamespaces(t)
	const hook, policy, rule = `{"url":"https://hooks.example.com/x","events":["push"]}`, `{"method":"number_of_tags","numTags":5}`, `{"pattern":"v.*"}`
	for _, c := range []struct {
		of, item, body string
		methods        []string
	}{
		{"/organization/%s", "webhook", hook, []string{"GET", "PUT", "DELETE"}},
		{"/organization/%s", "autoprunepolicy", policy, []string{"GET", "PUT", "DELETE"}},
		{"/repository/%s/app", "autoprunepolicy", policy, []string{"GET", "PUT", "DELETE"}},
		{"/organization/%s", "tagprotection", rule, []string{"DELETE"}},
		{"/repository/%s/app", "tagprotection", rule, []string{"DELETE"}},
	} {
		theirs, mine := fmt.Sprintf(c.of, "other")+"/"+c.item, fmt.Sprintf(c.of, "acme")+"/"+c.item
		id := uuidOf(t, root.Manage(t, "POST", theirs, c.body))
		before := string(root.Manage(t, "GET", theirs, "").WantStatus(t, 200).Content)
		for _, method := range c.methods {
			body := ""
			if method == "PUT" {
				body = c.body
			}
			ann.Manage(t, method, mine+"/"+id, body).WantStatus(t, 404)
			ann.Manage(t, method, theirs+"/"+id, body).WantStatus(t, 403)
		}
		if after := string(root.Manage(t, "GET", theirs, "").WantStatus(t, 200).Content); after != before {
			t.Errorf("%s: %s, before it was %s", theirs, after, before)
		}
	}
	id := uuidOf(t, root.Manage(t, "POST", "/organization/other/webhook", hook))
	for _, path := range []string{"/deliveries", "/test", "/redeliver"} {
		method := "POST"
		if path == "/deliveries" {
			method = "GET"
		}
		ann.Manage(t, method, "/organization/acme/webhook/"+id+path, "").WantStatus(t, 404)
	}
}

// TestContentOfOtherPlaces: an administrator of a namespace, who knows the digests in another one,
// tries to get at this content by the own repositories.
func TestContentOfOtherPlaces(t *testing.T) {
	t.Parallel()
	root, ann, _, digest := twoNamespaces(t)
	hidden := root.Push(t, "other/app", "hidden")
	move := fmt.Sprintf(`{"manifest_digest":%q}`, digest)
	ann.Manage(t, "PUT", "/repository/acme/app/tag/x", move).WantStatus(t, 404)
	ann.Manage(t, "POST", "/repository/acme/app/tag/x/restore", move).WantStatus(t, 404)
	ann.Manage(t, "GET", "/repository/acme/app/manifest/"+digest, "").WantStatus(t, 404)
	ann.Manage(t, "GET", "/repository/acme/app/manifest/"+digest+"/explain", "").WantStatus(t, 404)
	ann.Manage(t, "GET", "/gc/explain/"+hidden.String(), "").WantStatus(t, 403)
	for _, from := range []string{"&from=other/app", ""} {
		ann.Do(t, "POST", "/v2/acme/app/blobs/uploads/?mount="+hidden.String()+from, "").WantStatus(t, 202)
	}
	ann.Do(t, "GET", "/v2/acme/app/blobs/"+hidden.String(), "").Want(t, 404, oci.BlobUnknown)
	root.Do(t, "POST", "/v2/acme/app/blobs/uploads/?mount="+hidden.String()+"&from=other/app", "").WantStatus(t, 201)
}

// TestOverrideOfProtection: a maintainer deletes tags, but not protected ones; an administrator may
// override the protection.
func TestOverrideOfProtection(t *testing.T) {
	t.Parallel()
	_, ann, max, _ := twoNamespaces(t)
	ann.Manage(t, "POST", "/repository/acme/app/tagprotection", `{"pattern":"v.*"}`).WantStatus(t, 201)
	const tag = "/repository/acme/app/tag/v1"
	max.Manage(t, "DELETE", tag, "").WantStatus(t, 409)
	max.Manage(t, "DELETE", tag+"?override_protection=true", "").WantStatus(t, 403)
	max.Manage(t, "GET", tag, "").WantStatus(t, 200)
	ann.Manage(t, "DELETE", tag+"?override_protection=true", "").WantStatus(t, 204)
}

// TestRefreshTokensNeedAPassword: only a person who sends the password gets a refresh token, in
// either form of the request. A limited token would otherwise be made into one without limits.
func TestRefreshTokensNeedAPassword(t *testing.T) {
	t.Parallel()
	r := closed(t, map[string]auth.Role{"ann": auth.Reader})
	_, personal, err := r.Auth.CreateToken(t.Context(), &auth.Principal{Name: "ann"}, "", auth.Limits{Actions: []auth.Action{auth.ActionPull}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, robot, err := r.Auth.CreateRobot(t.Context(), "acme", "ci", "", auth.Limits{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, password string
		refresh        bool
	}{{"ann", servertest.PasswordOf("ann"), true}, {"ann", personal, false}, {"$token", personal, false}, {"acme+ci", robot, false}} {
		form := url.Values{"grant_type": {"password"}, "service": {"purser"}, "access_type": {"offline"}, "username": {c.name}, "password": {c.password}}.Encode()
		for _, a := range []servertest.Answer{
			r.Do(t, "GET", "/token?offline_token=true&service=purser", "", servertest.Basic(c.name, c.password)...),
			r.Do(t, "POST", "/token", form, "Content-Type", "application/x-www-form-urlencoded"),
		} {
			var out struct {
				Token   string
				Refresh string `json:"refresh_token"`
			}
			if a.Into(t, 200, &out); out.Token == "" || (out.Refresh != "") != c.refresh {
				t.Errorf("%s as %s gets the refresh token %q, want one: %v", a.Request.Method, c.name, out.Refresh, c.refresh)
			}
		}
	}
	r.Do(t, "GET", "/token?offline_token=true&service=purser", "").WantStatus(t, 200)
}

// TestStarsNeedAnAccount: everybody may pull from a public repository, and only accounts have
// stars. A client without an account may neither give nor take one.
func TestStarsNeedAnAccount(t *testing.T) {
	t.Parallel()
	r := closed(t, nil)
	visibility(t, r, "acme/app", true)
	r.Do(t, "GET", "/v2/acme/app/manifests/v1", "").WantStatus(t, 200)
	r.Manage(t, "POST", "/user/starred", `{"namespace":"acme","repository":"app"}`).WantStatus(t, 401)
	r.Manage(t, "DELETE", "/user/starred/acme/app", "").WantStatus(t, 401)
	root := r.With(servertest.As("root"))
	root.Manage(t, "POST", "/user/starred", `{"namespace":"acme","repository":"app"}`).WantStatus(t, 201)
	root.Manage(t, "DELETE", "/user/starred/acme/app", "").WantStatus(t, 204)
}
