package backend

import (
	"context"
	"log/slog"

	"github.com/purser-registry/purser/internal/auth/identity"
	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/operatorfile"
	"github.com/purser-registry/purser/internal/pullstats/redispulls"
)

// NewDirectory makes the client of the LDAP directory. It doesn't connect.
func NewDirectory(l config.LDAP, log *slog.Logger) (*identity.Directory, error) {
	if _, err := operatorfile.Roots(context.Background(), l.CAFile); err != nil {
		return nil, of("auth.ldap.ca_file", err)
	}
	d, err := identity.NewDirectory(identity.DirectoryOptions{
		URL: l.URL, StartTLS: l.StartTLS, CAFile: l.CAFile, BindDN: l.BindDN, BindPassword: string(l.BindPassword),
		UserBase: l.UserBase, UserFilter: l.UserFilter, NameAttribute: l.NameAttribute, EmailAttribute: l.EmailAttribute,
		GroupBase: l.GroupBase, GroupFilter: l.GroupFilter, GroupAttribute: l.GroupAttribute, MemberOfAttribute: l.MemberOfAttribute,
		AdminGroups: l.AdminGroups, RequiredGroups: l.RequiredGroups, AllowPlain: l.AllowPlain, Timeout: l.Timeout,
		PasswordChangedAttribute: l.PasswordChangedAttribute, Log: log,
	})
	return d, of("auth.ldap", err)
}

// NewProvider makes the client of the OpenID Connect provider. It sends no request.
func NewProvider(ctx context.Context, o config.OIDC, log *slog.Logger) (*identity.Provider, error) {
	roots, err := operatorfile.Roots(ctx, o.CAFile)
	if err != nil {
		return nil, of("auth.oidc.ca_file", err)
	}
	p, err := identity.NewProvider(identity.ProviderOptions{
		Issuer: o.Issuer, ClientID: o.ClientID, ClientSecret: string(o.ClientSecret), Scopes: o.Scopes,
		UsernameClaim: o.UsernameClaim, EmailClaim: o.EmailClaim, GroupsClaim: o.GroupsClaim,
		AdminGroups: o.AdminGroups, RequiredGroups: o.RequiredGroups, Roots: roots, Timeout: o.Timeout, Log: log,
	})
	return p, of("auth.oidc", err)
}

// NewRedis makes the client of the Redis that counts pulls. It doesn't connect. `stats` is the database
// of the statistics.
func NewRedis(cfg *config.Config, stats *db.DB) (*redispulls.Client, error) {
	roots, err := operatorfile.Roots(context.Background(), cfg.Redis.CAFile)
	if err != nil {
		return nil, of("redis.ca_file", err)
	}
	r, err := redispulls.NewClient(string(cfg.Redis.URL), stats)
	if err != nil {
		return nil, of("redis.url", err)
	}
	r.Trust(roots)
	r.Wait(cfg.Redis.Timeout)
	return r, nil
}
