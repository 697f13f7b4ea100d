package config

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Validate checks addresses, paths, and settings that depend on each other, which Set can't
// check since it sees only one value. The error joins all problems. Validate looks only at
// the configuration: it doesn't check whether a file exists or a server answers.
func (c *Config) Validate() error {
	var problems []error
	report := func(key, format string, args ...any) {
		problems = append(problems, c.Problem(key, fmt.Errorf(format, args...)))
	}
	c.validatePaths(report)
	c.validateHTTP(report)
	c.validateAuth(report)
	c.validateLimits(report)
	c.validateDatabase(report)
	c.validateS3(report)
	c.validateTimes(report)
	c.validateWebhook(report)
	c.validatePulls(report)
	return errors.Join(problems...)
}

// Problem returns `err` as a problem of the setting `key`, with the place of its value in front, in the
// form of the errors of Validate.
func (c *Config) Problem(key string, err error) error {
	if c.isSet(key) {
		return fmt.Errorf("%s: %s: %w", c.Source(key), key, err)
	}
	return fmt.Errorf("%s: %w", key, err)
}

func (c *Config) validatePaths(report func(key, format string, args ...any)) {
	if c.DataDir == "" {
		report("data_dir", "there is no home directory to keep data in; set data_dir or HOME")
	}
	for _, p := range []struct{ key, path string }{
		{"data_dir", c.DataDir},
		{"storage.filesystem.path", c.Storage.Filesystem.Path},
		{"http.tls.cert", c.HTTP.TLS.Cert},
		{"http.tls.key", c.HTTP.TLS.Key},
		{"http.tls.acme.ca_file", c.HTTP.TLS.ACME.CAFile},
		{"auth.htpasswd", c.Auth.Htpasswd},
		{"auth.ldap.ca_file", c.Auth.LDAP.CAFile},
		{"auth.oidc.ca_file", c.Auth.OIDC.CAFile},
		{"storage.s3.ca_file", c.Storage.S3.CAFile},
		{"redis.ca_file", c.Redis.CAFile},
	} {
		if strings.HasPrefix(p.path, "~") && c.isSet(p.key) {
			report(p.key, "%q: only a shell knows what ~ is; write the whole path", p.path)
		}
		if strings.ContainsRune(p.path, 0) {
			report(p.key, "a path can't hold a NUL character")
		}
	}
}

func (c *Config) validateDatabase(report func(key, format string, args ...any)) {
	for _, d := range []struct {
		key string
		dsn DSN
	}{{"database.main", c.Database.Main}, {"database.stats", c.Database.Stats}} {
		if d.key == "database.stats" && d.dsn == c.Database.Main {
			continue // the same problem is reported once
		}
		if d.dsn == "" {
			continue
		}
		if err := errors.Join(d.dsn.check(), d.dsn.checkFiles()); err != nil {
			report(d.key, "%v", err)
		}
	}
}

// looksLikeDSN says whether `s` has the form of a URL or of key=value pairs. Other errors
// in a DSN are reported by the database driver when it connects.
func looksLikeDSN(s string) bool {
	if strings.HasPrefix(s, "postgres://") || strings.HasPrefix(s, "postgresql://") {
		return true
	}
	return !strings.Contains(s, "://") && maskPairs(s) != hidden
}

// These are defaults of times that limit each other.
const (
	defaultMaxRequestTime  = 2 * time.Hour
	defaultBodyIdleTimeout = time.Minute
	defaultUploadMaxAge    = 24 * time.Hour
)

// deriveTimes computes the defaults of http.max_request_time, uploads.max_age and
// http.body_idle_timeout. It adapts those that weren't given a value to those that were:
// uploads.max_age must not be below http.max_request_time, and http.body_idle_timeout must
// not be above http.max_request_time.
func (c *Config) deriveTimes() {
	age := c.isSet("uploads.max_age")
	if !c.isSet("http.max_request_time") {
		if c.HTTP.MaxRequestTime = defaultMaxRequestTime; age {
			c.HTTP.MaxRequestTime = min(defaultMaxRequestTime, c.Uploads.MaxAge)
		}
	}
	if !age {
		c.Uploads.MaxAge = max(defaultUploadMaxAge, c.HTTP.MaxRequestTime)
	}
	if !c.isSet("http.body_idle_timeout") {
		c.HTTP.BodyIdleTimeout = min(defaultBodyIdleTimeout, c.HTTP.MaxRequestTime)
	}
}

func (c *Config) validateTimes(report func(key, format string, args ...any)) {
	if c.HTTP.BodyIdleTimeout > c.HTTP.MaxRequestTime {
		report("http.body_idle_timeout", "%s is longer than http.max_request_time (%s); shorten it",
			formatDuration(c.HTTP.BodyIdleTimeout), formatDuration(c.HTTP.MaxRequestTime))
	}
	// If uploads.max_age were shorter than a request may take, the reaper could delete an
	// upload to which a request still writes.
	if c.Uploads.MaxAge < c.HTTP.MaxRequestTime {
		report("uploads.max_age", "%s is shorter than http.max_request_time (%s); lengthen it",
			formatDuration(c.Uploads.MaxAge), formatDuration(c.HTTP.MaxRequestTime))
	}
}
