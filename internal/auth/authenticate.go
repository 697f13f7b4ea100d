package auth

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/auth/identity"
	"github.com/purser-registry/purser/internal/auth/password"
	"github.com/purser-registry/purser/internal/auth/throttle"
	"github.com/purser-registry/purser/internal/auth/token"
	"github.com/purser-registry/purser/internal/limit"
	"github.com/purser-registry/purser/internal/oci"
)

// From says from where a request comes.
type From struct {
	Address string // of the client
	Tokens  bool   // registry tokens count, and sessions of browsers don't
}

// maxAuthorization limits the length of an Authorization header, in bytes. Tokens of other
// issuers may be long.
const maxAuthorization = 32 << 10

// Authenticate returns who sends a request: Nobody without credentials. The error is for the
// client; the principal is then Nobody.
func (c *Control) Authenticate(r *http.Request, from From) (*Principal, error) {
	headers := r.Header["Authorization"]
	switch {
	case len(headers) > 1:
		return Nobody, requestError("the request has %d Authorization headers", len(headers))
	case len(headers) == 1 && len(headers[0]) > maxAuthorization:
		return Nobody, requestError("the Authorization header has more than %d bytes", maxAuthorization)
	case len(headers) == 1:
		p, err := c.byHeader(r.Context(), headers[0], from)
		if err != nil {
			return Nobody, err
		}
		return p, nil
	case from.Tokens || c.opt.Sessions == nil || r.Header["Cookie"] == nil:
		return Nobody, nil
	}
	return c.bySession(r, from)
}

// byHeader authenticates by an Authorization header.
func (c *Control) byHeader(ctx context.Context, header string, from From) (*Principal, error) {
	scheme, value, _ := strings.Cut(header, " ")
	value = strings.TrimSpace(value)
	switch strings.ToLower(scheme) {
	case "basic":
		name, pass, err := parseBasic(value)
		if err != nil {
			return nil, err
		}
		return c.Login(ctx, name, pass, from.Address)
	case "bearer":
		switch {
		case isSecret(value):
			return c.bySecret(ctx, "", value)
		case !from.Tokens:
			return nil, requestError("this interface takes a user name with a password or token, or a personal token as Bearer; registry tokens are for /v2/")
		}
		return c.byToken(ctx, value)
	}
	return nil, requestError("the scheme of the Authorization header is neither Basic nor Bearer")
}

// parseBasic decodes the credentials of Basic authentication (RFC 7617).
func parseBasic(value string) (name, pass string, err error) {
	raw, err := base64.StdEncoding.DecodeString(value)
	if err != nil {
		return "", "", requestError("the credentials of Basic authentication aren't in base64")
	}
	name, pass, ok := strings.Cut(string(raw), ":")
	if !ok || name == "" && pass == "" {
		return "", "", requestError("the credentials of Basic authentication aren't of the form name:password")
	}
	return name, pass, nil
}

// byToken authenticates by a registry token.
func (c *Control) byToken(ctx context.Context, raw string) (*Principal, error) {
	claims, err := c.opt.Tokens.Verify(ctx, raw)
	if err != nil {
		if !errors.Is(err, token.ErrInvalid) {
			return nil, err
		}
		return nil, oci.Errorf(oci.Unauthorized, "%v", err)
	}
	return &Principal{ID: claims.Account, Name: claims.Name, Robot: isRobotName(claims.Name), token: claims,
		limits: Limits{Repositories: claims.Patterns}}, nil
}

// bySession authenticates by the cookie of a browser's session. A session that has ended is no
// error: the client isn't logged in then.
func (c *Control) bySession(r *http.Request, from From) (*Principal, error) {
	secret := c.opt.Sessions.Secret(r)
	if secret == "" {
		return Nobody, nil
	}
	s, ok, err := c.opt.Sessions.Find(r.Context(), secret)
	if err != nil || !ok {
		return Nobody, err
	}
	a, err := c.accountByID(r.Context(), s.Account)
	if errors.Is(err, ErrUnknown) || err == nil && c.shut(a) {
		return Nobody, nil
	}
	if err != nil {
		return Nobody, err
	}
	if ok, err := c.stands(r.Context(), a, bought{state: s.PasswordState, confirmed: s.Confirmed}); !ok {
		if errors.Is(err, identity.ErrUnavailable) { // the person can still log in otherwise
			err = nil
		}
		return Nobody, err
	}
	p := principal(a, Limits{})
	p.session = s.ID.String()
	return p, nil
}

// principal returns the principal of an account that uses a credential with limits of its own.
func principal(a Account, credential Limits) *Principal {
	p := &Principal{ID: a.ID, Name: a.Name, Robot: a.Robot, Superuser: a.Superuser, limits: credential}
	if a.Robot {
		p.limits = a.Limits
	}
	return p
}

