package autoprune

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/autoprune/warnings"
	"github.com/purser-registry/purser/internal/hold"
	"github.com/purser-registry/purser/internal/judge"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/policy"
)

// This file is about policies that rest: they are on, and delete nothing of a namespace until
// somebody has confirmed what they surely weren't meant to do, or until the reporters have reported
// that they require. A policy that rests waits, as outside its windows, so that no other policy
// deletes more.

// stillReported returns errOutdated if a reporter that a policy requires isn't live any more. The
// transaction has the lock of deletions by then.
func (v *repositoryRun) stillReported(ctx context.Context, tx pgx.Tx) error {
	var names []string
	for _, a := range v.rules.Policies {
		if a.Unreported == "" && a.Policy.Mode == "" {
			names = append(names, a.Policy.RequireReporter...)
		}
	}
	slices.Sort(names)
	absent, err := hold.NotLive(ctx, tx, v.target.NamespaceID, slices.Compact(names))
	if err == nil && len(absent) > 0 {
		return errOutdated
	}
	return err
}

// judgeFirst judges the policies that select tags of the batch and haven't deleted any in the
// namespace before, in this version. If one surely wasn't meant to delete what it would, it rests,
// and judgeFirst returns errOutdated, so that the run goes on without it.
func (v *repositoryRun) judgeFirst(ctx context.Context, list []candidate) error {
	var set judge.PolicySet
	for i := range list {
		set |= list[i].decision.Policies
	}
	rests := false
	for place := range set.All() {
		s := v.saved[place]
		if v.slice.judged[s.ID] || slices.Contains(s.Confirmed, policies.Everything) || v.slice.policies.KnownOf(s).Judged {
			continue
		}
		one, err := v.slice.judge(ctx, s, v.rules.Policies[place].Scope, v)
		if err != nil {
			return err
		}
		rests = rests || one
	}
	if rests {
		return errOutdated
	}
	return nil
}

// judge judges a policy before it deletes its first tag of the namespace, and stores the result.
func (u *timeSlice) judge(ctx context.Context, s policies.Saved, scope policy.Scope, v *repositoryRun) (rests bool, err error) {
	f := warnings.First{Policy: s, Owner: policies.Owner{Namespace: u.task.namespace, Name: u.task.name}, Set: u.policies,
		Within: max(u.p.opt.Turn, u.p.opt.JudgeWithin), Pause: u.alive}
	if scope == policy.RepositoryScope {
		f.Repository = &v.target
	}
	list, err := u.p.Warnings.BeforeDeletion(ctx, f)
	if err != nil {
		return false, err
	}
	known := u.policies.KnownOf(s).Confirmed
	found := policies.Unconfirmed(list, slices.Concat(s.Confirmed, known))
	if err := u.storeJudged(ctx, s, found); err != nil {
		return false, err
	}
	if u.judged == nil {
		u.judged = make(map[string]bool)
	}
	u.judged[s.ID] = len(found) == 0
	return len(found) > 0, nil
}

// storeJudged stores that the policy may delete tags of the namespace or, if there are warnings,
// that it rests, and tells that in the audit log and in a notice.
func (u *timeSlice) storeJudged(ctx context.Context, s policies.Saved, found []policy.Warning) error {
	var stored *string
	if len(found) > 0 {
		b, err := json.Marshal(found)
		if err != nil {
			return err
		}
		text := string(b)
		stored = &text
	}
	told := false
	err := u.p.db.Tx(ctx, func(tx pgx.Tx) error {
		told = false
		if err := u.p.lockTask(ctx, tx, u.task); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `
			INSERT INTO autoprunerests AS r (policy, namespace_id, version, warnings, judged) VALUES ($1, $2, $3, $4::jsonb, $4 IS NULL)
			ON CONFLICT (policy, namespace_id) DO UPDATE SET version = EXCLUDED.version, warnings = EXCLUDED.warnings, judged = EXCLUDED.judged,
				confirmed = CASE WHEN r.version = EXCLUDED.version THEN r.confirmed ELSE '{}' END,
				reporters = CASE WHEN r.version = EXCLUDED.version THEN r.reporters END, since = now()`,
			s.ID, u.task.namespace, s.Version, stored)
		if err != nil {
			return fmt.Errorf("storing what policy %s was judged to do: %w", s.ID, err)
		}
		if stored == nil {
			return nil
		}
		if err := u.auditRest(ctx, tx, s, map[string]any{"version": s.Version, "warnings": found}); err != nil {
			return err
		}
		told, err = u.notifyRest(ctx, tx, s, EventRests, RestsNotice{Warnings: found, Text: policies.RestsFor(found)})
		return err
	})
	if err == nil {
		u.p.notified(told)
	}
	return err
}

func (u *timeSlice) auditRest(ctx context.Context, tx pgx.Tx, s policies.Saved, detail map[string]any) error {
	e := audit.Entry{Kind: audit.RestAutoprune, Namespace: u.task.name, Run: u.task.run, Detail: detail}
	e.Policy, _ = uuid.Parse(s.ID) // ids of ours are uuids
	return audit.Append(ctx, tx, e)
}

