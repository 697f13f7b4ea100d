package ui

import (
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/gc"
)

func (u *UI) addCleanup() {
	u.add("/ui/cleanup", func(q *request) error { return q.showCleanup(nil) }, changeCleanup)
	u.add("/ui/cleanup/explain", showExplain, nil)
}

// work is a run that an operator has started: of garbage collection or a check of the store.
type work struct {
	ID        string     `json:"id"`
	State     string     `json:"state"`
	StartedAt time.Time  `json:"started_at"`
	EndedAt   *time.Time `json:"ended_at"`
	Error     string     `json:"error"`
	Total     int64      `json:"findings_total"`

	// Of garbage collection.
	DryRun bool `json:"dry_run"`
	// Of a check.
	Deep   bool `json:"deep"`
	Repair bool `json:"repair"`

	Progress struct {
		ManifestsReviewed int64 `json:"manifests_reviewed"`
		ManifestsDeleted  int64 `json:"manifests_deleted"`
		BlobsReviewed     int64 `json:"blobs_reviewed"`
		BlobsDeleted      int64 `json:"blobs_deleted"`
		Bytes             int64 `json:"bytes"`
		Failed            int64 `json:"failed"`
		Due               int64 `json:"due"`

		Share       float64 `json:"share"`
		ObjectCount int64   `json:"objects"`
		Blobs       int64   `json:"blobs"`
		Manifests   int64   `json:"manifests"`
		HashedBytes int64   `json:"hashed_bytes"`
	} `json:"progress"`
	Findings []finding `json:"findings"`
}

// finding is what a dry run would delete, or what a check has found.
type finding struct {
	Kind         string   `json:"kind"`
	Problem      string   `json:"problem"`
	Repository   string   `json:"repository"`
	Repositories []string `json:"repositories"`
	Digest       string   `json:"digest"`
	Key          string   `json:"key"`
	Size         int64    `json:"size"`
	Event        string   `json:"event"`
	Detail       string   `json:"detail"`
	Repaired     bool     `json:"repaired"`
}

// Running says that the work isn't over.
func (w *work) Running() bool { return w.State == "running" }

// Percent is the share of a check that is done.
func (w *work) Percent() int { return int(100 * w.Progress.Share) }

// Class is the class of the state.
func (w *work) Class() string {
	switch w.State {
	case "succeeded":
		return "good"
	case "failed":
		return "bad"
	case "cancelled":
		return "warn"
	}
	return ""
}

// shownFindings is how many findings of a run the page lists.
const shownFindings = 50

// latest returns the run that was started last at a path of the API, nil if there is none.
func (q *request) latest(path string) (*work, error) {
	var list struct {
		Runs []struct {
			ID string `json:"id"`
		} `json:"runs"`
	}
	if err := q.get(path, nil, &list); err != nil || len(list.Runs) == 0 {
		return nil, err
	}
	w := new(work)
	if err := q.get(apiPath(path+"/%s", list.Runs[0].ID), nil, w); err != nil {
		return nil, err
	}
	w.Findings = w.Findings[:min(len(w.Findings), shownFindings)]
	return w, nil
}

// queueRow is a review queue in the table.
type queueRow struct {
	Name string
	gc.QueueStatus
}

// showCleanup shows what garbage collection has to do and did, with a notice about a form.
func (q *request) showCleanup(n *notice) error {
	var d struct {
		GC                 gc.GCStatus
		Queues             []queueRow
		Keys               []pendingKeys
		NoKeys, NoPulls    string
		Pulls              *pullState
		Collecting, Checks *work
		Explain            explained // empty, for the form
	}
	var err error
	if d.GC, err = run(q, api.GetGCStatus, struct{}{}); err != nil {
		return err
	}
	d.Queues = []queueRow{{"Manifests", d.GC.Manifests}, {"Blobs", d.GC.Blobs}}
	if d.Keys, err = q.keys(); err != nil {
		d.NoKeys = sentence(err.Error())
	}
	var pulls pullState
	if err := q.get("/pull_statistics", nil, &pulls); err != nil {
		d.NoPulls = sentence(err.Error())
	} else {
		d.Pulls = &pulls
	}
	if d.Collecting, err = q.latest("/gc/run"); err != nil {
		return err
	}
	if d.Checks, err = q.latest("/check"); err != nil {
		return err
	}
	return q.show("cleanup", page{
		Title: "Clean-up", Section: "cleanup", Notice: n, Data: d,
		Lead: "Garbage collection reviews what may no longer be used, and deletes what nothing refers to. It runs all the time; nothing here has to be pressed.",
		Same: []same{
			command("purser gc status"), command("purser gc run --dry-run"), command("purser gc retry"), command("purser gc explain DIGEST"), command("purser check"),
			call("GET", "/gc/status"), call("POST", "/gc/run"), call("POST", "/gc/retry"), call("POST", "/check"), call("GET", "/loosefk/status"), call("GET", "/pull_statistics"),
		},
	})
}

