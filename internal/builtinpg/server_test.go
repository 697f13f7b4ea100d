//go:build linux

package builtinpg

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestDataSurvivesRestart(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	s := begin(t, testOptions(dir))
	execute(t, s.DSN(""), "CREATE TABLE kept AS SELECT 'still here' AS v")
	end(t, s)
	if err := s.Err(); err != nil {
		t.Errorf("Err after a clean stop: %v", err)
	}
	end(t, s) // a second Stop does nothing

	s = begin(t, testOptions(dir))
	if got := query(t, s.DSN(""), "SELECT v FROM kept"); got != "still here" {
		t.Errorf("after a restart the table holds %q", got)
	}
}

func TestClusterIsMadeAsPromised(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	o := testOptions(dir)
	o.Settings["work_mem"] = "5MB"
	o.Settings["listen_addresses"] = "*"
	o.Settings["port"] = "1"
	s := begin(t, o)
	for sql, want := range map[string]string{
		"SELECT current_user::text":                                                            "purser",
		"SELECT current_database()::text":                                                      "purser",
		"SELECT rolsuper::text FROM pg_roles WHERE rolname = 'purser'":                         "true",
		"SELECT pg_encoding_to_char(encoding)::text FROM pg_database WHERE datname = 'purser'": "UTF8",
		"SELECT datcollate::text FROM pg_database WHERE datname = 'purser'":                    "C",
		"SHOW data_checksums":                                                                  "on",
		"SHOW work_mem":                                                                        "5MB",
		"SHOW jit":                                                                             "off",
		"SHOW cluster_name":                                                                    "purser",
		"SHOW max_logical_replication_workers":                                                 "0",
		"SHOW listen_addresses":                                                                "",
		"SELECT count(*)::text FROM pg_hba_file_rules WHERE type LIKE 'host%' AND auth_method <> 'reject'": "0",
	} {
		if got := query(t, s.DSN(""), sql); got != want {
			t.Errorf("%s: %q, want %q", sql, got, want)
		}
	}
	for _, path := range []string{dir, filepath.Join(dir, clusterName)} {
		fi, err := os.Stat(path)
		must(t, err)
		if fi.Mode().Perm() != 0o700 && passesDirectory {
			t.Errorf("%s has mode %v, want 0700", path, fi.Mode().Perm())
		}
	}
}

func TestSecondServerIsRefused(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	began := 0
	o := testOptions(dir)
	o.Begin = func() { began++ }
	s := begin(t, o)
	_, err := Start(t.Context(), o)
	if !errors.Is(err, ErrInUse) || began != 1 {
		t.Fatalf("a second Start: %v, want ErrInUse; Begin was called %d times", err, began)
	}
	wantError(t, err, dir, fmt.Sprintf("process %d", os.Getpid()))
	if got := query(t, s.DSN(""), "SELECT 'alive'"); got != "alive" {
		t.Errorf("the first server answers %q", got)
	}
}

func TestRunningDSN(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	_, err := RunningDSN(dir, "")
	wantError(t, err, dir, "never held")
	s := begin(t, testOptions(dir))
	got, err := RunningDSN(dir, "postgres")
	must(t, err)
	if got != s.DSN("postgres") {
		t.Errorf("RunningDSN is %s, the server's DSN %s", got, s.DSN("postgres"))
	}
	end(t, s)
	_, err = RunningDSN(dir, "")
	wantError(t, err, dir, "purser serve")
}

func TestPsqlTakesTheDSN(t *testing.T) {
	t.Parallel()
	psql, err := exec.LookPath("psql")
	if err != nil {
		t.Skip("needs psql")
	}
	s := begin(t, testOptions(filepath.Join(filepath.Dir(newDir(t)), "a b+c%d"))) // awkward in a URL
	cmd := exec.Command(psql, "-X", "-At", "-c", "SELECT current_database()", s.DSN(""))
	cmd.Env = append(os.Environ(), "PGPORT=1", "PGSSLMODE=require", "PGHOST=elsewhere")
	out, err := cmd.CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != "purser" {
		t.Errorf("psql %s: %v, %s", s.DSN(""), err, out)
	}
}

func TestSocketMovesWhenThePathIsUnfit(t *testing.T) {
	t.Parallel()
	for name, last := range map[string]string{"long": strings.Repeat("long", 40), "comma": "a,b"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(filepath.Dir(newDir(t)), last)
			s := begin(t, testOptions(dir))
			if got := query(t, s.DSN(""), "SELECT 'here'"); got != "here" {
				t.Errorf("the server answers %q", got)
			}
			if len(filepath.Join(s.socketDir, socketFile)) > longestSocket || strings.HasPrefix(s.socketDir, dir) {
				t.Errorf("the socket is in %s", s.socketDir)
			}
			fi, err := os.Stat(s.socketDir)
			must(t, err)
			if fi.Mode().Perm() != 0o700 {
				t.Errorf("the socket's directory has mode %v", fi.Mode().Perm())
			}
			running, err := RunningDSN(dir, "")
			must(t, err)
			if running != s.DSN("") {
				t.Errorf("RunningDSN is %s, want %s", running, s.DSN(""))
			}
			end(t, s)
			if _, err := os.Stat(s.socketDir); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("after Stop, the socket's directory: %v", err)
			}
		})
	}
}

