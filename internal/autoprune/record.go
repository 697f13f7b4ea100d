package autoprune

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/db"
)

// Events of which notices are sent.
const (
	EventStarted  = "autoprune.started"  // before the first tag of a run is deleted
	EventFinished = "autoprune.finished" // at the end of a run with EventStarted, or that failed
)

// StartedNotice is the content of EventStarted.
type StartedNotice struct {
	Run       string                  `json:"run"`
	Namespace string                  `json:"namespace"`
	Policies  []policies.NoticePolicy `json:"policies"`
}

// FinishedNotice is the content of EventFinished.
type FinishedNotice struct {
	Run       string    `json:"run"`
	Namespace string    `json:"namespace"`
	State     string    `json:"state"`
	Started   time.Time `json:"started_at"`
	Ended     time.Time `json:"ended_at"`
	Deleted   int64     `json:"tags_deleted"`
	Failed    int64     `json:"repositories_failed"`
	Error     string    `json:"error,omitempty"`
}

func (u *timeSlice) started() StartedNotice {
	n := StartedNotice{Run: u.task.run.String(), Namespace: u.task.name, Policies: []policies.NoticePolicy{}}
	l := u.policies
	for _, s := range l.All() {
		if s.Problem == "" && s.Policy.Mode == "" && (s.ActiveFrom == nil || l.Announced(s)) && u.caps.waits(s) == "" &&
			l.Unconfirmed(s) == "" && l.Unreported(&s.Policy) == "" {
			n.Policies = append(n.Policies, l.Notice(s))
		}
	}
	return n
}

// makeRun creates the run's row in autopruneruns, unless an earlier time slice has done so.
func (u *timeSlice) makeRun(ctx context.Context, q db.Querier) error {
	_, err := q.Exec(ctx, `
		INSERT INTO autopruneruns (id, namespace_id, namespace, state, started_at)
		VALUES ($1, $2, $3, 'running', clock_timestamp() - $4::interval)
		ON CONFLICT (id) DO NOTHING`, u.task.run, u.task.namespace, u.task.name, time.Since(u.began))
	if err != nil {
		return fmt.Errorf("recording a run: %w", err)
	}
	return nil
}

// record adds the counts of one deletion to the run's rows: the row of the whole run and
// the row of the repository. `deleted` is the number of deleted tags, `counts` has the
// number of deleted tags by policy id, and `tags` is the number of tags of the repository
// that the run hasn't counted yet. `after` is what the run then knows of policies with caps.
//
// The transaction commits without waiting until PostgreSQL has written the commit to disk.
// If the machine then crashes, the last deletions are undone together with their audit
// entries, and the next time slice deletes these tags again. The commit at the end of a
// time slice waits for the disk, and thereby makes all earlier commits durable.
func (v *repositoryRun) record(ctx context.Context, tx pgx.Tx, deleted, tags int64, counts map[string]int64, after *caps) error {
	limits, err := after.json()
	if err != nil {
		return err
	}
	b := new(pgx.Batch)
	b.Queue("UPDATE autopruneruns SET deleted = deleted + $2, tags = tags + $3, limits = COALESCE($4::jsonb, limits) WHERE id = $1",
		v.slice.task.run, deleted, tags, limits)
	b.Queue(`
		INSERT INTO autopruneruns_repositories AS r (run, repository_id, repository, deleted, policies, tags)
		VALUES ($1, $2, $3, $4, $5, $6)
		ON CONFLICT (run, repository_id) DO UPDATE SET deleted = r.deleted + EXCLUDED.deleted, tags = r.tags + EXCLUDED.tags,
			policies = (SELECT jsonb_object_agg(key, COALESCE((r.policies ->> key)::bigint, 0) + COALESCE((EXCLUDED.policies ->> key)::bigint, 0))
				FROM jsonb_object_keys(r.policies || EXCLUDED.policies) AS key)`,
		v.slice.task.run, v.target.ID, v.target.Path, deleted, counts, tags)
	b.Queue("SELECT set_config('synchronous_commit', 'off', true)")
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return fmt.Errorf("recording a run: %w", err)
	}
	return nil
}

