//go:build linux

package builtinpg

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"
)

func TestServerDiesWithItsKilledParent(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	c := spawn(t, "serve", dir, nil)
	c.awaitReady(t)
	running, err := RunningDSN(dir, "")
	must(t, err)
	execute(t, running, "CREATE TABLE kept AS SELECT 'committed' AS v")

	must(t, c.cmd.Process.Kill())
	_ = c.cmd.Wait() // killed
	eventually(t, "PostgreSQL has stopped", func() bool { return len(servers(t, dir)) == 0 })

	began := time.Now()
	s := begin(t, testOptions(dir))
	t.Logf("started again after %v", time.Since(began))
	if got := query(t, s.DSN(""), "SELECT v FROM kept"); got != "committed" {
		t.Errorf("after the kill the table holds %q", got)
	}
}

// A test process with a server is killed, and a new process starts a server at once, before
// the old server may have noticed that its parent is dead. The start must succeed.
func TestStartRightAfterTheKill(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	for range 3 {
		c := spawn(t, "serve", dir, nil)
		c.awaitReady(t)
		must(t, c.cmd.Process.Kill())
		_ = c.cmd.Wait() // killed
		end(t, begin(t, testOptions(dir)))
	}
	if left := servers(t, dir); len(left) > 0 {
		t.Errorf("left running: %v", left)
	}
}

func TestOwnerInAnotherProcessIsNamed(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	c := spawn(t, "serve", dir, nil)
	c.awaitReady(t)
	_, err := Start(t.Context(), testOptions(dir))
	if !errors.Is(err, ErrInUse) {
		t.Fatalf("Start on another's directory: %v, want ErrInUse", err)
	}
	wantError(t, err, dir, fmt.Sprintf("process %d", c.cmd.Process.Pid))
	must(t, c.stdin.Close())
	if err := c.cmd.Wait(); err != nil {
		t.Errorf("the child: %v", err)
	}
	begin(t, testOptions(dir))
}

// No process owns the data directory, but a server runs on its cluster: the test has started it
// without a death signal. Start must stop it and start a new server with the same data.
func TestStaleServerIsStoppedAndStartedAgain(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	s := begin(t, testOptions(dir))
	execute(t, s.DSN(""), "CREATE TABLE kept AS SELECT 'still here' AS v")
	end(t, s)

	acct, err := pickAccount(s.cluster)
	must(t, err)
	stale := exec.Command(s.cmd.Path, s.arguments(testOptions(dir).Settings)...)
	prepare(stale, acct, 0)
	held, err := onCluster(stale, acct, s.cluster)
	must(t, err)
	defer held.Close()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	must(t, stale.Start())
	ended := make(chan error, 1)
	go func() { ended <- stale.Wait() }()
	eventually(t, "the stale server runs", func() bool { return readPostmasterFile(s.cluster).ready })

	again := begin(t, testOptions(dir))
	if err := <-ended; err != nil {
		t.Errorf("the stale server ended with %v, want a clean shutdown", err)
	}
	if got := query(t, again.DSN(""), "SELECT v FROM kept"); got != "still here" {
		t.Errorf("the table holds %q", got)
	}
	if again.cmd.Process.Pid != readPostmasterFile(s.cluster).pid {
		t.Error("the directory names another server than the one just started")
	}
}

// The postmaster is killed while a backend runs an endless loop. The backend doesn't notice
// this, and keeps the shared memory that a new server needs. Start must stop the backend.
func TestOrphanedBackendIsStopped(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	s := begin(t, testOptions(dir))
	conn := connect(t, s.DSN(""))
	looped := make(chan error, 1)
	go func() {
		_, err := conn.Exec(context.Background(), "DO $$ BEGIN LOOP PERFORM 1; END LOOP; END $$")
		looped <- err
	}()
	pid := int(conn.PgConn().PID())
	eventually(t, "the backend loops", func() bool {
		return query(t, s.DSN(""), fmt.Sprintf("SELECT state FROM pg_stat_activity WHERE pid = %d", pid)) == "active"
	})
	must(t, s.cmd.Process.Kill())
	<-s.Done()
	wantError(t, s.Err(), "killed")
	end(t, s)
	if left := servers(t, dir); len(left) == 0 {
		t.Fatal("no backend was orphaned, so this shows nothing")
	}

	s = begin(t, testOptions(dir))
	if err := <-looped; err == nil {
		t.Error("the endless loop ended by itself")
	}
	if got := query(t, s.DSN(""), "SELECT 'here'"); got != "here" {
		t.Errorf("the server answers %q", got)
	}
}

