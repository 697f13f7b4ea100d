package config

import (
	"errors"
	"net/url"
	"regexp"
	"strings"
	"time"
)

// S3 configures a bucket of an S3-compatible store.
type S3 struct {
	Endpoint    string // URL, or host:port for https; "": AWS
	Bucket      string // "": blobs aren't in S3
	Region      string
	Prefix      string // of every key, without slashes at its ends
	PathStyle   bool
	AccessKey   string // "": the usual AWS credential chain
	SecretKey   Secret
	CAFile      string        // path of a PEM file with the authorities of the endpoint's certificate; "": the system's
	Encryption  string        // by the store: none, s3 or kms
	KMSKey      string        // of the encryption kms; "": the store's own
	Timeout     time.Duration // without progress of a request
	Redirect    bool
	RedirectTTL time.Duration
}

// Host returns the endpoint's host, with the port if there is one.
func (s S3) Host() string {
	host, _, err := s.endpoint()
	if err != nil {
		return "" // Validate refuses it
	}
	return host
}

// Insecure says whether the endpoint is used without TLS.
func (s S3) Insecure() bool {
	_, insecure, err := s.endpoint()
	return err == nil && insecure
}

func (s S3) endpoint() (host string, insecure bool, err error) {
	if s.Endpoint == "" {
		return "s3.amazonaws.com", false, nil
	}
	text := s.Endpoint
	if !strings.Contains(text, "://") {
		text = "https://" + text
	}
	u, err := parseHTTPURL(text)
	if err != nil {
		return "", false, err
	}
	return u.Host, u.Scheme == "http", nil
}

// parseHTTPURL parses a URL that must consist of scheme and host only. Its errors don't
// repeat the URL, which may contain a user and password.
func parseHTTPURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return nil, errors.New("it is no http or https URL; write it as https://host or http://host:port")
	}
	if u.User != nil {
		return nil, errors.New("it may not hold a user or a password")
	}
	if strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" {
		return nil, errors.New("it may not have a path or a query; write scheme and host only")
	}
	return u, nil
}

var bucketName = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]$`)

// validateS3 reports problems of the storage.s3 settings.
func (c *Config) validateS3(report func(key, format string, args ...any)) {
	s := c.Storage.S3
	if s.Bucket == "" {
		for _, key := range []string{"endpoint", "prefix", "path_style", "access_key", "secret_key", "ca_file", "encryption", "kms_key", "timeout", "redirect"} {
			key = "storage.s3." + key
			if setting := settingOf(key); setting.field(c).show() != setting.def {
				report(key, "it is set but storage.s3.bucket isn't; name the bucket, or remove it to keep blobs in a directory")
				return
			}
		}
		return
	}
	if c.isSet("storage.filesystem.path") {
		report("storage.filesystem.path", "storage.s3.bucket is set too (%s) and blobs are kept in one place; remove one of them", c.Source("storage.s3.bucket"))
	}
	if !bucketName.MatchString(s.Bucket) {
		report("storage.s3.bucket", "%q is no bucket name; use 3 to 63 lower-case letters, digits, dots and hyphens", s.Bucket)
	}
	if _, _, err := s.endpoint(); err != nil {
		report("storage.s3.endpoint", "%v", err)
	}
	if strings.HasPrefix(s.Prefix, "/") || strings.HasSuffix(s.Prefix, "/") || strings.Contains(s.Prefix, "//") {
		report("storage.s3.prefix", "%q has a slash at an end or two in a row; write it as \"a/b\"", s.Prefix)
	}
	if s.CAFile != "" && s.Insecure() {
		report("storage.s3.ca_file", "storage.s3.endpoint is an http URL, so there is no certificate to check; use https, or remove this")
	}
	if s.KMSKey != "" && s.Encryption != "kms" {
		report("storage.s3.kms_key", "it is set but storage.s3.encryption isn't kms; set that, or remove this")
	}
	if (s.AccessKey == "") != (s.SecretKey == "") {
		key, other := "storage.s3.access_key", "storage.s3.secret_key"
		if s.AccessKey == "" {
			key, other = other, key
		}
		report(key, "%s is missing; set both, or neither to use the usual AWS chain", other)
	}
}
