package api

import (
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/catalog/browse"
)

// QuayRepository is a repository in Quay's format.
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

// ListedRepository is a repository in a list.
type ListedRepository struct {
	QuayRepository
	LastModified *int64        `json:"last_modified,omitempty" doc:"pushed_at in seconds since 1970, if it was asked for"`
	Tags         catalog.Count `json:"tags" doc:"Counted up to 1000"`
	RepositoryStatistics
}

// RepositoryStatistics is what a list has of a repository if a client asks for statistics.
type RepositoryStatistics struct {
	Size         *browse.Size `json:"size,omitempty" doc:"With statistics=true: the size of its blobs, which other repositories may have too. A page adds up about 10,000 blobs, the same number for each repository at most. Of a repository with more blobs only so many are counted, and exact is false"`
	LastPulledAt *time.Time   `json:"last_pulled_at,omitempty" doc:"With statistics=true: the last pull of a manifest that it has. Missing: there was none since pulls are counted, or recent_pulls is missing"`
	RecentPulls  *RecentPulls `json:"recent_pulls,omitempty" doc:"With statistics=true: how often it was pulled, pulls of deleted manifests included. Missing: pulls aren't counted, or the statistics can't be read now"`
}

// RepositoryList is a page of a list of repositories.
type RepositoryList struct {
	Repositories []ListedRepository `json:"repositories" nullable:"false"`
	NextPage     string             `json:"next_page,omitempty" doc:"Where the next page begins; missing on the last page"`
}

// Entries implements Page.
func (l RepositoryList) Entries() ([]ListedRepository, string) { return l.Repositories, l.NextPage }

// DescribedRepository is the answer about a single repository.
type DescribedRepository struct {
	QuayRepository
	Tags      int64       `json:"tags_count"`
	Manifests int64       `json:"manifests_count"`
	Size      browse.Size `json:"size" doc:"Of more than size_links blobs only the first are counted, and exact is false"`
}

// NewRepository is the body of a request to create a repository.
type NewRepository struct {
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
func (NewRepository) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return ReadOnly(s, "is_public", "is_starred", "kind", "state", "created_at", "pushed_at", "last_modified", "tags", "tags_count", "manifests_count", "size", "last_pulled_at", "recent_pulls")
}

// CreatedRepository is the answer to the creation of a repository.
type CreatedRepository struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Kind      string `json:"kind" enum:"image"`
}

// newVisibility is the body of a request to change a repository's visibility.
type newVisibility struct {
	_          struct{} `additionalProperties:"true"`
	Visibility string   `json:"visibility" enum:"public,private" doc:"private has no effect without access control"`
}

// QuaySuccess is an answer that says nothing more.
type QuaySuccess struct {
	Success bool `json:"success"`
}

// Deleted is the answer to the deletion of a repository or a namespace, which has no body.
type Deleted struct {
	Trash string `header:"Purser-Trash-Id" doc:"What it is called in the trash, from which it can be restored. Absent: it was deleted for good"`
}

// SizeLinks is the part of an input that bounds the work for the size of a repository or a namespace.
type SizeLinks struct {
	Links int `query:"size_links" minimum:"1" maximum:"50000" default:"50000" doc:"How many links to blobs are read at most for the size"`
}

// Inputs of the operations on repositories.
type (
	RepositoryQuery struct {
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
	RepositoryNew   struct{ Body NewRepository }
	RepositorySizes struct {
		InRepository
		SizeLinks
	}
	RepositoryDeletion struct {
		InRepository
		Override bool `query:"override_holds" doc:"Delete it even if something in it is deployed"`
		Purge    bool `query:"purge" doc:"Delete it for good, so that it can't be restored. Needs the access administer in the namespace"`
	}
	VisibilityChange struct {
		InRepository
		Body newVisibility
	}
)

// The operations on repositories.
var (
	ListRepositories = Operation[RepositoryQuery, RepositoryList]{
		ID: "listRepos", Method: http.MethodGet, Path: "/repository", Tag: "repository", Access: auth.List,
		Summary: "List repositories", Errors: []int{http.StatusNotFound},
		Description: "Lists the repositories of a namespace, or all, from which one may pull. Tags are counted up to 1000 each; exact says whether that is all. " +
			"With statistics=true it adds up the blobs of each repository, as far as there are few, and says how often and when it was pulled.",
	}
	CreateRepository = Operation[RepositoryNew, CreatedRepository]{
		ID: "createRepo", Method: http.MethodPost, Path: "/repository", Tag: "repository", Access: auth.Ping, Checks: auth.Push,
		Summary:     "Create a repository",
		Description: "Creates an empty repository. The first push creates its repository too; create one here to give it policies before.",
		Status:      http.StatusCreated, Errors: []int{http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType},
	}
	GetRepository = Operation[RepositorySizes, DescribedRepository]{
		ID: "getRepo", Method: http.MethodGet, Path: "/repository/{repository}", Tag: "repository", Access: auth.Pull,
		Summary: "Describe a repository", Errors: []int{http.StatusNotFound},
		Description: "size.bytes is the size of all its blobs, which other repositories may have too; size.own_bytes is the size of " +
			"those that no other repository has: the space that deleting the repository frees. It is absent for a client that may not pull from every " +
			"repository of the registry.",
	}
	DeleteRepository = Operation[RepositoryDeletion, Deleted]{
		ID: "deleteRepository", Method: http.MethodDelete, Path: "/repository/{repository}", Tag: "repository", Access: auth.Delete,
		Summary: "Delete a repository",
		Description: "Deletes a repository with all its tags and manifests, at once and whatever its size. For the time of the " +
			"setting trash.keep it can be restored from the trash. Then, or at once with purge, what it leaves " +
			"behind is removed in the background; garbage collection then frees its blobs. If a reporter holds a manifest of it: 409, " +
			"unless override_holds is given.",
		Status: http.StatusNoContent, Errors: []int{http.StatusNotFound, http.StatusConflict},
	}
	ChangeVisibility = Operation[VisibilityChange, QuaySuccess]{
		ID: "changeRepoVisibility", Method: http.MethodPost, Path: "/repository/{repository}/changevisibility", Tag: "repository", Access: auth.Administer,
		Summary: "Set whether everybody may pull from a repository",
		Description: "From a private repository only accounts with a role in it may pull. Without access control the value is only stored and " +
			"returned as visibility: everybody who reaches the registry may pull, and is_public says so.",
		Errors: []int{http.StatusNotFound, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType},
	}
)
