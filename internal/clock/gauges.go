package clock

import (
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type gauges struct{ offset, resting prometheus.Gauge }

func newGauges(reg prometheus.Registerer) *gauges {
	factory := promauto.With(reg)
	return &gauges{
		offset: factory.NewGauge(prometheus.GaugeOpts{Name: "purser_clock_offset_seconds",
			Help: "How far the database's clock is ahead of this process's clock. NaN if it couldn't be read."}),
		resting: factory.NewGauge(prometheus.GaugeOpts{Name: "purser_clock_deletion_resting",
			Help: "1 while nothing is deleted for its age, because clocks disagree or are in doubt; else 0. NaN if they couldn't be read."}),
	}
}

func (g *gauges) set(offset time.Duration, resting bool) {
	g.offset.Set(offset.Seconds())
	g.resting.Set(0)
	if resting {
		g.resting.Set(1)
	}
}

func (g *gauges) unknown() {
	g.offset.Set(math.NaN())
	g.resting.Set(math.NaN())
}
