package config

import (
	"strings"
	"testing"
)

// Pulls are counted where they are recorded, unless somebody says otherwise.
func TestPullStatistics(t *testing.T) {
	t.Parallel()
	const quay = "FEATURE_PULL_STATISTICS_TRACKING"
	for _, tt := range []struct {
		environ []string
		enabled bool
		source  string
		problem string
	}{
		{nil, true, "default", ""},
		{[]string{"PURSER_AUDIT_PULLS=false"}, false, "default", ""},
		{[]string{quay + "=false"}, false, "env " + quay, ""},
		{[]string{quay + "=False", "PURSER_PULL_STATISTICS_ENABLED=true"}, true, "env PURSER_PULL_STATISTICS_ENABLED", ""},
		{[]string{quay + "=true", "PURSER_AUDIT_PULLS=false"}, true, "env " + quay, "env " + quay + ": pull_statistics.enabled: .*audit.pulls is false"},
		{[]string{quay + "=maybe"}, true, "default", "env " + quay + `: pull_statistics.enabled: "maybe" is neither true nor false`},
	} {
		c, err := Load("", append(tt.environ, "HOME=/home/x"))
		if err == nil {
			err = c.Validate()
		}
		if c.PullStatistics.Enabled != tt.enabled || c.Source("pull_statistics.enabled") != tt.source {
			t.Errorf("%v: %v by %s", tt.environ, c.PullStatistics.Enabled, c.Source("pull_statistics.enabled"))
		}
		before, after, _ := strings.Cut(tt.problem, ".*")
		if (err == nil) != (tt.problem == "") || err != nil && !(strings.Contains(err.Error(), before) && strings.Contains(err.Error(), after)) {
			t.Errorf("%v: %v", tt.environ, err)
		}
	}
}
