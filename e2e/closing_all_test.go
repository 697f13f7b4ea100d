//go:build all

package e2e

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/db/dbtest"
)

// TestClosingAndOpening: a registry that has been open for a while is closed, and later opened
// again. Its content, policies, webhooks and statistics outlive both, and each client is served
// what the rights at that time allow it.
func TestClosingAndOpening(t *testing.T) {
	beginOwn(t)
	s := newClosingScene(t)
	s.fill()
	before := s.settings()

	s.restart("PURSER_AUTH_ENABLED=true", "PURSER_AUTH_INITIAL_PASSWORD="+accountPassword)
	s.isClosed()
	s.goesOnWhileClosed()
	reader, token := s.personalToken(), s.registryToken()
	if got := s.settings(); !reflect.DeepEqual(got, before) {
		t.Errorf("policies and webhooks after closing: %v, want %v", got, before)
	}

	s.credentials = ""
	s.restart()
	s.isOpen(basic("reader", accountPassword), basic("reader", "wrong"), basic("reader", reader), "Bearer "+reader, "Bearer "+token, "Bearer x", "Basic x")
	if got := s.settings(); !reflect.DeepEqual(got, before) {
		t.Errorf("policies and webhooks after opening: %v, want %v", got, before)
	}

	s.restart("PURSER_AUTH_ENABLED=true")
	s.grantsCount(basic("reader", accountPassword), basic("reader", reader))
}

// closingScene is a registry that the test opens and closes.
type closingScene struct {
	t   *testing.T
	r   *registry
	env []string // in both states
	// credentials is the Authorization header of the operator, "" while the registry is open.
	credentials string
	digests     map[string]string // of the tags, as REPOSITORY:TAG

	mu   sync.Mutex
	told []string // what the webhook was told
}

func newClosingScene(t *testing.T) *closingScene {
	s := &closingScene{t: t, digests: map[string]string{}, env: []string{
		"PURSER_DATABASE_MAIN=" + dbtest.EmptyDSN(t), "PURSER_STORAGE_FILESYSTEM_PATH=" + newDir(t),
		"PURSER_AUTOPRUNE_INTERVAL=1s", "PURSER_PULL_STATISTICS_INTERVAL=1s", "PURSER_WEBHOOKS_ALLOW_PRIVATE=true",
		"PURSER_GC_REVIEW_AFTER=0",
		// An image's blobs stay until its manifest arrives, also on a slow machine.
		"PURSER_GC_REVIEW_AFTER_EVENTS=blob_upload=5m",
	}}
	s.r = startRegistry(t, options{env: s.env})
	return s
}

// restart stops the registry and starts it again with more settings.
func (s *closingScene) restart(more ...string) {
	s.t.Helper()
	s.r.Stop()
	s.r.opt.env = slices.Concat(s.env, more)
	if len(more) > 0 {
		s.credentials = basic("admin", accountPassword)
	}
	s.r.Restart()
}

// basic returns the Authorization header of a name and a password.
func basic(name, password string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(name+":"+password))
}

// authorized adds a header Authorization to requests.
type authorized struct{ value string }

func (a authorized) RoundTrip(r *http.Request) (*http.Response, error) {
	if a.value != "" {
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", a.value)
	}
	return http.DefaultTransport.RoundTrip(r)
}

// as returns a client that sends the header Authorization with each request, unless it is "".
func (s *closingScene) as(authorization string) *api {
	return &api{base: s.r.URL(), client: &http.Client{Transport: authorized{authorization}}}
}

// get sends a GET and decodes the answer, which must have the status `want`.
func (s *closingScene) get(authorization, path string, answer any, want int) {
	s.t.Helper()
	a, err := s.as(authorization).do(s.t.Context(), request{method: "GET", path: path, want: want})
	if err == nil && answer != nil {
		err = json.Unmarshal(a.body, answer)
	}
	if err != nil {
		s.t.Errorf("with %q: %v", authorization, err)
	}
}

// manage sends a request to the management API as the operator.
func (s *closingScene) manage(method, path, body string, want int) []byte {
	s.t.Helper()
	a, err := s.as(s.credentials).do(s.t.Context(), request{method: method, path: "/api/v1" + path, body: []byte(body), want: want,
		header: map[string]string{"Content-Type": "application/json"}})
	if err != nil {
		s.t.Fatal(err)
	}
	return a.body
}

// push pushes an image of its own as the operator.
func (s *closingScene) push(repository, tag string) {
	s.t.Helper()
	d, err := s.as(s.credentials).pushImage(s.t.Context(), repository, tag, []byte(repository+":"+tag))
	if err != nil {
		s.t.Fatal(err)
	}
	s.digests[repository+":"+tag] = d.String()
}

// The repositories that all clients may read when the registry is closed, that the account
// reader may read too, and that no account but an administrator of the registry may read.
const publicOne, grantedOne, privateOne, otherOne = "acme/public", "acme/app", "acme/private", "beta/app"

