//go:build all

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
)

// disaster is an order of events after which a registry is restored, in the words of docs/backup.md. The
// new place has an empty database, and at first no store.
type disaster struct {
	what string
	do   func(d *afterDisaster)
	lost bool // one of the two images has to be pushed again
}

// afterDisaster is what is left: a backup, the old store, and a new place.
type afterDisaster struct {
	*place
	old     *place
	backups string
}

var disasters = []disaster{
	{what: "the database", do: func(d *afterDisaster) {
		d.copyStore()
		d.run(binary(), 0, "is restored", "restore", "--keep-store", d.backups)
	}},
	{what: "the database, and the store was copied back from elsewhere", do: func(d *afterDisaster) {
		d.copyStore()
		d.remove("blobs/objects/purser-store.json")
		d.run(binary(), 0, "is restored", "restore", "--keep-store", d.backups)
	}},
	{what: "the database, and the store was copied back without one object", do: func(d *afterDisaster) {
		d.copyStore()
		d.remove("blobs/objects/purser-store.json")
		d.remove("blobs/" + d.objects()[0])
		d.run(binary(), 0, "is restored", "restore", "--keep-store", d.backups)
		d.run(binary(), 4, "1 blob", "check", "--repair")
	}, lost: true},
	{what: "the database, and a server was started on an empty one meanwhile", do: func(d *afterDisaster) {
		d.copyStore()
		d.run(binary(), 1, "not the registry's blob store", "serve")
		d.run(binary(), 0, "is restored", "restore", "--keep-store", d.backups)
	}},
	{what: "the database, and the store was given to an empty one by store adopt --force", do: func(d *afterDisaster) {
		d.copyStore()
		d.run(binary(), 0, "", "migrate", "up")
		d.run(binary(), 0, "", "store", "adopt", "--force", "--from", d.identity())
		d.run(binary(), 0, "is restored", "restore", "--keep-store", d.backups)
	}},
	{what: "the same, and that database is lost too", do: func(d *afterDisaster) {
		d.copyStore()
		other := newPlace(d.t)
		other.env[1] = d.env[1] // the store
		other.run(binary(), 0, "", "migrate", "up")
		other.run(binary(), 0, "", "store", "adopt", "--force", "--from", d.identity())
		d.run(binary(), 1, "--from "+d.identity(), "restore", "--keep-store", d.backups)
		d.run(binary(), 0, "is restored", "restore", "--keep-store", "--from", d.identity(), d.backups)
	}},
	{what: "the store", do: func(d *afterDisaster) {
		d.keepDatabase()
		d.run(binary(), 1, "purser store adopt", "serve")
		d.run(binary(), 0, "6 were copied", "store", "restore", d.backups)
	}},
	{what: "the store, and one object of the backup", do: func(d *afterDisaster) {
		d.keepDatabase()
		d.removeCopy()
		d.run(binary(), 4, "Missing: 1 blob", "store", "restore", d.backups)
		d.run(binary(), 4, "1 blob", "check", "--repair")
	}, lost: true},
	{what: "the store, and it was given up by store adopt --force", do: func(d *afterDisaster) {
		d.keepDatabase()
		d.run(binary(), 0, "", "store", "adopt", "--force")
		d.run(binary(), 4, "", "check", "--repair", "--force")
		d.run(binary(), 0, "6 were copied", "store", "restore", d.backups)
		d.run(binary(), 0, "", "check", "--repair")
	}},
	{what: "both", do: func(d *afterDisaster) {
		d.run(binary(), 0, "is restored", "restore", d.backups)
	}},
	{what: "both, and the store was copied back first", do: func(d *afterDisaster) {
		d.copyStore()
		d.run(binary(), 1, "belongs to a registry", "restore", d.backups)
		d.run(binary(), 0, "is restored", "restore", "--keep-store", d.backups)
	}},
	{what: "both, and a server was started on empty ones meanwhile", do: func(d *afterDisaster) {
		d.serve("").Stop()
		d.run(binary(), 0, "is restored", "restore", d.backups)
	}},
	{what: "both, and a server was started on empty ones and got images", do: func(d *afterDisaster) {
		newer := newPlace(d.t)
		r := newer.serve("")
		newImages(d.t).push(r, "newer")
		r.Stop()
		newer.run(binary(), 1, "it is not empty", "restore", d.backups)
		d.run(binary(), 0, "is restored", "restore", d.backups)
	}},
	{what: "both, and one of the backup's blobs", do: func(d *afterDisaster) {
		d.removeCopy()
		d.run(binary(), 4, "1 of 6 objects", "backup", "verify", d.backups)
		d.run(binary(), 1, "nothing was restored", "restore", "--strict", d.backups)
		d.run(binary(), 4, "Lost: 1 blob", "restore", d.backups)
		d.run(binary(), 4, "1 blob", "check")
	}, lost: true},
	{what: "both, and the volume with the copies isn't mounted at first", do: func(d *afterDisaster) {
		objects := filepath.Join(d.backups, "objects")
		if err := os.Rename(objects, objects+".away"); err != nil {
			d.t.Fatal(err)
		}
		d.run(binary(), 1, "--force", "restore", d.backups)
		if err := os.Rename(objects+".away", objects); err != nil {
			d.t.Fatal(err)
		}
		d.run(binary(), 0, "is restored", "restore", d.backups)
	}},
}

