package generate

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/purser-registry/purser/loosefk"
	"github.com/purser-registry/purser/loosefk/internal/installed"
	"github.com/purser-registry/purser/loosefk/internal/pg"
)

// migration is a change of a database and the statements that undo it.
type migration struct {
	name     string // without version
	comment  string
	up, down []string // statements
	// alone says that the statements can't share a transaction.
	alone bool
}

const versionLayout = "20060102150405"

// lastMigration returns the version of the latest migration of this name in the directory
// of migrations, or "" if there is none.
func (g Generator) lastMigration(name string) (last string) {
	entries, _ := os.ReadDir(g.Migrations) // firstVersion reports errors of this directory
	for _, e := range entries {
		version, rest, _ := strings.Cut(e.Name(), "_")
		if rest == name+".sql" || rest == name+".up.sql" {
			last = max(last, version)
		}
	}
	return last
}

// willTrack returns whether a migration in the directory creates the trigger on a parent,
// and no later migration drops it.
func (g Generator) willTrack(parent string) bool {
	return g.lastMigration(trackName(parent)) > g.lastMigration(untrackName(parent))
}

// firstVersion returns the version of the plan's first migration: the time g.Now or, if the
// directory contains a migration with this version or a later one, the time one second
// after the latest version in the directory.
func (g Generator) firstVersion() (time.Time, error) {
	next := g.Now.UTC().Truncate(time.Second)
	entries, err := os.ReadDir(g.Migrations)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return next, fmt.Errorf("looking for migrations: %w", err)
	}
	for _, e := range entries {
		version, _, _ := strings.Cut(e.Name(), "_")
		if t, err := time.Parse(versionLayout, version); err == nil && !t.Before(next) {
			next = t.Add(time.Second)
		}
	}
	return next, nil
}

// migrations adds the files of the plan's migrations to p.Files. It returns the names of these
// files except ".down.sql" files, for the steps that tell the operator what to run. The
// versions of the migrations are one second apart.
func (p *Plan) migrations(g Generator) ([]string, error) {
	version, err := g.firstVersion()
	if err != nil {
		return nil, err
	}
	var names []string
	for _, m := range p.up {
		base := filepath.Join(g.Migrations, version.Format(versionLayout)+"_"+m.name)
		version = version.Add(time.Second)
		if g.Format == Plain {
			p.Files = append(p.Files, PlannedFile{Path: base + ".up.sql", Content: m.plain(m.up)},
				PlannedFile{Path: base + ".down.sql", Content: m.plain(m.down)})
			names = append(names, base+".up.sql")
			continue
		}
		p.Files = append(p.Files, PlannedFile{Path: base + ".sql", Content: m.goose()})
		names = append(names, base+".sql")
	}
	return names, nil
}

// comments turns text into SQL comments.
func comments(text string) string {
	var b strings.Builder
	for line := range strings.SplitSeq(text, "\n") {
		b.WriteString(strings.TrimRight("-- "+line, " ") + "\n")
	}
	return b.String()
}

func (m migration) goose() string {
	var b strings.Builder
	b.WriteString(comments(m.comment) + "\n")
	if m.alone {
		b.WriteString("-- +goose NO TRANSACTION\n\n")
	}
	for _, part := range []struct {
		name       string
		statements []string
	}{{"Up", m.up}, {"Down", m.down}} {
		b.WriteString("-- +goose " + part.name + "\n")
		for _, s := range part.statements {
			b.WriteString("-- +goose StatementBegin\n" + s + "\n-- +goose StatementEnd\n")
		}
		if part.name == "Up" {
			b.WriteString("\n")
		}
	}
	return b.String()
}

func (m migration) plain(statements []string) string {
	text := m.comment
	if m.alone {
		text += "\n\nRun it outside a transaction, as psql -f does: it commits between its steps."
	}
	return comments(text) + "\n" + strings.Join(statements, "\n\n") + "\n"
}

var notInName = regexp.MustCompile(`[^a-zA-Z0-9_]+`)

// fileName makes a file name from the names of tables and columns.
func fileName(parts ...string) string {
	return strings.ToLower(notInName.ReplaceAllString(strings.Join(parts, "_"), "_"))
}

