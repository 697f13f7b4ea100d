package config

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/purser-registry/purser/internal/gc/events"
)

// setting describes one setting. The variable settings has all of them, in the order of
// docs/configuration.md.
type setting struct {
	key string
	def string // the default, in the environment's format
	// derived says, for the documentation, from which other settings the default is
	// computed. It is empty if `def` is the default.
	derived string
	// unset says that Load must not apply `def`. As long as such a setting is given no
	// value, its default is computed from other settings or from the machine's memory.
	unset bool
	// also is a second environment variable, which has Quay's name for the setting. It
	// counts only if the setting's own variable isn't set.
	also string
	// decides says that the setting decides what is deleted and what is kept, or where: a command
	// that deletes must have the same value as the servers (see [Config.Differences]).
	decides bool
	field   func(*Config) field
}

// env returns the setting's environment variable.
func (s *setting) env() string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(s.key, ".", "_"))
}

const (
	day  = 24 * time.Hour
	week = 7 * day
	// maxDuration is so low that neither the sum of two durations nor an interval in
	// PostgreSQL can overflow.
	maxDuration = 100 * 365 * day
	// maxPresign is S3's limit for a presigned URL.
	maxPresign = week
)

var settings = append([]setting{
	{key: "data_dir", derived: "see below", field: func(c *Config) field { return textField{&c.DataDir} }},

	{key: "http.addr", def: "127.0.0.1:5000", field: func(c *Config) field { return textField{&c.HTTP.Addr} }},
	{key: "http.debug_addr", def: "127.0.0.1:5001", field: func(c *Config) field { return offField{&c.HTTP.DebugAddr} }},
	{key: "http.profile_addr", derived: "http.debug_addr on loopback, else off", field: func(c *Config) field {
		return offField{&c.HTTP.ProfileAddr}
	}},
	{key: "http.allow_profiles", def: "false", field: func(c *Config) field { return boolField{&c.HTTP.AllowProfiles} }},
	{key: "http.tls.cert", field: func(c *Config) field { return textField{&c.HTTP.TLS.Cert} }},
	{key: "http.tls.key", field: func(c *Config) field { return textField{&c.HTTP.TLS.Key} }},
	{key: "http.tls.min_version", def: "1.2", field: func(c *Config) field {
		return choiceField{&c.HTTP.TLS.MinVersion, []string{"1.2", "1.3"}}
	}},
	{key: "http.tls.acme.hosts", field: func(c *Config) field { return listField{&c.HTTP.TLS.ACME.Hosts} }},
	{key: "http.tls.acme.accept_terms", def: "false", field: func(c *Config) field { return boolField{&c.HTTP.TLS.ACME.AcceptTerms} }},
	{key: "http.tls.acme.email", field: func(c *Config) field { return textField{&c.HTTP.TLS.ACME.Email} }},
	{key: "http.tls.acme.directory_url", def: "https://acme-v02.api.letsencrypt.org/directory", field: func(c *Config) field {
		return textField{&c.HTTP.TLS.ACME.DirectoryURL}
	}},
	{key: "http.tls.acme.ca_file", field: func(c *Config) field { return textField{&c.HTTP.TLS.ACME.CAFile} }},
	{key: "http.tls.acme.http_addr", def: "off", field: func(c *Config) field { return offField{&c.HTTP.TLS.ACME.HTTPAddr} }},
	{key: "http.allow_anonymous", def: "false", field: func(c *Config) field { return boolField{&c.HTTP.AllowAnonymous} }},
	{key: "http.drain_timeout", def: "30s", field: func(c *Config) field {
		return durationField{&c.HTTP.DrainTimeout, 0, maxDuration}
	}},
	{key: "http.max_request_time", def: "2h", derived: "2h, or uploads.max_age where that is shorter", decides: true, field: func(c *Config) field {
		return durationField{&c.HTTP.MaxRequestTime, time.Second, maxDuration}
	}},
	{key: "http.header_timeout", def: "30s", field: func(c *Config) field {
		return durationField{&c.HTTP.HeaderTimeout, time.Second, time.Hour}
	}},
	{key: "http.body_idle_timeout", def: "60s", derived: "60s, or http.max_request_time where that is shorter", field: func(c *Config) field {
		return durationField{&c.HTTP.BodyIdleTimeout, time.Second, maxDuration}
	}},
	{key: "http.allowed_hosts", field: func(c *Config) field { return listField{&c.HTTP.AllowedHosts} }},
	{key: "http.trusted_proxies", field: func(c *Config) field { return networksField{&c.HTTP.TrustedProxies} }},
	{key: "http.forwarded_header", def: "auto", field: func(c *Config) field {
		return choiceField{&c.HTTP.ForwardedHeader, []string{"auto", "x-forwarded-for", "forwarded"}}
	}},
	{key: "http.proxy_protocol", def: "false", field: func(c *Config) field { return boolField{&c.HTTP.ProxyProtocol} }},
	{key: "http.external_url", field: func(c *Config) field { return textField{&c.HTTP.ExternalURL} }},
	{key: "http.body_memory", derived: "a quarter of the memory, from 32MiB to 1GiB", unset: true, field: func(c *Config) field {
		return sizeField{&c.HTTP.BodyMemory}
	}},
	{key: "http.body_memory_client_share", def: "50", field: func(c *Config) field { return intField{&c.HTTP.BodyMemoryShare, 10, 100} }},
	{key: "http.body_memory_wait", def: "5s", field: func(c *Config) field {
		return durationField{&c.HTTP.BodyMemoryWait, 0, time.Hour}
	}},
	{key: "http.max_connections", def: "10000", field: func(c *Config) field {
		return intField{&c.HTTP.MaxConnections, 0, math.MaxInt32}
	}},
	{key: "http.max_client_connections", def: "4000", field: func(c *Config) field {
		return intField{&c.HTTP.MaxClientConnections, 0, math.MaxInt32}
	}},
	{key: "http.max_client_request_rate", def: "0", field: func(c *Config) field {
		return intField{&c.HTTP.MaxClientRequestRate, 0, math.MaxInt32}
	}},
	{key: "http.max_account_request_rate", def: "0", field: func(c *Config) field {
		return intField{&c.HTTP.MaxAccountRequestRate, 0, math.MaxInt32}
	}},
	{key: "http.min_body_rate", def: "512", field: func(c *Config) field { return sizeField{&c.HTTP.MinBodyRate} }},
	{key: "http.min_body_rate_window", def: "2m", field: func(c *Config) field {
		return durationField{&c.HTTP.MinBodyRateWindow, time.Second, maxDuration}
	}},
	{key: "http.answer_idle_timeout", def: "5m", field: func(c *Config) field {
		return durationField{&c.HTTP.AnswerIdleTimeout, 0, maxDuration}
	}},

	{key: "log.level", def: "info", field: func(c *Config) field {
		return choiceField{&c.Log.Level, []string{"debug", "info", "warn", "error"}}
	}},
	{key: "log.format", def: "auto", field: func(c *Config) field {
		return choiceField{&c.Log.Format, []string{"auto", "text", "json"}}
	}},
	{key: "log.access", def: "true", field: func(c *Config) field { return boolField{&c.Log.Access} }},

	{key: "database.main", derived: "the built-in PostgreSQL", field: func(c *Config) field { return dsnField{&c.Database.Main} }},
	{key: "database.stats", derived: "database.main", field: func(c *Config) field { return dsnField{&c.Database.Stats} }},
	{key: "database.partitions", def: "4", field: func(c *Config) field { return intField{&c.Database.Partitions, 1, 1024} }},
	{key: "database.max_conns", def: "20", field: func(c *Config) field { return intField{&c.Database.MaxConns, 2, 10_000} }},
	{key: "database.migrate", def: "true", field: func(c *Config) field { return boolField{&c.Database.Migrate} }},

	{key: "storage.filesystem.path", derived: "data_dir/blobs", decides: true, field: func(c *Config) field {
		return textField{&c.Storage.Filesystem.Path}
	}},
	{key: "storage.s3.endpoint", derived: "AWS", decides: true, field: func(c *Config) field { return textField{&c.Storage.S3.Endpoint} }},
	{key: "storage.s3.bucket", decides: true, field: func(c *Config) field { return textField{&c.Storage.S3.Bucket} }},
	{key: "storage.s3.region", derived: "AWS_REGION, AWS_DEFAULT_REGION, us-east-1", field: func(c *Config) field {
		return textField{&c.Storage.S3.Region}
	}},
	{key: "storage.s3.prefix", decides: true, field: func(c *Config) field { return textField{&c.Storage.S3.Prefix} }},
	{key: "storage.s3.path_style", def: "false", field: func(c *Config) field { return boolField{&c.Storage.S3.PathStyle} }},
	{key: "storage.s3.access_key", derived: "the usual AWS chain", field: func(c *Config) field {
		return textField{&c.Storage.S3.AccessKey}
	}},
	{key: "storage.s3.secret_key", derived: "the usual AWS chain", field: func(c *Config) field {
		return secretField{&c.Storage.S3.SecretKey}
	}},
	{key: "storage.s3.ca_file", field: func(c *Config) field { return textField{&c.Storage.S3.CAFile} }},
	{key: "storage.s3.encryption", def: "none", field: func(c *Config) field {
		return choiceField{&c.Storage.S3.Encryption, []string{"none", "s3", "kms"}}
	}},
	{key: "storage.s3.kms_key", field: func(c *Config) field { return textField{&c.Storage.S3.KMSKey} }},
	{key: "storage.s3.timeout", def: "30s", field: func(c *Config) field {
		return durationField{&c.Storage.S3.Timeout, time.Second, time.Hour}
	}},
	{key: "storage.s3.redirect", def: "false", field: func(c *Config) field { return boolField{&c.Storage.S3.Redirect} }},
	{key: "storage.s3.redirect_ttl", def: "20m", field: func(c *Config) field {
		return durationField{&c.Storage.S3.RedirectTTL, time.Second, maxPresign}
	}},
	{key: "storage.reserve", derived: "3GiB, or a tenth of the disk where that is less", unset: true, field: func(c *Config) field {
		return sizeField{&c.Storage.Reserve}
	}},
	{key: "storage.delete_timeout", def: "2s", field: func(c *Config) field {
		return durationField{&c.Storage.DeleteTimeout, time.Millisecond, time.Hour}
	}},

	{key: "uploads.max_age", def: "24h", derived: "24h, or http.max_request_time where that is longer", decides: true, field: func(c *Config) field {
		return durationField{&c.Uploads.MaxAge, time.Second, maxDuration}
	}},
	{key: "uploads.max_open", def: "50000", field: func(c *Config) field { return intField{&c.Uploads.MaxOpen, 0, math.MaxInt32} }},
	{key: "uploads.max_client_open", def: "5000", field: func(c *Config) field {
		return intField{&c.Uploads.MaxClientOpen, 0, math.MaxInt32}
	}},
	{key: "uploads.max_account_open", def: "1000", field: func(c *Config) field {
		return intField{&c.Uploads.MaxAccountOpen, 0, math.MaxInt32}
	}},

	{key: "limits.robots", def: "10000", field: func(c *Config) field { return intField{&c.Limits.Robots, 1, 1_000_000} }},
	{key: "limits.teams", def: "1000", field: func(c *Config) field { return intField{&c.Limits.Teams, 1, 1_000_000} }},
	{key: "limits.team_members", def: "10000", field: func(c *Config) field { return intField{&c.Limits.TeamMembers, 1, 1_000_000} }},
	{key: "limits.tokens", def: "100", field: func(c *Config) field { return intField{&c.Limits.Tokens, 1, 10_000} }},
	{key: "limits.refresh_tokens", def: "100", field: func(c *Config) field { return intField{&c.Limits.RefreshTokens, 1, 10_000} }},
	{key: "limits.federated_tokens", def: "2000", field: func(c *Config) field { return intField{&c.Limits.FederatedTokens, 1, 100_000} }},
	{key: "limits.permissions", def: "1000", field: func(c *Config) field { return intField{&c.Limits.Permissions, 1, 100_000} }},
	{key: "limits.federation_rules", def: "50", field: func(c *Config) field { return intField{&c.Limits.FederationRules, 1, 1000} }},
	{key: "limits.sessions", def: "50", field: func(c *Config) field { return intField{&c.Limits.Sessions, 1, 10_000} }},
	{key: "limits.policies", def: "32", field: func(c *Config) field { return intField{&c.Limits.Policies, 1, 32} }},
	{key: "limits.protection_rules", def: "100", field: func(c *Config) field { return intField{&c.Limits.ProtectionRules, 1, 10_000} }},
	{key: "limits.webhooks", def: "32", field: func(c *Config) field { return intField{&c.Limits.Webhooks, 1, 1000} }},
	{key: "limits.reporters", def: "100", field: func(c *Config) field { return intField{&c.Limits.Reporters, 1, 10_000} }},

	{key: "manifests.sparse_indexes", def: "false", field: func(c *Config) field { return boolField{&c.Manifests.SparseIndexes} }},

	{key: "cache.enabled", def: "true", field: func(c *Config) field { return boolField{&c.Cache.Enabled} }},
	{key: "cache.manifest_bytes", def: "64MiB", field: func(c *Config) field { return sizeField{&c.Cache.ManifestBytes} }},
	{key: "cache.entries", def: "100000", field: func(c *Config) field { return intField{&c.Cache.Entries, 0, math.MaxInt32} }},

	{key: "gc.review_manifests", def: "true", field: func(c *Config) field { return boolField{&c.GC.ReviewManifests} }},
	{key: "gc.review_blobs", def: "true", field: func(c *Config) field { return boolField{&c.GC.ReviewBlobs} }},
	{key: "gc.workers", def: "1", field: func(c *Config) field { return intField{&c.GC.Workers, 1, 256} }},
	{key: "gc.transaction_timeout", def: "10s", field: func(c *Config) field {
		return durationField{&c.GC.TransactionTimeout, 500 * time.Millisecond, time.Hour}
	}},
	{key: "gc.set_aside_after", def: "10", field: func(c *Config) field { return intField{&c.GC.SetAsideAfter, 1, 1000} }},
	{key: "gc.keep_doomed", def: "0s", decides: true, field: func(c *Config) field {
		return durationField{&c.GC.KeepDoomed, 0, maxDuration}
	}},
	{key: "gc.review_after", def: formatDuration(events.DefaultDelay), field: func(c *Config) field {
		return durationField{&c.GC.ReviewAfter, 0, maxDuration}
	}},
	{key: "gc.review_after_events", derived: "none", field: func(c *Config) field { return delaysField{&c.GC.ReviewAfterEvents} }},
}, slices.Concat(looseSettings, auditSettings, pullSettings, autopruneSettings, webhookSettings, trashSettings, clockSettings, hookSettings, authSettings)...)

