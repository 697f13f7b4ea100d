package generate

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/purser-registry/purser/loosefk"
	"github.com/purser-registry/purser/loosefk/internal/installed"
	"github.com/purser-registry/purser/loosefk/internal/pg"
)

// restoreForms maps ForeignKey.OnDelete to its SQL.
var restoreForms = map[string]string{"cascade": "CASCADE", "nullify": "SET NULL", "restrict": "RESTRICT",
	"no action": "NO ACTION", "set default": "SET DEFAULT"}

// Revert plans to replace definitions by foreign keys. If the old foreign key still exists,
// or a migration in the directory restores it, Revert takes its name and clause from there;
// otherwise it makes them from the definition. It refuses a definition whose child has rows
// without a parent, or whose tables are in different databases. If some of the steps have
// been done by hand, Revert plans the others only: it adds no foreign key that exists.
//
// `keys` are foreign keys without a definition; for these Revert plans only to drop the
// trigger of their parent.
func (g Generator) Revert(ctx context.Context, defs loosefk.Definitions, keys ...ForeignKey) (*Plan, error) {
	if err := g.defaults(); err != nil {
		return nil, err
	}
	if g.Restore != "" && restoreForms[g.Restore] == "" {
		return nil, fmt.Errorf("on delete is %q: want cascade, nullify, restrict, no action or set default", g.Restore)
	}
	refs, problems, err := loosefk.Resolve(ctx, g.Databases, defs)
	if err != nil {
		return nil, err
	}
	if len(refs) < len(defs) {
		return nil, problems
	}
	existing, err := ForeignKeys(ctx, g.Databases, g.Definitions)
	if err != nil {
		return nil, err
	}
	r := reversal{Generator: g, plan: new(Plan), existing: existing}
	for _, ref := range refs {
		if err := r.add(ctx, ref); err != nil {
			return nil, err
		}
	}
	for _, k := range keys {
		if err := r.withoutDefinition(ctx, k); err != nil {
			return nil, err
		}
	}
	if len(r.removed)+len(r.parents) == 0 {
		return r.plan, nil
	}
	return r.plan, r.files(ctx)
}

// reversal is one run of Revert.
type reversal struct {
	Generator
	plan     *Plan
	existing []ForeignKey
	removed  []loosefk.Reference
	parents  []string // parents of keys without a definition, whose triggers are dropped
	notes    []string
}

// add plans to restore the foreign key that replaces one definition, or adds the
// definition's key to the plan's Refused.
func (r *reversal) add(ctx context.Context, ref loosefk.Reference) error {
	k, reason, err := r.key(ctx, ref)
	if err == nil && reason == "" {
		reason, err = r.obstacle(ctx, ref)
	}
	if err != nil {
		return fmt.Errorf("looking at %s: %w", ref.Definition, err)
	}
	if reason != "" {
		r.plan.Refused = append(r.plan.Refused, Refusal{k, reason})
		return nil
	}
	r.removed = append(r.removed, ref)
	if slices.ContainsFunc(r.plan.Keys, func(o ForeignKey) bool { return o.child == k.child && o.Constraint == k.Constraint }) {
		return nil // definitions that differ only in their conditions have one key
	}
	action := ref.OnDelete
	if len(ref.Conditions) > 0 {
		action = "" // the definition's action holds for some rows only
	}
	r.plan.Keys = append(r.plan.Keys, k)
	if k.valid && r.dropMigration(k) == "" {
		r.note("the foreign key " + k.Constraint + " of " + k.From + " is there already")
		return nil
	}
	r.plan.up = append(r.plan.up, restoreKey(k, action, r.File))
	return nil
}