// In containers the same PIDs are used again: the pid file of a dead server may name another
// living process of the same user. Start must not take that process for a server.
func TestPidFileThatNamesAnotherProcess(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	s := begin(t, testOptions(dir))
	end(t, s)
	acct, err := pickAccount(s.cluster)
	must(t, err)
	other := exec.Command("sleep", "60")
	prepare(other, acct, syscall.SIGKILL)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	must(t, other.Start())
	defer func() { _ = other.Process.Kill(); _ = other.Wait() }()
	for _, name := range []string{pidFile, socketFile + ".lock"} {
		path := filepath.Join(s.cluster, name)
		must(t, os.WriteFile(path, fmt.Appendf(nil, "%d\n%s\n1\n5432\n.\n\n", other.Process.Pid, s.cluster), 0o600))
		must(t, acct.own(path))
	}
	begin(t, testOptions(dir))
	if err := other.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("the process that the file named: %v", err)
	}
}

func TestKilledInitialisationIsDoneAgain(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	pattern := filepath.Join(dir, initdbPattern+"*")
	c := spawn(t, "serve", dir, nil)
	eventually(t, "initdb is at work", func() bool {
		found, err := filepath.Glob(filepath.Join(pattern, "base", "1"))
		return err == nil && len(found) > 0
	})
	must(t, c.cmd.Process.Kill())
	_ = c.cmd.Wait() // killed
	if left, err := filepath.Glob(pattern); err != nil || len(left) == 0 {
		t.Fatalf("the kill left nothing half done (%v), so this shows nothing", err)
	}
	if _, err := os.Stat(filepath.Join(dir, clusterName)); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("the cluster before it is whole: %v", err)
	}
	s := begin(t, testOptions(dir))
	if got := query(t, s.DSN(""), "SELECT 'whole'"); got != "whole" {
		t.Errorf("the server answers %q", got)
	}
	if left, err := filepath.Glob(pattern); err != nil || len(left) > 0 {
		t.Errorf("left half done: %v %v", left, err)
	}
}

func TestPidOneReapsOrphans(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make a pid namespace")
	}
	c := spawn(t, "init", newDir(t), &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS})
	c.awaitReady(t)
	must(t, c.stdin.Close())
	if err := c.cmd.Wait(); err != nil {
		t.Errorf("the child: %v", err)
	}
}

