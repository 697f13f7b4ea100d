package serve

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/backend"
	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/auth/identity"
	"github.com/purser-registry/purser/internal/auth/password"
	"github.com/purser-registry/purser/internal/auth/session"
	"github.com/purser-registry/purser/internal/auth/throttle"
	"github.com/purser-registry/purser/internal/auth/token"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server"
)

// access is the registry's access control with the workers that it needs. If access control is
// off, `control` is nil.
type access struct {
	control *auth.Control
	oidc    *identity.Provider // nil: none
	workers []func(context.Context) error
	// firstPassword is the generated password of the administrator that was created at this
	// start, "" if none was.
	firstPassword string
	firstAdmin    string // its name, "" if none was created
}

// warnPlain warns if passwords cross the network without TLS: other machines reach the registry,
// and neither the registry nor, as far as it is configured, a proxy before it uses TLS.
func warnPlain(cfg *config.Config, socks *sockets, log *slog.Logger) {
	if cfg.Auth.Enabled && socks.cert == nil && !isLoopback(socks.registry) && len(cfg.HTTP.TrustedProxies) == 0 &&
		!strings.HasPrefix(cfg.HTTP.ExternalURL, "https://") {
		log.Warn("passwords and tokens cross the network unencrypted: set http.tls.cert and http.tls.key or http.tls.acme.hosts, or put a proxy with TLS in front and set http.external_url")
	}
}

// openAccess makes the access control, and at the first start the first administrator.
func openAccess(ctx context.Context, cfg *config.Config, c *catalog.Catalog, p dependencies, hasher *password.Hasher) (a access, err error) {
	if !cfg.Auth.Enabled {
		return a, nil
	}
	o := auth.Options{
		DB: p.db, Passwords: hasher, Verified: password.NewCache(password.CacheOptions{}),
		AnonymousPull: cfg.Auth.AnonymousPull, PublicByDefault: cfg.Auth.DefaultVisibility == catalog.Public,
		Most: mostOf(cfg), MayDelete: p.clocks.Check, Log: p.log, Worker: p.loops,
		Failures: throttle.NewFailures(throttle.FailuresOptions{DB: p.db, Log: p.log, Metrics: p.metrics,
			AccountBurst: cfg.Auth.Login.AccountFailures, AddressBurst: cfg.Auth.Login.AddressFailures}),
	}
	if o.Tokens, err = token.NewKeys(token.Options{DB: p.db, Issuer: "purser", Service: server.ServiceName(cfg.HTTP.ExternalURL),
		TTL: cfg.Auth.TokenTTL, Log: p.log, Metrics: p.loops}); err != nil {
		return a, err
	}
	if o.Sessions, err = session.NewSessions(session.Options{DB: p.db, Idle: cfg.Auth.SessionIdle, MaxAge: cfg.Auth.SessionMaxAge,
		Most: cfg.Limits.Sessions, ExternalURL: cfg.HTTP.ExternalURL, MayDelete: p.clocks.Check, Log: p.log, Worker: p.loops}); err != nil {
		return a, err
	}
	a.workers = append(a.workers, o.Tokens.Run, o.Sessions.Run)
	if cfg.Auth.Htpasswd != "" {
		if o.Htpasswd, err = password.OpenFile(cfg.Auth.Htpasswd, password.FileOptions{Log: p.log, Metrics: p.loops}); err != nil {
			return a, fmt.Errorf("auth.htpasswd: %w", err)
		}
		a.workers = append(a.workers, o.Htpasswd.Run)
	}
	if err := a.openProviders(ctx, cfg.Auth, &o, p.log); err != nil {
		return a, err
	}
	o.ReservedNamespaces = cfg.Auth.ReservedNamespaces
	if cfg.Auth.PersonalNamespaces {
		o.NewNamespace = func(ctx context.Context, name string) (bool, error) { return newNamespace(ctx, c, name) }
	}
	if a.control, err = auth.New(o); err != nil {
		return a, err
	}
	a.workers = append(a.workers, a.control.Run)
	return a, a.createFirst(ctx, cfg.Auth)
}

// mostOf returns how many things accounts may make.
func mostOf(cfg *config.Config) auth.Most {
	l := cfg.Limits
	return auth.Most{
		Robots: l.Robots, Teams: l.Teams, TeamMembers: l.TeamMembers, Permissions: l.Permissions,
		Tokens: l.Tokens, RefreshTokens: l.RefreshTokens, FederatedTokens: l.FederatedTokens, FederationRules: l.FederationRules,
	}
}

