package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// freshTree makes a project without a file of definitions and without that file's
// directory. If `git` is set, the project is a git work tree without a commit.
func freshTree(t *testing.T, git bool) *project {
	t.Helper()
	s := newProject(t)
	must(t, os.Remove(s.file))
	s.file = filepath.Join(s.dir, "config", "loose.yml")
	if git {
		if _, err := exec.LookPath("git"); err != nil {
			lacking(t, "git")
		}
		s.git(t, "init", "--quiet", "--initial-branch", "trunk")
		s.git(t, "config", "commit.gpgsign", "false")
	}
	return s
}

// identity sets the name and email address of git commits.
func (s *project) identity(t *testing.T) {
	t.Helper()
	s.git(t, "config", "user.name", "A tester")
	s.git(t, "config", "user.email", "tester@example.com")
}

// unchanged runs a command that must fail with the message `want`, and must change neither
// the directory nor the database.
func (s *project) unchanged(t *testing.T, want string, args ...string) {
	t.Helper()
	before, status := s.state(t), s.git(t, "status", "--porcelain", "--branch")
	_, code, message := s.run(t, args...)
	if code != 1 || !strings.Contains(message, want) {
		t.Errorf("%q: %d, %s; want %s", args, code, message, want)
	}
	if now := s.git(t, "status", "--porcelain", "--branch"); now != status {
		t.Errorf("%q: git's status is\n%s\nand was\n%s", args, now, status)
	}
	// Of the files in .git, compare only HEAD and the branches.
	ours := func(state string) []string {
		return slices.DeleteFunc(strings.Split(state, "\n"), func(line string) bool {
			return strings.Contains(line, "/.git/") && !strings.Contains(line, "/.git/refs/heads/") && !strings.Contains(line, "/.git/HEAD")
		})
	}
	if now := ours(s.state(t)); !slices.Equal(now, ours(before)) {
		t.Errorf("%q left\n%s\nof\n%s", args, strings.Join(now, "\n"), strings.Join(ours(before), "\n"))
	}
}

// convert must be able to make the first commit of a git work tree, and must create missing
// directories.
func TestConvertInFreshTree(t *testing.T) {
	t.Parallel()
	s := freshTree(t, true)
	s.identity(t)
	out := s.ok(t, "convert", "^orders$")
	contains(t, "convert", out, "trunk has no commit yet: no branch is made", "committed "+s.git(t, "rev-parse", "--short", "HEAD"))
	if branch := s.git(t, "branch", "--show-current"); branch != "trunk" || s.git(t, "status", "--porcelain") != "" {
		t.Errorf("the branch is %s, the status %s", branch, s.git(t, "status", "--porcelain"))
	}
	contains(t, "the commit", s.git(t, "show", "--name-only", "--format=", "HEAD"), "config/loose.yml", "migrations/", "tests/")
	contains(t, "the next", s.ok(t, "convert", "^visits$"), "made the branch loose-fk-visits")
}

// TestConvertFindsWhatGitRefuses: if git would refuse the commit, convert must say so
// before it writes anything.
func TestConvertFindsWhatGitRefuses(t *testing.T) {
	s := freshTree(t, true)
	t.Setenv("HOME", t.TempDir())
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	for _, name := range []string{"EMAIL", "GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL"} {
		t.Setenv(name, "")
		must(t, os.Unsetenv(name))
	}
	s.git(t, "config", "user.useConfigOnly", "true")
	const identity = "git doesn't know who commits: set git config user.name and user.email, or give --no-commit"
	s.unchanged(t, identity, "convert", "^orders$")
	s.git(t, "-c", "user.name=A", "-c", "user.email=a@example.com", "commit", "--quiet", "--allow-empty", "-m", "x")
	s.unchanged(t, identity, "convert", "^orders$")
	contains(t, "without a commit", s.ok(t, "convert", "-n", "--no-commit", "^orders$"), "would make the branch loose-fk-orders")

	s.identity(t)
	exclude := filepath.Join(s.dir, ".git", "info", "exclude")
	must(t, os.MkdirAll(filepath.Dir(exclude), 0o755))
	must(t, os.WriteFile(exclude, []byte("migrations/\n"), 0o600))
	s.unchanged(t, "git ignores migrations", "convert", "^orders$")
	must(t, os.Remove(exclude))

	must(t, os.WriteFile(filepath.Join(s.dir, ".git", "MERGE_HEAD"), []byte(s.git(t, "rev-parse", "HEAD")+"\n"), 0o600))
	s.unchanged(t, "a merge is under way: finish it (git status says how), or give --no-branch --no-commit", "convert", "^orders$")
	must(t, os.Remove(filepath.Join(s.dir, ".git", "MERGE_HEAD")))
}

// TestConvertDumpOutsideOfTree: git can't commit a dump that is outside of its work tree.
func TestConvertDumpOutsideOfTree(t *testing.T) {
	t.Parallel()
	needPgDump(t)
	s := freshTree(t, true)
	s.identity(t)
	s.unchanged(t, "is outside of the git work tree", "convert", "^orders$", "--schema-dump", filepath.Join(t.TempDir(), "m", "s.sql"))
}

