package management

import (
	"context"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/catalog"
)

func (a *API) addRepositories() {
	type deleted struct {
		Trash string `header:"Purser-Trash-Id" doc:"What it is called in the trash, from which it can be restored. Absent: it was deleted for good"`
	}
	type repository struct {
		Repository string `path:"repository" doc:"Name of the repository" example:"library/alpine"`
		Override   bool   `query:"override_holds" doc:"Delete it even if something in it is deployed"`
		Purge      bool   `query:"purge" doc:"Delete it for good, so that it can't be restored. Needs the access administer in the namespace"`
	}
	add(a, auth.Delete, huma.Operation{
		OperationID: "deleteRepository", Method: http.MethodDelete, Path: "/repository/{repository}",
		Tags: []string{"repository"}, Summary: "Delete a repository",
		Description: "Deletes a repository with all its tags and manifests, at once and whatever its size. For the time of the " +
			"setting trash.keep it can be restored from the trash. Then, or at once with purge, what it leaves " +
			"behind is removed in the background; garbage collection then frees its blobs. If a reporter holds a manifest of it: 409, " +
			"unless override_holds is given.",
		DefaultStatus: http.StatusNoContent, Errors: []int{http.StatusNotFound, http.StatusConflict},
	}, func(ctx context.Context, in *repository) (*deleted, error) {
		defer a.server.Forget() // roles and the visibility, which another repository of this name won't have
		if namespace, _, _ := strings.Cut(in.Repository, "/"); in.Purge {
			if err := a.server.Authorize(ctx, auth.Administer, auth.OfNamespace(namespace)); err != nil {
				return nil, err
			}
		}
		id, err := a.catalog.RemoveRepository(ctx, in.Repository, deletionOptions(in.Override, in.Purge)...)
		return &deleted{id}, err
	})
	type namespace struct {
		Namespace string `path:"orgname" doc:"Name of the namespace: the first part of its repositories' names" example:"library"`
		Override  bool   `query:"override_holds" doc:"Delete it even if something in it is deployed"`
		Purge     bool   `query:"purge" doc:"Delete it for good, so that it can't be restored"`
	}
	add(a, auth.Administer, huma.Operation{
		OperationID: "deleteNamespace", Method: http.MethodDelete, Path: "/organization/{orgname}",
		Tags: []string{"namespace"}, Summary: "Delete a namespace",
		Description:   "Deletes a namespace with all its repositories, as deleteRepository does one.",
		DefaultStatus: http.StatusNoContent, Errors: []int{http.StatusNotFound, http.StatusConflict},
	}, func(ctx context.Context, in *namespace) (*deleted, error) {
		defer a.server.Forget()
		id, err := a.catalog.RemoveNamespace(ctx, in.Namespace, deletionOptions(in.Override, in.Purge)...)
		return &deleted{id}, err
	})
}

// deletionOptions returns the options of a deletion that overrides holds, or that is for good.
func deletionOptions(override, purge bool) []catalog.TagOption {
	options := overridingHolds(override)
	if purge {
		options = append(options, catalog.PurgeAtOnce)
	}
	return options
}

// overridingHolds returns the option that deletes what a reporter holds, if override is set.
func overridingHolds(override bool) []catalog.TagOption {
	if override {
		return []catalog.TagOption{catalog.OverrideHolds}
	}
	return nil
}
