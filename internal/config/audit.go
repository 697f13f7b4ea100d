package config

import "time"

// Audit is about the audit log.
type Audit struct {
	Retention time.Duration // 0: entries are kept for ever
	Pulls     bool
	Buffer    int  // entries of pulls that wait to be written
	JoinPulls bool // those of one thing by one client within a second are one entry
}

// auditSettings are about the audit log.
var auditSettings = []setting{
	{key: "audit.retention", def: "90d", field: func(c *Config) field { return durationField{&c.Audit.Retention, 0, maxDuration} }},
	{key: "audit.pulls", def: "true", field: func(c *Config) field { return boolField{&c.Audit.Pulls} }},
	{key: "audit.buffer", def: "10000", field: func(c *Config) field { return intField{&c.Audit.Buffer, 1, 1_000_000} }},
	{key: "audit.join_pulls", def: "true", field: func(c *Config) field { return boolField{&c.Audit.JoinPulls} }},
}
