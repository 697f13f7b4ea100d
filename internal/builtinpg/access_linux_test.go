package builtinpg

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// connectAs connects to a socket as another user and group. It changes the user of one thread
// only, and the kernel then treats this thread, also in /proc, like a process of that user.
func connectAs(t *testing.T, uid, gid int, socket string) error {
	t.Helper()
	type outcome struct {
		conn net.Conn
		err  error
	}
	result := make(chan outcome, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		for _, set := range []struct{ call, id uintptr }{{syscall.SYS_SETRESGID, uintptr(gid)}, {syscall.SYS_SETRESUID, uintptr(uid)}} {
			if _, _, errno := syscall.RawSyscall(set.call, set.id, set.id, set.id); errno != 0 {
				result <- outcome{nil, errno}
				return
			}
		}
		conn, err := net.Dial("unix", socket)
		result <- outcome{conn, err}
	}()
	r := <-result
	if r.err != nil {
		return r.err
	}
	cfg, err := pgx.ParseConfig("postgres://" + superuser + "@127.0.0.1/postgres?sslmode=disable")
	must(t, err)
	cfg.DialFunc = func(context.Context, string, string) (net.Conn, error) { return r.conn, nil }
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	if err != nil {
		return err
	}
	return conn.Close(t.Context())
}

// The server may run under an account that other programs use. Processes of that account can
// reach the server's socket through its working directory, descriptors and root directory in
// /proc. The test expects that they can't connect, nor can an unrelated user, but root can.
func TestOthersAreNotLetIn(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	s := begin(t, testOptions(newDir(t)))
	acct, err := pickAccount(s.cluster)
	must(t, err)
	proc := fmt.Sprintf("/proc/%d", s.cmd.Process.Pid)
	for what, dir := range map[string]string{
		"its working directory": proc + "/cwd", "its root": proc + "/root" + s.socketDir, "an open descriptor": openDir(t, s.socketDir),
	} {
		socket := filepath.Join(dir, socketFile)
		for who, user := range map[string]*account{"the server's user": acct, "another user": {uid: 54321, gid: 54321}} {
			err := connectAs(t, int(user.uid), int(user.gid), socket)
			if err == nil {
				t.Errorf("%s is let in through %s", who, what)
			}
			if e, ok := errors.AsType[*pgconn.PgError](err); ok && e.Code != "28000" {
				t.Errorf("%s through %s: %v", who, what, err)
			}
		}
		if err := connectAs(t, 0, 0, socket); err != nil {
			t.Errorf("root isn't let in through %s: %v", what, err)
		}
	}
}

// openDir keeps a directory open in this process, as if the process had inherited the
// descriptor, and returns the descriptor's path in /proc.
func openDir(t *testing.T, dir string) string {
	t.Helper()
	f, err := os.Open(dir)
	must(t, err)
	t.Cleanup(func() { f.Close() })
	return fmt.Sprintf("/proc/self/fd/%d", f.Fd())
}

// Somebody has changed the rules of a cluster, so that everyone can connect who can reach its
// socket. When the cluster is started, only the users that writeAccess names can connect, the
// data is still there, and the old file is kept under another name. The same must hold if a process was killed after it had replaced one of the
// files pg_hba.conf and pg_ident.conf.
func TestTrustingClusterIsMended(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	s := begin(t, testOptions(dir))
	execute(t, s.DSN(""), "CREATE TABLE kept AS SELECT 'here' AS v")
	cluster := s.cluster
	end(t, s)
	must(t, os.Remove(filepath.Join(cluster, hbaFile+replacedSuffix)))
	must(t, os.WriteFile(filepath.Join(cluster, hbaFile), []byte("local all all trust\n"), 0o600))
	if os.Geteuid() == 0 { // the start makes the server's user the owner again
		must(t, (&account{}).own(cluster))
	}

	for range 2 {
		s = begin(t, testOptions(dir))
		if got := query(t, s.DSN(""), "SELECT v FROM kept"); got != "here" {
			t.Errorf("the cluster's data: %q", got)
		}
		rules := query(t, s.DSN(""), "SELECT string_agg(DISTINCT auth_method, ' ') FROM pg_hba_file_rules")
		if rules != "peer" {
			t.Errorf("it lets in by %q, want peer alone", rules)
		}
		old, err := os.ReadFile(filepath.Join(cluster, hbaFile+replacedSuffix))
		if err != nil || !strings.Contains(string(old), "trust") {
			t.Errorf("what was there before isn't kept: %q %v", old, err)
		}
		end(t, s)
		if err := os.Remove(filepath.Join(cluster, hbaFile)); err != nil { // the state after a crash behind the rename
			t.Fatal(err)
		}
	}
}

// The server's account puts a symbolic link in place of a configuration file. writeAccess must
// replace the link and leave the file alone to which it leads.
func TestAccessFollowsNoLink(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	must(t, os.Mkdir(dir, 0o700))
	victim := filepath.Join(filepath.Dir(dir), "victim")
	must(t, os.WriteFile(victim, []byte("as it was"), 0o600))
	for _, name := range []string{hbaFile, identFile} {
		must(t, os.Symlink(victim, filepath.Join(dir, name)))
	}
	for range 2 {
		must(t, writeAccess(t.Context(), testOptions(dir).Log, dir, nil, false))
	}
	if got, err := os.ReadFile(victim); err != nil || string(got) != "as it was" {
		t.Errorf("the link's target is %q (%v)", got, err)
	}
	if fi, err := os.Lstat(filepath.Join(dir, hbaFile)); err != nil || !fi.Mode().IsRegular() || fi.Mode().Perm() != 0o600 {
		t.Errorf("the file is %v (%v)", fi.Mode(), err)
	}
}
