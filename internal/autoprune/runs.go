package autoprune

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
)

// RunSummary says what a run did. Consecutive runs that had nothing to do share one
// summary: Started is when the first of these runs started, Ended when the last of them
// ended.
type RunSummary struct {
	ID           string     `json:"id" doc:"Identifier of the run"`
	Namespace    string     `json:"namespace"`
	NamespaceID  int64      `json:"-"`
	State        string     `json:"state" enum:"running,success,failure,stopped" doc:"stopped: its namespace or its policies were deleted meanwhile"`
	Started      time.Time  `json:"started_at"`
	Ended        *time.Time `json:"ended_at" doc:"Null while it runs"`
	Times        int64      `json:"times" doc:"Number of runs that this stands for: consecutive runs that had nothing to do are listed as one"`
	Took         float64    `json:"took_seconds" doc:"Time that workers spent on it"`
	Repositories int64      `json:"repositories" doc:"Repositories that the run has finished"`
	Tags         int64      `json:"tags" doc:"Tags that were looked at"`
	Deleted      int64      `json:"tags_deleted"`
	Would        int64      `json:"tags_would_delete" doc:"Tags that it would have deleted if no policy observed or waited"`
	Failed       int64      `json:"repositories_failed"`
	Held         int64      `json:"tags_held" doc:"Tags that policies selected and that stayed because a reporter holds them. A repository that took several time slices may count them more than once"`
	Restored     int64      `json:"tags_restored" doc:"Tags that were restored since"`
	Error        string     `json:"error,omitempty"`
	// Notices says for policies, by their uuids, why they selected nothing, or why their keep
	// rules kept more tags than they should.
	// HeldBy says who holds them: the number of these tags by the reporter's name.
	HeldBy  map[string]int64  `json:"held_by,omitempty" doc:"Number of these tags by the name of a reporter that holds them"`
	Notices map[string]string `json:"notices,omitempty" doc:"Why policies, by their uuids, could select nothing, or why their keep rules kept more tags"`
}

// RunRepository says what a run did in a repository.
type RunRepository struct {
	Repository string           `json:"repository"`
	Deleted    int64            `json:"tags_deleted"`
	Policies   map[string]int64 `json:"policies" doc:"Tags deleted under each policy, by its uuid"`
	Error      string           `json:"error,omitempty"`
}

func scanRun(row pgx.CollectableRow) (r RunSummary, err error) {
	var notices, by []byte
	err = row.Scan(&r.ID, &r.Namespace, &r.NamespaceID, &r.State, &r.Started, &r.Ended, &r.Times, &r.Took, &r.Repositories, &r.Tags,
		&r.Deleted, &r.Would, &r.Failed, &r.Held, &by, &r.Restored, &r.Error, &notices)
	if err == nil && by != nil {
		err = json.Unmarshal(by, &r.HeldBy)
	}
	if err == nil && notices != nil {
		err = json.Unmarshal(notices, &r.Notices)
	}
	return r, err
}

// DefaultRuns and MaxRuns are the default and the largest number of runs that one call of
// Runs lists.
const (
	DefaultRuns = 50
	MaxRuns     = 500
)

// Runs lists up to n runs, newest first: those of the given namespace, or of all namespaces
// if namespace is "". `cursor` is "" for the first page, and otherwise the result `next` of
// the call before; `next` is "" after the last page. Runs are kept after their namespace
// was deleted, so an unknown name gives an empty list and no error.
func (p *Pruner) Runs(ctx context.Context, namespace, cursor string, n int) (list []RunSummary, next string, err error) {
	return p.RunsOf(ctx, namespace, 0, cursor, n)
}

