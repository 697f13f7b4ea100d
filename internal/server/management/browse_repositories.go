package management

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server"
)

// QuayRepository is a repository in Quay's format. It is exported because huma makes JSON
// schemas only of exported types.
type QuayRepository struct {
	Namespace   string  `json:"namespace" doc:"The first part of its name" example:"library"`
	Name        string  `json:"name" doc:"The name after the namespace; empty if there is nothing more" example:"alpine"`
	Description *string `json:"description" doc:"Always null"`
	IsPublic    bool    `json:"is_public" doc:"Whether everybody may pull: true without access control, whatever visibility says"`
	Visibility  string  `json:"visibility" enum:"public,private" doc:"The visibility that was set, or the registry's default. It has no effect without access control"`
	IsStarred   bool    `json:"is_starred" doc:"Whether the account of the request has given the repository a star. All requests without an account share one star"`
	Kind        string  `json:"kind" enum:"image"`
	State       string  `json:"state" enum:"NORMAL"`
	Repository  string  `json:"repository" doc:"The repository's whole name" example:"library/alpine"`
	// Purser's additional members.
	CreatedAt time.Time  `json:"created_at"`
	PushedAt  *time.Time `json:"pushed_at" doc:"When an existing tag was last made, moved or pushed again; null: there is no tag"`
}

func (a *API) quayRepositoryOf(path string, created time.Time, pushed *time.Time, visibility string, starred bool) QuayRepository {
	namespace, name, _ := strings.Cut(path, "/")
	return QuayRepository{
		Namespace: namespace, Name: name, IsPublic: a.server.Auth() == nil || visibility == catalog.Public, Kind: "image", State: "NORMAL", Repository: path,
		CreatedAt: created, PushedAt: pushed, Visibility: visibility, IsStarred: starred,
	}
}

// listedRepository is a repository in a list.
type listedRepository struct {
	QuayRepository
	LastModified *int64        `json:"last_modified,omitempty" doc:"pushed_at in seconds since 1970, if it was asked for"`
	Tags         catalog.Count `json:"tags" doc:"Counted up to 1000"`
	RepositoryStatistics
}

// describedRepository is the answer about a single repository.
type describedRepository struct {
	QuayRepository
	Tags      int64        `json:"tags_count"`
	Manifests int64        `json:"manifests_count"`
	Size      catalog.Size `json:"size" doc:"Of more than size_links blobs only the first are counted, and exact is false"`
}

// SizeLinks bounds the work for the size of a repository or a namespace.
type SizeLinks struct {
	Links int `query:"size_links" minimum:"1" maximum:"50000" default:"50000" doc:"How many links to blobs are read at most for the size"`
}

type repositoryListInput struct {
	NameFilter
	Names        []string `query:"names" maxItems:"100" doc:"Only these repositories, in this order, with commas between them. Those that don't exist, or from which one may not pull, are left out. Other filters can't be given with it" example:"library/alpine"`
	Statistics   bool     `query:"statistics" doc:"Return size, last_pulled_at and recent_pulls"`
	Namespace    string   `query:"namespace" doc:"Only repositories of this namespace" example:"library"`
	Sort         string   `query:"sort" enum:"name,-name,created,-created" default:"name" doc:"The order; with - in front it is reversed"`
	Limit        int      `query:"limit" minimum:"1" default:"50" doc:"Most entries of a page. More than 100 counts as 100"`
	LastModified bool     `query:"last_modified" doc:"Return last_modified"`
	Public       bool     `query:"public" doc:"Quay's clients send it; all repositories that one may see are listed anyway"`
	Kind         string   `query:"repo_kind" enum:"image" default:"image" doc:"There is one kind"`
	Visibility   string   `query:"visibility" enum:"public,private" doc:"Only repositories with this visibility. A page examines 20,000 names at most"`
	Starred      bool     `query:"starred" doc:"Only repositories with a star. A page examines 20,000 names at most"`
}

