package serve

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/purser-registry/purser/cmd/purser/internal/backend"
	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/diskspace"
	"github.com/purser-registry/purser/internal/storeid"
	"github.com/purser-registry/purser/internal/worker"
)

// databaseCheck fails if the database can't be reached or written, or if its role may not read what pulls
// need. `accounts` says that clients log in.
func databaseCheck(rights func(context.Context) (db.Rights, error), accounts bool) readinessCheck {
	return readinessCheck{name: "database", run: func(ctx context.Context) error {
		r, err := rights(ctx)
		if err != nil {
			return err
		}
		return r.Pulls(accounts)
	}}
}

// lacking returns a function that fails if the database's role lacks any right that Purser uses. A database
// that can't be reached is the matter of another check.
func lacking(rights func(context.Context) (db.Rights, error)) func(context.Context) error {
	return func(ctx context.Context) error {
		r, err := rights(ctx)
		if err != nil {
			return nil
		}
		return r.All()
	}
}

// statisticsRights returns an error if the database of the statistics can't be reached or written, or if its
// role lacks a right there.
func statisticsRights(ctx context.Context, d *db.DB) error {
	r, err := d.StatsRights(ctx)
	if err != nil {
		return err
	}
	return errors.Join(r.Writes(), r.All())
}

// A server is ready if pulls can succeed. What lets only pushes fail doesn't make it unready: all
// replicas share one store, so a load balancer would take all of them out of service, and nobody
// could pull any more. The table of docs/configuration.md says so for each failure.

// storageCheck fails if blobs can't be read.
func storageCheck(check func(context.Context) error) readinessCheck {
	return readinessCheck{name: "storage", run: func(ctx context.Context) error {
		if err := check(ctx); !errors.Is(err, blob.ErrReadOnly) {
			return err
		}
		return nil
	}}
}

// pushesCheck fails if the store can be read, and not written, if a disk has less left than pushes
// leave free, or if the database's role lacks a right. The server stays ready.
func pushesCheck(check func(context.Context) error, room func() error, lacking func(context.Context) error) readinessCheck {
	return readinessCheck{name: "pushes", spare: true, run: func(ctx context.Context) error {
		if err := check(ctx); err != nil {
			return err
		}
		if err := room(); err != nil {
			return err
		}
		return lacking(ctx)
	}}
}

// openStore opens the blob store, on whose disks pushes leave room, and registers its metrics.
func openStore(ctx context.Context, cfg *config.Config, metadata *db.DB, reg prometheus.Registerer, log *slog.Logger) (*storeid.Store, blob.Disks, error) {
	disks := backend.Disks(cfg)
	store, err := backend.WaitForStore(ctx, cfg.Storage, metadata, log, func(store blob.Store) (blob.Store, error) {
		return blob.Metered(blob.LeaveRoom(store, disks), reg), nil
	})
	if err != nil {
		return nil, nil, err
	}
	diskGauges(disks, reg)
	return store, disks, reg.Register(store.Collector())
}

// diskLook is how often the space of the disks is noted for the forecast, which needs it once an hour.
const diskLook = 10 * time.Minute

// diskWorker makes the worker that notes what the disks of the registry have free.
func diskWorker(p dependencies) func(context.Context) error {
	return worker.New(worker.Options{
		Name: "space of disks", Log: p.log, Metrics: p.loops, Idle: diskLook,
		Batch: func(ctx context.Context) (bool, error) {
			if err := diskspace.Note(ctx, p.db.Pool, p.disks); err != nil {
				return false, err
			}
			return false, diskspace.Forget(ctx, p.db, p.clocks.CheckTime)
		},
	}).Run
}

// diskGauges measure the disks of the registry.
func diskGauges(disks blob.Disks, reg prometheus.Registerer) { diskGaugesBy(blob.SpaceOf, disks, reg) }

// diskGaugesBy are diskGauges by a function that says what the file system of a directory has.
func diskGaugesBy(spaceOf func(dir string) (blob.DiskSpace, error), disks blob.Disks, reg prometheus.Registerer) {
	for _, d := range disks {
		of := prometheus.Labels{"of": strings.TrimPrefix(d.Of, "the ")}
		reg.MustRegister(&diskMetrics{
			disk: d, spaceOf: spaceOf,
			free:    prometheus.NewDesc("purser_disk_free_bytes", "Bytes that the disk of the blobs, or of the built-in PostgreSQL, has free.", nil, of),
			size:    prometheus.NewDesc("purser_disk_size_bytes", "Size of that disk.", nil, of),
			reserve: prometheus.NewDesc("purser_disk_reserve_bytes", "Bytes that pushes leave free there (storage.reserve).", nil, of),
		})
	}
}

// diskMetrics are the gauges of a disk. One look is for all of them, since its file system may hang.
type diskMetrics struct {
	disk                blob.Disk
	spaceOf             func(dir string) (blob.DiskSpace, error)
	looks               blob.Question[blob.DiskSpace]
	free, size, reserve *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (m *diskMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.free, m.size, m.reserve} {
		ch <- d
	}
}

// Collect implements prometheus.Collector. Of a disk that can't be asked, or doesn't answer within
// checkTimeout, the gauges show no number.
func (m *diskMetrics) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), checkTimeout)
	defer cancel()
	s, err := m.looks.Ask(ctx, func() (blob.DiskSpace, error) { return m.spaceOf(m.disk.Path) })
	gauge := func(d *prometheus.Desc, n int64) {
		value := float64(n)
		if err != nil {
			value = math.NaN()
		}
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value)
	}
	gauge(m.free, s.Free)
	gauge(m.size, s.Size)
	gauge(m.reserve, m.disk.Leave(s))
}
