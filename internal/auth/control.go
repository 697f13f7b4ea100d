package auth

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/purser-registry/purser/internal/auth/identity"
	"github.com/purser-registry/purser/internal/auth/password"
	"github.com/purser-registry/purser/internal/auth/session"
	"github.com/purser-registry/purser/internal/auth/throttle"
	"github.com/purser-registry/purser/internal/auth/token"
	"github.com/purser-registry/purser/internal/boundedcache"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/worker"
)

// Options configure a Control.
type Options struct {
	DB        *db.DB              // required
	Tokens    *token.Keys         // required: issues and verifies registry tokens
	Passwords *password.Hasher    // required
	Verified  *password.Cache     // required: results of checks of passwords
	Failures  *throttle.Failures  // required: limits failed log-ins
	Sessions  *session.Sessions   // nil: no sessions of browsers
	Htpasswd  *password.File      // nil: no such file
	Directory *identity.Directory // LDAP; nil: none
	// DirectoryRecheck is how long an answer of the directory counts for what was got by a
	// password. Default 1 h.
	DirectoryRecheck time.Duration
	// Federation verifies tokens of other issuers, by which robots log in. Nil: none do.
	Federation *identity.Verifier
	// AnonymousPull says that everybody may pull from public repositories. Otherwise every
	// account may.
	AnonymousPull bool
	// PublicByDefault says that a repository without a visibility of its own is public.
	PublicByDefault bool
	// SuperusersOf lists the sources whose groups decide which of their accounts administer
	// the registry.
	SuperusersOf []string
	// NewNamespace is called with the name of each new person, to create the namespace of that
	// name. It returns false if the namespace exists. Nil: people get no namespace of their own.
	NewNamespace func(ctx context.Context, name string) (made bool, err error)
	// ReservedNamespaces are names of namespaces that nobody gets by the name of an account, in
	// letters of either case.
	ReservedNamespaces []string
	Most               Most
	// MayDelete returns an error that wraps worker.ErrRest while nothing may be deleted for its age.
	// Nil: it may.
	MayDelete func(ctx context.Context) error
	Log       *slog.Logger    // default slog.Default()
	Worker    *worker.Metrics // nil: none
}

// Control finds out who sends a request, and decides what that client may do.
type Control struct {
	*Store
	opt Options
	log *slog.Logger

	// generation counts the changes that this process has made. A cached entry is used only if
	// the generation is the same as before the entry was read.
	generation  atomic.Uint64
	rights      *boundedcache.Cache[rightKey, entry[right]]
	namespaces  *boundedcache.Cache[namespaceKey, entry[int64]]
	accounts    *boundedcache.Cache[string, entry[Account]]
	accountsBy  *boundedcache.Cache[int64, entry[Account]]
	credentials *boundedcache.Cache[[32]byte, entry[owned]]
	// uses has when this process last stored that something was used.
	uses *boundedcache.Cache[use, time.Time]
	// confirmed has what the directory has said to this process about passwords, and rechecks
	// the questions that are being asked.
	confirmed *boundedcache.Cache[stateKey, confirmation]
	rechecks  singleflight.Group
}

// owned is a credential with the name of its account.
type owned struct {
	Credential
	account string
}

// entry is an entry of a cache.
type entry[V any] struct {
	value      V
	read       time.Time // when the query for it began
	generation uint64
}

// New makes the access control.
func New(o Options) (*Control, error) {
	if o.DB == nil || o.Tokens == nil || o.Passwords == nil || o.Verified == nil || o.Failures == nil {
		return nil, errors.New("auth: a database, keys, a hasher, its cache and the limit of failures are required")
	}
	o.DirectoryRecheck = cmp.Or(o.DirectoryRecheck, defaultRecheck)
	c := &Control{
		opt: o, log: cmp.Or(o.Log, slog.Default()),
		rights:      newCache[rightKey, right](),
		namespaces:  newCache[namespaceKey, int64](),
		accounts:    newCache[string, Account](),
		accountsBy:  newCache[int64, Account](),
		credentials: newCache[[32]byte, owned](),
		uses:        boundedcache.New(boundedcache.Options[use, time.Time]{Entries: rightsMax}),
		confirmed:   boundedcache.New(boundedcache.Options[stateKey, confirmation]{Entries: rightsMax}),
	}
	c.Store = &Store{db: o.DB, most: o.Most.withDefaults(), changed: func() {
		c.generation.Add(1)
		if o.Sessions != nil {
			o.Sessions.Forget()
		}
	}}
	return c, nil
}

