package management

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server"
)

// countWait is how long a request that makes a quota waits until the namespace's content is
// counted. If counting takes longer, a worker does it.
const countWait = 3 * time.Second

// QuotaForm is a quota in requests. It is exported because huma makes JSON schemas only of
// exported types.
type QuotaForm struct {
	LimitBytes        *int64           `json:"limit_bytes,omitempty" minimum:"0" doc:"Most bytes of blobs, each counted once; 0: no limit. Absent: limit" example:"10737418240"`
	Limit             *string          `json:"limit,omitempty" doc:"limit_bytes as a number and a unit" example:"10 GiB"`
	LimitRepositories *int64           `json:"limit_repositories,omitempty" minimum:"0" doc:"Most repositories; 0: no limit"`
	LimitTags         *int64           `json:"limit_tags,omitempty" minimum:"0" doc:"Most tags; 0: no limit"`
	Limits            []QuotaLimitForm `json:"limits,omitempty" maxItems:"20" doc:"What happens at which part of the limits, in place of what the quota had. Absent: no change"`
}

// TransformSchema adds the read-only members of a quota.
func (QuotaForm) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return readOnly(s, "id", "default_config", "default_config_exists", "namespace", "used_bytes", "used_repositories", "used_tags", "counted", "created_at")
}

// QuotaLimitForm is a limit of a quota in requests. It is exported because huma makes JSON
// schemas only of exported types.
type QuotaLimitForm struct {
	Type      string `json:"type" enum:"Warning,Reject" doc:"Warning sends a notice; Reject refuses what would exceed the part"`
	Threshold int    `json:"threshold_percent,omitempty" minimum:"1" maximum:"100" doc:"Which part of the quota" example:"80"`
	Percent   int    `json:"limit_percent,omitempty" minimum:"1" maximum:"100" doc:"The name that answers have for threshold_percent, in place of it"`
}

// TransformSchema adds the read-only members of a limit.
func (QuotaLimitForm) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return readOnly(s, "id")
}

func (f QuotaLimitForm) step() catalog.QuotaStep {
	return catalog.QuotaStep{Kind: catalog.QuotaKind(f.Type), Percent: cmp.Or(f.Threshold, f.Percent)}
}

func (f QuotaForm) quota() (o catalog.NewQuota, err error) {
	o = catalog.NewQuota{Bytes: f.LimitBytes, Repositories: f.LimitRepositories, Tags: f.LimitTags}
	if f.Limits != nil {
		o.Steps = []catalog.QuotaStep{}
	}
	for _, l := range f.Limits {
		o.Steps = append(o.Steps, l.step())
	}
	if o.Bytes == nil && f.Limit != nil {
		n, err := parseQuota(*f.Limit)
		if err != nil {
			return o, server.Refusal(http.StatusBadRequest, "limit: %v", err).WithDetail(map[string]string{"field": "limit"})
		}
		o.Bytes = &n
	}
	return o, nil
}

// quotaUnits are the units of the member limit.
var quotaUnits = map[string]float64{
	"": 1, "B": 1, "BYTE": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40, "PIB": 1 << 50,
	"KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "PB": 1e15,
}

// parseQuota reads a size as Quay writes it, such as "10 GiB" or "1.5TiB".
func parseQuota(text string) (int64, error) {
	digits := strings.TrimLeft(text, "0123456789.")
	n, err := strconv.ParseFloat(strings.TrimSuffix(text, digits), 64)
	unit, known := quotaUnits[strings.ToUpper(strings.TrimSpace(digits))]
	if err != nil || !known || n*unit >= 1<<62 {
		return 0, errors.New("write a number and a unit, such as 10 GiB")
	}
	return int64(n * unit), nil
}

// QuotaItem, QuotaOfNamespace and QuotaLimitOfNamespace have the path parameters that name a quota
// and one of its limits. They are exported because huma finds parameters only in exported types.
type (
	QuotaItem struct {
		ID int64 `path:"quota_id" doc:"Identifier of the quota"`
	}
	QuotaOfNamespace struct {
		ScopeOfNamespace
		QuotaItem
	}
	QuotaOfUser struct {
		NamespaceOfUser
		QuotaItem
	}
	QuotaLimitOfNamespace struct {
		QuotaOfNamespace
		Limit int64 `path:"limit_id" doc:"Identifier of the limit"`
	}
)

type (
	quotaListed struct{ Body []api.QuotaView }
	quotaTold   struct{ Body api.QuotaView }
)

func quotaOperation(id, method, path, summary string) huma.Operation {
	op := huma.Operation{OperationID: id, Method: method, Path: path, Tags: []string{"quota"}, Summary: summary, Errors: []int{http.StatusNotFound}}
	if method == http.MethodPost || method == http.MethodPut {
		op.Errors = append(op.Errors, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType)
	}
	return op
}

