package cli

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/purser-registry/purser/loosefk"
	"github.com/purser-registry/purser/loosefk/doctor"
)

func wantLines(t *testing.T, got string, want ...string) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(got), "\n")
	for i := range lines {
		lines[i] = strings.Join(strings.Fields(lines[i]), " ")
	}
	if strings.Join(lines, "\n") != strings.Join(want, "\n") {
		t.Errorf("it prints\n%s\nwant\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
}

func wantExit(t *testing.T, app *App, wantCode int, wantText string, args ...string) {
	t.Helper()
	if code, _, errs := command(t, app, args...); code != wantCode || !strings.Contains(errs, wantText) {
		t.Errorf("%q: exit code %d, want %d with %q: %s", args, code, wantCode, wantText, errs)
	}
}

func TestStatus(t *testing.T) {
	t.Parallel()
	app, pool := newShop(t)
	wantLines(t, ok(t, app, "status"), "nothing is pending")
	if rows := decode[[]pendingRow](t, app, 0, "status"); rows == nil || len(rows) != 0 {
		t.Errorf("JSON of nothing is %v, want an empty list", rows)
	}
	runSQL(t, pool, "DELETE FROM projects WHERE id < 3; DELETE FROM p_loads_1; INSERT INTO "+records+" (fully_qualified_table_name, primary_key_value, partition) VALUES ('public.gone', 1, 9)")
	runSQL(t, pool, "UPDATE "+records+" SET created_at = now() - interval '90 min', cleanup_attempts = 2, consume_after = now() + interval '5 min' WHERE primary_key_value = 2")
	_, out, _ := command(t, app, "status")
	out = strings.NewReplacer("1h30m0s", "OLD", "0s", "0s").Replace(out)
	lines := strings.Split(out, "\n")
	for i, want := range []string{
		"DATABASE PARTITION TABLE COUNT OLDEST ATTEMPTS SECOND_LOOK WAITING TRACKED",
		"main 1 public.p_loads 1 * 0 0 0 Y", "main 1 public.projects 2 OLD 2 0 1 Y", "main 9 public.gone 1 * 0 0 0 N",
	} {
		got := strings.Fields(lines[i])
		if strings.Contains(want, "*") && len(got) > 4 {
			got[4] = "*"
		}
		if strings.Join(got, " ") != want {
			t.Errorf("line %d is %q, want %q", i, lines[i], want)
		}
	}
	rows := decode[[]map[string]any](t, app, 0, "status")
	if r := rows[1]; len(rows) != 3 || r["database"] != "main" || r["table"] != "public.projects" || r["count"] != 2.0 || r["oldest_seconds"].(float64) < 5400 {
		t.Errorf("JSON is %v", rows)
	}
	wantExit(t, app, 0, "", "status", "--fail-over", "2h")
	wantExit(t, app, 3, "", "status", "--fail-over", "1h")
	wantExit(t, app, 2, "invalid argument", "status", "--fail-over", "long")
}

func TestRunAndDrain(t *testing.T) {
	t.Parallel()
	app, pool := newShop(t)
	runSQL(t, pool, "INSERT INTO steps SELECT g, 1 FROM generate_series(1, 3) g; DELETE FROM projects WHERE id = 1; DELETE FROM p_loads WHERE id = 1")
	wantLines(t, ok(t, app, "run"), "database main: 2 of 2 records processed, 1 rows deleted, 3 updated")
	results := decode[[]loosefk.Result](t, app, 0, "run", "main")
	if len(results) != 1 || results[0].Database != "main" || results[0].Records != 0 {
		t.Errorf("a second run says %+v", results)
	}
	wantExit(t, app, 1, `there is no database "ci": there are main`, "run", "ci")

	runSQL(t, pool, "DELETE FROM projects; UPDATE "+records+" SET consume_after = now() + interval '1 h' WHERE status = 1")
	wantLines(t, ok(t, app, "run"), "database main: 0 of 0 records processed, 0 rows deleted, 0 updated")
	code, out, errs := command(t, app, "drain", "--table", "projects")
	wantLines(t, out, "nothing of projects is pending: 2 of 2 records processed, 2 rows deleted, 0 updated")
	if code != 0 || !strings.Contains(errs, "projects: 2 of 2 records processed") {
		t.Errorf("exit code %d, the progress is %q", code, errs)
	}
	wantExit(t, app, 2, "which table?", "drain")
	wantExit(t, app, 1, "no definition names it as a parent", "drain", "--table", "steps")

	app.Options.MaxDeletes = 1
	runSQL(t, pool, "INSERT INTO projects VALUES (9); INSERT INTO pipelines SELECT g, 9 FROM generate_series(100, 110) g; DELETE FROM projects")
	wantLines(t, ok(t, app, "run"), "database main: 0 of 1 records processed, 1 rows deleted, 0 updated; 1 not finished; stopped at the limit of deletes")
}

// TestRunBesideWorker runs the command "loosefk run" while another worker holds the lock of
// a parent table. The command must process the records of the other parent table.
func TestRunBesideWorker(t *testing.T) {
	t.Parallel()
	app, pool := newShop(t)
	runSQL(t, pool, "DELETE FROM projects WHERE id = 1; DELETE FROM p_loads WHERE id = 1")
	held, err := loosefk.AdvisoryLock{}.TryRun(t.Context(), &app.Databases[0], "loose_foreign_keys/main/public.projects", func(context.Context) error {
		r := decode[[]loosefk.Result](t, app, 0, "run")[0]
		if r.Processed != 1 || r.Locked == 0 {
			t.Errorf("beside another it says %+v, want one record of the other table", r)
		}
		return nil
	})
	if !held || err != nil {
		t.Error(held, err)
	}
	wantLines(t, ok(t, app, "run"), "database main: 1 of 1 records processed, 1 rows deleted, 0 updated")
}

func TestFixDefaultPartition(t *testing.T) {
	t.Parallel()
	app, pool := newShop(t)
	wantLines(t, ok(t, app, "fix-default-partition"), "database main: there was nothing to repair")
	runSQL(t, pool, "ALTER TABLE "+records+" ALTER COLUMN partition SET DEFAULT 4; DELETE FROM projects")
	wantLines(t, ok(t, app, "fix-default-partition"),
		"database main: set the column's default, which was 4, to the newest partition; moved 3 rows out of the default partition")
	if n := count(t, pool, "SELECT count(*) FROM "+records+"_1"); n != 3 {
		t.Errorf("%d rows are in partition 1, want 3", n)
	}
	// Without any partition, deletes of parents fail. fix-default-partition must add a
	// partition, with a number that no partition has had.
	runSQL(t, pool, "DROP TABLE "+records+"_default; ALTER TABLE "+records+" DETACH PARTITION "+records+"_1; INSERT INTO projects VALUES (1)")
	if _, err := pool.Exec(t.Context(), "DELETE FROM projects"); err == nil {
		t.Fatal("a delete has found a partition")
	}
	wantLines(t, ok(t, app, "fix-default-partition", "main"),
		"database main: added partition public."+records+"_2; set the column's default, which was 1, to the newest partition")
	runSQL(t, pool, "DELETE FROM projects")
	if n := count(t, pool, "SELECT count(*) FROM "+records+"_2"); n != 1 {
		t.Errorf("%d rows are in partition 2, want 1", n)
	}
}

func TestAuditCommand(t *testing.T) {
	t.Parallel()
	app, pool := newShop(t)
	if found := decode[[]doctor.Orphans](t, app, 0, "audit"); len(found) != 3 {
		t.Errorf("the audit says %+v", found)
	}
	runSQL(t, pool, "INSERT INTO pipelines VALUES (77, 7), (78, 7), (79, 8)")
	code, out, _ := command(t, app, "audit", "pipelines")
	wantLines(t, out, "DATABASE CHILD COLUMN PARENT PENDING ORPHANS OF_PARENTS REPAIRED EXAMPLES",
		"main public.pipelines project_id public.projects 0 3 2 - 7,8")
	if code != 3 {
		t.Errorf("exit code %d, want 3", code)
	}
	if found := decode[[]doctor.Orphans](t, app, 0, "audit", "--repair"); found[0].Repaired != 2 {
		t.Errorf("the repair says %+v", found)
	}
	wantExit(t, app, 0, "", "audit")
	ok(t, app, "run")
	if n := count(t, pool, "SELECT count(*) FROM pipelines WHERE project_id > 3"); n != 0 {
		t.Errorf("%d orphans are left", n)
	}
	wantExit(t, app, 1, "no definition names nonsense as a child", "audit", "nonsense")
}

// TestInstallSQL runs the SQL that install and track print with --sql, and compares the
// result with a database in which the commands ran themselves.
func TestInstallSQL(t *testing.T) {
	t.Parallel()
	pool := newPool(t, shop)
	app := oneApp(t, pool, shopDefinitions)
	sql := func(args ...string) string {
		t.Helper()
		out := ok(t, app, append(args, "--sql")...)
		return out
	}
	install := sql("install")
	if n := count(t, pool, "SELECT count(*) FROM pg_class WHERE relname = '"+records+"'"); n != 0 {
		t.Fatal("--sql has changed the database")
	}
	runSQL(t, pool, install)
	runSQL(t, pool, install) // it may run again
	track := sql("track")
	wantExit(t, app, 3, "", "doctor")
	runSQL(t, pool, track)
	if out := ok(t, app, "doctor"); out != "all is well\n" {
		t.Error(out)
	}
	if changes := decode[[]change](t, app, 0, "track", "p_loads", "--sql"); len(changes) != 1 || changes[0].Table != "p_loads" || changes[0].Done != "" ||
		!strings.Contains(track, changes[0].SQL) {
		t.Errorf("JSON is %+v", changes)
	}
	wantLines(t, ok(t, app, "track", "projects"), "database main: tracking deletions from projects")
}

// TestInstallHoldsNobodyUp runs install and track while a transaction that deletes a parent
// stays open. Other clients that delete parents must not have to wait for the commands.
func TestInstallHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	app, pool := newShop(t)
	for _, args := range [][]string{{"install"}, {"track", "projects"}} {
		tx, err := pool.Begin(t.Context())
		must(t, err)
		defer tx.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // it may have ended
		_, err = tx.Exec(t.Context(), "DELETE FROM projects WHERE id = 1")
		must(t, err)
		code := make(chan int)
		go func() {
			c, _, _ := command(t, app, args...)
			code <- c
		}()
		waits := func() bool {
			return count(t, pool, "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation IS NOT NULL AND database = (SELECT oid FROM pg_database WHERE datname = current_database())") > 0
		}
		for end := time.Now().Add(time.Minute); !waits(); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%q doesn't wait", args)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		if _, err := pool.Exec(ctx, "DELETE FROM projects WHERE id = 2"); err != nil {
			t.Errorf("a delete beside %q: %v", args, err)
		}
		cancel()
		must(t, tx.Rollback(t.Context()))
		if c := <-code; c != 0 {
			t.Errorf("%q: exit code %d", args, c)
		}
	}
}

