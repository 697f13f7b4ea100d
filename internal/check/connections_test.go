package check_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/check"
	"github.com/purser-registry/purser/internal/db"
)

// TestCheckLeavesConnections: a check keeps connections of the pool for lists for as long as it runs, and
// none of the catalog's, which requests need. Of that pool it takes one at a time, so it comes to its end
// though it finds something in all parts at once.
func TestCheckLeavesConnections(t *testing.T) {
	t.Parallel()
	b := setupStore(t)
	for i := range 60 {
		if err := os.Remove(b.file(b.push(fmt.Sprint("missing ", i)).Key)); err != nil {
			t.Fatal(err)
		}
	}
	open := func(conns int) *db.DB {
		d, err := db.Open(t.Context(), db.Options{DSN: b.db.Pool.Config().ConnString(), MaxConns: conns, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(d.Close)
		return d
	}
	of := catalog.New(catalog.Options{DB: open(1), Log: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	report, err := check.Run(ctx, check.Options{Catalog: of, Lists: open(check.DefaultParallel), Store: b.store})
	if err != nil {
		t.Fatal(err)
	}
	if n := report.Problems[check.Missing]; n == nil || n.Count != 60 {
		t.Errorf("the check has found %+v", report)
	}
}