func (in *repositoryListInput) query() (q catalog.RepositoryQuery, err error) {
	if len(in.Names) > 0 {
		return q, in.checkNames()
	}
	if q.NameFilter, err = in.filter(); err != nil {
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
	after := new(catalog.RepositoryPlace)
	given, err := parseCursor(in.NextPage, "repository "+in.Sort, after)
	if given {
		q.After = after
	}
	return q, err
}

type repositoryList struct {
	Repositories []listedRepository `json:"repositories" nullable:"false"`
	NextPage     string             `json:"next_page,omitempty" doc:"Where the next page begins; missing on the last page"`
}

// repositories returns a page of repositories.
func (a *API) repositories(ctx context.Context, in *repositoryListInput) (out repositoryList, err error) {
	q, err := in.query()
	if err != nil {
		return out, err
	}
	viewer, err := a.server.Viewer(ctx)
	if err != nil {
		return out, err
	}
	var found []catalog.RepositoryInfo
	var next *catalog.RepositoryPlace
	if len(in.Names) > 0 {
		found, err = a.catalog.NamedRepositories(ctx, viewer, in.Names)
	} else {
		found, next, err = a.catalog.BrowseRepositories(ctx, viewer, q)
	}
	if err != nil {
		return out, err
	}
	out.Repositories = make([]listedRepository, 0, len(found))
	for _, r := range found {
		item := listedRepository{QuayRepository: a.quayRepositoryOf(r.Path, r.CreatedAt, r.PushedAt, r.Visibility, r.Starred), Tags: r.Tags}
		if in.LastModified && r.PushedAt != nil {
			seconds := r.PushedAt.Unix()
			item.LastModified = &seconds
		}
		out.Repositories = append(out.Repositories, item)
	}
	if in.Statistics {
		if err := a.addStatistics(ctx, found, out.Repositories); err != nil {
			return out, err
		}
	}
	if next != nil {
		out.NextPage = cursor("repository "+in.Sort, next)
	}
	return out, nil
}

func (a *API) addRepositoryList() {
	type output struct{ Body repositoryList }
	add(a, auth.List, huma.Operation{
		OperationID: "listRepos", Method: http.MethodGet, Path: "/repository", Tags: []string{"repository"},
		Summary: "List repositories", Errors: []int{http.StatusNotFound},
		Description: "Lists the repositories of a namespace, or all, from which one may pull. Tags are counted up to 1000 each; exact says whether that is all. " +
			"With statistics=true it adds up the blobs of each repository, as far as there are few, and says how often and when it was pulled.",
	}, func(ctx context.Context, in *repositoryListInput) (*output, error) {
		out, err := a.repositories(ctx, in)
		return &output{out}, err
	})
}

// newRepository is the body of a request to create a repository.
type newRepository struct {
	Repository  string `json:"repository" minLength:"1" maxLength:"255" doc:"Its name below the namespace, or its whole name without one" example:"alpine"`
	Namespace   string `json:"namespace,omitempty" maxLength:"255" example:"library"`
	Visibility  string `json:"visibility,omitempty" enum:"public,private" doc:"Default: the registry's, which is public without access control. public needs the access admin if it isn't the default. private has no effect without access control"`
	Starred     bool   `json:"starred,omitempty" doc:"True: the repository gets a star"`
	Description string `json:"description,omitempty" doc:"Quay's clients send it; the registry ignores it"`
	Kind        string `json:"repo_kind,omitempty" enum:"image"`
	// Name is set if a client sends back a repository as it read it from this API. In this case
	// Repository must be the whole name, with the namespace.
	Name *string `json:"name,omitempty" doc:"For a client that sends a repository as it read it. Then repository must be the whole name"`
}

// TransformSchema adds the read-only members of a repository.
func (newRepository) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return api.ReadOnly(s, "is_public", "is_starred", "kind", "state", "created_at", "pushed_at", "last_modified", "tags", "tags_count", "manifests_count", "size", "last_pulled_at", "recent_pulls")
}

// path returns the full name of the repository.
func (b newRepository) path() (string, error) {
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
func (a *API) create(ctx context.Context, path string, body newRepository) (warnings []string, err error) {
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

func (a *API) addRepository() {
	type createInput struct{ Body newRepository }
	type createdRepository struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
		Kind      string `json:"kind" enum:"image"`
	}
	type createOutput struct {
		Warning []string `header:"Warning" doc:"Without access control: a warning that private has no effect, as 299 - \"…\""`
		Body    createdRepository
	}
	add(a, auth.Ping, huma.Operation{
		OperationID: "createRepo", Method: http.MethodPost, Path: "/repository", Tags: []string{"repository"}, Extensions: checked(auth.Push),
		Summary:       "Create a repository",
		Description:   "Creates an empty repository. The first push creates its repository too; create one here to give it policies before.",
		DefaultStatus: http.StatusCreated,
		Errors:        []int{http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType},
	}, func(ctx context.Context, in *createInput) (*createOutput, error) {
		path, err := in.Body.path()
		if err != nil {
			return nil, err
		}
		if err := a.server.Authorize(ctx, auth.Push, auth.OfRepository(path)); err != nil {
			return nil, err
		}
		namespace, name, _ := strings.Cut(path, "/")
		out := &createOutput{Body: createdRepository{namespace, name, "image"}}
		out.Warning, err = a.create(ctx, path, in.Body)
		return out, err
	})
	type input struct {
		Repository string `path:"repository" doc:"Name of the repository" example:"library/alpine"`
		SizeLinks
	}
	type output struct{ Body describedRepository }
	add(a, auth.Pull, huma.Operation{
		OperationID: "getRepo", Method: http.MethodGet, Path: "/repository/{repository}", Tags: []string{"repository"},
		Summary: "Describe a repository", Errors: []int{http.StatusNotFound},
		Description: "size.bytes is the size of all its blobs, which other repositories may have too; size.own_bytes is the size of " +
			"those that no other repository has: the space that deleting the repository frees. It is absent for a client that may not pull from every " +
			"repository of the registry.",
	}, func(ctx context.Context, in *input) (*output, error) {
		viewer, err := a.server.Viewer(ctx)
		if err != nil {
			return nil, err
		}
		d, err := a.catalog.DescribeRepository(ctx, viewer, in.Repository, in.Links)
		if err != nil {
			return nil, err
		}
		return &output{describedRepository{
			QuayRepository: a.quayRepositoryOf(d.Path, d.CreatedAt, d.PushedAt, d.Visibility, d.Starred),
			Tags:           d.Tags, Manifests: d.Manifests, Size: d.Size,
		}}, nil
	})
}
