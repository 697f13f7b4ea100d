//go:build all

package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/crane"
)

// place is a registry that isn't started: its settings for commands and servers.
type place struct {
	t   *testing.T
	env []string
	dir string
}

func newPlace(t *testing.T) *place {
	t.Helper()
	dir := newDir(t)
	return &place{t: t, dir: dir, env: []string{"PURSER_DATABASE_MAIN=" + startPostgres(t).DSN(),
		"PURSER_STORAGE_FILESYSTEM_PATH=" + filepath.Join(dir, "blobs"), "PURSER_DATA_DIR=" + dir}}
}

// serve starts a server of a version; "" is today's.
func (p *place) serve(program string, env ...string) *registry {
	p.t.Helper()
	return startRegistry(p.t, options{program: program, dataDir: p.dir, env: append(slices.Clone(p.env[:2]), env...)})
}

// run runs a command, which must end with the exit code and print the text.
func (p *place) run(program string, code int, want string, args ...string) {
	p.t.Helper()
	cmd := exec.CommandContext(p.t.Context(), program, args...)
	cmd.Env = childEnv(p.env...)
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != code || !strings.Contains(string(out), want) {
		p.t.Fatalf("purser %v: %v, want exit code %d and %q\n%s", args, err, code, want, out)
	}
}

// TestOpsBackupOfEarlierVersion restores a backup that an earlier version has made. If today's
// version has another schema, it makes no backup of the earlier version's database, and the earlier
// version refuses a backup of today's.
func TestOpsBackupOfEarlierVersion(t *testing.T) {
	beginOwn(t)
	earlier := earlierVersion(t)
	im, old, backups := newImages(t), newPlace(t), newDir(t)
	r := old.serve(earlier)
	im.push(r, "v1", "v2")
	r.Stop()
	old.run(earlier, 0, "is complete", "backup", backups)
	migrates := migrates(t, old.env)
	if migrates {
		old.run(binary(), 1, "purser migrate up", "backup", backups)
	}

	now := newPlace(t)
	now.run(binary(), 0, "is restored", "restore", backups)
	now.run(binary(), 0, "All is well", "check", "--deep")
	r = now.serve("")
	im.whole(r, "v1", "v2")
	im.push(r, "v3")
	r.Stop()
	later := newDir(t)
	now.run(binary(), 0, "is complete", "backup", later)
	if migrates {
		newPlace(t).run(earlier, 1, "schema is newer", "restore", later)
	} else {
		newPlace(t).run(earlier, 0, "is restored", "restore", later)
	}
}

// TestOpsBackupOrders copies database and store one after the other, in both orders, while an image is
// pushed and another one collected in between. What each order loses is what docs/backup.md says.
func TestOpsBackupOrders(t *testing.T) {
	beginOwn(t)
	for _, c := range []struct {
		name       string
		keep       string
		storeFirst bool
		lost       []string
	}{
		{"the database first", "1h", false, nil},
		{"the database first, nothing kept", "0s", false, []string{"collected"}},
		{"the store first", "1h", true, []string{"pushed"}},
	} {
		t.Run(c.name, func(t *testing.T) { testBackupOrder(t, c.keep, c.storeFirst, c.lost) })
	}
}

func testBackupOrder(t *testing.T, keep string, storeFirst bool, lost []string) {
	im, from, backups, to := newImages(t), newPlace(t), newDir(t), newPlace(t)
	r := from.serve("", "PURSER_GC_REVIEW_AFTER=0s", "PURSER_GC_KEEP_DOOMED="+keep)
	im.push(r, "stays", "collected")
	database := func() { from.run(binary(), 0, "is complete", "backup", "--blobs", "reference", backups) }
	store := func() {
		t.Helper()
		if out, err := exec.Command("cp", "-a", filepath.Join(from.dir, "blobs"), to.dir).CombinedOutput(); err != nil {
			t.Fatalf("copying the store: %v: %s", err, out)
		}
	}
	between := func() {
		t.Helper()
		if storeFirst {
			im.push(r, "pushed")
			return
		}
		im.crane.Run("delete", r.Ref("acme/app", digestOf(t, im.known["collected"])))
		if keep != "0s" {
			r.keepsDoomed(3)
			return
		}
		eventually(t, readyWithin, func() error {
			files, err := filepath.Glob(filepath.Join(from.dir, "blobs/objects/*/*-*"))
			if err == nil && len(files) > 3 {
				err = fmt.Errorf("%d objects, want those of one image", len(files))
			}
			return err
		})
	}
	if storeFirst {
		store()
		between()
		database()
	} else {
		database()
		between()
		store()
	}
	r.Stop()
	to.run(binary(), 0, "is restored", "restore", "--keep-store", backups)
	if len(lost) == 0 {
		to.run(binary(), 0, "All is well", "check", "--deep")
	} else {
		to.run(binary(), 4, "3 blobs missing from the store", "check")
	}
	r = to.serve("")
	for tag := range im.known {
		if !slices.Contains(lost, tag) {
			im.whole(r, tag)
		}
	}
}

