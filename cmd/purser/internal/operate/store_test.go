package operate

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
)

// The database is bound to another store than the configured one. "purser check --repair"
// and "purser gc run" refuse to work, and change nothing.
func TestCheckRepairRefusesAnotherStore(t *testing.T) {
	t.Parallel()
	g := newGarbage(t)
	g.run("store", "adopt")
	other := newGarbage(t)
	other.run("store", "adopt")
	environ := []string{"PURSER_STORAGE_FILESYSTEM_PATH=" + other.store}
	for _, args := range [][]string{{"check", "--repair"}, {"gc", "run"}} {
		code, stdout, stderr := purser(t, append(environ, g.environ...), args...)
		if code != 1 || !strings.Contains(stderr, g.storeID()) || !strings.Contains(stderr, "purser store adopt") {
			t.Errorf("%v: exit code %d\n%s\n%s", args, code, stdout, stderr)
		}
	}
	var lost, doomed int
	if err := g.db.Pool.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM blobs WHERE lost_at IS NOT NULL),
		(SELECT count(*) FROM gc_doomed_objects)`).Scan(&lost, &doomed); err != nil || lost+doomed != 0 {
		t.Errorf("%d blobs are marked as lost and %d objects doomed (%v)", lost, doomed, err)
	}
}

// The commands "store show" and "store adopt" return the documented exit codes, and
// adopting a store writes an entry to the audit log.
func TestStoreCommands(t *testing.T) {
	t.Parallel()
	g := newGarbage(t)
	show := func(want int, words ...string) {
		t.Helper()
		code, text, stderr := purser(t, g.environ, "store", "show")
		for _, w := range words {
			if code != want || !strings.Contains(text, w) {
				t.Errorf("store show: exit code %d, want %d and %q\n%s\n%s", code, want, w, text, stderr)
			}
		}
	}
	show(command.ExitFindings, "Neither has an identity yet", "Of 2 blobs of the database, drawn at random, the store has 2.")
	if text := g.run("store", "adopt"); !strings.Contains(text, "belongs to the database now") {
		t.Errorf("store adopt:\n%s", text)
	}
	show(0, "They belong together.", g.storeID())
	if text := g.run("store", "adopt"); !strings.Contains(text, "already") {
		t.Errorf("store adopt again:\n%s", text)
	}
	empty := t.TempDir()
	elsewhere := append([]string{"PURSER_STORAGE_FILESYSTEM_PATH=" + empty}, g.environ...)
	if code, _, stderr := purser(t, elsewhere, "store", "adopt"); code != 1 || !strings.Contains(stderr, "mounted") {
		t.Errorf("store adopt of an empty directory: exit code %d\n%s", code, stderr)
	}
	if code, text, stderr := purser(t, elsewhere, "store", "adopt", "--force"); code != 0 || !strings.Contains(text, "the store has 0") {
		t.Errorf("store adopt --force of an empty directory: exit code %d\n%s\n%s", code, text, stderr)
	}
	if err := os.RemoveAll(filepath.Join(empty, "objects", "ff")); err != nil { // a copy without empty directories
		t.Fatal(err)
	}
	if code, _, stderr := purser(t, elsewhere, "store", "show"); code != 1 || !strings.Contains(stderr, `"purser store adopt" completes`) {
		t.Errorf("store show without a directory: exit code %d\n%s", code, stderr)
	}
	if code, text, stderr := purser(t, elsewhere, "store", "adopt"); code != 0 || !strings.Contains(text, "already") {
		t.Errorf("store adopt without a directory: exit code %d\n%s\n%s", code, text, stderr)
	}
	if _, err := os.Stat(filepath.Join(empty, "objects", "ff")); err != nil {
		t.Errorf("the directory after the adoption: %v", err)
	}
	var n int
	if err := g.db.Pool.QueryRow(t.Context(), "SELECT count(*) FROM auditlog WHERE kind = 'adopt_store'").Scan(&n); err != nil || n != 2 {
		t.Errorf("%d entries of adoptions, want 2 (%v)", n, err)
	}
}

// storeID returns the identity of the store to which the database is bound.
func (g *garbage) storeID() (id string) {
	g.t.Helper()
	if err := g.db.Pool.QueryRow(g.t.Context(), "SELECT id FROM store_identity").Scan(&id); err != nil {
		g.t.Fatal(err)
	}
	return id
}

// The store is lost, and the command brings it back from a backup and gives it to the database. It
// refuses another registry's store before it copies anything.
func TestStoreRestore(t *testing.T) {
	t.Parallel()
	g := newGarbage(t)
	g.run("store", "adopt")
	target := filepath.Join(t.TempDir(), "backup")
	g.run("backup", target)
	other := newGarbage(t)
	other.run("store", "adopt")
	at := func(dir string) []string {
		return append([]string{"PURSER_STORAGE_FILESYSTEM_PATH=" + dir}, g.environ...)
	}
	if code, _, stderr := purser(t, at(other.store), "store", "restore", target); code != 1 || !strings.Contains(stderr, "--from "+other.storeID()) {
		t.Errorf("into another registry's store: exit code %d\n%s", code, stderr)
	}
	if code, _, stderr := purser(t, g.environ, "store", "restore", t.TempDir()); code != 1 || !strings.Contains(stderr, "backup") {
		t.Errorf("from an empty directory: exit code %d\n%s", code, stderr)
	}
	empty := t.TempDir()
	for _, want := range []string{"had 0, and 2 were copied", "had 2, and 0 were copied"} {
		if code, text, stderr := purser(t, at(empty), "store", "restore", target); code != 0 || !strings.Contains(text, want) {
			t.Errorf("store restore: exit code %d, want %q\n%s\n%s", code, want, text, stderr)
		}
	}
	if code, text, stderr := purser(t, at(empty), "check", "--deep"); code != 0 {
		t.Errorf("check: exit code %d\n%s\n%s", code, text, stderr)
	}
	late := g.push("pushed after the backup")
	lacking := t.TempDir()
	if code, text, stderr := purser(t, at(lacking), "store", "restore", target); code != command.ExitFindings || !strings.Contains(text, late.String()) {
		t.Errorf("store restore without one object: exit code %d\n%s\n%s", code, text, stderr)
	}
	if code, text, stderr := purser(t, at(lacking), "check", "--repair"); code != command.ExitFindings || !strings.Contains(text, late.String()) {
		t.Errorf("check --repair: exit code %d\n%s\n%s", code, text, stderr)
	}
	var restores, adoptions int
	if err := g.db.Pool.QueryRow(t.Context(), `SELECT count(*) FILTER (WHERE kind = 'run_restore'), count(*) FILTER (WHERE kind = 'adopt_store')
		FROM auditlog`).Scan(&restores, &adoptions); err != nil || restores != 3 || adoptions != 3 {
		t.Errorf("%d entries of restores and %d of adoptions, want 3 and 3 (%v)", restores, adoptions, err)
	}
}
