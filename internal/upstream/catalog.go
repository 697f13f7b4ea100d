package upstream

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"

	"github.com/purser-registry/purser/internal/oci"
)

// Products whose own API lists repositories.
const (
	Harbor    = "harbor"
	Quay      = "quay"
	GitLab    = "gitlab"
	DockerHub = "dockerhub"
)

// CatalogKinds are the kinds of a Catalog.
func CatalogKinds() []string { return []string{Harbor, Quay, GitLab, DockerHub} }

// Catalog is the API of a product by which its registry's repositories are listed. Docker Hub has no
// /v2/_catalog, that of GitLab and Harbor isn't for everybody, and Quay's leaves out what is public
// unless the operator wants it there.
type Catalog struct {
	Kind string // one of CatalogKinds; "": /v2/_catalog
	Host string // HOST or HOST:PORT that has the API; "": the kind's own, or the registry's
}

// ParseCatalog parses KIND or KIND=HOST.
func ParseCatalog(text string) (Catalog, error) {
	kind, host, named := strings.Cut(text, "=")
	if !slices.Contains(CatalogKinds(), kind) {
		return Catalog{}, fmt.Errorf("use one of %s, or KIND=HOST", strings.Join(CatalogKinds(), ", "))
	}
	if _, err := name.NewRegistry(host); named && (host == "" || err != nil) {
		return Catalog{}, errors.New("behind the = there should be a host's name or address, such as gitlab.example.com")
	}
	return Catalog{Kind: kind, Host: host}, nil
}

// apiPageSize is how many repositories are asked for at once. None of the products gives more.
const apiPageSize = 100

// RepositoriesBy returns the repositories for which keep returns true, by the API of a product. `below`
// is a beginning of their names that ends with a slash: a project of Harbor, a namespace of Quay or
// Docker Hub, a group or project of GitLab, each with what may follow in their repositories' names. With
// Harbor it may be "", which stands for all projects.
func (r *Registry) RepositoriesBy(ctx context.Context, c Catalog, below string, keep func(name string) bool) (Names, error) {
	a, err := r.OpenAPI(ctx, c)
	if err != nil {
		return Names{}, err
	}
	defer a.Close()
	names := r.collect(oci.ValidateName, func(n string) bool { return strings.HasPrefix(n+"/", below) && keep(n) })
	owner := strings.Trim(below, "/")
	if c.Kind != GitLab {
		owner, _, _ = strings.Cut(owner, "/")
	}
	switch invalid := oci.ValidateName(owner); {
	case c.Kind == Harbor && owner == "":
		err = a.harbor(ctx, names)
	case owner != "" && invalid != nil:
		err = invalid
	case owner == "":
		err = fmt.Errorf("the API of %s lists repositories below a name: write the source as %s/NAME/", c.Kind, r.host.Name())
	case c.Kind == Harbor:
		err = a.harborProject(ctx, owner, names)
	case c.Kind == Quay:
		err = a.quay(ctx, owner, names)
	case c.Kind == GitLab:
		err = a.gitlab(ctx, owner, names)
	default:
		err = a.dockerHub(ctx, owner, names)
	}
	return names.list, err
}

// API is the API of a product. What is read of it has the limits of one list.
type API struct {
	at     *Registry // the host that has the API
	of     *Registry // the registry
	client *http.Client
	budget *budget
}

// OpenAPI returns a client of the API that c names, with the registry's credentials.
func (r *Registry) OpenAPI(ctx context.Context, c Catalog) (*API, error) {
	host, err := r.apiHost(c)
	if err != nil {
		return nil, err
	}
	at := r
	if host != r.host.RegistryStr() {
		o := r.opt
		o.Host, o.PlainHTTP = host, false // plain http was allowed to the registry only
		if at, err = Open(o); err != nil {
			return nil, err
		}
	}
	a := &API{at: at, of: r, budget: r.newBudget()}
	authorization, err := a.authorization(ctx, c.Kind)
	if err != nil {
		a.Close()
		return nil, err
	}
	a.client = a.clientWith(authorization)
	return a, nil
}

// Close closes connections that nothing uses, unless they are those of the registry.
func (a *API) Close() {
	if a.at != a.of {
		a.at.Close()
	}
}

// apiHost returns the host that has the API. A host that only the kind names gets the credentials of no
// registry but the product's own.
func (r *Registry) apiHost(c Catalog) (string, error) {
	registry := r.host.RegistryStr()
	switch {
	case c.Host != "":
		host, err := name.NewRegistry(c.Host)
		return host.RegistryStr(), err
	case c.Kind == Harbor || c.Kind == Quay:
		return registry, nil
	case c.Kind == DockerHub && registry == name.DefaultRegistry:
		return "hub.docker.com", nil
	case c.Kind == GitLab && registry == "registry.gitlab.com":
		return "gitlab.com", nil
	}
	return "", fmt.Errorf("%s isn't the registry of %s's own site: name the host that has the API, as in %s=HOST", r.host.Name(), c.Kind, c.Kind)
}

