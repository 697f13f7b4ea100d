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

// statistics is the schema of the pull statistics, whose database may be on another
// server. The registry also works without it: if that server can't be reached at the
// start, the migrations run as soon as it can be, and pulls are then counted from the
// audit log.
type statistics struct {
	prepare func(ctx context.Context) error
	log     *slog.Logger

	mu      sync.Mutex
	missing error // why the schema isn't ready; nil: it is
}

// openStatistics migrates the statistics. It isn't an error if their server is another
// one and can't be reached.
func openStatistics(ctx context.Context, cfg *config.Config, dsn string, log *slog.Logger) (*statistics, error) {
	s := &statistics{log: log, prepare: func(ctx context.Context) error {
		if cfg.Database.Migrate {
			_, err := db.MigrateStats(ctx, backend.StatsDSN(cfg, dsn))
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

// Run retries the migration until it succeeds or ctx ends.
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

// Check returns why the schema hasn't been ready since the start, nil if it is.
func (s *statistics) Check(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.missing
}

// statisticsCheck returns a check of the statistics' database.
func statisticsCheck(s *statistics, p dependencies) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := s.Check(ctx); err != nil {
			return err
		}
		return p.stats().Ping(ctx)
	}
}
