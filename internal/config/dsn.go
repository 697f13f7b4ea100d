package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// sslModes are the values of sslmode in a DSN.
var sslModes = []string{"disable", "allow", "prefer", "require", "verify-ca", "verify-full"}

// check returns an error if the DSN hasn't the form of a URL or of pairs, or if the database's driver
// would read it otherwise than it was meant: then a part of a password could be taken for the host, and
// be logged. The error repeats nothing of the DSN that may be a password.
func (d DSN) check() error {
	text := string(d)
	if !looksLikeDSN(text) {
		return errors.New("it is neither a URL, postgres://user:password@host:5432/name, nor pairs, \"host=… dbname=…\"")
	}
	if strings.Contains(text, "://") {
		if err := checkAddress(text); err != nil {
			return err
		}
	}
	if mode := d.parameters()["sslmode"]; mode != "" && !slices.Contains(sslModes, mode) {
		return fmt.Errorf("sslmode %q isn't possible; use one of %s", mode, strings.Join(sslModes, ", "))
	}
	return nil
}

// checkAddress returns an error if the URL of a server, which may have a user and a password, has a
// character that must be escaped. Programs differ in what they take for the host then. The error
// repeats nothing of the URL.
func checkAddress(text string) error {
	const escape = `in a user or a password, write / as %2F, ? as %3F, # as %23, @ as %40 and % as %25`
	_, rest, _ := strings.Cut(text, "://")
	if strings.Contains(rest, "#") {
		return errors.New("it has a #, which ends the address in a URL; " + escape)
	}
	rest, query, _ := strings.Cut(rest, "?")
	authority, path, _ := strings.Cut(rest, "/")
	unclear := strings.Count(authority, "@") > 1 || strings.Contains(path, "@")
	for pair := range strings.SplitSeq(query, "&") {
		name, _, _ := strings.Cut(pair, "=")
		unclear = unclear || strings.Contains(name, "@") // in a parameter's value it can't be the host's
	}
	if unclear {
		return errors.New("it isn't clear which @ ends the password; " + escape)
	}
	return nil
}
