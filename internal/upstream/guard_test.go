package upstream

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"golang.org/x/net/dns/dnsmessage"

	"github.com/purser-registry/purser/internal/netguard"
	"github.com/purser-registry/purser/internal/oci"
)

// names starts a DNS server that has one address for every name.
func names(t *testing.T, address string) *net.Resolver {
	t.Helper()
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { c.Close(); <-done }) //nolint:errcheck // it ends with the test
	go func() {
		defer close(done)
		buf := make([]byte, 512)
		for {
			n, from, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			var query dnsmessage.Message
			if query.Unpack(buf[:n]) != nil || len(query.Questions) != 1 {
				continue
			}
			query.Response, query.Additionals = true, nil
			if q := query.Questions[0]; q.Type == dnsmessage.TypeA {
				query.Answers = []dnsmessage.Resource{{Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class},
					Body: &dnsmessage.AResource{A: netip.MustParseAddr(address).As4()}}}
			}
			if answer, err := query.Pack(); err == nil {
				c.WriteTo(answer, from) //nolint:errcheck // the resolver asks again
			}
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", c.LocalAddr().String())
	}}
}

type keychain struct{}

func (keychain) Resolve(authn.Resource) (authn.Authenticator, error) {
	return &authn.Basic{Username: "me", Password: "secret"}, nil
}

// realm is a registry at which one logs in on another host, over https, by the name auth.example.
type realm struct {
	registry, elsewhere *httptest.Server
	got                 atomic.Int64 // credentials there
	opt                 Options
	told                []string
}

// newRealm starts both. The realm's name resolves to `address`, where it listens if that is one of
// loopback.
func newRealm(t *testing.T, address string) *realm {
	t.Helper()
	r := &realm{}
	r.elsewhere = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if _, password, _ := req.BasicAuth(); password == "secret" {
			r.got.Add(1)
		}
		fmt.Fprint(w, `{"token":"t"}`) //nolint:errcheck // in a test
	}))
	t.Cleanup(r.elsewhere.Close)
	_, port, err := net.SplitHostPort(r.elsewhere.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	r.registry = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Header.Get("Authorization") == "Bearer t" {
			fmt.Fprint(w, `{"tags":["v1"]}`) //nolint:errcheck // in a test
			return
		}
		w.Header().Set("WWW-Authenticate", `Bearer realm="https://auth.example:`+port+`/token"`)
		w.WriteHeader(http.StatusUnauthorized)
	}))
	t.Cleanup(r.registry.Close)
	pool := x509.NewCertPool()
	pool.AddCert(r.elsewhere.Certificate())
	r.opt = Options{
		Host: strings.TrimPrefix(r.registry.URL, "http://"), Keychain: keychain{}, Resolver: names(t, address),
		TLS:           &tls.Config{RootCAs: pool, ServerName: "example.com"},
		CredentialsTo: func(host string) { r.told = append(r.told, host) },
	}
	return r
}

// tags lists the tags of a repository. The kinds of addresses are as if the registry were at one of
// the kind `at`.
func (r *realm) tags(t *testing.T, at netguard.Kind) ([]string, error) {
	t.Helper()
	registry, err := Open(r.opt)
	if err != nil {
		t.Fatal(err)
	}
	defer registry.Close()
	registry.guard.reach.kindOf = func(a netip.Addr) netguard.Kind {
		if a == netip.MustParseAddr("127.0.0.1") {
			return at
		}
		if a == netip.MustParseAddr("127.0.0.3") {
			return netguard.Private
		}
		return netguard.KindOf(a)
	}
	repository, err := registry.Repository(t.Context(), "app")
	if err != nil {
		return nil, err
	}
	list, err := repository.Tags(t.Context(), func(string) bool { return true })
	return list.Names, err
}

