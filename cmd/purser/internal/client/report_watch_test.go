package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/cmd/purser/internal/report"
	"github.com/purser-registry/purser/cmd/purser/internal/report/kube"
	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// testCluster is a Kubernetes cluster that has pods alone.
type testCluster struct {
	pods     atomic.Value  // the list of them; JSON
	started  chan string   // a pod that is sent here is told to a watch
	watching chan struct{} // gets something when a watch begins
	config   string        // path of a kubeconfig
}

func newTestCluster(t *testing.T, uid string, pods ...string) *testCluster {
	t.Helper()
	c := &testCluster{started: make(chan string), watching: make(chan struct{}, 10), config: filepath.Join(t.TempDir(), "config")}
	c.pods.Store(strings.Join(pods, ","))
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Query().Get("watch") == "true":
			w.WriteHeader(http.StatusOK)
			w.(http.Flusher).Flush()
			c.watching <- struct{}{}
			select {
			case p := <-c.started:
				fmt.Fprintf(w, `{"type":"ADDED","object":%s}`, p)
				w.(http.Flusher).Flush()
				<-r.Context().Done()
			case <-r.Context().Done():
			}
		case r.URL.Path == "/api/v1":
			fmt.Fprint(w, `{"kind":"APIResourceList","resources":[{"name":"pods"}]}`)
		case r.URL.Path == "/api/v1/pods":
			fmt.Fprintf(w, `{"kind":"PodList","metadata":{"resourceVersion":"1"},"items":[%s]}`, c.pods.Load())
		case r.URL.Path == "/api/v1/namespaces/kube-system":
			fmt.Fprintf(w, `{"kind":"Namespace","metadata":{"name":"kube-system","uid":%q}}`, uid)
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(s.Close)
	config := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"k"}}],"clusters":[{"name":"k","cluster":{"server":%q}}]}`, s.URL)
	if err := os.WriteFile(c.config, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	return c
}

// testPod is a running pod with an image.
func testPod(name, image string) string {
	return fmt.Sprintf(`{"metadata":{"namespace":"shop","name":%q,"uid":%[1]q},"spec":{"containers":[{"name":"c","image":%q}]},"status":{"phase":"Running"}}`, name, image)
}

// sentReport is a report that came to a registry.
type sentReport struct {
	path, body string
	query      url.Values
}

// reportsTo starts a registry that takes every report. The reports come through the channel.
func reportsTo(t *testing.T) (server string, sent <-chan sentReport) {
	t.Helper()
	return reportsFor(t, 365*24*time.Hour)
}

// reportsFor starts a registry that holds what is reported for so long.
func reportsFor(t *testing.T, lease time.Duration) (server string, sent <-chan sentReport) {
	t.Helper()
	reports := make(chan sentReport, 100)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || r.Method != http.MethodPut {
			t.Errorf("%s %s: %v", r.Method, r.URL, err)
		}
		reports <- sentReport{r.URL.Path, string(body), r.URL.Query()}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"reporter":"r","revision":1,"digests":1,"expires_at":%q}`, time.Now().Add(lease).Format(time.RFC3339Nano))
	}))
	t.Cleanup(s.Close)
	return s.URL, reports
}

// reportUntilStopped runs a command until it is stopped; then `stop` says whether it ended in order.
func reportUntilStopped(t *testing.T, environ []string, args ...string) (stop func()) {
	t.Helper()
	src := &command.Source{Environ: environ}
	cmd := command.NewRoot(src, Commands(src)...)
	Complete(src, cmd)
	ctx, cancel := context.WithCancel(t.Context())
	code, out := make(chan int, 1), new(bytes.Buffer)
	go func() { code <- command.Execute(ctx, cmd, args, out, out) }()
	return func() {
		t.Helper()
		cancel()
		if c := <-code; c != 0 {
			t.Errorf("%q: exit code %d: %s", args, c, out)
		}
	}
}

