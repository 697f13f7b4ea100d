// Package cli provides the commands for loose foreign keys. An application adds them as
// subcommands of a command of its own, and passes an Env that opens its databases and
// definitions.
package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/loosefk"
)

// App holds the databases and definitions of an application on which the commands work.
type App struct {
	Databases   loosefk.Databases
	Definitions loosefk.Definitions
	File        string          // the definitions' file; "" if the definitions are compiled into the program
	Options     loosefk.Options // the commands set its Databases and Definitions
	// Map says which tables will belong to which database, for an application whose tables
	// are all in one database and are to be split. Its databases need no pools. Nil: the
	// commands use the lists of tables in Databases.
	Map   loosefk.Databases
	Close func() // releases what Open opened; may be nil
}

// Env tells the commands how to open an application. A command calls Open when it runs.
type Env struct {
	Open func(ctx context.Context) (*App, error)
	// Tuning adds flags for the worker's options to the commands that run a worker; Open
	// has to put their values into App.Options. Nil: the commands have no such flags.
	Tuning *Tuning
}

// tune adds the flags of the worker's options to a command.
func (env Env) tune(cmd *cobra.Command) *cobra.Command {
	if env.Tuning != nil {
		env.Tuning.AddFlags(cmd.Flags())
	}
	return cmd
}

// New makes the command loosefk with its subcommands. They write results to the command's
// output, and return errors without printing them; Report prints them.
func New(env Env) *cobra.Command {
	root := &cobra.Command{
		Use:   "loosefk",
		Short: "Loose foreign keys: ON DELETE across databases, later and in batches",
		Long: `Loose foreign keys: ON DELETE across databases, later and in bounded batches.

A definition says what becomes of a child table's rows when their parent is
deleted. A trigger records deleted parents, a worker cleans up after them.

Exit codes: 0 fine; 1 failed; 2 bad usage; 3 there is something (doctor found a
problem, audit found orphans, and so on).`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	format := formatText
	root.PersistentFlags().VarP(&format, "output", "o", "format of the output: text or json")
	root.AddCommand(
		newInstallCommand(env), newTrackCommand(env), newUntrackCommand(env), newValidateCommand(env),
		newListCommand(env), newConvertCommand(env), newRevertCommand(env),
		newStatusCommand(env), env.tune(newRunCommand(env)), env.tune(newDrainCommand(env)),
		env.tune(newDoctorCommand(env)), newFixDefaultPartitionCommand(env), newAuditCommand(env),
	)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return usageOf(cmd, err) })
	checkArgs(root)
	return root
}

// checkArgs makes a command and its subcommands return a usage error if their arguments are
// wrong.
func checkArgs(cmd *cobra.Command) {
	if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				return usageOf(cmd, err)
			}
			return nil
		}
	}
	for _, c := range cmd.Commands() {
		checkArgs(c)
	}
}

// Exit codes.
const (
	exitFailed = 1
	exitUsage  = 2
	exitFound  = 3
)

// exit is an error with the exit code of the program. If err is nil, the command has
// printed everything itself.
type exit struct {
	code int
	err  error
}

func (e *exit) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exit) Unwrap() error { return e.err }

// errFound is the error of a command that has found problems and has printed them.
var errFound error = &exit{code: exitFound}

// usage returns a usage error: the error of a command whose flags or arguments are wrong.
func usage(cmd *cobra.Command, format string, args ...any) error {
	return usageOf(cmd, fmt.Errorf(format, args...))
}

func usageOf(cmd *cobra.Command, err error) error {
	return &exit{exitUsage, fmt.Errorf("%w\nSee '%s --help'", err, cmd.CommandPath())}
}

// Report writes a command's error to w, with the program's name before each line, and
// returns the program's exit code: 0 without an error, 1 if the command failed, 2 if it was
// called with wrong arguments, 3 if it found problems.
func Report(w io.Writer, program string, err error) int {
	if err == nil {
		return 0
	}
	e, ok := errors.AsType[*exit](err)
	if !ok {
		e = &exit{exitFailed, err}
	}
	if e.err != nil {
		for line := range strings.Lines(err.Error()) {
			fmt.Fprintf(w, "%s: %s\n", program, strings.TrimSuffix(line, "\n"))
		}
	}
	return e.code
}

// format is the format of a command's output: text or json.
type format string

const (
	formatText format = "text"
	formatJSON format = "json"
)

func (f *format) String() string { return string(*f) }
func (f *format) Type() string   { return "format" }

// Set implements pflag.Value.
func (f *format) Set(s string) error {
	if s != string(formatText) && s != string(formatJSON) {
		return errors.New("want text or json")
	}
	*f = format(s)
	return nil
}

// asJSON returns whether a command was called with -o json.
func asJSON(cmd *cobra.Command) bool {
	f := cmd.Flag("output")
	return f != nil && f.Value.String() == string(formatJSON)
}

// show prints `v` as JSON if the command was called with -o json. Otherwise it calls
// `text`, and aligns the tab-separated columns of its output.
func show(cmd *cobra.Command, v any, text func(w io.Writer)) error {
	if asJSON(cmd) {
		e := json.NewEncoder(cmd.OutOrStdout())
		e.SetIndent("", "  ")
		e.SetEscapeHTML(false)
		return e.Encode(v)
	}
	w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
	text(w)
	return w.Flush()
}

// with opens the application, calls fn and closes the application.
func (env Env) with(cmd *cobra.Command, fn func(ctx context.Context, app *App) error) error {
	app, err := env.Open(cmd.Context())
	if err != nil {
		return err
	}
	if app.Close != nil {
		defer app.Close()
	}
	return fn(cmd.Context(), app)
}

// worker makes a worker on the application's databases and definitions.
func (a *App) worker() (*loosefk.Worker, error) {
	o := a.Options
	o.Databases, o.Definitions = a.Databases, a.Definitions
	return loosefk.New(o)
}

// database returns the database of this name.
func (a *App) database(name string) (*loosefk.Database, error) {
	var names []string
	for i := range a.Databases {
		if a.Databases[i].Name == name {
			return &a.Databases[i], nil
		}
		names = append(names, a.Databases[i].Name)
	}
	return nil, fmt.Errorf("there is no database %q: there are %s", name, strings.Join(names, ", "))
}

// choose returns the databases of the given names. Without names it returns the databases
// that have parent tables.
func (a *App) choose(names []string) ([]*loosefk.Database, error) {
	var list []*loosefk.Database
	for _, name := range names {
		db, err := a.database(name)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(list, db) {
			list = append(list, db)
		}
	}
	if len(names) > 0 {
		return list, nil
	}
	for i := range a.Databases {
		db := &a.Databases[i]
		if slices.ContainsFunc(a.Definitions.Parents(), func(p string) bool { return a.Databases.Of(p) == db }) {
			list = append(list, db)
		}
	}
	return list, nil
}

// rounded returns a duration as text, rounded so that it is easy to read.
func rounded(d time.Duration) string {
	switch {
	case d >= time.Minute:
		return d.Round(time.Second).String()
	case d >= time.Second:
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Millisecond).String()
}