// tokenNames are the user names with which clients send a token as the password, instead of the
// name of the account.
var tokenNames = []string{"$token", "$oauthtoken", "oauth2accesstoken", "<token>", ""}

// bySecret authenticates by a generated secret. `name` is the user name that the client sent
// with it, "" if it sent none.
func (c *Control) bySecret(ctx context.Context, name, secret string) (*Principal, error) {
	found, err := c.credential(ctx, secret)
	switch {
	case errors.Is(err, ErrUnknown):
		return nil, wrongCredentials
	case err != nil:
		return nil, err
	case found.Kind == RefreshToken, name != found.account && !isTokenName(name), found.Expires != nil && !found.Expires.After(time.Now()):
		return nil, wrongCredentials
	}
	return c.enterBy(ctx, found)
}

// enterBy is enter for a generated secret.
func (c *Control) enterBy(ctx context.Context, found owned) (*Principal, error) {
	p, err := c.enter(ctx, found)
	if err == nil {
		p.expires, p.credential = found.Expires, found.Credential.ID
	}
	return p, err
}

func isTokenName(name string) bool {
	for _, n := range tokenNames {
		if n == name {
			return true
		}
	}
	return false
}

// RefreshPrincipal returns the principal of a refresh token.
func (c *Control) RefreshPrincipal(ctx context.Context, secret string) (*Principal, error) {
	found, err := c.credential(ctx, secret)
	switch {
	case errors.Is(err, ErrUnknown):
		return nil, wrongCredentials
	case err != nil:
		return nil, err
	case found.Kind != RefreshToken, found.Expires != nil && !found.Expires.After(time.Now()):
		return nil, wrongCredentials
	}
	a, err := c.accountOf(ctx, found)
	if err == nil && c.shut(a) {
		err = wrongCredentials
	}
	if err == nil {
		var ok bool
		if ok, err = c.stands(ctx, a, bought{refresh: true, state: found.passwordState, confirmed: found.confirmed}); err == nil && !ok {
			err = wrongCredentials
		}
	}
	switch {
	case errors.Is(err, ErrUnknown):
		return nil, wrongCredentials
	case err != nil:
		return nil, err
	}
	return c.enterBy(ctx, found)
}

// credential returns the credential with a secret, from the cache or by one query.
func (c *Control) credential(ctx context.Context, secret string) (owned, error) {
	return cached(c, c.credentials, [32]byte(secretHash(secret)), func() (owned, error) {
		found, account, ok, err := c.credentialOf(ctx, secret)
		if err == nil && !ok {
			err = unknown("there is no such credential")
		}
		return owned{found, account}, err
	})
}

// enter returns the principal of an account whose credential is right; the credential has only the
// account's name if it is a password. enter refuses disabled accounts, and those that aren't in the
// htpasswd file any more.
func (c *Control) enter(ctx context.Context, found owned) (*Principal, error) {
	a, err := c.accountOf(ctx, found)
	switch {
	case errors.Is(err, ErrUnknown):
		return nil, wrongCredentials
	case err != nil:
		return nil, err
	case c.shut(a):
		return nil, wrongCredentials
	}
	c.noteUse(ctx, a, found.Credential.ID)
	return principal(a, found.Limits), nil
}

// lastUsedAge is how exact the last use of an account and a credential is.
const lastUsedAge = 5 * time.Minute

// shut says whether nobody may use an account, whatever the credentials: it is disabled, or it
// isn't in the htpasswd file any more.
func (c *Control) shut(a Account) bool {
	return a.Disabled || a.Source == SourceHtpasswd && !c.inHtpasswd(a.Name)
}

// use identifies what was used: an account, by a credential of its own or by its password.
type use struct {
	account    int64
	credential uuid.UUID
}

// noteUse stores when an account and a credential were used, unless this process has done so
// lately. Of many requests at once, one stores it.
func (c *Control) noteUse(ctx context.Context, a Account, credential uuid.UUID) {
	key, now := use{a.ID, credential}, time.Now()
	if last, ok := c.uses.Get(key); ok && now.Sub(last) < lastUsedAge {
		return
	}
	c.uses.Set(key, now)
	var id any
	if credential != uuid.Nil {
		id = credential
	}
	if err := c.used(ctx, a.ID, id); err != nil {
		c.log.WarnContext(ctx, "storing when an account was used", "account", a.Name, "error", err)
	}
}

func (c *Control) inHtpasswd(name string) bool {
	if c.opt.Htpasswd == nil {
		return false
	}
	_, ok := c.opt.Htpasswd.Lookup(name)
	return ok
}

