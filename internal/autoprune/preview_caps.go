package autoprune

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/autoprune/snapshot"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/policy"
)

// countCaps counts what policies with a cap would delete, as the first phase of a run does, and
// decides which of them would ask. The preview of a repository counts in the whole namespace
// too, since caps are of runs. It has half of the preview's time; if that isn't enough, these
// policies delete nothing in the preview.
func (v *previewing) countCaps(ctx context.Context, t policies.Target, found policies.Owner) error {
	list := v.policies.WithCaps()
	if v.o.Policy != nil {
		list = slices.DeleteFunc([]policies.Saved{{Policy: *v.o.Policy}}, func(s policies.Saved) bool { return !s.Policy.Capped() })
	}
	if len(list) == 0 {
		return nil
	}
	c := newCaps(list, [3]int64{})
	until := v.until
	v.until = time.Now().Add(v.o.Within / 2)
	defer func() { v.until = until }()
	count := func(ctx context.Context, target catalog.Repository) error {
		rules, saved := v.judged(target)
		if !slices.ContainsFunc(saved, func(s policies.Saved) bool { return s.Policy.Capped() }) {
			return v.alive(ctx)
		}
		if err := v.p.Repositories.ConfigurationsUntil(ctx, target, rules.Policies, v.until, v.alive); err != nil {
			return err
		}
		return snapshot.Read(ctx, v.p.db.Pool, target, func(s *snapshot.Snapshot) error {
			counts, err := countCapped(ctx, s.Now, v.reader(s, rules.Policies), rules)
			if err == nil {
				c.add(saved, counts)
			}
			return err
		})
	}
	var err error
	if v.o.Policy != nil && t.Scope() == policy.RepositoryScope {
		err = count(ctx, catalog.Repository{NamespaceID: found.Namespace, ID: found.Repository, Path: t.Repository})
	} else {
		err = v.walk(ctx, found.Namespace, count)
	}
	switch {
	case errors.Is(err, snapshot.ErrTimeOver):
		v.uncounted = true
		for _, own := range c.Policies {
			own.Partial = true
		}
	case err != nil:
		return err
	}
	if err := v.p.decideCaps(ctx, c, list, found.Namespace); err != nil {
		return err
	}
	v.caps, v.policies.Capped = c, c.waits
	asks := c.asks(v.policies, list)
	v.out.Asks = append(v.out.Asks, asks[:min(len(asks), policies.MaxListed)]...)
	if v.o.Policy != nil && len(v.out.Asks) > 0 {
		v.out.Asks[0].Scope = policy.NamespaceScope
	}
	return nil
}
