//go:build all

package e2e

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// chartOn turns on what the chart can do at once. chartValuesHaveEffects changes one value of it at a time.
const chartOn = `
image: {repository: registry.example.com/tools/purser}
existingSecret: purser
config: {storage: {s3: {bucket: images}}}
ingress: {enabled: true, hosts: [{host: registry.example.com}]}
httpRoute: {enabled: true, parentRefs: [{name: public}]}
podDisruptionBudget: {enabled: true}
networkPolicy: {enabled: true}
podMonitor: {enabled: true}
prometheusRule: {enabled: true}
dashboard: {enabled: true}
report: {enabled: true, reporter: prod, server: "https://registry.example.com", secretName: robot}
backup: {enabled: true, target: "s3://backups/purser"}
`

// valueEffect is another value and what it must change.
type valueEffect struct {
	value   string // in JSON
	objects int    // how many objects it changes at least
	with    string // sections of values that replace those of chartOn, before and after the change
}

// In how many objects pods of Purser are: the registry, what reports, the job that backs up and the one
// that verifies, and the test of helm. The first three of those that aren't the test have its settings.
const (
	everyPod = 5
	longPods = 4 // without the test
	settled  = 3 // the registry and the jobs for backups
)

const (
	scaled   = "autoscaling: {enabled: true, targetRequestsPerSecond: 5}"
	observed = "podMonitor: {enabled: false}\nserviceMonitor: {enabled: true}"
	digest64 = `"sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"`
)

