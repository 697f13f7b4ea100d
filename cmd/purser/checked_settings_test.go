package main

import (
	"path/filepath"
	"strings"
	"testing"
)

// TestCheckedIsServed: config check and serve say the same of a configuration that can't be served, and
// config check finds nothing wrong with one that can.
func TestCheckedIsServed(t *testing.T) {
	t.Parallel()
	away := filepath.Join(t.TempDir(), "away")
	for name, text := range map[string]string{
		"files of TLS":          "http: {tls: {cert: " + away + ", key: " + away + "}}",
		"sslmode":               "database: {main: 'postgres://u:p@db.example/purser?sslmode=required'}",
		"authorities of a DSN":  "database: {main: 'postgres://u:p@db.example/purser?sslmode=verify-full&sslrootcert=" + away + "'}",
		"password in a DSN":     "database: {main: 'postgres://u:top#secret@db.example/purser'}",
		"authorities of S3":     "storage: {s3: {bucket: images, ca_file: " + away + "}}",
		"key of a webhook":      "autoprune: {webhook: {url: 'https://hooks.example/a', secret: topsecret}}",
		"number of a Redis":     "redis: {url: 'redis://u:topsecret@cache.example/first'}",
		"accounts":              "auth: {enabled: true, htpasswd: " + away + "}",
		"provider":              "auth: {enabled: true, oidc: {issuer: 'https://id.example', client_id: p, ca_file: " + away + "}}",
		"several of these":      "http: {adr: x, tls: {cert: " + away + ", key: " + away + "}}\nautoprune: {webhook: {url: 'https://hooks.example/a', secret: topsecret}}",
		"a policy of all":       "autoprune: {default_policy: {method: creation_date}}",
		"a file that is a pipe": "http: {tls: {cert: /dev/stdin, key: " + away + "}}",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := writeFile(t, text)
			code, _, checked := purser(t, nil, "config", "check", "--config", file)
			if code != 1 || !strings.Contains(checked, file+":1: ") {
				t.Errorf("config check ends with %d and says:\n%s", code, checked)
			}
			code, _, served := purser(t, nil, "serve", "--config", file, "--data-dir", t.TempDir(), "--addr", "127.0.0.1:0", "--debug-addr", "off")
			if code != 1 || served != checked {
				t.Errorf("serve ends with %d and says:\n%s\nconfig check says:\n%s", code, served, checked)
			}
			if strings.Contains(checked, "secret") && !strings.Contains(checked, "webhook.secret") || strings.Contains(checked, "topsecret") {
				t.Errorf("a password is shown:\n%s", checked)
			}
		})
	}
}
