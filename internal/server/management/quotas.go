package management

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/quota"
	"github.com/purser-registry/purser/internal/server"
)

// countWait is how long a request that makes a quota waits until the namespace's content is
// counted. If counting takes longer, a worker does it.
const countWait = 3 * time.Second

// addQuotas binds the operations on quotas of namespaces.
func (a *API) addQuotas() {
	serve(a, api.ListQuota, func(ctx context.Context, in *api.QuotaQuery) (*[]api.QuotaView, error) {
		q, some, err := a.quotas.Of(ctx, in.Namespace)
		out := []api.QuotaView{}
		if some {
			out = append(out, api.ViewQuota(q))
		}
		return &out, err
	})
	serve(a, api.GetQuota, func(ctx context.Context, in *api.QuotaItem) (*api.QuotaView, error) { return a.quota(ctx, *in) })
	serve(a, api.CreateQuota, func(ctx context.Context, in *api.QuotaNew) (*api.QuotaView, error) {
		o, err := newQuota(in.Body)
		if err == nil {
			err = a.quotas.Create(ctx, in.Namespace, o)
		}
		if err != nil {
			return nil, err
		}
		return a.counted(ctx, in.Namespace)
	})
	serve(a, api.ChangeQuota, func(ctx context.Context, in *api.QuotaChange) (*api.QuotaView, error) {
		o, err := newQuota(in.Body)
		if err == nil {
			err = a.quotas.Change(ctx, in.Namespace, in.ID, o)
		}
		if err != nil {
			return nil, err
		}
		return a.quota(ctx, in.QuotaItem)
	})
	serve(a, api.DeleteQuota, func(ctx context.Context, in *api.QuotaItem) (*api.None, error) {
		return nil, a.quotas.Delete(ctx, in.Namespace, in.ID)
	})
	serve(a, api.RecountQuota, func(ctx context.Context, in *api.QuotaItem) (*api.QuotaView, error) {
		if err := a.quotas.Recount(ctx, in.Namespace, in.ID); err != nil {
			return nil, err
		}
		return a.counted(ctx, in.Namespace)
	})
	a.addQuotaLimits()
	serve(a, api.ListQuotas, a.listQuotas)
}

// addQuotaLimits binds the operations on the limits of quotas.
func (a *API) addQuotaLimits() {
	serve(a, api.ListQuotaLimits, func(ctx context.Context, in *api.QuotaItem) (*[]api.QuotaLimit, error) {
		q, err := a.quota(ctx, *in)
		if err != nil {
			return nil, err
		}
		return &q.Limits, nil
	})
	serve(a, api.AddQuotaLimit, func(ctx context.Context, in *api.QuotaLimitNew) (*api.QuotaView, error) {
		if err := a.quotas.AddStep(ctx, in.Namespace, in.ID, quotaStep(in.Body)); err != nil {
			return nil, err
		}
		return a.quota(ctx, in.QuotaItem)
	})
	serve(a, api.GetQuotaLimit, func(ctx context.Context, in *api.QuotaLimitItem) (*api.QuotaLimit, error) {
		q, err := a.quota(ctx, in.QuotaItem)
		if err != nil {
			return nil, err
		}
		for _, l := range q.Limits {
			if l.ID == in.Limit {
				return &l, nil
			}
		}
		return nil, oci.Errorf(oci.NameUnknown, "quota %d has no limit %d", in.ID, in.Limit)
	})
	serve(a, api.ChangeQuotaLimit, func(ctx context.Context, in *api.QuotaLimitChange) (*api.QuotaView, error) {
		if err := a.quotas.ChangeStep(ctx, in.Namespace, in.ID, in.Limit, quotaStep(in.Body)); err != nil {
			return nil, err
		}
		return a.quota(ctx, in.QuotaItem)
	})
	serve(a, api.DeleteQuotaLimit, func(ctx context.Context, in *api.QuotaLimitItem) (*api.None, error) {
		return nil, a.quotas.DeleteStep(ctx, in.Namespace, in.ID, in.Limit)
	})
}

// quota returns a quota of a namespace.
func (a *API) quota(ctx context.Context, in api.QuotaItem) (*api.QuotaView, error) {
	q, some, err := a.quotas.Of(ctx, in.Namespace)
	if err == nil && (!some || q.ID != in.ID) {
		err = oci.Errorf(oci.NameUnknown, "namespace %s has no quota %d", in.Namespace, in.ID)
	}
	out := api.ViewQuota(q)
	return &out, err
}

// counted waits a moment until the content of namespaces is counted, and returns a quota.
func (a *API) counted(ctx context.Context, namespace string) (*api.QuotaView, error) {
	wait, cancel := context.WithTimeout(ctx, countWait)
	defer cancel()
	if _, err := a.quotas.Count(wait); err != nil && wait.Err() == nil {
		return nil, err
	}
	q, some, err := a.quotas.Of(ctx, namespace)
	if err == nil && !some {
		err = oci.Errorf(oci.NameUnknown, "the quota of namespace %s was deleted meanwhile", namespace)
	}
	out := api.ViewQuota(q)
	return &out, err
}

// listQuotas lists the quotas of all namespaces.
func (a *API) listQuotas(ctx context.Context, in *api.QuotaPage) (*api.QuotaList, error) {
	var after string
	if _, err := parseCursor(in.NextPage, "quota", &after); err != nil {
		return nil, err
	}
	found, next, err := a.quotas.List(ctx, after, min(in.Limit, 100))
	out := &api.QuotaList{Quotas: []api.QuotaView{}}
	for _, q := range found {
		out.Quotas = append(out.Quotas, api.ViewQuota(q))
	}
	if next != "" {
		out.NextPage = cursor("quota", next)
	}
	return out, err
}

func quotaStep(f api.QuotaLimitForm) quota.Step {
	return quota.Step{Kind: quota.Kind(f.Type), Percent: cmp.Or(f.Threshold, f.Percent)}
}

// newQuota reads a quota in a request.
func newQuota(f api.QuotaForm) (o quota.Values, err error) {
	o = quota.Values{Bytes: f.LimitBytes, Repositories: f.LimitRepositories, Tags: f.LimitTags}
	if f.Limits != nil {
		o.Steps = []quota.Step{}
		for _, l := range f.Limits {
			o.Steps = append(o.Steps, quotaStep(l))
		}
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
