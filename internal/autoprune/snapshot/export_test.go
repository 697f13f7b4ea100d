package snapshot

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/db"
)

// ParseConfiguration parses the configuration of an image, and returns why it can't; "" if it can.
func ParseConfiguration(content []byte) string {
	var c configuration
	c.parse(content)
	return c.problem
}

// UnusedBothWays returns what UnusedBytes would return, by look-ups and by a scan.
func UnusedBothWays(ctx context.Context, d *db.DB, t catalog.Repository, manifests []int64) (lookedUp, scanned int64, err error) {
	list := manifestList{ids: manifests}
	for range manifests {
		list.namespaces, list.repositories = append(list.namespaces, t.NamespaceID), append(list.repositories, t.ID)
	}
	err = pgx.BeginFunc(ctx, d.Pool, func(tx pgx.Tx) error {
		if lookedUp, _, err = lookUpUnused(ctx, tx, list); err != nil {
			return err
		}
		scanned, _, err = scanUnused(ctx, tx, list)
		return err
	})
	return lookedUp, scanned, err
}

// TakenPlaces returns how many of the places for previews are taken.
func (r *Reader) TakenPlaces() int { return len(r.previews) }
