package autoprune

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
)

// NamespaceAsks says how many policies ask in a namespace.
type NamespaceAsks struct {
	Namespace string    `json:"namespace"`
	Policies  int64     `json:"policies" doc:"Policies that ask and have no approval. A policy that was changed or deleted since the last run may be among them"`
	Tags      int64     `json:"tags_would_delete" doc:"Tags that they would delete"`
	Asked     time.Time `json:"asked_at" doc:"The oldest of their notices"`
}

// AsksPlace is the place of a namespace in the list.
type AsksPlace struct {
	Asked     time.Time
	Namespace string
}

// WaitingAsks lists up to n namespaces in which policies ask and nobody has approved, the namespace
// that has waited longest first, after the place `after`, whose zero value is before the first. It
// says whether there are more. It doesn't look at the policies themselves: Asks
// tells for one namespace which of them still ask.
func (p *Pruner) WaitingAsks(ctx context.Context, after AsksPlace, n int) (list []NamespaceAsks, more bool, err error) {
	rows, err := p.db.Pool.Query(ctx, `
		SELECT n.name, count(*), sum(a.tags)::bigint, min(a.asked_at)
		FROM autopruneasks a JOIN top_level_namespaces n ON n.id = a.namespace_id AND n.deleted_at IS NULL
		WHERE a.approved_run IS NULL AND (a.approved_until IS NULL OR a.approved_until <= clock_timestamp())
		GROUP BY n.name HAVING (min(a.asked_at), n.name) > ($1, $2) ORDER BY min(a.asked_at), n.name LIMIT $3`, after.Asked, after.Namespace, n+1)
	list, more, err = db.Page(rows, err, n, func(row pgx.CollectableRow) (a NamespaceAsks, err error) {
		err = row.Scan(&a.Namespace, &a.Policies, &a.Tags, &a.Asked)
		return a, err
	})
	if err != nil {
		return nil, false, fmt.Errorf("listing the namespaces whose policies ask: %w", err)
	}
	return list, more, nil
}
