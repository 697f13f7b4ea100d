package serve

import (
	"context"
	"time"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/worker"
)

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
