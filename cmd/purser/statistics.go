package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/pgsession"
	"github.com/purser-registry/purser/internal/worker"
)

// statistics is the schema of the pull statistics, whose database may be on another
// server. The registry serves without them: when their server is away at the start,
// their migrations run when it comes, and the pulls in the audit log are counted then.
type statistics struct {
	prepare func(ctx context.Context) error
	log     *slog.Logger

	mu      sync.Mutex
	missing error // why they aren't ready; nil: they are
}

// openStatistics brings the schema of the statistics up to date. Their server may be
// away; any other trouble is an error.
func openStatistics(ctx context.Context, cfg *config.Config, dsn string, log *slog.Logger) (*statistics, error) {
	s := &statistics{log: log, prepare: func(ctx context.Context) error {
		if cfg.Database.Migrate {
			_, err := db.MigrateStats(ctx, statsDSN(cfg, dsn))
			return err
		}
		list, err := db.StatusStats(ctx, statsDSN(cfg, dsn))
		return errors.Join(err, complete(list))
	}}
	var err error
	if statsDSN(cfg, dsn) == dsn {
		err = patiently(ctx, cfg, log, func() error { return s.prepare(ctx) })
	} else {
		err = explainDatabase(cfg, s.prepare(ctx))
	}
	switch {
	case err == nil:
		return s, nil
	case ctx.Err() != nil || statsDSN(cfg, dsn) == dsn || !db.Unavailable(err) || pgsession.Misconfigured(err):
		return nil, fmt.Errorf("the statistics' database: %w", err)
	}
	log.ErrorContext(ctx, "the statistics' database is away: starting without pull statistics, which are counted from the audit log when it comes; until then no last_pulled policy runs", "error", err)
	s.missing = err
	return s, nil
}

// Run prepares the statistics when their server comes.
func (s *statistics) Run(ctx context.Context) error {
	for attempt := 1; s.Check(ctx) != nil; attempt++ {
		pause(ctx, worker.Backoff(attempt, 250*time.Millisecond, 15*time.Second))
		if ctx.Err() != nil {
			return nil
		}
		err := s.prepare(ctx)
		if err != nil && !db.Unavailable(err) && ctx.Err() == nil {
			s.log.ErrorContext(ctx, "preparing the statistics' database", "error", err)
		}
		s.mu.Lock()
		s.missing = err
		s.mu.Unlock()
		if err == nil {
			s.log.InfoContext(ctx, "the statistics' database has come: its schema is up to date")
		}
	}
	<-ctx.Done()
	return nil
}

// Check says why the statistics aren't ready since the start.
func (s *statistics) Check(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.missing
}

// statisticsCheck says what is wrong with the statistics now.
func statisticsCheck(s *statistics, p parts) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := s.Check(ctx); err != nil {
			return err
		}
		return p.stats().Ping(ctx)
	}
}
