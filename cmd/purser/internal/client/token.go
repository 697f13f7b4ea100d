package client

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/api"
)

func tokenCommand(src *command.Source) *cobra.Command {
	cmd := command.Group("token", "Manage your tokens, which stand in for your password",
		tokenListCommand(src), tokenCreateCommand(src), tokenRevokeCommand(src))
	return addServer(cmd)
}

func tokenListCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{Use: "list", Short: "List your tokens, the newest first", Args: cobra.NoArgs,
		Long: "List your personal tokens, and the refresh tokens that clients such as docker have got at a log-in."}
	format := command.AddFormat(cmd)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, _ []string) error {
		list, _, err := api.List(cmd.Context(), c, api.ListTokens, api.TokenQuery{}, 0)
		if err != nil {
			return err
		}
		return format.Print(cmd.OutOrStdout(), list, func(w io.Writer) error {
			rows := make([][]string, len(list))
			for i, t := range list {
				rows[i] = []string{t.UUID, t.Kind, t.Title, limited(t.Repositories), limited(t.Actions), ends(t.ExpiresAt), clock(t.LastUsedAt)}
			}
			return table(w, []string{"UUID", "KIND", "TITLE", "REPOSITORIES", "ACTIONS", "ENDS", "LAST USED"}, rows, false)
		})
	})
	return cmd
}

func tokenCreateCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "create TITLE", Short: "Make a token, and print it", Args: cobra.ExactArgs(1),
		Long:    "Make a personal token, which is printed once. It may do what you may, as far as its limits allow.",
		Example: "  purser token create \"backup of acme\" --repositories 'acme/**' --actions pull --expires 90d",
	}
	format, limits, expires := command.AddFormat(cmd), addLimits(cmd), addExpiry(cmd, "it ends")
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		form := api.NewTokenForm{Title: args[0], ExpiresAt: *expires}
		form.Repositories, form.Actions = limits.limits()
		made, err := api.CreateToken.Call(cmd.Context(), c, api.TokenNew{Body: form})
		if err != nil {
			return err
		}
		return printSecret(cmd, format, made.Token, "Created token %s.\nThe token, which isn't told again: %s\n", made.Token.UUID, made.Token.Code)
	})
	return cmd
}

func tokenRevokeCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{Use: "revoke UUID", Short: "Revoke a token: nobody can use it any longer", Args: cobra.ExactArgs(1)}
	yes := command.AddYes(cmd)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		if err := checkArg("UUID", args[0], checkUUID); err != nil {
			return err
		}
		item, title := api.TokenItem{UUID: args[0]}, ""
		if !*yes {
			t, err := api.GetToken.Call(cmd.Context(), c, item)
			if err != nil {
				return err
			}
			title = t.Token.Title
		}
		if err := command.Confirm(cmd, *yes, "Revoke token %s (%s)? That can't be undone.", args[0], command.Printable(title)); err != nil {
			return err
		}
		if _, err := api.RevokeToken.Call(cmd.Context(), c, item); err != nil {
			return fmt.Errorf("revoking the token: %w", err)
		}
		return say(cmd, "Revoked token %s.\n", args[0])
	})
	return cmd
}
