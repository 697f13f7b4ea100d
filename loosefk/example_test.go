package loosefk_test

import (
	"context"
	"fmt"
	"log"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/purser-registry/purser/loosefk"
)

const definitions = `
pipelines:
  - table: projects
    column: project_id
    on_delete: async_delete
requests:
  - table: projects
    column: project_id
    on_delete: async_nullify
packages:
  - table: projects
    column: project_id
    on_delete: update_column_to
    target_column: status
    target_value: 4
`

// This example parses definitions, which say what happens to the children of deleted
// projects. An application reads them from a file with Load.
func ExampleParse() {
	defs, err := loosefk.Parse("config/loose_foreign_keys.yml", strings.NewReader(definitions))
	if err != nil {
		log.Fatal(err)
	}
	for _, d := range defs {
		fmt.Println(d)
	}

	_, err = loosefk.Parse("config/loose_foreign_keys.yml", strings.NewReader("pipelines:\n  - table: projects\n"))
	fmt.Println(err)
	// Output:
	// pipelines.project_id → projects (async_delete), config/loose_foreign_keys.yml:3
	// requests.project_id → projects (async_nullify), config/loose_foreign_keys.yml:7
	// packages.project_id → projects (update_column_to), config/loose_foreign_keys.yml:11
	// config/loose_foreign_keys.yml:2: table pipelines: the column that refers to projects is missing: give column
	// config/loose_foreign_keys.yml:2: table pipelines: on_delete is missing: want async_delete, async_nullify or update_column_to
}

// This example installs the table of deleted records, and a trigger on the parent table.
// From then on deletions of projects are recorded.
func ExampleSchema_Install() {
	ctx := context.Background()
	pool, done := openDatabase()
	defer done()

	if err := loosefk.DefaultSchema.Install(ctx, pool); err != nil {
		log.Fatal(err)
	}
	if err := loosefk.DefaultSchema.TrackRecordDeletions(ctx, pool, "projects"); err != nil {
		log.Fatal(err)
	}

	if _, err := pool.Exec(ctx, "DELETE FROM projects WHERE id = 1"); err != nil {
		log.Fatal(err)
	}
	main := loosefk.Database{Name: "main", Pool: pool}
	pending, err := main.Pending(ctx)
	if err != nil {
		log.Fatal(err)
	}
	for _, p := range pending {
		fmt.Printf("%d of %s in partition %d\n", p.Count, p.Table, p.Partition)
	}
	// Output:
	// 1 of public.projects in partition 1
}

// For a tool that runs migrations, this example prints the SQL that tracks a table.
func ExampleSchema_TrackRecordDeletionsSQL() {
	fmt.Println(loosefk.DefaultSchema.TrackRecordDeletionsSQL("projects"))
	// Output:
	// SELECT "public"."loose_foreign_keys_track"('"public"."projects"'::regclass, false);
}

// This example makes one run of a worker. An application calls Run instead, in a goroutine,
// in as many processes as it likes; Run makes such runs at intervals.
func ExampleWorker_RunOnce() {
	ctx := context.Background()
	pool, done := openDatabase()
	defer done()
	worker := newWorker(ctx, pool)

	if _, err := pool.Exec(ctx, "DELETE FROM projects WHERE id = 1"); err != nil {
		log.Fatal(err)
	}
	result, err := worker.RunOnce(ctx, "main")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%d records, %d rows deleted, %d updated\n", result.Processed, result.Deletes, result.Updates)
	// Output:
	// 1 records, 100 rows deleted, 20 updated
}

// newWorker installs loose foreign keys in a database and returns a worker for them.
func newWorker(ctx context.Context, pool *pgxpool.Pool) *loosefk.Worker {
	defs, err := loosefk.Parse("config/loose_foreign_keys.yml", strings.NewReader(definitions))
	if err != nil {
		log.Fatal(err)
	}
	databases := loosefk.Databases{{Name: "main", Pool: pool}}
	if err := loosefk.Validate(ctx, databases, defs); err != nil {
		log.Fatal(err)
	}
	if err := loosefk.DefaultSchema.Install(ctx, pool); err != nil {
		log.Fatal(err)
	}
	if err := loosefk.DefaultSchema.TrackRecordDeletions(ctx, pool, "projects"); err != nil {
		log.Fatal(err)
	}
	worker, err := loosefk.New(loosefk.Options{Databases: databases, Definitions: defs})
	if err != nil {
		log.Fatal(err)
	}
	return worker
}

// Before a migration that adds a foreign key again, Drain cleans up all children of deleted
// parents.
func ExampleWorker_Drain() {
	ctx := context.Background()
	pool, done := openDatabase()
	defer done()
	worker := newWorker(ctx, pool)

	if _, err := pool.Exec(ctx, "DELETE FROM projects"); err != nil {
		log.Fatal(err)
	}
	result, err := worker.Drain(ctx, "projects", nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%d records, %d rows deleted\n", result.Processed, result.Deletes)
	// Output:
	// 4 records, 400 rows deleted
}
