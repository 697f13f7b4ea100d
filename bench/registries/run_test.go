package registries

import (
	"bytes"
	"encoding/json"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
)

// TestMain makes the test binary usable as the child process that serves the baselines.
func TestMain(m *testing.M) {
	if ok, err := Child(); ok {
		if err != nil {
			log.Fatal(err)
		}
		return
	}
	os.Exit(m.Run())
}

func startRegistry(t *testing.T) *httptest.Server {
	t.Helper()
	srv := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(srv.Close)
	return srv
}

// small returns flags that make every workload take little time, followed by the flags in
// `extra`.
func small(t *testing.T, extra ...string) []string {
	return append([]string{"-c", "2", "-d", "30ms", "-rounds", "2", "-hot", "3", "-push-workers", "2",
		"-layer-mib", "2", "-fill", "40", "-fill-repos", "3", "-fill-workers", "3", "-settle", "0", "-quiet", "0", "-noise", "1", "-many", "5", "-sync=false",
		"-dir", t.TempDir()}, extra...)
}

func TestRunMeasuresEveryWorkloadOnEveryRegistry(t *testing.T) {
	t.Parallel()
	a, b := startRegistry(t), startRegistry(t)
	file := filepath.Join(t.TempDir(), "results.json")
	var stdout, stderr bytes.Buffer
	args := small(t, "-baselines", "-json", file, "alpha="+a.URL, "beta="+b.URL)
	if err := Run(t.Context(), args, &stdout, &stderr); err != nil {
		t.Fatalf("run: %v\n%s\n%s", err, &stdout, &stderr)
	}
	var rep report
	readJSON(t, file, &rep)
	got := map[string]result{}
	for _, r := range rep.Results {
		got[r.State+" "+r.Workload+" "+r.Registry] = r
	}
	var want []string
	for _, state := range []string{stateEmpty, stateFilled} {
		for _, w := range workloads {
			if w.optional {
				continue
			}
			want = append(want, state+" "+w.name+" alpha", state+" "+w.name+" beta")
			if w.baseline != "" {
				want = append(want, state+" "+w.name+" "+w.limit)
			}
		}
	}
	want = append(want, "filled fill alpha", "filled fill beta")
	for _, key := range want {
		r, ok := got[key]
		if !ok {
			t.Errorf("no result %q", key)
			continue
		}
		checkResult(t, key, r)
	}
	if len(rep.Results) != len(want) {
		t.Errorf("%d results, want %d", len(rep.Results), len(want))
	}
	checkTables(t, stdout.String())
}

func checkResult(t *testing.T, key string, r result) {
	t.Helper()
	if r.Errors != 0 || r.Operations == 0 || r.PerSecond <= 0 || r.P50 <= 0 || r.P99 < r.P50 {
		t.Errorf("%s: %+v", key, r)
	}
	if r.Workload == "layer-1GiB" && r.Operations != 2 {
		t.Errorf("%s: %d layers in 2 rounds", key, r.Operations)
	}
	if r.Workload == fillWorkload && r.Operations != 40 {
		t.Errorf("%s: %d manifests, want 40", key, r.Operations)
	}
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		return
	}
	if cpu, ok := r.cpu(); !ok || cpu <= 0 || r.ClientCPU <= 0 || r.RSSPeak <= 0 {
		t.Errorf("%s: CPU time or memory missing: %+v", key, r)
	}
}

// checkTables fails the test unless `text` has three rows of each default workload for the
// registry "beta": for the empty registry, for the filled one, and for the quotient of the
// two.
func checkTables(t *testing.T, text string) {
	t.Helper()
	for _, w := range workloads {
		if w.optional {
			continue
		}
		rows := 0
		for line := range strings.Lines(text) {
			if f := strings.Fields(line); len(f) > 2 && f[0] == w.name && f[1] == "beta" {
				rows++
			}
		}
		if rows != 3 { // empty, filled, their ratio
			t.Errorf("%d rows of %s for beta, want 3:\n%s", rows, w.name, text)
		}
	}
	for _, title := range []string{"Empty registry", "With 40 manifests\n", "With 40 manifests, of the empty"} {
		if !strings.Contains(text, title) {
			t.Errorf("no title %q in:\n%s", title, text)
		}
	}
	if strings.Contains(text, "!!") {
		t.Errorf("a row is marked:\n%s", text)
	}
}

func readJSON(t *testing.T, file string, v any) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, v); err != nil {
		t.Fatalf("%v in %s", err, b)
	}
}

func TestPushFlowsStoreTheSame(t *testing.T) {
	t.Parallel()
	for _, flow := range flows {
		for _, encoding := range []string{encodingChunked, encodingLength} {
			t.Run(flow+" "+encoding, func(t *testing.T) {
				t.Parallel()
				srv := startRegistry(t)
				var stdout, stderr bytes.Buffer
				args := small(t, "-fill", "0", "-rounds", "1", "-w", "small-images,layer-1GiB,head-blob", "-json", "-",
					"-push-flow", flow, "-layer-encoding", encoding, "r="+srv.URL)
				if err := Run(t.Context(), args, &stdout, &stderr); err != nil {
					t.Fatalf("run: %v\n%s", err, &stderr)
				}
				var rep report
				if err := json.Unmarshal(stdout.Bytes(), &rep); err != nil {
					t.Fatalf("%v in %s", err, &stdout)
				}
				if len(rep.Results) != 3 || rep.marked() != 0 {
					t.Fatalf("results %+v", rep.Results)
				}
				for _, r := range rep.Results {
					if r.Operations == 0 {
						t.Errorf("%s did nothing", r.Workload)
					}
				}
			})
		}
	}
}

