package serve

import (
	"context"
	"errors"

	"github.com/purser-registry/purser/internal/db"
)

// databaseCheck fails if the database can't be reached or written, or if its role may not read what pulls
// need. `accounts` says that clients log in.
func databaseCheck(rights func(context.Context) (db.Rights, error), accounts bool) readinessCheck {
	return readinessCheck{name: "database", run: func(ctx context.Context) error {
		r, err := rights(ctx)
		if err != nil {
			return err
		}
		return r.Pulls(accounts)
	}}
}

// lacking returns a function that fails if the database's role lacks any right that Purser uses. A database
// that can't be reached is the matter of another check.
func lacking(rights func(context.Context) (db.Rights, error)) func(context.Context) error {
	return func(ctx context.Context) error {
		r, err := rights(ctx)
		if err != nil {
			return nil
		}
		return r.All()
	}
}

// statisticsRights returns an error if the database of the statistics can't be reached or written, or if its
// role lacks a right there.
func statisticsRights(ctx context.Context, d *db.DB) error {
	r, err := d.StatsRights(ctx)
	if err != nil {
		return err
	}
	return errors.Join(r.Writes(), r.All())
}
