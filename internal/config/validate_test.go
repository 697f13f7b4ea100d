package config

import (
	"strings"
	"testing"
)

func TestValidate(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, text, want string }{ // want "": no problem
		{"loopback", "http: {addr: 'localhost:5000', debug_addr: '[::1]:0'}", ""},
		{"127/8", "http: {addr: '127.9.9.9:80'}", ""},
		{"any free ports", "http: {addr: '127.0.0.1:0', debug_addr: '127.0.0.1:0'}", ""},
		{"all addresses", "http: {addr: ':5000'}\nauth: {enabled: false}", "purser.yaml:1: http.addr: :5000 can be reached"},
		{"0.0.0.0", "http: {addr: '0.0.0.0:5000'}\nauth: {enabled: false}", "set http.allow_anonymous: true"},
		{"IPv6", "http: {addr: '[::]:5000'}\nauth: {enabled: false}", "http.addr: "},
		{"name", "http: {addr: 'registry.example.com:5000'}\nauth: {enabled: false}", "http.addr: "},
		{"like loopback", "http: {addr: 'localhost.example.com:5000'}\nauth: {enabled: false}", "http.addr: "},
		{"debug needs no consent", "http: {debug_addr: '0.0.0.0:5001'}", ""},
		{"debug is off", "http: {debug_addr: off, profile_addr: '127.0.0.1:0'}", ""},
		{"profiles on an address of their own", "http: {debug_addr: ':5001', profile_addr: '127.0.0.1:6060'}", ""},
		{"no profiles", "http: {profile_addr: off}", ""},
		{"profiles for all", "http: {profile_addr: '0.0.0.0:6060', allow_anonymous: true}", "purser.yaml:1: http.profile_addr: 0.0.0.0:6060 can be reached"},
		{"profiles beside metrics for all", "http: {debug_addr: ':5001', profile_addr: ':5001'}", "set http.allow_profiles: true"},
		{"profiles allowed", "http: {debug_addr: ':5001', profile_addr: ':5001', allow_profiles: true}", ""},
		{"allowing profiles opens nothing else", "http: {addr: ':5000', allow_profiles: true}\nauth: {enabled: false}", "http.addr: :5000 can be reached"},
		{"profiles' address", "http: {profile_addr: x}", "http.profile_addr: \"x\" is no host:port"},
		{"profiles at the registry", "http: {profile_addr: '127.0.0.1:5000'}", "http.profile_addr: http.addr is the same"},
		{"hosts", "http: {allowed_hosts: 'registry.example.com, *.example.org, 10.0.0.5, fd00::1, [fd00::2], a_b, *'}", ""},
		{"host with a port", "http: {allowed_hosts: 'a.example:5000'}", "purser.yaml:1: http.allowed_hosts: \"a.example:5000\" has a port, and ports don't count; write \"a.example\""},
		{"URL for a host", "http: {allowed_hosts: 'https://a.example'}", "http.allowed_hosts: \"https://a.example\" is no name"},
		{"star within", "http: {allowed_hosts: 'a.*.example'}", "http.allowed_hosts: "},
		{"star without a dot", "http: {allowed_hosts: '*example'}", "http.allowed_hosts: "},
		{"host that isn't ASCII", "http: {allowed_hosts: 'bücher.example'}", "http.allowed_hosts: "},
		{"allowed", "http: {addr: ':5000', debug_addr: '0.0.0.0:5001', allow_anonymous: true}", ""},
		{"no debug", "http: {debug_addr: off}", ""},
		{"no address", "http: {addr: ''}", "http.addr: \"\" is no host:port"},
		{"no port", "http: {addr: 127.0.0.1}", "http.addr: "},
		{"large port", "http: {addr: '127.0.0.1:65536'}", "has no port"},
		{"named port", "http: {addr: '127.0.0.1:http'}", "has no port"},
		{"same", "http: {debug_addr: '127.0.0.1:5000'}", "http.debug_addr: http.addr is the same"},
		{"certificate alone", "http: {tls: {cert: c}}", "http.tls.cert: http.tls.key is missing"},
		{"key alone", "http: {tls: {key: k}}", "http.tls.key: http.tls.cert is missing"},
		{"TLS", "http: {tls: {cert: c, key: k}}", ""},
		{"ACME", "http: {tls: {acme: {hosts: 'a.example, b.example, localhost', accept_terms: true, email: a@b.example, http_addr: ':80'}}}", ""},
		{"ACME without the terms", "http: {tls: {acme: {hosts: a.example}}}", "http.tls.acme.accept_terms: the certificate authority issues"},
		{"ACME without hosts", "http: {tls: {acme: {accept_terms: true}}}", "purser.yaml:1: http.tls.acme.accept_terms: http.tls.acme.hosts is missing"},
		{"ACME and files", "http: {tls: {cert: c, key: k, acme: {hosts: a.example, accept_terms: true}}}", "http.tls.acme.hosts: the certificate comes from files already"},
		{"ACME and half of the files", "http: {tls: {key: k, acme: {hosts: a.example, accept_terms: true}}}", "set either the files or ACME"},
		{"ACME for all names", "http: {tls: {acme: {hosts: '*.a.example', accept_terms: true}}}", "\"*.a.example\" is no name that"},
		{"ACME for an address", "http: {tls: {acme: {hosts: '10.0.0.1', accept_terms: true}}}", "\"10.0.0.1\" is no name that"},
		{"ACME for a port", "http: {tls: {acme: {hosts: 'a.example:443', accept_terms: true}}}", "\"a.example:443\" is no name that"},
		{"ACME's e-mail", "http: {tls: {acme: {hosts: a.example, accept_terms: true, email: 'A <a@b.example>'}}}", "http.tls.acme.email: "},
		{"ACME's directory", "http: {tls: {acme: {hosts: a.example, accept_terms: true, directory_url: 'http://ca.example/dir'}}}", "http.tls.acme.directory_url: it is no https URL"},
		{"ACME's directory is no URL", "http: {tls: {acme: {hosts: a.example, accept_terms: true, directory_url: ca.example}}}", "http.tls.acme.directory_url: it is no https URL"},
		{"ACME's roots", "http: {tls: {acme: {hosts: a.example, accept_terms: true, ca_file: ~/ca.pem}}}", "http.tls.acme.ca_file: \"~/ca.pem\": only a shell"},
		{"ACME's port", "http: {tls: {acme: {hosts: a.example, accept_terms: true, http_addr: x}}}", "http.tls.acme.http_addr: \"x\" is no host:port"},
		{"ACME at the registry", "http: {tls: {acme: {hosts: a.example, accept_terms: true, http_addr: '127.0.0.1:5000'}}}", "is the address of another listener"},
		{"tilde", "http: {tls: {cert: ~/c, key: k}}", "http.tls.cert: \"~/c\": only a shell"},
		{"external", "http: {external_url: 'https://r.example.com:8443'}", ""},
		{"external path", "http: {external_url: 'https://r.example.com/x'}", "http.external_url: it may not have a path"},
		{"external slash", "http: {external_url: 'https://r.example.com/'}", "http.external_url: remove the slash"},
		{"external scheme", "http: {external_url: 'r.example.com'}", "http.external_url: it is no http or https URL"},
		{"database URL", "database: {main: 'postgresql://u:p@h/db', stats: 'host=h dbname=d'}", ""},
		{"database", "database: {main: 'mysql://h/db'}", "purser.yaml:1: database.main: it is neither"},
		{"database's sslmode", "database: {main: 'postgres://u:p@h/db?sslmode=required'}", `database.main: sslmode "required" isn't possible; use one of disable`},
		{"sslmode in pairs", "database: {main: 'host=h sslmode=on'}", `database.main: sslmode "on" isn't possible`},
		{"password with @", "database: {main: 'postgres://u:p@q@h/db'}", "database.main: it isn't clear which @ ends the password; in a user or a password, write"},
		{"password with #", "database: {main: 'postgres://u:12#34@h/db'}", "database.main: it has a #"},
		{"password with /", "database: {main: 'postgres://u:12/34@h/db'}", "database.main: it isn't clear which @"},
		{"password with ?", "database: {main: 'postgres://u:12?34@h/db'}", "database.main: it isn't clear which @"},
		{"password with / and @", "database: {main: 'postgres://u:1@2/34@h/db'}", "database.main: it isn't clear which @"},
		{"escaped", "database: {main: 'postgres://u:%40%23%2F%3F%25@h,h2:5433/db?application_name=a@b&sslmode=verify-full'}", ""},
		{"several hosts", "database: {main: 'postgres://purser@pg1:5433,pg2/purser?target_session_attrs=read-write'}", ""},
		{"several addresses", "database: {main: 'postgres://u@[fd00::1]:5432,[fd00::2]:5432/db'}", ""},
		{"user in the query", "database: {main: 'postgres:///purser?host=/run/postgresql&user=a@REALM&sslmode='}", ""},
		{"sslmode with several hosts", "database: {main: 'postgres://u@h1:1,h2/db?sslmode=on'}", `database.main: sslmode "on" isn't possible`},
		{"password with / and ?", "database: {main: 'postgres://u:1/2?3@h/db'}", "database.main: it isn't clear which @"},
		{"@ in pairs", "database: {main: \"host=h password='a@b#c/d?'\"}", ""},
		{"Redis with #", "redis: {url: 'redis://u:12#34@h/0'}", "redis.url: it has a #"},
		{"Redis with @", "redis: {url: 'redis://u:1@2@h/0'}", "redis.url: it isn't clear which @"},
		{"Redis with a file of authorities", "redis: {url: 'rediss://u:1@h/0', ca_file: /ca.pem}", ""},
		{"authorities without TLS to Redis", "redis: {url: 'redis://h', ca_file: /ca.pem}", "redis.ca_file: redis.url isn't a rediss:// URL"},
		{"TLS 1.3", "http: {tls: {cert: c, key: k, min_version: 1.3}}", ""},
		{"TLS 1.3 without TLS", "http: {tls: {min_version: 1.3}}", "http.tls.min_version: there is no certificate"},
		{"S3 encrypts", "storage: {s3: {bucket: images, encryption: kms, kms_key: 'alias/a', ca_file: /ca.pem}}", ""},
		{"S3's key without its encryption", "storage: {s3: {bucket: images, encryption: s3, kms_key: 'alias/a'}}", "storage.s3.kms_key: it is set but storage.s3.encryption isn't kms"},
		{"authorities without TLS to S3", "storage: {s3: {bucket: images, endpoint: 'http://h', ca_file: /ca.pem}}", "storage.s3.ca_file: storage.s3.endpoint is an http URL"},
		{"encryption without S3", "storage: {s3: {encryption: s3}}", "storage.s3.encryption: it is set but storage.s3.bucket isn't"},
		{"authorities without TLS to a provider", "auth: {enabled: true, oidc: {issuer: 'http://localhost', client_id: p, ca_file: /ca.pem}}", "auth.oidc.ca_file: auth.oidc.issuer is an http URL"},
		{"stats", "database: {stats: x}", "database.stats: it is neither"},
		{"directory", "storage: {filesystem: {path: /b}}", ""},
		{"S3", "storage: {s3: {bucket: images, endpoint: 'http://10.0.0.5:9000', prefix: a/b, access_key: a, secret_key: s}}", ""},
		{"both", "storage: {filesystem: {path: /b}, s3: {bucket: images}}", "storage.filesystem.path: storage.s3.bucket is set too"},
		{"no bucket", "storage: {s3: {endpoint: 'https://h'}}", "storage.s3.endpoint: it is set but storage.s3.bucket isn't"},
		{"redirect without bucket", "storage: {s3: {redirect: true}}", "storage.s3.redirect: it is set"},
		{"bucket", "storage: {s3: {bucket: A_B/c}}", "storage.s3.bucket: \"A_B/c\" is no bucket name"},
		{"endpoint", "storage: {s3: {bucket: images, endpoint: 'ftp://h'}}", "storage.s3.endpoint: it is no http"},
		{"endpoint with bucket", "storage: {s3: {bucket: images, endpoint: 'https://h/images'}}", "storage.s3.endpoint: it may not have a path"},
		{"prefix", "storage: {s3: {bucket: images, prefix: /a}}", "storage.s3.prefix: "},
		{"half a key", "storage: {s3: {bucket: images, access_key: a}}", "storage.s3.access_key: storage.s3.secret_key is missing"},
		{"other half", "storage: {s3: {bucket: images, secret_key: a}}", "storage.s3.secret_key: storage.s3.access_key is missing"},
		{"webhook", "autoprune: {webhook: {url: 'https://h:8443/a?b=c', secret: s, allow_private: true}}", ""},
		{"webhook without TLS", "autoprune: {webhook: {url: 'http://h'}}", ""},
		{"webhook's secret alone", "autoprune: {webhook: {secret: s}}", "purser.yaml:1: autoprune.webhook.secret: it is set but autoprune.webhook.url isn't"},
		{"webhook's permission alone", "autoprune: {webhook: {allow_private: true}}", "autoprune.webhook.allow_private: it is set but"},
		{"webhook's scheme", "autoprune: {webhook: {url: 'ftp://h/a'}}", "autoprune.webhook.url: it is no http or https URL"},
		{"webhook without a host", "autoprune: {webhook: {url: 'https:///a'}}", "autoprune.webhook.url: it is no http or https URL"},
		{"webhook with a user", "autoprune: {webhook: {url: 'https://u:p@h/a'}}", "autoprune.webhook.url: it may not hold a user"},
		{"idle", "http: {max_request_time: 10s, body_idle_timeout: 60s}", "http.body_idle_timeout: 1m is longer"},
		{"reaped while written", "uploads: {max_age: 1h}\nhttp: {max_request_time: 2h}", "purser.yaml:1: uploads.max_age: 1h is shorter than http.max_request_time (2h)"},
		{"proxies", "http: {trusted_proxies: '10.0.0.0/8, 192.0.2.1, ::1, loopback, private', proxy_protocol: true}", ""},
		{"nobody to believe", "http: {proxy_protocol: true}", "http.proxy_protocol: http.trusted_proxies is empty"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			err := mustLoad(t, test.text).Validate()
			if (err == nil) != (test.want == "") {
				t.Fatalf("got %v, want %q", err, test.want)
			}
			if err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

// TestTimesGiveWay sets one time limit to a value that contradicts the default of another.
// Validate must accept it, because deriveTimes adapts that default.
func TestTimesGiveWay(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"http: {max_request_time: 10s}", "http: {max_request_time: 48h}", "uploads: {max_age: 1h}", "uploads: {max_age: 1s}",
	} {
		if err := mustLoad(t, text).Validate(); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestNoHome(t *testing.T) {
	t.Parallel()
	c := mustLoad(t, "")
	c.DataDir = ""
	if err := c.Validate(); err == nil || !strings.HasSuffix(err.Error(), "data_dir: there is no home directory to keep data in; set data_dir or HOME") {
		t.Errorf("got %v", err)
	}
}

func TestS3Endpoint(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		endpoint, host string
		insecure       bool
	}{
		{"", "s3.amazonaws.com", false},
		{"https://s3.example.com", "s3.example.com", false},
		{"https://s3.example.com/", "s3.example.com", false},
		{"s3.example.com:9000", "s3.example.com:9000", false},
		{"http://10.0.0.5:9000", "10.0.0.5:9000", true},
		{"http://[::1]:9000", "[::1]:9000", true},
		{"ftp://h", "", false},
	} {
		s := S3{Endpoint: test.endpoint}
		if s.Host() != test.host || s.Insecure() != test.insecure {
			t.Errorf("%q: %q, %v", test.endpoint, s.Host(), s.Insecure())
		}
	}
}

func TestProfilesFollowMetrics(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                                  "127.0.0.1:5001",
		"http: {debug_addr: 'localhost:7'}": "localhost:7",
		"http: {debug_addr: '[::1]:7'}":     "[::1]:7",
		"http: {debug_addr: ':7'}":          "",
		"http: {debug_addr: 'metrics.example.com:7'}":           "",
		"http: {debug_addr: off}":                               "",
		"http: {profile_addr: off}":                             "",
		"http: {debug_addr: ':7', profile_addr: '127.0.0.1:8'}": "127.0.0.1:8",
		"http: {debug_addr: '127.0.0.1:7', profile_addr: ''}":   "127.0.0.1:7",
	} {
		if got := mustLoad(t, text).HTTP.ProfileAddr; got != want {
			t.Errorf("%s: profiles at %q, want %q", text, got, want)
		}
	}
}

func TestHosts(t *testing.T) {
	t.Parallel()
	h := mustLoad(t, "http: {allowed_hosts: 'a.example, *.b.example', external_url: 'https://c.example:8443'}").HTTP
	if got := strings.Join(h.Hosts("d.example:5000"), " "); got != "a.example *.b.example c.example d.example" {
		t.Errorf("names: %s", got)
	}
	if got := mustLoad(t, "").HTTP.Hosts(":5000"); len(got) != 0 {
		t.Errorf("names without a setting: %q", got)
	}
}