// TestConvertTakesBack lets a git hook refuse the commit. convert must undo its files, its
// changes of the git index and its branch.
func TestConvertTakesBack(t *testing.T) {
	t.Parallel()
	for _, first := range []bool{true, false} {
		s := freshTree(t, true)
		s.identity(t)
		must(t, os.WriteFile(filepath.Join(s.dir, "mine"), []byte("x"), 0o600))
		if !first {
			must(t, os.MkdirAll(filepath.Dir(s.file), 0o755))
			must(t, os.WriteFile(s.file, []byte(projectDefinitions), 0o640))
			s.git(t, "add", "config")
			s.git(t, "commit", "--quiet", "-m", "x")
		}
		s.git(t, "add", "mine")
		hook := filepath.Join(s.dir, ".git", "hooks", "pre-commit")
		must(t, os.MkdirAll(filepath.Dir(hook), 0o755))
		must(t, os.WriteFile(hook, []byte("#!/bin/sh\necho 'lint says no' >&2\nexit 1\n"), 0o755)) //nolint:gosec // a hook has to be executable
		s.unchanged(t, "lint says no", "convert", "^orders$")
		_, _, message := s.run(t, "convert", "^orders$")
		contains(t, "the message", message, "everything was undone", "--no-commit")
		if info, err := os.Stat(s.file); !first && (err != nil || info.Mode().Perm() != 0o640) {
			t.Errorf("the definitions are %v, %v", info, err)
		}
		contains(t, "without a commit", s.ok(t, "convert", "--no-branch", "--no-commit", "^orders$"), "wrote "+s.file)
	}
}

// Outside of a git work tree convert must write the files, and say why it commits nothing.
func TestConvertWithoutTree(t *testing.T) {
	t.Parallel()
	s := freshTree(t, false)
	contains(t, "convert", s.ok(t, "convert", "--no-test", "^orders$"), "is in no git work tree: nothing is committed", "wrote "+s.file)
	if got := s.files(t); len(got) != 4 || got[0] != "config/loose.yml" {
		t.Errorf("there are %q", got)
	}
}

// If convert can't write a file, it must remove the files that it has written.
func TestConvertWritesAllOrNothing(t *testing.T) {
	t.Parallel()
	s := freshTree(t, false)
	must(t, os.WriteFile(filepath.Join(s.dir, "tests"), nil, 0o600)) // a file, where convert needs a directory
	_, code, message := s.run(t, "convert", "^orders$")
	if got := s.files(t); code != 1 || !strings.Contains(message, "tests") || !slices.Equal(got, []string{"tests"}) {
		t.Errorf("%d, %s; there are %q", code, message, got)
	}
	if _, err := os.Stat(filepath.Join(s.dir, "config")); err == nil {
		t.Error("an empty directory is left")
	}
}

// TestConvertAfterTheGuide: if a user has done some steps of a conversion by hand, convert
// must plan only the remaining steps.
func TestConvertAfterTheGuide(t *testing.T) {
	t.Parallel()
	s := newProject(t)
	s.ok(t, "install")
	s.ok(t, "track")
	contains(t, "convert", s.ok(t, "convert", "--no-test", "^visits$"), "wrote "+filepath.Join(s.dir, "migrations"),
		"1. see that "+s.file+" is deployed everywhere", "2. only then run ")
	if got := s.files(t); len(got) != 2 || !strings.HasSuffix(got[1], "_drop_fk_visits_from_visits.sql") {
		t.Errorf("there are %q", got)
	}
	contains(t, "convert again", s.ok(t, "convert", "^visits$"), "skipped visits.customer_id → customers (nullify): it has a definition already, and ", "drops it: run that", "nothing is left to do")
	must(t, os.RemoveAll(filepath.Join(s.dir, "migrations")))
	runSQL(t, s.pool, "ALTER TABLE visits DROP CONSTRAINT fk_visits")
	contains(t, "convert of what is done", s.ok(t, "convert", "-n", "^visits$"), "skipped visits.customer_id → customers: it has a definition, and its foreign key is gone already", "nothing is left to do")

	runSQL(t, s.pool, "ALTER TABLE visits ADD CONSTRAINT fk_visits FOREIGN KEY (customer_id) REFERENCES customers ON DELETE SET NULL")
	contains(t, "revert", s.ok(t, "revert", "-n", "^visits$"), "the foreign key fk_visits of visits is there already", "_untrack_deletions_from_customers.sql")
	must(t, os.WriteFile(s.file, nil, 0o600))
	contains(t, "revert without a definition", s.ok(t, "revert", "^visits$"), "_untrack_deletions_from_customers.sql")
	contains(t, "revert again", s.ok(t, "revert", "^visits$"), "skipped visits.customer_id → customers (nullify): it has no definition, and ", "nothing is left to do")
}
