package db

import (
	"context"
	"time"
)

// Alone calls alone, with loss as the time after which PostgreSQL releases the lock of a
// stalled process.
func Alone(ctx context.Context, dsn string, loss time.Duration, fn func(ctx context.Context) error) error {
	return alone(ctx, dsn, loss, fn)
}
