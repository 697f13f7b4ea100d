package client

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/autoprune/forecast"
	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/policy"
)

// TestPruneForecast: "purser prune forecast" sends the policy, the days and the settings, and
// shows days and settings with bars, or the answer as it is in JSON.
func TestPruneForecast(t *testing.T) {
	t.Parallel()
	bytesOf := func(n int64) *int64 { return &n }
	policy, err := policy.Parse([]byte(`{"method": "creation_date", "olderThan": "30d"}`))
	if err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 3, 4, 12, 0, 0, 0, time.Local)
	answer := forecast.Forecast{
		Now: at.AddDate(0, 0, 2), Since: at, Repositories: 2, Deleted: 1205, Tags: 4000, Bytes: bytesOf(8 << 30), Freed: bytesOf(2 << 30),
		Days: []forecast.ForecastDay{
			{At: at, Tags: 5310, Deleted: 1204, Freed: bytesOf(2 << 30)}, {At: at.AddDate(0, 0, 1), Tags: 4106, Freed: bytesOf(0)},
			{At: at.AddDate(0, 0, 2), Tags: 4106, Deleted: 1},
		},
		Settings: []forecast.ForecastSetting{{Value: "7d", Tags: 1000, Deleted: 3000, Bytes: bytesOf(4 << 30)}, {Value: "90d", Tags: 4000, Bytes: bytesOf(8 << 30)}},
		Notes:    []string{"the audit log begins late"}, Policies: []policies.PreviewPolicy{{Policy: &policy}},
	}
	var asked []string
	registry := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body := new(bytes.Buffer)
		body.ReadFrom(r.Body) //nolint:errcheck // the test sees it
		asked = append(asked, r.Method+" "+r.URL.String()+" "+body.String())
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(answer) //nolint:errcheck // the test sees it
	}))
	defer registry.Close()
	run := func(args ...string) string {
		t.Helper()
		cmd := pruneCommand(&command.Source{})
		var out bytes.Buffer
		cmd.SetOut(&out)
		cmd.SetArgs(append([]string{"forecast", "--server", registry.URL}, args...))
		if err := cmd.ExecuteContext(t.Context()); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	text := run("app", "--older-than", "30d", "--settings", "7d,90d", "--days", "3")
	for _, want := range []string{
		"2026-03-04  5,310  1,204    2.0 GiB  " + strings.Repeat("█", barWidth) + "\n", "2026-03-05  4,106  0        0 B", "2026-03-06  4,106  1        -        █\n",
		"7d       1,000      3,000  4.0 GiB  " + strings.Repeat("█", barWidth/2) + "\n", "Note: the audit log begins late.\n",
		"The forecast isn't complete", "1,205 tags would have been deleted in 3 days, in 2 repositories. Of the 8.0 GiB that are stored now, 2.0 GiB would be gone.\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the text has no %q:\n%s", want, text)
		}
	}
	var got forecast.Forecast
	if err := json.Unmarshal([]byte(run("app/web", "-o", "json")), &got); err != nil || got.Deleted != answer.Deleted || len(got.Days) != 3 {
		t.Errorf("the JSON: %+v, %v", got, err)
	}
	want := []string{
		`POST /api/v1/organization/app/autoprunepolicy/forecast?days=3&settings=7d%2C90d {"method":"creation_date","olderThan":"30d"}`,
		`POST /api/v1/repository/app%2Fweb/autoprunepolicy/forecast?days=90 `,
	}
	if strings.Join(asked, "\n") != strings.Join(want, "\n") {
		t.Errorf("the requests are\n%s\nand not\n%s", strings.Join(asked, "\n"), strings.Join(want, "\n"))
	}
}
