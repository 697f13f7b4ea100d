package loosefk

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/purser-registry/purser/loosefk/internal/pg"
	"github.com/purser-registry/purser/loosefk/internal/testdb"
)

// quick are the options of rotations in tests. A step of the rotation waits 20 ms for a lock
// and is tried three times.
var quick = rotationOptions{age: 24 * time.Hour, retention: time.Hour, lockWait: 20 * time.Millisecond, tries: 3}

// aged sets created_at of all deleted records back by an interval.
func aged(t *testing.T, db Database, by string) {
	t.Helper()
	exec(t, db.Pool, "UPDATE loose_foreign_keys_deleted_records SET created_at = created_at - $1::interval", by)
}

func rotate(t *testing.T, db Database) Rotation {
	t.Helper()
	s, err := db.rotate(t.Context(), quick)
	must(t, err)
	return s
}

const onlyParents = `CREATE TABLE projects (id bigint PRIMARY KEY)`

// deletedProject makes a parent and deletes it.
func deletedProject(t *testing.T, db DB, id int) {
	t.Helper()
	exec(t, db, "INSERT INTO projects VALUES ($1)", id)
	if n := exec(t, db, "DELETE FROM projects WHERE id = $1", id); n != 1 {
		t.Fatalf("%d rows were deleted", n)
	}
}

func TestRotation(t *testing.T) {
	t.Parallel()
	db := install(t, newPool(t, onlyParents), "projects")
	records := "SELECT tableoid::regclass::text || ' ' || primary_key_value || ' ' || status FROM loose_foreign_keys_deleted_records ORDER BY primary_key_value"
	if s := rotate(t, db); s.Added != "" || s.Busy {
		t.Errorf("an empty table: %+v", s)
	}
	deletedProject(t, db.Pool, 1)
	if s := rotate(t, db); s.Added != "" {
		t.Errorf("a young record: %+v", s)
	}
	aged(t, db, "25 hours")
	if s := rotate(t, db); s.Added != "public.loose_foreign_keys_deleted_records_2" || s.Detached != nil {
		t.Errorf("a record of a day ago that is pending: %+v", s)
	}
	deletedProject(t, db.Pool, 2)
	wantRows(t, db.Pool, records, "loose_foreign_keys_deleted_records_1 1 1", "loose_foreign_keys_deleted_records_2 2 1")

	// Rotation must detach the second partition although the first one has a pending
	// record.
	aged(t, db, "25 hours")
	if s := rotate(t, db); s.Added != "public.loose_foreign_keys_deleted_records_3" {
		t.Errorf("the next day: %+v", s)
	}
	exec(t, db.Pool, "UPDATE loose_foreign_keys_deleted_records SET status = 2 WHERE primary_key_value = 2")
	if s := rotate(t, db); fmt.Sprint(s.Detached) != "[public.loose_foreign_keys_deleted_records_2]" {
		t.Errorf("the second partition is settled: %+v", s)
	}
	wantRows(t, db.Pool, records, "loose_foreign_keys_deleted_records_1 1 1")
	wantRows(t, db.Pool, "SELECT table_name FROM detached_partitions", "public.loose_foreign_keys_deleted_records_2")
	if s := rotate(t, db); s.Dropped != nil {
		t.Errorf("a partition that was just detached: %+v", s)
	}
	exec(t, db.Pool, "UPDATE detached_partitions SET drop_after = now()")
	exec(t, db.Pool, "UPDATE loose_foreign_keys_deleted_records_2 SET status = 1")
	if s := rotate(t, db); s.Dropped != nil {
		t.Errorf("a partition that has something pending again: %+v", s)
	}
	exec(t, db.Pool, "UPDATE loose_foreign_keys_deleted_records_2 SET status = 2")
	if s := rotate(t, db); fmt.Sprint(s.Dropped) != "[public.loose_foreign_keys_deleted_records_2]" {
		t.Errorf("its retention is over: %+v", s)
	}
	wantRows(t, db.Pool, "SELECT to_regclass('loose_foreign_keys_deleted_records_2') IS NULL AND NOT EXISTS (SELECT FROM detached_partitions)", true)
	list, err := db.Partitions(t.Context())
	must(t, err)
	if len(list) != 3 || list[0].Value != 1 || list[1].Value != 3 || !list[1].Current || !list[2].Default {
		t.Errorf("the partitions are %+v", list)
	}
}

