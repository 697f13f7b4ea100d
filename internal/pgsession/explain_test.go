package pgsession

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// refusing starts a server that accepts connections, with TLS or without, and sends the same
// PostgreSQL error to each. It returns the server's port.
func refusing(t *testing.T, code, message string) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() }) //nolint:errcheck // nobody needs it any more
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			refuse(conn, code, message)
		}
	}()
	return l.Addr().(*net.TCPAddr).Port
}

func refuse(conn net.Conn, code, message string) {
	defer conn.Close() //nolint:errcheck // the client sees it closed
	b := pgproto3.NewBackend(conn, conn)
	for {
		m, err := b.ReceiveStartupMessage()
		if err != nil {
			return
		}
		if _, ok := m.(*pgproto3.SSLRequest); ok {
			conn.Write([]byte("N")) //nolint:errcheck // the client sees it closed
			continue
		}
		b.Send(&pgproto3.ErrorResponse{Severity: "FATAL", Code: code, Message: message})
		b.Flush() //nolint:errcheck // likewise
		return
	}
}

// Connections fail in different ways. The test expects that Explain says in one line what
// failed and which setting may be the cause. Misconfigured must return true only for errors
// that remain until somebody changes the configuration.
func TestExplain(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, code, message, mode string
		want                      []string
		hopeless                  bool
	}{
		{name: "password", code: "28P01", message: `password authentication failed for user "app"`,
			want: []string{`refuses the password of user "app": correct it in database.main`}},
		{name: "not let in", code: "28000", message: `no pg_hba.conf entry for host "10.0.0.1"`,
			want: []string{`doesn't let user "app" in: no pg_hba.conf entry for host "10.0.0.1". Correct database.main`}},
		{name: "no database", code: "3D000", message: `database "registry" does not exist`,
			want: []string{`has no database "registry": correct database.main, or create it there (CREATE DATABASE registry OWNER app)`}},
		{name: "connections", code: "53300", message: `too many connections for role "app"`,
			want: []string{`gives user "app" no further connection: too many connections for role "app"`, "CONNECTION LIMIT"}},
		{name: "starting", code: "57P03", message: "the database system is starting up",
			want: []string{"takes no connections now: the database system is starting up"}},
		{name: "else", code: "0A000", message: "an oddity", want: []string{`refuses user "app": an oddity (SQLSTATE 0A000)`}},
		{name: "no TLS", code: "28P01", mode: "require", hopeless: true,
			want: []string{"offers no TLS, which sslmode in database.main asks for", "sslmode=disable"}},
	} {
		port := refusing(t, tc.code, tc.message)
		if tc.mode == "" {
			tc.mode = "prefer"
		}
		_, err := pgconn.Connect(t.Context(), fmt.Sprintf("postgres://app:secret@127.0.0.1:%d/registry?sslmode=%s", port, tc.mode))
		got := Explain(fmt.Errorf("connecting: %w", err), "database.main")
		text := got.Error()
		if !strings.HasPrefix(text, fmt.Sprintf("connecting: PostgreSQL at 127.0.0.1:%d ", port)) || strings.Contains(text, "\n") || strings.Contains(text, "tls error") {
			t.Errorf("%s: %q", tc.name, text)
		}
		for _, want := range tc.want {
			if !strings.Contains(text, want) {
				t.Errorf("%s: %q doesn't say %q", tc.name, text, want)
			}
		}
		if Misconfigured(got) != tc.hopeless {
			t.Errorf("%s: Misconfigured says %t", tc.name, !tc.hopeless)
		}
		if again := Explain(got, "database.stats"); again.Error() != text {
			t.Errorf("%s: explained once more it is %q", tc.name, again)
		}
		if !errors.Is(got, err) {
			t.Errorf("%s: the error is lost", tc.name)
		}
	}
}

func TestExplainUnreachable(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close() //nolint:errcheck // nobody listens there any more
	_, err = pgconn.Connect(t.Context(), "postgres://app@"+address+"/registry")
	want := fmt.Sprintf("PostgreSQL at %[1]s can't be reached: dial tcp %[1]s: connect: connection refused", address)
	if got := Explain(err, "database.main"); got.Error() != want || Misconfigured(got) {
		t.Errorf("nobody listens: %q, want %q", got, want)
	}
	for _, err := range []error{nil, context.Canceled, errors.New("something else")} {
		if got := Explain(err, "database.main"); got != err {
			t.Errorf("%v became %v", err, got)
		}
	}
}
