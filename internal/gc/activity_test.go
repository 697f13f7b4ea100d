package gc_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/gc"
	"github.com/purser-registry/purser/internal/worker"
)

// TestOldActivityIsForgotten: an idle sweeper deletes counts that no answer has any more, unless the
// database's clock isn't fit for that.
func TestOldActivityIsForgotten(t *testing.T) {
	t.Parallel()
	b := setupStore(t)
	b.exec(`INSERT INTO gc_activity (minute, blobs_deleted) VALUES (now() - interval '32 days', 1), (now() - interval '30 days', 2)`)
	left := func() int { return b.count("SELECT sum(blobs_deleted) FROM gc_activity") }
	c := gc.New(gc.Options{Catalog: b.catalog, DB: b.db, Log: slog.New(slog.DiscardHandler), CheckTime: func(context.Context, time.Time) error {
		return fmt.Errorf("set meanwhile: %w", worker.ErrRest)
	}})
	if err := c.ForgetActivity(t.Context()); !errors.Is(err, worker.ErrRest) || left() != 3 {
		t.Errorf("%v, and %d are left, want a rest and 3", err, left())
	}
	b.start(b.sweeper(nil).Run)
	b.eventually("old counts are deleted", func() bool { return left() == 2 })
}