func TestFailedStartTellsWhyAndLetsGo(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	o := testOptions(dir)
	o.Settings["shared_buffers"] = "plenty"
	_, err := Start(t.Context(), o)
	wantError(t, err, dir, `invalid value for parameter "shared_buffers": "plenty"`)
	begin(t, testOptions(dir))
}

func TestCancelledStartLetsGo(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Start(ctx, testOptions(dir)); !errors.Is(err, context.Canceled) {
		t.Fatalf("Start with a cancelled context: %v", err)
	}
	begin(t, testOptions(dir))
}

// The test cancels the context at many different moments of a start. A later start must work.
func TestStartCancelledAtAnyMoment(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	for after := 20 * time.Millisecond; after < 2*time.Second; after += after / 2 {
		ctx, cancel := context.WithTimeout(t.Context(), after)
		s, err := Start(ctx, testOptions(dir))
		cancel()
		if err == nil {
			end(t, s)
			continue
		}
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("Start cancelled after %v: %v", after, err)
		}
	}
	s := begin(t, testOptions(dir))
	if got := query(t, s.DSN(""), "SELECT 'whole'"); got != "whole" {
		t.Errorf("the server answers %q", got)
	}
	left, err := filepath.Glob(filepath.Join(dir, initdbPattern+"*"))
	must(t, err)
	if len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestStopAtOnceWhenTheContextEnds(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	s := begin(t, testOptions(dir))
	execute(t, s.DSN(""), "CREATE TABLE kept AS SELECT 'still here' AS v")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Stop(ctx); err != nil && !errors.Is(err, context.Canceled) {
		t.Fatalf("Stop with a cancelled context: %v", err)
	}
	select {
	case <-s.Done():
	default:
		t.Error("the server runs on after Stop")
	}
	s = begin(t, testOptions(dir))
	if got := query(t, s.DSN(""), "SELECT v FROM kept"); got != "still here" {
		t.Errorf("after recovery the table holds %q", got)
	}
}

func TestForeignFilesAreRefused(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	file := filepath.Join(dir, clusterName, "precious")
	must(t, os.MkdirAll(filepath.Dir(file), 0o700))
	must(t, os.WriteFile(file, []byte("x"), 0o600))
	_, err := Start(t.Context(), testOptions(dir))
	wantError(t, err, filepath.Dir(file), "no PG_VERSION")
	if _, err := os.Stat(file); err != nil {
		t.Errorf("the file that was there: %v", err)
	}

	foreign := newDir(t)
	must(t, os.MkdirAll(foreign, 0o700))
	must(t, os.WriteFile(filepath.Join(foreign, "PG_VERSION"), []byte("15\n"), 0o600))
	_, err = Start(t.Context(), testOptions(foreign))
	wantError(t, err, foreign, "itself a PostgreSQL cluster")
}

func TestServerLogReachesTheLogger(t *testing.T) {
	t.Parallel()
	var got strings.Builder
	sink := newLogSink(slog.New(slog.NewTextHandler(&got, &slog.HandlerOptions{
		Level: slog.LevelDebug,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey || a.Key == "from" {
				return slog.Attr{}
			}
			return a
		},
	})))
	sink.drain(strings.NewReader("[7] LOG:  up\n[8] ERROR:  bad thing\n[8] DETAIL:  very\n\tmore\n" +
		"[8] STATEMENT:  SELECT\n\t1\n" +
		"[7] PANIC:  lost\nstray\n[7] WARNING:  " + strings.Repeat("x", 3*longestLine) + "\n[7] FATAL:  end"))
	var short []string
	for line := range strings.Lines(got.String()) {
		short = append(short, strings.TrimSpace(line[:min(len(line), 60)]))
	}
	want := []string{
		`level=DEBUG msg=up severity=LOG pid=7`,
		`level=WARN msg="bad thing" severity=ERROR pid=8`,
		`level=WARN msg=very severity=DETAIL pid=8`,
		`level=WARN msg=more`,
		`level=DEBUG msg=SELECT severity=STATEMENT pid=8`,
		`level=DEBUG msg=1`,
		`level=ERROR msg=lost severity=PANIC pid=7`,
		`level=WARN msg=stray`,
		`level=WARN msg=` + strings.Repeat("x", 45),
		`level=WARN msg=end severity=FATAL pid=7`,
	}
	got.Reset()
	sink.stopping.Store(true)
	if sink.add("[8] FATAL:  terminating connection"); !strings.HasPrefix(got.String(), "level=DEBUG") {
		t.Errorf("a connection that a stop ends is logged as %s", got.String())
	}
	if strings.Join(short, "\n") != strings.Join(want, "\n") {
		t.Errorf("logged:\n%s\nwant:\n%s", strings.Join(short, "\n"), strings.Join(want, "\n"))
	}
}
