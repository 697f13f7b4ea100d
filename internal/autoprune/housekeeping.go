package autoprune

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// housekeepingEvery is how often housekeeping ends runs whose task was deleted, and deletes
// old runs and exemptions. It creates missing tasks more often, every Options.Interval.
const housekeepingEvery = 10 * time.Minute

// housekeeping creates tasks for namespaces that have none and to which a policy applies: one of
// the registry's defaults, or one that somebody inserted by SQL or restored from a dump, for which no
// client's transaction made a task. Every housekeepingEvery it also ends runs whose task was deleted,
// and deletes old runs, and exemptions, announcements and questions that have ended.
func (p *Pruner) housekeeping(ctx context.Context) error {
	now := time.Now()
	if now.Sub(p.ensured) >= p.opt.Interval {
		p.ensured = now
		_, err := p.db.Pool.Exec(ctx, `
			INSERT INTO autoprunetaskstatus (namespace_id, status)
			SELECT n.id, 'queued' FROM live_namespaces n
			WHERE n.id IN (
					SELECT id FROM live_namespaces
					WHERE EXISTS (SELECT FROM defaultautoprunepolicy)
						AND NOT EXISTS (SELECT FROM autoprunewithoutdefaults w WHERE w.namespace_id = live_namespaces.id)
					UNION ALL SELECT namespace_id FROM namespaceautoprunepolicy
					UNION ALL SELECT namespace_id FROM repositoryautoprunepolicy)
				AND NOT EXISTS (SELECT FROM autoprunetaskstatus t WHERE t.namespace_id = n.id)
			ORDER BY n.id LIMIT 10000 FOR KEY SHARE OF n
			ON CONFLICT DO NOTHING`)
		if err != nil {
			return fmt.Errorf("making tasks for policies that have none: %w", err)
		}
	}
	if now.Sub(p.housekept) < housekeepingEvery {
		return nil
	}
	p.housekept = now
	rows, err := p.db.Pool.Query(ctx, `
		SELECT id FROM autopruneruns r
		WHERE state = 'running' AND NOT EXISTS (SELECT FROM autoprunetaskstatus t WHERE t.run = r.id) LIMIT 10000`)
	if err != nil {
		return fmt.Errorf("looking for runs whose task was deleted: %w", err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return fmt.Errorf("looking for runs whose task was deleted: %w", err)
	}
	if err := p.stopRuns(ctx, ids...); err != nil {
		return err
	}
	for _, job := range []struct {
		what, sql string
		args      []any
	}{
		{"deleting old runs", `
			DELETE FROM autopruneruns WHERE id IN (
				SELECT id FROM autopruneruns WHERE started_at < now() - $1::interval AND COALESCE(ended_at, started_at) < now() - $1::interval
					AND state <> 'running' ORDER BY started_at LIMIT 10000)`, []any{p.opt.KeepRuns}},
		{"deleting exemptions from policies whose rules were changed since", `
			DELETE FROM autopruneexemptions e WHERE (repository_id, tag_id, policy) IN (
				SELECT repository_id, tag_id, policy FROM autopruneexemptions x
				WHERE NOT EXISTS (SELECT FROM namespaceautoprunepolicy p WHERE p.uuid = x.policy AND p.rule_version <= x.version)
					AND NOT EXISTS (SELECT FROM repositoryautoprunepolicy p WHERE p.uuid = x.policy AND p.rule_version <= x.version)
					AND NOT EXISTS (SELECT FROM defaultautoprunepolicy p WHERE p.uuid = x.policy AND p.rule_version <= x.version)
				LIMIT 10000)`, nil},
		{"deleting exemptions of tags that were deleted", `
			DELETE FROM autopruneexemptions e WHERE (repository_id, tag_id, policy) IN (
				SELECT x.repository_id, x.tag_id, x.policy FROM autopruneexemptions x
				JOIN repositories r ON r.id = x.repository_id
				WHERE NOT EXISTS (SELECT FROM tags t
					WHERE t.top_level_namespace_id = r.top_level_namespace_id AND t.repository_id = x.repository_id AND t.id = x.tag_id)
				LIMIT 10000)`, nil},
		{"deleting announcements of policies and namespaces that were deleted", `
			DELETE FROM autopruneannouncements WHERE (policy, namespace_id) IN (
				SELECT policy, namespace_id FROM autopruneannouncements x
				WHERE NOT EXISTS (SELECT FROM top_level_namespaces n WHERE n.id = x.namespace_id)
					OR NOT EXISTS (SELECT FROM namespaceautoprunepolicy p WHERE p.uuid = x.policy)
					AND NOT EXISTS (SELECT FROM repositoryautoprunepolicy p WHERE p.uuid = x.policy)
					AND NOT EXISTS (SELECT FROM defaultautoprunepolicy p WHERE p.uuid = x.policy)
				LIMIT 10000)`, nil},
		{"deleting what is known of policies and namespaces that were deleted", `
			DELETE FROM autoprunerests WHERE (policy, namespace_id) IN (
				SELECT policy, namespace_id FROM autoprunerests x
				WHERE NOT EXISTS (SELECT FROM top_level_namespaces n WHERE n.id = x.namespace_id)
					OR NOT EXISTS (SELECT FROM namespaceautoprunepolicy p WHERE p.uuid = x.policy)
					AND NOT EXISTS (SELECT FROM repositoryautoprunepolicy p WHERE p.uuid = x.policy)
					AND NOT EXISTS (SELECT FROM defaultautoprunepolicy p WHERE p.uuid = x.policy)
				LIMIT 10000)`, nil},
		{"deleting grace periods that are over", "DELETE FROM autopruneuncovered WHERE until < now()", nil},
		{"deleting questions of policies and namespaces that were deleted, and of policies that were saved since", `
			DELETE FROM autopruneasks WHERE (policy, namespace_id, version) IN (
				SELECT policy, namespace_id, version FROM autopruneasks x
				WHERE NOT EXISTS (SELECT FROM top_level_namespaces n WHERE n.id = x.namespace_id)
					OR NOT EXISTS (SELECT FROM namespaceautoprunepolicy p WHERE p.uuid = x.policy AND p.version = x.version)
					AND NOT EXISTS (SELECT FROM repositoryautoprunepolicy p WHERE p.uuid = x.policy AND p.version = x.version)
					AND NOT EXISTS (SELECT FROM defaultautoprunepolicy p WHERE p.uuid = x.policy AND p.version = x.version)
				LIMIT 10000)`, nil},
	} {
		if _, err := p.db.Pool.Exec(ctx, job.sql, job.args...); err != nil {
			return fmt.Errorf("%s: %w", job.what, err)
		}
	}
	return nil
}