// recordFailure records why a repository could not be pruned.
func (u *timeSlice) recordFailure(ctx context.Context, t catalog.Repository, failure error) error {
	err := u.p.db.Tx(ctx, func(tx pgx.Tx) error {
		if err := u.p.lockTask(ctx, tx, u.task); err != nil {
			return err
		}
		if err := u.makeRun(ctx, tx); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `
			INSERT INTO autopruneruns_repositories (run, repository_id, repository, error) VALUES ($1, $2, $3, $4)
			ON CONFLICT (run, repository_id) DO UPDATE SET error = EXCLUDED.error`,
			u.task.run, t.ID, t.Path, shorten(failure.Error()))
		return err
	})
	if err != nil {
		return fmt.Errorf("recording a run: %w", err)
	}
	return nil
}

// shorten limits the text of an error that is stored with a run: it keeps at most the first
// 500 bytes, followed by "…" if it has cut the text.
func shorten(text string) string {
	const most = 500
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}

// pause ends this time slice in the middle of the run: it adds the slice's counts to the
// run's row and gives up the lease on the task, so that a later time slice continues the
// run.
func (u *timeSlice) pause(ctx context.Context) error {
	return u.p.db.Tx(ctx, func(tx pgx.Tx) error {
		if err := u.p.lockTask(ctx, tx, u.task); err != nil {
			return err
		}
		if err := u.makeRun(ctx, tx); err != nil {
			return err
		}
		if _, err := u.addSlice(ctx, tx, ""); err != nil {
			return err
		}
		if err := errors.Join(u.storeTallies(ctx, tx), u.storeCaps(ctx, tx)); err != nil {
			return err
		}
		return u.p.yieldTask(ctx, tx, u.task)
	})
}

// run is a run's row.
type run struct {
	state                               string
	started, ended                      time.Time
	repositories, tags, deleted, failed int64
	busy                                time.Duration
	err                                 string
	announced                           bool  // its start was told (EventStarted)
	would                               int64 // tags that would be deleted
	repeats                             bool  // it shares the row of the run before
}

// addSlice adds the counts of this time slice to the run's row, and returns the row's
// values. It returns nil if the run has no row. If `finished` isn't "", addSlice also
// ends the run with this state, or with "failure" if a repository failed.
func (u *timeSlice) addSlice(ctx context.Context, tx pgx.Tx, finished string) (*run, error) {
	notices, err := json.Marshal(u.notices)
	if err != nil {
		return nil, err
	}
	seen, err := u.observed.json()
	if err != nil {
		return nil, err
	}
	asks, err := u.asksJSON()
	if err != nil {
		return nil, err
	}
	r := new(run)
	var ended *time.Time
	err = tx.QueryRow(ctx, `
		UPDATE autopruneruns r SET repositories = repositories + @repositories, tags = tags + @tags, failed = failed + @failed,
			error = COALESCE(error, NULLIF(@error::text, '')), busy = busy + @busy::interval,
			notices = NULLIF(COALESCE(notices, '{}') || @notices::jsonb, '{}'),
			would = would + @would,
			observed = NULLIF(jsonb_path_query_array(COALESCE(observed, '[]') || @observed::jsonb, '$[0 to 99]'), '[]'),
			held = held + @held, held_by = CASE WHEN @held_by::jsonb = '{}' THEN held_by ELSE (
				SELECT jsonb_object_agg(key, COALESCE((held_by ->> key)::bigint, 0) + COALESCE((@held_by::jsonb ->> key)::bigint, 0))
				FROM jsonb_object_keys(COALESCE(held_by, '{}') || @held_by::jsonb) AS key) END,
			state = CASE WHEN @finished::text = '' THEN state WHEN failed + @failed > 0 THEN 'failure' ELSE @finished END,
			ended_at = CASE WHEN @finished <> '' THEN clock_timestamp() END, tally = CASE WHEN @finished = '' THEN tally END,
			limits = CASE WHEN @finished = '' THEN limits END, asks = CASE WHEN @finished <> '' THEN NULLIF(@asks::jsonb, '[]') END
		WHERE id = @run
		RETURNING state, started_at, ended_at, repositories, tags, deleted, failed, busy, COALESCE(error, ''), announced, would`, db.Args{
		"run": u.task.run, "repositories": u.repositories, "tags": u.tags, "failed": u.failed, "error": shorten(u.firstError),
		"busy": u.busy(), "notices": string(notices), "finished": finished,
		"would": u.observed.number, "observed": seen, "held": u.held, "held_by": u.holders(), "asks": asks,
	}).
		Scan(&r.state, &r.started, &ended, &r.repositories, &r.tags, &r.deleted, &r.failed, &r.busy, &r.err, &r.announced, &r.would)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("recording a run: %w", err)
	}
	if ended != nil {
		r.ended = *ended
	}
	return r, nil
}

