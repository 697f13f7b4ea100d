package policies

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/judge"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/policy"
)

// Options configures a Store.
type Options struct {
	DB      *db.DB           // required
	Catalog *catalog.Catalog // required; of the same database
	// MostPolicies is how many policies a repository, a namespace or the registry may have:
	// judge.MaxScopePolicies at most, which is the default.
	MostPolicies int
	// Grace is the grace period of policies that don't have their own. Default none.
	Grace time.Duration
	// Pulls returns how far the pull statistics can be trusted. Nil: there are no
	// statistics.
	Pulls func(ctx context.Context) (judge.PullRecord, error)
	Log   *slog.Logger // default slog.Default()
}

// Store stores policies. Its methods may be called concurrently, and any number of processes may have a
// Store on the same database. Its options must not be changed.
type Store struct{ Options }

// New makes a store of policies.
func New(o Options) *Store {
	o.MostPolicies = min(cmp.Or(o.MostPolicies, judge.MaxScopePolicies), judge.MaxScopePolicies)
	o.Log = cmp.Or(o.Log, slog.Default())
	return &Store{o}
}

// policiesOfNamespace is how many times as many policies the repositories of a namespace may have together
// as one of them.
const policiesOfNamespace = 100

// List returns the policies of the target itself, oldest first. It returns the error
// NAME_UNKNOWN if the target doesn't exist.
func (p *Store) List(ctx context.Context, t Target) ([]Saved, error) {
	o, err := t.Find(ctx, p.DB.Pool, false)
	if err != nil {
		return nil, err
	}
	return listPolicies(ctx, p.DB.Pool, t.Scope(), o)
}

// Get returns one policy of a target. It returns the error NAME_UNKNOWN if the target or
// the policy doesn't exist.
func (p *Store) Get(ctx context.Context, t Target, id string) (Saved, error) {
	list, err := p.List(ctx, t)
	if err != nil {
		return Saved{}, err
	}
	for _, s := range list {
		if s.ID == id {
			return s, nil
		}
	}
	return Saved{}, policyUnknown(t, id)
}

func policyUnknown(t Target, id string) error {
	return oci.NotFound("%s has no auto-prune policy %q", t, id).WithDetail(map[string]string{"policy": id})
}

// Change runs fn in a transaction that locks the versions of the target's policies and
// raises them. Until the transaction ends, no other client can change these policies and no
// worker deletes tags by them. A worker that has read the policies before finds the new
// version and reads them again.
//
// Change locks the namespace, the repository and the task, in this order. A transaction
// that deletes a namespace also locks the namespace before the task, so these transactions
// can't deadlock. A worker locks the task before it locks a repository. If it then waits
// for a repository that Change has locked, while Change waits for the task, the worker's
// short lock timeout ends the worker's transaction, and Change continues. The last lock is that
// of waitForReviews.
func (p *Store) Change(ctx context.Context, t Target, doing string, fn func(tx pgx.Tx, o Owner) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	err := p.DB.Tx(ctx, func(tx pgx.Tx) error {
		o, err := t.Find(ctx, tx, true)
		if err != nil {
			return err
		}
		if o.Namespace == 0 {
			_, err = tx.Exec(ctx, "UPDATE settings SET value = (value::bigint + 1)::text WHERE name = 'autoprune_defaults_version'")
		} else {
			_, err = tx.Exec(ctx, touchTask, o.Namespace)
		}
		if err != nil {
			return err
		}
		if err := fn(tx, o); err != nil {
			return err
		}
		return waitForReviews(ctx, tx)
	})
	if _, answer := errors.AsType[*oci.Error](err); err != nil && !answer {
		return fmt.Errorf("%s of %s: %w", doing, t, err)
	}
	return err
}

// touchTask creates the task of a namespace. If the task exists, touchTask puts it at the
// head of the queue and raises its policies_version, which tells the worker that the
// policies have changed. A worker that deletes the task of a namespace without policies
// locks the task before it looks for policies. So the worker either sees the policy that
// this transaction adds, or deletes the task first, and then this transaction creates it
// again.
const touchTask = `
	INSERT INTO autoprunetaskstatus AS t (namespace_id, status) VALUES ($1, 'queued')
	ON CONFLICT (namespace_id) DO UPDATE
	SET policies_version = t.policies_version + 1, last_ran_ms = NULL, asked = true,
		status = CASE WHEN t.run IS NULL THEN 'queued' ELSE t.status END`

