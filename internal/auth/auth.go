// Package auth is access control: it says who sends a request, and what that client may do.
//
// Accounts are people and robots. A grant gives an account or a team a [Role] in a namespace
// or a repository. An account may be an administrator of the registry, who may do everything.
// [Limits] narrow what a robot or a token may do with its account's roles.
//
// [Control] joins the parts. Control.Authenticate finds the account behind a request's
// credentials; the packages below this one check passwords, registry tokens, sessions and
// other providers' identities. Control.Authorize decides whether a [Principal] has an [Access]
// to a [Resource]. Control.Readable gives lists the filter of what a principal may see.
//
// # Why nobody gets in who must not
//
// Every route of every interface names an Access, and a request to a route without one is
// refused. Control.Authorize denies unless a rule below it allows: an administrator of the
// registry, a public repository, a role of the account, or access in a registry token. Limits
// only ever take away.
//
// A decision about a repository that the client may not read doesn't depend on whether the
// repository exists: Authorize returns the same error for both, before any other code looks
// for the repository. A repository that doesn't exist is decided by the roles in its
// namespace, and is never public.
//
// A registry token contains what it grants, so a pull by token looks up no rights, only, once in
// rightsAge, whether the namespace is still the one in which it was granted. Its rights were
// decided when it was issued, and end with it, after Options.TokenTTL at the latest. Rights of
// other credentials are cached for [rightsAge] at most. A change that this process makes
// empties its caches at once. So a revoked right ends within rightsAge for passwords, secrets
// and sessions, and within TokenTTL for registry tokens that were issued before.
//
// Passwords are compared by package password in constant time. Generated secrets are looked up
// by their SHA-256: a secret has 256 random bits, so the time of an index lookup tells nothing
// about it.
//
// # How a request is decided
//
// Control.Authenticate runs once for a request, before the server looks for a route. A Basic secret
// or a session is found by its SHA-256; a password goes through package throttle, and then to a
// hash, a directory or an issuer; a registry token is verified by its signature. Wrong credentials
// don't end the request there: the route's Authorize refuses it, so that the answer's challenge can
// say which scope is needed. A request without credentials is nobody's, and may do what everybody
// may.
//
// Control.Authorize asks in this order. A registry token is decided by its own list of accesses,
// and by whether its namespace is still the one for which it was granted. Otherwise the limits of
// the robot or the credential must allow the action. Then an administrator of the registry may do
// everything; others need a role in the resource, in its namespace or through a team, or for a pull
// a repository that is public. Roles come from one query.
//
// # Decisions
//
// A registry token contains what it grants. The price of that is that it stays valid until it
// expires, 5 minutes by default, whatever is revoked meanwhile. But it names repositories by path,
// and a namespace may be deleted and made again for somebody else. So each scope has the
// namespace's id, which is compared with the present one, by one query in 10 s for a namespace.
// While the database is away, the token stands. A token also contains what was asked for and not
// granted. So the registry can tell a client that may not do something (403) from one that needs a
// token with another scope (401). Clients that get 401 for both ask for a password again, or loop.
//
// Denial is uniform. An account gets the same 403 for a repository that it may not read and for one
// that doesn't exist, and nobody gets the same 401. Otherwise names of repositories could be
// guessed. For the same reason a wrong password, an unknown name, a disabled account and an expired
// secret have one answer, and the check of an unknown name costs a hash too.
//
// The column is_public may be NULL: nobody has chosen, and the setting auth.default_visibility
// decides. So closing an open registry makes no repository public, unless an operator says so by
// the setting, and the setting can be changed without touching rows.
//
// Generated secrets are stored as SHA-256 and not as slow hashes. A secret has 256 random bits, so
// guessing is hopeless whatever the hash costs, and an index finds the row by the hash. Robots send
// their secret with each request for a token, and a slow hash would make each cost 25 ms of a
// processor.
//
// An account of a provider isn't joined with a local one of the same name (Control.Provision).
// Accounts are found by the provider's subject, which stays when a name is given to somebody else.
// If the name is taken, the log-in is refused, and an administrator decides.
package auth

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
)

// Errors of this package that callers distinguish. Each is wrapped in an *oci.Error with a text
// for the client.
var (
	ErrUnknown = errors.New("no such thing")     // status 404
	ErrExists  = errors.New("it exists already") // status 409
	ErrInvalid = errors.New("invalid value")     // status 400
)

