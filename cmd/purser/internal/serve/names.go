package serve

import (
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server"
)

// namingLabels are the labels of metrics whose values name what is stored, and who uses it.
var namingLabels = []string{"namespace", "reporter", "repository", "account", "robot", "team", "tag", "webhook"}

// joined says how gauges with such labels become one without them. A gauge that isn't listed is
// left out then. Counters are added up.
var joined = map[string]func(a, b float64) float64{
	"purser_quota_used_ratio":  func(a, b float64) float64 { return max(a, b) },
	"purser_hold_seconds_left": func(a, b float64) float64 { return min(a, b) },
}

// nameless is a gatherer whose metrics name nothing that is stored and nobody who uses it.
type nameless struct{ prometheus.Gatherer }

// Gather implements prometheus.Gatherer.
func (g nameless) Gather() ([]*dto.MetricFamily, error) {
	families, err := g.Gatherer.Gather()
	list := make([]*dto.MetricFamily, 0, len(families))
	for _, f := range families {
		if !slices.ContainsFunc(f.Metric, func(m *dto.Metric) bool { return slices.ContainsFunc(m.Label, isNaming) }) {
			list = append(list, f)
		} else if metrics := join(f); metrics != nil {
			list = append(list, &dto.MetricFamily{Name: f.Name, Help: f.Help, Type: f.Type, Unit: f.Unit, Metric: metrics})
		}
	}
	return list, err
}

func isNaming(label *dto.LabelPair) bool { return slices.Contains(namingLabels, label.GetName()) }

// join returns the metrics of a family without the labels that name something. It returns nil if
// it isn't known how to join them.
func join(f *dto.MetricFamily) []*dto.Metric {
	combine := joined[f.GetName()]
	isCounter := f.GetType() == dto.MetricType_COUNTER
	if !isCounter && (combine == nil || f.GetType() != dto.MetricType_GAUGE) {
		return nil
	}
	all := map[string]*dto.Metric{}
	for _, m := range f.Metric {
		labels := slices.DeleteFunc(slices.Clone(m.Label), isNaming) // other metrics have the same slice
		var key strings.Builder
		for _, l := range labels {
			key.WriteString(l.GetName() + "\xff" + l.GetValue() + "\xff")
		}
		before, ok := all[key.String()]
		switch {
		case !ok && isCounter:
			all[key.String()] = &dto.Metric{Label: labels, Counter: &dto.Counter{Value: new(m.GetCounter().GetValue())}}
		case !ok:
			all[key.String()] = &dto.Metric{Label: labels, Gauge: &dto.Gauge{Value: new(m.GetGauge().GetValue())}}
		case isCounter:
			*before.Counter.Value += m.GetCounter().GetValue()
		default:
			*before.Gauge.Value = combine(before.GetGauge().GetValue(), m.GetGauge().GetValue())
		}
	}
	list := make([]*dto.Metric, 0, len(all))
	for _, key := range slices.Sorted(maps.Keys(all)) {
		list = append(list, all[key])
	}
	return list
}

// metricsPage answers /metrics. The metrics name namespaces and reporters only on this machine, or
// to who logs in as an administrator of the registry.
type metricsPage struct {
	named, nameless http.Handler
	local           bool                         // only this machine reaches the listener
	control         atomic.Pointer[auth.Control] // nil: nobody can log in
}

func newMetricsPage(reg *prometheus.Registry, local bool) *metricsPage {
	o := promhttp.HandlerOpts{Registry: reg}
	return &metricsPage{named: promhttp.HandlerFor(reg, o), nameless: promhttp.HandlerFor(nameless{reg}, o), local: local}
}

// ServeHTTP implements http.Handler.
func (p *metricsPage) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	control := p.control.Load()
	switch {
	case p.local && server.PassedOn(r) == "":
		p.named.ServeHTTP(w, r)
	case control == nil || r.Header.Get("Authorization") == "":
		p.nameless.ServeHTTP(w, r)
	default:
		if err := mayOperate(control, r); err != nil {
			refuse(w, err)
			return
		}
		p.named.ServeHTTP(w, r)
	}
}

// mayOperate returns an error unless the request has the credentials of an administrator of the
// registry.
func mayOperate(control *auth.Control, r *http.Request) error {
	address := server.ClientAddress(r.RemoteAddr)
	ctx := audit.WithSource(r.Context(), audit.Source{Address: address, UserAgent: server.Bounded(r.UserAgent())})
	principal, err := control.Authenticate(r.WithContext(ctx), auth.From{Address: address})
	if err != nil {
		return err
	}
	return control.Authorize(ctx, principal, auth.Operate, auth.Registry)
}

// refuse answers with the status of an error that is for the client.
func refuse(w http.ResponseWriter, err error) {
	e, ok := errors.AsType[*oci.Error](err)
	if !ok {
		http.Error(w, "the credentials can't be checked at the moment", http.StatusServiceUnavailable)
		return
	}
	if e.HTTPStatus() == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Basic realm="Purser", charset="UTF-8"`)
	}
	http.Error(w, e.Error(), e.HTTPStatus())
}