// openProviders makes what asks other providers for the identities of people and pipelines.
func (a *access) openProviders(ctx context.Context, cfg config.Auth, o *auth.Options, log *slog.Logger) (err error) {
	if l := cfg.LDAP; l.URL != "" {
		if o.Directory, err = backend.NewDirectory(l, log); err != nil {
			return err
		}
		o.DirectoryRecheck = l.Recheck
		if len(l.AdminGroups) > 0 {
			o.SuperusersOf = append(o.SuperusersOf, auth.SourceLDAP)
		}
	}
	if i := cfg.OIDC; i.Issuer != "" {
		if a.oidc, err = backend.NewProvider(ctx, i, log); err != nil {
			return err
		}
		if len(i.AdminGroups) > 0 {
			o.SuperusersOf = append(o.SuperusersOf, auth.SourceOIDC)
		}
	}
	if cfg.Federation.Enabled {
		roots, err := x509.SystemCertPool()
		if err != nil {
			return fmt.Errorf("reading the system's certificate authorities: %w", err)
		}
		o.Federation = identity.NewVerifier(identity.VerifierOptions{AllowPrivate: cfg.Federation.AllowPrivate, OwnIssuers: cfg.Federation.OwnIssuers, RootCAs: roots})
	}
	return nil
}

// createFirst creates the first administrator if the registry has none.
func (a *access) createFirst(ctx context.Context, cfg config.Auth) error {
	name, pass := cfg.InitialAdmin, string(cfg.InitialPassword)
	if pass == "" {
		pass = password.Generate()
	}
	any, err := a.control.HasAdministrator(ctx)
	if err != nil || any {
		return err
	}
	hash, err := a.control.Passwords().Hash(ctx, pass)
	if err != nil {
		return err
	}
	made, err := a.control.CreateFirstAdministrator(ctx, name, hash)
	if err != nil || !made {
		return err
	}
	if a.firstAdmin = name; cfg.InitialPassword == "" {
		a.firstPassword = pass
	}
	return nil
}

// text returns the lines about log-ins that the registry prints when it is ready. `host` is the
// registry's host for a client.
func (a access) text(host string) string {
	switch {
	case a.control == nil:
		return ""
	case a.firstPassword != "":
		return fmt.Sprintf("  log in    docker login %s --username %s\n            with the password %s\n            It is shown this once. Change it with \"purser user password %[2]s\".\n",
			host, a.firstAdmin, a.firstPassword)
	case a.firstAdmin != "":
		return fmt.Sprintf("  log in    docker login %s --username %s, with the password of auth.initial_password\n", host, a.firstAdmin)
	}
	return fmt.Sprintf("  log in    docker login %s\n", host)
}

// newNamespace creates a namespace. It returns false if there is one of that name, or if the
// name can't be a namespace's.
func newNamespace(ctx context.Context, c *catalog.Catalog, name string) (bool, error) {
	if oci.ValidateName(name) != nil {
		return false, nil
	}
	err := c.CreateNamespace(ctx, name)
	if e, ok := errors.AsType[*oci.Error](err); ok && e.HTTPStatus() == http.StatusBadRequest {
		return false, nil
	}
	return err == nil, err
}

// hashCommand is the name of a command that hashes passwords for serve, in a process of its own.
const hashCommand = "hash-passwords"

// HashCommand makes the command that serve runs to hash passwords. Help doesn't list it.
func HashCommand() *cobra.Command {
	return &cobra.Command{
		Use:    hashCommand,
		Short:  "Hash the passwords that purser serve gives on standard input",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return password.Work(cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
}

// openHasher makes the Hasher of the registry. Its processes get neither arguments with secrets
// nor the environment.
func openHasher(p dependencies) *password.Hasher {
	o := password.HasherOptions{Metrics: p.metrics, Log: p.log}
	if command.Main && runtime.GOOS == "linux" {
		o.Command = func() *exec.Cmd {
			// This file is the running program, also after an upgrade has replaced it on disk.
			cmd := exec.Command("/proc/self/exe", hashCommand)
			cmd.Args[0] = os.Args[0]
			cmd.Env = []string{"GOMAXPROCS=1"} // it computes one hash at a time
			return cmd
		}
	}
	return password.NewHasher(o)
}
