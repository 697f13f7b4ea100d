package server

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/oci"
)

// Access is a permission that a request needs.
type Access uint8

// Accesses. The zero value is a permission that nobody has.
const (
	_ Access = iota
	AccessAny
	AccessPull
	AccessPush
	AccessDelete
	AccessCatalog
	AccessAdmin // for operators
)

var accessNames = [...]string{"none", "any", "pull", "push", "delete", "catalog", "admin"}

// String returns the access's name in the OpenAPI document.
func (a Access) String() string { return accessNames[a] }

// call is a request with the values that its route extracted.
type call struct {
	http.ResponseWriter
	r    *http.Request
	name string // repository, validated; "" if the route has none
	ref  string // last part of the path: tag, digest or upload
	// names translates upload identifiers, for routes about uploads.
	names repositoryNames
}

type handler func(s *Server, c *call) error

// method says how a route handles an HTTP method.
type method struct {
	name   string
	access Access
	handle handler
}

// route is a path pattern. {name} stands for a repository's name, slashes included,
// {ref} for one part without a slash.
type route struct {
	pattern string
	methods []method
}

// routes are all routes of the OCI API, in the order in which they are tried (OCI
// Distribution Specification, "Endpoints").
var routes = []route{
	{"/v2/", []method{
		{"GET", AccessAny, (*Server).ping}, {"HEAD", AccessAny, (*Server).ping},
	}},
	{"/v2/_catalog", []method{
		{"GET", AccessCatalog, (*Server).listRepositories}, {"HEAD", AccessCatalog, (*Server).listRepositories},
	}},
	{"/v2/{name}/tags/list", []method{
		{"GET", AccessPull, (*Server).listTags}, {"HEAD", AccessPull, (*Server).listTags},
	}},
	{"/v2/{name}/referrers/{ref}", []method{
		{"GET", AccessPull, (*Server).listReferrers}, {"HEAD", AccessPull, (*Server).listReferrers},
	}},
	{"/v2/{name}/blobs/uploads/", []method{{"POST", AccessPush, (*Server).startUpload}}},
	{"/v2/{name}/blobs/uploads/{ref}", []method{
		{"GET", AccessPush, (*Server).uploadStatus}, {"HEAD", AccessPush, (*Server).uploadStatus}, {"PATCH", AccessPush, (*Server).patchUpload},
		{"PUT", AccessPush, (*Server).putUpload}, {"DELETE", AccessPush, (*Server).cancelUpload},
	}},
	{"/v2/{name}/blobs/{ref}", []method{
		{"GET", AccessPull, (*Server).getBlob}, {"HEAD", AccessPull, (*Server).headBlob},
		{"DELETE", AccessDelete, (*Server).deleteBlob},
	}},
	{"/v2/{name}/manifests/{ref}", []method{
		{"GET", AccessPull, (*Server).getManifest}, {"HEAD", AccessPull, (*Server).getManifest},
		{"PUT", AccessPush, (*Server).putManifest}, {"DELETE", AccessDelete, (*Server).deleteManifest},
	}},
}

// match finds the first route whose pattern matches the path. It matches from the
// path's end, so that repositories may have names like parts of routes.
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

// route finds the handler for a request and calls it.
func (s *Server) route(w http.ResponseWriter, r *http.Request) {
	o := observed(r.Context())
	rt, name, ref := match(r.URL.Path)
	if rt == nil {
		s.fail(w, r, oci.Errorf(oci.Unsupported, "there is nothing at %s", r.URL.Path).WithStatus(http.StatusNotFound))
		return
	}
	o.route, o.matched = rt.pattern, rt
	i := slices.IndexFunc(rt.methods, func(m method) bool { return m.name == r.Method })
	if i < 0 {
		s.fail(w, r, oci.Errorf(oci.Unsupported, "%s is not possible at %s, but %s", r.Method, rt.pattern, rt.allow(r.Method)))
		return
	}
	if name != "" {
		if err := oci.ValidateName(name); err != nil {
			s.fail(w, r, oci.Errorf(oci.NameInvalid, "%v", err).WithDetail(map[string]string{"name": name}))
			return
		}
	}
	if err := checkRawQuery(r.URL.RawQuery); err != nil {
		s.fail(w, r, err)
		return
	}
	m := &rt.methods[i]
	o.method = m.name
	err := s.authorize(r, m.access, name)
	if err == nil && rt.needsStore(m) && s.opt.WrongStore() {
		err = blob.ErrWrongStore
	}
	if err == nil {
		err = m.handle(s, &call{ResponseWriter: w, r: r, name: name, ref: ref})
	}
	if err != nil {
		s.fail(w, r, err)
	}
}

var apiVersion = []string{"registry/2.0"}

// allow lists the route's methods except the one that was refused.
func (rt *route) allow(refused string) string {
	var names []string
	for _, m := range rt.methods {
		if m.name != refused {
			names = append(names, m.name)
		}
	}
	return strings.Join(names, ", ")
}

// needsStore says whether the method makes statements about blobs or relies on them.
// Such a request is refused while the configured store isn't the one that belongs to
// the database.
func (rt *route) needsStore(m *method) bool {
	return strings.HasPrefix(rt.pattern, "/v2/{name}/blobs/") || m.name == http.MethodPut
}

func (s *Server) authorize(r *http.Request, a Access, name string) error {
	if a == 0 {
		return fmt.Errorf("route without an access: %w", oci.NewError(oci.Denied))
	}
	return s.opt.Authorize(r, a, name)
}

// ping tells clients that the registry implements the specification ("Determining
// Support").
func (s *Server) ping(c *call) error {
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
