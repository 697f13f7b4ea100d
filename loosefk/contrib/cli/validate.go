package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/loosefk"
)

func newValidateCommand(env Env) *cobra.Command {
	return &cobra.Command{
		Use:   "validate",
		Short: "Check the definitions against the databases",
		Long: `Check the definitions against the databases: whether tables and columns are there
and of the right kind, each child column has an index, and each parent has a key
that deleted records can hold: a single column of an integer type, uuid, text or
varchar. All problems are printed, each with its file and line. Exit code 3: there
are some.`,
		Example: `  loosefk validate
  loosefk --definitions config/loose_foreign_keys.yml validate -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var defs loosefk.Definitions
			err := env.with(cmd, func(ctx context.Context, app *App) error {
				defs = app.Definitions
				return loosefk.Validate(ctx, app.Databases, app.Definitions)
			})
			problems, ok := errors.AsType[loosefk.Problems](err)
			if err != nil && !ok {
				return err
			}
			if err := showProblems(cmd, len(defs), problems); err != nil || len(problems) == 0 {
				return err
			}
			return errFound
		},
	}
}

func showProblems(cmd *cobra.Command, definitions int, problems loosefk.Problems) error {
	type problem struct {
		File string `json:"file,omitempty"`
		Line int    `json:"line,omitempty"`
		Text string `json:"text"`
	}
	v := struct {
		Definitions int       `json:"definitions"`
		Problems    []problem `json:"problems"`
	}{definitions, []problem{}}
	for _, p := range problems {
		v.Problems = append(v.Problems, problem{p.File, p.Line, p.Text})
	}
	return show(cmd, v, func(w io.Writer) {
		for _, p := range problems {
			fmt.Fprintln(w, p.Error())
		}
		if len(problems) == 0 {
			fmt.Fprintf(w, "%d definitions fit the databases\n", definitions)
		}
	})
}
