package auth

import (
	"fmt"
	"slices"
	"strings"
)

// Role is what an account may do in a namespace or a repository. A greater role includes
// everything that a smaller one allows.
type Role uint8

const (
	NoRole        Role = iota
	Reader             // pulls, and sees what is there
	Writer             // pushes and moves tags too
	Maintainer         // deletes and restores, and manages policies and protection too
	Administrator      // manages members, robots, webhooks, visibility and settings too
)

var roleNames = [...]string{"", "reader", "writer", "maintainer", "administrator"}

// String returns the role's name as it is stored, "" for NoRole.
func (r Role) String() string { return roleNames[r] }

// quayRoles are the names of roles in Quay's API, which has no maintainer.
var quayRoles = [...]string{"", "read", "write", "maintain", "admin"}

// Quay returns the role's name in Quay's routes.
func (r Role) Quay() string { return quayRoles[r] }

// ParseRole reads a role's name, either Purser's or Quay's.
func ParseRole(name string) (Role, error) {
	for _, names := range [][]string{roleNames[1:], quayRoles[1:]} {
		if i := slices.Index(names, name); i >= 0 {
			return Role(i + 1), nil //nolint:gosec // there are four
		}
	}
	return NoRole, fmt.Errorf("%q is no role; the roles are %s", name, strings.Join(roleNames[1:], ", "))
}

// Access is a permission that a request needs. Each route of an interface names one. The zero
// value isn't a permission: a request to a route that names none is refused.
type Access uint8

const (
	_ Access = iota
	Anyone
	// Ping needs valid credentials or an anonymous registry token, but no role.
	Ping
	// List is for lists of namespaces and repositories, which show what the client may read.
	List
	LoggedIn   // an account, whatever its roles
	Pull       // a reader, or anyone if the repository is public
	Hold       // a reader, who reports what is deployed; that the repository is public isn't enough
	Push       // a writer
	Delete     // a maintainer, who deletes tags, manifests, blobs and repositories
	Maintain   // a maintainer, who manages policies and protection
	Administer // an administrator of the repository or the namespace
	Operate    // an administrator of the registry
)

var accessNames = [...]string{"none", "any", "ping", "list", "login", "pull", "hold", "push", "delete", "maintain", "admin", "operate"}

// String returns the access's name in the OpenAPI document.
func (a Access) String() string { return accessNames[a] }

// needs has the role that each access needs in its repository or namespace.
var needs = [...]Role{Pull: Reader, Hold: Reader, Push: Writer, Delete: Maintainer, Maintain: Maintainer, Administer: Administrator}

// Role returns the role that the access needs in its repository or namespace. It returns NoRole
// for accesses that no such role gives.
func (a Access) Role() Role {
	if int(a) < len(needs) {
		return needs[a]
	}
	return NoRole
}

// Action is something that a robot or a token may be limited to.
type Action string

const (
	ActionPull       Action = "pull" // and see lists
	ActionHold       Action = "hold" // report what is deployed
	ActionPush       Action = "push" // without moving a tag that exists
	ActionOverwrite  Action = "overwrite"
	ActionDelete     Action = "delete"
	ActionMaintain   Action = "maintain"
	ActionAdminister Action = "admin"
	ActionOperate    Action = "operate"
)

// Actions lists all actions.
func Actions() []Action {
	return []Action{ActionPull, ActionHold, ActionPush, ActionOverwrite, ActionDelete, ActionMaintain, ActionAdminister, ActionOperate}
}

// action returns the action that an access is, "" if every limit allows the access.
func (a Access) action() Action {
	switch a {
	case List, Pull:
		return ActionPull
	case Hold:
		return ActionHold
	case Push:
		return ActionPush
	case Delete:
		return ActionDelete
	case Maintain:
		return ActionMaintain
	case Administer, LoggedIn:
		return ActionAdminister
	case Operate:
		return ActionOperate
	case Anyone, Ping:
	}
	return ""
}

// Resource is what a request concerns: a repository, a namespace, or the whole registry.
type Resource struct {
	// Namespace is the first part of the repository's path, or the namespace itself; "" for
	// the registry.
	Namespace string
	// Repository is the path of a repository, "" for a namespace or the registry.
	Repository string
}

// Registry is the resource of requests that concern the whole registry.
var Registry = Resource{}

// OfRepository returns the resource of requests about a repository.
func OfRepository(path string) Resource {
	namespace, _, _ := strings.Cut(path, "/")
	return Resource{namespace, path}
}

// OfNamespace returns the resource of requests about a namespace.
func OfNamespace(name string) Resource { return Resource{Namespace: name} }
