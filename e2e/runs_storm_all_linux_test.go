//go:build all

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// runsStorm is a registry of two replicas, whose database has a clock that the test sets, and a
// cluster that reports to it what it runs.
type runsStorm struct {
	t        *testing.T
	pg       *postgres
	replicas [2]*registry
	fronts   [2]*relay // a replica has another address after each start
	apis     [2]*api
	cluster  *cluster
	admin    string
	reporter []string           // environment of the commands that report
	set      func(shift string) // sets the database's clock, see startPostgresWithClock
	byAge    string             // the policy that selects nothing but by a wrong clock

	mu     sync.Mutex
	pushed []string               // digests, in the order of their pushes
	pods   map[string]*runningPod // by name
	ended  int                    // pods
}

type runningPod struct {
	digest string
	held   bool // a report of it was answered
}

// TestStormOfWhatRuns: clients push, pods start and end, a watcher and a job report them, policies
// prune every second, garbage collection runs, a replica is killed, and the database's clock jumps by
// up to two months and back, all at once. What runs, and was reported once, can be pulled whole as
// long as it runs. Nothing goes that is old only by a wrong clock. The newest tags are the newest.
func TestStormOfWhatRuns(t *testing.T) {
	beginOwn(t)
	s := newRunsStorm(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	var wg sync.WaitGroup
	for i, part := range []func(ctx context.Context, r *rand.Rand){s.push, s.startAndEnd, s.report, s.check, s.jump} {
		r := rand.New(rand.NewPCG(seed, uint64(i))) //nolint:gosec // not a secret
		wg.Go(func() { part(ctx, r) })
	}
	wg.Wait()
	s.settle()
}

func newRunsStorm(t *testing.T) *runsStorm {
	t.Helper()
	s := &runsStorm{t: t, pods: map[string]*runningPod{}}
	s.pg, s.set = startPostgresWithClock(t)
	env := []string{"PURSER_DATABASE_MAIN=" + s.pg.DSN(), "PURSER_STORAGE_FILESYSTEM_PATH=" + filepath.Join(newDir(t), "blobs"),
		"PURSER_AUTOPRUNE_INTERVAL=1s", "PURSER_GC_REVIEW_AFTER=8s"}
	for i := range s.replicas {
		s.replicas[i] = startRegistry(t, options{env: env})
		s.fronts[i] = newRelay(t, s.replicas[i].host)
		s.apis[i] = newAPI(t, "http://"+s.fronts[i].address())
	}
	for _, repo := range []string{"acme/web", "acme/gone", "acme/dated"} {
		if _, err := s.apis[0].pushImage(t.Context(), repo, "v1", []byte(repo)); err != nil {
			t.Fatal(err)
		}
	}
	s.replicas[0].remote("repo", "delete", "acme/gone", "--yes")
	s.exec("UPDATE tags SET expires_at = now() + interval '30 days' WHERE repository_id = (SELECT id FROM repositories WHERE path = 'acme/dated')")
	s.policy(`{"method": "number_of_tags", "numTags": 3, "mode": "on"}`)
	s.byAge = s.policy(`{"method": "creation_date", "olderThan": "1h", "mode": "on"}`)
	s.cluster, s.admin = startCluster(t)
	s.cluster.do(s.admin, "POST", "/api/v1/namespaces", object{"metadata": object{"name": "shop"}}, http.StatusCreated)
	s.reporter = []string{"PURSER_SERVER=http://" + s.fronts[1].address(), "KUBECONFIG=" + kubeconfig(t, s.cluster.server, s.admin)}
	cmd := exec.CommandContext(t.Context(), binary(), "report", "kubernetes", "watcher", "--watch", "--registry", "r.example", "--namespace", "acme", "--lease", "1h")
	cmd.Env = childEnv(s.reporter...)
	w, err := startProcess("watcher", cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		w.kill()
		if t.Failed() {
			t.Logf("the watcher says %s", w.out.tail(30))
		}
	})
	return s
}

// policy makes a policy of acme and returns its id.
func (s *runsStorm) policy(text string) string {
	s.t.Helper()
	res, err := s.apis[0].do(s.t.Context(), request{method: "POST", path: "/api/v1/organization/acme/autoprunepolicy/", body: []byte(text), want: http.StatusCreated,
		header: map[string]string{"Content-Type": "application/json"}})
	if err != nil {
		s.t.Fatal(err)
	}
	var made struct{ UUID string }
	if err := json.Unmarshal(res.body, &made); err != nil || made.UUID == "" {
		s.t.Fatalf("a policy without an id: %s (%v)", res.body, err)
	}
	return made.UUID
}

