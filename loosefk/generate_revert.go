package loosefk

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
// a parent, and those across databases.
func (g Generator) Revert(ctx context.Context, defs Definitions) (*Plan, error) {
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
	if len(r.plan.Keys) == 0 {
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
	r.plan.up = append(r.plan.up, restoreKey(k, action, r.File))
	return nil
}

// key is the key that takes the place of a definition.
func (r *reversal) key(ref reference) (ForeignKey, string, error) {
	if ref.key.column != "id" {
		return ForeignKey{}, fmt.Sprintf("the key of %s is its column %s: only keys onto a column id can be brought back so. Do it by hand", ref.Parent, ref.key.column), nil
	}
	for _, k := range r.existing {
		if k.child == ref.child && k.parent == ref.parent && k.Column == ref.Column {
			return k, "", nil
		}
	}
	k := ForeignKey{Database: ref.childDB.Name, From: ref.Child, To: ref.Parent, Column: ref.Column,
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
	k.Clause = fmt.Sprintf("FOREIGN KEY (%s) REFERENCES %s(id) ON DELETE %s", quote(k.Column), k.parent.quoted(), restoreForms[k.OnDelete])
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
		`(FOREIGN KEY \(` + names(k.Column) + `\) REFERENCES ` + schema + names(k.parent.table) + `\(id\)[^;]*?)(?: NOT VALID)?;`)
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
	err = ref.childDB.Pool.QueryRow(ctx, fmt.Sprintf(
		"SELECT count(*) FROM %s c WHERE c.%s IS NOT NULL AND NOT EXISTS (SELECT FROM %s p WHERE p.id = c.%[2]s)",
		ref.child.quoted(), quote(ref.Column), ref.parent.quoted())).Scan(&orphans)
	if err != nil {
		return "", err
	}
	if installed, err := ref.parentDB.Installed(ctx); err != nil {
		return "", err
	} else if installed {
		err = ref.parentDB.Pool.QueryRow(ctx, fmt.Sprintf(
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
	if err := p.editDefinitions(r.Generator, nil, remove); err != nil {
		return err
	}
	restores := len(p.up)
	if err := r.untracking(ctx); err != nil {
		return err
	}
	names, err := p.migrations(r.Generator)
	if err != nil {
		return err
	}
	p.Steps = append(r.notes, "run "+strings.Join(names[:restores], ", "), "then, or in the same deployment, deploy "+r.File+" everywhere")
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
	var done []tableName
	for _, ref := range r.removed {
		if slices.Contains(done, ref.parent) {
			continue
		}
		done = append(done, ref.parent)
		left := slices.ContainsFunc(r.Definitions, func(d Definition) bool {
			return r.Databases.named(d.Parent) == ref.parent && r.Databases.Of(d.Parent) == ref.parentDB &&
				!slices.ContainsFunc(r.removed, func(x reference) bool { return d.same(x.Definition) })
		})
		if left {
			continue
		}
		installed, err := ref.parentDB.Installed(ctx)
		if err != nil {
			return err
		}
		if installed || r.willTrack(ref.Parent) {
			r.plan.up = append(r.plan.up, untrack(Schema(ref.parentDB.schema()), ref.Parent,
				r.found[ref.parentDB][ref.parent].kind == "p", ref.parentDB.Name, r.File))
		}
	}
	return nil
}
