package management

import (
	"context"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server"
)

// RestoreForm is the body of a request to restore something. It is exported because huma makes
// JSON schemas only of exported types.
type RestoreForm struct {
	As string `json:"as,omitempty" doc:"Another name than it had: of a repository, one in the same namespace" example:"library/alpine-old"`
}

// TrashItem has the path parameter that names something in the trash. It is exported because
// huma finds parameters only in exported types.
type TrashItem struct {
	ID string `path:"trash_id" doc:"Identifier in the trash: of the header Purser-Trash-Id, or of the list" example:"repository-17"`
}

func (a *API) addTrash() {
	tags := []string{"trash"}
	type trashListInput struct {
		Namespace string `query:"namespace" doc:"Only deleted namespaces of this name, and repositories of the namespace that has it now" example:"library"`
		Cursor    string `query:"cursor" doc:"Where to go on: next of the answer before"`
		Limit     int    `query:"limit" default:"100" minimum:"1" maximum:"500" doc:"Most items of a page"`
	}
	type trashListed struct {
		Body struct {
			Items []catalog.Trashed `json:"items" nullable:"false"`
			Next  string            `json:"next,omitempty" doc:"The cursor of the next page"`
		}
	}
	add(a, auth.Ping, huma.Operation{
		OperationID: "listTrash", Method: http.MethodGet, Path: "/trash", Tags: tags, Extensions: checked(auth.Administer),
		Summary: "List deleted repositories and namespaces that can be restored",
		Description: "Needs the access administer in the namespace; without one, the access operate. Who administered a deleted " +
			"namespace and has deleted it sees it too.",
		Errors: []int{http.StatusNotFound},
	}, func(ctx context.Context, in *trashListInput) (*trashListed, error) {
		list, next, err := a.listTrash(ctx, in.Namespace, in.Cursor, in.Limit)
		out := new(trashListed)
		out.Body.Items, out.Body.Next = list, next
		return out, err
	})
	type trashOutput struct{ Body catalog.Trashed }
	add(a, auth.Ping, huma.Operation{
		OperationID: "getTrash", Method: http.MethodGet, Path: "/trash/{trash_id}", Tags: tags, Extensions: checked(auth.Administer),
		Summary: "Get something in the trash, and what keeps it from being restored",
		Description: "Needs the access administer in the repository's namespace. For a namespace, it needs the access operate, " +
			"unless the client administered the namespace and has deleted it.",
		Errors: []int{http.StatusNotFound},
	}, func(ctx context.Context, in *TrashItem) (*trashOutput, error) {
		t, err := a.trashed(ctx, in.ID)
		return &trashOutput{t}, err
	})
	type trashRestoreInput struct {
		TrashItem
		Body RestoreForm
	}
	type trashRestored struct {
		Body struct {
			Name string `json:"name" doc:"The name that it has now"`
		}
	}
	add(a, auth.Ping, huma.Operation{
		OperationID: "restoreTrash", Method: http.MethodPost, Path: "/trash/{trash_id}/restore", Tags: tags, Extensions: checked(auth.Administer),
		Summary: "Restore a deleted repository or namespace",
		Description: "It comes back as it was, with its tags, policies, rules, rights, robots and statistics. If its name is in use " +
			"meanwhile, or its namespace is in the trash: 409. Needs the access of getTrash; to give a namespace another name than " +
			"it had, operate, as for a new namespace.",
		Errors: []int{http.StatusNotFound, http.StatusConflict, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType},
	}, func(ctx context.Context, in *trashRestoreInput) (*trashRestored, error) {
		t, err := a.trashed(ctx, in.ID)
		if err != nil {
			return nil, err
		}
		if err := a.checkRestoreName(ctx, t, in.Body.As); err != nil {
			return nil, err
		}
		defer a.server.Forget() // roles and the visibility that the name had meanwhile
		out := new(trashRestored)
		out.Body.Name, err = a.catalog.RestoreTrashed(ctx, in.ID, in.Body.As)
		return out, err
	})
	add(a, auth.Ping, huma.Operation{
		OperationID: "purgeTrash", Method: http.MethodPost, Path: "/trash/{trash_id}/purge", Tags: tags, Extensions: checked(auth.Administer),
		Summary:       "Delete something in the trash for good",
		Description:   "Needs the access of getTrash.",
		DefaultStatus: http.StatusNoContent, Errors: []int{http.StatusNotFound},
	}, func(ctx context.Context, in *TrashItem) (*struct{}, error) {
		if _, err := a.trashed(ctx, in.ID); err != nil {
			return nil, err
		}
		return nil, a.catalog.PurgeTrashed(ctx, in.ID)
	})
}

