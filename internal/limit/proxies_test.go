package limit_test

import (
	"net/http"
	"net/netip"
	"testing"

	"github.com/purser-registry/purser/internal/limit"
)

// proxies returns Proxies that trust 10.0.0.0/8, 127.0.0.0/8 and 2001:db8:f::/48.
func proxies(header limit.ForwardedHeader) *limit.Proxies {
	return limit.NewProxies([]netip.Prefix{
		netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("2001:db8:f::/48"),
	}, header)
}

// request returns a request from the address `remote`. `headers` are names of headers, each
// followed by the header's value.
func request(remote string, headers ...string) *http.Request {
	r := &http.Request{RemoteAddr: remote, Header: http.Header{}}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	return r
}

const (
	xff = "X-Forwarded-For"
	fwd = "Forwarded"
)

// Requests come through proxies with various headers. The test expects that only entries which
// trusted proxies have written determine the client.
func TestClientBehindProxies(t *testing.T) {
	t.Parallel()
	const proxy = "10.0.0.1:4000"
	for _, c := range []struct {
		what    string
		remote  string
		headers []string
		want    string
	}{
		{"no header", proxy, nil, proxy},
		{"a client of its own", "192.0.2.9:4000", nil, "192.0.2.9:4000"},
		{"a client that says it is another", "192.0.2.9:4000", []string{xff, "198.51.100.1", fwd, "for=198.51.100.1"}, "192.0.2.9:4000"},
		{"a proxy as IPv4 in IPv6", "[::ffff:10.0.0.1]:4000", []string{xff, "198.51.100.1"}, "198.51.100.1:0"},
		{"a proxy with a zone", "[2001:db8:f::1%eth0]:4000", []string{xff, "198.51.100.1"}, "198.51.100.1:0"},
		{"one address", proxy, []string{xff, "198.51.100.1"}, "198.51.100.1:0"},
		{"what the client wrote stands to the left", proxy, []string{xff, "203.0.113.5, 198.51.100.1"}, "198.51.100.1:0"},
		{"several proxies", proxy, []string{xff, "203.0.113.5,198.51.100.1, 10.9.9.9 ,127.0.0.1"}, "198.51.100.1:0"},
		{"only proxies", proxy, []string{xff, "10.1.1.1, 10.2.2.2"}, "10.1.1.1:0"},
		{"several lines", proxy, []string{xff, "203.0.113.5", xff, "198.51.100.1", xff, "10.9.9.9"}, "198.51.100.1:0"},
		{"a port", proxy, []string{xff, "198.51.100.1:8080"}, "198.51.100.1:8080"},
		{"IPv6", proxy, []string{xff, "2001:db8::1"}, "[2001:db8::1]:0"},
		{"IPv6 in brackets", proxy, []string{xff, "[2001:db8::1]"}, "[2001:db8::1]:0"},
		{"IPv6 with a port", proxy, []string{xff, "[2001:db8::1]:8080"}, "[2001:db8::1]:8080"},
		{"IPv6 with a zone", proxy, []string{xff, "fe80::1%eth0"}, "[fe80::1]:0"},
		{"IPv4 in IPv6", proxy, []string{xff, "::ffff:198.51.100.1"}, "198.51.100.1:0"},
		{"quotes", proxy, []string{xff, `"[2001:db8::1]:80"`}, "[2001:db8::1]:80"},
		{"unknown", proxy, []string{xff, "203.0.113.5, unknown"}, proxy},
		{"unknown behind a proxy", proxy, []string{xff, "203.0.113.5, unknown, 10.9.9.9"}, "10.9.9.9:0"},
		{"unknown to the left", proxy, []string{xff, "unknown, 198.51.100.1"}, "198.51.100.1:0"},
		{"an empty header", proxy, []string{xff, ""}, proxy},
		{"an empty entry", proxy, []string{xff, "203.0.113.5, "}, proxy},
		{"a name", proxy, []string{xff, "203.0.113.5, example.com"}, proxy},
		{"a socket", proxy, []string{xff, "203.0.113.5, unix:"}, proxy},
		{"an octet too large", proxy, []string{xff, "203.0.113.5, 300.1.1.1"}, proxy},
		{"leading zeros", proxy, []string{xff, "198.051.100.001"}, proxy},
		{"a port too large", proxy, []string{xff, "198.51.100.1:70000"}, proxy},
		{"a bracket too few", proxy, []string{xff, "[2001:db8::1"}, proxy},
		{"a bracket too many", proxy, []string{xff, "[[2001:db8::1]]:80"}, proxy},
		{"IPv4 in brackets", proxy, []string{xff, "[198.51.100.1]"}, proxy},

		{"Forwarded", proxy, []string{fwd, "for=198.51.100.1;proto=https;by=10.0.0.1"}, "198.51.100.1:0"},
		{"Forwarded, the first client wrote to the left", proxy, []string{fwd, "for=203.0.113.5, for=198.51.100.1"}, "198.51.100.1:0"},
		{"Forwarded through proxies", proxy, []string{fwd, `for=198.51.100.1, For="10.9.9.9:80" , FOR=127.0.0.1`}, "198.51.100.1:0"},
		{"Forwarded IPv6", proxy, []string{fwd, `for="[2001:db8:cafe::17]:4711"`}, "[2001:db8:cafe::17]:4711"},
		{"Forwarded with spaces", proxy, []string{fwd, ` for="[2001:db8:cafe::17]" ; proto=http `}, "[2001:db8:cafe::17]:0"},
		{"Forwarded with escapes", proxy, []string{fwd, `for="198.51.100\.1"`}, "198.51.100.1:0"},
		{"Forwarded with commas in quotes", proxy, []string{fwd, `for=198.51.100.1;host="a,for=203.0.113.5"`}, "198.51.100.1:0"},
		{"Forwarded, an obfuscated port", proxy, []string{fwd, `for="198.51.100.1:_http"`}, "198.51.100.1:0"},
		{"Forwarded, unknown", proxy, []string{fwd, "for=203.0.113.5, for=unknown"}, proxy},
		{"Forwarded, obfuscated", proxy, []string{fwd, "for=203.0.113.5, for=_hidden"}, proxy},
		{"Forwarded, an element without for", proxy, []string{fwd, "for=203.0.113.5, proto=https"}, proxy},
		{"Forwarded, an empty element", proxy, []string{fwd, "for=203.0.113.5, "}, proxy},
		{"Forwarded, for twice", proxy, []string{fwd, "for=203.0.113.5;for=198.51.100.1"}, proxy},
		{"Forwarded, an open quote", proxy, []string{fwd, `for="203.0.113.5, for=198.51.100.1`}, proxy},
		{"Forwarded, a quote that takes in the proxy's", proxy, []string{fwd, `for=203.0.113.5;x=", for="[2001:db8::1]"`}, proxy},
		{"Forwarded, an open quote in a line before", proxy, []string{fwd, `for="203.0.113.5`, fwd, "for=198.51.100.1"}, "198.51.100.1:0"},
		{"Forwarded, no pair", proxy, []string{fwd, "198.51.100.1"}, proxy},
		{"Forwarded, no value", proxy, []string{fwd, "for="}, proxy},

		{"both say the same", proxy, []string{xff, "198.51.100.1", fwd, `for="198.51.100.1:80"`}, "198.51.100.1:80"},
	} {
		got, disagree := proxies(limit.AnyForwarded).Client(request(c.remote, c.headers...))
		if got.String() != c.want || disagree {
			t.Errorf("%s: %v from %s is %s, want %s", c.what, c.headers, c.remote, got, c.want)
		}
	}
}

