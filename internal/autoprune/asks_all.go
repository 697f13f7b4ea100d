package autoprune

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// NamespaceAsks says how many policies ask in a namespace.
type NamespaceAsks struct {
	Namespace string    `json:"namespace"`
	Policies  int64     `json:"policies" doc:"Policies that ask and have no approval. A policy that was changed or deleted since the last run may be among them"`
	Tags      int64     `json:"tags_would_delete" doc:"Tags that they would delete"`
	Asked     time.Time `json:"asked_at" doc:"The oldest of their notices"`
}

// WaitingAsks lists the namespaces in which policies ask and nobody has approved, the namespace
// that has waited longest first, at most `limit`. It doesn't look at the policies themselves: Asks
// tells for one namespace which of them still ask.
func (p *Pruner) WaitingAsks(ctx context.Context, limit int) ([]NamespaceAsks, error) {
	rows, err := p.db.Pool.Query(ctx, `
		SELECT n.name, count(*), sum(a.tags)::bigint, min(a.asked_at)
		FROM autopruneasks a JOIN top_level_namespaces n ON n.id = a.namespace_id AND n.deleted_at IS NULL
		WHERE a.approved_run IS NULL AND (a.approved_until IS NULL OR a.approved_until <= clock_timestamp())
		GROUP BY n.name ORDER BY min(a.asked_at), n.name LIMIT $1`, limit)
	if err != nil {
		return nil, fmt.Errorf("listing the namespaces whose policies ask: %w", err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (a NamespaceAsks, err error) {
		err = row.Scan(&a.Namespace, &a.Policies, &a.Tags, &a.Asked)
		return a, err
	})
	if err != nil {
		return nil, fmt.Errorf("listing the namespaces whose policies ask: %w", err)
	}
	if list == nil {
		list = []NamespaceAsks{}
	}
	return list, nil
}
