package catalog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
)

// write is a change below one repository. [Catalog.write] runs it.
type write struct {
	path  string
	doing string // what the write does, for errors
	// in is the repository if the caller knows its ids. The zero value stands for the
	// repository that is called path now.
	in repository
	// create makes the repository if there is none, unless checkBeforeCreate (nil: no
	// check) returns an error, which the client gets instead.
	create            bool
	checkBeforeCreate func(ctx context.Context) error
	// drop removes from the caches what the write changes. If it is nil, the write changes
	// nothing that is cached, and ends when its client disconnects.
	drop func(path string)
	// run makes one attempt. It uses one transaction, or several of which only the last one
	// changes anything.
	run func(ctx context.Context, r repository) error
	// answer returns the client's error for a refusal of run; nil: the reason for the
	// refusal is gone, so the write runs again. If answer itself is nil, the refusal is the
	// error.
	answer func(ctx context.Context, r repository, why refusal) error
}

// writeAttempts bounds how often a write runs. Each lost race has a winner, so the bound is
// reached only when something else is wrong.
const writeAttempts = 20

// write runs w until it succeeds or fails for a reason that doesn't pass. It runs w again
//   - after it has created the repository, or if the repository was deleted meanwhile;
//   - after it has reloaded the rules that protect tags, if they were changed meanwhile;
//   - if w's answer finds that the reason for a refusal is gone;
//   - if w lost a race in the database: see [db.Retryable].
//
// Errors: NAME_UNKNOWN if there is no such repository, and those of w.
func (c *Catalog) write(ctx context.Context, w write) (err error) {
	if !w.create && w.in == (repository{}) {
		c.cache.dropAll(w.path) // another repository may have this name by now
	}
	if w.drop == nil {
		err = c.attempts(ctx, w)
	} else {
		err = c.change(ctx, w.path, w.drop, func(ctx context.Context) error { return c.attempts(ctx, w) })
	}
	if err != nil && !isClientError(err) {
		err = fmt.Errorf("%s: %w", w.doing, err)
	}
	return err
}

// attempts is the loop of write. Only this function knows after which failures a write may
// run again.
func (c *Catalog) attempts(ctx context.Context, w write) error {
	var err error
	for n := range writeAttempts {
		r := w.in
		if err = nil; r == (repository{}) {
			r, err = c.lookUp(ctx, w.path)
		}
		if err == nil {
			err = w.run(ctx, r)
		}
		why, refused := errors.AsType[refusal](err)
		var stop error
		switch {
		case db.Retryable(err):
			stop = db.Pause(ctx, n, err)
		case w.create && oci.CodeOf(err) == oci.NameUnknown:
			stop = c.createFor(ctx, w)
		case why == repositoryGone && w.in == (repository{}):
			c.cache.dropAll(w.path)
		case why == rulesChanged:
			stop = c.reloadRules(ctx)
		case refused && w.answer != nil:
			stop = w.answer(ctx, r, why)
		default: // done, or failed for good
			return err
		}
		if stop != nil {
			return stop
		}
	}
	return fmt.Errorf("gave up after %d attempts: %w", writeAttempts, err)
}

// createFor makes the repository of a write with its namespace.
func (c *Catalog) createFor(ctx context.Context, w write) (err error) {
	if w.checkBeforeCreate != nil {
		err = w.checkBeforeCreate(ctx)
	}
	if err == nil {
		_, err = c.create(ctx, w.path)
	}
	return err
}

// change runs fn and drops what the caches hold of path before and after it. The change
// goes on when its client disconnects: its outcome would otherwise be unknown.
func (c *Catalog) change(ctx context.Context, path string, drop func(path string), fn func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer cancel()
	drop(path)
	err := fn(ctx)
	if err != nil && !isClientError(err) && !isRefusal(err) && db.Code(err) == "" {
		c.cache.distrust(path)
	}
	drop(path)
	return err
}

// writeTimeout bounds the time of a change, including its reruns.
const writeTimeout = time.Minute

// txOrAnswer runs fn in a transaction and commits it, also if fn returns an error meant for
// the client, or a refusal. In that case fn has changed nothing, or only what does no harm.
// A rollback would count as a failure in PostgreSQL's statistics.
func (c *Catalog) txOrAnswer(ctx context.Context, fn func(tx pgx.Tx) error) error {
	var answer error
	err := pgx.BeginTxFunc(ctx, c.db.Pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		answer = fn(tx)
		if isClientError(answer) || isRefusal(answer) {
			return nil
		}
		return answer
	})
	if err != nil {
		return err
	}
	return answer
}

// isClientError says whether err is an answer for the client, as opposed to a failure.
func isClientError(err error) bool {
	_, ok := errors.AsType[*oci.Error](err)
	return ok
}
