package backend

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strconv"
	"time"

	"github.com/purser-registry/purser/internal/builtinpg"
	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/worker"
)

const (
	DatabaseName = "purser"

	postgresQuick    = time.Minute // a server that exits sooner has failed quickly
	postgresFailures = 6           // quick failures in a row before supervise gives up
	postgresStop     = 30 * time.Second
	spareConnections = 20 // for commands, psql and PostgreSQL itself
)

// PostgresDir returns the data directory of the built-in PostgreSQL.
func PostgresDir(cfg *config.Config) string { return filepath.Join(cfg.DataDir, "postgres") }

// Postgres is the built-in PostgreSQL server, which Supervise restarts if it exits.
type Postgres struct {
	opt    builtinpg.Options
	log    *slog.Logger
	DSN    string
	server *builtinpg.Server // nil while none runs

	reserve reserveFile
}

// StartPostgres starts the built-in PostgreSQL. If the data directory has none,
// StartPostgres creates it or, if `existing` is set, returns an error that names the
// directory. It returns builtinpg.ErrInUse if another process runs the PostgreSQL of this
// directory.
func StartPostgres(ctx context.Context, cfg *config.Config, existing bool, log *slog.Logger) (*Postgres, error) {
	p := &Postgres{log: log, opt: builtinpg.Options{
		DataDir: PostgresDir(cfg), Background: true, Existing: existing, Log: log.With("component", "postgres"),
		Settings: map[string]string{
			"max_connections": strconv.Itoa(max(100, OpenedConns(cfg)+spareConnections)),
		},
	}}
	p.reserve = newReserveFile(cfg, log)
	p.opt.Begin, p.opt.Step = p.reserve.release, stepsOf(ctx)
	server, err := builtinpg.Start(ctx, p.opt)
	if errors.Is(err, builtinpg.ErrNoCluster) {
		return nil, fmt.Errorf("there is no Purser in %s: correct data_dir (%s), or make one there with \"purser serve\"", cfg.DataDir, cfg.Source("data_dir"))
	}
	if err != nil {
		return nil, fmt.Errorf("starting the built-in PostgreSQL: %w", err)
	}
	p.server, p.DSN = server, server.DSN(DatabaseName)
	return p, nil
}

// Supervise restarts PostgreSQL whenever it exits, and returns nil when ctx ends. It
// returns an error after postgresFailures failures in a row, or at once if a restart can't
// help. A failure is a start that fails, or a server that exits within postgresQuick.
func (p *Postgres) Supervise(ctx context.Context) error {
	failures := 0
	for {
		started := time.Now()
		var cause error
		if p.server != nil {
			select {
			case <-ctx.Done():
				return nil
			case <-p.server.Done():
			}
			cause = p.server.Err()
			p.log.ErrorContext(ctx, "PostgreSQL has exited unexpectedly and is started again", "error", cause)
			p.Stop() // releases the lock of the data directory
		}
		if time.Since(started) > postgresQuick {
			failures = 0
		}
		if failures > 0 {
			_ = worker.Sleep(ctx, worker.Backoff(failures, 200*time.Millisecond, 10*time.Second))
		}
		if ctx.Err() != nil {
			return nil
		}
		failures++
		err := p.restart(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && (failures >= postgresFailures || errors.Is(err, errMoved) || errors.Is(err, builtinpg.ErrInUse)):
			return fmt.Errorf("the built-in PostgreSQL can't be kept running (its log is above, its data in %s): %w", p.opt.DataDir, err)
		case err != nil:
			p.log.ErrorContext(ctx, "starting PostgreSQL again failed", "error", err, "failures", failures)
		case failures >= postgresFailures:
			return fmt.Errorf("the built-in PostgreSQL exits soon after each start, %d times in a row (its log is above, its data in %s): %w", failures, p.opt.DataDir, cause)
		}
	}
}

// errMoved says that the restarted server has its socket in another directory than the
// server before, so that the open pools can't reach it.
var errMoved = errors.New("PostgreSQL's socket is in another directory than before: restart Purser (a data directory with a shorter path avoids this)")

func (p *Postgres) restart(ctx context.Context) error {
	server, err := builtinpg.Start(ctx, p.opt)
	if err != nil {
		return err
	}
	p.server = server
	if server.DSN(DatabaseName) != p.DSN {
		return errMoved
	}
	p.log.InfoContext(ctx, "PostgreSQL runs again")
	return nil
}

// Stop stops the server if it runs. It must not be called while Supervise runs.
func (p *Postgres) Stop() {
	if p.server == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), postgresStop)
	defer cancel()
	if err := p.server.Stop(ctx); err != nil {
		p.log.Error("stopping PostgreSQL failed", "error", err)
	}
	p.server = nil
}