// The default of the column `partition` is a number without a partition. Clients must still
// be able to delete: the default partition accepts the records, and the next rotation moves
// them to the newest partition.
func TestRotationRepairsWrongDefault(t *testing.T) {
	t.Parallel()
	pool := newPool(t, testdb.Projects)
	db := install(t, pool, "projects")
	w := newWorker(t, Options{Definitions: parse(t, testdb.ProjectsDefinitions)}, db)
	exec(t, pool, "ALTER TABLE loose_foreign_keys_deleted_records ALTER COLUMN partition SET DEFAULT 4")
	exec(t, pool, "DELETE FROM projects WHERE id IN (1, 2)")
	wantRows(t, pool, "SELECT DISTINCT tableoid::regclass::text FROM loose_foreign_keys_deleted_records", "loose_foreign_keys_deleted_records_default")
	r := runOnce(t, w, "main")
	if r.Rotation.Repaired != 4 || r.Rotation.Moved != 2 || r.Processed != 2 {
		t.Errorf("the run says %+v", r)
	}
	wantRows(t, pool, "SELECT DISTINCT tableoid::regclass::text || ' ' || partition FROM loose_foreign_keys_deleted_records", "loose_foreign_keys_deleted_records_1 1")
	// Records in the default partition that contain the next partition's number must not
	// prevent a rotation from adding that partition.
	aged(t, db, "25 hours")
	if s := rotate(t, db); s.Added != "public.loose_foreign_keys_deleted_records_2" {
		t.Errorf("the next day: %+v", s)
	}
}

// The default of the column `partition` isn't the number of the newest partition, or is no
// number at all. Rotation must correct it, and then add the next partition.
func TestRotationGoesOn(t *testing.T) {
	t.Parallel()
	const table = "loose_foreign_keys_deleted_records"
	for _, tt := range []struct{ name, breaks, added string }{
		{"an older partition", "CREATE TABLE " + table + "_2 PARTITION OF " + table + " FOR VALUES IN (2)", "_3"},
		{"a detached one", "CREATE TABLE " + table + "_2 PARTITION OF " + table + " FOR VALUES IN (2); ALTER TABLE " + table + " DETACH PARTITION " + table + "_1", "_3"},
		{"no default", "ALTER TABLE " + table + " ALTER COLUMN partition DROP DEFAULT", "_2"},
		{"no number", "CREATE SEQUENCE s START 70; ALTER TABLE " + table + " ALTER COLUMN partition SET DEFAULT nextval('s')", "_2"},
		{"a table of the next one's name", "CREATE TABLE " + table + "_2 (LIKE " + table + ")", "_3"},
		{"several values", "CREATE TABLE " + table + "_many PARTITION OF " + table + " FOR VALUES IN (4, 5, NULL)", "_6"},
		{"no default partition", "DROP TABLE " + table + "_default", "_2"},
		{"a default partition that was detached", "ALTER TABLE " + table + " DETACH PARTITION " + table + "_default", "_2"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			db := install(t, newPool(t, onlyParents), "projects")
			exec(t, db.Pool, tt.breaks)
			rotate(t, db)
			deletedProject(t, db.Pool, 1)
			aged(t, db, "25 hours")
			s := rotate(t, db)
			list, current, err := db.in().Partitions(t.Context(), db.Pool)
			must(t, err)
			last, err := pg.Newest(list)
			must(t, err)
			if last.Table != "public."+table+tt.added || current != last.Value || !list[len(list)-1].Default {
				t.Errorf("%+v: the partitions are %+v, the default is %d", s, list, current)
			}
			recs, err := db.load(t.Context(), pg.Table{Schema: "public", Name: "projects"}, laneDue, 10, nil)
			must(t, err)
			if len(recs) != 1 {
				t.Errorf("%d records are loaded, want 1", len(recs))
			}
		})
	}
}

