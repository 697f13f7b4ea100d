package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/cmd/purser/internal/operate"
	"github.com/purser-registry/purser/cmd/purser/internal/servetest"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/testscale"
)

// onMachine runs a command line on a machine whose configuration is at `machine`.
func onMachine(t *testing.T, machine string, environ []string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errOut bytes.Buffer
	root := newRoot(&command.Source{Environ: append(environ, "HOME="+t.TempDir()), Machine: machine})
	code = command.Execute(t.Context(), root, args, &out, &errOut)
	return code, out.String(), errOut.String()
}

// A command that somebody types reads the configuration of the machine, and says so. The variable and
// the flag name another one, and the empty variable none. A file that can't be read isn't taken for
// one that isn't there.
func TestConfigurationOfTheMachine(t *testing.T) {
	t.Parallel()
	machine := writeFile(t, "gc:\n  keep_doomed: 48h\n")
	variable := writeFile(t, "gc:\n  keep_doomed: 47h\n")
	flag := writeFile(t, "gc:\n  keep_doomed: 46h\n")
	unreadable := t.TempDir() // a directory can't be read
	link := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.Symlink(machine+".not", link); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, machine string
		environ, args []string
		code          int
		keep, told    string
	}{
		{"the machine's", machine, nil, nil, 0, "48h", "Using the configuration " + machine + " (the machine's).\n"},
		{"the variable's", machine, []string{"PURSER_CONFIG=" + variable}, nil, 0, "47h", "Using the configuration " + variable + " (PURSER_CONFIG).\n"},
		{"the flag's", machine, []string{"PURSER_CONFIG=" + variable}, []string{"--config", flag}, 0, "46h", ""},
		{"none by the variable", machine, []string{"PURSER_CONFIG="}, nil, 0, "0s", ""},
		{"none on the machine", machine + ".not", nil, nil, 0, "0s", ""},
		{"no directory of the machine", machine + "/config.yaml", nil, nil, 0, "0s", ""},
		{"unreadable", unreadable, nil, nil, 1, "0s", unreadable},
		{"a link to nothing", link, nil, nil, 1, "0s", link},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code, stdout, stderr := onMachine(t, tc.machine, tc.environ, append([]string{"config", "show"}, tc.args...)...)
			if code != tc.code || !strings.Contains(stdout, "keep_doomed: "+tc.keep) {
				t.Errorf("%d %s\n%s", code, stderr, stdout)
			}
			if tc.code == 0 && stderr != tc.told || !strings.Contains(stderr, tc.told) {
				t.Errorf("it said %q, want %q", stderr, tc.told)
			}
		})
	}
}

// deleting has the commands for operators that delete or repair something of the registry, each with the arguments
// with which it does. TARGET stands for a directory with backups.
var deleting = map[string][]string{
	"gc run": nil, "check": {"--repair"}, "import": {"--finish"}, "store adopt": {"--force"}, "store restore": {"TARGET"},
	"loosefk run": nil, "loosefk drain": {"--table", "repositories"}, "loosefk audit": {"--repair"},
}

// harmless has all other commands for operators, each with the reason why it may have other settings than the servers.
var harmless = map[string]string{
	"config check": looks, "config show": looks, "doctor": looks, "health": looks, "postgres url": looks,
	"gc status": looks, "gc explain": looks, "store show": looks, "migrate status": looks, "backup list": looks, "backup verify": looks,
	"loosefk list": looks, "loosefk status": looks, "loosefk doctor": looks, "loosefk validate": looks,
	"gc retry":            "the servers review, by their settings",
	"migrate up":          "it changes the schema, and no setting decides how",
	"backup":              "it deletes backups only",
	"restore":             "it fills an empty database, in which no server has run",
	"move database":       copies,
	"move blobs":          copies,
	"postgres upgrade":    copies,
	"postgres forget-old": "it deletes clusters in the data directory of which another one has taken the place",
	"loosefk install":     triggers, "loosefk track": triggers, "loosefk untrack": triggers, "loosefk fix-default-partition": triggers,
	"loosefk convert": "it changes the source of an application", "loosefk revert": "it changes the source of an application",
}

