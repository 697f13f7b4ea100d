package serve

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestManagerVariables: variables that are meant for another process have no effect, and what
// can't be used is an error that says what can.
func TestManagerVariables(t *testing.T) {
	t.Parallel()
	self := strconv.Itoa(os.Getpid())
	for _, tc := range []struct {
		environ  []string
		watchdog time.Duration
		problem  string
	}{
		{nil, 0, ""},
		{[]string{"LISTEN_PID=1", "LISTEN_FDS=1"}, 0, ""},
		{[]string{"LISTEN_PID=" + self, "LISTEN_FDS=0"}, 0, ""},
		{[]string{"LISTEN_PID=" + self, "LISTEN_FDS=9"}, 0, "at most 3 sockets are used"},
		{[]string{"LISTEN_PID=" + self, "LISTEN_FDS=x"}, 0, "LISTEN_FDS"},
		{[]string{"NOTIFY_SOCKET=/n", "WATCHDOG_USEC=30000000"}, 30 * time.Second, ""},
		{[]string{"NOTIFY_SOCKET=/n", "WATCHDOG_USEC=30000000", "WATCHDOG_PID=" + self}, 30 * time.Second, ""},
		{[]string{"NOTIFY_SOCKET=/n", "WATCHDOG_USEC=30000000", "WATCHDOG_PID=1"}, 0, ""},
		{[]string{"WATCHDOG_USEC=30000000"}, 0, ""},
	} {
		m, err := newManager(tc.environ)
		switch {
		case tc.problem != "":
			if err == nil || !strings.Contains(err.Error(), tc.problem) {
				t.Errorf("%q: %v, want an error with %q", tc.environ, err, tc.problem)
			}
		case err != nil:
			t.Errorf("%q: %v", tc.environ, err)
		case m.watchdog != tc.watchdog || len(m.sockets) != 0:
			t.Errorf("%q: watchdog %v, %d sockets; want %v and none", tc.environ, m.watchdog, len(m.sockets), tc.watchdog)
		}
	}
}

// TestTellManager: the manager gets messages at a socket with a path too; without a manager, or
// if it doesn't listen, telling it does nothing.
func TestTellManager(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "n")
	news, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer news.Close() //nolint:errcheck // of this test
	m, err := newManager([]string{"NOTIFY_SOCKET=" + path})
	if err != nil {
		t.Fatal(err)
	}
	m.ready("http://127.0.0.1:5000")
	buf := make([]byte, 200)
	n, err := news.Read(buf)
	if got, want := string(buf[:n]), "READY=1\nSTATUS=Serving http://127.0.0.1:5000"; err != nil || got != want {
		t.Errorf("the manager got %q (%v), want %q", got, err, want)
	}
	m.notify = filepath.Join(t.TempDir(), "nobody")
	m.stopping()
	var none *manager
	none.ready("")
	none.stopping()
	if err := none.watch(t.Context()); err != nil || none.socket("http.addr") != nil {
		t.Errorf("no manager: %v, and a socket", err)
	}
}
