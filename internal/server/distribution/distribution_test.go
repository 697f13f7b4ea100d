package distribution_test

import (
	"testing"

	"github.com/purser-registry/purser/internal/server"
	"github.com/purser-registry/purser/internal/server/distribution"
)

// TestRequiredOptions: New must return an error for options without a server, a catalog or a
// store.
func TestRequiredOptions(t *testing.T) {
	t.Parallel()
	r := setup(t)
	for _, o := range []distribution.Options{
		{}, {Catalog: r.Catalog, Store: nopStore{}}, {Server: new(server.Server), Store: nopStore{}}, {Server: new(server.Server), Catalog: r.Catalog},
	} {
		if _, err := distribution.New(o); err == nil {
			t.Errorf("accepted: %+v", o)
		}
	}
}
