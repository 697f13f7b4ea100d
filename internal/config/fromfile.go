package config

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/purser-registry/purser/internal/operatorfile"
)

const (
	// fileVariable can be appended to the name of a setting's environment variable. The
	// variable with the longer name contains the path of a file that has the value.
	fileVariable = "_FILE"
	// fileValue is a prefix that the value of a secret setting may have. The rest of the
	// value is then the path of the file that has the secret.
	fileValue = "file:"
	// maxFileValue limits the size in bytes of a file that has a setting's value.
	maxFileValue = 64 << 10
)

// takesFile says whether the setting accepts "file:PATH" as a value. Secrets accept it. So
// do DSNs, since they may contain a password, and the S3 access key, since it belongs to a
// secret.
func (s *setting) takesFile(c *Config) bool {
	switch s.field(c).(type) {
	case secretField, dsnField:
		return true
	}
	return s.key == "storage.s3.access_key"
}

// setFromFile sets s to the content of the file at path.
func (c *Config) setFromFile(s *setting, path, source string) error {
	text, err := readValue(path)
	if err == nil && strings.HasPrefix(text, "-----BEGIN ") && !s.takesFile(c) {
		err = fmt.Errorf("%s holds a certificate or a key, and its path belongs there: name it with %s", path, s.env())
	}
	if err == nil {
		err = s.field(c).set(text)
	}
	if err != nil {
		return fmt.Errorf("%s: %s: %w", source, s.key, err)
	}
	c.sources[s.key] = source + ", file " + path
	return nil
}

// readValue returns the content of the file at `path`, without line breaks at its end,
// which editors and the command echo add.
func readValue(path string) (string, error) {
	switch {
	case path == "":
		return "", errors.New("there is no path of a file; write one, such as /run/secrets/name")
	case path[0] == '~':
		return "", fmt.Errorf("%q: only a shell knows what ~ is; write the whole path", path)
	}
	f, err := operatorfile.Read(context.Background(), path, maxFileValue)
	switch {
	case errors.Is(err, operatorfile.ErrTooLarge):
		return "", fmt.Errorf("the file %s is longer than %d KiB; write the value into it and nothing else", path, maxFileValue>>10)
	case err != nil:
		return "", unreadable(path, err)
	}
	value := strings.TrimRight(string(f.Text), "\r\n")
	switch {
	case strings.TrimSpace(value) == "":
		return "", fmt.Errorf("the file %s is empty; write the value into it, or don't name it", path)
	case strings.ContainsRune(value, 0):
		return "", fmt.Errorf("the file %s holds a NUL character; write the value into it as text", path)
	}
	return value, nil
}

func unreadable(path string, err error) error {
	if inner, ok := errors.AsType[*fs.PathError](err); ok {
		err = inner.Err // the path is in the message already
	}
	return fmt.Errorf("reading the file %s: %w; check its path and that this user may read it", path, err)
}

// filePath returns the path in `value` if value has the form "file:/path" or
// "file:///path", and whether it has that form.
func filePath(value string) (string, bool) {
	path, ok := strings.CutPrefix(value, fileValue)
	if strings.HasPrefix(path, "///") {
		path = path[2:]
	}
	return path, ok
}
