package server_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/gc"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

// registry is a complete registry for a test: the handler with a database and a store
// of its own, behind a listening server.
type registry struct {
	*httptest.Server
	handler *server.Server
	catalog *catalog.Catalog
	db      *db.DB
	dsn     string
	dir     string
	log     *logBuffer
	metrics *prometheus.Registry
}

// setup starts a registry and waits until its caches are in use.
func setup(t testing.TB, change ...func(*server.Options)) *registry {
	t.Helper()
	r := replica(t, dbtest.DSN(t), t.TempDir(), change...)
	r.listen(t)
	return r
}

// replica starts another process on the same database and store.
func replica(t testing.TB, dsn, dir string, change ...func(*server.Options)) *registry {
	t.Helper()
	id := uuid.New()
	quiet := slog.New(slog.DiscardHandler)
	d, err := db.Open(t.Context(), db.Options{DSN: dsn, Replica: id.String(), Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	store, err := blob.OpenDir(blob.DirOptions{Path: dir, LockWait: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	r := &registry{db: d, dsn: dsn, dir: dir, log: new(logBuffer), metrics: prometheus.NewRegistry()}
	r.catalog = catalog.New(catalog.Options{DB: d, Replica: id, Log: quiet,
		Look: func(ctx context.Context, key string, size int64) (string, error) {
			return blob.Look(ctx, store, key, size)
		},
		Audit: catalog.Audit{Insert: audit.InsertFrom, Who: audit.Who}})
	o := server.Options{
		Catalog: r.catalog, GC: gc.CollectOptions{Collector: gc.New(gc.Options{Catalog: r.catalog, DB: d, Log: quiet})},
		Store: store, AccessLog: true, Metrics: r.metrics, Audit: audit.New(d),
		Log: slog.New(slog.NewJSONHandler(r.log, nil)),
	}
	for _, f := range change {
		f(&o)
	}
	if r.handler, err = server.New(o); err != nil {
		t.Fatal(err)
	}
	r.Server = httptest.NewUnstartedServer(r.handler)
	r.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	r.Start()
	t.Cleanup(r.Close)
	return r
}

// listen receives notifications of changes until the test ends, and waits until the
// caches are in use.
func (r *registry) listen(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- r.catalog.Listen(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("listening: %v", err)
		}
	})
	eventually(t, "caches in use", r.catalog.Caching)
}

// eventually waits until ok returns true, for at most 2 min.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// logBuffer keeps the log's output.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// records returns the decoded log lines with a message.
func (l *logBuffer) records(t testing.TB, message string) []map[string]any {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	var list []map[string]any
	for line := range bytes.Lines(l.b.Bytes()) {
		var r map[string]any
		if err := json.Unmarshal(line, &r); err != nil {
			t.Fatalf("log line %q: %v", line, err)
		}
		if r["msg"] == message {
			list = append(list, r)
		}
	}
	return list
}

// answer is a response whose body was read.
type answer struct {
	*http.Response
	body []byte
}

var client = &http.Client{
	Timeout:       time.Minute,
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	Transport:     &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 64},
}

// do sends a request. Headers are name, value, name, value.
func (r *registry) do(t testing.TB, method, path, body string, headers ...string) answer {
	t.Helper()
	a, err := r.try(t.Context(), method, path, strings.NewReader(body), headers...)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	return a
}

func (r *registry) try(ctx context.Context, method, path string, body io.Reader, headers ...string) (answer, error) {
	req, err := http.NewRequestWithContext(ctx, method, r.URL+path, body)
	if err != nil {
		return answer{}, err
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	res, err := client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer res.Body.Close() //nolint:errcheck // read to its end
	b, err := io.ReadAll(res.Body)
	return answer{res, b}, err
}

// want checks the status and the error code, "" for a success. Pairs of headers follow:
// name, value ("*": any, "": absent).
func (a answer) want(t testing.TB, status int, code oci.Code, headers ...string) answer {
	t.Helper()
	what := a.Request.Method + " " + a.Request.URL.RequestURI()
	if a.StatusCode != status {
		t.Fatalf("%s: %d %s, want %d %s", what, a.StatusCode, a.body, status, code)
	}
	if got := a.Header.Get("Docker-Distribution-Api-Version"); got != "registry/2.0" {
		t.Errorf("%s: Docker-Distribution-Api-Version %q", what, got)
	}
	if a.Header.Get("X-Request-Id") == "" {
		t.Errorf("%s: no X-Request-Id", what)
	}
	if code != "" && a.Request.Method != http.MethodHead {
		if got := a.code(t); got != code {
			t.Errorf("%s: code %s, want %s: %s", what, got, code, a.body)
		}
	}
	for i := 0; i < len(headers); i += 2 {
		got := a.Header.Get(headers[i])
		if want := headers[i+1]; got != want && (want != "*" || got == "") {
			t.Errorf("%s: %s is %q, want %q", what, headers[i], got, want)
		}
	}
	return a
}

var codeForm = regexp.MustCompile(`^[A-Z_]+$`)

// code checks the form of an error ("Error Codes") and returns its code.
func (a answer) code(t testing.TB) oci.Code {
	t.Helper()
	if ct := a.Header.Get("Content-Type"); ct != "application/json" {
		t.Errorf("an error of type %q: %s", ct, a.body)
	}
	var body struct {
		Errors []struct {
			Code    string
			Message string
			Detail  json.RawMessage
		}
	}
	if err := json.Unmarshal(a.body, &body); err != nil || len(body.Errors) == 0 {
		t.Fatalf("not an error body: %q (%v)", a.body, err)
	}
	if !codeForm.MatchString(body.Errors[0].Code) || body.Errors[0].Message == "" {
		t.Errorf("error %s", a.body)
	}
	return oci.Code(body.Errors[0].Code)
}

// text checks the body.
func (a answer) text(t testing.TB, want string) {
	t.Helper()
	if string(a.body) != want {
		t.Errorf("%s %s: body of %d bytes %.200q, want %d bytes %.200q", a.Request.Method, a.Request.URL.RequestURI(),
			len(a.body), a.body, len(want), want)
	}
}

func digest(content string) oci.Digest    { return oci.Compute(oci.SHA256, []byte(content)) }
func digest512(content string) oci.Digest { return oci.Compute(oci.SHA512, []byte(content)) }

// start begins an upload and returns its location.
func (r *registry) start(t testing.TB, repository, query string) string {
	t.Helper()
	a := r.do(t, "POST", "/v2/"+repository+"/blobs/uploads/"+query, "").want(t, 202, "", "Location", "*")
	return a.Header.Get("Location")
}

// push stores content as a blob of the repository.
func (r *registry) push(t testing.TB, repository, content string) oci.Digest {
	t.Helper()
	d := digest(content)
	r.do(t, "PUT", r.start(t, repository, "")+"?digest="+d.String(), content).want(t, 201, "")
	return d
}

// put stores a manifest under a tag.
func (r *registry) put(t testing.TB, repository, tag, payload string) oci.Digest {
	t.Helper()
	d := digest(payload)
	r.do(t, "PUT", "/v2/"+repository+"/manifests/"+tag, payload).want(t, 201, "", "Docker-Content-Digest", d.String())
	return d
}

// wantBlob checks that the repository has the blob, byte for byte.
func (r *registry) wantBlob(t testing.TB, repository string, d oci.Digest, content string) {
	t.Helper()
	r.do(t, "GET", "/v2/"+repository+"/blobs/"+d.String(), "").
		want(t, 200, "", "Docker-Content-Digest", d.String(), "Content-Length", fmt.Sprint(len(content))).text(t, content)
}

type object = map[string]any

func descriptor(mediaType string, d oci.Digest, size int) object {
	return object{"mediaType": mediaType, "digest": d.String(), "size": size}
}

const (
	configType = "application/vnd.oci.image.config.v1+json"
	layerType  = "application/vnd.oci.image.layer.v1.tar+gzip"
)

// image returns an image manifest; more adds or replaces members.
func image(t testing.TB, config oci.Digest, layers []oci.Digest, more object) string {
	t.Helper()
	list := []any{}
	for _, l := range layers {
		list = append(list, descriptor(layerType, l, 1))
	}
	m := object{
		"schemaVersion": 2, "mediaType": oci.MediaTypeImageManifest,
		"config": descriptor(configType, config, 1), "layers": list,
	}
	for k, v := range more {
		m[k] = v
	}
	return encode(t, m)
}

// simple returns a manifest with one small configuration, which it pushes first. n
// makes the manifest unique.
func (r *registry) simple(t testing.TB, repository string, n any, more object) string {
	t.Helper()
	config := r.push(t, repository, "{}")
	m := object{"annotations": map[string]string{"n": fmt.Sprint(n)}}
	for k, v := range more {
		m[k] = v
	}
	return image(t, config, nil, m)
}

func index(t testing.TB, children ...oci.Digest) string {
	t.Helper()
	list := []any{}
	for _, d := range children {
		list = append(list, descriptor(oci.MediaTypeImageManifest, d, 1))
	}
	return encode(t, object{"schemaVersion": 2, "mediaType": oci.MediaTypeImageIndex, "manifests": list})
}

func encode(t testing.TB, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// pattern returns n bytes without repetitions that could hide a wrong offset.
func pattern(seed byte, n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i) ^ byte(i>>8)*31 ^ byte(i>>16)*17 ^ seed
	}
	return string(b)
}
