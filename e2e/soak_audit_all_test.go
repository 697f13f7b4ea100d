//go:build all

package e2e

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/opencontainers/go-digest"
)

// drainTime is how long the registry's workers may take, after the traffic, to finish all work
// that is due.
const drainTime = 90 * time.Second

// finish checks the registry when the traffic is over: first as the traffic has left it, then
// after garbage collection has deleted all garbage. Finally it deletes all tags, and checks
// that garbage collection then deletes everything else.
func (s *soak) finish() {
	defer func() { s.t.Log(&s.stats) }()
	s.calm()
	s.traffic = s.t.Context() // so that checks aren't cancelled with the traffic
	steps := []func(){
		s.auditObjects,
		s.checkAll,
		s.hurry,
		func() { s.drain(garbage) },
		s.auditObjects, s.auditRows, s.checkAll,
		s.deleteTags,
		func() { s.drain(everything) },
		s.secondSweep,
		func() { s.drain(owners) },
		s.auditEmpty, s.auditDeadlocks, s.auditWork,
	}
	for _, step := range steps {
		if step(); s.t.Failed() {
			return
		}
	}
}

// calm waits until the proxy in front of the store forwards all requests again, instead of
// making some of them fail.
func (s *soak) calm() {
	if s.store.proxy == nil {
		return
	}
	eventually(s.t, time.Minute, func() error {
		if !s.store.proxy.quiet() {
			return errors.New("the store still fails")
		}
		return nil
	})
	s.t.Logf("the store's answers, by what went wrong: %v", s.store.proxy.answers())
}

// checkAll pulls all images that must exist from every replica.
func (s *soak) checkAll() {
	time.Sleep(stale)
	w := s.worker("checker", 30)
	for _, r := range s.replicas {
		at, ok := r.reach()
		if !ok {
			s.violate(nil, "%s is down", r.name)
			return
		}
		for _, o := range s.owners {
			for _, repo := range o.repos {
				for _, h := range repo.all() {
					w.checkAt(at, h)
				}
				for tag, images := range repo.doubtful {
					w.checkDoubtful(at, repo, tag, images)
				}
			}
		}
		w.checkArena()
	}
}

// checkDoubtful checks a tag of which the soak doesn't know to which image it points, since a
// request to change it got no answer. If the tag exists, it must point to one of `images`, and
// this image must be complete.
func (w *worker) checkDoubtful(at endpoint, r *ownRepo, tag string, images []*image) {
	res, status := w.ask(at, call{request: request{method: "GET", path: manifestPath(r.name, tag),
		header: map[string]string{"Accept": manifestTypes}, want: http.StatusOK}, also: []int{http.StatusNotFound}})
	if status != http.StatusOK {
		return
	}
	d := digest.FromBytes(res.body)
	i := slices.IndexFunc(images, func(m *image) bool { return m.Digest == d })
	if i < 0 {
		w.violate([]string{manifestPath(r.name, tag), d.String()}, "%s:%s is %s, which it can't be", r.name, tag, d)
		return
	}
	if what, ok := w.pull(at, r.name, images[i]); !ok {
		w.violate([]string{manifestPath(r.name, tag), d.String(), what}, "%s:%s isn't there whole: %s is missing", r.name, tag, what)
	}
}

// deleteTags deletes all tags of the registry.
func (s *soak) deleteTags() {
	w := s.worker("sweeper", 31)
	for _, name := range s.list("SELECT path || '/manifests/' || name FROM tags JOIN repositories r ON r.id = repository_id") {
		w.anywhere(call{request: request{method: "DELETE", path: "/v2/" + name, want: http.StatusAccepted}})
	}
}

// hurry makes work due now that workers would otherwise do only later. It lets all unfinished
// uploads expire, since no client continues them. It also makes pending deletions due, which
// may have been postponed because the store failed or the sweeper that had claimed them was
// killed. Objects that only wait for their second deletion stay as they are. hurry restarts
// the replicas, so that their workers look for work at once.
func (s *soak) hurry() {
	s.restart("UPDATE gc_doomed_objects SET delete_after = now() WHERE again_at IS NULL OR delete_after <> again_at",
		"UPDATE uploads SET updated_at = '-infinity'")
}

// secondSweep makes the second deletion of objects due now. Normally the sweeper waits until
// the longest possible request is over; here no request is running any more, so it needn't
// wait. If the soak's store can fail, half of the requests to it fail for three seconds, so
// that the sweeper must repeat deletions.
func (s *soak) secondSweep() {
	if s.store.proxy != nil {
		s.store.proxy.fail(0.5)
	}
	s.restart("UPDATE gc_doomed_objects SET delete_after = now(), again_at = NULL")
	if s.store.proxy != nil {
		time.Sleep(3 * time.Second)
		s.store.proxy.fail(0)
		s.hurry()
	}
}

