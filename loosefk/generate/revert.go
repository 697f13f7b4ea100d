package generate

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// restoreForms are the forms of ON DELETE in SQL.
var restoreForms = map[string]string{"cascade": "CASCADE", "nullify": "SET NULL", "restrict": "RESTRICT",
	"no action": "NO ACTION", "set default": "SET DEFAULT"}

// Revert plans what brings foreign keys back in the place of definitions. A key
// comes back as it was if it still exists or a migration of the directory knows
// it, else as its definition says. Refused are those whose child has rows without
// a parent, and those across databases. Of a way back that somebody began by hand it
// plans what is left: nothing for a key that is there, and for keys, foreign keys
// without a definition, that the trigger goes from their parents.
func (g Generator) Revert(ctx context.Context, defs Definitions, keys ...ForeignKey) (*Plan, error) {
	if err := g.defaults(); err != nil {
		return nil, err
	}
	if g.Restore != "" && restoreForms[g.Restore] == "" {
		return nil, fmt.Errorf("on delete is %q: want cascade, nullify, restrict, no action or set default", g.Restore)
	}
	refs, found, err := lookUp(ctx, g.Databases, defs)
	if err != nil {
		return nil, err
	}
	existing, err := ForeignKeys(ctx, g.Databases, g.Definitions)
	if err != nil {
		return nil, err
	}
	r := reversal{Generator: g, plan: new(Plan), existing: existing, found: found}
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
	found    tables
	removed  references
	parents  []string // of keys without a definition: their triggers go
	notes    []string
}

// add plans the return of one key, or refuses it.
func (r *reversal) add(ctx context.Context, ref reference) error {
	k, reason, err := r.key(ref)
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
		return nil // definitions of different conditions are one key
	}
	action := ref.OnDelete
	if len(ref.Conditions) > 0 {
		action = "" // it doesn't speak of all rows
	}
	r.plan.Keys = append(r.plan.Keys, k)
	if k.valid && r.dropMigration(k) == "" {
		r.note("the foreign key " + k.Constraint + " of " + k.From + " is there already")
		return nil
	}
	r.plan.up = append(r.plan.up, restoreKey(k, action, r.File))
	return nil
}

