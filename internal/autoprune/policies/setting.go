package policies

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/policy"
)

// SettingName is the setting with the default policy of the configuration.
const SettingName = "autoprune.default_policy"

// Configure writes the default policy of the configuration into the table of default policies; nil:
// there is none. A process calls it before it prunes for the first time. All processes then prune by
// this row, which the process that started last has written, even if their configurations differ.
// Because it is a row, the policy has versions, exemptions and audit entries like other policies. If
// the configuration has no default policy, Configure deletes the row.
//
// Nobody has confirmed warnings of the row. So in each namespace, each of its versions is judged
// before it deletes the first tag, and rests until somebody confirms what is found (judgeFirst of
// package autoprune). A confirmation of one version says nothing about the next, which another
// process may have written.
//
// Like Change, Configure locks the version of the default policies. If a worker's
// transaction is just deleting tags by the old policy, Configure waits for the end of this
// transaction; the worker's next transaction then finds another version.
func (p *Store) Configure(ctx context.Context, wanted *policy.Policy) error {
	err := p.DB.Tx(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT FROM settings WHERE name = 'autoprune_defaults_version' FOR NO KEY UPDATE"); err != nil {
			return err
		}
		list, err := listPolicies(ctx, tx, policy.DefaultScope, Owner{})
		if err != nil {
			return err
		}
		var old *Saved
		for _, s := range list {
			if s.Setting {
				old = &s
			}
		}
		return p.replaceDefault(ctx, tx, old, wanted)
	})
	if err != nil {
		return fmt.Errorf("applying %s: %w", SettingName, err)
	}
	return nil
}

// replaceDefault replaces the default policy of the configuration in the database by the wanted
// one. `old` is the policy that is stored now. Nil stands for none.
func (p *Store) replaceDefault(ctx context.Context, tx pgx.Tx, old *Saved, wanted *policy.Policy) error {
	id, change := uuid.NewString(), "create"
	switch {
	case old == nil && wanted == nil:
		return nil
	case old == nil:
	case wanted == nil:
		id, change = old.ID, "delete"
	case old.Problem == "" && old.Policy.Equal(*wanted):
		return nil
	default:
		id, change = old.ID, "update"
	}
	if _, err := tx.Exec(ctx, "UPDATE settings SET value = (value::bigint + 1)::text WHERE name = 'autoprune_defaults_version'"); err != nil {
		return err
	}
	if old != nil {
		if err := p.uncover(ctx, tx, Owner{}, *old, wanted); err != nil {
			return err
		}
	}
	detail := map[string]any{"change": change, "setting": SettingName}
	if wanted == nil {
		if _, err := tx.Exec(ctx, "DELETE FROM defaultautoprunepolicy WHERE uuid = $1", id); err != nil {
			return err
		}
		p.Log.InfoContext(ctx, "the default policy was removed from the configuration: it deletes nothing any more", "setting", SettingName, "policy", id)
	} else {
		text, err := wanted.MarshalJSON()
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `
			INSERT INTO defaultautoprunepolicy AS p (uuid, policy, setting, confirmed, active_from) VALUES ($1, $2, true, '{}', now() + $3::interval)
			ON CONFLICT (uuid) DO UPDATE SET policy = EXCLUDED.policy, version = p.version + 1, updated_at = now(), confirmed = EXCLUDED.confirmed,
				active_from = EXCLUDED.active_from, rule_version = CASE WHEN $4 THEN p.rule_version ELSE p.version + 1 END`,
			id, text, p.grace(*wanted), old != nil && old.Problem == "" && old.Policy.SameRule(*wanted))
		if err != nil {
			return err
		}
		detail["policy"] = wanted
		p.Log.InfoContext(ctx, "the default policy of the configuration applies in every namespace", "setting", SettingName, "policy", id, "deletes", wanted.String())
	}
	return audit.Append(ctx, tx, entry(audit.ChangeDefault, Target{}, Owner{}, id, detail))
}

// refuseSetting returns an error if id is the default policy of the configuration. Clients
// can't change this policy through the API, since the next start of a process would undo
// the change.
func refuseSetting(ctx context.Context, tx pgx.Tx, t Target, id string) error {
	if t.Scope() != policy.DefaultScope {
		return nil
	}
	var setting bool
	err := tx.QueryRow(ctx, "SELECT setting FROM defaultautoprunepolicy WHERE uuid = $1", id).Scan(&setting)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err == nil && setting {
		return oci.Errorf(oci.Unsupported, "policy %s is that of the setting %s: change it there, and restart the instances that prune", id, SettingName).
			WithStatus(http.StatusConflict).WithDetail(map[string]string{"policy": id})
	}
	return err
}
