package config

import "github.com/purser-registry/purser/internal/memory"

const (
	minBodyMemory = 32 << 20
	maxBodyMemory = 1 << 30
)

// defaultBodyMemory returns how many bytes of memory request bodies may use by default, in
// a process that may use `limit` bytes in all: a quarter, within bounds. If the limit is
// unknown (0), it returns 256 MiB.
func defaultBodyMemory(limit int64) int64 {
	if limit <= 0 {
		return maxBodyMemory / 4
	}
	return min(max(limit/4, minBodyMemory), maxBodyMemory)
}

func (c *Config) deriveLimits() {
	if !c.isSet("http.body_memory") {
		c.HTTP.BodyMemory = defaultBodyMemory(memory.Limit()) >> 20 << 20
	}
}

func (c *Config) validateLimits(report reporter) {
	if n := c.HTTP.BodyMemory; n > 0 && n < minBodyMemory {
		report("http.body_memory", "%s is too little for the largest manifests; use at least %s, or 0 for no limit",
			formatSize(n), formatSize(minBodyMemory))
	}
	if h := c.HTTP; h.MaxConnections > 0 && h.MaxClientConnections > h.MaxConnections && c.isSet("http.max_client_connections") {
		report("http.max_client_connections", "%d is more than http.max_connections (%d); lower it", h.MaxClientConnections, h.MaxConnections)
	}
	if u := c.Uploads; u.MaxOpen > 0 && u.MaxClientOpen > u.MaxOpen && c.isSet("uploads.max_client_open") {
		report("uploads.max_client_open", "%d is more than uploads.max_open (%d); lower it", u.MaxClientOpen, u.MaxOpen)
	}
	if u := c.Uploads; u.MaxOpen > 0 && u.MaxAccountOpen > u.MaxOpen && c.isSet("uploads.max_account_open") {
		report("uploads.max_account_open", "%d is more than uploads.max_open (%d); lower it", u.MaxAccountOpen, u.MaxOpen)
	}
}
