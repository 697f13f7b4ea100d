package loosefk

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/purser-registry/purser/loosefk/internal/pg"
)

const stormSchema = `
	CREATE TABLE groups (id bigint PRIMARY KEY);
	CREATE TABLE projects (id bigint PRIMARY KEY, group_id bigint);
	CREATE INDEX ON projects (group_id);
	CREATE TABLE builds (id bigserial, project_id bigint, state int NOT NULL DEFAULT 1, PRIMARY KEY (id, state)) PARTITION BY LIST (state);
	CREATE TABLE builds_1 PARTITION OF builds FOR VALUES IN (1);
	CREATE TABLE builds_2 PARTITION OF builds FOR VALUES IN (2);
	CREATE INDEX ON builds (project_id);
	CREATE TABLE notes (id bigserial PRIMARY KEY, project_id bigint);
	CREATE INDEX ON notes (project_id);
	CREATE TABLE marks (id bigserial PRIMARY KEY, project_id bigint, state int);
	CREATE INDEX ON marks (project_id, state)`

const stormRemote = `
	CREATE TABLE pulls (id bigserial, project_id bigint, PRIMARY KEY (project_id, id))`

const stormDefinitions = `
projects: [{table: groups, column: group_id, on_delete: async_delete}]
builds: [{table: projects, column: project_id, on_delete: async_delete, delete_limit: 9}]
notes: [{table: projects, column: project_id, on_delete: async_nullify}]
marks: [{table: projects, column: project_id, on_delete: update_column_to, target_column: state, target_value: 4}]
pulls: [{table: projects, column: project_id, on_delete: async_delete}]`

// storm is the state of TestStorm: an application on two databases, with several workers
// whose connections the test keeps cutting. It records which rows must exist.
type storm struct {
	main, remote *pgxpool.Pool
	groups       int

	mu       sync.Mutex
	projects map[int]bool // whether the project exists
	group    map[int]int
	// epochs counts how often each project was deleted and, with the negated id as key,
	// each group.
	epochs map[int]int
	// children holds, by project and child table, the ids of children whose parent has
	// existed ever since they were inserted, so that no worker may delete them.
	children map[int]map[string][]int64
	next     int
	// `whole` counts the runs of workers that were completed, `cut` those that were
	// interrupted.
	whole, cut int
}