func TestUntrack(t *testing.T) {
	t.Parallel()
	app, pool := newShop(t)
	triggers := func() int {
		return count(t, pool, "SELECT count(*) FROM pg_trigger WHERE NOT tgisinternal")
	}
	before := triggers() // two on projects, six on p_loads and its partitions
	runSQL(t, pool, "DELETE FROM projects; DELETE FROM p_loads")
	wantExit(t, app, 2, "requires at least 1 arg", "untrack")
	wantExit(t, app, 1, "remove the definition steps.load_id", "untrack", "public.p_loads")
	app.Definitions = app.Definitions.Of("projects")
	printed := ok(t, app, "untrack", "p_loads", "--sql")
	if before != 8 || triggers() != 8 {
		t.Errorf("%d triggers, then %d, want 8", before, triggers())
	}
	wantLines(t, ok(t, app, "untrack", "p_loads"), "database main: no longer tracking deletions from p_loads")
	pending := func(table string) int {
		return count(t, pool, "SELECT count(*) FROM "+records+" WHERE status = 1 AND fully_qualified_table_name = 'public."+table+"'")
	}
	if triggers() != 2 || pending("p_loads") != 0 || pending("projects") != 3 {
		t.Errorf("%d triggers, %d and %d records are left", triggers(), pending("p_loads"), pending("projects"))
	}
	wantLines(t, ok(t, app, "untrack", "--force", "projects"), "database main: no longer tracking deletions from projects")
	if triggers() != 0 || pending("projects") != 0 {
		t.Errorf("%d triggers, %d records are left", triggers(), pending("projects"))
	}
	runSQL(t, pool, "DROP TABLE p_loads")
	wantLines(t, ok(t, app, "untrack", "p_loads"), "database main: no longer tracking deletions from p_loads")
	for statement := range strings.SplitSeq(printed, "\n\n") {
		runSQL(t, pool, statement)
	}
}

