package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/purser-registry/purser/loosefk"
	"github.com/purser-registry/purser/loosefk/generate"
)

// generation holds the flags of the commands convert and revert.
type generation struct {
	dryRun         bool
	tests          bool
	branch, commit bool
	migrations     string
	testsDir       string
	format         string
	onDelete       string
	schemaDump     string
	skipRefused    bool
}

// flags adds the flags that convert and revert share. `verb` says in help texts what the
// command does to keys: "converted" or "brought back".
func (g *generation) flags(f *pflag.FlagSet, verb string) {
	f.BoolVarP(&g.dryRun, "dry-run", "n", false, "change nothing, and print everything that would be written")
	toggle(f, &g.branch, true, "branch", "", "make a git branch for the change")
	toggle(f, &g.commit, true, "commit", "", "commit the change")
	f.StringVar(&g.migrations, "migrations", "migrations", "the migrations' directory")
	f.StringVar(&g.format, "format", "goose", "format of migrations: goose, or plain (a pair of .up.sql and .down.sql)")
	f.StringVar(&g.schemaDump, "schema-dump", "", "write the schema after the migrations to this file, with pg_dump")
	f.BoolVar(&g.skipRefused, "skip-refused", false, "leave out keys that can't be "+verb+", instead of doing nothing")
}

// toggle adds two flags for `value`: "--" + `name` sets it to true and "--no-" + `name` to
// false. If a user gives both flags, the last one counts.
func toggle(f *pflag.FlagSet, value *bool, def bool, name, short, what string) {
	*value = def
	yes := f.VarPF(&switchValue{value, true}, name, short, what+" (the default; --no-"+name+": don't)")
	no := f.VarPF(&switchValue{value, false}, "no-"+name, "", "don't "+what)
	yes.NoOptDefVal, no.NoOptDefVal = "true", "true"
	yes.DefValue, no.DefValue = "", ""
	no.Hidden = true
}

// switchValue is the value of the flags --name and --no-name, which set the same bool: --name
// sets it to true and --no-name to false. "--name=false" means the same as --no-name, and
// "--no-name=false" the same as --name.
type switchValue struct {
	value *bool
	to    bool
}

func (s *switchValue) String() string   { return "" }
func (s *switchValue) Type() string     { return "bool" }
func (s *switchValue) IsBoolFlag() bool { return true }

// Set implements pflag.Value.
func (s *switchValue) Set(text string) error {
	switch text {
	case "true":
		*s.value = s.to
	case "false":
		*s.value = !s.to
	default:
		return errors.New("want true or false")
	}
	return nil
}

// generator makes the Generator that plans the files.
func (g *generation) generator(app *App) (generate.Generator, error) {
	if app.File == "" {
		return generate.Generator{}, errors.New("the definitions are part of the program and have no file that could be changed")
	}
	gen := generate.Generator{
		Databases: app.Databases, Definitions: app.Definitions, File: app.File,
		Migrations: g.migrations, Format: generate.Format(g.format),
	}
	if g.tests {
		gen.Tests = g.testsDir
	}
	return gen, nil
}

func newConvertCommand(env Env) *cobra.Command {
	var g generation
	var cross bool
	cmd := &cobra.Command{
		Use:   "convert [FILTER]...",
		Short: "Turn foreign keys into loose ones",
		Long: `Turn foreign keys into loose ones: add their definitions, and write the migrations
that put a trigger on the parents and, later, drop the keys, and Go tests for both.
The database is not changed: run the migrations yourself, in two deployments.

Each FILTER is a regular expression; all of them must be found in one of FROM, TO
and COLUMN. Without one the keys are listed. A key that can't become a loose one is
named with the reason, and then nothing is written, unless --skip-refused is given.

Where the definitions are in a git work tree a branch is made and the change is
committed there, with nothing else.`,
		Example: `  loosefk convert -c                          # list the keys that cross databases
  loosefk convert -n '^events$'               # print what would be written
  loosefk convert ci_job_artifacts project_id
  loosefk convert -c --no-branch --no-rspec _id`,
		RunE: func(cmd *cobra.Command, args []string) error {
			filter, err := generate.ParseFilter(args...)
			if err != nil {
				return usageOf(cmd, err)
			}
			if err := g.check(cmd); err != nil {
				return err
			}
			return env.with(cmd, func(ctx context.Context, app *App) error {
				rows, err := app.keys(ctx, filter, cross)
				if err != nil {
					return err
				}
				if len(args) == 0 {
					return show(cmd, rows, func(w io.Writer) { printKeys(w, rows, cross); printChoice(w, cmd) })
				}
				defs, err := app.withoutKey(ctx, filter, cross)
				if err != nil {
					return err
				}
				if len(rows)+len(defs) == 0 {
					return fmt.Errorf("no foreign key matches %s: 'loosefk list' shows them all", strings.Join(args, " "))
				}
				return g.convert(ctx, cmd, app, rows, defs, branchName("loose-fk", args))
			})
		},
	}
	f := cmd.Flags()
	f.BoolVarP(&cross, "cross-schema", "c", false, "only keys whose tables belong to different databases, by the map if there is one")
	toggle(f, &g.tests, true, "rspec", "r", "write Go tests")
	toggle(f, &g.tests, true, "test", "", "the same as --rspec: write Go tests")
	f.StringVar(&g.testsDir, "tests", "tests", "the tests' directory")
	f.StringVar(&g.onDelete, "on-delete", "", "async_delete or async_nullify, for keys whose ON DELETE has no loose form (restrict, no action, set default)")
	g.flags(f, "converted")
	return cmd
}