// fill gives the open registry namespaces, repositories, tags, a policy, a webhook and pulls.
func (s *closingScene) fill() {
	s.t.Helper()
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body) //nolint:errcheck // the test compares what came
		s.mu.Lock()
		defer s.mu.Unlock()
		s.told = append(s.told, string(text))
	}))
	s.t.Cleanup(receiver.Close)
	s.manage("POST", "/organization", `{"name":"acme"}`, http.StatusCreated)
	for _, repository := range []string{publicOne, privateOne, otherOne} {
		s.push(repository, "v1")
	}
	s.push(grantedOne, "v1")
	s.push(grantedOne, "v2")
	s.manage("POST", "/repository/"+publicOne+"/changevisibility", `{"visibility":"public"}`, http.StatusOK)
	s.manage("POST", "/organization/acme/autoprunepolicy", `{"method":"number_of_tags","numTags":2}`, http.StatusCreated)
	s.manage("POST", "/organization/acme/webhook", fmt.Sprintf(`{"url":%q,"events":["push"]}`, receiver.URL), http.StatusCreated)
	s.pull(grantedOne, "v2")
	s.counts(grantedOne, "v2", 1)
}

// settings returns the registry's policies and webhooks.
func (s *closingScene) settings() (list [2]any) {
	s.t.Helper()
	for i, path := range []string{"/organization/acme/autoprunepolicy", "/organization/acme/webhook"} {
		if err := json.Unmarshal(s.manage("GET", path, "", http.StatusOK), &list[i]); err != nil {
			s.t.Fatal(err)
		}
	}
	return list
}

// pull pulls an image as the operator and compares its digest with that of the push.
func (s *closingScene) pull(repository, tag string) {
	s.t.Helper()
	s.as(s.credentials).checkWhole(s.t, repository, tag, s.digests[repository+":"+tag])
}

// counts waits until the statistics have n pulls of a tag.
func (s *closingScene) counts(repository, tag string, n int) {
	s.t.Helper()
	eventually(s.t, time.Minute, func() error {
		var got struct {
			Count int `json:"tag_pull_count"`
		}
		body := s.manage("GET", "/repository/"+repository+"/tag/"+tag+"/pull_statistics", "", http.StatusOK)
		if err := json.Unmarshal(body, &got); err != nil || got.Count != n {
			return fmt.Errorf("%d pulls of %s:%s are counted (%v), want %d", got.Count, repository, tag, err, n)
		}
		return nil
	})
}

// catalog compares the list of repositories that a client sees.
func (s *closingScene) catalog(authorization string, want ...string) {
	s.t.Helper()
	var list struct{ Repositories []string }
	if authorization == "" && s.credentials != "" { // in a closed registry, a client without an account gets an anonymous token first
		var issued struct{ Token string }
		s.get("", "/v2/_catalog", nil, http.StatusUnauthorized)
		s.get("", "/token?scope=registry:catalog:*", &issued, http.StatusOK)
		authorization = "Bearer " + issued.Token
	}
	s.get(authorization, "/v2/_catalog", &list, http.StatusOK)
	if !slices.Equal(list.Repositories, want) {
		s.t.Errorf("catalog with %q: %q, want %q", authorization, list.Repositories, want)
	}
}

// isClosed: in the registry that was just closed, nobody sees more than what is public, and the
// administrator, whom the start has created, sees everything.
func (s *closingScene) isClosed() {
	s.t.Helper()
	says(s.t, s.r.p.out.String(), "docker login", "--username admin")
	for _, repository := range []string{grantedOne, privateOne, otherOne, "acme/absent"} {
		s.get("", manifestPath(repository, "v1"), nil, http.StatusUnauthorized)
		s.get("", "/v2/"+repository+"/tags/list", nil, http.StatusUnauthorized)
		s.get("", "/api/v1/repository/"+repository, nil, http.StatusUnauthorized)
	}
	for _, path := range []string{"/organization/acme/autoprunepolicy", "/organization/acme/webhook", "/superuser/users/", "/superuser/logs"} {
		s.get("", "/api/v1"+path, nil, http.StatusUnauthorized)
	}
	s.as("").checkWhole(s.t, publicOne, "v1", s.digests[publicOne+":v1"])
	s.catalog("", publicOne)
	s.catalog(s.credentials, grantedOne, privateOne, publicOne, otherOne)
	for name := range s.digests {
		repository, tag, _ := strings.Cut(name, ":")
		s.pull(repository, tag)
	}
	s.manage("POST", "/superuser/users/", fmt.Sprintf(`{"username":"reader","password":%q}`, accountPassword), http.StatusOK)
	s.catalog(basic("reader", accountPassword), publicOne)
	s.manage("PUT", "/repository/"+grantedOne+"/permissions/user/reader", `{"role":"read"}`, http.StatusOK)
	s.grantsCount(basic("reader", accountPassword))
}

