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

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/hold"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server"
)

// ReporterInput names a reporter of holds. It is exported because huma finds parameters only in
// exported types.
type ReporterInput struct {
	Reporter  string `path:"reporter" doc:"Name of the reporter: a cluster, a host, a pipeline. A slash in it is written as %2F" example:"prod-eu"`
	Namespace string `query:"namespace" doc:"The namespace in which its holds are in force. Absent: the whole registry" example:"acme"`
}

func (in ReporterInput) place() hold.Place {
	return hold.Place{Namespace: in.Namespace, Reporter: in.Reporter}
}

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

type reportInput struct {
	ReporterInput
	Lease string `query:"lease" doc:"How long the holds last without another report, such as 90m, 24h or 7d: from a minute to 30 days. Absent: as before; 24h for a new reporter" example:"24h"`
	Kind  string `query:"kind" doc:"What the reporter is, for people" example:"kubernetes"`

	Cluster        string `query:"cluster" doc:"What the report is of, such as the UID of a cluster. If earlier reports were of another one, the report is refused" example:"0b1ec1e5-5b3c-4b6b-9b5e-0d2f0a8a5a0e"`
	ReplaceCluster bool   `query:"replace_cluster" doc:"The reporter is of this cluster from now on, whatever it was of before"`
	AllowEmpty     bool   `query:"allow_empty" doc:"The whole list may be empty although the reporter holds something"`

	request *http.Request
	writer  http.ResponseWriter
}

// Resolve keeps the request, whose body the operation itself reads. huma calls it for each
// request.
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

func (a *API) addHolds() {
	if a.opt.Holds == nil {
		return
	}
	tags := []string{"hold"}
	type reportOutput struct{ Body hold.Reported }
	add(a, auth.Ping, huma.Operation{
		OperationID: "reportHolds", Method: http.MethodPut, Path: "/holds/{reporter}", Tags: tags, Extensions: checked(auth.Hold),
		Metadata: map[string]any{streamKey: true},
		Summary:  "Report which digests are deployed",
		Description: "Nothing that is held is deleted by policies, by garbage collection, or by clients that don't say override_holds: neither the digests, " +
			"nor their indexes, children and attached manifests. The holds of a reporter end together when its lease is over; each report renews it, also " +
			"one that changes nothing. A digest that isn't there yet is remembered. The body is the whole list, as JSON or as a stream of one item per " +
			"line; or a difference: add, remove, and base, the revision to which it refers. A report is stored as a whole or not at all. " +
			"Needs the access hold in the namespace; without one, the access operate. A reporter belongs to the account that made it; others need the " +
			"access delete to report under its name. What a whole list leaves out stays held until the lease ends that it had; a difference that " +
			"removes a digest ends its hold at once if the account has the access delete, which a shorter lease needs too. 409: the reporter is of " +
			"another cluster; or the list is empty, the reporter holds something, and allow_empty isn't set; or base isn't its revision.",
		Errors: []int{http.StatusNotFound, http.StatusConflict, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType},
	}, func(ctx context.Context, in *reportInput) (*reportOutput, error) {
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
		done, err := a.opt.Holds.Report(ctx, in.place(), *report)
		return &reportOutput{done}, err
	})
	// huma would read the body if it knew of it when the operation is registered.
	a.huma.OpenAPI().Paths[apiRoot+"/holds/{reporter}"].Put.RequestBody = a.reportBody()
	a.addReporters(tags)
	a.addRepositoryHolds(tags)
}

// reportBody describes the body of a report.
func (a *API) reportBody() *huma.RequestBody {
	return &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{
		"application/json": {Schema: a.huma.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[holdReport](), true, "")},
		"application/x-ndjson": {Schema: &huma.Schema{Type: huma.TypeString,
			Description: "The whole list, one item per line: a digest as a JSON string, or an object with digest and used_by. The last line ends with a newline"}},
	}}
}

// Lists of reporters, of the digests of one, and of the holds of a repository.
type (
	holdReporterList struct {
		Reporters []hold.Reporter `json:"reporters" nullable:"false"`
		NextPage  string          `json:"next_page,omitempty" doc:"Where to go on. Absent on the last page"`
	}
	heldDigestList struct {
		Digests  []hold.Held `json:"digests" nullable:"false"`
		NextPage string      `json:"next_page,omitempty" doc:"Where to go on. Absent on the last page"`
	}
	repositoryHoldList struct {
		Holds    []hold.Holder `json:"holds" nullable:"false"`
		NextPage string        `json:"next_page,omitempty" doc:"Where to go on. Absent on the last page"`
	}
)

