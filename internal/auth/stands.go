package auth

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/auth/identity"
	"github.com/purser-registry/purser/internal/auth/password"
	"github.com/purser-registry/purser/internal/auth/session"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
)

// A log-in by a password gives a refresh token or a session of a browser. These count only as long as
// the account has that password. Whoever changes the password wants to end what others have got
// by the old one.
//
// So each refresh token and each session has the state of the password by which it was got: a
// digest that changes when the password does. Of passwords that Purser or the htpasswd file keeps,
// it is a digest of the stored hash, and is compared at each use. A directory doesn't show hashes.
// There it is the time at which the password was changed, and the directory is asked for it when
// its last answer is older than Options.DirectoryRecheck.

const (
	// recheckPause is how long the directory isn't asked again about an account after it didn't
	// answer. A request would otherwise wait for it each time.
	recheckPause = 30 * time.Second
	// defaultRecheck is the default of Options.DirectoryRecheck.
	defaultRecheck = time.Hour
)

// bought is what somebody has got by a password.
type bought struct {
	refresh   bool       // a refresh token, not a session
	state     []byte     // of the password; nil: there was none
	confirmed *time.Time // when the account's source has last confirmed the state
}

// stateOf returns the state of a password.
func stateOf(parts ...string) []byte {
	h := sha256.New()
	for _, s := range parts {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(s))))
		h.Write([]byte(s))
	}
	return h.Sum(nil)
}

// stateOfHash returns the state of a password of which the hash is stored. The hash has a random
// salt, so the state tells nothing about the password.
func stateOfHash(source, name, hash string) []byte { return stateOf(source, name, hash) }

// stateInDirectory returns the state of a password that the directory checks. ok is false if the
// directory doesn't say when it was changed; such a state never compares as unchanged.
func stateInDirectory(i identity.Identity) (state []byte, ok bool) {
	return stateOf(SourceLDAP, cmp.Or(i.EntryID, i.Subject), i.PasswordChanged), i.PasswordChanged != ""
}

// stands says whether what was got by a password of an account still counts.
func (c *Control) stands(ctx context.Context, a Account, b bought) (bool, error) {
	switch {
	case a.Source == SourceLDAP:
		return c.standsInDirectory(ctx, a, b)
	case b.state == nil: // a session that began at an OpenID Connect provider has none
		return !b.refresh && a.Source != SourceHtpasswd, nil
	case a.Source == SourceHtpasswd:
		if c.opt.Htpasswd == nil {
			return false, nil
		}
		hash, ok := c.opt.Htpasswd.Lookup(a.Name)
		return ok && bytes.Equal(b.state, stateOfHash(a.Source, a.Name, hash)), nil
	case bytes.Equal(b.state, stateOfHash(a.Source, a.Name, a.passwordHash)):
		return true, nil
	}
	// The account may come from the cache, and another replica may have changed the password.
	a, err := c.Store.accountByID(ctx, a.ID)
	if errors.Is(err, ErrUnknown) {
		return false, nil
	}
	return err == nil && bytes.Equal(b.state, stateOfHash(a.Source, a.Name, a.passwordHash)), err
}

// confirmation is what the directory has last said about a state of an account's password.
type confirmation struct {
	at     time.Time // when it has confirmed it
	failed time.Time // when it was asked in vain
}

// stateKey names a state of an account's password.
type stateKey struct {
	account int64
	state   string
}

// standsInDirectory is stands for an account of the directory.
//
// A directory that doesn't answer says nothing. What it has confirmed before then stands for as
// long again, so that a short outage ends nobody's work and a long one doesn't let a password
// count for ever. After that, refresh tokens get an error, and count again when the directory
// does.
func (c *Control) standsInDirectory(ctx context.Context, a Account, b bought) (bool, error) {
	if c.opt.Directory == nil || b.state == nil || b.confirmed == nil {
		return false, nil
	}
	key, now := stateKey{a.ID, string(b.state)}, time.Now()
	known, _ := c.confirmed.Get(key)
	if b.confirmed.After(known.at) {
		known.at = *b.confirmed
	}
	age := now.Sub(known.at)
	if age < c.opt.DirectoryRecheck {
		return true, nil
	}
	if now.Sub(known.failed) >= recheckPause {
		// Requests that come at the same time share one question.
		v, err, _ := c.rechecks.Do(fmt.Sprintf("%d %x", a.ID, b.state), func() (any, error) {
			return c.recheck(context.WithoutCancel(ctx), a, b.state, known.at)
		})
		if !errors.Is(err, identity.ErrUnavailable) {
			ok, _ := v.(bool)
			return ok && err == nil, err
		}
		c.log.WarnContext(ctx, "the directory can't be asked whether an account still has the same password", "account", a.Name, "error", err)
	}
	if age < 2*c.opt.DirectoryRecheck {
		return true, nil
	}
	return false, oci.Errorf(oci.Unavailable, "the directory that checks passwords has not been available for a long time: try again, or log in again").WithCause(identity.ErrUnavailable)
}

