package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/cmd/purser/internal/serve"
	"github.com/purser-registry/purser/cmd/purser/internal/servetest"
	"github.com/purser-registry/purser/internal/db/dbtest"
)

// dsnWith returns `dsn` as a URL that `change` has changed, for example its user, database
// or parameters.
func dsnWith(t *testing.T, dsn string, change func(u *url.URL, q url.Values)) string {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	change(u, q)
	u.RawQuery = q.Encode()
	return u.String()
}

// If a server can't use its database, its error is one line that names the setting that may
// be wrong and the remedy. The server waits for the database only if waiting can help.
func TestUnusableDatabases(t *testing.T) {
	t.Parallel()
	empty := dbtest.EmptyDSN(t)
	owner := dbtest.Open(t, empty)
	role := fmt.Sprintf("stranger_%d", time.Now().UnixNano())
	for _, sql := range []string{"CREATE ROLE " + role + " LOGIN", "REVOKE CREATE ON SCHEMA public FROM PUBLIC"} {
		if _, err := owner.Pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { owner.Pool.Exec(context.Background(), "DROP ROLE "+role) }) //nolint:errcheck // the server goes with the tests
	proxied := dbtest.NewProxy(t, empty).DSN
	for _, tc := range []struct {
		name, dsn string
		want      []string
	}{
		{"no TLS", dsnWith(t, proxied, func(_ *url.URL, q url.Values) { q.Set("sslmode", "require") }),
			[]string{"offers no TLS, which sslmode in database.main (env PURSER_DATABASE_MAIN) asks for"}},
		{"no database", dsnWith(t, proxied, func(u *url.URL, _ url.Values) { u.Path = "/nothere" }),
			[]string{`has no database "nothere": correct database.main (env PURSER_DATABASE_MAIN)`}},
		{"no right", dsnWith(t, empty, func(u *url.URL, _ url.Values) { u.User = url.User(role) }),
			[]string{"permission denied for schema public", "the role in database.main (env PURSER_DATABASE_MAIN) lacks this right", "OWNER TO"}},
	} {
		code, stdout, stderr := purser(t, []string{"PURSER_DATABASE_MAIN=" + tc.dsn},
			"serve", "--addr", "127.0.0.1:0", "--debug-addr", "off", "--data-dir", t.TempDir())
		if code != 1 || stdout != "" || strings.Count(afterStart(stderr), "\n") != 1 {
			t.Errorf("%s: exit code %d, stdout %q, stderr %q", tc.name, code, stdout, stderr)
		}
		for _, want := range tc.want {
			if !strings.Contains(stderr, want) {
				t.Errorf("%s: %q doesn't say %q", tc.name, stderr, want)
			}
		}
	}
}

// The test runs commands on a directory without data and on an empty database. They must
// create neither a built-in PostgreSQL nor tables.
func TestCommandsThatOnlyLookMakeNothing(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "typo")
	empty := dbtest.EmptyDSN(t)
	for _, args := range [][]string{
		{"gc", "status"}, {"gc", "run"}, {"gc", "run", "--dry-run"}, {"gc", "retry"}, {"check"}, {"migrate", "status"}, {"loosefk", "status"},
		{"store", "show"}, {"store", "adopt"}, {"gc", "explain", "sha256:" + strings.Repeat("0", 64)}, {"pulls", "status"}, {"audit", "list"},
	} {
		code, _, stderr := purser(t, nil, append(args, "--data-dir", dir)...)
		if asksRegistry := args[0] == "pulls" || args[0] == "audit"; !asksRegistry &&
			(code != 1 || !strings.Contains(stderr, "there is no Purser in "+dir+": correct data_dir (flag --data-dir)")) {
			t.Errorf("%v in no directory: exit code %d, stderr %q", args, code, stderr)
		}
		if _, err := os.Stat(dir); err == nil {
			t.Fatalf("%v made the directory", args)
		}
		purser(t, []string{"PURSER_DATABASE_MAIN=" + empty}, append(args, "--data-dir", dir)...)
	}
	var tables int
	if err := dbtest.Open(t, empty).Pool.QueryRow(t.Context(), "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").Scan(&tables); err != nil || tables != 0 {
		t.Errorf("%d tables (%v), want none", tables, err)
	}
}

