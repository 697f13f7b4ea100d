package auth

import (
	"context"
	"errors"
	"net/http"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/auth/identity"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
)

// Rebinding says to which entry of the directory an account is to belong.
type Rebinding struct {
	// To is the entry, as Control.Entry has found it. Nil: the account awaits the next entry that logs
	// in by the account's name.
	To *identity.Identity
	// KeepTokens leaves the account its personal tokens, for a person who has made them and whose entry
	// was made anew.
	KeepTokens bool
}

// Entry returns the entry of the directory that a person logs in with by a name. Errors: 400 if the
// registry has no directory, 404 if nobody may log in by the name, 503 if the directory doesn't answer.
func (c *Control) Entry(ctx context.Context, name string) (identity.Identity, error) {
	if c.opt.Directory == nil {
		return identity.Identity{}, invalid("the registry has no directory of LDAP in which to look for %s", short(name))
	}
	i, err := c.opt.Directory.Find(ctx, name)
	switch {
	case errors.Is(err, identity.ErrRefused):
		return i, oci.Errorf(oci.Unsupported, "nobody may log in as %s by the directory, so there is no entry to bind to", short(name)).
			WithStatus(http.StatusNotFound).WithCause(err)
	case err != nil:
		return i, noDirectory(err)
	}
	return i, nil
}

// Rebind makes a person's account of the directory belong to another entry, or to none until the next
// log-in by its name. What the person until now has logged in with ends. Errors: 404 if there is no
// such account, 400 if it isn't one of the directory, 409 if another account has the entry or the
// name by which the entry logs in.
func (s *Store) Rebind(ctx context.Context, name string, r Rebinding) (e Ended, err error) {
	err = s.change(ctx, "rebinding account "+name, func(tx pgx.Tx) error {
		if r.To != nil { // in the order of lockBound, which a log-in may run meanwhile
			if _, err := tx.Exec(ctx, "SELECT FROM accounts WHERE name = $1 OR source = $2 AND (subject = $3 OR entry_id = $4) ORDER BY id FOR UPDATE",
				name, r.To.Source, r.To.Subject, orNull(r.To.EntryID)); err != nil {
				return err
			}
		}
		account, err := lockDirectoryAccount(ctx, tx, name)
		if err != nil {
			return err
		}
		detail := map[string]any{"account": name, "source": SourceLDAP, "former_subject": text(account.Subject), "former_entry": text(account.EntryID)}
		if r.To == nil {
			detail["awaits_entry"] = true
			_, err = tx.Exec(ctx, "UPDATE accounts SET subject = NULL, entry_id = NULL, awaits_entry = true WHERE id = $1", account.ID)
		} else {
			detail["subject"], detail["entry"] = r.To.Subject, r.To.EntryID
			err = bindTo(ctx, tx, account, *r.To)
		}
		if err != nil {
			return err
		}
		if e, err = endAll(ctx, tx, account.ID, !r.KeepTokens); err != nil {
			return err
		}
		detail["sessions"], detail["refresh_tokens"], detail["personal_tokens"] = e.Sessions, e.RefreshTokens, e.PersonalTokens
		return audit.Append(ctx, tx, audit.Entry{Kind: audit.ChangeUser, Detail: detail})
	})
	return e, err
}

// NotOfDirectory returns the refusal to rebind an account of another source, with status 400.
func NotOfDirectory(name, source string) error {
	return invalid("account %s isn't one of the directory of LDAP, but of the source %s: it belongs to no entry", name, source)
}

// lockDirectoryAccount locks the row of a person's account, which must be one of the directory.
func lockDirectoryAccount(ctx context.Context, tx pgx.Tx, name string) (b bound, err error) {
	var source string
	err = tx.QueryRow(ctx, "SELECT id, name, subject, entry_id, awaits_entry, source FROM accounts WHERE name = $1 AND kind = 'user' FOR UPDATE", name).
		Scan(&b.ID, &b.Name, &b.Subject, &b.EntryID, &b.Awaits, &source)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return b, unknownAccount(name)
	case err == nil && source != SourceLDAP:
		return b, NotOfDirectory(name, source)
	}
	return b, err
}

// bindTo gives an account an entry that no other account has.
func bindTo(ctx context.Context, tx pgx.Tx, account bound, i identity.Identity) error {
	var other string
	err := tx.QueryRow(ctx, `
		SELECT name FROM accounts
		WHERE id <> $1 AND (name = $2 OR source = $3 AND (entry_id = $4 OR subject = $5 AND entry_id IS NULL))
		ORDER BY id LIMIT 1`, account.ID, i.Name, i.Source, orNull(i.EntryID), i.Subject).Scan(&other)
	switch {
	case err == nil:
		return exists("account %s has this entry, or the name by which the entry logs in: delete that account, or bind it to another entry, first", other)
	case !errors.Is(err, pgx.ErrNoRows):
		return err
	}
	// An account of another entry may have recorded the DN, which this entry has by now.
	_, err = tx.Exec(ctx, "UPDATE accounts SET subject = NULL WHERE id <> $1 AND source = $2 AND subject = $3", account.ID, i.Source, i.Subject)
	if err == nil {
		_, err = tx.Exec(ctx, "UPDATE accounts SET subject = $2, entry_id = $3, awaits_entry = false WHERE id = $1", account.ID, i.Subject, orNull(i.EntryID))
	}
	if db.Code(err) == db.CodeUniqueViolation {
		return exists("another account has got this entry meanwhile")
	}
	return err
}
