package doctor_test

import (
	"context"
	"fmt"
	"log"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/purser-registry/purser/loosefk"
	"github.com/purser-registry/purser/loosefk/doctor"
)

// newWorker installs loose foreign keys and returns a worker that deletes the pipelines of
// deleted projects.
func newWorker(ctx context.Context, pool *pgxpool.Pool) *loosefk.Worker {
	if err := loosefk.DefaultSchema.Install(ctx, pool); err != nil {
		log.Fatal(err)
	}
	if err := loosefk.DefaultSchema.TrackRecordDeletions(ctx, pool, "projects"); err != nil {
		log.Fatal(err)
	}
	worker, err := loosefk.New(loosefk.Options{
		Databases:   loosefk.Databases{{Name: "main", Pool: pool}},
		Definitions: loosefk.Definitions{{Child: "pipelines", Parent: "projects", Column: "project_id", OnDelete: loosefk.AsyncDelete}},
	})
	if err != nil {
		log.Fatal(err)
	}
	return worker
}

// If parents were deleted before the trigger existed, or without firing it, there are no
// deleted records of them. An audit finds their children and, with the option Repair,
// writes the records.
func ExampleAudit() {
	ctx := context.Background()
	pool, done := openDatabase()
	defer done()
	worker := newWorker(ctx, pool)

	if _, err := pool.Exec(ctx, "INSERT INTO pipelines (project_id) VALUES (77), (77)"); err != nil {
		log.Fatal(err)
	}
	found, err := doctor.Audit(ctx, worker, doctor.AuditOptions{Repair: true})
	if err != nil {
		log.Fatal(err)
	}
	for _, o := range found {
		fmt.Printf("%s: %d orphans of %d parents, %d repaired\n", o.Child, o.Rows, o.Parents, o.Repaired)
	}
	// Output:
	// public.pipelines: 2 orphans of 1 parents, 1 repaired
}

func ExampleExamine() {
	ctx := context.Background()
	pool, done := openDatabase()
	defer done()
	worker := newWorker(ctx, pool)

	if _, err := pool.Exec(ctx, "ALTER TABLE projects DISABLE TRIGGER projects_loose_fk_trigger"); err != nil {
		log.Fatal(err)
	}
	findings, err := doctor.Examine(ctx, worker)
	if err != nil {
		log.Fatal(err)
	}
	for _, f := range findings {
		fmt.Printf("%s: %s\n\t%s\n", f.Severity, f.Text, f.Remedy)
	}
	// Output:
	// error: trigger projects_loose_fk_trigger is disabled: what is deleted from public.projects isn't recorded
	// 	ALTER TABLE "public"."projects" ENABLE TRIGGER "projects_loose_fk_trigger"
}