// TestOpsBackupKilled kills backups and restores again and again, while clients push, and a policy and
// garbage collection delete, in the registry that is backed up. What had its tag before the last backup
// and has it still afterwards is in the restored registry, and every image there is whole.
func TestOpsBackupKilled(t *testing.T) {
	beginOwn(t)
	from, to, backups := newPlace(t), newPlace(t), newDir(t)
	r := from.serve("", "PURSER_GC_REVIEW_AFTER=0s", "PURSER_AUTOPRUNE_INTERVAL=1s",
		"PURSER_GC_REVIEW_AFTER_EVENTS=blob_upload=10s, manifest_upload=10s")
	im := newImages(t)
	im.push(r, "kept-1", "kept-2", "kept-3")
	r.remote("protection", "add", "acme", "^kept-")
	ctx, cancel := context.WithCancel(t.Context())
	var pushing sync.WaitGroup
	pushed := make(chan struct{}, 1000)
	for worker := range 2 {
		pushing.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				if err := crane.Push(newImage(t, 2, 50<<10), r.Ref("acme/app", fmt.Sprintf("w%d-%d", worker, i))); err != nil {
					t.Error(err)
				}
				select {
				case pushed <- struct{}{}:
				default:
				}
			}
		})
	}
	defer pushing.Wait()
	defer cancel()
	for range 60 {
		<-pushed
	}
	r.remote("policy", "create", "acme", "--num-tags", "40", "--mode", "on", "--yes")
	for i := range 12 {
		from.killed(time.Duration(20+rand.IntN(60*(i+1)))*time.Millisecond, "backup", backups)
	}
	var before, after, stay []string
	for len(stay) == len(before) { // until the policy has deleted tags during a backup
		before = tagsOf(t, r)
		from.run(binary(), 0, "is complete", "backup", backups)
		after = tagsOf(t, r)
		stay = slices.DeleteFunc(slices.Clone(before), func(tag string) bool { return !slices.Contains(after, tag) })
	}
	ended := false
	for i := 0; i < 8 && !ended; i++ {
		ended = to.killed(time.Duration(50+rand.IntN(100*(i+1)))*time.Millisecond, "restore", backups)
	}
	if !ended {
		to.run(binary(), 0, "is restored", "restore", backups)
	}
	to.run(binary(), 0, "All is well", "check", "--deep")
	copied := to.serve("", "PURSER_GC_REVIEW_BLOBS=false", "PURSER_GC_REVIEW_MANIFESTS=false", "PURSER_AUTOPRUNE_ENABLED=false")
	there := tagsOf(t, copied)
	client := toolClient(t, "crane")
	for _, tag := range there {
		client.Run("validate", "--remote", copied.Ref("acme/app", tag))
	}
	for _, tag := range stay {
		if !slices.Contains(there, tag) {
			t.Errorf("%s isn't in the restored registry", tag)
		}
	}
	im.whole(copied, "kept-1", "kept-2", "kept-3")
	t.Logf("%d tags before the last backup, %d after it, %d both; %d restored", len(before), len(after), len(stay), len(there))
	cancel()
	pushing.Wait()
	from.run(binary(), 0, "All is well", "check", "--deep")
}

// killed starts a command and kills it after a time. It returns whether the command had succeeded
// before.
func (p *place) killed(after time.Duration, args ...string) bool {
	p.t.Helper()
	cmd := exec.Command(binary(), args...)
	cmd.Env = childEnv(p.env...)
	process, err := startProcess("purser "+args[0], cmd)
	if err != nil {
		p.t.Fatal(err)
	}
	select {
	case <-process.exited:
		if process.err != nil {
			p.t.Fatalf("purser %v: %v\n%s", args, process.err, process.out.tail(20))
		}
		return true
	case <-time.After(after):
		process.kill()
		return false
	}
}

func tagsOf(t *testing.T, r *registry) []string {
	t.Helper()
	tags, err := crane.ListTags(r.host + "/acme/app")
	if err != nil {
		t.Fatal(err)
	}
	return tags
}