// withoutDefinition plans what is left for a foreign key that has no definition: if
// no other definition names its parent, nobody needs the parent's trigger.
func (r *reversal) withoutDefinition(ctx context.Context, k ForeignKey) error {
	skip := func(reason string) { r.plan.Skipped = append(r.plan.Skipped, Refusal{k, reason}) }
	db := r.Databases.Of(k.To)
	if db == nil || slices.ContainsFunc(r.Definitions, func(d Definition) bool {
		return r.Databases.Of(d.Parent) == db && r.Databases.named(d.Parent) == k.parent
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

// traces returns whether a parent has a trigger, or a migration will create one, or pending
// records that no worker will process once the last definition is removed.
func (r *reversal) traces(ctx context.Context, db *Database, parent string) (yes bool, err error) {
	if r.willTrack(parent) {
		return true, nil
	}
	installed, err := db.Installed(ctx)
	if err != nil || !installed {
		return false, err
	}
	err = db.catalog().QueryRow(ctx, fmt.Sprintf(`
		SELECT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = to_regclass($1) AND tgfoid IN (to_regprocedure($2), to_regprocedure($3)))
			OR EXISTS (SELECT FROM %s WHERE fully_qualified_table_name = $4 AND status = %d)`, db.records(), statusPending),
		db.table(parent).quoted(), db.function(trackFunction), db.function(overrideFunction), db.table(parent).String()).Scan(&yes)
	if err != nil {
		return false, fmt.Errorf("looking for the trigger on %s: %w", parent, err)
	}
	return yes, nil
}

// key is the key that takes the place of a definition.
func (r *reversal) key(ref reference) (ForeignKey, string, error) {
	for _, k := range r.existing {
		if k.child == ref.child && k.parent == ref.parent && k.Column == ref.Column && k.ToColumn == ref.key.column {
			return k, "", nil
		}
	}
	k := ForeignKey{Database: ref.childDB.Name, From: ref.Child, To: ref.Parent, Column: ref.Column, ToColumn: ref.key.column,
		child: ref.child, parent: ref.parent, partitioned: r.found[ref.childDB][ref.child].kind == "p"}
	known, err := r.known(&k)
	if err != nil || known {
		return k, "", err
	}
	switch {
	case r.Restore != "":
		k.OnDelete = r.Restore
	case ref.OnDelete == AsyncDelete:
		k.OnDelete = "cascade"
	case ref.OnDelete == AsyncNullify:
		k.OnDelete = "nullify"
	default:
		return k, fmt.Sprintf("no ON DELETE does what %s does: say with --on-delete what the key is to do", ref.OnDelete), nil
	}
	k.Constraint = constraintName(ref)
	k.Clause = fmt.Sprintf("FOREIGN KEY (%s) REFERENCES %s(%s) ON DELETE %s", quote(k.Column), k.parent.quoted(), quote(k.ToColumn), restoreForms[k.OnDelete])
	return k, "", nil
}

// constraintName is PostgreSQL's own name for such a key.
func constraintName(ref reference) string {
	name := ref.child.table + "_" + ref.Column
	return name[:min(len(name), 63-len("_fkey"))] + "_fkey"
}

// known takes the key's name and clause from the last migration that has the
// statement of addKey for its columns.
func (r *reversal) known(k *ForeignKey) (bool, error) {
	names := func(n string) string { return `(?:` + regexp.QuoteMeta(n) + `|` + regexp.QuoteMeta(quote(n)) + `)` }
	schema := `(?:` + names(k.parent.schema) + `\.)?`
	statement := regexp.MustCompile(`ALTER TABLE ` + regexp.QuoteMeta(k.child.quoted()) + ` ADD CONSTRAINT "((?:[^"]|"")+)" ` +
		`(FOREIGN KEY \(` + names(k.Column) + `\) REFERENCES ` + schema + names(k.parent.table) + `\(` + names(k.ToColumn) + `\)[^;]*?)(?: NOT VALID)?;`)
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

// onDeleteOf reads a clause.
func onDeleteOf(clause string) string {
	for name, sql := range restoreForms {
		if strings.Contains(clause, "ON DELETE "+sql) {
			return name
		}
	}
	return "no action"
}

// obstacle is why the key can't come back now, or "". Records that are pending
// are no obstacle: the migration deals with what they leave. They are told.
func (r *reversal) obstacle(ctx context.Context, ref reference) (string, error) {
	child, err := ref.childDB.place(ctx)
	if err != nil {
		return "", err
	}
	parent, err := ref.parentDB.place(ctx)
	if err != nil {
		return "", err
	}
	if child != parent {
		return fmt.Sprintf("%s is in database %s and %s in %s: a foreign key can't cross them", ref.Child, ref.childDB.Name, ref.Parent, ref.parentDB.Name), nil
	}
	var orphans, pending int64
	err = ref.childDB.catalog().QueryRow(ctx, fmt.Sprintf(
		"SELECT count(*) FROM %s c WHERE c.%s IS NOT NULL AND NOT EXISTS (SELECT FROM %s p WHERE p.%s = c.%[2]s)",
		ref.child.quoted(), quote(ref.Column), ref.parent.quoted(), quote(ref.key.column))).Scan(&orphans)
	if err != nil {
		return "", err
	}
	if installed, err := ref.parentDB.Installed(ctx); err != nil {
		return "", err
	} else if installed {
		err = ref.parentDB.catalog().QueryRow(ctx, fmt.Sprintf(
			"SELECT count(*) FROM %s WHERE fully_qualified_table_name = $1 AND status = %d", ref.parentDB.records(), statusPending),
			ref.parent.String()).Scan(&pending)
		if err != nil {
			return "", err
		}
	}
	if orphans > 0 {
		return fmt.Sprintf("%d rows of %s refer to rows of %s that are gone, and %d deletions from it are pending: "+
			"loosefk drain --table %[3]s works these off, and loosefk audit --repair then has the worker clean up the rest", orphans, ref.Child, ref.Parent, pending), nil
	}
	if pending > 0 {
		r.note(fmt.Sprintf("%d deletions from %s are pending: loosefk drain --table %[2]s works them off before the key returns", pending, ref.Parent))
	}
	return "", nil
}

func (r *reversal) note(text string) {
	if !slices.Contains(r.notes, text) {
		r.notes = append(r.notes, text)
	}
}

// files plans the files.
func (r *reversal) files(ctx context.Context) error {
	p := r.plan
	var remove Definitions
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

// testFiles are the tests that Convert made for what is removed.
func (r *reversal) testFiles() []string {
	var names []string
	if r.Tests == "" {
		return nil
	}
	for _, ref := range r.removed {
		names = append(names, childTest(ref.Definition), childTestOf(ref.Definition))
		if !slices.ContainsFunc(r.Definitions, func(d Definition) bool {
			return d.Parent == ref.Parent && !slices.ContainsFunc(r.removed, func(x reference) bool { return d.same(x.Definition) })
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

// untracking plans that triggers go from parents that no definition names any
// more.
func (r *reversal) untracking(ctx context.Context) error {
	parents := slices.Clone(r.parents)
	for _, ref := range r.removed {
		parents = append(parents, ref.Parent)
	}
	var done []tableName
	for _, parent := range parents {
		db, name := r.Databases.Of(parent), r.Databases.named(parent)
		if slices.Contains(done, name) {
			continue
		}
		done = append(done, name)
		left := slices.ContainsFunc(r.Definitions, func(d Definition) bool {
			return r.Databases.named(d.Parent) == name && r.Databases.Of(d.Parent) == db &&
				!slices.ContainsFunc(r.removed, func(x reference) bool { return d.same(x.Definition) })
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
		r.plan.up = append(r.plan.up, untrack(Schema(db.schema()), parent, partitioned, db.Name, r.File))
	}
	return nil
}