func (s *runsStorm) exec(sql string, args ...any) {
	s.t.Helper()
	s.onDatabase(func(c *pgx.Conn) error { _, err := c.Exec(s.t.Context(), sql, args...); return err })
}

func (s *runsStorm) count(sql string, args ...any) (n int) {
	s.t.Helper()
	s.onDatabase(func(c *pgx.Conn) error { return c.QueryRow(s.t.Context(), sql, args...).Scan(&n) })
	return n
}

func (s *runsStorm) onDatabase(do func(c *pgx.Conn) error) {
	s.t.Helper()
	conn, err := pgx.Connect(s.t.Context(), s.pg.DSN())
	if err != nil {
		s.t.Fatal(err)
	}
	defer conn.Close(s.t.Context()) //nolint:errcheck // it ends anyway
	if err := do(conn); err != nil {
		s.t.Fatal(err)
	}
}

// pause waits at random between two times, or until ctx ends.
func pause(ctx context.Context, r *rand.Rand, least, most time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(least + time.Duration(r.Int64N(int64(most-least)))):
		return true
	}
}

// push pushes an image after another, each with a tag of its own. A push that fails counts as none.
func (s *runsStorm) push(ctx context.Context, r *rand.Rand) {
	for pause(ctx, r, 50*time.Millisecond, 300*time.Millisecond) {
		layer := fmt.Appendf(nil, "layer %d", r.Uint64())
		s.mu.Lock()
		tag := fmt.Sprintf("b%d", len(s.pushed))
		s.mu.Unlock()
		d, err := s.apis[r.IntN(2)].pushImage(ctx, "acme/web", tag, layer)
		if err != nil {
			continue
		}
		s.mu.Lock()
		s.pushed = append(s.pushed, d.String())
		s.mu.Unlock()
	}
}

// startAndEnd starts pods of the newest image, which their node pulls, and ends others.
func (s *runsStorm) startAndEnd(ctx context.Context, r *rand.Rand) {
	for n := 0; pause(ctx, r, 200*time.Millisecond, 600*time.Millisecond); n++ {
		s.mu.Lock()
		last, name := len(s.pushed)-1, fmt.Sprintf("web-%d", n)
		digest, victim := "", ""
		if last >= 0 {
			digest = s.pushed[last]
		}
		if len(s.pods) > 12 {
			for victim = range s.pods {
				break
			}
			delete(s.pods, victim)
			s.ended++
		}
		s.mu.Unlock()
		if victim != "" {
			s.cluster.do(s.admin, "DELETE", "/api/v1/namespaces/shop/pods/"+victim, object{"gracePeriodSeconds": 0}, http.StatusOK)
		}
		if digest == "" {
			continue
		}
		if _, err := s.apis[r.IntN(2)].pullWhole(ctx, "acme/web", digest); err != nil {
			continue // it is gone already, or a replica is: the pod doesn't start
		}
		started := podOf(fmt.Sprintf("r.example/acme/web:b%d", last))
		started["metadata"] = object{"name": name}
		s.cluster.do(s.admin, "POST", "/api/v1/namespaces/shop/pods", started, http.StatusCreated)
		s.cluster.do(s.admin, "PATCH", "/api/v1/namespaces/shop/pods/"+name+"/status", object{"status": object{"phase": "Running", "containerStatuses": []object{{
			"name": "main", "image": "r.example/acme/web", "imageID": "r.example/acme/web@" + digest, "ready": true, "restartCount": 0,
			"state": object{"running": object{"startedAt": time.Now().UTC().Format(time.RFC3339)}}}}}}, http.StatusOK)
		s.mu.Lock()
		s.pods[name] = &runningPod{digest: digest}
		s.mu.Unlock()
	}
}

// report runs the job that reports besides the watcher.
func (s *runsStorm) report(ctx context.Context, r *rand.Rand) {
	for pause(ctx, r, 2*time.Second, 5*time.Second) {
		purser(s.t, s.reporter, "report", "kubernetes", "job", "--registry", "r.example", "--namespace", "acme", "--lease", "1h") // it may fail: replicas are killed
	}
}

// check looks again and again whether what runs, and was held once, can be pulled.
func (s *runsStorm) check(ctx context.Context, r *rand.Rand) {
	for pause(ctx, r, 200*time.Millisecond, 400*time.Millisecond) {
		s.noteHeld(ctx)
		s.mu.Lock()
		var name string
		var p *runningPod
		for n, one := range s.pods {
			if one.held {
				name, p = n, one
				break
			}
		}
		s.mu.Unlock()
		if p == nil {
			continue
		}
		_, err := s.apis[r.IntN(2)].pullWhole(ctx, "acme/web", p.digest)
		s.mu.Lock()
		if isStatus(err, http.StatusNotFound) && s.pods[name] == p {
			s.t.Errorf("%s runs and is held, and can't be pulled: %v", name, err)
		}
		s.mu.Unlock()
	}
}

