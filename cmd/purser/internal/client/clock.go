package client

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/api"
)

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
