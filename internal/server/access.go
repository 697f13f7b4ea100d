package server

import (
	"fmt"
	"net/http"

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

// Authorize returns an error if the request may not have the access to a repository;
// repository is "" if the route has none.
func (s *Server) Authorize(r *http.Request, a Access, repository string) error {
	if a == 0 {
		return fmt.Errorf("route without an access: %w", oci.NewError(oci.Denied))
	}
	return s.opt.Authorize(r, a, repository)
}
