package backend

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/purser-registry/purser/internal/auth/password"
	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/operatorfile"
	"github.com/purser-registry/purser/internal/webhook"
)

// settingError is what is wrong with a setting, or with a group of settings.
type settingError struct {
	key string
	err error
}

func (e *settingError) Error() string { return e.key + ": " + e.err.Error() }
func (e *settingError) Unwrap() error { return e.err }

// of returns err as an error of the setting `key`, or as it is if it names its setting; nil if err is nil.
func of(key string, err error) error {
	if _, named := errors.AsType[*settingError](err); named || err == nil {
		return err
	}
	return &settingError{key, err}
}

// CheckSettings looks at what [config.Config.Validate] doesn't: at the files that settings name, and at
// values that other packages read. It connects to nothing. The server calls it before it starts, and so
// do the commands that check a configuration; so what they find valid can be served. `loaded` is the
// error of loading the configuration, nil if it is valid. The error joins it with all further problems,
// each with the place of its setting. What `loaded` says of a setting isn't said again.
func CheckSettings(ctx context.Context, cfg *config.Config, loaded error) error {
	var problems []error
	for _, err := range []error{
		checkDSN("database.main", cfg.Database.Main),
		checkDSN("database.stats", cfg.Database.Stats),
		checkCertificate(ctx, cfg.HTTP.TLS),
		StorageOf(cfg.Storage).check(ctx),
		checkRedis(cfg),
		checkHtpasswd(cfg.Auth),
		checkDirectory(cfg.Auth),
		checkProvider(ctx, cfg.Auth),
		of("autoprune.webhook.url", webhook.CheckURL(string(cfg.Autoprune.Webhook.URL), cfg.Autoprune.Webhook.AllowPrivate)),
		of("autoprune.webhook.secret", webhook.CheckSecret(string(cfg.Autoprune.Webhook.Secret))),
	} {
		s, ok := errors.AsType[*settingError](err)
		switch {
		case err == nil:
		case !ok:
			problems = append(problems, err)
		case s.key == "database.stats" && cfg.Database.Stats == cfg.Database.Main:
		case loaded == nil || !strings.Contains(loaded.Error(), s.key+": "):
			problems = append(problems, cfg.Problem(s.key, s.err))
		}
	}
	if len(problems) == 0 {
		return loaded
	}
	return errors.Join(append([]error{loaded}, problems...)...)
}

func checkDSN(key string, dsn config.DSN) error {
	if dsn == "" {
		return nil
	}
	return of(key, db.CheckDSN(string(dsn)))
}

func checkCertificate(ctx context.Context, t config.TLS) error {
	if t.Cert == "" || t.Key == "" {
		_, err := operatorfile.Roots(ctx, t.ACME.CAFile)
		return of("http.tls.acme.ca_file", err)
	}
	cert, err := operatorfile.Read(ctx, t.Cert, operatorfile.MaxPEM)
	if err != nil {
		return of("http.tls.cert", err)
	}
	key, err := operatorfile.Read(ctx, t.Key, operatorfile.MaxPEM)
	if err != nil {
		return of("http.tls.key", err)
	}
	if _, err := tls.X509KeyPair(cert.Text, key.Text); err != nil {
		return of("http.tls.cert", fmt.Errorf("%s can't be used with the key %s: %w", t.Cert, t.Key, err))
	}
	return nil
}

func checkRedis(cfg *config.Config) error {
	if cfg.Redis.URL == "" {
		return nil
	}
	redis, err := NewRedis(cfg, nil)
	if err != nil {
		return err
	}
	return redis.Close()
}

// The server reads the settings of log-ins only if access control is on. So do the three checks below.

func checkHtpasswd(a config.Auth) error {
	if !a.Enabled || a.Htpasswd == "" {
		return nil
	}
	_, err := password.OpenFile(a.Htpasswd, password.FileOptions{Log: slog.New(slog.DiscardHandler)})
	return of("auth.htpasswd", err)
}

func checkDirectory(a config.Auth) error {
	if !a.Enabled || a.LDAP.URL == "" {
		return nil
	}
	_, err := NewDirectory(a.LDAP, slog.New(slog.DiscardHandler))
	return err
}

func checkProvider(ctx context.Context, a config.Auth) error {
	if !a.Enabled || a.OIDC.Issuer == "" {
		return nil
	}
	_, err := NewProvider(ctx, a.OIDC, slog.New(slog.DiscardHandler))
	return err
}