// Create saves a new policy and returns its id. The same transaction creates the
// namespace's task, or puts it at the head of the queue. It returns the error
// NAME_UNKNOWN if the target doesn't exist, and UNSUPPORTED with status 400 if the
// target already has an equal policy or the largest number of policies
// (MaxScopePolicies).
func (p *Store) Create(ctx context.Context, t Target, wanted policy.Policy) (id string, err error) {
	return p.CreateConfirmed(ctx, t, wanted, Consent{})
}

// CreateConfirmed is Create for a client that has seen warnings.
func (p *Store) CreateConfirmed(ctx context.Context, t Target, wanted policy.Policy, c Consent) (id string, err error) {
	id = uuid.NewString()
	s := policyTables[t.Scope()]
	err = p.Change(ctx, t, "creating an auto-prune policy", func(tx pgx.Tx, o Owner) error {
		text, err := p.admit(ctx, tx, t, o, wanted, "")
		if err != nil {
			return err
		}
		switch t.Scope() {
		case policy.DefaultScope:
			_, err = tx.Exec(ctx, "INSERT INTO defaultautoprunepolicy (uuid, policy, active_from, confirmed) VALUES ($1, $2, now() + $3::interval, $4)", id, text, p.grace(wanted), c.codes())
		case policy.NamespaceScope:
			if err := p.uncoverByFirst(ctx, tx, o); err != nil {
				return err
			}
			_, err = tx.Exec(ctx, "INSERT INTO namespaceautoprunepolicy (uuid, namespace_id, policy, active_from, confirmed) VALUES ($1, $2, $3, now() + $4::interval, $5)",
				id, o.Namespace, text, p.grace(wanted), c.codes())
		default:
			_, err = tx.Exec(ctx, "INSERT INTO repositoryautoprunepolicy (uuid, namespace_id, repository_id, policy, active_from, confirmed) VALUES ($1, $2, $3, $4, now() + $5::interval, $6)",
				id, o.Namespace, o.Repository, text, p.grace(wanted), c.codes())
		}
		if err == nil {
			err = cover(ctx, tx, o, wanted)
		}
		if err != nil {
			return err
		}
		return audit.Append(ctx, tx, entry(s.created, t, o, id, c.detail(map[string]any{"policy": wanted, "change": "create"})))
	})
	if err != nil {
		return "", err
	}
	return id, nil
}

// admit checks that a policy may be added to the policies of its owner, and returns the
// policy as the text to store. `except` is the id of the policy that the new policy
// replaces, or "".
func (p *Store) admit(ctx context.Context, tx pgx.Tx, t Target, o Owner, wanted policy.Policy, except string) (string, error) {
	list, err := listPolicies(ctx, tx, t.Scope(), o)
	if err != nil {
		return "", err
	}
	list = slices.DeleteFunc(list, func(s Saved) bool { return s.Setting })
	for _, s := range list {
		if s.ID != except && s.Problem == "" && s.Policy.Equal(wanted) {
			return "", oci.Invalid("%s has this policy already, as %s", t, s.ID).WithDetail(map[string]string{"policy": s.ID})
		}
	}
	if t.Scope() == policy.RepositoryScope && wanted.Repositories != nil {
		return "", oci.Invalid("repositories: a policy of a repository applies only there; leave it out").
			WithDetail(map[string]string{"field": "repositories"})
	}
	if most := p.MostPolicies; except == "" && len(list) >= most {
		return "", oci.Invalid("%s", oci.LimitText(t.String(), most, "policies", "limits.policies", "delete one, or put their patterns together"))
	}
	if t.Scope() == policy.RepositoryScope && except == "" {
		var all int
		most := policiesOfNamespace * p.MostPolicies
		err := tx.QueryRow(ctx, "SELECT count(*) FROM (SELECT FROM repositoryautoprunepolicy WHERE namespace_id = $1 LIMIT $2) counted", o.Namespace, most).Scan(&all)
		if err != nil {
			return "", err
		}
		if all >= most {
			return "", oci.Invalid("%s", oci.LimitText("a namespace with its repositories", most, "policies", "limits.policies", "delete one, or give the namespace one policy for several repositories"))
		}
	}
	text, err := wanted.MarshalJSON()
	return string(text), err
}

