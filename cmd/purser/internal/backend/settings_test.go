package backend_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"maps"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/purser-registry/purser/cmd/purser/internal/backend"
	"github.com/purser-registry/purser/internal/config"
)

// settingFiles writes the files that settings may name, right ones and wrong ones, and returns their
// paths by name.
func settingFiles(t *testing.T) map[string]string {
	t.Helper()
	dir := t.TempDir()
	files := map[string]string{"MISSING": filepath.Join(dir, "missing"), "PIPE": filepath.Join(dir, "pipe")}
	if err := unix.Mkfifo(files["PIPE"], 0o600); err != nil {
		t.Fatal(err)
	}
	write := func(name string, text []byte) {
		files[name] = filepath.Join(dir, name)
		if err := os.WriteFile(files[name], text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("TEXT", []byte("no certificate"))
	write("USERS", []byte("ada:$2y$05$c4WoMPo3SXsafkva.HHa6uXQZWr7oboPiC2bT/r7q1BB8I2s0BRqC\n"))
	for _, name := range []string{"", "OTHER"} {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		of := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotAfter: time.Now().Add(time.Hour)}
		certificate, err := x509.CreateCertificate(rand.Reader, of, of, &key.PublicKey, key)
		if err != nil {
			t.Fatal(err)
		}
		private, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			t.Fatal(err)
		}
		write(name+"CERT", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate}))
		write(name+"KEY", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))
	}
	return files
}

// TestCheckSettings: what a server couldn't start with is told before it starts, with the setting's
// place, and nothing else is.
func TestCheckSettings(t *testing.T) {
	t.Parallel()
	files := settingFiles(t)
	for name, c := range map[string]struct{ text, want string }{
		"nothing":                       {"", ""},
		"certificate":                   {"http: {tls: {cert: CERT, key: KEY}}", ""},
		"no file of the certificate":    {"http: {tls: {cert: MISSING, key: KEY}}", "purser.yaml:1: http.tls.cert: "},
		"no file of the key":            {"http: {tls: {cert: CERT, key: MISSING}}", "purser.yaml:1: http.tls.key: "},
		"another certificate's key":     {"http: {tls: {cert: CERT, key: OTHERKEY}}", "http.tls.cert: CERT can't be used with the key OTHERKEY: tls: private key does not match public key"},
		"no certificate":                {"http: {tls: {cert: TEXT, key: KEY}}", "http.tls.cert: TEXT can't be used"},
		"a pipe as the certificate":     {"http: {tls: {cert: PIPE, key: KEY}}", "http.tls.cert: "},
		"ACME's authorities":            {"http: {tls: {acme: {hosts: a.example, accept_terms: true, ca_file: TEXT}}}", "http.tls.acme.ca_file: read TEXT: it has no certificate in PEM format"},
		"a file of the DSN":             {"database: {main: 'postgres://u:secret@h/db?sslmode=verify-full&sslrootcert=MISSING'}", "purser.yaml:1: database.main: "},
		"a DSN that the driver refuses": {"database: {main: 'host=h port=0 password=secret dbname=d'}", "database.main: invalid port"},
		"a port that is a name":         {"database: {main: 'postgres://u:secret@h:pg/db'}", "database.main: "},
		"a password with %":             {"database: {main: 'postgres://u:secret%@h/db'}", "database.main: failed to parse as URL"},
		"a password with &":             {"database: {main: 'postgres://u@h/db?password=first&secret'}", "database.main: failed to parse as URL"},
		"several hosts":                 {"database: {main: 'postgres://u@h:5433,h2/db?target_session_attrs=read-write'}", ""},
		"the statistics' DSN":           {"database: {main: 'postgres://h/db', stats: 'host=h port=0'}", "database.stats: invalid port"},
		"S3's authorities":              {"storage: {s3: {bucket: images, ca_file: CERT}}", ""},
		"no file of S3's authorities":   {"storage: {s3: {bucket: images, ca_file: MISSING}}", "storage.s3.ca_file: "},
		"Redis":                         {"redis: {url: 'rediss://u:secret@h/0', ca_file: CERT}", ""},
		"Redis' database":               {"redis: {url: 'redis://u:secret@h/first'}", "redis.url: "},
		"Redis' authorities":            {"redis: {url: 'rediss://u:secret@h/0', ca_file: TEXT}", "redis.ca_file: read TEXT: it has no certificate"},
		"accounts":                      {"auth: {enabled: true, htpasswd: USERS}", ""},
		"no accounts":                   {"auth: {enabled: true, htpasswd: TEXT}", "auth.htpasswd: "},
		"no file of accounts":           {"auth: {enabled: true, htpasswd: MISSING}", "auth.htpasswd: "},
		"the directory's authorities":   {"auth: {enabled: true, ldap: {url: 'ldaps://h', user_base: 'dc=e', ca_file: TEXT}}", "auth.ldap.ca_file: read TEXT: it has no certificate"},
		"the provider's authorities":    {"auth: {enabled: true, oidc: {issuer: 'https://h', client_id: p, ca_file: MISSING}}", "auth.oidc.ca_file: "},
		"unused settings":               {"auth: {enabled: false, htpasswd: MISSING}", ""},
		"the webhook's key":             {"autoprune: {webhook: {url: 'https://h/a', secret: short}}", "autoprune.webhook.secret: it has 5 bytes; use from 24"},
		"the webhook's fragment":        {"autoprune: {webhook: {url: 'https://h/a#secret'}}", "autoprune.webhook.url: it has a fragment"},
		"the webhook's private address": {"autoprune: {webhook: {url: 'https://10.0.0.1/a'}}", "autoprune.webhook.url: "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text, want := c.text, c.want
			for _, file := range slices.Backward(slices.Sorted(maps.Keys(files))) {
				text, want = replaceWord(text, file, files[file]), replaceWord(want, file, files[file])
			}
			path := filepath.Join(t.TempDir(), "purser.yaml")
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			cfg, err := config.Load(path, []string{"HOME=/home/u", "PURSER_DATA_DIR=/data"})
			if err = errors.Join(err, cfg.Validate()); err != nil {
				t.Fatalf("Load and Validate: %v", err)
			}
			err = backend.CheckSettings(t.Context(), cfg, nil)
			switch {
			case (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want):
				t.Errorf("got  %v\nwant %s", err, want)
			case err != nil && strings.Contains(err.Error(), "secret") && !strings.Contains(err.Error(), "webhook.secret"):
				t.Errorf("the error has a secret: %v", err)
			}
			if err != nil && !strings.HasPrefix(err.Error(), path+":1: ") {
				t.Errorf("the error doesn't begin with the place: %v", err)
			}
		})
	}
}

