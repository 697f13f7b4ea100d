package auth

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/auth/identity"
	"github.com/purser-registry/purser/internal/db"
)

// binding is the account of an identity.
type binding struct {
	account int64
	name    string
	created bool
	changed bool // what the account's row says about the identity, or its name
}

// isEntryOf says whether an identity of the directory is the one that an account belongs to: by the
// entry's id, or, if the account has none yet, by its DN.
func isEntryOf(i identity.Identity, a Account) bool {
	if a.EntryID != "" {
		return i.EntryID == a.EntryID
	}
	return i.Subject == a.Subject
}

// bound is an account that has a part of an identity.
type bound struct {
	ID      int64
	Name    string
	Subject *string
	EntryID *string
	Awaits  bool
}

// bind returns the account of an identity, which it creates if there is none. The account's row is
// locked until the transaction ends.
//
// An account of LDAP belongs to the entry with the id that it has recorded, whatever the entry's
// DN and name are by now. An account without an id belongs to the entry with its DN, and records
// that entry's id. A DN alone proves nothing once an id is recorded: a new person may have the DN
// of somebody who has left. So an account with an id isn't given to an entry with another one, nor
// to one of which the directory tells no id.
//
// An account that awaits its entry (see Store.Rebind) belongs to the entry with its name.
func bind(ctx context.Context, tx pgx.Tx, i identity.Identity) (b binding, err error) {
	for range 2 { // another log-in of the same person may create the account meanwhile
		found, err := lockBound(ctx, tx, i)
		if err != nil {
			return b, err
		}
		mine, err := ownOf(ctx, tx, i, found)
		if err != nil {
			return b, err
		}
		if mine != nil {
			return renew(ctx, tx, i, *mine)
		}
		err = tx.QueryRow(ctx, `
			INSERT INTO accounts (name, kind, source, subject, entry_id, email) VALUES (@name, 'user', @source, @subject, @entry, @email)
			ON CONFLICT DO NOTHING RETURNING id, name`,
			db.Args{"name": i.Name, "source": i.Source, "subject": i.Subject, "entry": orNull(i.EntryID), "email": orNull(i.Email)}).Scan(&b.account, &b.name)
		if !errors.Is(err, pgx.ErrNoRows) {
			b.created = err == nil
			return b, err
		}
	}
	return b, exists("there is an account %s already, with another identity: ask the registry's administrator", i.Name)
}

// lockBound locks the accounts that have the identity's subject or entry, or await an entry with its
// name, in the order of their ids.
func lockBound(ctx context.Context, tx pgx.Tx, i identity.Identity) ([]bound, error) {
	rows, err := tx.Query(ctx, `
		SELECT id, name, subject, entry_id, awaits_entry FROM accounts
		WHERE source = $1 AND (subject = $2 OR entry_id = $3 OR awaits_entry AND name = $4) ORDER BY id FOR UPDATE`,
		i.Source, i.Subject, orNull(i.EntryID), i.Name)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[bound])
}

// ownOf returns the one of the accounts that belongs to the identity, or nil. From the others it
// takes the DN, which is that of this identity now.
func ownOf(ctx context.Context, tx pgx.Tx, i identity.Identity, found []bound) (mine *bound, err error) {
	for k, f := range found {
		byID := i.EntryID != "" && text(f.EntryID) == i.EntryID
		// An account that has the identity's DN already goes before one that awaits any entry.
		if byID || f.EntryID == nil && (mine == nil || mine.Awaits) {
			mine = &found[k]
		}
		if byID {
			break
		}
		if f.EntryID != nil && i.EntryID == "" {
			return nil, exists("the directory doesn't tell the entryUUID or objectGUID of %s any more, by which it is known whose the account is: "+
				"ask the registry's administrator", i.Name)
		}
	}
	for k, f := range found {
		if mine == &found[k] || text(f.Subject) != i.Subject {
			continue
		}
		if _, err := tx.Exec(ctx, "UPDATE accounts SET subject = NULL WHERE id = $1", f.ID); err != nil {
			return nil, err
		}
	}
	return mine, nil
}

// renew records in an account what its identity is by now. If the directory has given the person
// another name, and no account has that, the account is renamed.
func renew(ctx context.Context, tx pgx.Tx, i identity.Identity, f bound) (b binding, err error) {
	b = binding{account: f.ID, name: f.Name}
	if text(f.Subject) != i.Subject || text(f.EntryID) != i.EntryID {
		b.changed = true
		_, err := tx.Exec(ctx, "UPDATE accounts SET subject = $2, entry_id = $3, awaits_entry = false WHERE id = $1", f.ID, i.Subject, orNull(i.EntryID))
		if err == nil && f.Awaits {
			err = audit.Append(ctx, tx, audit.Entry{Kind: audit.ChangeUser, Detail: map[string]any{
				"account": f.Name, "source": i.Source, "subject": i.Subject, "entry": i.EntryID}})
		}
		if err != nil {
			return b, err
		}
	}
	if i.Source != SourceLDAP || f.Name == i.Name || text(f.EntryID) != i.EntryID || i.EntryID == "" {
		return b, nil
	}
	tag, err := tx.Exec(ctx, "UPDATE accounts SET name = $2 WHERE id = $1 AND NOT EXISTS (SELECT FROM accounts WHERE name = $2)", f.ID, i.Name)
	if db.Code(err) == db.CodeUniqueViolation {
		return b, exists("there is an account %s already, with another identity: ask the registry's administrator", i.Name)
	}
	if err != nil || tag.RowsAffected() == 0 {
		return b, err
	}
	b.name, b.changed = i.Name, true
	// The open uploads go with the account. The next one of its former name isn't the one that has started them.
	if _, err := tx.Exec(ctx, "UPDATE uploads SET account = $2 WHERE account = $1", f.Name, i.Name); err != nil {
		return b, err
	}
	return b, audit.Append(ctx, tx, audit.Entry{Kind: audit.ChangeUser, Detail: map[string]any{
		"account": i.Name, "former_name": f.Name, "source": i.Source}})
}