func newCache[K comparable, V any]() *boundedcache.Cache[K, entry[V]] {
	return boundedcache.New(boundedcache.Options[K, entry[V]]{Entries: rightsMax})
}

// cached returns the value of a key from a cache if it isn't older than rightsAge, else from
// `read`. Errors aren't cached.
func cached[K comparable, V any](c *Control, cache *boundedcache.Cache[K, entry[V]], key K, read func() (V, error)) (V, error) {
	e := entry[V]{read: time.Now(), generation: c.generation.Load()}
	if known, ok := cache.Get(key); ok && known.generation == e.generation && e.read.Sub(known.read) < rightsAge {
		return known.value, nil
	}
	var err error
	if e.value, err = read(); err == nil {
		cache.Set(key, e)
	}
	return e.value, err
}

// Run deletes expired credentials until ctx ends.
func (c *Control) Run(ctx context.Context) error {
	return worker.New(worker.Options{
		Name: "credentials", May: c.opt.MayDelete, Log: c.log, Metrics: c.opt.Worker,
		Batch: func(ctx context.Context) (bool, error) { return c.DeleteExpired(ctx, 1000) },
	}).Run(ctx)
}

// Forget empties the caches. Call it after a change that other packages have made: of a
// repository's visibility, or the deletion of a repository or a namespace.
func (c *Control) Forget() { c.changed() }

// PublicByDefault says whether a repository without a visibility of its own is public.
func (c *Control) PublicByDefault() bool { return c.opt.PublicByDefault }

// Sessions returns the sessions of browsers, nil if there are none.
func (c *Control) Sessions() *session.Sessions { return c.opt.Sessions }

// Tokens returns the keys of registry tokens.
func (c *Control) Tokens() *token.Keys { return c.opt.Tokens }

// Passwords returns the hasher of passwords.
func (c *Control) Passwords() *password.Hasher { return c.opt.Passwords }

// CheckFederation returns an error, whose text is for the client, unless a rule of federation is
// valid and safe.
func (c *Control) CheckFederation(r identity.Rule) error {
	if c.opt.Federation == nil {
		return r.Check()
	}
	return c.opt.Federation.CheckRule(r)
}

// denied is the error for a client that is logged in and may not do what it asks for. It says
// nothing about what exists.
func denied(p *Principal, a Access, r Resource) error {
	what := "the registry"
	switch {
	case r.Repository != "":
		what = "repository " + r.Repository
	case r.Namespace != "":
		what = "namespace " + r.Namespace
	}
	need := "the access " + a.String()
	if role := a.Role(); role != NoRole {
		need = "the role " + role.String()
	} else if a == Operate {
		need = "an administrator of the registry"
	}
	return oci.Errorf(oci.Denied, "%s may not do this: %s needs %s", p.Name, what, need)
}

// unauthorized is the error for a client that isn't logged in.
func unauthorized() error { return oci.NewError(oci.Unauthorized) }

// wrongCredentials is the error for credentials that are wrong. It is the same whatever is
// wrong, so that nobody learns which accounts exist.
var wrongCredentials = oci.Errorf(oci.Unauthorized, "the user name or the password, secret or token is wrong, has expired or is disabled")

