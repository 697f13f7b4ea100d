package management

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/catalog"
)

// addTagLabels adds the operations that show and say which labels of pushed images decide about
// the tags of a namespace.
func (a *API) addTagLabels() {
	const path = "/organization/{orgname}/taglabels"
	tags := []string{"tag"}
	type output struct{ Body catalog.TagLabels }
	add(a, auth.Maintain, huma.Operation{
		OperationID: "getTagLabels", Method: http.MethodGet, Path: path, Tags: tags,
		Summary: "Ask which labels of pushed images decide about the tags of a namespace", Errors: []int{http.StatusNotFound},
	}, func(ctx context.Context, in *api.InNamespace) (*output, error) {
		l, err := a.catalog.TagLabels(ctx, in.Namespace)
		return &output{l}, err
	})
	type input struct {
		api.InNamespace
		Body catalog.TagLabels
	}
	add(a, auth.Maintain, huma.Operation{
		OperationID: "setTagLabels", Method: http.MethodPut, Path: path, Tags: tags,
		Summary: "Say which labels of pushed images decide about the tags of a namespace",
		Description: "None do unless this says so, since otherwise everybody who pushes would decide what is deleted. " +
			"It concerns the pushes that begin after it, and changes no tag that exists.",
		DefaultStatus: http.StatusNoContent,
		Errors:        []int{http.StatusNotFound, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType},
	}, func(ctx context.Context, in *input) (*struct{}, error) {
		return nil, a.catalog.SetTagLabels(ctx, in.Namespace, in.Body)
	})
}