// grantsCount: the account reader may pull from its repository and the public one, and from no
// other. Each of the headers is credentials of this account.
func (s *closingScene) grantsCount(headers ...string) {
	s.t.Helper()
	for _, reader := range headers {
		s.catalog(reader, grantedOne, publicOne)
		s.as(reader).checkWhole(s.t, grantedOne, "v2", s.digests[grantedOne+":v2"])
		s.as(reader).checkWhole(s.t, publicOne, "v1", s.digests[publicOne+":v1"])
		s.get(reader, manifestPath(privateOne, "v1"), nil, http.StatusForbidden)
		s.get(reader, manifestPath(otherOne, "v1"), nil, http.StatusForbidden)
		s.get(reader, "/api/v1/organization/acme/autoprunepolicy", nil, http.StatusForbidden)
	}
}

// goesOnWhileClosed: in the closed registry, the policy, garbage collection, the webhook and the
// pull statistics go on, without an account of their own.
func (s *closingScene) goesOnWhileClosed() {
	s.t.Helper()
	s.pull(grantedOne, "v2")
	s.counts(grantedOne, "v2", 4) // one while it was open, then one each by isClosed, grantsCount and here
	s.push(grantedOne, "v3")
	eventually(s.t, time.Minute, func() error {
		_, _, err := s.as(s.credentials).manifest(s.t.Context(), grantedOne, s.digests[grantedOne+":v1"])
		if !isStatus(err, http.StatusNotFound) {
			return fmt.Errorf("the manifest of v1, which the policy and garbage collection delete: %w", err)
		}
		return nil
	})
	var log struct {
		Logs []struct {
			Tag       string
			Performer struct{ Kind, Name string }
		}
	}
	if err := json.Unmarshal(s.manage("GET", "/repository/"+grantedOne+"/logs?kind=autoprune_tag_delete", "", http.StatusOK), &log); err != nil {
		s.t.Fatal(err)
	}
	if len(log.Logs) != 1 || log.Logs[0].Tag != "v1" || log.Logs[0].Performer.Kind != "worker" {
		s.t.Errorf("entries of deletions by the policy: %+v, want one of v1 by a worker", log.Logs)
	}
	eventually(s.t, time.Minute, func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !slices.ContainsFunc(s.told, func(text string) bool { return strings.Contains(text, `"v3"`) }) {
			return fmt.Errorf("the webhook was told %q, and nothing of v3", s.told)
		}
		return nil
	})
}

// personalToken returns a personal token of the account reader.
func (s *closingScene) personalToken() string {
	s.t.Helper()
	a, err := s.as(basic("reader", accountPassword)).do(s.t.Context(), request{method: "POST", path: "/api/v1/user/apptoken", want: http.StatusOK,
		body: []byte(`{"title":"laptop"}`), header: map[string]string{"Content-Type": "application/json"}})
	var made struct {
		Token struct {
			Code string `json:"token_code"`
		}
	}
	if err == nil {
		err = json.Unmarshal(a.body, &made)
	}
	if err != nil || made.Token.Code == "" {
		s.t.Fatalf("making a personal token: %v", err)
	}
	return made.Token.Code
}

// registryToken returns a registry token of the account reader, as docker fetches it.
func (s *closingScene) registryToken() string {
	s.t.Helper()
	var out struct{ Token string }
	s.get(basic("reader", accountPassword), "/token?scope=repository:"+grantedOne+":pull", &out, http.StatusOK)
	s.get("Bearer "+out.Token, manifestPath(grantedOne, "v2"), nil, http.StatusOK)
	return out.Token
}

// isOpen: the open registry serves everybody, whatever credentials they still send, and keeps
// accounts and roles.
func (s *closingScene) isOpen(credentials ...string) {
	s.t.Helper()
	for _, c := range append(credentials, "") {
		s.get(c, "/v2/", nil, http.StatusOK)
		s.catalog(c, grantedOne, privateOne, publicOne, otherOne)
		s.as(c).checkWhole(s.t, grantedOne, "v3", s.digests[grantedOne+":v3"])
		s.as(c).checkWhole(s.t, otherOne, "v1", s.digests[otherOne+":v1"])
		s.get(c, "/api/v1/repository/"+privateOne, nil, http.StatusOK)
		s.get(c, "/api/v1/organization/acme/autoprunepolicy", nil, http.StatusOK)
		if _, err := s.as(c).pushImage(s.t.Context(), "beta/pushed", "v1", []byte(c)); err != nil {
			s.t.Errorf("a push with %q: %v", c, err)
		}
		// The catalog is compared for each client, so nothing may stay.
		s.manage("DELETE", "/repository/beta/pushed", "", http.StatusNoContent)
	}
	var roles struct {
		Permissions map[string]struct{ Role string }
	}
	s.get("", "/api/v1/repository/"+grantedOne+"/permissions/user", &roles, http.StatusOK)
	if roles.Permissions["reader"].Role != "read" {
		s.t.Errorf("roles in %s: %v, want reader's", grantedOne, roles.Permissions)
	}
}
