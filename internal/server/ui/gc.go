package ui

import (
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/purser-registry/purser/internal/server/ui/format"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/gc"
	"github.com/purser-registry/purser/internal/gc/explain"
	"github.com/purser-registry/purser/internal/oci"
)

func (u *UI) addGarbage() {
	u.add("/ui/gc", func(q *request) error { return q.showGarbage(nil) }, changeGarbage)
	u.add("/ui/gc/explain", showExplain, nil)
}

// runClasses are the classes of the states of runs that have ended.
var runClasses = map[api.RunState]string{api.RunSucceeded: "good", api.RunFailed: "bad", api.RunCancelled: "warn"}

// shownFindings is how many findings of a run the page lists.
const shownFindings = 50

// latest returns the run of a kind that was started last, nil if there is none.
func latest[B, V any](q *request, of api.RunOperations[B, V]) (*V, error) {
	list, err := run(q, of.List, struct{}{})
	if err != nil || len(list.Runs) == 0 {
		return nil, err
	}
	found, err := run(q, of.Get, api.RunItem{ID: list.Runs[0].ID})
	return &found, err
}

// queueRow is a review queue in the table.
type queueRow struct {
	Name string
	gc.QueueStatus
}

// showGarbage shows what garbage collection has to do and did, with a notice about a form.
func (q *request) showGarbage(n *notice) error {
	var d struct {
		GC              gc.GCStatus
		Queues          []queueRow
		Keys            []api.PendingRecords
		NoKeys, NoPulls string
		Pulls           *pullState
		Collecting      *api.GCRun
		Checks          *api.CheckRun
		Explain         explained // empty, for the form
	}
	var err error
	if d.GC, err = run(q, api.GetGCStatus, struct{}{}); err != nil {
		return err
	}
	d.Queues = []queueRow{{"Manifests", d.GC.Manifests}, {"Blobs", d.GC.Blobs}}
	if d.Keys, err = q.keys(); err != nil {
		d.NoKeys = format.Sentence(err.Error())
	}
	if pulls, err := run(q, api.GetPullState, struct{}{}); err != nil {
		d.NoPulls = format.Sentence(err.Error())
	} else {
		d.Pulls = &pullState{pulls}
	}
	if d.Collecting, err = latest(q, api.GCRuns); err != nil {
		return err
	}
	if d.Checks, err = latest(q, api.CheckRuns); err != nil {
		return err
	}
	if r := d.Collecting; r != nil {
		r.Findings = r.Findings[:min(len(r.Findings), shownFindings)]
	}
	if r := d.Checks; r != nil {
		r.Findings = r.Findings[:min(len(r.Findings), shownFindings)]
	}
	return q.show("gc", page{
		Title: "Garbage collection", Section: "gc", Notice: n, Data: d,
		Lead: "Garbage collection reviews what may no longer be used, and deletes what nothing refers to. It runs all the time; nothing here has to be pressed.",
		Same: []same{
			command("purser gc status"), command("purser gc run --dry-run"), command("purser gc retry"), command("purser gc explain DIGEST"), command("purser check"),
			call("GET", "/gc/status"), call("POST", "/gc/run"), call("POST", "/gc/retry"), call("POST", "/check"), call("GET", "/loosefk/status"), call("GET", "/pull_statistics"),
		},
	})
}

// changeGarbage starts and cancels work, and retries failed reviews.
func changeGarbage(q *request) error {
	is := func(name string) bool { return q.form.Get(name) == "true" }
	var err error
	switch do := q.form.Get("do"); do {
	case "retry":
		var done api.Retried
		if done, err = run(q, api.RetryGC, api.RetryInput{}); err == nil {
			return q.showGarbage(&notice{Text: format.Plural(done.Manifests+done.Blobs, "review is", "reviews are") + " due again."})
		}
	case "dry-run", "collect":
		in := api.RunStart[api.GCRequest]{Body: &api.GCRequest{DryRun: do == "dry-run"}}
		if _, err = run(q, api.GCRuns.Start, in); err == nil {
			return q.redirect("/ui/gc#collect")
		}
	case "check":
		in := api.RunStart[api.CheckRequest]{Body: &api.CheckRequest{Deep: is("deep"), Repair: is("repair"), Force: is("force")}}
		if _, err = run(q, api.CheckRuns.Start, in); err == nil {
			return q.redirect("/ui/gc#check")
		}
	case "cancel-run":
		_, err = run(q, api.GCRuns.Cancel, api.RunItem{ID: q.form.Get("id")})
	case "cancel-check":
		_, err = run(q, api.CheckRuns.Cancel, api.RunItem{ID: q.form.Get("id")})
	default:
		return q.showGarbage(&notice{Bad: true, Text: "The form doesn't say what to do."})
	}
	if err != nil {
		return q.showGarbage(&notice{Bad: true, Text: format.Sentence(err.Error())})
	}
	return q.showGarbage(&notice{Text: "It ends soon. What it has done stays done."})
}

