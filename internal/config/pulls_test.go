package config

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// TestPullStatistics checks that by default pulls are counted exactly if the audit log
// records them, and that Quay's environment variable and Purser's own override this
// default.
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

// TestRedisSettings checks three things: counting in Redis is refused without the URL of a
// Redis server, intervals may be numbers of seconds, as in Quay, and commas separate the
// elements of lists.
func TestRedisSettings(t *testing.T) {
	t.Parallel()
	const url = "PURSER_REDIS_URL=redis://user:secret@cache:6379/1"
	for _, tt := range []struct {
		environ []string
		problem string
	}{
		{[]string{url, "FEATURE_REDIS_PULL_TRACKING=true"}, ""},
		{[]string{url, "FEATURE_REDIS_PULL_TRACKING=true", "PURSER_AUDIT_PULLS=false"}, ""},
		{[]string{url, "FEATURE_REDIS_PULL_TRACKING=true", "FEATURE_PULL_STATISTICS_TRACKING=false"}, ""},
		{[]string{"FEATURE_REDIS_PULL_TRACKING=true"}, "env FEATURE_REDIS_PULL_TRACKING: pull_statistics.redis: pulls are counted in Redis, and redis.url isn't set"},
		{[]string{"PURSER_REDIS_URL=rediss://cache"}, ""},
		{[]string{"PURSER_REDIS_URL=unix:///run/redis.sock"}, ""},
		{[]string{"PURSER_REDIS_URL=cache:6379"}, "redis.url: this is no URL of a Redis"},
		{[]string{"PURSER_REDIS_URL=http://cache:6379"}, "redis.url: this is no URL of a Redis"},
		{[]string{"PURSER_REDIS_URL=unix://relative"}, "redis.url: this is no URL of a Redis"},
		{[]string{"PURSER_REDIS_URL=redis://:se%cret@cache"}, "redis.url: this is no URL of a Redis"},
		{[]string{"REDIS_FLUSH_INTERVAL_SECONDS=7200"}, "7200s is too long"},
		{[]string{"REDIS_FLUSH_INTERVAL_SECONDS=soon"}, `"soon" is no duration`},
	} {
		c, err := Load("", append(tt.environ, "HOME=/home/x"))
		if err == nil {
			err = c.Validate()
		}
		if (err == nil) != (tt.problem == "") || err != nil && (!strings.Contains(err.Error(), tt.problem) || strings.Contains(err.Error(), "cret")) {
			t.Errorf("%v: %v, want %q", tt.environ, err, tt.problem)
		}
	}
	c, err := Load("", []string{url, "REDIS_FLUSH_INTERVAL_SECONDS=300", "PURSER_PULL_STATISTICS_IGNORE_USER_AGENTS= trivy/*,, Grype ,"})
	if err != nil {
		t.Fatal(err)
	}
	p := c.PullStatistics
	if p.RedisInterval != 5*time.Minute || !slices.Equal(p.IgnoreUserAgents, []string{"trivy/*", "Grype"}) {
		t.Errorf("%+v", p)
	}
	if strings.Contains(c.Redis.URL.String(), "secret") {
		t.Errorf("%s shows the password", c.Redis.URL)
	}
}

// Quay's environment variables for auto-pruning must work if Purser's own aren't set.
func TestQuaysAutoPruneVariables(t *testing.T) {
	t.Parallel()
	c, err := Load("", []string{"FEATURE_AUTO_PRUNE=false", "AUTO_PRUNING_POLL_PERIOD=45"})
	if err != nil || c.Autoprune.Enabled || c.Autoprune.Interval != 45*time.Second {
		t.Errorf("%+v, %v", c.Autoprune, err)
	}
	c, err = Load("", []string{"FEATURE_AUTO_PRUNE=false", "PURSER_AUTOPRUNE_ENABLED=true"})
	if err != nil || !c.Autoprune.Enabled {
		t.Errorf("%+v, %v", c.Autoprune, err)
	}
	c, err = Load("", []string{`DEFAULT_NAMESPACE_AUTOPRUNE_POLICY={"method": "creation_date", "value": "5d"}`})
	if err != nil || c.Autoprune.DefaultPolicy != `{"method": "creation_date", "value": "5d"}` {
		t.Errorf("%+v, %v", c.Autoprune, err)
	}
	for _, text := range []string{"10", "[]", "null", "{method: x}"} {
		if _, err = Load("", []string{"DEFAULT_NAMESPACE_AUTOPRUNE_POLICY=" + text}); err == nil || !strings.Contains(err.Error(), "DEFAULT_NAMESPACE_AUTOPRUNE_POLICY") {
			t.Errorf("%s: %v", text, err)
		}
	}
	if _, err = Load("", []string{"AUTO_PRUNING_POLL_PERIOD=soon"}); err == nil || !strings.Contains(err.Error(), "AUTO_PRUNING_POLL_PERIOD") {
		t.Errorf("soon: %v", err)
	}
}
