//go:build linux

package builtinpg

import (
	"os"
	"path/filepath"
	"testing"
)

func TestNpmRegistry(t *testing.T) {
	t.Parallel()
	const file = "# registry=https://comment.example\n; registry=https://comment.example\nregistry = \"https://file.example/npm/\"\nbroken line\n"
	for name, c := range map[string]struct {
		npmrc string
		env   map[string]string
		want  string
	}{
		"default":                    {want: "https://registry.npmjs.org"},
		"environment":                {env: map[string]string{"NPM_CONFIG_REGISTRY": "http://env.example:81/a/b/"}, want: "http://env.example:81/a/b"},
		"environment in lower case":  {env: map[string]string{"npm_config_registry": "https://low.example"}, want: "https://low.example"},
		"file":                       {npmrc: file, want: "https://file.example/npm"},
		"environment over file":      {npmrc: file, env: map[string]string{"NPM_CONFIG_REGISTRY": "https://env.example"}, want: "https://env.example"},
		"the scope's own over both":  {npmrc: file + "@embedded-postgres:registry=https://scope.example/", env: map[string]string{"NPM_CONFIG_REGISTRY": "https://env.example"}, want: "https://scope.example"},
		"another scope's is nothing": {npmrc: "@other:registry=https://scope.example/", want: "https://registry.npmjs.org"},
		"reference":                  {npmrc: "registry=https://${MIRROR}/x", env: map[string]string{"MIRROR": "ref.example"}, want: "https://ref.example/x"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u, err := npmRegistry(environmentWith(t, c.npmrc, c.env))
			must(t, err)
			if u.String() != c.want {
				t.Errorf("the registry is %s, want %s", u, c.want)
			}
		})
	}
}

func TestNpmRegistryInHome(t *testing.T) {
	t.Parallel()
	home := newDir(t)
	must(t, os.MkdirAll(home, 0o700))
	must(t, os.WriteFile(filepath.Join(home, ".npmrc"), []byte("registry=https://home.example"), 0o600))
	u, err := npmRegistry(func(name string) string { return map[string]string{"HOME": home}[name] })
	must(t, err)
	if u.String() != "https://home.example" {
		t.Errorf("the registry is %s", u)
	}
}

func TestNpmRegistryThatIsNone(t *testing.T) {
	t.Parallel()
	for _, set := range []string{"file:///etc", "registry.example", "https://", "http://a b:secret@host"} {
		_, err := npmRegistry(environmentWith(t, "", map[string]string{"NPM_CONFIG_REGISTRY": set}))
		wantError(t, err, "the npm registry that is set")
	}
}

func environmentWith(t *testing.T, npmrc string, env map[string]string) func(string) string {
	t.Helper()
	path := newDir(t)
	if npmrc != "" {
		must(t, os.WriteFile(path, []byte(npmrc), 0o600))
	}
	return func(name string) string {
		if name == "NPM_CONFIG_USERCONFIG" {
			return path
		}
		return env[name]
	}
}
