package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/db/dbtest"
)

// refused runs a command that calls this registry, fails the test if it succeeds, and returns its
// output.
func (r *registry) refused(args ...string) string {
	r.t.Helper()
	code, out := purser(r.t, []string{"PURSER_SERVER=" + r.URL()}, args...)
	if code == 0 {
		r.t.Fatalf("purser %s succeeded:\n%s", strings.Join(args, " "), out)
	}
	return out
}

// TestDeployedStays: what a pipeline reports as deployed outlives a client that deletes it, a
// push that moves its tag, a policy, and garbage collection on another replica, until the
// reporter drops it.
func TestDeployedStays(t *testing.T) {
	beginOwn(t)
	dsn := dbtest.EmptyDSN(t)
	env := []string{"PURSER_GC_REVIEW_AFTER=0s", "PURSER_GC_REVIEW_BLOBS=false", "PURSER_GC_REVIEW_MANIFESTS=false",
		"PURSER_DATABASE_MAIN=" + dsn, "PURSER_STORAGE_FILESYSTEM_PATH=" + newDir(t), "PURSER_AUTOPRUNE_INTERVAL=1h"}
	a, b := startRegistry(t, options{env: env}), startRegistry(t, options{env: env})
	crane := toolClient(t, "crane")
	push := func(tag string) string {
		image := newImage(t, 1, 4<<10)
		crane.Run("push", writeImage(t, image, "v1"), a.Ref("shop/web", tag))
		return digestOf(t, image)
	}
	old, deployed := push("v1"), push("v2")
	moved := push("live")
	list := filepath.Join(t.TempDir(), "deployed")
	report := func(lines ...string) {
		t.Helper()
		if err := os.WriteFile(list, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		a.remote("report", "stdin", "prod", list, "--namespace", "shop", "--kind", "nomad", "--lease", "1h")
	}
	report(a.host+"/shop/web:v2 job web", a.host+"/shop/web@"+moved+" job live")
	says(t, a.remote("hold", "show", "prod", "--namespace", "shop"), deployed, moved, "job web", "nomad")

	says(t, b.refused("tag", "delete", "shop/web:v2", "--yes"), "prod (job web)", "--override-holds")
	push("live") // moves the tag
	push("newest")
	says(t, b.remote("policy", "create", "shop", "--num-tags", "1", "--mode", "on", "--yes"), "Created policy")
	says(t, b.remote("prune", "run", "shop"), "success")
	if got, want := strings.Fields(crane.Run("ls", b.host+"/shop/web")), []string{"newest", "v2"}; !slices.Equal(got, want) {
		t.Errorf("tags after pruning: %v, want %v", got, want)
	}
	b.collect(false)
	crane.Refused("manifest", a.Ref("shop/web", old))
	for _, digest := range []string{deployed, moved} {
		crane.Run("pull", b.Ref("shop/web", digest), filepath.Join(t.TempDir(), "image.tar"))
	}
	says(t, b.remote("gc", "explain", "shop/web@"+moved), "prod", "job live")

	// An image that a report leaves out stays for the rest of the lease.
	report(a.host + "/shop/web:v2 job web")
	db := openPool(t, dsn)
	collect := func() {
		t.Helper()
		// The review of what was held comes again after some minutes.
		if _, err := db.Exec(t.Context(), "UPDATE gc_manifest_review_queue SET review_after = now()"); err != nil {
			t.Fatal(err)
		}
		a.collect(false)
	}
	collect()
	crane.Run("manifest", a.Ref("shop/web", moved))
	if _, err := db.Exec(t.Context(), "UPDATE holds SET ends_at = now() WHERE ends_at IS NOT NULL"); err != nil { // time passes
		t.Fatal(err)
	}
	collect()
	crane.Refused("manifest", a.Ref("shop/web", moved))
	says(t, a.remote("hold", "delete", "prod", "--namespace", "shop", "--yes"), "prod")
	says(t, b.remote("prune", "run", "shop"), "success")
	if got := strings.Fields(crane.Run("ls", b.host+"/shop/web")); !slices.Equal(got, []string{"newest"}) {
		t.Errorf("tags after the hold: %v", got)
	}
}

// TestQuotaOfANamespace: a client is refused with the numbers when its push exceeds a quota, and
// may go on when the quota is raised.
func TestQuotaOfANamespace(t *testing.T) {
	beginOwn(t)
	dsn := dbtest.EmptyDSN(t)
	env := []string{"PURSER_DATABASE_MAIN=" + dsn, "PURSER_STORAGE_FILESYSTEM_PATH=" + newDir(t)}
	r := startRegistry(t, options{env: env})
	crane := toolClient(t, "crane")
	small, large := writeImage(t, newImage(t, 1, 10<<10), "v1"), writeImage(t, newImage(t, 1, 200<<10), "v1")
	crane.Run("push", small, r.Ref("app/web", "v1"))
	r.remote("quota", "set", "app", "--bytes", "100KiB", "--tags", "3")
	eventually(t, time.Minute, func() error { // the content is counted beside
		if out := r.remote("quota", "show", "app"); !strings.Contains(out, "1 of 3") {
			return fmt.Errorf("the quota:\n%s", out)
		}
		return nil
	})
	crane.Run("push", small, r.Ref("app/other", "v1"))
	says(t, crane.Refused("push", large, r.Ref("app/web", "v2")), "DENIED", "namespace app may have 100.0 KiB of blobs")
	crane.Run("push", large, r.Ref("free/web", "v2"))
	crane.Run("push", small, r.Ref("app/web", "v2"))
	says(t, crane.Refused("tag", r.Ref("app/web", "v1"), "v3"), "DENIED", "may have 3 tags")
	r.remote("quota", "set", "app", "--bytes", "1MiB", "--tags", "none")
	crane.Run("push", large, r.Ref("app/web", "v3"))
	says(t, r.remote("quota", "show", "app"), "of 1.0 MiB", "4, no limit")

	check := func(args ...string) (int, string) { return purser(t, env, append([]string{"check"}, args...)...) }
	if code, out := check(); code != 0 {
		t.Errorf("check exited with %d:\n%s", code, out)
	}
	if _, err := openPool(t, dsn).Exec(t.Context(), "UPDATE namespacequotaslots SET bytes = bytes + 7 WHERE slot = 3"); err != nil {
		t.Fatal(err)
	}
	code, out := check()
	if says(t, out, "1 quota with numbers that differ"); code == 0 {
		t.Error("check found a wrong number and exited with 0")
	}
	if code, out := check("--repair"); code != 0 {
		t.Errorf("check --repair exited with %d:\n%s", code, out)
	}
	if code, out := check(); code != 0 {
		t.Errorf("after the repair check exited with %d:\n%s", code, out)
	}
}