// withoutDefinition plans the step that remains for a foreign key that has no definition:
// to drop the trigger of its parent, if no definition names the parent.
func (r *reversal) withoutDefinition(ctx context.Context, k ForeignKey) error {
	skip := func(reason string) { r.plan.Skipped = append(r.plan.Skipped, Refusal{k, reason}) }
	db := r.Databases.Of(k.To)
	if db == nil || slices.ContainsFunc(r.Definitions, func(d loosefk.Definition) bool {
		return r.Databases.Of(d.Parent) == db && named(r.Databases, d.Parent) == k.parent
	}) {
		skip("it is a foreign key, and has no definition")
		return nil
	}
	traces, err := r.traces(ctx, db, k.To)
	switch {
	case err != nil:
		return err
	case !traces:
		skip("it is a foreign key, and has no definition")
	case r.lastMigration(untrackName(k.To)) > r.lastMigration(trackName(k.To)):
		skip("it has no definition, and the migration " + r.lastMigration(untrackName(k.To)) + " takes the trigger from " + k.To + ": run that")
	case !slices.Contains(r.parents, k.To):
		r.parents = append(r.parents, k.To)
	}
	return nil
}

// traces returns whether there is something to remove for a parent that no definition names
// any more: a trigger, a migration that creates one, or pending deleted records.
func (r *reversal) traces(ctx context.Context, db *loosefk.Database, parent string) (yes bool, err error) {
	if r.willTrack(parent) {
		return true, nil
	}
	there, err := db.Installed(ctx)
	if err != nil || !there {
		return false, err
	}
	err = in(db).Catalog().QueryRow(ctx, fmt.Sprintf(`
		SELECT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = to_regclass($1) AND tgfoid IN (to_regprocedure($2), to_regprocedure($3)))
			OR EXISTS (SELECT FROM %s WHERE fully_qualified_table_name = $4 AND status = %d)`, in(db).Records(), pg.StatusPending),
		in(db).Table(parent).Quoted(), in(db).Function(installed.TrackFunction), in(db).Function(installed.OverrideFunction), in(db).Table(parent).String()).Scan(&yes)
	if err != nil {
		return false, fmt.Errorf("looking for the trigger on %s: %w", parent, err)
	}
	return yes, nil
}

// key returns the foreign key that can replace a definition, or the reason why none can.
func (r *reversal) key(ctx context.Context, ref loosefk.Reference) (ForeignKey, string, error) {
	for _, k := range r.existing {
		if k.child == ref.ChildTable && k.parent == ref.ParentTable && k.Column == ref.Column && k.ToColumn == ref.Rows.Key.Column {
			return k, "", nil
		}
	}
	k := ForeignKey{Database: ref.ChildDatabase.Name, From: ref.Child, To: ref.Parent, Column: ref.Column, ToColumn: ref.Rows.Key.Column,
		child: ref.ChildTable, parent: ref.ParentTable}
	var err error
	if k.partitioned, err = ref.ChildDatabase.IsPartitioned(ctx, ref.Child); err != nil {
		return k, "", err
	}
	known, err := r.known(&k)
	if err != nil || known {
		return k, "", err
	}
	switch {
	case r.Restore != "":
		k.OnDelete = r.Restore
	case ref.OnDelete == loosefk.AsyncDelete:
		k.OnDelete = "cascade"
	case ref.OnDelete == loosefk.AsyncNullify:
		k.OnDelete = "nullify"
	default:
		return k, fmt.Sprintf("no ON DELETE does what %s does: choose the key's ON DELETE with --on-delete", ref.OnDelete), nil
	}
	k.Constraint = constraintName(ref)
	k.Clause = fmt.Sprintf("FOREIGN KEY (%s) REFERENCES %s(%s) ON DELETE %s", pg.Quote(k.Column), k.parent.Quoted(), pg.Quote(k.ToColumn), restoreForms[k.OnDelete])
	return k, "", nil
}

// constraintName returns the name that PostgreSQL itself would give to a foreign key from
// this child's column.
func constraintName(ref loosefk.Reference) string {
	name := ref.ChildTable.Name + "_" + ref.Column
	return name[:min(len(name), 63-len("_fkey"))] + "_fkey"
}

