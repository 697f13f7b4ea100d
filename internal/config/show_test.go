package config

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func show(t *testing.T, c *Config) string {
	t.Helper()
	var out strings.Builder
	if err := c.Show(&out); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestShow(t *testing.T) {
	t.Parallel()
	c := mustLoad(t, "http:\n  addr: 127.0.0.1:1\ndatabase:\n  main: postgres://u:hunter2@h/db\n",
		"PURSER_GC_REVIEW_AFTER_EVENTS=tag_delete=1w", "PURSER_HTTP_DEBUG_ADDR=off")
	if err := c.Set("log.level", "debug", "flag --log-level"); err != nil {
		t.Fatal(err)
	}
	out := show(t, c)
	for _, want := range []string{
		`(?m)^data_dir: /data +# env PURSER_DATA_DIR$`,
		`(?m)^http:\n  addr: 127\.0\.0\.1:1 +# .*purser\.yaml:2\n  debug_addr: "?off"? +# env PURSER_HTTP_DEBUG_ADDR\n  profile_addr: "?off"? +# default\n  allow_profiles: false +# default\n  tls:\n    cert: "" +# default\n    key: `,
		`(?m)^  level: debug +# flag --log-level$`,
		`(?m)^  main: postgres://u:\(hidden\)@h/db +# .*purser\.yaml:4$`,
		`(?m)^  stats: postgres://u:\(hidden\)@h/db +# default$`,
		`(?m)^storage:\n  filesystem:\n    path: /data/blobs +# default\n  s3:\n    endpoint: "" `,
		`(?m)^  delete_timeout: 2s +# default$`,
		`(?m)^  manifest_bytes: 64MiB +# default$`,
		`(?m)^  # reserve: 3GiB +# default: 3GiB, or a tenth`,
		`(?m)^  review_after_events: tag_delete=168h +# env PURSER_GC_REVIEW_AFTER_EVENTS$`,
	} {
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("no match for %s in\n%s", want, out)
		}
	}
	list := c.Settings()
	for _, want := range []Shown{
		{"log.level", "debug", "flag --log-level"}, {"database.stats", "postgres://u:(hidden)@h/db", "default"},
		{"storage.reserve", "3GiB", "default: 3GiB, or a tenth of the disk where that is less"},
	} {
		if !slices.Contains(list, want) {
			t.Errorf("no %+v in %+v", want, list)
		}
	}
	if len(list) != len(settings) || strings.Contains(fmt.Sprint(list), "hunter2") {
		t.Errorf("%d settings: %+v", len(list), list)
	}
}

// The test writes a configuration with Show and reads it with Load. The result must be the
// same configuration, even if values contain characters that are special in YAML.
func TestShowIsReadBack(t *testing.T) {
	t.Parallel()
	c := mustLoad(t, `
http: {addr: ':5000', allow_anonymous: true, debug_addr: "", external_url: "https://a.example", allowed_hosts: "*, *.b.example, [fd00::1]", profile_addr: "[::1]:7"}
storage: {s3: {bucket: "123", prefix: "a: b # c", access_key: "null", region: "- x", redirect: true}}
cache: {manifest_bytes: 1000001}
gc: {review_after: 90s, review_after_events: {tag_switch: 0, blob_upload: 1h1s}}
database: {partitions: 64}
`)
	again := mustLoad(t, show(t, c))
	c.sources, again.sources = nil, nil
	if !reflect.DeepEqual(c, again) {
		t.Errorf("got  %+v\nwant %+v", again, c)
	}
}

func TestShowOfOddText(t *testing.T) {
	t.Parallel()
	c := mustLoad(t, "")
	odd := "a\nb: c # \"d\" 'e' \t é ~"
	if err := c.Set("http.tls.cert", odd, "flag\nx"); err != nil {
		t.Fatal(err)
	}
	if again := mustLoad(t, show(t, c)); again.HTTP.TLS.Cert != odd {
		t.Errorf("got %q, want %q", again.HTTP.TLS.Cert, odd)
	}
}

type brokenWriter struct{}

var errBroken = errors.New("broken")

func (brokenWriter) Write([]byte) (int, error) { return 0, errBroken }

func TestShowTellsOfAFailedWrite(t *testing.T) {
	t.Parallel()
	if err := mustLoad(t, "").Show(brokenWriter{}); !errors.Is(err, errBroken) {
		t.Errorf("got %v", err)
	}
}

// The table in docs/configuration.md must have each setting once, with its environment
// variable and its default, and nothing else.
func TestDocumentation(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile("(?m)^\\| `([^`]*)` \\| `([^`]*)` \\| (.*?) \\| (.+?) \\|$")
	documented := map[string][]string{}
	for _, m := range row.FindAllStringSubmatch(string(text), -1) {
		if documented[m[1]] != nil {
			t.Errorf("%s is there twice", m[1])
		}
		documented[m[1]] = m
		if settingOf(m[1]) == nil {
			t.Errorf("%s is documented and doesn't exist", m[1])
		}
	}
	for i := range settings {
		s := &settings[i]
		m := documented[s.key]
		if m == nil {
			t.Errorf("%s isn't documented", s.key)
			continue
		}
		want := s.def
		if s.derived != "" {
			want = s.derived
		}
		if want == "" {
			want = "none"
		}
		if got := strings.ReplaceAll(m[3], "`", ""); m[2] != s.env() || got != want {
			t.Errorf("%s: variable %s, default %q; want %s, %q", s.key, m[2], got, s.env(), want)
		}
		secret := false
		switch s.field(mustLoad(t, "")).(type) {
		case secretField, dsnField:
			secret = true
		}
		if secret != strings.HasSuffix(m[4], "Secret.") {
			t.Errorf("%s: secret is %v, the text says otherwise", s.key, secret)
		}
	}
	for _, name := range append(foreignVariables, testPrefix) {
		if !strings.Contains(string(text), "`"+name) {
			t.Errorf("%s isn't documented", name)
		}
	}
}

// Load and Validate must accept the example in docs/configuration.md.
func TestDocumentedExample(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "```yaml\n")
	example, _, found := strings.Cut(rest, "```")
	if !found {
		t.Fatal("there is no example")
	}
	if err := mustLoad(t, example).Validate(); err != nil {
		t.Error(err)
	}
}
