package client

import (
	"cmp"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/auth/password"
)

// userView is the user's own account as "user show" prints it.
type userView struct {
	Anonymous   bool   `json:"anonymous"`
	Username    string `json:"username"`
	Email       string `json:"email,omitempty"`
	Superuser   bool   `json:"super_user"`
	HasPassword bool   `json:"has_password_set"`
	Robot       bool   `json:"robot"`
}

// userCommand makes the command "user". `more` are subcommands that don't use the API.
func userCommand(src *command.Source, more ...*cobra.Command) *cobra.Command {
	cmd := command.Group("user", "Manage people's accounts", more...)
	for _, c := range []*cobra.Command{
		userListCommand(src), userCreateCommand(src), userShowCommand(src), userPasswordCommand(src), userRevokeCommand(src), userRebindCommand(src), userDeleteCommand(src), userAdminCommand(src),
		userEnableCommand(src, "enable", "Let people log in with an account again", true),
		userEnableCommand(src, "disable", "Let nobody log in with an account, and end its log-ins", false),
	} {
		cmd.AddCommand(addServer(c))
	}
	cmd.Long = "Manage people's accounts. Except for \"user show\" and \"user password\" without a name, which are about\n" +
		"your own account, these commands need an administrator of the registry."
	return cmd
}

func userListCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{Use: "list", Short: "List people's accounts", Args: cobra.NoArgs}
	listing := command.AddListing(cmd)
	var contains string
	cmd.Flags().StringVar(&contains, "contains", "", "only names that hold `TEXT`")
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, _ []string) error {
		list, more, err := api.List(cmd.Context(), c, api.ListUsers, api.UserQuery{Contains: contains}, listing.Limit)
		if err != nil {
			return err
		}
		return command.PrintList(cmd, listing, list, more, func(u api.UserView) string { return u.Username }, func(w io.Writer) error {
			rows := make([][]string, len(list))
			for i, u := range list {
				rows[i] = []string{u.Username, u.Email, userState(u), u.Source, clock(&u.CreatedAt), clock(u.LastUsedAt)}
			}
			return table(w, []string{"NAME", "EMAIL", "STATE", "SOURCE", "CREATED", "LAST USED"}, rows, more)
		})
	})
	return cmd
}

func userState(u api.UserView) string {
	state := "enabled"
	if !u.Enabled {
		state = "disabled"
	}
	if u.Superuser {
		state += ", administrator"
	}
	return state
}

func userCreateCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "create NAME", Short: "Create an account, and print its password", Args: cobra.ExactArgs(1),
		Long:    "Create an account. Without --password-stdin the registry makes a password, which is printed once.",
		Example: "  purser user create alice --email alice@example.com",
	}
	format, input := command.AddFormat(cmd), addPasswordStdin(cmd)
	form := api.NewUserForm{}
	cmd.Flags().StringVar(&form.Email, "email", "", "the person's `ADDRESS`")
	cmd.Flags().BoolVar(&form.Superuser, "admin", false, "make it an administrator of the registry")
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		form.Username = args[0]
		if input.stdin {
			var err error
			if form.Password, err = input.readNew(cmd); err != nil {
				return err
			}
		}
		made, err := api.CreateUser.Call(cmd.Context(), c, api.UserNew{Body: form})
		if err != nil {
			return err
		}
		text := fmt.Sprintf("Created account %s.\n", command.Printable(made.Username))
		if made.Password != "" {
			text += fmt.Sprintf("Its password, which isn't told again: %s\n", made.Password)
		}
		return printSecret(cmd, format, made, "%s", text)
	})
	return cmd
}

func userShowCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{Use: "show [NAME]", Short: "Show an account; without NAME, your own", Args: cobra.MaximumNArgs(1)}
	format := command.AddFormat(cmd)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		if len(args) == 0 {
			return showOwn(cmd, c, format)
		}
		u, err := api.GetUser.Call(cmd.Context(), c, api.UserItem{Username: args[0]})
		if err != nil {
			return err
		}
		return format.Print(cmd.OutOrStdout(), u, func(w io.Writer) error {
			entry := cmp.Or(u.EntryID, map[bool]string{true: "none: the next that logs in by this name"}[u.Awaits])
			return fields(w, "name", u.Username, "email", u.Email, "state", userState(u), "source", u.Source, "identity", u.Subject, "entry", entry,
				"password", map[bool]string{true: "kept by the registry"}[u.HasPassword], "created", clock(&u.CreatedAt), "last used", clock(u.LastUsedAt))
		})
	})
	return cmd
}

