package pgsession

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// SQLSTATE codes of connection errors.
const (
	codeInvalidAuthorization = "28000" // no pg_hba.conf line, or no such role
	codeInvalidPassword      = "28P01"
	codeUndefinedDatabase    = "3D000"
	codeTooManyConnections   = "53300"
	codeCannotConnectNow     = "57P03" // the server is starting or stopping
	codeNoPrivilege          = "42501"
)

// explained wraps an error; its text is one for operators instead of the wrapped error's text.
type explained struct {
	text string
	err  error
}

func (e *explained) Error() string { return e.text }
func (e *explained) Unwrap() error { return e.err }

// Explain returns err with a one-line text for operators if err is about a connection to
// PostgreSQL: which server refused it or failed, why, and what helps. `setting` is the key of
// the setting that contains the DSN; the text names it unless it is empty. Explain returns
// other errors unchanged.
func Explain(err error, setting string) error {
	if err == nil {
		return nil
	}
	if _, done := errors.AsType[*explained](err); done {
		return err
	}
	if c, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		if i, ok := errors.AsType[*ImposedError](err); ok {
			text := fmt.Sprintf("PostgreSQL at %s: %s", address(c.Config), i.For(dsn(setting)))
			return &explained{strings.Replace(err.Error(), c.Error(), text, 1), err}
		}
		return &explained{strings.Replace(err.Error(), c.Error(), explainConnect(c, setting), 1), err}
	}
	e, ok := errors.AsType[*pgconn.PgError](err)
	switch {
	case !ok || e.Code != codeNoPrivilege:
		return err
	case ofObject.MatchString(e.Message):
		return &explained{err.Error() + ": the role in " + dsn(setting) + " lacks this right, or its sessions act as another role. " +
			"Give it the right (GRANT …), or name the role that owns the tables; \"purser doctor\" says all that is lacking", err}
	}
	return &explained{err.Error() + ": the role in " + dsn(setting) + " lacks this right. Make it the owner of the database " +
		"(ALTER DATABASE … OWNER TO …), or grant it USAGE and CREATE on the schema", err}
}

// ofObject matches PostgreSQL's message that a role lacks a right on an object in a schema.
var ofObject = regexp.MustCompile(`^permission denied for (table|view|function|sequence) `)

// Misconfigured returns whether err is a connection error that remains until somebody changes
// the configuration: the server doesn't offer TLS, its certificate isn't trusted, or a session
// inherits a setting with which Purser can't work.
func Misconfigured(err error) bool {
	if _, ok := errors.AsType[*ImposedError](err); ok {
		return true
	}
	c, ok := errors.AsType[*pgconn.ConnectError](err)
	if !ok {
		return false
	}
	_, answered := errors.AsType[*pgconn.PgError](c)
	return !answered && (refusedTLS(c) || distrusted(c))
}

func explainConnect(c *pgconn.ConnectError, setting string) string {
	cfg, in := c.Config, dsn(setting)
	at := "PostgreSQL at " + address(cfg)
	e, answered := errors.AsType[*pgconn.PgError](c)
	switch {
	case !answered && refusedTLS(c):
		return fmt.Sprintf("%s offers no TLS, which sslmode in %s asks for: switch ssl on there, or say sslmode=disable", at, in)
	case !answered && distrusted(c):
		return fmt.Sprintf("%s has a certificate that can't be verified (%s): name its authority by sslrootcert in %s, and the host as the certificate does", at, reasons(c), in)
	case !answered:
		return fmt.Sprintf("%s can't be reached: %s", at, reasons(c))
	}
	switch e.Code {
	case codeInvalidPassword:
		return fmt.Sprintf("%s refuses the password of user %q: correct it in %s", at, cfg.User, in)
	case codeInvalidAuthorization:
		return fmt.Sprintf("%s doesn't let user %q in: %s. Correct %s, or pg_hba.conf there", at, cfg.User, e.Message, in)
	case codeUndefinedDatabase:
		return fmt.Sprintf("%s has no database %q: correct %s, or create it there (CREATE DATABASE %s OWNER %s)", at, cfg.Database, in, cfg.Database, cfg.User)
	case codeTooManyConnections:
		return fmt.Sprintf("%s gives user %q no further connection: %s. Raise the limit there (CONNECTION LIMIT of the role or the database, or max_connections), or let clients open fewer", at, cfg.User, e.Message)
	case codeCannotConnectNow:
		return fmt.Sprintf("%s takes no connections now: %s", at, e.Message)
	}
	return fmt.Sprintf("%s refuses user %q: %s (SQLSTATE %s)", at, cfg.User, e.Message, e.Code)
}

// dsn returns how the text of an error names the setting that contains the DSN: by the key
// `setting`, or as "the DSN" if `setting` is empty.
func dsn(setting string) string {
	if setting == "" {
		return "the DSN"
	}
	return setting
}

func address(cfg *pgconn.Config) string {
	if strings.HasPrefix(cfg.Host, "/") {
		return cfg.Host // the socket's directory
	}
	return net.JoinHostPort(cfg.Host, strconv.Itoa(int(cfg.Port)))
}

// refusedTLS returns whether all attempts to connect failed because the server doesn't offer
// TLS.
func refusedTLS(c *pgconn.ConnectError) bool {
	list := attempts(c)
	return len(list) > 0 && strings.Contains(list[0], noTLS)
}

const noTLS = "server refused TLS connection" // pgconn exports no such error

// distrusted returns whether the connection failed because the server's certificate isn't
// trusted.
func distrusted(c *pgconn.ConnectError) bool {
	_, ok := errors.AsType[*tls.CertificateVerificationError](c)
	return ok
}

// attempts returns the errors of all attempts to connect, each text once. If sslmode allows
// connections with and without TLS, pgx tries both; then attempts leaves out the error that the
// server doesn't offer TLS, since the attempt without TLS failed for another reason.
func attempts(c *pgconn.ConnectError) []string {
	list := strings.Split(c.Unwrap().Error(), "\n")
	others := slices.DeleteFunc(slices.Clone(list), func(s string) bool { return strings.Contains(s, noTLS) })
	if len(others) > 0 {
		list = others
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// reasons returns the operating system's error of each attempt to connect, as one text.
func reasons(c *pgconn.ConnectError) string {
	list := attempts(c)
	for i, text := range list {
		for _, prefix := range []string{"dial error: ", "tls error: ", "hostname resolving error: "} {
			if _, after, ok := strings.Cut(text, prefix); ok {
				text = after
			}
		}
		list[i] = text
	}
	slices.Sort(list)
	return strings.Join(slices.Compact(list), "; ")
}
