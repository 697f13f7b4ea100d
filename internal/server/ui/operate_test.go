package ui_test

import (
	"context"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/diskspace"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// site is a registry with its pages.
type site struct{ *servertest.Registry }

// open fetches a page and checks that it has each of the texts.
func (s site) open(t *testing.T, path string, texts ...string) string {
	t.Helper()
	a := s.Do(t, "GET", path, "").WantStatus(t, http.StatusOK)
	return has(t, path, string(a.Content), texts...)
}

// send posts a form, follows a redirection, and checks the page that comes.
func (s site) send(t *testing.T, path string, form url.Values, texts ...string) string {
	t.Helper()
	a := s.Do(t, "POST", path, form.Encode(), "Content-Type", "application/x-www-form-urlencoded", "Sec-Fetch-Site", "same-origin")
	if a.StatusCode == http.StatusSeeOther {
		return s.open(t, a.Header.Get("Location"), texts...)
	}
	return has(t, "POST "+path, string(a.WantStatus(t, http.StatusOK).Content), texts...)
}

// withoutStyle returns a page without its style sheet, as a browser gets it after its first page.
func withoutStyle(content string) string { return styles.ReplaceAllString(content, "") }

var styles = regexp.MustCompile(`(?s)<style[^>]*>.*</style>`)

func has(t *testing.T, path, content string, texts ...string) string {
	t.Helper()
	content = withoutStyle(content)
	for _, text := range texts {
		if !strings.Contains(content, text) {
			_, main, _ := strings.Cut(content, "<main")
			t.Errorf("%s lacks %q:\n%s", path, text, main)
		}
	}
	if n := len(content); n > 100_000 {
		t.Errorf("%s has %d bytes", path, n)
	}
	return content
}

func lacks(t *testing.T, content string, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if strings.Contains(content, text) {
			t.Errorf("the page has %q:\n%s", text, content)
		}
	}
}

func (s site) as(name string) site { return site{s.With(servertest.As(name))} }

// closed starts a registry with access control: root operates it, ann administers the namespace
// acme, and bob has no role.
func closed(t *testing.T) site {
	t.Helper()
	s := site{servertest.Setup(t, func(o *servertest.Options) { o.Access = &auth.Options{} })}
	s.AddAccount(t, "root", true)
	root := s.as("root")
	root.Put(t, "acme/app", "v1", root.Simple(t, "acme/app", 1, nil))
	root.Put(t, "other/app", "v1", root.Simple(t, "other/app", 1, nil))
	s.AddAccount(t, "ann", false)
	s.Grant(t, "acme", "ann", auth.Administrator)
	s.AddAccount(t, "bob", false)
	return s
}

// TestOverview: the first page of an empty registry says how to push, later it shows what is
// stored and what happened, and what has failed comes to the top.
func TestOverview(t *testing.T) {
	t.Parallel()
	s := site{servertest.Setup(t)}
	s.open(t, "/ui/", "Push the first image", "docker push", "Nothing needs attention", "0 blobs")
	s.Put(t, "acme/app", "v1", s.Simple(t, "acme/app", 1, nil))
	s.Do(t, "GET", "/v2/acme/app/manifests/v1", "").WantStatus(t, 200)
	content := s.open(t, "/ui/", "acme/app", "1 blob, each kept once", `<rect class="bar1"`, "1 push in 30 days", `role="img"`)
	lacks(t, content, "Push the first image")
	s.Exec(t, `INSERT INTO gc_activity (minute, bytes_swept, objects_swept) VALUES (now() - interval '3 days', 2048, 1), (now() - interval '40 days', 1, 1)`)
	s.Exec(t, `UPDATE gc_blob_review_queue SET set_aside_at = now(), last_error = '<b>bad</b>'`)
	s.Exec(t, `INSERT INTO gc_doomed_objects (storage_key, size, delete_after, attempts, last_error) VALUES ('x', 5, now(), 2, 'no <i>disk</i>')`)
	s.Push(t, "acme/app", "nobody uses this")
	s.Manage(t, "POST", "/organization/acme/quota", `{"limit_tags": 1}`).WantStatus(t, 201)
	s.open(t, "/ui/", "Namespace acme uses 100 % of its quota of tags; nothing is refused, since no step refuses.")
	s.Exec(t, `UPDATE gc_blob_review_queue SET review_after = now() - interval '5 hours' WHERE set_aside_at IS NULL`)
	content = s.open(t, "/ui/", "2.0 KiB in 30 days", "failed too often", `href="/ui/gc#failed"`, "fails to delete 1 object", "No &lt;i&gt;disk", "overdue by 5 h")
	lacks(t, content, "Nothing needs attention", "<i>disk")
	if strings.Index(content, "failed too often") > strings.Index(content, "overdue by") {
		t.Error("what is broken isn't first")
	}
}

