package check

import (
	"context"
	"iter"

	"github.com/purser-registry/purser/internal/catalog"
)

type ContradictionsPage = contradictionsPage

var (
	ReadOwners           = readOwners
	FindUnownedUploads   = findUnownedUploads
	RecordUnowned        = recordUnowned
	RecordUnownedUploads = recordUnownedUploads
)

// Contradictions exports contradictions: it compares the sizes that all manifests declare
// with the stored sizes.
func Contradictions(ctx context.Context, c *catalog.Catalog) iter.Seq2[ContradictionsPage, error] {
	return contradictions(ctx, c)
}
