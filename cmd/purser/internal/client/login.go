package client

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/auth/password"
	"github.com/purser-registry/purser/internal/worker"
)

func loginCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "login [SERVER]", Short: "Log in to a registry, for further commands", Args: cobra.MaximumNArgs(1),
		Long: "Log in to a registry. Without --password-stdin, the command asks for the password on the terminal.\n" +
			"It makes a personal token, which is valid until you log out or as long as --expires says, and\n" +
			"stores that in a file that only you can read: purser/credentials.json in $XDG_CONFIG_HOME, by\n" +
			"default ~/.config. If it is the only registry that you are logged in to, commands ask it unless --server or\n" +
			"$" + api.ServerVariable + " names another. Of several, they ask the one with --default. What you make with a token that ends, such as a robot's secret, ends with it.\n" +
			"If you are logged in to the registry as another account, the command asks before it replaces that log-in.\n" +
			"The command doesn't store the password. In place of the password you may give a personal token or the secret of a robot, which is\n" +
			"stored as it is. If $" + api.TokenVariable + " or $" + api.TokenFileVariable + " is set, commands use that token and not the stored one.",
		Example: "  purser login registry.example.com -u alice\n" +
			"  purser login registry.example.com --username acme+ci --password-stdin < secret\n" +
			"  purser login registry.example.com --default",
	}
	var name string
	cmd.Flags().VarP(checkedText{&name, notEmpty}, "username", "u", "log in as the account `NAME`")
	input, expires := addPasswordStdin(cmd), addExpiry(cmd, "the log-in ends")
	replace := cmd.Flags().Bool("replace", false, "replace the log-in of another account without asking")
	preferred := cmd.Flags().Bool("default", false, "let commands ask this registry unless another is named; if you are logged in, this asks for no password")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, logins, err := loginTarget(src, cmd, args)
		if err != nil {
			return err
		}
		key := api.ServerKey(c.Server())
		if *preferred && name == "" && !input.stdin {
			if _, found, err := logins.Of(key); err != nil || found {
				return errors.Join(err, prefer(src, cmd, c, logins))
			}
		}
		if err := c.CheckPlain(command.Insecure(cmd)); err != nil {
			return err
		}
		needed, err := c.NeedsLogin(cmd.Context())
		if err != nil {
			return err
		}
		if !needed {
			return say(cmd, "The registry at %s is open: everybody who reaches it may do everything, and nobody needs to log in.\n%s\n", c.Name(), nextServer(src, c))
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
		if err := logIn(cmd, c, logins, newLogin{name, secret, *expires, *replace}); err != nil {
			return err
		}
		if *preferred {
			return prefer(src, cmd, c, logins)
		}
		return say(cmd, "%s\n", nextServer(src, c))
	}
	return addServer(cmd)
}

// prefer lets commands ask a registry to which the user is logged in.
func prefer(src *command.Source, cmd *cobra.Command, c *api.Client, logins *command.Logins) error {
	if err := logins.SetDefault(api.ServerKey(c.Server())); err != nil {
		return err
	}
	return say(cmd, "%s\n", nextServer(src, c))
}

// nextServer says which registry further commands ask, and how they ask this one.
func nextServer(src *command.Source, c *api.Client) string {
	key := api.ServerKey(c.Server())
	next, from, err := src.NextServer()
	if err != nil { // there are several log-ins
		return fmt.Sprintf("You are logged in to several registries, so commands need --server or $%s. \"purser login %s --default\" lets them ask this one.", api.ServerVariable, key)
	}
	because := map[string]string{
		api.ServerVariable: ", as $" + api.ServerVariable + " says", command.FromLogins: " unless --server or $" + api.ServerVariable + " names another",
		"": " unless --server or $" + api.ServerVariable + " names another",
	}[from]
	server, err := api.ParseServer(next)
	switch {
	case err == nil && api.ServerKey(server) == key:
		return "Commands ask this registry" + because + "."
	case from == command.FromLogins:
		return fmt.Sprintf("Commands ask %s%s: this one is --server %s, and \"purser login %[3]s --default\" lets them ask it.", next, because, key)
	}
	return fmt.Sprintf("Commands ask %s%s: this one is --server %s.", command.Printable(next), because, key)
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
	command.NamesServer(cmd)
	logins, err := src.Logins()
	return c, logins, err
}

// newLogin is what the user gives to log in.
type newLogin struct {
	name, secret string
	expires      *time.Time // of a token that the log-in makes; nil: never
	replace      bool       // the log-in of another account
}