// check returns an error if a flag has an unknown value.
func (g *generation) check(cmd *cobra.Command) error {
	if g.format != string(generate.Goose) && g.format != string(generate.Plain) {
		return usage(cmd, "--format %s: want goose or plain", g.format)
	}
	return nil
}

func printChoice(w io.Writer, cmd *cobra.Command) {
	name := cmd.CommandPath()
	fmt.Fprintf(w, `
To choose foreign keys give one or more filters, which are looked for in FROM, TO and COLUMN:
- %[1]s FILTER...
- %[1]s ci_job_artifacts project_id
- %[1]s '^events$'
`, name)
}

func (g *generation) convert(ctx context.Context, cmd *cobra.Command, app *App, rows []keyRow, defs loosefk.Definitions, branch string) error {
	gen, err := g.generator(app)
	if err != nil {
		return err
	}
	switch gen.OnDelete = loosefk.Action(g.onDelete); gen.OnDelete {
	case "", loosefk.AsyncDelete, loosefk.AsyncNullify:
	default:
		return usage(cmd, "--on-delete %s: want async_delete or async_nullify", g.onDelete)
	}
	keys := make([]generate.ForeignKey, len(rows))
	for i, r := range rows {
		keys[i] = r.ForeignKey
	}
	plan, err := gen.Convert(ctx, keys, defs...)
	if err != nil {
		return err
	}
	return g.carryOut(ctx, cmd, app, plan, "Turn foreign keys into loose ones", branch)
}

// outcome is the result that convert and revert print.
type outcome struct {
	*generate.Plan
	DryRun bool   `json:"dry_run"`
	Branch string `json:"branch,omitempty"`
	Commit string `json:"commit,omitempty"`
	// Notes say what was not done, and why.
	Notes []string `json:"notes,omitempty"`
}

// carryOut writes a plan's files, commits them, and prints the outcome. In a dry run it
// only prints.
func (g *generation) carryOut(ctx context.Context, cmd *cobra.Command, app *App, plan *generate.Plan, subject, branch string) error {
	if err := g.refused(plan); err != nil {
		return err
	}
	out := outcome{Plan: plan, DryRun: g.dryRun}
	if len(plan.Files) == 0 {
		if asJSON(cmd) {
			return show(cmd, out, nil)
		}
		g.print(cmd.OutOrStdout(), out)
		return nil
	}
	if g.schemaDump != "" {
		if g.dryRun {
			out.Notes = append(out.Notes, g.schemaDump+" would be written by pg_dump")
		} else if err := addSchemaDump(ctx, app, plan, g.schemaDump); err != nil {
			return fmt.Errorf("nothing was written: --schema-dump: %w", err)
		}
	}
	repo, err := g.repository(ctx, app, &out, branch)
	if err != nil {
		return fmt.Errorf("nothing was written: %w", err)
	}
	if !g.dryRun {
		if err := g.write(ctx, repo, &out, subject); err != nil {
			return err
		}
	}
	if asJSON(cmd) {
		return show(cmd, out, nil)
	}
	g.print(cmd.OutOrStdout(), out) // not by show, which would align the tabs of the files' content
	return nil
}

// repository returns the git work tree that contains the definitions, after checking that
// the command can commit there. It returns nil if nothing is to be committed.
func (g *generation) repository(ctx context.Context, app *App, out *outcome, branch string) (*repository, error) {
	if !g.commit && !g.branch {
		return nil, nil
	}
	repo, reason := findRepository(ctx, app.File)
	if repo == nil {
		out.Notes = append(out.Notes, reason+": nothing is committed")
		return nil, nil
	}
	switch {
	case g.branch && repo.unborn:
		out.Notes = append(out.Notes, repo.branch+" has no commit yet: no branch is made")
	case g.branch:
		out.Branch = branch
	}
	return repo, repo.ready(ctx, app.File, out.Plan, out.Branch, g.commit)
}

