// Package identity learns from others who a client is: from an OpenID Connect provider at
// which people log in ([Provider]), from the issuers of tokens of pipelines ([Verifier] and
// [Rule]), and from an LDAP directory ([Directory]).
//
// The package decides nothing about rights and keeps nothing: it returns an [Identity], or the
// claims of a verified token, and its callers map these to accounts.
//
// # Why a log-in at a provider is the person's
//
// The state ties the provider's answer to the browser that began the log-in, so nobody can make a
// browser finish a log-in of somebody else. The verifier of PKCE and the nonce tie the code and
// the ID token to the same log-in, so a stolen code or token is of no use in another one. The ID
// token is signed by a key of the issuer for this client. Claims that only the userinfo endpoint
// tells count if that endpoint answers about the same sub. Purser keeps the subject, which is
// the issuer with its sub, because a provider may give a name to another person later.
//
// # Why a pipeline's token is the pipeline's
//
// A token is accepted if a rule has its issuer and its audience, character for character, if a key
// of that issuer has signed it with an asymmetric algorithm, if its time hasn't passed, and if its
// claims match the rule. The keys come from the issuer's own URL over TLS. An administrator of a
// namespace chooses the issuer, but the rule opens only that namespace's robots, so an issuer that
// lies harms only those who named it. What else such an issuer could do, the Verifier's comment
// says.
package identity

import (
	"errors"
	"fmt"
	"net"
	"regexp"
	"strings"
)

// Errors of log-ins. Each error of [Directory.Login], of [Provider], and of [Verifier] wraps one of
// them.
var (
	// ErrRefused says that the log-in isn't valid. The text of the error says why, but never has
	// a password or token. The text of a Directory's error is for the log alone, since clients
	// get the same answer for an unknown name as for a wrong password. The text of the others'
	// errors may be shown to the client.
	ErrRefused = errors.New("the log-in is refused")
	// ErrUnavailable says that nobody knows whether the client may log in, because the directory,
	// provider or issuer doesn't answer, or not as it should. Its text is for the log.
	ErrUnavailable = errors.New("the log-in can't be checked")
)

// refused returns an ErrRefused with the reason.
func refused(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrRefused, fmt.Sprintf(format, args...))
}

// accountName matches the names that accounts can have.
var accountName = regexp.MustCompile(`^[a-z0-9][a-z0-9._@-]{0,127}$`)

// isLoopbackHost says whether a host of a URL is this machine.
func isLoopbackHost(host string) bool {
	ip := net.ParseIP(host)
	return strings.EqualFold(host, "localhost") || ip != nil && ip.IsLoopback()
}

// Sources of identities.
const (
	SourceOIDC = "oidc"
	SourceLDAP = "ldap"
)

// Identity is a person, as an external directory describes the person.
type Identity struct {
	// Source is SourceOIDC or SourceLDAP.
	Source string
	// Subject names the person in the source. For SourceOIDC it is the issuer, a space, and the
	// claim sub, and stays the same if the person's name changes. For SourceLDAP it is the DN.
	Subject string
	// Name is a valid account name. Sources that don't distinguish upper and lower case may
	// write it differently, so it is in lower case.
	Name string
	// Email is an address that the source hasn't called unverified, or empty.
	Email string
	// EntryID is, for SourceLDAP, the id that the directory has given to the person's entry and
	// that stays when the entry is renamed or moved: the name of the attribute, "=" and its value.
	// It is empty if the directory doesn't tell one.
	EntryID string
	// Groups are the names of the person's groups, sorted, each once.
	Groups []string
	// GroupDNs are, for SourceLDAP, the groups' DNs as FoldGroup returns them, sorted.
	GroupDNs []string
	// Superuser says that a group of the person makes them an administrator of the registry.
	Superuser bool
	// PasswordChanged says, for SourceLDAP, when the password was changed, as the directory writes
	// it. It is empty if the directory doesn't say.
	PasswordChanged string
}
