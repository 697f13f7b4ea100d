package pullstats

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/worker"
)

// sweepPage is how many statistics rows the sweeper reads and checks at once.
const sweepPage = 1000

// SweeperOptions configures a Sweeper.
type SweeperOptions struct {
	Stats *db.DB // required: the database of the statistics
	// Tags says which tags exist, also in the trash: the i-th result belongs to the tag names[i] of the
	// repository with the id repositories[i]. Required.
	Tags func(ctx context.Context, repositories []int64, names []string) ([]bool, error)
	// Manifests says in the same way which manifests exist. Required.
	Manifests func(ctx context.Context, repositories []int64, digests []oci.Digest) ([]bool, error)
	// Window is how long a tag or manifest must be missing before its statistics are
	// deleted. A tag or manifest that is created again earlier keeps its old statistics.
	// Default 30 days.
	Window time.Duration
	// Interval is the time between the end of a sweep and the beginning of the next one.
	// Default 24 h.
	Interval time.Duration
	// MayDelete returns an error that wraps worker.ErrRest while nothing may be deleted for its age
	// (see package clock). Nil: it always may.
	MayDelete func(ctx context.Context) error
	Logger    *slog.Logger    // default slog.Default()
	Worker    *worker.Metrics // nil: none
}

// Sweeper deletes the statistics of tags and manifests that no longer exist. Any number of
// processes may run one.
//
// The sweeper reads the tables of tag and manifest statistics in the order of their primary
// keys. It marks the rows of missing tags and manifests (column gone_since), and removes the
// mark if the tag or manifest exists again. It deletes a row that has been marked for the
// whole Window, if nobody used the tag or manifest during that time.
//
// Tags and statistics may be on two servers, so no lock can keep a client from pushing a tag
// while the tag's statistics are deleted. Instead the order of these steps protects a tag
// that comes back:
//
//  1. Read the statistics row with its mark.
//  2. Look up the tag, and set or remove the mark accordingly.
//  3. If the row is to be deleted, look up the tag a second time.
//  4. Delete the row if it is still as it was read in step 1. Each pull and each HEAD that is
//     counted in between changes the row; and another sweeper that has found the tag has
//     removed the mark.
//
// One case remains in which a tag loses its old count: the tag was missing for the whole
// Window and comes back, within milliseconds, between the second lookup and the deletion of
// its row. Later pulls then count from 0. A tag that comes back between two sweeps and is
// deleted again, without being used, counts as missing all the time.
//
// No statement of the sweeper waits for a row that another transaction has locked: it skips
// the row until the next sweep. So the sweeper can't take part in a deadlock with the
// workers that count pulls.
//
// When a repository is deleted, loose foreign keys delete its statistics rows. If some of
// these rows are left, the sweeper deletes them like rows of other missing tags and
// manifests.
type Sweeper struct {
	opt    SweeperOptions
	log    *slog.Logger
	loop   *worker.Loop
	tables []sweptTable

	// Used by the loop alone.
	due   time.Time
	table int // the table that is being swept; after is the last key swept there
	after sweptKey
	gone  []int64 // number of rows that this sweep deleted, by table
}

