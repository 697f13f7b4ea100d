package operatorfile

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestRead: a regular file is read, also through links and if it has no size of its own.
func TestRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	must(t, os.WriteFile(path, []byte("text"), 0o600))
	must(t, os.Symlink("file", link))
	for _, p := range []string{path, link} {
		f, err := Read(t.Context(), p, 4)
		if err != nil || string(f.Text) != "text" || f.ForAll() || time.Since(f.Changed) > time.Hour {
			t.Errorf("%s: %+v, %v", p, f, err)
		}
	}
	must(t, os.Chmod(path, 0o644))
	if f, err := Read(t.Context(), link, 4); err != nil || !f.ForAll() {
		t.Errorf("a file that everybody can read: %+v, %v", f, err)
	}
	if f, err := Read(t.Context(), "/proc/self/status", MaxPEM); err == nil && len(f.Text) == 0 {
		t.Error("a file of the kernel is empty")
	}
}

// TestReadRefuses: what could hold the reader up, or fill its memory, isn't read.
func TestReadRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	must(t, syscall.Mkfifo(at("pipe"), 0o600))
	must(t, os.Symlink("pipe", at("link")))
	must(t, os.WriteFile(at("sparse"), nil, 0o600))
	must(t, os.Truncate(at("sparse"), 200<<20))
	must(t, os.WriteFile(at("five"), []byte("12345"), 0o600))
	l, err := net.Listen("unix", at("socket"))
	must(t, err)
	defer l.Close() //nolint:errcheck
	for path, want := range map[string]string{
		at("pipe"): "a pipe", at("link"): "a pipe", dir: "a directory", at("socket"): "a socket", "/dev/zero": "a device",
		at("sparse"): "more than 1 MiB", at("none"): "no such file",
	} {
		_, err := Read(t.Context(), path, MaxPEM)
		if _, ok := errors.AsType[*fs.PathError](err); !ok || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v, want an error with %q", path, err, want)
		}
	}
	if _, err := Read(t.Context(), at("five"), 4); !errors.Is(err, ErrTooLarge) {
		t.Errorf("a file with one byte too many: %v", err)
	}
	// It becomes a pipe after its kind was looked at.
	f, err := os.OpenFile(at("pipe"), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	must(t, err)
	r := &reader{patience: time.Minute, open: func(string) (*os.File, error) { return f, nil }}
	if _, err := r.read(t.Context(), at("pipe"), 4); err == nil || !strings.Contains(err.Error(), "a pipe") {
		t.Errorf("a file that has become a pipe: %v", err)
	}
}

// TestReadOfFileThatHangs: a file's system doesn't answer. The callers get an error in time or
// when their contexts end, and however many there are, one goroutine hangs. Another file can be
// read meanwhile, and this one when its system answers again.
func TestReadOfFileThatHangs(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	slow, other := filepath.Join(dir, "slow"), filepath.Join(dir, "other")
	for _, path := range []string{slow, other} {
		must(t, os.WriteFile(path, []byte("text"), 0o600))
	}
	goOn, opened := make(chan struct{}), make(chan string, 10)
	r := &reader{patience: 100 * time.Millisecond, open: func(path string) (*os.File, error) {
		if opened <- path; path == slow {
			<-goOn
		}
		return open(path)
	}}
	for range 5 {
		if _, err := r.read(t.Context(), slow, 4); !errors.Is(err, ErrSlow) || !strings.Contains(err.Error(), slow) {
			t.Errorf("a file that hangs: %v", err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.read(ctx, slow, 4); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end of the context: %v", err)
	}
	if n := len(opened); n != 1 {
		t.Errorf("the file was opened %d times while it hung, want once", n)
	}
	r.patience = time.Minute
	if _, err := r.read(t.Context(), other, 4); err != nil {
		t.Errorf("another file: %v", err)
	}
	close(goOn)
	if f, err := r.read(t.Context(), slow, 4); err != nil || string(f.Text) != "text" {
		t.Errorf("when its system answers again: %+v, %v", f, err)
	}
}
