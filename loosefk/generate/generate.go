package generate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/purser-registry/purser/loosefk"
	"github.com/purser-registry/purser/loosefk/internal/installed"
	"github.com/purser-registry/purser/loosefk/internal/pg"
)

// Format is the file format of migrations.
type Format string

// The formats of migrations.
const (
	Goose Format = "goose" // one file with -- +goose Up and Down
	Plain Format = "plain" // a pair of files, .up.sql and .down.sql
)

// Generator plans the files that turn foreign keys into loose foreign keys, or loose foreign
// keys into foreign keys: the file of definitions, migrations and tests. It only reads the
// databases and writes nothing; Plan.Write writes the files.
type Generator struct {
	Databases   loosefk.Databases
	Definitions loosefk.Definitions
	File        string // the definitions' file; required, but need not exist yet
	Migrations  string // directory; default "migrations"
	Tests       string // directory; "": no tests are made
	Format      Format // default Goose
	// OnDelete is the action for foreign keys whose ON DELETE has no loose form: restrict,
	// no action and set default. If OnDelete is empty, the Generator refuses such keys.
	OnDelete loosefk.Action
	// Restore is the ON DELETE that Revert gives to a foreign key if neither the database
	// nor a migration contains the key's old ON DELETE: cascade, nullify, restrict, no action
	// or set default. Default: the ON DELETE that fits the definition's action.
	Restore string
	// Now is the time from which the versions of new migrations are made. The first version
	// is Now or, if the directory contains a migration of this time or a later one, one
	// second after the latest migration. Default: time.Now.
	Now time.Time
}

// Plan is the result of a Generator.
type Plan struct {
	// Keys are the foreign keys that become loose, or that are restored.
	Keys []ForeignKey `json:"keys"`
	// Files are the files that Write writes, in this order.
	Files []PlannedFile `json:"files"`
	// Skipped are the foreign keys for which nothing is left to do, with the reason.
	Skipped []Refusal `json:"skipped,omitempty"`
	// Refused are the foreign keys that can't be converted or restored, with the reason.
	// Files contains nothing for these keys.
	Refused []Refusal `json:"refused,omitempty"`
	// Steps tell the operator what to deploy in which order.
	Steps []string `json:"steps"`

	up []migration
	// made are the directories that Write has created, each after its parent directory.
	made []string
}

// PlannedFile is a new file, or a file with new content.
type PlannedFile struct {
	Path    string `json:"path"`
	Content string `json:"content"`
	Old     string `json:"-"` // the old content, if the file exists
	Changed bool   `json:"changed,omitempty"`
}

// Refusal is a foreign key that a plan leaves as it is, and the reason.
type Refusal struct {
	Key    ForeignKey `json:"key"`
	Reason string     `json:"reason"`
}

// Error returns "key: reason".
func (r Refusal) Error() string { return r.Key.String() + ": " + r.Reason }

// looseActions maps ForeignKey.OnDelete to the action of a definition.
var looseActions = map[string]loosefk.Action{"cascade": loosefk.AsyncDelete, "nullify": loosefk.AsyncNullify}

func (g *Generator) defaults() error {
	g.Migrations = cmp.Or(g.Migrations, "migrations")
	g.Format = cmp.Or(g.Format, Goose)
	if g.Now.IsZero() {
		g.Now = time.Now()
	}
	switch {
	case g.File == "":
		return errors.New("the definitions have no file: name one that they can be written to")
	case g.Format != Goose && g.Format != Plain:
		return fmt.Errorf("the format of migrations is %q: want %s or %s", g.Format, Goose, Plain)
	case g.OnDelete != "" && g.OnDelete != loosefk.AsyncDelete && g.OnDelete != loosefk.AsyncNullify:
		return fmt.Errorf("on delete is %q: want %s or %s", g.OnDelete, loosefk.AsyncDelete, loosefk.AsyncNullify)
	}
	return nil
}