// checkRestoreName returns an error, with status 400, for a name that can't be a repository's or a
// namespace's. It returns DENIED for a namespace's new name from a client that may not create
// namespaces.
func (a *API) checkRestoreName(ctx context.Context, t catalog.Trashed, as string) error {
	switch {
	case as == "" || as == t.Name:
		return nil
	case oci.ValidateName(as) != nil || t.IsNamespace() && strings.Contains(as, "/"):
		return server.Refusal(http.StatusBadRequest, "as: %.80q can't be the name of a %s", as, t.Kind).WithDetail(map[string]string{"field": "as"})
	case t.IsNamespace():
		return a.server.Authorize(ctx, auth.Operate, auth.Registry)
	}
	return nil
}

// listTrash lists a page of what the client may restore.
func (a *API) listTrash(ctx context.Context, namespace, cursor string, limit int) ([]catalog.Trashed, string, error) {
	access, of := auth.Operate, auth.Registry
	if namespace != "" {
		access, of = auth.Administer, auth.OfNamespace(namespace)
	}
	refused := a.server.Authorize(ctx, access, of)
	if refused != nil && (namespace == "" || oci.CodeOf(refused) != oci.Denied) {
		return nil, "", refused
	}
	list, next, err := a.catalog.Trash(ctx, namespace, cursor, limit)
	if err != nil {
		return nil, "", err
	}
	shown := []catalog.Trashed{}
	for _, t := range list {
		may := refused == nil
		if t.IsNamespace() {
			if may, err = a.mayRestoreNamespace(ctx, t); err != nil {
				return nil, "", err
			}
		}
		if may {
			shown = append(shown, t)
		}
	}
	if len(shown) == 0 && refused != nil {
		return nil, "", refused
	}
	return shown, next, nil
}

// mayRestoreNamespace says whether the client may restore a deleted namespace: it operates the
// registry, or it has deleted the namespace and administered it. Then the namespace still has the
// client's role. An administrator of a namespace can't bring back what an operator has deleted.
func (a *API) mayRestoreNamespace(ctx context.Context, t catalog.Trashed) (bool, error) {
	err := a.server.Authorize(ctx, auth.Operate, auth.Registry)
	if oci.CodeOf(err) != oci.Denied {
		return err == nil, err
	}
	control := a.server.Auth()
	p, err := a.server.Principal(ctx, auth.Ping)
	if err != nil || control == nil || !p.LoggedIn() || p.Name != t.DeletedBy {
		return false, err
	}
	return control.AdministersDeleted(ctx, p, t.NamespaceID, t.Name)
}

// trashed returns something in the trash that the client may restore. The error for anything
// else is the same as for what isn't in the trash.
func (a *API) trashed(ctx context.Context, id string) (catalog.Trashed, error) {
	t, err := a.catalog.TrashedItem(ctx, id)
	var refused error
	switch {
	case err == nil && t.IsNamespace():
		may := false
		if may, refused = a.mayRestoreNamespace(ctx, t); !may && refused == nil {
			refused = oci.NewError(oci.Denied)
		}
	case err == nil && !t.NamespaceDeleted:
		refused = a.server.Authorize(ctx, auth.Administer, auth.OfNamespace(t.Namespace))
	case err == nil || oci.CodeOf(err) == oci.NameUnknown:
		refused = a.server.Authorize(ctx, auth.Operate, auth.Registry)
	}
	switch {
	case oci.CodeOf(refused) == oci.Denied && err == nil:
		err = catalog.TrashUnknown(id)
	case refused != nil && oci.CodeOf(refused) != oci.Denied:
		err = refused
	}
	if err != nil {
		return catalog.Trashed{}, err
	}
	return t, nil
}
