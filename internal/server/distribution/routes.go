package distribution

import (
	"net/http"
	"slices"
	"strings"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server"
)

// call is a request with the values that its route extracted.
type call struct {
	http.ResponseWriter
	r    *http.Request
	name string // repository, validated; "" if the route has none
	ref  string // last part of the path: tag, digest or upload
	// names translates upload identifiers, for routes about uploads. It is set once the upload is known.
	names repositoryNames
	// known is how many bytes of an upload the client has an answer about, by the upload's URL.
	known int64
}

type handler func(a *API, c *call) error

// method is an HTTP method of a route, with the access that the client needs and the handler
// that answers the request.
type method struct {
	name   string
	access auth.Access
	handle handler
}

// route is a path pattern with its HTTP methods. In the pattern, {name} stands for a
// repository's name, which may contain slashes, and {ref} for a part of the path that contains
// no slash.
type route = server.Route[methods]

type methods []method

// routes has all routes of the OCI API (OCI Distribution Specification, "Endpoints").
var routes = []struct {
	pattern string
	methods methods
}{
	{"/v2/", methods{
		{"GET", auth.Ping, (*API).ping}, {"HEAD", auth.Ping, (*API).ping},
	}},
	{"/v2/_catalog", methods{
		{"GET", auth.List, (*API).listRepositories}, {"HEAD", auth.List, (*API).listRepositories},
	}},
	{"/v2/{name}/tags/list", methods{
		{"GET", auth.Pull, (*API).listTags}, {"HEAD", auth.Pull, (*API).listTags},
	}},
	{"/v2/{name}/referrers/{ref}", methods{
		{"GET", auth.Pull, (*API).listReferrers}, {"HEAD", auth.Pull, (*API).listReferrers},
	}},
	{"/v2/{name}/blobs/uploads/", methods{{"POST", auth.Push, (*API).startUpload}}},
	{"/v2/{name}/blobs/uploads/{ref}", methods{
		{"GET", auth.Push, (*API).uploadStatus}, {"HEAD", auth.Push, (*API).uploadStatus}, {"PATCH", auth.Push, (*API).patchUpload},
		{"PUT", auth.Push, (*API).putUpload}, {"DELETE", auth.Push, (*API).cancelUpload},
	}},
	{"/v2/{name}/blobs/{ref}", methods{
		{"GET", auth.Pull, (*API).getBlob}, {"HEAD", auth.Pull, (*API).headBlob},
		{"DELETE", auth.Delete, (*API).deleteBlob},
	}},
	{"/v2/{name}/manifests/{ref}", methods{
		{"GET", auth.Pull, (*API).getManifest}, {"HEAD", auth.Pull, (*API).getManifest},
		{"PUT", auth.Push, (*API).putManifest}, {"DELETE", auth.Delete, (*API).deleteManifest},
	}},
}

// Operation is an HTTP method at a path, and the access that it needs.
type Operation struct {
	Method  string
	Pattern string // of the path, with {name} for a repository and {ref} for the last part
	Access  auth.Access
}

// Operations lists all operations of the OCI API.
func (a *API) Operations() (list []Operation) {
	for _, rt := range routes {
		for _, m := range rt.methods {
			list = append(list, Operation{m.name, rt.pattern, m.access})
		}
	}
	return list
}

var router = newRouter()

func newRouter() *server.Router[methods] {
	r := &server.Router[methods]{Name: "name"}
	for _, rt := range routes {
		r.Add(rt.pattern, rt.methods)
	}
	return r
}

// match returns the route whose pattern matches the path, with the texts for {name} and {ref}.
func match(path string) (rt *route, name, ref string) {
	found := router.Match(path)
	return found.Route, found.Values["name"], found.Values["ref"]
}

// ServeHTTP answers one request.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := a.route(w, r); err != nil {
		a.server.Fail(w, r, err)
	}
}

// route finds the handler for a request and calls it.
func (a *API) route(w http.ResponseWriter, r *http.Request) error {
	o := server.Observed(r.Context())
	rt, name, ref := match(r.URL.Path)
	if rt == nil {
		return server.NothingAt(r)
	}
	o.Route = rt.Pattern
	i := slices.IndexFunc(rt.Do, func(m method) bool { return m.name == r.Method })
	if i < 0 {
		w.Header().Set("Allow", rt.Do.allow(r.Method))
		return oci.Errorf(oci.Unsupported, "%s is not possible at %s, but %s", r.Method, rt.Pattern, rt.Do.allow(r.Method))
	}
	if name != "" {
		if err := oci.ValidateName(name); err != nil {
			return oci.Errorf(oci.NameInvalid, "%v", err).WithDetail(map[string]string{"name": name})
		}
	}
	if err := server.CheckRawQuery(r.URL.RawQuery); err != nil {
		return err
	}
	m := &rt.Do[i]
	o.Method = m.name
	if err := a.server.Authorize(r.Context(), m.access, resource(name)); err != nil {
		return err
	}
	if needsStore(rt, m) && a.opt.WrongStore() {
		return blob.ErrWrongStore
	}
	if m.adds() && a.opt.Room != nil {
		if err := a.opt.Room(); err != nil {
			return err
		}
	}
	return m.handle(a, &call{ResponseWriter: w, r: r, name: name, ref: ref})
}

// resource returns what a request concerns: a repository, or without a name the registry.
func resource(name string) auth.Resource {
	if name == "" {
		return auth.Registry
	}
	return auth.OfRepository(name)
}

// allow lists a route's HTTP methods for the answer's Allow header. It leaves out `refused`,
// the method that the client has used.
func (list methods) allow(refused string) string {
	var names []string
	for _, m := range list {
		if m.name != refused {
			names = append(names, m.name)
		}
	}
	return strings.Join(names, ", ")
}

// needsStore says whether requests with this method tell clients which blobs exist, or rely on
// blobs that exist. API.route refuses such requests while the configured store isn't the one
// that belongs to the database.
func needsStore(rt *route, m *method) bool {
	return strings.HasPrefix(rt.Pattern, "/v2/{name}/blobs/") || m.name == http.MethodPut
}

// adds says whether requests with this method add something to the registry.
func (m *method) adds() bool {
	return m.name == http.MethodPost || m.name == http.MethodPatch || m.name == http.MethodPut
}

// ping answers GET and HEAD of /v2/ with 200. Clients send this request to find out whether a
// server is a registry (OCI specification, "Determining Support").
func (a *API) ping(c *call) error {
	c.json(http.StatusOK, []byte("{}"))
	return nil
}

// json writes a body of JSON.
func (c *call) json(status int, body []byte) {
	c.body(status, "application/json", body)
}

// digest parses the digest in the path. Its error is DIGEST_INVALID.
func (c *call) digest() (oci.Digest, error) { return parseDigest(c.ref) }

func parseDigest(s string) (oci.Digest, error) {
	d, err := oci.ParseDigest(s)
	if err != nil {
		return d, oci.Errorf(oci.DigestInvalid, "%v", err).WithDetail(map[string]string{"digest": s})
	}
	return d, nil
}
