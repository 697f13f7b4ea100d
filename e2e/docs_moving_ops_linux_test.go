//go:build all

package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestOpsDocsMoving runs docs/moving.md: a registry's database moves to a server of its own, its
// blobs move to a bucket, and the built-in PostgreSQL to another major version.
func TestOpsDocsMoving(t *testing.T) {
	beginOwn(t)
	p, im := readPage(t, "docs/moving.md"), newImages(t)
	builtIn := slices.Clone(p.env)
	r := p.Registry()
	im.push(r, "v1", "v2")
	r.Stop()

	pg, bucket := startPostgres(t), startS3(t)
	p.values["postgres://purser:secret@db.example.com/purser"] = pg.DSN()
	p.values["database purser at db.example.com:5432"] = "database postgres at …"
	p.Run("To a PostgreSQL of your own")
	p.exits["purser serve --addr 127.0.0.1:0"] = 1
	p.expect(p.command("purser serve --addr 127.0.0.1:0"), "moved")
	p.env = append(p.env, "PURSER_DATABASE_MAIN="+pg.DSN())
	r = p.Registry()
	im.whole(r, "v1", "v2")

	blocks := p.Section("Blobs to S3, or to a directory")
	p.env = append(p.env, "AWS_ACCESS_KEY_ID=test", "AWS_SECRET_ACCESS_KEY=test-secret")
	p.values["s3://registry/blobs"] = "s3://purser/blobs"
	endpoint, _ := strings.CutPrefix(bucket[0], "PURSER_STORAGE_S3_ENDPOINT=")
	p.values["--s3-endpoint https://s3.example.com"] = "--s3-path-style --s3-endpoint " + endpoint
	p.RunBlock(blocks[0])
	im.push(r, "v3")
	r.Stop()
	p.RunBlock(blocks[1])
	env := append(p.env, "PURSER_DATABASE_MAIN="+pg.DSN(), "PURSER_STORAGE_S3_PREFIX=blobs")
	r = startRegistry(t, options{dataDir: p.path("purser"), env: append(env, bucket...)})
	im.whole(r, "v1", "v2", "v3")
	r.Stop()
	p.env = append(env, bucket...)
	p.expect(p.Inline("purser check --repair"), "All is well")
	p.upgrade(builtIn, im)
}

// upgrade brings the built-in PostgreSQL of a new registry to another major version.
func (p *docPage) upgrade(env []string, im *images) {
	p.t.Helper()
	p.env = append(env, "PURSER_DATA_DIR="+p.path("upgrade"))
	r := startRegistry(p.t, options{dataDir: p.path("upgrade")})
	im.push(r, "upgraded")
	r.Stop()
	p.values["/srv/purser/"] = p.path("upgrade") + "/"
	p.values["version 15 to 17"] = "version N to N"
	p.Run("Another major version of the built-in PostgreSQL")
	r = startRegistry(p.t, options{dataDir: p.path("upgrade")})
	im.whole(r, "upgraded")
	r.Stop()
	p.Inline("purser postgres forget-old --yes")
	if old, err := filepath.Glob(filepath.Join(p.path("upgrade"), "postgres", "cluster-*")); err != nil || len(old) > 0 {
		p.t.Errorf("left: %v, %v", old, err)
	}
	if err := os.RemoveAll(p.path("upgrade")); err != nil {
		p.t.Error(err)
	}
}
