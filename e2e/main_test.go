package e2e

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/db/dbtest"
)

// scratch is the directory of everything that the tests write. Others may enter
// it, because PostgreSQL gives up root.
var scratch string

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	flag.Parse()
	dir, err := os.MkdirTemp("", "purser-e2e-")
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "making a directory for the tests:", err)
		return 1
	}
	defer os.RemoveAll(dir)
	scratch = dir
	if !testing.Short() && target() == "" && os.Getenv(givenBinary) == "" {
		if err := build(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return dbtest.Run(m)
}

// build makes the binary that all tests start.
func build() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	args := []string{"build", "-buildvcs=false", "-o", binary()}
	if raceEnabled {
		args = append(args, "-race")
	}
	cmd := exec.CommandContext(ctx, "go", append(args, "github.com/purser-registry/purser/cmd/purser")...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building cmd/purser: %w\n%s", err, out)
	}
	return nil
}

// givenBinary names a built purser to test, a release's for one.
const givenBinary = "PURSER_TEST_BINARY"

// binary returns the path of the purser binary.
func binary() string {
	if path := os.Getenv(givenBinary); path != "" {
		return path
	}
	return filepath.Join(scratch, "purser")
}

// target returns the registry that is tested instead of Purser, "" for none.
func target() string { return os.Getenv("PURSER_TEST_TARGET") }

// begin starts a test: it runs beside others, and not at all with -short.
func begin(t *testing.T) {
	t.Helper()
	t.Parallel()
	if testing.Short() {
		t.Skip("end-to-end tests don't run with -short")
	}
}

// beginOwn is begin for a test that needs a Purser to start and stop.
func beginOwn(t *testing.T) {
	t.Helper()
	begin(t)
	if target() != "" {
		t.Skip("PURSER_TEST_TARGET is set, and this test needs a registry of its own")
	}
}

// lacking skips a test that lacks a part, and fails it in CI, where a test that
// skips would look like one that passed.
func lacking(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatalf(format+"; in CI no test may skip", args...)
	}
	t.Skipf(format, args...)
}

var dirs atomic.Int64

// newDir makes a directory that any user may enter, with a short path because
// sockets are put in it. It goes when the test ends.
func newDir(t testing.TB) string {
	t.Helper()
	dir := filepath.Join(scratch, fmt.Sprint(dirs.Add(1)))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("removing the test's directory: %v", err)
		}
	})
	return dir
}
