//go:build all

package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// ledger records what a test's clients have pushed, pulled and deleted, as the registry
// acknowledged it. The test compares these records with the registry's reports.
type ledger struct {
	t    testing.TB
	r    *registry
	repo string

	pushed, deleted int              // tags, as acknowledged
	pulls           map[string]int64 // by tag, as answered
	next            int              // number of the next tag
}

func (l *ledger) push() (tag string, err error) {
	tag = fmt.Sprintf("v%d", l.next)
	l.next++
	if _, err = l.r.API().pushImage(l.t.Context(), l.repo, tag, randomBytes(4<<10)); err == nil {
		l.pushed++
	}
	return tag, err
}

func (l *ledger) pull(tag string) error {
	_, _, err := l.r.API().manifest(l.t.Context(), l.repo, tag)
	if err == nil {
		l.pulls[tag]++
	}
	return err
}

func (l *ledger) delete(tag string) error {
	_, err := l.r.API().do(l.t.Context(), request{method: "DELETE", path: "/v2/" + l.repo + "/manifests/" + tag, want: http.StatusAccepted})
	if err == nil {
		l.deleted++
	}
	return err
}

// must calls `do` n times. It fails the test at the first error.
func (l *ledger) must(n int, do func() error) {
	l.t.Helper()
	for range n {
		if err := do(); err != nil {
			l.t.Fatal(err)
		}
	}
}

// pushes pushes n tags, and returns them.
func (l *ledger) pushes(n int) (tags []string) {
	l.t.Helper()
	l.must(n, func() error {
		tag, err := l.push()
		tags = append(tags, tag)
		return err
	})
	return tags
}

// audited fails the test unless the audit log has exactly those pushes and deletions that the
// registry has acknowledged.
func (l *ledger) audited(when string) {
	l.t.Helper()
	for kind, want := range map[string]int{"push_repo": l.pushed, "delete_tag": l.deleted} {
		if got := strings.Count(l.r.remote("audit", "export", l.repo, "--kind", kind), "\n"); got != want {
			l.t.Errorf("%s the audit log has %d %s, want %d", when, got, kind, want)
		}
	}
}

// counted fails the test unless the statistics of each tag reach exactly the number of pulls
// that the registry has answered.
func (l *ledger) counted(when string) {
	l.t.Helper()
	for tag, want := range l.pulls {
		var got struct {
			Count int64 `json:"tag_pull_count"`
		}
		read := func() int64 {
			l.r.manage("GET", "/repository/"+l.repo+"/tag/"+tag+"/pull_statistics", nil, &got, http.StatusOK)
			return got.Count
		}
		eventually(l.t, 2*time.Minute, func() error {
			if code, out := purser(l.t, []string{"PURSER_SERVER=" + l.r.URL()}, "pulls", "flush"); code != 0 {
				return fmt.Errorf("%s: flushing: %s", when, out)
			}
			if n := read(); n < want {
				return fmt.Errorf("%s %d pulls of %s are counted, want %d", when, n, tag, want)
			}
			return nil
		})
		if n := read(); n != want {
			l.t.Errorf("%s %d pulls of %s are counted, want %d", when, n, tag, want)
		}
	}
}

// command runs a command beside the server.
func (l *ledger) command(args ...string) (int, string) {
	l.t.Helper()
	return purser(l.t, l.r.opt.env, append(args, "--data-dir", l.r.opt.dataDir)...)
}

// well fails the test unless "purser check --deep" finds no problem.
func (l *ledger) well(when string) {
	l.t.Helper()
	if code, out := l.command("check", "--deep"); code != 0 || !strings.Contains(out, "All is well.") {
		l.t.Errorf("%s purser check exited with %d:\n%s", when, code, out)
	}
}

// The method `fails` reports an error of the test unless the command with the arguments `args`
// exits with 1 and its output contains `want`, a text about the service that the test has
// stopped.
func (l *ledger) fails(when, want string, args ...string) {
	l.t.Helper()
	if code, out := l.command(args...); code != 1 || !strings.Contains(out, want) || strings.Contains(out, "All is well") {
		l.t.Errorf("%s purser %s exited with %d, want 1 and %q:\n%s", when, strings.Join(args, " "), code, want, out)
	}
}