func showOwn(cmd *cobra.Command, c *api.Client, format *command.Format) error {
	own, err := api.GetOwnUser.Call(cmd.Context(), c, api.Paging{})
	if err != nil {
		return err
	}
	u := userView{own.Anonymous, own.Username, own.Email, own.Superuser, own.HasPassword, own.Robot}
	return format.Print(cmd.OutOrStdout(), u, func(w io.Writer) error {
		if u.Anonymous {
			_, err := fmt.Fprintf(w, "The registry at %s is open: nobody needs to log in.\n", c.Name())
			return err
		}
		kind := "a person's account"
		switch {
		case u.Robot:
			kind = "a robot"
		case u.Superuser:
			kind = "an administrator of the registry"
		}
		return fields(w, "name", u.Username, "email", u.Email, "is", kind)
	})
}

func userPasswordCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "password [NAME]", Short: "Change the password of your account, or of another one", Args: cobra.MaximumNArgs(1),
		Long: "Change a password, which ends the account's log-ins of browsers and the refresh tokens of its clients.\n" +
			"Its personal tokens stay: \"token revoke\" revokes one of yours, \"user revoke NAME --personal-tokens\" those\n" +
			"of another account. Without NAME, or with your own, it is the password of your account: the command\n" +
			"asks for the old and the new password, or reads them with --password-stdin as two lines. The password\n" +
			"of another account, which only an administrator of the registry changes, is made up and printed once,\n" +
			"or read with --password-stdin.",
	}
	format, input := command.AddFormat(cmd), addPasswordStdin(cmd)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		own, err := api.GetOwnUser.Call(cmd.Context(), c, api.Paging{})
		if err != nil {
			return err
		}
		if len(args) == 0 || !own.Anonymous && args[0] == own.Username {
			return changeOwnPassword(cmd, c, input)
		}
		made := api.UserMade{Username: args[0]}
		next := password.Generate()
		if input.stdin {
			if next, err = input.readNew(cmd); err != nil {
				return err
			}
		} else {
			made.Password = next
		}
		u, err := changeUser(cmd, c, args[0], api.UserChangeForm{Password: &next})
		if err != nil {
			return err
		}
		made.Email, made.Superuser = u.Email, u.Superuser
		text := fmt.Sprintf("Changed the password of %s, and ended its log-ins. Its personal tokens stay: \"purser user revoke %[1]s --personal-tokens\" revokes them.\n", command.Printable(args[0]))
		if made.Password != "" {
			text += fmt.Sprintf("The new one, which isn't told again: %s\n", made.Password)
		}
		return printSecret(cmd, format, made, "%s", text)
	})
	return cmd
}

// changeOwnPassword changes the password of the user's own account.
func changeOwnPassword(cmd *cobra.Command, c *api.Client, input *passwordInput) error {
	var old, next string
	text, err := input.read(cmd, "Old password: ")
	if err != nil {
		return err
	}
	if input.stdin {
		var found bool
		if old, next, found = strings.Cut(text, "\n"); !found {
			return command.Usagef("give the old password on the first line of standard input, and the new one on the second")
		}
		old = strings.TrimSuffix(old, "\r")
	} else if next, err = input.readNew(cmd); err != nil {
		return err
	} else {
		old = text
	}
	if _, err := api.ChangeOwnUser.Call(cmd.Context(), c, api.OwnChange{Body: api.OwnChangeForm{CurrentPassword: old, Password: &next}}); err != nil {
		return err
	}
	return say(cmd, "Changed your password, and ended your log-ins. Your personal tokens stay: see \"purser token list\".\n")
}

func changeUser(cmd *cobra.Command, c *api.Client, name string, form api.UserChangeForm) (api.UserView, error) {
	return api.ChangeUser.Call(cmd.Context(), c, api.UserChange{UserItem: api.UserItem{Username: name}, Body: form})
}

