package loosefk

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/purser-registry/purser/loosefk/internal/pg"
)

// outcome divides parents by the result of cleaning up their children for one definition.
// Parents in `done` have no children left, or exist again. Parents in `paused` have more
// children than one turn of the parent table may change, or the run reached a limit first.
// Parents in `left` kept children because of a lock, a timeout or an error.
type outcome struct{ done, paused, left []parentKey }

// reference cleans up the children of the parents `ids` for one definition, in two passes.
// The first pass skips children that another transaction has locked. The second pass waits
// for each locked child, at most for LockTimeout. A parent is done only when a query of the
// second pass has changed all children of the parent that it found, and has found fewer
// than it might change, so that no child is left.
func (c *cleaner) reference(ctx context.Context, r Reference, ids []parentKey) (all outcome, err error) {
	all.done = ids
	for _, skipLocked := range []bool{true, false} {
		res, err := c.pass(ctx, r, all.done, skipLocked)
		all.done, all.paused, all.left = res.done, append(all.paused, res.paused...), append(all.left, res.left...)
		if err != nil {
			return all, err
		}
	}
	return all, nil
}

// maxTries is how often a query for a single parent may be repeated after it failed to lock
// its children. Then the run leaves the parent to the next run.
const maxTries = 2

// patience bounds how long all queries of a run for one parent table may wait for locks:
// together for `patience` times LockTimeout. Without this bound, a thousand parents with
// locked children would use up the run's time for all other parents.
const patience = 10

// pass runs queries for one definition until each parent in `line` has an outcome. A query
// for several parents changes at most a quarter of its row limit for one parent; a parent
// with more children then goes to the end of the line. If a query fails because of a lock,
// a timeout, or a row that a constraint or a trigger keeps from being changed, pass repeats
// it with half of the parents and half of the rows, so that in the end only the parents
// that cause the failure are left. Once the queries of the run for a parent table have
// waited for locks for `patience` times LockTimeout in total, the later queries for this
// table no longer wait for locked children.
func (c *cleaner) pass(ctx context.Context, r Reference, line []parentKey, skipLocked bool) (out outcome, err error) {
	most := c.limit(r)
	limit, width, tries := most, len(line), 0
	changed := map[parentKey]int{}
	for len(line) > 0 {
		if c.tracker.over() || ctx.Err() != nil {
			out.paused = append(out.paused, line...)
			return out, ctx.Err()
		}
		patient := c.waited[r.ParentTable] < patience*c.opt.LockTimeout
		ids := line[:min(width, len(line))]
		if !r.Local() { // a parent may have been inserted again while children of others were cleaned up
			back, err := c.back(ctx, r, ids, &line, &out)
			if err != nil {
				return out, err
			}
			if back {
				continue
			}
		}
		n := min(limit, c.tracker.room(r.OnDelete))
		perParent := n
		if len(ids) > 1 {
			perParent = max(n/4, 1)
		}
		began := time.Now()
		found, rows, err := r.change(ctx, c.timeouts(patient), ids, n, perParent, skipLocked)
		if pg.IsState(err, pg.StateDivisionByZero) {
			back, err := c.back(ctx, r, ids, &line, &out)
			if err != nil {
				return out, err
			}
			if back {
				continue
			}
		}
		if err != nil && !givesWay(err) && !refuses(err) {
			out.left = append(out.left, line...)
			return out, err
		}
		if err == nil && (rows > 0 || len(found) == 0) {
			tries, limit, width = 0, min(2*limit, most), min(2*width, c.opt.Batch)
			c.changed(r, rows)
			seen := advance(ids, found, rows, n, perParent, changed, c.share(r), &out)
			line = slices.Concat(seen.ahead, line[len(ids):], seen.back)
			continue
		}
		// The query changed no row: it failed to get a lock, or other transactions had just
		// changed all the rows that it found, or a constraint or trigger forbids a change.
		if !refuses(err) {
			c.waited[r.ParentTable] += time.Since(began)
		}
		switch {
		case len(ids) > 1 || limit > 1 && pg.IsState(err, pg.StateQueryCanceled):
			width, limit = max(len(ids)/2, 1), max(limit/2, 1)
		case refuses(err):
			c.refuse(r, err)
			out.left = append(out.left, ids[0])
			line, tries, limit = line[1:], 0, most
			continue
		case tries < maxTries && patient:
			tries++
		default:
			c.leave(r, ids[0], err)
			out.left = append(out.left, ids[0])
			line, tries, limit = line[1:], 0, most
		}
		if !patient {
			continue
		}
		if err := sleep(ctx, rand.N(c.opt.LockTimeout/4+1)); err != nil {
			out.left = append(out.left, line...)
			return out, err
		}
	}
	return out, nil
}

