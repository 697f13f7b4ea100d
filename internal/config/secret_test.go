package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

func TestDSNString(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"":                                  "",
		"postgres://h/db":                   "postgres://h/db",
		"postgres://u@h/db":                 "postgres://u@h/db",
		"postgres://u:SECRET@h:5432/db":     "postgres://u:(hidden)@h:5432/db",
		"postgresql://u:SECRET@h1:1,h2:2/d": "postgresql://u:(hidden)@h1:1,h2:2/d",
		"postgres://u:SECRET@[::1]:5432/db": "postgres://u:(hidden)@[::1]:5432/db",
		"postgres://[::1]:5432/db":          "postgres://[::1]:5432/db",
		"postgres://h:5432":                 "postgres://h:5432",
		"postgres:///db?host=/run/pg&user=u&password=SECRET&sslmode=disable": "postgres:///db?host=/run/pg&user=u&password=(hidden)&sslmode=disable",
		"postgres://h/db?p%61ssword=SECRET":                                  "postgres://h/db?p%61ssword=(hidden)",
		"postgres://h/db?sslpassword=SECRET&%zz=SECRET":                      "postgres://h/db?sslpassword=(hidden)&%zz=(hidden)",
		"postgres://h/db?sslmode=disable;password=SECRET":                    "postgres://h/db?sslmode=(hidden)",
		"postgres://u:SECRET@SECRET@h/db":                                    "postgres://u:(hidden)@h/db",
		"postgres://u:SECRET/SECRET@h/db":                                    "postgres://(hidden)",
		"postgres://u:SECRET@x/SECRET@h/db":                                  "postgres://(hidden)",
		"postgres://u:SECRET?SECRET@h/db":                                    "postgres://(hidden)",
		"postgres://u@c:SECRET?SECRET@h/db":                                  "postgres://(hidden)",
		"postgres://u:SECRET#SECRET@h/db":                                    "postgres://(hidden)",
		"postgres://u:SECRET":                                                "postgres://(hidden)",
		"mysql://u:SECRET@h/db":                                              "mysql://u:(hidden)@h/db",
		"host=h user=u password=SECRET dbname=d":                             "host=h user=u password=(hidden) dbname=d",
		"host=h password = SECRET  dbname='a b'":                             "host=h password=(hidden) dbname='a b'",
		`password='SECRET \' SECRET' host=h`:                                 "password=(hidden) host=h",
		`password=SECRET\ SECRET host=h`:                                     "password=(hidden) host=h",
		"PASSWORD=SECRET sslpassword=SECRET passfile=/p":                     "PASSWORD=(hidden) sslpassword=(hidden) passfile=/p",
		"host=h password='SECRET":                                            hidden,
		"host=h password=a SECRET":                                           hidden,
		"password=SECRET://x host=h":                                         "password=(hidden) host=h",
		"host= password='SECRET' dbname=d":                                   "host=(hidden) dbname=d",
		"SECRET":                                                             hidden,
		"u:SECRET@h/db?sslmode=x":                                            hidden,
		"postgres:/u:SECRET@h/db":                                            hidden,
	} {
		got := DSN(in).String()
		if got != want || strings.Contains(got, "SECRET") {
			t.Errorf("%s\ngot  %s\nwant %s", in, got, want)
		}
	}
}