// TestStorm lets clients insert and delete parents with children, in chains of tables and
// in partitions. Meanwhile several workers with tiny limits run and rotate partitions; the
// test cuts their connections and ends their contexts. In the end no orphan may be left,
// and no child may be missing whose parent has existed all the time.
func TestStorm(t *testing.T) {
	t.Parallel()
	s := &storm{
		main: newPool(t, stormSchema), remote: newPool(t, stormRemote), groups: 4,
		projects: map[int]bool{}, group: map[int]int{}, epochs: map[int]int{}, children: map[int]map[string][]int64{},
	}
	main := install(t, s.main, "projects", "groups")
	// The workers get a pool of their own, so that the test can cut their connections only.
	cfg := s.main.Config()
	cfg.ConnConfig.RuntimeParams["application_name"] = "worker"
	var err error
	main.Pool, err = pgxpool.NewWithConfig(t.Context(), cfg)
	must(t, err)
	t.Cleanup(main.Pool.Close)
	dbs := Databases{main, {Name: "remote", Pool: s.remote, Tables: []string{"pulls"}}}
	for _, child := range []string{"builds", "notes", "marks"} {
		must(t, DefaultSchema.GuardInserts(t.Context(), s.main, child, "project_id", "projects"))
	}
	must(t, DefaultSchema.GuardInserts(t.Context(), s.main, "projects", "group_id", "groups"))
	exec(t, s.main, "INSERT INTO groups SELECT generate_series(1, $1::int)", s.groups)
	options := Options{
		Databases: dbs, Definitions: parse(t, stormDefinitions), Log: slog.New(slog.DiscardHandler),
		Batch: 3, DeleteLimit: 8, UpdateLimit: 8, MaxDeletes: 30, MaxUpdates: 20, RescheduleAfter: time.Millisecond,
		LockTimeout: 20 * time.Millisecond, SecondLook: 200 * time.Millisecond, PartitionAge: 50 * time.Millisecond, Retention: time.Millisecond,
	}
	group, ctx := errgroup.WithContext(t.Context())
	working, stop := context.WithCancel(t.Context())
	defer stop()
	var workers sync.WaitGroup
	for n := range 3 {
		workers.Go(func() { s.work(working, t, options, rand.New(rand.NewPCG(uint64(n), 3))) })
	}
	// The test cuts connections until the clients have finished and at least one run was
	// interrupted. Then the workers continue until one more run is completed.
	storming, calm := context.WithCancel(t.Context())
	defer calm()
	workers.Go(func() {
		s.cutConnections(working, t, func() bool { return storming.Err() != nil && s.hadRun(&s.cut) })
		for !s.hadRun(&s.whole) && sleep(working, time.Millisecond) == nil {
			continue
		}
		stop()
	})
	for n := range 5 {
		rng := rand.New(rand.NewPCG(uint64(n), 4))
		group.Go(func() error {
			for i := range 80 {
				if err := s.act(ctx, rng); err != nil {
					return fmt.Errorf("client %d, step %d: %w", n, i, err)
				}
			}
			return nil
		})
	}
	if err = group.Wait(); err != nil {
		stop()
	}
	calm()
	workers.Wait()
	must(t, err)
	t.Logf("%d runs came to their end, %d were cut off, %d projects", s.whole, s.cut, len(s.projects))
	if s.cut == 0 || s.whole == 0 {
		t.Errorf("%d runs came to their end and %d were cut off: the test needs both kinds", s.whole, s.cut)
	}
	main.Pool.Reset() // idle connections of the pool were cut, too
	s.settle(t, options)
	s.check(t)
}

// work makes runs of a worker until ctx ends. It interrupts most runs after a short time, by
// ending their context.
func (s *storm) work(ctx context.Context, t *testing.T, options Options, rng *rand.Rand) {
	w, err := New(options)
	if err != nil {
		t.Error(err)
		return
	}
	for ctx.Err() == nil {
		limit := time.Duration(5+rng.IntN(600)) * time.Millisecond
		if rng.IntN(3) == 0 { // without longer runs a busy machine would complete none
			limit = time.Minute
		}
		run, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
		_, err := w.RunOnce(run, "main")
		cancel()
		s.mu.Lock()
		if err != nil { // the run was interrupted; any error is accepted, if only nothing is lost
			s.cut++
		} else {
			s.whole++
		}
		s.mu.Unlock()
	}
}

// hadRun returns whether the counter `kind`, which is s.whole or s.cut, is above 0.
func (s *storm) hadRun(kind *int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return *kind > 0
}

// cutConnections ends random connections of the workers until enough returns true.
func (s *storm) cutConnections(ctx context.Context, t *testing.T, enough func() bool) {
	for !enough() && sleep(ctx, 100*time.Millisecond) == nil {
		_, err := s.main.Exec(context.WithoutCancel(ctx), `
			SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE datname = current_database() AND application_name = 'worker'
			ORDER BY random() LIMIT 1`)
		if err != nil {
			t.Error(err)
		}
	}
}

// act makes one random change, as a client of the application would.
func (s *storm) act(ctx context.Context, rng *rand.Rand) error {
	switch rng.IntN(10) {
	case 0, 1:
		return s.insertProject(ctx, 1+rng.IntN(s.groups))
	case 2:
		return s.deleteProject(ctx, rng)
	case 3:
		if rng.IntN(5) == 0 {
			return s.replaceGroup(ctx, 1+rng.IntN(s.groups))
		}
		return s.reinsertProject(ctx, rng)
	case 4:
		return s.holdChildren(ctx, rng)
	}
	return s.insertChildren(ctx, rng)
}

