//go:build all

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/db/dbtest"
)

// slowly makes every statement that deletes statistics wait for 0.3 s, until stop is called.
func (e *statsEstate) slowly() (stop func()) {
	e.t.Helper()
	mustExec(e.t, e.statsDB, `CREATE FUNCTION slowly () RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN PERFORM pg_sleep(0.3); RETURN NULL; END $$`)
	for _, table := range statsTables {
		mustExec(e.t, e.statsDB, "CREATE TRIGGER slowly AFTER DELETE ON "+table+" EXECUTE FUNCTION slowly()")
	}
	return func() {
		e.t.Helper()
		mustExec(e.t, e.statsDB, "DROP FUNCTION slowly CASCADE")
	}
}

// pending is one row of the output of "purser loosefk status".
type pending struct {
	Database, Table string
	Count           int
	SecondLook      int `json:"second_look"`
}

func (e *statsEstate) pending() (list []pending) {
	e.t.Helper()
	code, out := purser(e.t, e.r.opt.env, "loosefk", "status", "-o", "json", "--data-dir", e.r.opt.dataDir)
	if code != 0 {
		e.t.Fatalf("purser loosefk status exited with %d:\n%s", code, out)
	}
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		e.t.Fatalf("purser loosefk status: %v in:\n%s", err, out)
	}
	return list
}

// One of the two PostgreSQL servers crashes while Purser deletes the statistics of many
// deleted repositories. When the server is back, Purser must delete the rest, and keep all
// statistics of the other repositories.
func TestStatsServer(t *testing.T) {
	for name, victim := range map[string]func(e *statsEstate) *postgres{
		"main":  func(e *statsEstate) *postgres { return e.main },
		"stats": func(e *statsEstate) *postgres { return e.stats },
	} {
		t.Run(name, func(t *testing.T) {
			beginOwn(t)
			e := newStatsEstate(t)
			living := e.populate()
			gone, kept := append(e.ids("gone/%"), e.ids("mixed/odd%")...), e.ids("mixed/even%")
			e.pulled(append(gone, kept...), "v", pulls)
			stop := e.slowly()
			e.deleteAll()
			e.killWhileCleaning(victim(e), gone)
			stop()
			e.cleaned(gone, kept)
			e.lookedAgain(gone, kept)
			e.r.collect(false)
			e.atRest(living...)
		})
	}
}

// repositories is how many repositories of each kind populate creates.
const repositories = 10

// populate creates repositories that stay (mixed/even…) and others that deleteAll deletes
// (gone/app…, mixed/odd…). It returns those that stay.
func (e *statsEstate) populate() (living []property) {
	e.t.Helper()
	layer := randomBytes(1 << 10)
	for i := range repositories {
		for _, kind := range []string{"gone/app", "mixed/odd", "mixed/even"} {
			repo := fmt.Sprint(kind, i)
			d, err := e.r.API().pushImage(e.t.Context(), repo, "v1", layer, []byte(repo))
			if err != nil {
				e.t.Fatal(err)
			}
			if kind == "mixed/even" {
				living = append(living, property{repo: repo, tags: map[string]string{"v1": d.String()}, blobs: e.blobs(repo, "v1")})
			}
		}
	}
	return living
}

// deleteAll deletes the repositories mixed/odd… one by one, and the namespace gone with all
// its repositories.
func (e *statsEstate) deleteAll() {
	e.t.Helper()
	for i := range repositories {
		e.r.manage("DELETE", fmt.Sprint("/repository/mixed/odd", i), nil, nil, http.StatusNoContent)
	}
	e.r.manage("DELETE", "/organization/gone", nil, nil, http.StatusNoContent)
}

// killWhileCleaning waits until Purser has deleted some of the statistics of the deleted
// repositories `gone`, crashes the PostgreSQL server `victim`, and starts it again. It fails
// the test if no statistics were left to delete at the crash.
func (e *statsEstate) killWhileCleaning(victim *postgres, gone []int64) {
	e.t.Helper()
	whole := len(statsTables) * pulls * len(gone)
	n := whole
	eventually(e.t, time.Minute, func() (err error) {
		if n, err = e.left(gone); err == nil && n == whole {
			err = errors.New("nothing is cleaned up")
		}
		return err
	})
	victim.Stop(syscall.SIGQUIT)
	if n == 0 {
		e.t.Error("all was cleaned up before a server was killed: the test shows nothing")
	}
	e.t.Logf("killed with %d of %d rows left", n, whole)
	time.Sleep(1500 * time.Millisecond) // meanwhile the worker can't reach the server
	victim.Start()
	// The crash has broken the connections in the test's own pools.
	e.db.Reset()
	e.statsDB.Reset()
}

