package config_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/purser-registry/purser/internal/config"
)

const deploy = "../../deploy/"

// TestReferenceConfigurations: each configuration in deploy/config is accepted, once the files
// with its secrets are there.
func TestReferenceConfigurations(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(deploy + "config/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no configurations: %v", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		for _, secret := range regexp.MustCompile(`file:/etc/purser/(\S+)`).FindAllStringSubmatch(string(text), -1) {
			value := map[string]string{"database": "postgres://purser:x@db.example.com/purser", "redis": "rediss://:x@redis.example.com:6379/0"}[secret[1]]
			if value == "" {
				value = "x"
			}
			if err := os.WriteFile(filepath.Join(dir, secret[1]), []byte(value), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		// Only the operator can accept the authority's terms.
		text = []byte(strings.NewReplacer("/etc/purser/", dir+"/", "accept_terms: false", "accept_terms: true").Replace(string(text)))
		changed := filepath.Join(dir, "config.yaml")
		if err := os.WriteFile(changed, text, 0o600); err != nil {
			t.Fatal(err)
		}
		cfg, err := config.Load(changed, []string{"HOME=" + dir})
		if err == nil {
			err = cfg.Validate()
		}
		if err != nil {
			t.Errorf("%s: %v", filepath.Base(file), err)
		} else if !cfg.Auth.Enabled {
			t.Errorf("%s: nobody needs to log in", filepath.Base(file))
		}
	}
}

// TestComposeFile: the settings of the compose file are accepted together, and it has no secret
// of its own: each one is a variable without a default.
func TestComposeFile(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(deploy + "compose/compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Services map[string]struct {
			Image       string
			Environment map[string]string
		}
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	variable := regexp.MustCompile(`\$\{[A-Z0-9_]+:\?[^}]+\}`)
	for name, service := range file.Services {
		environ := []string{"PURSER_DATA_DIR=/var/lib/purser", "PURSER_HTTP_ADDR=0.0.0.0:5000", "PURSER_HTTP_DEBUG_ADDR=0.0.0.0:5001"} // of the image
		for key, value := range service.Environment {
			for _, word := range []string{"PASSWORD", "SECRET", "ACCESS_KEY", "DATABASE_MAIN", "REDIS_URL"} {
				if strings.Contains(key, word) && !variable.MatchString(value) {
					t.Errorf("%s: %s is %q, want a variable without a default", name, key, value)
				}
			}
			environ = append(environ, key+"="+variable.ReplaceAllString(value, "abcdefgh"))
		}
		if !strings.HasPrefix(name, "purser-") {
			continue
		}
		cfg, err := config.Load("", environ)
		if err == nil {
			err = cfg.Validate()
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(file.Services) < 6 {
		t.Errorf("%d services, want 6 at least", len(file.Services))
	}
}
