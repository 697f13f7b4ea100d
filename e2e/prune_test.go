package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// remote runs a command that calls this registry over the network, as from another machine.
// The command must succeed; remote returns its output.
func (r *registry) remote(args ...string) string {
	r.t.Helper()
	code, out := purser(r.t, []string{"PURSER_SERVER=" + r.URL()}, args...)
	if code != 0 {
		r.t.Fatalf("purser %s exited with %d:\n%s", strings.Join(args, " "), code, out)
	}
	return out
}

// says fails the test unless text contains all of want.
func says(t testing.TB, text string, want ...string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(text, w) {
			t.Errorf("nothing of %q in:\n%s", w, text)
		}
	}
}

// With commands and clients, the test previews an auto-prune policy, saves it, waits until the
// registry has deleted tags by it, and undoes the run.
func TestPruneFromPreviewToUndo(t *testing.T) {
	beginOwn(t)
	r := startRegistry(t, options{env: []string{"PURSER_AUTOPRUNE_INTERVAL=1s"}})
	crane := toolClient(t, "crane")
	digests := map[string]string{}
	for i := range 5 {
		name := fmt.Sprintf("v%d", i)
		image := newImage(t, 1, 4<<10)
		digests[name] = digestOf(t, image)
		crane.Run("push", writeImage(t, image, "v1"), r.Ref("app/web", name))
	}
	signature := "sha256-" + strings.TrimPrefix(digests["v0"], "sha256:") + ".sig"
	crane.Run("push", writeImage(t, newImage(t, 1, 1<<10), "v1"), r.Ref("app/web", signature))
	r.remote("protection", "add", "app", "v1")

	preview := r.remote("prune", "preview", "app", "--num-tags", "2")
	says(t, preview, "app/web:v0", "app/web:v2", "app/web:"+signature, "not among the newest 2", "belongs to an image that loses its last tag",
		"3 of 6 tags in 1 repository would be deleted")
	if strings.Contains(preview, "app/web:v1 ") {
		t.Errorf("a protected tag would go:\n%s", preview)
	}
	says(t, r.remote("policy", "create", "app", "--num-tags", "2", "--mode", "on", "--yes"), "Created policy")
	says(t, r.remote("prune", "run", "app"), "success: deleted") // the worker may have come by itself before
	if got, want := strings.Fields(crane.Run("ls", r.host+"/app/web")), []string{"v1", "v3", "v4"}; !slices.Equal(got, want) {
		t.Errorf("tags after the run: %v, want %v", got, want)
	}
	var runs []struct {
		ID      string
		Deleted int64 `json:"tags_deleted"`
	}
	if err := json.Unmarshal([]byte(r.remote("prune", "runs", "app", "-o", "json")), &runs); err != nil {
		t.Fatal(err)
	}
	run := runs[len(runs)-1] // the first
	if run.Deleted != 3 {
		t.Fatalf("runs: %+v", runs)
	}
	says(t, r.remote("prune", "show", run.ID), "app/web")
	says(t, r.remote("audit", "list", "app", "--run", run.ID), "autoprune_tag_delete", "app/web:v0", "app/web:v2", signature)
	says(t, r.remote("prune", "undo", run.ID), "Restored 3 tags")
	for name, digest := range digests {
		if got := strings.TrimSpace(crane.Run("digest", r.Ref("app/web", name))); got != digest {
			t.Errorf("%s is %s after the undo, want %s", name, got, digest)
		}
	}
	says(t, r.remote("prune", "run", "app"), "success: deleted 0 of 6 tags")
	if code, out := purser(t, []string{"PURSER_SERVER=" + r.URL()}, "policy", "create", "app", "--older-than", "0d"); code != 2 || !strings.Contains(out, "--older-than") {
		t.Errorf("0d: exit code %d:\n%s", code, out)
	}
}
