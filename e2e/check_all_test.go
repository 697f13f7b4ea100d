//go:build all

package e2e

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// "purser check --repair" runs with a directory that has no store. It must report an error,
// and must not create a store there or take it for an empty one.
func TestCheckOfAnUnmountedVolume(t *testing.T) {
	beginOwn(t)
	r := startRegistry(t, options{})
	if _, err := r.API().pushImage(t.Context(), "team/app", "v1", randomBytes(1<<10)); err != nil {
		t.Fatal(err)
	}
	empty := newDir(t)
	code, out := purser(t, []string{"PURSER_STORAGE_FILESYSTEM_PATH=" + empty}, "check", "--data-dir", r.opt.dataDir, "--repair", "--own-settings")
	if code != 1 || !strings.Contains(out, "mounted") {
		t.Errorf("purser check exited with %d, want 1:\n%s", code, out)
	}
	if entries, err := os.ReadDir(empty); err != nil || len(entries) > 0 {
		t.Errorf("it left %v in the directory (%v)", entries, err)
	}
	if code, out := purser(t, nil, "check", "--data-dir", r.opt.dataDir); code != 0 {
		t.Errorf("purser check exited with %d:\n%s", code, out)
	}
}

// The test damages a store in S3. A check must find the same problems there as in a directory.
func TestCheckOfS3(t *testing.T) {
	beginOwn(t)
	env := storages["s3"](t)
	r := startRegistry(t, options{env: env})
	large := randomBytes(9 << 20) // large enough for more than one part
	if _, err := r.API().pushImage(t.Context(), "team/app", "v1", large, randomBytes(1<<10)); err != nil {
		t.Fatal(err)
	}
	u, err := r.API().startUpload(t.Context(), "team/app") // in progress
	if err == nil {
		err = r.API().patch(t.Context(), u, large)
	}
	if err != nil {
		t.Fatal(err)
	}
	code, out := purser(t, env, "check", "--data-dir", r.opt.dataDir, "--deep")
	if code != 0 || !strings.Contains(out, "with 3 blobs") || !strings.Contains(out, "All is well.") {
		t.Errorf("purser check exited with %d:\n%s", code, out)
	}
	other := slices.Concat(env, []string{"PURSER_STORAGE_S3_PREFIX=elsewhere"})
	code, out = purser(t, other, "check", "--data-dir", r.opt.dataDir)
	if code != 4 || !strings.Contains(out, "3 blobs missing from the store") {
		t.Errorf("purser check of another prefix exited with %d:\n%s", code, out)
	}
}