// doomed returns the part of "purser gc status" about pending deletions.
func (l *ledger) doomed() (s struct {
	Doomed struct {
		Objects, Failing struct{ Count int }
		LastError        string `json:"last_error"`
	}
	LastHour struct{ Objects int } `json:"last_hour"`
}) {
	l.t.Helper()
	out := operator{l.t, l.r}.gc("status", "-o", "json")
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		l.t.Fatalf("%v in:\n%s", err, out)
	}
	return s
}

// surroundings are the services on which a registry depends: store, database and Redis. A test
// can stop each of them and start it again.
type surroundings struct {
	env                   []string
	stopStore, startStore func()
	storeSays             string // the error of a store that can't be reached
	pg                    *postgres
	redis                 *redisServer // nil if pulls are counted from the audit log
}

// onOneMachine returns surroundings in which the store is a directory and pulls are counted
// from the audit log.
func onOneMachine(t testing.TB) surroundings {
	dir := filepath.Join(newDir(t), "blobs")
	rename := func(from, to string) func() {
		return func() {
			t.Helper()
			if err := os.Rename(from, to); err != nil {
				t.Fatal(err)
			}
		}
	}
	return surroundings{
		env:       []string{"PURSER_STORAGE_FILESYSTEM_PATH=" + dir},
		stopStore: rename(dir, dir+".away"), startStore: rename(dir+".away", dir),
		storeSays: dir,
	}
}

// onServices returns surroundings in which the store is S3 and pulls are counted in Redis.
func onServices(t testing.TB) surroundings {
	env, redis := startS3(t), startRedis(t)
	target := strings.TrimPrefix(env[0], "PURSER_STORAGE_S3_ENDPOINT=http://")
	var away atomic.Bool
	handOn := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { // the host as it is: signatures cover it
		r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = "http", target, r.In.Host
	}}
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if away.Load() {
			http.Error(w, "away", http.StatusServiceUnavailable)
			return
		}
		handOn.ServeHTTP(w, r)
	}))
	t.Cleanup(proxy.Close)
	env[0] = "PURSER_STORAGE_S3_ENDPOINT=" + proxy.URL
	return surroundings{
		env:       append(env, redis.env()...),
		stopStore: func() { away.Store(true) }, startStore: func() { away.Store(false) },
		storeSays: proxy.URL, redis: redis,
	}
}

// Clients push, pull and delete while garbage waits to be collected, and while the store,
// Redis and the database are stopped one after the other. The audit log, the pull statistics,
// "purser check", a dry run and "gc explain" must report exactly what has happened; while a
// service that they need is stopped, they must say so.
func TestReportsStayTrue(t *testing.T) {
	for name, surround := range map[string]func(testing.TB) surroundings{"one machine": onOneMachine, "services": onServices} {
		t.Run(name, func(t *testing.T) {
			beginOwn(t)
			s := surround(t)
			s.pg = startPostgres(t)
			r := startRegistry(t, options{env: append(s.env, "PURSER_DATABASE_MAIN="+s.pg.DSN(), "PURSER_GC_REVIEW_AFTER=0s",
				"PURSER_GC_REVIEW_MANIFESTS=false", "PURSER_GC_REVIEW_BLOBS=false")})
			l := &ledger{t: t, r: r, repo: "acme/app", pulls: map[string]int64{}}
			first := l.pushes(3)[0]
			s.idle(l, first)
			s.backlog(l, first)
			s.withoutStore(l, first)
			if s.redis != nil {
				s.withoutRedis(l, first)
			}
			s.withoutDatabase(l, first)
		})
	}
}

func (s surroundings) idle(l *ledger, tag string) {
	l.t.Helper()
	l.must(5, func() error { return l.pull(tag) })
	l.audited("idle:")
	l.counted("idle:")
	l.well("idle:")
	operator{l.t, l.r}.says([]string{"would delete 0 manifests of 0 reviewed"}, "run", "--dry-run")
}

