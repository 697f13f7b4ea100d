package config

import (
	"context"
	"errors"
	"io/fs"
	"net/url"
	"slices"
	"strings"

	"github.com/purser-registry/purser/internal/operatorfile"
)

// dsnFiles are the parameters of a DSN that name files, which the database's driver reads
// whatever they are.
var dsnFiles = []string{"sslrootcert", "sslcert", "sslkey", "passfile", "servicefile"}

// checkFiles returns an error if a file that the DSN names could hold the driver up or fill the
// memory. A file that is missing is left to the driver, which doesn't need each of them.
func (d DSN) checkFiles() error {
	for name, path := range d.parameters() {
		if !slices.Contains(dsnFiles, name) || path == "" {
			continue
		}
		_, err := operatorfile.Read(context.Background(), path, operatorfile.MaxPEM)
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) {
			return err
		}
	}
	return nil
}

// parameters returns the parameters of a DSN by name, as far as it can be read.
func (d DSN) parameters() map[string]string {
	found := map[string]string{}
	text := string(d)
	if strings.Contains(text, "://") {
		_, query, _ := strings.Cut(text, "?") // there may be several hosts, which net/url can't read
		values, _ := url.ParseQuery(query)    // what can be read of it
		for name, list := range values {
			found[name] = list[0]
		}
		return found
	}
	for rest := strings.TrimSpace(text); rest != ""; rest = strings.TrimSpace(rest) {
		name, after, _ := strings.Cut(rest, "=")
		after = strings.TrimLeft(after, spaces)
		end, ok := pairEnd(after)
		if !ok {
			break
		}
		found[strings.TrimSpace(name)] = unquote(after[:end])
		rest = after[end:]
	}
	return found
}

// unquote returns the value that is written in a pair of a DSN.
func unquote(text string) string {
	if len(text) > 1 && text[0] == '\'' {
		text = text[1 : len(text)-1]
	}
	var value strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] == '\\' && i+1 < len(text) {
			i++
		}
		value.WriteByte(text[i])
	}
	return value.String()
}