// TestReportWatch: a pod starts, and the registry holds its image although the watcher's interval is an
// hour. The watcher ends without an error when it is told to.
func TestReportWatch(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	o.login("root")
	root := o.r.With(servertest.As("root"))
	one, two := image(t, root, "v1", "one"), image(t, root, "v2", "two")
	a, b := testPod("a", "r.example/acme/app@"+one), testPod("b", "r.example/acme/app@"+two)
	c := newTestCluster(t, "uid", a)
	stop := reportUntilStopped(t, o.environ, "report", "kubernetes", "prod", "--watch", "--interval", "1h", "--registry", "r.example", "--namespace", "acme", "--kubeconfig", c.config)
	<-c.watching
	c.pods.Store(a + "," + b)
	c.started <- b
	servertest.Eventually(t, "the pod's image is held", func() bool {
		return strings.Contains(string(root.Manage(t, "GET", "/holds/prod/digests?namespace=acme", "").Content), two)
	})
	stop()
}

// shipped is an object of deploy/kubernetes, as far as these tests look at it.
type shipped struct {
	Kind     string
	Metadata struct{ Name, Namespace string }
	Spec     struct {
		Replicas int
		Selector struct {
			MatchLabels map[string]string `yaml:"matchLabels"`
		}
		Template    shippedPod
		JobTemplate struct{ Spec struct{ Template shippedPod } } `yaml:"jobTemplate"`
	}
}

type shippedPod struct {
	Metadata struct{ Labels map[string]string }
	Spec     struct {
		ServiceAccountName string `yaml:"serviceAccountName"`
		Containers         []struct {
			Image string
			Args  []string
			Env   []any
		}
	}
}

// readShipped returns the objects of a file of deploy/kubernetes by their kinds.
func readShipped(t *testing.T, file string) map[string]shipped {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("..", "..", "..", "..", "deploy", "kubernetes", file))
	if err != nil {
		t.Fatal(err)
	}
	byKind := map[string]shipped{}
	for decoder := yaml.NewDecoder(bytes.NewReader(content)); ; {
		var one shipped
		switch err := decoder.Decode(&one); {
		case errors.Is(err, io.EOF):
			return byKind
		case err != nil:
			t.Fatal(err)
		}
		byKind[one.Kind] = one
	}
}

// at returns the arguments for another registry and cluster.
func (p shippedPod) at(server string, c *testCluster) []string {
	args := slices.Clone(p.Spec.Containers[0].Args)
	for i, arg := range args {
		if strings.HasPrefix(arg, "--server=") {
			args[i] = "--server=" + server
		}
	}
	return append(args, "--kubeconfig", c.config)
}

