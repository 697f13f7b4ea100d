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

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/purser-registry/purser/internal/db/dbtest"
)

// statsEstate is an estate whose pull statistics are on a PostgreSQL server of their own.
type statsEstate struct {
	*estate
	main, stats *postgres
	statsDB     *pgxpool.Pool
}

func newStatsEstate(t testing.TB) *statsEstate {
	t.Helper()
	main, stats := startPostgres(t), startPostgres(t)
	e := newEstate(t, main.DSN(), "PURSER_DATABASE_STATS="+stats.DSN())
	return &statsEstate{e, main, stats, openPool(t, stats.DSN())}
}

// pulls is the number of tags for which each repository has pull statistics in these tests,
// and also the number of manifests.
const pulls = 300

// pulled inserts statistics for n tags and n manifests of each of the repositories `ids`, and
// n days of history, directly into the tables. The names of the tags and manifests begin with
// `name`.
func (e *statsEstate) pulled(ids []int64, name string, n int) {
	e.t.Helper()
	mustExec(e.t, e.statsDB, `INSERT INTO tagpullstatistics (repository_id, tag_name, tag_pull_count)
		SELECT id, $2 || i, i FROM unnest($1::bigint[]) AS id, generate_series(1, $3::int) AS i`, ids, name, n)
	mustExec(e.t, e.statsDB, `INSERT INTO manifestpullstatistics (repository_id, manifest_digest, total_pull_count)
		SELECT id, $2 || i, i FROM unnest($1::bigint[]) AS id, generate_series(1, $3::int) AS i`, ids, name, n)
	mustExec(e.t, e.statsDB, `INSERT INTO tagpullhistory (repository_id, tag_name, day, pulls)
		SELECT id, $2, current_date - i, i FROM unnest($1::bigint[]) AS id, generate_series(1, $3::int) AS i`, ids, name, n)
	mustExec(e.t, e.statsDB, `INSERT INTO manifestpullhistory (repository_id, manifest_digest, day, pulls)
		SELECT id, $2, current_date - i, i FROM unnest($1::bigint[]) AS id, generate_series(1, $3::int) AS i`, ids, name, n)
	mustExec(e.t, e.statsDB, `INSERT INTO repositorypullhistory (repository_id, namespace_id, day, pulls)
		SELECT id, 1, current_date - i, i FROM unnest($1::bigint[]) AS id, generate_series(1, $2::int) AS i`, ids, n)
}

// statsTables are the tables on the PostgreSQL server for statistics whose rows belong to
// repositories.
var statsTables = []string{"tagpullstatistics", "manifestpullstatistics", "tagpullhistory", "manifestpullhistory", "repositorypullhistory"}

// left counts the statistics of repositories.
func (e *statsEstate) left(ids []int64) (rows int, err error) {
	for _, table := range statsTables {
		var n int
		if err := e.statsDB.QueryRow(e.t.Context(), "SELECT count(*) FROM "+table+" WHERE repository_id = ANY ($1)", ids).Scan(&n); err != nil {
			return 0, err
		}
		rows += n
	}
	return rows, nil
}

// ids returns the ids of the repositories whose paths match `pattern`, a pattern of SQL's
// LIKE.
func (e *statsEstate) ids(pattern string) []int64 {
	e.t.Helper()
	list := column[int64](e.t, e.db, "SELECT id FROM repositories WHERE path LIKE $1 ORDER BY id", pattern)
	if len(list) == 0 {
		e.t.Fatalf("there is no repository like %s", pattern)
	}
	return list
}

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

// cleaned waits until the statistics of the deleted repositories (`gone`) are deleted. It
// fails the test unless the other repositories (`kept`) still have all their statistics.
func (e *statsEstate) cleaned(gone, kept []int64) {
	e.t.Helper()
	eventually(e.t, time.Minute, func() error {
		if n, err := e.left(gone); err != nil || n > 0 {
			return fmt.Errorf("%d rows of repositories that are gone are left (%v)", n, err)
		}
		return nil
	})
	e.allThere(kept)
	e.drained(time.Minute)
}

func (e *statsEstate) allThere(kept []int64) {
	e.t.Helper()
	if n, err := e.left(kept); err != nil || n != len(statsTables)*pulls*len(kept) {
		e.t.Errorf("%d rows of living repositories are left (%v), want all %d", n, err, len(statsTables)*pulls*len(kept))
	}
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

// The test stops the PostgreSQL server for statistics. The registry must go on serving pushes,
// pulls and deletions, and delete the statistics of a deleted repository when the server is
// back.
func TestStatsServerDown(t *testing.T) {
	beginOwn(t)
	e := newStatsEstate(t)
	a, ctx := e.r.API(), t.Context()
	for _, repo := range []string{"acme/app", "acme/web"} {
		if _, err := a.pushImage(ctx, repo, "v1", randomBytes(1<<10)); err != nil {
			t.Fatal(err)
		}
	}
	gone, kept := e.ids("acme/app"), e.ids("acme/web")
	e.pulled(append(gone, kept...), "v", pulls)
	e.stats.Stop(syscall.SIGINT)

	before := len(e.r.p.out.String())
	crane := toolClient(t, "crane")
	e.r.manage("DELETE", "/repository/acme/app", nil, nil, http.StatusNoContent)
	crane.Refused("digest", e.r.Ref("acme/app", "v1"))
	crane.Run("digest", e.r.Ref("acme/web", "v1"))
	img := newImage(t, 2, 4<<10)
	crane.Run("push", writeImage(t, img, "v1"), e.r.Ref("acme/app", "new"))
	a.checkWhole(t, "acme/app", "new", digestOf(t, img))
	eventually(t, time.Minute, func() error {
		return tells(e.r.p.out.String()[before:], "ERROR", "cleaning up loose foreign keys", e.stats.dir)
	})
	if !e.r.p.running() {
		t.Fatal("purser ended because its statistics are away")
	}
	if got := getStatus(ctx, "http://"+e.r.debug+"/readyz"); got != http.StatusOK {
		t.Errorf("GET /readyz while the statistics are away: %d, want 200", got)
	}

	e.stats.Start()
	e.statsDB.Reset()
	e.cleaned(gone, kept)
	a.checkWhole(t, "acme/app", "new", digestOf(t, img))
}

// tells returns an error unless the log has a line that contains all of the words.
func tells(log string, words ...string) error {
line:
	for line := range strings.Lines(log) {
		for _, word := range words {
			if !strings.Contains(line, word) {
				continue line
			}
		}
		return nil
	}
	return fmt.Errorf("no line of the log has all of %q:\n%s", words, log[max(0, len(log)-4000):])
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
		for _, name := range []string{"00001_schema.sql", "00003_loose_foreign_keys.sql", "00001_pull_statistics.sql"} {
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