// The test formats, logs and encodes a configuration with secrets in every way that Go
// offers. None of the output may contain a secret.
func TestSecretsAreNeverPrinted(t *testing.T) {
	t.Parallel()
	c := mustLoad(t, `
database:
  main: postgres://u:hunter2@h/db
  stats: host=h password='hunter2' dbname=d
storage:
  s3: {bucket: images, access_key: AK, secret_key: hunter2}
autoprune:
  webhook: {url: 'https://h/hunter2', secret: hunter2}
auth:
  initial_password: hunter2
  oidc: {issuer: 'https://h', client_id: c, client_secret: hunter2}
  ldap: {url: 'ldaps://h', bind_dn: cn=x, bind_password: hunter2}
`)
	if string(c.Storage.S3.SecretKey) != "hunter2" || !strings.Contains(string(c.Database.Main), "hunter2") {
		t.Fatalf("the values themselves are lost: %v", c)
	}
	var out bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%t", "%U"} {
		fmt.Fprintf(&out, verb+"\n", *c)
		fmt.Fprintf(&out, verb+"\n", c.Storage.S3.SecretKey)
		fmt.Fprintf(&out, verb+"\n", c.Database.Main)
	}
	if err := c.Show(&out); err != nil {
		t.Fatal(err)
	}
	if err := json.NewEncoder(&out).Encode(c); err != nil {
		t.Fatal(err)
	}
	slog.New(slog.NewTextHandler(&out, nil)).Info("x", "config", c, "dsn", c.Database.Main, "key", c.Storage.S3.SecretKey)
	slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "config", c, "dsn", c.Database.Main, "key", c.Storage.S3.SecretKey)
	for _, leak := range []string{"hunter2", fmt.Sprintf("%x", "hunter2"), fmt.Sprintf("%X", "hunter2")} {
		if strings.Contains(out.String(), leak) {
			t.Errorf("%s is printed:\n%s", leak, out.String())
		}
	}
}

func TestProblemsHoldNoSecrets(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"database: postgres://u:hunter2@h/db",
		"database: {main: [hunter2]}",
		"database: {main: hunter2}",
		"database: {main: 'mysql://u:hunter2@h'}",
		"database: {main: 'postgres:/u:hunter2@h'}",
		"storage: {s3: {secret_key: *hunter2}}",
		"storage: {s3: {secret_key: hunter2}}",
		"storage: {s3: {bucket: abc, secret_key: hunter2}}",
		"storage: {s3: {bucket: abc, endpoint: 'https://u:hunter2@h'}}",
		"storage: {s3: {bucket: abc, endpoint: 'https://u:hunter2@h:port%zz'}}",
		"http: {external_url: 'https://u:hunter2@h'}",
		"autoprune: {webhook: {secret: hunter2}}",
		"autoprune: {webhook: {url: 'https://u:hunter2@h'}}",
		"autoprune: {webhook: {url: 'https://h:port%zz/hunter2'}}",
		"auth: {enabled: true, initial_password: hunter2}",
		"auth: {initial_password: hunter2hunter2}",
		"auth: {oidc: {client_secret: hunter2}}",
		"auth: {enabled: true, oidc: {client_id: c, issuer: 'https://u:hunter2@h'}}",
		"auth: {ldap: {bind_password: hunter2}}",
		"auth: {enabled: true, ldap: {url: 'ldaps://h', user_base: dc=x, bind_password: hunter2}}",
		"auth: {enabled: true, ldap: {url: 'ldaps://u:hunter2@h', user_base: dc=x}}",
	} {
		c, err := load(t, text)
		err = errors.Join(err, c.Validate())
		if err == nil {
			t.Errorf("%s: no problem", text)
		} else if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: the problem holds it: %v", text, err)
		}
	}
}

func FuzzDSNString(f *testing.F) {
	f.Add("u", "p", "h")
	f.Add("u", "p'w@/?#", "h")
	f.Fuzz(func(t *testing.T, user, password, host string) {
		// libpq quotes values like this.
		quoted := "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace("SECRET"+password) + "'"
		if strings.Contains(host, "SECRET") || strings.ContainsAny(host, " \t\r\n\v\f'\\=") {
			return
		}
		if got := DSN("host=" + host + " password=" + quoted).String(); strings.Contains(got, "SECRET") {
			t.Fatalf("%q", got)
		}
		// In a URL, escaped or not.
		if strings.Contains(user, "SECRET") || strings.ContainsAny(user, "/?#:@") || strings.ContainsAny(host, "@/?#:") {
			return
		}
		if got := DSN("postgres://" + user + ":" + password + "SECRET@" + host + "/db").String(); strings.Contains(got, "SECRET") {
			t.Fatalf("%q", got)
		}
	})
}