// Authorize returns nil if the principal has the access to the resource, else the client's
// error: UNAUTHORIZED if nobody is logged in or another registry token may help, else DENIED.
func (c *Control) Authorize(ctx context.Context, p *Principal, a Access, r Resource) error {
	if p.open && a != 0 {
		return nil
	}
	ok, err := c.allows(ctx, p, a, r)
	switch {
	case err != nil || ok:
		return err
	case p.token != nil && !(p.ID != 0 && wasRefused(p.token, a, r)):
		return unauthorized() // a token with another scope may do
	case p.ID == 0:
		return unauthorized()
	}
	return denied(p, a, r)
}

// wasRefused says whether the client has asked for the access when it got the token, in vain.
func wasRefused(t *token.Claims, a Access, r Resource) bool {
	if a == List {
		return t.CatalogWasRefused()
	}
	return t.WasRefused(r.Repository, tokenActions[a])
}

// tokenActions are the names of accesses in registry tokens.
var tokenActions = map[Access]string{Pull: "pull", Push: "push", Delete: "delete"}

// allows is Authorize, without the choice of an error.
func (c *Control) allows(ctx context.Context, p *Principal, a Access, r Resource) (bool, error) {
	return c.allowsBy(ctx, p, a, r, func() (right, error) { return c.right(ctx, p.ID, r) })
}

// allowsBy is allows with a way to find the account's right in the resource.
func (c *Control) allowsBy(ctx context.Context, p *Principal, a Access, r Resource, rightOf func() (right, error)) (bool, error) {
	switch {
	case a == 0:
		return false, nil
	case a == Anyone:
		return true, nil
	case p.token != nil:
		return c.tokenAllows(ctx, p, a, r), nil
	case !p.limits.Allow(a.action(), r):
		return false, nil
	case p.Superuser:
		return true, nil
	}
	switch a {
	case Ping, LoggedIn:
		return p.ID != 0, nil
	case List:
		return p.ID != 0 || c.opt.AnonymousPull, nil
	case Operate:
		return false, nil
	case Anyone, Pull, Hold, Push, Delete, Maintain, Administer:
	}
	if p.ID == 0 && (a != Pull || !c.opt.AnonymousPull) || r.Namespace == "" {
		return false, nil
	}
	found, err := rightOf()
	return err == nil && (found.role >= a.Role() || a == Pull && found.public), err
}

// tokenAllows decides by what is in a registry token.
func (c *Control) tokenAllows(ctx context.Context, p *Principal, a Access, r Resource) bool {
	switch a {
	case Ping:
		return true
	case List:
		return p.token.AllowsCatalog()
	case Pull, Push, Delete:
		return r.Repository != "" && p.token.Allows(r.Repository, tokenActions[a]) && c.scopeStands(ctx, p, a, r)
	case Anyone, LoggedIn, Hold, Maintain, Administer, Operate: // registry tokens are for the OCI API alone
	}
	return false
}

// scopeStands says whether a registry token's scope still means the namespace for which it was granted,
// and not one that was made under the same name since. A right of an administrator of the registry holds
// in every namespace, as long as the account has it. While the database can't be asked, the token stands.
func (c *Control) scopeStands(ctx context.Context, p *Principal, a Access, r Resource) bool {
	granted := p.token.Namespace(r.Repository, tokenActions[a])
	if granted == 0 {
		account, err := c.accountByID(ctx, p.ID)
		return err == nil && account.Superuser || err != nil && !errors.Is(err, ErrUnknown)
	}
	present, err := c.presentNamespace(ctx, r.Namespace, granted)
	return err != nil || present == granted
}

// MayRead says whether the principal may pull from a repository. A registry token needn't
// contain a public repository for that.
func (c *Control) MayRead(ctx context.Context, p *Principal, repository string) bool {
	if p.open {
		return true
	}
	r := OfRepository(repository)
	if ok, err := c.allows(ctx, p, Pull, r); ok || err != nil || p.token == nil {
		return ok && err == nil
	}
	if p.ID == 0 && !c.opt.AnonymousPull || !p.limits.Allow(ActionPull, r) {
		return false
	}
	found, err := c.right(ctx, 0, r)
	return err == nil && found.public
}

