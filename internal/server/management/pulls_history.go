package management

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/pullstats"
	"github.com/purser-registry/purser/internal/server"
)

// HistoryDays is the query parameter by which clients choose the days of a history of pulls.
type HistoryDays struct {
	Days int `query:"days" minimum:"1" maximum:"3660" default:"30" doc:"The last days that are shown, today included"`
}

type historyOutput struct{ Body api.PullHistory }

const historyDelay = "The history follows the counts, which are updated within some minutes. Days are in UTC. Where pulls aren't counted the answer is 404."

// pullHistory makes the answer for a history that `read` reads. Its error is meant for the client.
func (a *API) pullHistory(ctx context.Context, read func(pulls *pullstats.Reader) (pullstats.History, error)) (*historyOutput, error) {
	h, err := read(a.opt.Pulls)
	if err != nil {
		return nil, a.pullsFailed(ctx, err)
	}
	recorded, err := a.opt.Pulls.Since(ctx)
	if err != nil {
		return nil, a.pullsFailed(ctx, err)
	}
	out := api.PullHistory{Since: date(h.Since), Days: make([]api.PullDay, len(h.Days)), Total: h.Total, RecordedSince: optional(recorded)}
	for i, d := range h.Days {
		out.Days[i] = api.PullDay{Day: d.Day.Format(time.DateOnly), Pulls: d.Pulls}
	}
	return &historyOutput{out}, nil
}

// date returns nil for the zero time.
func date(t time.Time) *string {
	if t.IsZero() {
		return nil
	}
	text := t.Format(time.DateOnly)
	return &text
}

func (a *API) addPullHistory() {
	a.addHistoryOfRepository()
	a.addHistoryOfNamespace()
	a.addHistoryOfUser()
	a.addTopRepositories()
	a.addTopTags()
	a.addUnpulled()
}

