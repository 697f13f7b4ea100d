//go:build all

package e2e

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/jackc/pgx/v5"
)

// images are images in a registry, by reference.
type images struct {
	t     *testing.T
	crane *client
	known map[string]v1.Image
}

func newImages(t *testing.T) *images {
	return &images{t: t, crane: toolClient(t, "crane"), known: map[string]v1.Image{}}
}

// push pushes a new image to each of the tags of the repository acme/app.
func (im *images) push(r *registry, tags ...string) {
	im.t.Helper()
	for _, tag := range tags {
		im.known[tag] = newImage(im.t, 2, 20<<10)
		im.crane.Run("push", writeImage(im.t, im.known[tag], tag), r.Ref("acme/app", tag))
	}
}

// whole fails the test unless the registry has these images with all of their content.
func (im *images) whole(r *registry, tags ...string) {
	im.t.Helper()
	for _, tag := range tags {
		if got, want := strings.TrimSpace(im.crane.Run("digest", r.Ref("acme/app", tag))), digestOf(im.t, im.known[tag]); got != want {
			im.t.Errorf("%s is %s, want %s", tag, got, want)
		}
		im.crane.Run("validate", "--remote", r.Ref("acme/app", tag))
	}
}

// missing fails the test if the registry has one of these tags.
func (im *images) missing(r *registry, tags ...string) {
	im.t.Helper()
	for _, tag := range tags {
		if status := getStatus(im.t.Context(), r.URL()+"/v2/acme/app/manifests/"+tag); status != http.StatusNotFound {
			im.t.Errorf("%s: status %d, want 404", tag, status)
		}
	}
}

// delete deletes an image, and waits until garbage collection keeps its three objects.
func (im *images) delete(r *registry, tag string) {
	im.t.Helper()
	im.crane.Run("delete", r.Ref("acme/app", digestOf(im.t, im.known[tag])))
	r.keepsDoomed(3)
}

// TestOpsDocsBackup runs docs/backup.md: a registry is backed up while it serves, and restored after
// everything, its database, or its store was lost.
func TestOpsDocsBackup(t *testing.T) {
	beginOwn(t)
	p, im := readPage(t, "docs/backup.md"), newImages(t)
	r := p.imported(im)
	im.push(r, "v1", "v2")
	blocks := p.Section("Back up")
	p.RunBlock(blocks[0])
	p.expect(p.Inline("purser backup list /srv/backup"), "complete")
	p.expect(p.Inline("purser backup verify /srv/backup"), "9 objects")
	im.push(r, "late")
	r.Stop()

	p.move("purser", "lost")
	p.Run("Restore")
	r = p.Registry()
	im.whole(r, "imported", "v1", "v2")
	im.missing(r, "late")
	im.push(r, "later")
	p.Inline("purser backup verify /srv/backup")
	r.Stop()
	p.restoreDamaged()

	p.move("purser/postgres", "lost/second")
	p.expect(p.Run("Restore the database alone"), "so young that a request may still be writing them: 3 objects")
	r = p.Registry()
	im.whole(r, "imported", "v1", "v2")
	im.missing(r, "later")
	r.Stop()

	p.move("purser/blobs", "lost/blobs-too")
	p.restoreStore()
	r = p.Registry()
	im.whole(r, "imported", "v1", "v2")
	p.identity(r)
	p.recover(im)
	p.toBucket(blocks[1], im)
	p.checkSettings("Keep what backups know")
}

// imported starts a registry that has taken over the storage of another registry with one image.
func (p *docPage) imported(im *images) *registry {
	p.t.Helper()
	host := startDistribution(p.t, p.path("purser/blobs"))
	im.known["imported"] = newImage(p.t, 2, 20<<10)
	im.crane.Run("push", writeImage(p.t, im.known["imported"], "imported"), host+"/acme/app:imported")
	r := p.Registry()
	p.expect(p.command("purser import"), "Imported 1 tag")
	p.expect(p.command("purser import --finish --yes"), "belong to Purser")
	return r
}

// restoreDamaged restores the backup without one of its blobs, and brings back what was there before.
func (p *docPage) restoreDamaged() {
	p.t.Helper()
	copies, err := filepath.Glob(p.path("backup/objects/*/*-*"))
	if err != nil || len(copies) == 0 {
		p.t.Fatalf("%d copies, %v", len(copies), err)
	}
	p.move("purser", "lost/whole")
	if err := os.Rename(copies[0], p.path("lost/copy")); err != nil {
		p.t.Fatal(err)
	}
	p.exits["purser restore /srv/backup"] = 4
	p.Run("If the backup is damaged")
	delete(p.exits, "purser restore /srv/backup")
	if err := os.Rename(p.path("lost/copy"), copies[0]); err != nil {
		p.t.Fatal(err)
	}
	p.move("purser", "lost/damaged")
	p.move("lost/whole", "purser")
}

