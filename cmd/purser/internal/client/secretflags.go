package client

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/auth"
)

// limitFlags are the flags that narrow what a robot or a token may do.
type limitFlags struct {
	repositories, actions     []string
	noRepositories, noActions bool
}

func addLimits(cmd *cobra.Command) *limitFlags {
	f := new(limitFlags)
	cmd.Flags().Var(listFlag{&f.repositories, checkRepositoryPattern}, "repositories",
		"it may use only these `REPOSITORIES`, with commas between them: acme/app, acme/* for all just below acme, acme/** for all below (default: no such limit)")
	cmd.Flags().Var(listFlag{&f.actions, checkAction}, "actions",
		"it may do only these `ACTIONS`, with commas between them: "+strings.Join(actionNames(), ", ")+" (default: no such limit)")
	cmd.Flags().BoolVar(&f.noRepositories, "no-repositories", false, "it may use no repository")
	cmd.Flags().BoolVar(&f.noActions, "no-actions", false, "it may do nothing")
	cmd.MarkFlagsMutuallyExclusive("repositories", "no-repositories")
	cmd.MarkFlagsMutuallyExclusive("actions", "no-actions")
	return f
}

// limits returns the limits of repositories and of actions: nil is none, an empty list allows nothing.
func (f *limitFlags) limits() (repositories, actions []string) {
	repositories, actions = f.repositories, f.actions
	if f.noRepositories {
		repositories = []string{}
	}
	if f.noActions {
		actions = []string{}
	}
	return repositories, actions
}

func actionNames() (names []string) {
	for _, a := range auth.Actions() {
		names = append(names, string(a))
	}
	return names
}

func checkAction(name string) error { return checkChoice(actionNames()...)(name) }

func checkRepositoryPattern(text string) error {
	return auth.Limits{Repositories: []string{text}}.Check()
}

// limited formats a limit for people: nil is none.
func limited(list []string) string {
	switch {
	case list == nil:
		return "all"
	case len(list) == 0:
		return "none"
	}
	return strings.Join(list, ",")
}

// roles are the names of roles that commands accept and print.
var roles = []string{auth.Reader.String(), auth.Writer.String(), auth.Maintainer.String(), auth.Administrator.String()}

func checkRole(name string) error { return checkChoice(roles...)(name) }

// roleName returns Purser's name of a role that the API has in Quay's words.
func roleName(name string) string {
	if role, err := auth.ParseRole(name); err == nil {
		return role.String()
	}
	return map[string]string{"creator": auth.Writer.String(), "member": ""}[name]
}

// expiryFlag is a flag whose value is a time in the future: a date, or how long it is until then.
// It implements pflag.Value.
type expiryFlag struct {
	text *string
	at   **time.Time
}

func addExpiry(cmd *cobra.Command, usage string) **time.Time {
	at := new(*time.Time)
	cmd.Flags().Var(expiryFlag{new(string), at}, "expires", usage+" after this `TIME`, such as 90d, 12h or 2026-12-31 (default: never)")
	return at
}

func (v expiryFlag) String() string {
	if v.text == nil {
		return ""
	}
	return *v.text
}
func (v expiryFlag) Type() string { return "string" }

func (v expiryFlag) Set(text string) error {
	t, err := parseExpiry(text, time.Now())
	if err != nil {
		return err
	}
	*v.text, *v.at = text, &t
	return nil
}

// parseExpiry parses a time after `now`. A date means its end in the local zone.
func parseExpiry(text string, now time.Time) (t time.Time, err error) {
	units := map[string]time.Duration{"d": 24 * time.Hour, "w": 7 * 24 * time.Hour, "y": 365 * 24 * time.Hour}
	if d, err := time.ParseDuration(text); err == nil {
		t = now.Add(d)
	} else if day, err := time.ParseInLocation(time.DateOnly, text, time.Local); err == nil {
		t = day.AddDate(0, 0, 1)
	} else if moment, err := time.Parse(time.RFC3339, text); err == nil {
		t = moment
	} else if n, err := strconv.Atoi(text[:max(0, len(text)-1)]); err == nil && n <= 1000 {
		t = now.Add(time.Duration(n) * units[text[len(text)-1:]])
	}
	if !t.After(now) {
		return t, errors.New("write a time in the future: 90d, 12h, 2w, 2026-12-31 or 2026-12-31T07:00:00Z")
	}
	return t.UTC().Truncate(time.Second), nil
}

// ends formats when something ends.
func ends(t *time.Time) string {
	if t == nil {
		return "never"
	}
	return clock(t)
}

// printSecret prints a secret that can't be read again: as JSON the value `v`, which contains the
// secret, else the text.
func printSecret(cmd *cobra.Command, format *command.Format, v any, text string, args ...any) error {
	return format.Print(cmd.OutOrStdout(), v, func(w io.Writer) error {
		_, err := fmt.Fprintf(w, text, args...)
		return err
	})
}

// addServer adds the flags --server and --insecure to a command and its subcommands.
func addServer(cmd *cobra.Command) *cobra.Command {
	command.AddClientFlags(cmd.PersistentFlags())
	return cmd
}

// withClient returns a RunE function that makes an API client from the flags and the
// environment, and passes it to `run`.
func withClient(src *command.Source, run func(cmd *cobra.Command, c *api.Client, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		c, err := src.Client(cmd)
		if err != nil {
			return err
		}
		return run(cmd, c, args)
	}
}

// addLimit adds the flag --limit to a command that lists.
func addLimit(cmd *cobra.Command) *int {
	limit := 100
	cmd.Flags().Var(command.Number(&limit, 0, command.MaxListed), "limit", "list at most `N`; 0: all")
	return &limit
}

// table prints `rows` under a header, and a note if the registry has more rows than were
// asked for (`more`).
func table(w io.Writer, header []string, rows [][]string, more bool) error {
	if err := command.Table(w, header, rows); err != nil {
		return err
	}
	if more {
		if _, err := fmt.Fprintln(w, command.MoreListed); err != nil {
			return fmt.Errorf("printing: %w", err)
		}
	}
	return nil
}

// fields prints pairs of name and value, one pair per line. It leaves out pairs whose value
// is empty.
func fields(w io.Writer, pairs ...string) error {
	out := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			fmt.Fprintf(out, "%s\t%s\n", pairs[i], command.Printable(pairs[i+1]))
		}
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("printing: %w", err)
	}
	return nil
}

// clock formats a time in the local zone; "" for nil.
func clock(t *time.Time) string {
	if t == nil || t.IsZero() {
		return ""
	}
	return t.Local().Format("2006-01-02 15:04:05")
}