// MayOverwrite says whether the principal may move tags of a repository in which it may push.
func (c *Control) MayOverwrite(p *Principal, repository string) bool {
	switch {
	case p.open:
		return true
	case p.token != nil:
		return p.token.Allows(repository, string(ActionOverwrite))
	}
	return p.limits.Allow(ActionOverwrite, OfRepository(repository))
}

// Grant divides what a client asks for in a registry token into what the principal has and
// what it hasn't.
func (c *Control) Grant(ctx context.Context, p *Principal, asked []token.Access) (granted, refused []token.Access, err error) {
	rightOf, err := c.rightsToGrant(ctx, p, asked)
	if err != nil {
		return nil, nil, err
	}
	for _, want := range asked {
		yes := token.Access{Type: want.Type, Name: want.Name}
		no := yes
		for _, action := range expand(want) {
			a, r, ok := meaning(want, action)
			if ok {
				ok, err = c.allowsBy(ctx, p, a, r, func() (right, error) { return rightOf[r], nil })
			}
			switch {
			case err != nil:
				return nil, nil, err
			case !ok:
				no.Actions = append(no.Actions, action)
			default:
				yes.Actions = append(yes.Actions, action)
				if yes.Namespace = rightOf[r].namespace; p.token != nil {
					yes.Namespace = p.token.Namespace(want.Name, action)
				}
				if a == Push && p.limits.Allow(ActionOverwrite, r) {
					yes.Actions = append(yes.Actions, string(ActionOverwrite))
				}
			}
		}
		if len(yes.Actions) > 0 {
			granted = append(granted, yes)
		}
		if len(no.Actions) > 0 {
			refused = append(refused, no)
		}
	}
	return granted, refused, nil
}

// rightsToGrant returns the rights of the principal in each repository that a client asks for.
func (c *Control) rightsToGrant(ctx context.Context, p *Principal, asked []token.Access) (map[Resource]right, error) {
	if p.open || p.Superuser || p.token != nil || p.ID == 0 && !c.opt.AnonymousPull {
		return nil, nil // allowsBy asks for no rights
	}
	var list []Resource
	for _, want := range asked {
		if path, ok := want.Repository(); ok {
			list = append(list, OfRepository(path))
		}
	}
	return c.rightsIn(ctx, p.ID, list)
}

// expand returns the actions of a scope, with "*" for a repository replaced by all actions.
func expand(want token.Access) []string {
	if _, ok := want.Repository(); !ok {
		return want.Actions
	}
	var list []string
	for _, action := range want.Actions {
		if action == "*" {
			return []string{"pull", "push", "delete"}
		}
		list = append(list, action)
	}
	return list
}

// meaning returns the access that an action in a scope is. ok is false for what no token
// grants.
func meaning(want token.Access, action string) (a Access, r Resource, ok bool) {
	if want.Catalog() {
		return List, Registry, action == "*"
	}
	path, ok := want.Repository()
	if !ok {
		return 0, r, false
	}
	for a, name := range tokenActions {
		if name == action {
			return a, OfRepository(path), true
		}
	}
	return 0, r, false
}

// IssueToken makes a registry token with what the principal has of what a client asks for. It
// is valid until `expires`, at most as long as the credential of the principal.
func (c *Control) IssueToken(ctx context.Context, p *Principal, asked []token.Access) (raw string, granted []token.Access, expires time.Time, err error) {
	granted, refused, err := c.Grant(ctx, p, asked)
	if err != nil {
		return "", nil, expires, err
	}
	claims := token.Claims{Account: p.ID, Name: p.Name, Access: granted, Refused: refused, Patterns: p.limits.Repositories}
	if p.expires != nil {
		claims.ExpiresAt = *p.expires
	}
	raw, expires, err = c.opt.Tokens.Issue(ctx, claims)
	return raw, granted, expires, err
}

// requestError returns an error for a malformed Authorization header.
func requestError(format string, args ...any) error {
	return oci.Errorf(oci.Unauthorized, format, args...).WithStatus(http.StatusUnauthorized)
}
