package db_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/worker"
)

// upgrade is a database with content, from before the migration that makes the indexes of the search.
type upgrade struct {
	t     *testing.T
	dsn   string
	told  chan string // what the migration waits for
	taken int         // how many migrations were taken back
}

func newUpgrade(t *testing.T) upgrade {
	t.Helper()
	u := upgrade{t: t, dsn: dbtest.DSN(t), told: make(chan string, 100)}

	conn := u.connect()
	do(t, conn,
		"SET session_replication_role = replica", // rows of tags without those of manifests
		"INSERT INTO tags (top_level_namespace_id, repository_id, name, manifest_id) SELECT i, i, 'v1', i FROM generate_series(1, 40) AS i",
		`INSERT INTO manifests (top_level_namespace_id, repository_id, digest, media_type, payload, total_size)
			SELECT i, i, decode('01' || lpad(i::text, 64, '0'), 'hex'), 'x', '', 0 FROM generate_series(1, 40) AS i`,
		"SET session_replication_role = origin",
		"DROP INDEX tags_search_idx", "DROP INDEX manifests_search_idx")
	if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM goose_db_version WHERE version_id >= 2").Scan(&u.taken); err != nil {
		t.Fatal(err)
	}
	u.pending(conn)
	return u
}

// pending takes back that the migration and those behind it were applied.
func (u upgrade) pending(conn *pgx.Conn) {
	u.t.Helper()
	do(u.t, conn, "DELETE FROM goose_db_version WHERE version_id >= 2",
		"DROP TABLE IF EXISTS usage_state, usage_repositories, usage_namespaces, usage_registry, usage_days, usage_registry_days", "DELETE FROM settings WHERE name = 'schema_hash'")
}

func (u upgrade) connect() *pgx.Conn {
	u.t.Helper()
	conn, err := pgx.Connect(u.t.Context(), u.dsn)
	if err != nil {
		u.t.Fatal(err)
	}
	u.t.Cleanup(func() { conn.Close(context.Background()) }) //nolint:errcheck // nothing is lost
	return conn
}

// begin migrates in a goroutine; the channel gets the end.
func (u upgrade) begin() <-chan error {
	end := make(chan error, 1)
	go func() {
		n, err := db.Migrate(u.t.Context(), u.dsn, db.MigrateOptions{Waits: func(what string) { u.told <- what }})
		if err == nil && n != u.taken {
			err = fmt.Errorf("%d migrations, want %d", n, u.taken)
		}
		end <- err
	}()
	return end
}

// until waits until the condition is true.
func (u upgrade) until(condition string) {
	u.t.Helper()
	conn := u.connect()
	ctx, cancel := context.WithTimeout(u.t.Context(), time.Minute)
	defer cancel()
	for there := false; !there; {
		err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT "+condition+")").Scan(&there)
		if err == nil && !there {
			err = worker.Sleep(ctx, 10*time.Millisecond) // PostgreSQL tells nobody of it
		}
		if err != nil {
			u.t.Fatalf("%s: %v", condition, err)
		}
	}
}

// indexes returns the OIDs of the parts of the two indexes, by their names. It fails unless each partition has one and all
// are valid.
func (u upgrade) indexes() map[string]uint32 {
	u.t.Helper()
	rows, _ := u.connect().Query(u.t.Context(), `
		SELECT c.relname, c.oid, x.indisvalid AND p.indisvalid AS valid
		FROM pg_index p JOIN pg_inherits h ON h.inhparent = p.indexrelid JOIN pg_class c ON c.oid = h.inhrelid JOIN pg_index x ON x.indexrelid = c.oid
		WHERE p.indexrelid IN ('tags_search_idx'::regclass, 'manifests_search_idx'::regclass)`) //nolint:errcheck // ForEachRow returns its error
	list := make(map[string]uint32)
	var name string
	var oid uint32
	var valid bool
	_, err := pgx.ForEachRow(rows, []any{&name, &oid, &valid}, func() error {
		if list[name] = oid; !valid {
			u.t.Errorf("the index %s isn't valid", name)
		}
		return nil
	})
	if err != nil || len(list) != 2*db.DefaultPartitions || list["tags_p_0_search_idx"] == 0 {
		u.t.Errorf("the indexes %v (%v)", list, err)
	}
	return list
}

// write is a statement of a push, without a row of its own: it has the lock of one.
const write = "LOCK TABLE partitions.tags_p_0 IN ROW EXCLUSIVE MODE"

