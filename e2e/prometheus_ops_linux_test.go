//go:build all

package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
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

const alerts = "../deploy/prometheus/alerts.yaml"

// TestOpsAlerts lets Prometheus check the alerts, by its unit tests and at work: it scrapes a registry,
// finds all metrics that the alerts need, and fires nothing until Redis dies, and until the registry
// is gone.
func TestOpsAlerts(t *testing.T) {
	beginOwn(t)
	promtool := systemClient(t, "promtool")
	promtool.Run("check", "rules", alerts)
	promtool.Run("test", "rules", "../deploy/prometheus/alerts_test.yaml")
	names := alertsOf(t)
	tests, err := os.ReadFile("../deploy/prometheus/alerts_test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if !strings.Contains(string(tests), "alertname: "+name+"\n") {
			t.Errorf("alerts_test.yaml has no test of %s", name)
		}
	}

	redis := startRedis(t)
	r := startRegistry(t, options{env: append(redis.env(), "PURSER_STORAGE_FILESYSTEM_PATH="+newDir(t), "PURSER_PULL_STATISTICS_REDIS_INTERVAL=1s")})
	im := newImages(t)
	im.push(r, "v1")
	im.whole(r, "v1")
	r.remote("quota", "set", "acme", "--tags", "10")
	res, err := http.Get("http://" + r.debug + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	cmd := exec.Command(promtool.path, "check", "metrics")
	cmd.Stdin = res.Body
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("promtool check metrics: %v\n%s", err, out)
	}

	p := startPrometheus(t, r.debug)
	eventually(t, readyWithin, func() error { return p.sees(names) })
	others := func() []string { // nobody has made a backup
		return slices.DeleteFunc(p.alerts(t), func(alert string) bool { return alert == "PurserNeverBackedUp pending" })
	}
	if firing := others(); len(firing) > 0 {
		t.Errorf("alerts of a healthy registry: %v", firing)
	}
	redis.p.kill() // the metrics are the process's, not made up
	p.expects(t, "PurserRedisDown pending")
	redis.p = nil
	redis.Start()
	eventually(t, readyWithin, func() error {
		if firing := others(); len(firing) > 0 {
			return fmt.Errorf("alerts with Redis back: %v", firing)
		}
		return nil
	})
	r.Stop()
	p.expects(t, "PurserDown pending")
}

// expects waits until an alert is in a state, such as "PurserDown pending".
func (p *scraper) expects(t *testing.T, alert string) {
	t.Helper()
	eventually(t, readyWithin, func() error {
		if firing := p.alerts(t); !slices.Contains(firing, alert) {
			return fmt.Errorf("the alerts are %v, want %s", firing, alert)
		}
		return nil
	})
}

// alertsOf returns the names of all alerts.
func alertsOf(t *testing.T) (names []string) {
	t.Helper()
	content, err := os.ReadFile(alerts)
	if err != nil {
		t.Fatal(err)
	}
	var rules struct {
		Groups []struct {
			Rules []struct{ Alert string }
		}
	}
	if err := yaml.Unmarshal(content, &rules); err != nil {
		t.Fatal(err)
	}
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			names = append(names, r.Alert)
		}
	}
	return names
}

// scraper is a Prometheus that scrapes a registry.
type scraper struct {
	addr string
}

func startPrometheus(t *testing.T, scrapes string) *scraper {
	t.Helper()
	program, err := exec.LookPath("prometheus")
	if err != nil {
		lacking(t, "prometheus isn't installed (tools/packages ops installs it)")
	}
	rules, err := filepath.Abs(alerts)
	if err != nil {
		t.Fatal(err)
	}
	dir, p := newDir(t), &scraper{addr: freeAddr(t)}
	config := filepath.Join(dir, "prometheus.yaml")
	text := fmt.Sprintf("global: {scrape_interval: 200ms, evaluation_interval: 200ms}\nrule_files: [%q]\nscrape_configs:\n- {job_name: purser, static_configs: [{targets: [%q]}]}\n", rules, scrapes)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	process, err := startProcess("prometheus", exec.Command(program, "--config.file", config, "--storage.tsdb.path", filepath.Join(dir, "data"), "--web.listen-address", p.addr))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(process.kill)
	return p
}

// get asks the API.
func (p *scraper) get(path string, data any) error {
	client := http.Client{Timeout: 10 * time.Second}
	res, err := client.Get("http://" + p.addr + "/api/v1/" + path)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	return json.NewDecoder(res.Body).Decode(&struct {
		Data any `json:"data"`
	}{data})
}

// alerts returns the alerts that are pending or firing.
func (p *scraper) alerts(t *testing.T) (list []string) {
	t.Helper()
	var got struct {
		Alerts []struct {
			Labels map[string]string
			State  string
		}
	}
	if err := p.get("alerts", &got); err != nil {
		t.Fatal(err)
	}
	for _, a := range got.Alerts {
		list = append(list, a.Labels["alertname"]+" "+a.State)
	}
	return list
}

// selector matches a metric of Purser with its labels.
var selector = regexp.MustCompile(`\bpurser_\w+(\{[^}]*\})?`)

// absent are selectors that have no series in a healthy registry.
var absent = map[string]bool{
	`purser_http_requests_total{code=~"5.."}`:         true, // no request has failed
	`purser_tls_certificate_expiry_timestamp_seconds`: true, // it has no certificate
	`purser_acme_attempts_total{result="failed"}`:     true, // it asks for none
}

// sees returns an error unless Prometheus has evaluated all rules without an error, on metrics that exist.
func (p *scraper) sees(names []string) error {
	var got struct {
		Groups []struct {
			Rules []struct{ Name, Query, Health, LastError string }
		}
	}
	if err := p.get("rules", &got); err != nil {
		return err
	}
	healthy := 0
	for _, g := range got.Groups {
		for _, r := range g.Rules {
			if r.Health != "ok" {
				return fmt.Errorf("%s: %s %s", r.Name, r.Health, r.LastError)
			}
			healthy++
			for _, s := range selector.FindAllString(r.Query, -1) {
				if err := p.has(r.Name, s); err != nil {
					return err
				}
			}
		}
	}
	if healthy != len(names) {
		return fmt.Errorf("%d rules are evaluated, want %d", healthy, len(names))
	}
	return nil
}

// has returns an error if no series matches a selector.
func (p *scraper) has(alert, selector string) error {
	var got struct{ Result []any }
	if err := p.get("query?query="+url.QueryEscape(selector), &got); err != nil {
		return err
	}
	if (len(got.Result) == 0) != absent[selector] {
		return fmt.Errorf("%s: %d series of %s", alert, len(got.Result), selector)
	}
	return nil
}
