package config

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// home is the environment that load passes to Load. It sets data_dir, since the default of
// data_dir depends on whether root runs the tests.
var home = []string{"HOME=/home/u", "PURSER_DATA_DIR=/data"}

func load(t *testing.T, text string, environ ...string) (*Config, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "purser.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Load(path, append(append([]string{}, home...), environ...))
	if err != nil {
		err = errors.New(strings.ReplaceAll(err.Error(), path, "purser.yaml"))
	}
	return c, err
}

func mustLoad(t *testing.T, text string, environ ...string) *Config {
	t.Helper()
	c, err := load(t, text, environ...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestDefaults(t *testing.T) {
	t.Parallel()
	c, err := Load("", home)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	checks := map[string]bool{
		"http.addr":              c.HTTP.Addr == "127.0.0.1:5000",
		"http.debug_addr":        c.HTTP.DebugAddr == "127.0.0.1:5001",
		"http.allow_anonymous":   !c.HTTP.AllowAnonymous,
		"http.drain_timeout":     c.HTTP.DrainTimeout == 30*time.Second,
		"http.max_request_time":  c.HTTP.MaxRequestTime == 2*time.Hour,
		"http.body_idle_timeout": c.HTTP.BodyIdleTimeout == time.Minute,
		"log":                    c.Log == Log{Level: "info", Format: "auto", Access: true},
		"database":               c.Database == Database{Partitions: 4, MaxConns: 20, Migrate: true},
		"storage.filesystem":     c.Storage.Filesystem.Path == "/data/blobs",
		"storage.s3":             c.Storage.S3 == S3{Region: "us-east-1", Encryption: "none", Timeout: 30 * time.Second, RedirectTTL: 20 * time.Minute} && c.Storage.S3.Bucket == "",
		"storage.delete_timeout": c.Storage.DeleteTimeout == 2*time.Second,
		"uploads.max_age":        c.Uploads.MaxAge == 24*time.Hour,
		"gc":                     c.GC.ReviewAfter == 24*time.Hour && len(c.GC.ReviewAfterEvents) == 0,
		"limits": c.Limits == Limits{Robots: 10_000, Teams: 1000, TeamMembers: 10_000, Tokens: 100, FederationRules: 50, Sessions: 50,
			RefreshTokens: 100, FederatedTokens: 2000, Permissions: 1000,
			Policies: 32, ProtectionRules: 100, Webhooks: 32, Reporters: 100},
		"cache": c.Cache == Cache{Enabled: true, ManifestBytes: 64 << 20, Entries: 100_000},
	}
	for key, ok := range checks {
		if !ok {
			t.Errorf("%s has another default: %+v", key, c)
		}
	}
}

func TestOrderOfSources(t *testing.T) {
	t.Parallel()
	c := mustLoad(t, "http:\n  addr: 127.0.0.1:1\n  debug_addr: 127.0.0.1:2\nlog: {level: warn}\n",
		"PURSER_HTTP_ADDR=127.0.0.1:3", "PURSER_LOG_LEVEL=error")
	if err := c.Set("log.level", "debug", "flag --log-level"); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{
		"http.debug_addr": "127.0.0.1:2", "http.addr": "127.0.0.1:3", "log.level": "debug", "log.format": "auto",
	} {
		if got := settingOf(key).field(c).show(); got != want {
			t.Errorf("%s = %q, want %q", key, got, want)
		}
	}
	for key, want := range map[string]string{
		"http.addr": "env PURSER_HTTP_ADDR", "log.level": "flag --log-level", "log.format": "default",
	} {
		if got := c.Source(key); got != want {
			t.Errorf("%s comes from %q, want %q", key, got, want)
		}
	}
	if got := c.Source("http.debug_addr"); !strings.HasSuffix(got, "purser.yaml:3") {
		t.Errorf("http.debug_addr comes from %q", got)
	}
}

// The test sets each setting in a file, in the environment and with Set. All three must
// give the same configuration.
func TestEverySettingFromEverySource(t *testing.T) {
	t.Parallel()
	variables := map[string]string{}
	for i := range settings {
		s := &settings[i]
		if other, twice := variables[s.env()]; twice {
			t.Fatalf("%s and %s share %s", s.key, other, s.env())
		}
		variables[s.env()] = s.key
		t.Run(s.key, func(t *testing.T) {
			t.Parallel()
			value := otherValue(t, s)
			lines, parts := "", strings.Split(s.key, ".")
			for depth, part := range parts {
				lines += strings.Repeat("  ", depth) + part + ":"
				if depth < len(parts)-1 {
					lines += "\n"
				}
			}
			fromFile := mustLoad(t, lines+" "+value+"\n")
			fromEnv, err := Load("", []string{s.env() + "=" + value})
			if err != nil {
				t.Fatal(err)
			}
			fromSet := mustLoad(t, "")
			if err := fromSet.Set(s.key, value, "flag"); err != nil {
				t.Fatal(err)
			}
			defaults := mustLoad(t, "")
			was := s.field(defaults).show()
			for name, c := range map[string]*Config{"file": fromFile, "env": fromEnv, "set": fromSet} {
				if s.key == "data_dir" && name == "file" {
					continue // the tests' own variable is stronger
				}
				if got := s.field(c).show(); got == was || c.Source(s.key) == "default" {
					t.Errorf("from %s: %q as before, source %q", name, got, c.Source(s.key))
				}
			}
		})
	}
}

// otherValue returns a valid value of the setting that differs from its default.
func otherValue(t *testing.T, s *setting) string {
	t.Helper()
	switch f := s.field(mustLoad(t, "")).(type) {
	case textField, offField, secretField:
		return "/something"
	case dsnField:
		return "postgres://other"
	case objectField:
		return `{"method": "number_of_tags", "value": 7}`
	case choiceField:
		return f.choices[len(f.choices)-1]
	case boolField:
		return map[string]string{"true": "false", "false": "true"}[f.show()]
	case intField:
		return strconv.Itoa(min(77, f.max-1))
	case delaysField:
		return "tag_delete=77s"
	case groupsField:
		return "admins; cn=ops,ou=groups,dc=example"
	case listField:
		return "trivy/*, *grype*"
	case networksField:
		return "10.0.0.0/8, 2001:db8::1/128"
	case durationField:
		if f.max < 77*time.Second {
			return formatDuration(f.max)
		}
		return "77s"
	case secondsField:
		return "77s"
	case sizeField:
		return "77KiB"
	default:
		t.Fatalf("%s has a field of type %T", s.key, f)
		return ""
	}
}

func TestProblemsOfAFile(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, text, want string }{
		{"unknown", "http:\n  adr: x\n", "purser.yaml:2: http.adr: there is no such setting; did you mean http.addr?"},
		{"unknown group", "htpt:\n  addr: x\n", "purser.yaml:1: htpt: there is no such setting; did you mean http?"},
		{"other group", "addr: x\n", "purser.yaml:1: addr: there is no such setting; did you mean http.addr?"},
		{"far from all", "zzzzzzzzzzzzzzzz: 1\n", "docs/configuration.md lists all settings"},
		{"case", "HTTP: {}\n", "purser.yaml:1: HTTP: there is no such setting; did you mean http?"},
		{"event", "gc:\n  review_after_events:\n    tag_deleted: 1h\n", "purser.yaml:2: gc.review_after_events: there is no event \"tag_deleted\"; did you mean tag_delete?"},
		{"twice", "log:\n  level: info\n  level: warn\n", "purser.yaml:3: log.level: it is already set in line 2"},
		{"group twice", "log: {level: info}\nlog: {level: warn}\n", "purser.yaml:2: log: it is already set in line 1"},
		{"value for a group", "database: x\n", "purser.yaml:1: database: it holds settings of its own"},
		{"list at the top", "- a\n", "purser.yaml:1: it holds settings of its own"},
		{"list", "http:\n  addr: [a]\n", "purser.yaml:2: http.addr: it must be one value"},
		{"group for a value", "http:\n  addr: {a: b}\n", "purser.yaml:2: http.addr: it must be one value"},
		{"group for a list", "http:\n  allowed_hosts: {a: b}\n", "purser.yaml:2: http.allowed_hosts: it must be a list, or one value with commas"},
		{"list in a list", "http:\n  allowed_hosts: [a, [b]]\n", "purser.yaml:2: http.allowed_hosts: entry 2 of the list must be one value"},
		{"empty entry", "http:\n  allowed_hosts:\n    - a\n    -\n", "purser.yaml:2: http.allowed_hosts: entry 2 of the list is empty"},
		{"comma in an entry", "http:\n  allowed_hosts: ['a, b']\n", `purser.yaml:2: http.allowed_hosts: the entry "a, b" has a comma`},
		{"wrong entry", "http:\n  trusted_proxies: [10.0.0.1, proxy.example]\n", `http.trusted_proxies: "proxy.example" is no network`},
		{"merge", "a: &a {level: warn}\nlog:\n  <<: *a\n", "purser.yaml:3: log.<<: there is no such setting"},
		{"list as a name", "? [a]\n: b\n", "the name of a setting must be plain text"},
		{"tab", "http:\n\taddr: x\n", "purser.yaml:2: this isn't YAML: a tab indents this line; use spaces"},
		{"tab later", "log:\n  level: info\n\tformat: json\n", "purser.yaml:3: this isn't YAML: a tab indents this line; use spaces"},
		{"character in the first line", "log: @x\n", "purser.yaml:1: this isn't YAML: a value begins with a character that needs quotes"},
		{"character later", "log:\n  level: info\nhttp:\n  addr: @x\n", "purser.yaml:4: this isn't YAML: a value begins with a character that needs quotes"},
		{"open bracket", "log: [a\nhttp:\n  addr: b\n", "purser.yaml:2: this isn't YAML: did not find expected ',' or ']'"},
		{"open bracket, first line", "log: [a: b: c\n", "purser.yaml:1: this isn't YAML"},
		{"two documents", "log: {level: warn}\n---\nlog: {level: info}\n", "purser.yaml:2: a second document"},
		{"boolean", "log: {access: perhaps}\n", `log.access: "perhaps" is neither true nor false`},
		{"choice", "log: {level: loud}\n", `log.level: "loud" isn't possible; use one of debug, info, warn, error`},
		{"number", "database: {partitions: 2000}\n", "from 1 to 1024"},
		{"fraction", "database: {partitions: 2.5}\n", "from 1 to 1024"},
		{"no duration", "http: {drain_timeout: 30}\n", `http.drain_timeout: "30" is no duration`},
		{"short", "http: {max_request_time: 1ms}\n", "1ms is too short; use at least 1s"},
		{"long", "storage: {s3: {redirect_ttl: 8d}}\n", "8d is too long; use at most 168h"},
		{"size", "cache: {manifest_bytes: many}\n", `cache.manifest_bytes: "many" is no size`},
		{"no network", "http: {trusted_proxies: '10.0.0.1, proxy.example'}\n", `http.trusted_proxies: "proxy.example" is no network; write networks such as 10.0.0.0/8`},
		{"everybody", "http: {trusted_proxies: '::/0'}\n", `http.trusted_proxies: "::/0" is everybody`},
		{"host in a network", "http: {trusted_proxies: 10.1.2.3/8}\n", "write 10.0.0.0/8 for the network, or 10.1.2.3 for the one address"},
		{"IPv4 in IPv6", "http: {trusted_proxies: '::ffff:10.0.0.0/104'}\n", "write it as IPv4"},
		{"event twice", "gc:\n  review_after_events:\n    tag_delete: 1h\n    tag_delete: 2h\n", "purser.yaml:4: gc.review_after_events: the event tag_delete stands there twice"},
		{"event without a delay", "gc: {review_after_events: tag_delete}\n", `"tag_delete" is no event with its delay; write tag_delete=1h`},
		{"event with no duration", "gc: {review_after_events: {tag_delete: soon}}\n", `the delay of tag_delete: "soon" is no duration`},
		{"list of events", "gc: {review_after_events: [tag_delete]}\n", "gc.review_after_events: it must be one value, not a list"},
		{"event twice in a text", "gc: {review_after_events: 'tag_delete=1h, tag_delete=2h'}\n", "the event tag_delete stands there twice"},
		{"empty event", "gc: {review_after_events: {tag_delete: \"\"}}\n", "purser.yaml:1: gc.review_after_events: the delay of tag_delete is empty"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c, err := load(t, test.text)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got  %v\nwant %s", err, test.want)
			}
			if c == nil || c.Validate() != nil {
				t.Error("what is wrong took the place of its default")
			}
		})
	}
}

