package server_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// TestMetrics: the metrics must count requests by route, method and status. All requests to
// unknown paths must share one set of labels, so that clients can't create new label values.
func TestMetrics(t *testing.T) {
	t.Parallel()
	r := setup(t)
	d := r.Push(t, "a/b", "0123456789")
	r.Do(t, "GET", "/v2/a/b/blobs/"+d.String(), "").Want(t, 200, "")
	r.Do(t, "GET", "/v2/a/b/blobs/"+d.String(), "", "Range", "bytes=0-3").Want(t, 206, "")
	r.Do(t, "GET", "/v2/a/b/blobs/"+digest("x").String(), "").Want(t, 404, "")
	r.Do(t, "GET", "/v2/a/b/manifests/v1", "").Want(t, 404, "")
	r.Do(t, "GET", "/nowhere", "").Want(t, 404, "")
	r.Do(t, "WEIRD1", "/nowhere", "").Want(t, 404, "")
	const blobs, upload = "/v2/{name}/blobs/{ref}", "/v2/{name}/blobs/uploads/{ref}"
	want := map[string]float64{
		"/v2/{name}/blobs/uploads/,POST,202": 1, upload + ",PUT,201": 1, blobs + ",GET,200": 1, blobs + ",GET,206": 1,
		blobs + ",GET,404": 1, "/v2/{name}/manifests/{ref},GET,404": 1, "none,any,404": 2,
	}
	eventually(t, "every request counted", func() bool { return fmt.Sprint(r.Samples(t, "purser_http_requests_total")) == fmt.Sprint(want) })
	for name, want := range map[string]map[string]float64{
		"purser_http_request_duration_seconds": {blobs + ",GET": 3, "none,any": 2},
		"purser_http_received_bytes_total":     {upload: 10},
	} {
		got := r.Samples(t, name)
		for k, v := range want {
			if got[k] != v {
				t.Errorf("%s of %s is %v, want %v", name, k, got[k], v)
			}
		}
	}
	if got := r.Samples(t, "purser_http_sent_bytes_total")[blobs]; got < 14 {
		t.Errorf("%v bytes sent, want the blob, a part of it and an error", got)
	}
	if got := r.Gauge(t, "purser_http_requests_in_flight"); got != 0 {
		t.Errorf("%v requests in flight", got)
	}
}

// TestMetricsOfInventedMethods: clients send requests with invented HTTP methods to every
// interface. No metric may have such a method as a label value.
func TestMetricsOfInventedMethods(t *testing.T) {
	t.Parallel()
	r := setup(t, func(o *servertest.Options) { o.Access = &auth.Options{} })
	for _, path := range []string{
		"/v2/", "/v2/a/manifests/v1", "/v2/a/blobs/uploads/", "/nowhere", "/", "/ui", "/ui/", "/ui/static/x", "/ui/static/0/app.css", "/ui/none",
		"/api/v1/system/overview", "/api/v1/none", "/token", "/auth/login", "/auth/session", "/oauth2/federation/robot/token",
	} {
		for i := range 5 {
			r.Do(t, fmt.Sprint("INVENTED", i), path, "")
		}
	}
	for _, name := range []string{"purser_http_requests_total", "purser_http_request_duration_seconds", "purser_http_database_round_trips_total"} {
		for labels := range r.Samples(t, name) {
			if strings.Contains(labels, "INVENTED") {
				t.Errorf("%s has a series for %s", name, labels)
			}
		}
	}
}

