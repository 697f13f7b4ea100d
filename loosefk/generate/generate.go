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

// Format is the format of migrations' files.
type Format string

// The formats of migrations.
const (
	Goose Format = "goose" // one file with -- +goose Up and Down
	Plain Format = "plain" // a pair of files, .up.sql and .down.sql
)

// Generator plans the files that turn foreign keys into loose ones, and back: definitions,
// migrations and tests. It reads the databases and changes nothing; Plan.Write writes the
// files.
type Generator struct {
	Databases   loosefk.Databases
	Definitions loosefk.Definitions
	File        string // the definitions' file; required, but need not exist yet
	Migrations  string // directory; default "migrations"
	Tests       string // directory; "": no tests are made
	Format      Format // default Goose
	// OnDelete is the action for keys whose own ON DELETE has no loose form:
	// restrict, no action and set default. Empty: such keys are refused.
	OnDelete loosefk.Action
	// Restore is the ON DELETE, in the words of ForeignKey.OnDelete, of a restored key that
	// neither exists in the database nor is created by a migration. Default: the action of
	// the key's definition.
	Restore string
	// Now determines the version of the first migration, unless the directory has a later
	// migration already. Default: time.Now.
	Now time.Time
}

// Plan is the result of a Generator.
type Plan struct {
	// Keys are the keys that become loose, or are restored.
	Keys []ForeignKey `json:"keys"`
	// Files are the files that Write writes, in this order.
	Files []PlannedFile `json:"files"`
	// Skipped are the keys for which nothing is left to do.
	Skipped []Refusal `json:"skipped,omitempty"`
	// Refused are the keys that can't be converted, with the reason. Files has nothing for
	// these keys.
	Refused []Refusal `json:"refused,omitempty"`
	// Steps tell the operator what to deploy in which order.
	Steps []string `json:"steps"`

	up []migration
	// made are the directories that Write has made, the deepest last.
	made []string
}

// PlannedFile is a new file, or a file with new content.
type PlannedFile struct {
	Path    string `json:"path"`
	Content string `json:"content"`
	Old     string `json:"-"` // the content before, if the file exists and changes
	Changed bool   `json:"changed,omitempty"`
}

// Refusal gives the reason why a key stays as it is.
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

// Convert plans how foreign keys become loose ones: the plan's Files are the definitions'
// file, migrations and tests. A conversion that was begun by hand is completed: Convert adds
// no definition for a key that has one, and no trigger to a parent that has one. defs are
// definitions whose foreign key is gone already; they get only the trigger on their parent.
// Keys that can't become loose are in the plan's Refused, keys that need nothing more in
// Skipped.
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
	all   loosefk.Definitions // the Generator's definitions and added
	added loosefk.Definitions
	// settled are the definitions, added or existing, of the plan's keys.
	settled loosefk.Definitions
	parents []string // parents that need a trigger
	// actions are the definitions' actions for plan.Keys, in the same order.
	actions []loosefk.Action
}

func (c *conversion) accept(k ForeignKey, d loosefk.Definition) {
	if !slices.ContainsFunc(c.added, d.Same) { // two keys may lead to the same definition
		c.added = append(c.added, d)
		c.all = append(slices.Clone(c.all), d)
	}
	c.settle(k, d)
}

// settle plans to drop a key whose definition is d, and to track d's parent.
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

// definition returns the loose form of a key, or the reason why the key has none. base are
// the problems of the existing definitions alone: only a problem that isn't among them is a
// reason.
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

// files plans the definitions' file, the migrations and the tests, and the steps.
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

// check returns statements with which the migration that drops a key begins: they fail if
// the key's parent has no trigger. If child and parent are in different databases, check
// returns none, since a migration sees only its own database.
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

// tracking plans migrations that put the trigger on parents without one. In a database
// where loose foreign keys are not installed, or in an older version, it plans the
// installation or upgrade before them.
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

// installing plans to install loose foreign keys in a database, or to upgrade an older
// version, unless a migration of the directory installs or upgrades them.
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

// isTracked returns whether a parent has its trigger, or a migration of the directory will
// create the trigger.
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

// editDefinitions plans the change of the definitions' file.
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

// Statements returns the statements of the plan's migrations in order. Run them outside
// of transactions.
func (p *Plan) Statements() []string {
	var list []string
	for _, m := range p.up {
		list = append(list, m.up...)
	}
	return list
}