// TestLists: a setting with many values may be a list in the file, and means the same as with commas.
func TestLists(t *testing.T) {
	t.Parallel()
	tried := 0
	for i := range settings {
		s := &settings[i]
		if _, ok := s.field(new(Config)).(manyField); !ok {
			continue
		}
		tried++
		values := []string{"a.example", "b.example"}
		if _, ok := s.field(new(Config)).(networksField); ok {
			values = []string{"10.0.0.0/8", "192.0.2.1/32"}
		}
		nested := ""
		parts := strings.Split(s.key, ".")
		for depth, part := range parts {
			nested += strings.Repeat("  ", depth) + part + ":\n"
		}
		indent := strings.Repeat("  ", len(parts))
		c := mustLoad(t, nested+indent+"- "+values[0]+"\n"+indent+"- "+values[1]+"\n")
		if got := s.field(c).show(); got != strings.Join(values, ", ") {
			t.Errorf("%s is %q, not %q", s.key, got, values)
		}
		if c := mustLoad(t, nested+indent+"[]\n"); s.field(c).show() != "" {
			t.Errorf("an empty list for %s gives %q", s.key, s.field(c).show())
		}
	}
	if tried < 10 {
		t.Errorf("only %d settings are lists", tried)
	}
	c := mustLoad(t, "http:\n  allowed_hosts: &hosts [&one a.example, b.example]\nauth: {reserved_namespaces: *hosts, oidc: {scopes: [*one]}}\n")
	if len(c.Auth.ReservedNamespaces) != 2 || len(c.Auth.OIDC.Scopes) != 1 {
		t.Errorf("by aliases: %q, %q", c.Auth.ReservedNamespaces, c.Auth.OIDC.Scopes)
	}
}

