package gc

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/db"
)

// Options configures a Collector.
type Options struct {
	Catalog *catalog.Catalog // required: it ends uploads, and knows how long a request may write
	DB      *db.DB           // required: reads, and claims objects for the sweeper
	// Reviews is the pool of reviews. Its Options.Replica is empty, so that the caches of
	// all processes, including this one, are notified of what a review deletes; its
	// LockTimeout is shorter than PostgreSQL's deadlock_timeout, so that of a review and a
	// client that wait for each other the review fails. Default DB.
	Reviews *db.DB
	// KeepDoomed is how long objects of deleted blobs stay in the store, so that they still
	// exist after a restore of an older database. Default 0: they are deleted at once.
	KeepDoomed time.Duration
	Log        *slog.Logger // default slog.Default()
}

// Collector runs the transactions of garbage collection. The workers of this package decide
// when to run which transaction. Its methods may be called concurrently, by any number of
// processes on one database.
type Collector struct {
	db  *db.DB
	opt Options
	log *slog.Logger
}

// New makes a collector. It starts nothing.
func New(o Options) *Collector {
	o.Reviews = cmp.Or(o.Reviews, o.DB)
	o.Log = cmp.Or(o.Log, slog.Default())
	return &Collector{db: o.DB, opt: o, log: o.Log}
}

// KeepDoomed is how long objects of deleted blobs are kept.
func (c *Collector) KeepDoomed() time.Duration { return c.opt.KeepDoomed }

// Snapshot runs fn in a read-only transaction that sees one moment of the database.
func (c *Collector) Snapshot(ctx context.Context, fn func(tx pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, c.db.Pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, fn)
}
