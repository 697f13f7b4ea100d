package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/opencontainers/go-digest"
	oci "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/purser-registry/purser/internal/db/dbtest"
)

// prompt has what is deleted drained and collected at once. Who pushes has a few
// seconds between a blob and its manifest.
var prompt = []string{
	"PURSER_GC_REVIEW_AFTER=0s", "PURSER_GC_REVIEW_AFTER_EVENTS_BLOB_UPLOAD=5s",
	"PURSER_GC_REVIEW_AFTER_EVENTS_MANIFEST_UPLOAD=5s", "PURSER_LOOSE_FOREIGN_KEYS_INTERVAL=1s",
	"PURSER_LOG_ACCESS=false",
}

// estate is a registry whose repositories are deleted, seen from outside and
// from behind.
type estate struct {
	t     testing.TB
	r     *registry
	store string // directory of the blobs
	db    *pgxpool.Pool
}

// newEstate starts a registry that drains and collects at once, on the database
// of that DSN.
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

// column returns the rows of a query with one column.
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

// property is what a test has put into a repository.
type property struct {
	repo     string
	tags     map[string]string // digest by name
	subject  string            // digest of a tagged image
	layout   string            // of that image
	referrer string            // digest of what refers to that image, or ""
	blobs    []string          // digests of all configurations and layers
}

// fill puts an image of its own, one that others have too, an index and a
// referrer into a repository.
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

// blobs are the digests of what manifests name, in order, each once.
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

// listReferrers returns the digests of what refers to a manifest.
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

// whole fails the test unless a repository has just what was put into it.
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

// question is a request about the repository REPO.
type question struct{ method, path string }

// questions are what is asked about a repository: reading, whose answer says
// whether it is there, and changing it.
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

// ask returns the status and body of an answer; of a repository that is there
// they differ from those of one that isn't.
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

// noStatus is the status of no answer.
const noStatus = -1

// there fails the test if any question about a repository is answered as for one
// that never was: then the questions would show nothing.
func (e *estate) there(a *api, p property) {
	e.t.Helper()
	reading, _ := p.questions()
	for _, q := range reading {
		if got := a.ask(e.t, q, p.repo); got == a.ask(e.t, q, unknown) {
			e.t.Errorf("%s %s of %s, which is there: %s", q.method, q.path, p.repo, got)
		}
	}
}

// gone fails the test unless every question about a repository is answered as for
// one that never was, and nothing can be mounted from it into another.
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

// mount links a blob of one repository in another. Where it can't, the answer is
// 202.
func (a *api) mount(ctx context.Context, repo, d, from string) error {
	_, err := a.do(ctx, request{method: "POST", want: http.StatusCreated,
		path: "/v2/" + repo + "/blobs/uploads/?mount=" + d + "&from=" + from})
	return err
}

// again pushes one image of a deleted repository to a new one of the same name,
// which must have nothing else.
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

// stored are the digests of all objects in the store, in order, as often as they
// are there.
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
			continue // it was swept just now
		}
		if err != nil {
			e.t.Fatal(err)
		}
		list = append(list, digest.FromBytes(content).String())
	}
	slices.Sort(list)
	return list
}

// drained waits until no deleted record is pending. What has no more to be done
// than a second look isn't waited for.
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

// atRest waits until nothing is left of what was deleted, in the database or the
// store, and fails the test unless what lives is whole and every command is
// content.
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

// without are the elements of list that others lacks.
func without(list, others []string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(s string) bool { return slices.Contains(others, s) })
}

// says fails the test unless a command succeeds and prints text.
func (e *estate) says(text string, args ...string) {
	e.t.Helper()
	code, out := purser(e.t, e.r.opt.env, append(args, "--data-dir", e.r.opt.dataDir)...)
	if code != 0 || !strings.Contains(out, text) {
		e.t.Errorf("purser %s exited with %d, want 0 and %q:\n%s", strings.Join(args, " "), code, text, out)
	}
}

// orphans is what "purser loosefk audit" finds for a definition: children that a
// pending record is going to clean up, and those that nothing will.
type orphans struct {
	Child            string
	Pending, Orphans int
}

// children are tables that the audit must look at, at least.
var children = []string{"tags", "manifest_references", "manifests", "repository_blobs", "uploads",
	"tagpullstatistics", "manifestpullstatistics", "repositories"}

