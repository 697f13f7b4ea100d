package management

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server"
	"github.com/purser-registry/purser/internal/worker"
)

// freeBody is the body of a request to plan to free bytes, or to carry out such a plan.
type freeBody struct {
	Bytes     int64  `json:"bytes,omitempty" minimum:"0" doc:"How many bytes to free. Absent with plan" example:"500000000000"`
	UnusedFor string `json:"unused_for,omitempty" maxLength:"64" doc:"Only tags that weren't used or pushed for so long. Absent: 30d" example:"90d"`
	Plan      string `json:"plan,omitempty" doc:"The plan of an answer: carry it out"`
}

// freeAnswer is a plan, or what was started.
type freeAnswer struct {
	Plan    *autoprune.FreePlan `json:"plan,omitempty" doc:"What would be deleted"`
	Started *autoprune.Freeing  `json:"started,omitempty" doc:"What was started, for a request with a plan"`
}

// freeWithin is how long a plan may take.
const freeWithin = 50 * time.Second

// addFree adds the operations that free bytes in a namespace or the registry.
func (a *API) addFree() {
	tags := []string{"autoprune"}
	const text = "Without plan: finds the least recently used tags whose deletion frees as many bytes, and changes nothing. The bytes are those of blobs " +
		"that no tag of the registry needs any more. What is protected, deployed, kept by policies or exempted stays. " +
		"With the plan of such an answer: lets the next run of each of the plan's namespaces delete these tags, except those that were used since. " +
		"The runs are in the list of runs, and can be undone."
	errs := []int{http.StatusNotFound, http.StatusConflict, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType}
	type output struct{ Body freeAnswer }
	example := map[string]any{"bytes": 500_000_000_000}
	type namespaceInput struct {
		PolicyOfNamespace
		Body freeBody
	}
	add(a, auth.Administer, needsBody(huma.Operation{
		OperationID: "freeNamespace", Method: http.MethodPost, Path: "/organization/{orgname}/autoprune/free", Tags: tags,
		Summary: "Free bytes in a namespace: delete the least recently used tags", Description: text, Errors: errs, DefaultStatus: http.StatusOK,
	}, example), func(ctx context.Context, in *namespaceInput) (*output, error) {
		out, err := a.free(ctx, in.Namespace, in.Body)
		return &output{out}, err
	})
	type registryInput struct{ Body freeBody }
	add(a, auth.Operate, needsBody(huma.Operation{
		OperationID: "freeRegistry", Method: http.MethodPost, Path: "/autoprune/free", Tags: tags,
		Summary: "Free bytes in the registry: delete the least recently used tags", Description: text, Errors: errs, DefaultStatus: http.StatusOK,
	}, example), func(ctx context.Context, in *registryInput) (*output, error) {
		out, err := a.free(ctx, "", in.Body)
		return &output{out}, err
	})
}

// free plans, or carries out a plan, in a namespace or, if `namespace` is "", in the registry.
func (a *API) free(ctx context.Context, namespace string, in freeBody) (out freeAnswer, err error) {
	if in.Plan == "" {
		done, err := a.turn(ctx)
		if err != nil {
			return out, err
		}
		defer done()
		out.Plan, err = a.opt.Autoprune.PlanFree(ctx, namespace, autoprune.FreeOptions{Bytes: in.Bytes, UnusedFor: in.UnusedFor, Within: freeWithin})
		if errors.Is(err, worker.ErrRest) {
			err = oci.Errorf(oci.Unsupported, "nothing may be deleted for its age now: %v", err).WithStatus(http.StatusConflict)
		}
		return out, err
	}
	if in.Bytes != 0 || in.UnusedFor != "" {
		return out, server.Refusal(http.StatusBadRequest, "give a plan, or bytes and unused_for")
	}
	request, err := autoprune.ParseFreeRequest(in.Plan)
	if err != nil {
		return out, err
	}
	if namespace != "" && !slices.Equal(request.Namespaces, []string{namespace}) {
		return out, server.Refusal(http.StatusBadRequest, "plan: it is of another namespace")
	}
	started, err := a.opt.Autoprune.Free(ctx, request)
	out.Started = &started
	return out, err
}