// clientWith returns a client of the API that sends an Authorization header unless it is "". It follows
// redirects only within the host.
func (a *API) clientWith(authorization string) *http.Client {
	return &http.Client{
		Transport: &authorized{a.at.transport(), authorization},
		CheckRedirect: func(next *http.Request, via []*http.Request) error {
			if !a.at.guard.isSource(next.URL) {
				return fmt.Errorf("it is redirected to %s, and requests with credentials stay at their host", shortURL(next.URL))
			}
			return a.at.redirect(next, via)
		},
	}
}

// authorized is a transport whose requests carry credentials.
type authorized struct {
	inner  http.RoundTripper
	header string
}

// RoundTrip implements http.RoundTripper.
func (t *authorized) RoundTrip(req *http.Request) (*http.Response, error) {
	if t.header != "" {
		req = req.Clone(req.Context())
		req.Header.Set("Authorization", t.header)
	}
	return t.inner.RoundTrip(req)
}

// authorization returns the Authorization header by which the API takes the credentials for a
// registry, "" if there are none.
func (a *API) authorization(ctx context.Context, kind string) (string, error) {
	of := a.of
	auth, err := of.auth(ctx, of.host)
	if err != nil {
		return "", err
	}
	have, err := authn.Authorization(ctx, auth)
	if err != nil {
		return "", fmt.Errorf("finding the credentials for %s: %w", of.host.Name(), err)
	}
	switch {
	case *have == authn.AuthConfig{}:
		return "", nil
	case have.Username == "" || have.Password == "":
		return "", fmt.Errorf("the log-in to %s has left a token that its API doesn't take: log in with an access token as the password", of.host.Name())
	case kind == Quay && have.Username != "$oauthtoken":
		// Without credentials the API would list what is public, and say nothing of the rest.
		return "", fmt.Errorf("the API of Quay takes no password of %s: log in to %s with the name $oauthtoken and an OAuth token, or list by /v2/_catalog", Printable(have.Username), of.host.Name())
	}
	if a.at != of {
		of.guard.credentialsTo(a.at.host.Name())
	}
	switch kind {
	case Harbor:
		return "Basic " + base64.StdEncoding.EncodeToString([]byte(have.Username+":"+have.Password)), nil
	case DockerHub:
		token, err := a.dockerHubToken(ctx, have.Username, have.Password)
		return "Bearer " + token, err
	}
	return "Bearer " + have.Password, nil
}

// dockerHubToken exchanges a password or an access token for the token of a session.
func (a *API) dockerHubToken(ctx context.Context, user, password string) (string, error) {
	u := a.url("/v2/auth/token", nil)
	doing := "logging in to " + a.at.host.Name()
	body, err := json.Marshal(map[string]string{"identifier": user, "secret": password})
	if err != nil {
		return "", err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, u.String(), bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := a.clientWith("").Do(req)
	if err != nil {
		return "", failed(doing, err)
	}
	if res.StatusCode != http.StatusOK {
		return "", refused(doing, res)
	}
	defer res.Body.Close() //nolint:errcheck // only read
	var answer struct {
		Token string `json:"access_token"`
	}
	content, err := readAll(res, answerOf(ctx))
	if err == nil {
		err = json.Unmarshal(content, &answer)
	}
	if err == nil && answer.Token == "" {
		err = errors.New("its answer has no token")
	}
	if err != nil {
		return "", failed(doing, err)
	}
	return answer.Token, nil
}

// Path returns a path of an API: each part is escaped, with a slash before it.
func Path(parts ...string) string {
	path := ""
	for _, part := range parts {
		path += "/" + url.PathEscape(part)
	}
	return path
}

// url returns a URL of the API. The path is made by Path.
func (a *API) url(path string, query url.Values) *url.URL {
	u := &url.URL{Scheme: a.at.scheme(), Host: a.at.host.RegistryStr(), RawPath: path, RawQuery: query.Encode()}
	u.Path, _ = url.PathUnescape(path) //nolint:errcheck // it was escaped here
	return u
}

// Get reads an object.
func (a *API) Get(ctx context.Context, path string, query url.Values, out any) error {
	return a.at.follow(ctx, a.client, a.url(path, query), a.budget, func(_ *http.Response, content io.Reader, _ *url.URL) (*url.URL, error) {
		if err := json.NewDecoder(content).Decode(out); err != nil {
			return nil, notJSON(err)
		}
		return nil, nil
	})
}

// Each passes the elements of a list to `add`, page by page. The pages have numbers, and `size` is the
// parameter that says how many elements they have. Whether there is another page says the Link header, if
// key is "", or else the member "next" of the page's object, in which key is the member with the list. The
// address there isn't followed.
func Each[T any](ctx context.Context, a *API, path string, query url.Values, size, key string, add func(T) error) error {
	query = maps.Clone(query)
	if query == nil {
		query = url.Values{}
	}
	query.Set(size, strconv.Itoa(apiPageSize))
	query.Set("page", "1")
	page := 1
	return a.at.follow(ctx, a.client, a.url(path, query), a.budget, func(res *http.Response, content io.Reader, _ *url.URL) (*url.URL, error) {
		next, err := decodeEntries(content, key, "next", add)
		if err != nil || next == "" && nextLink(res.Header.Values("Link")) == "" {
			return nil, err
		}
		page++
		query.Set("page", strconv.Itoa(page))
		return a.url(path, query), nil
	})
}

// entry is a repository or project in a list.
type entry struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
	Path      string `json:"path"`
}

