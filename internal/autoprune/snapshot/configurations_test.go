package snapshot_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/autoprune/snapshot"
)

// TestMemoryOfLabels: a configuration with very many labels takes little memory.
func TestMemoryOfLabels(t *testing.T) { //nolint:paralleltest // AllocsPerRun counts what all goroutines allocate
	var labels []string
	for i := range 200_000 {
		labels = append(labels, fmt.Sprintf(`"a%d":""`, i))
	}
	content := []byte(`{"config": {"Labels": {` + strings.Join(labels, ",") + `}}}`)
	if n := testing.AllocsPerRun(3, func() { snapshot.ParseConfiguration(content) }); n > 100 {
		t.Errorf("a configuration with 200,000 labels takes %.0f allocations", n)
	}
}
