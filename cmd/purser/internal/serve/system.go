package serve

import (
	"context"

	"github.com/purser-registry/purser/cmd/purser/internal/backend"
	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/diskspace"
	"github.com/purser-registry/purser/internal/server/management"
)

// stats returns the pool for the database of the pull statistics: that of the requests if
// both are the same database, else a pool of its own.
func (p dependencies) stats() *db.DB {
	if p.keys.Stats == p.keys.Main {
		return p.db
	}
	return p.keys.Stats
}

// system returns what the management API tells operators about this process: its version,
// replica id, kind of storage and database.
func (p dependencies) system(cfg *config.Config) management.System {
	s := management.System{
		Version: command.ReadBuild().Version, Replica: p.replica.String(), Storage: backend.StorageOf(cfg.Storage).Kind(), Database: p.db,
		Migrations: func(ctx context.Context) ([]db.MigrationStatus, error) {
			return backend.Migrations(ctx, cfg, p.db.Pool.Config().ConnString())
		},
	}
	s.Disks = func(ctx context.Context) ([]diskspace.Disk, error) {
		return diskspace.Forecast(ctx, p.db.Pool, p.disks)
	}
	for _, set := range cfg.Settings() {
		s.Configuration = append(s.Configuration, api.Setting{Name: set.Key, Value: set.Value, Source: set.Source})
	}
	return s
}
