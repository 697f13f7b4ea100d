package management

import (
	"context"
	"net/http"
	"slices"
	"strings"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/catalog/trash"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server"
)

// addTrash binds the operations on the trash.
func (a *API) addTrash() {
	serve(a, api.ListTrash, func(ctx context.Context, in *api.TrashQuery) (*api.TrashList, error) {
		list, next, err := a.listTrash(ctx, in.Namespace, in.Cursor, in.Limit)
		return &api.TrashList{Items: list, Next: next}, err
	})
	serve(a, api.GetTrash, func(ctx context.Context, in *api.TrashItem) (*trash.Trashed, error) {
		t, err := a.trashed(ctx, in.ID)
		return &t, err
	})
	serve(a, api.RestoreTrash, func(ctx context.Context, in *api.TrashRestoration) (*api.RestoredTrash, error) {
		t, err := a.trashed(ctx, in.ID)
		if err != nil {
			return nil, err
		}
		if err := a.checkRestoreName(ctx, t, in.Body.As); err != nil {
			return nil, err
		}
		defer a.server.Forget() // roles and the visibility that the name had meanwhile
		name, err := a.trash.Restore(ctx, in.ID, in.Body.As)
		return &api.RestoredTrash{Name: name}, err
	})
	serve(a, api.PurgeTrash, func(ctx context.Context, in *api.TrashItem) (*api.None, error) {
		t, err := a.trashed(ctx, in.ID)
		if err == nil {
			err = a.checkPurge(ctx, t)
		}
		if err != nil {
			return nil, err
		}
		return nil, a.trash.Purge(ctx, in.ID)
	})
}

// checkRestoreName returns an error, with status 400, for a name that can't be a repository's or a
// namespace's. It returns DENIED for a new name from a client that may not make a repository or
// a namespace of this name.
func (a *API) checkRestoreName(ctx context.Context, t trash.Trashed, as string) error {
	wrong := func(why string) error {
		return server.Refusal(http.StatusBadRequest, "as: %.80q %s", as, why).WithDetail(map[string]string{"field": "as"})
	}
	of := auth.OfRepository(as)
	switch {
	case as == "" || as == t.Name:
		return nil
	case oci.ValidateName(as) != nil || t.IsNamespace() && strings.Contains(as, "/"):
		return wrong("can't be the name of a " + t.Kind)
	case t.IsNamespace():
		return a.server.Authorize(ctx, auth.Operate, auth.Registry)
	case of.Namespace != t.Namespace:
		return wrong("isn't in the repository's namespace " + t.Namespace)
	}
	return a.server.Authorize(ctx, auth.Push, of)
}

// listTrash lists a page of what the client may restore. The cursor of the next page is the id of
// an item that the client has seen, and there is one only if the next page has an item.
func (a *API) listTrash(ctx context.Context, namespace, cursor string, limit int) (shown []trash.Trashed, next string, err error) {
	refused := a.server.Authorize(ctx, auth.Operate, auth.Registry)
	if refused != nil && (namespace == "" || oci.CodeOf(refused) != oci.Denied) {
		return nil, "", refused
	}
	shown = []trash.Trashed{}
	for more := true; more && len(shown) <= limit; more = cursor != "" {
		var list []trash.Trashed
		if list, cursor, err = a.trash.List(ctx, namespace, cursor, limit+1); err != nil {
			return nil, "", err
		}
		may, err := a.mayRestore(ctx, list)
		if err != nil {
			return nil, "", err
		}
		for i, t := range list {
			if may[i] {
				shown = append(shown, t)
			}
		}
	}
	switch {
	case len(shown) > limit:
		shown = shown[:limit]
		return shown, shown[limit-1].ID, nil
	case len(shown) == 0 && refused != nil:
		return shown, "", a.server.Authorize(ctx, auth.Delete, auth.OfNamespace(namespace))
	}
	return shown, "", nil
}

// mayRestore says of each item whether the client may restore it: whether it operates the registry,
// or has the access by which it might delete the item.
func (a *API) mayRestore(ctx context.Context, list []trash.Trashed) ([]bool, error) {
	repositories, namespaces := make([]auth.Deleted, len(list)), make([]auth.Deleted, len(list))
	for i, t := range list {
		if t.IsNamespace() {
			namespaces[i] = auth.Deleted{Namespace: t.NamespaceID, Resource: auth.OfNamespace(t.Name)}
		} else {
			repositories[i] = auth.Deleted{Namespace: t.NamespaceID, Repository: t.RepositoryID, Resource: auth.OfRepository(t.Name)}
		}
	}
	may, err := a.allowsDeleted(ctx, auth.Delete, repositories)
	if err != nil {
		return nil, err
	}
	administers, err := a.allowsDeleted(ctx, auth.Administer, namespaces)
	if err != nil {
		return nil, err
	}
	for i, t := range list {
		if t.IsNamespace() {
			may[i] = administers[i]
		}
	}
	return may, nil
}

// allowsDeleted says of each of the places in the trash whether the client has the access to it or
// operates the registry. The error of a client that isn't logged in is UNAUTHORIZED.
func (a *API) allowsDeleted(ctx context.Context, access auth.Access, places []auth.Deleted) ([]bool, error) {
	err := a.server.Authorize(ctx, auth.Operate, auth.Registry)
	if err == nil {
		return slices.Repeat([]bool{true}, len(places)), nil
	}
	control := a.server.Auth()
	if oci.CodeOf(err) != oci.Denied || control == nil {
		return nil, err
	}
	p, err := a.server.Principal(ctx, auth.Ping)
	if err != nil {
		return nil, err
	}
	return control.AllowsDeleted(ctx, p, access, places)
}

// checkPurge returns DENIED if the client doesn't administer the namespace of something that it may
// restore.
func (a *API) checkPurge(ctx context.Context, t trash.Trashed) error {
	may, err := a.allowsDeleted(ctx, auth.Administer, []auth.Deleted{{Namespace: t.NamespaceID, Resource: auth.OfNamespace(t.Namespace)}})
	if err == nil && !may[0] {
		err = oci.Errorf(oci.Denied, "deleting %s for good needs the role administrator in namespace %s", t.Name, t.Namespace)
	}
	return err
}

// trashed returns something in the trash that the client may restore. The error for anything
// else is the same as for what isn't in the trash.
func (a *API) trashed(ctx context.Context, id string) (trash.Trashed, error) {
	t, err := a.trash.Item(ctx, id)
	if err != nil && oci.CodeOf(err) != oci.NameUnknown {
		return trash.Trashed{}, err
	}
	may, refused := a.mayRestore(ctx, []trash.Trashed{t})
	switch {
	case refused != nil: // without an account, nobody learns what is in the trash
		return trash.Trashed{}, refused
	case err != nil:
		return trash.Trashed{}, err
	case !may[0]:
		return trash.Trashed{}, trash.Unknown(id)
	}
	return t, nil
}
