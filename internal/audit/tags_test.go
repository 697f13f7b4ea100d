package audit

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db/dbtest"
)

// The test fills the audit log and reads one page of the history of a repository's tags.
// Then it fills the log to ten times the size and reads such a page again. The second call
// may read at most twice as many database pages as the first call, plus 100.
func TestFormerTagsAtAnySize(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	conn, err := d.Pool.Acquire(t.Context())
	must(t, err)
	defer conn.Release()
	fill := func(from, to int) { // of three entries one is a pull, one a push, one a move; some are deletions
		must(t, unbounded(t, `
			INSERT INTO auditlog (time, kind, namespace, repository, repository_id, tag, digest, detail)
			SELECT '2026-03-01'::timestamptz + n * interval '1 second',
				CASE WHEN n % 29 = 0 THEN 'delete_tag' WHEN n % 3 = 0 THEN 'pull_repo' WHEN n % 3 = 1 THEN 'push_repo' ELSE 'move_tag' END,
				'acme', 'acme/app', 1 + n % 2, 'v' || n % 200, '\x01' || sha256((n / 2)::text::bytea),
				CASE WHEN n % 3 = 2 AND n % 29 <> 0 THEN jsonb_build_object('previous_digest', 'sha256:' || repeat('0', 64)) END
			FROM generate_series($1::int, $2::int) n`, from, to)(conn))
		must(t, unbounded(t, "ANALYZE auditlog")(conn))
	}
	read := func() (buffers []int) {
		for _, q := range []FormerQuery{{RepositoryID: 1}, {RepositoryID: 1, Tag: "v4"}} {
			list, next, err := New(d).FormerTags(t.Context(), q, "", 20)
			must(t, err)
			if len(list) != 20 || next == "" {
				t.Fatalf("%+v: %d, next %q", q, len(list), next)
			}
			sql, bound := formerOfRepository, 21
			if q.Tag != "" {
				sql, bound = formerOfTag, 210
			}
			text, args, err := pgx.NamedArgs{
				"repository": q.RepositoryID, "tag": q.Tag, "prefix": "", "contains": "", "time": list[0].End.AddDate(0, 0, 1), "id": int64(1),
				"bound": bound, "limit": 21, "starts": "true",
			}.RewriteQuery(t.Context(), nil, sql, nil)
			must(t, err)
			plan, n := explain(t, d.Pool.Pool, text, args)
			if strings.Contains(plan, "Seq Scan on auditlog") {
				t.Errorf("%+v reads all:\n%s", q, plan)
			}
			t.Logf("%+v: %d pages", q, n)
			buffers = append(buffers, n)
		}
		return buffers
	}
	fill(1, 25_000)
	small := read()
	fill(25_001, 250_000)
	for i, n := range read() {
		if n > 2*small[i]+100 {
			t.Errorf("%d pages, and %d in a log of ten times the size", small[i], n)
		}
	}
}
