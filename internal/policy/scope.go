package policy

// Scope is the kind of target that a policy belongs to.
type Scope string

// The scopes.
const (
	DefaultScope    Scope = "default" // the whole registry
	NamespaceScope  Scope = "namespace"
	RepositoryScope Scope = "repository"
)