// TestGroupsOfADirectory: DNs have commas, which must not make several groups of one.
func TestGroupsOfADirectory(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]string{
		"":                               nil,
		"admins":                         {"admins"},
		"admins, ops":                    {"admins", "ops"},
		"cn=ops,ou=g,dc=example,dc=com":  {"cn=ops,ou=g,dc=example,dc=com"},
		`cn=a\, b,ou=g,dc=example`:       {`cn=a\, b,ou=g,dc=example`},
		"cn=ops,ou=g,dc=example;":        {"cn=ops,ou=g,dc=example"},
		"admins; cn=ops,dc=e; cn=b,dc=e": {"admins", "cn=ops,dc=e", "cn=b,dc=e"},
	} {
		c := mustLoad(t, "")
		if err := c.Set("auth.ldap.admin_groups", text, "test"); err != nil || !slices.Equal(c.Auth.LDAP.AdminGroups, want) {
			t.Errorf("%q gives %q, %v", text, c.Auth.LDAP.AdminGroups, err)
		}
		again := mustLoad(t, "")
		shown := settingOf("auth.ldap.admin_groups").field(c).show()
		if err := again.Set("auth.ldap.admin_groups", shown, "test"); err != nil || !slices.Equal(again.Auth.LDAP.AdminGroups, want) {
			t.Errorf("%q is shown as %q, which gives %q, %v", text, shown, again.Auth.LDAP.AdminGroups, err)
		}
	}
	for _, text := range []string{"admins, cn=ops,dc=example", "cn=ops,dc=example, admins", "cn=a,dc=e,cn=b,dc=e", "cn=a,ou=g,o=x,c=us,cn=b,ou=g,o=x"} {
		c := mustLoad(t, "")
		if err := c.Set("auth.ldap.required_groups", text, "test"); err == nil || !strings.Contains(err.Error(), "write a semicolon between groups") {
			t.Errorf("%q: %v, and gives %q", text, err, c.Auth.LDAP.RequiredGroups)
		}
	}
	c := mustLoad(t, "auth:\n  ldap:\n    admin_groups:\n      - admins\n      - cn=ops,ou=g,dc=example\n")
	if want := []string{"admins", "cn=ops,ou=g,dc=example"}; !slices.Equal(c.Auth.LDAP.AdminGroups, want) {
		t.Errorf("a list gives %q", c.Auth.LDAP.AdminGroups)
	}
}