// TestIndexesOfSearchGoOn: the migration that makes the indexes of the search goes on where it has
// ended. It leaves alone the partitions that are done, whose indexes a push may be using, and replaces what PostgreSQL
// has left of a build that was interrupted.
func TestIndexesOfSearchGoOn(t *testing.T) {
	t.Parallel()
	u := newUpgrade(t)
	conn, writer := u.connect(), u.connect()
	const on = "_search_idx ON partitions.tags_p_%d (name, repository_id) WHERE name <> ''"
	do(t, conn,
		"CREATE INDEX tags_search_idx ON ONLY tags (name, repository_id) WHERE name <> ''",
		fmt.Sprintf("CREATE INDEX tags_p_0"+on, 0), "ALTER INDEX tags_search_idx ATTACH PARTITION partitions.tags_p_0_search_idx",
		fmt.Sprintf("CREATE INDEX tags_p_1"+on, 1), "SET lock_timeout = '100ms'")
	do(t, writer, "BEGIN", "LOCK TABLE partitions.tags_p_2 IN ROW EXCLUSIVE MODE")
	if _, err := conn.Exec(t.Context(), fmt.Sprintf("CREATE INDEX CONCURRENTLY tags_p_2"+on, 2)); err == nil {
		t.Fatal("the build of an index wasn't interrupted")
	}
	var invalid uint32
	if err := conn.QueryRow(t.Context(), "SELECT indexrelid FROM pg_index WHERE NOT indisvalid AND indexrelid = 'partitions.tags_p_2_search_idx'::regclass").Scan(&invalid); err != nil {
		t.Fatal(err)
	}
	var built [2]uint32
	if err := conn.QueryRow(t.Context(), "SELECT 'partitions.tags_p_0_search_idx'::regclass::oid, 'partitions.tags_p_1_search_idx'::regclass::oid").Scan(&built[0], &built[1]); err != nil {
		t.Fatal(err)
	}
	waits := func(what string) {
		t.Errorf("it waits for %s", what)
		do(t, writer, "ROLLBACK")
	}
	do(t, writer, "ROLLBACK", "BEGIN", write, "SELECT FROM partitions.tags_p_0")
	if err := db.MigrateTo(t.Context(), u.dsn, 2, db.MigrateOptions{Waits: waits}); err != nil {
		t.Fatal(err)
	}
	list := u.indexes()
	if list["tags_p_0_search_idx"] != built[0] || list["tags_p_1_search_idx"] != built[1] || list["tags_p_2_search_idx"] == invalid {
		t.Errorf("the indexes %v after %v, of which %d was invalid", list, built, invalid)
	}

	// Once more, while a push writes to all partitions of both tables: nothing is left to do.
	u.pending(conn)
	do(t, writer, "SELECT FROM tags", "SELECT FROM manifests", "LOCK TABLE tags, manifests IN ROW EXCLUSIVE MODE")
	if err := db.MigrateTo(t.Context(), u.dsn, 2, db.MigrateOptions{Waits: waits}); err != nil {
		t.Fatal(err)
	}
	for name, oid := range u.indexes() {
		if list[name] != oid {
			t.Errorf("the index %s was made once more", name)
		}
	}
}

// TestIndexesOfSearchBesidePushes: while an index is built, pushes go on. The build waits for the end of
// older ones, says so, and doesn't wait for the processes that wait for the migration.
func TestIndexesOfSearchBesidePushes(t *testing.T) {
	t.Parallel()
	u := newUpgrade(t)
	old, push, backup := u.connect(), u.connect(), u.connect()
	do(t, old, "BEGIN", write)
	migrated := u.begin()
	u.until("FROM pg_stat_progress_create_index WHERE datname = current_database() AND phase = 'waiting for writers before build'")
	var pid int
	if err := old.QueryRow(t.Context(), "SELECT pg_backend_pid()").Scan(&pid); err != nil {
		t.Fatal(err)
	}
	if what := <-u.told; !strings.HasSuffix(what, fmt.Sprintf("of PostgreSQL's processes %d (client backend)", pid)) {
		t.Errorf("the migration waits for %s", what)
	}
	do(t, push, "SET lock_timeout = '200ms'", "SET session_replication_role = replica",
		"INSERT INTO tags (top_level_namespace_id, repository_id, name, manifest_id) SELECT i, i, 'v2', i FROM generate_series(1, 40) AS i")
	locked, second := make(chan error, 1), make(chan error, 1)
	waits := make(chan string, 100)
	go func() { locked <- db.LockSchema(t.Context(), backup) }()
	go func() {
		_, err := db.Migrate(t.Context(), u.dsn, db.MigrateOptions{Waits: func(what string) { waits <- what }})
		second <- err
	}()
	if what := <-waits; !strings.HasPrefix(what, "another process") {
		t.Errorf("the second process waits for %s", what)
	}
	u.until("FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'SELECT pg\\_%advisory\\_lock\\_shared%' AND pid <> pg_backend_pid()")
	do(t, old, "COMMIT")
	start := time.Now()
	if err := <-migrated; err != nil || time.Since(start) > 30*time.Second {
		t.Errorf("the migration, after %s: %v", time.Since(start), err)
	}
	if err := <-locked; err != nil {
		t.Errorf("the backup: %v", err)
	}
	do(t, backup, "SELECT pg_advisory_unlock_all()")
	if err := <-second; err != nil {
		t.Errorf("the second process: %v", err)
	}
	u.indexes()
	var found int
	do(t, push, "SET enable_seqscan = off")
	if err := push.QueryRow(t.Context(), "SELECT count(*) FROM tags WHERE name <> '' AND name = 'v2'").Scan(&found); err != nil || found != 40 {
		t.Errorf("%d tags of the push (%v)", found, err)
	}
}

// TestIndexesOfSearchBesideVacuum: VACUUM has a lock that no index can be built beside. An autovacuum ends for
// others that wait for longer than deadlock_timeout; so the migration waits, and holds up no push meanwhile.
func TestIndexesOfSearchBesideVacuum(t *testing.T) {
	t.Parallel()
	u := newUpgrade(t)
	vacuum, push := u.connect(), u.connect()
	do(t, vacuum, "BEGIN", "LOCK TABLE partitions.tags_p_0 IN SHARE UPDATE EXCLUSIVE MODE")
	migrated := u.begin()
	u.until("FROM pg_locks WHERE relation = 'partitions.tags_p_0'::regclass AND NOT granted AND waitstart < clock_timestamp() - interval '1.5 s'")
	do(t, push, "SET lock_timeout = '200ms'", "BEGIN", write, "COMMIT")
	do(t, vacuum, "COMMIT")
	if err := <-migrated; err != nil {
		t.Error(err)
	}
	u.indexes()
}
