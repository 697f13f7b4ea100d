// Package redistest starts Redis servers for tests.
package redistest

import (
	"bufio"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Server is a Redis or Valkey server for one test, on a Unix socket. It writes each command
// to disk before it answers, so when it is killed it loses nothing that was answered.
type Server struct {
	Socket string // its path

	program, dir string
	cmd          *exec.Cmd // nil: it isn't running
}

// Program returns the path of an installed Redis or Valkey server. If none is installed, it
// skips the test, or fails the test in CI.
func Program(t testing.TB) string {
	t.Helper()
	for _, name := range []string{"redis-server", "valkey-server"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	if os.Getenv("CI") != "" {
		t.Fatal("redis-server isn't installed: see tools/packages")
	}
	t.Skip("needs redis-server: see tools/packages")
	return ""
}

// Start starts a server and kills it when the test ends. If none is installed, it skips or
// fails the test like Program.
func Start(t testing.TB) *Server {
	t.Helper()
	s := &Server{program: Program(t)}
	dir, err := os.MkdirTemp("", "redis-") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	s.dir, s.Socket = dir, filepath.Join(dir, "s")
	t.Cleanup(func() {
		s.Kill()
		os.RemoveAll(dir) //nolint:errcheck // a leftover temporary directory harms nobody
	})
	s.Start(t)
	return s
}

// Start starts a killed server again, with the data that it had written to disk, and returns
// when it answers.
func (s *Server) Start(t testing.TB) {
	t.Helper()
	s.cmd = exec.Command(s.program, "--port", "0", "--unixsocket", s.Socket, "--save", "",
		"--appendonly", "yes", "--appendfsync", "always", "--dir", s.dir)
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(30 * time.Second); !s.answers(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("Redis doesn't answer")
		}
	}
}

// answers says whether the server executes commands, which it does once it has loaded its
// data.
func (s *Server) answers() bool {
	conn, err := net.DialTimeout("unix", s.Socket, time.Second)
	if err != nil {
		return false
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(time.Second)) //nolint:errcheck // it fails to answer then
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		return false
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	return err == nil && strings.HasPrefix(line, "+PONG")
}

// Kill kills the server's process, which gets no time to clean up.
func (s *Server) Kill() {
	if s.cmd == nil {
		return
	}
	s.cmd.Process.Kill() //nolint:errcheck // it may have ended
	s.cmd.Wait()         //nolint:errcheck // by the signal
	s.cmd = nil
}

// Suspend stops the server's process: it keeps connections and answers nothing, until Resume is
// called.
func (s *Server) Suspend(t testing.TB) { s.signal(t, syscall.SIGSTOP) }

// Resume lets a suspended server go on. It executes what it was sent meanwhile.
func (s *Server) Resume(t testing.TB) { s.signal(t, syscall.SIGCONT) }

func (s *Server) signal(t testing.TB, sig syscall.Signal) {
	t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		t.Error(err)
	}
}

// URL returns the server's address.
func (s *Server) URL() string { return "unix://" + s.Socket }