// addQuotas adds the operations on quotas of namespaces. Their paths are Quay's.
func (a *API) addQuotas() {
	const path = "/organization/{orgname}/quota"
	addQuotaReading(a, path, "Organization", "a namespace",
		func(in *ScopeOfNamespace) string { return in.Namespace },
		func(in *QuotaOfNamespace) (string, int64) { return in.Namespace, in.ID })
	addQuotaReading(a, "/user/quota", "User", "the namespace of the client's account",
		func(in *NamespaceOfUser) string { return in.namespace },
		func(in *QuotaOfUser) (string, int64) { return in.namespace, in.ID })
	a.addQuotaChanges(path)
	a.addQuotaLimits(path + "/{quota_id}/limit")
	a.addQuotaList()
}

// addQuotaReading adds the operations that read the quota of a namespace. The type parameters are
// the inputs for a namespace (N) and for one of its quotas (I).
func addQuotaReading[N, I any](a *API, path, name, of string, namespace func(*N) string, item func(*I) (string, int64)) {
	list := quotaOperation("list"+name+"Quota", http.MethodGet, path, "Get the quota of "+of)
	list.Description = "The list is empty, or has one quota."
	add(a, auth.Maintain, list, func(ctx context.Context, in *N) (*quotaListed, error) {
		q, some, err := a.catalog.Quota(ctx, namespace(in))
		out := &quotaListed{[]api.QuotaView{}}
		if some {
			out.Body = append(out.Body, api.ViewQuota(q))
		}
		return out, err
	})
	add(a, auth.Maintain, quotaOperation("get"+name+"Quota", http.MethodGet, path+"/{quota_id}", "Get one quota of "+of),
		func(ctx context.Context, in *I) (*quotaTold, error) {
			ns, id := item(in)
			q, err := a.quota(ctx, ns, id)
			return &quotaTold{api.ViewQuota(q)}, err
		})
	type limitsOutput struct{ Body []api.QuotaLimit }
	add(a, auth.Maintain, quotaOperation("list"+name+"QuotaLimit", http.MethodGet, path+"/{quota_id}/limit", "List the limits of a quota of "+of),
		func(ctx context.Context, in *I) (*limitsOutput, error) {
			ns, id := item(in)
			q, err := a.quota(ctx, ns, id)
			return &limitsOutput{api.ViewQuota(q).Limits}, err
		})
}

// quota returns the quota of a namespace that has the given id.
func (a *API) quota(ctx context.Context, namespace string, id int64) (catalog.Quota, error) {
	q, some, err := a.catalog.Quota(ctx, namespace)
	if err == nil && (!some || q.ID != id) {
		err = oci.Errorf(oci.NameUnknown, "namespace %s has no quota %d", namespace, id)
	}
	return q, err
}

// counted waits a moment until the content of namespaces is counted, and returns a quota.
func (a *API) counted(ctx context.Context, namespace string) (*quotaTold, error) {
	wait, cancel := context.WithTimeout(ctx, countWait)
	defer cancel()
	if _, err := a.catalog.CountQuotas(wait); err != nil && wait.Err() == nil {
		return nil, err
	}
	q, some, err := a.catalog.Quota(ctx, namespace)
	if err == nil && !some {
		err = oci.Errorf(oci.NameUnknown, "the quota of namespace %s was deleted meanwhile", namespace)
	}
	return &quotaTold{api.ViewQuota(q)}, err
}

func (a *API) addQuotaChanges(path string) {
	type createInput struct {
		ScopeOfNamespace
		Body QuotaForm
	}
	create := quotaOperation("createOrganizationQuota", http.MethodPost, path, "Give a namespace a quota")
	create.DefaultStatus = http.StatusCreated
	create.Description = "Limits the bytes, repositories and tags of the namespace. Add a limit of the type Reject, here or later: without one, nothing is refused. " +
		"Content that the namespace has is counted first, and until counted is true nothing is refused."
	add(a, auth.Operate, create, func(ctx context.Context, in *createInput) (*quotaTold, error) {
		o, err := in.Body.quota()
		if err == nil {
			err = a.catalog.CreateQuota(ctx, in.Namespace, o)
		}
		if err != nil {
			return nil, err
		}
		return a.counted(ctx, in.Namespace)
	})
	type changeInput struct {
		QuotaOfNamespace
		Body QuotaForm
	}
	change := quotaOperation("changeOrganizationQuota", http.MethodPut, path+"/{quota_id}", "Change a quota")
	change.Description = "Members that are absent stay as they are. A limit may be lower than what is used: nothing is deleted, but nothing can be added."
	add(a, auth.Operate, change, func(ctx context.Context, in *changeInput) (*quotaTold, error) {
		o, err := in.Body.quota()
		if err == nil {
			err = a.catalog.ChangeQuota(ctx, in.Namespace, in.ID, o)
		}
		if err != nil {
			return nil, err
		}
		q, err := a.quota(ctx, in.Namespace, in.ID)
		return &quotaTold{api.ViewQuota(q)}, err
	})
	remove := quotaOperation("deleteOrganizationQuota", http.MethodDelete, path+"/{quota_id}", "Take a namespace's quota away")
	remove.DefaultStatus = http.StatusNoContent
	add(a, auth.Operate, remove, func(ctx context.Context, in *QuotaOfNamespace) (*struct{}, error) {
		return nil, a.catalog.DeleteQuota(ctx, in.Namespace, in.ID)
	})
	recount := quotaOperation("recountOrganizationQuota", http.MethodPost, path+"/{quota_id}/recount", "Count the content of a namespace again")
	recount.Description = "Pushes go on meanwhile, and the quota holds with the old numbers. This is never needed, unless somebody has changed rows of the database by hand."
	add(a, auth.Operate, recount, func(ctx context.Context, in *QuotaOfNamespace) (*quotaTold, error) {
		if err := a.catalog.RecountQuota(ctx, in.Namespace, in.ID); err != nil {
			return nil, err
		}
		return a.counted(ctx, in.Namespace)
	})
}

