package operate

import (
	"context"
	"errors"

	"github.com/purser-registry/purser/cmd/purser/internal/backend"
	"github.com/purser-registry/purser/internal/db"
)

// examineRights looks for rights that the roles of the databases lack. visible says that the metadata's
// role may look into the schema, if there is one; else no table could be examined. Whether something can be
// written at all, other examinations say.
func (d *doctor) examineRights(ctx context.Context) (visible bool, err error) {
	r, err := d.db.Rights(ctx)
	if err != nil {
		return false, err
	}
	d.findLacks("database.main", r)
	visible = len(r.Lacks) == 0 || r.Lacks[0].Kind != "schema"
	stats, done := d.db, func() {}
	if dsn := backend.StatsDSN(d.cfg, d.dsn); dsn != d.dsn {
		if stats, err = db.Open(ctx, db.Options{DSN: dsn, MaxConns: 1, ApplicationName: "purser doctor", Log: d.log}); err != nil {
			return visible, err
		}
		done = stats.Close
	}
	defer done()
	if r, err = stats.StatsRights(ctx); err != nil {
		if db.Unavailable(err) { // the statistics' server may be away, which another examination says
			err = nil
		}
		return visible, err
	}
	d.findLacks("database.stats", r)
	return visible, nil
}

// findLacks makes a finding of what a role lacks.
func (d *doctor) findLacks(about string, r db.Rights) {
	lacks, ok := errors.AsType[*db.DeniedError](r.All())
	if !ok {
		return
	}
	d.denied = true
	d.find(levelError, about+": role "+r.Role, lacks.Remedy, "%s: what needs them fails, and clients get 503", lacks.What)
}
