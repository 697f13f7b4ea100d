package management

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/oci"
)

// imageManifests are the manifests that an image's id stands for.
type imageManifests struct {
	Digests []oci.Digest `json:"digests" nullable:"false" doc:"Up to 100 manifests"`
}

func (a *API) addImage() {
	type input struct {
		Repository string     `path:"repository" doc:"Name of the repository" example:"library/alpine"`
		Image      oci.Digest `path:"image" doc:"The image's id: the digest of its configuration"`
	}
	type output struct{ Body imageManifests }
	add(a, auth.Pull, huma.Operation{
		OperationID: "findImage", Method: http.MethodGet, Path: "/repository/{repository}/image/{image}",
		Tags: []string{"manifest"}, Summary: "Find manifests by an image's id", Errors: []int{http.StatusNotFound},
		Description: "Docker, containerd and CRI-O know images on a machine by the digest of their configuration, or of their manifest. " +
			"The answer is empty if the repository has no such manifest.",
	}, func(ctx context.Context, in *input) (*output, error) {
		list, err := a.catalog.ManifestsOfImage(ctx, in.Repository, in.Image)
		out := new(output)
		out.Body.Digests = append([]oci.Digest{}, list...)
		return out, err
	})
}
