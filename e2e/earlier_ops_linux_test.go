//go:build all

package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// givenEarlierBinary is the name of an environment variable with the path of a purser binary from
// which to upgrade, such as that of a release.
const givenEarlierBinary = "PURSER_TEST_EARLIER_BINARY"

// earlierVersion returns the binary of the version from which the tests upgrade. If there is
// none, it skips the test.
func earlierVersion(t *testing.T) string {
	t.Helper()
	if given := os.Getenv(givenEarlierBinary); given != "" {
		return given
	}
	revision, err := earlierRevision()
	if err != nil {
		lacking(t, "no earlier version: %v", err)
	}
	program, err := buildRevision(revision)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("the earlier version is %s", revision)
	return program
}

// earlierRevision returns the tag of the last release before today's commit. Until there is a
// release, it returns the last commit that has changed the schema: a schema that was never
// released is changed in place, and a database of an earlier commit can't be upgraded.
func earlierRevision() (string, error) {
	shallow, err := git("rev-parse", "--is-shallow-repository")
	switch {
	case err != nil:
		return "", fmt.Errorf("it is built from a clone of the repository, or given by %s: %w", givenEarlierBinary, err)
	case shallow != "false":
		return "", errors.New("this clone is shallow: \"git fetch --unshallow --tags\" gets the releases and the history, or give a binary by " + givenEarlierBinary)
	}
	if tag, err := git("describe", "--tags", "--abbrev=0", "--match", "v*", "HEAD^"); err == nil {
		return tag, nil
	}
	commit, err := git("log", "-1", "--format=%H", "--", "internal/db/migrations", "internal/db/stats")
	if err == nil && commit == "" {
		err = errors.New("no commit has changed the schema")
	}
	return commit, err
}

// git runs git in the repository and returns what it prints.
func git(args ...string) (string, error) {
	out, err := exec.Command("git", append([]string{"-C", ".."}, args...)...).Output()
	if failed, ok := errors.AsType[*exec.ExitError](err); ok {
		err = fmt.Errorf("git %s: %w: %s", args[0], err, failed.Stderr)
	}
	return strings.TrimSpace(string(out)), err
}

// buildRevision builds the version of a tag or commit. With -trimpath the packages come from the
// cache in later runs, although the directory has another name.
func buildRevision(revision string) (string, error) {
	dir, err := os.MkdirTemp(scratch, "earlier-")
	if err != nil {
		return "", err
	}
	source, program := filepath.Join(dir, "source"), filepath.Join(dir, "purser")
	for _, command := range []string{
		fmt.Sprintf("mkdir %s && git -C .. archive %s | tar -x -C %[1]s", source, revision),
		fmt.Sprintf("cd %s && GOWORK=off go build -trimpath -buildvcs=false -o %s ./cmd/purser", source, program),
	} {
		if out, err := exec.Command("bash", "-c", "set -o pipefail; "+command).CombinedOutput(); err != nil {
			return "", fmt.Errorf("building Purser at %s: %w\n%s", revision, err, out)
		}
	}
	return program, os.RemoveAll(source)
}

// migrates says whether today's version has migrations for a database that the earlier version
// has made.
func migrates(t *testing.T, env []string) bool {
	t.Helper()
	code, out := purser(t, env, "migrate", "status")
	if code != 0 {
		t.Fatalf("purser migrate status exited with %d:\n%s", code, out)
	}
	return strings.Contains(out, " pending ")
}
