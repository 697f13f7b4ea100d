package catalog

import (
	"context"
	"fmt"
	"time"
)

// NamespaceRow returns the id of the namespace that has the name now, and when it was made. The id
// tells it from others that have had the name before, and were deleted. Error: NAME_UNKNOWN.
func (c *Catalog) NamespaceRow(ctx context.Context, name string) (id int64, born time.Time, err error) {
	err = c.db.Pool.QueryRow(ctx, "SELECT id, created_at FROM live_namespaces WHERE name = $1", name).Scan(&id, &born)
	if isNoRows(err) {
		return 0, born, namespaceUnknown(name)
	}
	if err != nil {
		return 0, born, fmt.Errorf("looking for namespace %s: %w", name, err)
	}
	return id, born, nil
}
