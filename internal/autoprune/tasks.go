package autoprune

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/worker"
)

// task is a namespace that this worker has claimed.
type task struct {
	namespace    int64
	name         string
	lease        uuid.UUID
	run          uuid.UUID
	resumed      bool  // an earlier time slice has begun the run
	runRequested bool  // it never ran, or a client has asked for a run or changed a policy
	next         int64 // repositories up to this id are done
	// versions are the versions of the namespace's policies, of the registry's defaults and
	// of the protection rules. claim reads them before load reads the policies and rules,
	// so that a change between the two reads is noticed.
	versions versions
}

// versions are numbers that each change of policies or protection rules raises. The version
// of a namespace's policies is in its task (policies_version). The versions of the
// registry's defaults and of the protection rules are in the table settings, as
// autoprune_defaults_version and tag_protection_version.
type versions struct{ policies, defaults, protection int64 }

// errLost says that this worker no longer has the task: its lease expired and another
// worker has claimed the task, or the task was deleted with its namespace.
var errLost = errors.New("another worker has the task by now, or its namespace is deleted")

// errOutdated says that policies or protection rules have changed since this time slice
// read them.
var errOutdated = errors.New("policies have changed meanwhile")

// claim returns the task that has been due longest among those with an unfinished run, or among
// those without, and leases it to this worker. It returns nil if no task is due. A task with an
// unexpired lease isn't due. Any other task is due if it has an unfinished run, or if it was last
// claimed at least Options.Interval ago, or never; tasks that were never claimed come first. A
// client may ask for a run (the column asked). If it asked before the run began, this run fulfils
// the request, so claim clears the column; a request during the run makes finishTask
// queue another run.
func (p *Pruner) claim(ctx context.Context, unfinished bool) (*task, error) {
	t := &task{lease: uuid.New()}
	which, args := "run IS NOT NULL", db.Args{"lease": t.lease, "for": p.opt.Lease}
	if !unfinished {
		which = "run IS NULL AND (last_ran_ms IS NULL OR last_ran_ms <= (extract(epoch FROM clock_timestamp()) * 1000)::bigint - @interval::bigint)"
		args["interval"] = p.opt.Interval.Milliseconds()
	}
	var resumed *uuid.UUID
	err := p.db.Pool.QueryRow(ctx, `
		WITH due AS (
			SELECT namespace_id, run, last_ran_ms FROM autoprunetaskstatus
			WHERE `+which+` AND (leased_until IS NULL OR leased_until < clock_timestamp())
				AND EXISTS (SELECT FROM live_namespaces n WHERE n.id = namespace_id)
			ORDER BY last_ran_ms NULLS FIRST LIMIT 1
			FOR UPDATE SKIP LOCKED
		)
		UPDATE autoprunetaskstatus t
		SET lease = @lease, leased_until = clock_timestamp() + @for::interval, last_ran_ms = (extract(epoch FROM clock_timestamp()) * 1000)::bigint,
			status = 'running', run = COALESCE(t.run, gen_random_uuid()), asked = t.asked AND t.run IS NOT NULL
		FROM due JOIN live_namespaces n ON n.id = due.namespace_id
		WHERE t.namespace_id = due.namespace_id
		RETURNING t.namespace_id, n.name, t.run, due.run, due.last_ran_ms IS NULL, t.next_repository, t.policies_version,
			(SELECT value::bigint FROM settings WHERE name = 'autoprune_defaults_version'),
			(SELECT value::bigint FROM settings WHERE name = 'tag_protection_version')`, args).
		Scan(&t.namespace, &t.name, &t.run, &resumed, &t.runRequested, &t.next, &t.versions.policies, &t.versions.defaults, &t.versions.protection)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("looking for a namespace to prune: %w", err)
	}
	t.resumed = resumed != nil
	return t, nil
}

// lockTask locks the task until the transaction ends, and returns errLost if this worker no
// longer has the lease. Each transaction of a time slice begins with lockTask or
// lockTaskAndPolicies, even if it only writes the run's row. So a worker that was stopped
// for longer than its lease, and whose task another worker has claimed, writes nothing when
// it continues.
//
// A transaction must update the task's row only once. At a second update PostgreSQL checks
// the foreign key to the namespace again, although the key is unchanged. This check waits
// for any transaction that is deleting the namespace, and such a transaction waits for the
// task's row: a deadlock.
func (p *Pruner) lockTask(ctx context.Context, tx pgx.Tx, t *task) error {
	done, err := tx.Exec(ctx, "SELECT FROM autoprunetaskstatus WHERE namespace_id = $1 AND lease = $2 FOR NO KEY UPDATE",
		t.namespace, t.lease)
	if err != nil {
		return fmt.Errorf("locking the task of namespace %s: %w", t.name, err)
	}
	if done.RowsAffected() == 0 {
		return errLost
	}
	return nil
}

