package server

import (
	"fmt"
	"net/http"

	"github.com/purser-registry/purser/internal/oci"
)

// Access is a permission that a request needs.
type Access uint8

// Each route of an interface requires one of these accesses. The zero value isn't one of them:
// Authorize refuses every request to a route for which no access was declared.
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

// Authorize returns an error if the client that sent `r` doesn't have the access `a` to the
// repository. For a route that concerns no repository, the caller passes "" as the repository.
func (s *Server) Authorize(r *http.Request, a Access, repository string) error {
	if a == 0 {
		return fmt.Errorf("route without an access: %w", oci.NewError(oci.Denied))
	}
	return s.opt.Authorize(r, a, repository)
}