const installName = "install_loose_foreign_keys"

func trackName(parent string) string { return fileName("track_deletions_from", parent) }

func dropName(k ForeignKey) string { return fileName("drop", k.Constraint, "from", k.From) }

func restoreName(k ForeignKey) string { return fileName("restore", k.Constraint, "of", k.From) }

func untrackName(parent string) string { return fileName("untrack_deletions_from", parent) }

// installation returns the migration that installs the table of deleted records.
func installation(s installed.Schema, database string) migration {
	var functions []string
	for _, f := range s.Functions() {
		functions = append(functions, f.Signature(s))
	}
	return migration{
		name: installName,
		comment: fmt.Sprintf("Installs loose foreign keys in database %s: the table of deleted records and the\n"+
			"functions of its triggers. The Down migration loses the records of deletions whose\nchildren are not cleaned up yet.", database),
		up: strings.Split(strings.TrimSpace(s.InstallSQL()), "\n\n"),
		down: []string{s.Expand(`
DO $$
DECLARE
    t text;
BEGIN
    FOR t IN SELECT table_name FROM {detached} LOOP
        EXECUTE 'DROP TABLE IF EXISTS ' || (SELECT string_agg(quote_ident(part), '.') FROM unnest(string_to_array(t, '.')) AS part);
    END LOOP;
END;
$$;`),
			s.Expand("DROP TABLE IF EXISTS {records}, {detached};"),
			"DROP FUNCTION IF EXISTS " + strings.Join(functions, ", ") + ";"},
	}
}

func upgradeName() string {
	return fmt.Sprintf("upgrade_loose_foreign_keys_to_%d", loosefk.SchemaVersion)
}

// upgrade returns the migration that upgrades an older installation. Its down migration
// does nothing, since the SQL of the older version isn't known here.
func upgrade(s installed.Schema, database string) migration {
	m := installation(s, database)
	return migration{
		name:    upgradeName(),
		comment: fmt.Sprintf("Upgrades loose foreign keys in database %s to version %d. The Down migration changes nothing.", database, loosefk.SchemaVersion),
		up:      slices.Concat([]string{"SET lock_timeout = '5s';"}, m.up, []string{"RESET lock_timeout;"}),
		down:    []string{"SELECT 1;"},
	}
}

// bounded returns `sql` between statements that set and reset a short lock_timeout. Without
// the timeout, all later users of a table would wait behind a statement that waits for the
// table's lock.
func bounded(sql string) []string {
	return []string{"SET lock_timeout = '5s';", sql, "RESET lock_timeout;"}
}

// track returns the migration that creates the trigger that records deletions from a parent.
func track(s installed.Schema, parent string, partitioned bool, database string) migration {
	more := ""
	if partitioned {
		more = "\n\nThe table is partitioned: repeat this after partitions were added, for deletes that\nname a partition."
	}
	return migration{
		name: trackName(parent),
		comment: fmt.Sprintf("Records what is deleted from %s (database %s), for its loose foreign keys.\n"+
			"If it meets the lock timeout, run it again.", parent, database) + more,
		up:   bounded(s.TrackSQL(parent, partitioned)),
		down: bounded(s.UntrackSQL(parent)),
	}
}

// untrack returns the migration that drops the trigger of a parent that no definition names
// any more, and deletes the parent's pending deleted records.
func untrack(s installed.Schema, parent string, partitioned bool, database, file string) migration {
	back := s.TrackSQL(parent, partitioned)
	return migration{
		name: untrackName(parent),
		comment: fmt.Sprintf("No longer records what is deleted from %s (database %s), and removes the records\n"+
			"that are left: no definition in %s names it any more.", parent, database, filepath.Base(file)),
		up:    []string{s.UntrackSQL(parent), s.RemoveRecordsSQL(parent)},
		down:  []string{back},
		alone: true,
	}
}