// lockTaskAndPolicies is like lockTask, for transactions that delete tags by policies.
// It also renews the lease and stores the run's position, in case this process ends
// before the time slice does. It locks the versions of the policies: a change of a
// policy either waits for these locks, or has raised the version, and
// lockTaskAndPolicies then returns errOutdated. So after a change of a policy has
// committed, no worker deletes by the old policy. If this worker no longer has the
// lease, it returns errLost. By the transaction's now() later statements find out which holds have
// ended, so lockTaskAndPolicies returns an error if the clock isn't fit for that. The result `at` is
// the database's time after it has the locks.
func (p *Pruner) lockTaskAndPolicies(ctx context.Context, tx pgx.Tx, t *task) (at time.Time, err error) {
	var now versions
	var began time.Time
	b := new(pgx.Batch)
	b.Queue(`
		UPDATE autoprunetaskstatus SET leased_until = clock_timestamp() + $3::interval, next_repository = $4
		WHERE namespace_id = $1 AND lease = $2 RETURNING policies_version, clock_timestamp(), now()`,
		t.namespace, t.lease, p.opt.Lease, t.next).QueryRow(func(row pgx.Row) error {
		err := row.Scan(&now.policies, &at, &began)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			return errLost
		case err != nil:
			return fmt.Errorf("locking the task of namespace %s: %w", t.name, err)
		}
		return nil
	})
	b.Queue(`
		WITH locked AS (
			SELECT name, value::bigint FROM settings
			WHERE name IN ('autoprune_defaults_version', 'tag_protection_version') ORDER BY name FOR SHARE
		)
		SELECT (SELECT value FROM locked WHERE name = 'autoprune_defaults_version'),
			(SELECT value FROM locked WHERE name = 'tag_protection_version')`).QueryRow(func(row pgx.Row) error {
		if err := row.Scan(&now.defaults, &now.protection); err != nil {
			return fmt.Errorf("looking whether policies have changed: %w", err)
		}
		return nil
	})
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return at, err
	}
	if now != t.versions {
		return at, errOutdated
	}
	return at, p.mayJudge(ctx, began)
}

// renew renews the lease while the worker only reads tags. It returns errLost if
// this worker no longer has the lease.
func (p *Pruner) renew(ctx context.Context, t *task) error {
	done, err := p.db.Pool.Exec(ctx, `
		UPDATE autoprunetaskstatus SET leased_until = clock_timestamp() + $3::interval
		WHERE namespace_id = $1 AND lease = $2`, t.namespace, t.lease, p.opt.Lease)
	if err != nil {
		return fmt.Errorf("renewing the lease on namespace %s: %w", t.name, err)
	}
	if done.RowsAffected() == 0 {
		return errLost
	}
	return nil
}

// yieldTask gives up the lease on the task in the middle of its run, so that another time
// slice can continue the run. It does nothing if this worker has lost the lease.
func (p *Pruner) yieldTask(ctx context.Context, q db.Querier, t *task) error {
	_, err := q.Exec(ctx, `
		UPDATE autoprunetaskstatus SET lease = NULL, leased_until = NULL, next_repository = $3, last_ran_ms = (extract(epoch FROM clock_timestamp()) * 1000)::bigint, status = 'running'
		WHERE namespace_id = $1 AND lease = $2`, t.namespace, t.lease, t.next)
	if err != nil {
		return fmt.Errorf("giving back the task of namespace %s: %w", t.name, err)
	}
	return nil
}

// finishTask ends the task's run and gives up the lease. If a client asked for a run or
// changed a policy during this run, the next run begins at once, since this run may have
// finished some repositories before the request.
func (p *Pruner) finishTask(ctx context.Context, tx pgx.Tx, t *task, status string) error {
	_, err := tx.Exec(ctx, `
		UPDATE autoprunetaskstatus SET run = NULL, next_repository = 0, lease = NULL, leased_until = NULL, asked = false,
			status = CASE WHEN asked THEN 'queued' ELSE $2 END,
			last_ran_ms = CASE WHEN asked THEN NULL ELSE (extract(epoch FROM clock_timestamp()) * 1000)::bigint END
		WHERE namespace_id = $1`, t.namespace, status)
	if err == nil {
		_, err = tx.Exec(ctx, "DELETE FROM autoprunefree WHERE namespace_id = $1 AND (run = $2 OR created_at <= now() - $3::interval)", t.namespace, t.run, freeLasts)
	}
	if err != nil {
		return fmt.Errorf("ending a run of namespace %s: %w", t.name, err)
	}
	return nil
}