// TestMetricsOfACarelessInterface: an interface takes over every method as it is. The metrics must
// nevertheless have only methods that routes have.
func TestMetricsOfACarelessInterface(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	s, err := server.New(server.Options{Metrics: reg, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	s.Mount(server.Mount{Prefix: "/careless/", Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		o := server.Observed(r.Context())
		o.Route, o.Method = "/careless/", r.Method
	})})
	for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "get", "AAAA1", "AAAA2"} {
		s.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(method, "/careless/x", nil))
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]map[string]bool{}
	for _, f := range families {
		for _, m := range f.Metric {
			for _, l := range m.Label {
				if l.GetName() == "method" {
					if got[f.GetName()] == nil {
						got[f.GetName()] = map[string]bool{}
					}
					got[f.GetName()][l.GetValue()] = true
				}
			}
		}
	}
	for _, name := range []string{"purser_http_requests_total", "purser_http_request_duration_seconds"} {
		if methods := slices.Sorted(maps.Keys(got[name])); fmt.Sprint(methods) != "[DELETE GET HEAD PATCH POST PUT any]" {
			t.Errorf("%s has series for the methods %q", name, methods)
		}
	}
}

// TestAccessLog: clients send requests. The access log must have one line for each request,
// with its path, status, sizes, client and id.
func TestAccessLog(t *testing.T) {
	t.Parallel()
	r := setup(t)
	d := r.Push(t, "a", "0123456789")
	r.Do(t, "GET", "/v2/a/blobs/"+d.String(), "", "User-Agent", "test/1", "X-Request-Id", "req-1").Want(t, 200, "", "X-Request-Id", "req-1")
	r.Do(t, "GET", "/v2/a/manifests/v9", "", "X-Request-Id", "req-2").Want(t, 404, oci.ManifestUnknown)
	r.Do(t, "PATCH", r.StartUpload(t, "a", ""), "hello", "X-Request-Id", "req-3").Want(t, 202, "")
	r.Do(t, "HEAD", "/v2/a/blobs/"+d.String(), "", "X-Request-Id", "req-4").Want(t, 200, "")
	by := map[string]map[string]any{}
	eventually(t, "four lines", func() bool {
		for _, rec := range r.Log.Records(t, "request") {
			by[rec["request_id"].(string)] = rec
		}
		return len(by) >= 7 && by["req-4"] != nil
	})
	for id, want := range map[string]map[string]any{
		"req-1": {"level": "INFO", "http.request.method": "GET", "url.path": "/v2/a/blobs/" + d.String(), "http.response.status_code": 200.0, "http.response.body.size": 10.0, "http.request.body.size": 0.0, "user_agent.original": "test/1",
			"client.address": "127.0.0.1"},
		"req-2": {"http.response.status_code": 404.0},
		"req-3": {"http.request.method": "PATCH", "http.response.status_code": 202.0, "http.request.body.size": 5.0, "http.response.body.size": 0.0},
		"req-4": {"http.request.method": "HEAD", "http.response.status_code": 200.0, "http.response.body.size": 0.0},
	} {
		for k, v := range want {
			if by[id][k] != v {
				t.Errorf("%s: %s is %v, want %v", id, k, by[id][k], v)
			}
		}
		if took, _ := by[id]["http.server.request.duration"].(float64); took <= 0 || took > 60 || by[id]["client.port"] == nil {
			t.Errorf("%s: %v", id, by[id])
		}
	}
	if e, _ := by["req-2"]["error"].(string); !strings.Contains(e, "MANIFEST_UNKNOWN") {
		t.Errorf("the error in the log is %q", e)
	}
	if n := len(r.Log.Records(t, "request failed")); n != 0 {
		t.Errorf("%d errors in the log for what clients did wrong", n)
	}
}