func TestValidate(t *testing.T) {
	t.Parallel()
	app, pool := newShop(t)
	wantLines(t, ok(t, app, "validate"), "3 definitions fit the databases")
	runSQL(t, pool, "DROP TABLE steps; DROP INDEX pipelines_project_id")
	code, out, _ := command(t, app, "validate")
	wantLines(t, out,
		`loose.yml:3: column project_id of public.pipelines has no index that begins with it: each clean-up would read the whole table. CREATE INDEX CONCURRENTLY ON "public"."pipelines" ("project_id")`,
		"loose.yml:7: there is no table public.steps in database main")
	if code != 3 {
		t.Errorf("exit code %d, want 3", code)
	}
	v := decode[struct {
		Definitions int
		Problems    []struct {
			File string
			Line int
			Text string
		}
	}](t, app, 3, "validate")
	if v.Definitions != 3 || len(v.Problems) != 2 || v.Problems[1].Line != 7 {
		t.Errorf("JSON is %+v", v)
	}
	wantExit(t, app, 1, "loose.yml:7: there is no table public.steps", "run")
}

// TestFailures: if the table of deleted records is missing, a database can't be reached, or
// Env.Open fails, commands must end with exit code 1, and close the App.
func TestFailures(t *testing.T) {
	t.Parallel()
	app := oneApp(t, newPool(t, shop), shopDefinitions)
	wantExit(t, app, 1, "database main has no table "+records+": run 'loosefk install'", "status")
	pool, err := pgxpool.New(t.Context(), "postgres://nobody@127.0.0.1:1/none")
	must(t, err)
	defer pool.Close()
	app = oneApp(t, pool, shopDefinitions)
	for _, args := range [][]string{{"status"}, {"run"}, {"doctor"}, {"audit"}, {"install"}, {"track"}, {"untrack", "x"}, {"validate"}, {"fix-default-partition"}, {"drain", "--table", "projects"}} {
		wantExit(t, app, 1, "127.0.0.1:1", args...)
	}
	closed := false
	root := New(Env{Open: func(context.Context) (*App, error) {
		app.Close = func() { closed = true }
		return app, nil
	}})
	root.SetArgs([]string{"status"})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := root.ExecuteContext(ctx); err == nil || !closed {
		t.Errorf("error %v, closed %v", err, closed)
	}
	root = New(Env{Open: func(context.Context) (*App, error) { return nil, errors.New("no settings\nat all") }})
	root.SetArgs([]string{"status"})
	var out strings.Builder
	if code := Report(&out, "tool", root.Execute()); code != 1 || out.String() != "tool: no settings\ntool: at all\n" {
		t.Errorf("exit code %d: %q", code, out.String())
	}
}

// TestHelp: every command must have a description, an example and the flag -o.
func TestHelp(t *testing.T) {
	t.Parallel()
	root := New(Env{})
	if len(root.Commands()) < 13 {
		t.Errorf("there are %d commands", len(root.Commands()))
	}
	for _, cmd := range root.Commands() {
		if cmd.Short == "" || cmd.Long == "" || cmd.Example == "" {
			t.Errorf("%s lacks a part of its help", cmd.Name())
		}
		if cmd.InheritedFlags().Lookup("output") == nil {
			t.Errorf("%s has no -o", cmd.Name())
		}
	}
}
