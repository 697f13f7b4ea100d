package management

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/pullstats"
	"github.com/purser-registry/purser/internal/server"
)

// pullHistory makes the answer for a history that `read` reads. Its error is meant for the client.
func (a *API) pullHistory(ctx context.Context, read func(pulls *pullstats.Reader) (pullstats.History, error)) (*api.PullHistory, error) {
	h, err := read(a.opt.Pulls)
	if err != nil {
		return nil, a.pullsFailed(ctx, err)
	}
	recorded, err := a.recordedSince(ctx)
	if err != nil {
		return nil, err
	}
	out := &api.PullHistory{Since: date(h.Since), Days: make([]api.PullDay, len(h.Days)), Total: h.Total, RecordedSince: recorded}
	for i, d := range h.Days {
		out.Days[i] = api.PullDay{Day: d.Day.Format(time.DateOnly), Pulls: d.Pulls}
	}
	return out, nil
}

// recordedSince returns since when every pull is counted, nil if nothing was counted yet. Its error is
// meant for the client. Call it after what was pulled has been read: the time only moves forward.
func (a *API) recordedSince(ctx context.Context) (*time.Time, error) {
	t, err := a.opt.Pulls.Since(ctx)
	if err != nil {
		return nil, a.pullsFailed(ctx, err)
	}
	return optional(t.UTC()), nil
}

// date returns nil for the zero time.
func date(t time.Time) *string {
	if t.IsZero() {
		return nil
	}
	text := t.Format(time.DateOnly)
	return &text
}

// addPullHistory binds the operations on histories of pulls.
func (a *API) addPullHistory() {
	serve(a, api.GetRepositoryHistory, func(ctx context.Context, in *api.RepositoryHistory) (*api.PullHistory, error) {
		if err := a.pullsOff(); err != nil {
			return nil, err
		}
		here, err := a.catalog.Present(ctx, in.Repository, nil, nil)
		if err != nil {
			return nil, err
		}
		return a.pullHistory(ctx, func(pulls *pullstats.Reader) (pullstats.History, error) {
			return pulls.RepositoryHistory(ctx, here.Repository, in.Days)
		})
	})
	serve(a, api.GetTagHistory, func(ctx context.Context, in *api.TagHistory) (*api.PullHistory, error) {
		repository, _, err := a.pulledTag(ctx, in.Repository, in.Tag)
		if err != nil {
			return nil, err
		}
		return a.pullHistory(ctx, func(pulls *pullstats.Reader) (pullstats.History, error) {
			return pulls.TagHistory(ctx, repository, in.Tag, in.Days)
		})
	})
	serve(a, api.GetManifestHistory, func(ctx context.Context, in *api.ManifestHistory) (*api.PullHistory, error) {
		repository, err := a.pulledManifest(ctx, in.Repository, in.Digest)
		if err != nil {
			return nil, err
		}
		return a.pullHistory(ctx, func(pulls *pullstats.Reader) (pullstats.History, error) {
			return pulls.ManifestHistory(ctx, repository, in.Digest, in.Days)
		})
	})
	a.addHistoryOfNamespaces()
	serve(a, api.ListTopRepositories, a.topRepositories)
	serve(a, api.ListTopTags, a.topTags)
	serve(a, api.ListUnpulled, a.listUnpulled)
}

// addHistoryOfNamespaces binds the operations on histories of more than a repository.
func (a *API) addHistoryOfNamespaces() {
	serve(a, api.GetNamespaceHistory, func(ctx context.Context, in *api.NamespaceHistory) (*api.PullHistory, error) {
		if err := a.pullsOff(); err != nil {
			return nil, err
		}
		id, err := a.namespaceID(ctx, in.Namespace)
		if err != nil {
			return nil, err
		}
		return a.pullHistory(ctx, func(pulls *pullstats.Reader) (pullstats.History, error) {
			return pulls.NamespaceHistory(ctx, id, in.Days)
		})
	})
	serve(a, api.GetHistory, func(ctx context.Context, in *api.HistoryDays) (*api.PullHistory, error) {
		if err := a.pullsOff(); err != nil {
			return nil, err
		}
		return a.pullHistory(ctx, func(pulls *pullstats.Reader) (pullstats.History, error) { return pulls.RegistryHistory(ctx, in.Days) })
	})
	serve(a, api.GetUserHistory, func(ctx context.Context, in *api.HistoryDays) (*api.PullHistory, error) {
		if err := a.pullsOff(); err != nil {
			return nil, err
		}
		viewer, err := a.server.Viewer(ctx)
		if err != nil {
			return nil, err
		}
		return a.pullHistory(ctx, func(pulls *pullstats.Reader) (pullstats.History, error) {
			if viewer.All {
				return pulls.RegistryHistory(ctx, in.Days)
			}
			return pulls.HistoryOf(ctx, viewer.Namespaces, viewer.Repositories, in.Days)
		})
	})
}

// namespaceID returns the id of a namespace in which the client may read something. Its error
// is meant for the client.
func (a *API) namespaceID(ctx context.Context, name string) (int64, error) {
	if err := checkNamespace("namespace", name); err != nil {
		return 0, err
	}
	viewer, err := a.server.Viewer(ctx)
	if err != nil {
		return 0, err
	}
	return a.browser.NamespaceID(ctx, viewer, name)
}

