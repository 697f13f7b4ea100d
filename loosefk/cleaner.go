package loosefk

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/purser-registry/purser/loosefk/internal/pg"
)

// tracker counts the child rows that a run deletes and updates, and says when the run has
// reached MaxDeletes, MaxUpdates or MaxRuntime.
type tracker struct {
	deletes, updates       int
	maxDeletes, maxUpdates int
	deadline               time.Time
}

func newTracker(o Options) *tracker {
	return &tracker{maxDeletes: o.MaxDeletes, maxUpdates: o.MaxUpdates, deadline: time.Now().Add(o.MaxRuntime)}
}

func (t *tracker) add(a Action, rows int) {
	if a == AsyncDelete {
		t.deletes += rows
	} else {
		t.updates += rows
	}
}

// room returns how many more child rows the run may delete or, for the other actions, update.
func (t *tracker) room(a Action) int {
	if a == AsyncDelete {
		return t.maxDeletes - t.deletes
	}
	return t.maxUpdates - t.updates
}

func (t *tracker) over() bool { return t.reason() != "" }

// reason returns the name of the limit that the run has reached, or "".
func (t *tracker) reason() string {
	switch {
	case t.deletes >= t.maxDeletes:
		return "deletes"
	case t.updates >= t.maxUpdates:
		return "updates"
	case !time.Now().Before(t.deadline):
		return "time"
	}
	return ""
}

// cleaner is the state of one run on one database.
type cleaner struct {
	Result
	opt     Options
	db      *Database
	tracker *tracker
	begin   uint64 // index of the parent table that comes first, modulo the number of parent tables
	// away is the set of parent tables with children in a database that can't be reached.
	away map[pg.Table]bool
	// stuck holds, by parent table, the deleted records that a lock, a timeout or an error
	// kept from being finished; this run doesn't load them again. paused holds the deleted
	// records whose parents have more children than one call of c.turn for the parent table
	// may change. The table's next turn continues with them or, if the run reaches a limit
	// before that turn, the next run.
	stuck, paused map[pg.Table]map[record]bool
	// waited is the time, by parent table, that this run has spent on queries which changed
	// nothing, mostly because they waited for children that other transactions had locked.
	waited map[pg.Table]time.Duration
	// refused maps a definition to the first error by which a constraint or a trigger
	// forbade a change of a child.
	refused map[string]error
	// leftParents maps a definition to the parents that this run left for the next run.
	leftParents map[string]*leftParents
}

// leftParents are parents whose children a run left for the next run.
type leftParents struct {
	n      int
	first  parentKey
	reason error // of the first
}

// leave counts a parent that is left for the next run.
func (c *cleaner) leave(r Reference, id parentKey, reason error) {
	name := r.Definition.String()
	if c.leftParents[name] == nil {
		c.leftParents[name] = &leftParents{first: id, reason: reason}
	}
	c.leftParents[name].n++
}

// logLeft logs which parents the run left, in one line for each definition: a transaction that
// locks many children would otherwise fill the log with a line for each parent.
func (c *cleaner) logLeft(ctx context.Context) {
	for _, name := range slices.Sorted(maps.Keys(c.leftParents)) {
		left := c.leftParents[name]
		c.opt.Log.InfoContext(ctx, "left the children of deleted parents for the next run",
			"definition", name, "parents", left.n, "first", left.first, "reason", left.reason)
	}
}

func (w *Worker) cleaner(db *Database, o Options) *cleaner {
	return &cleaner{
		Result: Result{Database: db.Name}, opt: o, db: db, tracker: newTracker(o),
		stuck: map[pg.Table]map[record]bool{}, paused: map[pg.Table]map[record]bool{},
		waited: map[pg.Table]time.Duration{}, refused: map[string]error{}, leftParents: map[string]*leftParents{},
	}
}

// result returns what was done so far.
func (c *cleaner) result() Result {
	c.Deletes, c.Updates, c.OverLimit = c.tracker.deletes, c.tracker.updates, c.tracker.reason()
	return c.Result
}

// turnQueries bounds how many children of one parent a call of c.pass changes. When it has
// changed turnQueries times as many children of the parent as one query may change, or fewer
// (see c.share), c.pass continues with other parents, and leaves this parent to a later turn
// of the parent table.
const turnQueries = 10

