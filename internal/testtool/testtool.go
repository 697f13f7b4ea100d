// Package testtool finds the programs that tests drive and that tools/versions names. A test
// asks for one by name, and tools/get builds it if it isn't in the user's cache directory yet.
package testtool

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

var found sync.Map // by name: a function that returns the path or the error

// Path returns the path of the tool's program. A process asks tools/get once for each tool.
func Path(name string) (string, error) {
	f, _ := found.LoadOrStore(name, sync.OnceValues(func() (string, error) { return get(name) }))
	return f.(func() (string, error))()
}

func get(name string) (string, error) {
	root, err := checkout()
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute) // a cold build of a large tool
	defer cancel()
	out, err := exec.CommandContext(ctx, "bash", filepath.Join(root, "tools", "get"), name).Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		err = fmt.Errorf("%w\n%s", err, exit.Stderr)
	}
	if err != nil {
		return "", fmt.Errorf("tools/get %s: %w", name, err)
	}
	return strings.TrimSpace(string(out)), nil
}

// checkout returns the directory of the repository in which the test runs: the current
// directory or one above it. The path in the program isn't asked, since a program that was
// built with -trimpath has none.
func checkout() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "tools", "versions")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("the test doesn't run in a checkout of Purser, which has tools/versions")
		}
	}
}
