package upstream

import (
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
)

// account is a keychain with one account, for all registries.
type account struct{ name, password string }

func (a account) Resolve(authn.Resource) (authn.Authenticator, error) {
	return &authn.Basic{Username: a.name, Password: a.password}, nil
}

// recorded is the API of a product: it has answers by "METHOD PATH?QUERY", as documented, and remembers
// what it was asked.
type recorded struct {
	*httptest.Server
	answers map[string]string

	mu             sync.Mutex
	asked          []string
	authorizations []string // each once
	body           string   // of the last POST
}

func newRecorded(t *testing.T, answers map[string]string) *recorded {
	t.Helper()
	a := &recorded{answers: answers}
	a.Server = httptest.NewServer(a)
	t.Cleanup(a.Close)
	return a
}

func (a *recorded) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	question := r.Method + " " + r.URL.RequestURI()
	a.asked = append(a.asked, question)
	if header := r.Header.Get("Authorization"); !slices.Contains(a.authorizations, header) {
		a.authorizations = append(a.authorizations, header)
	}
	if r.Method == http.MethodPost {
		text, _ := io.ReadAll(r.Body) //nolint:errcheck // what came is compared
		a.body = string(text)
	}
	answer, ok := a.answers[question]
	if link, rest, found := strings.Cut(answer, "\n"); found { // a first line is the header Link
		w.Header().Set("Link", link)
		answer = rest
	}
	if to, moved := strings.CutPrefix(answer, "to "); moved {
		http.Redirect(w, r, to, http.StatusTemporaryRedirect)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if !ok {
		w.WriteHeader(http.StatusNotFound)
		answer = `{"message":"404 Not Found"}`
	}
	fmt.Fprint(w, answer) //nolint:errcheck // in a test
}

func (a *recorded) host() string { return strings.TrimPrefix(a.URL, "http://") }

var (
	harborAnswers = map[string]string{
		"GET /api/v2.0/projects?page=1&page_size=100": `</api/v2.0/projects?page=2&page_size=100>; rel="next"` + "\n" +
			`[{"project_id":1,"name":"library","metadata":{"public":"true"}}]`,
		"GET /api/v2.0/projects?page=2&page_size=100":                      `[{"project_id":2,"name":"acme","repo_count":2}]`,
		"GET /api/v2.0/projects/library/repositories?page=1&page_size=100": "null",
		"GET /api/v2.0/projects/acme/repositories?page=1&page_size=100": `</api/v2.0/projects/acme/repositories?page=2&page_size=100>; rel="next"` + "\n" +
			`[{"id":1,"project_id":2,"name":"acme/app","artifact_count":3},{"id":2,"name":"acme/team/web"}]`,
		"GET /api/v2.0/projects/acme/repositories?page=2&page_size=100": `</api/v2.0/projects/acme/repositories?page=1&page_size=100>; rel="prev"` + "\n" +
			`[{"id":3,"name":"acme/team/api"}]`,
	}
	quayAnswers = map[string]string{
		"GET /api/v1/repository?namespace=acme&public=true":                      `{"repositories":[{"namespace":"acme","name":"app","is_public":false,"kind":"image","state":"NORMAL"}],"next_page":"gAAA=="}`,
		"GET /api/v1/repository?namespace=acme&next_page=gAAA%3D%3D&public=true": `{"repositories":[{"namespace":"acme","name":"web","description":null}]}`,
	}
	gitlabAnswers = map[string]string{
		"GET /api/v4/groups/acme/registry/repositories?page=1&per_page=100": `<https://elsewhere.example/api/v4/groups/acme/registry/repositories?page=2>; rel="next", <https://elsewhere.example/>; rel="first"` + "\n" +
			`[{"id":1,"name":"","path":"acme/app","project_id":9,"location":"registry.example.com/acme/app"}]`,
		"GET /api/v4/groups/acme/registry/repositories?page=2&per_page=100":                `[{"id":2,"name":"web","path":"acme/team/app/web"}]`,
		"GET /api/v4/projects/acme%2Fteam%2Fapp/registry/repositories?page=1&per_page=100": `[{"id":2,"path":"acme/team/app"},{"id":3,"path":"acme/team/app/web"}]`,
	}
	hubAnswers = map[string]string{
		"POST /v2/auth/token": `{"access_token":"session"}`,
		"GET /v2/namespaces/acme/repositories?page=1&page_size=100": `{"count":2,"next":"https://elsewhere.example/v2/namespaces/acme/repositories?page=2","previous":null,` +
			`"results":[{"name":"app","namespace":"acme","repository_type":"image","is_private":true,"status":1}]}`,
		"GET /v2/namespaces/acme/repositories?page=2&page_size=100": `{"count":2,"next":null,"results":[{"name":"web","namespace":"acme"}]}`,
	}
)

