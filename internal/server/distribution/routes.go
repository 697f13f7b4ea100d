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
type route struct {
	pattern string
	methods []method
}

// routes has all routes of the OCI API (OCI Distribution Specification, "Endpoints"). The
// function match tries the routes in this order.
var routes = []route{
	{"/v2/", []method{
		{"GET", auth.Ping, (*API).ping}, {"HEAD", auth.Ping, (*API).ping},
	}},
	{"/v2/_catalog", []method{
		{"GET", auth.List, (*API).listRepositories}, {"HEAD", auth.List, (*API).listRepositories},
	}},
	{"/v2/{name}/tags/list", []method{
		{"GET", auth.Pull, (*API).listTags}, {"HEAD", auth.Pull, (*API).listTags},
	}},
	{"/v2/{name}/referrers/{ref}", []method{
		{"GET", auth.Pull, (*API).listReferrers}, {"HEAD", auth.Pull, (*API).listReferrers},
	}},
	{"/v2/{name}/blobs/uploads/", []method{{"POST", auth.Push, (*API).startUpload}}},
	{"/v2/{name}/blobs/uploads/{ref}", []method{
		{"GET", auth.Push, (*API).uploadStatus}, {"HEAD", auth.Push, (*API).uploadStatus}, {"PATCH", auth.Push, (*API).patchUpload},
		{"PUT", auth.Push, (*API).putUpload}, {"DELETE", auth.Push, (*API).cancelUpload},
	}},
	{"/v2/{name}/blobs/{ref}", []method{
		{"GET", auth.Pull, (*API).getBlob}, {"HEAD", auth.Pull, (*API).headBlob},
		{"DELETE", auth.Delete, (*API).deleteBlob},
	}},
	{"/v2/{name}/manifests/{ref}", []method{
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

// match returns the first route whose pattern matches the path, with the texts for {name} and
// {ref}. It matches the fixed parts of a pattern from the path's end, so that a repository's
// name may itself contain words such as "manifests".
func match(path string) (rt *route, name, ref string) {
	for i := range routes {
		if name, ref, ok := routes[i].match(path); ok {
			return &routes[i], name, ref
		}
	}
	return nil, "", ""
}

func (rt *route) match(path string) (name, ref string, ok bool) {
	prefix, suffix, named := strings.Cut(rt.pattern, "{name}")
	if !named {
		return "", "", path == rt.pattern || path+"/" == rt.pattern
	}
	rest, ok := strings.CutPrefix(path, prefix)
	if !ok {
		return "", "", false
	}
	middle, hasRef := strings.CutSuffix(suffix, "{ref}")
	if !hasRef {
		// Clients often leave out the slash at the end of /blobs/uploads/.
		name, ok = strings.CutSuffix(rest, middle)
		if !ok {
			name, ok = strings.CutSuffix(rest, strings.TrimSuffix(middle, "/"))
		}
		return name, "", ok && name != ""
	}
	i := strings.LastIndexByte(rest, '/')
	if i < 0 || i == len(rest)-1 {
		return "", "", false
	}
	name, ok = strings.CutSuffix(rest[:i+1], middle)
	return name, rest[i+1:], ok && name != ""
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
	o.Route = rt.pattern
	i := slices.IndexFunc(rt.methods, func(m method) bool { return m.name == r.Method })
	if i < 0 {
		w.Header().Set("Allow", rt.allow(r.Method))
		return oci.Errorf(oci.Unsupported, "%s is not possible at %s, but %s", r.Method, rt.pattern, rt.allow(r.Method))
	}
	if name != "" {
		if err := oci.ValidateName(name); err != nil {
			return oci.Errorf(oci.NameInvalid, "%v", err).WithDetail(map[string]string{"name": name})
		}
	}
	if err := server.CheckRawQuery(r.URL.RawQuery); err != nil {
		return err
	}
	m := &rt.methods[i]
	o.Method = m.name
	if err := a.server.Authorize(r.Context(), m.access, resource(name)); err != nil {
		return err
	}
	if rt.needsStore(m) && a.opt.WrongStore() {
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

// allow lists the route's HTTP methods for the answer's Allow header. It leaves out `refused`,
// the method that the client has used.
func (rt *route) allow(refused string) string {
	var names []string
	for _, m := range rt.methods {
		if m.name != refused {
			names = append(names, m.name)
		}
	}
	return strings.Join(names, ", ")
}

// needsStore says whether requests with this method tell clients which blobs exist, or rely on
// blobs that exist. API.route refuses such requests while the configured store isn't the one
// that belongs to the database.
func (rt *route) needsStore(m *method) bool {
	return strings.HasPrefix(rt.pattern, "/v2/{name}/blobs/") || m.name == http.MethodPut
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