// If there is only the default partition, rotation must add a numbered partition.
func TestRotationWithoutPartition(t *testing.T) {
	t.Parallel()
	db := install(t, newPool(t, onlyParents), "projects")
	exec(t, db.Pool, "DROP TABLE loose_foreign_keys_deleted_records_1")
	deletedProject(t, db.Pool, 1)
	if s := rotate(t, db); s.Added != "public.loose_foreign_keys_deleted_records_2" || s.Repaired != 1 || s.Moved != 1 {
		t.Errorf("%+v", s)
	}
	deletedProject(t, db.Pool, 2)
	wantRows(t, db.Pool, "SELECT DISTINCT partition FROM loose_foreign_keys_deleted_records", int64(2))
}

// An open transaction prevents rotation from correcting a wrong default. The worker must
// process the records that have gone to the default partition nevertheless.
func TestWrongDefaultIsWorkedOff(t *testing.T) {
	t.Parallel()
	pool := newPool(t, testdb.Projects)
	db := install(t, pool, "projects")
	w := newWorker(t, Options{Definitions: parse(t, testdb.ProjectsDefinitions), LockTimeout: 10 * time.Millisecond}, db)
	exec(t, pool, "ALTER TABLE loose_foreign_keys_deleted_records ALTER COLUMN partition SET DEFAULT 4")
	exec(t, pool, "DELETE FROM projects WHERE id = 1")
	tx, err := pool.Begin(t.Context())
	must(t, err)
	exec(t, tx, "DELETE FROM projects WHERE id = 2") // the transaction stays open and keeps its lock on the table
	r := runOnce(t, w, "main")
	if !r.Rotation.Busy || r.Rotation.Repaired != 0 || r.Processed != 1 {
		t.Errorf("the run says %+v", r)
	}
	must(t, tx.Commit(t.Context()))
	if r := runOnce(t, w, "main"); r.Rotation.Repaired != 4 || r.Processed != 1 {
		t.Errorf("the run after it says %+v", r)
	}
	wantRows(t, pool, "SELECT DISTINCT project_id FROM pipelines ORDER BY 1", 3, 4)
}

// A client is inserting a record into a partition while rotation detaches it. The record
// must not be lost, as it would be if rotation searched for records first and detached
// afterwards.
func TestDetachWaitsForInserts(t *testing.T) {
	t.Parallel()
	pool := newPool(t, onlyParents)
	db := install(t, pool, "projects")
	deletedProject(t, pool, 1)
	aged(t, db, "25 hours")
	rotate(t, db) // new records go to partition 2
	conn, err := pool.Acquire(t.Context())
	must(t, err)
	defer conn.Release()
	tx, err := conn.Begin(t.Context())
	must(t, err)
	exec(t, tx, "INSERT INTO loose_foreign_keys_deleted_records (partition, fully_qualified_table_name, primary_key_value) VALUES (1, 'public.projects', $1)", 3)
	exec(t, pool, "UPDATE loose_foreign_keys_deleted_records SET status = 2")
	late := make(chan error, 1)
	go func() {
		s, err := db.rotate(context.WithoutCancel(t.Context()), rotationOptions{24 * time.Hour, time.Hour, 5 * time.Second, 1})
		if err == nil && len(s.Detached) > 0 {
			err = fmt.Errorf("%v was detached with a pending record", s.Detached)
		}
		late <- err
	}()
	waitBlocked(t, pool, conn.Conn())
	must(t, tx.Commit(t.Context()))
	must(t, <-late)
	wantRows(t, pool, "SELECT primary_key_value FROM loose_foreign_keys_deleted_records WHERE status = 1", int64(3))
}

// waitBlocked waits until another database session waits for a lock that the session of
// `conn` holds.
func waitBlocked(t *testing.T, db DB, conn *pgx.Conn) {
	t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for query[int](t, db, "SELECT count(*)::int FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid))", int32(conn.PgConn().PID()))[0] == 0 {
		if time.Now().After(deadline) {
			t.Fatal("nobody waits")
		}
		time.Sleep(time.Millisecond)
	}
}

