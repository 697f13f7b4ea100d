package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// refused fails the test unless a command has failed (its exit code isn't 0), and its output
// `out` contains every text in `want`.
func refused(t testing.TB, code int, out string, want ...string) {
	t.Helper()
	if code == 0 {
		t.Errorf("it exited with 0, and should have refused; it printed:\n%s", out)
	}
	for _, text := range want {
		if !strings.Contains(out, text) {
			t.Errorf("it says nothing of %q:\n%s", text, out)
		}
	}
	if strings.Contains(out, "goroutine ") {
		t.Errorf("it panicked:\n%s", out)
	}
}

func TestSecondInstanceIsRefused(t *testing.T) {
	beginOwn(t)
	r := startRegistry(t, options{})
	started := time.Now()
	code, out := purser(t, nil, "serve", "--data-dir", r.opt.dataDir, "--addr", "127.0.0.1:0", "--debug-addr", "127.0.0.1:0")
	refused(t, code, out, r.opt.dataDir)
	if took := time.Since(started); took > time.Minute {
		t.Errorf("the refusal took %v", took)
	}
	if _, err := r.API().pushImage(t.Context(), "first/app", "v1", randomBytes(1<<10)); err != nil {
		t.Errorf("the first instance was disturbed: %v", err)
	}
}

func TestConfigCheckNamesLineAndKey(t *testing.T) {
	beginOwn(t)
	file := writeFile(t, "purser.yaml", "http:\n  addr: 127.0.0.1:5000\n  adress: 127.0.0.1:6000\nuploads:\n  max_age: 24 hours\n")
	code, out := purser(t, nil, "config", "check", "--config", file)
	refused(t, code, out, file+":3", "http.adress", file+":5", "uploads.max_age")
	code, out = purser(t, nil, "serve", "--config", file, "--data-dir", newDir(t))
	refused(t, code, out, file+":3", "http.adress")
	code, out = purser(t, []string{"PURSER_HTTP_ADRESS=127.0.0.1:6000"}, "config", "check")
	refused(t, code, out, "PURSER_HTTP_ADRESS")
	code, out = purser(t, nil, "config", "check", "--config", filepath.Join(newDir(t), "missing.yaml"))
	refused(t, code, out, "missing.yaml")

	good := writeFile(t, "purser.yaml", "http:\n  addr: 127.0.0.1:5000\n")
	if code, out := purser(t, nil, "config", "check", "--config", good); code != 0 {
		t.Errorf("config check of a good file exited with %d:\n%s", code, out)
	}
}

// The test does what a new user does: it starts a registry in an empty directory, pushes,
// stops the registry and starts it again. The image must still be there.
func TestStartsFromNothingAndAgain(t *testing.T) {
	beginOwn(t)
	r := startRegistry(t, options{})
	d, err := r.API().pushImage(t.Context(), "again/app", "v1", randomBytes(1<<20))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		r.Stop()
		r.Restart()
		r.API().checkWhole(t, "again/app", "v1", d.String())
		if _, err := r.API().pushImage(t.Context(), "again/app", fmt.Sprintf("again%d", i), randomBytes(1<<10)); err != nil {
			t.Error(err)
		}
	}
}
