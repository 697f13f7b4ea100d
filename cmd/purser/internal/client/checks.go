package client

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/policy"
)

// checkedText is a flag whose value is checked when the command line is parsed, so that the
// error names the flag. It implements pflag.Value.
type checkedText struct {
	p     *string
	check func(text string) error
}

func (v checkedText) String() string { return *v.p }
func (v checkedText) Type() string   { return "string" }

func (v checkedText) Set(text string) error {
	if err := v.check(text); err != nil {
		return err
	}
	*v.p = text
	return nil
}

func textFlag(cmd *cobra.Command, p *string, name, value, usage string, check func(text string) error) {
	*p = value
	cmd.Flags().Var(checkedText{p, check}, name, usage)
}

func notEmpty(text string) error {
	if text == "" {
		return errors.New("it is empty; leave the flag out instead")
	}
	return nil
}

func checkAge(text string) error {
	_, err := policy.ParseAge(text)
	return err
}

func checkPattern(text string) error {
	_, err := oci.ParseTagPattern(text)
	return err
}

// checkUUID checks a UUID or its beginning.
func checkUUID(text string) error {
	if _, err := uuid.Parse(text); err != nil && !beginsUUID.MatchString(strings.ToLower(strings.TrimSuffix(text, "…"))) {
		return errors.New("write a UUID, like 5f0c9c1e-6b0a-4c8e-9d3b-2a1f0e9d8c7b, or how it begins, with at least 4 digits")
	}
	return nil
}

// checkShortDigest checks DIGEST or REPOSITORY@DIGEST, of which the digest may be short.
func checkShortDigest(text string) error {
	_, digest := command.SplitDigest(text)
	_, err := oci.ParseShortDigest(digest)
	return err
}

// listFlag is a flag whose value is a comma-separated list, each element of which `check`
// checks. It implements pflag.Value.
type listFlag struct {
	p     *[]string
	check func(text string) error
}

func (v listFlag) String() string { return strings.Join(*v.p, ",") }
func (v listFlag) Type() string   { return "strings" }

func (v listFlag) Set(text string) error {
	for part := range strings.SplitSeq(text, ",") {
		if err := v.check(part); err != nil {
			return err
		}
		*v.p = append(*v.p, part)
	}
	return nil
}

// repeatedText is a flag that may be given several times, each time with one text that isn't
// empty. It implements pflag.Value.
type repeatedText struct{ p *[]string }

func (v repeatedText) String() string {
	if v.p == nil { // pflag calls it on the zero value
		return ""
	}
	return strings.Join(*v.p, " ")
}
func (v repeatedText) Type() string { return "string" }

func (v repeatedText) Set(text string) error {
	if err := notEmpty(text); err != nil {
		return err
	}
	*v.p = append(*v.p, text)
	return nil
}

func checkKind(text string) error {
	var kinds []string
	for _, k := range audit.Kinds() {
		kinds = append(kinds, string(k))
	}
	return checkChoice(kinds...)(text)
}

// checkChoice returns a check that accepts only the given words.
func checkChoice(choices ...string) func(text string) error {
	return func(text string) error {
		if !slices.Contains(choices, text) {
			return fmt.Errorf("use one of %s", strings.Join(choices, ", "))
		}
		return nil
	}
}

// checkOrder returns a check that accepts the given words, each also with a minus sign in
// front for the reverse order.
func checkOrder(orders ...string) func(text string) error {
	return func(text string) error {
		if !slices.Contains(orders, strings.TrimPrefix(text, "-")) {
			return fmt.Errorf("use one of %s, with - in front for the other way round", strings.Join(orders, ", "))
		}
		return nil
	}
}

func checkMoment(text string) error {
	for _, form := range []string{time.RFC3339, time.DateOnly} {
		if _, err := time.Parse(form, moment(text)); err == nil {
			return nil
		}
	}
	return errors.New("write 2026-03-05, 2026-03-05T07:00:00Z, or an age like 90m or 12h")
}

// checkArg returns a usage error if `check` rejects the argument `text`. `what` is the
// argument's name in that error.
func checkArg(what, text string, check func(text string) error) error {
	if err := check(text); err != nil {
		return command.Usagef("%s: %q isn't possible: %w", what, text, err)
	}
	return nil
}

// checkNamespace checks an argument that names a namespace.
func checkNamespace(name string) error {
	if name == "" || strings.Contains(name, "/") {
		return errors.New("it is the first part of a repository's name, such as app")
	}
	return nil
}

func clockCommand(src *command.Source) *cobra.Command {
	return command.Group("clock", "Show whether the clocks are fit to delete by, and confirm the database's", clockShowCommand(src), clockConfirmCommand(src))
}

func clockShowCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "show", Short: "Show whether the clocks are fit to delete by", Args: cobra.NoArgs,
		Long: "Show whether the clocks are fit to delete by. While the clocks of the database and of the registry differ, or the\n" +
			"database's clock was set, nothing is deleted for its age: no tag by a policy, nothing in the trash, no blob.",
	}
	f := command.AddFormat(cmd)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, _ []string) error {
		state, err := api.GetClock.Call(cmd.Context(), c, struct{}{})
		if err != nil {
			return err
		}
		return f.Print(cmd.OutOrStdout(), state, func(w io.Writer) error { return printClock(w, state) })
	})
	return cmd
}

func printClock(w io.Writer, state api.Clock) error {
	if !state.Deletes {
		way := "Set the wrong clock right."
		if state.Doubt {
			way = "If the database's clock is wrong, set it right. Once it is right, run: purser clock confirm"
		}
		_, err := fmt.Fprintf(w, "Nothing is deleted for its age: %s.\n%s\n", state.Problem, way)
		return err
	}
	offset := time.Duration(state.Offset * float64(time.Second)).Round(10 * time.Millisecond)
	_, err := fmt.Fprintf(w, "The clocks agree (%s apart), so what is old is deleted.\n", offset.Abs())
	return err
}

func clockConfirmCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "confirm", Short: "Say that the database's clock is right", Args: cobra.NoArgs,
		Long: "Say that the database's clock is right. Then what is old by this clock is deleted again, so look at the clock before:\n" +
			"\"purser clock show\" says what is in doubt.",
	}
	yes := command.AddYes(cmd)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, _ []string) error {
		state, err := api.GetClock.Call(cmd.Context(), c, struct{}{})
		if err != nil {
			return err
		}
		if !state.Doubt {
			return printClock(cmd.OutOrStdout(), state)
		}
		if err := command.Confirm(cmd, *yes, "In doubt: %s. Is the database's clock right now?", state.Problem); err != nil {
			return err
		}
		done, err := api.ConfirmClock.Call(cmd.Context(), c, struct{}{})
		if err != nil {
			return err
		}
		return printClock(cmd.OutOrStdout(), done.Clock)
	})
	return cmd
}
