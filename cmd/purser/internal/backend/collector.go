package backend

import (
	"log/slog"
	"time"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/gc"
	"github.com/purser-registry/purser/internal/server/distribution"
)

// NewCollector makes the garbage collector according to the settings.
func NewCollector(cfg *config.Config, c *catalog.Catalog, metadata, reviews *db.DB, log *slog.Logger) *gc.Collector {
	return gc.New(gc.Options{
		Catalog: c, DB: metadata, Reviews: reviews, KeepDoomed: cfg.GC.KeepDoomed, Log: log,
	})
}

// UploadAge returns how long the row of an upload must be unchanged before the reaper
// deletes it. It is the sum of three times: uploads.max_age, which every client has for an
// upload; the age that a row made in advance may already have when a client gets it; and
// http.max_request_time, since a request that begins at the last moment changes the row
// only at its end.
func UploadAge(cfg *config.Config) time.Duration {
	return cfg.Uploads.MaxAge + distribution.AheadAge(cfg.Uploads.MaxAge) + cfg.HTTP.MaxRequestTime
}
