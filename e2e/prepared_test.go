package e2e

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// prepared is a directory that one test makes, and that all tests then copy.
type prepared struct {
	once sync.Once
	dir  string
}

// copy copies the prepared directory into a new directory of the test, and returns the new
// directory's path. The first call makes the prepared directory, called `name`, with `fn`.
func (p *prepared) copy(t testing.TB, name string, fn func(dir string)) string {
	t.Helper()
	p.once.Do(func() {
		dir := filepath.Join(scratch, name)
		if fn(dir); !t.Failed() {
			p.dir = dir
		}
	})
	if p.dir == "" {
		t.Fatalf("another test failed to prepare %s", name)
	}
	to := newDir(t)
	if out, err := exec.Command("cp", "-a", p.dir+"/.", to).CombinedOutput(); err != nil {
		t.Fatalf("copying %s: %v\n%s", name, err, out)
	}
	return to
}

var startedOnce prepared

// dataDir returns the data directory for a new registry with these settings. If the settings
// name neither a database nor a store, the directory is a copy of one in which a registry was
// started and stopped before, since creating a database takes ten times as long as starting
// with an existing one. Only TestStartsFromNothingAndAgain starts in an empty directory.
func dataDir(t testing.TB, env []string) string {
	t.Helper()
	if slices.ContainsFunc(env, func(v string) bool {
		return strings.HasPrefix(v, "PURSER_DATABASE_") || strings.HasPrefix(v, "PURSER_STORAGE_") || strings.HasPrefix(v, "PURSER_CONFIG")
	}) {
		return newDir(t)
	}
	return startedOnce.copy(t, "started", func(dir string) {
		r := &registry{t: t, opt: options{dataDir: dir}}
		t.Cleanup(r.cleanup)
		r.start()
		r.Stop()
	})
}
