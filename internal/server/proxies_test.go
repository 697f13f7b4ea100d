package server_test

import (
	"net/netip"
	"strings"
	"testing"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/purser-registry/purser/internal/limit"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// behindProxies trusts proxies on this machine.
func behindProxies(o *servertest.Options) {
	o.Server.Proxies = limit.NewProxies([]netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, limit.AnyForwarded)
}

// TestLimitsBehindProxies: several clients send requests through one trusted proxy. The limits
// per client must apply to each client that the proxy's header names, and not to the proxy.
func TestLimitsBehindProxies(t *testing.T) {
	t.Parallel()
	r := setup(t, func(o *servertest.Options) { o.Distribution.ClientUploads = 1 }, behindProxies)
	const begin = "/v2/a/blobs/uploads/"
	r.Do(t, "POST", begin, "", "X-Forwarded-For", "198.51.100.1").Want(t, 202, "")
	r.Do(t, "POST", begin, "", "X-Forwarded-For", "198.51.100.1").Want(t, 429, oci.TooManyRequests)
	r.Do(t, "POST", begin, "", "X-Forwarded-For", "203.0.113.9, 198.51.100.1").Want(t, 429, oci.TooManyRequests)
	r.Do(t, "POST", begin, "", "X-Forwarded-For", "198.51.100.2").Want(t, 202, "")
	r.Do(t, "POST", begin, "", "Forwarded", `for="[2001:db8::1]:80"`).Want(t, 202, "")
	r.Do(t, "POST", begin, "", "Forwarded", `for="[2001:db8::2]:80"`).Want(t, 429, oci.TooManyRequests) // in the same /64 network
}

// TestForgedHeaders: a client that isn't a trusted proxy sends the headers of proxies. They must
// change neither the client whose limits apply, nor the URLs in answers, nor the check of a
// page's origin, nor the log.
func TestForgedHeaders(t *testing.T) {
	t.Parallel()
	for what, networks := range map[string][]netip.Prefix{
		"no proxies": nil, "others": {netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("198.51.100.0/24")},
	} {
		r := setup(t, func(o *servertest.Options) {
			o.Server.Proxies = limit.NewProxies(networks, limit.AnyForwarded)
			o.Server.ExternalURL = "https://registry.example.com"
			o.Distribution.ClientUploads = 1
		})
		const begin = "/v2/a/blobs/uploads/"
		location, _, _ := r.under(t, "", "POST", begin, "", "X-Forwarded-For", "198.51.100.1", "X-Forwarded-Proto", "https",
			"X-Forwarded-Host", "registry.example.com", "Forwarded", "for=198.51.100.1;host=registry.example.com;proto=https")
		if !strings.HasPrefix(location, begin) {
			t.Errorf("%s: the upload is at %s", what, location)
		}
		for _, forged := range [][]string{
			{"X-Forwarded-For", "198.51.100.2"}, {"X-Forwarded-For", "10.0.0.1"}, {"Forwarded", "for=198.51.100.3"}, {"X-Real-Ip", "198.51.100.4"},
			{"X-Client-Ip", "198.51.100.5"}, {"True-Client-Ip", "198.51.100.6"}, {"Cf-Connecting-Ip", "198.51.100.7"},
		} {
			r.Do(t, "POST", begin, "", forged...).Want(t, 429, oci.TooManyRequests)
		}
		r.Do(t, "POST", begin, "", "Origin", "https://evil.example", "Sec-Fetch-Site", "cross-site", "X-Forwarded-Host", "evil.example",
			"X-Forwarded-Proto", "https", "Forwarded", "host=evil.example;proto=https").Want(t, 403, oci.Denied)
		eventually(t, "nine lines", func() bool { return len(r.Log.Records(t, "request")) >= 9 })
		for _, line := range r.Log.Records(t, "request") {
			if line["client.address"] != "127.0.0.1" || line["network.peer.address"] != nil {
				t.Errorf("%s: an address is believed: %v", what, line)
			}
		}
	}
}

// TestHeadersThatDisagree: a trusted proxy sends both X-Forwarded-For and Forwarded, and they
// name different clients. The server must believe neither header. It must log one warning,
// which names the setting that tells the server which header to use.
func TestHeadersThatDisagree(t *testing.T) {
	t.Parallel()
	r := setup(t, behindProxies)
	for range 3 {
		r.Do(t, "GET", "/v2/", "", "X-Forwarded-For", "198.51.100.1", "Forwarded", "for=198.51.100.2").Want(t, 200, "")
	}
	eventually(t, "three lines", func() bool { return len(r.Log.Records(t, "request")) == 3 })
	for _, line := range r.Log.Records(t, "request") {
		if line["client.address"] != "127.0.0.1" {
			t.Errorf("an address is believed: %v", line)
		}
	}
	if n := len(r.Log.Records(t, "a proxy's request has X-Forwarded-For and Forwarded, which name different clients, so the proxy counts as the client: set http.forwarded_header to the one that the proxy writes")); n != 1 {
		t.Errorf("%d warnings", n)
	}
}

// TestTraceOfForeignAddress: a client that isn't a trusted proxy sends X-Forwarded-For. The
// trace must have the address from which the client really connects. The test isn't parallel,
// since it replaces the tracer provider of the process.
func TestTraceOfForeignAddress(t *testing.T) {
	spans := tracetest.NewSpanRecorder()
	before := otel.GetTracerProvider()
	otel.SetTracerProvider(trace.NewTracerProvider(trace.WithSpanProcessor(spans)))
	defer otel.SetTracerProvider(before)
	r := setup(t, func(o *servertest.Options) { o.Server.Tracing = true })
	r.Do(t, "GET", "/v2/", "", "X-Forwarded-For", "198.51.100.1").Want(t, 200, "")
	eventually(t, "a span", func() bool { return len(spans.Ended()) > 0 })
	for _, s := range spans.Ended() {
		for _, a := range s.Attributes() {
			if a.Key == "client.address" && a.Value.AsString() != "127.0.0.1" {
				t.Errorf("%s", a.Value.AsString())
			}
		}
	}
}
