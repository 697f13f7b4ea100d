package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/api"
)

func loginCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "login [SERVER]", Short: "Log in to a registry, for further commands", Args: cobra.MaximumNArgs(1),
		Long: "Log in to a registry. Without --password-stdin, the command asks for the password on the terminal.\n" +
			"It makes a personal token, which is valid until you log out or as long as --expires says, and\n" +
			"stores that in a file that only you can read: purser/credentials.json in $XDG_CONFIG_HOME, by\n" +
			"default ~/.config. What you make with a token that ends, such as a robot's secret, ends with it.\n" +
			"The command doesn't store the password. In place of the password you may give a personal token or the secret of a robot, which is\n" +
			"stored as it is. If $" + api.TokenVariable + " or $" + api.TokenFileVariable + " is set, commands use that token and not the stored one.",
		Example: "  purser login registry.example.com -u alice\n" +
			"  purser login registry.example.com --username acme+ci --password-stdin < secret",
	}
	var name string
	cmd.Flags().VarP(checkedText{&name, notEmpty}, "username", "u", "log in as the account `NAME`")
	input, expires := addPasswordStdin(cmd), addExpiry(cmd, "the log-in ends")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, logins, err := loginTarget(src, cmd, args)
		if err != nil {
			return err
		}
		if err := c.CheckPlain(command.Insecure(cmd)); err != nil {
			return err
		}
		needed, err := c.NeedsLogin(cmd.Context())
		if err != nil {
			return err
		}
		if !needed {
			return say(cmd, "The registry at %s is open: everybody who reaches it may do everything, and nobody needs to log in.\n", c.Name())
		}
		if name == "" {
			if name, err = askName(cmd); err != nil {
				return err
			}
		}
		secret, err := input.read(cmd, "Password: ")
		if err != nil {
			return err
		}
		return logIn(cmd, c, logins, name, secret, *expires)
	}
	return addServer(cmd)
}

// loginTarget returns a client of the registry to log in to or out of, and the user's log-ins.
func loginTarget(src *command.Source, cmd *cobra.Command, args []string) (*api.Client, *command.Logins, error) {
	server := ""
	if len(args) > 0 {
		server = args[0]
	}
	c, err := src.Server(cmd, server)
	if err != nil {
		return nil, nil, err
	}
	logins, err := src.Logins()
	return c, logins, err
}

// logIn checks the password or secret of an account, and stores a token. A token that it makes
// ends at `expires`, nil: never.
func logIn(cmd *cobra.Command, c *api.Client, logins *command.Logins, name, secret string, expires *time.Time) error {
	ctx, key, insecure := cmd.Context(), api.ServerKey(c.Server()), command.Insecure(cmd)
	withName := c.With(api.Credentials{Name: name, Password: secret, Insecure: insecure})
	who, err := api.GetOwnUser.Call(ctx, withName, api.Paging{})
	if err != nil {
		return err
	}
	if who.Anonymous {
		return fmt.Errorf("%s doesn't say who you are: is it a Purser registry of this version?", c.Name())
	}
	login := command.Login{Name: who.Username, Token: secret}
	if !isSecret(secret) {
		if login, err = makeToken(ctx, withName, who.Username, expires); err != nil {
			return err
		}
	}
	var before command.Login
	err = logins.Change(func(servers map[string]command.Login) { before, servers[key] = servers[key], login })
	if err != nil {
		return errors.Join(err, revoke(ctx, c, login, insecure)) // nobody knows the token otherwise
	}
	if before.Token != login.Token {
		if err := revoke(ctx, c, before, insecure); err != nil {
			warn(cmd, []string{fmt.Sprintf("token %s of your log-in before is still valid: %v", before.TokenID, err)})
		}
	}
	text := fmt.Sprintf("Logged in to %s as %s.", c.Name(), command.Printable(login.Name))
	if login.Expires != nil {
		text += " The log-in ends on " + login.Expires.Local().Format(time.DateOnly) + "."
	}
	return say(cmd, "%s\n", text)
}

// isSecret says whether a text has the form of a personal token or of a robot's secret, which
// the registry accepts as Bearer.
func isSecret(text string) bool {
	return strings.HasPrefix(text, "purser_pat_") || strings.HasPrefix(text, "purser_robot_")
}

// makeToken makes a personal token of the account of a client.
func makeToken(ctx context.Context, c *api.Client, name string, expires *time.Time) (command.Login, error) {
	host, err := os.Hostname()
	if err != nil {
		host = "an unknown host"
	}
	title := "purser CLI on " + host
	title = strings.ToValidUTF8(title[:min(len(title), 255)], "")
	made, err := api.CreateToken.Call(ctx, c, api.TokenNew{Body: api.NewTokenForm{Title: title, ExpiresAt: expires}})
	if err != nil {
		return command.Login{}, err
	}
	return command.Login{Name: name, Token: made.Token.Code, TokenID: made.Token.UUID, Expires: made.Token.ExpiresAt}, nil
}

// revoke revokes a log-in's token, if the log-in has made the token. It is no error if the token
// isn't valid any longer.
func revoke(ctx context.Context, c *api.Client, l command.Login, insecure bool) error {
	if l.TokenID == "" {
		return nil
	}
	c = c.With(api.Credentials{Token: l.Token, From: "your log-in", Insecure: insecure})
	_, err := api.RevokeToken.Call(ctx, c, api.TokenItem{UUID: l.TokenID})
	if e, ok := errors.AsType[*api.Error](err); ok && (e.Status == http.StatusUnauthorized || e.Status == http.StatusNotFound) {
		return nil
	}
	return err
}

func logoutCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "logout [SERVER]", Short: "Log out of a registry, and revoke the token", Args: cobra.MaximumNArgs(1),
		Long: "Log out of a registry: the token that \"purser login\" has made is revoked and forgotten. A token that\n" +
			"you have given to \"purser login\" in place of a password is forgotten only.",
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, logins, err := loginTarget(src, cmd, args)
		if err != nil {
			return err
		}
		key := api.ServerKey(c.Server())
		login, found, err := logins.Of(key)
		if err != nil {
			return err
		}
		if !found {
			return say(cmd, "You are not logged in to %s.\n", c.Name())
		}
		revoked := revoke(cmd.Context(), c, login, command.Insecure(cmd))
		err = logins.Change(func(servers map[string]command.Login) {
			if servers[key].Token == login.Token { // otherwise somebody has logged in meanwhile
				delete(servers, key)
			}
		})
		if err != nil {
			return err
		}
		if revoked != nil {
			return fmt.Errorf("the token is forgotten here, but it is still valid; \"purser token revoke %s\" revokes it after another log-in: %w", login.TokenID, revoked)
		}
		return say(cmd, "Logged out of %s.\n", c.Name())
	}
	return addServer(cmd)
}