// harbor lists the repositories of all projects that the account sees. There is a list of all
// repositories too, but to somebody who logs in by OpenID Connect it shows only what is public.
func (a *API) harbor(ctx context.Context, names *collector) error {
	var projects []string
	err := Each(ctx, a, "/api/v2.0/projects", nil, "page_size", "", func(e entry) error {
		if oci.ValidateName(e.Name) != nil {
			return names.add(e.Name) // which tells of it
		}
		if len(projects) == a.at.limit.Names {
			return fmt.Errorf("it has more than %d names", a.at.limit.Names)
		}
		projects = append(projects, e.Name)
		return nil
	})
	for _, p := range projects {
		if err != nil {
			return err
		}
		err = a.harborProject(ctx, p, names)
	}
	return err
}

func (a *API) harborProject(ctx context.Context, project string, names *collector) error {
	return Each(ctx, a, "/api/v2.0/projects"+Path(project, "repositories"), nil, "page_size", "", func(e entry) error { return names.add(e.Name) })
}

// gitlab lists the repositories of a group with its subgroups, or those of a project.
func (a *API) gitlab(ctx context.Context, owner string, names *collector) error {
	list := func(kind string) error {
		return Each(ctx, a, "/api/v4/"+kind+Path(owner)+"/registry/repositories", nil, "per_page", "", func(e entry) error { return names.add(e.Path) })
	}
	err := list("groups")
	if Missing(err) && strings.Contains(owner, "/") {
		return list("projects")
	}
	return err
}

func (a *API) dockerHub(ctx context.Context, namespace string, names *collector) error {
	return Each(ctx, a, "/v2/namespaces"+Path(namespace, "repositories"), nil, "page_size", "results", func(e entry) error { return names.add(e.Namespace + "/" + e.Name) })
}

// quay lists the repositories of a namespace. Each page has a token for the next.
func (a *API) quay(ctx context.Context, namespace string, names *collector) error {
	query := url.Values{"namespace": {namespace}, "public": {"true"}}
	const path = "/api/v1/repository"
	return a.at.follow(ctx, a.client, a.url(path, query), a.budget, func(_ *http.Response, content io.Reader, _ *url.URL) (*url.URL, error) {
		next, err := decodeEntries(content, "repositories", "next_page", func(e entry) error { return names.add(e.Namespace + "/" + e.Name) })
		if err != nil || next == "" {
			return nil, err
		}
		query.Set("next_page", next)
		return a.url(path, query), nil
	})
}

// decodeEntries passes the elements of an array to `add`, as they come. With a key the array is a member
// of an object, whose text `nextKey` is returned. An object without the array isn't a list.
func decodeEntries[T any](r io.Reader, key, nextKey string, add func(T) error) (next string, err error) {
	d := json.NewDecoder(r)
	array := func() error {
		return elements(d, func() error {
			var e T
			if err := d.Decode(&e); err != nil {
				return notJSON(err)
			}
			return add(e)
		})
	}
	if key == "" {
		return "", array()
	}
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return "", notJSON(err)
	}
	seen := false
	for d.More() {
		member, err := d.Token()
		if err != nil {
			return "", notJSON(err)
		}
		switch member {
		case key:
			seen, err = true, array()
		case nextKey:
			var text *string
			if err = d.Decode(&text); err != nil {
				err = notJSON(err)
			} else if text != nil {
				next = *text
			}
		default:
			err = skip(d)
		}
		if err != nil {
			return "", err
		}
	}
	if _, err := d.Token(); err != nil {
		return "", notJSON(err)
	}
	if !seen {
		return "", notJSON(nil)
	}
	return next, nil
}