// changeCleanup starts and cancels work, and retries failed reviews.
func changeCleanup(q *request) error {
	is := func(name string) bool { return q.form.Get(name) == "true" }
	var err error
	switch do := q.form.Get("do"); do {
	case "retry":
		var done api.Retried
		if done, err = run(q, api.RetryGC, api.RetryInput{}); err == nil {
			return q.showCleanup(&notice{Text: plural(done.Manifests+done.Blobs, "review is", "reviews are") + " due again."})
		}
	case "dry-run", "collect":
		if err = q.call(http.MethodPost, "/gc/run", map[string]bool{"dry_run": do == "dry-run"}, nil); err == nil {
			return q.redirect("/ui/cleanup#collect")
		}
	case "check":
		body := map[string]bool{"deep": is("deep"), "repair": is("repair"), "force": is("force")}
		if err = q.call(http.MethodPost, "/check", body, nil); err == nil {
			return q.redirect("/ui/cleanup#check")
		}
	case "cancel-run":
		err = q.call(http.MethodDelete, apiPath("/gc/run/%s", q.form.Get("id")), nil, nil)
	case "cancel-check":
		err = q.call(http.MethodDelete, apiPath("/check/%s", q.form.Get("id")), nil, nil)
	default:
		return q.showCleanup(&notice{Bad: true, Text: "The form doesn't say what to do."})
	}
	if err != nil {
		return q.showCleanup(&notice{Bad: true, Text: sentence(err.Error())})
	}
	return q.showCleanup(&notice{Text: "It ends soon. What it has done stays done."})
}

// explanation says why content is kept, or when it will be deleted.
type explanation struct {
	Fate        string     `json:"fate"`
	Digest      string     `json:"digest"`
	Repository  string     `json:"repository"`
	Size        int64      `json:"size"`
	MediaType   string     `json:"media_type"`
	CreatedAt   time.Time  `json:"created_at"`
	LostAt      *time.Time `json:"lost_at"`
	Explanation []string   `json:"explanation"`
	Missing     struct {
		First []string `json:"first"`
	} `json:"missing"`
}

// fates are the states of content, as people say them.
var fates = map[string][2]string{
	"kept": {"good", "kept"}, "waiting": {"warn", "will be reviewed"}, "due": {"warn", "is due for review"},
	"set_aside": {"bad", "its review has failed"}, "unplanned": {"warn", "no review is planned"},
}

// Sentences returns the explanation, in which digests of the repository's manifests are links.
func (e *explanation) Sentences() [][]phrase {
	words, list := room(24<<10), make([][]phrase, 0, len(e.Explanation))
	for _, text := range e.Explanation {
		list = append(list, phrases(e.Repository, sentence(words.clip(2000, text)), e.Missing.First))
	}
	return list
}

// State returns the class and the words of the fate.
func (e *explanation) State() [2]string {
	if words, ok := fates[e.Fate]; ok {
		return words
	}
	return [2]string{"", clip(40, e.Fate)}
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
			d.Refused = sentence(err.Error())
		}
	}
	p := page{
		Title: "Why is it kept?", Section: "cleanup", Crumbs: []crumb{{"Clean-up", "/ui/cleanup"}}, Data: d,
		Lead: "Says what keeps a blob or a manifest, or when it will be deleted.",
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
		var t struct {
			Digest string `json:"manifest_digest"`
		}
		path = apiPath("/repository/%s/tag/%s", repository, tag)
		if err := q.get(path, nil, &t); err != nil {
			return path, err
		}
		digest = t.Digest
	}
	d.Digest, d.Repository = digest, repository
	path = apiPath("/gc/explain/%s", digest)
	if repository != "" {
		path = apiPath("/repository/%s/manifest/%s/explain", repository, digest)
	}
	e := new(explanation)
	if err := q.get(path, nil, e); err != nil {
		return path, err
	}
	d.Found = e
	return path, nil
}
