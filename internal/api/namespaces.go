package api

import (
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/catalog/browse"
)

// NamespaceList is a page of a list of namespaces.
type NamespaceList struct {
	Namespaces []browse.NamespaceInfo `json:"namespaces" nullable:"false"`
	NextPage   string                 `json:"next_page,omitempty" doc:"Where the next page begins; missing on the last page"`
}

// Entries implements Page.
func (l NamespaceList) Entries() ([]browse.NamespaceInfo, string) { return l.Namespaces, l.NextPage }

// NamespaceDetails is a namespace, for its administrators with its teams.
type NamespaceDetails struct {
	browse.NamespaceDetails
	IsAdmin      bool                `json:"is_admin,omitempty" doc:"Whether the client administers the namespace"`
	Teams        map[string]TeamView `json:"teams,omitempty" doc:"Its first 100 teams by their names, for its administrators"`
	OrderedTeams []string            `json:"ordered_teams,omitempty" maxItems:"100" doc:"The names of these teams in their order, for its administrators"`
	NextTeams    string              `json:"teams_next_page,omitempty" doc:"Where the list of teams (listOrganizationTeams) goes on; missing if these are all"`
}

// NewNamespace is the body of a request to create a namespace.
type NewNamespace struct {
	Name  string `json:"name" minLength:"1" maxLength:"255" doc:"The first part of its repositories' names" example:"library"`
	Email string `json:"email,omitempty" doc:"Quay's clients send it; the registry ignores it"`
}

// TransformSchema adds the read-only members of a namespace.
func (NewNamespace) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return ReadOnly(s, "created_at", "repositories", "size", "is_admin", "teams", "ordered_teams")
}

// Inputs of the operations on namespaces.
type (
	NamespaceQuery struct {
		NameFilter
		Statistics bool `query:"statistics" doc:"Return size: of what one may pull in each namespace. A page reads about 10,000 repositories and 10,000 links to blobs, the same number for each namespace. Of a namespace with more only so many are counted, and exact is false. If that takes longer than two seconds, size is absent"`
		Limit      int  `query:"limit" minimum:"1" default:"50" doc:"Most entries of a page. More than 100 counts as 100"`
	}
	NamespaceNew   struct{ Body NewNamespace }
	NamespaceSizes struct {
		InNamespace
		SizeLinks
	}
	NamespaceDeletion struct {
		Namespace string `path:"orgname" doc:"Name of the namespace: the first part of its repositories' names" example:"library"`
		Override  bool   `query:"override_holds" doc:"Delete it even if something in it is deployed"`
		Purge     bool   `query:"purge" doc:"Delete it for good, so that it can't be restored"`
	}
)

// Resource returns the namespace.
func (i NamespaceDeletion) Resource() auth.Resource { return auth.OfNamespace(i.Namespace) }

// The operations on namespaces, which Quay calls organizations.
var (
	ListNamespaces = Operation[NamespaceQuery, NamespaceList]{
		ID: "listNamespaces", Method: http.MethodGet, Path: "/organization", Tag: "namespace", Access: auth.List,
		Summary: "List namespaces",
		Description: "Lists the namespaces in which one has a role or may pull from a repository, in the order of their names. The repositories from " +
			"which one may pull are counted up to 1000 each; exact says whether that is all.",
	}
	CreateNamespace = Operation[NamespaceNew, string]{
		ID: "createNamespace", Method: http.MethodPost, Path: "/organization", Tag: "namespace", Access: auth.Operate,
		Summary:     "Create a namespace",
		Description: "The first push below a name creates its namespace too; create one here to give it policies before.",
		Status:      http.StatusCreated, Errors: []int{http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType},
	}
	GetNamespace = Operation[NamespaceSizes, NamespaceDetails]{
		ID: "getNamespace", Method: http.MethodGet, Path: "/organization/{orgname}", Tag: "namespace", Access: auth.Pull,
		Summary: "Describe a namespace",
		Description: "size.bytes is the size of all blobs in its repositories from which one may pull, each counted once; size.own_bytes is the size of those " +
			"that no other namespace has, and is absent for a client that may not pull from every repository of the registry. Of more than size_links links to blobs only the first are counted, and size.exact is false.",
		Errors: []int{http.StatusNotFound},
	}
	DeleteNamespace = Operation[NamespaceDeletion, Deleted]{
		ID: "deleteNamespace", Method: http.MethodDelete, Path: "/organization/{orgname}", Tag: "namespace", Access: auth.Administer,
		Summary: "Delete a namespace", Description: "Deletes a namespace with all its repositories, as deleteRepository does one.",
		Status: http.StatusNoContent, Errors: []int{http.StatusNotFound, http.StatusConflict},
	}
)
