package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

const envPrefix = "PURSER_"

// foreignVariables are the environment variables with the prefix PURSER_ that aren't
// settings, because other parts of Purser read them.
var foreignVariables = []string{"PURSER_POSTGRES_BIN", "PURSER_SERVER"}

const testPrefix = "PURSER_TEST_"

// loadEnviron applies the environment variables and returns the problems. If a variable
// occurs twice, the first one counts, as in os.Getenv.
func (c *Config) loadEnviron(environ []string) []error {
	values := map[string]string{}
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		if _, twice := values[name]; !twice {
			values[name] = value
		}
	}
	for _, name := range []string{"HOME", "XDG_DATA_HOME", "AWS_REGION", "AWS_DEFAULT_REGION"} {
		c.env[name] = values[name]
	}
	var problems []error
	known := make([]string, 0, len(settings))
	for i := range settings {
		s := &settings[i]
		name, inFile := s.env(), s.env()+fileVariable
		known = append(known, name, inFile)
		value, ok := values[name]
		if path, isFile := values[inFile]; isFile {
			problems = append(problems, c.setVariableFile(s, path, ok))
			continue
		}
		if !ok && s.also != "" {
			name = s.also
			value, ok = values[name]
		}
		if ok {
			if err := c.set(s, value, "env "+name); err != nil {
				problems = append(problems, err)
			}
		}
	}
	var unknown []string
	for name := range values {
		if strings.HasPrefix(name, envPrefix) && !strings.HasPrefix(name, testPrefix) &&
			!slices.Contains(known, name) && !slices.Contains(foreignVariables, name) {
			unknown = append(unknown, name)
		}
	}
	slices.Sort(unknown)
	for _, name := range unknown {
		problems = append(problems, fmt.Errorf("env %s: no setting has this variable%s", name, didYouMean(name, known)))
	}
	return problems
}

// setVariableFile sets the setting `s` to the content of the file at `path`, which the
// setting's _FILE variable names. `twice` says that the variable without _FILE is set too;
// then setVariableFile returns an error.
func (c *Config) setVariableFile(s *setting, path string, twice bool) error {
	name := s.env()
	if twice {
		return fmt.Errorf("env %s: %s: %s%s is set too; remove one of them", name, s.key, name, fileVariable)
	}
	return c.setFromFile(s, path, "env "+name+fileVariable)
}

// systemDataDir is the default data directory of a service that runs as root.
const systemDataDir = "/var/lib/purser"

// defaultDataDir returns systemDataDir if this process runs as root and can write there.
// Otherwise it returns the directory "purser" in the user's data directory, as the XDG Base
// Directory Specification defines that, or "" if the environment names no such directory.
func defaultDataDir(env map[string]string) string {
	if os.Geteuid() == 0 && writable(systemDataDir) {
		return systemDataDir
	}
	// The specification says that relative paths must be ignored.
	if dir := env["XDG_DATA_HOME"]; filepath.IsAbs(dir) {
		return filepath.Join(dir, "purser")
	}
	if home := env["HOME"]; filepath.IsAbs(home) {
		return filepath.Join(home, ".local", "share", "purser")
	}
	return ""
}

// writable says whether this process can write to the directory `dir` or, if dir doesn't
// exist, can create it.
func writable(dir string) bool {
	err := unix.Access(dir, unix.W_OK)
	if errors.Is(err, unix.ENOENT) {
		err = unix.Access(filepath.Dir(dir), unix.W_OK)
	}
	return err == nil
}

func defaultRegion(env map[string]string) string {
	for _, name := range []string{"AWS_REGION", "AWS_DEFAULT_REGION"} {
		if env[name] != "" {
			return env[name]
		}
	}
	return "us-east-1"
}
