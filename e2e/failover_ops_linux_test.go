//go:build all

package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// standby returns a streaming standby of the server, which serves reads.
func (s *postgres) standby() *postgres {
	s.t.Helper()
	program, err := exec.LookPath("pg_basebackup") // postgresql-client has it
	if err != nil {
		lacking(s.t, "pg_basebackup isn't installed")
	}
	b := &postgres{t: s.t, bin: s.bin, dir: newDir(s.t)}
	cmd := exec.Command(program, "-h", s.dir, "-U", "postgres", "-D", filepath.Join(b.dir, "data"),
		"--write-recovery-conf", "--checkpoint", "fast", "--no-sync")
	cmd.Dir = b.dir
	unprivileged(s.t, cmd, b.dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		s.t.Fatalf("pg_basebackup: %v\n%s", err, out)
	}
	s.t.Cleanup(func() {
		if b.p != nil && b.p.running() {
			b.p.signal(syscall.SIGQUIT, stopWithin) //nolint:errcheck // its data goes anyway
		}
	})
	b.Start()
	return b
}

// exec runs statements, each in a transaction of its own.
func (s *postgres) exec(statements ...string) {
	s.t.Helper()
	conn, err := pgx.Connect(s.t.Context(), s.DSN())
	if err != nil {
		s.t.Fatal(err)
	}
	defer conn.Close(s.t.Context()) //nolint:errcheck // nothing is lost
	for _, sql := range statements {
		if _, err := conn.Exec(s.t.Context(), sql); err != nil {
			s.t.Fatalf("%s: %v", sql, err)
		}
	}
}

// is waits until a query returns true.
func (s *postgres) is(what, sql string) {
	s.t.Helper()
	eventually(s.t, time.Minute, func() error {
		conn, err := pgx.Connect(s.t.Context(), s.DSN())
		if err != nil {
			return err
		}
		defer conn.Close(s.t.Context()) //nolint:errcheck // nothing is lost
		var ok bool
		if err = conn.QueryRow(s.t.Context(), sql).Scan(&ok); err == nil && !ok {
			err = fmt.Errorf("never: %s", what)
		}
		return err
	})
}

// either returns the DSN with which a replica finds whichever of two servers is the primary.
func either(a, b *postgres) string {
	return "PURSER_DATABASE_MAIN=postgres://postgres@/postgres?host=" + a.dir + "," + b.dir + "&target_session_attrs=read-write"
}

const isStreaming = "SELECT count(*) = 1 FROM pg_stat_replication WHERE state = 'streaming'"

// TestOpsFailover kills the primary under load, and promotes its synchronous standby. Replicas connect
// to it by themselves, and nothing that was acknowledged is lost.
func TestOpsFailover(t *testing.T) {
	beginOwn(t)
	s := newProxyScene(t, nginx)
	primary := startPostgres(t)
	standby := primary.standby()
	primary.exec("ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()")
	primary.is("the standby is synchronous", "SELECT count(*) = 1 FROM pg_stat_replication WHERE state = 'streaming' AND sync_state = 'sync'")
	env := append(startS3(t), either(primary, standby))
	for i := range s.replicas {
		s.replicas[i] = s.newReplica(i, env)
		s.replicas[i].start()
	}
	s.startProxy()
	load := startClientLoad(s, "failover", 4, true)
	load.Await(60)

	primary.p.kill()
	ready := func(want bool) {
		t.Helper()
		for _, r := range s.replicas {
			eventually(t, readyWithin, func() error {
				if status := getStatus(t.Context(), "http://"+r.debug+"/readyz"); (status == http.StatusOK) != want {
					return fmt.Errorf("/readyz of the replica at %s: %d, want ready: %t", r.host, status, want)
				}
				return nil
			})
		}
	}
	ready(false)
	began := time.Now()
	standby.exec("SELECT pg_promote()")
	promoted := time.Since(began)
	ready(true)
	t.Logf("the standby was promoted in %v, and both replicas were ready %v after that", promoted.Round(time.Millisecond), (time.Since(began) - promoted).Round(time.Millisecond))
	load.Await(60)
	load.Stop()
	load.Check()
	load.CheckContent()
	if code, out := purser(t, append(env, "PURSER_DATA_DIR="+s.replicas[0].opt.dataDir), "check", "--deep"); code != 0 {
		t.Errorf("purser check: exit code %d: %s", code, out)
	}
}

