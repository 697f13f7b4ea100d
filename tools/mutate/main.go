// Command mutate shows which statements about concurrency are tested. It takes a lock, a condition
// or a second look out of one statement at a time (a mutation, see mutations.go), and runs the
// tests that must notice:
//
//	go run ./tools/mutate            all mutations
//	go run ./tools/mutate quota hold those whose name has one of these words
//	go run ./tools/mutate -list      their names, files and tests
//	go run ./tools/mutate -v quota   with what the tests print: do they fail for the right reason?
//
// A mutation whose tests pass all the same survives: a test is to be written. mutate changes no
// file of the tree: the go command reads the changed file by its flag -overlay, also where a
// file is embedded. It exits with 1 if a mutation survives, or if it couldn't be tried.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

// mutation is a change of one place of a file that tests must notice.
type mutation struct {
	name string
	// file has the text `old` once; `new` takes its place.
	file, old, new string
	pkg            string // where the tests are
	run            string // the tests, as `go test -run` takes them
}

// outcome is what became of a mutation.
type outcome string

const (
	noticed  outcome = "noticed"
	survived outcome = "SURVIVED"
	// broken is a mutation that makes no valid program or statement, or whose tests don't exist, so
	// that it says nothing of the tests.
	broken outcome = "BROKEN"
)

func main() {
	list := flag.Bool("list", false, "print the names of the mutations")
	verbose := flag.Bool("v", false, "print what the tests print")
	flag.Parse()
	chosen := slices.DeleteFunc(slices.Clone(mutations), func(m mutation) bool {
		return flag.NArg() > 0 && !slices.ContainsFunc(flag.Args(), func(word string) bool { return strings.Contains(m.name, word) })
	})
	if *list {
		for _, m := range chosen {
			fmt.Printf("%-68s %-40s %s %s\n", m.name, m.file, m.pkg, m.run)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := try(ctx, chosen, *verbose); err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		stop()
		os.Exit(1)
	}
}

// try tries the mutations and prints what becomes of each.
func try(ctx context.Context, list []mutation, verbose bool) error {
	dir, err := os.MkdirTemp("", "mutate-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // only a copy is left
	bad := 0
	for _, m := range list {
		began := time.Now()
		became, output, err := m.try(ctx, dir)
		if err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
		fmt.Printf("%-8s %s (%s)\n", became, m.name, time.Since(began).Round(time.Second))
		if became != noticed {
			bad++
			fmt.Printf("         %s: go test -run '%s' %s\n", m.file, m.run, m.pkg)
		}
		if became == broken || verbose {
			fmt.Println(output)
		}
	}
	if bad > 0 {
		return fmt.Errorf("%d of %d mutations were not noticed", bad, len(list))
	}
	return nil
}

// apply returns the file's text with the mutation.
func (m mutation) apply() ([]byte, error) {
	text, err := os.ReadFile(m.file)
	if err != nil {
		return nil, err
	}
	if n := bytes.Count(text, []byte(m.old)); n != 1 {
		return nil, fmt.Errorf("%s has the text %q %d times, want once", m.file, m.old, n)
	}
	return bytes.Replace(text, []byte(m.old), []byte(m.new), 1), nil
}

// invalid matches what PostgreSQL and the go command print for a mutation that says nothing:
// SQLSTATE 42… is a syntax error, or something that doesn't exist.
var invalid = regexp.MustCompile(`SQLSTATE 42[0-9A-Z]{3}|\[(build|setup) failed\]|no tests to run`)

// try runs the mutation's tests on the changed program. An error means that it couldn't.
func (m mutation) try(ctx context.Context, dir string) (outcome, string, error) {
	text, err := m.apply()
	if err != nil {
		return "", "", err
	}
	original, err := filepath.Abs(m.file)
	if err != nil {
		return "", "", err
	}
	changed, overlay := filepath.Join(dir, filepath.Base(m.file)), filepath.Join(dir, "overlay.json")
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {original: changed}})
	if err != nil {
		return "", "", err
	}
	if err := os.WriteFile(changed, text, 0o600); err != nil {
		return "", "", err
	}
	if err := os.WriteFile(overlay, replace, 0o600); err != nil {
		return "", "", err
	}
	c := exec.CommandContext(ctx, "go", "test", "-overlay", overlay, "-vet=off", "-count=1", "-failfast", "-timeout=10m", "-run", m.run, m.pkg)
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
	output, err := c.CombinedOutput()
	switch {
	case ctx.Err() != nil:
		return "", "", ctx.Err()
	case invalid.Match(output):
		return broken, string(output), nil
	case err == nil:
		return survived, string(output), nil
	case c.ProcessState == nil: // there is no go command
		return "", "", err
	}
	return noticed, string(output), nil
}