func (c *Control) account(ctx context.Context, name string) (Account, error) {
	return cached(c, c.accounts, name, func() (Account, error) { return c.Store.Account(ctx, name) })
}

func (c *Control) accountByID(ctx context.Context, id int64) (Account, error) {
	return cached(c, c.accountsBy, id, func() (Account, error) { return c.Store.accountByID(ctx, id) })
}

// accountByID returns the account with an id. Error: 404.
func (s *Store) accountByID(ctx context.Context, id int64) (Account, error) {
	var name string
	err := s.db.Pool.QueryRow(ctx, "SELECT name FROM accounts WHERE id = $1", id).Scan(&name)
	if errors.Is(err, pgx.ErrNoRows) {
		return Account{}, unknown("the account is gone")
	}
	if err != nil {
		return Account{}, err
	}
	a, err := s.Account(ctx, name)
	if err == nil && a.ID != id { // another account has got the name meanwhile
		return Account{}, unknown("the account is gone")
	}
	return a, err
}

// Login authenticates by a user name and a password, or a secret or token instead of the
// password. Failed attempts are limited by account and by address; the error TOOMANYREQUESTS
// says when to try again.
func (c *Control) Login(ctx context.Context, name, pass, address string) (*Principal, error) {
	if isSecret(pass) {
		return c.bySecret(ctx, name, pass)
	}
	name = strings.ToLower(name)
	if len(name) > 255 || len(pass) > maxAuthorization || strings.ContainsRune(name+pass, 0) {
		return nil, wrongCredentials
	}
	how, err := c.checkerOf(ctx, name, pass)
	if err != nil {
		return nil, err
	}
	what := password.Login{Name: name, Password: pass, Address: throttle.Address(address), Hash: how.hash}
	if how.federated != nil {
		what.Until = how.federated.expires
	}
	if how.account == "" && how.did.directory {
		// The check makes the account. It has to run again if the account is gone or renamed afterwards.
		what.Until = time.Now()
	}
	proof, err := c.opt.Verified.Prove(ctx, what, func(ctx context.Context) (password.Proof, error) {
		return c.attempt(ctx, name, pass, address, how)
	})
	switch {
	case err != nil:
		return nil, err
	case !proof.OK:
		return nil, wrongCredentials
	}
	p, err := c.enter(ctx, owned{account: name})
	if err == nil && how.id != 0 && how.id != p.ID { // another account has got this name meanwhile
		return nil, wrongCredentials
	}
	if err == nil {
		p.password, p.federated, p.proof = how.federated == nil, how.federated, proof
	}
	if err == nil && how.federated != nil {
		p.expires = &how.federated.expires
	}
	return p, err
}

// checker checks a password or a token in its place.
type checker struct {
	hash string // of the password; results are cached as long as it is the same
	// check says whether the password is right, and which one it is.
	check func(ctx context.Context) (password.Proof, error)
	did   worked // what a check that refuses the password has cost
	// federated is what a token of another issuer says, if it comes in place of a password. It
	// counts once check has returned true for the token.
	federated *federated
	// account is the name, if there is an account or an entry of the htpasswd file of that name, and id
	// the account's id, 0 if there is no account yet.
	account string
	id      int64
}

// checkerOf returns how the password of an account is checked: by the source of the account,
// or, if there is no account yet, by the htpasswd file or the directory.
func (c *Control) checkerOf(ctx context.Context, name, pass string) (checker, error) {
	if isRobotName(name) && c.opt.Federation != nil && identity.IsToken(pass) {
		return c.federationChecker(ctx, name, pass)
	}
	a, err := c.account(ctx, name)
	source, hash, known := a.Source, a.passwordHash, name
	switch {
	case errors.Is(err, ErrUnknown) && c.inHtpasswd(name):
		source = SourceHtpasswd
	case errors.Is(err, ErrUnknown) && c.opt.Directory != nil && !isRobotName(name):
		source, known = SourceLDAP, ""
	case errors.Is(err, ErrUnknown):
		source, known = SourceLocal, ""
	case err != nil:
		return checker{}, err
	case a.Robot: // robots have secrets, no passwords
		hash = ""
	}
	switch {
	case source == SourceLDAP && c.opt.Directory != nil:
		return checker{account: known, id: a.ID, hash: fmt.Sprintf("LDAP %d %q %q", a.ID, a.Subject, a.EntryID), did: worked{directory: true}, check: func(ctx context.Context) (password.Proof, error) {
			return c.checkDirectory(ctx, name, pass)
		}}, nil
	case source == SourceHtpasswd && c.opt.Htpasswd != nil:
		hash, _ = c.opt.Htpasswd.Lookup(name)
		return checker{account: known, id: a.ID, hash: hash, did: workOf(hash), check: func(ctx context.Context) (password.Proof, error) {
			ok, err := c.checkHtpasswd(ctx, name, pass, hash)
			return password.Proof{OK: ok, State: stateOfHash(source, name, hash)}, err
		}}, nil
	}
	did := workOf(hash)
	did.argon2 = true // a bcrypt hash of a local account, which Purser doesn't make, is in its place
	return checker{account: known, id: a.ID, hash: hash, did: did, check: func(ctx context.Context) (password.Proof, error) {
		ok, err := c.checkPassword(ctx, pass, hash)
		return password.Proof{OK: ok, State: stateOfHash(source, name, hash)}, err
	}}, nil
}

