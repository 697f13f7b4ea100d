package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
)

// unlimited are the lists that lack a flag, with the reason.
var unlimited = map[string]string{
	"purser migrate status": "it says how far the schema is, by its few migrations",
	"purser loosefk list":   "it is a command of the package loosefk, which has no lists by the page: a database has a few foreign keys",
}

// TestEveryListHasItsFlags: each command that lists something prints names alone with -q, and JSON with -o,
// and lists as many as --limit says.
func TestEveryListHasItsFlags(t *testing.T) {
	t.Parallel()
	lists := 0
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		for _, c := range cmd.Commands() {
			walk(c)
		}
		if cmd.Name() != "list" && !strings.HasPrefix(cmd.Short, "List ") || unlimited[cmd.CommandPath()] != "" {
			return
		}
		lists++
		for name, shorthand := range map[string]string{"quiet": "q", "output": "o", "limit": ""} {
			f := cmd.Flags().Lookup(name)
			if f == nil || f.Shorthand != shorthand {
				t.Errorf("%s has no --%s", cmd.CommandPath(), name)
			}
		}
		line := append(strings.Fields(cmd.CommandPath())[1:], "-q", "-o", "json")
		if code, _, stderr := purser(t, nil, line...); code != command.ExitUsage || !strings.Contains(stderr, "--output and --quiet are given: leave all but one out") {
			t.Errorf("%q ends with %d: %s", line, code, stderr)
		}
	}
	walk(newRoot(new(command.Source)))
	if lists < 20 {
		t.Errorf("%d lists were found", lists)
	}
	for path := range unlimited {
		if cmd, _, err := newRoot(new(command.Source)).Find(strings.Fields(path)[1:]); err != nil || cmd.CommandPath() != path {
			t.Errorf("%s is no command", path)
		}
	}
}

// TestListsQuietAndLimited: -q prints one name a line and nothing else, and a list that ends early says so
// where a script could take it for whole.
func TestListsQuietAndLimited(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	for _, tag := range []string{"v1", "v2", "v3"} {
		s.push("acme/app", tag, tag)
	}
	digest := s.push("acme/web", "v1", "1")
	s.run("protection", "add", "acme", "^a$")
	s.run("protection", "add", "acme", "^b$")
	for line, want := range map[string]string{
		"tag list acme/app --sort name -q": "v1\nv2\nv3\n", "repo list -q": "acme/app\nacme/web\n", "namespace list --quiet": "acme\n",
		"webhook list acme -q": "", "quota list -q": "", "prune runs -q": "", "trash list -q": "", "policy list acme -q": "",
		"audit list acme/web -q --kind push_repo": "acme/web:v1\n",
	} {
		if got := s.run(strings.Fields(line)...); got != want {
			t.Errorf("%s prints %q, want %q", line, got, want)
		}
	}
	environ := []string{"PURSER_SERVER=" + s.url}
	if got := s.run("tag", "list", "acme/app", "--sort", "name", "-q", "--limit", "2"); got != "v1\nv2\n" {
		t.Errorf("as many as one has asked for: %q", got)
	}
	if got := s.run("protection", "list", "acme", "--limit", "1"); !strings.HasSuffix(got, "\n… and more: --limit 0 lists all.\n") {
		t.Errorf("as a table: %s", got)
	}
	for i := range 101 {
		s.run("tag", "move", fmt.Sprint("acme/web:t", i), digest)
	}
	for line, want := range map[string]int{"-q": 100, "-o json": 100, "-q --limit 0": 102} {
		code, stdout, stderr := purser(t, environ, append([]string{"tag", "list", "acme/web"}, strings.Fields(line)...)...)
		if code != 0 || (stderr == "… and more: --limit 0 lists all.\n") != (want == 100) {
			t.Errorf("%s: %d, %s", line, code, stderr)
		}
		if n := strings.Count(stdout, "\n"); line != "-o json" && n != want {
			t.Errorf("%s lists %d", line, n)
		}
	}
}
