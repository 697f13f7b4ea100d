package config

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// secretFile writes text to a new file and returns the file's path.
func secretFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestValuesInFiles writes a value of each setting to a file. Load must read the value from
// the file if the setting's variable with _FILE appended has the file's path. Secrets must
// also accept "file:PATH" as their value.
func TestValuesInFiles(t *testing.T) {
	t.Parallel()
	for i := range settings {
		s := &settings[i]
		value := otherValue(t, s)
		path := secretFile(t, value+"\r\n\n")
		c, err := Load("", []string{s.env() + "_FILE=" + path, "HOME=/home/someone"})
		if err != nil {
			t.Errorf("%s: %v", s.key, err)
			continue
		}
		want, err := Load("", []string{s.env() + "=" + value, "HOME=/home/someone"})
		if err != nil {
			t.Fatal(err)
		}
		if changed := want.Changed(c); len(changed) > 0 {
			t.Errorf("%s: %q differ", s.key, changed)
		}
		if got := c.Source(s.key); got != "env "+s.env()+"_FILE, file "+path {
			t.Errorf("%s comes from %s", s.key, got)
		}
		if !s.takesFile(c) {
			continue
		}
		for _, form := range []string{"file:" + path, "file://" + path} {
			c, err = Load(secretFile(t, strings.ReplaceAll(nested(s.key), "VALUE", form)), []string{"HOME=/home/someone"})
			if err != nil || len(want.Changed(c)) > 0 {
				t.Errorf("%s: %s: %v", s.key, form, err)
			}
		}
	}
}

// nested returns YAML text that sets key to the word VALUE.
func nested(key string) string {
	text := ""
	parts := strings.Split(key, ".")
	for i, part := range parts {
		text += strings.Repeat("  ", i) + part + ":"
		if i < len(parts)-1 {
			text += "\n"
		}
	}
	return text + " VALUE\n"
}

func TestProblemsOfValuesInFiles(t *testing.T) {
	t.Parallel()
	empty, long, zero := secretFile(t, "\n"), secretFile(t, strings.Repeat("x", 70_000)), secretFile(t, "a\x00b")
	pem, fine := secretFile(t, "-----BEGIN PRIVATE KEY-----\n"), secretFile(t, "topsecret")
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(pipe, nil); err == nil || !strings.Contains(err.Error(), "it is a pipe, not a regular file") {
		t.Errorf("a pipe as the configuration: %v", err)
	}
	for _, c := range []struct{ environ, want string }{
		{"PURSER_REDIS_URL_FILE=" + pipe, "redis.url: reading the file " + pipe + ": it is a pipe, not a regular file"},
		{"PURSER_REDIS_URL_FILE=/nowhere", "env PURSER_REDIS_URL_FILE: redis.url: reading the file /nowhere: no such file or directory; check"},
		{"PURSER_REDIS_URL=file:/nowhere", "env PURSER_REDIS_URL: redis.url: reading the file /nowhere: no such file or directory; check"},
		{"PURSER_REDIS_URL=file:", "redis.url: there is no path of a file"},
		{"PURSER_REDIS_URL_FILE=", "env PURSER_REDIS_URL_FILE: redis.url: there is no path"},
		{"PURSER_REDIS_URL=file:~/x", "only a shell knows what ~ is"},
		{"PURSER_REDIS_URL=file:" + filepath.Dir(fine), "is a directory"},
		{"PURSER_DATABASE_MAIN_FILE=" + empty, "database.main: the file " + empty + " is empty"},
		{"PURSER_DATABASE_MAIN_FILE=" + long, "is longer than 64 KiB"},
		{"PURSER_DATABASE_MAIN_FILE=" + zero, "holds a NUL character"},
		{"PURSER_HTTP_TLS_KEY_FILE=" + pem, "name it with PURSER_HTTP_TLS_KEY"},
		{"PURSER_STORAGE_S3_SECRET_KEY_FILE=" + fine + " PURSER_STORAGE_S3_SECRET_KEY=x",
			"env PURSER_STORAGE_S3_SECRET_KEY: storage.s3.secret_key: PURSER_STORAGE_S3_SECRET_KEY_FILE is set too; remove one of them"},
		{"PURSER_REDIS_URI_FILE=x", "did you mean PURSER_REDIS_URL_FILE?"},
	} {
		_, err := Load("", append(strings.Fields(c.environ), "HOME=/home/someone"))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s\ngot  %v\nwant %s", c.environ, err, c.want)
		}
		if err != nil && strings.Contains(err.Error(), "topsecret") {
			t.Errorf("a secret is told: %v", err)
		}
	}
}

// TestSecretsInFilesStayHidden reads secrets from files. Show must print the path of each
// file, and must not print the secret.
func TestSecretsInFilesStayHidden(t *testing.T) {
	t.Parallel()
	dsn, webhook := secretFile(t, "postgres://u:topsecret@h/d\n"), secretFile(t, "topsecret\n")
	c, err := Load("", []string{"HOME=/home/someone", "PURSER_DATABASE_MAIN=file:" + dsn, "PURSER_AUTOPRUNE_WEBHOOK_SECRET_FILE=" + webhook,
		"PURSER_AUTOPRUNE_WEBHOOK_URL=https://h/"})
	if err != nil || string(c.Database.Main) != "postgres://u:topsecret@h/d" {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := c.Show(&out); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(out.String(), "topsecret") || !strings.Contains(out.String(), "# env PURSER_DATABASE_MAIN, file "+dsn) ||
		!strings.Contains(out.String(), "file "+webhook) {
		t.Errorf("%s", out.String())
	}
	if _, err := Load(secretFile(t, out.String()), []string{"HOME=/home/someone"}); err != nil {
		t.Errorf("it can't be read again: %v", err)
	}
}

// TestChangedFile changes the content of the file from which a secret is read, and loads
// the configuration again. Changed must report the setting.
func TestChangedFile(t *testing.T) {
	t.Parallel()
	path := secretFile(t, "postgres://u:one@h/d")
	load := func() *Config {
		c, err := Load("", []string{"HOME=/home/someone", "PURSER_DATABASE_MAIN_FILE=" + path})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	before := load()
	if err := os.WriteFile(path, []byte("postgres://u:two@h/d"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := before.Changed(load()); strings.Join(got, " ") != "database.main database.stats" {
		t.Errorf("changed: %q", got)
	}
}
