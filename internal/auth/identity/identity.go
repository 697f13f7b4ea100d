// Package identity learns from others who a client is: from an OpenID Connect provider at
// which people log in ([Provider]), from the issuers of tokens of pipelines ([Verifier] and
// [Rule]), and from an LDAP directory.
//
// The package decides nothing about rights and keeps nothing: it returns an [Identity], or the
// claims of a verified token, and its callers map these to accounts.
package identity

// Sources of identities.
const (
	SourceOIDC = "oidc"
	SourceLDAP = "ldap"
)

// Identity is a person, as an external directory describes the person.
type Identity struct {
	// Source is SourceOIDC or SourceLDAP.
	Source string
	// Subject names the person in the source, and stays the same if the person's name
	// changes. For SourceOIDC it is the issuer, a space, and the claim sub.
	Subject string
	// Name is a valid account name. Sources that don't distinguish upper and lower case may
	// write it differently, so it is in lower case.
	Name string
	// Email is an address that the source hasn't called unverified, or empty.
	Email string
	// Groups are the person's groups, sorted, each once.
	Groups []string
	// Superuser says that a group of the person makes them an administrator of the registry.
	Superuser bool
}