// topFailed returns the error for a client whose top list couldn't be made.
func (a *API) topFailed(ctx context.Context, err error) error {
	if errors.Is(err, pullstats.ErrTooMuchHistory) {
		return server.Refusal(http.StatusConflict, "%v: ask for fewer days, or for one namespace", err)
	}
	return a.pullsFailed(ctx, err)
}

func (a *API) topRepositories(ctx context.Context, in *api.TopRepositoriesQuery) (*api.TopRepositories, error) {
	if err := a.pullsOff(); err != nil {
		return nil, err
	}
	var namespace int64
	if in.Namespace != "" {
		var err error
		if namespace, err = a.namespaceID(ctx, in.Namespace); err != nil {
			return nil, err
		}
	}
	done, err := a.turn(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	top, err := a.opt.Pulls.TopRepositories(ctx, namespace, in.Days)
	if err != nil {
		return nil, a.topFailed(ctx, err)
	}
	recorded, err := a.recordedSince(ctx)
	if err != nil {
		return nil, err
	}
	out := &api.TopRepositories{Since: date(top.Since), All: top.All, RecordedSince: recorded}
	out.Repositories, err = a.shownRepositories(ctx, top.List, min(in.Limit, 1000))
	return out, err
}

// shownRepositories returns the first `limit` of the ranked repositories that exist and from
// which the client may pull.
func (a *API) shownRepositories(ctx context.Context, ranked []pullstats.Ranked[int64], limit int) ([]api.RankedRepository, error) {
	list := []api.RankedRepository{}
	viewer, err := a.server.Viewer(ctx)
	if err != nil {
		return nil, err
	}
	for len(ranked) > 0 && len(list) < limit {
		part := ranked[:min(len(ranked), 1000)]
		ranked = ranked[len(part):]
		ids := make([]int64, len(part))
		for i, r := range part {
			ids[i] = r.Key
		}
		paths, err := a.browser.ReadablePaths(ctx, viewer, ids)
		if err != nil {
			return nil, err
		}
		for _, r := range part {
			if path, ok := paths[r.Key]; ok && len(list) < limit {
				list = append(list, api.RankedRepository{Repository: path, Pulls: r.Pulls})
			}
		}
	}
	return list, nil
}

func (a *API) topTags(ctx context.Context, in *api.TopTagsQuery) (*api.TopTags, error) {
	if err := a.pullsOff(); err != nil {
		return nil, err
	}
	here, err := a.catalog.Present(ctx, in.Repository, nil, nil)
	if err != nil {
		return nil, err
	}
	done, err := a.turn(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	top, err := a.opt.Pulls.TopTags(ctx, here.Repository, in.Days)
	if err != nil {
		return nil, a.topFailed(ctx, err)
	}
	recorded, err := a.recordedSince(ctx)
	if err != nil {
		return nil, err
	}
	out := &api.TopTags{Since: date(top.Since), All: top.All, RecordedSince: recorded}
	out.Tags, err = a.shownTags(ctx, in.Repository, here.Repository, top.List, min(in.Limit, 1000))
	return out, err
}

// shownTags returns the first `limit` of the ranked tags that exist in the repository. If
// another repository has its name now, there are none.
func (a *API) shownTags(ctx context.Context, repository string, id int64, ranked []pullstats.Ranked[string], limit int) ([]api.RankedTag, error) {
	list := []api.RankedTag{}
	for len(ranked) > 0 && len(list) < limit {
		part := ranked[:min(len(ranked), 1000)]
		ranked = ranked[len(part):]
		names := make([]string, len(part))
		for i, r := range part {
			names[i] = r.Key
		}
		here, err := a.catalog.Present(ctx, repository, names, nil)
		if err != nil {
			return nil, err
		}
		for _, r := range part {
			if _, ok := here.Tags[r.Key]; ok && here.Repository == id && len(list) < limit {
				list = append(list, api.RankedTag{Tag: r.Key, Pulls: r.Pulls})
			}
		}
	}
	return list, nil
}

// listUnpulled returns those repositories of a page of repositories that weren't pulled in the last
// days.
func (a *API) listUnpulled(ctx context.Context, in *api.UnpulledQuery) (*api.UnpulledRepositories, error) {
	if err := a.pullsOff(); err != nil {
		return nil, err
	}
	q, err := repositoryQuery(&api.RepositoryQuery{
		NameFilter: api.NameFilter{NextPage: in.NextPage}, Namespace: in.Namespace, Sort: "name", Limit: in.Limit,
	})
	if err != nil {
		return nil, err
	}
	viewer, err := a.server.Viewer(ctx)
	if err != nil {
		return nil, err
	}
	found, next, err := a.browser.Repositories(ctx, viewer, q)
	if err != nil {
		return nil, err
	}
	ids := make([]int64, len(found))
	for i, r := range found {
		ids[i] = r.ID
	}
	pulled, since, err := a.opt.Pulls.Pulled(ctx, ids, in.Days)
	if err != nil {
		return nil, a.pullsFailed(ctx, err)
	}
	recorded, err := a.recordedSince(ctx)
	if err != nil {
		return nil, err
	}
	if recorded != nil && recorded.After(since) {
		since = *recorded // of earlier days nobody knows that there were no pulls
	}
	out := &api.UnpulledRepositories{Since: date(since), RecordedSince: recorded, Repositories: []string{}}
	for _, r := range found {
		if !pulled[r.ID] {
			out.Repositories = append(out.Repositories, r.Path)
		}
	}
	if next != nil {
		out.NextPage = cursor("repository name", next)
	}
	return out, nil
}
