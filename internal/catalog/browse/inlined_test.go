package browse_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/catalog/catalogtest"
)

// TestSizesAreInlined looks at the plan of a statement that calls purser_sized_manifest for
// many manifests. The planner must have inlined the function, so that the statement reads the
// manifests by an index instead of calling the function for each.
func TestSizesAreInlined(t *testing.T) {
	t.Parallel()
	b := catalogtest.Setup(t)
	rows, err := b.DB.Pool.Query(t.Context(), `
		EXPLAIN SELECT m.size FROM unnest($1::bigint[]) AS want (id)
		CROSS JOIN LATERAL purser_sized_manifest(1, 2, want.id, 100) m`, []int64{1, 2})
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	plan := strings.Join(lines, "\n")
	if strings.Contains(plan, "purser_sized_manifest") || !strings.Contains(plan, "Index") {
		t.Errorf("the plan is\n%s", plan)
	}
}
