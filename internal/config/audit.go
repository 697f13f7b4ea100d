package config

import "time"

// Audit configures the audit log.
type Audit struct {
	Retention time.Duration // 0: entries are never deleted
	Pulls     bool
	JoinPulls bool // pulls of the same manifest by one client within a second become one entry
}

// auditSettings are the settings of the audit log.
var auditSettings = []setting{
	{key: "audit.retention", def: "90d", field: func(c *Config) field { return durationField{&c.Audit.Retention, 0, maxDuration} }},
	{key: "audit.pulls", def: "true", field: func(c *Config) field { return boolField{&c.Audit.Pulls} }},
	{key: "audit.join_pulls", def: "true", field: func(c *Config) field { return boolField{&c.Audit.JoinPulls} }},
}