// run processes the urgent deleted records of all parent tables, then the records that are
// due, and then the postponed records of parents with many children. It ends early when it
// reaches a limit.
func (c *cleaner) run(ctx context.Context, rs references) error {
	parents, err := c.db.in().Tracked(ctx, rs.parents(c.db))
	if err != nil {
		return err
	}
	if len(parents) > 0 { // so that a parent table that takes a whole run isn't first each time
		first := c.begin % uint64(len(parents))
		parents = slices.Concat(parents[first:], parents[:first])
	}
	var failed []error
	for _, parent := range parents {
		if !c.tracker.over() && ctx.Err() == nil {
			if _, err := c.turn(ctx, parent, rs.of(c.db, parent), laneUrgent, c.opt.UrgentRecords); err != nil {
				failed = append(failed, fmt.Errorf("children of %s: %w", parent, err))
			}
		}
	}
	for _, which := range []lane{laneDue, lanePutOff} {
		failed = append(failed, c.rounds(ctx, rs, parents, which)...)
	}
	failed = slices.AppendSeq(failed, maps.Values(c.refused))
	c.logLeft(ctx)
	if ctx.Err() == nil {
		failed = append(failed, c.attempted(ctx))
	}
	return errors.Join(append(failed, ctx.Err())...)
}

// rounds processes the deleted records of the lane `which`, such as the records that are
// due. The parent tables take turns: each turn processes one batch of a table's records.
// rounds returns when this run has tried each record of the lane, or has reached a limit. A
// parent table whose turn failed gets no further turn; its error is in the result. If a
// turn deleted children, and their table is itself a parent table, the children's table
// gets another turn, since the deletes of children wrote new deleted records.
func (c *cleaner) rounds(ctx context.Context, rs references, parents []pg.Table, which lane) (failed []error) {
	line := slices.Clone(parents)
	ended := map[pg.Table]bool{}
	for len(line) > 0 && !c.tracker.over() && ctx.Err() == nil {
		parent := line[0]
		line = line[1:]
		refs, before := rs.of(c.db, parent), c.tracker.deletes
		more, err := c.turn(ctx, parent, refs, which, c.opt.Batch)
		if err != nil {
			failed = append(failed, fmt.Errorf("children of %s: %w", parent, err))
			ended[parent] = true
			continue
		}
		if more {
			line = append(line, parent)
		}
		if c.tracker.deletes == before {
			continue
		}
		for _, r := range refs {
			if r.OnDelete == AsyncDelete && r.ChildDatabase == c.db && !ended[r.ChildTable] && !slices.Contains(line, r.ChildTable) && slices.Contains(parents, r.ChildTable) {
				line = append(line, r.ChildTable)
			}
		}
	}
	return failed
}

// turn loads one batch of a parent table's deleted records, at most `limit`, without those
// that got stuck in this run, and processes it under the table's lock. It does nothing if
// another worker holds the lock. It returns more = true if another turn of the table is
// worthwhile: either this turn changed rows, or its batch was full and the next batch will
// contain other records, because some records of this batch were finished or got stuck.
func (c *cleaner) turn(ctx context.Context, parent pg.Table, refs references, which lane, limit int) (more bool, err error) {
	held, err := c.opt.Lock.TryRun(ctx, c.db, "loose_foreign_keys/"+c.db.Name+"/"+parent.String(), func(ctx context.Context) error {
		records, err := c.db.load(ctx, parent, which, limit, slices.Collect(maps.Keys(c.stuck[parent])))
		if err != nil || len(records) == 0 {
			return err
		}
		c.Records += len(records)
		before, stuck := c.tracker.deletes+c.tracker.updates, len(c.stuck[parent])
		done, err := c.batch(ctx, parent, refs, records)
		more = c.tracker.deletes+c.tracker.updates > before || len(records) == limit && (done > 0 || len(c.stuck[parent]) > stuck)
		return err
	})
	if !held && err == nil && (which == laneDue || which == laneAll) {
		c.Locked++
	}
	return more, err
}

