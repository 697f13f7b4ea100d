package autoprune

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/autoprune/snapshot"
	"github.com/purser-registry/purser/internal/judge"
)

// maxObserved is how many of the tags that would be deleted are stored with a run.
const maxObserved = 100

// ObservedTag is a tag that a run would have deleted if no policy observed or waited.
type ObservedTag struct {
	Repository string     `json:"repository"`
	Tag        string     `json:"tag"`
	Policy     string     `json:"policy" doc:"uuid of the policy that would delete it"`
	Code       judge.Code `json:"code" doc:"A code for the reason"`
	Reason     string     `json:"reason"`
}

// observed has the tags that would be deleted: their number and the first maxObserved.
type observed struct {
	number int64
	tags   []ObservedTag
}

func (o *observed) add(other observed) {
	o.number += other.number
	o.tags = append(o.tags, other.tags[:min(len(other.tags), maxObserved-len(o.tags))]...)
}

// json returns the tags as the database stores them.
func (o *observed) json() (string, error) {
	if len(o.tags) == 0 {
		return "[]", nil
	}
	text, err := json.Marshal(o.tags)
	return string(text), err
}

// observe finds the tags that the verdict doesn't delete, but would delete if no policy
// observed or waited.
func (v *repositoryRun) observe(ctx context.Context, r *snapshot.TagReader, rules judge.Rules, verdict *judge.Verdict) error {
	rules.Would = true
	would, err := judge.Evaluate(rules, r.Repository(ctx))
	if err != nil {
		return err
	}
	v.observed, v.tallies = observed{}, nil
	if !would.HasCandidates() {
		return nil
	}
	r.Verdicts = []*judge.Verdict{would, verdict}
	for t, err := range r.Tags(ctx) {
		if err != nil {
			return err
		}
		d := would.Decide(t.Judged)
		v.tallyTag(t.Name, d.Policies)
		if !d.Delete || verdict.Decide(t.Judged).Delete {
			continue
		}
		if v.observed.number++; len(v.observed.tags) < maxObserved {
			v.observed.tags = append(v.observed.tags, ObservedTag{
				Repository: v.target.Path, Tag: t.Name, Policy: v.saved[d.Policy].ID, Code: d.Code, Reason: would.Reason(t.Judged, d),
			})
		}
	}
	return nil
}

// auditObserved writes an entry into the audit log if there are tags that the run would have
// deleted and they aren't those of the namespace's run before.
func (u *timeSlice) auditObserved(ctx context.Context, tx pgx.Tx) error {
	var number int64
	var changed bool
	err := tx.QueryRow(ctx, `
		SELECT r.would, (r.would, r.observed) IS DISTINCT FROM (p.would, p.observed) FROM autopruneruns r
		LEFT JOIN LATERAL (
			SELECT would, observed FROM autopruneruns WHERE namespace_id = r.namespace_id AND id <> r.id
			ORDER BY started_at DESC, id DESC LIMIT 1) p ON true
		WHERE r.id = $1`, u.task.run).Scan(&number, &changed)
	if err != nil {
		return fmt.Errorf("comparing what would be deleted in namespace %s: %w", u.task.name, err)
	}
	if number == 0 || !changed {
		return nil
	}
	return audit.Append(ctx, tx, audit.Entry{
		Kind: audit.ObserveAutoprune, Namespace: u.task.name, Run: u.task.run, Detail: map[string]any{"tags_would_delete": number},
	})
}
