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
		if err := p.ensureTasks(ctx); err != nil {
			return err
		}
	}
	if now.Sub(p.housekept) < housekeepingEvery {
		return nil
	}
	p.housekept = now
	if err := p.endRunsWithoutTask(ctx); err != nil {
		return err
	}
	if err := p.deleteOld(ctx); err != nil {
		return err
	}
	for _, job := range leftovers {
		if _, err := p.db.Pool.Exec(ctx, job.sql); err != nil {
			return fmt.Errorf("%s: %w", job.what, err)
		}
	}
	return nil
}

// ensureTasks creates the tasks of namespaces that have none and to which a policy applies.
func (p *Pruner) ensureTasks(ctx context.Context) error {
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
	return nil
}

// endRunsWithoutTask ends runs whose task was deleted.
func (p *Pruner) endRunsWithoutTask(ctx context.Context) error {
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
	return p.stopRuns(ctx, ids...)
}

// deleteOld deletes runs that are old, and grace periods that are over, unless the clock isn't fit for
// that: a grace period that seems over by a wrong clock would be gone for good.
func (p *Pruner) deleteOld(ctx context.Context) error {
	err := p.db.Tx(ctx, func(tx pgx.Tx) error {
		b := new(pgx.Batch)
		b.Queue(`
			DELETE FROM autopruneruns WHERE id IN (
				SELECT id FROM autopruneruns WHERE started_at < now() - $1::interval AND COALESCE(ended_at, started_at) < now() - $1::interval
					AND state <> 'running' ORDER BY started_at LIMIT 10000)`, p.opt.KeepRuns)
		b.Queue("DELETE FROM autopruneuncovered WHERE until < now()")
		var now time.Time
		b.Queue("SELECT now()").QueryRow(func(row pgx.Row) error { return row.Scan(&now) })
		if err := tx.SendBatch(ctx, b).Close(); err != nil {
			return err
		}
		return p.mayJudge(ctx, now)
	})
	if err != nil {
		return fmt.Errorf("deleting old runs, and grace periods that are over: %w", err)
	}
	return nil
}

// leftovers are statements that delete rows about policies, namespaces and tags that were deleted or
// changed since.
var leftovers = []struct{ what, sql string }{
	{"deleting exemptions from policies whose rules were changed since", `
		DELETE FROM autopruneexemptions e WHERE (repository_id, tag_id, policy) IN (
			SELECT repository_id, tag_id, policy FROM autopruneexemptions x
			WHERE policy <> 'free' AND NOT EXISTS (SELECT FROM namespaceautoprunepolicy p WHERE p.uuid = x.policy AND p.rule_version <= x.version)
				AND NOT EXISTS (SELECT FROM repositoryautoprunepolicy p WHERE p.uuid = x.policy AND p.rule_version <= x.version)
				AND NOT EXISTS (SELECT FROM defaultautoprunepolicy p WHERE p.uuid = x.policy AND p.rule_version <= x.version)
			LIMIT 10000)`},
	{"deleting exemptions of tags that were deleted", `
		DELETE FROM autopruneexemptions e WHERE (repository_id, tag_id, policy) IN (
			SELECT x.repository_id, x.tag_id, x.policy FROM autopruneexemptions x
			JOIN repositories r ON r.id = x.repository_id
			WHERE NOT EXISTS (SELECT FROM tags t
				WHERE t.top_level_namespace_id = r.top_level_namespace_id AND t.repository_id = x.repository_id AND t.id = x.tag_id)
			LIMIT 10000)`},
	{"deleting announcements of policies and namespaces that were deleted", `
		DELETE FROM autopruneannouncements WHERE (policy, namespace_id) IN (
			SELECT policy, namespace_id FROM autopruneannouncements x
			WHERE NOT EXISTS (SELECT FROM top_level_namespaces n WHERE n.id = x.namespace_id)
				OR NOT EXISTS (SELECT FROM namespaceautoprunepolicy p WHERE p.uuid = x.policy)
				AND NOT EXISTS (SELECT FROM repositoryautoprunepolicy p WHERE p.uuid = x.policy)
				AND NOT EXISTS (SELECT FROM defaultautoprunepolicy p WHERE p.uuid = x.policy)
			LIMIT 10000)`},
	{"deleting what is known of policies and namespaces that were deleted", `
		DELETE FROM autoprunerests WHERE (policy, namespace_id) IN (
			SELECT policy, namespace_id FROM autoprunerests x
			WHERE NOT EXISTS (SELECT FROM top_level_namespaces n WHERE n.id = x.namespace_id)
				OR NOT EXISTS (SELECT FROM namespaceautoprunepolicy p WHERE p.uuid = x.policy)
				AND NOT EXISTS (SELECT FROM repositoryautoprunepolicy p WHERE p.uuid = x.policy)
				AND NOT EXISTS (SELECT FROM defaultautoprunepolicy p WHERE p.uuid = x.policy)
			LIMIT 10000)`},
	{"deleting questions of policies and namespaces that were deleted, and of policies that were saved since", `
		DELETE FROM autopruneasks WHERE (policy, namespace_id, version) IN (
			SELECT policy, namespace_id, version FROM autopruneasks x
			WHERE NOT EXISTS (SELECT FROM top_level_namespaces n WHERE n.id = x.namespace_id)
				OR NOT EXISTS (SELECT FROM namespaceautoprunepolicy p WHERE p.uuid = x.policy AND p.version = x.version)
				AND NOT EXISTS (SELECT FROM repositoryautoprunepolicy p WHERE p.uuid = x.policy AND p.version = x.version)
				AND NOT EXISTS (SELECT FROM defaultautoprunepolicy p WHERE p.uuid = x.policy AND p.version = x.version)
			LIMIT 10000)`},
}
