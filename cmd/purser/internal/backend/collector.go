package backend

import (
	"context"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/clock"
	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/gc"
	"github.com/purser-registry/purser/internal/server/distribution"
)

// NewCollector makes the garbage collector according to the settings. The clocks tell whether it
// may delete.
func NewCollector(cfg *config.Config, c *catalog.Catalog, metadata, reviews *db.DB, clocks *clock.Guard, log *slog.Logger) *gc.Collector {
	return gc.New(gc.Options{
		Catalog: c, DB: metadata, Reviews: reviews, KeepDoomed: cfg.GC.KeepDoomed, Untagged: untagged, MayDelete: clocks.Check, CheckTime: clocks.CheckTime, Log: log,
	})
}

// NewClock makes the guard of the clocks according to the settings; `o` has the other options.
func NewClock(cfg *config.Config, o clock.Options) (*clock.Guard, error) {
	o.Tolerance, o.LongestAbsence = cfg.Clock.Tolerance, cfg.Clock.LongestAbsence
	return clock.New(o)
}

// untagged tells garbage collection which manifests policies of auto-pruning keep, and for how
// long.
func untagged(ctx context.Context, tx pgx.Tx, namespaces, repositories, manifests []int64) (map[int64]gc.Retention, error) {
	found, err := autoprune.Untagged(ctx, tx, namespaces, repositories, manifests)
	if err != nil {
		return nil, err
	}
	out := make(map[int64]gc.Retention, len(found))
	for id, r := range found {
		out[id] = gc.Retention{For: r.For, By: r.String()}
	}
	return out, nil
}

// UploadAge returns how long the row of an upload must be unchanged before the reaper
// deletes it. It is the sum of three times: uploads.max_age, which every client has for an
// upload; the age that a row made in advance may already have when a client gets it; and
// http.max_request_time, since a request that begins at the last moment changes the row
// only at its end.
func UploadAge(cfg *config.Config) time.Duration {
	return cfg.Uploads.MaxAge + distribution.AheadAge(cfg.Uploads.MaxAge) + cfg.HTTP.MaxRequestTime
}