// noteHeld notes which pods a reporter holds.
func (s *runsStorm) noteHeld(ctx context.Context) {
	for _, reporter := range []string{"watcher", "job"} {
		res, err := s.apis[0].do(ctx, request{method: "GET", path: "/api/v1/holds/" + reporter + "/digests?namespace=acme&limit=1000", want: http.StatusOK})
		if err != nil {
			continue
		}
		var list struct{ Digests []struct{ Digest string } }
		if err := json.Unmarshal(res.body, &list); err != nil {
			s.t.Error(err)
			return
		}
		s.mu.Lock()
		for _, d := range list.Digests {
			for _, p := range s.pods {
				p.held = p.held || p.digest == d.Digest
			}
		}
		s.mu.Unlock()
	}
}

// anyHeld says whether a pod is held.
func (s *runsStorm) anyHeld() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.pods {
		if p.held {
			return true
		}
	}
	return false
}

// jump sets the database's clock to a wrong time and back, and kills a replica now and then. Somebody
// confirms the clock when it is right.
func (s *runsStorm) jump(ctx context.Context, r *rand.Rand) {
	for !s.anyHeld() && pause(ctx, r, 100*time.Millisecond, 200*time.Millisecond) {
	}
	for pause(ctx, r, 2*time.Second, 6*time.Second) {
		s.set([]string{"+60d", "-60d", "+10h", "-10h"}[r.IntN(4)])
		if r.IntN(3) == 0 {
			s.replicas[1].Kill9()
			s.replicas[1].Restart()
			s.fronts[1].to(s.replicas[1].host)
		}
		pause(ctx, r, time.Second, 4*time.Second)
		s.set("+0")
		pause(ctx, r, 500*time.Millisecond, 2*time.Second)
		s.replicas[0].remote("clock", "confirm", "--yes")
	}
}

// settle checks what the storm has left.
func (s *runsStorm) settle() {
	s.t.Helper()
	s.set("+0")
	eventually(s.t, 2*time.Minute, func() error {
		// A process that has read the clock just before it was right may find it wrong after it was confirmed.
		s.replicas[0].remote("clock", "confirm", "--yes")
		if n := s.count("SELECT count(*) FROM manifests"); n >= len(s.pushed) {
			return fmt.Errorf("%d manifests are left of %d: garbage collection does nothing: %s", n, len(s.pushed), s.replicas[0].remote("gc", "status"))
		}
		return nil
	})
	held, deleted := 0, s.count("SELECT count(*) FROM auditlog WHERE kind = 'autoprune_tag_delete'")
	for name, p := range s.pods {
		if p.held {
			held++
			if _, err := s.apis[0].pullWhole(s.t.Context(), "acme/web", p.digest); err != nil {
				s.t.Errorf("at the end %s runs and can't be pulled: %v", name, err)
			}
		}
	}
	s.t.Logf("%d images pushed, %d tags pruned, %d pods ended, %d run and are held", len(s.pushed), deleted, s.ended, held)
	if held == 0 || deleted == 0 || s.ended == 0 {
		s.t.Error("the storm was too calm")
	}
	first := len(s.pushed) - 3
	if _, _, err := s.apis[0].manifest(s.t.Context(), "acme/web", fmt.Sprintf("b%d", len(s.pushed))); err == nil {
		first++ // the storm's end has cut off the answer to a push, whose tag is the newest then
		s.t.Logf("b%d was pushed without an answer", len(s.pushed))
	}
	for i := max(0, first); i < len(s.pushed); i++ {
		if _, d, err := s.apis[0].manifest(s.t.Context(), "acme/web", fmt.Sprintf("b%d", i)); err != nil || d.String() != s.pushed[i] {
			s.t.Errorf("b%d, one of the three newest tags of %d, is %s, want %s (%v)", i, len(s.pushed), d, s.pushed[i], err)
		}
	}
	if n := s.count("SELECT count(*) FROM auditlog WHERE kind = 'autoprune_tag_delete' AND detail::text LIKE '%' || $1 || '%'", s.byAge); n != 0 {
		s.t.Errorf("%d tags were deleted that were old only by a wrong clock", n)
	}
	if n := s.count("SELECT count(*) FROM repositories WHERE deleted_at IS NOT NULL"); n != 1 {
		s.t.Error("the trash was emptied by a wrong clock")
	}
	if _, _, err := s.apis[0].manifest(s.t.Context(), "acme/dated", "v1"); err != nil {
		s.t.Errorf("a tag has expired by a wrong clock: %v", err)
	}
}
