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
existingSecret: purser
persistence: {existingClaim: blobs}
`

// chartEverything turns on everything that the chart can do at once.
const chartEverything = `
fullnameOverride: images
image: {repository: registry.example.com/tools/purser, digest: "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"}
imagePullSecrets: [{name: pull}]
replicaCount: 3
config:
  http: {external_url: "https://registry.example.com", trusted_proxies: 10.0.0.0/8}
  storage: {s3: {endpoint: "https://s3.example.com", bucket: images, path_style: true, secret_key: "file:/secrets/s3"}}
  pull_statistics: {redis: true}
existingSecret: purser
extraEnv:
  - {name: PURSER_STORAGE_S3_ACCESS_KEY, valueFrom: {secretKeyRef: {name: purser-s3, key: access-key}}}
  - {name: PURSER_REDIS_URL, valueFrom: {secretKeyRef: {name: purser-redis, key: url}}}
extraEnvFrom: [{configMapRef: {name: proxy, optional: true}}]
extraArgs: ["--profile-addr=127.0.0.1:6060"]
extraVolumes: [{name: secrets, secret: {secretName: purser-s3}}]
extraVolumeMounts: [{name: secrets, mountPath: /secrets, readOnly: true}]
caBundle: {secretName: company-ca}
serviceAccount: {create: false, name: registry}
drainSeconds: 120
service: {type: NodePort, port: 5000, annotations: {example.com/zone: a}}
ingress:
  enabled: true
  className: nginx
  annotations: {nginx.ingress.kubernetes.io/proxy-body-size: "0"}
  hosts: [{host: registry.example.com}]
  tls: [{secretName: registry-tls, hosts: [registry.example.com]}]
httpRoute: {enabled: true, parentRefs: [{name: public}], hostnames: [registry.example.com], annotations: {example.com/zone: a}}
networkPolicy:
  clients: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: ingress}}}]
  metrics: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: monitoring}}}]
  egress: [{ports: [{protocol: UDP, port: 53}, {protocol: TCP, port: 5432}]}]
podMonitor: {enabled: true, labels: {release: monitoring}, secretName: purser-metrics}
prometheusRule: {enabled: true, labels: {release: monitoring}}
dashboard: {enabled: true, annotations: {folder: registries}}
report: {enabled: true, reporter: prod-eu, server: "https://registry.example.com", registry: registry.example.com, alsoKnownAs: [mirror.example.com], namespace: acme, secretName: purser-report}
backup:
  enabled: true
  target: "s3://backups/purser"
  existingSecret: purser-backup
  extraArgs: ["--s3-endpoint=https://elsewhere.example.com"]
  extraEnv: [{name: AWS_REGION, value: eu-central-1}]
