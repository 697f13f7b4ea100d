package protection

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
)

// TagLabels says which labels of images decide about the tags of a namespace.
type TagLabels struct {
	Expiry    bool `json:"expires_after" doc:"The labels io.purser.expires-after and quay.expires-after of a pushed image give its tag an expiration"`
	Immutable bool `json:"immutable" doc:"The labels io.purser.immutable and quay.immutable of a pushed image make its tag immutable"`
}

// TagLabels returns which labels of images decide about the tags of a namespace. Error:
// NAME_UNKNOWN.
func (k *Keeper) TagLabels(ctx context.Context, namespace string) (l TagLabels, err error) {
	err = k.db.Pool.QueryRow(ctx, "SELECT expiry_labels, immutable_labels FROM top_level_namespaces WHERE name = $1 AND deleted_at IS NULL", namespace).
		Scan(&l.Expiry, &l.Immutable)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return l, namespaceUnknown(namespace)
	case err != nil:
		return l, fmt.Errorf("asking which labels count in namespace %s: %w", namespace, err)
	}
	return l, nil
}

// SetTagLabels says which labels of images decide about the tags of a namespace. It changes no tag
// that exists. Every push that begins after it follows it, in each process, since it raises the
// version of the rules that protect tags. Error: NAME_UNKNOWN.
func (k *Keeper) SetTagLabels(ctx context.Context, namespace string, l TagLabels) error {
	s := Scope{Namespace: namespace}
	err := k.changeRules(ctx, s, func(tx pgx.Tx, id, _ *int64) error {
		var old TagLabels
		err := tx.QueryRow(ctx, "SELECT expiry_labels, immutable_labels FROM top_level_namespaces WHERE id = $1 FOR NO KEY UPDATE", *id).
			Scan(&old.Expiry, &old.Immutable)
		if err != nil || old == l {
			return err
		}
		if _, err := tx.Exec(ctx, "UPDATE top_level_namespaces SET expiry_labels = $2, immutable_labels = $3 WHERE id = $1", *id, l.Expiry, l.Immutable); err != nil {
			return err
		}
		return audit.Append(ctx, tx, audit.Entry{Kind: audit.ChangeTagLabels, Namespace: namespace,
			Detail: map[string]any{"expires_after": l.Expiry, "immutable": l.Immutable}})
	})
	if err != nil && !oci.IsClientError(err) {
		return fmt.Errorf("saying which labels count in namespace %s: %w", namespace, err)
	}
	return err
}

// labelsAllowed reads which namespaces let labels of images decide about tags.
func labelsAllowed(ctx context.Context, q db.Querier) (map[int64]TagLabels, error) {
	rows, err := q.Query(ctx, "SELECT id, expiry_labels, immutable_labels FROM top_level_namespaces WHERE expiry_labels OR immutable_labels")
	if err != nil {
		return nil, err
	}
	out := make(map[int64]TagLabels)
	var id int64
	var l TagLabels
	_, err = pgx.ForEachRow(rows, []any{&id, &l.Expiry, &l.Immutable}, func() error {
		out[id] = l
		return nil
	})
	return out, err
}
