package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/db/dbtest"
)

// execute runs a command line and returns the exit code. The machine's configuration isn't read.
func execute(ctx context.Context, args, environ []string, stdout, stderr io.Writer) int {
	return command.Execute(ctx, newRoot(&command.Source{Environ: environ}), args, stdout, stderr)
}

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		os.Unsetenv(asProgram) //nolint:errcheck // it never fails for a valid name
		main()
	}
	dbtest.Main(m)
}

// purser runs a command line. The environment has only `environ` and an empty HOME.
func purser(t *testing.T, environ []string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errOut bytes.Buffer
	home := "HOME=" + t.TempDir()
	code = execute(t.Context(), args, append(slices.Clone(environ), home), &out, &errOut)
	return code, out.String(), errOut.String()
}

// afterStart returns what a server said after the line of its log that it starts.
func afterStart(stderr string) string {
	first, rest, _ := strings.Cut(stderr, "\n")
	if strings.Contains(first, `"msg":"starting"`) {
		return rest
	}
	return stderr
}

func writeFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "purser.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestCommands(t *testing.T) {
	t.Parallel()
	good := writeFile(t, "http:\n  addr: 127.0.0.1:7000\n")
	bad := writeFile(t, "http:\n  adr: 127.0.0.1:7000\nlog:\n  level: loud\n")
	external := writeFile(t, "database:\n  main: postgres://u:topsecret@db.example/purser\n")
	for _, tc := range []struct {
		name    string
		environ []string
		args    []string
		code    int
		stdout  string // a part; "" for nothing at all
		stderr  []string
	}{
		{name: "no command shows help", stdout: "Available Commands"},
		{name: "version", args: []string{"version"}, stdout: "purser "},
		{name: "valid file", args: []string{"config", "check", "--config", good}, stdout: "The configuration is valid.\nNobody logs in: 127.0.0.1:7000 is on loopback, and no setting says that others reach it. " +
			"Requests that come through a proxy are refused. Say auth.enabled: true to have clients log in.\n"},
		{name: "unknown key is named with its line", args: []string{"config", "check", "--config", bad}, code: 1,
			stderr: []string{"purser: " + bad + ":2: http.adr: ", "did you mean http.addr?", "purser: " + bad + ":4: log.level"}},
		{name: "file from the environment", environ: []string{"PURSER_CONFIG=" + bad}, args: []string{"config", "check"}, code: 1,
			stderr: []string{bad + ":2: http.adr"}},
		{name: "the flag is stronger than PURSER_CONFIG", environ: []string{"PURSER_CONFIG=" + bad},
			args: []string{"config", "check", "--config", good}, stdout: "valid"},
		{name: "a default policy of minutes", environ: []string{`DEFAULT_NAMESPACE_AUTOPRUNE_POLICY={"method": "creation_date", "value": "6m"}`},
			args: []string{"config", "check", "--config", good}, stdout: "valid",
			stderr: []string{"Warning: env DEFAULT_NAMESPACE_AUTOPRUNE_POLICY: autoprune.default_policy: 6m is 6 minutes, and not months: write 180d for those.\n"}},
		{name: "missing file", args: []string{"config", "check", "--config", "/nonexistent.yaml"}, code: 2,
			stderr: []string{"flag --config: ", "/nonexistent.yaml", "check the path"}},
		{name: "unknown variable", environ: []string{"PURSER_HTTP_ADR=x"}, args: []string{"config", "check"}, code: 1,
			stderr: []string{"PURSER_HTTP_ADR", "PURSER_HTTP_ADDR"}},
		{name: "show says where a value is from", environ: []string{"PURSER_HTTP_ADDR=127.0.0.1:7100"},
			args: []string{"config", "show", "--config", good}, stdout: "addr: 127.0.0.1:7100                         # env PURSER_HTTP_ADDR"},
		{name: "flags are strongest", environ: []string{"PURSER_HTTP_ADDR=127.0.0.1:7100"},
			args: []string{"config", "show", "--addr", "127.0.0.1:7200"}, stdout: "addr: 127.0.0.1:7200                         # flag --addr"},
		{name: "show hides secrets", args: []string{"config", "show", "--config", external}, stdout: "postgres://u:(hidden)@db.example/purser"},
		{name: "all problems at once", args: []string{"config", "check", "--config", bad, "--addr", "nonsense"}, code: 2,
			stderr: []string{"http.adr", "flag --addr: http.addr"}},
		{name: "log-ins for others", args: []string{"config", "check", "--addr", "0.0.0.0:0"}, stdout: "valid"},
		{name: "open to others without a login", environ: []string{"PURSER_AUTH_ENABLED=false"}, args: []string{"serve", "--addr", "0.0.0.0:0"}, code: 2,
			stderr: []string{"flag --addr: http.addr: 0.0.0.0:0 can be reached from other machines", "allow_anonymous"}},
		{name: "metrics for others", args: []string{"config", "check", "--debug-addr", ":0"}, stdout: "valid"},
		{name: "profiles for others", args: []string{"serve", "--profile-addr", ":0"}, code: 2,
			stderr: []string{"flag --profile-addr: http.profile_addr: :0 can be reached from other machines", "http.allow_profiles"}},
		{name: "allowed to be open", args: []string{"config", "check", "--addr", "0.0.0.0:0", "--allow-anonymous"}, stdout: "valid"},
		{name: "open and closed", environ: []string{"PURSER_AUTH_ENABLED=true"}, args: []string{"serve", "--addr", "0.0.0.0:0", "--allow-anonymous"}, code: 2,
			stderr: []string{"flag --allow-anonymous: http.allow_anonymous: ", "auth.enabled (env PURSER_AUTH_ENABLED) says the opposite"}},
		{name: "no PostgreSQL runs", args: []string{"postgres", "url", "--data-dir", t.TempDir()}, code: 1,
			stderr: []string{"built-in PostgreSQL"}},
		{name: "PostgreSQL is elsewhere", args: []string{"postgres", "url", "--config", external}, code: 1,
			stderr: []string{"database.main (" + external + ":2)"}},
		{name: "unknown flag", args: []string{"serve", "--nonsense"}, code: 2, stderr: []string{"unknown flag: --nonsense"}},
		{name: "unknown command", args: []string{"nonsense"}, code: 2, stderr: []string{`unknown command "nonsense"`}},
		{name: "too many arguments", args: []string{"serve", "extra"}, code: 2, stderr: []string{"extra"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			code, stdout, stderr := purser(t, tc.environ, tc.args...)
			if code != tc.code {
				t.Errorf("exit code %d, want %d", code, tc.code)
			}
			if !strings.Contains(stdout, tc.stdout) || tc.stdout == "" && stdout != "" {
				t.Errorf("stdout:\n%s\nwant %q", stdout, tc.stdout)
			}
			for _, want := range tc.stderr {
				if !strings.Contains(stderr, want) {
					t.Errorf("stderr:\n%s\nwant %q", stderr, want)
				}
			}
			if tc.stderr == nil && stderr != "" {
				t.Errorf("stderr:\n%s\nwant nothing", stderr)
			}
			if strings.Contains(stdout+stderr, "topsecret") {
				t.Error("a password is shown")
			}
		})
	}
}