// A registry answers GETs of blobs with other content, and lists of tags with an incomplete
// list. The test expects that Run returns an error and marks the rows of the two workloads
// that read these answers.
func TestErrorsAreMarked(t *testing.T) {
	t.Parallel()
	reg := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/tags/list"):
			io.WriteString(w, `{"name":"bench/tags","tags":["one","two"]}`)
		case r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/"):
			w.Write(make([]byte, bigSize))
		default:
			reg.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(srv.Close)
	var stdout, stderr bytes.Buffer
	err := Run(t.Context(), small(t, "-fill", "0", "-w", "tags-1000,get-1MiB,head-blob", "bad="+srv.URL), &stdout, &stderr)
	if err == nil || !strings.Contains(err.Error(), "2 results have errors") {
		t.Fatalf("run: %v, want 2 results with errors\n%s", err, &stderr)
	}
	for _, want := range []string{"names 2 tags, want 1000", "the content has digest sha256:", "!!"} {
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("%q isn't in:\n%s", want, &stdout)
		}
	}
}

// TestMount measures the workload mount on two servers, since the in-memory registry of the
// other tests doesn't support mounts. One server answers a mount with 201. The other answers
// with 202, that is, it doesn't mount the blob; Run must then return an error.
func TestMount(t *testing.T) {
	t.Parallel()
	for _, status := range []int{http.StatusCreated, http.StatusAccepted} {
		reg := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			digest, from := r.URL.Query().Get("mount"), r.URL.Query().Get("from")
			if digest == "" {
				reg.ServeHTTP(w, r)
				return
			}
			if from != "bench/read" || r.URL.Path != "/v2/bench/mount/blobs/uploads/" {
				http.Error(w, "wrong mount", http.StatusBadRequest)
				return
			}
			w.Header().Set("Docker-Content-Digest", digest)
			w.WriteHeader(status)
		}))
		t.Cleanup(srv.Close)
		var stdout, stderr bytes.Buffer
		err := Run(t.Context(), small(t, "-fill", "0", "-rounds", "1", "-w", "mount", "r="+srv.URL), &stdout, &stderr)
		if mounted := status == http.StatusCreated; mounted != (err == nil) {
			t.Errorf("status %d: %v\n%s", status, err, &stdout)
		}
	}
}

func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{},
		{"-w", "nothing", "a=http://127.0.0.1:1"},
		{"-c", "0", "a=http://127.0.0.1:1"},
		{"-push-flow", "put", "a=http://127.0.0.1:1"},
		{"-layer-encoding", "gzip", "a=http://127.0.0.1:1"},
		{"-fill", "-1", "a=http://127.0.0.1:1"},
		{"a=http://127.0.0.1:1", "a=http://127.0.0.1:2"},
		{"http://127.0.0.1:1"},
		{"a=ftp://127.0.0.1:1"},
		{"a=http://127.0.0.1:1/path"},
		{"a=http://127.0.0.1:1,pid=x"},
		{"a=http://127.0.0.1:1,after=flush"},
		{"-noise", "0", "a=http://127.0.0.1:1"},
		{"-quiet", "-1s", "a=http://127.0.0.1:1"},
		{"a=http://127.0.0.1:1,host=x"},
	} {
		if _, err := parseOptions(args, io.Discard); err == nil {
			t.Errorf("%q was taken", args)
		}
	}
	o, err := parseOptions([]string{"a=http://u:p@localhost:1,pid=3+4", "b=https://example.org"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	a, b := o.targets[0], o.targets[1]
	if a.addr != "localhost:1" || a.auth != "Basic dTpw" || len(a.pids) != 2 || a.pids[1] != 4 || a.tls != nil {
		t.Errorf("target %+v", a)
	}
	if b.addr != "example.org:443" || b.host != "example.org" || b.tls == nil || b.tls.ServerName != "example.org" {
		t.Errorf("target %+v", b)
	}
	if len(o.workloads) != len(workloadNames(true)) {
		t.Errorf("%d workloads by default", len(o.workloads))
	}
}

func TestResolve(t *testing.T) {
	t.Parallel()
	tg := &target{name: "r", origin: "http://h:5000"}
	for in, want := range map[string]string{
		"/v2/a/blobs/uploads/1?state=x":              "/v2/a/blobs/uploads/1?state=x",
		"http://h:5000/v2/a/blobs/uploads/1?state=x": "/v2/a/blobs/uploads/1?state=x",
		"http://other:5000/v2/a":                     "",
		"https://h:5000/v2/a":                        "",
		"//h:5000/v2/a":                              "",
		"relative":                                   "",
	} {
		got, err := tg.resolve([]byte(in))
		if got != want || (err != nil) != (want == "") {
			t.Errorf("resolve(%q) = %q, %v; want %q", in, got, err, want)
		}
	}
}