// RunsOf is Runs without the runs of other namespaces that have had the name before: it lists those
// of the namespace with the id, if that isn't 0.
func (p *Pruner) RunsOf(ctx context.Context, namespace string, namespaceID int64, cursor string, n int) (list []RunSummary, next string, err error) {
	if n <= 0 {
		n = DefaultRuns
	}
	n = min(n, MaxRuns)
	at, id, err := parseRunCursor(cursor)
	if err != nil {
		return nil, "", err
	}
	where, args := "(started_at, id) < ($1, $2)", []any{at, id, n + 1}
	switch {
	case namespaceID != 0:
		where, args = where+" AND namespace_id = $4", append(args, namespaceID)
	case namespace != "":
		where, args = where+" AND namespace = $4", append(args, namespace)
	}
	rows, err := p.db.Pool.Query(ctx, `
		SELECT id::text, namespace, namespace_id, state, started_at, ended_at, times, extract(epoch FROM busy)::float8,
			repositories, tags, deleted, would, failed, held, held_by, restored, COALESCE(error, ''), notices
		FROM autopruneruns WHERE `+where+`
		ORDER BY started_at DESC, id DESC LIMIT $3`, args...)
	list, more, err := db.Page(rows, err, n, scanRun)
	if err != nil {
		return nil, "", fmt.Errorf("listing runs of auto-pruning: %w", err)
	}
	if more {
		next = runCursor(list[len(list)-1])
	}
	return list, next, nil
}

func runCursor(r RunSummary) string {
	return base64.RawURLEncoding.EncodeToString([]byte(strconv.FormatInt(r.Started.UnixMicro(), 36) + "." + r.ID))
}

func parseRunCursor(cursor string) (at time.Time, id uuid.UUID, err error) {
	if cursor == "" {
		return time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC), uuid.Max, nil
	}
	b, err := base64.RawURLEncoding.DecodeString(cursor)
	micros, name, ok := strings.Cut(string(b), ".")
	if err == nil && ok {
		var n int64
		if n, err = strconv.ParseInt(micros, 36, 64); err == nil {
			at = time.UnixMicro(n)
			id, err = uuid.Parse(name)
		}
	}
	if err != nil || !ok {
		return at, id, oci.Invalid("the cursor is not valid: begin again without one")
	}
	return at, id, nil
}

// maxRunRepositories is how many repositories of a run are listed.
const maxRunRepositories = 1000

// RunDetails is a run with the counts of each repository in which it deleted tags or
// failed.
type RunDetails struct {
	RunSummary
	NamespaceNow string `json:"-"` // the namespace's name by now; empty: it is in the trash or gone
	// PerRepository has up to 1,000 repositories in which the run deleted tags or failed,
	// ordered by the number of deleted tags, largest first.
	PerRepository []RunRepository `json:"per_repository" nullable:"false" doc:"Repositories in which the run deleted tags or failed, most deleted first: the first 1000"`
	// Asks has the policies that ask for an approval.
	Asks []RunAsk `json:"asks" nullable:"false" doc:"Policies that deleted nothing, because they would have deleted more than their cap allows: the first 1000"`
	// Observed has up to 100 of the tags that Would counts.
	Observed []ObservedTag `json:"would" nullable:"false" doc:"The first 100 tags that the run would have deleted if no policy observed or waited"`
}

// GetRun returns a run, or the error NAME_UNKNOWN with status 404 if there is no such
// run.
func (p *Pruner) GetRun(ctx context.Context, id string) (RunDetails, error) {
	var d RunDetails
	key, err := uuid.Parse(id)
	if err != nil {
		return d, RunUnknown(id)
	}
	rows, err := p.db.Pool.Query(ctx, `
		SELECT id::text, namespace, namespace_id, state, started_at, ended_at, times, extract(epoch FROM busy)::float8,
			repositories, tags, deleted, would, failed, held, held_by, restored, COALESCE(error, ''), notices
		FROM autopruneruns WHERE id = $1`, key)
	if err == nil {
		d.RunSummary, err = pgx.CollectExactlyOneRow(rows, scanRun)
	}
	if errors.Is(err, pgx.ErrNoRows) {
		return d, RunUnknown(id)
	}
	if err != nil {
		return d, fmt.Errorf("looking for a run of auto-pruning: %w", err)
	}
	rows, err = p.db.Pool.Query(ctx, `
		SELECT repository, deleted, policies, COALESCE(error, '') FROM autopruneruns_repositories
		WHERE run = $1 ORDER BY deleted DESC, repository LIMIT $2`, key, maxRunRepositories)
	if err == nil {
		d.PerRepository, err = pgx.CollectRows(rows, pgx.RowToStructByPos[RunRepository])
	}
	if err != nil {
		return d, fmt.Errorf("looking for a run of auto-pruning: %w", err)
	}
	err = p.db.Pool.QueryRow(ctx, `
		SELECT COALESCE(observed, '[]'), COALESCE(asks, '[]'), COALESCE((SELECT name FROM live_namespaces WHERE id = namespace_id), '')
		FROM autopruneruns WHERE id = $1`, key).Scan(&d.Observed, &d.Asks, &d.NamespaceNow)
	if err != nil {
		return d, fmt.Errorf("looking for what a run of auto-pruning would have deleted: %w", err)
	}
	d.Asks = d.Asks[:min(len(d.Asks), policies.MaxListed)]
	return d, nil
}