// TestOverviewOfClients: clients that don't operate the registry see what is theirs.
func TestOverviewOfClients(t *testing.T) {
	t.Parallel()
	s := closed(t)
	lacks(t, s.as("ann").open(t, "/ui/", "acme/app", "administers it"), "other", "Pending deletion", "/ui/gc")
	s.as("ann").open(t, "/ui/", "Pushes to acme", "1 push in 30 days")
	lacks(t, s.as("bob").open(t, "/ui/", "no repository that you may see"), "acme", "other/app", "Pending deletion", "Pushes")
	s.as("root").open(t, "/ui/", "Pending deletion", "acme/app", "other/app")
	s.Do(t, "GET", "/ui/gc", "", servertest.As("ann")...).WantStatus(t, 403)
	s.Do(t, "GET", "/ui/system", "", servertest.As("ann")...).WantStatus(t, 403)
	a := s.Do(t, "GET", "/ui/", "").WantStatus(t, http.StatusSeeOther)
	if !strings.HasPrefix(a.Header.Get("Location"), "/auth/login") {
		t.Errorf("sent to %s", a.Header.Get("Location"))
	}
}

// TestGarbage: an operator retries failed reviews, runs garbage collection without and with
// deletions, checks the store and asks why content is kept.
func TestGarbage(t *testing.T) {
	t.Parallel()
	s := site{servertest.Setup(t)}
	kept := s.Put(t, "acme/app", "v1", s.Simple(t, "acme/app", 1, nil))
	loose := s.Push(t, "acme/app", "nobody uses this")
	s.open(t, "/ui/gc", "Review queues", "Dry run", "Start the check")
	s.Exec(t, "UPDATE gc_blob_review_queue SET set_aside_at = now(), last_error = '<b>bad</b>'")
	s.Exec(t, "INSERT INTO gc_doomed_objects (storage_key, size) VALUES ('docker/registry/v2/blobs/data', 2048)")
	s.open(t, "/ui/gc", `id="failed"`, "&lt;b&gt;bad", "Retry all", "Imported, unused", "1, 2.0 KiB", "purser import --finish")
	lacks(t, s.send(t, "/ui/gc", url.Values{"do": {"retry"}}, "due again"), `id="failed"`)
	s.Exec(t, "UPDATE gc_blob_review_queue SET review_after = now()")

	ended := func(what string) (content string) {
		servertest.Eventually(t, "the end of "+what, func() bool {
			content = s.open(t, "/ui/gc")
			return !strings.Contains(content, `data-refresh="2"`)
		})
		return content
	}
	s.send(t, "/ui/gc", url.Values{"do": {"dry-run"}})
	has(t, "dry run", ended("the dry run"), "The last dry run", "succeeded", "Would delete 1 thing", string(loose.String()[7:19]))
	s.Do(t, "HEAD", "/v2/acme/app/blobs/"+loose.String(), "").WantStatus(t, 200)
	s.Exec(t, "UPDATE gc_blob_review_queue SET review_after = now()") // the HEAD request has postponed the review
	s.send(t, "/ui/gc", url.Values{"do": {"collect"}})
	has(t, "collection", ended("the run"), "The last run", "0 manifests and 1 blob; freed")
	s.Do(t, "GET", "/v2/acme/app/blobs/"+loose.String(), "").WantStatus(t, 404)

	s.send(t, "/ui/gc", url.Values{"do": {"check"}, "deep": {"true"}})
	has(t, "check", ended("the check"), "The last check", "With hashes", "Found 1 thing to look at", "declared-size")
	s.send(t, "/ui/gc", url.Values{"do": {"cancel-run"}, "id": {"none"}}, `role="alert"`, "No run here")
	s.send(t, "/ui/gc", url.Values{"do": {"x"}}, `role="alert"`)

	s.open(t, "/ui/gc/explain?repository=acme/app&digest="+kept.String(), "Manifest", "kept", "v1")
	s.open(t, "/ui/gc/explain?digest="+loose.String()[7:], "not known to this registry")
	s.open(t, "/ui/gc/explain?digest="+kept.String(), "is not a blob, but a manifest of acme/app")
	s.open(t, "/ui/gc/explain?digest=acme/app@"+kept.String(), "Manifest", "kept", "v1")
	s.open(t, "/ui/gc/explain?digest=acme/app:v1", "Manifest", "kept", kept.String())
	s.open(t, "/ui/gc/explain?repository=acme/app&digest=v1", "Manifest", "kept", kept.String())
	s.open(t, "/ui/gc/explain?digest=acme/app:none", `role="alert"`, "no tag none")
	s.open(t, "/ui/gc/explain?digest="+url.QueryEscape("<script>"), `role="alert"`)
	s.open(t, "/ui/gc/explain", "Enter a digest")
}