// changed adds the child rows that a query changed to the run's counts and the metrics.
func (c *cleaner) changed(r Reference, rows int) {
	c.tracker.add(r.OnDelete, rows)
	if r.OnDelete == AsyncDelete {
		c.opt.Observer.Rows(r.ChildDatabase.Name, r.ChildTable.String(), rows, 0)
	} else {
		c.opt.Observer.Rows(r.ChildDatabase.Name, r.ChildTable.String(), 0, rows)
	}
}

// timeouts returns the lock and statement timeouts of the next query. If `patient` is false,
// the lock timeout is 1 ms, so that the query practically waits for no lock. The statement
// timeout is StatementTimeout or, if that is less, the time left to the run, at least 1 s.
func (c *cleaner) timeouts(patient bool) timeouts {
	t := timeouts{c.opt.LockTimeout, min(c.opt.StatementTimeout, max(time.Until(c.tracker.deadline), time.Second))}
	if !patient {
		t.lock = time.Millisecond
	}
	return t
}

// refuse stores the error by which a constraint or trigger forbade the worker to change a
// child of r's definition, unless c.refused already has an error for this definition.
func (c *cleaner) refuse(r Reference, err error) {
	if key := r.Definition.String(); c.refused[key] == nil {
		c.refused[key] = fmt.Errorf("children of %s: %w", r.ParentTable, err)
	}
}

// back looks up which of the parents `ids`, the first ones in `line`, exist again, and
// moves those from `line` to out.done, since their children must stay. It returns whether
// any of them exists. If the lookup fails, it adds all parents in `line` to out.left and
// returns the error.
func (c *cleaner) back(ctx context.Context, r Reference, ids []parentKey, line *[]parentKey, out *outcome) (bool, error) {
	dead, err := c.dead(ctx, r.ParentTable, ids)
	if err != nil {
		out.left = append(out.left, *line...)
		return false, err
	}
	if len(dead) == len(ids) {
		return false, nil
	}
	out.done = append(out.done, pg.Without(ids, dead)...)
	*line = slices.Concat(dead, (*line)[len(ids):])
	return true, nil
}

// share returns how many children of one parent pass may change before it leaves the parent
// to a later turn of the parent table: turnQueries times the row limit of a query or, if that
// is less, a quarter of the run's limit, MaxDeletes or MaxUpdates; at least 1.
func (c *cleaner) share(r Reference) int {
	whole := c.opt.MaxUpdates
	if r.OnDelete == AsyncDelete {
		whole = c.opt.MaxDeletes
	}
	return max(min(c.limit(r)*turnQueries, whole/4), 1)
}

// limit returns how many children one query for the definition of r may change.
func (c *cleaner) limit(r Reference) int {
	switch {
	case r.DeleteLimit > 0:
		return r.DeleteLimit
	case r.OnDelete == AsyncDelete:
		return c.opt.DeleteLimit
	}
	return c.opt.UpdateLimit
}

// givesWay returns whether the error of a query is a lock timeout, a statement timeout, a
// deadlock or a serialization failure, so that the query may succeed if the worker repeats
// it later or with fewer rows.
func givesWay(err error) bool {
	return pg.IsState(err, pg.StateLockNotAvailable) || pg.IsState(err, pg.StateQueryCanceled) ||
		pg.IsState(err, pg.StateDeadlock) || pg.IsState(err, pg.StateSerialization)
}

// refuses returns whether a query failed because the data forbids a change of some row: by
// a constraint, a value that doesn't fit its column, or a trigger that raises an error.
// Other rows may still be changed.
func refuses(err error) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	return ok && slices.Contains([]string{"22", "23", "27", "44", "P0"}, e.Code[:2])
}

// sorted holds the parents of a query that may have more children. The query reached its
// row limit before it came to the parents in `ahead`, so the next query begins with them.
// The parents in `back` come after all other parents that still wait for a query.
type sorted struct{ ahead, back []parentKey }

// advance divides the parents `ids` of a query by its result: `list` says how many children
// the query found for each parent, `rows` how many it changed in all; the query might
// change `limit` rows in all and `perParent` rows of one parent. advance adds parents
// without further children to out.done. It adds a parent to out.paused if the queries up to
// now have changed at least `share` of its children; `changed` holds their number by
// parent, to which advance adds. It returns the other parents.
func advance(ids []parentKey, list []found, rows, limit, perParent int, changed map[parentKey]int, share int, out *outcome) (s sorted) {
	total := 0
	by := make(map[int]int, len(list))
	for _, f := range list {
		total += f.rows
		by[f.place] = f.rows
	}
	last := len(ids) // the parent at which the query reached its limit
	if total == limit {
		last = list[len(list)-1].place
	}
	for place, id := range ids {
		changed[id] += by[place]
		switch {
		case place > last:
			s.ahead = append(s.ahead, id)
		case place < last && by[place] < perParent && rows == total:
			out.done = append(out.done, id)
		case changed[id] >= share:
			out.paused = append(out.paused, id)
		default:
			s.back = append(s.back, id)
		}
	}
	return s
}