// TestRealmElsewhere expects that credentials go to a realm by https, that it is named, and that
// they don't go to a name that resolves to an address nearer than the registry's own.
func TestRealmElsewhere(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		address string
		at      netguard.Kind // of the registry
		sent    bool
	}{
		{"127.0.0.1", netguard.Loopback, true},
		{"127.0.0.2", netguard.Public, false},
		{"127.0.0.2", netguard.Private, false},
		{"127.0.0.3", netguard.Public, false}, // stands for a private address
		{"10.1.2.3", netguard.Public, false},
		{"169.254.169.254", netguard.Public, false},
		{"169.254.169.254", netguard.Loopback, false},
		{"0.0.0.0", netguard.Public, false},
	} {
		r := newRealm(t, test.address)
		tags, err := r.tags(t, test.at)
		if !test.sent {
			if err == nil || !strings.Contains(err.Error(), test.address+" isn't public") || r.got.Load() != 0 {
				t.Errorf("%s, registry at %d: %v; credentials were sent %d times", test.address, test.at, err, r.got.Load())
			}
			continue
		}
		_, port, _ := net.SplitHostPort(r.elsewhere.Listener.Addr().String()) //nolint:errcheck // it was split before
		if err != nil || !slices.Equal(tags, []string{"v1"}) || r.got.Load() == 0 || !slices.Equal(r.told, []string{"auth.example:" + port}) {
			t.Errorf("%s, registry at %d: %q %v; sent %d times, told of %q", test.address, test.at, tags, err, r.got.Load(), r.told)
		}
	}
}

// TestRealmBehindProxy expects the same if a proxy connects: the realm's name is looked up here.
func TestRealmBehindProxy(t *testing.T) {
	t.Parallel()
	var connects atomic.Int64
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		connects.Add(1)
		w.WriteHeader(http.StatusBadGateway)
	}))
	defer proxy.Close()
	r := newRealm(t, "10.1.2.3")
	at, err := url.Parse(proxy.URL)
	if err != nil {
		t.Fatal(err)
	}
	r.opt.Proxy = func(req *http.Request) (*url.URL, error) {
		if req.URL.Scheme == "https" && strings.HasPrefix(req.URL.Host, "auth.") {
			return at, nil
		}
		return nil, nil
	}
	if _, err := r.tags(t, netguard.Public); err == nil || !strings.Contains(err.Error(), "10.1.2.3 isn't public") || connects.Load() > 0 {
		t.Errorf("%v; the proxy was asked %d times", err, connects.Load())
	}
}

// privateNetwork is a proxy to a registry with the private address 10.0.0.7. By https it leads to a server
// with TLS, or to one without.
type privateNetwork struct {
	proxy, encrypted, plain *httptest.Server
	withTLS                 bool
	plainly                 chan struct{} // is closed when plain http is tried
	once                    sync.Once
	unencrypted             atomic.Int64 // requests
	got                     atomic.Int64 // credentials by https
}

func newPrivateNetwork(t *testing.T, withTLS bool) *privateNetwork {
	t.Helper()
	n := &privateNetwork{withTLS: withTLS, plainly: make(chan struct{})}
	answer := func(w http.ResponseWriter, r *http.Request) bool {
		_, password, _ := r.BasicAuth()
		if password != "secret" {
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			w.WriteHeader(http.StatusUnauthorized)
			return false
		}
		fmt.Fprint(w, `{"tags":["v1"]}`) //nolint:errcheck // in a test
		return true
	}
	n.encrypted = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v2/" {
			<-n.plainly // the answer is slower than another try
		}
		if answer(w, r) {
			n.got.Add(1)
		}
	}))
	t.Cleanup(n.encrypted.Close)
	n.plain = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n.unencrypted.Add(1)
		answer(w, r)
	}))
	t.Cleanup(n.plain.Close)
	n.proxy = httptest.NewServer(http.HandlerFunc(n.serve))
	t.Cleanup(n.proxy.Close)
	t.Cleanup(n.triesPlain)
	return n
}

func (n *privateNetwork) triesPlain() { n.once.Do(func() { close(n.plainly) }) }

// serve passes a request on, or connects for one by https.
func (n *privateNetwork) serve(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodConnect {
		n.plain.Config.Handler.ServeHTTP(w, r)
		return
	}
	to := n.plain
	if n.withTLS {
		to = n.encrypted
	}
	there, err := net.Dial("tcp", to.Listener.Addr().String())
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	defer there.Close()                        //nolint:errcheck // in a test
	w.WriteHeader(http.StatusOK)               // the connection is taken after it
	w.(http.Flusher).Flush()                   //nolint:forcetypeassert // of net/http
	here, _, err := w.(http.Hijacker).Hijack() //nolint:forcetypeassert // as above
	if err != nil {
		return
	}
	defer here.Close() //nolint:errcheck // in a test
	done := make(chan struct{})
	go func() {
		defer close(done)
		io.Copy(there, here)              //nolint:errcheck // the client may have gone
		there.(*net.TCPConn).CloseWrite() //nolint:errcheck,forcetypeassert // as above
	}()
	io.Copy(here, there) //nolint:errcheck // as above
	here.Close()         //nolint:errcheck // it ends the other direction
	<-done
}