podAnnotations: {prometheus.io/port: "5001"}
podLabels: {team: platform}
priorityClassName: system-cluster-critical
nodeSelector: {disk: fast}
affinity: {podAntiAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, podAffinityTerm: {topologyKey: topology.kubernetes.io/zone, labelSelector: {matchLabels: {app.kubernetes.io/name: purser}}}}]}}
tolerations: [{key: registry, operator: Exists}]
topologySpreadConstraints: [{maxSkew: 2, topologyKey: topology.kubernetes.io/zone, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app.kubernetes.io/name: purser}}}]
`

// TestChart: helm accepts the chart; a real API server accepts what it renders, member by member,
// admits its pods under the strictest policy, and Purser accepts their settings.
func TestChart(t *testing.T) {
	beginOwn(t)
	helm := toolClient(t, "helm")
	c, admin := startCluster(t)
	for _, kind := range [][3]string{{"monitoring.coreos.com", "PodMonitor", "podmonitors"}, {"monitoring.coreos.com", "ServiceMonitor", "servicemonitors"},
		{"monitoring.coreos.com", "PrometheusRule", "prometheusrules"}, {"gateway.networking.k8s.io", "HTTPRoute", "httproutes"}} {
		c.define(admin, kind[0], kind[1], kind[2])
	}
	job := strings.NewReplacer("report: {enabled: true,", "report: {enabled: true, watch: false,", `target: "s3://backups/purser"`, "existingClaim: backups\n  blobs: reference").Replace(chartEverything)
	values := map[string]string{"defaults": chartDefaults, "everything": chartEverything, "job": job, "documented": chartDocumented(t)}
	typical, err := filepath.Glob(chart + "/ci/*-values.yaml")
	if err != nil || len(typical) != 5 {
		t.Fatalf("%d typical files of values, want 5, %v", len(typical), err)
	}
	for _, file := range typical {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		values["typical-"+strings.TrimSuffix(filepath.Base(file), "-values.yaml")] = string(text)
	}
	for name, values := range values {
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
		if strings.Contains(values, "create: false") {
			c.do(admin, "POST", "/api/v1/namespaces/"+name+"/serviceaccounts", object{"metadata": object{"name": "registry"}}, http.StatusCreated)
		}
		c.apply(admin, rendered)
		checkChartPod(t, c, admin, name, text)
	}
	chartRefuses(t, helm)
	chartValuesHaveEffects(t, helm)
}

// chartRefuses: the chart refuses values that it doesn't know or that can't be, and names them.
func chartRefuses(t *testing.T, helm *client) {
	t.Helper()
	for wrong, want := range map[string]string{
		"image.repository=": "repository", "existingSecret=": "existingSecret", "drainSeconds=soon": "drainSeconds", "persistence.existingClaim=": "existingClaim",
		"replica=2": "replica", "replicas=2": "replicas", "service.metricsPort=1": "metricsPort", "extraEnv[0].value=x": "name", "extraArgs={serve}": "extraArgs",
		"config.database.main=postgres://u:p@h/d": "config.database.main is a secret", "config.redis.url=redis://h": "config.redis.url is a secret",
		"config.storage.s3.secret_key=x": "PURSER_STORAGE_S3_SECRET_KEY", "config.auth.oidc.client_secret=x": "config.auth.oidc.client_secret is a secret",
		"report.enabled=true": "report.reporter", "report.server=registry.example.com": "server",
		"backup.enabled=true": "backup.target", "backup.target=/srv/backup": "target", "backup.extraArgs={deep}": "extraArgs",
		"ingress.enabled=true": "ingress.hosts", "httpRoute.enabled=true": "httpRoute.parentRefs", "podMonitor.interval=often": "interval",
		"serviceMonitor.enabled=true,podMonitor.enabled=true":                   "twice",
		"autoscaling.enabled=true,autoscaling.minReplicas=30":                   "minReplicas",
		"autoscaling.enabled=true,autoscaling.targetCPUUtilizationPercentage=0": "targetRequestsPerSecond",
		"caBundle.configMapName=a,caBundle.secretName=b":                        "not both",
		// Settings that would have no effect.
		"autoscaling.enabled=true,replicaCount=3":                                "replicaCount has no effect",
		"autoscaling.maxReplicas=11":                                             "autoscaling.maxReplicas has no effect, since autoscaling.enabled is false",
		"autoscaling.enabled=true,autoscaling.requestsMetric=m":                  "autoscaling.requestsMetric has no effect",
		"image.tag=v1,image.digest=sha256:" + strings.Repeat("0", 64):            "image.tag has no effect",
		"serviceAccount.create=false,serviceAccount.annotations.a=b":             "serviceAccount.annotations have no effect",
		"backup.target=s3://backups/purser":                                      "backup.target has no effect, since backup.enabled is false",
		"backup.keep=3":                                                          "backup.keep has no effect",
		"ingress.hosts[0].host=registry.example.com":                             "ingress.hosts has no effect",
		"httpRoute.hostnames={registry.example.com}":                             "httpRoute.hostnames has no effect",
		"podDisruptionBudget.enabled=false,podDisruptionBudget.maxUnavailable=2": "podDisruptionBudget.maxUnavailable has no effect",
		"dashboard.labels.a=b":                                                   "dashboard.labels has no effect",
		"report.reporter=prod":                                                   "report.reporter has no effect",
		"report.enabled=true,report.reporter=r,report.secretName=s,report.server=https://r,report.schedule=@daily": "report.schedule has no effect, since report.watch is true",
		// A job that comes too seldom for its lease.
		"report.enabled=true,report.watch=false,report.reporter=r,report.secretName=s,report.server=https://r,report.schedule=0 3 * * *":               "leaves 1440 minutes between two reports",
		"report.enabled=true,report.watch=false,report.reporter=r,report.secretName=s,report.server=https://r,report.schedule=0 */9 * * *":             "leaves 540 minutes between two reports",
		"report.enabled=true,report.watch=false,report.reporter=r,report.secretName=s,report.server=https://r,report.schedule=@hourly,report.lease=2h": "leaves 60 minutes between two reports",
		"report.enabled=true,report.watch=false,report.reporter=r,report.secretName=s,report.server=https://r,report.lease=20m":                        "leaves 10 minutes between two reports",
		"report.lease=24 hours": "report/lease",
		"config.data_dir=/srv":  "config.data_dir has no effect", "config.http.addr=:80": "config.http.addr has no effect",
		"config.http.debug_addr=:81": "config.http.debug_addr has no effect", "config.http.drain_timeout=1m": "drainSeconds sets it",
		"config.http.adr=:80": "adr", "config.databse.max_conns=5": "databse", "global.imageRegistry=r.example.com": "global has no effect",
	} {
		file := filepath.Join(newDir(t), "values.yaml")
		if err := os.WriteFile(file, []byte(chartDefaults), 0o644); err != nil {
			t.Fatal(err)
		}
		if refusal := helm.Refused("template", "registry", chart, "--values", file, "--set", wrong); !strings.Contains(refusal, want) {
			t.Errorf("%s: %s, want %q", wrong, refusal, want)
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

// define makes the API server know a kind of an operator, with any members.
func (c *cluster) define(token, group, kind, plural string) {
	c.t.Helper()
	open := object{"type": "object", "x-kubernetes-preserve-unknown-fields": true}
	c.do(token, "POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", object{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": object{"name": plural + "." + group,
			"annotations": object{"api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/gateway-api"}},
		"spec": object{"group": group, "scope": "Namespaced", "names": object{"kind": kind, "plural": plural},
			"versions": []object{{"name": "v1", "served": true, "storage": true, "schema": object{"openAPIV3Schema": open}}}},
	}, http.StatusCreated)
	eventually(c.t, readyWithin, func() error {
		r, err := http.NewRequestWithContext(c.t.Context(), http.MethodGet, c.server+"/apis/"+group+"/v1/"+plural, nil)
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

// checkChartPod creates a pod as each deployment and job in `text` would, and checks the registry's
// settings. The secrets that the values name have something plausible.
func checkChartPod(t *testing.T, c *cluster, admin, namespace, text string) {
	t.Helper()
	env := []string{"PURSER_HTTP_ADDR=0.0.0.0:5000", "PURSER_HTTP_DEBUG_ADDR=0.0.0.0:5001", // of the image
		"PURSER_DATABASE_MAIN=postgres://purser:x@db.example.com/purser"}
	dir := newDir(t)
	config := filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(filepath.Join(dir, "s3"), []byte("something"), 0o600); err != nil {
		t.Fatal(err)
	}
	full := namespace == "everything" || namespace == "job"
	for _, part := range strings.Split(text, "\n---\n") {
		var o struct {
			Kind     string
			Metadata struct{ Name string }
			Data     map[string]string
			Spec     struct {
				Template    object
				JobTemplate struct {
					Spec struct{ Template object }
				} `yaml:"jobTemplate"`
			}
		}
		if err := yaml.Unmarshal([]byte(part), &o); err != nil {
			t.Fatal(err)
		}
		create := func(pod object) {
			pod["metadata"].(object)["name"] = "try-" + o.Metadata.Name
			c.do(admin, "POST", "/api/v1/namespaces/"+namespace+"/pods", pod, http.StatusCreated)
		}
		switch o.Kind {
		case "ConfigMap":
			sameFiles(t, o.Data)
			if settings, ok := o.Data["config.yaml"]; ok {
				if err := os.WriteFile(config, []byte(strings.ReplaceAll(settings, "/secrets/", dir+"/")), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		case "PrometheusRule":
			rules, err := os.ReadFile("../deploy/prometheus/alerts.yaml")
			if got, want := strings.Count(part, "- alert: "), strings.Count(string(rules), "- alert: "); err != nil || got != want {
				t.Errorf("%s: %d alerts, want all %d (%v)", namespace, got, want, err)
			}
		case "ClusterRole":
			sameRules(t, part)
		case "PodMonitor", "ServiceMonitor":
			for _, want := range []string{"jobLabel: app.kubernetes.io/name", "password: {name: purser-metrics, key: password}", "release: monitoring"} {
				if !strings.Contains(part, want) {
					t.Errorf("%s: a monitor without %q: %s", namespace, want, part)
				}
			}
		case "Deployment": // the registry, and what reports
			create(o.Spec.Template)
			switch text := fmt.Sprint(o.Spec.Template); {
			case !strings.HasSuffix(o.Metadata.Name, "-report"):
				env = append(env, podEnv(t, o.Spec.Template)...)
			case !strings.Contains(text, "--watch") || full != strings.Contains(text, "--also-known-as=mirror.example.com"):
				t.Errorf("%s: the deployment that reports: %s", namespace, text)
			}
		case "CronJob":
			create(o.Spec.JobTemplate.Spec.Template)
			switch text := fmt.Sprint(o.Spec.JobTemplate.Spec.Template); {
			case strings.HasSuffix(o.Metadata.Name, "-report"):
				if namespace != "job" || strings.Contains(text, "--watch") {
					t.Errorf("%s: the job that reports: %s", namespace, text)
				}
			case !full && namespace != "typical-backup":
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

// sameFiles fails the test unless a ConfigMap's dashboard is that of deploy/grafana.
func sameFiles(t *testing.T, data map[string]string) {
	t.Helper()
	text, ok := data["purser.json"]
	if !ok {
		return
	}
	file, err := os.ReadFile("../deploy/grafana/purser.json")
	if err != nil {
		t.Fatal(err)
	}
	var got, want any
	if err := errors.Join(json.Unmarshal([]byte(text), &got), json.Unmarshal(file, &want)); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("the chart's dashboard isn't that of deploy/grafana: %v", err)
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
	for _, want := range append(commands, target, "purser-backup", "--s3-endpoint=https://elsewhere.example.com") {
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