func (a *API) addReporters(tags []string) {
	holds := a.opt.Holds
	type listInput struct {
		Namespace string `query:"namespace" doc:"List the reporters of this namespace. Absent: those of the whole registry"`
		NextPage  string `query:"next_page" doc:"Where to go on: next_page of the page before"`
		Limit     int    `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"Most reporters of a page. It has fewer if they are long"`
	}
	type listOutput struct{ Body holdReporterList }
	add(a, auth.Ping, huma.Operation{
		OperationID: "listHoldReporters", Method: http.MethodGet, Path: "/holds", Tags: tags, Extensions: checked(auth.Maintain),
		Summary:     "List the reporters of holds, by name",
		Description: "Needs the access maintain in the namespace; without one, the access operate.",
		Errors:      []int{http.StatusNotFound},
	}, func(ctx context.Context, in *listInput) (*listOutput, error) {
		if err := a.mayHold(ctx, auth.Maintain, in.Namespace); err != nil {
			return nil, err
		}
		list, next, err := holds.List(ctx, in.Namespace, in.NextPage, in.Limit)
		out := new(listOutput)
		out.Body.Reporters, out.Body.NextPage = append([]hold.Reporter{}, list...), next
		return out, err
	})
	type output struct{ Body hold.Reporter }
	add(a, auth.Ping, huma.Operation{
		OperationID: "getHoldReporter", Method: http.MethodGet, Path: "/holds/{reporter}", Tags: tags, Extensions: checked(auth.Maintain),
		Summary:     "Get a reporter of holds",
		Description: "Needs the access maintain in the namespace; without one, the access operate.",
		Errors:      []int{http.StatusNotFound},
	}, func(ctx context.Context, in *ReporterInput) (*output, error) {
		if err := a.mayHold(ctx, auth.Maintain, in.Namespace); err != nil {
			return nil, err
		}
		r, err := holds.Get(ctx, in.place())
		return &output{r}, err
	})
	add(a, auth.Ping, huma.Operation{
		OperationID: "deleteHoldReporter", Method: http.MethodDelete, Path: "/holds/{reporter}", Tags: tags, Extensions: checked(auth.Delete),
		Summary:       "Delete a reporter and its holds",
		Description:   "The holds end at once. If the reporter reports again, it is a new one. Needs the access delete in the namespace; without one, the access operate.",
		DefaultStatus: http.StatusNoContent, Errors: []int{http.StatusNotFound},
	}, func(ctx context.Context, in *ReporterInput) (*struct{}, error) {
		if err := a.mayHold(ctx, auth.Delete, in.Namespace); err != nil {
			return nil, err
		}
		return nil, holds.Delete(ctx, in.place())
	})
	type digestsInput struct {
		ReporterInput
		NextPage string `query:"next_page" doc:"Where to go on: next_page of the page before"`
		Limit    int    `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"Digests per page"`
	}
	type digestsOutput struct{ Body heldDigestList }
	add(a, auth.Ping, huma.Operation{
		OperationID: "listHeldDigests", Method: http.MethodGet, Path: "/holds/{reporter}/digests", Tags: tags, Extensions: checked(auth.Maintain),
		Summary:     "List the digests that a reporter holds",
		Description: "Needs the access maintain in the namespace; without one, the access operate.",
		Errors:      []int{http.StatusNotFound},
	}, func(ctx context.Context, in *digestsInput) (*digestsOutput, error) {
		if err := a.mayHold(ctx, auth.Maintain, in.Namespace); err != nil {
			return nil, err
		}
		after, err := cursorDigest(in.NextPage)
		if err != nil {
			return nil, err
		}
		list, next, err := holds.Digests(ctx, in.place(), after, in.Limit)
		out := new(digestsOutput)
		out.Body.Digests, out.Body.NextPage = append([]hold.Held{}, list...), next.String()
		return out, err
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

func (a *API) addRepositoryHolds(tags []string) {
	type input struct {
		Repository string `path:"repository" doc:"Name of the repository" example:"acme/app"`
		Digest     string `query:"digest" doc:"Only who holds this manifest, or a relative of it"`
		NextPage   string `query:"next_page" doc:"Where to go on: next_page of the page before"`
		Limit      int    `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"Holds per page"`
	}
	type output struct{ Body repositoryHoldList }
	add(a, auth.Maintain, huma.Operation{
		OperationID: "listRepositoryHolds", Method: http.MethodGet, Path: "/repository/{repository}/holds", Tags: tags,
		Summary: "List who holds manifests of a repository",
		Description: "Lists the digests of this repository that reporters hold, in the order of the digests. With digest: the reporters " +
			"that hold this manifest or a relative, such as its index, which keep it.",
		Errors: []int{http.StatusNotFound},
	}, func(ctx context.Context, in *input) (*output, error) {
		r, err := a.catalog.FindRepository(ctx, in.Repository)
		if err != nil {
			return nil, err
		}
		out := new(output)
		out.Body.Holds = []hold.Holder{}
		if in.Digest != "" {
			d, err := oci.ParseDigest(in.Digest)
			if err != nil {
				return nil, server.Refusal(http.StatusBadRequest, "digest: %v", err).WithDetail(map[string]string{"field": "digest"})
			}
			list, err := a.opt.Holds.OfManifest(ctx, r.NamespaceID, r.ID, d)
			out.Body.Holds = append(out.Body.Holds, list...)
			return out, err
		}
		after, err := cursorDigest(in.NextPage)
		if err != nil {
			return nil, err
		}
		list, next, err := a.opt.Holds.Repository(ctx, r.NamespaceID, r.ID, after, in.Limit)
		out.Body.Holds, out.Body.NextPage = append(out.Body.Holds, list...), next.String()
		return out, err
	})
}