// TestRepositoriesByAPI expects all repositories below a name, page by page, and that only the host that has
// the API gets the credentials, in the form that it takes.
func TestRepositoriesByAPI(t *testing.T) {
	t.Parallel()
	me := account{"me", "secret"}
	basic := "Basic " + base64.StdEncoding.EncodeToString([]byte("me:secret"))
	for _, test := range []struct {
		kind, below string
		answers     map[string]string
		own         bool // the registry has the API itself
		keychain    authn.Keychain
		want        []string
		sent        []string // Authorization headers
	}{
		{Harbor, "", harborAnswers, true, me, []string{"acme/app", "acme/team/web", "acme/team/api"}, []string{basic}},
		{Harbor, "acme/", harborAnswers, true, nil, []string{"acme/app", "acme/team/web", "acme/team/api"}, []string{""}},
		{Harbor, "acme/team/", harborAnswers, true, me, []string{"acme/team/web", "acme/team/api"}, []string{basic}},
		{Quay, "acme/", quayAnswers, true, account{"$oauthtoken", "secret"}, []string{"acme/app", "acme/web"}, []string{"Bearer secret"}},
		{Quay, "acme/", quayAnswers, true, nil, []string{"acme/app", "acme/web"}, []string{""}},
		{GitLab, "acme/", gitlabAnswers, false, me, []string{"acme/app", "acme/team/app/web"}, []string{"Bearer secret"}},
		{GitLab, "acme/team/app/", gitlabAnswers, false, me, []string{"acme/team/app", "acme/team/app/web"}, []string{"Bearer secret"}},
		{DockerHub, "acme/", hubAnswers, false, me, []string{"acme/app", "acme/web"}, []string{"", "Bearer session"}},
		{DockerHub, "acme/", hubAnswers, false, nil, []string{"acme/app", "acme/web"}, []string{""}},
	} {
		at, registry := newRecorded(t, test.answers), newRecorded(t, nil)
		c := Catalog{Kind: test.kind, Host: at.host()}
		if test.own {
			registry, c.Host = at, ""
		}
		var told []string
		r, err := Open(Options{Host: registry.host(), Keychain: test.keychain, CredentialsTo: func(host string) { told = append(told, host) }})
		if err != nil {
			t.Fatal(err)
		}
		list, err := r.RepositoriesBy(t.Context(), c, test.below, func(string) bool { return true })
		r.Close()
		if err != nil || !slices.Equal(list.Names, test.want) || list.BadCount > 0 || !slices.Equal(at.authorizations, test.sent) {
			t.Errorf("%s %q: %+v %v, want %q; it got %q, want %q, and was asked %q", test.kind, test.below, list, err, test.want, at.authorizations, test.sent, at.asked)
		}
		if !test.own && (len(registry.asked) > 0 || (test.keychain != nil) != slices.Equal(told, []string{at.host()})) {
			t.Errorf("%s %q: the registry was asked %q; told of %q", test.kind, test.below, registry.asked, told)
		}
		if want := `{"identifier":"me","secret":"secret"}`; test.kind == DockerHub && test.keychain != nil && at.body != want {
			t.Errorf("Docker Hub got %s, want %s", at.body, want)
		}
	}
}