// tellReporters stores for which reporters policies wait, in the transaction that ends the run, and
// tells in the audit log and in a notice when that has changed. `told` says whether it queued notices.
func (u *timeSlice) tellReporters(ctx context.Context, tx pgx.Tx) (told bool, err error) {
	for _, s := range u.policies.All() {
		if len(s.Policy.RequireReporter) == 0 {
			continue
		}
		var missing []string
		if s.Policy.Mode == "" {
			missing = u.policies.Missing(&s.Policy)
		}
		if slices.Equal(missing, u.policies.KnownOf(s).Reporters) {
			continue
		}
		_, err := tx.Exec(ctx, `
			INSERT INTO autoprunerests AS r (policy, namespace_id, version, reporters) VALUES ($1, $2, $3, $4)
			ON CONFLICT (policy, namespace_id) DO UPDATE SET version = EXCLUDED.version, reporters = EXCLUDED.reporters,
				warnings = CASE WHEN r.version = EXCLUDED.version THEN r.warnings END,
				confirmed = CASE WHEN r.version = EXCLUDED.version THEN r.confirmed ELSE '{}' END,
				judged = r.judged AND r.version = EXCLUDED.version, since = now()`,
			s.ID, u.task.namespace, s.Version, missing)
		if err != nil {
			return told, fmt.Errorf("storing for which reporters policy %s waits: %w", s.ID, err)
		}
		detail := map[string]any{"version": s.Version, "reporters": missing}
		if len(missing) == 0 {
			detail["reporters"] = []string{}
		}
		if err := u.auditRest(ctx, tx, s, detail); err != nil {
			return told, err
		}
		one, err := u.notifyReporters(ctx, tx, s, missing)
		if told = told || one; err != nil {
			return told, err
		}
	}
	return told, nil
}

// notifyReporters queues the notice that a policy rests for other reporters than before, or that it
// doesn't rest any more.
func (u *timeSlice) notifyReporters(ctx context.Context, tx pgx.Tx, s policies.Saved, missing []string) (told bool, err error) {
	switch {
	case len(missing) > 0:
		return u.notifyRest(ctx, tx, s, EventRests, RestsNotice{Reporters: missing, Text: u.policies.Unreported(&s.Policy)})
	case s.Policy.Mode != "" || u.policies.Unconfirmed(s) != "": // it deletes nothing all the same
		return false, nil
	}
	return u.notifyRest(ctx, tx, s, EventResumed, RestsNotice{})
}

// restingNow reads the version of a policy and the warnings because of which it rests in a namespace,
// and locks the row that has them. There are no warnings if it doesn't rest, or was saved since.
func restingNow(ctx context.Context, tx pgx.Tx, namespace int64, id string) (version int64, warnings []policy.Warning, err error) {
	var text []byte
	err = tx.QueryRow(ctx, `
		SELECT version, warnings FROM autoprunerests r
		WHERE policy = $1 AND namespace_id = $2 AND warnings IS NOT NULL AND version IN (
			SELECT version FROM namespaceautoprunepolicy WHERE uuid = $1
			UNION ALL SELECT version FROM repositoryautoprunepolicy WHERE uuid = $1
			UNION ALL SELECT version FROM defaultautoprunepolicy WHERE uuid = $1)
		FOR UPDATE OF r`, id, namespace).Scan(&version, &text)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, nil, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &warnings)
	}
	return version, warnings, err
}

// ConfirmRest confirms the warnings because of which a policy rests in a namespace, as long as it has
// this version. It puts the namespace's task at the head of the queue. It returns NAME_UNKNOWN if the
// namespace doesn't exist or the policy doesn't rest there for warnings, and UNSUPPORTED with status
// 409 if the policy has another version, or there is a warning whose code isn't confirmed.
func (p *Pruner) ConfirmRest(ctx context.Context, namespace, id string, version int64, codes []policy.WarningCode) error {
	err := p.db.Tx(ctx, func(tx pgx.Tx) error {
		o, err := policies.Target{Namespace: namespace}.Find(ctx, tx, true)
		if err != nil {
			return err
		}
		// The task is locked before the row, as in the transactions of workers.
		if _, err := tx.Exec(ctx, requestRun, o.Namespace); err != nil {
			return err
		}
		now, warnings, err := restingNow(ctx, tx, o.Namespace, id)
		if err != nil {
			return err
		}
		if len(warnings) == 0 {
			return oci.NotFound("policy %q waits for no confirmation in namespace %s", id, namespace).WithDetail(map[string]string{"policy": id})
		}
		if now != version || len(policies.Unconfirmed(warnings, codes)) > 0 {
			return oci.Errorf(oci.Unsupported, "policy %s has version %d, and other warnings than those that were confirmed: look at it once more", id, now).
				WithStatus(http.StatusConflict).WithDetail(map[string]any{"version": now, "warnings": warnings})
		}
		_, err = tx.Exec(ctx, `
			UPDATE autoprunerests SET warnings = NULL, since = now(),
				confirmed = ARRAY(SELECT DISTINCT unnest(confirmed || $4::text[]) ORDER BY 1)
			WHERE policy = $1 AND namespace_id = $2 AND version = $3`, id, o.Namespace, version, policy.Codes(warnings))
		if err != nil {
			return err
		}
		e := audit.Entry{Kind: audit.ConfirmAutoprune, Namespace: namespace, Detail: map[string]any{"version": version, "warnings": warnings}}
		e.Policy, _ = uuid.Parse(id) // ids of ours are uuids
		return audit.Append(ctx, tx, e)
	})
	if _, answer := errors.AsType[*oci.Error](err); err != nil && !answer {
		return fmt.Errorf("confirming policy %s in namespace %s: %w", id, namespace, err)
	}
	if err == nil {
		p.loop.Wake()
	}
	return err
}

// restText describes for the task how many policies rest.
func (u *timeSlice) restText() string {
	if n := int64(len(u.policies.Resting())); n > 0 {
		return "; " + counted(n, "policy rests", "policies rest") + ": see the namespace's state"
	}
	return ""
}
