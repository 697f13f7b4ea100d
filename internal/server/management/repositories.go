package management

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/catalog"
)

func (a *API) addRepositories() {
	type repository struct {
		Repository string `path:"repository" doc:"Name of the repository" example:"library/alpine"`
		Override   bool   `query:"override_holds" doc:"Delete it even if something in it is deployed"`
	}
	add(a, auth.Delete, huma.Operation{
		OperationID: "deleteRepository", Method: http.MethodDelete, Path: "/repository/{repository}",
		Tags: []string{"repository"}, Summary: "Delete a repository",
		Description: "Deletes a repository with all its tags and manifests, at once and whatever its size. What it leaves " +
			"behind is removed in the background; garbage collection then frees its blobs. If a reporter holds a manifest of it: 409, " +
			"unless override_holds is given.",
		DefaultStatus: http.StatusNoContent, Errors: []int{http.StatusNotFound, http.StatusConflict},
	}, func(ctx context.Context, in *repository) (*struct{}, error) {
		defer a.server.Forget() // roles and the visibility, which another repository of this name won't have
		return nil, a.catalog.DeleteRepository(ctx, in.Repository, overridingHolds(in.Override)...)
	})
	type namespace struct {
		Namespace string `path:"orgname" doc:"Name of the namespace: the first part of its repositories' names" example:"library"`
		Override  bool   `query:"override_holds" doc:"Delete it even if something in it is deployed"`
	}
	add(a, auth.Administer, huma.Operation{
		OperationID: "deleteNamespace", Method: http.MethodDelete, Path: "/organization/{orgname}",
		Tags: []string{"namespace"}, Summary: "Delete a namespace",
		Description:   "Deletes a namespace with all its repositories, as deleteRepository does one.",
		DefaultStatus: http.StatusNoContent, Errors: []int{http.StatusNotFound, http.StatusConflict},
	}, func(ctx context.Context, in *namespace) (*struct{}, error) {
		defer a.server.Forget()
		return nil, a.catalog.DeleteNamespace(ctx, in.Namespace, overridingHolds(in.Override)...)
	})
}

// overridingHolds returns the option that deletes what a reporter holds, if override is set.
func overridingHolds(override bool) []catalog.TagOption {
	if override {
		return []catalog.TagOption{catalog.OverrideHolds}
	}
	return nil
}