// TestOpsFailoverBehind promotes a standby that lacks the primary's last transactions. The last push is
// lost. An image that was deleted and collected meanwhile is back, and whole, since gc.keep_doomed has
// kept its objects.
func TestOpsFailoverBehind(t *testing.T) {
	beginOwn(t)
	primary := startPostgres(t)
	standby := primary.standby()
	primary.is("the standby streams", isStreaming)
	// Long enough for a push: without a delay, a blob may be collected before its manifest comes.
	env := []string{either(primary, standby), "PURSER_GC_REVIEW_AFTER=10s", "PURSER_GC_KEEP_DOOMED=1h"}
	r := startRegistry(t, options{env: env})
	crane := toolClient(t, "crane")
	kept, gone := newImage(t, 2, 10<<10), newImage(t, 2, 20<<10)
	crane.Run("push", writeImage(t, kept, "kept"), r.Ref("acme/app", "kept"))
	crane.Run("push", writeImage(t, gone, "gone"), r.Ref("acme/app", "gone"))
	primary.is("the standby has all of it", "SELECT replay_lsn = pg_current_wal_lsn() FROM pg_stat_replication")
	standby.exec("ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()")
	primary.is("nobody streams", "SELECT count(*) = 0 FROM pg_stat_replication")

	crane.Run("push", writeImage(t, newImage(t, 1, 1<<10), "last"), r.Ref("acme/app", "last"))
	crane.Run("delete", r.Ref("acme/app", digestOf(t, gone)))
	r.keepsDoomed(3) // configuration and layers

	primary.p.kill()
	standby.exec("SELECT pg_promote()")
	eventually(t, readyWithin, func() error {
		if status := getStatus(t.Context(), r.URL()+"/v2/acme/app/manifests/gone"); status != http.StatusOK {
			return fmt.Errorf("the image that was deleted on the old primary: status %d", status)
		}
		return nil
	})
	for _, tag := range []string{"kept", "gone"} {
		crane.Run("validate", "--remote", r.Ref("acme/app", tag))
	}
	if status := getStatus(t.Context(), r.URL()+"/v2/acme/app/manifests/last"); status != http.StatusNotFound {
		t.Errorf("the push that the standby lacks: status %d", status)
	}
	if code, out := purser(t, append(env, "PURSER_DATA_DIR="+r.opt.dataDir), "check", "--deep"); code != 0 {
		t.Errorf("purser check: exit code %d: %s", code, out)
	}
	crane.Run("push", writeImage(t, newImage(t, 1, 1<<10), "next"), r.Ref("acme/app", "next"))
	crane.Run("validate", "--remote", r.Ref("acme/app", "next"))
}

// keepsDoomed waits until gc.keep_doomed keeps so many objects of deleted blobs.
func (r *registry) keepsDoomed(objects int64) {
	r.t.Helper()
	env := append(r.opt.env, "PURSER_DATA_DIR="+r.opt.dataDir)
	eventually(r.t, readyWithin, func() error {
		code, out := purser(r.t, env, "gc", "status", "-o", "json")
		var status struct {
			Doomed struct{ Kept struct{ Count int64 } }
		}
		if err := json.Unmarshal([]byte(out), &status); err != nil || code != 0 {
			return fmt.Errorf("purser gc status: exit code %d, %w: %s", code, err, out)
		}
		if status.Doomed.Kept.Count != objects {
			return fmt.Errorf("%d objects are kept, want %d", status.Doomed.Kept.Count, objects)
		}
		return nil
	})
}
