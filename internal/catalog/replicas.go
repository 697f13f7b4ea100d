package catalog

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Replica is a process that uses the database and its caches.
type Replica struct {
	ID      string    `json:"id"`
	Name    string    `json:"name" doc:"Name of its host"`
	Started time.Time `json:"started_at"`
	Seen    time.Time `json:"seen_at" doc:"When it last said that it runs, by the database's clock"`
}

// maxReplicas is how many processes Replicas lists.
const maxReplicas = 100

// Replicas lists the processes that use the database, those that were seen last first, at most
// 100. Processes that haven't been seen for a while are forgotten.
func (c *Catalog) Replicas(ctx context.Context) ([]Replica, error) {
	rows, err := c.db.Pool.Query(ctx, "SELECT id::text, name, started_at, seen_at FROM replicas ORDER BY seen_at DESC, id LIMIT $1", maxReplicas)
	if err != nil {
		return nil, fmt.Errorf("listing replicas: %w", err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (r Replica, err error) {
		err = row.Scan(&r.ID, &r.Name, &r.Started, &r.Seen)
		return r, err
	})
	if err != nil {
		return nil, fmt.Errorf("listing replicas: %w", err)
	}
	return list, nil
}
