package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/worker"
)

// manager is the service manager that has started the process, by the protocols of systemd
// (sd_notify(3), sd_listen_fds(3)). The manager may pass sockets that it listens on. It is told
// when the server is ready and when it stops, and gets a sign of life in between.
type manager struct {
	notify   string                  // path of its socket; "@" begins an abstract one; "": it wants no news
	watchdog time.Duration           // it ends a process without a sign of life for so long; 0: never
	sockets  map[string]net.Listener // by the setting whose address they replace
	log      *slog.Logger
}

// firstSocket is the descriptor of the first socket that a manager passes.
const firstSocket = 3

// socketNames are the names that sockets may have (FileDescriptorName= in systemd), and the
// setting that each one replaces.
var socketNames = map[string]string{
	"registry": "http.addr", "debug": "http.debug_addr", "acme": "http.tls.acme.http_addr",
}

// newManager reads what the manager has put into the environment. It must be called once,
// before the process opens files, since it takes over the sockets' descriptors.
func newManager(environ []string) (*manager, error) {
	value := func(name string) string {
		for _, entry := range environ {
			if v, ok := strings.CutPrefix(entry, name+"="); ok {
				return v
			}
		}
		return ""
	}
	self := strconv.Itoa(os.Getpid())
	m := &manager{notify: value("NOTIFY_SOCKET"), log: slog.New(slog.DiscardHandler)}
	if pid := value("WATCHDOG_PID"); m.notify != "" && (pid == "" || pid == self) {
		usec, _ := strconv.ParseInt(value("WATCHDOG_USEC"), 10, 64) // not set: 0, which is none
		m.watchdog = time.Duration(usec) * time.Microsecond
	}
	if value("LISTEN_PID") != self { // the variables are for a parent of this process
		return m, nil
	}
	n, err := strconv.Atoi(value("LISTEN_FDS"))
	if err != nil || n < 0 || n > len(socketNames) {
		return nil, fmt.Errorf("LISTEN_FDS=%q: at most %d sockets are used: %s", value("LISTEN_FDS"), len(socketNames), socketUses)
	}
	m.sockets, err = inherit(n, strings.Split(value("LISTEN_FDNAMES"), ":"))
	return m, err
}

const socketUses = "one for the registry, or several with FileDescriptorName=registry, debug and acme"

// inherit takes over the descriptors of `n` sockets. A single socket is the registry's, unless
// its name says something else.
func inherit(n int, names []string) (map[string]net.Listener, error) {
	sockets := map[string]net.Listener{}
	for i := range n {
		name := ""
		if i < len(names) {
			name = names[i]
		}
		key := socketNames[name]
		if key == "" && n == 1 {
			key = socketNames["registry"]
		}
		f := os.NewFile(uintptr(firstSocket+i), name)
		l, err := net.FileListener(f) // a duplicate, which child processes don't inherit
		err = errors.Join(err, f.Close())
		if err == nil && (key == "" || sockets[key] != nil) {
			err = fmt.Errorf("it is one of %d sockets, but has no name of its own: %s", n, socketUses)
		}
		if err == nil && l.Addr().Network() != "tcp" {
			err = fmt.Errorf("it is of the kind %q: Purser listens on TCP only (ListenStream= with a port)", l.Addr().Network())
		}
		if err != nil {
			return nil, fmt.Errorf("the socket %q (descriptor %d) of the service manager: %w", name, firstSocket+i, err)
		}
		sockets[key] = l
	}
	return sockets, nil
}

// replace makes `src` take the addresses of the sockets for those that are configured, so that
// everything that depends on who can reach an address, such as access control, depends on the
// address that is used.
func (m *manager) replace(src *command.Source) {
	for key, l := range m.sockets {
		src.Replace(key, l.Addr().String(), "the socket of the service manager")
	}
}

// socket returns the socket that replaces the address in the setting `key`, or nil.
func (m *manager) socket(key string) net.Listener {
	if m == nil {
		return nil
	}
	return m.sockets[key]
}

// ready says that the server answers.
func (m *manager) ready(url string) { m.tell("READY=1", "STATUS=Serving "+url) }

// stopping says that the server lets requests end and then stops.
func (m *manager) stopping() { m.tell("STOPPING=1", "STATUS=Stopping: requests may end") }

// watch gives a sign of life twice within the time that the manager waits for one, until ctx
// ends.
func (m *manager) watch(ctx context.Context) error {
	if m == nil || m.watchdog <= 0 {
		return nil
	}
	for worker.Sleep(ctx, m.watchdog/2) == nil {
		m.tell("WATCHDOG=1")
	}
	return nil
}

// tell sends assignments to the manager. A manager that can't be reached is no reason to stop.
func (m *manager) tell(assignments ...string) {
	if m == nil || m.notify == "" {
		return
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: m.notify, Net: "unixgram"})
	if err == nil {
		err = conn.SetWriteDeadline(time.Now().Add(time.Second))
		if err == nil {
			_, err = conn.Write([]byte(strings.Join(assignments, "\n")))
		}
		err = errors.Join(err, conn.Close())
	}
	if err != nil {
		m.log.Warn("telling the service manager failed", "message", assignments, "error", err)
	}
}