// batch processes deleted records of one parent table. For one definition after the other,
// it cleans up the children of all these parents. Then it marks the finished records as
// processed, and notes the others in c.stuck or c.paused. If children of one parent can't
// be changed, batch continues with the other parents. It returns how many records are
// finished.
func (c *cleaner) batch(ctx context.Context, parent pg.Table, refs references, records []record) (int, error) {
	ids, err := c.dead(ctx, parent, parentIDs(records))
	if err != nil {
		return 0, err
	}
	existing, pending := split(records, pg.Without(parentIDs(records), ids))
	if len(existing) > 0 {
		c.opt.Log.WarnContext(ctx, "deleted parents exist again: their children stay", "table", parent.String(), "parents", len(existing))
		if err := c.db.processed(ctx, existing); err != nil {
			return 0, err
		}
	}
	var paused []parentKey // parents that had their share of this turn, or whose turn a limit ended
	var left []parentKey   // parents that a lock, a timeout or an error kept from being finished
	for _, r := range refs {
		res, err2 := c.reference(ctx, r, ids)
		ids, paused, left = res.done, append(paused, res.paused...), append(left, res.left...)
		if err = err2; err != nil {
			left = append(left, ids...)
			ids = nil
			break
		}
	}
	if c.away[parent] {
		left = append(left, ids...)
		ids = nil
	}
	done, rest := split(pending, ids)
	if ctx.Err() != nil {
		return 0, errors.Join(err, ctx.Err()) // the context ended, so no record counts as attempted
	}
	stuck, _ := split(rest, left)
	waiting, _ := split(rest, paused)
	c.note(parent, stuck, waiting, done)
	if err2 := c.finish(ctx, parent, refs, done, len(existing)); err2 != nil {
		err = errors.Join(err, err2)
	}
	return len(existing) + len(done), err
}

// note adds a parent table's records in `stuck` to c.stuck and those in `waiting` to
// c.paused. It removes records in `stuck` from c.paused, and records in `done` from c.stuck
// and c.paused.
func (c *cleaner) note(parent pg.Table, stuck, waiting, done []record) {
	if c.stuck[parent] == nil {
		c.stuck[parent], c.paused[parent] = map[record]bool{}, map[record]bool{}
	}
	for _, r := range waiting {
		c.paused[parent][r] = true
	}
	for _, r := range stuck {
		c.stuck[parent][r] = true
		delete(c.paused[parent], r)
	}
	for _, r := range done {
		delete(c.stuck[parent], r)
		delete(c.paused[parent], r)
	}
}

// dead returns those of the parents `ids` that don't exist. If a parent was inserted again
// under its old id, its children belong to the new row and must stay.
func (c *cleaner) dead(ctx context.Context, parent pg.Table, ids []parentKey) ([]parentKey, error) {
	alive, err := c.db.in().Alive(ctx, parent, ids)
	if err != nil {
		return nil, err
	}
	return pg.Without(ids, alive), nil
}

// finish marks the deleted records in `done` as processed. But if the parent table has
// children in another database, and SecondLook isn't negative, finish first postpones each
// record once, by SecondLook, so that a later run searches for children a second time.
// `existing` is the number of records that batch has already marked as processed, because
// their parents exist again; finish only adds it to the counts.
func (c *cleaner) finish(ctx context.Context, parent pg.Table, refs references, done []record, existing int) error {
	var processed, again []record
	for _, r := range done {
		if c.opt.SecondLook > 0 && !r.secondLook() && refs.remote() {
			again = append(again, r)
		} else {
			processed = append(processed, r)
		}
	}
	if err := c.db.processed(ctx, processed); err != nil {
		return err
	}
	if err := c.db.lookAgain(ctx, again, c.opt.SecondLook); err != nil {
		return err
	}
	c.Processed += len(processed) + existing
	c.Again += len(again)
	c.opt.Observer.Records(c.db.Name, parent.String(), len(processed)+existing, 0, 0)
	return nil
}

// attempted counts this run as one failed attempt for each deleted record that the run left
// unfinished. For a record in c.paused it counts an attempt only if the run has reached a
// limit. For records of a parent table with children in a database that can't be reached it
// counts none, so that these records are not postponed.
func (c *cleaner) attempted(ctx context.Context) error {
	var failed []error
	for parent, stuck := range c.stuck {
		if c.away[parent] {
			continue
		}
		var cut []record
		if c.tracker.over() {
			cut = slices.Collect(maps.Keys(c.paused[parent]))
		}
		incremented, rescheduled, err := c.db.attempted(ctx, slices.Collect(maps.Keys(stuck)), cut, c.opt)
		failed = append(failed, err)
		c.Incremented += incremented
		c.Rescheduled += rescheduled
		c.opt.Observer.Records(c.db.Name, parent.String(), 0, incremented, rescheduled)
	}
	return errors.Join(failed...)
}

// remote returns whether any child is in another database than its parent.
func (rs references) remote() bool {
	for _, r := range rs {
		if !r.Local() {
			return true
		}
	}
	return false
}
