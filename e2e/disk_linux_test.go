package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// smallDisk mounts a file system of some MiB. Only root may do that, and in CI root must be able to.
func smallDisk(t *testing.T, mib int) string {
	t.Helper()
	dir := newDir(t)
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%dm", mib)); err != nil {
		if os.Getuid() == 0 && os.Getenv("CI") != "" {
			t.Fatalf("root can't mount a small disk: %v", err)
		}
		t.Skipf("only root who may mount can fill a disk: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// fill writes to a file until the disk is full.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for size := 1 << 20; size >= 1; {
		if _, err = f.Write(make([]byte, size)); err != nil {
			size /= 16
		}
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
}

// ready returns the status and the text of /readyz, once its lines have a text: a check's result is
// kept for some seconds.
func (r *registry) ready(want string) {
	r.t.Helper()
	eventually(r.t, time.Minute, func() error {
		res, err := http.Get("http://" + r.debug + "/readyz")
		if err != nil {
			return err
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		if err == nil && (res.StatusCode != http.StatusOK || !strings.Contains(string(text), want)) {
			err = fmt.Errorf("%d %s, want 200 and %q", res.StatusCode, text, want)
		}
		return err
	})
}

// TestFullAndReadOnlyDisk: while the disk of the blobs is full, and while it is mounted read-only, pushes
// are refused with a reason, pulls work, and the server is ready, as the documentation says. When there is
// room again, pushes work without a restart, and the refused ones can be sent again.
func TestFullAndReadOnlyDisk(t *testing.T) {
	beginOwn(t)
	disk := smallDisk(t, 24)
	r := startRegistry(t, options{env: []string{"PURSER_STORAGE_FILESYSTEM_PATH=" + filepath.Join(disk, "blobs")}})
	layer := randomBytes(2 << 20)
	first, err := r.API().pushImage(t.Context(), "disk/app", "v1", layer)
	if err != nil {
		t.Fatal(err)
	}
	r.ready("pushes: ok")
	works := func(tag string) {
		t.Helper()
		d, err := r.API().pushImage(t.Context(), "disk/app", tag, randomBytes(1<<20))
		if err != nil {
			t.Fatalf("pushing again: %v", err)
		}
		r.API().checkWhole(t, "disk/app", tag, d.String())
	}
	refused := func(tag, reason string) {
		t.Helper()
		_, err := r.API().pushImage(t.Context(), "disk/app", tag, bytes.Repeat([]byte(tag), 1<<20))
		if err == nil || !strings.Contains(err.Error(), reason) {
			t.Errorf("a push of %s: %v, want one that says %q", tag, err, reason)
		}
		r.API().checkWhole(t, "disk/app", "v1", first.String())
	}

	filler := filepath.Join(disk, "filler")
	fill(t, filler)
	refused("full", "full")
	r.ready("pushes: the disk of the blobs is full")
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	works("after-full")
	r.ready("pushes: ok")

	// The disk becomes full in the middle of an upload, which goes on when there is room again.
	u, err := r.API().startUpload(t.Context(), "disk/app")
	if err == nil {
		err = r.API().patch(t.Context(), u, layer[:1<<20])
	}
	if err != nil {
		t.Fatal(err)
	}
	fill(t, filler)
	if err := r.API().patch(t.Context(), u, layer[1<<20:]); err == nil || !strings.Contains(err.Error(), "full") {
		t.Errorf("going on with an upload on a full disk: %v", err)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	if err := r.API().status(t.Context(), u); err != nil {
		t.Errorf("the upload is gone after the disk was full: %v", err)
	}

	remount := func(flags uintptr) {
		t.Helper()
		eventually(t, time.Minute, func() error { // a file that is open for writing holds it up
			return unix.Mount("", disk, "", unix.MS_REMOUNT|flags, "")
		})
	}
	remount(unix.MS_RDONLY)
	refused("read-only", "read-only")
	r.ready("pushes: ")
	r.ready("can be read, but not written")
	remount(0)
	works("after-read-only")
	r.ready("pushes: ok")
}
