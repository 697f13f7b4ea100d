package management

import (
	"context"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/pullstats"
)

// recentDays is how many days of pulls a list of repositories has.
const recentDays = 30

// checkNames says what is wrong with a request for the repositories of given names.
func checkNames(in *api.RepositoryQuery) error {
	if in.Namespace != "" || in.Prefix != "" || in.Contains != "" || in.Visibility != "" || in.Starred || in.NextPage != "" {
		return badQuery("names", "it can't be given with other filters or next_page")
	}
	for _, name := range in.Names {
		if err := isText("names", name); err != nil {
			return err
		}
	}
	return nil
}

// addStatistics adds statistics to a page of repositories: `found`, which `list` shows in the same
// order. The number of statements doesn't depend on the number of repositories.
func (a *API) addStatistics(ctx context.Context, found []catalog.RepositoryInfo, list []api.ListedRepository) error {
	if len(found) == 0 {
		return nil
	}
	ids := make([]int64, len(found))
	for i, r := range found {
		ids[i] = r.ID
	}
	sizes, err := a.catalog.SizesOfRepositories(ctx, ids)
	if err != nil {
		return err
	}
	for i, id := range ids {
		if size, ok := sizes[id]; ok {
			list[i].Size = &size
		}
	}
	if a.pullsOff() != nil {
		return nil
	}
	recent, err := a.opt.Pulls.Recent(ctx, ids, recentDays)
	if err != nil {
		a.server.Warn(ctx, "listing repositories without the statistics of their pulls", err)
		return nil
	}
	recorded, err := a.recordedSince(ctx)
	if err != nil {
		return nil // it is logged
	}
	for i, id := range ids {
		p := recent.Repositories[id]
		list[i].LastPulledAt = optional(p.Last)
		list[i].RecentPulls = &api.RecentPulls{Since: date(recent.Since), Days: p.Days, Count: p.Total, Display: pullstats.Display(p.Total), RecordedSince: recorded}
	}
	return nil
}
