//go:build all

package e2e

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

// cluster is the API of a Kubernetes cluster: a real kube-apiserver on a real etcd, without nodes
// and controllers.
type cluster struct {
	t      *testing.T
	server string
	client http.Client
}

// startCluster starts the tool kubeapi, and returns the cluster with the token of its administrator.
func startCluster(t *testing.T) (c *cluster, token string) {
	t.Helper()
	path := toolClient(t, "kubeapi").path
	cmd := exec.CommandContext(t.Context(), path, newDir(t))
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe() // the tool ends when this is closed
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stdin.Close(); cmd.Wait() }) //nolint:errcheck // how it ends doesn't matter
	kubeconfig, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatalf("kubeapi doesn't start: %v", err)
	}
	text, err := os.ReadFile(strings.TrimSpace(kubeconfig))
	if err != nil {
		t.Fatal(err)
	}
	c = &cluster{t: t, client: http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}}
	c.server = regexp.MustCompile(`server: "(.*?)"`).FindStringSubmatch(string(text))[1]
	return c, regexp.MustCompile(`token: "(.*?)"`).FindStringSubmatch(string(text))[1]
}

// do sends a request to the cluster's API, and returns the answer's body. The API refuses
// members that it doesn't know.
func (c *cluster) do(token, method, path string, body any, want int) []byte {
	c.t.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		c.t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(c.t.Context(), method, c.server+path+"?fieldValidation=Strict", bytes.NewReader(text))
	if err != nil {
		c.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("Content-Type", "application/json")
	if method == http.MethodPatch {
		r.Header.Set("Content-Type", "application/merge-patch+json")
	}
	res, err := c.client.Do(r)
	if err != nil {
		c.t.Fatal(err)
	}
	defer res.Body.Close()
	content, err := io.ReadAll(res.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	if res.StatusCode != want {
		c.t.Fatalf("%s %s: status %d, want %d: %s", method, path, res.StatusCode, want, content)
	}
	return content
}

// object is an object of Kubernetes, or a part of one.
type object = map[string]any

// apply creates the objects of a YAML file.
func (c *cluster) apply(token, file string) {
	c.t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		c.t.Fatal(err)
	}
	plural := map[string]string{"Namespace": "namespaces", "ServiceAccount": "serviceaccounts", "ClusterRole": "clusterroles",
		"ClusterRoleBinding": "clusterrolebindings", "CronJob": "cronjobs", "ConfigMap": "configmaps", "Service": "services", "Deployment": "deployments",
		"PodDisruptionBudget": "poddisruptionbudgets", "NetworkPolicy": "networkpolicies", "Ingress": "ingresses",
		"PodMonitor": "podmonitors", "ServiceMonitor": "servicemonitors", "PrometheusRule": "prometheusrules",
		"HorizontalPodAutoscaler": "horizontalpodautoscalers", "HTTPRoute": "httproutes", "Pod": "pods"}
	for _, part := range strings.Split(string(text), "\n---\n") {
		var o object
		if err := yaml.Unmarshal([]byte(part), &o); err != nil {
			c.t.Fatal(err)
		}
		version, kind := o["apiVersion"].(string), o["kind"].(string)
		path := "/apis/" + version
		if !strings.Contains(version, "/") {
			path = "/api/" + version
		}
		if n, ok := o["metadata"].(object)["namespace"].(string); ok {
			path += "/namespaces/" + n
		}
		c.do(token, "POST", path+"/"+plural[kind], o, http.StatusCreated)
	}
}

// podOf returns a template of pods with one image.
func podOf(image string) object {
	return object{"metadata": object{"labels": object{"app": "web"}},
		"spec": object{"restartPolicy": "Never", "containers": []object{{"name": "main", "image": image}}}}
}

// reportingRobot makes a robot that may report in acme, and resolve tags there. It returns its secret.
func reportingRobot(t *testing.T, r *registry) string {
	t.Helper()
	var robot struct{ Token string }
	if err := json.Unmarshal(r.administer(t, "PUT", "/organization/acme/robots/cluster", `{"actions":["hold","pull"]}`, http.StatusCreated), &robot); err != nil {
		t.Fatal(err)
	}
	r.administer(t, "PUT", "/organization/acme/permissions/user/acme+cluster", `{"role":"reader"}`, http.StatusOK)
	return robot.Token
}

// reportingAccount returns a token of the account of deploy/kubernetes/report.yaml.
func (c *cluster) reportingAccount(admin string) string {
	c.t.Helper()
	var account struct{ Status struct{ Token string } }
	answer := c.do(admin, "POST", "/api/v1/namespaces/purser-report/serviceaccounts/purser-report/token", object{"spec": object{"expirationSeconds": 3600}}, http.StatusCreated)
	if err := json.Unmarshal(answer, &account); err != nil {
		c.t.Fatal(err)
	}
	return account.Status.Token
}

// kubeconfig writes a file by which a client reaches an API server.
func kubeconfig(t *testing.T, server, token string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	config := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],
		"clusters":[{"name":"c","cluster":{"server":%q,"insecure-skip-tls-verify":true}}],"users":[{"name":"u","user":{"token":%q}}]}`, server, token)
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// heldBy returns the digests that a reporter holds in acme, sorted.
func heldBy(t *testing.T, r *registry, reporter string) []string {
	t.Helper()
	var out struct{ Digests []struct{ Digest string } }
	if err := json.Unmarshal(r.administer(t, "GET", "/holds/"+reporter+"/digests?namespace=acme&limit=100", "", http.StatusOK), &out); err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, d := range out.Digests {
		list = append(list, d.Digest)
	}
	slices.Sort(list)
	return list
}

// TestReportsOfKubernetes: what a real API server says of a cluster becomes holds of just that. The
// reporting account has the rights of deploy/kubernetes/report.yaml and no others, and a report
// for which it lacks one changes nothing.
func TestReportsOfKubernetes(t *testing.T) {
	r, _ := startClosed(t)
	crane := toolClient(t, "crane")
	crane.Run("auth", "login", r.host, "-u", "writer", "-p", accountPassword)
	digests := map[string]string{}
	for _, tag := range []string{"v1", "v2", "v3", "v4", "job", "night", "unused"} {
		image := newImage(t, 1, 1<<10)
		crane.Run("push", writeImage(t, image, tag), r.Ref("acme/web", tag))
		digests[tag] = digestOf(t, image)
	}
	token := reportingRobot(t, r)
	c, admin := startCluster(t)
	c.apply(admin, "../deploy/kubernetes/report.yaml")
	const shop, apps = "/api/v1/namespaces/shop/", "/apis/apps/v1/namespaces/shop/"
	c.do(admin, "POST", "/api/v1/namespaces", object{"metadata": object{"name": "shop"}}, http.StatusCreated)
	ref := func(tag string) string { return r.host + "/acme/web:" + tag }
	template := func(tag string) object {
		return object{"metadata": object{"labels": object{"app": "web"}}, "spec": object{"containers": []object{{"name": "main", "image": ref(tag)}}}}
	}
	selector := object{"matchLabels": object{"app": "web"}}
	var deployment struct{ Metadata struct{ UID string } }
	answer := c.do(admin, "POST", apps+"deployments", object{"metadata": object{"name": "web"},
		"spec": object{"selector": selector, "template": template("v4")}}, http.StatusCreated)
	if err := json.Unmarshal(answer, &deployment); err != nil {
		t.Fatal(err)
	}
	for i, tag := range []string{"v1", "v2", "v3", "v4"} { // v1 is one revision too old for 2 rollbacks
		replicas := 0
		if tag == "v4" {
			replicas = 1
		}
		c.do(admin, "POST", apps+"replicasets", object{"metadata": object{"name": "web-" + tag,
			"annotations":     object{"deployment.kubernetes.io/revision": fmt.Sprint(i + 1)},
			"ownerReferences": []object{{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": deployment.Metadata.UID, "controller": true}}},
			"spec": object{"replicas": replicas, "selector": selector, "template": template(tag)}}, http.StatusCreated)
	}
	job := object{"template": podOf(ref("job"))}
	c.do(admin, "POST", "/apis/batch/v1/namespaces/shop/jobs", object{"metadata": object{"name": "once"}, "spec": job}, http.StatusCreated)
	c.do(admin, "POST", "/apis/batch/v1/namespaces/shop/cronjobs", object{"metadata": object{"name": "nightly"},
		"spec": object{"schedule": "0 3 * * *", "jobTemplate": object{"spec": object{"template": podOf(ref("night"))}}}}, http.StatusCreated)
	for i := range 501 { // more than a page
		name := fmt.Sprintf("web-%d", i)
		pod := podOf(ref("v4"))
		pod["metadata"] = object{"name": name}
		c.do(admin, "POST", shop+"pods", pod, http.StatusCreated)
	}
	// The last pod runs what its tag was once.
	gone := "sha256:" + strings.Repeat("ab", 32)
	c.do(admin, "PATCH", shop+"pods/web-500/status", object{"status": object{"phase": "Running", "containerStatuses": []object{{"name": "main", "image": ref("v4"),
		"imageID": r.host + "/acme/web@" + gone, "ready": true, "restartCount": 0, "state": object{"running": object{"startedAt": "2026-11-01T00:00:00Z"}}}}}}, http.StatusOK)

	account := c.reportingAccount(admin)
	for _, path := range []string{"/api/v1/secrets", shop + "configmaps", "/api/v1/nodes"} {
		c.do(account, "GET", path, nil, http.StatusForbidden)
	}
	kubeconfig := kubeconfig(t, c.server, account)
	report := func() (int, string) {
		return purser(t, []string{"PURSER_SERVER=" + r.URL(), "PURSER_TOKEN=" + token, "KUBECONFIG=" + kubeconfig},
			"report", "kubernetes", "prod-eu", "--registry", r.host, "--namespace", "acme", "--lease", "1h")
	}
	held := func() []string { return heldBy(t, r, "prod-eu") }
	if code, out := report(); code != 0 {
		t.Fatalf("the report: exit code %d: %s", code, out)
	}
	want := []string{digests["v2"], digests["v3"], digests["v4"], digests["job"], digests["night"], gone}
	slices.Sort(want)
	if got := held(); !slices.Equal(got, want) {
		t.Errorf("held: %v\nwant: %v (of %v)", got, want, digests)
	}

	// Without the right to read one of the lists, the report fails as a whole.
	c.do(admin, "PATCH", "/apis/rbac.authorization.k8s.io/v1/clusterroles/purser-report", object{"rules": []object{
		{"apiGroups": []string{""}, "resources": []string{"pods"}, "verbs": []string{"list"}}}}, http.StatusOK)
	// The API server learns of the change within moments.
	eventually(t, time.Minute, func() error {
		code, out := report()
		if code == 0 {
			return fmt.Errorf("the report without rights succeeded: %s", out)
		}
		says(t, out, "forbidden")
		return nil
	})
	if got := held(); !slices.Equal(got, want) {
		t.Errorf("held after a report that failed: %v, want %v", got, want)
	}
}
