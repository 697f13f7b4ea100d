package login_test

import (
	"bufio"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// guarded starts a registry with the private repository acme/app, whose manifest v1 and blob
// have the word "confidential" in them, and the repository acme/open, in which the account
// "guest" is a maintainer.
func guarded(t *testing.T) (r *servertest.Registry, blob oci.Digest) {
	t.Helper()
	r = closed(t, map[string]auth.Role{"guest": auth.NoRole, "reader": auth.Reader})
	root := r.With(servertest.As("root"))
	blob = root.Push(t, "acme/app", "confidential")
	root.Put(t, "acme/app", "v1", servertest.Image(t, blob, nil, servertest.Object{"annotations": map[string]string{"n": "confidential"}}))
	root.Put(t, "acme/open", "v1", root.Simple(t, "acme/open", 1, nil))
	r.Grant(t, "acme/open", "guest", auth.Maintainer)
	return r, blob
}

// raw sends the text of a request without changing it, and returns the answer.
func raw(t *testing.T, r *servertest.Registry, line string, headers ...string) servertest.Answer {
	t.Helper()
	c, err := net.Dial("tcp", r.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close() //nolint:errcheck // read to its end
	method, _, _ := strings.Cut(line, " ")
	text := line + " HTTP/1.1\r\nHost: " + r.Listener.Addr().String() + "\r\nConnection: close\r\n"
	for i := 0; i < len(headers); i += 2 {
		text += headers[i] + ": " + headers[i+1] + "\r\n"
	}
	if _, err := io.WriteString(c, text+"\r\n"); err != nil {
		t.Fatal(err)
	}
	a, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: method, URL: &url.URL{Path: line}})
	if err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	defer a.Body.Close() //nolint:errcheck
	body, err := io.ReadAll(a.Body)
	if err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	return servertest.Answer{Response: a, Content: body}
}

// TestTokensOfOddScopes: no scope gives a client more than its account has, however the scope
// is written.
func TestTokensOfOddScopes(t *testing.T) {
	t.Parallel()
	r, blob := guarded(t)
	for _, scope := range []string{
		"repository:acme/app:pull", "repository:acme/app:*", "repository:acme/app:pull,push,delete,overwrite,admin",
		"repository:*:*", "repository:acme/*:pull", "repository:acme/open:pull,push repository:acme/app:pull",
		"repository:acme/open/../app:pull", "repository:acme/open:pull:acme/app:pull", "repository:ACME/app:pull",
		"repository:acme%2fapp:pull", "repository(plugin):acme/app:pull", "repository:acme/open,acme/app:pull",
		"registry:catalog:*", "registry:*:*", "*:*:*", "repository:acme:pull", "repository::pull", "repository:/:pull",
		"repository:acme/open:overwrite",
	} {
		for name, headers := range map[string][]string{"guest": servertest.As("guest"), "nobody": nil} {
			token := servertest.Bearer(r.Token(t, headers, scope))
			for _, path := range []string{
				"GET /v2/acme/app/manifests/v1", "GET /v2/acme/app/tags/list", "GET /v2/acme/app/blobs/" + blob.String(),
				"GET /v2/acme/app/referrers/" + blob.String(), "DELETE /v2/acme/app/manifests/v1", "POST /v2/acme/app/blobs/uploads/",
			} {
				method, path, _ := strings.Cut(path, " ")
				if a := r.Do(t, method, path, "", token...); a.StatusCode != 401 && a.StatusCode != 403 || strings.Contains(string(a.Content), "confidential") {
					t.Errorf("%s with %q: %s %s: %d %s", name, scope, method, path, a.StatusCode, a.Content)
				}
			}
			if a := r.Do(t, "GET", "/v2/_catalog", "", token...); strings.Contains(string(a.Content), "acme/app") {
				t.Errorf("%s with %q: catalog %s", name, scope, a.Content)
			}
		}
	}
	r.Do(t, "GET", "/token?scope=repository:acme/open:pull%00repository:acme/app:pull", "").WantStatus(t, 400)
	r.Do(t, "GET", "/token?scope="+strings.Repeat("repository:a:pull%20", 200), "").WantStatus(t, 400)
	pull := servertest.Bearer(r.Token(t, servertest.As("guest"), "repository:acme/open:pull"))
	r.Do(t, "GET", "/v2/acme/open/manifests/v1", "", pull...).WantStatus(t, 200)
	r.Do(t, "POST", "/v2/acme/open/blobs/uploads/", "", pull...).WantStatus(t, 401)
	r.Do(t, "PUT", "/v2/acme/open/manifests/v1", "{}", pull...).WantStatus(t, 401)
	r.Do(t, "DELETE", "/v2/acme/open/manifests/v1", "", pull...).WantStatus(t, 401)
	r.Do(t, "GET", "/v2/_catalog", "", pull...).WantStatus(t, 401)
	push := servertest.Bearer(r.Token(t, servertest.As("guest"), "repository:acme/open:push"))
	r.Do(t, "GET", "/v2/acme/open/manifests/v1", "", push...).WantStatus(t, 401)
	r.Do(t, "GET", "/api/v1/repository/acme/open/tag", "", push...).WantStatus(t, 401)
}

