package serve

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/purser-registry/purser/internal/quota"
	"github.com/purser-registry/purser/internal/webhook"
	"github.com/purser-registry/purser/internal/worker"
)

const (
	// quotaLook is how often the worker looks which quotas are to be counted or told of.
	quotaLook = time.Minute
	// quotaSeries limits the namespaces that the metric of quotas shows.
	quotaSeries = 1000
)

// quotaWorker makes the worker that counts the content of namespaces with a new quota, tells the
// webhook of the settings (autoprune.webhook) which namespaces reach their limits, and measures
// how full quotas are. Any number of processes may run it.
func quotaWorker(quotas *quota.Keeper, notices *webhook.Sender, p dependencies, loops *worker.Metrics) func(context.Context) error {
	ratio := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "purser_quota_used_ratio",
		Help: "Which part of a namespace's quota is used, at the last look: of bytes, repositories or tags. Of the 1,000 namespaces that are nearest to a limit.",
	}, []string{"namespace", "quota"})
	unshown := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "purser_quota_namespaces_unshown",
		Help: "Namespaces with a quota that purser_quota_used_ratio leaves out: each is farther from its limits than all that it shows.",
	})
	p.metrics.MustRegister(ratio, unshown)
	tell := func(ctx context.Context, tx pgx.Tx, n quota.Notice) error {
		event := "quota.soft"
		if n.Kind == quota.Reject {
			event = "quota.hard"
		}
		return notices.Queue(ctx, tx, webhook.Event{Type: event, Time: time.Now(), Data: n})
	}
	batch := func(ctx context.Context) (bool, error) {
		more, err := quotas.Count(ctx)
		if err != nil {
			return false, err
		}
		told, err := quotas.Tell(ctx, tell)
		for _, n := range told {
			p.log.WarnContext(ctx, "a namespace reaches its quota", "namespace", n.Namespace, "quota", n.Quota, "type", n.Kind,
				"threshold_percent", n.Percent, "limit", n.Limit, "used", n.Used)
		}
		if len(told) > 0 {
			notices.Wake()
		}
		return more, err
	}
	return worker.New(worker.Options{
		Name: "quotas", Log: p.log, Metrics: loops, Idle: quotaLook,
		Batch: func(ctx context.Context) (bool, error) {
			more, err := batch(ctx)
			return more, errors.Join(err, measureQuotas(ctx, quotas, ratio, unshown))
		},
	}).Run
}

// measureQuotas updates the metrics of how full quotas are, and of how many it doesn't show. If that
// can't be known, the first has no series, rather than the last ones, and the other is NaN.
func measureQuotas(ctx context.Context, quotas *quota.Keeper, ratio *prometheus.GaugeVec, unshown prometheus.Gauge) error {
	type limit struct{ namespace, what string }
	now := map[limit]float64{}
	more, err := quotas.Ratios(ctx, quotaSeries, func(namespace, what string, used float64) { now[limit{namespace, what}] = used })
	ratio.Reset()
	if err != nil {
		unshown.Set(math.NaN())
		return err
	}
	unshown.Set(float64(more))
	for l, used := range now {
		ratio.WithLabelValues(l.namespace, l.what).Set(used)
	}
	return nil
}
