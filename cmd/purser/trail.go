package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/worker"
)

// auditing is how the catalog writes to the audit log.
var auditing = catalog.Audit{Insert: audit.InsertFrom, Who: audit.Who}

// lastPulls is how long a stopping process tries to write the pulls that it has
// taken note of.
const lastPulls = 10 * time.Second

// openPulls makes the recorder of pulls, nil when they aren't to be recorded.
func openPulls(cfg config.Audit, d *db.DB, reg prometheus.Registerer, log *slog.Logger) (*audit.Recorder, error) {
	if !cfg.Pulls {
		return nil, nil
	}
	metrics, err := audit.NewMetrics(reg)
	if err != nil {
		return nil, err
	}
	return audit.NewRecorder(audit.RecorderOptions{
		DB: d, Buffer: cfg.Buffer, Alive: catalog.AliveRepositories, Log: log, Metrics: metrics,
	}), nil
}

// closePulls writes what is left, when no more pulls come.
func closePulls(pulls *audit.Recorder, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(context.Background(), lastPulls)
	defer cancel()
	if err := pulls.Close(ctx); err != nil {
		log.Error("stopping without all pulls in the audit log", "error", err)
	}
}

// auditWorkers are what the audit log needs in the background.
func auditWorkers(cfg config.Audit, p parts, loops *worker.Metrics) []func(context.Context) error {
	o := audit.KeeperOptions{DB: p.db, Retention: cfg.Retention, Log: p.log, Metrics: loops}
	if p.counter != nil {
		o.Read = p.counter.Read
	}
	keeper := audit.NewKeeper(o)
	list := []func(context.Context) error{keeper.Run}
	if p.pulls != nil {
		list = append(list, p.pulls.Run)
	}
	return list
}
