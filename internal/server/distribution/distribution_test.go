package distribution_test

import (
	"testing"

	"github.com/purser-registry/purser/internal/catalog/browse"
	"github.com/purser-registry/purser/internal/server"
	"github.com/purser-registry/purser/internal/server/distribution"
)

// TestRequiredOptions: New must return an error for options without a server, a catalog, its
// browser, its quotas or a store.
func TestRequiredOptions(t *testing.T) {
	t.Parallel()
	r := setup(t)
	for _, o := range []distribution.Options{
		{},
		{Catalog: r.Catalog, Browser: browse.New(r.Catalog), Quotas: r.Quotas, Store: nopStore{}},
		{Server: new(server.Server), Browser: browse.New(r.Catalog), Quotas: r.Quotas, Store: nopStore{}},
		{Server: new(server.Server), Catalog: r.Catalog, Quotas: r.Quotas, Store: nopStore{}},
		{Server: new(server.Server), Catalog: r.Catalog, Browser: browse.New(r.Catalog), Store: nopStore{}},
		{Server: new(server.Server), Catalog: r.Catalog, Browser: browse.New(r.Catalog), Quotas: r.Quotas},
	} {
		if _, err := distribution.New(o); err == nil {
			t.Errorf("accepted: %+v", o)
		}
	}
}