// retried returns SQL that runs a statement which needs a lock on a table in use. It makes
// up to 30 tries, each of which waits for the lock for at most 500 ms. If `condition` isn't
// empty, each try runs the statement only if this SQL condition is true.
func retried(condition, sql string) string {
	run := "            " + sql
	if condition != "" {
		run = "            IF " + condition + " THEN\n                " + sql + "\n            END IF;"
	}
	return `DO $loosefk$
BEGIN
    FOR attempt IN 1..30 LOOP
        BEGIN
            SET LOCAL lock_timeout = '500ms';
` + run + `
            RETURN;
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
            IF attempt = 30 THEN
                RAISE;
            END IF;
        END;
        PERFORM pg_sleep(1);
    END LOOP;
END;
$loosefk$;`
}

func dropSQL(k ForeignKey) string {
	return retried("", fmt.Sprintf("ALTER TABLE IF EXISTS %s DROP CONSTRAINT IF EXISTS %s;", k.child.Quoted(), pg.Quote(k.Constraint)))
}

// restoreSQL returns the statements that add a foreign key again while its tables are in
// use. The first adds the key NOT VALID, so that no new orphans can appear; the second
// deletes or changes the existing orphans; the third validates the key. For a partitioned
// table PostgreSQL can't add a key NOT VALID, so there the orphans are cleaned up first,
// and then the key is added.
func restoreSQL(k ForeignKey, action loosefk.Action) []string {
	missing := fmt.Sprintf("NOT EXISTS (SELECT FROM pg_catalog.pg_constraint WHERE conrelid = %s::regclass::oid AND conname = %s)",
		pg.Literal(k.child.Quoted()), pg.Literal(k.Constraint))
	add := addKey(k)
	if k.partitioned {
		return []string{orphansSQL(k, action), retried(missing, add+";")}
	}
	return []string{retried(missing, add+" NOT VALID;"), orphansSQL(k, action),
		fmt.Sprintf("ALTER TABLE %s VALIDATE CONSTRAINT %s;", k.child.Quoted(), pg.Quote(k.Constraint))}
}

// addKey returns the statement that adds a foreign key, without the NOT VALID and the
// semicolon that the caller may append. reversal.known finds this statement in old
// migrations.
func addKey(k ForeignKey) string {
	return fmt.Sprintf("ALTER TABLE %s ADD CONSTRAINT %s %s", k.child.Quoted(), pg.Quote(k.Constraint), k.Clause)
}

// orphansSQL returns SQL that cleans up orphans, the children without a parent, in batches.
// As the definition's action says, it deletes them or sets their column to NULL. For other
// actions the SQL only fails if there are orphans, with their number in the error.
func orphansSQL(k ForeignKey, action loosefk.Action) string {
	change := ""
	switch action {
	case loosefk.AsyncDelete:
		change = "DELETE FROM {child} c"
	case loosefk.AsyncNullify:
		change = "UPDATE {child} c SET {column} = NULL"
	default:
		return orphansReportSQL(k)
	}
	return k.expand(`DO $loosefk$
BEGIN
    LOOP
        WITH orphans AS MATERIALIZED (
            SELECT c.tableoid AS part, c.ctid AS tid FROM {child} c
            WHERE c.{column} IS NOT NULL AND NOT EXISTS (SELECT FROM {parent} p WHERE p.{key} OPERATOR(pg_catalog.=) c.{column})
            LIMIT 1000 FOR UPDATE OF c
        )
        ` + change + `
        WHERE c.ctid = ANY (ARRAY(SELECT tid FROM orphans)) AND (c.tableoid, c.ctid) IN (SELECT part, tid FROM orphans);
        EXIT WHEN NOT FOUND;
        COMMIT;
    END LOOP;
END;
$loosefk$;`)
}

func orphansReportSQL(k ForeignKey) string {
	return k.expand(`DO $loosefk$
DECLARE
    orphans bigint;
BEGIN
    SELECT pg_catalog.count(*) INTO orphans FROM {child} c
    WHERE c.{column} IS NOT NULL AND NOT EXISTS (SELECT FROM {parent} p WHERE p.{key} OPERATOR(pg_catalog.=) c.{column});
    IF orphans > 0 THEN
        RAISE foreign_key_violation USING
            MESSAGE = pg_catalog.format('%s rows of %s refer to rows of %s that are gone', orphans, {child_name}, {parent_name}),
            HINT = 'Remove them or clear the column, then run this again.';
    END IF;
END;
$loosefk$;`)
}