// recorded returns whether autopruneruns may have a row of the run, created by this time
// slice or an earlier one.
func (u *timeSlice) recorded() bool { return u.task.resumed || u.begun || u.failed > 0 }

// finish ends the run and gives up the lease on the task in one transaction, so that the
// run's row and the task always agree on whether the run is over.
func (u *timeSlice) finish(ctx context.Context) error {
	told := false
	var r *run
	err := u.p.db.Tx(ctx, func(tx pgx.Tx) (err error) {
		told = false
		if err := u.p.lockTask(ctx, tx, u.task); err != nil {
			return err
		}
		if r = nil; u.recorded() {
			if r, err = u.addSlice(ctx, tx, "success"); err != nil {
				return err
			}
		}
		if r == nil {
			if r, err = u.recordIdle(ctx, tx); err != nil {
				return err
			}
		}
		if r.would > 0 && !r.repeats {
			if err := u.auditObserved(ctx, tx); err != nil {
				return err
			}
		}
		if err := u.p.finishTask(ctx, tx, u.task, r.status()+u.asking()+u.restText()+u.skipped()); err != nil {
			return err
		}
		announced, err := u.announce(ctx, tx)
		if err != nil {
			return err
		}
		rested, err := u.tellReporters(ctx, tx)
		if err != nil {
			return err
		}
		asked, err := u.ask(ctx, tx)
		if err != nil {
			return err
		}
		told, err = u.p.tellEnd(ctx, tx, u.task.run.String(), u.task.name, r)
		told = told || announced || rested || asked
		return err
	})
	if err != nil {
		return err
	}
	u.p.metrics.runs.WithLabelValues(r.state).Inc()
	u.p.metrics.observed.Add(float64(r.would))
	u.p.metrics.rests.Add(float64(len(u.policies.Resting())))
	u.p.metrics.asks.Add(float64(len(u.caps.asks(u.policies, u.policies.WithCaps()))))
	if r.deleted > 0 || r.failed > 0 {
		u.p.log.InfoContext(ctx, "pruned a namespace", "namespace", u.task.name, "run", u.task.run, "state", r.state,
			"tags", r.tags, "deleted", r.deleted, "repositories", r.repositories, "failed", r.failed, "took", r.busy)
	}
	u.p.notified(told)
	return nil
}

// tellEnd queues the notice that a run has ended, if the notice of the run's start was
// queued, or if the run deleted tags or failed. `told` says whether it queued the notice.
func (p *Pruner) tellEnd(ctx context.Context, tx pgx.Tx, id, namespace string, r *run) (told bool, err error) {
	if p.opt.Notify == nil || !r.announced && r.deleted == 0 && r.failed == 0 && r.state != "failure" {
		return false, nil
	}
	return true, p.opt.Notify(ctx, tx, EventFinished, FinishedNotice{
		Run: id, Namespace: namespace, State: r.state, Started: r.started, Ended: r.ended,
		Deleted: r.deleted, Failed: r.failed, Error: r.err,
	})
}