// TestPathsOfOtherRepositories: no way to write a path leads to a repository that the client
// may not read.
func TestPathsOfOtherRepositories(t *testing.T) {
	t.Parallel()
	r, blob := guarded(t)
	token := servertest.Bearer(r.Token(t, servertest.As("guest"), "repository:acme/open:*"))
	for _, path := range []string{
		"/v2/acme/app/manifests/v1", "/v2/acme/open/../app/manifests/v1", "/v2/acme/open/..%2fapp/manifests/v1",
		"/v2/acme/open%2f..%2fapp/manifests/v1", "/v2/acme%2fapp/manifests/v1", "/v2/acme%2Fapp%2Fmanifests%2Fv1",
		"/v2//acme/app/manifests/v1", "/v2/acme//app/manifests/v1", "/v2/acme/app//manifests/v1", "/v2/./acme/app/manifests/v1",
		"/v2/ACME/app/manifests/v1", "/v2/acme/APP/manifests/v1", "/V2/acme/app/manifests/v1", "/v2/acme/app%00/manifests/v1",
		"/v2/acme/app/manifests/v1%00", "/v2/%61cme/app/manifests/v1", "/v2/acme/%2e%2e/acme/app/manifests/v1",
		"/v2/acme/open/manifests/../../app/manifests/v1", "/v2/acme/open/manifests/..%2f..%2fapp%2fmanifests%2fv1",
		"/v2/acme/open/manifests/v1/../../../app/manifests/v1", "/v2/acme/open/blobs/../../app/blobs/" + blob.String(),
		"/v2/acme/open/blobs/" + blob.String(), "/v2/acme/open/manifests/" + blob.String(), "/v2/acme/app/manifests/v1?repository=acme/open",
		"/v2/acme/app/manifests/v1;acme/open", "/v2/acme/app\\manifests\\v1", "/v2/acme/app/manifests/v1#/acme/open",
		"http://" + r.Listener.Addr().String() + "/v2/acme/app/manifests/v1", "//v2/acme/app/manifests/v1",
		"/v2/" + strings.Repeat("a/", 2000) + "../acme/app/manifests/v1", "/v2/" + strings.Repeat("x", 300) + "/manifests/v1",
		"/api/v1/repository/acme%2Fopen%2F..%2Fapp/tag", "/api/v1/repository/acme/open/../app/tag", "/api/v1/repository/acme%2fapp/tag",
		"/api/v1/repository/acme/app/tag/v1", "/api/v1/repository/ACME%2fapp", "/api/v1//repository/acme/app", "/api/v1/repository/acme%2Fapp%00/tag",
	} {
		for _, headers := range [][]string{servertest.As("guest"), token, nil} {
			for _, method := range []string{"GET", "HEAD"} {
				a := raw(t, r, method+" "+path, headers...)
				if a.StatusCode < 300 || a.StatusCode >= 500 || strings.Contains(string(a.Content), "confidential") {
					t.Errorf("%s %.100s: %d %.200s", method, path, a.StatusCode, a.Content)
				}
			}
		}
	}
	if a := raw(t, r, "GET /v2/acme/open/manifests/v1", token...); a.StatusCode != 200 {
		t.Errorf("the right path: %d", a.StatusCode)
	}
}

