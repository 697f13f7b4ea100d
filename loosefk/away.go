package loosefk

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/purser-registry/purser/loosefk/internal/pg"
)

// reachTime bounds the check whether a database can be reached.
const reachTime = 5 * time.Second

// lookUpReachable is like lookUp, but can do without databases other than db. If such a
// database can't be reached, it leaves out the definitions that have a table there, and
// gone is an error that names the database. away is then the set of parents in db that have
// children in such a database: the run cleans up the children in the databases that it
// reaches, but leaves the parents' deleted records pending.
func (w *Worker) lookUpReachable(ctx context.Context, db *Database) (rs references, away map[pg.Table]bool, gone, err error) {
	rs, _, err = lookUp(ctx, w.opt.Databases, w.opt.Definitions)
	if _, bad := errors.AsType[Problems](err); err == nil || bad || ctx.Err() != nil {
		return rs, nil, nil, err
	}
	missing := map[*Database]bool{}
	for i := range w.opt.Databases {
		other := &w.opt.Databases[i]
		if other == db {
			continue
		}
		reach, cancel := context.WithTimeout(ctx, reachTime)
		if lost := other.Pool.Ping(reach); lost != nil {
			missing[other] = true
			gone = errors.Join(gone, fmt.Errorf("database %s can't be reached, and children there stay: %w", other.Name, lost))
		}
		cancel()
	}
	if len(missing) == 0 {
		return nil, nil, nil, err
	}
	away = map[pg.Table]bool{}
	left := slices.DeleteFunc(slices.Clone(w.opt.Definitions), func(d Definition) bool {
		child, parent := w.opt.Databases.Of(d.Child), w.opt.Databases.Of(d.Parent)
		if missing[child] && parent == db {
			away[db.table(d.Parent)] = true
		}
		return missing[child] || missing[parent]
	})
	rs, _, err = lookUp(ctx, w.opt.Databases, left)
	return rs, away, gone, err
}
