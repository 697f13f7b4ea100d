package backend

import (
	"context"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/loosefk"
	"github.com/purser-registry/purser/loosefk/contrib/metrics"
)

// LooseKeys holds the databases and definitions of the registry's loose foreign keys.
type LooseKeys struct {
	Main, Stats *db.DB
	Databases   loosefk.Databases
	Definitions loosefk.Definitions
}

// LooseConns is the size of each pool for loose foreign keys: one connection for a lock,
// one for deletions and updates, and one for a command's queries.
const LooseConns = 3

// OpenLooseKeys opens the pools for loose foreign keys, one per database. Options.Replica
// stays empty for them, since triggers don't notify the replica that is named there, but
// this process's caches must learn of the pools' deletions.
func OpenLooseKeys(ctx context.Context, cfg *config.Config, dsn string, log *slog.Logger) (*LooseKeys, error) {
	open := func(dsn string) (*db.DB, error) {
		return db.Open(ctx, db.Options{DSN: dsn, MaxConns: LooseConns, ApplicationName: "purser loose foreign keys", Connected: foreground(cfg, dsn, log), Log: log})
	}
	k := new(LooseKeys)
	var err error
	if k.Main, err = open(dsn); err != nil {
		return nil, err
	}
	k.Stats = k.Main
	if other := StatsDSN(cfg, dsn); other != dsn {
		if k.Stats, err = open(other); err != nil {
			k.Main.Close()
			return nil, err
		}
	}
	if k.Databases, k.Definitions, err = db.LooseForeignKeys(ctx, k.Main.Pool.Pool, k.Stats.Pool.Pool); err != nil {
		k.Close()
		return nil, err
	}
	return k, nil
}

func (k *LooseKeys) Close() {
	k.Main.Close()
	if k.Stats != k.Main {
		k.Stats.Close()
	}
}

// Worker makes the worker that deletes, in both databases, the rows that refer to deleted
// repositories.
func (k *LooseKeys) Worker(cfg config.LooseForeignKeys, reg prometheus.Registerer, log *slog.Logger) (*loosefk.Worker, error) {
	o := k.Options(cfg, log)
	var err error
	if o.Observer, err = metrics.New(reg); err != nil {
		return nil, err
	}
	return loosefk.New(o)
}

func (k *LooseKeys) Options(cfg config.LooseForeignKeys, log *slog.Logger) loosefk.Options {
	return loosefk.Options{
		Databases: k.Databases, Definitions: k.Definitions, Log: log, Interval: cfg.Interval,
		MaxDeletes: cfg.MaxDeletes, MaxUpdates: cfg.MaxUpdates, MaxRuntime: cfg.MaxRuntime, LockTimeout: lockTimeout,
	}
}
