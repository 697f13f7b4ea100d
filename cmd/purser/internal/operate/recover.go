package operate

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/auth/password"
	"github.com/purser-registry/purser/internal/config"
)

// RecoverCommand returns the command "recover", a subcommand of "user".
func RecoverCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "recover [NAME]",
		Short: "Let an administrator in who is locked out, with a new password",
		Long: "Let an administrator in who is locked out. The command works on the database of the configuration,\n" +
			"whether or not a server runs, and asks nobody for a password: whoever may read the configuration may\n" +
			"run it. The account NAME (default: auth.initial_admin) gets a new password, which is printed once. It\n" +
			"is enabled and made an administrator of the registry, and created if it doesn't exist. Running\n" +
			"servers accept the password within some seconds.",
		Args: cobra.MaximumNArgs(1),
	}
	out := command.AddFormat(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return withDSN(src, cmd, func(ctx context.Context, cfg *config.Config, dsn string) error {
			name := cfg.Auth.InitialAdmin
			if len(args) > 0 {
				name = args[0]
			}
			if err := auth.CheckAccountName(name); err != nil {
				return command.Usagef("NAME: %w", err)
			}
			metadata, err := openForCheck(ctx, cmd, cfg, dsn)
			if err != nil {
				return err
			}
			defer metadata.Close()
			r := recovered{Name: name, Password: password.Generate()}
			if r.Created, err = recoverAccount(byCommand(ctx, cmd), auth.NewStore(metadata, auth.Most{}), name, r.Password); err != nil {
				return err
			}
			return out.Print(cmd.OutOrStdout(), r, r.write)
		})
	}
	return cmd
}

// recovered is the result of the command recover.
type recovered struct {
	Name     string `json:"username"`
	Password string `json:"password"`
	Created  bool   `json:"created"`
}

func (r recovered) write(w io.Writer) error {
	done := "has a new password, is enabled and administers the registry"
	if r.Created {
		done = "was created and administers the registry"
	}
	_, err := fmt.Fprintf(w, "Account %s %s.\nIts password, which isn't told again: %s\n", r.Name, done, r.Password)
	return err
}

// recoverAccount gives an administrator's account a password, and enables it. It creates the
// account if there is none.
func recoverAccount(ctx context.Context, s *auth.Store, name, pass string) (created bool, err error) {
	hash, err := password.NewHasher(password.HasherOptions{}).Hash(ctx, pass)
	if err != nil {
		return false, err
	}
	account, err := s.Account(ctx, name)
	if errors.Is(err, auth.ErrUnknown) {
		_, err = s.CreateAccount(ctx, auth.NewAccount{Name: name, PasswordHash: hash, Superuser: true})
		if !errors.Is(err, auth.ErrExists) {
			return err == nil, err
		}
		account, err = s.Account(ctx, name) // somebody has created it meanwhile
	}
	if err != nil {
		return false, err
	}
	if account.Source != auth.SourceLocal {
		return false, command.Refuse(fmt.Sprintf("the password of account %s is checked by its source %s, and not by Purser: name another account, which is created if it doesn't exist",
			name, account.Source))
	}
	yes, no := true, false
	return false, s.ChangeAccount(ctx, name, auth.AccountChange{PasswordHash: &hash, Superuser: &yes, Disabled: &no})
}
