package e2e

import (
	"net/http"
	"testing"
)

// TestBackup: a backup that is made while the registry serves is restored elsewhere, and has what was
// there at that moment: what was deleted since, and nothing of what was pushed since.
func TestBackup(t *testing.T) {
	beginOwn(t)
	r, crane := startRegistry(t, options{}), toolClient(t, "crane")
	img := newImage(t, 2, 20<<10)
	crane.Run("push", writeImage(t, img, "v1"), r.Ref("acme/app", "v1"))
	run := func(dataDir, want string, args ...string) {
		t.Helper()
		code, out := purser(t, nil, append(args, "--data-dir", dataDir)...)
		if code != 0 {
			t.Fatalf("purser %v exited with %d:\n%s", args, code, out)
		}
		says(t, out, want)
	}
	backups, restored := newDir(t), newDir(t)
	run(r.opt.dataDir, "is complete", "backup", backups)
	crane.Run("push", writeImage(t, newImage(t, 1, 1<<10), "v1"), r.Ref("acme/app", "later"))
	crane.Run("delete", r.Ref("acme/app", digestOf(t, img)))

	run(restored, "is restored", "restore", backups)
	run(restored, "All is well", "check", "--deep")
	there := startRegistry(t, options{dataDir: restored})
	there.API().checkWhole(t, "acme/app", "v1", digestOf(t, img))
	if status := getStatus(t.Context(), there.URL()+"/v2/acme/app/manifests/later"); status != http.StatusNotFound {
		t.Errorf("what was pushed after the backup: status %d, want 404", status)
	}
}