// Update replaces a policy. It ends all exemptions from the policy if the new one has another
// rule (see Policy.sameRule). It returns the errors of Create, NAME_UNKNOWN if the policy
// doesn't exist, and UNSUPPORTED with status 409 if the policy comes from the
// configuration.
func (p *Store) Update(ctx context.Context, t Target, id string, wanted policy.Policy) error {
	return p.UpdateVersion(ctx, t, id, wanted, 0)
}

// UpdateVersion is Update for a caller that has read the policy before, in the given version
// (Saved.Version). It returns UNSUPPORTED with status 409 if the policy was saved since. The
// version 0 stands for any. The transaction has locked the policies of the target by then
// (see Change), so of two callers that have read the same version only one succeeds.
func (p *Store) UpdateVersion(ctx context.Context, t Target, id string, wanted policy.Policy, version int64) error {
	return p.UpdateConfirmed(ctx, t, id, wanted, version, Consent{})
}

// UpdateConfirmed is UpdateVersion for a client that has seen warnings.
func (p *Store) UpdateConfirmed(ctx context.Context, t Target, id string, wanted policy.Policy, version int64, c Consent) error {
	s := policyTables[t.Scope()]
	return p.Change(ctx, t, "updating an auto-prune policy", func(tx pgx.Tx, o Owner) error {
		if err := refuseSetting(ctx, tx, t, id); err != nil {
			return err
		}
		if err := refuseVersion(ctx, tx, t, o, id, version); err != nil {
			return err
		}
		text, err := p.admit(ctx, tx, t, o, wanted, id)
		if err != nil {
			return err
		}
		stored, err := savedPolicy(ctx, tx, t, o, id)
		if err != nil {
			return err
		}
		read := stored != nil && stored.Problem == ""
		same := read && stored.Policy.Equal(wanted)
		done, err := tx.Exec(ctx, "UPDATE "+s.table+" SET policy = $3, version = version + 1, updated_at = now(), "+
			"active_from = CASE WHEN $4 THEN active_from ELSE now() + $5::interval END, "+
			"rule_version = CASE WHEN $6 THEN rule_version ELSE version + 1 END, "+
			"confirmed = COALESCE($7, confirmed) WHERE "+
			s.owned+" AND uuid = $2", o.id(), id, text, same, p.grace(wanted), read && stored.Policy.SameRule(wanted), c.replaces(same))
		switch {
		case err != nil:
		case same:
			err = keepAnnounced(ctx, tx, id, stored.Version)
		case stored != nil:
			err = p.uncover(ctx, tx, o, *stored, &wanted)
		}
		if err == nil {
			err = cover(ctx, tx, o, wanted)
		}
		if err != nil {
			return err
		}
		if done.RowsAffected() == 0 {
			return policyUnknown(t, id)
		}
		return audit.Append(ctx, tx, entry(s.updated, t, o, id, c.detail(map[string]any{"policy": wanted, "change": "update"})))
	})
}

// refuseVersion returns an error, with status 409, if the policy has another version than the
// given one, unless that is 0.
func refuseVersion(ctx context.Context, tx pgx.Tx, t Target, o Owner, id string, version int64) error {
	if version == 0 {
		return nil
	}
	list, err := listPolicies(ctx, tx, t.Scope(), o)
	for _, s := range list {
		if s.ID == id && s.Version != version {
			return oci.Errorf(oci.Unsupported, "policy %s was saved meanwhile: it has version %d, and the change is of version %d", id, s.Version, version).
				WithStatus(http.StatusConflict).WithDetail(map[string]string{"policy": id})
		}
	}
	return err
}

// savedPolicy returns the policy that is stored, nil if there is none.
func savedPolicy(ctx context.Context, tx pgx.Tx, t Target, o Owner, id string) (*Saved, error) {
	list, err := listPolicies(ctx, tx, t.Scope(), o)
	for _, s := range list {
		if s.ID == id {
			return &s, nil
		}
	}
	return nil, err
}

// Delete deletes a policy. Once it has returned, no worker deletes tags by this policy.
// It returns the error NAME_UNKNOWN if the target or the policy doesn't exist, and
// UNSUPPORTED with status 409 if the policy comes from the configuration.
func (p *Store) Delete(ctx context.Context, t Target, id string) error {
	return p.DeleteConfirmed(ctx, t, id, Consent{})
}