// valueEffects has all values in values.yaml but those called "enabled".
var valueEffects = map[string]valueEffect{
	"fullnameOverride":    {`"images"`, longPods, ""},
	"image.repository":    {`"registry.example.com/other"`, everyPod, ""},
	"image.tag":           {`"v9.9.9"`, everyPod, ""},
	"image.digest":        {digest64, everyPod, ""},
	"image.pullPolicy":    {`"Always"`, everyPod, ""},
	"imagePullSecrets":    {`[{"name": "pull"}]`, everyPod, ""},
	"replicaCount":        {`5`, 1, ""},
	"config":              {`{"log": {"level": "debug"}}`, 2, ""}, // a checksum starts new pods
	"existingSecret":      {`"other"`, settled, ""},
	"extraEnv":            {`[{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}]`, settled, ""},
	"extraEnvFrom":        {`[{"secretRef": {"name": "more"}}]`, settled, ""},
	"extraArgs":           {`["--profile-addr=127.0.0.1:6060"]`, 1, ""},
	"extraVolumes":        {`[{"name": "more", "emptyDir": {}}]`, settled, ""},
	"extraVolumeMounts":   {`[{"name": "tmp", "mountPath": "/more"}]`, settled, ""},
	"drainSeconds":        {`90`, 1, ""},
	"resources":           {`{"limits": {"memory": "3Gi"}}`, 1, ""},
	"podAnnotations":      {`{"example.com/a": "b"}`, 1, ""},
	"podLabels":           {`{"team": "platform"}`, 1, ""},
	"priorityClassName":   {`"system-cluster-critical"`, everyPod, ""},
	"nodeSelector":        {`{"disk": "fast"}`, everyPod, ""},
	"affinity":            {`{"nodeAffinity": {}}`, everyPod, ""},
	"tolerations":         {`[{"key": "registry", "operator": "Exists"}]`, everyPod, ""},
	"service.type":        {`"NodePort"`, 1, ""},
	"service.port":        {`8080`, 3, ""}, // the route and the test name it
	"caBundle.secretName": {`"company-ca"`, longPods, ""},

	"caBundle.configMapName":     {`"company-ca"`, longPods, ""},
	"persistence.existingClaim":  {`"blobs"`, settled, ""},
	"topologySpreadConstraints":  {`[{"maxSkew": 2, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}]`, 1, ""},
	"serviceAccount.create":      {`false`, settled + 1, ""},
	"serviceAccount.name":        {`"other"`, settled + 1, ""},
	"serviceAccount.annotations": {`{"eks.amazonaws.com/role-arn": "arn"}`, 1, ""},
	"service.annotations":        {`{"example.com/zone": "a"}`, 1, ""},
	"ingress.className":          {`"nginx"`, 1, ""},
	"ingress.annotations":        {`{"example.com/zone": "a"}`, 1, ""},
	"ingress.hosts":              {`[{"host": "images.example.com", "paths": [{"path": "/v2"}]}]`, 1, ""},
	"ingress.tls":                {`[{"secretName": "tls", "hosts": ["registry.example.com"]}]`, 1, ""},
	"httpRoute.annotations":      {`{"example.com/zone": "a"}`, 1, ""},
	"httpRoute.parentRefs":       {`[{"name": "other"}]`, 1, ""},
	"httpRoute.hostnames":        {`["registry.example.com"]`, 1, ""},
	"httpRoute.requestTimeout":   {`"0s"`, 1, ""},
	"networkPolicy.clients":      {`[{"podSelector": {}}]`, 1, ""},
	"networkPolicy.metrics":      {`[{"podSelector": {}}]`, 1, ""},
	"networkPolicy.egress":       {`[{"ports": [{"port": 53, "protocol": "UDP"}]}]`, 1, ""},
	"podMonitor.interval":        {`"1m"`, 1, ""},
	"podMonitor.labels":          {`{"release": "monitoring"}`, 1, ""},
	"podMonitor.secretName":      {`"metrics"`, 1, ""},
	"serviceMonitor.interval":    {`"1m"`, 1, observed},
	"serviceMonitor.labels":      {`{"release": "monitoring"}`, 1, observed},
	"serviceMonitor.secretName":  {`"metrics"`, 1, observed},
	"prometheusRule.labels":      {`{"release": "monitoring"}`, 1, ""},
	"dashboard.labels":           {`{"more": "b"}`, 1, ""},
	"dashboard.annotations":      {`{"folder": "registries"}`, 1, ""},
	"autoscaling.minReplicas":    {`3`, 1, scaled},
	"autoscaling.maxReplicas":    {`11`, 1, scaled},
	"autoscaling.requestsMetric": {`"other"`, 1, scaled},
	"report.reporter":            {`"other"`, 1, ""},
	"report.server":              {`"https://other.example.com"`, 1, ""},
	"report.watch":               {`false`, 2, ""}, // the Deployment goes, and a CronJob comes
	"report.registry":            {`"registry.example.com"`, 1, ""},
	"report.alsoKnownAs":         {`["mirror.example.com"]`, 1, ""},
	"report.namespace":           {`"acme"`, 1, ""},
	"report.lease":               {`"2d"`, 1, ""},
	"report.secretName":          {`"other"`, 1, ""},
	"report.key":                 {`"secret"`, 1, ""},
	"report.extraEnv":            {`[{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}]`, 1, ""},
	"backup.target":              {`"s3://other/purser"`, 2, ""},
	"backup.schedule":            {`"0 3 * * *"`, 1, ""},
	"backup.verifySchedule":      {`"0 5 * * 0"`, 1, ""},
	"backup.keep":                {`3`, 1, ""},
	"backup.blobs":               {`"reference"`, 1, ""},
	"backup.existingSecret":      {`"other"`, 2, ""},
	"backup.extraArgs":           {`["--s3-region=eu-central-1"]`, 2, ""},
	"backup.extraEnv":            {`[{"name": "AWS_REGION", "value": "eu-central-1"}]`, 2, ""},
	"backup.resources":           {`{"limits": {"memory": "2Gi"}}`, 2, ""},
	"backup.existingClaim":       {`"other"`, 2, "backup: {enabled: true, existingClaim: backups}"},
	"report.schedule":            {`"@daily"`, 1, `report: {enabled: true, watch: false, lease: 3d, reporter: prod, server: "https://registry.example.com", secretName: robot}`},

	"podDisruptionBudget.maxUnavailable":         {`2`, 1, ""},
	"autoscaling.targetCPUUtilizationPercentage": {`50`, 1, scaled},
	"autoscaling.targetRequestsPerSecond":        {`7`, 1, scaled},
}