// lookedAgain inserts statistics of deleted repositories, as a process may do that hasn't
// noticed the deletion yet. To find such late rows, the worker of loose foreign keys searches
// a second time. lookedAgain makes this second look due now, and expects that the worker
// deletes the rows.
func (e *statsEstate) lookedAgain(gone, kept []int64) {
	e.t.Helper()
	// deleteAll has deleted one namespace.
	want := []pending{{"main", "public.repositories", len(gone), len(gone)}, {"main", "public.top_level_namespaces", 1, 1}}
	if rows := e.pending(); !slices.Equal(rows, want) {
		e.t.Errorf("pending is %+v, want %+v, which only await their second look", rows, want)
	}
	e.pulled(gone[:3], "late", 1)
	found := map[string]orphans{}
	for _, o := range e.audit(0) {
		found[o.Child] = o
	}
	for _, table := range statsTables {
		if o := found["public."+table]; o.Pending != 3 || o.Orphans != 0 {
			e.t.Errorf("the audit finds %+v in %s, want 3 that are going to be cleaned up", o, table)
		}
	}
	mustExec(e.t, e.db, "UPDATE loose_foreign_keys_deleted_records SET consume_after = now() WHERE status = 1 AND cleanup_attempts = -1")
	eventually(e.t, time.Minute, func() error {
		if n := column[int](e.t, e.db, "SELECT count(*) FROM loose_foreign_keys_deleted_records WHERE status = 1")[0]; n > 0 {
			return fmt.Errorf("%d deleted records are pending", n)
		}
		return nil
	})
	if n, err := e.left(gone); err != nil || n > 0 {
		e.t.Errorf("after the second look %d rows of repositories that are gone are left (%v)", n, err)
	}
	e.allThere(kept)
}

// The registry starts while the PostgreSQL server for statistics is down. It must serve
// requests, and count the pulls later, when that server is up.
func TestServeBeforeStatsServer(t *testing.T) {
	beginOwn(t)
	stats := startPostgres(t)
	stats.Stop(syscall.SIGINT)
	r := &registry{t: t, opt: options{dataDir: newDir(t), env: []string{
		"PURSER_DATABASE_MAIN=" + dbtest.EmptyDSN(t), "PURSER_DATABASE_STATS=" + stats.DSN(),
		"PURSER_PULL_STATISTICS_INTERVAL=1s", // the first look may come before the pull's entry is written
	}}}
	t.Cleanup(r.cleanup)
	p, err := startProcess("purser", r.command())
	if err != nil {
		t.Fatal(err)
	}
	r.p = p
	eventually(t, readyWithin, r.readAddresses)
	if err := tells(p.out.String(), "the statistics' database can't be reached", stats.dir); err != nil {
		t.Error(err)
	}
	img, err := r.API().pushImage(t.Context(), "acme/app", "v1", randomBytes(1<<10))
	if err != nil {
		t.Fatal(err)
	}
	if status := getStatus(t.Context(), r.URL()+"/v2/acme/app/manifests/v1"); status != http.StatusOK {
		t.Errorf("a pull of %v without statistics is answered %d", img, status)
	}
	stats.Start()
	db := openPool(t, stats.DSN())
	eventually(t, time.Minute, func() error {
		var n int64
		err := db.QueryRow(t.Context(), "SELECT COALESCE(sum(tag_pull_count), 0)::bigint FROM tagpullstatistics").Scan(&n)
		if err == nil && n != 1 {
			err = fmt.Errorf("%d pulls are counted, want the one from before the server came", n)
		}
		return err
	})
}

// TestMigrateBothServers migrates the main database and the statistics' database with one
// command. It expects that each server then has the tables that belong there, and that
// "migrate status" lists the migrations of both as applied.
func TestMigrateBothServers(t *testing.T) {
	beginOwn(t)
	main, stats := dbtest.EmptyDSN(t), startPostgres(t)
	env := []string{"PURSER_DATABASE_MAIN=" + main, "PURSER_DATABASE_STATS=" + stats.DSN()}
	status := func(applied bool) {
		t.Helper()
		code, out := purser(t, env, "migrate", "status")
		if code != 0 {
			t.Fatalf("purser migrate status exited with %d:\n%s", code, out)
		}
		for _, name := range []string{" 00001_schema.sql", "stats/00001_pull_statistics.sql"} {
			line := ""
			for l := range strings.Lines(out) {
				if strings.Contains(l, name) {
					line = l
				}
			}
			if line == "" || strings.Contains(line, "pending") == applied {
				t.Errorf("purser migrate status says %q of %s, applied: %t; all of it:\n%s", line, name, applied, out)
			}
		}
	}
	status(false)
	if code, out := purser(t, env, "migrate", "up"); code != 0 {
		t.Fatalf("purser migrate up exited with %d:\n%s", code, out)
	}
	status(true)
	has := `SELECT relname::text FROM pg_class WHERE relname IN ('repositories', 'tagpullstatistics', 'manifestpullstatistics') ORDER BY 1`
	for dsn, want := range map[string]string{main: "[repositories]", stats.DSN(): "[manifestpullstatistics tagpullstatistics]"} {
		if got := fmt.Sprint(column[string](t, openPool(t, dsn), has)); got != want {
			t.Errorf("a server has the tables %s, want %s", got, want)
		}
	}
}