func (a *API) addHistoryOfRepository() {
	type repositoryInput struct {
		Repository string `path:"repository" doc:"Name of the repository" example:"library/alpine"`
		HistoryDays
	}
	add(a, auth.Pull, huma.Operation{
		OperationID: "getRepositoryPullHistory", Method: http.MethodGet, Path: "/repository/{repository}/pull_statistics/history",
		Tags: []string{"pullstatistics"}, Summary: "Get how often a repository was pulled on each day",
		Description: "Pulls of deleted tags and manifests are included. " + historyDelay, Errors: []int{http.StatusNotFound},
	}, func(ctx context.Context, in *repositoryInput) (*historyOutput, error) {
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
	type tagInput struct {
		TagInput
		HistoryDays
	}
	add(a, auth.Pull, huma.Operation{
		OperationID: "getTagPullHistory", Method: http.MethodGet, Path: "/repository/{repository}/tag/{tag}/pull_statistics/history",
		Tags: []string{"pullstatistics"}, Summary: "Get how often a tag was pulled on each day", Description: historyDelay,
		Errors: []int{http.StatusNotFound},
	}, func(ctx context.Context, in *tagInput) (*historyOutput, error) {
		repository, _, err := a.pulledTag(ctx, in.Repository, in.Tag)
		if err != nil {
			return nil, err
		}
		return a.pullHistory(ctx, func(pulls *pullstats.Reader) (pullstats.History, error) {
			return pulls.TagHistory(ctx, repository, in.Tag, in.Days)
		})
	})
	type manifestInput struct {
		Repository string     `path:"repository" doc:"Name of the repository" example:"library/alpine"`
		Digest     oci.Digest `path:"digest" doc:"Digest of the manifest"`
		HistoryDays
	}
	add(a, auth.Pull, huma.Operation{
		OperationID: "getManifestPullHistory", Method: http.MethodGet, Path: "/repository/{repository}/manifest/{digest}/pull_statistics/history",
		Tags: []string{"pullstatistics"}, Summary: "Get how often a manifest was pulled on each day",
		Description: "By any tag or by digest. " + historyDelay, Errors: []int{http.StatusNotFound},
	}, func(ctx context.Context, in *manifestInput) (*historyOutput, error) {
		repository, err := a.pulledManifest(ctx, in.Repository, in.Digest)
		if err != nil {
			return nil, err
		}
		return a.pullHistory(ctx, func(pulls *pullstats.Reader) (pullstats.History, error) {
			return pulls.ManifestHistory(ctx, repository, in.Digest, in.Days)
		})
	})
}

func (a *API) addHistoryOfNamespace() {
	type namespaceInput struct {
		Namespace string `path:"orgname" doc:"Name of the namespace" example:"library"`
		HistoryDays
	}
	add(a, auth.Pull, huma.Operation{
		OperationID: "getNamespacePullHistory", Method: http.MethodGet, Path: "/organization/{orgname}/pull_statistics/history",
		Tags: []string{"pullstatistics"}, Summary: "Get how often a namespace's repositories were pulled on each day",
		Description: "Pulls of deleted repositories are included. It needs a role in the whole namespace. " + historyDelay, Errors: []int{http.StatusNotFound},
	}, func(ctx context.Context, in *namespaceInput) (*historyOutput, error) {
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
	add(a, auth.Operate, huma.Operation{
		OperationID: "getPullHistory", Method: http.MethodGet, Path: "/pull_statistics/history",
		Tags: []string{"pullstatistics"}, Summary: "Get how often the registry's repositories were pulled on each day",
		Description: "Pulls of deleted repositories are included. " + historyDelay, Errors: []int{http.StatusNotFound},
	}, func(ctx context.Context, in *HistoryDays) (*historyOutput, error) {
		if err := a.pullsOff(); err != nil {
			return nil, err
		}
		return a.pullHistory(ctx, func(pulls *pullstats.Reader) (pullstats.History, error) { return pulls.RegistryHistory(ctx, in.Days) })
	})
}

// addHistoryOfUser adds the history of what is the client's: a public repository isn't, although
// everybody may read it. auth.LoggedIn keeps credentials out that are limited to some repositories: the
// sum of a namespace has others in it.
func (a *API) addHistoryOfUser() {
	add(a, auth.LoggedIn, huma.Operation{
		OperationID: "getUserPullHistory", Method: http.MethodGet, Path: "/user/pull_statistics/history",
		Tags: []string{"pullstatistics"}, Summary: "Get how often the repositories of the request's account were pulled on each day",
		Description: "These are the namespaces and the repositories in which the account has a role; for an account that may read all repositories, those of the registry. " +
			"Pulls of deleted repositories of these namespaces are included. It isn't for limited robots and tokens. " + historyDelay,
		Errors: []int{http.StatusNotFound},
	}, func(ctx context.Context, in *HistoryDays) (*historyOutput, error) {
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
	return a.catalog.NamespaceID(ctx, viewer, name)
}

// topFailed returns the error for a client whose top list couldn't be made.
func (a *API) topFailed(ctx context.Context, err error) error {
	if errors.Is(err, pullstats.ErrTooMuchHistory) {
		return server.Refusal(http.StatusConflict, "%v: ask for fewer days, or for one namespace", err)
	}
	return a.pullsFailed(ctx, err)
}

// TopLimit is the query parameter by which clients choose the length of a top list.
type TopLimit struct {
	Limit int `query:"limit" minimum:"1" default:"10" doc:"Most entries. More than 1000 counts as 1000"`
}

func (a *API) addTopRepositories() {
	type input struct {
		HistoryDays
		TopLimit
		Namespace string `query:"namespace" doc:"Only repositories of this namespace" example:"library"`
	}
	type output struct{ Body api.TopRepositories }
	add(a, auth.List, huma.Operation{
		OperationID: "listTopRepositories", Method: http.MethodGet, Path: "/pull_statistics/top",
		Tags: []string{"pullstatistics"}, Summary: "List the repositories that were pulled most", Errors: []int{http.StatusNotFound, http.StatusConflict},
		Description: "Lists repositories from which one may pull. If more than 1,000,000 pairs of a repository and a day had to be read, the answer is 409. " + historyDelay,
	}, func(ctx context.Context, in *input) (*output, error) {
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
		out := api.TopRepositories{Since: date(top.Since), All: top.All}
		out.Repositories, err = a.shownRepositories(ctx, top.List, min(in.Limit, 1000))
		return &output{out}, err
	})
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
		paths, err := a.catalog.ReadablePaths(ctx, viewer, ids)
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

func (a *API) addTopTags() {
	type input struct {
		Repository string `path:"repository" doc:"Name of the repository" example:"library/alpine"`
		HistoryDays
		TopLimit
	}
	type output struct{ Body api.TopTags }
	add(a, auth.Pull, huma.Operation{
		OperationID: "listTopTags", Method: http.MethodGet, Path: "/repository/{repository}/pull_statistics/top",
		Tags: []string{"pullstatistics"}, Summary: "List the tags of a repository that were pulled most", Errors: []int{http.StatusNotFound, http.StatusConflict},
		Description: "Deleted tags are left out. If more than 1,000,000 pairs of a tag and a day had to be read, the answer is 409. " + historyDelay,
	}, func(ctx context.Context, in *input) (*output, error) {
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
		out := api.TopTags{Since: date(top.Since), All: top.All}
		out.Tags, err = a.shownTags(ctx, in.Repository, here.Repository, top.List, min(in.Limit, 1000))
		return &output{out}, err
	})
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

func (a *API) addUnpulled() {
	type input struct {
		HistoryDays
		Namespace string `query:"namespace" doc:"Only repositories of this namespace" example:"library"`
		Limit     int    `query:"limit" minimum:"1" default:"100" doc:"Repositories that a page examines. More than 100 counts as 100"`
		NextPage  string `query:"next_page" doc:"Where the page begins: next_page of the page before"`
	}
	type output struct{ Body api.UnpulledRepositories }
	add(a, auth.List, huma.Operation{
		OperationID: "listUnpulledRepositories", Method: http.MethodGet, Path: "/pull_statistics/unpulled",
		Tags: []string{"pullstatistics"}, Summary: "List the repositories that weren't pulled", Errors: []int{http.StatusNotFound},
		Description: "Lists repositories from which one may pull and nobody did in the last days, as far as there is a history. A page may be short, even empty, and have a next one. " +
			"A HEAD request is no pull, so such a repository may be in use. " + historyDelay,
	}, func(ctx context.Context, in *input) (*output, error) {
		if err := a.pullsOff(); err != nil {
			return nil, err
		}
		list := repositoryListInput{Namespace: in.Namespace, Sort: "name", Limit: in.Limit}
		list.NextPage = in.NextPage
		out, err := a.unpulled(ctx, &list, in.Days)
		return &output{out}, err
	})
}

// unpulled returns those repositories of a page of repositories that weren't pulled in the last
// `days` days.
func (a *API) unpulled(ctx context.Context, in *repositoryListInput, days int) (out api.UnpulledRepositories, err error) {
	q, err := in.query()
	if err != nil {
		return out, err
	}
	viewer, err := a.server.Viewer(ctx)
	if err != nil {
		return out, err
	}
	found, next, err := a.catalog.BrowseRepositories(ctx, viewer, q)
	if err != nil {
		return out, err
	}
	ids := make([]int64, len(found))
	for i, r := range found {
		ids[i] = r.ID
	}
	pulled, since, err := a.opt.Pulls.Pulled(ctx, ids, days)
	if err != nil {
		return out, a.pullsFailed(ctx, err)
	}
	out.Since, out.Repositories = date(since), []string{}
	for _, r := range found {
		if !pulled[r.ID] {
			out.Repositories = append(out.Repositories, r.Path)
		}
	}
	if next != nil {
		out.NextPage = cursor("repository "+in.Sort, next)
	}
	return out, nil
}