// TestShippedReports: the Deployment and the CronJob of deploy/kubernetes report the same, as the same
// account. The Deployment reports within 5 s what a pod begins to run, though nothing else happens, and
// says which cluster it is.
func TestShippedReports(t *testing.T) {
	t.Parallel()
	const one, two = "sha256:1111111111111111111111111111111111111111111111111111111111111111", "sha256:2222222222222222222222222222222222222222222222222222222222222222"
	base := readShipped(t, "report.yaml")
	watcher, job := readShipped(t, "watch.yaml")["Deployment"], base["CronJob"].Spec.JobTemplate.Spec.Template
	pod := watcher.Spec.Template
	if len(pod.Spec.Containers) != 1 || len(job.Spec.Containers) != 1 {
		t.Fatalf("the containers are %+v and %+v", pod.Spec.Containers, job.Spec.Containers)
	}
	account := base["ServiceAccount"].Metadata
	if watcher.Spec.Replicas != 1 || watcher.Metadata.Namespace != account.Namespace || pod.Spec.ServiceAccountName != account.Name || job.Spec.ServiceAccountName != account.Name ||
		len(watcher.Spec.Selector.MatchLabels) == 0 || !maps.Equal(watcher.Spec.Selector.MatchLabels, pod.Metadata.Labels) {
		t.Errorf("the Deployment is %+v, for the account %+v", watcher, account)
	}
	watching, reporting := pod.Spec.Containers[0], job.Spec.Containers[0]
	without := slices.DeleteFunc(slices.Clone(watching.Args), func(arg string) bool { return arg == "--watch" })
	if !slices.Equal(without, reporting.Args) || len(without) != len(watching.Args)-1 || watching.Image != reporting.Image || !reflect.DeepEqual(watching.Env, reporting.Env) {
		t.Errorf("the Deployment runs %+v, the CronJob %+v", watching, reporting)
	}

	server, sent := reportsTo(t)
	environ := []string{"PURSER_TOKEN=secret"}
	a, b := testPod("a", "registry.example.com/acme/app@"+one), testPod("b", "registry.example.com/acme/app@"+two)
	c := newTestCluster(t, "uid-of-the-cluster", a)
	var out bytes.Buffer
	if code := execute(t.Context(), job.at(server, c), environ, &out, &out); code != 0 {
		t.Fatalf("the CronJob's command ends with %d: %s", code, &out)
	}
	first := <-sent
	want := url.Values{"namespace": {"acme"}, "lease": {"1d"}, "kind": {"kubernetes"}, "cluster": {"uid-of-the-cluster"}}
	if first.path != "/api/v1/holds/prod-eu" || !reflect.DeepEqual(first.query, want) || !strings.Contains(first.body, one) {
		t.Errorf("the CronJob reports %+v", first)
	}

	stop := reportUntilStopped(t, environ, pod.at(server, c)...)
	<-c.watching
	<-sent // at the start
	<-sent // as the watch began
	c.pods.Store(a + "," + b)
	began := time.Now()
	c.started <- b
	r := <-sent
	if took := time.Since(began); took > 5*time.Second || r.path != first.path || !reflect.DeepEqual(r.query, want) || !strings.Contains(r.body, two) {
		t.Errorf("after %s, the Deployment reports %+v", took, r)
	}
	stop()
}

// TestReportInterval: reports come after each interval though nothing changes, which renews the lease.
func TestReportInterval(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args    []string
		reports int
	}{
		// The second report comes since the watch begins after the first.
		"watch": {[]string{"report", "kubernetes", "prod", "--watch"}, 3},
		"often": {[]string{"report", "kubernetes", "prod"}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, sent := reportsTo(t)
			cluster := newTestCluster(t, "uid", testPod("a", "r.example/acme/app@sha256:1111111111111111111111111111111111111111111111111111111111111111"))
			stop := reportUntilStopped(t, []string{"PURSER_SERVER=" + server, "PURSER_TOKEN=secret"}, append(c.args, "--interval", "1s", "--registry", "r.example", "--kubeconfig", cluster.config)...)
			for range c.reports {
				<-sent
			}
			stop()
		})
	}
}

// TestReplaceCluster: the flag is said to the registry, and not otherwise.
func TestReplaceCluster(t *testing.T) {
	t.Parallel()
	server, sent := reportsTo(t)
	c := newTestCluster(t, "new", testPod("a", "r.example/acme/app@sha256:1111111111111111111111111111111111111111111111111111111111111111"))
	for _, flag := range []string{"--replace-cluster=false", "--replace-cluster"} {
		var out bytes.Buffer
		if code := execute(t.Context(), []string{"report", "kubernetes", "prod", flag, "--registry", "r.example", "--kubeconfig", c.config}, []string{"PURSER_SERVER=" + server, "PURSER_TOKEN=secret"}, &out, &out); code != 0 {
			t.Fatalf("%s: exit code %d: %s", flag, code, &out)
		}
		r := <-sent
		if replaces := r.query.Get("replace_cluster") == "true"; r.query.Get("cluster") != "new" || replaces != (flag == "--replace-cluster") {
			t.Errorf("%s: the report says %v", flag, r.query)
		}
	}
}

