package main

import (
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// completed returns the completions that a shell gets for the last of `words`, and the
// directive that tells the shell how to use them.
func completed(t *testing.T, environ []string, words ...string) (list []string, directive string) {
	t.Helper()
	code, stdout, stderr := purser(t, environ, append([]string{"__complete"}, words...)...)
	if code != 0 {
		t.Fatalf("%q ends with %d: %s%s", words, code, stdout, stderr)
	}
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	for _, line := range lines[:len(lines)-1] {
		name, _, _ := strings.Cut(line, "\t")
		list = append(list, name)
	}
	return list, lines[len(lines)-1]
}

// TestCompletion: the arguments of commands are completed with names and UUIDs from the
// registry.
func TestCompletion(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	d := s.push("acme/app", "v1", "1")
	s.push("acme/api", "latest", "2")
	s.push("other/app", "v1", "1")
	s.run("policy", "create", "acme", "--num-tags", "50", "--mode", "on", "--yes")
	policy := first(s.run("policy", "list", "acme"))[0]
	s.run("webhook", "create", "acme", "--url", "https://hooks.example.com/x", "--events", "push")
	hook := first(s.run("webhook", "list", "acme"))[0]
	s.run("protection", "add", "acme", "^v1$")
	environ := []string{"PURSER_SERVER=" + s.url}
	const words, goesOn = ":4", ":6" // no files; and no space
	for line, want := range map[string]string{
		"namespace show a":                     "acme " + words,
		"repo show acme/":                      "acme/api acme/app " + words,
		"tag show acme/ap":                     "acme/api: acme/app: " + goesOn,
		"tag show acme/app:":                   "acme/app:v1 " + words,
		"tag delete acme/app:v1 acme/api:":     "acme/api:latest " + words,
		"tag move acme/app:v2 sha":             d + " " + words,
		"tag move acme/app:v2 " + d[7:10]:      d[7:] + " " + words,
		"policy show a":                        "acme acme/api acme/app " + words,
		"policy delete acme ":                  policy + " " + words,
		"prune defaults acme ":                 "on off " + words,
		"prune run zz":                         words,
		"webhook show acme ":                   "https://hooks.example.com/x " + words,
		"webhook show acme " + hook[:5]:        hook + " " + words,
		"protection remove acme ":              "^v1$ " + words,
		"webhook redeliver acme " + hook + " ": words,
		"webhook create acme --events p":       "push tag pull delete prune gc " + words,
		"tag list acme/app -o ":                "text json " + words,
		"policy create acme --method n":        "creation_date number_of_tags last_pulled max_bytes untagged " + words,
	} {
		parts := strings.Split(line, " ")
		list, directive := completed(t, environ, parts...)
		if strings.HasPrefix(line, "repo show") || strings.HasPrefix(line, "tag show") || strings.HasPrefix(line, "policy show") {
			slices.Sort(list)
		}
		if got := strings.TrimSpace(strings.Join(list, " ") + " " + directive); got != want {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
}

// TestCompletionWithoutRegistry: if the registry can't be reached, or doesn't answer in
// time, the shell gets no completions and no error. Completing a gc command doesn't create
// the built-in PostgreSQL.
func TestCompletionWithoutRegistry(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { silent.Close() }) //nolint:errcheck
	dir := filepath.Join(t.TempDir(), "data")
	environ := []string{"PURSER_SERVER=http://" + silent.Addr().String(), "PURSER_DATA_DIR=" + dir}
	for _, words := range [][]string{{"tag", "list", ""}, {"gc", "explain", ""}, {"tag", "list", "--server", "127.0.0.1:1", ""}} {
		if list, _ := completed(t, environ, words...); len(list) > 0 {
			t.Errorf("%q: %q", words, list)
		}
	}
	if made, err := filepath.Glob(dir + "*"); err != nil || len(made) > 0 {
		t.Errorf("it made %q, %v", made, err)
	}
}

// TestCompletionScripts: Purser prints a completion script for each shell.
func TestCompletionScripts(t *testing.T) {
	t.Parallel()
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if code, stdout, stderr := purser(t, nil, "completion", shell); code != 0 || !strings.Contains(stdout, "__complete") || stderr != "" {
			t.Errorf("%s: %d %.100s %s", shell, code, stdout, stderr)
		}
	}
}