// open returns the registry. It closes what it opened when the test ends.
func (n *privateNetwork) open(t *testing.T, plain bool) *Registry {
	t.Helper()
	proxy, err := url.Parse(n.proxy.URL)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(n.encrypted.Certificate())
	registry, err := Open(Options{
		Host: "10.0.0.7:5000", PlainHTTP: plain, Keychain: keychain{}, TLS: &tls.Config{RootCAs: pool, ServerName: "example.com"},
		Proxy: func(r *http.Request) (*url.URL, error) {
			if r.URL.Scheme == "http" {
				n.triesPlain()
			}
			return proxy, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(registry.Close)
	return registry
}

// TestPrivateAddressEncrypted expects that a registry at a private address gets no request by plain http, though
// its answer by https is slow, unless that is asked for; and that the error says how to ask for it.
func TestPrivateAddressEncrypted(t *testing.T) {
	t.Parallel()
	const option = "--source-plain-http"
	for _, test := range []struct {
		withTLS, plain bool
		want           string // of the error; "": none
	}{{true, false, ""}, {false, false, option}, {false, true, ""}} {
		n := newPrivateNetwork(t, test.withTLS)
		registry := n.open(t, test.plain)
		repository, err := registry.Repository(t.Context(), "app")
		var list Names
		if err == nil {
			list, err = repository.Tags(t.Context(), func(string) bool { return true })
		}
		if test.want == "" && (err != nil || len(list.Names) != 1) || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "http://")) {
			t.Errorf("%+v: %+v %v", test, list, err)
		}
		if !test.withTLS && !test.plain {
			_, err := registry.RepositoriesBy(t.Context(), Catalog{Kind: Harbor}, "acme/", func(string) bool { return true })
			if err == nil || !strings.Contains(err.Error(), option) {
				t.Errorf("its API: %v", err)
			}
		}
		if (n.got.Load() > 0) != test.withTLS || (n.unencrypted.Load() > 0) != test.plain {
			t.Errorf("%+v: %d requests with credentials by https, %d by plain http", test, n.got.Load(), n.unencrypted.Load())
		}
	}
}

// TestChallenges expects that a registry can't make the log-in ask for ever more scopes, nor for long ones, and
// that one that repeats its challenge may do so.
func TestChallenges(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		challenge func(request int64) string // without the realm
		want      string                     // of the last error
	}{
		{func(n int64) string { return fmt.Sprintf(`scope="s%d"`, n) }, "again and again"},
		{func(n int64) string { return fmt.Sprintf(`SCOPE=s%d`, n) }, "again and again"},
		{func(int64) string { return `scope="` + strings.Repeat("s", maxChallenge) + `"` }, "at most 4096 are taken"},
		{func(int64) string { return `scope="s"` }, "401"},
		{func(n int64) string { return fmt.Sprintf(`error_description="e%d"`, n) }, "401"},
	} {
		var requests, scopes atomic.Int64
		var s *httptest.Server
		s = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			challenge := ""
			switch r.URL.Path {
			case "/token":
				if n := int64(len(r.URL.Query()["scope"])); n > scopes.Load() {
					scopes.Store(n)
				}
				fmt.Fprint(w, `{"token":"t"}`) //nolint:errcheck // in a test
				return
			case "/v2/":
			default:
				challenge = "," + test.challenge(requests.Add(1))
			}
			w.Header().Set("WWW-Authenticate", `Bearer realm="`+s.URL+`/token"`+challenge)
			w.WriteHeader(http.StatusUnauthorized)
		}))
		registry, err := Open(Options{Host: strings.TrimPrefix(s.URL, "http://")})
		if err != nil {
			t.Fatal(err)
		}
		repository, err := registry.Repository(t.Context(), "app")
		if err != nil {
			t.Fatal(err)
		}
		for range 3 * maxChallenges {
			_, err = repository.Tags(t.Context(), func(string) bool { return true })
		}
		if err == nil || !strings.Contains(err.Error(), test.want) || scopes.Load() > maxChallenges+1 {
			t.Errorf("%s: %v; %d scopes were asked for", test.challenge(0), err, scopes.Load())
		}
		registry.Close()
		s.Close()
	}
}

// TestTrusted expects that a trusted host gets credentials whatever its address is.
func TestTrusted(t *testing.T) {
	t.Parallel()
	r := newRealm(t, "127.0.0.1")
	r.opt.Trusted = []string{"AUTH.example"}
	if tags, err := r.tags(t, netguard.Public); err != nil || !slices.Equal(tags, []string{"v1"}) {
		t.Errorf("%q %v", tags, err)
	}
}

