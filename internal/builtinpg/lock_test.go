//go:build unix

package builtinpg

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A child process still has the lock's file open, as between fork and exec. The test expects
// that release nevertheless lets another owner lock the directory at once.
func TestReleaseIsAtOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l, err := acquire(dir)
	if err != nil {
		t.Fatal(err)
	}
	inherited, err := unix.Dup(int(l.file.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer os.NewFile(uintptr(inherited), "inherited").Close()
	if err := l.release(); err != nil {
		t.Fatal(err)
	}
	again, err := acquire(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.release(); err != nil {
		t.Fatal(err)
	}
}

// TestDirectoriesThatCannotBeUsed: the error of a data directory that can't be made, or that another process
// has, names the directory and says how another one is chosen.
func TestDirectoriesThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, nil, 0o600))
	for _, dir := range []string{filepath.Join(file, "postgres"), filepath.Join(file, "data", "postgres")} {
		_, err := prepareDataDir(dir)
		wantError(t, err, file, "not a directory", "--data-dir DIR (data_dir)")
	}
	dir := t.TempDir()
	l, err := acquire(dir)
	must(t, err)
	_, err = acquire(dir)
	wantError(t, err, dir, "--data-dir DIR (data_dir)")
	must(t, l.release())
}
