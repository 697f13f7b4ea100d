package server_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/server/servertest"
)

var attributeNames = regexp.MustCompile("`([a-z_]+(?:\\.[a-z_]+)+)`")

// TestTracesAreDocumented: docs/tracing.md names the attributes that the spans of requests have, and no
// others, and nothing that clients keep secret is in a span. The test isn't parallel, since it
// replaces the tracer provider of the process.
func TestTracesAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/tracing.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]bool{}
	for line := range strings.Lines(string(page)) {
		if first, _, ok := strings.Cut(strings.TrimPrefix(line, "| "), " |"); ok && strings.HasPrefix(line, "| `") {
			for _, m := range attributeNames.FindAllStringSubmatch(first, -1) {
				documented[m[1]] = false
			}
		}
	}
	spans := tracetest.NewSpanRecorder()
	before := otel.GetTracerProvider()
	otel.SetTracerProvider(trace.NewTracerProvider(trace.WithSpanProcessor(spans)))
	defer otel.SetTracerProvider(before)
	r := setup(t, func(o *servertest.Options) { o.Server.Tracing, o.Access = true, &auth.Options{} })
	r.AddAccount(t, "root", true)
	root := r.With(servertest.As("root"))
	root.Put(t, "acme/app", "v1", root.Simple(t, "acme/app", "told-in-a-body", nil))
	root.Do(t, "GET", "/v2/acme/app/manifests/v1?x=told-in-a-query", "", "X-Told", "told-in-a-header")
	r.Do(t, "BREW", "/v2/", "")

	var names []string
	eventually(t, "the last request's span", func() bool {
		names = names[:0]
		for _, s := range spans.Ended() {
			names = append(names, s.Name())
		}
		return slices.Contains(names, "HTTP")
	})
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if !slices.Contains([]string{"GET", "HEAD", "HTTP", "POST", "PUT", "batch", "query"}, name) {
			t.Errorf("a span is called %s", name)
		}
	}
	secrets := []string{"told-in-a-", servertest.PasswordOf("root"), strings.TrimPrefix(servertest.As("root")[1], "Basic ")}
	for _, s := range spans.Ended() {
		for _, a := range s.Attributes() {
			if _, ok := documented[string(a.Key)]; !ok {
				t.Errorf("docs/tracing.md doesn't name the attribute %s of %s", a.Key, s.Name())
			}
			documented[string(a.Key)] = true
			for _, secret := range secrets {
				if strings.Contains(a.Value.String(), secret) {
					t.Errorf("the attribute %s of %s has %q: %s", a.Key, s.Name(), secret, a.Value)
				}
			}
		}
		if len(s.Links())+len(s.Events()) > 0 {
			t.Errorf("%s has links or events: %v %v", s.Name(), s.Links(), s.Events())
		}
	}
	for name, found := range documented {
		if !found {
			t.Errorf("docs/tracing.md names the attribute %s, which no span has", name)
		}
	}
}
