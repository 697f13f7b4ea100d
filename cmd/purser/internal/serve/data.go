package serve

import (
	"context"

	"github.com/google/uuid"

	"github.com/purser-registry/purser/cmd/purser/internal/backend"
	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/storeid"
	"github.com/purser-registry/purser/internal/worker"
)

// dataStores are the databases and the blob store of a server, which is on record in the database.
type dataStores struct {
	replica  uuid.UUID
	postgres *backend.Postgres // the built-in one; nil: there is none
	pools    *pools
	store    *storeid.Store
	disks    blob.Disks // on which pushes leave room
	loops    *worker.Metrics
	record   *backend.ServerRecord
	workers  []func(context.Context) error // they run until the server stops
}

// openData opens the databases, after their migrations, and the blob store, and says meanwhile what it
// waits for.
func (s starting) openData(ctx context.Context, cfg *config.Config) (_ *dataStores, err error) {
	d := &dataStores{replica: uuid.New()}
	defer func() {
		if err != nil {
			d.close()
		}
	}()
	dsn := string(cfg.Database.Main)
	if dsn == "" {
		s.ready.waits("the built-in PostgreSQL")
		if d.postgres, err = backend.StartPostgres(ctx, cfg, false, s.log); err != nil {
			return nil, err
		}
		dsn, d.workers = d.postgres.DSN, append(d.workers, d.postgres.Supervise, d.postgres.KeepRoom)
	}
	s.ready.waits("the database and its migrations")
	if d.pools, err = openPools(ctx, cfg, dsn, d.replica, s.log); err != nil {
		return nil, err
	}
	s.ready.waits("the blob store")
	if d.store, d.disks, err = openStore(ctx, cfg, d.pools.metadata, s.metrics, s.log); err != nil {
		return nil, err
	}
	s.ready.waits("the database")
	d.loops = worker.NewMetrics(s.metrics)
	s.limits.shareRates(d.pools.metadata, d.loops)
	if d.record, err = backend.RecordServer(ctx, cfg, d.pools.metadata, d.replica, s.log, d.loops); err != nil {
		return nil, err
	}
	d.workers = append(d.workers, d.store.Run, d.pools.stats.Run, d.record.Run)
	// Once more: before this server was on record, a move of the blobs to another store may have ended.
	return d, d.store.Establish(ctx)
}

// close closes what was opened.
func (d *dataStores) close() {
	if d.pools != nil {
		d.pools.close()
	}
	if d.postgres != nil {
		d.postgres.Stop()
	}
}
