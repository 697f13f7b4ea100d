package auth

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/auth/identity"
	"github.com/purser-registry/purser/internal/oci"
)

// Provision returns the account of a person whom another source has identified. It creates the
// account at the first log-in. At each log-in it updates the memberships in teams by groups, the
// e-mail address if the source has one, and, for Options.SuperusersOf, whether the person
// administers the registry.
//
// An account of the same name but with another identity isn't taken over: the error, with
// status 409, says so. A person whose name has changed keeps the account: with the old name, or, if
// the directory of LDAP has changed it, with the new one, unless another account has that.
func (c *Control) Provision(ctx context.Context, i identity.Identity) (a Account, err error) {
	if err := CheckAccountName(i.Name); err != nil {
		return a, err
	}
	// Most log-ins change nothing. The caches are then kept.
	created, changed := false, false
	var id int64
	err = c.db.Tx(ctx, func(tx pgx.Tx) (err error) {
		b, err := bind(ctx, tx, i)
		if err != nil {
			return err
		}
		id = b.account
		a.Name, created = b.name, b.created
		updated, err := c.update(ctx, tx, id, a.Name, i)
		if err != nil {
			return err
		}
		changed = created || b.changed || updated
		if i.Source != SourceHtpasswd {
			synced, err := syncTeams(ctx, tx, id, a.Name, i.Source, i.GroupKeys())
			if err != nil {
				return err
			}
			changed = changed || synced
		}
		if !created {
			return nil
		}
		return audit.Append(ctx, tx, audit.Entry{Kind: audit.CreateUser, Detail: map[string]any{"account": a.Name, "source": i.Source}})
	})
	if changed || err != nil {
		c.changed()
	}
	if _, ok := errors.AsType[*oci.Error](err); err != nil && !ok {
		err = fmt.Errorf("creating account %s: %w", i.Name, err)
	}
	if err != nil {
		return a, err
	}
	if created {
		if err := c.GiveNamespace(ctx, a.Name); err != nil {
			c.log.WarnContext(ctx, "creating the namespace of a new account", "account", a.Name, "error", err)
		}
	}
	if a, err = c.Store.Account(ctx, a.Name); err == nil && a.ID != id { // another one has got its name meanwhile
		return Account{}, unknown("the account is gone")
	}
	return a, err
}

// update gives an account the e-mail address and the right to administer the registry that the
// source of its identity says. Both stay as they are where the source doesn't say.
func (c *Control) update(ctx context.Context, tx pgx.Tx, id int64, name string, i identity.Identity) (changed bool, err error) {
	tag, err := tx.Exec(ctx, "UPDATE accounts SET email = $2 WHERE id = $1 AND email IS DISTINCT FROM $2 AND $2 <> ''", id, i.Email)
	if err != nil || !slices.Contains(c.opt.SuperusersOf, i.Source) {
		return err == nil && tag.RowsAffected() > 0, err
	}
	changed = tag.RowsAffected() > 0
	tag, err = tx.Exec(ctx, "UPDATE accounts SET superuser = $2 WHERE id = $1 AND superuser <> $2", id, i.Superuser)
	if err != nil || tag.RowsAffected() == 0 {
		return changed, err
	}
	return true, audit.Append(ctx, tx, audit.Entry{Kind: audit.ChangeUser, Detail: map[string]any{
		"account": name, "superuser": i.Superuser, "source": i.Source}})
}

func (c *Control) isReserved(namespace string) bool {
	return slices.ContainsFunc(c.opt.ReservedNamespaces, func(name string) bool { return strings.EqualFold(name, namespace) })
}

// GiveNamespace creates the namespace with the name of a person's account, of which the account
// becomes the administrator. It does nothing if a namespace of that name exists or is reserved, or
// if people get no namespaces of their own.
func (c *Control) GiveNamespace(ctx context.Context, account string) error {
	if c.opt.NewNamespace == nil || c.isReserved(account) {
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