// backlog deletes images, checks the reports while their garbage waits, and then collects it.
func (s surroundings) backlog(l *ledger, tag string) {
	l.t.Helper()
	const images = 100
	o := operator{l.t, l.r}
	gone := l.pushes(images)
	_, digest, err := l.r.API().manifest(l.t.Context(), l.repo, gone[0])
	if err != nil {
		l.t.Fatal(err)
	}
	for _, tag := range gone {
		l.must(1, func() error { return l.delete(tag) })
	}
	l.must(5, func() error { return l.pull(tag) })
	if n := o.status().Manifests.Due.Count; n != images {
		l.t.Errorf("%d manifests are due, want %d", n, images)
	}
	o.says([]string{"nothing keeps it, so it will be deleted"}, "explain", l.repo+"@"+digest.String())
	o.says([]string{fmt.Sprintf("would delete %d manifests of %d reviewed", images, images)}, "run", "--dry-run")
	l.r.API().checkWhole(l.t, l.repo, digest.String(), digest.String()) // a dry run changes nothing
	l.audited("with a backlog:")
	l.counted("with a backlog:")
	l.well("with a backlog:")
	o.says([]string{fmt.Sprintf("deleted %d; reviewed", images), "Nothing is left to do now."}, "run")
	l.audited("after the collection:")
	l.well("after the collection:")
	if n := l.doomed().LastHour.Objects; n != 2*images { // a layer and a configuration each
		l.t.Errorf("%d objects were deleted, want %d", n, 2*images)
	}
}

// withoutStore deletes images and collects garbage while the store can't be reached.
func (s surroundings) withoutStore(l *ledger, tag string) {
	l.t.Helper()
	const images = 3
	before := l.doomed().LastHour.Objects
	gone := l.pushes(images)
	s.stopStore()
	if refused, err := l.push(); err == nil {
		l.t.Errorf("%s was pushed without a store", refused)
	}
	for _, tag := range gone {
		l.must(1, func() error { return l.delete(tag) })
	}
	l.must(5, func() error { return l.pull(tag) }) // manifests are in the database
	l.fails("without a store:", s.storeSays, "check")
	l.fails("without a store:", s.storeSays, "gc", "run")
	l.audited("without a store:")
	l.counted("without a store:")
	if now := l.doomed(); now.LastHour.Objects != before {
		l.t.Errorf("without a store %d objects are said to be deleted", now.LastHour.Objects-before)
	}
	s.startStore()
	eventually(l.t, 2*time.Minute, func() error { _, err := l.push(); return err })
	operator{l.t, l.r}.gc("run")
	eventually(l.t, 2*time.Minute, func() error {
		now := l.doomed()
		if n := now.LastHour.Objects - before; now.Doomed.Objects.Count != 0 || n < 2*images {
			return fmt.Errorf("%d objects wait and %d were deleted, want none and %d: %s", now.Doomed.Objects.Count, n, 2*images, now.Doomed.LastError)
		}
		return nil
	})
	l.audited("with the store back:")
	l.well("with the store back:")
}

func (s surroundings) withoutRedis(l *ledger, tag string) {
	l.t.Helper()
	s.redis.p.kill()
	l.must(20, func() error { return l.pull(tag) })
	l.pushes(1)
	l.audited("without Redis:")
	l.well("without Redis:")
	code, out := purser(l.t, []string{"PURSER_SERVER=" + l.r.URL()}, "pulls", "flush")
	refused(l.t, code, out, "Redis")
	s.redis.Start()
	l.counted("with Redis back:")
}

func (s surroundings) withoutDatabase(l *ledger, tag string) {
	l.t.Helper()
	s.pg.Stop(syscall.SIGQUIT)
	for range 20 {
		l.pull(tag) //nolint:errcheck // the ledger has the pulls that were answered
	}
	if refused, err := l.push(); err == nil {
		l.t.Errorf("%s was pushed without a database", refused)
	}
	l.fails("without a database:", "PostgreSQL", "check")
	l.fails("without a database:", "PostgreSQL", "gc", "run", "--dry-run")
	l.fails("without a database:", "PostgreSQL", "gc", "explain", l.repo+"@"+descriptor("", []byte("x")).Digest.String())
	s.pg.Start()
	eventually(l.t, 2*time.Minute, func() error { return l.pull(tag) })
	l.pushes(1)
	l.audited("with the database back:")
	l.counted("with the database back:")
	l.well("with the database back:")
}
