package serve

import (
	"context"
	"errors"
	"math"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/purser-registry/purser/internal/blob"
)

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

// pushesCheck fails if the store can be read, and not written, or if a disk has less left than pushes
// leave free. The server stays ready.
func pushesCheck(check func(context.Context) error, room func() error) readinessCheck {
	return readinessCheck{name: "pushes", spare: true, run: func(ctx context.Context) error {
		if err := check(ctx); err != nil {
			return err
		}
		return room()
	}}
}

// diskGauges measure the disks of the registry.
func diskGauges(disks blob.Disks, reg prometheus.Registerer) {
	for _, d := range disks {
		of := func(name, help string, value func(blob.DiskSpace) int64) {
			reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Name: name, Help: help, ConstLabels: prometheus.Labels{"of": strings.TrimPrefix(d.Of, "the ")},
			}, func() float64 {
				s, err := blob.SpaceOf(d.Path)
				if err != nil {
					return math.NaN()
				}
				return float64(value(s))
			}))
		}
		of("purser_disk_free_bytes", "Bytes that the disk of the blobs, or of the built-in PostgreSQL, has free.", func(s blob.DiskSpace) int64 { return s.Free })
		of("purser_disk_size_bytes", "Size of that disk.", func(s blob.DiskSpace) int64 { return s.Size })
		of("purser_disk_reserve_bytes", "Bytes that pushes leave free there (storage.reserve).", func(blob.DiskSpace) int64 { return d.Reserve })
	}
}