// If PostgreSQL has no free connection, a starting server waits for one at each step of its
// start. It also logs a warning that it may need more connections than PostgreSQL allows.
func TestConnectionLimitIsWaitedFor(t *testing.T) {
	t.Parallel()
	dsn := dbtest.EmptyDSN(t)
	owner := dbtest.Open(t, dsn)
	role := fmt.Sprintf("limited_%d", time.Now().UnixNano())
	set := func(sql string) {
		t.Helper()
		if _, err := owner.Pool.Exec(t.Context(), fmt.Sprintf(sql, role)); err != nil {
			t.Fatal(err)
		}
	}
	set("CREATE ROLE %s LOGIN CONNECTION LIMIT 0")
	set("ALTER DATABASE " + owner.Pool.Config().ConnConfig.Database + " OWNER TO %s")
	limited := dsnWith(t, dsn, func(u *url.URL, _ url.Values) { u.User = url.User(role) })
	cfg := servetest.Config(t, "PURSER_DATABASE_MAIN="+limited)
	log, out, ended := new(servetest.Log), new(servetest.Log), make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { ended <- serve.Run(ctx, cfg, out, slog.New(slog.NewTextHandler(log, nil)), nil) }()
	const ready = "Purser is ready."
	for _, limit := range []int{0, 2, 3, 30} { // at least one for each of the first steps; all of them
		set(fmt.Sprintf("ALTER ROLE %%s CONNECTION LIMIT %d", limit))
		before := strings.Count(log.String(), "waiting for the database")
		servetest.WaitFor(t, fmt.Sprintf("a step of the start with %d connections", limit), func() bool {
			select {
			case err := <-ended:
				t.Fatalf("with %d connections the server ends: %v\n%s", limit, err, log)
			default:
			}
			return strings.Contains(out.String(), ready) || limit < 30 && strings.Count(log.String(), "waiting for the database") > before
		})
	}
	if got := log.String(); !strings.Contains(got, "too many connections for role") || !strings.Contains(got, "limit_of=\"role "+role+"\" limit=30 needed=40") {
		t.Errorf("the limit isn't named:\n%s", got)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// While all connections that the server may have are in use, a request waits for one of them for five
// seconds. Then it gets 503, long before the statements that use them end.
func TestRequestsWithoutConnection(t *testing.T) {
	t.Parallel()
	dsn := dbtest.DSN(t)
	s := start(t, servetest.Config(t, "PURSER_DATABASE_MAIN="+dsn, "PURSER_DATABASE_MAX_CONNS=2", "PURSER_AUTH_ENABLED=false"))
	other, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close(t.Context()) //nolint:errcheck // nothing is lost
	if _, err := other.Exec(t.Context(), "BEGIN; LOCK TABLE repositories, tags"); err != nil {
		t.Fatal(err)
	}
	type answer struct {
		status     int
		retry, why string
	}
	answers := make(chan answer)
	for i := range 6 {
		go func() {
			status, header, text := request(t, http.MethodGet, fmt.Sprintf("%s/v2/acme/app/manifests/v%d", s.Registry, i))
			answers <- answer{status, header.Get("Retry-After"), text}
		}()
	}
	if a := <-answers; a.status != http.StatusServiceUnavailable || a.retry == "" || !strings.Contains(a.why, "are in use") {
		t.Errorf("the first answer is %+v", a)
	}
	if _, err := other.Exec(t.Context(), "COMMIT"); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if a := <-answers; a.status != http.StatusNotFound && a.status != http.StatusServiceUnavailable {
			t.Errorf("an answer is %+v", a)
		}
	}
	if _, metrics := get(t, s.Debug+"/metrics"); strings.Contains(metrics, "\npurser_db_pool_wait_seconds_total 0\n") || strings.Contains(metrics, "\npurser_db_pool_canceled_acquires_total 0\n") {
		t.Error("the metrics don't tell of the waits")
	}
}

// One client's requests wait for a lock for as long as they like. They have nine of twelve connections,
// however many they are, and another client's request is answered meanwhile, although the process's own
// statements may wait for the lock too.
func TestConnectionsAreShared(t *testing.T) {
	t.Parallel()
	dsn := dbtest.DSN(t)
	s := start(t, servetest.Config(t, "PURSER_DATABASE_MAIN="+dsn, "PURSER_DATABASE_MAX_CONNS=12", "PURSER_AUTH_ENABLED=false", "PURSER_HTTP_TRUSTED_PROXIES=127.0.0.1,::1"))
	putIndex(t, s, "acme/app", "v", "1")
	other, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close(t.Context()) //nolint:errcheck // nothing is lost
	if _, err := other.Exec(t.Context(), "BEGIN; LOCK TABLE tags"); err != nil {
		t.Fatal(err)
	}
	from := func(client, path string) (status int, text string) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.Registry+path, http.NoBody)
		if err != nil {
			t.Error(err)
			return 0, ""
		}
		r.Header.Set("X-Forwarded-For", client)
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Error(err)
			return 0, ""
		}
		defer resp.Body.Close() //nolint:errcheck // it was only read
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Error(err)
		}
		return resp.StatusCode, string(body)
	}
	const storm = 30
	answers := make(chan int)
	for i := range storm {
		go func() {
			status, _ := from("198.51.100.1", fmt.Sprintf("/v2/acme/app/manifests/v%d", i))
			answers <- status
		}()
	}
	servetest.WaitFor(t, "nine statements that wait for the lock", func() bool {
		var n int
		err := other.QueryRow(t.Context(), "SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE NOT l.granted AND a.datname = current_database()").Scan(&n)
		if err != nil {
			t.Fatal(err)
		}
		return n >= 9
	})
	for i := range 3 {
		if status, text := from("198.51.100.2", "/v2/_catalog?n="+strconv.Itoa(i+1)); status != http.StatusOK {
			t.Errorf("another client gets %d %s", status, text)
		}
	}
	if _, err := other.Exec(t.Context(), "COMMIT"); err != nil {
		t.Fatal(err)
	}
	for range storm {
		if status := <-answers; status != http.StatusNotFound && status != http.StatusServiceUnavailable {
			t.Errorf("the status of one of many is %d", status)
		}
	}
}
