package config

import (
	"errors"
	"net/url"
	"strings"
	"time"
)

// PullStatistics is about counting pulls.
type PullStatistics struct {
	Enabled          bool
	Interval         time.Duration // between two readings of the audit log
	Batch            int           // entries, or keys of Redis, that are counted together
	Redis            bool          // Redis counts
	RedisInterval    time.Duration // between two flushes
	RedisBuffer      int           // pulls that wait for Redis at most
	IgnoreUserAgents []string      // whose pulls don't count; * stands for anything
	IgnoreAccounts   []string
	Join             bool          // a HEAD by tag and the GET by digest after it are one pull
	JoinWithin       time.Duration // that may lie between them
}

// Counts says whether pulls are counted at all.
func (p PullStatistics) Counts() bool { return p.Enabled || p.Redis }

// Redis is a server that counts pulls, if that is wanted.
type Redis struct {
	URL DSN // "" for none
}

// pullSettings are about the statistics of pulls.
var pullSettings = []setting{
	{key: "pull_statistics.enabled", def: "true", derived: "audit.pulls", also: "FEATURE_PULL_STATISTICS_TRACKING", field: func(c *Config) field {
		return boolField{&c.PullStatistics.Enabled}
	}},
	{key: "pull_statistics.interval", def: "5m", field: func(c *Config) field {
		return durationField{&c.PullStatistics.Interval, time.Second, time.Hour}
	}},
	{key: "pull_statistics.batch", def: "1000", field: func(c *Config) field {
		return intField{&c.PullStatistics.Batch, 1, 100_000}
	}},
	{key: "pull_statistics.ignore_user_agents", field: func(c *Config) field { return listField{&c.PullStatistics.IgnoreUserAgents} }},
	{key: "pull_statistics.ignore_accounts", field: func(c *Config) field { return listField{&c.PullStatistics.IgnoreAccounts} }},
	{key: "pull_statistics.join", def: "true", field: func(c *Config) field { return boolField{&c.PullStatistics.Join} }},
	{key: "pull_statistics.join_within", def: "30s", field: func(c *Config) field {
		return durationField{&c.PullStatistics.JoinWithin, time.Second, 5 * time.Minute}
	}},
	{key: "pull_statistics.redis", def: "false", also: "FEATURE_REDIS_PULL_TRACKING", field: func(c *Config) field {
		return boolField{&c.PullStatistics.Redis}
	}},
	{key: "pull_statistics.redis_interval", def: "5m", also: "REDIS_FLUSH_INTERVAL_SECONDS", field: func(c *Config) field {
		return secondsField{durationField{&c.PullStatistics.RedisInterval, time.Second, time.Hour}}
	}},
	{key: "pull_statistics.redis_buffer", def: "10000", field: func(c *Config) field {
		return intField{&c.PullStatistics.RedisBuffer, 1, 10_000_000}
	}},

	{key: "redis.url", field: func(c *Config) field { return dsnField{&c.Redis.URL} }},
}

// validatePulls refuses to count what isn't recorded.
func (c *Config) validatePulls(report func(key, format string, args ...any)) {
	p := c.PullStatistics
	if p.Enabled && !p.Redis && !c.Audit.Pulls {
		report("pull_statistics.enabled", "pulls are counted from the audit log, and audit.pulls is false; set that to true, or this to false")
	}
	if p.Redis && c.Redis.URL == "" {
		report("pull_statistics.redis", "pulls are counted in Redis, and redis.url isn't set; set that, or this to false")
	}
	if err := checkRedisURL(string(c.Redis.URL)); err != nil {
		report("redis.url", "%v", err)
	}
}

// checkRedisURL doesn't repeat the text, which may have a password.
func checkRedisURL(text string) error {
	if text == "" {
		return nil
	}
	u, err := url.Parse(text)
	switch {
	case err != nil:
	case (u.Scheme == "redis" || u.Scheme == "rediss") && u.Hostname() != "":
		return nil
	case u.Scheme == "unix" && strings.HasPrefix(u.Path, "/"):
		return nil
	}
	return errors.New(`this is no URL of a Redis; write "redis://host:6379", "rediss://user:password@host:6380/1" or "unix:///run/redis.sock"`)
}
