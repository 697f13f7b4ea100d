package auth

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/db"
)

// These are the sources of accounts: who checks a person's password or identity.
const (
	SourceLocal    = "local" // Purser itself
	SourceHtpasswd = "htpasswd"
	SourceOIDC     = "oidc"
	SourceLDAP     = "ldap"
)

// Account is a person or a robot.
type Account struct {
	ID          int64
	Name        string // of a robot: namespace+name
	Robot       bool
	Namespace   string // of a robot
	Source      string
	Subject     string // its identity at its source, "" for local accounts
	EntryID     string // of LDAP: the id of the directory's entry, "" if it isn't known
	Awaits      bool   // of LDAP: it has no entry, and the next log-in by its name gives it one
	Email       string
	Description string
	Superuser   bool // an administrator of the registry
	Disabled    bool
	Limits      Limits // of a robot
	Created     time.Time
	LastUsed    *time.Time // nil: never

	passwordHash string
}

// HasPassword says whether the account has a password that Purser checks.
func (a Account) HasPassword() bool { return a.passwordHash != "" }

// scanAccount reads the columns that each query for accounts selects, in this order.
func scanAccount(row pgx.CollectableRow) (a Account, err error) {
	var email, subject, entry, hash, namespace *string
	var kind string
	var disabled *time.Time
	err = row.Scan(&a.ID, &a.Name, &kind, &namespace, &a.Source, &subject, &entry, &a.Awaits, &email, &a.Description, &a.Superuser, &disabled,
		&a.Limits.Repositories, &a.Limits.Actions, &a.Created, &a.LastUsed, &hash)
	a.Robot, a.Disabled = kind == "robot", disabled != nil
	a.Email, a.Subject, a.EntryID, a.passwordHash, a.Namespace = text(email), text(subject), text(entry), text(hash), text(namespace)
	return a, err
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func orNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// Account returns the account with a name. Error: 404 if there is none.
func (s *Store) Account(ctx context.Context, name string) (Account, error) {
	rows, err := s.db.Pool.Query(ctx, `
		SELECT a.id, a.name, a.kind, n.name, a.source, a.subject, a.entry_id, a.awaits_entry, a.email, a.description, a.superuser, a.disabled_at,
			a.repository_patterns, a.actions, a.created_at, a.last_used_at, a.password_hash
		FROM accounts a LEFT JOIN live_namespaces n ON n.id = a.top_level_namespace_id
		WHERE a.name = $1 AND a.deleted_name IS NULL`, name)
	if err != nil {
		return Account{}, err
	}
	a, err := pgx.CollectExactlyOneRow(rows, scanAccount)
	if errors.Is(err, pgx.ErrNoRows) {
		return a, unknownAccount(name)
	}
	return a, err
}

func unknownAccount(name string) error { return unknown("there is no account %s", short(name)) }

// Accounts lists up to n people's accounts whose names come after the name `after` and contain
// the text `contains`, in the order of names. `more` says whether there are further ones.
func (s *Store) Accounts(ctx context.Context, contains, after string, n int) (list []Account, more bool, err error) {
	rows, err := s.db.Pool.Query(ctx, `
		SELECT id, name, kind, NULL::text, source, subject, entry_id, awaits_entry, email, description, superuser, disabled_at,
			repository_patterns, actions, created_at, last_used_at, password_hash
		FROM accounts WHERE kind = 'user' AND name > $1 AND strpos(name, $2) > 0
		ORDER BY name LIMIT $3`, after, contains, n+1)
	return db.Page(rows, err, n, scanAccount)
}

// NewAccount is a person's account to be created.
type NewAccount struct {
	Name, Email  string
	Superuser    bool
	PasswordHash string // "": no log-in by password
	Source       string // default SourceLocal
	Subject      string
}

// CreateAccount creates a person's account. Errors: 400 if the name is invalid, 409 if an
// account has it.
func (s *Store) CreateAccount(ctx context.Context, n NewAccount) (a Account, err error) {
	if err := CheckAccountName(n.Name); err != nil {
		return a, err
	}
	if n.Source == "" {
		n.Source = SourceLocal
	}
	err = s.change(ctx, "creating account "+n.Name, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
			INSERT INTO accounts (name, kind, source, subject, email, superuser, password_hash)
			VALUES (@name, 'user', @source, @subject, @email, @superuser, @hash)
			ON CONFLICT DO NOTHING
			RETURNING id, name, kind, NULL::text, source, subject, entry_id, awaits_entry, email, description, superuser, disabled_at,
				repository_patterns, actions, created_at, last_used_at, password_hash`,
			db.Args{"name": n.Name, "source": n.Source, "subject": orNull(n.Subject), "email": orNull(n.Email),
				"superuser": n.Superuser, "hash": orNull(n.PasswordHash)})
		if err != nil {
			return err
		}
		a, err = pgx.CollectExactlyOneRow(rows, scanAccount)
		if errors.Is(err, pgx.ErrNoRows) {
			return exists("there is an account %s already", n.Name)
		}
		if err != nil {
			return err
		}
		return audit.Append(ctx, tx, audit.Entry{Kind: audit.CreateUser, Detail: map[string]any{
			"account": n.Name, "source": n.Source, "superuser": n.Superuser}})
	})
	return a, err
}

// HasAdministrator says whether the registry has an administrator.
func (s *Store) HasAdministrator(ctx context.Context) (found bool, err error) {
	err = s.db.Pool.QueryRow(ctx, "SELECT EXISTS (SELECT FROM accounts WHERE superuser)").Scan(&found)
	return found, err
}

// CreateFirstAdministrator creates an administrator of the registry if there is none. It returns
// false if there is one, or if another account has the name. If several replicas call it at once,
// one of them creates the account.
func (s *Store) CreateFirstAdministrator(ctx context.Context, name, passwordHash string) (made bool, err error) {
	err = s.change(ctx, "creating the first administrator", func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "LOCK TABLE accounts IN SHARE ROW EXCLUSIVE MODE"); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, `
			INSERT INTO accounts (name, kind, superuser, password_hash)
			SELECT $1, 'user', true, $2 WHERE NOT EXISTS (SELECT FROM accounts WHERE superuser)
			ON CONFLICT DO NOTHING`, name, passwordHash)
		if made = err == nil && tag.RowsAffected() == 1; !made {
			return err
		}
		return audit.Append(ctx, tx, audit.Entry{Kind: audit.CreateUser, Detail: map[string]any{"account": name, "superuser": true}})
	})
	return made, err
}

// AccountChange changes an account. Nil fields stay as they are.
type AccountChange struct {
	// ID is the id of the account, since another one may have got its name. 0: whoever has the name.
	ID           int64
	Email        *string
	PasswordHash *string // "" takes the password away
	Superuser    *bool
	Disabled     *bool
}

// ChangeAccount changes a person's account. A new password and a disabled account end the
// account's sessions and refresh tokens. Errors: 404 if the account doesn't exist, 409 if the
// registry would be left without an enabled administrator.
func (s *Store) ChangeAccount(ctx context.Context, name string, c AccountChange) error {
	return s.change(ctx, "changing account "+name, func(tx pgx.Tx) error {
		var id int64
		err := tx.QueryRow(ctx, `
			UPDATE accounts SET
				email = CASE WHEN @email::text IS NULL THEN email ELSE NULLIF(@email, '') END,
				password_hash = CASE WHEN @hash::text IS NULL THEN password_hash ELSE NULLIF(@hash, '') END,
				superuser = COALESCE(@superuser, superuser),
				disabled_at = CASE WHEN @disabled::boolean IS NULL THEN disabled_at WHEN @disabled THEN COALESCE(disabled_at, now()) END
			WHERE name = @name AND kind = 'user' AND (@id::bigint = 0 OR id = @id) RETURNING id`,
			db.Args{"name": name, "id": c.ID, "email": c.Email, "hash": c.PasswordHash, "superuser": c.Superuser, "disabled": c.Disabled}).Scan(&id)
		if errors.Is(err, pgx.ErrNoRows) {
			return unknownAccount(name)
		}
		if err != nil {
			return err
		}
		if c.PasswordHash != nil || c.Disabled != nil && *c.Disabled {
			if err := endLogIns(ctx, tx, id); err != nil {
				return err
			}
		}
		if c.Superuser != nil && !*c.Superuser || c.Disabled != nil && *c.Disabled {
			if err := requireAdministrator(ctx, tx); err != nil {
				return err
			}
		}
		return audit.Append(ctx, tx, c.entries(name)...)
	})
}

// endLogIns ends the sessions and the refresh tokens of an account.
func endLogIns(ctx context.Context, tx pgx.Tx, account int64) error {
	_, err := tx.Exec(ctx, `
		WITH ended AS (DELETE FROM sessions WHERE account_id = $1)
		DELETE FROM credentials WHERE account_id = $1 AND kind = 'refresh'`, account)
	return err
}

// requireAdministrator returns an error if the transaction leaves the registry without an
// enabled administrator. Accounts of administrators are locked in the order of their ids, so
// that two transactions can't each count on the other's account.
func requireAdministrator(ctx context.Context, tx pgx.Tx) error {
	var found bool
	err := tx.QueryRow(ctx, `
		WITH locked AS MATERIALIZED (
			SELECT disabled_at FROM accounts WHERE superuser ORDER BY id FOR UPDATE
		)
		SELECT EXISTS (SELECT FROM locked WHERE disabled_at IS NULL)`).Scan(&found)
	if err == nil && !found {
		err = exists("the registry needs an administrator who is not disabled: make another account one first")
	}
	return err
}

func (c AccountChange) entries(name string) (list []audit.Entry) {
	entry := func(kind audit.Kind, detail map[string]any) {
		detail["account"] = name
		list = append(list, audit.Entry{Kind: kind, Detail: detail})
	}
	if c.PasswordHash != nil {
		entry(audit.ChangePassword, map[string]any{})
	}
	if c.Disabled != nil && *c.Disabled {
		entry(audit.DisableUser, map[string]any{})
	} else if c.Disabled != nil {
		entry(audit.EnableUser, map[string]any{})
	}
	if c.Email != nil || c.Superuser != nil {
		detail := map[string]any{}
		if c.Superuser != nil {
			detail["superuser"] = *c.Superuser
		}
		entry(audit.ChangeUser, detail)
	}
	return list
}

// DeleteAccount deletes a person's account with its grants, tokens and sessions. Errors: 404 if
// it doesn't exist, 409 if the registry would be left without an administrator.
func (s *Store) DeleteAccount(ctx context.Context, name string) error {
	return s.change(ctx, "deleting account "+name, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, "DELETE FROM accounts WHERE name = $1 AND kind = 'user'", name)
		if err == nil && tag.RowsAffected() == 0 {
			return unknownAccount(name)
		}
		if err == nil {
			err = requireAdministrator(ctx, tx)
		}
		if err == nil {
			err = forgetUploads(ctx, tx, name)
		}
		if err != nil {
			return err
		}
		return audit.Append(ctx, tx, audit.Entry{Kind: audit.DeleteUser, Detail: map[string]any{"account": name}})
	})
}

// forgetUploads makes the open uploads of a deleted account count for no account: the next one of its
// name isn't the one that has started them.
func forgetUploads(ctx context.Context, tx pgx.Tx, account string) error {
	_, err := tx.Exec(ctx, "UPDATE uploads SET account = NULL WHERE account = $1", account)
	return err
}

// used notes that an account or a credential was used, to within some minutes.
func (s *Store) used(ctx context.Context, account int64, credential any) error {
	_, err := s.db.Pool.Exec(ctx, `
		WITH credential AS (
			UPDATE credentials SET last_used_at = now()
			WHERE id = $2 AND (last_used_at IS NULL OR last_used_at < now() - interval '5 minutes')
		)
		UPDATE accounts SET last_used_at = now()
		WHERE id = $1 AND (last_used_at IS NULL OR last_used_at < now() - interval '5 minutes')`, account, credential)
	return err
}

// isRobotName says whether a name is that of a robot.
func isRobotName(name string) bool { return strings.Contains(name, "+") }