// explanation says why content is kept, or when it will be deleted.
type explanation struct {
	Fate       explain.Fate
	Digest     oci.Digest
	Repository string // "" of a blob
	Size       int64
	MediaType  string
	CreatedAt  time.Time
	LostAt     *time.Time
	text       []string
	missing    []string // digests of manifests that aren't there
}

// fates are the states of content, as people say them.
var fates = map[explain.Fate][2]string{
	"kept": {"good", "kept"}, "waiting": {"warn", "will be reviewed"}, "due": {"warn", "is due for review"},
	"set_aside": {"bad", "its review has failed"}, "unplanned": {"warn", "no review is planned"},
}

// Sentences returns the explanation, in which digests of the repository's manifests are links.
func (e *explanation) Sentences() [][]phrase {
	words, list := format.Room(24<<10), make([][]phrase, 0, len(e.text))
	for _, text := range e.text {
		list = append(list, phrases(e.Repository, format.Sentence(words.Clip(2000, text)), e.missing))
	}
	return list
}

// State returns the class and the words of the fate.
func (e *explanation) State() [2]string {
	if words, ok := fates[e.Fate]; ok {
		return words
	}
	return [2]string{"", format.Clip(40, e.Fate)}
}

// explained is the page about a digest.
type explained struct {
	Digest, Repository, Refused string
	Found                       *explanation
}

// plainHex are the digits of a SHA-256 without the name of the algorithm.
var plainHex = regexp.MustCompile(`^[0-9a-f]{64}$`)

// whatToExplain reads what a person typed beside the name of a repository, which may be "": a digest,
// its hexadecimal digits alone, or a tag of the repository; or REPOSITORY@DIGEST or REPOSITORY:TAG.
func whatToExplain(text, repository string) (path, digest, tag string) {
	if path, digest, ok := strings.Cut(text, "@"); ok {
		return path, digest, ""
	}
	colon := strings.LastIndex(text, ":")
	switch {
	case colon >= 0 && text[:colon] != "sha256" && text[:colon] != "sha512":
		return text[:colon], "", text[colon+1:]
	case colon < 0 && repository != "" && !plainHex.MatchString(text):
		return repository, "", text
	case colon < 0 && text != "":
		return repository, "sha256:" + text, ""
	}
	return repository, text, ""
}

// showExplain says why a blob, or with a repository a manifest, is kept.
func showExplain(q *request) error {
	d := explained{Digest: q.query("digest"), Repository: q.query("repository")}
	var path string
	if d.Digest != "" {
		var err error
		if path, err = q.explain(&d); err != nil {
			if status := statusOf(err); status != http.StatusNotFound && status != http.StatusBadRequest {
				return err
			}
			d.Refused = format.Sentence(err.Error())
		}
	}
	p := page{
		Title: "Why is it kept?", Section: "gc", Data: d, Lead: "Says what keeps a blob or a manifest, or when it will be deleted.",
	}
	if q.may(api.GetGCStatus.Access, auth.Registry) {
		p.Crumbs = []crumb{{"Garbage collection", "/ui/gc"}}
	}
	if d.Found != nil && d.Repository != "" {
		p.Same = []same{command("purser gc explain %s@%s", d.Repository, d.Digest), call("GET", path)}
	} else if d.Found != nil {
		p.Same = []same{command("purser gc explain %s", d.Digest), call("GET", path)}
	}
	return q.show("explain", p)
}

// explain finds out what was typed and explains it. It returns the path of the API that it asked last.
func (q *request) explain(d *explained) (path string, err error) {
	repository, digest, tag := whatToExplain(d.Digest, d.Repository)
	if tag != "" {
		t, err := run(q, api.GetTag, tagItem(repository, tag))
		if err != nil {
			return apiPath("/repository/%s/tag/%s", repository, tag), err
		}
		digest = t.ManifestDigest.String()
	}
	d.Digest, d.Repository = digest, repository
	of, err := digestIn("path.digest", digest)
	if err != nil {
		return "", err
	}
	if repository != "" {
		e, err := run(q, api.ExplainManifest, api.ManifestItem{InRepository: repositoryOf(repository), Digest: of})
		if err == nil {
			d.Found = &explanation{e.Fate, e.Digest, e.Repository, e.Size, e.MediaType, e.CreatedAt, nil, e.Explanation, textsOf(e.Missing.First)}
		}
		return apiPath("/repository/%s/manifest/%s/explain", repository, digest), err
	}
	e, err := run(q, api.ExplainBlob, api.BlobItem{Digest: of})
	if err == nil {
		d.Found = &explanation{e.Fate, e.Digest, "", e.Size, e.MediaType, e.CreatedAt, e.LostAt, e.Explanation, nil}
	}
	return apiPath("/gc/explain/%s", digest), err
}
