//go:build all

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

const chart = "../deploy/chart/purser"

// chartDefaults are the values that the chart has no default for.
const chartDefaults = `
image: {repository: registry.example.com/tools/purser}
database: {secretName: purser-database}
persistence: {existingClaim: blobs}
`

// chartEverything turns on everything that the chart can do.
const chartEverything = `
image: {repository: registry.example.com/tools/purser, digest: "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", pullSecrets: [pull]}
replicas: 3
config:
  http: {external_url: "https://registry.example.com", trusted_proxies: 10.0.0.0/8}
  storage: {s3: {endpoint: "https://s3.example.com", bucket: images, path_style: true}}
  pull_statistics: {redis: true}
database: {secretName: purser-database, key: dsn}
secrets:
  - {variable: PURSER_STORAGE_S3_ACCESS_KEY, secretName: purser-s3, key: access-key}
  - {variable: PURSER_STORAGE_S3_SECRET_KEY, secretName: purser-s3, key: secret-key}
  - {variable: PURSER_REDIS_URL, secretName: purser-redis, key: url}
drainSeconds: 120
service: {type: NodePort, port: 5000}
ingress:
  enabled: true
  className: nginx
  host: registry.example.com
  tlsSecretName: registry-tls
  annotations: {nginx.ingress.kubernetes.io/proxy-body-size: "0"}
networkPolicy:
  clients: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: ingress}}}]
  metrics: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: monitoring}}}]
  egress: [{ports: [{protocol: UDP, port: 53}, {protocol: TCP, port: 5432}]}]
podMonitor: {enabled: true, labels: {release: monitoring}, secretName: purser-metrics}
prometheusRule: {enabled: true, labels: {release: monitoring}}
report: {enabled: true, reporter: prod-eu, server: "https://registry.example.com", registry: registry.example.com, alsoKnownAs: [mirror.example.com], namespace: acme, secretName: purser-report}
backup: {enabled: true, target: "s3://backups/purser", args: ["--s3-endpoint=https://s3.example.com"], secrets: [{variable: AWS_ACCESS_KEY_ID, secretName: backup, key: id}]}
podAnnotations: {prometheus.io/port: "5001"}
nodeSelector: {disk: fast}
tolerations: [{key: registry, operator: Exists}]
`

// TestChart: helm accepts the chart; a real API server accepts what it renders, member by member,
// admits its pods under the strictest policy, and Purser accepts their settings.
func TestChart(t *testing.T) {
	beginOwn(t)
	helm := toolClient(t, "helm")
	c, admin := startCluster(t)
	c.define(admin, "PodMonitor", "podmonitors")
	c.define(admin, "PrometheusRule", "prometheusrules")
	job := strings.NewReplacer("report: {enabled: true,", "report: {enabled: true, watch: false,", `target: "s3://backups/purser"`, "existingClaim: backups, blobs: reference").Replace(chartEverything)
	for name, values := range map[string]string{"defaults": chartDefaults, "everything": chartEverything, "job": job, "documented": chartDocumented(t)} {
		file := filepath.Join(newDir(t), "values.yaml")
		if err := os.WriteFile(file, []byte(values), 0o644); err != nil {
			t.Fatal(err)
		}
		helm.Run("lint", "--strict", chart, "--values", file)
		rendered := filepath.Join(newDir(t), "rendered.yaml")
		text := helm.Run("template", "registry", chart, "--namespace", name, "--values", file)
		if err := os.WriteFile(rendered, []byte(strings.TrimPrefix(text, "---\n")), 0o644); err != nil {
			t.Fatal(err)
		}
		c.do(admin, "POST", "/api/v1/namespaces", object{"metadata": object{"name": name,
			"labels": object{"pod-security.kubernetes.io/enforce": "restricted"}}}, http.StatusCreated)
		c.apply(admin, rendered)
		checkChartPod(t, c, admin, name, text)
	}
	for _, wrong := range []string{"image.repository=", "database.secretName=", "drainSeconds=soon", "config.database.main=postgres://u:p@h/d", "replica=2", "persistence.existingClaim=",
		"report.enabled=true", "report.server=registry.example.com", "backup.enabled=true", "backup.target=/srv/backup", "backup.args={deep}", "podMonitor.interval=often"} {
		file := filepath.Join(newDir(t), "values.yaml")
		if err := os.WriteFile(file, []byte(chartDefaults), 0o644); err != nil {
			t.Fatal(err)
		}
		key, _, _ := strings.Cut(strings.NewReplacer("report.enabled", "report.reporter", "backup.enabled", "backup.target").Replace(wrong), "=")
		if refusal := helm.Refused("template", "registry", chart, "--values", file, "--set", wrong); !strings.Contains(refusal, key[strings.LastIndex(key, ".")+1:]) {
			t.Errorf("%s: %s", wrong, refusal)
		}
	}
}

