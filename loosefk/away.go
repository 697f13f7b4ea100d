package loosefk

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/purser-registry/purser/loosefk/internal/pg"
)

// reachTime is how long a database may take to answer the ping that finds out whether it
// can be reached.
const reachTime = 5 * time.Second

// lookUpReachable looks up the tables of the definitions for a run on db, as lookUp does,
// but leaves out definitions with a table in another database that can't be reached. The
// error `gone` names the unreachable databases. The set `away` contains the parent tables
// in db with children in an unreachable database: the run cleans up their children in the
// reachable databases, but leaves their deleted records pending.
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
