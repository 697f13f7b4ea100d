//go:build all

package e2e

import (
	"bufio"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

// scrape is what Prometheus gets from a registry at a time: its series with their values. The series
// `up` is 0, and the only one, if it gets nothing.
type scrape struct {
	at     time.Time
	series map[string]float64
}

// scrape asks a registry for its metrics, as Prometheus does.
func (r *registry) scrape() scrape {
	r.t.Helper()
	s := scrape{time.Now(), map[string]float64{"up{" + r.target() + "}": 0}}
	res, err := http.Get("http://" + r.debug + "/metrics")
	if err != nil {
		return s
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), " ")
		if end := strings.LastIndex(lines.Text(), "} "); end > 0 {
			name, value = lines.Text()[:end+1], lines.Text()[end+2:]
		}
		if !strings.HasPrefix(name, "purser_") && !strings.HasPrefix(name, "loose_foreign_key_") {
			continue
		}
		number, err := strconv.ParseFloat(value, 64)
		if err != nil {
			r.t.Fatalf("the metric %q: %v", lines.Text(), err)
		}
		if labels, ok := strings.CutSuffix(name, "}"); ok {
			s.series[labels+","+r.target()+"}"] = number
		} else {
			s.series[name+"{"+r.target()+"}"] = number
		}
	}
	if lines.Err() == nil && res.StatusCode == http.StatusOK {
		s.series["up{"+r.target()+"}"] = 1
	}
	return s
}

// target returns the labels that Prometheus gives to the series of this registry.
func (r *registry) target() string { return fmt.Sprintf(`job="purser",instance=%q`, r.debug) }

// alertRule is an alert with its expression, and for how long that must hold.
type alertRule struct {
	Alert, Expr, For string
}

// alertRules returns all alerts by their names.
func alertRules(t *testing.T) map[string]alertRule {
	t.Helper()
	content, err := os.ReadFile(alerts)
	if err != nil {
		t.Fatal(err)
	}
	var rules struct{ Groups []struct{ Rules []alertRule } }
	if err := yaml.Unmarshal(content, &rules); err != nil {
		t.Fatal(err)
	}
	all := map[string]alertRule{}
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			all[r.Alert] = r
		}
	}
	return all
}

// future is a Prometheus that has a registry's series as they were in an hour before a failure, and
// as they will be after it if things go on as they do: each series changes on as it did between two
// scrapes during the failure. So alerts that need hours fire in seconds, on what the registry says.
type future struct {
	t      *testing.T
	p      *scraper
	begins time.Time // of the failure
	lasts  time.Duration
}

const futureStep = time.Minute

// foresee starts such a Prometheus.
func foresee(t *testing.T, lasts time.Duration, healthy, first, second scrape) *future {
	t.Helper()
	begins := second.at.Truncate(time.Second)
	var text strings.Builder
	sample := func(name string, value float64, at time.Time) {
		fmt.Fprintf(&text, "%s %s %d\n", name, strconv.FormatFloat(value, 'g', -1, 64), at.Unix())
	}
	names := map[string]bool{}
	for _, s := range []scrape{healthy, second} {
		for name := range s.series {
			names[name] = true
		}
	}
	metrics := strings.Join(exprs(t), " ")
	for name := range names {
		metric, _, _ := strings.Cut(name, "{")
		if !strings.Contains(metrics, metric) {
			continue // no alert asks for it
		}
		if before, ok := healthy.series[name]; ok {
			for ago := time.Hour; ago > 0; ago -= futureStep {
				sample(name, before, begins.Add(-ago))
			}
		}
		now, ok := second.series[name]
		if !ok {
			continue
		}
		slope := 0.0
		if earlier, ok := first.series[name]; ok && second.at.After(first.at) {
			slope = (now - earlier) / second.at.Sub(first.at).Seconds()
		}
		for in := time.Duration(0); in <= lasts; in += futureStep {
			sample(name, now+slope*in.Seconds(), begins.Add(in))
		}
	}
	text.WriteString("# EOF\n")
	return &future{t, startBackfilled(t, text.String()), begins, lasts}
}

// exprs returns the expressions of all alerts.
func exprs(t *testing.T) (list []string) {
	t.Helper()
	for _, r := range alertRules(t) {
		list = append(list, r.Expr)
	}
	return list
}

