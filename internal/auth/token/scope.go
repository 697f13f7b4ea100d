package token

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/purser-registry/purser/internal/oci"
)

// Access is a resource and what may be done with it, as in the claim "access" of Docker's token
// protocol.
type Access struct {
	Type    string   `json:"type"`    // "repository" or "registry"; other types are never granted
	Name    string   `json:"name"`    // a repository's path, or "catalog" of the type "registry"
	Actions []string `json:"actions"` // for example "pull", "push", "delete" and "*"
	// Namespace is the id of the namespace in which the right was, so that the token doesn't open
	// another one that is made under this name. 0: the right is that of an administrator of the registry.
	Namespace int64 `json:"namespace,omitempty"`
}

const (
	typeRepository = "repository"
	typeRegistry   = "registry"
	catalogName    = "catalog"
	// allActions is the action by which clients ask for everything that they may do.
	allActions = "*"
)

// Repository returns the path of the repository that the access is about. It returns false if
// the access is about something else, or if the path isn't a valid repository name. A server
// grants nothing for such an access.
func (a Access) Repository() (path string, ok bool) {
	if a.Type != typeRepository || oci.ValidateName(a.Name) != nil {
		return "", false
	}
	return a.Name, true
}

// Catalog says whether the access is about the registry's list of repositories, for which
// clients ask by "registry:catalog:*".
func (a Access) Catalog() bool { return a.Type == typeRegistry && a.Name == catalogName }

// Limits on the scopes of one request.
const (
	maxScopes      = 100
	maxScopeBytes  = 32 << 10
	maxNameBytes   = oci.MaxNameLength
	maxActions     = 16 // of one resource, each counted once
	maxActionBytes = 32
	maxTypeBytes   = 32
)

// ErrScope marks scopes that are larger than the limits: 100 scopes and 32 KiB in all, 255
// bytes in a name, 16 actions of a resource, 32 bytes in an action.
var ErrScope = errors.New("the request for a token asks for too much")

// ParseScope is ParseScopes for one parameter.
func ParseScope(scope string) ([]Access, error) { return ParseScopes([]string{scope}) }

// ParseScopes reads the parameters "scope" of a request for a token (distribution's "Token
// Scope Documentation"). A parameter has any number of scopes, separated by spaces. A scope is
// "type:name:action,action". The name reaches to the last colon, since a name may begin with a
// host and its port. A class after the type, as in "repository(plugin)", is dropped: the class
// says what the repository holds, not which repository it is.
//
// The result has one Access for each type and name, in the order of the request, with each
// action once. A scope of another form asks for nothing, and neither does an action that isn't
// lower-case letters or "*": distribution's token server ignores these too, and the registry's
// challenge then tells the client the right scope. ParseScopes doesn't check that a name is a
// valid repository name; see Access.Repository. It returns an error that wraps ErrScope if the
// scopes are larger than the limits.
func ParseScopes(scopes []string) ([]Access, error) {
	size, count := 0, 0
	for _, s := range scopes {
		size += len(s)
	}
	if size > maxScopeBytes {
		return nil, fmt.Errorf("%w: the scopes have %d bytes and at most %d are allowed", ErrScope, size, maxScopeBytes)
	}
	var list []Access
	for _, parameter := range scopes {
		for scope := range strings.SplitSeq(parameter, " ") {
			if scope == "" {
				continue
			}
			if count++; count > maxScopes {
				return nil, fmt.Errorf("%w: it has more than %d scopes", ErrScope, maxScopes)
			}
			kind, name, actions, ok := splitScope(scope)
			if !ok {
				continue
			}
			if len(name) > maxNameBytes {
				return nil, fmt.Errorf("%w: a name has %d bytes and at most %d are allowed", ErrScope, len(name), maxNameBytes)
			}
			i := slices.IndexFunc(list, func(a Access) bool { return a.Type == kind && a.Name == name })
			if i < 0 {
				i = len(list)
				list = append(list, Access{Type: kind, Name: name, Actions: []string{}})
			}
			if err := list[i].add(actions); err != nil {
				return nil, err
			}
		}
	}
	return list, nil
}

// splitScope splits a scope into its type without the class, its name and its actions. It
// returns false for text that isn't a scope.
func splitScope(scope string) (kind, name, actions string, ok bool) {
	kind, rest, ok := strings.Cut(scope, ":")
	if !ok {
		return "", "", "", false
	}
	last := strings.LastIndexByte(rest, ':')
	if last < 1 {
		return "", "", "", false
	}
	name, actions = rest[:last], rest[last+1:]
	kind, class, hasClass := strings.Cut(kind, "(")
	if hasClass {
		if class, ok = strings.CutSuffix(class, ")"); !ok || !isWord(class) {
			return "", "", "", false
		}
	}
	return kind, name, actions, isWord(kind) && isPrintable(name)
}

// isWord says whether s can be a type or a class: 1 to 32 lower-case letters and digits.
func isWord(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return s != "" && len(s) <= maxTypeBytes
}

// isPrintable says whether s consists of visible ASCII characters.
func isPrintable(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// add adds the actions in a list that is separated by commas.
func (a *Access) add(actions string) error {
	for action := range strings.SplitSeq(actions, ",") {
		switch {
		case len(action) > maxActionBytes:
			return fmt.Errorf("%w: an action has more than %d bytes", ErrScope, maxActionBytes)
		case !isAction(action) || slices.Contains(a.Actions, action):
			continue
		case len(a.Actions) == maxActions:
			return fmt.Errorf("%w: a resource has more than %d actions", ErrScope, maxActions)
		}
		a.Actions = append(a.Actions, action)
	}
	return nil
}

// isAction says whether s is "*", or lower-case letters with '-' and '_' between them.
func isAction(s string) bool {
	if s == allActions {
		return true
	}
	for i := range len(s) {
		if c := s[i]; (c < 'a' || c > 'z') && (c != '-' && c != '_' || i == 0) {
			return false
		}
	}
	return s != ""
}
