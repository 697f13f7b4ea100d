package identity

import (
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/purser-registry/purser/internal/auth/identity/identitytest"
)

// TestLDAPClosesUnderRequest checks that a log-in takes a new connection when the directory closes
// an idle one just as it gets the next request. Go tells of that by another error than of a
// connection that was closed before.
func TestLDAPClosesUnderRequest(t *testing.T) {
	t.Parallel()
	s := identitytest.StartLDAP(t)
	s.AddUser(t, "alice", "correct horse")
	address, cut := cuttingRelay(t, strings.TrimPrefix(s.TLSURL, "ldaps://"))
	o := options(s)
	o.URL = "ldaps://" + address
	d := openDirectory(t, o)
	for range 5 {
		if _, err := d.Login(t.Context(), "alice", "correct horse"); err != nil {
			t.Fatal(err)
		}
		cut.Store(true)
		if _, err := d.Login(t.Context(), "alice", "correct horse"); err != nil {
			t.Fatal(err)
		}
		if cut.Load() {
			t.Fatal("no connection was closed")
		}
	}
}

// cuttingRelay forwards connections to an address. When cut is set, it ends the connection on
// which the client sends next, and clears cut.
func cuttingRelay(t *testing.T, to string) (address string, cut *atomic.Bool) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { l.Close() })
	cut = new(atomic.Bool)
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", to)
			if err != nil {
				client.Close()
				continue
			}
			go func() {
				io.Copy(client, server) //nolint:errcheck // the connection has ended
				client.Close()
			}()
			go func() {
				defer server.Close()
				defer client.Close()
				for buf := make([]byte, 32<<10); ; {
					n, err := client.Read(buf)
					if err != nil || cut.CompareAndSwap(true, false) {
						return
					}
					if _, err := server.Write(buf[:n]); err != nil {
						return
					}
				}
			}()
		}
	}()
	return l.Addr().String(), cut
}
