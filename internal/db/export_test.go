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