// NewSweeper makes a sweeper. It deletes nothing before Run.
func NewSweeper(o SweeperOptions) (*Sweeper, error) {
	if o.Stats == nil || o.Tags == nil || o.Manifests == nil {
		return nil, errors.New("pullstats: the database of the statistics is required, and who knows which tags and manifests exist")
	}
	if o.Window <= 0 {
		o.Window = 30 * 24 * time.Hour
	}
	if o.Interval <= 0 {
		o.Interval = 24 * time.Hour
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	w := &Sweeper{opt: o, log: o.Logger, tables: sweptTables(o)}
	w.gone = make([]int64, len(w.tables))
	// Processes that start together should not sweep at the same time.
	w.due = time.Now().Add(rand.N(o.Interval/24 + 1))
	w.loop = worker.New(worker.Options{
		Name: "pull statistics sweep", Batch: w.round, May: o.MayDelete, Next: w.next, Log: o.Logger, Metrics: o.Worker,
	})
	return w, nil
}

// Run begins a sweep once in each interval until ctx ends. That also cancels the page of
// rows that is being swept; then Run returns nil.
func (w *Sweeper) Run(ctx context.Context) error { return w.loop.Run(ctx) }

// round sweeps a page of rows if one is due. After a page it pauses four times as long as
// the page took, so that sweeping occupies a connection for at most a fifth of the time.
func (w *Sweeper) round(ctx context.Context) (more bool, err error) {
	start := time.Now()
	if start.Before(w.due) {
		return false, nil
	}
	end, err := w.page(ctx)
	if err != nil {
		return false, fmt.Errorf("sweeping pull statistics: %w", err)
	}
	if end {
		w.due = time.Now().Add(w.opt.Interval)
	} else {
		w.due = time.Now().Add(4 * time.Since(start))
	}
	return false, nil
}

// next returns how long it is until the next page is due.
func (w *Sweeper) next(context.Context) (time.Duration, error) { return time.Until(w.due), nil }

// page sweeps the next page of rows, and returns whether it was the last page of the sweep.
func (w *Sweeper) page(ctx context.Context) (end bool, err error) {
	t := w.tables[w.table]
	rows, err := t.read(ctx, w.after, w.opt.Window)
	if err != nil {
		return false, err
	}
	gone, err := t.sweep(ctx, rows)
	if err != nil {
		return false, err
	}
	w.gone[w.table] += gone
	if len(rows) == sweepPage {
		w.after = rows[len(rows)-1].sweptKey
		return false, nil
	}
	w.after = sweptKey{}
	if w.table++; w.table < len(w.tables) {
		return false, nil
	}
	if w.gone[0]+w.gone[1] > 0 {
		w.log.InfoContext(ctx, "deleted pull statistics of what is gone", "tags", w.gone[0], "manifests", w.gone[1])
	}
	w.table = 0
	clear(w.gone)
	return true, nil
}

// sweptKey is the primary key of a row of statistics.
type sweptKey struct {
	repository int64
	name       string
}

// sweptRow is a statistics row as the sweeper has read it.
type sweptRow struct {
	sweptKey
	count               int64
	last, checked, gone *time.Time
	due                 bool // marked and unused for the whole Window: to be deleted if its tag or manifest is missing
}

// sweptTable is a table of statistics: that of tags or that of manifests.
type sweptTable struct {
	db      *db.DB
	columns *strings.Replacer // names of the table and its columns
	here    func(ctx context.Context, rows []sweptRow) ([]bool, error)
}

// sweptTables returns the tables of tags and of manifests.
func sweptTables(o SweeperOptions) []sweptTable {
	return []sweptTable{
		{o.Stats, strings.NewReplacer("{table}", "tagpullstatistics", "{history}", "tagpullhistory", "{name}", "tag_name", "{count}", "tag_pull_count", "{last}", "last_tag_pull_date"),
			func(ctx context.Context, rows []sweptRow) ([]bool, error) {
				repositories, names := keys(rows)
				return o.Tags(ctx, repositories, names)
			}},
		{o.Stats, strings.NewReplacer("{table}", "manifestpullstatistics", "{history}", "manifestpullhistory", "{name}", "manifest_digest", "{count}", "total_pull_count", "{last}", "last_pull_date"),
			func(ctx context.Context, rows []sweptRow) ([]bool, error) {
				repositories, names := keys(rows)
				digests := make([]oci.Digest, len(names))
				for i, name := range names {
					var err error
					if digests[i], err = oci.ParseDigest(name); err != nil {
						return nil, fmt.Errorf("statistics of repository %d: %w", repositories[i], err)
					}
				}
				return o.Manifests(ctx, repositories, digests)
			}},
	}
}

func keys(rows []sweptRow) (repositories []int64, names []string) {
	for _, r := range rows {
		repositories, names = append(repositories, r.repository), append(names, r.name)
	}
	return repositories, names
}

// read returns the next page of the table's rows in key order: those whose keys come after
// the key `after`.
func (t sweptTable) read(ctx context.Context, after sweptKey, window time.Duration) ([]sweptRow, error) {
	rows, err := t.db.Pool.Query(ctx, t.columns.Replace(`
		SELECT repository_id, {name}, {count}, {last}, last_check_date, gone_since, gone_since IS NOT NULL
			AND GREATEST(gone_since, {last}, last_check_date) < now() - $4::bigint * interval '1 microsecond'
		FROM {table} WHERE (repository_id, {name}) > ($1, $2) ORDER BY repository_id, {name} LIMIT $3`),
		after.repository, after.name, sweepPage, window.Microseconds())
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (r sweptRow, err error) {
		err = row.Scan(&r.repository, &r.name, &r.count, &r.last, &r.checked, &r.gone, &r.due)
		return r, err
	})
}