func (a *API) addQuotaLimits(path string) {
	type createInput struct {
		QuotaOfNamespace
		Body QuotaLimitForm
	}
	create := quotaOperation("createOrganizationQuotaLimit", http.MethodPost, path, "Add a limit to a quota")
	create.DefaultStatus = http.StatusCreated
	add(a, auth.Operate, create, func(ctx context.Context, in *createInput) (*quotaTold, error) {
		if err := a.catalog.AddQuotaStep(ctx, in.Namespace, in.ID, in.Body.step()); err != nil {
			return nil, err
		}
		q, err := a.quota(ctx, in.Namespace, in.ID)
		return &quotaTold{api.ViewQuota(q)}, err
	})
	type limitTold struct{ Body api.QuotaLimit }
	path += "/{limit_id}"
	add(a, auth.Maintain, quotaOperation("getOrganizationQuotaLimit", http.MethodGet, path, "Get a limit of a quota"),
		func(ctx context.Context, in *QuotaLimitOfNamespace) (*limitTold, error) {
			q, err := a.quota(ctx, in.Namespace, in.ID)
			if err != nil {
				return nil, err
			}
			for _, s := range q.Steps {
				if s.ID == in.Limit {
					return &limitTold{api.ViewQuotaLimit(s)}, nil
				}
			}
			return nil, oci.Errorf(oci.NameUnknown, "quota %d has no limit %d", in.ID, in.Limit)
		})
	type changeInput struct {
		QuotaLimitOfNamespace
		Body QuotaLimitForm
	}
	add(a, auth.Operate, quotaOperation("changeOrganizationQuotaLimit", http.MethodPut, path, "Change a limit of a quota"),
		func(ctx context.Context, in *changeInput) (*quotaTold, error) {
			if err := a.catalog.ChangeQuotaStep(ctx, in.Namespace, in.ID, in.Limit, in.Body.step()); err != nil {
				return nil, err
			}
			q, err := a.quota(ctx, in.Namespace, in.ID)
			return &quotaTold{api.ViewQuota(q)}, err
		})
	remove := quotaOperation("deleteOrganizationQuotaLimit", http.MethodDelete, path, "Remove a limit from a quota")
	remove.DefaultStatus = http.StatusNoContent
	add(a, auth.Operate, remove, func(ctx context.Context, in *QuotaLimitOfNamespace) (*struct{}, error) {
		return nil, a.catalog.DeleteQuotaStep(ctx, in.Namespace, in.ID, in.Limit)
	})
}

// addQuotaList adds the operation that lists the quotas of all namespaces.
func (a *API) addQuotaList() {
	type input struct {
		Limit    int    `query:"limit" minimum:"1" default:"50" doc:"Most entries of a page. More than 100 counts as 100"`
		NextPage string `query:"next_page" doc:"Where to go on: next_page of the answer before"`
	}
	type list struct {
		Quotas   []api.QuotaView `json:"quotas" nullable:"false"`
		NextPage string          `json:"next_page,omitempty" doc:"Where the next page begins; missing on the last page"`
	}
	type output struct{ Body list }
	add(a, auth.Operate, huma.Operation{
		OperationID: "listQuotas", Method: http.MethodGet, Path: "/quota", Tags: []string{"quota"},
		Summary: "List the quotas of all namespaces, in the order of the namespaces' names",
	}, func(ctx context.Context, in *input) (*output, error) {
		var after string
		if _, err := parseCursor(in.NextPage, "quota", &after); err != nil {
			return nil, err
		}
		found, next, err := a.catalog.Quotas(ctx, after, min(in.Limit, 100))
		out := &output{list{Quotas: []api.QuotaView{}}}
		for _, q := range found {
			out.Body.Quotas = append(out.Body.Quotas, api.ViewQuota(q))
		}
		if next != "" {
			out.Body.NextPage = cursor("quota", next)
		}
		return out, err
	})
}
