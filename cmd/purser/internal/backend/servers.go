package backend

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/worker"
)

const (
	// serverSeenEvery is how often a server says that it runs. The view running_servers has those that
	// did within the last minute.
	serverSeenEvery = 20 * time.Second
	// maxServers limits how many servers Servers returns.
	maxServers = 100
)

// ServerRecord writes down in the table servers that this process serves the registry, and by which
// settings, so that commands that delete or repair can compare theirs.
type ServerRecord struct {
	db       *db.DB
	replica  uuid.UUID
	host     string
	settings []byte
	log      *slog.Logger
	*worker.Loop
}

// RecordServer writes down that this process serves the registry with the settings `cfg`. It must be
// called before the process deletes anything. The record's Run renews it, and Stopped ends it. The
// records of servers that don't run any more are deleted, since this one is newer.
func RecordServer(ctx context.Context, cfg *config.Config, d *db.DB, replica uuid.UUID, log *slog.Logger, loops *worker.Metrics) (*ServerRecord, error) {
	values := map[string]string{}
	for _, s := range cfg.Settings() {
		values[s.Key] = s.Value
	}
	text, err := json.Marshal(values)
	if err != nil {
		return nil, fmt.Errorf("writing down the settings: %w", err)
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	r := &ServerRecord{db: d, replica: replica, host: host, settings: text, log: log}
	r.Loop = worker.New(worker.Options{Name: "record of this server", Idle: serverSeenEvery, Batch: func(ctx context.Context) (bool, error) {
		return false, r.seen(ctx)
	}, Log: log, Metrics: loops})
	err = Patiently(ctx, cfg, log, func() error { return r.seen(ctx) })
	if err == nil {
		_, err = d.Pool.Exec(ctx, "DELETE FROM servers WHERE replica <> $1 AND replica NOT IN (SELECT replica FROM running_servers)", replica)
	}
	if err != nil {
		return nil, fmt.Errorf("writing down this server's settings: %w", err)
	}
	return r, nil
}

func (r *ServerRecord) seen(ctx context.Context) error {
	_, err := r.db.Pool.Exec(ctx, `
		INSERT INTO servers (replica, host, settings) VALUES ($1, $2, $3)
		ON CONFLICT (replica) DO UPDATE SET seen_at = now(), stopped = false`, r.replica, r.host, r.settings)
	return err
}

// Stopped writes down that the server has stopped, if the database answers within two seconds. The
// record stays: until another server starts, commands compare their settings with these.
func (r *ServerRecord) Stopped() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_, err := r.db.Pool.Exec(ctx, "UPDATE servers SET stopped = true, seen_at = now() WHERE replica = $1", r.replica)
	if err != nil {
		r.log.Warn("others can't be told that this server has stopped: they take it for a running one for a minute", "error", err)
	}
}

// Server is a server as its record says.
type Server struct {
	Host     string
	Runs     bool
	Seen     time.Time // by the database's clock
	Settings map[string]string
}

// Name names the server in a sentence.
func (s Server) Name() string {
	if s.Runs {
		return "the server that runs on " + s.Host
	}
	return fmt.Sprintf("the server that ran last, on %s until %s", s.Host, s.Seen.UTC().Format(time.RFC3339))
}

// Servers returns the servers that run, or if none does the one that ran last; none if no server
// has ever run.
func Servers(ctx context.Context, d *db.DB) ([]Server, error) {
	rows, err := d.Pool.Query(ctx, `
		SELECT s.host, r.replica IS NOT NULL, s.seen_at, s.settings FROM servers s LEFT JOIN running_servers r USING (replica)
		ORDER BY 2 DESC, s.seen_at DESC LIMIT $1`, maxServers)
	if err != nil {
		return nil, fmt.Errorf("looking for servers: %w", err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Server])
	if err != nil {
		return nil, fmt.Errorf("looking for servers: %w", err)
	}
	for i, s := range list {
		if !s.Runs {
			return list[:max(i, 1)], nil
		}
	}
	return list, nil
}
