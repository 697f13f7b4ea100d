//go:build linux

package builtinpg

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
)

// install writes scripts named postgres and initdb into dir. They print the given version, or
// fail if version is empty.
func install(t *testing.T, dir, version string) string {
	t.Helper()
	must(t, os.MkdirAll(dir, 0o755))
	script := "#!/bin/sh\necho 'postgres (PostgreSQL) " + version + "'\n"
	if version == "" {
		script = "#!/bin/sh\necho broken >&2; exit 3\n"
	}
	must(t, os.WriteFile(filepath.Join(dir, "postgres"), []byte(script), 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "initdb"), []byte(script), 0o755))
	return dir
}

func TestSearchOrder(t *testing.T) {
	t.Parallel()
	base := newDir(t)
	at := func(name, version string) string { return install(t, filepath.Join(base, name), version) }
	named, old, onPath := at("named", "16.1"), at("old", "14.9"), at("path", "15.2 (Debian 15.2-1)")
	at("sys/9/bin", "15.9")
	at("sys/15/bin", "15.10")
	newest := at("sys/x/bin", "18beta1")
	at("sys/broken/bin", "")
	at("sys/14/bin", "14.20")
	noInitdb := at("half", "17.1")
	must(t, os.Remove(filepath.Join(noInitdb, "initdb")))
	linked := filepath.Join(base, "linked")
	must(t, os.MkdirAll(linked, 0o755))
	must(t, os.Symlink(filepath.Join(onPath, "postgres"), filepath.Join(linked, "postgres")))
	sys := filepath.Join(base, "sys/*/bin")

	for name, c := range map[string]struct {
		named, path string
		major       int
		want        string
	}{
		"what the user names comes first": {named: named, path: onPath, want: named},
		"then PATH":                       {path: onPath, want: onPath},
		"a link leads to its directory":   {path: linked, want: onPath},
		"too old is passed over":          {path: old + ":" + onPath, want: onPath},
		"half an installation too":        {path: noInitdb + ":" + onPath, want: onPath},
		"never the working directory":     {path: ":.:path", want: newest},
		"then the system's newest":        {want: newest},
		"the cluster's version decides":   {named: named, path: onPath, major: 18, want: newest},
		"newest of the cluster's version": {major: 15, want: filepath.Join(base, "sys/15/bin")},
		"the named one of that version":   {named: named, path: onPath, major: 16, want: named},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, err := finderIn(c.named, c.path, sys).find(t.Context(), nil, "/cluster", c.major)
			if err != nil || b.dir != c.want {
				t.Errorf("found %s (%v), want %s", b.dir, err, c.want)
			}
		})
	}
}

func TestNothingThatFits(t *testing.T) {
	t.Parallel()
	base := newDir(t)
	old := install(t, filepath.Join(base, "old"), "14.9")
	broken := install(t, filepath.Join(base, "broken"), "")
	good := install(t, filepath.Join(base, "good"), "15.3")
	for name, c := range map[string]struct {
		named, path string
		major       int
		want        []string
	}{
		"the named is missing":      {named: filepath.Join(base, "none"), path: good, want: []string{binVariable, "none", "no such file"}},
		"the named is broken":       {named: broken, path: good, want: []string{binVariable, "exit status 3", "broken"}},
		"the named is too old":      {named: old, path: good, want: []string{binVariable, "14.9", "15 or newer"}},
		"another version":           {path: good, major: 16, want: []string{"/cluster was made by PostgreSQL 16", "15.3 in " + good, "Install PostgreSQL 16", "purser postgres upgrade"}},
		"a cluster that is too old": {path: good, major: 14, want: []string{"/cluster was made by PostgreSQL 14", "15 or newer", "pg_upgrade"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := finderIn(c.named, c.path).find(t.Context(), nil, "/cluster", c.major)
			wantError(t, err, c.want...)
		})
	}
}

func TestClusterOfAnotherMajorIsRefused(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	s := begin(t, testOptions(dir))
	end(t, s)
	versionFile := filepath.Join(s.cluster, "PG_VERSION")
	right, err := os.ReadFile(versionFile)
	must(t, err)
	must(t, os.WriteFile(versionFile, []byte("99\n"), 0o600))
	_, err = Start(t.Context(), testOptions(dir))
	wantError(t, err, s.cluster, "PostgreSQL 99", "purser postgres upgrade")

	must(t, os.WriteFile(versionFile, right, 0o600)) // nothing else has changed
	begin(t, testOptions(dir))
}

func finderIn(named, path string, system ...string) *finder {
	env := map[string]string{binVariable: named, "PATH": path}
	return &finder{
		log: slog.New(slog.DiscardHandler), getenv: func(name string) string { return env[name] },
		systemDirs: system, fetch: &fetcher{log: slog.New(slog.DiscardHandler)},
	}
}
