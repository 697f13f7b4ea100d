package login_test

import (
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/crypto/bcrypt"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/auth/identity"
	"github.com/purser-registry/purser/internal/auth/identity/identitytest"
	"github.com/purser-registry/purser/internal/auth/password"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// work counts what log-ins cost.
type work struct {
	mu            sync.Mutex
	argon2        []string // parameters
	bcrypt        int      // steps
	binds, search int      // requests to the directory
}

// computes counts a hash.
func (w *work) computes(hash string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if cost, ok := password.BcryptCost(hash); ok {
		w.bcrypt += 1 << cost
		return
	}
	parts := strings.Split(hash, "$")
	w.argon2 = append(w.argon2, parts[1]+" "+parts[3])
}

// take returns what has been counted since the last call.
func (w *work) take() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	text := fmt.Sprintf("%v, %d steps of bcrypt, %d searches, %d binds", w.argon2, w.bcrypt, w.search, w.binds)
	w.argon2, w.bcrypt, w.search, w.binds = nil, 0, 0, 0
	return text
}

// between stands between clients and a directory, and counts the clients' requests. It returns its
// own address.
func (w *work) between(t *testing.T, directory string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() }) //nolint:errcheck // nothing is left to do
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", directory)
			if err != nil {
				client.Close() //nolint:errcheck // the client notices
				continue
			}
			go func() {
				io.Copy(client, server) //nolint:errcheck // it ends with a connection
				client.Close()          //nolint:errcheck // it has ended
			}()
			go func() {
				w.forward(client, server)
				server.Close() //nolint:errcheck // it has ended
			}()
		}
	}()
	return l.Addr().String()
}

// forward passes requests on. The client writes each of them, which are short, at once.
func (w *work) forward(client io.Reader, server io.Writer) {
	buffer := make([]byte, 64<<10)
	for {
		n, err := client.Read(buffer)
		if err != nil {
			return
		}
		// A request is a sequence of its number and of what it asks for, which begins with a tag.
		message := buffer[:n]
		at := 2
		if message[1] >= 0x80 {
			at += int(message[1] & 0x7f)
		}
		w.mu.Lock()
		switch tag := message[at+2+int(message[at+1])]; tag {
		case 0x60:
			w.binds++
		case 0x63:
			w.search++
		}
		w.mu.Unlock()
		if _, err := server.Write(message); err != nil {
			return
		}
	}
}

// TestRefusalsCostTheSame: a refused log-in computes the same hashes and asks the directory as often,
// whatever the name is: of an account of any kind, of a robot, or of nobody.
func TestRefusalsCostTheSame(t *testing.T) {
	t.Parallel()
	s := identitytest.StartLDAP(t)
	for _, name := range []string{"carl", "newcomer"} {
		s.AddUser(t, name, "password")
	}
	counted := &work{}
	d, err := identity.NewDirectory(identity.DirectoryOptions{URL: "ldap://" + counted.between(t, strings.TrimPrefix(s.URL, "ldap://")),
		BindDN: identitytest.ServiceDN, BindPassword: identitytest.ServicePassword, UserBase: identitytest.UserBase, GroupBase: identitytest.GroupBase})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	costly, err := bcrypt.GenerateFromPassword([]byte("password"), bcrypt.MinCost+3)
	if err != nil {
		t.Fatal(err)
	}
	file, _ := openFile(t, "hal", "password", "ida", string(costly), "jon", "password")
	r := closed(t, map[string]auth.Role{"ann": auth.Reader}, func(o *servertest.Options) {
		o.Access.Directory, o.Access.Htpasswd, o.Access.Verified = d, file, unremembered()
		o.Access.Passwords = password.NewHasher(password.HasherOptions{Computes: counted.computes})
	})
	if _, _, err := r.Auth.CreateRobot(t.Context(), "acme", "ci", "", auth.Limits{}, nil); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"carl", "hal", "ida"} { // they get accounts, jon and the newcomer have none
		r.Do(t, "GET", "/v2/", "", servertest.Basic(name, "password")...).WantStatus(t, 200)
	}
	// The hashes of servertest are cheaper than the registry's own.
	own, err := r.Auth.Passwords().Hash(t.Context(), servertest.PasswordOf("ann"))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Auth.ChangeAccount(t.Context(), "ann", auth.AccountChange{PasswordHash: &own}); err != nil {
		t.Fatal(err)
	}
	counted.take()
	want := "[argon2id m=19456,t=2,p=1], " + strconv.Itoa(1<<(bcrypt.MinCost+3)) + " steps of bcrypt, 1 searches, 1 binds"
	for _, wrong := range []string{"wrong", ""} {
		for _, name := range []string{"ann", "hal", "ida", "jon", "carl", "newcomer", "acme+ci", "acme+none", "none+none", "nobody", "no body", "n\u00f6body"} {
			r.Do(t, "GET", "/v2/", "", servertest.Basic(name, wrong)...).WantStatus(t, 401)
			if got := counted.take(); got != want {
				t.Errorf("%q with the password %q costs %s, want %s", name, wrong, got, want)
			}
		}
	}
	// Without the directory, nobody's name gets another answer either.
	s.Stop()
	forgetFailures(t, r)
	for _, name := range []string{"ann", "hal", "carl", "acme+ci", "acme+none", "nobody"} {
		r.Do(t, "GET", "/v2/", "", servertest.Basic(name, "wrong")...).WantStatus(t, 503)
	}
	r.Do(t, "GET", "/v2/", "", servertest.As("ann")...).WantStatus(t, 200)
}
