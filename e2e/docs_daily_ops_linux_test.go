//go:build all

package e2e

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// daily is a registry in which the commands of a page about daily use run. What they print on the page
// is an example, and isn't compared.
type daily struct {
	*docPage
	r  *registry
	im *images
}

// newDaily starts a registry with the images that the page's commands name.
func newDaily(t *testing.T, page string, env ...string) *daily {
	t.Helper()
	beginOwn(t)
	d := &daily{docPage: readPage(t, page, append(env, "PURSER_AUTOPRUNE_INTERVAL=1s")...), im: newImages(t)}
	d.quiet = true
	d.r = d.Registry()
	for _, example := range []string{"http://127.0.0.1:5000", "https://registry.example.com"} {
		d.values[example] = d.r.URL()
	}
	d.values["--server registry.example.com"] = "--server " + d.r.URL()
	d.values["curl "] = "curl -fsS "
	for _, asks := range []string{"repo delete", "tag delete", "pulls reset", "prune approve", "quota delete"} {
		d.values["purser "+asks] = "purser " + asks + " --yes"
	}
	return d
}

// push pushes an image to each of the references.
func (d *daily) push(references ...string) {
	d.t.Helper()
	for _, ref := range references {
		repo, tag, _ := strings.Cut(ref, ":")
		d.im.known[ref] = newImage(d.t, 1, 4<<10)
		d.im.crane.Run("push", writeImage(d.t, d.im.known[ref], tag), d.r.Ref(repo, tag))
	}
}

// digest lets the digest of an image stand for an example on the page.
func (d *daily) digest(example, ref string) { d.values[example] = digestOf(d.t, d.im.known[ref]) }

// first returns the first identifier in the output of a command.
func (d *daily) first(command string) string {
	d.t.Helper()
	id := docUUID.FindString(d.command(command))
	if id == "" {
		d.t.Fatalf("%s prints no identifier", command)
	}
	return id
}