// TestFailureIsOneLine: a request fails with an error. Exactly one line of the log must be
// about this request, even if the access log is off. The line must have the cause, and the id
// of the trace that the client's Traceparent header names.
func TestFailureIsOneLine(t *testing.T) {
	t.Parallel()
	for _, access := range []bool{true, false} {
		r := setup(t, func(o *servertest.Options) {
			o.Server.AccessLog = access
			o.Server.Authorize = func(context.Context, auth.Access, auth.Resource) error { return errors.New("the cause") }
		})
		const trace = "4bf92f3577b34da6a3ce929d0e0e4736"
		for path, headers := range map[string][]string{
			"/v2/a/manifests/v1":      {"X-Request-Id", "f1", "Traceparent", "00-" + trace + "-00f067aa0ba902b7-01"},
			"/v2/a/manifests/v2":      {"X-Request-Id", "f2", "Traceparent", "00-0-0-01"},
			"/api/v1/repository/a/b":  {"X-Request-Id", "f3", "Traceparent", "00-" + trace + "-00f067aa0ba902b7-00"},
			"/api/v1/system/overview": {"X-Request-Id", "f4"},
		} {
			a := r.Do(t, "GET", path, "", headers...)
			var lines []map[string]any
			for _, message := range []string{"request", "request failed"} {
				for _, line := range r.Log.Records(t, message) {
					if line["request_id"] == headers[1] {
						lines = append(lines, line)
					}
				}
			}
			if a.StatusCode != 500 && a.StatusCode != 404 || len(lines) != 1 && (access || a.StatusCode == 500) {
				t.Errorf("%s (access log %v): %d, %d lines", path, access, a.StatusCode, len(lines))
				continue
			}
			if len(lines) == 0 {
				continue
			}
			line, named := lines[0], len(headers) > 3 && strings.Contains(headers[3], trace)
			if a.StatusCode == 500 && (line["msg"] != "request failed" || line["level"] != "ERROR" || line["error"] != "the cause" || line["http.response.status_code"] != 500.0) {
				t.Errorf("%s: %v", path, line)
			}
			if got := line["trace_id"]; named && got != trace || !named && got != nil {
				t.Errorf("%s: trace %v, named %v", path, got, named)
			}
		}
	}
}

// TestRequestID: a client sends an X-Request-Id. If it is safe to log, the answer must have the
// same id, otherwise a new one.
func TestRequestID(t *testing.T) {
	t.Parallel()
	r := setup(t)
	own := regexp.MustCompile(`^[0-9a-f]{16}$`)
	seen := map[string]bool{}
	for _, id := range []string{"abc", "A-1_2.3", strings.Repeat("x", 64)} {
		r.Do(t, "GET", "/v2/", "", "X-Request-Id", id).Want(t, 200, "", "X-Request-Id", id)
	}
	for _, id := range []string{"", "a b", "a\"b", "a/b", "é", strings.Repeat("x", 65)} {
		got := r.Do(t, "GET", "/v2/", "", "X-Request-Id", id).Header.Get("X-Request-Id")
		if !own.MatchString(got) || seen[got] {
			t.Errorf("for %q the identifier is %q", id, got)
		}
		seen[got] = true
	}
}

// TestPanic: a handler panics. The client must get 500 in the format of the OCI Distribution
// Specification, the log must have the stack, and the server must still answer the next
// request.
func TestPanic(t *testing.T) {
	t.Parallel()
	r := setup(t, func(o *servertest.Options) {
		o.Server.Authorize = func(ctx context.Context, _ auth.Access, _ auth.Resource) error {
			if server.Observed(ctx).ID == "p1" {
				panic("a bug")
			}
			return nil
		}
	})
	a := r.Do(t, "GET", "/v2/a/manifests/v1", "", "X-Request-Id", "p1").Want(t, 500, oci.Unknown)
	if strings.Contains(string(a.Content), "a bug") {
		t.Errorf("internal text was sent: %s", a.Content)
	}
	list := r.Log.Records(t, "request failed")
	if len(list) != 1 || list[0]["level"] != "ERROR" || list[0]["panic"] != "a bug" || list[0]["request_id"] != "p1" || list[0]["url.path"] != "/v2/a/manifests/v1" ||
		!strings.Contains(list[0]["stack"].(string), "middleware_test.go") {
		t.Errorf("log: %v", list)
	}
	r.Do(t, "GET", "/v2/", "").Want(t, 200, "")
	if got := r.Gauge(t, "purser_http_requests_in_flight"); got != 0 {
		t.Errorf("%v requests in flight", got)
	}
	if got := r.Samples(t, "purser_http_requests_total")["/v2/{name}/manifests/{ref},GET,500"]; got != 1 {
		t.Errorf("%v requests counted as 500", got)
	}
}