// recheck asks the directory whether an account is there, may log in and still has the password.
// If not, what the password has bought is deleted, so that nobody makes Purser ask again.
func (c *Control) recheck(ctx context.Context, a Account, state []byte, last time.Time) (bool, error) {
	key, now := stateKey{a.ID, string(state)}, time.Now()
	i, err := c.opt.Directory.Find(ctx, a.Name)
	if errors.Is(err, identity.ErrUnavailable) {
		c.confirmed.Set(key, confirmation{at: last, failed: now})
		return false, err
	}
	if err == nil {
		same, known := stateInDirectory(i)
		switch {
		case !isEntryOf(i, a) || i.Name != a.Name:
			err = errors.New("the name is that of another entry")
		case !known:
			err = errors.New("the directory doesn't say when the password was changed")
		case !bytes.Equal(same, state):
			err = errors.New("the password was changed")
		}
	}
	if err != nil {
		return false, c.endBought(ctx, a, state, err.Error())
	}
	if _, err := c.Provision(ctx, i); err != nil { // the roles by groups may have changed
		return false, err
	}
	_, err = c.db.Pool.Exec(ctx, `
		WITH sessions AS (
			UPDATE sessions SET confirmed_at = GREATEST(confirmed_at, @at) WHERE account_id = @account AND password_state = @state
		)
		UPDATE credentials SET confirmed_at = GREATEST(confirmed_at, @at) WHERE account_id = @account AND password_state = @state`,
		db.Args{"account": a.ID, "state": state, "at": now})
	if err != nil {
		return false, fmt.Errorf("storing that the directory has confirmed a password: %w", err)
	}
	c.confirmed.Set(key, confirmation{at: now})
	return true, nil
}

// endBought ends the refresh tokens and sessions that were got by a password that is no longer the
// account's.
func (c *Control) endBought(ctx context.Context, a Account, state []byte, why string) error {
	return c.change(ctx, "ending the log-ins of "+a.Name, func(tx pgx.Tx) error {
		var e Ended
		err := tx.QueryRow(ctx, `
			WITH s AS (DELETE FROM sessions WHERE account_id = $1 AND password_state = $2 RETURNING 1),
				c AS (DELETE FROM credentials WHERE account_id = $1 AND password_state = $2 RETURNING 1)
			SELECT (SELECT count(*) FROM s), (SELECT count(*) FROM c)`, a.ID, state).Scan(&e.Sessions, &e.RefreshTokens)
		if err != nil || e == (Ended{}) {
			return err
		}
		return audit.Append(ctx, tx, audit.Entry{Kind: audit.EndLogIns, Detail: map[string]any{
			"account": a.Name, "sessions": e.Sessions, "refresh_tokens": e.RefreshTokens, "reason": "directory: " + why}})
	})
}

// CreateRefreshToken makes a refresh token of a person who has logged in by a password. It is valid
// until `expires` at most, and no longer than the password by which the person has logged in.
func (c *Control) CreateRefreshToken(ctx context.Context, p *Principal, title string, expires time.Time) (secret string, err error) {
	if !p.MayRefresh() || p.proof.State == nil {
		return "", oci.Errorf(oci.Denied, "a refresh token is for a person who sends a password")
	}
	if until := p.proof.Until; !until.IsZero() && until.Before(expires) {
		expires = until
	}
	_, secret, err = c.createToken(ctx, p, Credential{
		Kind: RefreshToken, Title: title, Expires: &expires, passwordState: p.proof.State, confirmed: &p.proof.At})
	return secret, err
}

// sessionProof says by which password a person has logged in, for a session.
func sessionProof(p password.Proof) session.Proof {
	return session.Proof{PasswordState: p.State, Confirmed: p.At, Until: p.Until}
}

// Ended says how many log-ins of an account have ended.
type Ended struct {
	Sessions, RefreshTokens, PersonalTokens int
}

// EndLogIns ends all sessions and refresh tokens of a person's account, and the personal tokens too
// if `personal` is true. The password stays. Error: 404 if the account doesn't exist.
func (s *Store) EndLogIns(ctx context.Context, name string, personal bool) (e Ended, err error) {
	err = s.change(ctx, "ending the log-ins of "+name, func(tx pgx.Tx) error {
		var id int64
		// The lock makes log-ins in progress come before or after this.
		err := tx.QueryRow(ctx, "SELECT id FROM accounts WHERE name = $1 AND kind = 'user' FOR UPDATE", name).Scan(&id)
		if errors.Is(err, pgx.ErrNoRows) {
			return unknownAccount(name)
		}
		if err != nil {
			return err
		}
		if e, err = endAll(ctx, tx, id, personal); err != nil {
			return err
		}
		return audit.Append(ctx, tx, audit.Entry{Kind: audit.EndLogIns, Detail: map[string]any{
			"account": name, "sessions": e.Sessions, "refresh_tokens": e.RefreshTokens, "personal_tokens": e.PersonalTokens}})
	})
	return e, err
}

// endAll ends all sessions and refresh tokens of an account, and the personal tokens too if `personal`
// is true.
func endAll(ctx context.Context, tx pgx.Tx, account int64, personal bool) (e Ended, err error) {
	err = tx.QueryRow(ctx, `
		WITH s AS (DELETE FROM sessions WHERE account_id = $1 RETURNING 1),
			c AS (DELETE FROM credentials WHERE account_id = $1 AND (kind = 'refresh' OR $2 AND kind = 'personal') RETURNING kind)
		SELECT (SELECT count(*) FROM s), (SELECT count(*) FROM c WHERE kind = 'refresh'), (SELECT count(*) FROM c WHERE kind = 'personal')`,
		account, personal).Scan(&e.Sessions, &e.RefreshTokens, &e.PersonalTokens)
	return e, err
}