// attempt runs the check unless there were too many failed attempts for the account or from
// the address. The attempt counts as failed before the check begins, so that many attempts at
// once don't all pass; a success takes it back.
func (c *Control) attempt(ctx context.Context, name, pass, address string, how checker) (password.Proof, error) {
	reserve := c.opt.Failures.Reserve
	if how.federated != nil { // nobody guesses a signed token, so guesses for robots don't count
		reserve = c.opt.Failures.ReserveToken
	}
	attempt, wait, err := reserve(ctx, name, address)
	switch {
	case err != nil:
		return password.Proof{}, err
	case wait > 0:
		return password.Proof{}, oci.Errorf(oci.TooManyRequests, "there were too many failed log-ins: try again in %s", max(wait.Round(time.Second), time.Second)).
			WithRetryAfter(wait).WithCause(password.ErrRefused)
	}
	ctx = limit.WithCaller(ctx, limit.Caller{Account: name, Address: throttle.Address(address), Known: attempt.Known()})
	proof, err := how.check(ctx)
	finish := attempt.Succeeded
	switch {
	case err != nil: // it couldn't be checked
		finish = attempt.Cancel
	case !proof.OK:
		if how.federated != nil {
			if may, err := c.opt.Failures.LogToken(ctx, address); err != nil || !may {
				return password.Proof{}, err
			}
		}
		c.logFailure(ctx, how.account)
		if how.federated == nil { // it counts as failed, whatever level returns
			err = c.level(ctx, pass, how.did)
		}
		return password.Proof{}, err
	}
	if e := finish(context.WithoutCancel(ctx)); e != nil {
		c.log.WarnContext(ctx, "taking back an attempt to log in", "error", e)
	}
	return proof, err
}

func (c *Control) checkPassword(ctx context.Context, pass, hash string) (bool, error) {
	ok, err := c.opt.Passwords.Verify(ctx, pass, hash)
	if errors.Is(err, password.ErrBusy) {
		return false, tooManyLogIns()
	}
	return ok && hash != "", err
}

func (c *Control) checkHtpasswd(ctx context.Context, name, pass, hash string) (bool, error) {
	ok, err := c.checkPassword(ctx, pass, hash)
	if err != nil || !ok {
		return false, err
	}
	_, err = c.Provision(ctx, identity.Identity{Source: SourceHtpasswd, Subject: name, Name: name})
	return err == nil, err
}

// checkDirectory lets the directory check a password. The name must be that of the account: a
// directory may know a person by other names too, such as an address, under which there would
// be no account the next time.
func (c *Control) checkDirectory(ctx context.Context, name, pass string) (p password.Proof, err error) {
	began := time.Now()
	i, err := c.opt.Directory.Login(ctx, name, pass)
	switch {
	case errors.Is(err, identity.ErrRefused) || err == nil && i.Name != name:
		return p, nil
	case err != nil:
		return p, noDirectory(err)
	}
	a, err := c.Provision(ctx, i)
	if err == nil && a.Name != name { // the account `name` may be somebody else's
		err = exists("the directory's %s has the account %s, from before the name changed: ask the registry's administrator", name, a.Name)
	}
	p.OK = err == nil
	known := false
	if p.State, known = stateInDirectory(i); !known {
		// Nobody could say later whether this is still the password, so it is asked for again.
		p.Until = began.Add(c.opt.DirectoryRecheck)
	}
	return p, err
}

// logFailure writes an entry of a failed log-in. The limit on failures bounds their number. An
// unknown name, for which `account` is "", isn't written: it may be a password that was typed in
// the wrong place.
func (c *Control) logFailure(ctx context.Context, account string) {
	detail := map[string]any{}
	if account != "" {
		detail["account"] = account
	}
	err := audit.Append(ctx, c.db.Pool, audit.Entry{Kind: audit.LoginFailure, Detail: detail})
	if err != nil {
		c.log.WarnContext(ctx, "writing a failed log-in to the audit log", "error", err)
	}
}
