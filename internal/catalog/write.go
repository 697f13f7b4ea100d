package catalog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/protection"
)

// write describes a change in one repository. [Catalog.write] runs it.
type write struct {
	path  string
	doing string // what the write does, for errors
	// `in` has the ids of the repository, if the caller knows them. If it is zero,
	// [Catalog.write] looks up the repository that has the name `path` now.
	in repository
	// If create is true and the repository doesn't exist, [Catalog.write] makes it. Before
	// that it calls checkBeforeCreate, if this isn't nil. If checkBeforeCreate returns an
	// error, nothing is created and the client gets the error.
	create            bool
	checkBeforeCreate func(ctx context.Context) error
	// drop invalidates the cached results that the write changes. If it is nil, the write
	// changes nothing that is cached, and is cancelled when its client disconnects.
	drop func(path string)
	// run tries the write once, in one transaction, or in several of which only the last
	// changes anything.
	run func(ctx context.Context, r repository) error
	// answer turns a refusal of run into the client's error. It returns nil if the reason for
	// the refusal is gone; then the write runs again. If answer itself is nil, the refusal is
	// the error.
	answer func(ctx context.Context, r repository, why refusal) error
}

// writeAttempts is how often a write runs at most. A write runs again when a concurrent
// transaction has won a race against it. That doesn't happen many times in a row, so this
// bound is reached only when something is wrong.
const writeAttempts = 20

// write calls w.run until it succeeds, or fails for a reason that another call wouldn't
// change, but at most writeAttempts times. It calls w.run again if it has created the
// repository, if the repository was deleted meanwhile and w.in is zero, if it has read the
// changed protection rules, if w.answer has found that the reason for a refusal is gone, or if
// w.run has lost a race in the database (see [db.Retryable]).
//
// Errors: NAME_UNKNOWN if there is no such repository; the errors of w.run and w.answer.
func (c *Catalog) write(ctx context.Context, w write) (err error) {
	if !w.create && w.in == (repository{}) {
		c.cache.dropAll(w.path) // another repository may have this name by now
	}
	if w.drop == nil {
		err = c.attempts(ctx, w)
	} else {
		err = c.change(ctx, w.path, w.drop, func(ctx context.Context) error { return c.attempts(ctx, w) })
	}
	if err != nil && !oci.IsClientError(err) {
		err = fmt.Errorf("%s: %w", w.doing, err)
	}
	return err
}

// attempts is the loop of [Catalog.write]: it calls w.run up to writeAttempts times. No other
// function decides after which failures a write runs again.
func (c *Catalog) attempts(ctx context.Context, w write) error {
	var err error
	for n := range writeAttempts {
		r := w.in
		if err = nil; r == (repository{}) {
			r, err = c.lookUp(ctx, w.path)
		}
		if err == nil {
			err = c.quotas.Refusal(ctx, w.path, w.run(ctx, r))
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

// createFor makes the repository of the write w, and its namespace if that doesn't exist,
// unless w.checkBeforeCreate returns an error.
func (c *Catalog) createFor(ctx context.Context, w write) (err error) {
	if w.checkBeforeCreate != nil {
		err = w.checkBeforeCreate(ctx)
	}
	if err == nil {
		err = c.quotas.AdmitRepository(ctx, w.path)
	}
	if err == nil {
		_, err = c.create(ctx, w.path)
	}
	return err
}

// change runs fn, and invalidates the cached results of path before and after fn by calling
// drop. fn goes on when the client disconnects: if it were cancelled, nobody would know
// whether the database committed the change. If the connection to the database breaks and the
// outcome is unknown after all, nothing of path is cached for a while (distrust).
func (c *Catalog) change(ctx context.Context, path string, drop func(path string), fn func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer cancel()
	drop(path)
	err := fn(ctx)
	if err != nil && !oci.IsClientError(err) && !isRefusal(err) && db.Code(err) == "" {
		c.cache.distrust(path)
	}
	drop(path)
	return err
}

// writeTimeout is the longest time that a change of the database may take, with all its reruns.
const writeTimeout = time.Minute

// txOrAnswer runs fn in a transaction. It commits the transaction if fn succeeds, and also if
// fn returns a client's error or a refusal: fn has then changed nothing, or only rows whose
// change does no harm, and a rollback would count as a failure in PostgreSQL's statistics. It
// returns fn's error.
func (c *Catalog) txOrAnswer(ctx context.Context, fn func(tx pgx.Tx) error) error {
	var answer error
	err := pgx.BeginTxFunc(ctx, c.db.Pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		answer = fn(tx)
		if oci.IsClientError(answer) || isRefusal(answer) {
			return nil
		}
		return answer
	})
	if err != nil {
		return err
	}
	return answer
}

// rules returns the cached rules. Until this process first reads the rules from the database,
// it returns an empty list with version 0, which is the version in a new registry. A registry
// in which rules were made has a higher version, so the first write finds that the versions
// differ, and reads the rules.
func (c *Catalog) rules() *protection.Rules {
	if p := c.protection.Load(); p != nil {
		return p
	}
	return &protection.Rules{Version: "0"}
}

// reloadRules reads all rules from the database into the cache. A read that began earlier may replace
// them at any moment. Writes find that by the version.
func (c *Catalog) reloadRules(ctx context.Context) error {
	rules, err := protection.Read(ctx, c.db.Pool)
	if err == nil {
		c.protection.Store(rules)
	}
	return err
}
