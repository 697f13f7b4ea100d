package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/opencontainers/go-digest"
	oci "github.com/opencontainers/image-spec/specs-go/v1"
)

// prompt has settings that let the registry delete a repository for good, and the rows below it
// within a second, and collect garbage at once. Only reviews after a push of a blob or manifest are
// delayed, so that a client has time to push what refers to it also on a busy machine. The method
// atRest doesn't wait for them.
var prompt = []string{
	"PURSER_GC_REVIEW_AFTER=0s", "PURSER_GC_REVIEW_AFTER_EVENTS=blob_upload=5m, manifest_upload=5m", "PURSER_LOOSE_FOREIGN_KEYS_INTERVAL=1s",
	"PURSER_LOG_ACCESS=false", "PURSER_TRASH_KEEP=0s",
}

// estate is a registry with repositories that a test deletes. The test uses the registry's
// API, and also reads the registry's database and blob store.
type estate struct {
	t     testing.TB
	r     *registry
	store string // directory of the blobs
	db    *pgxpool.Pool
}

// newEstate starts a registry with the settings in `prompt`, on the database at `dsn` and a
// new store. `env` has further settings.
func newEstate(t testing.TB, dsn string, env ...string) *estate {
	t.Helper()
	dir := newDir(t)
	env = slices.Concat(prompt, []string{"PURSER_STORAGE_FILESYSTEM_PATH=" + dir, "PURSER_DATABASE_MAIN=" + dsn}, env)
	return &estate{t: t, r: startRegistry(t, options{env: env}), store: dir, db: openPool(t, dsn)}
}