func TestAllProblemsAreToldTogether(t *testing.T) {
	t.Parallel()
	c, err := load(t, "http:\n  adr: x\nlog: {level: loud}\n", "PURSER_HTP_ADDR=x", "PURSER_CACHE_ENTRIES=-1")
	err = errors.Join(err, c.Set("uploads.max_age", "soon", "flag --age"), c.Set("http.tls.cert", "c.pem", "flag --cert"), c.Validate())
	want := []string{
		"purser.yaml:2: http.adr: ",
		"purser.yaml:3: log.level: ",
		"env PURSER_CACHE_ENTRIES: cache.entries: ",
		"env PURSER_HTP_ADDR: no setting has this variable; did you mean PURSER_HTTP_ADDR?",
		"flag --age: uploads.max_age: ",
		"flag --cert: http.tls.cert: http.tls.key is missing",
	}
	lines := strings.Split(err.Error(), "\n")
	if len(lines) != len(want) {
		t.Fatalf("%d problems, want %d:\n%v", len(lines), len(want), err)
	}
	for i := range want {
		if !strings.HasPrefix(lines[i], want[i]) {
			t.Errorf("got  %s\nwant %s…", lines[i], want[i])
		}
	}
}

func TestFilesWithoutSettings(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "\n", "# nothing\n", "---\n", "http:\n", "http:\n  addr:\n", "gc:\n  review_after_events:\n    # tag_delete: 1h\n"} {
		c := mustLoad(t, text)
		if len(c.sources) != 1 || c.HTTP.Addr != "127.0.0.1:5000" {
			t.Errorf("%q: %v", text, c.sources)
		}
	}
}

