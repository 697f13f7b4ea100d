//go:build all

package e2e

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// rollingScene is two replicas behind nginx, with PostgreSQL, Redis and an S3 server.
type rollingScene struct {
	*proxyScene
	earlier string // the binary
	dsn     string
	env     []string
	refused []string // lines of the replicas' logs about requests with a status from 500 on
}

// newRollingScene starts replicas of the earlier version.
func newRollingScene(t *testing.T) *rollingScene {
	t.Helper()
	earlier := earlierVersion(t)
	s := &rollingScene{proxyScene: newProxyScene(t, nginx), earlier: earlier, dsn: startPostgres(t).DSN()}
	s.env = append(startS3(t), startRedis(t).env()...)
	// With this delay garbage is collected while the test runs, and no client takes so long
	// between a blob and its manifest.
	s.env = append(s.env, "PURSER_DATABASE_MAIN="+s.dsn, "PURSER_GC_REVIEW_AFTER=20s")
	for i := range s.replicas {
		s.replicas[i] = s.newReplica(i, s.env)
		s.replicas[i].opt.program = earlier
		s.replicas[i].start()
	}
	s.startProxy()
	return s
}

// upgrade replaces a replica by one of today's version, as docs/operations.md says.
func (s *rollingScene) upgrade(i int) {
	s.t.Helper()
	r := s.replicas[i]
	r.Stop()
	r.checkRaces()
	s.keepFailures(r)
	r.opt.program = ""
	r.start()
	s.awaitReady(r)
}

func (s *rollingScene) awaitReady(r *registry) {
	s.t.Helper()
	eventually(s.t, readyWithin, func() error {
		if status := getStatus(s.t.Context(), "http://"+r.debug+"/readyz"); status != http.StatusOK {
			return fmt.Errorf("/readyz of the replica at %s: %d", r.host, status)
		}
		return nil
	})
}

var statusFrom500 = regexp.MustCompile(`"http\.response\.status_code":5\d\d`)

// keepFailures keeps what a replica that has ended logged about requests that failed.
func (s *rollingScene) keepFailures(r *registry) {
	for line := range strings.Lines(r.p.out.String()) {
		if statusFrom500.MatchString(line) {
			s.refused = append(s.refused, cmp.Or(filepath.Base(r.opt.program), "purser")+": "+line)
		}
	}
}

// wellKept fails the test unless "purser check" finds that database and store agree.
func (s *rollingScene) wellKept() {
	s.t.Helper()
	code, out := purser(s.t, s.env, "check", "--deep", "--data-dir", s.replicas[0].opt.dataDir)
	if code != 0 || !strings.Contains(out, "All is well.") {
		s.t.Errorf("purser check exited with %d:\n%s", code, out)
	}
}

// TestOpsRollingUpgrade upgrades a registry under load from an earlier version, replica by replica.
// No operation of a client may fail. If the upgrade has migrated the database, the earlier version
// then refuses it. Afterwards
// replicas of today's version are restarted again and again: then no single request may fail. At
// last replicas are killed: nothing that was acknowledged may be lost.
func TestOpsRollingUpgrade(t *testing.T) {
	beginOwn(t)
	s := newRollingScene(t)
	defer func() {
		for _, r := range s.replicas {
			s.keepFailures(r)
		}
		t.Logf("requests that replicas answered with a status from 500 on: %d\n%s", len(s.refused), strings.Join(s.refused[:min(20, len(s.refused))], ""))
	}()
	before := startClientLoad(s.proxyScene, "before", 4, false)
	before.Await(50)
	before.Check()
	migrates := migrates(t, s.env)

	rolling := startClientLoad(s.proxyScene, "rolling", 8, false)
	rolling.Await(40)
	for i := range s.replicas {
		s.upgrade(i)
		rolling.Await(80)
	}
	rolling.Check()
	s.wellKept()
	if migrates {
		s.refusesEarlier()
	}

	restarted := startClientLoad(s.proxyScene, "restarted", 8, false)
	for i := range restarts {
		s.upgrade(i % 2)
		restarted.Await(40)
	}
	restarted.Check()
	// A replica of the earlier version resets connections when it stops, so only these count.
	if n := restarted.wire.failed(); n > 0 {
		t.Errorf("%d requests had no answer or a status from 500 on while replicas were restarted", n)
	}
	if t.Failed() {
		return
	}

	killed := startClientLoad(s.proxyScene, "killed", 6, true)
	for i := range kills {
		killed.Await(20)
		s.kill(i == kills-1)
	}
	killed.Check()
	s.collected()
	for _, l := range []*clientLoad{before, rolling, restarted, killed} {
		l.CheckContent()
	}
	s.wellKept()
}

const (
	restarts = 16
	kills    = 8
)

// kill kills one of the replicas, or both, and starts them again a little later.
func (s *rollingScene) kill(both bool) {
	s.t.Helper()
	victims := s.replicas[:]
	if !both {
		i := rand.IntN(2)
		victims = victims[i : i+1]
	}
	for _, r := range victims {
		r.Kill9()
	}
	time.Sleep(time.Duration(rand.IntN(500)) * time.Millisecond)
	for _, r := range victims {
		r.Restart()
		s.awaitReady(r)
	}
}

// collected waits until garbage collection has deleted what the clients have left behind: the
// blobs that no manifest references.
func (s *rollingScene) collected() {
	s.t.Helper()
	db := openPool(s.t, s.dsn)
	unused := func() int {
		return column[int](s.t, db, `SELECT count(*) FROM blobs b
			WHERE NOT EXISTS (SELECT FROM layers l WHERE l.digest = b.digest)
			AND NOT EXISTS (SELECT FROM manifests m WHERE m.configuration_blob_digest = b.digest)`)[0]
	}
	s.t.Logf("blobs that nothing references when the load ends: %d", unused())
	eventually(s.t, 3*time.Minute, func() error {
		if n := unused(); n > 0 {
			return fmt.Errorf("%d blobs that nothing references are left", n)
		}
		return nil
	})
}

// refusesEarlier fails the test unless the earlier version refuses to serve the upgraded database,
// with the reason that docs/operations.md says.
func (s *rollingScene) refusesEarlier() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.earlier, "serve", "--data-dir", newDir(s.t), "--addr", "127.0.0.1:0", "--debug-addr", "127.0.0.1:0")
	cmd.Env = childEnv(s.env...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	out, err := cmd.CombinedOutput()
	if err == nil || ctx.Err() != nil {
		s.t.Errorf("the earlier version serves the upgraded database (%v)", err)
	}
	refused(s.t, cmd.ProcessState.ExitCode(), string(out), "the database's schema is newer than this version of Purser")
}