// notified wakes the sender of notices if `told` is set, that is, if a transaction that
// queued a notice has committed.
func (p *Pruner) notified(told bool) {
	if told && p.opt.Notified != nil {
		p.opt.Notified()
	}
}

// status describes the run's outcome for its task.
func (r *run) status() string {
	text := fmt.Sprintf("deleted %d of %s, %s, in %s", r.deleted, counted(r.tags, "tag", "tags"), counted(r.repositories, "repository", "repositories"), r.busy.Round(time.Millisecond))
	if r.would > 0 {
		text += fmt.Sprintf("; %s would be deleted", counted(r.would, "tag", "tags"))
	}
	if r.state == "failure" {
		return fmt.Sprintf("failure: %s failed, first %s; %s", counted(r.failed, "repository", "repositories"), r.err, text)
	}
	return "success: " + text
}

// counted is a number with its noun: "1 tag", "2 tags".
func counted(n int64, one, many string) string {
	if n == 1 {
		many = one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// skipped describes for the task how many policies were skipped.
func (u *timeSlice) skipped() string {
	switch u.unreadable {
	case 0:
		return ""
	case 1:
		return "; 1 policy can't be read and was skipped: see the run's notices"
	}
	return fmt.Sprintf("; %d policies can't be read and were skipped: see the run's notices", u.unreadable)
}

// recordIdle records a run that deleted nothing and in which nothing failed. Consecutive
// runs of this kind share one row of autopruneruns: if the namespace's newest row there is
// of this kind and has the same notices, the same tags that would be deleted and the same
// policies that ask, recordIdle counts this run in that row.
func (u *timeSlice) recordIdle(ctx context.Context, tx pgx.Tx) (*run, error) {
	notices, err := json.Marshal(u.notices)
	if err != nil {
		return nil, err
	}
	seen, err := u.observed.json()
	if err != nil {
		return nil, err
	}
	asks, err := u.asksJSON()
	if err != nil {
		return nil, err
	}
	took := u.busy()
	args := db.SharedArgs{"run": u.task.run, "namespace": u.task.namespace, "name": u.task.name,
		"repositories": u.repositories, "tags": u.tags, "busy": took, "notices": string(notices),
		"would": u.observed.number, "observed": seen, "held": u.held, "held_by": u.holders(), "asks": asks}
	done, err := tx.Exec(ctx, `
		UPDATE autopruneruns SET ended_at = clock_timestamp(), times = times + 1, repositories = @repositories, tags = @tags,
			busy = busy + @busy::interval, held = @held, held_by = NULLIF(@held_by::jsonb, '{}')
		WHERE id = (SELECT id FROM autopruneruns WHERE namespace_id = @namespace ORDER BY started_at DESC, id DESC LIMIT 1)
			AND state = 'success' AND deleted = 0 AND failed = 0
			AND COALESCE(notices, '{}') = @notices::jsonb AND would = @would AND COALESCE(observed, '[]') = @observed::jsonb
			AND COALESCE(asks, '[]') = @asks::jsonb`, args)
	repeats := err == nil && done.RowsAffected() > 0
	if err == nil && !repeats {
		_, err = tx.Exec(ctx, `
			INSERT INTO autopruneruns (id, namespace_id, namespace, state, started_at, ended_at, repositories, tags, busy, notices, would, observed,
				held, held_by, asks)
			VALUES (@run, @namespace, @name, 'success', clock_timestamp() - @busy::interval, clock_timestamp(),
				@repositories, @tags, @busy, NULLIF(@notices::jsonb, '{}'), @would, NULLIF(@observed::jsonb, '[]'),
				@held, NULLIF(@held_by::jsonb, '{}'), NULLIF(@asks::jsonb, '[]'))`, args)
	}
	if err != nil {
		return nil, fmt.Errorf("recording a run: %w", err)
	}
	return &run{state: "success", repositories: u.repositories, tags: u.tags, busy: took, would: u.observed.number, repeats: repeats}, nil
}

// fail ends a run that can't continue, with the state "failure", and gives up the lease on
// the task; the namespace is pruned again when it is next due. If the database is
// unavailable or doesn't accept these changes, fail returns the error, and the lease
// expires by itself.
func (p *Pruner) fail(ctx context.Context, t *task, failure error) error {
	p.log.ErrorContext(ctx, "a namespace could not be pruned", "namespace", t.name, "run", t.run, "error", failure)
	if db.Unavailable(failure) {
		return failure
	}
	told := false
	err := p.db.Tx(ctx, func(tx pgx.Tx) error {
		told = false
		if err := p.lockTask(ctx, tx, t); err != nil {
			return err
		}
		r := &run{state: "failure"}
		err := tx.QueryRow(ctx, `
			INSERT INTO autopruneruns (id, namespace_id, namespace, state, ended_at, error)
			VALUES ($1, $2, $3, 'failure', clock_timestamp(), $4)
			ON CONFLICT (id) DO UPDATE SET state = 'failure', ended_at = clock_timestamp(), error = EXCLUDED.error
			RETURNING started_at, ended_at, deleted, failed, error, announced`,
			t.run, t.namespace, t.name, shorten(failure.Error())).Scan(&r.started, &r.ended, &r.deleted, &r.failed, &r.err, &r.announced)
		if err != nil {
			return err
		}
		// A request to free waits for the next run.
		if _, err := tx.Exec(ctx, "UPDATE autoprunefree SET run = NULL WHERE namespace_id = $1 AND run = $2", t.namespace, t.run); err != nil {
			return err
		}
		if err := p.finishTask(ctx, tx, t, "failure: "+shorten(failure.Error())); err != nil {
			return err
		}
		told, err = p.tellEnd(ctx, tx, t.run.String(), t.name, r)
		return err
	})
	if err != nil {
		return errors.Join(failure, err)
	}
	p.metrics.runs.WithLabelValues("failure").Inc()
	p.notified(told)
	return nil
}

// stopRun ends a run whose task was deleted, because the namespace was deleted or has no
// policies any more. A run that another worker has taken over still has its task, and
// stopRun doesn't end it.
func (p *Pruner) stopRun(ctx context.Context, t *task) error { return p.stopRuns(ctx, t.run) }

// stopRuns ends those of the given runs that are marked as running and have no task, and
// sends the notices of their end.
func (p *Pruner) stopRuns(ctx context.Context, ids ...uuid.UUID) error {
	stopped, told := 0, false
	err := p.db.Tx(ctx, func(tx pgx.Tx) error {
		stopped, told = 0, false
		rows, err := tx.Query(ctx, `
			UPDATE autopruneruns r SET state = 'stopped', ended_at = clock_timestamp(), tags = GREATEST(tags, deleted)
			WHERE id = ANY ($1) AND state = 'running' AND NOT EXISTS (SELECT FROM autoprunetaskstatus t WHERE t.run = r.id)
			RETURNING id::text, namespace, started_at, ended_at, deleted, failed, COALESCE(error, ''), announced`, ids)
		if err != nil {
			return err
		}
		type ended struct {
			id, namespace string
			run
		}
		list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (e ended, err error) {
			e.state = "stopped"
			return e, row.Scan(&e.id, &e.namespace, &e.started, &e.ended, &e.deleted, &e.failed, &e.err, &e.announced)
		})
		if err != nil {
			return err
		}
		for _, e := range list {
			one, err := p.tellEnd(ctx, tx, e.id, e.namespace, &e.run)
			if err != nil {
				return err
			}
			told = told || one
		}
		stopped = len(list)
		return nil
	})
	if err != nil {
		return fmt.Errorf("recording that a run was stopped: %w", err)
	}
	p.metrics.runs.WithLabelValues("stopped").Add(float64(stopped))
	p.notified(told)
	return nil
}