// startBackfilled starts a Prometheus that has the samples of a text in OpenMetrics' format.
func startBackfilled(t *testing.T, samples string) *scraper {
	t.Helper()
	program, err := exec.LookPath("prometheus")
	if err != nil {
		lacking(t, "prometheus isn't installed (tools/packages ops installs it)")
	}
	dir, p := newDir(t), &scraper{addr: freeAddr(t)}
	data, input, config := filepath.Join(dir, "data"), filepath.Join(dir, "samples"), filepath.Join(dir, "prometheus.yaml")
	for name, content := range map[string]string{input: samples, config: "global: {}\n"} {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	systemClient(t, "promtool").Run("tsdb", "create-blocks-from", "--max-block-duration", "1000h", "openmetrics", input, data)
	process, err := startProcess("prometheus", exec.Command(program, "--config.file", config, "--storage.tsdb.path", data,
		"--storage.tsdb.retention.time", "10y", "--web.listen-address", p.addr))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(process.kill)
	eventually(t, readyWithin, func() error { return p.get("status/buildinfo", new(any)) })
	return p
}

// fires returns the labels with which an alert fires some time during the failure, nil if it doesn't.
// The alert's expression must hold for as long as the rule says.
func (f *future) fires(rule alertRule) (labels []map[string]string) {
	f.t.Helper()
	var held time.Duration
	if rule.For != "" {
		var err error
		days, hours, _ := strings.Cut(rule.For, "d") // which package time doesn't know
		if hours == "" && days != rule.For {
			n, wrong := strconv.Atoi(days)
			held, err = time.Duration(n)*24*time.Hour, wrong
		} else {
			held, err = time.ParseDuration(rule.For)
		}
		if err != nil {
			f.t.Fatal(err)
		}
	}
	var got struct {
		Result []struct {
			Metric map[string]string
			Values [][2]any
		}
	}
	step := max(futureStep, (f.lasts / 10_000).Round(futureStep)) // the API gives 11,000 values at most
	if err := f.p.get(fmt.Sprintf("query_range?query=%s&start=%d&end=%d&step=%g", url.QueryEscape(rule.Expr), f.begins.Unix(),
		f.begins.Add(f.lasts).Unix(), step.Seconds()), &got); err != nil {
		f.t.Fatal(err)
	}
	for _, series := range got.Result {
		var since, last float64
		for _, v := range series.Values {
			at := v[0].(float64)
			if at-last > step.Seconds()*1.5 {
				since = at
			}
			if last = at; last-since >= held.Seconds() {
				labels = append(labels, series.Metric)
				break
			}
		}
	}
	return labels
}

// before reports whether an alert's expression held just before the failure.
func (f *future) before(rule alertRule, at time.Time) bool {
	f.t.Helper()
	var got struct{ Result []any }
	if err := f.p.get(fmt.Sprintf("query?query=%s&time=%d", url.QueryEscape(rule.Expr), at.Unix()), &got); err != nil {
		f.t.Fatal(err)
	}
	return len(got.Result) > 0
}

// TestOpsFutureOfMetrics tests the tool: a counter that goes on rising, a gauge that stays, one that
// isn't a number, and one that is gone.
func TestOpsFutureOfMetrics(t *testing.T) {
	begin(t)
	now := time.Now()
	at := func(ago time.Duration, dropped, pending, held float64) scrape {
		return scrape{now.Add(-ago), map[string]float64{
			`purser_audit_pulls_dropped_total{job="purser",reason="full"}`: dropped, `purser_webhook_pending{job="purser"}`: pending,
			`purser_hold_reporters{job="purser",state="silent"}`: held,
		}}
	}
	healthy := at(20*time.Second, 0, 3, 0)
	healthy.series[`purser_redis_up{job="purser"}`] = 0
	f := foresee(t, 2*time.Hour, healthy, at(10*time.Second, 1, 2000, math.NaN()), at(0, 2, 2000, math.NaN()))
	rules := alertRules(t)
	for name, want := range map[string]bool{
		"PurserPullsDropped": true, "PurserWebhooksWait": true, "PurserReporterIsSilent": false, "PurserRedisDown": false,
	} {
		if fired := f.fires(rules[name]) != nil; fired != want {
			t.Errorf("%s fires: %v, want %v", name, fired, want)
		}
	}
	if !regexp.MustCompile("reason|job").MatchString(fmt.Sprint(f.fires(rules["PurserPullsDropped"]))) {
		t.Error("an alert has no labels")
	}
	if !f.before(rules["PurserRedisDown"], now.Add(-2*time.Minute)) || slices.Contains([]bool{f.before(rules["PurserWebhooksWait"], now.Add(-2*time.Minute))}, true) {
		t.Error("the hour before the failure isn't as it was")
	}
}
