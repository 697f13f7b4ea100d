//go:build all

package e2e

import (
	"os"
	"path/filepath"
	"testing"
)

// startPostgresWithClock starts a PostgreSQL whose clock the returned function sets: it gets what is added
// to this machine's clock, such as +60d or -10h. It is right at first.
func startPostgresWithClock(t *testing.T) (pg *postgres, set func(shift string)) {
	t.Helper()
	libraries, err := filepath.Glob("/usr/lib/*/faketime/libfaketime.so.1")
	if err != nil || len(libraries) == 0 {
		lacking(t, "libfaketime isn't installed (tools/packages ops installs it)")
	}
	clock := filepath.Join(newDir(t), "clock")
	set = func(shift string) {
		t.Helper()
		if err := os.WriteFile(clock+".new", []byte(shift+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(clock+".new", clock); err != nil {
			t.Fatal(err)
		}
	}
	set("+0")
	return startPostgres(t, "LD_PRELOAD="+libraries[0], "FAKETIME_TIMESTAMP_FILE="+clock, "FAKETIME_NO_CACHE=1", "FAKETIME_DONT_FAKE_MONOTONIC=1"), set
}
