package db

import (
	"context"
	"time"
)

// Alone lets tests call the function alone. `loss` is the time after which PostgreSQL releases
// the migration lock of a stalled process.
func Alone(ctx context.Context, dsn string, loss time.Duration, fn func(ctx context.Context) error) error {
	return alone(ctx, dsn, loss, fn)
}

// MigrateUpTo applies the migrations up to a version, without the routines.
func MigrateUpTo(ctx context.Context, dsn string, version int64) error {
	p, done, err := gooseProvider(dsn, DefaultPartitions)
	if err != nil {
		return err
	}
	defer done()
	_, err = p.UpTo(ctx, version)
	return err
}
