package autoprune

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/hold"
	"github.com/purser-registry/purser/internal/judge"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/policy"
)

// This file is about policies that rest: they are on, and delete nothing of a namespace until
// somebody has confirmed what they surely weren't meant to do, or until the reporters have reported
// that they require. A policy that rests waits, as outside its windows, so that no other policy
// deletes more.

// rest is a row of autoprunerests: what is known of a policy in a namespace, in one version.
type rest struct {
	Version   int64
	Warnings  []policy.Warning // it rests until somebody confirms them
	Confirmed []policy.WarningCode
	Judged    bool // it was judged in the namespace, and may delete there
	Reporters []string
	Since     time.Time
}

// queueRests reads the rows of autoprunerests of a namespace.
func (l *policies) queueRests(b *pgx.Batch, namespace int64) {
	l.rests = make(map[string]rest)
	b.Queue("SELECT policy, version, warnings, confirmed, judged, reporters, since FROM autoprunerests WHERE namespace_id = $1", namespace).
		Query(func(rows pgx.Rows) error {
			for rows.Next() {
				var id string
				var r rest
				var warnings []byte
				if err := rows.Scan(&id, &r.Version, &warnings, &r.Confirmed, &r.Judged, &r.Reporters, &r.Since); err != nil {
					return err
				}
				if warnings != nil {
					if err := json.Unmarshal(warnings, &r.Warnings); err != nil {
						return err
					}
				}
				l.rests[id] = r
			}
			return rows.Err()
		})
}

// restOf returns what is known of a policy in its version.
func (l *policies) restOf(s Saved) rest {
	if r, ok := l.rests[s.ID]; ok && r.Version == s.Version {
		return r
	}
	return rest{}
}

// unconfirmed returns why the policy waits for a confirmation; "" if it doesn't.
func (l *policies) unconfirmed(s Saved) string {
	r := l.restOf(s)
	if len(r.Warnings) == 0 {
		return ""
	}
	return restsFor(r.Warnings)
}

func restsFor(warnings []policy.Warning) string {
	return "it rests until somebody confirms that " + strings.Join(policy.Sentences(warnings), "; ")
}

// loadReporters looks for the reporters that policies of the namespace require.
func (l *policies) loadReporters(ctx context.Context, q db.Querier, namespace int64) error {
	names := make(map[string]bool)
	for _, s := range l.all() {
		for _, name := range s.Policy.RequireReporter {
			names[name] = true
		}
	}
	absent, err := hold.NotLive(ctx, q, namespace, slices.Sorted(maps.Keys(names)))
	l.absent = make(map[string]hold.Absent, len(absent))
	for _, a := range absent {
		l.absent[a.Reporter] = a
	}
	return err
}

// missing returns the reporters that the policy requires and that aren't live.
func (l *policies) missing(p *policy.Policy) (names []string) {
	for _, name := range p.RequireReporter {
		if _, absent := l.absent[name]; absent {
			names = append(names, name)
		}
	}
	return names
}

// unreported returns why the policy waits for reporters; "" if it doesn't.
func (l *policies) unreported(p *policy.Policy) string {
	var texts []string
	for _, name := range l.missing(p) {
		texts = append(texts, l.absent[name].String())
	}
	if len(texts) == 0 {
		return ""
	}
	return "it rests without its reporters: " + strings.Join(texts, "; ")
}

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
		if v.slice.judged[s.ID] || slices.Contains(s.Confirmed, Everything) || v.slice.policies.restOf(s).Judged {
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
func (u *timeSlice) judge(ctx context.Context, s Saved, scope policy.Scope, v *repositoryRun) (rests bool, err error) {
	own := s.Policy
	j := &judging{p: u.p, target: Target{Namespace: u.task.name}, old: &s, policy: &own, until: time.Now().Add(max(u.p.opt.Turn, u.p.opt.JudgeWithin)),
		pause: u.alive, change: Change{ID: s.ID, Policy: &own}}
	j.begin()
	if err := j.settle(ctx, u.policies); err != nil {
		return false, err
	}
	if scope == policy.RepositoryScope {
		err = j.repository(ctx, u.policies, nil, v.target)
	} else {
		err = j.namespace(ctx, u.task.namespace)
	}
	// If the time was too short for all tags, nobody knows what the policy deletes of the others: it
	// rests by NotAllJudged, unless this was confirmed when it was saved.
	if j.partial = errors.Is(err, errTimeOver); err != nil && !j.partial {
		return false, err
	}
	known := u.policies.restOf(s).Confirmed
	found := Unconfirmed(j.warnings(), slices.Concat(s.Confirmed, known))
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
func (u *timeSlice) storeJudged(ctx context.Context, s Saved, found []policy.Warning) error {
	var warnings *string
	if len(found) > 0 {
		b, err := json.Marshal(found)
		if err != nil {
			return err
		}
		text := string(b)
		warnings = &text
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
			s.ID, u.task.namespace, s.Version, warnings)
		if err != nil {
			return fmt.Errorf("storing what policy %s was judged to do: %w", s.ID, err)
		}
		if warnings == nil {
			return nil
		}
		if err := u.auditRest(ctx, tx, s, map[string]any{"version": s.Version, "warnings": found}); err != nil {
			return err
		}
		told, err = u.notifyRest(ctx, tx, s, EventRests, RestsNotice{Warnings: found, Text: restsFor(found)})
		return err
	})
	if err == nil {
		u.p.notified(told)
	}
	return err
}