// TestRepositoriesByAPIRefused expects an error, and no credentials anywhere, where a list would be of
// another registry or leave out what is private, or where the API leads elsewhere.
func TestRepositoriesByAPIRefused(t *testing.T) {
	t.Parallel()
	elsewhere := newRecorded(t, map[string]string{"GET /list": "[]"})
	for _, test := range []struct {
		kind, below, want string
		answers           map[string]string
		sent              bool // requests to the API's host
	}{
		{GitLab, "acme/", "isn't the registry of gitlab's own site", gitlabAnswers, false},
		{DockerHub, "acme/", "isn't the registry of dockerhub's own site", hubAnswers, false},
		{Quay, "acme/", "takes no password of me", quayAnswers, false},
		{Harbor, "acme/", "requests with credentials stay at their host",
			map[string]string{"GET /api/v2.0/projects/acme/repositories?page=1&page_size=100": "to " + elsewhere.URL + "/list"}, true},
		{Harbor, "nobody/", "404 Not Found", harborAnswers, true},
		{Harbor, "../", "", harborAnswers, false},
	} {
		at := newRecorded(t, test.answers)
		r, err := Open(Options{Host: at.host(), Keychain: account{"me", "secret"}})
		if err != nil {
			t.Fatal(err)
		}
		list, err := r.RepositoriesBy(t.Context(), Catalog{Kind: test.kind}, test.below, func(string) bool { return true })
		r.Close()
		if err == nil || !strings.Contains(err.Error(), test.want) || len(list.Names) > 0 || len(at.asked) > 0 != test.sent || len(elsewhere.asked) > 0 {
			t.Errorf("%s %q: %+v %v, want %q; asked %q, elsewhere %q", test.kind, test.below, list, err, test.want, at.asked, elsewhere.asked)
		}
	}
	for _, kind := range []string{Quay, GitLab, DockerHub} {
		r, err := Open(Options{Host: elsewhere.host()})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.RepositoriesBy(t.Context(), Catalog{Kind: kind, Host: elsewhere.host()}, "", func(string) bool { return true }); err == nil || !strings.Contains(err.Error(), "write the source as") {
			t.Errorf("%s without a name: %v", kind, err)
		}
		r.Close()
	}
}

// TestRepositoriesByAPILimits expects that an API can't make a list last, nor put in names that are none.
func TestRepositoriesByAPILimits(t *testing.T) {
	t.Parallel()
	forever := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Link", `</x>; rel="next"`)
		fmt.Fprint(w, `[{"name":"acme/app"},{"name":"../x"},{"name":"acme/\u001b[2J"}]`) //nolint:errcheck // in a test
	}))
	defer forever.Close()
	circle := newRecorded(t, map[string]string{
		"GET /api/v1/repository?namespace=acme&public=true":             `{"next_page":"a","repositories":null}`,
		"GET /api/v1/repository?namespace=acme&next_page=a&public=true": `{"next_page":"a","repositories":[]}`,
	})
	for _, test := range []struct {
		host, kind, below, want string
		limit                   Limits
	}{
		{strings.TrimPrefix(forever.URL, "http://"), Harbor, "acme/", "more than 5 pages", Limits{Pages: 5}},
		{strings.TrimPrefix(forever.URL, "http://"), Harbor, "acme/", "more than 10 names", Limits{Names: 10}},
		{strings.TrimPrefix(forever.URL, "http://"), Harbor, "acme/", "the list has more than", Limits{ListBytes: 200}},
		{strings.TrimPrefix(forever.URL, "http://"), Harbor, "", "more than 10 names", Limits{Names: 10}},
		{circle.host(), Quay, "acme/", "circle", Limits{}},
	} {
		r, err := Open(Options{Host: test.host, Limits: test.limit})
		if err != nil {
			t.Fatal(err)
		}
		list, err := r.RepositoriesBy(t.Context(), Catalog{Kind: test.kind}, test.below, func(string) bool { return true })
		r.Close()
		if err == nil || !strings.Contains(err.Error(), test.want) || len(list.Names) > 1 {
			t.Errorf("%s %q: %+v %v, want %q", test.kind, test.below, list, err, test.want)
		}
		if test.limit.Pages > 0 && (list.BadCount != 2*5 || strings.ContainsRune(strings.Join(list.Bad, ""), '\x1b')) {
			t.Errorf("names that are none: %d %q", list.BadCount, list.Bad)
		}
	}
}