// audit runs "purser loosefk audit", which must exit with that code.
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

func TestRepositoryDeleted(t *testing.T) {
	beginOwn(t)
	e, shared := newEstate(t, dbtest.EmptyDSN(t)), newImage(t, 2, 4<<10)
	app, web, other := e.fill("acme/app", shared), e.fill("acme/web", shared), e.fill("other/app", shared)
	e.there(e.r.API(), app)
	e.r.manage("DELETE", "/repository/acme/app", nil, nil, http.StatusNoContent)
	e.gone(app, "acme/web")
	e.whole(web, other)
	again := e.again(app)
	e.atRest(again, web, other)
}

func TestNamespaceDeleted(t *testing.T) {
	beginOwn(t)
	e, shared := newEstate(t, dbtest.EmptyDSN(t)), newImage(t, 2, 4<<10)
	deleted := []property{e.fill("acme", shared), e.fill("acme/app", shared), e.fill("acme/deep/web", shared)}
	other := e.fill("acmes/app", shared)
	for _, p := range deleted {
		e.there(e.r.API(), p)
	}
	e.r.manage("DELETE", "/organization/acme", nil, nil, http.StatusNoContent)
	for _, p := range deleted {
		e.gone(p, "acmes/app")
	}
	e.r.manage("DELETE", "/organization/acme", nil, nil, http.StatusNotFound)
	e.whole(other)
	again := e.again(deleted[1])
	e.gone(deleted[2], "acmes/app")
	e.atRest(again, other)
	// Nothing of the one that was made anew is in the way of its own deletion.
	e.r.manage("DELETE", "/organization/acme", nil, nil, http.StatusNoContent)
	e.gone(again, "acmes/app")
	e.atRest(other)
}

// clean are the codes of answers to a client whose repository was deleted while
// it pushed.
var clean = regexp.MustCompile(`\b(NAME_UNKNOWN|BLOB_UNKNOWN|MANIFEST_UNKNOWN|MANIFEST_BLOB_UNKNOWN|BLOB_UPLOAD_UNKNOWN|BLOB_UPLOAD_INVALID)\b`)

// cleanly fails the test unless a push succeeded or was refused with 4xx and a
// code; it tells whether it succeeded.
func cleanly(t testing.TB, what string, err error) bool {
	t.Helper()
	var answer *statusError
	switch {
	case err == nil:
	case !errors.As(err, &answer) || answer.status/100 != 4 || !clean.MatchString(answer.body):
		t.Errorf("%s: %v, want success or a clean refusal", what, err)
	}
	return err == nil
}

// TestPushDuringDeletion has clients push to a repository and to a namespace that
// are deleted all the while. Whoever isn't refused has pushed something whole, if
// it is there at all; and at rest nothing is left of what was deleted.
func TestPushDuringDeletion(t *testing.T) {
	beginOwn(t)
	e := newEstate(t, dbtest.EmptyDSN(t))
	web, a := e.fill("acme/web", newImage(t, 1, 1<<10)), e.r.API()
	repos := []string{"acme/app", "busy/app"}
	var pushed, refused atomic.Int64
	var stop atomic.Bool
	var wg sync.WaitGroup
	for n := range 4 {
		wg.Go(func() {
			base := randomBytes(2 << 10)
			for i := 0; !stop.Load(); i++ {
				repo := repos[(i+n)%2]
				_, err := a.pushImage(t.Context(), repo, fmt.Sprintf("w%d-%d", n, i), base, randomBytes(1<<10))
				if cleanly(t, "pushing to "+repo, err) {
					pushed.Add(1)
				} else {
					refused.Add(1)
				}
			}
		})
	}
	wg.Go(func() {
		crane, ref := toolClient(t, "crane"), e.r.Ref("acme/app", "crane")
		for !stop.Load() {
			if _, err := crane.Try("", "push", writeImage(t, newImage(t, 3, 1<<10), "v1"), ref); err != nil && !clean.MatchString(err.Error()) {
				t.Errorf("crane's push is neither done nor refused with a code: %v", err)
			}
		}
	})
	deleted := e.deleteBusily(30, &pushed)
	stop.Store(true)
	wg.Wait()
	t.Logf("%d deletions, %d pushes, %d refused", deleted, pushed.Load(), refused.Load())
	living := append(e.settle(repos), web)
	e.r.collect(false)
	e.atRest(living...)
}