func (u *timeSlice) auditRest(ctx context.Context, tx pgx.Tx, s Saved, detail map[string]any) error {
	e := audit.Entry{Kind: audit.RestAutoprune, Namespace: u.task.name, Run: u.task.run, Detail: detail}
	e.Policy, _ = uuid.Parse(s.ID) // ids of ours are uuids
	return audit.Append(ctx, tx, e)
}

// tellReporters stores for which reporters policies wait, in the transaction that ends the run, and
// tells in the audit log and in a notice when that has changed. `told` says whether it queued notices.
func (u *timeSlice) tellReporters(ctx context.Context, tx pgx.Tx) (told bool, err error) {
	for _, s := range u.policies.all() {
		if len(s.Policy.RequireReporter) == 0 {
			continue
		}
		var missing []string
		if s.Policy.Mode == "" {
			missing = u.policies.missing(&s.Policy)
		}
		if slices.Equal(missing, u.policies.restOf(s).Reporters) {
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
func (u *timeSlice) notifyReporters(ctx context.Context, tx pgx.Tx, s Saved, missing []string) (told bool, err error) {
	switch {
	case len(missing) > 0:
		return u.notifyRest(ctx, tx, s, EventRests, RestsNotice{Reporters: missing, Text: u.policies.unreported(&s.Policy)})
	case s.Policy.Mode != "" || u.policies.unconfirmed(s) != "": // it deletes nothing all the same
		return false, nil
	}
	return u.notifyRest(ctx, tx, s, EventResumed, RestsNotice{})
}

// Rest is a policy that rests in a namespace.
type Rest struct {
	Policy     string           `json:"policy" doc:"uuid of the policy"`
	Version    int64            `json:"version" doc:"Version of the policy, to confirm"`
	Scope      policy.Scope     `json:"scope"`
	Repository string           `json:"repository,omitempty" doc:"Name of the repository, if the policy is a repository's"`
	Warnings   []policy.Warning `json:"warnings,omitempty" doc:"What it would do and surely wasn't meant to: it rests until somebody confirms them"`
	Reporters  []string         `json:"reporters,omitempty" doc:"The reporters that it requires and that aren't live: it rests until they report"`
	Text       string           `json:"text" doc:"Why it rests"`
}

// resting returns the policies of a namespace that rest.
func (l *policies) resting() (list []Rest) {
	for _, s := range l.all() {
		if s.Problem != "" || s.Policy.Mode != "" {
			continue
		}
		of := l.notice(s)
		r := Rest{Policy: s.ID, Version: s.Version, Scope: of.Scope, Warnings: l.restOf(s).Warnings, Reporters: l.missing(&s.Policy)}
		var texts []string
		for _, text := range []string{l.unreported(&s.Policy), l.unconfirmed(s)} {
			if text != "" {
				texts = append(texts, text)
			}
		}
		if r.Text = strings.Join(texts, "; "); r.Text != "" {
			list = append(list, r)
		}
	}
	return list
}

// Rests lists the policies of a namespace that rest, the first 1000. It returns the error NAME_UNKNOWN if the
// namespace doesn't exist.
func (p *Pruner) Rests(ctx context.Context, namespace string) ([]Rest, error) {
	o, err := Target{Namespace: namespace}.find(ctx, p.db.Pool, false)
	if err != nil {
		return nil, err
	}
	l, err := p.load(ctx, o.namespace)
	if err != nil {
		return nil, err
	}
	list := l.resting()
	list = list[:min(len(list), maxListedPolicies)]
	places := make(map[string]int)
	for i, r := range list {
		if r.Scope == policy.RepositoryScope {
			places[r.Policy] = i
		}
	}
	if len(places) == 0 {
		return list, nil
	}
	rows, err := p.db.Pool.Query(ctx, "SELECT p.uuid, r.path FROM repositoryautoprunepolicy p JOIN live_repositories r ON r.id = p.repository_id WHERE p.uuid = ANY ($1)",
		slices.Collect(maps.Keys(places)))
	if err == nil {
		var id, path string
		_, err = pgx.ForEachRow(rows, []any{&id, &path}, func() error {
			list[places[id]].Repository = path
			return nil
		})
	}
	if err != nil {
		return nil, fmt.Errorf("looking for the repositories of policies that rest: %w", err)
	}
	return list, nil
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
		o, err := Target{Namespace: namespace}.find(ctx, tx, true)
		if err != nil {
			return err
		}
		// The task is locked before the row, as in the transactions of workers.
		if _, err := tx.Exec(ctx, requestRun, o.namespace); err != nil {
			return err
		}
		now, warnings, err := restingNow(ctx, tx, o.namespace, id)
		if err != nil {
			return err
		}
		if len(warnings) == 0 {
			return notFound("policy %q waits for no confirmation in namespace %s", id, namespace).WithDetail(map[string]string{"policy": id})
		}
		if now != version || len(Unconfirmed(warnings, codes)) > 0 {
			return oci.Errorf(oci.Unsupported, "policy %s has version %d, and other warnings than those that were confirmed: look at it once more", id, now).
				WithStatus(http.StatusConflict).WithDetail(map[string]any{"version": now, "warnings": warnings})
		}
		_, err = tx.Exec(ctx, `
			UPDATE autoprunerests SET warnings = NULL, since = now(),
				confirmed = ARRAY(SELECT DISTINCT unnest(confirmed || $4::text[]) ORDER BY 1)
			WHERE policy = $1 AND namespace_id = $2 AND version = $3`, id, o.namespace, version, policy.Codes(warnings))
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
	if n := int64(len(u.policies.resting())); n > 0 {
		return "; " + counted(n, "policy rests", "policies rest") + ": see the namespace's state"
	}
	return ""
}
