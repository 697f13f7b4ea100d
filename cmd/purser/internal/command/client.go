package command

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/operatorfile"
)

// AddClientFlags adds the flags that say which registry a command asks, and how.
func AddClientFlags(flags *pflag.FlagSet) {
	flags.String("server", "", "ask the registry at this `URL` (default: $"+api.ServerVariable+", else that of \"purser login\", else "+api.DefaultServer+")")
	AddInsecure(flags)
}

// AddInsecure adds the flag --insecure.
func AddInsecure(flags *pflag.FlagSet) {
	flags.Bool(api.InsecureFlag, false, "send credentials over plain http to another machine too, where others may read them")
}

// Server returns a client for `cmd` that sends no credentials. The registry's URL is `arg`
// unless it is "", else the flag --server, else that of NextServer.
func (s *Source) Server(cmd *cobra.Command, arg string) (*api.Client, error) {
	text, from := arg, "SERVER"
	if flag := cmd.Flags().Lookup("server"); text == "" && flag != nil && flag.Changed {
		text, from = flag.Value.String(), "--server"
		if text == "" {
			return nil, Usagef("--server: it is empty")
		}
	}
	if text == "" {
		var err error
		if text, from, err = s.NextServer(); err != nil {
			return nil, err
		}
		if from == FromLogins {
			if cmd.Annotations == nil {
				cmd.Annotations = make(map[string]string)
			}
			cmd.Annotations[unnamedServer] = text
		}
	}
	server, err := api.ParseServer(text)
	if err != nil {
		return nil, Usagef("%s: %w", from, err)
	}
	return api.NewClient(server), nil
}

// unnamedServer is the annotation of a command that asks a registry which the user hasn't named: Confirm names it.
const unnamedServer = "unnamed server"

// FromLogins is where NextServer has a registry from that the user is logged in to.
const FromLogins = "the log-ins"

// NextServer returns the registry that commands ask without an argument or a flag, and what has named it, "" for
// nothing: that of the environment
// variable PURSER_SERVER, else the one of the log-ins that they prefer, else api.DefaultServer. If the environment
// has a token, the log-ins don't count: it needn't be for their registry, which would get it.
func (s *Source) NextServer() (server, from string, err error) {
	if value := s.variable(api.ServerVariable); value != "" {
		return value, api.ServerVariable, nil
	}
	if s.variable(api.TokenVariable) == "" && s.variable(api.TokenFileVariable) == "" {
		if logins, err := s.Logins(); err == nil { // without a home there are no log-ins
			if server, err := logins.Preferred(); err != nil || server != "" {
				return server, FromLogins, err
			}
		}
	}
	return api.DefaultServer, "", nil
}

// Insecure says whether --insecure is given.
func Insecure(cmd *cobra.Command) bool {
	on, err := cmd.Flags().GetBool(api.InsecureFlag)
	return err == nil && on
}

// Client makes the API client for `cmd`, for the registry that Server returns. The client sends
// the token of PURSER_TOKEN, else of PURSER_TOKEN_FILE, else of the user's log-in to that
// registry, else none.
func (s *Source) Client(cmd *cobra.Command) (*api.Client, error) {
	c, err := s.Server(cmd, "")
	if err != nil {
		return nil, err
	}
	token, from, err := s.token()
	if err == nil && token == "" {
		token, from, err = s.storedToken(api.ServerKey(c.Server()))
	}
	if err != nil {
		return nil, err
	}
	return c.With(api.Credentials{Token: token, From: from, Insecure: Insecure(cmd)}), nil
}

// maxToken limits the length of a token, in bytes.
const maxToken = 64 << 10

// token returns the token that the environment has, "" if it has none, and the variable that
// has it.
func (s *Source) token() (token, from string, err error) {
	from = api.TokenVariable
	token = s.variable(from)
	if token == "" {
		from = api.TokenFileVariable
		path := s.variable(from)
		if path == "" {
			return "", "", nil
		}
		file, err := operatorfile.Read(context.Background(), path, maxToken)
		if err != nil {
			return "", "", Usagef("%s: %w", from, err)
		}
		if token = string(file.Text); strings.TrimSpace(token) == "" {
			return "", "", Usagef("%s: %s is empty", from, path)
		}
	}
	token = strings.TrimSpace(token)
	for _, c := range []byte(token) {
		if c <= ' ' || c >= 0x7f {
			return "", "", Usagef("%s: a token has only visible ASCII characters, and no spaces", from) // without the token
		}
	}
	return token, "$" + from, nil
}

// storedToken returns the token of the user's log-in to a registry, "" if there is none.
func (s *Source) storedToken(server string) (token, from string, err error) {
	logins, err := s.Logins()
	if err != nil {
		return "", "", nil // without a home there are no log-ins
	}
	login, ok, err := logins.Of(server)
	if err != nil || !ok {
		return "", "", err
	}
	return login.Token, fmt.Sprintf("account %s in %s", login.Name, logins.Path()), nil
}
