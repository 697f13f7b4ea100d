package policies

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/hold"
	"github.com/purser-registry/purser/internal/policy"
)

// Known is a row of autoprunerests: what is known of a policy in a namespace, in one version.
type Known struct {
	Version   int64
	Warnings  []policy.Warning // it rests until somebody confirms them
	Confirmed []policy.WarningCode
	Judged    bool // it was judged in the namespace, and may delete there
	Reporters []string
	Since     time.Time
}

// queueRests reads the rows of autoprunerests of a namespace.
func (l *Set) queueRests(b *pgx.Batch, namespace int64) {
	l.rests = make(map[string]Known)
	b.Queue("SELECT policy, version, warnings, confirmed, judged, reporters, since FROM autoprunerests WHERE namespace_id = $1", namespace).
		Query(func(rows pgx.Rows) error {
			for rows.Next() {
				var id string
				var r Known
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

// KnownOf returns what is known of a policy in its version.
func (l *Set) KnownOf(s Saved) Known {
	if r, ok := l.rests[s.ID]; ok && r.Version == s.Version {
		return r
	}
	return Known{}
}

// Unconfirmed returns why the policy waits for a confirmation; "" if it doesn't.
func (l *Set) Unconfirmed(s Saved) string {
	r := l.KnownOf(s)
	if len(r.Warnings) == 0 {
		return ""
	}
	return RestsFor(r.Warnings)
}

// RestsFor says that a policy rests until somebody confirms warnings.
func RestsFor(warnings []policy.Warning) string {
	return "it rests until somebody confirms that " + strings.Join(policy.Sentences(warnings), "; ")
}

// loadReporters looks for the reporters that policies of the namespace require.
func (l *Set) loadReporters(ctx context.Context, q db.Querier, namespace int64) error {
	names := make(map[string]bool)
	for _, s := range l.All() {
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

// Missing returns the reporters that the policy requires and that aren't live.
func (l *Set) Missing(p *policy.Policy) (names []string) {
	for _, name := range p.RequireReporter {
		if _, absent := l.absent[name]; absent {
			names = append(names, name)
		}
	}
	return names
}

// Unreported returns why the policy waits for reporters; "" if it doesn't.
func (l *Set) Unreported(p *policy.Policy) string {
	texts := l.Absences(p)
	if len(texts) == 0 {
		return ""
	}
	return "it rests without its reporters: " + strings.Join(texts, "; ")
}

// Absences describes the reporters that Missing returns.
func (l *Set) Absences(p *policy.Policy) (texts []string) {
	for _, name := range l.Missing(p) {
		texts = append(texts, l.absent[name].String())
	}
	return texts
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

// Resting returns the policies of a namespace that rest.
func (l *Set) Resting() (list []Rest) {
	for _, s := range l.All() {
		if s.Problem != "" || s.Policy.Mode != "" {
			continue
		}
		of := l.Notice(s)
		r := Rest{Policy: s.ID, Version: s.Version, Scope: of.Scope, Warnings: l.KnownOf(s).Warnings, Reporters: l.Missing(&s.Policy)}
		var texts []string
		for _, text := range []string{l.Unreported(&s.Policy), l.Unconfirmed(s)} {
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
func (p *Store) Rests(ctx context.Context, namespace string) ([]Rest, error) {
	o, err := Target{Namespace: namespace}.Find(ctx, p.DB.Pool, false)
	if err != nil {
		return nil, err
	}
	l, err := p.Load(ctx, o.Namespace)
	if err != nil {
		return nil, err
	}
	list := l.Resting()
	list = list[:min(len(list), MaxListed)]
	places := make(map[string]int)
	for i, r := range list {
		if r.Scope == policy.RepositoryScope {
			places[r.Policy] = i
		}
	}
	if len(places) == 0 {
		return list, nil
	}
	rows, err := p.DB.Pool.Query(ctx, "SELECT p.uuid, r.path FROM repositoryautoprunepolicy p JOIN live_repositories r ON r.id = p.repository_id WHERE p.uuid = ANY ($1)",
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

// Reported returns whether a reporter of what is deployed is live in a namespace. It returns the error
// NAME_UNKNOWN if the namespace doesn't exist.
func (p *Store) Reported(ctx context.Context, namespace string) (bool, error) {
	o, err := Target{Namespace: namespace}.Find(ctx, p.DB.Pool, false)
	if err != nil {
		return false, err
	}
	return hold.AnyLive(ctx, p.DB.Pool, o.Namespace)
}