// TestOpsDocsFirstHour: the commands of the first hour work in their order, and print what the page shows.
func TestOpsDocsFirstHour(t *testing.T) {
	d := newDaily(t, "docs/first-hour.md")
	d.quiet = false
	d.push("upstream/alpine:latest")
	d.values["docker.io/library/alpine"] = d.r.host + "/upstream/alpine"
	d.values["127.0.0.1:5000"] = d.r.host
	d.env = append(d.env, "PATH="+filepath.Dir(d.im.crane.path)+":"+filepath.Dir(binary())+":"+os.Getenv("PATH"))
	d.Run("Push and pull")
	const password = "correct-horse-battery"
	d.r.Stop()
	d.r = d.Registry("PURSER_AUTH_ENABLED=true", "PURSER_AUTH_INITIAL_PASSWORD="+password)
	d.values["127.0.0.1:5000"], d.values["http://127.0.0.1:5000"] = d.r.host, d.r.URL()
	if err := os.WriteFile(d.path("password"), []byte(password), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, section := range []string{"Let others in", "A robot for CI", "Keep it small"} {
		d.Run(section)
	}
	d.values["ff412a45-…"] = d.first("purser policy list acme")
	d.values["edd4eb7b-…"] = "$(purser prune runs acme | grep '2 of 6' | cut -d' ' -f1)"
	d.exits["purser doctor"] = 4 // the page has its backup on the disk of the blobs, and says so
	for _, section := range []string{"Let it delete", "Back up", "Upgrade"} {
		d.Run(section)
	}
}

// TestOpsDocsQuestions: the commands of the answers work.
func TestOpsDocsQuestions(t *testing.T) {
	d := newDaily(t, "docs/questions.md")
	d.push("acme/app:v1", "upstream/alpine:3.20")
	d.values["docker.io/library/alpine"] = d.r.host + "/upstream/alpine"
	for _, b := range d.blocks {
		if b.lang == "sh" {
			b.used = true
			d.RunBlock(b)
		}
	}
	d.command("purser tag list mirror/alpine | grep 3.20")
}

func TestOpsDocsUndo(t *testing.T) {
	d := newDaily(t, "docs/undo.md")
	d.push("acme/web:v1")
	for _, b := range d.blocks {
		b.used, b.lang = true, "sh"
		d.values["repository-17"] = "$(purser trash list acme | grep -o 'repository-[0-9]*')"
		d.RunBlock(b)
	}
	d.command("purser tag list acme/web | grep v1")
}

func TestOpsDocsQuotas(t *testing.T) {
	d := newDaily(t, "docs/quotas.md")
	d.push("app/web:v1")
	d.expect(d.Run("Quotas"), "of 500 GiB", "of 100")
}

func TestOpsDocsAutoPrune(t *testing.T) {
	d := newDaily(t, "docs/auto-prune.md")
	for i := range 105 {
		d.push(fmt.Sprintf("app/web:v%d", i))
	}
	d.expect(d.Run("Start"), "app/web:v0", "5 of 105 tags in 1 repository would be deleted", "status     success")
	d.push("app/web:prod")
	d.exits["purser policy create app --older-than 6m --pattern '^pr-*' --mode on"] = 3 // nobody is there to ask
	d.expect(d.Run("What was surely not meant"), "write 180d for those", "it also selects 1 tag: app/web:prod")
	d.command("purser tag delete app/web:prod --yes")
	d.Run("Protection")
	d.Run("Forecasts")
	// A worker may have been faster than the command's run.
	d.values["7d0f4c1e-…"] = d.first("purser prune runs app | grep '5 of 105'")
	d.expect(d.Run("Undo"), "Restored 5 tags")
	policy := d.first("purser policy list app")
	d.command("purser policy update app " + policy + " --num-tags 50 --max-deleted 1 --yes")
	d.command("purser prune run app || true")
	d.values["f6d1a7b0-9a8c-4a7e-9b0e-3a4f6f1c2d3e"] = policy
	d.expect(d.Run("Approvals"), "MAY DELETE", "may delete up to")
	d.expect(d.Run("Free bytes now"), "0 tags would be deleted") // none is old enough
	d.expect(d.Run("Exceptions"), "app/web is an exception", "EXCEPTION")
}

func TestOpsDocsAPI(t *testing.T) {
	d := newDaily(t, "docs/api.md", "PURSER_WEBHOOKS_ALLOW_PRIVATE=true")
	d.push("library/app:v1", "app/web:v1", "acme/app:v1")
	d.digest("sha256:…", "library/app:v1")
	hook := newHook(t)
	d.values["https://hooks.example.com"] = hook.URL
	d.values["curl -u alice"] = "curl -fsS -u alice:"
	d.env = append(d.env, "TOKEN=none") // an open registry looks at no token
	for _, b := range d.blocks {
		if b.lang != "console" {
			continue
		}
		b.used = true
		for _, command := range strings.Split("\n"+b.text, "\n$ ")[1:] {
			out := d.RunBlock(&docBlock{line: b.line, lang: "console", text: "$ " + command})
			d.values["e72d5bcf-…"] = docUUID.FindString(out) // the run that the command before has started
		}
	}
}

func TestOpsDocsAuditLog(t *testing.T) {
	d := newDaily(t, "docs/audit-log.md")
	d.push("library/app:v1")
	d.command("purser tag delete library/app:v1")
	d.values["from=2026-03-01&to=2026-04-01"] = "from=2026-03-01"
	d.expect(d.Run("The audit log"), "delete_tag")
	if march, err := os.ReadFile(d.path("march.jsonl")); err != nil || !strings.Contains(string(march), `"push_repo"`) {
		t.Errorf("the exported log: %v, %s", err, march)
	}
}

func TestOpsDocsGarbageCollection(t *testing.T) {
	d := newDaily(t, "docs/garbage-collection.md")
	d.push("library/app:v1")
	d.digest("sha256:…", "library/app:v1")
	d.command("purser tag delete library/app:v1")
	for _, b := range d.blocks {
		b.used = true
		d.RunBlock(b)
	}
	d.command("purser tag list library/app | grep v1")
}

// TestOpsDocsChecking loses the blob of an image, as the page does, and pushes the image again.
func TestOpsDocsChecking(t *testing.T) {
	d := newDaily(t, "docs/checking.md")
	d.push("team/app:v1", "other/app:v1")
	layers, err := d.im.known["team/app:v1"].Layers()
	if err != nil {
		t.Fatal(err)
	}
	lost, err := layers[0].Digest()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(objectFiles(t, d.path("purser"))[lost.String()]); err != nil {
		t.Fatal(err)
	}
	d.exits["purser check"] = 4
	blocks := d.Section(d.blocks[0].section)
	d.expect(d.RunBlock(blocks[0]), "1 blob missing from the store", lost.String(), "in team/app")
	d.Section(d.blocks[1].section) // what another command prints
	d.exits["purser check --repair"] = 4
	d.command("purser check --repair")
	d.values["crane push app.tar registry.example.com"] = d.im.crane.path + " push --insecure " + writeImage(t, d.im.known["team/app:v1"], "v1") + " " + d.r.host
	d.RunBlock(d.Section(d.blocks[2].section)[len(d.Section(d.blocks[2].section))-1])
	d.exits["purser check"] = 0
	d.command("purser check")
}

func TestOpsDocsClients(t *testing.T) {
	d := newDaily(t, "docs/clients.md")
	d.push("app:v0")
	manifest, err := d.im.known["app:v0"].RawManifest()
	if err == nil {
		err = os.WriteFile(d.path("manifest.json"), manifest, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	d.digest("sha256:4bcf…", "app:v0")
	// The function on the page is for the shell in which the commands run.
	b := d.Section(d.blocks[0].section)[0]
	d.command(strings.ReplaceAll(strings.TrimPrefix(b.text, "$ "), "\n$ ", "\n"))
	d.command("purser tag list app | grep v1")
}

func TestOpsDocsPullStatistics(t *testing.T) {
	d := newDaily(t, "docs/pull-statistics.md")
	d.push("library/app:v1")
	d.exits["purser tag list library/app --not-pulled-for 90d"] = 3 // nobody knows that of a new registry
	for _, b := range d.blocks {
		if b.lang == "console" {
			b.used = true
			d.RunBlock(b)
		}
	}
}

func TestOpsDocsCommands(t *testing.T) {
	d := newDaily(t, "docs/cli.md")
	d.push("library/app:v1", "library/app:v2", "acme/app:v1")
	d.digest("sha256:4bcff63911fc…", "library/app:v1")
	d.Run("Examples")
	d.values["/etc/bash_completion.d/purser"], d.values["${fpath[1]}/_purser"] = d.path("bash"), d.path("zsh")
	d.values["~/.config/fish/completions/purser.fish"] = d.path("fish")
	d.Run("Completion")
	d.expect(d.Run("The doctor"), "Looked at: ")
	for _, name := range []string{"alice", "bob"} {
		d.command("purser user create " + name + " --password-stdin <<< correct-horse-battery")
	}
	d.Run("Logging in")
}

func TestOpsDocsWebhooks(t *testing.T) {
	d := newDaily(t, "docs/webhooks.md", "PURSER_WEBHOOKS_ALLOW_PRIVATE=true")
	d.push("app/web:v1")
	hook := newHook(t)
	d.values["https://hooks.example.com"] = hook.URL
	blocks := d.Section("Webhooks of namespaces")
	create, test, _ := strings.Cut(blocks[0].text, "\n$ purser webhook test")
	id := docUUID.FindString(d.RunBlock(&docBlock{lang: "console", text: create}))
	d.values["f6d1a7b0-9a8c-4a7e-9b0e-3a4f6f1c2d3e"], d.values["f6d1a7b0-…"] = id, id
	d.RunBlock(&docBlock{lang: "console", text: "$ purser webhook test" + test})
	hook.await(t)
	deliveries := d.command("purser webhook deliveries app " + id)
	d.values["5a3f6b0e-…"] = docUUID.FindString(deliveries)
	for _, b := range d.blocks {
		if b.lang == "console" && !b.used {
			b.used = true
			d.RunBlock(b)
		}
	}
}

// hook is a receiver of webhooks.
type hook struct {
	*httptest.Server
	got chan struct{}
}

func newHook(t *testing.T) *hook {
	h := &hook{got: make(chan struct{}, 100)}
	h.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNoContent)
		select {
		case h.got <- struct{}{}:
		default:
		}
	}))
	t.Cleanup(h.Close)
	return h
}

