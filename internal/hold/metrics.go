package hold

import (
	"context"
	"fmt"
	"math"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// maxSeries is how many reporters have a metric of their own, those whose holds end first.
const maxSeries = 1000

type metrics struct {
	reports    prometheus.Histogram
	reporters  *prometheus.GaugeVec
	left       *prometheus.GaugeVec
	digests    prometheus.Gauge
	unresolved prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) *metrics {
	factory := promauto.With(reg)
	return &metrics{
		reports: factory.NewHistogram(prometheus.HistogramOpts{
			Name: "purser_hold_report_seconds", Help: "Time that a report of held digests took.",
			Buckets: []float64{.01, .05, .1, .25, .5, 1, 2, 5, 20},
		}),
		reporters: factory.NewGaugeVec(prometheus.GaugeOpts{
			Name: "purser_hold_reporters", Help: "Reporters of held digests, by state: live, silent (no report for half of the lease) or ended.",
		}, []string{"state"}),
		left: factory.NewGaugeVec(prometheus.GaugeOpts{
			Name: "purser_hold_seconds_left", Help: "Time until the holds of a reporter end, unless it reports again. Negative: they have ended.",
		}, []string{"namespace", "reporter"}),
		digests: factory.NewGauge(prometheus.GaugeOpts{
			Name: "purser_held_digests", Help: "Digests that live reporters hold. A digest that two reporters hold counts twice.",
		}),
		unresolved: factory.NewGauge(prometheus.GaugeOpts{
			Name: "purser_hold_unresolved_images", Help: "Images that live reporters found in use and could not resolve to digests in their last whole lists.",
		}),
	}
}

// measure updates the metrics of the reporters. If nobody knows how they are, the metrics aren't
// numbers (NaN), rather than the last ones.
func (h *Holds) measure(ctx context.Context) error {
	err := h.measureReporters(ctx)
	if err != nil {
		h.metrics.left.Reset()
		for _, state := range []string{Live, Silent, Ended} {
			h.metrics.reporters.WithLabelValues(state).Set(math.NaN())
		}
		h.metrics.digests.Set(math.NaN())
		h.metrics.unresolved.Set(math.NaN())
	}
	return err
}

func (h *Holds) measureReporters(ctx context.Context) error {
	rows, err := h.db.Pool.Query(ctx, `
		SELECT COALESCE(n.name, ''), r.name,
			CASE WHEN r.expires_at <= now() THEN 'ended' WHEN r.reported_at + r.lease / 2 <= now() THEN 'silent' ELSE 'live' END,
			r.digests, r.unresolved, extract(epoch FROM r.expires_at - now())::float8
		FROM holdreporters r LEFT JOIN top_level_namespaces n ON n.id = r.namespace_id
		WHERE n.deleted_at IS NULL ORDER BY r.expires_at`)
	if err != nil {
		return fmt.Errorf("reading the reporters of holds: %w", err)
	}
	count := map[string]float64{Live: 0, Silent: 0, Ended: 0}
	var held, notResolved float64
	h.metrics.left.Reset()
	var namespace, name, state string
	var digests, unresolved int64
	var left float64
	series := 0
	_, err = pgx.ForEachRow(rows, []any{&namespace, &name, &state, &digests, &unresolved, &left}, func() error {
		count[state]++
		if state != Ended {
			held += float64(digests)
			notResolved += float64(unresolved)
		}
		if series++; series <= maxSeries {
			h.metrics.left.WithLabelValues(namespace, name).Set(left)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("reading the reporters of holds: %w", err)
	}
	for state, n := range count {
		h.metrics.reporters.WithLabelValues(state).Set(n)
	}
	h.metrics.digests.Set(held)
	h.metrics.unresolved.Set(notResolved)
	return nil
}