// TestForgedTokens: over HTTP, a forged token is refused with a challenge, and never with an
// error of the server.
func TestForgedTokens(t *testing.T) {
	t.Parallel()
	r, _ := guarded(t)
	good := r.Token(t, servertest.As("reader"), "repository:acme/app:pull")
	part := strings.Split(good, ".")
	encode := func(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }
	claims, err := base64.RawURLEncoding.DecodeString(part[1])
	if err != nil {
		t.Fatal(err)
	}
	more := encode(strings.Replace(string(claims), `"pull"`, `"pull","push","delete"`, 1))
	mac := func(text string) string {
		h := hmac.New(sha256.New, []byte("purser"))
		h.Write([]byte(text))
		return text + "." + base64.RawURLEncoding.EncodeToString(h.Sum(nil))
	}
	for name, token := range map[string]string{
		"no algorithm":      encode(`{"alg":"none","typ":"JWT"}`) + "." + part[1] + ".",
		"None":              encode(`{"alg":"None"}`) + "." + part[1] + "." + part[2],
		"HMAC":              mac(encode(`{"alg":"HS256","typ":"JWT"}`) + "." + part[1]),
		"more actions":      part[0] + "." + more + "." + part[2],
		"no signature":      part[0] + "." + part[1] + ".",
		"two parts":         part[0] + "." + part[1],
		"another signature": part[0] + "." + part[1] + "." + encode(strings.Repeat("x", 64)),
		"an unknown key":    encode(`{"alg":"EdDSA","kid":"ABCDEFGHIJKLMNOPQRSTUVWXYZ","typ":"JWT"}`) + "." + part[1] + "." + part[2],
		"a key by URL":      encode(`{"alg":"EdDSA","jku":"http://127.0.0.1/","typ":"JWT"}`) + "." + part[1] + "." + part[2],
		"five parts":        good + ".x.y",
		"empty":             "",
		"dots":              "..",
		"a password":        base64.StdEncoding.EncodeToString([]byte("reader:" + servertest.PasswordOf("reader"))),
		"longer":            good + "=",
		"very long":         strings.Repeat("a", 20<<10),
		"a secret":          "purser_pat_" + strings.Repeat("a", 43),
		"a robot's secret":  "purser_robot_",
		"a refresh token":   "purser_refresh_" + strings.Repeat("a", 43),
	} {
		for _, path := range []string{"/v2/", "/v2/acme/app/manifests/v1", "/v2/_catalog", "/api/v1/repository/acme/app/tag", "/token"} {
			a := r.Do(t, "GET", path, "", servertest.Bearer(token)...)
			if a.StatusCode != 401 || a.Header.Get("WWW-Authenticate") == "" {
				t.Errorf("%s at %s: %d %s", name, path, a.StatusCode, a.Content)
			}
		}
	}
	r.Do(t, "GET", "/v2/acme/app/manifests/v1", "", servertest.Bearer(good)...).WantStatus(t, 200)
}

// TestOddAuthorization has Authorization headers of unusual forms.
func TestOddAuthorization(t *testing.T) {
	t.Parallel()
	r, _ := guarded(t)
	const odd = "a:b:\u00fc\u2603 \"c\":"
	hash, err := r.Auth.Passwords().Hash(t.Context(), odd)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Auth.CreateAccount(t.Context(), auth.NewAccount{Name: "colons", PasswordHash: hash}); err != nil {
		t.Fatal(err)
	}
	encode := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
	right := encode("reader:" + servertest.PasswordOf("reader"))
	token := r.Token(t, servertest.As("reader"), "repository:acme/app:pull")
	for value, want := range map[string]int{
		"Basic " + right: 200, "basic " + right: 200, "BASIC  " + right: 200, "Bearer " + token: 200, "bEARER " + token: 200,
		"Basic " + encode("READER:"+servertest.PasswordOf("reader")):        200,
		"Basic " + encode("colons:"+odd):                                    403,
		"Basic " + encode("colons:a"):                                       401,
		"Basic " + encode("reader"):                                         401,
		"Basic " + encode(":"):                                              401,
		"Basic " + encode("reader:"):                                        401,
		"Basic " + encode("reader:"+servertest.PasswordOf("reader")+"\x00"): 401,
		"Basic " + encode("reader\x00:"+servertest.PasswordOf("reader")):    401,
		"Basic " + encode("reader:\xff\xfe"):                                401,
		"Basic " + encode("re\xffader:x"):                                   401,
		"Basic " + encode(strings.Repeat("a", 20<<10)+":x"):                 401,
		"Basic " + encode("reader:"+strings.Repeat("x", 20<<10)):            401,
		"Basic " + strings.Repeat("A", 40<<10):                              401,
		"Basic " + token:                                                    401, "Bearer " + right: 401, "Basic": 401, "Bearer": 401, "": 401, "Digest " + right: 401,
		"Basic!" + right: 401, token: 401, "Basic " + strings.TrimRight(right, "=") + "!": 401, "Negotiate": 401,
	} {
		a := r.Do(t, "GET", "/v2/acme/app/manifests/v1", "", "Authorization", value)
		if a.StatusCode != want {
			t.Errorf("%.60q: %d %s, want %d", value, a.StatusCode, a.Content, want)
		}
	}
	for _, pair := range [][2]string{{"Basic " + right, "Basic " + right}, {"Bearer " + token, "Basic " + right}, {"Basic " + encode("x:y"), "Basic " + right}} {
		if a := r.Do(t, "GET", "/v2/acme/app/manifests/v1", "", "Authorization", pair[0], "Authorization", pair[1]); a.StatusCode != 401 {
			t.Errorf("two headers: %d %s", a.StatusCode, a.Content)
		}
	}
	account, err := r.Auth.Account(t.Context(), "reader")
	if err != nil {
		t.Fatal(err)
	}
	cookie, err := r.Auth.Sessions().Create(t.Context(), account.ID, "127.0.0.1", "test")
	if err != nil {
		t.Fatal(err)
	}
	session := []string{"Cookie", "purser_session=" + cookie}
	r.Do(t, "GET", "/v2/acme/app/manifests/v1", "", session...).WantStatus(t, 401)
	r.Do(t, "GET", "/v2/", "", session...).WantStatus(t, 401)
	r.Do(t, "GET", "/api/v1/repository/acme/app/tag", "", session...).WantStatus(t, 200)
	r.Do(t, "GET", "/api/v1/repository/acme/app/tag", "", append(session, "Authorization", "Basic x")...).WantStatus(t, 401)
}