// deleteBusily deletes acme/app and the namespace busy, that many times each, with
// a push or more between one time and the next; it returns how often they were
// there.
func (e *estate) deleteBusily(times int, pushed *atomic.Int64) (deleted int) {
	e.t.Helper()
	for range times {
		before := pushed.Load()
		eventually(e.t, time.Minute, func() error {
			if pushed.Load() < before+2 {
				return errors.New("nobody pushes")
			}
			return nil
		})
		for _, path := range []string{"/api/v1/repository/acme/app", "/api/v1/organization/busy"} {
			_, err := e.r.API().do(e.t.Context(), request{method: "DELETE", path: path, want: http.StatusNoContent})
			switch {
			case err == nil:
				deleted++
			case !isStatus(err, http.StatusNotFound):
				e.t.Errorf("deleting what is being pushed to: %v", err)
			}
		}
	}
	if deleted < times {
		e.t.Errorf("%d deletions of %d found something: the test shows little", deleted, 2*times)
	}
	return deleted
}

// settle pushes to repositories of which nobody knows whether they are there, and
// returns what they have then.
func (e *estate) settle(repos []string) (list []property) {
	e.t.Helper()
	for _, repo := range repos {
		p := property{repo: repo, tags: map[string]string{}}
		if _, err := e.r.API().pushImage(e.t.Context(), repo, "last", randomBytes(1<<10)); err != nil {
			e.t.Fatalf("pushing when all is quiet again: %v", err)
		}
		tags, err := e.r.API().listTags(e.t.Context(), repo)
		if err != nil {
			e.t.Fatal(err)
		}
		for _, tag := range tags {
			_, d, err := e.r.API().manifest(e.t.Context(), repo, tag)
			if err != nil {
				e.t.Fatalf("%s:%s is listed: %v", repo, tag, err)
			}
			p.tags[tag] = d.String()
		}
		p.blobs = e.blobs(repo, tags...)
		list = append(list, p)
	}
	return list
}

// TestUploadOfDeletedRepository deletes repositories at every stage of a push to
// them. The rest of the push is refused cleanly or makes a new repository, and
// nothing is left in the store of what was refused.
func TestUploadOfDeletedRepository(t *testing.T) {
	beginOwn(t)
	e := newEstate(t, dbtest.EmptyDSN(t))
	web, a, ctx := e.fill("acme/web", newImage(t, 1, 1<<10)), e.r.API(), t.Context()
	for name, stage := range map[string]struct {
		size    int  // of the blob
		sent    int  // before the deletion, by PATCH; -1: there is no upload yet
		half    bool // of the rest is sent before the deletion as well, by PUT
		drained bool // before the rest
		refused bool // whatever else may happen, the rest is refused
	}{
		"begun":                    {size: 1 << 10},
		"in its row":               {size: 2 << 10, sent: 1 << 10},
		"in its row and drained":   {size: 2 << 10, sent: 1 << 10, drained: true, refused: true},
		"in the store":             {size: 2 << 20, sent: 1 << 20},
		"in the store and drained": {size: 2 << 20, sent: 1 << 20, drained: true, refused: true},
		"being finished":           {size: 2 << 20, sent: 1 << 20, half: true},
		"being sent at once":       {size: 2 << 20, half: true},
		"being sent and drained":   {size: 3 << 20, sent: 1 << 20, half: true, drained: true, refused: true},
	} {
		repo := "acme/" + strings.ReplaceAll(name, " ", "-")
		if _, err := a.pushImage(ctx, repo, "v1", randomBytes(1<<10)); err != nil {
			t.Fatal(err)
		}
		u, err := a.startUpload(ctx, repo)
		if err != nil {
			t.Fatal(err)
		}
		content := randomBytes(stage.size)
		if stage.sent > 0 {
			if err := a.patch(ctx, u, content[:stage.sent]); err != nil {
				t.Fatal(err)
			}
		}
		objects := len(e.stored())
		finish := e.finishLater(u, content[stage.sent:], digest.FromBytes(content), stage.half)
		e.r.manage("DELETE", "/repository/"+repo, nil, nil, http.StatusNoContent)
		if stage.drained {
			e.drained(time.Minute)
		}
		done := cleanly(t, name+": finishing the upload of a repository that was deleted", finish())
		t.Logf("%s: finished: %t; %d objects", name, done, objects)
		if done && stage.refused {
			t.Errorf("%s: an upload that was cancelled was finished", name)
		}
		e.afterUpload(name, repo, u, oci.Descriptor{Digest: digest.FromBytes(content), Size: int64(len(content))}, done)
	}
	e.drained(time.Minute)
	e.r.collect(false) // which reaps what was cancelled; else that is done once a minute
	e.atRest(web)
	if n := column[int](t, e.db, "SELECT count(*) FROM uploads WHERE status = 2")[0]; n > 0 {
		t.Errorf("%d cancelled uploads weren't reaped", n)
	}
}