func openPool(t testing.TB, dsn string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// mustExec runs SQL that must succeed.
func mustExec(t testing.TB, db *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := db.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// column runs a query that returns one column, and returns the column's values.
func column[T any](t testing.TB, db *pgxpool.Pool, sql string, args ...any) []T {
	t.Helper()
	rows, err := db.Query(t.Context(), sql, args...)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[T])
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return list
}

// property is a repository of an estate, with the content that the test has pushed to it.
type property struct {
	repo     string
	tags     map[string]string // digest by name
	subject  string            // digest of a tagged image
	layout   string            // layout of that image
	referrer string            // digest of a manifest whose subject is that image, or ""
	blobs    []string          // digests of all configurations and layers
}

// fill pushes to a repository: an image that no other repository has, an image that other
// repositories have too, an index, and a referrer.
func (e *estate) fill(repo string, shared v1.Image) property {
	e.t.Helper()
	crane, regctl := toolClient(e.t, "crane"), regctl(e.t, e.r)
	own, index := newImage(e.t, 2, 8<<10), newIndex(e.t, "amd64", "arm64")
	p := property{repo: repo, subject: digestOf(e.t, own), layout: writeImage(e.t, own, "v1"), tags: map[string]string{
		"v1": digestOf(e.t, own), "shared": digestOf(e.t, shared), "multi": digestOf(e.t, index),
	}}
	crane.Run("push", p.layout, e.r.Ref(repo, "v1"))
	crane.Run("push", writeImage(e.t, shared, "v1"), e.r.Ref(repo, "shared"))
	regctl.Run("image", "copy", "ocidir://"+writeIndex(e.t, index, "v1")+":v1", e.r.Ref(repo, "multi"))
	p.referrer = regctl.RunInput("an SBOM of "+repo, "artifact", "put", "--artifact-type", "application/spdx+json",
		"--subject", e.r.Ref(repo, "v1"), "--format", "{{println .Manifest.GetDescriptor.Digest}}")
	p.blobs = e.blobs(repo, append(slices.Collect(maps.Values(p.tags)), p.referrer)...)
	return p
}

// blobs returns the digests of all blobs that the manifests under these references name,
// sorted and each once.
func (e *estate) blobs(repo string, references ...string) []string {
	e.t.Helper()
	found := map[string]bool{}
	for len(references) > 0 {
		text, _, err := e.r.API().manifest(e.t.Context(), repo, references[0])
		if err != nil {
			e.t.Fatal(err)
		}
		var named struct {
			Config            *oci.Descriptor
			Layers, Manifests []oci.Descriptor
		}
		if err := json.Unmarshal(text, &named); err != nil {
			e.t.Fatal(err)
		}
		if named.Config != nil {
			found[named.Config.Digest.String()] = true
		}
		for _, d := range named.Layers {
			found[d.Digest.String()] = true
		}
		references = references[1:]
		for _, d := range named.Manifests {
			references = append(references, d.Digest.String())
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// listTags returns the tags of a repository.
func (a *api) listTags(ctx context.Context, repo string) (tags []string, err error) {
	res, err := a.do(ctx, request{method: "GET", path: "/v2/" + repo + "/tags/list", want: http.StatusOK})
	if err != nil {
		return nil, err
	}
	var list struct{ Tags []string }
	err = json.Unmarshal(res.body, &list)
	return list.Tags, err
}

// listReferrers returns the digests of all referrers of a manifest.
func (a *api) listReferrers(ctx context.Context, repo, subject string) (digests []string, err error) {
	res, err := a.do(ctx, request{method: "GET", path: "/v2/" + repo + "/referrers/" + subject, want: http.StatusOK})
	if err != nil {
		return nil, err
	}
	var index oci.Index
	err = json.Unmarshal(res.body, &index)
	for _, d := range index.Manifests {
		digests = append(digests, d.Digest.String())
	}
	return digests, err
}

// whole fails the test unless each repository has exactly the content that was pushed to it.
func (e *estate) whole(list ...property) {
	e.t.Helper()
	for _, p := range list {
		got, err := e.r.API().listTags(e.t.Context(), p.repo)
		if want := slices.Sorted(maps.Keys(p.tags)); err != nil || !slices.Equal(got, want) {
			e.t.Errorf("%s has tags %q (%v), want %q", p.repo, got, err, want)
		}
		for tag, d := range p.tags {
			e.r.API().checkWhole(e.t, p.repo, tag, d)
		}
		var want []string
		if p.referrer != "" {
			want = []string{p.referrer}
			e.r.API().checkWhole(e.t, p.repo, p.referrer, p.referrer)
		}
		if p.subject == "" {
			continue
		}
		if got, err := e.r.API().listReferrers(e.t.Context(), p.repo, p.subject); err != nil || !slices.Equal(got, want) {
			e.t.Errorf("%s has referrers %q (%v), want %q", p.repo, got, err, want)
		}
	}
}

// question is a request with which a test finds out whether a repository exists. In the path,
// REPO stands for the repository's name.
type question struct{ method, path string }

// questions returns requests about a repository. The answers to those in `reading` show
// whether the repository exists; those in `changing` delete content of the repository, or the
// repository itself.
func (p property) questions() (reading, changing []question) {
	var paths []string
	for tag, d := range p.tags {
		paths = append(paths, "/v2/REPO/manifests/"+tag, "/v2/REPO/manifests/"+d)
	}
	for _, d := range p.blobs {
		paths = append(paths, "/v2/REPO/blobs/"+d)
	}
	if p.referrer != "" {
		paths = append(paths, "/v2/REPO/manifests/"+p.referrer)
		reading = append(reading, question{"GET", "/v2/REPO/referrers/" + p.subject})
	}
	reading = append(reading, question{"GET", "/v2/REPO/tags/list"})
	for _, path := range paths {
		reading = append(reading, question{"GET", path}, question{"HEAD", path})
		changing = append(changing, question{"DELETE", path})
	}
	return reading, append(changing, question{"DELETE", "/api/v1/repository/REPO"})
}

// unknown is a repository that never was.
const unknown = "never/was"

// ask sends the request `q` about the repository `repo`. It returns the answer's status and
// body as one text, in which the repository's name is replaced by REPO, so that tests can
// compare the answers for two repositories.
func (a *api) ask(t testing.TB, q question, repo string) string {
	t.Helper()
	name := repo
	if strings.HasPrefix(q.path, "/api/") { // which else takes a longer path for one that it doesn't have
		name = strings.ReplaceAll(repo, "/", "%2F")
	}
	_, err := a.do(t.Context(), request{method: q.method, path: strings.ReplaceAll(q.path, "REPO", name), want: noStatus,
		header: map[string]string{"Accept": manifestTypes}})
	var answer *statusError
	if !errors.As(err, &answer) {
		t.Fatal(err)
	}
	return fmt.Sprintf("%d %s", answer.status, strings.ReplaceAll(answer.body, repo, "REPO"))
}

// noStatus is a wanted status that no answer has. With it, api.do returns every answer as a
// *statusError, whatever the answer's status.
const noStatus = -1

// there checks that each request in the list `reading` (see questions) shows whether a
// repository exists: it fails the test if the answer for the existing repository `p` is the
// same as for a repository that never existed. Such a request couldn't show later that `p` was
// deleted.
func (e *estate) there(a *api, p property) {
	e.t.Helper()
	reading, _ := p.questions()
	for _, q := range reading {
		if got := a.ask(e.t, q, p.repo); got == a.ask(e.t, q, unknown) {
			e.t.Errorf("%s %s of %s, which is there: %s", q.method, q.path, p.repo, got)
		}
	}
}

// gone fails the test unless every request that the method questions returns gets the same
// answer for the deleted repository `p` as for a repository that never existed. It also fails
// the test if a blob of `p` can be mounted into the repository `another`, or if the catalog
// lists `p` or lacks `another`.
func (e *estate) gone(p property, another string) {
	e.t.Helper()
	a := e.r.API()
	reading, changing := p.questions()
	for _, q := range append(reading, changing...) {
		if got, want := a.ask(e.t, q, p.repo), a.ask(e.t, q, unknown); got != want {
			e.t.Errorf("%s %s of %s, which was deleted: %s, want as of one that never was: %s", q.method, q.path, p.repo, got, want)
		}
	}
	for _, d := range p.blobs {
		if err := a.mount(e.t.Context(), another, d, p.repo); !isStatus(err, http.StatusAccepted) {
			e.t.Errorf("mounting %s from %s, which was deleted: %v, want 202", d, p.repo, err)
		}
	}
	if list := lines(toolClient(e.t, "crane").Run("catalog", e.r.host)); slices.Contains(list, p.repo) || !slices.Contains(list, another) {
		e.t.Errorf("the catalog is %q, want %s, and not %s", list, another, p.repo)
	}
}

// mount asks the registry to mount the blob `d` of the repository `from` into the repository
// `repo`. If the registry can't, it answers 202, which mount returns as an error.
func (a *api) mount(ctx context.Context, repo, d, from string) error {
	_, err := a.do(ctx, request{method: "POST", want: http.StatusCreated,
		path: "/v2/" + repo + "/blobs/uploads/?mount=" + d + "&from=" + from})
	return err
}

// again pushes one image of the deleted repository `old` to a new repository of the same name.
// It fails the test if any other content of the deleted repository is in the new one.
func (e *estate) again(old property) property {
	e.t.Helper()
	toolClient(e.t, "crane").Run("push", old.layout, e.r.Ref(old.repo, "new"))
	p := property{repo: old.repo, tags: map[string]string{"new": old.subject}, subject: old.subject, layout: old.layout}
	p.blobs = e.blobs(p.repo, "new")
	e.whole(p)
	for _, reference := range without([]string{"v1", "multi", old.tags["multi"], old.referrer}, []string{""}) {
		if _, _, err := e.r.API().manifest(e.t.Context(), p.repo, reference); !isStatus(err, http.StatusNotFound) {
			e.t.Errorf("%s of the old repository is in the new one: %v, want 404", reference, err)
		}
	}
	return p
}

// stored returns the digests of the contents of all objects in the store, sorted. If several
// objects have the same content, its digest is in the list once for each object.
func (e *estate) stored() []string {
	e.t.Helper()
	paths, err := files(filepath.Join(e.store, "objects"), func(path string) string { return path })
	if err != nil {
		e.t.Fatal(err)
	}
	var list []string
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if os.IsNotExist(err) {
			continue // the sweeper has deleted it just now
		}
		if err != nil {
			e.t.Fatal(err)
		}
		list = append(list, digest.FromBytes(content).String())
	}
	slices.Sort(list)
	return list
}

// files returns, for each file below a directory, the result of `name` for the file's path. It
// leaves out hidden directories and the store's identity. It may or may not list a file that
// is removed meanwhile.
func files(dir string, name func(path string) string) ([]string, error) {
	var list []string
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		switch {
		case os.IsNotExist(err):
			return nil
		case err != nil:
			return err
		case e.IsDir() && path != dir && strings.HasPrefix(e.Name(), "."):
			return fs.SkipDir
		case !e.IsDir() && e.Name() != "purser-store.json": // the store's identity
			list = append(list, name(path))
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("listing the store: %w", err)
	}
	return list, nil
}

// drained waits until the worker of loose foreign keys has deleted the rows below all deleted
// repositories and namespaces. It doesn't wait for the second look: the search for late rows
// in the statistics' database, an hour after the first.
func (e *estate) drained(within time.Duration) {
	e.t.Helper()
	eventually(e.t, within, func() error {
		if n := column[int](e.t, e.db, `SELECT count(*) FROM loose_foreign_keys_deleted_records
				WHERE status = 1 AND cleanup_attempts >= 0`)[0]; n > 0 {
			return fmt.Errorf("%d deleted records are pending", n)
		}
		return nil
	})
}

// atRest waits until nothing of the deleted repositories is left in the database or the store.
// It fails the test unless the repositories in `living` are complete and no command reports a
// problem.
func (e *estate) atRest(living ...property) {
	e.t.Helper()
	e.drained(time.Minute)
	want := map[string]bool{}
	for _, p := range living {
		for _, d := range p.blobs {
			want[d] = true
		}
	}
	objects := slices.Sorted(maps.Keys(want))
	eventually(e.t, time.Minute, func() error {
		if err := e.reviewsAreDue(); err != nil {
			return err
		}
		e.r.collect(false)
		if got := e.stored(); !slices.Equal(got, objects) {
			return fmt.Errorf("the store has %d objects, want %d; too many: %q, too few: %q", len(got), len(objects),
				without(got, objects), without(objects, got))
		}
		return nil
	})
	e.whole(living...)
	e.says("All is well.", "check", "--deep")
	e.says("nothing is pending", "loosefk", "status")
	e.says("all is well", "loosefk", "doctor")
	e.noOrphans()
}

// reviewsAreDue makes the reviews due that wait because something was pushed, as if that were long
// ago.
func (e *estate) reviewsAreDue() error {
	for _, queue := range []string{"gc_manifest_review_queue", "gc_blob_review_queue"} {
		if _, err := e.db.Exec(e.t.Context(), "UPDATE "+queue+" SET review_after = now() WHERE review_after > now()"); err != nil {
			return err
		}
	}
	return nil
}

// without returns the elements of list that aren't in others.
func without(list, others []string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(s string) bool { return slices.Contains(others, s) })
}

// says fails the test unless the command with the arguments `args` succeeds and its output
// contains `text`.
func (e *estate) says(text string, args ...string) {
	e.t.Helper()
	code, out := purser(e.t, e.r.opt.env, append(args, "--data-dir", e.r.opt.dataDir)...)
	if code != 0 || !strings.Contains(out, text) {
		e.t.Errorf("purser %s exited with %d, want 0 and %q:\n%s", strings.Join(args, " "), code, text, out)
	}
}

// orphans is a row of the output of "purser loosefk audit". For one child table it counts the
// rows whose parent is gone: Pending counts those that a pending deleted record will clean up,
// and Orphans those that nothing will clean up.
type orphans struct {
	Child            string
	Pending, Orphans int
}

// children are tables that must be among those that "purser loosefk audit" lists.
var children = []string{"tags", "manifest_references", "manifests", "repository_blobs", "uploads",
	"tagpullstatistics", "manifestpullstatistics", "tagpullhistory", "manifestpullhistory",
	"repositorypullhistory", "namespacepullhistory", "repositories"}

// audit runs "purser loosefk audit" and returns its output. The test fails unless the command
// exits with `code` and lists all tables in `children`.
func (e *estate) audit(code int) (list []orphans) {
	e.t.Helper()
	got, out := purser(e.t, e.r.opt.env, "loosefk", "audit", "-o", "json", "--data-dir", e.r.opt.dataDir)
	if got != code {
		e.t.Fatalf("purser loosefk audit exited with %d, want %d:\n%s", got, code, out)
	}
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		e.t.Fatalf("purser loosefk audit: %v in:\n%s", err, out)
	}
	for _, table := range children {
		if !slices.ContainsFunc(list, func(o orphans) bool { return o.Child == "public."+table }) {
			e.t.Errorf("purser loosefk audit doesn't look at %s:\n%s", table, out)
		}
	}
	return list
}

func (e *estate) noOrphans() {
	e.t.Helper()
	for _, o := range e.audit(0) {
		if o.Pending+o.Orphans > 0 {
			e.t.Errorf("the audit finds %+v, want none", o)
		}
	}
}