// looseSettings are the settings of loose foreign keys.
var looseSettings = []setting{
	{key: "loose_foreign_keys.enabled", def: "true", field: func(c *Config) field { return boolField{&c.LooseForeignKeys.Enabled} }},
	{key: "loose_foreign_keys.interval", def: "1m", field: func(c *Config) field {
		return durationField{&c.LooseForeignKeys.Interval, time.Second, time.Hour}
	}},
	{key: "loose_foreign_keys.max_deletes", def: "1000000", field: func(c *Config) field {
		return intField{&c.LooseForeignKeys.MaxDeletes, 1, 1_000_000_000}
	}},
	{key: "loose_foreign_keys.max_updates", def: "50000", field: func(c *Config) field {
		return intField{&c.LooseForeignKeys.MaxUpdates, 1, 1_000_000_000}
	}},
	{key: "loose_foreign_keys.max_runtime", def: "30s", field: func(c *Config) field {
		return durationField{&c.LooseForeignKeys.MaxRuntime, time.Second, time.Hour}
	}},
}

// settingOf returns the setting with this key, or nil if there is none.
func settingOf(key string) *setting {
	for i := range settings {
		if settings[i].key == key {
			return &settings[i]
		}
	}
	return nil
}

// isGroup says whether `prefix` is a group of settings, such as "http" for "http.addr".
func isGroup(prefix string) bool {
	for i := range settings {
		if strings.HasPrefix(settings[i].key, prefix+".") {
			return true
		}
	}
	return false
}

// allGroups returns the names of all groups, at any depth.
func allGroups() []string {
	var groups []string
	for i := range settings {
		for key := settings[i].key; ; {
			end := strings.LastIndexByte(key, '.')
			if end < 0 {
				break
			}
			if key = key[:end]; !slices.Contains(groups, key) {
				groups = append(groups, key)
			}
		}
	}
	return groups
}

func allKeys() []string {
	keys := make([]string, len(settings))
	for i := range settings {
		keys[i] = settings[i].key
	}
	return keys
}