// Convert plans to replace foreign keys by loose foreign keys. The plan's Files are the file
// of definitions with new definitions, new migrations and new tests. If some of the steps
// have been done by hand, Convert plans only the remaining steps: it adds no definition for
// a foreign key that has one, and no trigger to a parent that has one.
//
// `defs` are definitions whose foreign key was dropped already; for these Convert plans
// only the trigger on their parent. Foreign keys that can't become loose are in the plan's
// Refused, and foreign keys for which nothing is left to do in Skipped.
func (g Generator) Convert(ctx context.Context, keys []ForeignKey, defs ...loosefk.Definition) (*Plan, error) {
	if err := g.defaults(); err != nil {
		return nil, err
	}
	c := conversion{Generator: g, plan: new(Plan), all: g.Definitions}
	base, err := g.problems(ctx, g.Definitions)
	if err != nil {
		return nil, err
	}
	for _, k := range keys {
		if k.HasLooseForeignKey {
			if err := c.rest(ctx, k); err != nil {
				return nil, err
			}
			continue
		}
		d, reason, err := c.definition(ctx, k, base)
		if err != nil {
			return nil, err
		}
		if reason != "" {
			c.plan.Refused = append(c.plan.Refused, Refusal{k, reason})
			continue
		}
		c.accept(k, d)
	}
	for _, d := range defs {
		if err := c.withoutKey(ctx, d); err != nil {
			return nil, err
		}
	}
	if len(c.plan.Keys)+len(c.parents) == 0 {
		return c.plan, nil
	}
	return c.plan, c.files(ctx)
}

// problems returns the problems that Validate finds in definitions.
func (g Generator) problems(ctx context.Context, defs loosefk.Definitions) (loosefk.Problems, error) {
	err := loosefk.Validate(ctx, g.Databases, defs)
	if problems, ok := errors.AsType[loosefk.Problems](err); ok {
		return problems, nil
	}
	return nil, err
}

// conversion is one run of Convert.
type conversion struct {
	Generator
	plan  *Plan
	all   loosefk.Definitions // the Generator's definitions, then those in added
	added loosefk.Definitions
	// settled are the definitions that replace the foreign keys in plan.Keys: those that
	// the plan adds and those that exist already.
	settled loosefk.Definitions
	parents []string // parents that need a trigger
	// actions[i] is the action of the definition that replaces plan.Keys[i].
	actions []loosefk.Action
}

func (c *conversion) accept(k ForeignKey, d loosefk.Definition) {
	if !slices.ContainsFunc(c.added, d.Same) { // two foreign keys may have the same definition
		c.added = append(c.added, d)
		c.all = append(slices.Clone(c.all), d)
	}
	c.settle(k, d)
}

// settle plans to drop the foreign key `k`, which the definition `d` replaces, and to put
// the trigger on the parent table of d.
func (c *conversion) settle(k ForeignKey, d loosefk.Definition) {
	c.plan.Keys = append(c.plan.Keys, k)
	c.actions = append(c.actions, d.OnDelete)
	if !slices.ContainsFunc(c.settled, d.Same) {
		c.settled = append(c.settled, d)
	}
	c.track(d.Parent)
}

func (c *conversion) track(parent string) {
	if !slices.Contains(c.parents, parent) {
		c.parents = append(c.parents, parent)
	}
}

// definition returns the definition that can replace a foreign key, or the reason why none
// can, such as a problem that c.problems reports only with the new definition. `base` are the
// problems that c.problems reports without the new definition.
func (c *conversion) definition(ctx context.Context, k ForeignKey, base loosefk.Problems) (loosefk.Definition, string, error) {
	if k.NotConvertible != "" {
		return loosefk.Definition{}, k.NotConvertible, nil
	}
	d := loosefk.Definition{Child: k.From, Parent: k.To, Column: k.Column, OnDelete: cmp.Or(looseActions[k.OnDelete], c.OnDelete)}
	switch {
	case d.OnDelete == "":
		return d, fmt.Sprintf("its ON DELETE is %s, which has no loose form: choose what happens to its rows with --on-delete %s or %s",
			k.OnDelete, loosefk.AsyncDelete, loosefk.AsyncNullify), nil
	case !pg.IsTable(d.Child) || !pg.IsTable(d.Parent):
		return d, "a definition can't name its tables", nil
	case slices.ContainsFunc(c.added, d.Same):
		return d, "", nil
	}
	problems, err := c.problems(ctx, append(slices.Clone(c.all), d))
	if err != nil {
		return d, "", err
	}
	for _, p := range problems {
		if !slices.ContainsFunc(base, func(b loosefk.Problem) bool { return b.Text == p.Text }) {
			return d, p.Text, nil
		}
	}
	return d, "", nil
}

