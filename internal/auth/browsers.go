package auth

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/auth/password"
	"github.com/purser-registry/purser/internal/auth/session"
	"github.com/purser-registry/purser/internal/oci"
)

// errNoSessions is the error for browsers if there are no sessions.
var errNoSessions = oci.Errorf(oci.Denied, "browsers can't log in at this registry")

// CheckBrowser returns nil if a browser may log in with the request: there are sessions, and
// nobody on the way can read the cookie. The error is for the client.
func (c *Control) CheckBrowser(r *http.Request) error {
	if c.opt.Sessions == nil {
		return errNoSessions
	}
	_, err := c.opt.Sessions.Secure(r)
	return err
}

// OpenSession logs a browser in as the account `name`, which the caller has authenticated, and
// sets the cookie. It ends the session that the browser had before. `by` says in the audit log
// how the person has logged in, and `proof` by which password; it is empty for none. Errors for the client: UNAUTHORIZED for a disabled account, and
// those of CheckBrowser.
func (c *Control) OpenSession(w http.ResponseWriter, r *http.Request, name, by string, proof password.Proof) error {
	ctx := r.Context()
	if err := c.CheckBrowser(r); err != nil {
		return err
	}
	a, err := c.Store.Account(ctx, name)
	other := proof.Account != 0 && proof.Account != a.ID // which has got the name meanwhile
	if errors.Is(err, ErrUnknown) || err == nil && (other || c.shut(a) || a.Robot) {
		return wrongCredentials
	}
	if err != nil {
		return err
	}
	if _, _, err := c.endSession(r); err != nil {
		return err
	}
	source := audit.SourceOf(ctx)
	secret, err := c.opt.Sessions.CreateProved(ctx, a.ID, source.Address, r.UserAgent(), sessionProof(proof))
	if errors.Is(err, session.ErrNoAccount) {
		return wrongCredentials
	}
	if err != nil {
		return err
	}
	err = audit.Append(ctx, c.db.Pool, audit.Entry{Kind: audit.LoginSuccess, Actor: a.Name, Detail: map[string]any{"account": a.Name, "by": by}})
	if err != nil {
		return err
	}
	return c.opt.Sessions.SetCookie(w, r, secret)
}

// CloseSession ends the session of the browser's cookie, if there is one, and clears the cookie.
func (c *Control) CloseSession(w http.ResponseWriter, r *http.Request) error {
	if c.opt.Sessions == nil {
		return errNoSessions
	}
	found, ended, err := c.endSession(r)
	if err != nil {
		return err
	}
	c.opt.Sessions.ClearCookie(w, r)
	if !ended {
		return nil
	}
	a, err := c.accountByID(r.Context(), found.Account)
	if errors.Is(err, ErrUnknown) {
		return nil
	}
	if err != nil {
		return err
	}
	return audit.Append(r.Context(), c.db.Pool, audit.Entry{Kind: audit.LogoutSuccess, Actor: a.Name, Detail: map[string]any{"account": a.Name}})
}

// endSession revokes the session of the request's cookie.
func (c *Control) endSession(r *http.Request) (found session.Session, ended bool, err error) {
	secret := c.opt.Sessions.Secret(r)
	if secret == "" {
		return found, false, nil
	}
	found, ok, err := c.opt.Sessions.Find(r.Context(), secret)
	if err != nil || !ok {
		return found, false, err
	}
	ended, err = c.opt.Sessions.Revoke(r.Context(), found.Account, found.ID)
	return found, ended, err
}

// BrowserSecret returns a secret of 32 bytes, which all processes on this database share. The
// first call creates it. It encrypts what browsers keep while they log in elsewhere.
func (s *Store) BrowserSecret(ctx context.Context) ([]byte, error) {
	fresh := make([]byte, 32)
	rand.Read(fresh) //nolint:errcheck // it never fails
	b := new(pgx.Batch)
	b.Queue("INSERT INTO settings (name, value) VALUES ('browsers_secret', $1) ON CONFLICT (name) DO NOTHING", hex.EncodeToString(fresh))
	var text string
	b.Queue("SELECT value FROM settings WHERE name = 'browsers_secret'").QueryRow(func(row pgx.Row) error { return row.Scan(&text) })
	if err := s.db.Pool.SendBatch(ctx, b).Close(); err != nil {
		return nil, fmt.Errorf("reading the secret of browsers' log-ins: %w", err)
	}
	secret, err := hex.DecodeString(text)
	if err != nil || len(secret) != len(fresh) {
		return nil, fmt.Errorf("the secret of browsers' log-ins (settings, browsers_secret) is damaged: it is not %d bytes in hexadecimal; delete the row, and log-ins in progress begin again", len(fresh))
	}
	return secret, nil
}
