package management

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server"
)

// restoreTag is the body of a request to restore a tag. Members that the API doesn't know
// are ignored, as in Quay.
type restoreTag struct {
	_              struct{}   `additionalProperties:"true"`
	ManifestDigest oci.Digest `json:"manifest_digest" minLength:"1" doc:"The manifest that the tag is to point to" example:"sha256:4bcff63911fcb4448bd4fdacec207030997caf25e9bea4045fa6c8c44de311d1"`
}

func (a *API) addTags() {
	type input struct {
		Repository string `path:"repository" doc:"Name of the repository" example:"library/alpine"`
		Tag        string `path:"tag" doc:"Name of the tag" example:"3.22"`
		Body       restoreTag
	}
	type restoredTag struct{} // Quay's answer has no members
	type output struct{ Body restoredTag }
	add(a, auth.Maintain, huma.Operation{
		OperationID: "restoreTag", Method: http.MethodPost, Path: "/repository/{repository}/tag/{tag}/restore",
		Tags: []string{"tag"}, Summary: "Restore a tag",
		Description: "Points a tag, deleted or not, to a manifest of the repository. That is possible as long as " +
			"garbage collection has not deleted the manifest.",
		Errors: []int{http.StatusNotFound, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType},
	}, func(ctx context.Context, in *input) (*output, error) {
		if err := server.CheckTag(in.Tag); err != nil {
			return nil, err
		}
		return new(output), a.catalog.RestoreTag(ctx, in.Repository, in.Tag, in.Body.ManifestDigest, a.tagOptions(ctx, in.Repository)...)
	})
}