// write writes the plan's files, and makes the branch and the commit. If one of these steps
// fails, it undoes the steps before.
func (g *generation) write(ctx context.Context, repo *repository, out *outcome, subject string) (err error) {
	if err := out.Plan.Write(); err != nil {
		return err
	}
	if repo == nil {
		return nil
	}
	if out.Branch != "" {
		err = repo.checkout(ctx, out.Branch)
	}
	if err == nil && g.commit {
		out.Commit, err = repo.commit(ctx, subject, out.Plan)
	}
	if err == nil {
		return nil
	}
	if back := errors.Join(repo.takeBack(context.WithoutCancel(ctx)), out.Plan.TakeBack()); back != nil {
		return fmt.Errorf("%w\nand undoing what was written failed: %w", err, back)
	}
	return fmt.Errorf("%w\neverything was undone; --no-branch --no-commit only writes the files", err)
}

// refused returns an error that names the foreign keys which the plan can't convert or
// restore. It returns nil if there are none, or if --skip-refused is set and the plan has
// files for other keys.
func (g *generation) refused(plan *generate.Plan) error {
	var errs []error
	for _, r := range plan.Refused {
		errs = append(errs, r)
	}
	switch {
	case len(plan.Refused) == 0:
		return nil
	case !g.skipRefused:
		return errors.Join(append(errs, errors.New("nothing was written; --skip-refused leaves these out and does the rest"))...)
	case len(plan.Files) > 0:
		return nil
	}
	return errors.Join(append(errs, errors.New("nothing is left to do"))...)
}

// print prints what the command did or, in a dry run, would do.
func (g *generation) print(w io.Writer, out outcome) {
	verb := map[bool]string{false: "wrote", true: "would write"}[g.dryRun]
	for _, k := range out.Keys {
		fmt.Fprintf(w, "%s: %s\n", k.Constraint, k)
	}
	for _, s := range out.Skipped {
		fmt.Fprintf(w, "skipped %s\n", s.Error())
	}
	for _, r := range out.Refused {
		fmt.Fprintf(w, "left out %s\n", r.Error())
	}
	if len(out.Files) == 0 {
		fmt.Fprintln(w, "nothing is left to do")
		return
	}
	fmt.Fprintln(w)
	for _, f := range out.Files {
		fmt.Fprintf(w, "%s %s\n", verb, f.Path)
		if g.dryRun {
			printFile(w, f)
		}
	}
	switch {
	case out.Branch != "" && g.dryRun:
		fmt.Fprintf(w, "would make the branch %s\n", out.Branch)
	case out.Branch != "":
		fmt.Fprintf(w, "made the branch %s\n", out.Branch)
	}
	if out.Commit != "" {
		fmt.Fprintf(w, "committed %s\n", out.Commit)
	}
	for _, n := range out.Notes {
		fmt.Fprintln(w, n)
	}
	fmt.Fprintln(w, "\nWhat to do, in this order:")
	for i, s := range out.Steps {
		fmt.Fprintf(w, "%d. %s\n", i+1, s)
	}
}

// printFile prints the whole text of a new file, or the changed lines of an existing file.
func printFile(w io.Writer, f generate.PlannedFile) {
	text := strings.Split(strings.TrimSuffix(f.Content, "\n"), "\n")
	if !f.Changed {
		for _, line := range text {
			fmt.Fprintln(w, "    "+line)
		}
		return
	}
	old := strings.Split(strings.TrimSuffix(f.Old, "\n"), "\n")
	for _, d := range difference(old, text) {
		fmt.Fprintln(w, "    "+d)
	}
}

// difference compares two lists of lines. It returns the removed lines with a leading - and
// the added lines with a leading +. Before each group of them it adds a line "@@ line N"
// with the group's line number. Lines of the longest common subsequence count as unchanged.
func difference(old, text []string) []string {
	head := 0
	for head < len(old) && head < len(text) && old[head] == text[head] {
		head++
	}
	for len(old) > head && len(text) > head && old[len(old)-1] == text[len(text)-1] {
		old, text = old[:len(old)-1], text[:len(text)-1]
	}
	a, b := old[head:], text[head:]
	common := make([][]int, len(a)+1) // common[i][j] is the length of the longest common sequence of a[i:] and b[j:]
	for i := range common {
		common[i] = make([]int, len(b)+1)
	}
	for i, x := range slices.Backward(a) {
		for j, y := range slices.Backward(b) {
			if x == y {
				common[i][j] = common[i+1][j+1] + 1
			} else {
				common[i][j] = max(common[i+1][j], common[i][j+1])
			}
		}
	}
	var out []string
	same := true
	mark := func(j int, line string) {
		if same {
			out = append(out, fmt.Sprintf("@@ line %d", head+j+1))
			same = false
		}
		out = append(out, line)
	}
	for i, j := 0, 0; i < len(a) || j < len(b); {
		switch {
		case i < len(a) && j < len(b) && a[i] == b[j]:
			i, j, same = i+1, j+1, true
		case j == len(b) || i < len(a) && common[i+1][j] >= common[i][j+1]:
			mark(j, "-"+a[i])
			i++
		default:
			mark(j, "+"+b[j])
			j++
		}
	}
	return out
}