// TestSystemPage: the page shows the state of the process and where settings come from.
func TestSystemPage(t *testing.T) {
	t.Parallel()
	s := site{servertest.Setup(t, func(o *servertest.Options) {
		o.Management.System.Version, o.Management.System.Storage = "v9.8.7", "filesystem"
		o.Configure("gc.review_delay", "24h", "default")
		o.Configure("http.addr", "<b>:5000", "env PURSER_HTTP_ADDR")
	})}
	s.open(t, "/ui/system", "v9.8.7", "answers", "1 setting was given a value", "gc.review_delay", "env PURSER_HTTP_ADDR", "&lt;b&gt;:5000")
	lacks(t, s.open(t, "/ui/system?set=given", "http.addr"), "gc.review_delay")
	lacks(t, s.open(t, "/ui/system?q=24H", "gc.review_delay"), "http.addr")
	s.open(t, "/ui/system?q=none", "No setting is like this")
}

// TestDisks: the page shows the disks with their forecasts, and the overview those that are nearly full.
func TestDisks(t *testing.T) {
	t.Parallel()
	const gib = 1 << 30
	fills, shrinks, soon, later := int64(gib), int64(-1), time.Now().Add(5*24*time.Hour+time.Hour), time.Now().Add(60*24*time.Hour)
	disk := diskspace.Disk{Of: "blobs", Path: "/srv/<b>", Size: 100 * gib, Free: 10 * gib, Reserve: gib}
	for _, tt := range []struct {
		name             string
		change           func(d *diskspace.Disk)
		system, overview string // texts that the pages have
	}{
		{"new", func(*diskspace.Disk) {}, "10 GiB of 100 GiB free; when it will be full is known after a day", "Nothing needs attention"},
		{"it shrinks", func(d *diskspace.Disk) { d.PerDay = &shrinks }, "it hasn’t filled in the last seven days", "Nothing needs attention"},
		{"it fills slowly", func(d *diskspace.Disk) { d.PerDay = &fills }, "lasts for more than a year", "Nothing needs attention"},
		{"it fills", func(d *diskspace.Disk) { d.PerDay, d.Full = &fills, &later }, "it fills by 1.0 GiB a day, and is full in", "Nothing needs attention"},
		{"it's nearly full", func(d *diskspace.Disk) { d.PerDay, d.Full = &fills, &soon }, "is full in 5 days", "The disk of the blobs has 10 GiB free: it fills by 1.0 GiB a day, and is full in 5 days"},
		{"it's full", func(d *diskspace.Disk) { d.Free = gib - 1 }, `<span class="state bad">full</span>`, "so pushes are refused"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d := disk
			tt.change(&d)
			s := site{servertest.Setup(t, func(o *servertest.Options) {
				o.Management.System.Disks = func(context.Context) ([]diskspace.Disk, error) { return []diskspace.Disk{d}, nil }
			})}
			s.open(t, "/ui/system", tt.system, "/srv/&lt;b&gt;")
			s.open(t, "/ui/", tt.overview)
		})
	}
	s := site{servertest.Setup(t)}
	s.open(t, "/ui/system", "none of its own")
}

// day returns a day as forms write it.
func day(ago int) string { return time.Now().UTC().AddDate(0, 0, -ago).Format(time.DateOnly) }

// TestPagesOfLockedTables: a page that has to wait too long for the database says so, and when to try again.
func TestPagesOfLockedTables(t *testing.T) {
	t.Parallel()
	dsn := dbtest.DSN(t)
	s := site{servertest.NewReplica(t, dsn+"&lock_timeout=20", t.TempDir())}
	s.Put(t, "acme/app", "v1", s.Simple(t, "acme/app", 1, nil))
	servertest.LockTables(t, dsn)
	for _, path := range []string{"/ui/repositories", "/ui/repositories/acme/app", "/ui/namespaces/acme", "/ui/trash"} {
		a := s.Do(t, "GET", path, "").WantStatus(t, http.StatusServiceUnavailable)
		if a.Header.Get("Retry-After") == "" {
			t.Errorf("%s doesn't say when to try again: %v", path, a.Header)
		}
	}
}
