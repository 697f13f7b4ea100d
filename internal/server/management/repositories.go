package management

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/catalog/browse"
	"github.com/purser-registry/purser/internal/catalog/trash"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/pullstats"
	"github.com/purser-registry/purser/internal/server"
)

func (a *API) quayRepositoryOf(path string, created time.Time, pushed *time.Time, visibility string, starred bool) api.QuayRepository {
	namespace, name, _ := strings.Cut(path, "/")
	return api.QuayRepository{
		Namespace: namespace, Name: name, IsPublic: a.server.Auth() == nil || visibility == catalog.Public, Kind: "image", State: "NORMAL", Repository: path,
		CreatedAt: created, PushedAt: pushed, Visibility: visibility, IsStarred: starred,
	}
}

// repositoryQuery reads the parameters of a list of repositories.
func repositoryQuery(in *api.RepositoryQuery) (q browse.RepositoryQuery, err error) {
	if len(in.Names) > 0 {
		return q, checkNames(in)
	}
	if q.NameFilter, err = nameFilter(in.NameFilter); err != nil {
		return q, err
	}
	if q.Namespace = in.Namespace; in.Namespace != "" {
		if err := checkNamespace("namespace", in.Namespace); err != nil {
			return q, err
		}
	}
	sort, descending := strings.CutPrefix(in.Sort, "-")
	q.ByCreation, q.Descending, q.Limit = sort == "created", descending, min(in.Limit, 100)
	q.Visibility, q.Starred = in.Visibility, in.Starred
	after := new(browse.RepositoryPlace)
	given, err := parseCursor(in.NextPage, "repository "+in.Sort, after)
	if given {
		q.After = after
	}
	return q, err
}

// repositories returns a page of repositories.
func (a *API) repositories(ctx context.Context, in *api.RepositoryQuery) (*api.RepositoryList, error) {
	q, err := repositoryQuery(in)
	if err != nil {
		return nil, err
	}
	viewer, err := a.server.Viewer(ctx)
	if err != nil {
		return nil, err
	}
	var found []browse.RepositoryInfo
	var next *browse.RepositoryPlace
	if len(in.Names) > 0 {
		found, err = a.browser.NamedRepositories(ctx, viewer, in.Names)
	} else {
		found, next, err = a.browser.Repositories(ctx, viewer, q)
	}
	if err != nil {
		return nil, err
	}
	out := &api.RepositoryList{Repositories: make([]api.ListedRepository, 0, len(found))}
	for _, r := range found {
		item := api.ListedRepository{QuayRepository: a.quayRepositoryOf(r.Path, r.CreatedAt, r.PushedAt, r.Visibility, r.Starred), Tags: r.Tags}
		if in.LastModified && r.PushedAt != nil {
			seconds := r.PushedAt.Unix()
			item.LastModified = &seconds
		}
		out.Repositories = append(out.Repositories, item)
	}
	if in.Statistics {
		if err := a.addStatistics(ctx, found, out.Repositories); err != nil {
			return nil, err
		}
	}
	if next != nil {
		out.NextPage = cursor("repository "+in.Sort, next)
	}
	return out, nil
}

// pathOf returns the full name of a new repository.
func pathOf(b api.NewRepository) (string, error) {
	path := b.Repository
	if b.Namespace != "" {
		if err := checkNamespace("namespace", b.Namespace); err != nil {
			return "", err
		}
	}
	switch {
	case b.Name != nil:
		if whole := strings.TrimSuffix(b.Namespace+"/"+*b.Name, "/"); path != whole {
			return "", server.Refusal(http.StatusBadRequest, "repository: with the member name it must be the whole name, %q, not %q", whole, path)
		}
	case b.Namespace != "":
		path = b.Namespace + "/" + path
	}
	if err := oci.ValidateName(path); err != nil {
		return "", server.Refusal(http.StatusBadRequest, "repository: %v", err)
	}
	return path, nil
}

