package serve

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
)

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