// files plans all files, that is the file of definitions, the migrations and the tests, and
// the plan's steps.
func (c *conversion) files(ctx context.Context) error {
	p := c.plan
	if len(c.added) > 0 {
		if err := p.editDefinitions(c.Generator, c.added, nil); err != nil {
			return err
		}
	}
	if err := c.tracking(ctx); err != nil {
		return err
	}
	first := len(p.up)
	for i, k := range p.Keys {
		check, err := c.check(ctx, k)
		if err != nil {
			return err
		}
		p.up = append(p.up, dropKey(k, c.actions[i], c.File, check...))
	}
	names, err := p.migrations(c.Generator)
	if err != nil {
		return err
	}
	if err := c.tests(); err != nil {
		return err
	}
	p.Steps = convertSteps(c.File, len(c.added) > 0, c.Format, names[:first], names[first:])
	return nil
}

// check returns the statements with which the migration that drops a foreign key begins.
// These statements fail if the parent has no trigger. If child and parent are in different
// databases, check returns no statement, since a migration sees only its own database.
func (c *conversion) check(ctx context.Context, k ForeignKey) ([]string, error) {
	parent := c.Databases.Of(k.To)
	for i := range c.Databases {
		db := &c.Databases[i]
		if db.Name != k.Database {
			continue
		}
		here, err := place(ctx, db)
		if err != nil {
			return nil, fmt.Errorf("looking at database %s: %w", db.Name, err)
		}
		there, err := place(ctx, parent)
		if err != nil {
			return nil, fmt.Errorf("looking at database %s: %w", parent.Name, err)
		}
		if here == there {
			return []string{trackedSQL(installed.Schema(in(parent).Schema()), in(parent).Table(k.To))}, nil
		}
	}
	return nil, nil
}

// tracking plans a migration for each parent without a trigger, to create the trigger. If
// the parent's database has no loose foreign keys installed, or those of an older version,
// tracking first plans the migration that installs or upgrades them.
func (c *conversion) tracking(ctx context.Context) error {
	looked := map[*loosefk.Database]bool{}
	for _, parent := range c.parents {
		db := c.Databases.Of(parent)
		if tracked, err := c.isTracked(ctx, parent); err != nil {
			return err
		} else if tracked {
			continue
		}
		if !looked[db] {
			looked[db] = true
			if err := c.installing(ctx, db); err != nil {
				return err
			}
		}
		partitioned, err := db.IsPartitioned(ctx, parent)
		if err != nil {
			return err
		}
		c.plan.up = append(c.plan.up, track(installed.Schema(in(db).Schema()), parent, partitioned, db.Name))
	}
	return nil
}

// installing plans the migration that installs loose foreign keys in a database, or
// upgrades an older version, unless the directory of migrations contains such a migration
// already.
func (c *conversion) installing(ctx context.Context, db *loosefk.Database) error {
	there, err := db.Installed(ctx)
	if err != nil {
		return err
	}
	if !there {
		if c.lastMigration(installName) == "" {
			c.plan.up = append(c.plan.up, installation(installed.Schema(in(db).Schema()), db.Name))
		}
		return nil
	}
	version, err := installed.VersionIn(ctx, in(db))
	if err != nil {
		return fmt.Errorf("looking for the version of loose foreign keys in database %s: %w", db.Name, err)
	}
	if version < loosefk.SchemaVersion && c.lastMigration(upgradeName()) == "" {
		c.plan.up = append(c.plan.up, upgrade(installed.Schema(in(db).Schema()), db.Name))
	}
	return nil
}

// isTracked returns whether a parent has the trigger that records deletions, or a migration
// in the directory creates it.
func (g Generator) isTracked(ctx context.Context, parent string) (bool, error) {
	if g.willTrack(parent) {
		return true, nil
	}
	db := g.Databases.Of(parent)
	found, err := in(db).Tracked(ctx, []pg.Table{in(db).Table(parent)})
	if err != nil {
		return false, fmt.Errorf("looking for the trigger on %s: %w", parent, err)
	}
	return len(found) > 0, nil
}

// editDefinitions adds the changed file of definitions to the plan.
func (p *Plan) editDefinitions(g Generator, add, remove loosefk.Definitions) error {
	old, err := os.ReadFile(g.File)
	missing := errors.Is(err, fs.ErrNotExist)
	if err != nil && !missing {
		return fmt.Errorf("reading the definitions: %w", err)
	}
	text, _, err := editDefinitions(g.File, old, add, remove)
	if err != nil {
		return err
	}
	p.Files = append(p.Files, PlannedFile{Path: g.File, Content: string(text), Old: string(old), Changed: !missing})
	return nil
}

// Statements returns the statements of the plan's migrations, in the order in which to run
// them. Run them outside of transactions.
func (p *Plan) Statements() []string {
	var list []string
	for _, m := range p.up {
		list = append(list, m.up...)
	}
	return list
}
