package main

import (
	"context"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/loosefk"
	"github.com/purser-registry/purser/loosefk/metrics"
)

// looseKeys holds the databases and definitions of the registry's loose foreign keys.
type looseKeys struct {
	main, stats *db.DB
	databases   loosefk.Databases
	definitions loosefk.Definitions
}

// looseConns is the size of the pools for loose foreign keys: a connection for a lock,
// one for work and one for a command's queries.
const looseConns = 3

// openLooseKeys opens the pools for loose foreign keys. For both pools Options.Replica
// stays empty: triggers don't notify the replica named there, and this process's caches too
// have to learn of deletions.
func openLooseKeys(ctx context.Context, cfg *config.Config, dsn string, log *slog.Logger) (*looseKeys, error) {
	open := func(dsn string) (*db.DB, error) {
		return db.Open(ctx, db.Options{DSN: dsn, MaxConns: looseConns, ApplicationName: "purser loose foreign keys", Connected: foreground(cfg, dsn, log), Log: log})
	}
	k := new(looseKeys)
	var err error
	if k.main, err = open(dsn); err != nil {
		return nil, err
	}
	k.stats = k.main
	if other := statsDSN(cfg, dsn); other != dsn {
		if k.stats, err = open(other); err != nil {
			k.main.Close()
			return nil, err
		}
	}
	if k.databases, k.definitions, err = db.LooseForeignKeys(ctx, k.main.Pool, k.stats.Pool); err != nil {
		k.close()
		return nil, err
	}
	return k, nil
}

func (k *looseKeys) close() {
	k.main.Close()
	if k.stats != k.main {
		k.stats.Close()
	}
}

// worker makes the worker that deletes what deleted repositories leave behind.
func (k *looseKeys) worker(cfg config.LooseForeignKeys, reg prometheus.Registerer, log *slog.Logger) (*loosefk.Worker, error) {
	o := k.options(cfg, log)
	var err error
	if o.Observer, err = metrics.New(reg); err != nil {
		return nil, err
	}
	return loosefk.New(o)
}

func (k *looseKeys) options(cfg config.LooseForeignKeys, log *slog.Logger) loosefk.Options {
	return loosefk.Options{
		Databases: k.databases, Definitions: k.definitions, Log: log, Interval: cfg.Interval,
		MaxDeletes: cfg.MaxDeletes, MaxUpdates: cfg.MaxUpdates, MaxRuntime: cfg.MaxRuntime, LockTimeout: lockTimeout,
	}
}