func unknown(format string, args ...any) error {
	return oci.Errorf(oci.Unsupported, format, args...).WithStatus(http.StatusNotFound).WithCause(ErrUnknown)
}

func exists(format string, args ...any) error {
	return oci.Errorf(oci.Unsupported, format, args...).WithStatus(http.StatusConflict).WithCause(ErrExists)
}

func invalid(format string, args ...any) error {
	return oci.Errorf(oci.Unsupported, format, args...).WithStatus(http.StatusBadRequest).WithCause(ErrInvalid)
}

// Store keeps accounts, their credentials, teams and grants in the database. Its methods that
// change something write an entry of the audit log in the same transaction.
type Store struct {
	db      *db.DB
	most    Most
	changed func() // called after each change, to empty caches
}

// NewStore returns the store in a database. The store doesn't cache; see [New].
func NewStore(d *db.DB, most Most) *Store {
	return &Store{db: d, most: most.withDefaults(), changed: func() {}}
}

// change runs fn in a transaction and empties the caches, also if fn fails: the transaction may
// have been committed although the connection broke.
func (s *Store) change(ctx context.Context, doing string, fn func(tx pgx.Tx) error) error {
	defer s.changed()
	err := s.db.Tx(ctx, fn)
	if _, ok := errors.AsType[*oci.Error](err); err == nil || ok {
		return err
	}
	return fmt.Errorf("%s: %w", doing, err)
}

var accountForm = regexp.MustCompile(`^[a-z0-9][a-z0-9._@-]{0,127}$`)

// CheckAccountName returns an error unless a person's account may have the name.
func CheckAccountName(name string) error {
	if !accountForm.MatchString(name) {
		return invalid("%q is no name for an account: it begins with a lower-case letter or a digit, goes on with those and . _ @ -, and has at most 128 characters", short(name))
	}
	return nil
}

var shortForm = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,63}$`)

// checkShortName checks the name of a robot or a team within its namespace.
func checkShortName(what, name string) error {
	if !shortForm.MatchString(name) {
		return invalid("%q is no name for a %s: it begins with a lower-case letter or a digit, goes on with those and . _ -, and has at most 64 characters", short(name), what)
	}
	return nil
}

// short returns the beginning of a text from a client, for an error.
func short(s string) string { return fmt.Sprintf("%.80s", s) }

// checkText returns an error, with status 400, for a text that people write for people and that a
// terminal or a page couldn't show as it is.
func checkText(what, text string, longest int) error {
	switch {
	case len(text) > longest:
		return invalid("the %s has more than %d bytes", what, longest)
	case !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool {
		return unicode.IsControl(r) && r != '\n' && r != '\t' || unicode.Is(unicode.Bidi_Control, r)
	}):
		return invalid("the %s has control characters", what)
	}
	return nil
}

// maxTitle and maxDescription are the longest texts of that kind, in bytes.
const maxTitle, maxDescription = 255, 10_000

// namespaceID returns the id of a namespace. It locks the namespace against deletion until the
// transaction ends.
func namespaceID(ctx context.Context, tx pgx.Tx, name string) (id int64, err error) {
	err = tx.QueryRow(ctx, "SELECT id FROM live_namespaces WHERE name = $1 FOR KEY SHARE", name).Scan(&id)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, unknown("namespace %s is not known to this registry", short(name))
	}
	return id, err
}

// place returns the ids of a resource, a namespace or a repository, and locks them against
// deletion. For a namespace, `repository` is nil.
func place(ctx context.Context, tx pgx.Tx, r Resource) (namespace int64, repository *int64, err error) {
	if namespace, err = namespaceID(ctx, tx, r.Namespace); err != nil || r.Repository == "" {
		return namespace, nil, err
	}
	err = tx.QueryRow(ctx, "SELECT id FROM repositories WHERE path = $1 AND top_level_namespace_id = $2 AND deleted_at IS NULL FOR KEY SHARE",
		r.Repository, namespace).Scan(&repository)
	if errors.Is(err, pgx.ErrNoRows) {
		err = unknown("repository %s is not known to this registry", short(r.Repository))
	}
	return namespace, repository, err
}