// chartValuesHaveEffects: each value in values.yaml changes what the chart renders, in all objects that
// it is about.
func chartValuesHaveEffects(t *testing.T, helm *client) {
	t.Helper()
	text, err := os.ReadFile(chart + "/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var defaults map[string]any
	if err := yaml.Unmarshal(text, &defaults); err != nil {
		t.Fatal(err)
	}
	rendered := map[string]map[string]string{} // by `with`
	known := 0
	var look func(path []string, value any)
	look = func(path []string, value any) {
		name := strings.Join(path, ".")
		e, ok := valueEffects[name]
		group, isGroup := value.(map[string]any)
		switch {
		case ok:
			known++
		case path[len(path)-1] == "enabled":
			// Its section has nothing else then: most of that would have no effect.
			if path[0] == "serviceMonitor" {
				e.with = "podMonitor: {enabled: false}"
			}
			e.objects = 1
		case isGroup && len(group) > 0:
			for _, key := range slices.Sorted(maps.Keys(group)) {
				look(append(slices.Clone(path), key), group[key])
			}
			return
		default:
			t.Errorf("values.yaml has %s, and valueEffects doesn't", name)
			return
		}
		values := chartValues(t, e.with)
		before, again := rendered[e.with]
		if !again {
			before = chartObjects(t, helm, values)
			rendered[e.with] = before
		}
		if ok {
			setValue(t, values, path, e.value)
		} else {
			section, _ := values[path[0]].(map[string]any)
			values[path[0]] = map[string]any{"enabled": section["enabled"] != true}
		}
		if n := differing(before, chartObjects(t, helm, values)); n < e.objects {
			t.Errorf("%s: the value %s changes %d objects, want %d at least", name, e.value, n, e.objects)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(defaults)) {
		look([]string{key}, defaults[key])
	}
	if known != len(valueEffects) {
		t.Errorf("%d of the %d values in valueEffects are in values.yaml", known, len(valueEffects))
	}
}

// chartValues returns the values of chartOn with other sections.
func chartValues(t *testing.T, with string) (values map[string]any) {
	t.Helper()
	var sections map[string]any
	if err := yaml.Unmarshal([]byte(chartOn), &values); err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal([]byte(with), &sections); err != nil {
		t.Fatal(err)
	}
	maps.Copy(values, sections)
	return values
}

// setValue sets a value below groups that it makes.
func setValue(t *testing.T, values map[string]any, path []string, value string) {
	t.Helper()
	for _, key := range path[:len(path)-1] {
		group, ok := values[key].(map[string]any)
		if !ok {
			group = map[string]any{}
			values[key] = group
		}
		values = group
	}
	key, other := path[len(path)-1], any(nil)
	if err := json.Unmarshal([]byte(value), &other); err != nil {
		t.Fatalf("%s: %v", value, err)
	}
	if group, ok := values[key].(map[string]any); ok { // keeps what the chart needs
		maps.Copy(group, other.(map[string]any))
		return
	}
	values[key] = other
}

// chartObjects returns what the chart renders, by kind and name.
func chartObjects(t *testing.T, helm *client, values map[string]any) map[string]string {
	t.Helper()
	text, err := json.Marshal(values)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(newDir(t), "values.yaml")
	if err := os.WriteFile(file, text, 0o644); err != nil {
		t.Fatal(err)
	}
	objects := map[string]string{}
	for part := range strings.SplitSeq("\n"+helm.Run("template", "registry", chart, "--values", file), "\n---\n") {
		var o struct {
			Kind     string
			Metadata struct{ Name string }
		}
		if err := yaml.Unmarshal([]byte(part), &o); err != nil {
			t.Fatal(err)
		}
		if o.Kind != "" {
			objects[o.Kind+" "+o.Metadata.Name] = strings.TrimSpace(part)
		}
	}
	return objects
}

// differing counts the objects that are only in one of two sets, or differ.
func differing(a, b map[string]string) (n int) {
	for key, text := range a {
		if b[key] != text {
			n++
		}
	}
	for key := range b {
		if _, ok := a[key]; !ok {
			n++
		}
	}
	return n
}