// A request has the headers X-Forwarded-For and Forwarded, and they name different clients: a
// proxy that writes one header passes on the other as its client sent it. The test expects
// that neither header is trusted, unless the setting says which of them the proxy writes.
func TestTwoHeadersDisagree(t *testing.T) {
	t.Parallel()
	r := request("10.0.0.1:4000", xff, "198.51.100.1", fwd, "for=203.0.113.5")
	for header, want := range map[limit.ForwardedHeader]string{
		limit.AnyForwarded: "10.0.0.1:4000", limit.XForwardedFor: "198.51.100.1:0", limit.Forwarded: "203.0.113.5:0",
	} {
		got, disagree := proxies(header).Client(r)
		if got.String() != want || disagree != (header == limit.AnyForwarded) {
			t.Errorf("%d: %s, want %s; disagree: %t", header, got, want, disagree)
		}
	}
	only := request("10.0.0.1:4000", fwd, "for=203.0.113.5")
	if got, _ := proxies(limit.XForwardedFor).Client(only); got.String() != "10.0.0.1:4000" {
		t.Errorf("a header that isn't asked for gives %s", got)
	}
}

func TestNoProxies(t *testing.T) {
	t.Parallel()
	none := limit.NewProxies(nil, limit.AnyForwarded)
	if got, _ := none.Client(request("127.0.0.1:5", xff, "198.51.100.1")); got.String() != "127.0.0.1:5" {
		t.Errorf("without proxies: %s", got)
	}
	if got, _ := none.Client(request("@")); got.IsValid() {
		t.Errorf("what has no address has %s", got)
	}
}

// A client sends any text as a header, and its proxy appends the client's address to it. The
// text must have no effect on the result.
func FuzzForwarded(f *testing.F) {
	for _, text := range []string{"", "for=203.0.113.5", `for="`, `for=203.0.113.5;x="`, "10.0.0.1", `a="\`, "for=10.0.0.1,"} {
		f.Add(text)
	}
	p := proxies(limit.AnyForwarded)
	f.Fuzz(func(t *testing.T, text string) {
		for _, headers := range [][]string{
			{xff, text + ", 198.51.100.1"}, {xff, text, xff, "198.51.100.1"},
			{fwd, text + ", for=198.51.100.1"}, {fwd, text + `, for="198.51.100.1:80"`}, {fwd, text, fwd, "for=198.51.100.1"},
		} {
			got, _ := p.Client(request("10.0.0.1:4000", headers...))
			if a := got.Addr().String(); a != "198.51.100.1" && a != "10.0.0.1" {
				t.Errorf("%q makes a client of %s", headers, a)
			}
		}
	})
}