// dropTaskWithoutPolicies deletes the task of a namespace to which no policy applies;
// `dropped` says whether it did. It locks the task first, and looks for policies in a later
// statement. A transaction of a client that saves a policy locks the task before it
// commits. So either the worker sees the new policy and keeps the task, or the client's
// transaction waits for the worker's and then creates the task again.
func (p *Pruner) dropTaskWithoutPolicies(ctx context.Context, t *task) (dropped bool, err error) {
	err = p.deletion(ctx, func(q deletionTx) error {
		dropped = false
		if _, err := p.lockTaskAndPolicies(ctx, q.Tx, t); err != nil {
			return err
		}
		done, err := q.Tx.Exec(ctx, `
			DELETE FROM autoprunetaskstatus t
			WHERE namespace_id = $1
				AND NOT EXISTS (SELECT FROM namespaceautoprunepolicy WHERE namespace_id = t.namespace_id)
				AND NOT EXISTS (SELECT FROM repositoryautoprunepolicy WHERE namespace_id = t.namespace_id)
				AND NOT EXISTS (SELECT FROM autoprunefree WHERE namespace_id = t.namespace_id AND created_at > now() - $2::interval)
				AND (NOT EXISTS (SELECT FROM defaultautoprunepolicy)
					OR EXISTS (SELECT FROM autoprunewithoutdefaults WHERE namespace_id = t.namespace_id))`, t.namespace, freeLasts)
		if err != nil {
			return fmt.Errorf("deleting the task of namespace %s: %w", t.name, err)
		}
		dropped = done.RowsAffected() > 0
		return nil
	})
	return dropped, err
}

// unfinishedIn returns how long it takes until a worker may continue an unfinished run that no
// worker continues now: 0 if one waits, and `most` if there is none. The run of a worker that
// has died waits for the end of the worker's lease.
func (p *Pruner) unfinishedIn(ctx context.Context, most time.Duration) (time.Duration, error) {
	var left *time.Duration
	err := p.db.Pool.QueryRow(ctx, `
		SELECT min(COALESCE(leased_until - clock_timestamp(), '0')) FROM autoprunetaskstatus
		WHERE run IS NOT NULL AND EXISTS (SELECT FROM live_namespaces n WHERE n.id = namespace_id)`).Scan(&left)
	if err != nil {
		return 0, fmt.Errorf("looking for runs that are unfinished: %w", err)
	}
	if left == nil {
		return most, nil
	}
	return min(max(0, *left), most), nil
}

// TaskStatus is the state of a namespace's task.
type TaskStatus struct {
	Namespace string          `json:"namespace"`
	LastRan   *time.Time      `json:"last_ran" doc:"Null: there was no run yet, or a new one was asked for"`
	Status    string          `json:"status" doc:"queued, running, success or failure, with what was done"`
	Run       string          `json:"run,omitempty" doc:"The run that is under way"`
	Rests     []policies.Rest `json:"rests,omitempty" doc:"Policies that rest: they delete nothing until somebody confirms their warnings, or until the reporters report that they require"`
	Resting   string          `json:"resting,omitempty" doc:"Why the registry prunes nothing now: its clocks disagree" example:"the database's clock is 60d ahead of the clock of this process"`
}

// Task returns the state of a namespace's task. It returns nil if no policy applies to
// the namespace, or if no worker has created the task yet: of a default policy, or of one that was
// inserted by SQL.
// It returns the error NAME_UNKNOWN if the namespace doesn't exist.
func (p *Pruner) Task(ctx context.Context, namespace string) (*TaskStatus, error) {
	o, err := policies.Target{Namespace: namespace}.Find(ctx, p.db.Pool, false)
	if err != nil {
		return nil, err
	}
	s := TaskStatus{Namespace: namespace}
	var ms *int64
	var run *uuid.UUID
	err = p.db.Pool.QueryRow(ctx, "SELECT last_ran_ms, COALESCE(status, ''), run FROM autoprunetaskstatus WHERE namespace_id = $1", o.Namespace).
		Scan(&ms, &s.Status, &run)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("looking for the task of namespace %s: %w", namespace, err)
	}
	if ms != nil {
		at := time.UnixMilli(*ms).UTC()
		s.LastRan = &at
	}
	if run != nil {
		s.Run = run.String()
	}
	if err := p.mayDelete(ctx); errors.Is(err, worker.ErrRest) {
		s.Resting = err.Error()
	}
	if s.Rests, err = p.Policies.Rests(ctx, namespace); err != nil {
		return nil, err
	}
	return &s, nil
}

// next returns how long the worker sleeps before the next time slice. After a time slice
// that found nothing to do, it sleeps so long that such time slices take no more than
// Options.IdleShare of the time, but not longer than until it may continue an unfinished run;
// otherwise it sleeps until a task is due.
func (p *Pruner) next(ctx context.Context) (time.Duration, error) {
	if p.rest > 0 {
		return p.rest, nil
	}
	var ms *int64
	err := p.db.Pool.QueryRow(ctx, `
		SELECT min(CASE
			WHEN leased_until > clock_timestamp() THEN extract(epoch FROM leased_until - clock_timestamp()) * 1000
			WHEN last_ran_ms IS NULL OR run IS NOT NULL THEN 0
			ELSE last_ran_ms + $1::bigint - (extract(epoch FROM clock_timestamp()) * 1000)::bigint END)::bigint
		FROM autoprunetaskstatus WHERE EXISTS (SELECT FROM live_namespaces n WHERE n.id = namespace_id)`, p.opt.Interval.Milliseconds()).Scan(&ms)
	if err != nil {
		return 0, fmt.Errorf("looking when a namespace is due: %w", err)
	}
	if ms == nil {
		return p.opt.Interval, nil
	}
	return min(time.Duration(max(*ms, 0))*time.Millisecond, p.opt.Interval), nil
}