// known fills in k's name, clause and ON DELETE from the latest migration in the directory
// that adds a foreign key from and to the same columns. It returns false if there is no
// such migration. It recognizes only the statement that addKey writes.
func (r *reversal) known(k *ForeignKey) (bool, error) {
	names := func(n string) string { return `(?:` + regexp.QuoteMeta(n) + `|` + regexp.QuoteMeta(pg.Quote(n)) + `)` }
	schema := `(?:` + names(k.parent.Schema) + `\.)?`
	statement := regexp.MustCompile(`ALTER TABLE ` + regexp.QuoteMeta(k.child.Quoted()) + ` ADD CONSTRAINT "((?:[^"]|"")+)" ` +
		`(FOREIGN KEY \(` + names(k.Column) + `\) REFERENCES ` + schema + names(k.parent.Name) + `\(` + names(k.ToColumn) + `\)[^;]*?)(?: NOT VALID)?;`)
	files, err := filepath.Glob(filepath.Join(r.Migrations, "*.sql"))
	if err != nil {
		return false, err
	}
	slices.Sort(files)
	for _, name := range slices.Backward(files) {
		text, err := os.ReadFile(name)
		if err != nil {
			return false, err
		}
		if m := statement.FindSubmatch(text); m != nil {
			k.Constraint, k.Clause = strings.ReplaceAll(string(m[1]), `""`, `"`), string(m[2])
			k.OnDelete = onDeleteOf(k.Clause)
			return true, nil
		}
	}
	return false, nil
}

// onDeleteOf returns the ON DELETE in a foreign key's clause, as ForeignKey.OnDelete names
// it.
func onDeleteOf(clause string) string {
	for name, sql := range restoreForms {
		if strings.Contains(clause, "ON DELETE "+sql) {
			return name
		}
	}
	return "no action"
}

// obstacle returns the reason why a definition can't be replaced by a foreign key now, or
// "". If the parent table has pending deleted records but no child lacks its parent,
// obstacle only adds a note to r.notes: should children of these deleted parents appear
// later, the migration cleans them up.
func (r *reversal) obstacle(ctx context.Context, ref loosefk.Reference) (string, error) {
	child, err := place(ctx, ref.ChildDatabase)
	if err != nil {
		return "", err
	}
	parent, err := place(ctx, ref.ParentDatabase)
	if err != nil {
		return "", err
	}
	if child != parent {
		return fmt.Sprintf("%s is in database %s and %s in %s: a foreign key can't cross them", ref.Child, ref.ChildDatabase.Name, ref.Parent, ref.ParentDatabase.Name), nil
	}
	var orphans, pending int64
	err = in(ref.ChildDatabase).Catalog().QueryRow(ctx, fmt.Sprintf(
		"SELECT count(*) FROM %s c WHERE c.%s IS NOT NULL AND NOT EXISTS (SELECT FROM %s p WHERE p.%s = c.%[2]s)",
		ref.ChildTable.Quoted(), pg.Quote(ref.Column), ref.ParentTable.Quoted(), pg.Quote(ref.Rows.Key.Column))).Scan(&orphans)
	if err != nil {
		return "", err
	}
	if there, err := ref.ParentDatabase.Installed(ctx); err != nil {
		return "", err
	} else if there {
		err = in(ref.ParentDatabase).Catalog().QueryRow(ctx, fmt.Sprintf(
			"SELECT count(*) FROM %s WHERE fully_qualified_table_name = $1 AND status = %d", in(ref.ParentDatabase).Records(), pg.StatusPending),
			ref.ParentTable.String()).Scan(&pending)
		if err != nil {
			return "", err
		}
	}
	if orphans > 0 {
		return fmt.Sprintf("%d rows of %s refer to rows of %s that are gone, and %d deletions from it are pending: "+
			"loosefk drain --table %[3]s processes these, and loosefk audit --repair then has the worker clean up the rest", orphans, ref.Child, ref.Parent, pending), nil
	}
	if pending > 0 {
		r.note(fmt.Sprintf("%d deletions from %s are pending: loosefk drain --table %[2]s processes them before the key returns", pending, ref.Parent))
	}
	return "", nil
}