func (s *storm) insertProject(ctx context.Context, group int) error {
	s.mu.Lock()
	s.next++
	id, epoch := s.next, s.epochs[-group]
	s.mu.Unlock()
	_, err := s.main.Exec(ctx, "INSERT INTO projects VALUES ($1, $2)", id, group)
	if pg.IsState(err, "23503") {
		return nil // the group is being replaced
	}
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.epochs[-group] == epoch {
		s.projects[id], s.group[id], s.children[id] = true, group, map[string][]int64{}
	}
	return nil
}

// pick returns a random project that exists or, if `lives` is false, one that was deleted.
func (s *storm) pick(rng *rand.Rand, lives bool) (int, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ids []int
	for _, id := range slices.Sorted(maps.Keys(s.projects)) {
		if s.projects[id] == lives {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return 0, false
	}
	return ids[rng.IntN(len(ids))], true
}

func (s *storm) deleteProject(ctx context.Context, rng *rand.Rand) error {
	id, ok := s.pick(rng, true)
	if !ok {
		return nil
	}
	s.forget(id)
	return pgx.BeginFunc(ctx, s.main, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "DELETE FROM projects WHERE id = $1", id); err != nil {
			return err
		}
		return sleep(ctx, time.Duration(rng.IntN(20))*time.Millisecond) // the record is inserted but not yet visible to workers
	})
}

// forget records that a project was deleted, so that its children may be missing.
func (s *storm) forget(id int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.projects[id], s.children[id] = false, map[string][]int64{}
	s.epochs[id]++
}

// reinsertProject inserts a deleted project again with its old id.
func (s *storm) reinsertProject(ctx context.Context, rng *rand.Rand) error {
	id, ok := s.pick(rng, false)
	if !ok {
		return nil
	}
	tag, err := s.main.Exec(ctx, "INSERT INTO projects VALUES ($1) ON CONFLICT DO NOTHING", id)
	if err == nil && tag.RowsAffected() == 1 {
		s.mu.Lock()
		if _, known := s.projects[id]; known { // unless its group was replaced meanwhile
			s.projects[id], s.group[id] = true, 0
		}
		s.mu.Unlock()
	}
	return err
}

// replaceGroup deletes a group of projects, and inserts it again with the same id. It
// removes the projects of the group from s.children, since they need not exist any more.
func (s *storm) replaceGroup(ctx context.Context, group int) error {
	s.mu.Lock()
	s.epochs[-group]++
	for id, g := range s.group {
		if g == group {
			s.epochs[id]++
			delete(s.projects, id)
			delete(s.children, id)
		}
	}
	s.mu.Unlock()
	if _, err := s.main.Exec(ctx, "DELETE FROM groups WHERE id = $1", group); err != nil {
		return err
	}
	_, err := s.main.Exec(ctx, "INSERT INTO groups VALUES ($1) ON CONFLICT DO NOTHING", group)
	return err
}

// holdChildren locks some children, of existing or deleted projects, in a transaction of up
// to 60 ms.
func (s *storm) holdChildren(ctx context.Context, rng *rand.Rand) error {
	child := []string{"builds", "notes", "marks"}[rng.IntN(3)]
	err := pgx.BeginFunc(ctx, s.main, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, fmt.Sprintf(`UPDATE %[1]s SET project_id = project_id WHERE ctid = ANY (ARRAY(
			SELECT ctid FROM %[1]s ORDER BY random() LIMIT 5 FOR UPDATE SKIP LOCKED))`, child)); err != nil {
			return err
		}
		return sleep(ctx, time.Duration(rng.IntN(60))*time.Millisecond)
	})
	if pg.IsState(err, pg.StateLockNotAvailable) {
		return nil
	}
	return err
}