func TestMissingFile(t *testing.T) {
	t.Parallel()
	_, err := Load(filepath.Join(t.TempDir(), "none.yaml"), home)
	if !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "none.yaml") {
		t.Errorf("got %v", err)
	}
}

func TestAnchorsInAFile(t *testing.T) {
	t.Parallel()
	c := mustLoad(t, "http: {drain_timeout: &d 5s, body_idle_timeout: *d}\n")
	if c.HTTP.DrainTimeout != 5*time.Second || c.HTTP.BodyIdleTimeout != 5*time.Second {
		t.Errorf("%+v", c.HTTP)
	}
}

func TestEnvironment(t *testing.T) {
	t.Parallel()
	c, err := Load("", append([]string{
		"PURSER_POSTGRES_BIN=/x", "PURSER_SERVER=y", "PURSER_TEST_S3=z", "PURSERS=1", "broken",
		"PURSER_HTTP_DEBUG_ADDR=", "PURSER_GC_REVIEW_AFTER_EVENTS=tag_delete=1w, blob_upload = 0s", "PURSER_LOG_LEVEL=warn", "PURSER_LOG_LEVEL=error",
	}, home...))
	if err != nil {
		t.Fatal(err)
	}
	if c.HTTP.DebugAddr != "" || c.GC.ReviewAfterEvents["tag_delete"] != 7*24*time.Hour || c.Log.Level != "warn" {
		t.Errorf("%+v", c)
	}
	_, err = Load("", append([]string{"PURSER_STORAGE_S3_SECRETKEY=hunter2", "PURSER_=x"}, home...))
	if err == nil || !strings.Contains(err.Error(), "did you mean PURSER_STORAGE_S3_SECRET_KEY?") || !strings.Contains(err.Error(), "env PURSER_:") {
		t.Errorf("unknown variables: %v", err)
	}
	if strings.Contains(err.Error(), "hunter2") {
		t.Errorf("a problem holds a value: %v", err)
	}
}

func TestDerivedDefaultsFollowLaterChanges(t *testing.T) {
	t.Parallel()
	c := mustLoad(t, "")
	set := func(key, value string) {
		t.Helper()
		if err := c.Set(key, value, "flag"); err != nil {
			t.Fatal(err)
		}
	}
	set("data_dir", "/other")
	if c.Storage.Filesystem.Path != "/other/blobs" {
		t.Errorf("blobs are in %q", c.Storage.Filesystem.Path)
	}
	set("storage.filesystem.path", "/disk")
	set("data_dir", "/third")
	if c.Storage.Filesystem.Path != "/disk" {
		t.Errorf("blobs are in %q", c.Storage.Filesystem.Path)
	}
	set("storage.filesystem.path", "")
	set("data_dir", "relative")
	if dir, err := os.Getwd(); err != nil || c.Storage.Filesystem.Path != filepath.Join(dir, "relative", "blobs") {
		t.Errorf("blobs are in %q, %v", c.Storage.Filesystem.Path, err)
	}
	set("database.main", "postgres://a")
	if c.Database.Stats != "postgres://a" {
		t.Errorf("statistics are in %s", c.Database.Stats)
	}
	set("database.stats", "postgres://b")
	set("database.main", "postgres://c")
	if c.Database.Stats != "postgres://b" {
		t.Errorf("statistics are in %s", c.Database.Stats)
	}
	set("storage.s3.bucket", "images")
	if c.Storage.Filesystem.Path != "" || c.Storage.S3.Bucket == "" {
		t.Errorf("%+v", c.Storage)
	}
	if err := c.Set("nothing", "", "flag"); err == nil || !strings.Contains(err.Error(), "flag: nothing: there is no such setting") {
		t.Errorf("unknown key: %v", err)
	}
}

