package management

import (
	"context"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/autoprune"
)

// addExceptions binds the operations that make repositories exceptions, in which the policies of the
// namespace and of the registry delete nothing.
func (a *API) addExceptions() {
	prune := a.opt.Autoprune
	serve(a, api.ListExceptions, func(ctx context.Context, in *api.ExceptionQuery) (*api.ExceptionList, error) {
		return a.exceptions(ctx, autoprune.Target{Namespace: in.Namespace}, in.Paging)
	})
	serve(a, api.GetException, func(ctx context.Context, in *api.InRepository) (*api.ExceptionList, error) {
		return a.exceptions(ctx, autoprune.Target{Repository: in.Repository}, api.Paging{})
	})
	serve(a, api.MakeException, func(ctx context.Context, in *api.ExceptionNew) (*api.None, error) {
		return nil, prune.Except(ctx, in.Repository, in.Body.Until)
	})
	serve(a, api.EndException, func(ctx context.Context, in *api.InRepository) (*api.EndedException, error) {
		ended, err := prune.EndException(ctx, in.Repository)
		return &api.EndedException{Ended: ended}, err
	})
}

// exceptions lists a page of the exceptions of a namespace or a repository.
func (a *API) exceptions(ctx context.Context, t autoprune.Target, page api.Paging) (*api.ExceptionList, error) {
	after, err := pageAfter(page, "exception")
	if err != nil {
		return nil, err
	}
	found, more, err := a.opt.Autoprune.Exceptions(ctx, t, after, page.Most())
	out := &api.ExceptionList{Exceptions: append([]autoprune.Exception{}, found...)}
	if more {
		out.NextPage = cursor("exception", found[len(found)-1].Repository)
	}
	return out, err
}