// insertChildren inserts children of a random project. Another goroutine may delete the
// project first.
func (s *storm) insertChildren(ctx context.Context, rng *rand.Rand) error {
	id, ok := s.pick(rng, true)
	if !ok {
		return nil
	}
	s.mu.Lock()
	epoch := s.epochs[id]
	s.mu.Unlock()
	child := []string{"builds", "builds", "notes", "marks", "pulls"}[rng.IntN(5)]
	pool, sql := s.main, "INSERT INTO "+child+" (project_id) SELECT $1 FROM generate_series(1, $2) RETURNING id"
	switch child {
	case "pulls": // no guard works across servers, so it looks the parent up before it inserts
		pool = s.remote
		var lives bool
		if err := s.main.QueryRow(ctx, "SELECT EXISTS (SELECT FROM projects WHERE id = $1)", id).Scan(&lives); err != nil || !lives {
			return err
		}
		if err := sleep(ctx, time.Duration(rng.IntN(40))*time.Millisecond); err != nil {
			return err
		}
	case "builds":
		sql = "INSERT INTO builds (project_id, state) SELECT $1, 1 + g % 2 FROM generate_series(1, $2::int) g RETURNING id"
	}
	rows, err := pool.Query(ctx, sql, id, 1+rng.IntN(12))
	if err != nil {
		return err
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if pg.IsState(err, "23503") {
		return nil
	}
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.projects[id] && s.epochs[id] == epoch && child != "pulls" {
		s.children[id][child] = append(s.children[id][child], ids...)
	}
	return nil
}

// settle makes runs of a worker, with the storm's small limits, until no deleted record is
// pending.
func (s *storm) settle(t *testing.T, o Options) {
	t.Helper()
	w, err := New(o)
	must(t, err)
	for range 2000 {
		runOnce(t, w, "main")
		if n := query[int](t, s.main, "SELECT count(*)::int FROM loose_foreign_keys_deleted_records WHERE status = 1")[0]; n == 0 {
			return
		}
	}
	t.Error("records are pending for ever")
}

func (s *storm) check(t *testing.T) {
	t.Helper()
	for what, sql := range map[string]string{
		"projects": "SELECT count(*)::int FROM projects c WHERE group_id IS NOT NULL AND NOT EXISTS (SELECT FROM groups p WHERE p.id = c.group_id)",
		"builds":   "SELECT count(*)::int FROM builds c WHERE NOT EXISTS (SELECT FROM projects p WHERE p.id = c.project_id)",
		"notes":    "SELECT count(*)::int FROM notes c WHERE project_id IS NOT NULL AND NOT EXISTS (SELECT FROM projects p WHERE p.id = c.project_id)",
		"marks":    "SELECT count(*)::int FROM marks c WHERE state IS DISTINCT FROM 4 AND NOT EXISTS (SELECT FROM projects p WHERE p.id = c.project_id)",
	} {
		if n := query[int](t, s.main, sql)[0]; n != 0 {
			t.Errorf("%d orphans in %s", n, what)
		}
	}
	live := query[int64](t, s.main, "SELECT id FROM projects")
	if n := query[int](t, s.remote, "SELECT count(*)::int FROM pulls WHERE NOT project_id = ANY ($1)", live)[0]; n != 0 {
		t.Errorf("%d orphans in pulls", n)
	}
	for id, children := range s.children {
		if !s.projects[id] {
			continue
		}
		for child, ids := range children {
			sql := "SELECT count(*)::int FROM " + child + " WHERE project_id = $1 AND id = ANY ($2)"
			if child == "marks" {
				sql += " AND state IS DISTINCT FROM 4"
			}
			if n := query[int](t, s.main, sql, id, ids)[0]; n != len(ids) {
				t.Errorf("of %d rows of %s that have a living parent %d, %d are left", len(ids), child, id, n)
			}
		}
	}
}
