package serve

import (
	"context"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/worker"
)

// openPullLog makes the recorder that writes pulls to the audit log. It returns nil if the
// setting audit.pulls is off.
func openPullLog(cfg config.Audit, d *db.DB, reg prometheus.Registerer, log *slog.Logger) (*audit.Recorder, error) {
	if !cfg.Pulls {
		return nil, nil
	}
	metrics := audit.NewMetrics(reg)
	join := audit.DefaultJoin
	if !cfg.JoinPulls {
		join = -1
	}
	return audit.NewRecorder(audit.RecorderOptions{
		DB: d, Join: join, Alive: catalog.AliveRepositories, Log: log, Metrics: metrics,
	}), nil
}

// auditWorkers returns the background workers of the audit log.
func auditWorkers(cfg config.Audit, p dependencies, loops *worker.Metrics) []func(context.Context) error {
	o := audit.PartitionOptions{DB: p.db, Retention: cfg.Retention, MayDelete: p.clocks.CheckTime, Log: p.log, Metrics: loops}
	if p.pulls.sync != nil {
		o.Read = p.pulls.sync.Read
	}
	manager := audit.NewPartitionManager(o)
	return []func(context.Context) error{manager.Run}
}