// makeOrphan gives this process, which is PID 1, a child that another process started, and
// waits until the child has ended and reapOrphans has reaped it. It also checks that a child
// which this process started itself isn't reaped before this process waits for it.
func makeOrphan() error {
	own := exec.Command("true")
	if err := own.Start(); err != nil {
		return err
	}
	if err := own.Wait(); err != nil {
		return fmt.Errorf("waiting for a child of its own: %w", err)
	}
	if out, err := exec.Command("sh", "-c", "(exec sleep 0.2) >/dev/null 2>&1 & ").CombinedOutput(); err != nil {
		return fmt.Errorf("making an orphan: %w: %s", err, out)
	}
	seen := false
	for range 1000 {
		n := len(zombieChildren())
		seen = seen || n > 0
		if seen && n == 0 {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return fmt.Errorf("after 10 s: seen a zombie: %v, reaped: false", seen)
}

func TestAnotherUserRunsItWhenRoot(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := filepath.Join(newDir(t), "deep", "pg") // below a directory of mode 0700
	s := begin(t, testOptions(dir))
	fi, err := os.Stat(fmt.Sprintf("/proc/%d", s.cmd.Process.Pid))
	must(t, err)
	if uid := fi.Sys().(*syscall.Stat_t).Uid; uid == 0 {
		t.Error("PostgreSQL runs as root")
	}
	acct, err := pickAccount(s.cluster)
	must(t, err)
	if acct.reaches(dir) {
		t.Errorf("%s can reach %s, so this shows nothing", acct, dir)
	}
	end(t, s)

	must(t, (&account{}).own(s.cluster)) // as a restored backup may be
	s = begin(t, testOptions(dir))
	if got := query(t, s.DSN(""), "SELECT 'here'"); got != "here" {
		t.Errorf("the server answers %q", got)
	}
}

// A new cluster in a directory of a service's user is this user's, whoever makes it, and one in the
// directory of a user without a name isn't.
func TestOwnerOfTheDirectoryRunsIt(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	daemon, err := user.Lookup("daemon")
	must(t, err)
	uid, err := strconv.Atoi(daemon.Uid)
	must(t, err)
	dir := newDir(t)
	must(t, os.Mkdir(dir, 0o755))
	must(t, os.Chown(dir, uid, uid))
	s := begin(t, testOptions(dir))
	for _, file := range []string{s.cluster, filepath.Join(s.cluster, "PG_VERSION"), filepath.Join(dir, lockName)} {
		fi, err := os.Stat(file)
		must(t, err)
		if owner := int(fi.Sys().(*syscall.Stat_t).Uid); owner != uid {
			t.Errorf("%s belongs to %d, want %d", file, owner, uid)
		}
	}
	end(t, s)
	nameless := newDir(t)
	must(t, os.Mkdir(nameless, 0o755))
	must(t, os.Chown(nameless, 54321, 54321))
	acct, err := pickAccount(filepath.Join(nameless, "cluster"))
	must(t, err)
	if acct.uid == 54321 {
		t.Error("PostgreSQL would run as a user without a name")
	}
}

// Directories and files that root makes besides the cluster are the service's too: missing directories above the data
// directory, and the cache of programs with its lock, which the service takes when it fetches other ones.
func TestOwnerOfWhatRootPrepares(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	const uid = 54321
	place := newDir(t)
	must(t, os.Mkdir(place, 0o755))
	must(t, os.Chown(place, uid, uid))
	_, err := prepareDataDir(filepath.Join(place, "data", "postgres"))
	must(t, err)
	cache := filepath.Join(place, "cache", "purser")
	must(t, makeReadableDir(cache))
	unlock, err := lockCache(t.Context(), cache)
	must(t, err)
	unlock()
	for _, path := range []string{"data", "data/postgres", "cache", "cache/purser", filepath.Join("cache/purser", lockName)} {
		fi, err := os.Stat(filepath.Join(place, path))
		must(t, err)
		if owner := fi.Sys().(*syscall.Stat_t).Uid; owner != uid {
			t.Errorf("%s belongs to %d, want %d", path, owner, uid)
		}
	}
	victim, other := filepath.Join(t.TempDir(), "victim"), filepath.Join(place, "other")
	must(t, os.WriteFile(victim, nil, 0o600))
	must(t, os.Mkdir(other, 0o755))
	must(t, os.Chown(other, uid, uid))
	must(t, os.Symlink(victim, filepath.Join(other, lockName)))
	if _, err := lockCache(t.Context(), other); !errors.Is(err, syscall.ELOOP) {
		t.Errorf("a link in place of the lock: %v", err)
	}
	fi, err := os.Stat(victim)
	must(t, err)
	if owner := fi.Sys().(*syscall.Stat_t).Uid; owner != 0 {
		t.Errorf("%s was given to %d by a link", victim, owner)
	}
}

func TestWatchdogStopsWhatItWatches(t *testing.T) {
	t.Parallel()
	start := func() *exec.Cmd {
		cmd := exec.Command("sleep", "60")
		must(t, cmd.Start())
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		return cmd
	}
	orphan := start()
	dog, err := watch(orphan.Process.Pid)
	must(t, err)
	must(t, dog.pipe.Close()) // as when the parent dies
	if err := orphan.Wait(); err == nil || orphan.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGQUIT {
		t.Errorf("when the parent dies, the watched process ends with %v, want SIGQUIT", err)
	}
	must(t, dog.cmd.Wait())

	spared := start()
	dog, err = watch(spared.Process.Pid)
	must(t, err)
	must(t, dog.dismiss())
	if err := spared.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("after a dismissal the watched process: %v", err)
	}
}

func servers(t *testing.T, dir string) []int {
	t.Helper()
	pids, err := serversOn(filepath.Join(dir, clusterName))
	must(t, err)
	return pids
}
