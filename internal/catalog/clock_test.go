package catalog_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/worker"
)

// TestClockSetMeanwhile: a worker was told that it may delete, and then the database's clock is set.
// What seems old by that clock stays: the trash, tags with an expiration date, uploads.
func TestClockSetMeanwhile(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	why := fmt.Errorf("set meanwhile: %w", worker.ErrRest)
	var asked []time.Time
	b := bundle{catalogtest.Replica(t, dbtest.DSN(t), func(o *catalog.Options) {
		o.TrashKeep = time.Hour
		o.CheckTime = func(_ context.Context, now time.Time) error {
			asked = append(asked, now)
			return why
		}
	})}
	b.Fill(t, "acme/app")
	b.Fill(t, "acme/old")
	b.Fill(t, "zoo/app")
	b.begun(t, "acme/app")
	for _, err := range []error{b.DeleteRepository(ctx, "acme/old"), b.DeleteNamespace(ctx, "zoo")} {
		if err != nil {
			t.Fatal(err)
		}
	}
	b.expire(t)
	b.Exec(t, "UPDATE tags SET expires_at = now() - interval '1 s' WHERE name = 'also'")
	b.Exec(t, "UPDATE uploads SET updated_at = now() - interval '60 days'")
	left := func() string {
		return fmt.Sprint(len(b.trash(t)), b.Count(t, "SELECT count(*) FROM tags WHERE expires_at IS NOT NULL"), b.Rows(t, "uploads"))
	}
	before := left()
	_, purged := b.PurgeExpired(ctx)
	_, expired := b.ExpireTags(ctx)
	_, reaped := b.ReapUploads(ctx, time.Hour, 10)
	for what, err := range map[string]error{"purge": purged, "expire": expired, "reap": reaped} {
		if !errors.Is(err, worker.ErrRest) {
			t.Errorf("%s: %v, want a rest", what, err)
		}
	}
	if after := left(); after != before {
		t.Errorf("in the trash, with a date, uploads: %s, before %s", after, before)
	}
	now := time.Now()
	for _, at := range asked {
		if d := now.Sub(at); d.Abs() > time.Hour {
			t.Errorf("the clock was asked for %v", at)
		}
	}
	why = nil
	_, purged = b.PurgeExpired(ctx)
	_, expired = b.ExpireTags(ctx)
	_, reaped = b.ReapUploads(ctx, time.Hour, 10)
	if err := errors.Join(purged, expired, reaped); err != nil || len(b.trash(t)) != 0 || b.Rows(t, "uploads") != 0 {
		t.Errorf("with a right clock: %v, left %s", err, left())
	}
}
