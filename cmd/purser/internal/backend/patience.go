package backend

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/pgsession"
	"github.com/purser-registry/purser/internal/storeid"
	"github.com/purser-registry/purser/internal/worker"
)

// startPatience limits how long a starting server waits for its database, and how long for its blob store:
// they may be starting at the same time.
const startPatience = time.Minute

// waitsKey is the key of what TellWaits adds to a context.
type waitsKey struct{}

// TellWaits returns a context with which Patiently and WaitForStore call `fn` each time that what they
// wait for isn't available, and MigrateOptions when migrating begins to wait. `fn` gets what that is,
// and why.
func TellWaits(ctx context.Context, fn func(what string)) context.Context {
	return context.WithValue(ctx, waitsKey{}, fn)
}

func tellWait(ctx context.Context, what string) {
	if fn, ok := ctx.Value(waitsKey{}).(func(string)); ok {
		fn(what)
	}
}

// stepsKey is the key of what TellSteps adds to a context.
type stepsKey struct{}

// TellSteps returns a context with which StartPostgres calls `fn` when it begins something that may take
// seconds, and again and again while it fetches PostgreSQL. `fn` gets what that is.
func TellSteps(ctx context.Context, fn func(what string)) context.Context {
	return context.WithValue(ctx, stepsKey{}, fn)
}

// stepsOf returns the function that tells steps of the built-in PostgreSQL, nil if nobody wants to hear them.
func stepsOf(ctx context.Context) func(doing string) {
	fn, ok := ctx.Value(stepsKey{}).(func(string))
	if !ok {
		return nil
	}
	return func(doing string) { fn("the built-in PostgreSQL: " + doing) }
}

// Patiently retries `fn` while the database can't be reached, for at most startPatience.
// It returns the last error of fn, with the name of the setting that may be wrong.
func Patiently(ctx context.Context, cfg *config.Config, log *slog.Logger, fn func() error) error {
	return await(ctx, log, "the database", "isn't available", unreachable, func() error { return ExplainDatabase(cfg, fn()) })
}

// unreachable says whether an error means that the database may be there in a moment.
func unreachable(err error) bool { return db.Unavailable(err) && !pgsession.Misconfigured(err) }

// WaitForStore is OpenStore for a starting server: while S3 doesn't answer, it retries, for at most startPatience.
func WaitForStore(ctx context.Context, cfg config.Storage, metadata *db.DB, log *slog.Logger, measure func(blob.Store) (blob.Store, error)) (store *storeid.Store, err error) {
	err = await(ctx, log, "the blob store", "doesn't answer", isAway, func() (err error) {
		store, err = OpenStore(ctx, cfg, metadata, log, measure)
		return err
	})
	return store, err
}

// awayError says that the blob store doesn't answer, or answers that it can't work now.
type awayError struct{ error }

func (e *awayError) Unwrap() error { return e.error }

func isAway(err error) bool {
	_, away := errors.AsType[*awayError](err)
	return away
}

// await retries `fn` while it fails with an error for which `passes` returns true, for at most startPatience,
// and returns the last error of fn. `what` is waited for, and `trouble` says in a sentence what it does meanwhile.
func await(ctx context.Context, log *slog.Logger, what, trouble string, passes func(error) bool, fn func() error) error {
	end := time.Now().Add(startPatience)
	for attempt := 1; ; attempt++ {
		err := fn()
		if err == nil || ctx.Err() != nil || !passes(err) || time.Now().After(end) {
			return err
		}
		log.WarnContext(ctx, "waiting for "+what, "error", err)
		tellWait(ctx, what+", which "+trouble+": "+err.Error())
		_ = worker.Sleep(ctx, worker.Backoff(attempt, 250*time.Millisecond, 5*time.Second))
	}
}