func TestMigrate(t *testing.T) {
	t.Parallel()
	environ := []string{"PURSER_DATABASE_MAIN=" + dbtest.EmptyDSN(t)}
	for _, step := range []struct {
		args []string
		want string
	}{
		{[]string{"migrate", "status"}, "pending"},
		{[]string{"migrate", "up"}, "The schema is up to date.\n"},
		{[]string{"migrate", "up"}, "Migrations applied: 0."},
		{[]string{"migrate", "status"}, "Z  00001_schema.sql\n"},
	} {
		code, stdout, stderr := purser(t, environ, step.args...)
		if code != 0 || !strings.Contains(stdout, step.want) {
			t.Fatalf("%v: exit code %d, stdout %q, stderr %q; want %q", step.args, code, stdout, stderr, step.want)
		}
	}
}

func TestServeRefusesAnOldSchema(t *testing.T) {
	t.Parallel()
	environ := []string{"PURSER_DATABASE_MAIN=" + dbtest.EmptyDSN(t), "PURSER_DATABASE_MIGRATE=false"}
	code, stdout, stderr := purser(t, environ, "serve", "--addr", "127.0.0.1:0", "--debug-addr", "off", "--data-dir", t.TempDir())
	if code != 1 || stdout != "" || !strings.Contains(stderr, "purser migrate up") {
		t.Errorf("exit code %d, stdout %q, stderr %q; want a hint at purser migrate up", code, stdout, stderr)
	}
}

func TestServeToldToStopBeforeItIsReady(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out, errOut bytes.Buffer
	environ := []string{"PURSER_DATABASE_MAIN=" + dbtest.EmptyDSN(t)}
	code := execute(ctx, []string{"serve", "--addr", "127.0.0.1:0", "--debug-addr", "off", "--data-dir", t.TempDir()}, environ, &out, &errOut)
	if code != 0 || out.Len() > 0 {
		t.Errorf("exit code %d, stdout %q, stderr %q; want 0 and nothing", code, &out, &errOut)
	}
}