func TestDefaultDataDir(t *testing.T) {
	t.Parallel()
	if os.Geteuid() == 0 && writable(systemDataDir) {
		if got := defaultDataDir(map[string]string{"HOME": "/root"}); got != systemDataDir {
			t.Errorf("root: %q", got)
		}
		return
	}
	for _, test := range []struct {
		env  map[string]string
		want string
	}{
		{map[string]string{"HOME": "/home/u"}, "/home/u/.local/share/purser"},
		{map[string]string{"HOME": "/home/u", "XDG_DATA_HOME": "/xdg"}, "/xdg/purser"},
		{map[string]string{"HOME": "/home/u", "XDG_DATA_HOME": "xdg"}, "/home/u/.local/share/purser"},
		{map[string]string{}, ""},
	} {
		if got := defaultDataDir(test.env); got != test.want {
			t.Errorf("%v: %q, want %q", test.env, got, test.want)
		}
	}
}

func TestWritable(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if !writable(dir) || !writable(filepath.Join(dir, "new")) || writable(filepath.Join(dir, "a", "b")) {
		t.Error("writable is wrong")
	}
}

func TestRegion(t *testing.T) {
	t.Parallel()
	if c := mustLoad(t, "", "AWS_DEFAULT_REGION=eu-1"); c.Storage.S3.Region != "eu-1" {
		t.Errorf("default: %q", c.Storage.S3.Region)
	}
	if c := mustLoad(t, "", "AWS_DEFAULT_REGION=eu-1", "AWS_REGION=eu-2"); c.Storage.S3.Region != "eu-2" {
		t.Errorf("both: %q", c.Storage.S3.Region)
	}
	if c := mustLoad(t, "storage: {s3: {region: eu-3}}", "AWS_REGION=eu-2"); c.Storage.S3.Region != "eu-3" {
		t.Errorf("set: %q", c.Storage.S3.Region)
	}
}

func FuzzYAML(f *testing.F) {
	for _, s := range []string{"", "---", "http: {addr: a}", "a: &a [*a]", "? [a]\n: b", "http:\n\taddr", "storage: {s3: {secret_key: *x}}", "!!map x", "%YAML 9"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		c, err := Load("", nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, problem := range c.loadYAML("f.yaml", []byte(text)) {
			if !strings.HasPrefix(problem.Error(), "f.yaml:") {
				t.Fatalf("a problem without its place: %v", problem)
			}
		}
		c.derive()
		var out strings.Builder
		if err := c.Show(&out); err != nil {
			t.Fatal(err)
		}
		again, err := Load("", nil)
		if err != nil {
			t.Fatal(err)
		}
		if problems := again.loadYAML("again.yaml", []byte(out.String())); len(problems) != 0 {
			t.Fatalf("Show wrote what Load refuses: %v\n%s", problems, out.String())
		}
	})
}

// TestObjectInFile checks that the configuration file may contain a policy as YAML or as
// JSON text.
func TestObjectInFile(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"autoprune: {default_policy: {method: number_of_tags, value: 10}}":          `{"method":"number_of_tags","value":10}`,
		"autoprune:\n  default_policy:\n    value: 5d\n    method: creation_date\n": `{"method":"creation_date","value":"5d"}`,
		`autoprune: {default_policy: '{"method": "last_pulled", "value": "5d"}'}`:   `{"method": "last_pulled", "value": "5d"}`,
		"autoprune: {default_policy: }":                                             "",
	} {
		if c := mustLoad(t, text); c.Autoprune.DefaultPolicy != want {
			t.Errorf("%s: %s", text, c.Autoprune.DefaultPolicy)
		}
	}
}