func (k ForeignKey) expand(sql string) string {
	return strings.NewReplacer("{child}", k.child.Quoted(), "{parent}", k.parent.Quoted(), "{column}", pg.Quote(k.Column), "{key}", pg.Quote(k.ToColumn),
		"{child_name}", pg.Literal(k.child.String()), "{parent_name}", pg.Literal(k.parent.String())).Replace(sql)
}

// trackedSQL returns SQL that fails if a parent has no enabled trigger that records
// deletions.
func trackedSQL(s installed.Schema, parent pg.Table) string {
	return s.Expand(`DO $loosefk$
BEGIN
    IF NOT EXISTS (
        SELECT FROM pg_catalog.pg_trigger
        WHERE tgrelid = {t_literal}::regclass::oid AND tgenabled <> 'D'
            AND tgfoid IN (to_regprocedure({track_literal})::oid, to_regprocedure({override_literal})::oid)
    ) THEN
        RAISE EXCEPTION 'nothing records what is deleted from %', {t_name}
            USING HINT = 'Run the migration that tracks its deletions first.';
    END IF;
END;
$loosefk$;`, "{t_literal}", pg.Literal(parent.Quoted()), "{t_name}", pg.Literal(parent.String()),
		"{track_literal}", pg.Literal(s.Table(installed.TrackFunction).Quoted()+"()"),
		"{override_literal}", pg.Literal(s.Table(installed.OverrideFunction).Quoted()+"()"))
}

// dropKey returns the migration that drops the foreign key `k`, which a definition
// replaces. Before that the migration runs the statements in `check`.
func dropKey(k ForeignKey, action loosefk.Action, file string, check ...string) migration {
	return migration{
		name: dropName(k),
		comment: fmt.Sprintf(`Drops the foreign key %[1]s of %[2]s (%[3]s, to %[4]s):
its loose form cleans up from here on.

Deploy this on its own, and only after the definition in %[5]s and
the trigger on %[4]s are deployed everywhere. A worker that doesn't know the
definition marks deletions as done, and what they leave in %[2]s stays.

The Down migration does to rows without a parent what the definition says (%[6]s).`,
			k.Constraint, k.From, k.Column, k.To, filepath.Base(file), action),
		up: append(check, dropSQL(k)), down: restoreSQL(k, action),
		alone: true,
	}
}

// restoreKey returns the migration that restores a key.
func restoreKey(k ForeignKey, action loosefk.Action, file string) migration {
	return migration{
		name: restoreName(k),
		comment: fmt.Sprintf(`Restores the foreign key %[1]s of %[2]s (%[3]s, to %[4]s)
in the place of its loose form.

Run this before or with the deployment of %[5]s without the definition.
The Down migration drops the key: restore the definition and the trigger on %[4]s first.`,
			k.Constraint, k.From, k.Column, k.To, filepath.Base(file)),
		up: restoreSQL(k, action), down: []string{dropSQL(k)},
		alone: true,
	}
}

// convertSteps returns the steps that tell the operator what to deploy in which order:
// first the file of definitions and the migrations in `before`, then the migrations in
// `drops`. `changed` says whether the plan changes the file.
func convertSteps(file string, changed bool, format Format, before, drops []string) []string {
	var steps []string
	first := "deploy " + file + " everywhere, to all workers too"
	if !changed {
		first = "see that " + file + " is deployed everywhere, to all workers too"
	}
	if len(before) > 0 {
		first = "run " + strings.Join(before, ", ") + " and " + first
		if version, _, ok := strings.Cut(filepath.Base(before[len(before)-1]), "_"); ok && format == Goose && len(drops) > 0 {
			if _, err := strconv.ParseInt(version, 10, 64); err == nil {
				first += "; goose up-to " + version + " stops before the later migrations"
			}
		}
	}
	if len(before) > 0 || len(drops) > 0 || changed {
		steps = append(steps, first)
	}
	switch {
	case len(drops) > 0 && (len(before) > 0 || changed):
		steps = append(steps, "only then, in a later deployment, run "+strings.Join(drops, ", "))
	case len(drops) > 0:
		steps = append(steps, "only then run "+strings.Join(drops, ", "))
	}
	return steps
}
