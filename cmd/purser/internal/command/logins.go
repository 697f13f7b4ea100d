package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/operatorfile"
)

// Login is what the command line remembers of a log-in to a registry.
type Login struct {
	Name  string `json:"name"` // of the account
	Token string `json:"token"`
	// TokenID identifies the token in the registry. It is "" if the command line hasn't made
	// the token itself.
	TokenID string     `json:"token_id,omitempty"`
	Expires *time.Time `json:"expires,omitempty"` // nil: never, or unknown
}

// Logins is the file in which the command line remembers log-ins. Only its owner can read it. It
// contains tokens, which can be revoked, and no passwords.
//
// Writers replace the file, so that a reader sees either the old or the new content, also after
// a crash. They hold a lock on a second file meanwhile, so that none of two concurrent log-ins is
// lost. The lock file is never removed, because otherwise two processes could lock two different
// files of the same name.
type Logins struct{ path string }

// loginsContent is the content of the file. The keys are those of api.ServerKey.
type loginsContent struct {
	Servers map[string]Login `json:"servers"`
	// Default is the registry that commands ask of several, if somebody has chosen one.
	Default string `json:"default,omitempty"`
}

// Logins returns the file of the user's log-ins, which need not exist:
// purser/credentials.json in the directory $XDG_CONFIG_HOME, by default ~/.config. Error: the
// environment names neither that directory nor the user's home.
func (s *Source) Logins() (*Logins, error) {
	dir := s.variable("XDG_CONFIG_HOME")
	if !filepath.IsAbs(dir) { // XDG Base Directory Specification: relative paths are ignored
		home := s.variable("HOME")
		if home == "" {
			return nil, errors.New("there is no place for credentials: set HOME or XDG_CONFIG_HOME, or give the token in " + api.TokenVariable)
		}
		dir = filepath.Join(home, ".config")
	}
	return &Logins{filepath.Join(dir, "purser", "credentials.json")}, nil
}

// variable returns the value of an environment variable, "" if it isn't set. If it is set more
// than once, the last value counts, as in package os/exec.
func (s *Source) variable(name string) (value string) {
	for _, entry := range s.Environ {
		if text, ok := strings.CutPrefix(entry, name+"="); ok {
			value = text
		}
	}
	return value
}

// Path returns the file's name.
func (l *Logins) Path() string { return l.path }

// Of returns the log-in to a registry. ok is false if there is none.
func (l *Logins) Of(server string) (login Login, ok bool, err error) {
	content, err := l.read()
	login, ok = content.Servers[server]
	return login, ok, err
}

// Servers returns all log-ins by the keys of their registries.
func (l *Logins) Servers() (map[string]Login, error) {
	content, err := l.read()
	return content.Servers, err
}

// Preferred returns the registry that commands ask if nothing else names one: the only one of the log-ins, or
// that of several that was chosen; "" without log-ins. The error for several without a choice lists them.
func (l *Logins) Preferred() (server string, err error) {
	content, err := l.read()
	if err != nil || len(content.Servers) == 0 {
		return "", err
	}
	keys := slices.Sorted(maps.Keys(content.Servers))
	if _, ok := content.Servers[content.Default]; ok {
		return content.Default, nil
	}
	if len(keys) == 1 {
		return keys[0], nil
	}
	rows := make([][]string, len(keys))
	for i, key := range keys {
		rows[i] = []string{key, content.Servers[key].Name}
	}
	return "", Ambiguous("you are logged in to several registries, and none is the default: name one with --server or $"+api.ServerVariable+
		", or choose the default with \"purser login SERVER --default\"", []string{"SERVER", "ACCOUNT"}, rows, false)
}

// SetDefault lets commands ask a registry, to which the user is logged in, if nothing else names one.
func (l *Logins) SetDefault(server string) error {
	return l.update(func(content *loginsContent) { content.Default = server })
}

// maxLogins limits the size of the file, in bytes.
const maxLogins = 4 << 20

func (l *Logins) read() (content loginsContent, err error) {
	file, err := operatorfile.Read(context.Background(), l.path, maxLogins)
	if errors.Is(err, fs.ErrNotExist) {
		return content, nil
	}
	if err != nil {
		return content, fmt.Errorf("reading the credentials: %w", err)
	}
	if file.Mode.Perm()&0o077 != 0 {
		return content, fmt.Errorf("other users may read or write the credentials in %s (its mode is %04o): run \"chmod 600 %[1]s\", and log out and in again if somebody may have seen them",
			l.path, file.Mode.Perm())
	}
	// The error of json has no part of the file, except for a character.
	if err := json.Unmarshal(file.Text, &content); err != nil {
		return content, fmt.Errorf("%s isn't a file of credentials: repair or remove it, and log in again", l.path)
	}
	return content, nil
}

// Change calls `change` with the log-ins by the keys of their registries, and stores what it
// leaves there. No other process changes the file meanwhile.
func (l *Logins) Change(change func(servers map[string]Login)) error {
	return l.update(func(content *loginsContent) {
		change(content.Servers)
		if _, ok := content.Servers[content.Default]; !ok {
			content.Default = ""
		}
	})
}

func (l *Logins) update(change func(*loginsContent)) error {
	if err := os.MkdirAll(filepath.Dir(l.path), 0o700); err != nil {
		return fmt.Errorf("storing the credentials: %w", err)
	}
	unlock, err := lockFile(l.path + ".lock")
	if err != nil {
		return fmt.Errorf("storing the credentials: %w", err)
	}
	defer unlock()
	content, err := l.read()
	if err != nil {
		return err
	}
	if content.Servers == nil {
		content.Servers = make(map[string]Login)
	}
	change(&content)
	if err := l.write(content); err != nil {
		return fmt.Errorf("storing the credentials: %w", err)
	}
	return nil
}

// write replaces the file.
func (l *Logins) write(content loginsContent) (err error) {
	raw, err := json.MarshalIndent(content, "", "  ")
	if err != nil {
		return err
	}
	path := l.path
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real // the link stays
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".credentials-*") // with mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	_, err = f.Write(append(raw, '\n'))
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
