//go:build all

package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
)

// fetched is a request that a test's web page makes the browser send. The members are
// arguments of the browser's function fetch.
type fetched struct {
	Method string `json:"method"`
	URL    string `json:"url"`
	Type   string `json:"type,omitempty"` // of the body
	Body   string `json:"body,omitempty"`
	Mode   string `json:"mode,omitempty"`
}

const attackPage = `<!doctype html><title>a page</title><script>
(async () => {
  const answers = [];
  for (const q of %s) {
    try {
      const headers = q.type ? {"Content-Type": q.type} : {};
      const r = await fetch(q.url, {method: q.method, body: q.body, mode: q.mode || "cors", headers});
      answers.push(r.type === "opaque" ? "opaque" : String(r.status));
    } catch (e) {
      answers.push("failed");
    }
  }
  await fetch(%q, {method: "POST", body: JSON.stringify(answers)});
})();
</script>`

// rebinder starts a server that imitates DNS rebinding, in which an attacker lets the name of
// his page point to the victim after the browser has loaded the page. The server answers the
// path "/" with the attacker's page, and forwards all other requests to the victim as the
// browser sent them.
func rebinder(t *testing.T, page, victim string) (port string) {
	t.Helper()
	forward := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = "http", victim, r.In.Host
		},
		ErrorLog: log.New(io.Discard, "", 0), // a browser looks for an icon everywhere
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/" {
			forward.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/html")
		io.WriteString(w, page) //nolint:errcheck // the browser hung up
	}))
	t.Cleanup(s.Close)
	_, port, _ = net.SplitHostPort(s.Listener.Addr().String())
	return port
}

// browse loads a page in a browser, under a name that points to 127.0.0.1. The page sends the
// requests, and browse returns their results in order: the answer's status, "opaque" if the
// browser hides the answer from the page, or "failed" without an answer.
func browse(t *testing.T, name, victim string, requests ...fetched) []string {
	t.Helper()
	answers := make(chan []string, 1)
	var once sync.Once
	report := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Access-Control-Allow-Origin", "*")
		var list []string
		if err := json.NewDecoder(r.Body).Decode(&list); err == nil {
			once.Do(func() { answers <- list })
		}
	}))
	defer report.Close()
	list, err := json.Marshal(requests)
	if err != nil {
		t.Fatal(err)
	}
	port := rebinder(t, fmt.Sprintf(attackPage, list, report.URL), victim)
	p, err := startProcess("chromium", chromium(t, "http://"+net.JoinHostPort(name, port)+"/"))
	if err != nil {
		t.Fatal(err)
	}
	defer p.signal(syscall.SIGTERM, time.Minute) //nolint:errcheck // its data goes in any case
	select {
	case got := <-answers:
		if len(got) != len(requests) {
			t.Fatalf("%d answers to %d requests: %q", len(got), len(requests), got)
		}
		return got
	case <-p.exited:
		t.Fatalf("chromium ended: %v\n%s", p.err, p.out.tail(20))
	case <-time.After(2 * time.Minute):
		t.Fatalf("the page told nothing\n%s", p.out.tail(20))
	}
	return nil
}

// A web page tries to use its visitor's browser to reach a registry on loopback: by a name
// that points to the registry (DNS rebinding), and from another site. The registry must refuse
// all requests.
func TestBrowserIsNoWayIn(t *testing.T) {
	beginOwn(t)
	r := startRegistry(t, options{})
	if _, err := r.API().pushImage(t.Context(), "victim/app", "v1", randomBytes(1<<10)); err != nil {
		t.Fatal(err)
	}
	before, _, err := r.API().manifest(t.Context(), "victim/app", "v1")
	if err != nil {
		t.Fatal(err)
	}
	manifest := string(before)
	rebound := []fetched{
		{Method: "GET", URL: "/v2/victim/app/manifests/v1"},
		{Method: "PUT", URL: "/v2/victim/app/manifests/stolen", Type: "application/vnd.oci.image.manifest.v1+json", Body: manifest},
		{Method: "GET", URL: "/api/v1/gc/status"},
		{Method: "POST", URL: "/api/v1/gc/run", Type: "application/json", Body: "{}"},
	}
	// First the page sends the requests under the name localhost, which the registry allows.
	// They succeed, so the failures below are refusals by the registry.
	if got, want := browse(t, "localhost", r.host, rebound...), []string{"200", "201", "200", "202"}; !slices.Equal(got, want) {
		t.Fatalf("a page of localhost: %q, want %q", got, want)
	}
	rebound = append(rebound, fetched{Method: "DELETE", URL: "/v2/victim/app/manifests/v1"},
		fetched{Method: "DELETE", URL: "/api/v1/organization/victim"})
	for i, status := range browse(t, "evil.example", r.host, rebound...) {
		if status != "421" {
			t.Errorf("a page whose name was made to point here: %s %s: %s, want 421", rebound[i].Method, rebound[i].URL, status)
		}
	}
	for i, status := range browse(t, "evil.example", r.debug, fetched{Method: "GET", URL: "/debug/pprof/heap"}, fetched{Method: "GET", URL: "/metrics"}) {
		if status != "421" {
			t.Errorf("the same of the operators' address, %d: %s, want 421", i, status)
		}
	}
	content := "from a page of another site"
	digest := digest.FromString(content).String()
	other := []fetched{
		{Method: "POST", URL: r.URL() + "/v2/planted/blobs/uploads/?digest=" + digest, Type: "text/plain", Body: content, Mode: "no-cors"},
		{Method: "POST", URL: r.URL() + "/v2/planted/blobs/uploads/", Mode: "no-cors"},
		{Method: "GET", URL: r.URL() + "/v2/_catalog"},
		{Method: "DELETE", URL: r.URL() + "/v2/victim/app/manifests/v1"},
	}
	if got, want := browse(t, "evil.example", unreachable, other...), []string{"opaque", "opaque", "failed", "failed"}; !slices.Equal(got, want) {
		t.Errorf("a page of another site: %q, want %q", got, want)
	}
	if n := strings.Count(r.p.out.String(), "/v2/planted/blobs/uploads/"); n != 2 {
		t.Errorf("the registry was asked %d times by the page of another site, want 2", n)
	}
	if got := getStatus(t.Context(), r.URL()+"/v2/planted/blobs/"+digest); got != http.StatusNotFound {
		t.Errorf("another site planted a blob: %d, want 404", got)
	}
	if got := getStatus(t.Context(), r.URL()+"/api/v1/organization/planted"); got != http.StatusNotFound {
		t.Errorf("another site made a namespace: %d, want 404", got)
	}
	after, _, err := r.API().manifest(t.Context(), "victim/app", "v1")
	if err != nil || string(after) != manifest {
		t.Errorf("the image isn't what it was (%v)", err)
	}
}

// unreachable is passed to browse as the victim if the page sends no requests under its own
// name, so that the rebinder has nothing to forward.
const unreachable = "127.0.0.1:1"