// finishLater begins to send the rest of an upload, half of it now if half is
// true, and returns what sends what is left and gets the answer.
func (e *estate) finishLater(u *upload, rest []byte, d digest.Digest, half bool) func() error {
	e.t.Helper()
	a, ctx := e.r.API(), e.t.Context()
	if !half {
		return func() error { return a.finish(ctx, u, rest, d) }
	}
	reader, writer := io.Pipe()
	answered := make(chan error, 1)
	go func() {
		_, err := a.do(ctx, request{method: "PUT", stream: reader, want: http.StatusCreated, path: u.finishing(d)})
		reader.CloseWithError(errors.New("the request is over"))
		answered <- err
	}()
	if _, err := writer.Write(rest[:len(rest)/2]); err != nil {
		e.t.Fatalf("sending half: %v", err)
	}
	eventually(e.t, time.Minute, func() error { return e.r.inFlight(ctx, 1) })
	return func() error {
		writer.Write(rest[len(rest)/2:]) //nolint:errcheck // it may have been refused before
		writer.Close()
		return <-answered
	}
}

// afterUpload fails the test unless an upload of a deleted repository is over,
// and its blob is there just when it was finished.
func (e *estate) afterUpload(name, repo string, u *upload, blob oci.Descriptor, done bool) {
	e.t.Helper()
	a, ctx := e.r.API(), e.t.Context()
	if err := a.status(ctx, u); done && !isStatus(err, http.StatusNotFound) {
		e.t.Errorf("%s: asking for the upload after it was finished: %v, want 404", name, err)
	}
	if err := a.pullBlob(ctx, repo, blob); done && err != nil {
		e.t.Errorf("%s: pulling what was uploaded: %v", name, err)
	} else if !done && !isStatus(err, http.StatusNotFound) {
		e.t.Errorf("%s: pulling what was refused: %v, want 404", name, err)
	}
	if tags, err := a.listTags(ctx, repo); err == nil && len(tags) > 0 {
		e.t.Errorf("%s: %s has tags %q after it was deleted", name, repo, tags)
	}
}

// TestManifestOfDeletedRepository puts a manifest whose blobs were pushed before
// its repository was deleted.
func TestManifestOfDeletedRepository(t *testing.T) {
	beginOwn(t)
	e := newEstate(t, dbtest.EmptyDSN(t))
	a, ctx, content := e.r.API(), t.Context(), randomBytes(1<<10)
	d, err := a.pushImage(ctx, "acme/app", "v1", content)
	if err != nil {
		t.Fatal(err)
	}
	text, _, err := a.manifest(ctx, "acme/app", "v1")
	if err != nil {
		t.Fatal(err)
	}
	e.r.manage("DELETE", "/repository/acme/app", nil, nil, http.StatusNoContent)
	if _, err := a.putManifest(ctx, "acme/app", "v2", oci.MediaTypeImageManifest, text); err == nil {
		t.Errorf("a manifest was put whose blobs were the old repository's")
	} else {
		cleanly(t, "putting a manifest whose blobs were the old repository's", err)
	}
	if _, err := a.pushImage(ctx, "acme/app", "v1", content); err != nil {
		t.Fatalf("pushing the whole image: %v", err)
	}
	p := property{repo: "acme/app", tags: map[string]string{"v1": d.String()}}
	p.blobs = e.blobs("acme/app", "v1")
	e.r.collect(false) // else the sweeper takes up to a minute for what was pushed twice
	e.atRest(p)
}