// DeleteConfirmed is Delete for a client that has seen warnings.
func (p *Store) DeleteConfirmed(ctx context.Context, t Target, id string, c Consent) error {
	s := policyTables[t.Scope()]
	return p.Change(ctx, t, "deleting an auto-prune policy", func(tx pgx.Tx, o Owner) error {
		if err := refuseSetting(ctx, tx, t, id); err != nil {
			return err
		}
		stored, err := savedPolicy(ctx, tx, t, o, id)
		if err == nil && stored != nil {
			err = p.uncover(ctx, tx, o, *stored, nil)
		}
		if err == nil {
			err = p.uncoverByLast(ctx, tx, o)
		}
		if err != nil {
			return err
		}
		var text string
		err = tx.QueryRow(ctx, "DELETE FROM "+s.table+" WHERE "+s.owned+" AND uuid = $2 RETURNING policy", o.id(), id).Scan(&text)
		if errors.Is(err, pgx.ErrNoRows) {
			return policyUnknown(t, id)
		}
		if err != nil {
			return err
		}
		return audit.Append(ctx, tx, entry(s.deletedKind, t, o, id, c.detail(map[string]any{"policy": storedPolicy(text), "change": "delete"})))
	})
}

// storedPolicy returns a stored policy in the form in which an audit entry has it: as JSON,
// or as a string if the stored text isn't valid JSON.
func storedPolicy(text string) any {
	var s Saved
	if s.read(text); s.Problem == "" {
		return s.Policy
	}
	if json.Valid([]byte(text)) {
		return json.RawMessage(text)
	}
	return text
}

// entry returns the audit entry of a change of a policy.
func entry(kind audit.Kind, t Target, o Owner, id string, detail map[string]any) audit.Entry {
	e := audit.Entry{Kind: kind, Namespace: t.Namespace, Repository: t.Repository, RepositoryID: o.Repository, Detail: detail}
	e.Policy, _ = uuid.Parse(id) // ids of ours are uuids
	return e
}

// UsesDefaults returns whether the namespace accepts the registry's default policies.
// The defaults apply only while the namespace has no policies of its own. UsesDefaults
// returns the error NAME_UNKNOWN if the namespace doesn't exist.
func (p *Store) UsesDefaults(ctx context.Context, namespace string) (on bool, err error) {
	o, err := Target{Namespace: namespace}.Find(ctx, p.DB.Pool, false)
	if err != nil {
		return false, err
	}
	err = p.DB.Pool.QueryRow(ctx, "SELECT NOT EXISTS (SELECT FROM autoprunewithoutdefaults WHERE namespace_id = $1)", o.Namespace).Scan(&on)
	if err != nil {
		return false, fmt.Errorf("looking for the defaults of namespace %s: %w", namespace, err)
	}
	return on, nil
}

// UseDefaults sets whether the namespace accepts the registry's default policies. It
// returns the error NAME_UNKNOWN if the namespace doesn't exist.
func (p *Store) UseDefaults(ctx context.Context, namespace string, on bool) error {
	return p.UseDefaultsConfirmed(ctx, namespace, on, Consent{})
}

// UseDefaultsConfirmed is UseDefaults for a client that has seen warnings.
func (p *Store) UseDefaultsConfirmed(ctx context.Context, namespace string, on bool, c Consent) error {
	t := Target{Namespace: namespace}
	return p.Change(ctx, t, "changing whether the defaults apply", func(tx pgx.Tx, o Owner) error {
		sql := "INSERT INTO autoprunewithoutdefaults (namespace_id) VALUES ($1) ON CONFLICT DO NOTHING"
		if on {
			sql = "DELETE FROM autoprunewithoutdefaults WHERE namespace_id = $1"
		}
		done, err := tx.Exec(ctx, sql, o.Namespace)
		switch {
		case err != nil || done.RowsAffected() == 0:
		case on:
			err = p.uncoverByDefaults(ctx, tx, o.Namespace)
		default:
			err = p.uncoverDefaults(ctx, tx, o.Namespace, true)
		}
		if err != nil {
			return err
		}
		return audit.Append(ctx, tx, entry(audit.ChangeDefault, t, o, "", c.detail(map[string]any{"defaults": on})))
	})
}