// TestOpsDisasters restores a registry after each of the disasters in docs/backup.md, in the orders of
// events that it tells of. Afterwards the registry serves all images, or after a push those that lost
// something.
func TestOpsDisasters(t *testing.T) {
	beginOwn(t)
	im, old, backups := newImages(t), newPlace(t), newDir(t)
	r := old.serve("")
	im.push(r, "v1", "v2")
	r.Stop()
	old.run(binary(), 0, "is complete", "backup", backups)
	for _, c := range disasters {
		t.Run(c.what, func(t *testing.T) {
			mine := newDir(t) // the test may damage it
			if out, err := exec.Command("cp", "-a", backups+"/.", mine).CombinedOutput(); err != nil {
				t.Fatalf("copying the backup: %v: %s", err, out)
			}
			d := &afterDisaster{newPlace(t), old, mine}
			d.env = append(slices.Clone(d.env), "PURSER_HTTP_ADDR=127.0.0.1:0")
			c.do(d)
			r := d.serve("")
			known := &images{t, toolClient(t, "crane"), im.known}
			if c.lost {
				for tag, image := range known.known { // crane skips a tag that is there
					known.crane.Run("push", writeImage(t, image, tag), r.Ref("acme/app", tag+"-again"))
				}
			}
			known.whole(r, "v1", "v2")
			r.Stop()
			d.run(binary(), 0, "All is well", "check", "--deep")
		})
	}
}

// copyStore brings the old store to the new place.
func (d *afterDisaster) copyStore() {
	d.t.Helper()
	if out, err := exec.Command("cp", "-a", filepath.Join(d.old.dir, "blobs"), d.dir).CombinedOutput(); err != nil {
		d.t.Fatalf("copying the store: %v: %s", err, out)
	}
}

// keepDatabase gives the new place the database of the registry, and no store.
func (d *afterDisaster) keepDatabase() {
	d.t.Helper()
	d.run(binary(), 0, "is restored", "restore", d.backups)
	if err := os.RemoveAll(filepath.Join(d.dir, "blobs")); err != nil {
		d.t.Fatal(err)
	}
}

func (d *afterDisaster) remove(name string) {
	d.t.Helper()
	if err := os.Remove(filepath.Join(d.dir, name)); err != nil {
		d.t.Fatal(err)
	}
}

// objects returns the paths of the backup's copies of objects.
func (d *afterDisaster) objects() (names []string) {
	d.t.Helper()
	files, err := filepath.Glob(filepath.Join(d.backups, "objects/*/*-*"))
	if err != nil || len(files) != 6 {
		d.t.Fatalf("%d copies, want 6, %v", len(files), err)
	}
	for _, file := range files {
		name, err := filepath.Rel(d.backups, file)
		if err != nil {
			d.t.Fatal(err)
		}
		names = append(names, name)
	}
	return names
}

func (d *afterDisaster) removeCopy() {
	d.t.Helper()
	if err := os.Remove(filepath.Join(d.backups, d.objects()[0])); err != nil {
		d.t.Fatal(err)
	}
}

// identity returns the identity that the store has.
func (d *afterDisaster) identity() string {
	d.t.Helper()
	text, err := os.ReadFile(filepath.Join(d.dir, "blobs/objects/purser-store.json"))
	if err != nil {
		d.t.Fatal(err)
	}
	id := regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f-]{27}`).Find(text)
	if id == nil {
		d.t.Fatalf("no identity is in %s", text)
	}
	return string(id)
}