// TestRegistryMovesNearer expects that a registry that was at a public address can't lead to this
// machine by resolving to it later.
func TestRegistryMovesNearer(t *testing.T) {
	t.Parallel()
	r := newReach(nil)
	r.found(netguard.Public)
	r.found(netguard.Loopback)
	for _, addr := range []string{"127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "fd00::1"} {
		if r.check("x", netip.MustParseAddr(addr)) == nil {
			t.Errorf("%s is allowed", addr)
		}
	}
	if err := r.check("x", netip.MustParseAddr("8.8.8.8")); err != nil {
		t.Error(err)
	}
}

// TestRetries expects that a moment's failure is tried again, and a lasting one is told.
func TestRetries(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	fails := int64(2)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v2/" && asked.Add(1) <= fails {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		fmt.Fprint(w, `{"tags":null,"x":[{"y":[1]}]}`) //nolint:errcheck // in a test
	}))
	defer s.Close()
	registry, err := Open(Options{Host: strings.TrimPrefix(s.URL, "http://")})
	if err != nil {
		t.Fatal(err)
	}
	defer registry.Close()
	registry.guard.pauses = []time.Duration{time.Millisecond, time.Millisecond}
	for _, fails = range []int64{2, 3} {
		asked.Store(0)
		repository, err := registry.Repository(t.Context(), "app")
		if err == nil {
			_, err = repository.Tags(t.Context(), func(string) bool { return true })
		}
		if (err == nil) != (fails == 2) || asked.Load() != 3 {
			t.Errorf("%d failures: %v after %d requests", fails, err, asked.Load())
		}
	}
}

func TestPrintable(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"plain: ü, 名": "plain: ü, 名", "a\x1b[31m\r\nb\u009b": "a�[31m��b�", "\u202ex\u2028\xff": "�x��",
		strings.Repeat("a", 499) + "名": strings.Repeat("a", 499) + "…",
	} {
		if got := Printable(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestNextLink(t *testing.T) {
	t.Parallel()
	for header, want := range map[string]string{
		`</v2/_catalog?last=a>; rel="next"`: "/v2/_catalog?last=a", `<a>`: "a", `<a>; rel=prev, <b>; rel=next`: "b",
		`<a,b>; rel="next"`: "a,b", ``: "", `a`: "", `<a`: "", `<a>; rel=prev`: "", `<>`: "",
	} {
		if got := nextLink([]string{header}); got != want {
			t.Errorf("%q: %q, want %q", header, got, want)
		}
	}
}

// TestPagesElsewhere expects that a list doesn't go on at another host.
func TestPagesElsewhere(t *testing.T) {
	t.Parallel()
	for _, link := range []string{"https://169.254.169.254/", "//elsewhere.example/v2/", "file:///etc/passwd", "http://127.0.0.1:1/"} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Link", "<"+link+`>; rel="next"`)
			fmt.Fprint(w, `{"tags":["v1"]}`) //nolint:errcheck // in a test
		}))
		registry, err := Open(Options{Host: strings.TrimPrefix(s.URL, "http://")})
		if err != nil {
			t.Fatal(err)
		}
		repository, err := registry.Repository(t.Context(), "app")
		if err == nil {
			_, err = repository.Tags(t.Context(), func(string) bool { return true })
		}
		if err == nil || !strings.Contains(err.Error(), "elsewhere") {
			t.Errorf("%s: %v", link, err)
		}
		registry.Close()
		s.Close()
	}
}