func (h *hook) await(t *testing.T) {
	t.Helper()
	select {
	case <-h.got:
	case <-t.Context().Done():
		t.Error("no notice came")
	}
}

// TestOpsDocsAccessControl runs the commands of an administrator.
func TestOpsDocsAccessControl(t *testing.T) {
	d := newDaily(t, "docs/access-control.md", "PURSER_AUTH_ENABLED=true", "PURSER_AUTH_INITIAL_PASSWORD=correct-horse-battery")
	d.command("purser login --username admin --password-stdin <<< correct-horse-battery")
	d.command("purser namespace create acme")
	d.command("purser user create alice --password-stdin <<< correct-horse-battery")
	token := regexp.MustCompile(`pur[a-z]*_\w+`).FindString(d.command("purser token create docs"))
	d.env = append(d.env, "TOKEN="+token)
	d.values["purser login registry.example.com --username alice"] = "true"
	d.values["export PURSER_SERVER=registry.example.com"] = "true"
	left := regexp.MustCompile(`serve --addr|htpasswd|docker login|kubectl|federate`)
	for _, b := range d.blocks {
		if b.lang != "console" {
			continue
		}
		b.used = true
		if strings.Contains(b.text, "visibility") {
			d.pushAs(token)
		}
		for _, command := range strings.Split("\n"+b.text, "\n$ ")[1:] {
			if !left.MatchString(command) {
				d.RunBlock(&docBlock{line: b.line, lang: "console", text: "$ " + command})
			}
		}
	}
}

// pushAs pushes acme/app as an administrator.
func (d *daily) pushAs(token string) {
	d.t.Helper()
	d.im.crane.RunInput(token, "auth", "login", d.r.host, "--username", "admin", "--password-stdin")
	d.push("acme/app:v1")
}