// RunUnknown returns the client's error for a run that doesn't exist.
func RunUnknown(id string) error {
	return oci.NotFound("there is no run of auto-pruning that is called %q: old runs are deleted; list those that are left", id).
		WithDetail(map[string]string{"run": id})
}

// RunNow puts a namespace's task at the head of the queue, for a run under the current
// policies. It returns the error NAME_UNKNOWN if the namespace doesn't exist, and
// UNSUPPORTED with status 409 if no policy applies to it.
func (p *Pruner) RunNow(ctx context.Context, namespace string) error {
	t := policies.Target{Namespace: namespace}
	err := p.db.Tx(ctx, func(tx pgx.Tx) error {
		o, err := t.Find(ctx, tx, true)
		if err != nil {
			return err
		}
		l, err := policies.Read(ctx, tx, o.Namespace) // by this connection alone: others may wait for what it has locked
		if err != nil {
			return err
		}
		if l.None() {
			return oci.Errorf(oci.Unsupported, "no auto-prune policy applies to namespace %s: create one first", namespace).WithStatus(409)
		}
		if _, err := tx.Exec(ctx, requestRun, o.Namespace); err != nil {
			return err
		}
		return audit.Append(ctx, tx, audit.Entry{Kind: audit.RunAutoprune, Namespace: namespace})
	})
	if _, answer := errors.AsType[*oci.Error](err); err != nil && !answer {
		return fmt.Errorf("asking for a run in namespace %s: %w", namespace, err)
	}
	if err == nil {
		p.loop.Wake()
	}
	return err
}

// requestRun puts a namespace's task at the head of the queue, and creates it if it is missing.
const requestRun = `
	INSERT INTO autoprunetaskstatus AS t (namespace_id, status) VALUES ($1, 'queued')
	ON CONFLICT (namespace_id) DO UPDATE SET last_ran_ms = NULL, asked = true,
		status = CASE WHEN t.run IS NULL THEN 'queued' ELSE t.status END`

// PrunedDay is what auto-pruning did in a namespace by runs that began on one day, UTC.
type PrunedDay struct {
	Day      time.Time `json:"day"` // its beginning
	Deleted  int64     `json:"tags_deleted"`
	Restored int64     `json:"tags_restored" doc:"Those of them that were restored since"`
}

// countedRuns is how many runs PrunedByDay reads at most: one for each minute of 31 days.
const countedRuns = 31 * 24 * 60

// PrunedByDay returns what auto-pruning did in the namespace with this id on each of the last `days` days, of which
// today is the last, the oldest first. Days on which it deleted nothing are left out, and so are those before
// the newest countedRuns runs.
func (p *Pruner) PrunedByDay(ctx context.Context, namespace int64, days int) ([]PrunedDay, error) {
	rows, err := p.db.Pool.Query(ctx, `
		SELECT date_trunc('day', started_at, 'UTC'), sum(deleted)::bigint, sum(restored)::bigint
		FROM (SELECT started_at, deleted, restored FROM autopruneruns
			WHERE namespace_id = $1 AND started_at >= (purser_today() - $2::int + 1)::timestamp AT TIME ZONE 'UTC'
			ORDER BY started_at DESC, id DESC LIMIT $3) r
		WHERE deleted > 0 GROUP BY 1 ORDER BY 1`, namespace, days, countedRuns)
	if err != nil {
		return nil, fmt.Errorf("reading what was pruned by day: %w", err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[PrunedDay])
	if err != nil {
		return nil, fmt.Errorf("reading what was pruned by day: %w", err)
	}
	for i := range list {
		list[i].Day = list[i].Day.UTC()
	}
	return append([]PrunedDay{}, list...), nil
}
