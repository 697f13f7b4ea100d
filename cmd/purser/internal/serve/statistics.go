package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/purser-registry/purser/cmd/purser/internal/backend"
	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/pgsession"
	"github.com/purser-registry/purser/internal/worker"
)

// statistics prepares the schema of the pull statistics. Their database may be on a server
// of its own, and the registry works without it. If that server can't be reached when the
// registry starts, Run applies the migrations as soon as the server answers; from then on,
// pulls are counted from the audit log.
type statistics struct {
	prepare func(ctx context.Context) error
	log     *slog.Logger

	mu      sync.Mutex
	missing error // why the schema isn't ready; nil: it is
}

// openStatistics applies the migrations of the pull statistics or, without
// database.migrate, checks that all are applied. If the statistics' database is on a server
// of its own that can't be reached, openStatistics logs that and returns no error.
func openStatistics(ctx context.Context, cfg *config.Config, dsn string, log *slog.Logger) (*statistics, error) {
	s := &statistics{log: log, prepare: func(ctx context.Context) error {
		if cfg.Database.Migrate {
			_, err := db.MigrateStats(ctx, backend.StatsDSN(cfg, dsn), backend.MigrateOptions(ctx, cfg))
			return err
		}
		list, err := db.StatusStats(ctx, backend.StatsDSN(cfg, dsn))
		return errors.Join(err, backend.SchemaComplete(list))
	}}
	var err error
	if backend.StatsDSN(cfg, dsn) == dsn {
		err = backend.Patiently(ctx, cfg, log, func() error { return s.prepare(ctx) })
	} else {
		err = backend.ExplainDatabase(cfg, s.prepare(ctx))
	}
	switch {
	case err == nil:
		return s, nil
	case ctx.Err() != nil || backend.StatsDSN(cfg, dsn) == dsn || !db.Unavailable(err) || pgsession.Misconfigured(err):
		return nil, fmt.Errorf("the statistics' database: %w", err)
	}
	log.ErrorContext(ctx, "the statistics' database can't be reached: starting without pull statistics. Pulls are counted from the audit log once it can be reached; until then no last_pulled policy runs", "error", err)
	s.missing = err
	return s, nil
}

// Run retries the migration until it succeeds. It returns nil when ctx ends.
func (s *statistics) Run(ctx context.Context) error {
	for attempt := 1; s.Check(ctx) != nil; attempt++ {
		_ = worker.Sleep(ctx, worker.Backoff(attempt, 250*time.Millisecond, 15*time.Second))
		if ctx.Err() != nil {
			return nil
		}
		err := s.prepare(ctx)
		if err != nil && !db.Unavailable(err) && ctx.Err() == nil {
			s.log.ErrorContext(ctx, "preparing the statistics' database failed", "error", err)
		}
		s.mu.Lock()
		s.missing = err
		s.mu.Unlock()
		if err == nil {
			s.log.InfoContext(ctx, "the statistics' database can be reached now, and its schema is up to date")
		}
	}
	<-ctx.Done()
	return nil
}

// Check returns the last error of preparing the schema, or nil if the schema is ready. It
// makes no query.
func (s *statistics) Check(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.missing
}

// statisticsCheck returns a readiness check that fails if the schema of the statistics
// isn't ready, their database can't be reached or written, or its role lacks a right there.
func statisticsCheck(s *statistics, p dependencies) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := s.Check(ctx); err != nil {
			return err
		}
		return statisticsRights(ctx, p.stats())
	}
}