// TestAbsentListIsNoEmptyOne expects an error of an object without the list, on each page: a mirror would
// take a registry that answers so for an emptied one. null is how some registries write an empty list.
func TestAbsentListIsNoEmptyOne(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pages []string
		want  string // "": no error
	}{
		{[]string{`{"name":"app"}`}, "isn't the JSON of a list"},
		{[]string{`{"errors":[]}`}, "isn't the JSON of a list"},
		{[]string{`{}`}, "isn't the JSON of a list"},
		{[]string{`null`}, "isn't the JSON of a list"},
		{[]string{`{"KEY":["v1"]}`, `{"errors":[{"code":"UNKNOWN"}]}`}, "isn't the JSON of a list"},
		{[]string{`{"other":{"KEY":[]}}`}, "isn't the JSON of a list"},
		{[]string{`{"name":"app","KEY":null}`}, ""},
		{[]string{`{"KEY":[]}`}, ""},
		{[]string{`{"KEY":["v1"]}`, `{"KEY":null}`}, ""},
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			page, key := len(r.URL.Query()["last"]), "tags"
			if strings.HasSuffix(r.URL.Path, "/_catalog") {
				key = "repositories"
			}
			if page+1 < len(c.pages) {
				w.Header().Set("Link", "<"+r.URL.Path+`?last=x>; rel="next"`)
			}
			fmt.Fprint(w, strings.ReplaceAll(c.pages[page], "KEY", key)) //nolint:errcheck // in a test
		}))
		registry, err := Open(Options{Host: strings.TrimPrefix(s.URL, "http://")})
		if err != nil {
			t.Fatal(err)
		}
		all := func(string) bool { return true }
		repository, err := registry.Repository(t.Context(), "app")
		if err == nil {
			_, err = repository.Tags(t.Context(), all)
		}
		_, catalogErr := registry.Repositories(t.Context(), all)
		for _, err := range []error{err, catalogErr} {
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%s: %v", c.pages, err)
			}
		}
		registry.Close()
		s.Close()
	}
}

// TestTokensStay expects that a redirect to another host takes no token along.
func TestTokensStay(t *testing.T) {
	t.Parallel()
	var got atomic.Value
	got.Store("")
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got.Store(r.Header.Get("Authorization"))
		fmt.Fprint(w, `{"tags":["v1"]}`) //nolint:errcheck // in a test
	}))
	defer elsewhere.Close()
	basic := "Basic " + base64.StdEncoding.EncodeToString([]byte("me:secret"))
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != basic {
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		http.Redirect(w, r, elsewhere.URL+r.URL.Path, http.StatusTemporaryRedirect)
	}))
	defer s.Close()
	registry, err := Open(Options{Host: strings.TrimPrefix(s.URL, "http://"), Keychain: keychain{}})
	if err != nil {
		t.Fatal(err)
	}
	defer registry.Close()
	repository, err := registry.Repository(t.Context(), "app")
	if err != nil {
		t.Fatal(err)
	}
	list, err := repository.Tags(t.Context(), func(string) bool { return true })
	if err != nil || len(list.Names) != 1 || got.Load() != "" {
		t.Errorf("%+v %v; the other host got %q", list, err, got.Load())
	}
}

// TestBlobsElsewhere expects that a registry can redirect a blob to a storage at a public address, or
// at one near its own, and not to what only this machine reaches.
func TestBlobsElsewhere(t *testing.T) {
	t.Parallel()
	content := []byte("content")
	d := oci.Descriptor{Digest: oci.Compute(oci.SHA256, content), Size: int64(len(content))}
	var asked atomic.Int64
	storage := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		w.Write(content) //nolint:errcheck // in a test
	}))
	defer storage.Close()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "/blobs/") {
			http.Redirect(w, r, strings.Replace(storage.URL, "127.0.0.1", "storage.example", 1), http.StatusTemporaryRedirect)
		}
	}))
	defer s.Close()
	for _, at := range []netguard.Kind{netguard.Loopback, netguard.Private, netguard.Public} {
		registry, err := Open(Options{Host: strings.TrimPrefix(s.URL, "http://"), Resolver: names(t, "127.0.0.1")})
		if err != nil {
			t.Fatal(err)
		}
		registry.guard.reach.found(at)
		repository, err := registry.Repository(t.Context(), "app")
		if err != nil {
			t.Fatal(err)
		}
		before := asked.Load()
		r, err := repository.Blob(t.Context(), d)
		var got []byte
		if err == nil {
			got, err = io.ReadAll(r)
			r.Close() //nolint:errcheck // only read
		}
		if at == netguard.Loopback {
			if err != nil || string(got) != "content" {
				t.Errorf("%q %v", got, err)
			}
		} else if err == nil || !strings.Contains(err.Error(), "isn't public") || asked.Load() != before {
			t.Errorf("a registry at %d: %v, after %d requests", at, err, asked.Load()-before)
		}
		registry.Close()
	}
}

// TestAbsentEntries is the same of the lists of products' APIs.
func TestAbsentEntries(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{`{"errors":[]}`: false, `{}`: false, `{"next":"x"}`: false, `{"results":null}`: true, `{"results":[]}`: true, `{"results":[{}]}`: true} {
		_, err := decodeEntries(strings.NewReader(text), "results", "next", func(struct{}) error { return nil })
		if (err == nil) != want {
			t.Errorf("%s: %v", text, err)
		}
	}
}
