package config

import (
	"errors"
	"net/url"
	"strings"
	"time"
)

// PullStatistics configures the counting of pulls.
type PullStatistics struct {
	Enabled          bool
	Interval         time.Duration // between two reads of the audit log
	Redis            bool          // pulls are counted in Redis first
	RedisInterval    time.Duration // between two flushes
	IgnoreUserAgents []string      // pulls of these clients don't count; * is a wildcard
	IgnoreAccounts   []string
	Join             bool          // a HEAD by tag and a following GET by digest are one pull
	JoinWithin       time.Duration // longest time between the two
	HistoryRetention time.Duration // how long the pulls of each day are kept. 0: for ever
}

// Counts says whether pulls are counted at all, from the audit log or in Redis.
func (p PullStatistics) Counts() bool { return p.Enabled || p.Redis }

// Redis names the Redis server that counts pulls if PullStatistics.Redis is set.
type Redis struct {
	URL    DSN    // "" for none
	CAFile string // path of a PEM file with the authorities of its certificate; "": the system's
	// Timeout limits each command.
	Timeout time.Duration
}

// pullSettings are the settings of pull statistics.
var pullSettings = []setting{
	{key: "pull_statistics.enabled", def: "true", derived: "audit.pulls", also: "FEATURE_PULL_STATISTICS_TRACKING", field: func(c *Config) field {
		return boolField{&c.PullStatistics.Enabled}
	}},
	{key: "pull_statistics.interval", def: "5m", field: func(c *Config) field {
		return durationField{&c.PullStatistics.Interval, time.Second, time.Hour}
	}},
	{key: "pull_statistics.ignore_user_agents", field: func(c *Config) field { return listField{&c.PullStatistics.IgnoreUserAgents} }},
	{key: "pull_statistics.ignore_accounts", field: func(c *Config) field { return listField{&c.PullStatistics.IgnoreAccounts} }},
	{key: "pull_statistics.join", def: "true", field: func(c *Config) field { return boolField{&c.PullStatistics.Join} }},
	{key: "pull_statistics.join_within", def: "30s", field: func(c *Config) field {
		return durationField{&c.PullStatistics.JoinWithin, time.Second, 5 * time.Minute}
	}},
	{key: "pull_statistics.history_retention", def: "400d", field: func(c *Config) field {
		return durationField{&c.PullStatistics.HistoryRetention, 0, maxDuration}
	}},
	{key: "pull_statistics.redis", def: "false", also: "FEATURE_REDIS_PULL_TRACKING", field: func(c *Config) field {
		return boolField{&c.PullStatistics.Redis}
	}},
	{key: "pull_statistics.redis_interval", def: "5m", also: "REDIS_FLUSH_INTERVAL_SECONDS", field: func(c *Config) field {
		return secondsField{durationField{&c.PullStatistics.RedisInterval, time.Second, time.Hour}}
	}},

	{key: "redis.url", field: func(c *Config) field { return dsnField{&c.Redis.URL} }},
	{key: "redis.ca_file", field: func(c *Config) field { return textField{&c.Redis.CAFile} }},
	{key: "redis.timeout", def: "3s", field: func(c *Config) field {
		return durationField{&c.Redis.Timeout, 100 * time.Millisecond, 5 * time.Second}
	}},
}

// validatePulls reports an error if pulls are to be counted from an audit log that doesn't
// record them (audit.pulls is false), or in Redis without redis.url.
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
	if c.Redis.CAFile != "" && !strings.HasPrefix(string(c.Redis.URL), "rediss://") {
		report("redis.ca_file", "redis.url isn't a rediss:// URL, so there is no certificate to check; change that, or remove this")
	}
}

// checkRedisURL returns an error unless `text` is empty or the URL of a Redis server. The
// error doesn't repeat the text, which may contain a password.
func checkRedisURL(text string) error {
	if text == "" {
		return nil
	}
	u, err := url.Parse(text)
	if strings.HasPrefix(text, "redis") && strings.Contains(text, "://") {
		if err := checkAddress(text); err != nil {
			return err
		}
	}
	switch {
	case err != nil:
	case (u.Scheme == "redis" || u.Scheme == "rediss") && u.Hostname() != "":
		return nil
	case u.Scheme == "unix" && strings.HasPrefix(u.Path, "/"):
		return nil
	}
	return errors.New(`this is no URL of a Redis; write "redis://host:6379", "rediss://user:password@host:6380/1" or "unix:///run/redis.sock"`)
}