func (r *reversal) note(text string) {
	if !slices.Contains(r.notes, text) {
		r.notes = append(r.notes, text)
	}
}

// files plans all files, that is the file of definitions and the migrations, and the plan's
// steps.
func (r *reversal) files(ctx context.Context) error {
	p := r.plan
	var remove loosefk.Definitions
	for _, ref := range r.removed {
		remove = append(remove, ref.Definition)
	}
	if len(remove) > 0 {
		if err := p.editDefinitions(r.Generator, nil, remove); err != nil {
			return err
		}
	}
	restores := len(p.up)
	if err := r.untracking(ctx); err != nil {
		return err
	}
	names, err := p.migrations(r.Generator)
	if err != nil {
		return err
	}
	p.Steps = r.notes
	if restores > 0 {
		p.Steps = append(p.Steps, "run "+strings.Join(names[:restores], ", "))
	}
	switch {
	case restores > 0:
		p.Steps = append(p.Steps, "then, or in the same deployment, deploy "+r.File+" everywhere")
	case len(remove) > 0:
		p.Steps = append(p.Steps, "deploy "+r.File+" everywhere")
	}
	if restores < len(names) {
		p.Steps = append(p.Steps, "then run "+strings.Join(names[restores:], ", "))
	}
	if tests := r.testFiles(); len(tests) > 0 {
		p.Steps = append(p.Steps, "remove "+strings.Join(tests, ", "))
	}
	return nil
}

// testFiles returns the names of the test files that Convert wrote for the removed
// definitions.
func (r *reversal) testFiles() []string {
	var names []string
	if r.Tests == "" {
		return nil
	}
	for _, ref := range r.removed {
		names = append(names, childTest(ref.Definition), childTestOf(ref.Definition))
		if !slices.ContainsFunc(r.Definitions, func(d loosefk.Definition) bool {
			return d.Parent == ref.Parent && !slices.ContainsFunc(r.removed, func(x loosefk.Reference) bool { return d.Same(x.Definition) })
		}) {
			names = append(names, parentTest(ref.Parent))
		}
	}
	var files []string
	for _, name := range names {
		path := filepath.Join(r.Tests, name)
		if _, err := os.Stat(path); err == nil && !slices.Contains(files, path) {
			files = append(files, path)
		}
	}
	return files
}

// untracking plans a migration for each parent that has a trigger and that no remaining
// definition names, to drop the trigger.
func (r *reversal) untracking(ctx context.Context) error {
	parents := slices.Clone(r.parents)
	for _, ref := range r.removed {
		parents = append(parents, ref.Parent)
	}
	var done []pg.Table
	for _, parent := range parents {
		db, name := r.Databases.Of(parent), named(r.Databases, parent)
		if slices.Contains(done, name) {
			continue
		}
		done = append(done, name)
		left := slices.ContainsFunc(r.Definitions, func(d loosefk.Definition) bool {
			return named(r.Databases, d.Parent) == name && r.Databases.Of(d.Parent) == db &&
				!slices.ContainsFunc(r.removed, func(x loosefk.Reference) bool { return d.Same(x.Definition) })
		})
		if left {
			continue
		}
		if traces, err := r.traces(ctx, db, parent); err != nil {
			return err
		} else if !traces {
			continue
		}
		partitioned, err := db.IsPartitioned(ctx, parent)
		if err != nil {
			return err
		}
		r.plan.up = append(r.plan.up, untrack(installed.Schema(in(db).Schema()), parent, partitioned, db.Name, r.File))
	}
	return nil
}
