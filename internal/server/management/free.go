package management

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server"
	"github.com/purser-registry/purser/internal/worker"
)

// freeWithin is how long a plan may take.
const freeWithin = 50 * time.Second

// free plans to free bytes, or carries out a plan, in a namespace or the registry.
func (a *API) free(ctx context.Context, input *api.FreeInput) (*api.FreeAnswer, error) {
	namespace, in, out := input.Namespace, input.Body, new(api.FreeAnswer)
	if in.Plan == "" {
		done, err := a.turn(ctx)
		if err != nil {
			return nil, err
		}
		defer done()
		out.Plan, err = a.opt.Autoprune.PlanFree(ctx, namespace, autoprune.FreeOptions{Bytes: in.Bytes, UnusedFor: in.UnusedFor, Within: freeWithin})
		if errors.Is(err, worker.ErrRest) {
			err = oci.Errorf(oci.Unsupported, "nothing may be deleted for its age now: %v", err).WithStatus(http.StatusConflict)
		}
		return out, err
	}
	if in.Bytes != 0 || in.UnusedFor != "" {
		return nil, server.Refusal(http.StatusBadRequest, "give a plan, or bytes and unused_for")
	}
	request, err := autoprune.ParseFreeRequest(in.Plan)
	if err != nil {
		return nil, err
	}
	if namespace != "" && !slices.Equal(request.Namespaces, []string{namespace}) {
		return nil, server.Refusal(http.StatusBadRequest, "plan: it is of another namespace")
	}
	started, err := a.opt.Autoprune.Free(ctx, request)
	out.Started = &started
	return out, err
}