// restoreStore copies a backup's objects to their places.
func (p *docPage) restoreStore() {
	p.t.Helper()
	if err := os.MkdirAll(p.path("purser/blobs/objects"), 0o755); err != nil {
		p.t.Fatal(err)
	}
	p.expect(p.Run("Restore the store alone"), "All is well")
}

// identity starts a server on an empty store, which it refuses, and says what the page says.
func (p *docPage) identity(r *registry) {
	p.t.Helper()
	r.Stop()
	p.Inline("purser store show")
	if err := os.Mkdir(p.path("blobs"), 0o755); err != nil {
		p.t.Fatal(err)
	}
	p.exits["purser serve"] = 1
	old := p.env
	p.env = append(p.env, "PURSER_STORAGE_FILESYSTEM_PATH="+p.path("blobs"), "PURSER_HTTP_ADDR=127.0.0.1:0")
	p.Run("The store's identity")
	p.env = old
}

// recover goes back to a moment with PostgreSQL's own tools.
func (p *docPage) recover(im *images) {
	p.t.Helper()
	blocks := p.Section("Point-in-time recovery")
	pg := startPostgres(p.t)
	if err := os.Mkdir(p.path("wal"), 0o755); err != nil {
		p.t.Fatal(err)
	}
	asPostgres := func(cmd *exec.Cmd) { unprivileged(p.t, cmd, p.dir) }
	unprivileged(p.t, exec.Command("true"), p.path("wal"))
	pg.Stop(syscall.SIGINT)
	p.appendTo(filepath.Join(pg.dir, "data/postgresql.conf"), blocks[0])
	pg.Start()

	settings := []string{"PURSER_GC_REVIEW_AFTER=0s", "PURSER_GC_KEEP_DOOMED=72h", "PURSER_STORAGE_FILESYSTEM_PATH=" + p.path("recovery")}
	r := startRegistry(p.t, options{dataDir: newDir(p.t), env: append(settings, "PURSER_DATABASE_MAIN="+pg.DSN())})
	im.push(r, "kept", "gone")
	env := p.env
	p.env, p.as = append(p.env, "PGHOST="+pg.dir, "PGUSER=postgres"), asPostgres
	p.RunBlock(blocks[1])
	im.push(r, "in-wal")
	p.values["2026-11-26 12:00:00 UTC"] = pg.value("SELECT clock_timestamp()::text")
	im.push(r, "after")
	im.delete(r, "gone")
	r.Stop()
	pg.Stop(syscall.SIGINT)

	p.RunBlock(blocks[2])
	recovered := &postgres{t: p.t, bin: pg.bin, dir: newDir(p.t)}
	if err := os.Symlink(p.path("recovered"), filepath.Join(recovered.dir, "data")); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { recovered.Stop(syscall.SIGQUIT) })
	recovered.Start()
	recovered.is("it accepts writes", "SELECT NOT pg_is_in_recovery()")
	p.env, p.as = append(append(env, settings...), "PURSER_DATABASE_MAIN="+recovered.DSN()), nil
	p.expect(p.Inline("purser check"), "Compared 12 objects", "All is well")
	r = startRegistry(p.t, options{dataDir: newDir(p.t), env: append(settings, "PURSER_DATABASE_MAIN="+recovered.DSN())})
	im.whole(r, "kept", "gone", "in-wal")
	im.missing(r, "after")
	r.Stop()
	p.env = env
}

// toBucket backs a registry in a bucket up to another bucket.
func (p *docPage) toBucket(b *docBlock, im *images) {
	p.t.Helper()
	env := append(startS3(p.t), "PURSER_DATABASE_MAIN="+startPostgres(p.t).DSN())
	r := startRegistry(p.t, options{env: env})
	im.push(r, "bucket")
	before := p.env
	p.env = append(p.env, env...)
	p.expect(p.RunBlock(b), "is complete", "of which 3 (")
	p.env = before
}

// checkSettings lets Purser check the settings that a section has.
func (p *docPage) checkSettings(section string) {
	p.t.Helper()
	for _, b := range p.Section(section) {
		if err := os.WriteFile(p.path("config.yaml"), []byte(b.text), 0o600); err != nil {
			p.t.Fatal(err)
		}
		p.command("purser config check --config /srv/config.yaml")
	}
}

// value returns what a query returns.
func (s *postgres) value(sql string) (v string) {
	s.t.Helper()
	conn, err := pgx.Connect(s.t.Context(), s.DSN())
	if err != nil {
		s.t.Fatal(err)
	}
	defer conn.Close(s.t.Context()) //nolint:errcheck // nothing is lost
	if err := conn.QueryRow(s.t.Context(), sql).Scan(&v); err != nil {
		s.t.Fatal(err)
	}
	return v
}
