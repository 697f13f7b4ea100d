package management

import (
	"context"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/hold"
	"github.com/purser-registry/purser/internal/limit"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server"
)

// mayHold returns an error unless the client has the access in the namespace or, if there is
// none, may operate the registry.
func (a *API) mayHold(ctx context.Context, access auth.Access, namespace string) error {
	if namespace == "" {
		return a.server.Authorize(ctx, auth.Operate, auth.Registry)
	}
	return a.server.Authorize(ctx, access, auth.OfNamespace(namespace))
}

// holdsBy returns who sends a report for the namespace, and whether that account may end holds
// there: who may delete what is held may.
func (a *API) holdsBy(ctx context.Context, namespace string) (hold.By, error) {
	p := server.Observed(ctx).Principal
	by := hold.By{ID: p.ID, Name: p.Name}
	err := a.mayHold(ctx, auth.Delete, namespace)
	switch code := oci.CodeOf(err); {
	case err == nil:
		by.MayEnd = true
	case code == oci.Denied || code == oci.Unauthorized:
		err = nil
	}
	return by, err
}

// reportInput is the input of a report, whose body the operation itself reads.
type reportInput struct {
	api.HoldReporting
	request *http.Request
	writer  http.ResponseWriter
}

// Resolve keeps the request. huma calls it for each request.
func (in *reportInput) Resolve(ctx huma.Context) []error {
	in.request, in.writer = humago.Unwrap(ctx)
	return nil
}

// parseLease parses a duration such as 24h or 7d.
func parseLease(text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	if days, ok := strings.CutSuffix(text, "d"); ok {
		if n, err := strconv.Atoi(days); err == nil && n > 0 && n < 10_000 {
			return time.Duration(n) * 24 * time.Hour, nil
		}
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return 0, server.Refusal(http.StatusBadRequest, "lease: %q is no duration such as 90m, 24h or 7d", text).
			WithDetail(map[string]string{"field": "lease"})
	}
	return d, nil
}

// addHolds binds the operations on holds.
func (a *API) addHolds() {
	if a.opt.Holds == nil {
		return
	}
	register(a, api.ReportHolds, a.reportHolds)
	// huma would read the body if it knew of it when the operation is registered.
	report := a.bound[api.ReportHolds.ID].operation
	report.Metadata[streamKey], report.RequestBody = true, a.reportBody()
	a.addReporters()
	serve(a, api.ListRepositoryHolds, a.repositoryHolds)
}

func (a *API) reportHolds(ctx context.Context, in *reportInput) (*answer[hold.Reported], error) {
	if err := a.mayHold(ctx, auth.Hold, in.Namespace); err != nil {
		return nil, err
	}
	lease, err := parseLease(in.Lease)
	if err != nil {
		return nil, err
	}
	by, err := a.holdsBy(ctx, in.Namespace)
	if err != nil {
		return nil, err
	}
	report, err := a.readReport(in.writer, in.request)
	if err != nil {
		return nil, err
	}
	report.Lease, report.Kind = lease, in.Kind
	report.Cluster, report.ReplaceCluster, report.AllowEmpty = in.Cluster, in.ReplaceCluster, in.AllowEmpty
	report.By = by
	done, err := a.opt.Holds.Report(limit.WithLease(ctx, server.Observed(ctx).Lease), in.Place(), *report)
	return &answer[hold.Reported]{done}, err
}

// reportBody describes the body of a report.
func (a *API) reportBody() *huma.RequestBody {
	return &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{
		"application/json": {Schema: a.huma.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[api.HoldReport](), true, "")},
		"application/x-ndjson": {Schema: &huma.Schema{Type: huma.TypeString,
			Description: "The whole list, one item per line: a digest as a JSON string, or an object with digest and used_by. The last line ends with a newline"}},
	}}
}

// addReporters binds the operations on reporters.
func (a *API) addReporters() {
	holds := a.opt.Holds
	serve(a, api.ListHoldReporters, func(ctx context.Context, in *api.HoldReporterQuery) (*api.HoldReporterList, error) {
		if err := a.mayHold(ctx, auth.Maintain, in.Namespace); err != nil {
			return nil, err
		}
		list, next, err := holds.List(ctx, in.Namespace, in.NextPage, in.Limit)
		return &api.HoldReporterList{Reporters: append([]hold.Reporter{}, list...), NextPage: next}, err
	})
	serve(a, api.GetHoldReporter, func(ctx context.Context, in *api.HoldReporterItem) (*hold.Reporter, error) {
		if err := a.mayHold(ctx, auth.Maintain, in.Namespace); err != nil {
			return nil, err
		}
		r, err := holds.Get(ctx, in.Place())
		return &r, err
	})
	serve(a, api.DeleteHoldReporter, func(ctx context.Context, in *api.HoldReporterItem) (*api.None, error) {
		if err := a.mayHold(ctx, auth.Delete, in.Namespace); err != nil {
			return nil, err
		}
		return nil, holds.Delete(ctx, in.Place())
	})
	serve(a, api.ListHeldDigests, func(ctx context.Context, in *api.HeldDigestQuery) (*api.HeldDigestList, error) {
		if err := a.mayHold(ctx, auth.Maintain, in.Namespace); err != nil {
			return nil, err
		}
		after, err := cursorDigest(in.NextPage)
		if err != nil {
			return nil, err
		}
		list, next, err := holds.Digests(ctx, in.Place(), after, in.Limit)
		return &api.HeldDigestList{Digests: append([]hold.Held{}, list...), NextPage: next.String()}, err
	})
}

// cursorDigest parses the place after which a page of digests begins, "" for the first page.
func cursorDigest(text string) (d oci.Digest, err error) {
	if text == "" {
		return d, nil
	}
	if d, err = oci.ParseDigest(text); err != nil {
		return d, server.Refusal(http.StatusBadRequest, "next_page is not valid: begin again without it").
			WithDetail(map[string]string{"field": "next_page"})
	}
	return d, nil
}

// repositoryHolds lists a page of the holds of a repository or, with a digest, those of a manifest.
func (a *API) repositoryHolds(ctx context.Context, in *api.RepositoryHoldQuery) (*api.RepositoryHoldList, error) {
	r, err := a.catalog.FindRepository(ctx, in.Repository)
	if err != nil {
		return nil, err
	}
	if in.Digest != "" {
		d, err := oci.ParseDigest(in.Digest)
		if err != nil {
			return nil, server.Refusal(http.StatusBadRequest, "digest: %v", err).WithDetail(map[string]string{"field": "digest"})
		}
		list, err := a.opt.Holds.OfManifest(ctx, r.NamespaceID, r.ID, d)
		return &api.RepositoryHoldList{Holds: append([]hold.Holder{}, list...)}, err
	}
	after, err := cursorDigest(in.NextPage)
	if err != nil {
		return nil, err
	}
	list, next, err := a.opt.Holds.Repository(ctx, r.NamespaceID, r.ID, after, in.Limit)
	return &api.RepositoryHoldList{Holds: append([]hold.Holder{}, list...), NextPage: next.String()}, err
}