// Reasons of several commands.
const (
	looks    = "it changes nothing"
	copies   = "it leaves what it copies as it is"
	triggers = "it changes triggers and tables of records, and deletes nothing"
)

// TestEachDeletingCommandIsKnown: each command for operators is known as one that deletes or as a harmless one. The
// former have the flag that goes on by other settings than those of the servers; TestCommandsWithOtherSettings runs
// each of them without it.
func TestEachDeletingCommandIsKnown(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	var look func(path string, c *cobra.Command)
	look = func(path string, c *cobra.Command) {
		path = strings.TrimSpace(path + " " + c.Name())
		_, deletes := deleting[path]
		seen[path] = true
		group := c.HasSubCommands() && !deletes && harmless[path] == ""
		switch has := c.Flags().Lookup("own-settings") != nil; {
		case group && c.LocalNonPersistentFlags().HasFlags():
			t.Errorf("%s has subcommands, and flags of its own: say in this file what it does", path)
		case !group && deletes == (harmless[path] != ""):
			t.Errorf("%s: say in this file whether it deletes or repairs something of the registry", path)
		case has != deletes:
			t.Errorf("%s deletes or repairs: %v; it has --own-settings: %v", path, deletes, has)
		}
		for _, sub := range c.Commands() {
			look(path, sub)
		}
	}
	for _, c := range operate.Commands(new(command.Source)) {
		look("", c)
	}
	for path := range deleting {
		if !seen[path] {
			t.Errorf("there is no command %s", path)
		}
	}
	for path := range harmless {
		if !seen[path] {
			t.Errorf("there is no command %s", path)
		}
	}
}

// Commands that delete or repair are refused when a server runs on other settings, and when the server
// that ran last did. A command with the server's settings is not, nor one that changes nothing.
func TestCommandsWithOtherSettings(t *testing.T) {
	t.Parallel()
	dsn, dir := dbtest.DSN(t), t.TempDir()
	bare := onStore(t, dsn, dir)
	same := append(onStore(t, dsn, dir), "PURSER_GC_KEEP_DOOMED=48h")
	refused := func(state string, environ []string, want string, args ...string) {
		t.Helper()
		code, stdout, stderr := purser(t, environ, args...)
		if code != 3 || !strings.Contains(stderr, want) || !strings.Contains(stderr, "--own-settings") {
			t.Errorf("%s: purser %s: %d %s%s; want %q", state, strings.Join(args, " "), code, stdout, stderr, want)
		}
	}
	runs := func(state string, environ []string, code int, args ...string) (stdout string) {
		t.Helper()
		got, stdout, stderr := purser(t, environ, args...)
		if got != code {
			t.Errorf("%s: purser %s: %d %s%s", state, strings.Join(args, " "), got, stdout, stderr)
		}
		return stdout
	}
	const keep = "gc.keep_doomed is 0s here (default) and 48h there"
	elsewhere := filepath.Join(t.TempDir(), "blobs")
	s := start(t, servetest.Config(t, same...))
	backups := filepath.Join(t.TempDir(), "backups")
	runs("a server runs", same, 0, "backup", backups)
	for _, state := range []string{"a server runs", "a server has run"} {
		for path, more := range deleting {
			if state == "a server has run" && (strings.HasPrefix(path, "store ") || path != "gc run" && !testscale.All) {
				continue // the store of a stopped server may be what changes
			}
			args := append(strings.Fields(path), more...)
			if i := slices.Index(args, "TARGET"); i >= 0 {
				args[i] = backups
			}
			refused(state, bare, keep, args...)
		}
		refused(state, append(onStore(t, dsn, elsewhere), "PURSER_GC_KEEP_DOOMED=48h"), "storage.filesystem.path is "+elsewhere, "gc", "run")
		runs(state, same, 0, "gc", "run")
		if state == "a server runs" || testscale.All {
			runs(state, same, 0, "check", "--repair")
			runs(state, same, 0, "loosefk", "run")
			runs(state, same, 0, "loosefk", "audit", "--repair")
			runs(state, same, 0, "loosefk", "drain", "--table", "repositories")
			runs(state, same, 0, "store", "restore", backups)
			runs(state, bare, 0, "loosefk", "audit")
			runs(state, bare, 0, "check")
			runs(state, bare, 0, "gc", "run", "--dry-run")
		}
		runs(state, bare, 0, "gc", "run", "--own-settings")
		if text := runs(state, bare, 4, "doctor"); !strings.Contains(text, keep) {
			t.Errorf("%s: the doctor says %s", state, text)
		}
		if text := runs(state, same, 4, "doctor"); strings.Contains(text, "repair are refused") { // 4: the test's PostgreSQL has fsync off
			t.Errorf("%s: the doctor says %s", state, text)
		}
		if state == "a server runs" {
			refused(state, append(onStore(t, dsn, elsewhere), same[2:]...), "storage.filesystem.path", "store", "adopt", "--force")
			if _, err := os.Stat(elsewhere); !os.IsNotExist(err) {
				t.Errorf("a store was made: %v", err)
			}
			if err := s.Stop(); err != nil {
				t.Fatal(err)
			}
		}
	}
	// Another server is newer than the record of the first.
	s = start(t, servetest.Config(t, bare...))
	runs("another server runs", bare, 0, "gc", "run")
	refused("another server runs", same, "gc.keep_doomed is 48h here (env PURSER_GC_KEEP_DOOMED) and 0s there", "gc", "run")
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	// Adopting another store is for a registry whose servers are stopped.
	runs("stopped", onStore(t, dsn, elsewhere), 0, "store", "adopt", "--force")
}

