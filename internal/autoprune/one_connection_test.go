package autoprune_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/autoprune/autoprunetest"
	"github.com/purser-registry/purser/internal/autoprune/forecast"
	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/autoprune/warnings"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/judge"
	"github.com/purser-registry/purser/internal/policy"
	"github.com/purser-registry/purser/internal/testscale"
)

// TestOneConnection: who changes what auto-pruning does needs one connection of the pool at a time. If a
// transaction needed a second one, as many of them as there are connections would wait for each other, and
// all other requests with them.
func TestOneConnection(t *testing.T) {
	t.Parallel()
	n := capped(t, 1, 6)
	id := n.policy(n.app, capOf5)
	n.run()
	ask := n.asks(6)

	one, err := db.Open(t.Context(), db.Options{DSN: n.DSN, MaxConns: 1, Log: quiet})
	n.Must(err)
	t.Cleanup(one.Close)
	p, err := autoprune.New(autoprune.Options{
		DB: one, Background: n.DB, Catalog: catalog.New(catalog.Options{DB: one, CacheOff: true, Log: quiet}), Log: quiet,
		Pulls: func(ctx context.Context) (judge.PullRecord, error) {
			_, err := one.Pool.Exec(ctx, "SELECT 1")
			return judge.PullRecord{}, err
		},
	})
	n.Must(err)

	wanted := autoprunetest.Parsed(t, `{"method": "creation_date", "olderThan": "2h", "maxDeleted": 5}`)
	web := policies.Target{Repository: "app/web0"}
	var created string
	for _, change := range []struct {
		name string
		make func(ctx context.Context) error
	}{
		{"RunNow", func(ctx context.Context) error { return p.RunNow(ctx, "app") }},
		{"Approve", func(ctx context.Context) error {
			_, err := p.Approve(ctx, "app", id, ask.Version, 6)
			return err
		}},
		{"Create", func(ctx context.Context) (err error) {
			created, err = p.Policies.CreateConfirmed(ctx, web, wanted, policies.Consent{})
			return err
		}},
		{"Update", func(ctx context.Context) error {
			return p.Policies.Update(ctx, web, created, autoprunetest.Parsed(t, `{"method": "creation_date", "olderThan": "3h", "maxDeleted": 5}`))
		}},
		{"Judge", func(ctx context.Context) error {
			_, err := p.Warnings.OfChange(ctx, web, warnings.Change{Policy: &wanted})
			return err
		}},
		{"Except", func(ctx context.Context) error { return p.Policies.Except(ctx, "app/web0", nil) }},
		{"EndException", func(ctx context.Context) error {
			_, err := p.Policies.EndException(ctx, "app/web0")
			return err
		}},
		{"EndExemptions", func(ctx context.Context) error {
			_, err := p.Policies.EndExemptions(ctx, "app/web0", "")
			return err
		}},
		{"UseDefaults", func(ctx context.Context) error { return p.Policies.UseDefaults(ctx, "app", false) }},
		{"Rests", func(ctx context.Context) error {
			_, err := p.Policies.Rests(ctx, "app")
			return err
		}},
		{"Preview", func(ctx context.Context) error {
			_, err := p.Preview(ctx, n.app, autoprune.PreviewOptions{})
			return err
		}},
		{"Work", func(ctx context.Context) error {
			_, err := p.Work(ctx)
			return err
		}},
		{"Delete", func(ctx context.Context) error { return p.Policies.Delete(ctx, web, created) }},
	} {
		within, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		if err := change.make(within); err != nil {
			t.Errorf("%s: %v", change.name, err)
		}
		cancel()
	}
	n.run()
	runs, _, err := n.pruner.Runs(t.Context(), "app", "", 1)
	n.Must(err)
	within, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := p.Undo(within, runs[0].ID, "", time.Minute); err != nil {
		t.Errorf("Undo: %v", err)
	}
	if list, err := n.pruner.Policies.List(t.Context(), n.app); err != nil || len(list) != 1 || list[0].Policy.Method != policy.CreationDate {
		t.Errorf("the namespace's policies are %v (%v)", list, err)
	}
}

// TestFewConnections: previews, forecasts and judgements at the same time come to their end with any number
// of connections from two on, though each keeps one for a snapshot while it asks for uses with another.
func TestFewConnections(t *testing.T) {
	t.Parallel()
	n := capped(t, 4, 3)
	n.policy(n.app, `{"method": "last_pulled", "olderThan": "1h"}`)
	for _, conns := range []int{2, 4, 5} {
		few, err := db.Open(t.Context(), db.Options{DSN: n.DSN, MaxConns: conns, Log: quiet})
		n.Must(err)
		t.Cleanup(few.Close)
		p, err := autoprune.New(autoprune.Options{
			DB: few, Background: n.DB, Catalog: catalog.New(catalog.Options{DB: few, CacheOff: true, Log: quiet}), Log: quiet,
			Pulls: reliable,
			Used: func(ctx context.Context, _ int64, _ []*judge.Tag) error {
				_, err := few.Pool.Exec(ctx, "SELECT 1")
				return err
			},
		})
		n.Must(err)
		wanted := autoprunetest.Parsed(t, `{"method": "last_pulled", "olderThan": "2h"}`)
		within, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		group, ctx := errgroup.WithContext(within)
		for range testscale.Pick(5, 30) {
			group.Go(func() error {
				v, err := p.Preview(ctx, n.app, autoprune.PreviewOptions{})
				if err == nil && v.Deleted != 12 {
					return fmt.Errorf("a preview deletes %d tags", v.Deleted)
				}
				return err
			})
			group.Go(func() error {
				_, err := forecast.New(p.Repositories, p.Policies).Forecast(ctx, n.app, forecast.Options{Days: 3})
				return err
			})
			group.Go(func() error {
				_, err := p.Warnings.OfChange(ctx, n.app, warnings.Change{Policy: &wanted})
				return err
			})
		}
		if err := group.Wait(); err != nil {
			t.Errorf("with %d connections: %v", conns, err)
		}
	}
}