// TestPrivateBlobs: a client that knows a digest of a private repository's blob, and may push
// elsewhere, gets neither the blob nor the knowledge that it exists.
func TestPrivateBlobs(t *testing.T) {
	t.Parallel()
	r, blob := guarded(t)
	absent := servertest.Digest("absent")
	guest := r.With(servertest.As("guest"))
	token := r.With(servertest.Bearer(r.Token(t, servertest.As("guest"), "repository:acme/open:pull,push", "repository:acme/app:pull")))
	for _, c := range []*servertest.Registry{guest, token} {
		for _, d := range []oci.Digest{blob, absent} {
			for _, from := range []string{"", "&from=acme/app", "&from=acme/none", "&from=nope/app"} {
				c.Do(t, "POST", "/v2/acme/open/blobs/uploads/?mount="+d.String()+from, "").Want(t, 202, "", "Docker-Content-Digest", "")
			}
			c.Do(t, "HEAD", "/v2/acme/open/blobs/"+d.String(), "").WantStatus(t, 404)
			c.Do(t, "GET", "/v2/acme/open/blobs/"+d.String(), "").WantStatus(t, 404)
			c.Do(t, "POST", "/v2/acme/open/blobs/uploads/?digest="+d.String(), "").WantStatus(t, 202)
			c.Do(t, "POST", "/v2/acme/open/blobs/uploads/?digest="+d.String(), "confidentiaX").WantStatus(t, 400)
			c.Do(t, "PUT", c.StartUpload(t, "acme/open", "")+"?digest="+d.String(), "").WantStatus(t, 400)
			c.Do(t, "PUT", "/v2/acme/open/manifests/stolen", servertest.Image(t, d, nil, nil)).Want(t, 400, oci.ManifestBlobUnknown)
			c.Do(t, "PUT", "/v2/acme/open/manifests/stolen", servertest.Index(t, d)).WantStatus(t, 400)
			c.Do(t, "GET", "/v2/acme/open/manifests/"+d.String(), "").WantStatus(t, 404)
			c.Do(t, "GET", "/v2/acme/open/referrers/"+d.String(), "").WantStatus(t, 200)
			c.Do(t, "HEAD", "/v2/acme/app/blobs/"+d.String(), "").WantStatus(t, 403)
		}
	}
	if got := c404(t, guest, blob); got != c404(t, guest, absent) {
		t.Errorf("the answers about a blob elsewhere and about none differ: %s", got)
	}
	// Uploads of another repository aren't continued.
	upload := r.With(servertest.As("root")).StartUpload(t, "acme/app", "")
	id := upload[strings.LastIndexByte(upload, '/')+1:]
	for _, method := range []string{"GET", "PATCH", "PUT", "DELETE"} {
		guest.Do(t, method, "/v2/acme/open/blobs/uploads/"+id+"?digest="+blob.String(), "").WantStatus(t, 404)
		guest.Do(t, method, "/v2/acme/app/blobs/uploads/"+id, "").WantStatus(t, 403)
	}
	// With the content, anybody may have the blob.
	guest.Push(t, "acme/open", "confidential")
	guest.WantBlob(t, "acme/open", blob, "confidential")
}

// c404 returns the answer about a blob, without its digest.
func c404(t *testing.T, r *servertest.Registry, d oci.Digest) string {
	t.Helper()
	a := r.Do(t, "GET", "/v2/acme/open/blobs/"+d.String(), "")
	return fmt.Sprint(a.StatusCode, strings.ReplaceAll(string(a.Content), d.String(), "DIGEST"))
}
