package generate

import (
	"context"
	"path/filepath"
	"slices"

	"github.com/purser-registry/purser/loosefk"
)

// rest plans the steps that remain for a foreign key that has a definition: to put the
// trigger on its parent, and to drop the foreign key.
func (c *conversion) rest(ctx context.Context, k ForeignKey) error {
	if name := c.dropMigration(k); name != "" {
		c.plan.Skipped = append(c.plan.Skipped, Refusal{k, "it has a definition already, and " + filepath.Join(c.Migrations, name) + " drops it: run that"})
		return nil
	}
	defs := k.Definitions(c.Databases, c.Definitions)
	problems, err := c.problems(ctx, defs)
	if err != nil {
		return err
	}
	whole := slices.IndexFunc(defs, func(d loosefk.Definition) bool { return len(d.Conditions) == 0 })
	switch {
	case len(problems) > 0:
		c.plan.Refused = append(c.plan.Refused, Refusal{k, problems[0].Text})
	case whole < 0:
		c.plan.Refused = append(c.plan.Refused, Refusal{k, "its definition has conditions, and nobody would clean up the rows that don't meet them: drop the key by a migration of your own if that is what you want"})
	default:
		c.settle(k, defs[whole])
	}
	return nil
}

// withoutKey plans the step that remains for a definition whose foreign key is gone: to put
// the trigger on its parent.
func (c *conversion) withoutKey(ctx context.Context, d loosefk.Definition) error {
	k := ForeignKey{From: d.Child, To: d.Parent, Column: d.Column}
	problems, err := c.problems(ctx, loosefk.Definitions{d})
	if err != nil {
		return err
	}
	if len(problems) > 0 {
		c.plan.Refused = append(c.plan.Refused, Refusal{k, problems[0].Text})
		return nil
	}
	tracked, err := c.isTracked(ctx, d.Parent)
	if err != nil {
		return err
	}
	if tracked {
		c.plan.Skipped = append(c.plan.Skipped, Refusal{k, "it has a definition, and its foreign key is gone already"})
		return nil
	}
	c.track(d.Parent)
	return nil
}

// dropMigration returns the file name of the migration in the directory that drops a
// foreign key. It returns "" if there is none, or if a later migration restores the key.
func (g Generator) dropMigration(k ForeignKey) string {
	name := dropName(k)
	version := g.lastMigration(name)
	if version == "" || version < g.lastMigration(restoreName(k)) {
		return ""
	}
	for _, suffix := range []string{".sql", ".up.sql"} {
		if file := version + "_" + name + suffix; fileExists(filepath.Join(g.Migrations, file)) {
			return file
		}
	}
	return ""
}