// lateWriter is a ResponseWriter that accepts an answer's header and panics when the handler
// writes the body.
type lateWriter struct{ *httptest.ResponseRecorder }

func (lateWriter) Write([]byte) (int, error) { panic("late") }

// TestLatePanic: a handler panics after the answer's header was sent. The server must close the
// connection, so that the client notices that the answer is incomplete.
func TestLatePanic(t *testing.T) {
	t.Parallel()
	r := setup(t)
	defer func() {
		if p := recover(); p != http.ErrAbortHandler {
			t.Errorf("the handler panics with %v, want http.ErrAbortHandler", p)
		}
		if list := r.Log.Records(t, "request failed"); len(list) != 1 || list[0]["panic"] != "late" {
			t.Errorf("log: %v", list)
		}
	}()
	r.Handler.ServeHTTP(lateWriter{httptest.NewRecorder()}, httptest.NewRequest("GET", "/v2/", nil))
}

// fileWriter is a ResponseWriter that records the reader which its method ReadFrom gets. The
// ReadFrom of a real connection uses sendfile if this reader is a file.
type fileWriter struct {
	*httptest.ResponseRecorder
	source io.Reader
}

func (w *fileWriter) ReadFrom(src io.Reader) (int64, error) {
	w.source = src
	return io.Copy(w.ResponseRecorder, src)
}

// TestSendfile: a client gets a blob, or a range of it. The server wraps the connection's
// ResponseWriter several times. Nevertheless the connection's ReadFrom must get an
// io.LimitedReader of an *os.File, for which package net uses sendfile.
func TestSendfile(t *testing.T) {
	t.Parallel()
	for _, tracing := range []bool{false, true} {
		r := setup(t, func(o *servertest.Options) { o.Server.Tracing = tracing })
		content := pattern(1, 100_000)
		d := r.Push(t, "a", content)
		for rng, want := range map[string]string{"": content, "bytes=10-99": content[10:100]} {
			w := &fileWriter{ResponseRecorder: httptest.NewRecorder()}
			req := httptest.NewRequest("GET", "/v2/a/blobs/"+d.String(), nil)
			if rng != "" {
				req.Header.Set("Range", rng)
			}
			r.Handler.ServeHTTP(w, req)
			limited, ok := w.source.(*io.LimitedReader)
			if !ok {
				t.Fatalf("tracing %v: the connection reads from a %T", tracing, w.source)
			}
			if _, ok := limited.R.(*os.File); !ok {
				t.Errorf("tracing %v: the connection reads from a limited %T", tracing, limited.R)
			}
			if w.Body.String() != want {
				t.Errorf("tracing %v, %q: %d bytes, want %d", tracing, rng, w.Body.Len(), len(want))
			}
		}
		got := r.Log.Records(t, "request")
		if last := got[len(got)-2:]; last[0]["http.response.body.size"].(float64)+last[1]["http.response.body.size"].(float64) != 100_090 {
			t.Errorf("tracing %v: bytes in the log %v", tracing, last)
		}
	}
}

// roundTrips sends a request and checks the answer's status. It returns the number of round
// trips to the database that the request took, and the answer.
func (r *registry) roundTrips(t *testing.T, method, path, body string, status int) (int64, *httptest.ResponseRecorder) {
	t.Helper()
	ctx, n := db.WithCounter(context.Background())
	req := httptest.NewRequestWithContext(ctx, method, path, strings.NewReader(body))
	w := httptest.NewRecorder()
	r.Handler.ServeHTTP(w, req)
	if w.Code != status {
		t.Fatalf("%s %s: %d %s", method, path, w.Code, w.Body)
	}
	return n.Count(), w
}

