package management

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server"
)

// cursor encodes a position in a list (`place`) as text, which an answer gives as next_page.
// The text also contains the list's name and order (`of`), so that parseCursor can refuse a
// cursor of another list.
func cursor(of string, place any) string {
	b, err := json.Marshal(struct {
		Of    string `json:"o"`
		Place any    `json:"p"`
	}{of, place})
	if err != nil {
		return "" // can't fail: positions consist of strings and numbers
	}
	return base64.RawURLEncoding.EncodeToString(b)
}

// parseCursor decodes the cursor `text` into `place`. It returns false for an empty text, by
// which a client asks for the first page. It returns an error if the text isn't a cursor, or is
// a cursor of a list whose name and order aren't `of`.
func parseCursor(text, of string, place any) (bool, error) {
	if text == "" {
		return false, nil
	}
	var c struct {
		Of    string          `json:"o"`
		Place json.RawMessage `json:"p"`
	}
	b, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || json.Unmarshal(b, &c) != nil {
		return false, badQuery("next_page", "%.100q isn't a cursor that a list has given: begin again without one", text)
	}
	if c.Of != of {
		return false, badQuery("next_page", "the cursor is of another list or another order: begin again without one")
	}
	if json.Unmarshal(c.Place, place) != nil || !utf8.Valid(c.Place) || strings.Contains(string(c.Place), `\u0000`) {
		return false, badQuery("next_page", "%.100q isn't a cursor that a list has given: begin again without one", text)
	}
	return true, nil
}

// NameFilter has the query parameters by which clients filter a list by names. It is
// exported because huma finds parameters only in exported types.
type NameFilter struct {
	Prefix   string `query:"prefix" maxLength:"255" doc:"Only names that begin with this"`
	Contains string `query:"contains" maxLength:"255" doc:"Only names that contain this. A page examines 20,000 names at most, so it may be short, even empty, and have a next one"`
	NextPage string `query:"next_page" doc:"The next_page of the page before"`
}

// filter returns the filter for package catalog. It returns an error for the client if a
// parameter contains NUL or invalid UTF-8, which PostgreSQL can't store.
func (f NameFilter) filter() (catalog.NameFilter, error) {
	for name, value := range map[string]string{"prefix": f.Prefix, "contains": f.Contains} {
		if err := isText(name, value); err != nil {
			return catalog.NameFilter{}, err
		}
	}
	return catalog.NameFilter{Prefix: f.Prefix, Contains: f.Contains}, nil
}

func isText(name, value string) error {
	if !utf8.ValidString(value) || strings.ContainsRune(value, 0) {
		return badQuery(name, "%q is not text", value)
	}
	return nil
}

// optional returns nil for the zero time.
func optional(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

func checkNamespace(field, name string) error {
	if err := oci.ValidateName(name); err != nil {
		return server.Refusal(http.StatusBadRequest, "%s: %v", field, err)
	}
	if strings.Contains(name, "/") {
		return server.Refusal(http.StatusBadRequest, "%s: %q has a slash: a namespace is the first part of a repository's name", field, name)
	}
	return nil
}

// addNamespaces adds the operations on namespaces, which Quay calls organizations.
func (a *API) addNamespaces() {
	type listInput struct {
		NameFilter
		Limit int `query:"limit" minimum:"1" default:"50" doc:"Most entries of a page. More than 100 counts as 100"`
	}
	type namespaceList struct {
		Namespaces []catalog.NamespaceInfo `json:"namespaces" nullable:"false"`
		NextPage   string                  `json:"next_page,omitempty" doc:"Where the next page begins; missing on the last page"`
	}
	type listOutput struct{ Body namespaceList }
	add(a, auth.List, huma.Operation{
		OperationID: "listNamespaces", Method: http.MethodGet, Path: "/organization", Tags: []string{"namespace"},
		Summary: "List namespaces",
		Description: "Lists the namespaces in which one has a role or may pull from a repository, in the order of their names. The repositories from " +
			"which one may pull are counted up to 1000 each; exact says whether that is all.",
	}, func(ctx context.Context, in *listInput) (*listOutput, error) {
		f, err := in.filter()
		if err != nil {
			return nil, err
		}
		var after string
		if _, err := parseCursor(in.NextPage, "namespace", &after); err != nil {
			return nil, err
		}
		viewer, err := a.server.Viewer(ctx)
		if err != nil {
			return nil, err
		}
		found, next, err := a.catalog.Namespaces(ctx, viewer, f, after, min(in.Limit, 100))
		if err != nil {
			return nil, err
		}
		out := namespaceList{Namespaces: found}
		if next != "" {
			out.NextPage = cursor("namespace", next)
		}
		return &listOutput{out}, nil
	})
	a.addNamespace()
}

// newNamespace is the body of a request to create a namespace.
type newNamespace struct {
	Name  string `json:"name" minLength:"1" maxLength:"255" doc:"The first part of its repositories' names" example:"library"`
	Email string `json:"email,omitempty" doc:"Quay's clients send it; the registry ignores it"`
}

// TransformSchema adds the read-only members of a namespace.
func (newNamespace) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return api.ReadOnly(s, "created_at", "repositories", "size", "is_admin", "teams", "ordered_teams")
}

func (a *API) addNamespace() {
	type createInput struct{ Body newNamespace }
	type createOutput struct{ Body string }
	add(a, auth.Operate, huma.Operation{
		OperationID: "createNamespace", Method: http.MethodPost, Path: "/organization", Tags: []string{"namespace"},
		Summary:       "Create a namespace",
		Description:   "The first push below a name creates its namespace too; create one here to give it policies before.",
		DefaultStatus: http.StatusCreated,
		Errors:        []int{http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType},
	}, func(ctx context.Context, in *createInput) (*createOutput, error) {
		if err := checkNamespace("name", in.Body.Name); err != nil {
			return nil, err
		}
		return &createOutput{"Created"}, a.catalog.CreateNamespace(ctx, in.Body.Name)
	})
	type input struct {
		Namespace string `path:"orgname" doc:"Name of the namespace" example:"library"`
		SizeLinks
	}
	type output struct{ Body namespaceDetails }
	add(a, auth.Pull, huma.Operation{
		OperationID: "getNamespace", Method: http.MethodGet, Path: "/organization/{orgname}", Tags: []string{"namespace"},
		Summary: "Describe a namespace",
		Description: "size.bytes is the size of all blobs in its repositories from which one may pull, each counted once; size.own_bytes is the size of those " +
			"that no other namespace has, and is absent for a client that may not pull from every repository of the registry. Of more than size_links links to blobs only the first are counted, and size.exact is false.",
		Errors: []int{http.StatusNotFound},
	}, func(ctx context.Context, in *input) (*output, error) {
		if err := checkNamespace("orgname", in.Namespace); err != nil {
			return nil, err
		}
		viewer, err := a.server.Viewer(ctx)
		if err != nil {
			return nil, err
		}
		d, err := a.catalog.DescribeNamespace(ctx, viewer, in.Namespace, in.Links)
		if err != nil {
			return nil, err
		}
		out := namespaceDetails{NamespaceDetails: d}
		if a.opt.Accounts != nil && a.may(ctx, auth.Administer, auth.OfNamespace(in.Namespace)) {
			err = a.listTeams(ctx, &out)
		}
		return &output{out}, err
	})
}