// TestEncrypted expects that a registry is asked by https, also in a private network and by its product's API,
// unless it is on this machine or plain http is asked for.
func TestEncrypted(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		host   string
		plain  bool
		scheme string
	}{
		{"10.0.0.5", false, "https"}, {"10.0.0.5:5000", false, "https"}, {"172.16.0.1:80", false, "https"}, {"192.168.1.1", false, "https"},
		{"nas.local", false, "https"}, {"registry.example.com", false, "https"}, {"localhost.example.com:5000", false, "https"}, {"128.0.0.1", false, "https"},
		{"10.0.0.5:5000", true, "http"}, {"registry.example.com", true, "http"},
		{"127.0.0.1", false, "http"}, {"127.0.0.1:5000", false, "http"}, {"127.8.0.1:5000", false, "http"}, {"[::1]:5000", false, "http"},
		{"localhost", false, "http"}, {"localhost:5000", false, "http"}, {"registry.localhost:5000", false, "http"},
	} {
		r, err := Open(Options{Host: test.host, PlainHTTP: test.plain})
		if err != nil {
			t.Fatal(err)
		}
		a, err := r.OpenAPI(t.Context(), Catalog{Kind: Harbor})
		if err != nil {
			t.Fatal(err)
		}
		for _, u := range []*url.URL{a.url("/", nil), (&Repository{registry: r, name: "app"}).url("manifests", "v1")} {
			if u.Scheme != test.scheme || !r.guard.isSource(u) {
				t.Errorf("%s, plain %v: %s, want %s", test.host, test.plain, u, test.scheme)
			}
		}
	}
}

// TestAPIEncrypted expects that another host than the registry is asked by https, even if plain http is asked for,
// and that only this machine is an exception.
func TestAPIEncrypted(t *testing.T) {
	t.Parallel()
	for host, scheme := range map[string]string{"10.0.0.5": "https", "gitlab.corp.local": "https", "gitlab.example.com:8443": "https", "127.0.0.1:8080": "http", "localhost:1": "http"} {
		r, err := Open(Options{Host: "registry.example.com", PlainHTTP: true})
		if err != nil {
			t.Fatal(err)
		}
		a, err := r.OpenAPI(t.Context(), Catalog{Kind: GitLab, Host: host})
		if err != nil || a.url("/", nil).Scheme != scheme {
			t.Errorf("%s: %v %v, want %s", host, a.url("/", nil), err, scheme)
		}
	}
}

func TestParseCatalog(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Catalog{
		"harbor": {Kind: Harbor}, "gitlab=gitlab.example.com": {Kind: GitLab, Host: "gitlab.example.com"}, "quay=10.0.0.5:8443": {Kind: Quay, Host: "10.0.0.5:8443"},
	} {
		if got, err := ParseCatalog(text); err != nil || got != want {
			t.Errorf("%s: %+v %v", text, got, err)
		}
	}
	for _, text := range []string{"", "nexus", "Harbor", "gitlab=", "gitlab=https://gitlab.example.com", "gitlab=a/b", "gitlab=a b"} {
		if got, err := ParseCatalog(text); err == nil {
			t.Errorf("%q is taken: %+v", text, got)
		}
	}
}

// TestCatalogHosts expects that the sites of Docker and GitLab list for their own registries only.
func TestCatalogHosts(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ registry, kind, want string }{
		{"docker.io", DockerHub, "hub.docker.com"}, {"registry.gitlab.com", GitLab, "gitlab.com"}, {"quay.io", Quay, "quay.io"},
		{"registry.gitlab.com", DockerHub, ""}, {"docker.io", GitLab, ""}, {"registry.example.com", GitLab, ""},
	} {
		r, err := Open(Options{Host: test.registry})
		if err != nil {
			t.Fatal(err)
		}
		if a, err := r.OpenAPI(t.Context(), Catalog{Kind: test.kind}); err == nil && a.url("/x", nil).String() != "https://"+test.want+"/x" {
			t.Errorf("%s %s: the API is at %s", test.registry, test.kind, a.url("/x", nil))
		}
		if got, err := r.apiHost(Catalog{Kind: test.kind}); got != test.want || (err == nil) != (test.want != "") {
			t.Errorf("%s %s: %q %v, want %q", test.registry, test.kind, got, err, test.want)
		}
	}
}