// TestRotationUnderLoad rotates partitions again and again while clients delete parents.
// Some deleting transactions stay open: one until a rotation has given up because of it,
// the next until a rotation has added a partition. No delete may fail, or wait longer than
// the rotation's lock timeout plus a margin for a busy machine.
func TestRotationUnderLoad(t *testing.T) {
	t.Parallel()
	pool := newPool(t, onlyParents, "INSERT INTO projects SELECT generate_series(1, 100000)")
	db := install(t, pool, "projects")
	const lockWait, machine, rounds = 50 * time.Millisecond, 3 * time.Second, 5
	ctx, fail := context.WithCancelCause(t.Context())
	defer fail(nil)
	group, ctx := errgroup.WithContext(ctx)
	rotating, stop := context.WithCancel(ctx)
	rotations := newRotations()
	rotator := make(chan error, 1)
	go func() {
		err := rotations.run(rotating, db, rotationOptions{time.Nanosecond, time.Nanosecond, lockWait, 2})
		fail(err)
		rotator <- err
	}()
	remove := func(id int) error {
		began := time.Now()
		if _, err := pool.Exec(ctx, "DELETE FROM projects WHERE id = $1", id); err != nil {
			return err
		}
		if took := time.Since(began); took > lockWait+machine {
			return fmt.Errorf("a delete took %s", took)
		}
		return nil
	}
	for n := range 4 {
		group.Go(func() error {
			for i := range 150 {
				if err := remove(n*1000 + i + 1); err != nil {
					return err
				}
			}
			return nil
		})
	}
	group.Go(func() error {
		for i := range rounds {
			added, busy := rotations.count()
			err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				if _, err := tx.Exec(ctx, "DELETE FROM projects WHERE id = $1", 50_000+i); err != nil {
					return err
				}
				// After this delete the newest partition has a record, so a rotation wants
				// to add the next partition, and has to wait for this transaction.
				if err := remove(60_000 + i); err != nil {
					return err
				}
				return rotations.wait(ctx, added, busy+1)
			})
			if err != nil {
				return err
			}
			if err := rotations.wait(ctx, added+1, busy); err != nil {
				return err
			}
		}
		return nil
	})
	err := group.Wait()
	stop()
	if err := errors.Join(err, <-rotator); err != nil {
		t.Fatal(err)
	}
	if added, busy := rotations.count(); added < rounds || busy < rounds {
		t.Errorf("%d partitions were added and %d rotations gave up: the test needs both", added, busy)
	}
	wantRows(t, pool, "SELECT count(*)::int FROM projects", 100000-4*150-2*rounds)
}

// rotations counts the rotations that added a partition and those that gave up.
type rotations struct {
	mu          sync.Mutex
	added, busy int
	news        chan struct{} // is closed by the next rotation
}

func newRotations() *rotations { return &rotations{news: make(chan struct{})} }

// run rotates partitions, and marks all deleted records as processed, until ctx ends.
func (r *rotations) run(ctx context.Context, db Database, o rotationOptions) error {
	whole := context.WithoutCancel(ctx)
	for ctx.Err() == nil {
		s, err := db.rotate(whole, o)
		if err != nil {
			return err
		}
		r.mu.Lock()
		if s.Added != "" {
			r.added++
		}
		if s.Busy {
			r.busy++
		}
		close(r.news)
		r.news = make(chan struct{})
		r.mu.Unlock()
		if _, err := db.Pool.Exec(whole, "UPDATE loose_foreign_keys_deleted_records SET status = 2 WHERE status = 1"); err != nil {
			return err
		}
	}
	return nil
}

func (r *rotations) count() (added, busy int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.added, r.busy
}

// wait waits until at least `added` rotations have added a partition, and at least `busy`
// rotations have given up.
func (r *rotations) wait(ctx context.Context, added, busy int) error {
	for {
		r.mu.Lock()
		done, news := r.added >= added && r.busy >= busy, r.news
		r.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-news:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