// replaceWord replaces a word that stands between spaces or punctuation.
func replaceWord(text, word, by string) string {
	for _, before := range []string{" ", "="} {
		for _, after := range []string{"}", ",", ":", " ", "'"} {
			text = strings.ReplaceAll(text, before+word+after, before+by+after)
		}
	}
	return text
}

// TestCheckSettingsAddsToOthers: the problems of loading and of checking are told together, and each once.
func TestCheckSettingsAddsToOthers(t *testing.T) {
	t.Parallel()
	cfg, err := config.Load("", []string{"HOME=/home/u", "PURSER_HTTP_ADR=x", "PURSER_HTTP_TLS_CERT=/missing/cert",
		"PURSER_HTTP_TLS_KEY=/missing/key", "PURSER_DATABASE_MAIN=postgres://u:p@h/db?sslmode=on", "PURSER_AUTOPRUNE_WEBHOOK_URL=ftp://h/secret"})
	loaded := errors.Join(err, cfg.Validate())
	err = backend.CheckSettings(t.Context(), cfg, loaded)
	for part, want := range map[string]int{
		"env PURSER_HTTP_ADR": 1, "env PURSER_HTTP_TLS_CERT: http.tls.cert: ": 1, "database.main: ": 1, "autoprune.webhook.url: ": 1,
	} {
		if got := strings.Count(err.Error(), part); got != want {
			t.Errorf("%q stands %d times in\n%v", part, got, err)
		}
	}
	fine, err := config.Load("", []string{"HOME=/home/u"})
	if err != nil {
		t.Fatal(err)
	}
	if err := backend.CheckSettings(t.Context(), fine, loaded); err != loaded { //nolint:errorlint // it must be the same
		t.Errorf("without further problems it is %v", err)
	}
}