// create creates a repository with what its body says. It returns warnings for the client.
func (a *API) create(ctx context.Context, path string, body api.NewRepository) (warnings []string, err error) {
	control := a.server.Auth()
	if control != nil && body.Visibility == catalog.Public && !control.PublicByDefault() {
		// The right to push isn't enough to make a repository public.
		if err := a.server.Authorize(ctx, auth.Administer, auth.OfRepository(path)); err != nil {
			return nil, err
		}
	}
	if err := a.catalog.CreateRepository(ctx, path); err != nil {
		return nil, err
	}
	// Without access control public is the default, and isn't stored: such a repository must
	// not stay public when access control is switched on.
	if body.Visibility == catalog.Private || body.Visibility != "" && control != nil {
		warnings, err = a.setVisibility(ctx, path, body.Visibility)
	}
	a.server.Forget() // whether the repository is public
	if err == nil && body.Starred {
		err = a.catalog.SetStar(ctx, server.Observed(ctx).Principal.ID, path, true)
	}
	return warnings, err
}

// createdRepository is the answer to the creation of a repository.
type createdRepository struct {
	Warning []string `header:"Warning" doc:"Without access control: a warning that private has no effect, as 299 - \"…\""`
	Body    api.CreatedRepository
}

// addRepositories binds the operations on repositories.
func (a *API) addRepositories() {
	serve(a, api.ListRepositories, a.repositories)
	serveAnswer(a, api.CreateRepository, func(ctx context.Context, in *api.RepositoryNew) (*createdRepository, error) {
		path, err := pathOf(in.Body)
		if err != nil {
			return nil, err
		}
		if err := a.server.Authorize(ctx, auth.Push, auth.OfRepository(path)); err != nil {
			return nil, err
		}
		namespace, name, _ := strings.Cut(path, "/")
		out := &createdRepository{Body: api.CreatedRepository{Namespace: namespace, Name: name, Kind: "image"}}
		out.Warning, err = a.create(ctx, path, in.Body)
		return out, err
	}, func(out *createdRepository) *api.CreatedRepository { return &out.Body })
	serve(a, api.GetRepository, func(ctx context.Context, in *api.RepositorySizes) (*api.DescribedRepository, error) {
		viewer, err := a.server.Viewer(ctx)
		if err != nil {
			return nil, err
		}
		d, err := a.browser.DescribeRepository(ctx, viewer, in.Repository, in.Links)
		if err != nil {
			return nil, err
		}
		return &api.DescribedRepository{
			QuayRepository: a.quayRepositoryOf(d.Path, d.CreatedAt, d.PushedAt, d.Visibility, d.Starred),
			Tags:           d.Tags, Manifests: d.Manifests, Size: d.Size,
		}, nil
	})
	serveDeletion(a, api.DeleteRepository, func(ctx context.Context, in *api.RepositoryDeletion) (string, error) {
		if namespace, _, _ := strings.Cut(in.Repository, "/"); in.Purge {
			if err := a.server.Authorize(ctx, auth.Administer, auth.OfNamespace(namespace)); err != nil {
				return "", err
			}
		}
		return a.trash.RemoveRepository(ctx, in.Repository, deletionOptions(in.Override, in.Purge)...)
	})
	a.addVisibility()
}

// serveDeletion binds an operation that deletes a repository or a namespace. `remove` returns the id of
// what was deleted in the trash.
func serveDeletion[I any](a *API, op api.Operation[I, api.Deleted], remove func(ctx context.Context, in *I) (string, error)) {
	serveAnswer(a, op, func(ctx context.Context, in *I) (*api.Deleted, error) {
		defer a.server.Forget() // roles and the visibility, which another one of this name won't have
		id, err := remove(ctx, in)
		return &api.Deleted{Trash: id}, err
	}, func(out *api.Deleted) *api.Deleted { return out })
}

// deletionOptions returns the options of a deletion that overrides holds, or that is for good.
func deletionOptions(override, purge bool) (options []trash.Option) {
	if override {
		options = append(options, trash.OverrideHolds)
	}
	if purge {
		options = append(options, trash.PurgeAtOnce)
	}
	return options
}

// overridingHolds returns the option that deletes a tag or manifest that a reporter holds, if override
// is set.
func overridingHolds(override bool) []catalog.TagOption {
	if override {
		return []catalog.TagOption{catalog.OverrideHolds}
	}
	return nil
}

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
func (a *API) addStatistics(ctx context.Context, found []browse.RepositoryInfo, list []api.ListedRepository) error {
	if len(found) == 0 {
		return nil
	}
	ids := make([]int64, len(found))
	for i, r := range found {
		ids[i] = r.ID
	}
	sizes, err := a.browser.SizesOfRepositories(ctx, ids)
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
