package management

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

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

// nameFilter returns the filter for package catalog. It returns an error for the client if a
// parameter contains NUL or invalid UTF-8, which PostgreSQL can't store.
func nameFilter(f api.NameFilter) (catalog.NameFilter, error) {
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

// addNamespaces binds the operations on namespaces.
func (a *API) addNamespaces() {
	serve(a, api.ListNamespaces, a.listNamespaces)
	serve(a, api.CreateNamespace, func(ctx context.Context, in *api.NamespaceNew) (*string, error) {
		if err := checkNamespace("name", in.Body.Name); err != nil {
			return nil, err
		}
		created := "Created"
		return &created, a.catalog.CreateNamespace(ctx, in.Body.Name)
	})
	serve(a, api.GetNamespace, func(ctx context.Context, in *api.NamespaceSizes) (*api.NamespaceDetails, error) {
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
		out := &api.NamespaceDetails{NamespaceDetails: d}
		if a.opt.Accounts != nil && a.may(ctx, auth.Administer, auth.OfNamespace(in.Namespace)) {
			err = a.listTeams(ctx, out)
		}
		return out, err
	})
	serveDeletion(a, api.DeleteNamespace, func(ctx context.Context, in *api.NamespaceDeletion) (string, error) {
		return a.catalog.RemoveNamespace(ctx, in.Namespace, deletionOptions(in.Override, in.Purge)...)
	})
}

func (a *API) listNamespaces(ctx context.Context, in *api.NamespaceQuery) (*api.NamespaceList, error) {
	f, err := nameFilter(in.NameFilter)
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
	out := &api.NamespaceList{Namespaces: found}
	if next != "" {
		out.NextPage = cursor("namespace", next)
	}
	return out, nil
}