// A server that was killed is taken for one that runs, for a minute, and then for the one that ran
// last. A command is compared with every server that runs.
func TestRecordsOfServers(t *testing.T) {
	t.Parallel()
	dsn, dir := dbtest.DSN(t), t.TempDir()
	one := append(onStore(t, dsn, dir), "PURSER_AUTOPRUNE_WEBHOOK_URL=https://example.com/hook", "PURSER_AUTOPRUNE_WEBHOOK_SECRET=topsecret-topsecret-topsecret")
	two := append(slices.Clone(one), "PURSER_TRASH_KEEP=1h")
	servers := []*servetest.Server{start(t, servetest.Config(t, one...)), start(t, servetest.Config(t, two...))}
	d := dbtest.Open(t, dsn)
	exec := func(sql string) {
		t.Helper()
		if _, err := d.Pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	for _, environ := range [][]string{one, two} {
		if code, _, stderr := purser(t, environ, "gc", "run"); code != 3 || !strings.Contains(stderr, "trash.keep") || !strings.Contains(stderr, "the server that runs on ") {
			t.Errorf("two servers: %d %s", code, stderr)
		}
	}
	for _, s := range servers {
		if err := s.Stop(); err != nil {
			t.Fatal(err)
		}
	}
	exec("DELETE FROM servers WHERE settings->>'trash.keep' <> '1h'")
	for _, seen := range []string{"- interval '2 min'", "+ interval '1 hour'"} { // it died before the clock was set back
		exec("UPDATE servers SET stopped = false, seen_at = now() " + seen)
		if code, _, stderr := purser(t, one, "gc", "run"); code != 3 || !strings.Contains(stderr, "the server that ran last, on ") {
			t.Errorf("a dead server (%s): %d %s", seen, code, stderr)
		}
	}
	var settings string
	if err := d.Pool.QueryRow(t.Context(), "SELECT settings::text FROM servers").Scan(&settings); err != nil || strings.Contains(settings, "topsecret") {
		t.Errorf("%v %s", err, settings)
	}
}
