package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/testtool"
)

// client is a command-line client of registries, with a home directory of its own.
type client struct {
	t    testing.TB
	path string
	args []string // arguments before those of each call
	env  []string
}

// newClient returns a client for the program at path. The client writes only below a new home
// directory.
func newClient(t testing.TB, path string, args ...string) *client {
	t.Helper()
	home := newDir(t)
	auth := filepath.Join(home, "auth.json")
	if err := os.WriteFile(auth, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	return &client{t: t, path: path, args: args, env: childEnv(
		"HOME="+home, "XDG_CONFIG_HOME="+home, "XDG_CACHE_HOME="+home, "XDG_DATA_HOME="+home,
		"DOCKER_CONFIG="+home, "REGISTRY_AUTH_FILE="+auth,
		"XDG_RUNTIME_DIR="+home, "TMPDIR="+home)}
}

// toolClient returns a client for a tool in tools/versions, and builds the tool if necessary.
func toolClient(t testing.TB, name string, args ...string) *client {
	t.Helper()
	path, err := testtool.Path(name)
	if err != nil {
		lacking(t, "no %s: %v", name, err)
	}
	return newClient(t, path, args...)
}

// systemClient returns a client for a program that is installed on the system.
func systemClient(t testing.TB, name string, args ...string) *client {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		lacking(t, "%s isn't installed (tools/packages installs it)", name)
	}
	return newClient(t, path, args...)
}

// Run runs the client and returns its output. If the client fails, the test fails.
func (c *client) Run(args ...string) string {
	c.t.Helper()
	return c.RunInput("", args...)
}

// RunInput is like Run, with input on the client's standard input.
func (c *client) RunInput(input string, args ...string) string {
	c.t.Helper()
	out, err := c.Try(input, args...)
	if err != nil {
		c.t.Fatal(err)
	}
	return out
}

// Refused runs the client and returns its output. If the client succeeds, the test fails.
func (c *client) Refused(args ...string) string {
	c.t.Helper()
	out, err := c.Try("", args...)
	if err == nil {
		c.t.Fatalf("%s %s succeeded, and should not:\n%s", filepath.Base(c.path), strings.Join(args, " "), out)
	}
	return err.Error()
}

// Try runs the client with `input` on its standard input, and returns its output. If the
// client fails, the error contains the output.
func (c *client) Try(input string, args ...string) (string, error) {
	// A test's clean-up may call this when the test's context has already ended.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.t.Context()), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.path, append(append([]string{}, c.args...), args...)...)
	cmd.Env = c.env
	cmd.Stdin = strings.NewReader(input)
	cmd.WaitDelay = 10 * time.Second
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s%s", filepath.Base(c.path), strings.Join(args, " "), err, stdout.Bytes(), stderr.Bytes())
	}
	return strings.TrimSpace(stdout.String()), nil
}

// lines splits what a client prints.
func lines(text string) []string { return strings.Fields(text) }

// writeFile writes a file in a new directory and returns the file's path.
func writeFile(t testing.TB, name, text string) string {
	t.Helper()
	path := filepath.Join(newDir(t), name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}