// restart stops all replicas, executes the SQL statements in `changes`, and starts the
// replicas again.
func (s *soak) restart(changes ...string) {
	for _, r := range s.replicas {
		s.endReplica(r, true)
	}
	for _, sql := range changes {
		s.exec(sql)
	}
	for _, r := range s.replicas {
		s.startAgain(r)
	}
}

func (s *soak) exec(sql string) {
	s.t.Helper()
	if _, err := s.db.Exec(s.t.Context(), sql); err != nil {
		s.t.Fatalf("%s: %v", sql, err)
	}
}

// Each of these queries returns descriptions of rows that the workers must delete. `garbage`
// finds the rows that must be gone some time after the traffic. `everything` also finds
// manifests and blobs, which must be gone after all tags were deleted. `owners` also finds the
// pending deletions that wait for the second deletion of their object.
const (
	garbage = `
		SELECT 'review of a manifest: ' || manifest_id || ' ' || event || COALESCE(': ' || last_error, '') FROM gc_manifest_review_queue
		UNION ALL SELECT 'review of a blob: sha256:' || encode(substr(digest, 2), 'hex') || ' ' || event || COALESCE(': ' || last_error, '')
			FROM gc_blob_review_queue
		UNION ALL SELECT 'upload ' || id || ' of ' || repository FROM uploads
		UNION ALL SELECT 'doomed: ' || storage_key || COALESCE(': ' || last_error, '') FROM gc_doomed_objects
			WHERE again_at IS NULL OR delete_after <> again_at`
	everything = garbage + `
		UNION ALL SELECT 'manifest sha256:' || encode(substr(digest, 2), 'hex') FROM manifests
		UNION ALL SELECT 'blob sha256:' || encode(substr(digest, 2), 'hex') FROM blobs`
	owners = everything + `
		UNION ALL SELECT 'doomed: ' || storage_key FROM gc_doomed_objects`
)

// drain waits until a query finds nothing.
func (s *soak) drain(query string) {
	s.t.Helper()
	began := time.Now()
	var left []string
	for time.Since(began) < drainTime {
		if left = s.list(query); len(left) == 0 {
			s.t.Logf("drained in %v", time.Since(began).Round(time.Millisecond))
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	s.violate(nil, "%d things are left after %v:\n%s", len(left), drainTime, strings.Join(left[:min(len(left), 20)], "\n"))
}

// list runs a query that returns one column, and returns the column's values.
func (s *soak) list(query string, args ...any) []string {
	s.t.Helper()
	rows, err := s.db.Query(s.t.Context(), query, args...)
	if err != nil {
		s.t.Fatal(err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		s.t.Fatalf("%s: %v", query, err)
	}
	return list
}

// auditDeadlocks logs how many deadlocks PostgreSQL has ended, with the first lines of its log
// about them. They are no failure: the registry ran the requests again, and an error in an
// answer would have ended the soak.
func (s *soak) auditDeadlocks() {
	n := s.list("SELECT deadlocks::text FROM pg_stat_database WHERE datname = current_database()")
	s.t.Logf("deadlocks that PostgreSQL ended: %v", n)
	var told []string
	for line := range strings.Lines(s.pg.p.out.String()) {
		if strings.Contains(line, "deadlock detected") || len(told) > 0 && len(told) < 12 {
			told = append(told, line)
		}
	}
	if len(told) > 0 {
		s.t.Logf("%s", strings.Join(told, ""))
	}
}

// auditWork fails the test if a kind of request or event that the soak is meant to test never
// occurred. It expects some kinds only if the round lasted at least longestRound.
func (s *soak) auditWork() {
	work := []string{"put", "pulled", "uploaded"}
	if s.round >= longestRound {
		work = append(work, "known", "mounted", "abandoned", "contested checked", "killed")
	}
	for _, what := range work {
		if s.stats.of(what) == 0 {
			s.t.Errorf("the soak did nothing of this: %s", what)
		}
	}
	for _, n := range s.list(`
		SELECT format('manifests deleted: %s, blobs deleted: %s, objects swept: %s', sum(manifests_deleted), sum(blobs_deleted), sum(objects_swept))
		FROM gc_activity`) {
		s.t.Log(n)
		if strings.Contains(n, ": 0,") || strings.HasSuffix(n, ": 0") {
			s.t.Errorf("garbage collection did too little: %s", n)
		}
	}
}