// TestReplicasSeeRepositoryDeleted fails when a request to one replica that began
// more than a second after a repository or its namespace was deleted on the other
// is answered from what was there.
func TestReplicasSeeRepositoryDeleted(t *testing.T) {
	beginOwn(t)
	var dir string
	a, b := startReplicas(t, func(t testing.TB) []string {
		dir = newDir(t)
		return append([]string{"PURSER_STORAGE_FILESYSTEM_PATH=" + dir}, prompt...)
	})
	pool, shared := openPool(t, setting(a, "PURSER_DATABASE_MAIN")), newImage(t, 1, 4<<10)
	on := func(r *registry) *estate { return &estate{t: t, r: r, store: dir, db: pool} }
	living := []property{on(a).fill("other/app", shared)}
	for namespace, path := range map[string]string{"first": "/repository/first/app", "second": "/organization/second"} {
		old := on(a).fill(namespace+"/app", shared)
		eventually(t, time.Minute, func() error { _, _, err := b.API().manifest(t.Context(), old.repo, "v1"); return err })
		for range 3 {
			on(b).there(b.API(), old) // and now it is in that one's cache
		}
		a.manage("DELETE", path, nil, nil, http.StatusNoContent)
		on(b).goneWithin(2*seenWithin, time.Now(), old, "other/app")
		on(b).gone(old, "other/app")
		on(a).gone(old, "other/app")

		// One that is made there is new and empty here.
		again := on(b).again(old)
		eventually(t, 2*seenWithin, func() error {
			if tags, err := a.API().listTags(t.Context(), old.repo); err != nil || !slices.Equal(tags, []string{"new"}) {
				return fmt.Errorf("the replica that deleted it lists %q (%v), want new", tags, err)
			}
			return nil
		})
		on(a).whole(again)
		living = append(living, again)
		a, b = b, a
	}
	on(a).atRest(living...)
	on(b).whole(living...)
}

// setting is the value of a variable in a registry's environment.
func setting(r *registry, name string) string {
	for _, entry := range r.opt.env {
		if value, ok := strings.CutPrefix(entry, name+"="); ok {
			return value
		}
	}
	r.t.Fatalf("%s isn't set", name)
	return ""
}

// TestReplicaRefusesContentOfDeletedRepository puts a manifest on a replica that
// may not have heard yet that the repository of its blobs was deleted on another.
func TestReplicaRefusesContentOfDeletedRepository(t *testing.T) {
	beginOwn(t)
	a, b := startReplicas(t, func(t testing.TB) []string { return append(storages["filesystem"](t), prompt...) })
	ctx := t.Context()
	for round := range 10 {
		repo := fmt.Sprintf("acme/app%d", round)
		d, err := a.API().pushImage(ctx, repo, "v1", randomBytes(1<<10))
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, time.Minute, func() error { _, _, err := b.API().manifest(ctx, repo, "v1"); return err })
		warm(t, b, repo, "v1")
		text, _, err := b.API().manifest(ctx, repo, d.String())
		if err != nil {
			t.Fatal(err)
		}
		for range 5 { // and now it has cached which repository that is
			if _, err := b.API().listTags(ctx, repo); err != nil {
				t.Fatal(err)
			}
		}
		path := "/repository/" + repo
		if round%2 == 1 {
			path = "/organization/acme"
		}
		a.manage("DELETE", path, nil, nil, http.StatusNoContent)
		if _, err := b.API().putManifest(ctx, repo, "v2", oci.MediaTypeImageManifest, text); err == nil {
			t.Errorf("DELETE %s: the other replica took a manifest whose blobs went with the repository", path)
		} else {
			cleanly(t, "putting a manifest whose blobs went with the repository", err)
		}
		eventually(t, 2*seenWithin, func() error {
			if tags, err := b.API().listTags(ctx, repo); len(tags) > 0 {
				return fmt.Errorf("%s has tags %q (%v)", repo, tags, err)
			}
			return nil
		})
		a, b = b, a
	}
}

