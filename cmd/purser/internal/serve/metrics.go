package serve

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/db"
)

// newRegistry makes the Prometheus registry of this process, with metrics of the Go
// runtime, the process and the build.
func newRegistry() *prometheus.Registry {
	b := command.ReadBuild()
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "purser_build_info", Help: "The version of this program, in labels; always 1.",
		ConstLabels: prometheus.Labels{"version": b.Version, "revision": b.Revision},
	})
	info.Set(1)
	reg := prometheus.NewRegistry()
	reg.MustRegister(info, collectors.NewGoCollector(), collectors.NewBuildInfoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return reg
}

// poolCollector reports metrics of a pool of database connections.
type poolCollector struct{ pool *db.Pool }

func poolDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("purser_db_pool_"+name, help, labels, nil)
}

var (
	poolConnections = poolDesc("connections", "Connections by state: in_use, idle or connecting.", "state")
	poolMax         = poolDesc("max_connections", "The most connections that the pool opens.")
	poolAcquired    = poolDesc("acquires_total", "Times that a connection was taken from the pool.")
	poolWaited      = poolDesc("waits_total", "Times that a connection had to be waited for or opened.")
	poolWaitSeconds = poolDesc("wait_seconds_total", "Time spent on waiting for connections.")
	poolCanceled    = poolDesc("canceled_acquires_total", "Times that the wait for a connection was given up.")
	poolOpened      = poolDesc("opened_total", "Connections opened.")
	poolRefused     = poolDesc("refused_total", "Connections that PostgreSQL refused, since the server, the database or the role may have no more; statements waited for others then.")
)

// Describe implements prometheus.Collector.
func (c poolCollector) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, ch) }

// Collect implements prometheus.Collector.
func (c poolCollector) Collect(ch chan<- prometheus.Metric) {
	s := c.pool.Stat()
	gauge := func(d *prometheus.Desc, v int32, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), labels...)
	}
	counter := func(d *prometheus.Desc, v float64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v)
	}
	gauge(poolConnections, s.AcquiredConns(), "in_use")
	gauge(poolConnections, s.IdleConns(), "idle")
	gauge(poolConnections, s.ConstructingConns(), "connecting")
	gauge(poolMax, s.MaxConns())
	counter(poolAcquired, float64(s.AcquireCount()))
	waits, waited := c.pool.Waits()
	counter(poolWaited, float64(waits))
	counter(poolWaitSeconds, waited.Seconds())
	counter(poolCanceled, float64(s.CanceledAcquireCount()))
	counter(poolOpened, float64(s.NewConnsCount()))
	counter(poolRefused, float64(c.pool.Refused()))
}

// tracingWanted says whether OpenTelemetry's environment variables ask for traces.
func tracingWanted() bool {
	if strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true") || os.Getenv("OTEL_TRACES_EXPORTER") == "none" {
		return false
	}
	return os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != ""
}

// startTracing exports traces over OTLP/HTTP if the environment variables ask for it; `on`
// says whether they do. The returned `stop`, never nil, sends the remaining traces and ends
// the export.
func startTracing(ctx context.Context, log *slog.Logger) (on bool, stop func(), err error) {
	stop = func() {}
	if !tracingWanted() {
		return false, stop, nil
	}
	exporter, err := otlptracehttp.New(ctx)
	if err != nil {
		return false, stop, fmt.Errorf("exporting traces: %w (see OTEL_EXPORTER_OTLP_ENDPOINT)", err)
	}
	// Later options override earlier ones. The environment comes last, so that
	// OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES override the attributes given here.
	res, err := resource.New(ctx, resource.WithTelemetrySDK(),
		resource.WithAttributes(attribute.String("service.name", "purser"), attribute.String("service.version", command.ReadBuild().Version)),
		resource.WithFromEnv())
	if err != nil {
		return false, stop, fmt.Errorf("describing this process for traces: %w", err)
	}
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(res))
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Warn("exporting traces failed", "error", err) }))
	otel.SetTracerProvider(provider)
	otel.SetTextMapPropagator(propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{}))
	return true, func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := provider.Shutdown(ctx); err != nil {
			log.Warn("sending the last traces failed", "error", err)
		}
	}, nil
}