// sweep looks up which of the rows belong to tags or manifests that exist, and corrects the
// rows' marks (gone_since). It deletes the rows that are due for deletion and whose tag or
// manifest is still missing at a second lookup, and returns the number of deleted rows.
func (t sweptTable) sweep(ctx context.Context, rows []sweptRow) (gone int64, err error) {
	if len(rows) == 0 {
		return 0, nil
	}
	here, err := t.here(ctx, rows)
	if err != nil {
		return 0, err
	}
	var wrong, due []sweptRow
	for i, r := range rows {
		if here[i] == (r.gone != nil) {
			wrong = append(wrong, r)
		}
		if r.due && !here[i] {
			due = append(due, r)
		}
	}
	if err := t.mark(ctx, wrong); err != nil || len(due) == 0 {
		return 0, err
	}
	if here, err = t.here(ctx, due); err != nil {
		return 0, err
	}
	var missing []sweptRow
	for i, r := range due {
		if !here[i] {
			missing = append(missing, r)
		}
	}
	return t.drop(ctx, missing)
}

// mark marks as missing (column gone_since) those of the rows that were read without this
// mark, and removes the mark from the others. It skips rows whose mark another sweeper has
// changed since they were read.
func (t sweptTable) mark(ctx context.Context, rows []sweptRow) error {
	if len(rows) == 0 {
		return nil
	}
	marked := make([]bool, len(rows))
	for i, r := range rows {
		marked[i] = r.gone != nil
	}
	repositories, names := keys(rows)
	_, err := t.db.Pool.Exec(ctx, t.columns.Replace(`
		WITH mine AS MATERIALIZED (
			SELECT s.* FROM unnest($1::bigint[], $2::text[], $3::boolean[]) AS p (repository_id, name, marked)
			CROSS JOIN LATERAL (
				SELECT repository_id, {name} FROM {table}
				WHERE repository_id = p.repository_id AND {name} = p.name AND (gone_since IS NOT NULL) = p.marked
				FOR UPDATE SKIP LOCKED) s)
		UPDATE {table} s SET gone_since = CASE WHEN gone_since IS NULL THEN now() END
		FROM mine WHERE s.repository_id = mine.repository_id AND s.{name} = mine.{name}`), repositories, names, marked)
	return err
}

// drop deletes those of the rows that haven't changed since they were read, with the history
// of their tags or manifests, and returns the number of rows of statistics.
func (t sweptTable) drop(ctx context.Context, rows []sweptRow) (dropped int64, err error) {
	if len(rows) == 0 {
		return 0, nil
	}
	repositories, names := keys(rows)
	counts := make([]int64, len(rows))
	lasts, checks, marks := make([]*time.Time, len(rows)), make([]*time.Time, len(rows)), make([]*time.Time, len(rows))
	for i, r := range rows {
		counts[i], lasts[i], checks[i], marks[i] = r.count, r.last, r.checked, r.gone
	}
	err = t.db.Pool.QueryRow(ctx, t.columns.Replace(`
		WITH same AS MATERIALIZED (
			SELECT s.* FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::timestamptz[], $5::timestamptz[], $6::timestamptz[])
				AS p (repository_id, name, count, last, checked, gone)
			CROSS JOIN LATERAL (
				SELECT repository_id, {name} FROM {table}
				WHERE repository_id = p.repository_id AND {name} = p.name AND {count} = p.count AND {last} IS NOT DISTINCT FROM p.last
					AND last_check_date IS NOT DISTINCT FROM p.checked AND gone_since = p.gone
				FOR UPDATE SKIP LOCKED) s
		), gone AS (
			DELETE FROM {table} s USING same WHERE s.repository_id = same.repository_id AND s.{name} = same.{name}
			RETURNING s.repository_id, s.{name}
		), days AS (
			DELETE FROM {history} h USING gone WHERE h.repository_id = gone.repository_id AND h.{name} = gone.{name})
		SELECT count(*) FROM gone`),
		repositories, names, counts, lasts, checks, marks).Scan(&dropped)
	return dropped, err
}