// logIn checks the password or secret of an account, and stores a token. It replaces the log-in of another
// account only if the user says so.
func logIn(cmd *cobra.Command, c *api.Client, logins *command.Logins, n newLogin) error {
	ctx, key, insecure := cmd.Context(), api.ServerKey(c.Server()), command.Insecure(cmd)
	withName := c.With(api.Credentials{Name: n.name, Password: n.secret, Insecure: insecure})
	who, err := api.GetOwnUser.Call(ctx, withName, api.Paging{})
	if err != nil {
		return err
	}
	if who.Anonymous {
		return fmt.Errorf("%s doesn't say who you are: is it a Purser registry of this version?", c.Name())
	}
	asked, found, err := logins.Of(key)
	if err != nil {
		return err
	}
	if found && asked.Name != who.Username {
		if err := command.ConfirmBy(cmd, "--replace", n.replace, "You are logged in to %s as %s. Replace that log-in by one of %s?",
			c.Name(), command.Printable(asked.Name), command.Printable(who.Username)); err != nil {
			return err
		}
	}
	login := command.Login{Name: who.Username, Token: n.secret}
	if !isSecret(n.secret) {
		if login, err = makeToken(ctx, withName, who.Username, n.expires); err != nil {
			return err
		}
	}
	var before command.Login
	meanwhile := false // somebody else has logged in
	err = logins.Change(func(servers map[string]command.Login) {
		before = servers[key]
		if meanwhile = before.Token != "" && before.Name != login.Name && before.Token != asked.Token && !n.replace; !meanwhile {
			servers[key] = login
		}
	})
	if meanwhile && err == nil {
		err = command.Refuse(fmt.Sprintf("%s has logged in to %s meanwhile: add --replace to replace that log-in", command.Printable(before.Name), c.Name()))
	}
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

// passwordInput says from where a command reads a password: from the terminal without echo or,
// with --password-stdin, from standard input. No flag and no argument takes a password, since
// other users of the machine could see it in the list of processes.
type passwordInput struct{ stdin bool }

func addPasswordStdin(cmd *cobra.Command) *passwordInput {
	p := new(passwordInput)
	cmd.Flags().BoolVar(&p.stdin, "password-stdin", false, "read the password from standard input")
	return p
}

// maxPassword limits the length of what a user gives as a password, in bytes. It may also be the
// token of a pipeline, which is longer than passwords are.
const maxPassword = 32 << 10

// read reads a password. On a terminal it asks with the given prompt. Error: there is neither
// --password-stdin nor a terminal, or the password is empty or too long.
func (p *passwordInput) read(cmd *cobra.Command, prompt string) (string, error) {
	if p.stdin {
		raw, err := io.ReadAll(io.LimitReader(cmd.InOrStdin(), maxPassword+3)) // a line break, and a byte too many
		if err != nil {
			return "", fmt.Errorf("reading the password: %w", err)
		}
		return acceptable(string(bytes.TrimSuffix(bytes.TrimSuffix(raw, []byte("\n")), []byte("\r"))), maxPassword)
	}
	in, err := terminal(cmd, "the password: add --password-stdin, and give it on standard input")
	if err != nil {
		return "", err
	}
	text, err := hidden(cmd, in, prompt)
	if err != nil {
		return "", err
	}
	return acceptable(text, maxPassword)
}

// readNew is like read, for a new password. On a terminal it asks twice.
func (p *passwordInput) readNew(cmd *cobra.Command) (string, error) {
	text, err := p.read(cmd, "New password: ")
	if err == nil {
		text, err = acceptable(text, password.MaxLength)
	}
	if err != nil || p.stdin {
		return text, err
	}
	again, err := p.read(cmd, "The same again: ")
	if err == nil && again != text {
		err = command.Refuse("the two passwords differ: nothing was done")
	}
	return text, err
}

// acceptable returns an error if a password is empty or has more than `most` bytes.
func acceptable(text string, most int) (string, error) {
	switch {
	case text == "":
		return "", command.Usagef("the password is empty")
	case len(text) > most:
		return "", command.Usagef("the password has more than %d bytes", most)
	}
	return text, nil
}

// terminal returns the terminal on which the user can be asked. `what` ends the error's text.
func terminal(cmd *cobra.Command, what string) (*os.File, error) {
	in, ok := cmd.InOrStdin().(*os.File)
	if !ok || !command.IsTerminal(in) || !command.IsTerminal(cmd.ErrOrStderr()) {
		return nil, command.Usagef("there is no terminal to ask for %s", what)
	}
	return in, nil
}

// hidden asks for a password on a terminal, which doesn't show it. If the context ends, hidden
// restores the terminal and returns an error.
func hidden(cmd *cobra.Command, in *os.File, prompt string) (string, error) {
	fd := int(in.Fd())
	before, err := term.GetState(fd)
	if err != nil {
		return "", fmt.Errorf("asking for the password: %w", err)
	}
	text, err := whenAsked(cmd, prompt, func() (string, error) {
		raw, err := term.ReadPassword(fd)
		fmt.Fprintln(cmd.ErrOrStderr()) //nolint:errcheck // ends the line of the prompt
		return string(raw), err
	})
	if errors.Is(err, errInterrupted) {
		_ = term.Restore(fd, before)
	}
	return text, err
}

var errInterrupted = errors.New("interrupted")

// whenAsked prints a prompt and returns what `read` returns, or errInterrupted if the command's
// context ends first.
func whenAsked(cmd *cobra.Command, prompt string, read func() (string, error)) (string, error) {
	fmt.Fprint(cmd.ErrOrStderr(), prompt) //nolint:errcheck // the user sees it or not
	text, err := worker.Await(cmd.Context(), read)
	switch {
	case err != nil && cmd.Context().Err() != nil && errors.Is(err, cmd.Context().Err()):
		fmt.Fprintln(cmd.ErrOrStderr()) //nolint:errcheck // ends the line of the prompt
		return "", errInterrupted
	case err != nil && !errors.Is(err, io.EOF):
		return "", fmt.Errorf("reading the answer: %w", err)
	}
	return text, nil
}

// askName asks for the name of an account on the terminal.
func askName(cmd *cobra.Command) (string, error) {
	in, err := terminal(cmd, "the account: give --username")
	if err != nil {
		return "", err
	}
	name, err := whenAsked(cmd, "Username: ", func() (string, error) { return bufio.NewReader(in).ReadString('\n') })
	if name = strings.TrimSpace(name); err == nil && name == "" {
		err = command.Usagef("the name is empty")
	}
	return name, err
}
