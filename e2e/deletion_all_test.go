//go:build all

package e2e

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	oci "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/purser-registry/purser/internal/db/dbtest"
)

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
	// The namespace acme was deleted, and a push to acme/app has created it again. The test
	// deletes it once more.
	e.r.manage("DELETE", "/organization/acme", nil, nil, http.StatusNoContent)
	e.gone(again, "acmes/app")
	e.atRest(other)
}

// clean matches the error codes that a client may get if somebody deletes its repository while
// the client pushes.
var clean = regexp.MustCompile(`\b(NAME_UNKNOWN|BLOB_UNKNOWN|MANIFEST_UNKNOWN|MANIFEST_BLOB_UNKNOWN|BLOB_UPLOAD_UNKNOWN|BLOB_UPLOAD_INVALID)\b`)

// The test deletes a repository and a namespace again and again while clients push to them. An
// image whose push succeeded must be complete, unless a later deletion has deleted all of it.
// When the pushes and deletions are over, nothing of the deleted repositories may be left.
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

// deleteBusily deletes the repository "acme/app" and the namespace "busy" in turn, `times`
// times. Before each time it waits for two more successful pushes, which `pushed` counts. It
// returns how many deletions found something to delete.
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

// settle pushes an image to each of the repositories. Some of them may exist, with images that
// were pushed before. It returns all content that each repository has afterwards.
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

// The test deletes repositories at every stage of a push to them. The rest of the push must be
// refused with a proper error, or create a new repository. Nothing of a refused push may be
// left in the store.
func TestUploadOfDeletedRepository(t *testing.T) {
	beginOwn(t)
	e := newEstate(t, dbtest.EmptyDSN(t))
	web, a, ctx := e.fill("acme/web", newImage(t, 1, 1<<10)), e.r.API(), t.Context()
	for name, stage := range map[string]struct {
		size    int  // size of the blob
		sent    int  // bytes sent by PATCH before the deletion; -1: the upload isn't begun yet
		half    bool // half of the rest is sent by PUT before the deletion, too
		drained bool // the deleted repository is cleaned up before the rest is sent
		refused bool // the rest must be refused
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
	e.r.collect(false) // reaps the cancelled uploads; servers do so once a minute
	e.atRest(web)
	if n := column[int](t, e.db, "SELECT count(*) FROM uploads WHERE status = 2")[0]; n > 0 {
		t.Errorf("%d cancelled uploads weren't reaped", n)
	}
}

// finishLater begins the PUT that ends the upload `u`. If `half` is true, it sends half of
// `rest`, the missing bytes, now. It returns a function that sends the remaining bytes and
// returns the PUT's error.
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

// afterUpload checks the upload `u` to a repository that was deleted before the upload's last
// PUT. If this PUT succeeded (`done`), the upload must have ended and the blob must exist;
// otherwise the blob must not exist. The repository must have no tags in any case.
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

// A client pushes an image, the test deletes the repository, and the client puts a manifest
// with the deleted blobs. The registry must refuse this manifest, and accept a new push of the
// whole image.
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
	e.r.collect(false) // else content that was pushed twice may stay a minute
	e.atRest(p)
}

// The test deletes a repository or its namespace on one replica. It fails if the other replica
// answers a request that began more than a second later as if the repository existed.
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
			on(b).there(b.API(), old) // now that replica's cache has the repository
		}
		a.manage("DELETE", path, nil, nil, http.StatusNoContent)
		on(b).goneWithin(2*seenWithin, time.Now(), old, "other/app")
		on(b).gone(old, "other/app")
		on(a).gone(old, "other/app")

		// The second replica creates the repository again. On the first replica, too, the
		// repository must then have only the new content.
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

// The test deletes a repository on one replica. At once, a client puts a manifest with blobs
// of the deleted repository on the other replica, which has cached the repository. That
// replica must refuse the manifest, even if it hasn't been notified yet.
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
		for range 5 { // now the replica has cached the repository's row
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

// goneWithin sends the requests in the list `reading` (see questions) for the deleted
// repository `p` again and again, until every answer is the same as for a repository that
// never existed. It fails the test if a request that it sent later than `limit` after the
// deletion gets another answer, or if a blob of `p` can still be mounted then.
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

// The test kills the server while it deletes the rows of a large deleted repository: once
// while it deletes tags and once while it deletes manifests. The next server must delete the
// rest.
func TestKillWhileRepositoryDrains(t *testing.T) {
	beginOwn(t)
	const size = 3000
	e, shared := newEstate(t, dbtest.EmptyDSN(t)), newImage(t, 1, 4<<10)
	other := e.fill("other/app", shared)
	e.fill("acme/large", shared)
	e.pushMany("acme/large", size)
	id := column[int64](t, e.db, "SELECT id FROM repositories WHERE path = 'acme/large'")[0]
	// This trigger slows down the deletion of rows, as a slow disk would, so that the test can
	// kill the server meanwhile.
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

// pushMany pushes n empty indexes to a repository, each under a tag of its own.
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

// killAmong kills the server when it has deleted some of a repository's rows in a table. When
// PostgreSQL has ended the server's statements, it fails the test if no row is left.
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

// cleanly returns whether a push succeeded, that is, whether `err` is nil. It fails the test
// if the push got no answer, or one whose status isn't 4xx or whose error code isn't one of
// those in `clean`.
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