// TestRoundTrips: a client pulls manifests and blobs. A pull must make at most one round trip
// to the database, and none if the answer is in the cache.
func TestRoundTrips(t *testing.T) {
	t.Parallel()
	first := setup(t)
	layer := first.Push(t, "a", "layer")
	payload := image(t, first.Push(t, "a", "{}"), []oci.Digest{layer}, nil)
	m := first.Put(t, "a", "v1", payload)
	cold := replica(t, first.DSN, first.Dir) // its caches aren't in use yet
	warm := replica(t, first.DSN, first.Dir)
	warm.Listen(t)
	for _, path := range []string{
		"GET /v2/a/manifests/v1", "HEAD /v2/a/manifests/v1", "GET /v2/a/manifests/" + m.String(), "HEAD /v2/a/manifests/" + m.String(),
		"GET /v2/a/blobs/" + layer.String(), "HEAD /v2/a/blobs/" + layer.String(), "GET /v2/a/referrers/" + m.String(), "GET /v2/",
	} {
		method, path, _ := strings.Cut(path, " ")
		for range 2 {
			if n, _ := cold.roundTrips(t, method, path, "", 200); n > 1 {
				t.Errorf("%s %s: %d round trips, want at most one", method, path, n)
			}
		}
		warm.roundTrips(t, method, path, "", 200)
		if n, _ := warm.roundTrips(t, method, path, "", 200); n != 0 && !strings.Contains(path, "referrers") {
			t.Errorf("%s %s, cached: %d round trips", method, path, n)
		}
	}
	// A client pushes to a repository that exists. The start of an upload and the PUT of a
	// manifest must take at most one round trip to the database each, and the PUT that sends all
	// bytes of an upload and finishes it at most three.
	for _, c := range []struct {
		content string
		most    int64
	}{{"small", 1}, {pattern(1, 100_000), 1}} {
		warm.roundTrips(t, "POST", "/v2/a/blobs/uploads/", "", 202) // makes further uploads in advance
		n, w := warm.roundTrips(t, "POST", "/v2/a/blobs/uploads/", "", 202)
		at := w.Header().Get("Location")
		closing, _ := warm.roundTrips(t, "PUT", at+"?digest="+digest(c.content).String(), c.content, 201)
		if n > 1 || closing > 3 {
			t.Errorf("a blob of %d bytes costs %d round trips to start and %d to close", len(c.content), n, closing)
		}
	}
	n, _ := warm.roundTrips(t, "PUT", "/v2/a/manifests/v2", image(t, digest("{}"), []oci.Digest{layer, digest("small")}, nil), 201)
	if n > 1 {
		t.Errorf("PUT of a manifest: %d round trips", n)
	}
}

// TestErrorForm: a client asks for a manifest of an unknown repository. The error must be JSON
// in the format of the OCI Distribution Specification ("Error Codes"), with the repository's
// name as a detail.
func TestErrorForm(t *testing.T) {
	t.Parallel()
	r := setup(t)
	a := r.Do(t, "GET", "/v2/un/known/manifests/v1", "").Want(t, 404, oci.NameUnknown)
	var body map[string][]map[string]any
	if err := json.Unmarshal(a.Content, &body); err != nil || len(body) != 1 || len(body["errors"]) != 1 {
		t.Fatalf("%s: %v", a.Content, err)
	}
	e := body["errors"][0]
	if detail, _ := e["detail"].(map[string]any); detail["name"] != "un/known" || e["message"] == "" {
		t.Errorf("error %v", e)
	}
	head := r.Do(t, "HEAD", "/v2/un/known/manifests/v1", "").Want(t, 404, "", "Content-Type", "application/json")
	if head.ContentLength != int64(len(a.Content)) {
		t.Errorf("HEAD says %d bytes, GET %d", head.ContentLength, len(a.Content))
	}
}

// TestShare: the robots of a namespace have one share together.
func TestShare(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{"": "", "ann": "ann", "acme+ci": "acme+", "acme+other": "acme+"} {
		o := &server.Observation{Principal: &auth.Principal{Name: name, ID: int64(len(name))}}
		if got := o.Share(); got != want {
			t.Errorf("the share of %q is %q, want %q", name, got, want)
		}
	}
	if got := new(server.Observation).Share(); got != "" {
		t.Errorf("the share of nobody is %q", got)
	}
}