func userEnableCommand(src *command.Source, name, short string, enabled bool) *cobra.Command {
	return &cobra.Command{
		Use: name + " NAME", Short: short, Args: cobra.ExactArgs(1),
		RunE: withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
			if _, err := changeUser(cmd, c, args[0], api.UserChangeForm{Enabled: &enabled}); err != nil {
				return err
			}
			return say(cmd, "Account %s is %sd now.\n", command.Printable(args[0]), name)
		}),
	}
}

func userAdminCommand(src *command.Source) *cobra.Command {
	return &cobra.Command{
		Use: "admin NAME on|off", Short: "Make an account an administrator of the registry, or no longer", Args: cobra.ExactArgs(2),
		RunE: withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
			if err := checkArg("on|off", args[1], checkChoice("on", "off")); err != nil {
				return err
			}
			on := args[1] == "on"
			if _, err := changeUser(cmd, c, args[0], api.UserChangeForm{Superuser: &on}); err != nil {
				return err
			}
			return say(cmd, "Account %s is %s administrator of the registry now.\n", command.Printable(args[0]), map[bool]string{true: "an", false: "no"}[on])
		}),
	}
}

func userRevokeCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "revoke NAME", Short: "End all log-ins of an account, also those of its clients", Args: cobra.ExactArgs(1),
		Long: "End all log-ins of browsers of an account, and revoke its refresh tokens, which clients such as docker have got\n" +
			"at a log-in. Its password stays: change it too if somebody else knows it.",
	}
	yes := command.AddYes(cmd)
	var personal bool
	cmd.Flags().BoolVar(&personal, "personal-tokens", false, "revoke its personal tokens too")
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		what := "End all log-ins"
		if personal {
			what += " and revoke all tokens"
		}
		if err := command.Confirm(cmd, *yes, "%s of %s? What uses them must log in again.", what, command.Printable(args[0])); err != nil {
			return err
		}
		e, err := api.EndLogIns.Call(cmd.Context(), c, api.LogInsEnd{UserItem: api.UserItem{Username: args[0]}, Personal: personal})
		if err != nil {
			return err
		}
		return say(cmd, "Ended for %s: log-ins of browsers %d, refresh tokens %d, personal tokens %d.\n",
			command.Printable(args[0]), e.Sessions, e.RefreshTokens, e.PersonalTokens)
	})
	return cmd
}

func userRebindCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "rebind NAME", Short: "Bind an account of the directory of LDAP to another entry", Args: cobra.ExactArgs(1),
		Long: "An account of LDAP belongs to the entry that logged in with it first, by the entry's id. If the entry was\n" +
			"deleted and made anew, or another person takes the account over, an administrator of the registry binds it\n" +
			"to another entry. Without --to the account goes to the next entry that logs in by the account's name.\n" +
			"All log-ins, refresh tokens and personal tokens of the account end.",
		Example: "  purser user rebind alice\n  purser user rebind alice --to alice.smith --keep-personal-tokens",
	}
	yes := command.AddYes(cmd)
	var to api.RebindForm
	cmd.Flags().StringVar(&to.DirectoryName, "to", "", "the entry that logs in by this `NAME` in the directory")
	cmd.Flags().BoolVar(&to.KeepTokens, "keep-personal-tokens", false, "leave the account its personal tokens: it is the same person's")
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		if cmd.Flags().Changed("to") && to.DirectoryName == "" {
			return command.Usagef("--to is empty: name the entry, or leave the flag out")
		}
		whose := "the next entry that logs in by this name"
		if to.DirectoryName != "" {
			whose = "the entry of " + command.Printable(to.DirectoryName)
		}
		if err := command.Confirm(cmd, *yes, "Give account %s to %s, and end its log-ins?", command.Printable(args[0]), whose); err != nil {
			return err
		}
		e, err := api.RebindUser.Call(cmd.Context(), c, api.Rebinding{UserItem: api.UserItem{Username: args[0]}, Body: &to})
		if err != nil {
			return err
		}
		return say(cmd, "Account %s belongs to %s now. Ended: log-ins of browsers %d, refresh tokens %d, personal tokens %d.\n",
			command.Printable(args[0]), whose, e.Sessions, e.RefreshTokens, e.PersonalTokens)
	})
	return cmd
}

func userDeleteCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{Use: "delete NAME", Short: "Delete an account with its roles, tokens and log-ins", Args: cobra.ExactArgs(1)}
	yes := command.AddYes(cmd)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		if err := command.Confirm(cmd, *yes, "Delete account %s with its roles and tokens? That can't be undone.", command.Printable(args[0])); err != nil {
			return err
		}
		if _, err := api.DeleteUser.Call(cmd.Context(), c, api.UserItem{Username: args[0]}); err != nil {
			return err
		}
		return say(cmd, "Deleted account %s.\n", command.Printable(args[0]))
	})
	return cmd
}

func tokenCommand(src *command.Source) *cobra.Command {
	cmd := command.Group("token", "Manage your tokens, which stand in for your password",
		tokenListCommand(src), tokenCreateCommand(src), tokenRevokeCommand(src))
	return addServer(cmd)
}

func tokenListCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{Use: "list", Short: "List your tokens, the newest first", Args: cobra.NoArgs,
		Long: "List your personal tokens, and the refresh tokens that clients such as docker have got at a log-in."}
	listing := command.AddListing(cmd)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, _ []string) error {
		list, more, err := api.List(cmd.Context(), c, api.ListTokens, api.TokenQuery{}, listing.Limit)
		if err != nil {
			return err
		}
		return command.PrintList(cmd, listing, list, more, func(t api.TokenView) string { return t.UUID }, func(w io.Writer) error {
			rows := make([][]string, len(list))
			for i, t := range list {
				rows[i] = []string{t.UUID, t.Kind, t.Title, limited(t.Repositories), limited(t.Actions), ends(t.ExpiresAt), clock(t.LastUsedAt)}
			}
			return table(w, []string{"UUID", "KIND", "TITLE", "REPOSITORIES", "ACTIONS", "ENDS", "LAST USED"}, rows, more)
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
	cmd := &cobra.Command{
		Use: "revoke TOKEN", Short: "Revoke a token: nobody can use it any longer", Args: cobra.ExactArgs(1),
		Long: "Revoke a token: nobody can use it any longer. TOKEN is its title, its UUID, or how that begins, as \"purser token list\" shows them.",
	}
	yes := command.AddYes(cmd)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		id, err := identifyToken(cmd.Context(), c, args[0])
		if err != nil {
			return err
		}
		item, title := api.TokenItem{UUID: id}, ""
		if !*yes {
			t, err := api.GetToken.Call(cmd.Context(), c, item)
			if err != nil {
				return err
			}
			title = t.Token.Title
		}
		if err := command.Confirm(cmd, *yes, "Revoke token %s (%s)? That can't be undone.", id, command.Printable(title)); err != nil {
			return err
		}
		if _, err := api.RevokeToken.Call(cmd.Context(), c, item); err != nil {
			return fmt.Errorf("revoking the token: %w", err)
		}
		return say(cmd, "Revoked token %s.\n", id)
	})
	return cmd
}

func sessionCommand(src *command.Source) *cobra.Command {
	return addServer(command.Group("session", "See where you are logged in by a browser, and end log-ins", sessionListCommand(src), sessionEndCommand(src)))
}

func sessionListCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{Use: "list", Short: "List the log-ins of browsers to your account, the newest first", Args: cobra.NoArgs}
	listing := command.AddListing(cmd)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, _ []string) error {
		list, more, err := api.List(cmd.Context(), c, api.ListSessions, api.Paging{}, listing.Limit)
		if err != nil {
			return err
		}
		return command.PrintList(cmd, listing, list, more, func(s api.SessionView) string { return s.ID }, func(w io.Writer) error {
			rows := make([][]string, len(list))
			for i, s := range list {
				rows[i] = []string{s.ID, s.Address, clock(&s.LastUsedAt), clock(&s.CreatedAt), s.UserAgent}
			}
			return table(w, []string{"ID", "FROM", "LAST USED", "SINCE", "BROWSER"}, rows, more)
		})
	})
	return cmd
}

func sessionEndCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{Use: "end ID", Short: "End a log-in of a browser", Args: cobra.ExactArgs(1)}
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		id, err := identifySession(cmd.Context(), c, args[0])
		if err != nil {
			return err
		}
		if _, err := api.EndSession.Call(cmd.Context(), c, api.SessionItem{ID: id}); err != nil {
			return err
		}
		return say(cmd, "Ended log-in %s.\n", id)
	})
	return cmd
}