// chartDocumented returns the values in docs/installing.md.
func chartDocumented(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile("../docs/installing.md")
	if err != nil {
		t.Fatal(err)
	}
	_, block, found := strings.Cut(string(page), "\n```yaml\nimage:\n")
	block, _, closed := strings.Cut(block, "\n```\n")
	if !found || !closed {
		t.Fatal("docs/installing.md has no block of values")
	}
	return "image:\n" + block + "\n"
}

// define makes the API server know a kind of the Prometheus operator, with any members.
func (c *cluster) define(token, kind, plural string) {
	c.t.Helper()
	open := object{"type": "object", "x-kubernetes-preserve-unknown-fields": true}
	c.do(token, "POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", object{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": object{"name": plural + ".monitoring.coreos.com",
			"annotations": object{"api-approved.kubernetes.io": "https://github.com/prometheus-operator/prometheus-operator"}},
		"spec": object{"group": "monitoring.coreos.com", "scope": "Namespaced", "names": object{"kind": kind, "plural": plural},
			"versions": []object{{"name": "v1", "served": true, "storage": true, "schema": object{"openAPIV3Schema": open}}}},
	}, http.StatusCreated)
	eventually(c.t, readyWithin, func() error {
		r, err := http.NewRequestWithContext(c.t.Context(), http.MethodGet, c.server+"/apis/monitoring.coreos.com/v1/"+plural, nil)
		if err != nil {
			return err
		}
		r.Header.Set("Authorization", "Bearer "+token)
		res, err := c.client.Do(r)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if res.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: status %d", plural, res.StatusCode)
		}
		return nil
	})
}

// checkChartPod creates a pod as the deployment in `text` would, and checks its settings.
func checkChartPod(t *testing.T, c *cluster, admin, namespace, text string) {
	t.Helper()
	env := []string{"PURSER_HTTP_ADDR=0.0.0.0:5000", "PURSER_HTTP_DEBUG_ADDR=0.0.0.0:5001"} // of the image
	config := filepath.Join(newDir(t), "config.yaml")
	for _, part := range strings.Split(text, "\n---\n") {
		var o struct {
			Kind     string
			Metadata struct{ Name string }
			Data     map[string]string
			Spec     struct {
				Template    object
				JobTemplate struct {
					Spec struct{ Template object }
				}
			}
		}
		if err := yaml.Unmarshal([]byte(part), &o); err != nil {
			t.Fatal(err)
		}
		switch o.Kind {
		case "ConfigMap":
			if err := os.WriteFile(config, []byte(o.Data["config.yaml"]), 0o644); err != nil {
				t.Fatal(err)
			}
		case "PrometheusRule":
			rules, err := os.ReadFile("../deploy/prometheus/alerts.yaml")
			if got, want := strings.Count(part, "- alert: "), strings.Count(string(rules), "- alert: "); err != nil || got != want {
				t.Errorf("%s: %d alerts, want all %d (%v)", namespace, got, want, err)
			}
		case "ClusterRole":
			sameRules(t, part)
		case "PodMonitor":
			if !strings.Contains(part, "port: debug\n") || !strings.Contains(part, "jobLabel: app.kubernetes.io/name") ||
				(namespace == "everything" || namespace == "job") != strings.Contains(part, "password: {name: purser-metrics, key: password}") {
				t.Errorf("%s: %s", namespace, part)
			}
		case "Deployment": // the registry, and what reports
			pod := o.Spec.Template
			pod["metadata"].(object)["name"] = "try-" + o.Metadata.Name
			c.do(admin, "POST", "/api/v1/namespaces/"+namespace+"/pods", pod, http.StatusCreated)
			if report := strings.HasSuffix(o.Metadata.Name, "-report"); !report {
				env = append(env, podEnv(t, pod)...)
			} else if text := fmt.Sprint(pod); !strings.Contains(text, "--watch") || !strings.Contains(text, "--also-known-as=mirror.example.com") {
				t.Errorf("%s: the deployment that reports: %s", namespace, text)
			}
		case "CronJob":
			pod := o.Spec.JobTemplate.Spec.Template
			pod["metadata"].(object)["name"] = "try-" + o.Metadata.Name
			c.do(admin, "POST", "/api/v1/namespaces/"+namespace+"/pods", pod, http.StatusCreated)
			switch text := fmt.Sprint(pod); {
			case strings.HasSuffix(o.Metadata.Name, "-report"):
				if namespace != "job" || strings.Contains(text, "--watch") {
					t.Errorf("%s: the job that reports: %s", namespace, text)
				}
			case namespace == "defaults" || namespace == "documented":
				t.Errorf("%s: a job that nobody asked for: %s", namespace, text)
			default:
				sameBackup(t, namespace, o.Metadata.Name, text)
			}
		}
	}
	if exit, out := purser(t, env, "config", "check", "--config", config); exit != 0 {
		t.Errorf("%s: purser refuses the settings: %s", namespace, out)
	}
}

