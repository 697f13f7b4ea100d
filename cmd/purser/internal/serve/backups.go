package serve

import (
	"context"
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/purser-registry/purser/internal/backup"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/worker"
)

// backupLook is how often the age of backups is looked up.
const backupLook = time.Minute

// backupMetrics tell how old the registry's backups are, and whether they are whole.
type backupMetrics struct{ snapshot, verified, damaged prometheus.Gauge }

// backupWorker makes the worker that updates the metrics of backups. All processes on one database
// export the same numbers.
func backupWorker(p dependencies, loops *worker.Metrics) func(context.Context) error {
	m := backupMetrics{
		snapshot: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "purser_backup_last_snapshot_timestamp_seconds",
			Help: "The moment whose state the newest complete backup of purser backup has; 0: there is none.",
		}),
		verified: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "purser_backup_last_verification_timestamp_seconds",
			Help: "When purser backup verify last read all of a backup and found it whole; 0: never.",
		}),
		damaged: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "purser_backup_damaged",
			Help: "Places whose newest backup is known to be damaged or to lack blobs.",
		}),
	}
	p.metrics.MustRegister(m.snapshot, m.verified, m.damaged)
	return worker.New(worker.Options{
		Name: "age of backups", Log: p.log, Metrics: loops, Idle: backupLook,
		Batch: func(ctx context.Context) (bool, error) { return false, m.measure(ctx, p.db) },
	}).Run
}

// measure updates the metrics. If nobody knows how backups are, the metrics aren't numbers (NaN),
// rather than the last ones.
func (m backupMetrics) measure(ctx context.Context, d *db.DB) error {
	list, err := backup.Standings(ctx, d.Pool)
	if err != nil {
		for _, g := range []prometheus.Gauge{m.snapshot, m.verified, m.damaged} {
			g.Set(math.NaN())
		}
		return err
	}
	var snapshot, verified, damaged float64
	for _, s := range list {
		snapshot = max(snapshot, float64(s.Snapshot.Unix()))
		if !s.Verified.IsZero() {
			verified = max(verified, float64(s.Verified.Unix()))
		}
		if s.Problem != "" {
			damaged++
		}
	}
	m.snapshot.Set(snapshot)
	m.verified.Set(verified)
	m.damaged.Set(damaged)
	return nil
}
