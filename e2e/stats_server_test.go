package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
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
	crane := toolClient(t, "crane")
	// The first pull of an idle process would wait for a while, so that no judge relies on the
	// process's last report.
	crane.Run("digest", e.r.Ref("acme/web", "v1"))
	e.stats.Stop(syscall.SIGINT)

	before := len(e.r.p.out.String())
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
