package config

import "time"

// PullStatistics is about counting pulls.
type PullStatistics struct {
	Enabled  bool
	Interval time.Duration // between two readings of the audit log
	Batch    int           // entries that are counted together
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
}

// validatePulls refuses to count what isn't recorded.
func (c *Config) validatePulls(report func(key, format string, args ...any)) {
	if c.PullStatistics.Enabled && !c.Audit.Pulls {
		report("pull_statistics.enabled", "pulls are counted from the audit log, and audit.pulls is false; set that to true, or this to false")
	}
}
