package e2e

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/builtinpg/pgtest"
	"github.com/purser-registry/purser/internal/db/dbtest"
)

// scratch is the directory below which the tests write all their files. Other users may enter
// it, because PostgreSQL runs as another user if the tests run as root.
var scratch string

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	flag.Parse()
	if parallel := flag.Lookup("test.parallel"); parallel.Value.String() == parallel.DefValue {
		// More tests than CPUs run in parallel, since the tests mostly wait for processes.
		if err := parallel.Value.Set(strconv.Itoa(2 * runtime.GOMAXPROCS(0))); err != nil {
			panic(err)
		}
	}
	dir, err := os.MkdirTemp(pgtest.Place(), "purser-e2e-")
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

// build builds the purser binary that all tests start.
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

// givenBinary is the name of an environment variable. If it is set, its value is the path of
// the purser binary that the tests use, such as that of a release; otherwise the tests build
// one.
const givenBinary = "PURSER_TEST_BINARY"

// binary returns the path of the purser binary.
func binary() string {
	if path := os.Getenv(givenBinary); path != "" {
		return path
	}
	return filepath.Join(scratch, "purser")
}

// target returns the HOST:PORT of the registry that is tested instead of Purser, or "" if
// Purser is tested.
func target() string { return os.Getenv("PURSER_TEST_TARGET") }

// begin must be called first in each test: the test then runs in parallel with others, and is
// skipped with -short.
func begin(t *testing.T) {
	t.Helper()
	t.Parallel()
	if testing.Short() {
		t.Skip("end-to-end tests don't run with -short")
	}
}

// beginOwn is like begin, for a test that starts and stops Purser. Such a test is skipped if
// another registry is tested.
func beginOwn(t *testing.T) {
	t.Helper()
	begin(t)
	if target() != "" {
		t.Skip("PURSER_TEST_TARGET is set, and this test needs a registry of its own")
	}
}

// lacking skips a test because a program that it needs isn't installed. In CI it fails the
// test, since a skipped test would look like one that passed.
func lacking(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatalf(format+"; in CI no test may skip", args...)
	}
	t.Skipf(format, args...)
}

var dirs atomic.Int64

// newDir creates a directory that any user may enter, and removes it when the test ends. Its
// path is short, because tests create sockets in it, and the path of a socket is limited.
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
