package auth

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/auth/identity"
	"github.com/purser-registry/purser/internal/db"
)

// Provision returns the account of a person whom another source has identified. It creates the
// account at the first log-in. At each log-in it updates the e-mail address, the memberships in
// teams by groups, and, for Options.SuperusersOf, whether the person administers the registry.
//
// An account of the same name but with another identity isn't taken over: the error, with
// status 409, says so.
func (c *Control) Provision(ctx context.Context, i identity.Identity) (a Account, err error) {
	if err := CheckAccountName(i.Name); err != nil {
		return a, err
	}
	created := false
	err = c.change(ctx, "creating account "+i.Name, func(tx pgx.Tx) error {
		created = false
		var name string
		var id int64
		err := tx.QueryRow(ctx, "SELECT id, name FROM accounts WHERE source = $1 AND subject = $2 FOR UPDATE", i.Source, i.Subject).Scan(&id, &name)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			created = true
			err = tx.QueryRow(ctx, `
				INSERT INTO accounts (name, kind, source, subject, email) VALUES (@name, 'user', @source, @subject, @email)
				ON CONFLICT DO NOTHING RETURNING id`,
				db.Args{"name": i.Name, "source": i.Source, "subject": i.Subject, "email": orNull(i.Email)}).Scan(&id)
			if errors.Is(err, pgx.ErrNoRows) {
				return exists("there is an account %s already, with another identity: ask the registry's administrator", i.Name)
			}
			name = i.Name
		case err == nil:
			_, err = tx.Exec(ctx, "UPDATE accounts SET email = $2 WHERE id = $1 AND email IS DISTINCT FROM $2", id, orNull(i.Email))
		}
		if err != nil {
			return err
		}
		if slices.Contains(c.opt.SuperusersOf, i.Source) {
			if _, err := tx.Exec(ctx, "UPDATE accounts SET superuser = $2 WHERE id = $1 AND superuser <> $2", id, i.Superuser); err != nil {
				return err
			}
		}
		if i.Source != SourceHtpasswd {
			if err := syncTeams(ctx, tx, id, i.Source, i.Groups); err != nil {
				return err
			}
		}
		a.Name = name
		if !created {
			return nil
		}
		return audit.Append(ctx, tx, audit.Entry{Kind: audit.CreateUser, Detail: map[string]any{"account": name, "source": i.Source}})
	})
	if err != nil {
		return a, err
	}
	if created {
		if err := c.GiveNamespace(ctx, a.Name); err != nil {
			c.log.WarnContext(ctx, "creating the namespace of a new account", "account", a.Name, "error", err)
		}
	}
	return c.Store.Account(ctx, a.Name)
}

// GiveNamespace creates the namespace with the name of a person's account, of which the account
// becomes the administrator. It does nothing if a namespace of that name exists, or if people
// get no namespaces of their own.
func (c *Control) GiveNamespace(ctx context.Context, account string) error {
	if c.opt.NewNamespace == nil {
		return nil
	}
	made, err := c.opt.NewNamespace(ctx, account)
	if err != nil || !made {
		return err
	}
	if err := c.SetGrant(ctx, OfNamespace(account), account, "", Administrator); err != nil {
		return fmt.Errorf("giving %s the namespace of that name: %w", account, err)
	}
	return nil
}