// sameBackup fails the test unless the pod of a job backs up, or verifies backups, as the values say.
func sameBackup(t *testing.T, namespace, name, pod string) {
	t.Helper()
	commands, target := []string{"[backup --blobs=copy --keep=14 ", "[backup verify --s3"}, "s3://backups/purser]"
	if namespace == "job" {
		commands, target = []string{"[backup --blobs=reference --keep=14 ", "[backup verify --s3"}, "/backup]"
	}
	if strings.HasSuffix(name, "-verify") {
		commands = []string{"[backup verify --deep "}
	}
	for _, want := range append(commands, target, "AWS_ACCESS_KEY_ID", "PURSER_DATABASE_MAIN", "--s3-endpoint=https://s3.example.com") {
		if !strings.Contains(pod, want) {
			t.Errorf("%s: the pod of %s lacks %q: %s", namespace, name, want, pod)
		}
	}
	if claimed := strings.Contains(pod, "claimName:backups"); claimed != (namespace == "job") {
		t.Errorf("%s: the pod of %s has the claim for backups: %v", namespace, name, claimed)
	}
}

// sameRules fails the test unless a role has the rules of deploy/kubernetes/report.yaml, with which
// TestReportsOfKubernetes reports.
func sameRules(t *testing.T, role string) {
	t.Helper()
	content, err := os.ReadFile("../deploy/kubernetes/report.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range strings.Split(string(content), "\n---\n") {
		var got, want struct {
			Kind  string
			Rules []object
		}
		if err := errors.Join(yaml.Unmarshal([]byte(part), &want), yaml.Unmarshal([]byte(role), &got)); err != nil {
			t.Fatal(err)
		}
		if want.Kind == "ClusterRole" && !reflect.DeepEqual(got, want) {
			t.Errorf("the chart's role: %v, want %v", got, want)
		}
	}
}

// podEnv returns the environment of the pod's container, with something plausible for each secret.
func podEnv(t *testing.T, pod object) []string {
	t.Helper()
	text, err := json.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	var p struct {
		Spec struct {
			Containers []struct {
				Env []struct {
					Name, Value string
					ValueFrom   *object
				}
			}
		}
	}
	if err := json.Unmarshal(text, &p); err != nil {
		t.Fatal(err)
	}
	secrets := map[string]string{"PURSER_DATABASE_MAIN": "postgres://purser:x@db.example.com/purser", "PURSER_REDIS_URL": "redis://:x@redis.example.com:6379/0"}
	var env []string
	for _, v := range p.Spec.Containers[0].Env {
		switch {
		case v.Name == "PURSER_CONFIG": // the test names the file
		case v.ValueFrom != nil && secrets[v.Name] != "":
			env = append(env, v.Name+"="+secrets[v.Name])
		case v.ValueFrom != nil:
			env = append(env, v.Name+"=something")
		default:
			env = append(env, v.Name+"="+v.Value)
		}
	}
	return env
}
