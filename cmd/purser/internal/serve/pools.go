package serve

import (
	"context"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"github.com/purser-registry/purser/cmd/purser/internal/backend"
	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/worker"
)

// pools are a server's pools of database connections. openPools returns them after the
// databases have been migrated.
type pools struct {
	metadata *db.DB // for requests
	reviews  *db.DB // for garbage collection
	prunes   *db.DB // for auto-pruning
	checks   *db.DB // for checks of the store
	keys     *backend.LooseKeys
	stats    *statistics
}

func openPools(ctx context.Context, cfg *config.Config, dsn string, replica uuid.UUID, log *slog.Logger) (_ *pools, err error) {
	p := &pools{}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	if p.metadata, err = backend.OpenDatabase(ctx, cfg, dsn, replica, log); err != nil {
		return nil, err
	}
	if p.stats, err = openStatistics(ctx, cfg, dsn, log); err != nil {
		return nil, err
	}
	if p.reviews, err = backend.OpenReviews(ctx, cfg, dsn, log); err != nil {
		return nil, err
	}
	if p.prunes, err = backend.OpenPrunes(ctx, cfg, dsn, log); err != nil {
		return nil, err
	}
	if p.checks, err = backend.OpenChecks(ctx, dsn, log); err != nil {
		return nil, err
	}
	err = backend.Patiently(ctx, cfg, log, func() (err error) {
		p.keys, err = backend.OpenLooseKeys(ctx, cfg, dsn, log)
		return err
	})
	if err != nil {
		return nil, err
	}
	return p, backend.Patiently(ctx, cfg, log, func() error { return p.count(ctx, cfg, log) })
}

// count logs a warning if PostgreSQL allows fewer connections than this process may open.
func (p *pools) count(ctx context.Context, cfg *config.Config, log *slog.Logger) error {
	room, err := p.metadata.Room(ctx)
	if err != nil {
		return err
	}
	if need := backend.OpenedConns(cfg); room.Connections < need {
		log.WarnContext(ctx, "PostgreSQL allows fewer connections than this process may open: requests and background work fail when there is none left. "+
			"Raise the limit there, or lower database.max_conns or gc.workers", "limit_of", room.Of, "limit", room.Connections, "needed", need)
	}
	return nil
}

// close closes the pools that were opened.
func (p *pools) close() {
	if p.keys != nil {
		p.keys.Close()
	}
	for _, d := range []*db.DB{p.checks, p.prunes, p.reviews, p.metadata} {
		if d != nil {
			d.Close()
		}
	}
}

// analyzeEvery is how often a loop looks for tables that have grown much since PostgreSQL
// last gathered its planner's statistics on them.
const analyzeEvery = 30 * time.Second

// plannerWorkers returns one loop per database. The loop runs ANALYZE on tables that have
// grown, so that PostgreSQL's planner knows their size.
func plannerWorkers(p dependencies) (list []func(context.Context) error) {
	databases := []*db.DB{p.db}
	if stats := p.stats(); stats != p.db {
		databases = append(databases, stats)
	}
	for _, d := range databases {
		loop := worker.New(worker.Options{
			Name: "analyzing tables", Idle: analyzeEvery, Log: p.log, Metrics: p.loops,
			Batch: func(ctx context.Context) (more bool, err error) {
				tables, err := d.AnalyzeGrown(ctx)
				if len(tables) > 0 {
					p.log.DebugContext(ctx, "tables that have grown were analyzed", "tables", tables)
				}
				return false, err
			},
		})
		list = append(list, loop.Run)
	}
	return list
}