// goneWithin polls until every question about a repository is answered as for one
// that never was. Any answer to a question that was asked later than that after
// the deletion fails the test if it isn't.
func (e *estate) goneWithin(limit time.Duration, deleted time.Time, p property, another string) {
	e.t.Helper()
	a := e.r.API()
	reading, _ := p.questions()
	want := map[question]string{}
	for _, q := range reading {
		want[q] = a.ask(e.t, q, unknown)
	}
	for stale := true; stale; {
		stale = false
		for _, q := range reading {
			asked := time.Since(deleted)
			if got := a.ask(e.t, q, p.repo); got == want[q] {
				continue
			} else if stale = true; asked > limit {
				e.t.Fatalf("%v after %s was deleted, %s %s of another replica is %s, want %s", asked, p.repo, q.method, q.path, got, want[q])
			}
		}
		asked := time.Since(deleted)
		if err := a.mount(e.t.Context(), another, p.blobs[0], p.repo); err == nil && asked > limit {
			e.t.Fatalf("%v after %s was deleted, another replica mounts a blob from it", asked, p.repo)
		}
	}
}

// TestKillWhileRepositoryDrains kills the server in the middle of what a large
// repository leaves behind, once among its tags and once among its manifests. The
// next one goes on.
func TestKillWhileRepositoryDrains(t *testing.T) {
	beginOwn(t)
	const size = 3000
	e, shared := newEstate(t, dbtest.EmptyDSN(t)), newImage(t, 1, 4<<10)
	other := e.fill("other/app", shared)
	e.fill("acme/large", shared)
	e.pushMany("acme/large", size)
	id := column[int64](t, e.db, "SELECT id FROM repositories WHERE path = 'acme/large'")[0]
	// So slow is this machine's disk.
	mustExec(t, e.db, `CREATE FUNCTION slowly () RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN PERFORM pg_sleep(0.001); RETURN OLD; END $$`)
	for _, table := range []string{"tags", "manifests"} {
		mustExec(t, e.db, "CREATE TRIGGER slowly BEFORE DELETE ON "+table+" FOR EACH ROW EXECUTE FUNCTION slowly()")
	}
	e.r.manage("DELETE", "/repository/acme/large", nil, nil, http.StatusNoContent)
	for _, table := range []string{"tags", "manifests"} {
		e.killAmong(table, id, size)
		e.r.Restart()
		if _, err := e.r.API().pushImage(t.Context(), "other/"+table, "v1", randomBytes(1<<10)); err != nil {
			t.Errorf("pushing while the rest is drained: %v", err)
		}
	}
	e.drained(time.Minute)
	for _, table := range []string{"tags", "manifests", "manifest_references", "layers", "repository_blobs"} {
		if n := column[int](t, e.db, "SELECT count(*) FROM "+table+" WHERE repository_id = $1", id)[0]; n > 0 {
			t.Errorf("%d rows of %s are left of a repository that was drained", n, table)
		}
	}
	living := append(e.settle([]string{"other/tags", "other/manifests"}), other)
	e.r.collect(false)
	e.atRest(living...)
}

// pushMany puts that many empty indexes into a repository, each with a tag.
func (e *estate) pushMany(repo string, n int) {
	e.t.Helper()
	a := e.r.API()
	var next atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := next.Add(1); i <= int64(n) && !e.t.Failed(); i = next.Add(1) {
				text := fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":%q,"manifests":[],"annotations":{"n":"%d"}}`, oci.MediaTypeImageIndex, i)
				if _, err := a.putManifest(e.t.Context(), repo, fmt.Sprint("n", i), oci.MediaTypeImageIndex, text); err != nil {
					e.t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if e.t.Failed() {
		e.t.FailNow()
	}
}

// killAmong kills the server when some of a repository's rows of a table are
// gone and others aren't, and fails the test if none is left when what it had
// begun is over.
func (e *estate) killAmong(table string, id int64, size int) {
	e.t.Helper()
	count := "SELECT count(*) FROM " + table + " WHERE repository_id = $1"
	eventually(e.t, time.Minute, func() error {
		if n := column[int](e.t, e.db, count, id)[0]; n >= size {
			return fmt.Errorf("%d rows of %s are there", n, table)
		}
		return nil
	})
	e.r.Kill9()
	eventually(e.t, time.Minute, func() error {
		if n := column[int](e.t, e.db, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
				AND application_name = 'purser loose foreign keys'`)[0]; n > 0 {
			return errors.New("PostgreSQL hasn't noticed that the server was killed")
		}
		return nil
	})
	n := column[int](e.t, e.db, count, id)[0]
	if n == 0 || n >= size {
		e.t.Errorf("%d rows of %s are there, so the server wasn't killed among them", n, table)
	}
	e.t.Logf("killed with %d rows of %s left", n, table)
}