// TestReportIntervalAndLease: an interval in which the holds might end is refused, and a short lease is
// warned of.
func TestReportIntervalAndLease(t *testing.T) {
	t.Parallel()
	server, sent := reportsTo(t)
	cluster := newTestCluster(t, "uid", testPod("a", "r.example/acme/app@sha256:1111111111111111111111111111111111111111111111111111111111111111"))
	run := func(args ...string) (int, string) {
		var out bytes.Buffer
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // what isn't refused goes on
		defer cancel()
		code := execute(ctx, append([]string{"report", "kubernetes", "prod", "--registry", "r.example", "--kubeconfig", cluster.config}, args...),
			[]string{"PURSER_SERVER=" + server, "PURSER_TOKEN=secret"}, &out, &out)
		return code, out.String()
	}
	for _, args := range [][]string{{"--interval", "24h", "--lease", "24h"}, {"--interval", "2h", "--lease", "5h"}, {"--watch", "--interval", "5m", "--lease", "5m"}} {
		code, out := run(args...)
		for _, want := range []string{"--interval", "--lease " + args[len(args)-1], "or less, or a lease of"} {
			if code != 2 || !strings.Contains(out, want) {
				t.Errorf("%q: exit code %d, want %q in %s", args, code, want, out)
			}
		}
	}
	if len(sent) > 0 {
		t.Error("it has reported")
	}
	for lease, warned := range map[string]bool{"6m": true, "59m": true, "1h": false, "1d": false} {
		code, out := run("--lease", lease)
		if told := strings.Contains(out, "Beware: --lease "+lease+", which is "); code != 0 || told != warned || told && !strings.Contains(out, "(m is minutes)") {
			t.Errorf("--lease %s: exit code %d: %s", lease, code, out)
		}
	}
}

// TestReportAfterSilence: the cluster or the registry takes a request and never answers. The report is
// given up and told, and the next one comes although the interval is an hour.
func TestReportAfterSilence(t *testing.T) {
	t.Parallel()
	const one = "sha256:1111111111111111111111111111111111111111111111111111111111111111"
	for name, want := range map[string]string{"the cluster": "the report was given up after 300ms", "the registry": "no answer within 300ms"} {
		for _, watch := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, watch %v", name, watch), func(t *testing.T) {
				t.Parallel()
				taken, sent := reportsTo(t)
				server, err := url.Parse(taken)
				if err != nil {
					t.Fatal(err)
				}
				registry := httputil.NewSingleHostReverseProxy(server)
				var requests, reads atomic.Int32
				front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if name == "the registry" && requests.Add(1) == 1 {
						io.Copy(io.Discard, r.Body) //nolint:errcheck // then the end of the connection is noticed
						<-r.Context().Done()
						return
					}
					registry.ServeHTTP(w, r)
				}))
				t.Cleanup(front.Close)
				if server, err = url.Parse(front.URL); err != nil {
					t.Fatal(err)
				}
				read := func(ctx context.Context) (report.Deployed, error) {
					if name == "the cluster" && reads.Add(1) == 1 {
						<-ctx.Done()
						return report.Deployed{}, ctx.Err()
					}
					return report.Deployed{Images: []report.Image{{Host: "r.example", Repository: "acme/app", Digest: digest(t, one)}}}, nil
				}
				ctx, cancel := context.WithCancel(t.Context())
				var out bytes.Buffer
				cmd := &cobra.Command{}
				cmd.SetContext(ctx)
				cmd.SetOut(&out)
				cmd.SetErr(&out)
				r := addReporting(cmd, "kubernetes")
				r.hosts, r.interval = []string{"r.example"}, time.Hour
				if r.request = 300 * time.Millisecond; name == "the cluster" {
					r.whole, r.request = r.request, 0
				}
				ended, o := make(chan error, 1), kube.Options{Kubeconfig: newTestCluster(t, "uid").config}
				go func() {
					if watch {
						ended <- r.watch(cmd, api.NewClient(server), "prod", o, read)
					} else {
						ended <- r.run(cmd, api.NewClient(server), "prod", read)
					}
				}()
				select {
				case <-sent:
				case <-time.After(time.Minute):
					t.Error("no report came after the one that was given up")
				}
				cancel()
				if err := <-ended; err != nil || !strings.Contains(out.String(), want) {
					t.Errorf("%v: %s", err, &out)
				}
			})
		}
	}
}

func digest(t *testing.T, text string) oci.Digest {
	t.Helper()
	d, err := oci.ParseDigest(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}
