//go:build unix

package builtinpg

import (
	"os"
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
