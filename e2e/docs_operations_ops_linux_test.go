//go:build all

package e2e

import (
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
)

var docUUID = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)

// TestOpsDocsOperations runs the drills of docs/operations.md.
func TestOpsDocsOperations(t *testing.T) {
	beginOwn(t)
	p, im := readPage(t, "docs/operations.md", "PURSER_AUTH_ENABLED=false"), newImages(t)
	r := p.Registry()
	im.push(r, "v1", "v2", "v3")
	p.deletedRepository(r, im)
	p.deletedTags(r, im)
	p.expect(p.Run("The disk is full"), "reclaim")
	p.expect(p.command("purser backup /srv/backup"), "is complete")
	r.Stop()

	p.move("purser/postgres", "lost-database")
	p.Run("The database is lost")
	r = p.Registry()
	im.whole(r, "v1", "v2", "v3")
	r.Stop()

	p.move("purser/blobs", "lost-blobs")
	p.lostBlobs(im)
	r = p.Registry()
	if status := getStatus(t.Context(), r.URL()+"/v2/acme/app/manifests/v1"); status != http.StatusOK {
		t.Errorf("a manifest, whose blobs are lost: status %d", status)
	}
	im.crane.Run("push", writeImage(t, im.known["v1"], "v1"), r.Ref("acme/app", "again"))
	im.whole(r, "v1")
	r.Stop()
	p.leakedSecret()
}

// lostBlobs copies the objects of a lost store back from a backup. Then it loses them again, and lets
// the registry begin with an empty store.
func (p *docPage) lostBlobs(im *images) {
	p.t.Helper()
	blocks := p.Section("The blob store is lost")
	if len(blocks) != 2 {
		p.t.Fatalf("%d blocks of commands say what to do about a lost store, want 2", len(blocks))
	}
	p.RunBlock(blocks[0])
	r := p.Registry()
	im.whole(r, "v1", "v2", "v3")
	r.Stop()

	p.move("purser/blobs", "lost-blobs-again")
	p.exits[strings.TrimSpace(blocks[1].text)] = 4
	p.expect(p.RunBlock(blocks[1]), "lost")
}

// deletedRepository deletes a repository, and restores it.
func (p *docPage) deletedRepository(r *registry, im *images) {
	p.t.Helper()
	p.command("purser repo delete --yes acme/app")
	im.missing(r, "v1")
	id := regexp.MustCompile(`repository-\d+`).FindString(p.command("purser trash list"))
	p.values["repository-17"] = id
	p.Run("A repository or namespace was deleted")
	im.whole(r, "v1", "v2", "v3")
}

// deletedTags deletes a tag by hand and tags by a policy, and restores them.
func (p *docPage) deletedTags(r *registry, im *images) {
	p.t.Helper()
	p.command("purser tag delete --yes acme/app:v1")
	p.command("purser policy create acme --num-tags 1 --mode on --yes")
	im.missing(r, "v1")
	p.command("purser prune run acme")
	im.missing(r, "v2")
	p.values["sha256:c0ffee…"], p.values["5f1c8a34-…"] = digestOf(p.t, im.known["v1"]), docUUID.FindString(p.command("purser prune runs acme"))
	p.expect(p.Run("Tags were deleted or moved"), digestOf(p.t, im.known["v1"]))
	// The restored tag is the newest now, and so the policy would delete another one.
	p.command("purser policy delete --yes acme " + docUUID.FindString(p.command("purser policy list acme")))
	im.whole(r, "v1", "v2", "v3")
}

// leakedSecret lets an administrator in who has forgotten the password, and takes a robot's secret and
// a token away.
func (p *docPage) leakedSecret() {
	p.t.Helper()
	for i, v := range p.env {
		if v == "PURSER_AUTH_ENABLED=false" {
			p.env[i] = "PURSER_AUTH_ENABLED=true"
		}
	}
	password := regexp.MustCompile(`told again: (\S+)`).FindStringSubmatch(p.Run("Nobody knows an administrator's password"))
	r := p.Registry()
	if password == nil {
		p.t.Fatal("no password was printed")
	}
	if err := os.WriteFile(p.path("password"), []byte(password[1]), 0o600); err != nil {
		p.t.Fatal(err)
	}
	p.command("purser login -u admin --password-stdin " + r.URL() + " < /srv/password")
	p.command("purser robot create acme+ci --role writer")
	p.command("purser token create leaked")
	p.values["7c9e6679-…"] = docUUID.FindString(p.command("purser token list")) + " --yes"
	p.Run("A secret leaked")
	r.Stop()
}
