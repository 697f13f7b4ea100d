package serve

import (
	"encoding/pem"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.opentelemetry.io/otel"
)

// TestTracesFollowTheEnvironment: traces go where the variables of docs/tracing.md say, or nowhere. The
// test isn't parallel, since it sets variables, and the tracer provider of the process.
func TestTracesFollowTheEnvironment(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	for _, off := range []map[string]string{
		{},
		{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "TRUE"},
		{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:1", "OTEL_TRACES_EXPORTER": "none"},
	} {
		t.Run("off", func(t *testing.T) {
			for name, value := range off {
				t.Setenv(name, value)
			}
			if on, stop, err := startTracing(t.Context(), log); on || stop == nil || err != nil {
				t.Errorf("%v: on %v, %v", off, on, err)
			}
		})
	}
	received := make(chan string, 10)
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body) //nolint:errcheck // the test sees what is missing
		received <- r.URL.Path + " " + r.Header.Get("X-Team") + " " + string(body)
		w.Header().Set("Connection", "close")
	}))
	defer collector.Close()
	before, propagator, handler := otel.GetTracerProvider(), otel.GetTextMapPropagator(), otel.GetErrorHandler()
	defer func() {
		otel.SetTracerProvider(before)
		otel.SetTextMapPropagator(propagator)
		otel.SetErrorHandler(handler)
	}()
	t.Run("on", func(t *testing.T) {
		for name, value := range map[string]string{
			"OTEL_EXPORTER_OTLP_ENDPOINT": collector.URL + "/base", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json", "OTEL_EXPORTER_OTLP_HEADERS": "x-team=a%20b",
			"OTEL_RESOURCE_ATTRIBUTES": "service.instance.id=registry-1", "OTEL_TRACES_SAMPLER": "always_on",
		} {
			t.Setenv(name, value)
		}
		on, stop, err := startTracing(t.Context(), log)
		if !on || err != nil {
			t.Fatalf("on %v, %v", on, err)
		}
		_, span := otel.Tracer("test").Start(t.Context(), "the span")
		span.End()
		stop() // sends what waits
		got := <-received
		for _, text := range []string{"/base/v1/traces a b ", `"the span"`, `"purser"`, `"registry-1"`, `"service.version"`} {
			if !strings.Contains(got, text) {
				t.Errorf("the collector got no %s: %s", text, got)
			}
		}
	})
	secure := httptest.NewTLSServer(nil)
	defer secure.Close()
	certificate := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(certificate, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{"OTEL_EXPORTER_OTLP_CERTIFICATE": certificate, "OTEL_RESOURCE_ATTRIBUTES": "nothing"} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL)
			t.Setenv(name, value)
			if _, stop, err := startTracing(t.Context(), log); err == nil || stop == nil {
				t.Error("a server starts with it")
			}
		})
	}
}
