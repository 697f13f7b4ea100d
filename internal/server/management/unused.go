package management

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/judge"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/policy"
	"github.com/purser-registry/purser/internal/pullstats"
	"github.com/purser-registry/purser/internal/server"
	"github.com/purser-registry/purser/internal/worker"
)

// unused returns a filter that selects the tags which, for as long as the parameter
// not_pulled_for says, were neither pushed, nor pulled, nor asked for by HEAD. It returns nil if
// the parameter is missing. It returns an error for the client if the parameter is invalid, if
// the client asks for a page by number, if the clocks aren't fit to judge by, or if the pull statistics
// are incomplete (knowsUses).
func (a *API) unused(ctx context.Context, in *api.TagQuery) (*catalog.UnusedTags, error) {
	if !in.NotPulled.Given {
		return nil, nil
	}
	age, err := policy.ParseAge(in.NotPulled.Value)
	if err != nil {
		return nil, badQuery("not_pulled_for", "%v", err)
	}
	if in.Page > 1 {
		return nil, badQuery("page", "tags that weren't pulled for a while come by next_page alone")
	}
	if err := a.trustsClocks(ctx, age); err != nil {
		return nil, err
	}
	since, err := a.knowsUses(ctx, age)
	if err != nil {
		return nil, err
	}
	return &catalog.UnusedTags{Since: since, LastUses: a.lastUses}, nil
}

// trustsClocks returns an error for the client while the clocks disagree or are in doubt: then nobody can
// tell how long ago a tag was used. The times of pushes and uses are those of the databases.
func (a *API) trustsClocks(ctx context.Context, age policy.Age) error {
	if a.opt.Clocks == nil {
		return nil
	}
	err := a.opt.Clocks.Check(ctx)
	if errors.Is(err, worker.ErrRest) {
		return oci.Errorf(oci.Unavailable, "which tags weren't pulled for %s can't be told now: %v", age, err)
	}
	return err
}

// knowsUses returns the time that is `age` ago by the clock of the statistics' database. It returns an
// error for the client if the pull statistics may lack pulls or HEAD requests since that time.
func (a *API) knowsUses(ctx context.Context, age policy.Age) (since time.Time, err error) {
	refused := func(format string, args ...any) (time.Time, error) {
		return since, server.Refusal(http.StatusConflict, "which tags weren't pulled for "+age.String()+" can't be told: "+format, args...)
	}
	if a.pullsOff() != nil {
		return refused("pulls aren't counted here, because the setting pull_statistics.enabled is false")
	}
	// Settle comes before Status: if a process has died with uses in memory, the status says so.
	if err := a.opt.PullStats.Settle(ctx); err != nil {
		if errors.Is(err, pullstats.ErrUnsettled) {
			return since, oci.Errorf(oci.Unavailable, "which tags weren't pulled for %s can't be told now: %v", age, err)
		}
		return since, a.pullsFailed(ctx, err)
	}
	status, err := a.opt.PullStats.Status(ctx)
	behind := status.Behind
	if err == nil && a.opt.RedisPulls != nil {
		var inRedis time.Duration
		inRedis, err = a.opt.RedisPulls.Behind(ctx)
		behind = max(behind, inRedis)
	}
	if err != nil {
		return since, a.pullsFailed(ctx, err)
	}
	since = status.Now.Add(-age.Duration())
	recorded, what := status.Since, "pulls are counted"
	if status.Checks.After(recorded) {
		recorded, what = status.Checks, "HEAD requests, which are uses too, are remembered"
	}
	switch {
	case status.Foreign:
		return refused("%v", pullstats.ErrForeignLog)
	case status.Unseen:
		return refused("%v", pullstats.ErrUnseen)
	case !recorded.Before(since):
		return refused("%s since %s, so they can be from %s on", what,
			recorded.UTC().Format(time.RFC3339), recorded.Add(age.Duration()).UTC().Format(time.RFC3339))
	case behind > judge.DefaultMaxBehind:
		return since, oci.Errorf(oci.Unavailable, "which tags weren't pulled for %s can't be told now: the statistics of pulls are %s behind; "+
			"\"purser pulls status\" shows their progress", age, behind.Round(time.Second))
	}
	return since, nil
}

// lastUses returns when each of the tags was last pulled or asked for by HEAD. Only requests by
// the tag's name count; pulling the tag's manifest by digest isn't a use of the tag.
func (a *API) lastUses(ctx context.Context, repository int64, names []string) (map[string]time.Time, error) {
	uses, err := a.opt.PullStats.Uses(ctx, repository, names, nil)
	if err != nil {
		return nil, a.pullsFailed(ctx, err)
	}
	return uses.Tags, nil
}
