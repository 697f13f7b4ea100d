package server

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/oci"
)

// Access is what a request needs to be allowed to do.
type Access uint8

// Accesses. The zero value is none that anybody has.
const (
	_ Access = iota
	AccessAny
	AccessPull
	AccessPush
	AccessDelete
	AccessCatalog
	AccessAdmin // what an operator does
)

var accessNames = [...]string{"none", "any", "pull", "push", "delete", "catalog", "admin"}

// String is the access's name in the OpenAPI document.
func (a Access) String() string { return accessNames[a] }

// call is a request that was matched to a route.
type call struct {
	http.ResponseWriter
	r    *http.Request
	name string // repository, valid; "" for routes without
	ref  string // what the route's last part is: tag, digest or upload
	// names are those of the repository's uploads, where the route is about one.
	names repositoryNames
}

type handler func(s *Server, c *call) error

// method is what a route does for one HTTP method.
type method struct {
	name   string
	access Access
	handle handler
}

// route is a shape of path below /v2/. {name} stands for a repository's name,
// slashes included, {ref} for one part without a slash.
type route struct {
	pattern string
	methods []method
}

// routes is every route there is, in the order in which they are tried
// (OCI Distribution Specification, "Endpoints").
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

// match splits a path by the first route that has its shape. Names are matched
// from the end, so that repositories may be called like routes.
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
		// The slash at the end of /blobs/uploads/ is often left out.
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

// route finds what answers a request and calls it.
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

// allow lists the methods of the route other than one that was refused.
func (rt *route) allow(refused string) string {
	var names []string
	for _, m := range rt.methods {
		if m.name != refused {
			names = append(names, m.name)
		}
	}
	return strings.Join(names, ", ")
}

// needsStore says that the method tells of blobs, or builds on them. With another
// store than the registry's nothing is known of any.
func (rt *route) needsStore(m *method) bool {
	return strings.HasPrefix(rt.pattern, "/v2/{name}/blobs/") || m.name == http.MethodPut
}

func (s *Server) authorize(r *http.Request, a Access, name string) error {
	if a == 0 {
		return fmt.Errorf("route without an access: %w", oci.NewError(oci.Denied))
	}
	return s.opt.Authorize(r, a, name)
}

// ping says that the registry implements the specification ("Determining
// Support").
func (s *Server) ping(c *call) error {
	c.json(http.StatusOK, []byte("{}"))
	return nil
}

// json writes a body of JSON.
func (c *call) json(status int, body []byte) {
	c.body(status, "application/json", body)
}

// digest is the route's digest, DIGEST_INVALID if it is none.
func (c *call) digest() (oci.Digest, error) { return parseDigest(c.ref) }

func parseDigest(s string) (oci.Digest, error) {
	d, err := oci.ParseDigest(s)
	if err != nil {
		return d, oci.Errorf(oci.DigestInvalid, "%v", err).WithDetail(map[string]string{"digest": s})
	}
	return d, nil
}
