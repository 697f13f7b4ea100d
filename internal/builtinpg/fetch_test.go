//go:build linux

package builtinpg

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha512"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// packageFiles returns the files of an npm package whose programs claim to be PostgreSQL
// 17.99.
func packageFiles() []tar.Header {
	return []tar.Header{
		{Name: "package/package.json", Linkname: "{}"},
		{Name: "package/native/bin/postgres", Linkname: "#!/bin/sh\necho 'postgres (PostgreSQL) 17.99'\n"},
		{Name: "package/native/bin/initdb", Linkname: "#!/bin/sh\nexit 1\n", Mode: 0o755},
		{Name: "package/native/lib/libpq.so.5.17", Linkname: "library"},
		{Name: "package/native/pg-symlinks.json", Linkname: `[
			{"source":"native/lib/libpq.so.5.17","target":"native/lib/libpq.so"},
			{"source":"native/lib/libpq.so.5.17","target":"native/lib/deep/libpq.so.5"}]`},
	}
}

// pack makes a tarball of files and returns it with its integrity digest. The content of a
// regular file is given in its header's Linkname.
func pack(t *testing.T, files []tar.Header) (tarball []byte, integrity string) {
	t.Helper()
	var buf bytes.Buffer
	zipped := gzip.NewWriter(&buf)
	w := tar.NewWriter(zipped)
	for _, h := range files {
		var content string
		if h.Typeflag == 0 {
			h.Typeflag, content, h.Linkname = tar.TypeReg, h.Linkname, ""
		}
		h.Size = int64(len(content))
		if h.Mode == 0 {
			h.Mode = 0o600
		}
		must(t, w.WriteHeader(&h))
		_, err := w.Write([]byte(content))
		must(t, err)
	}
	must(t, w.Close())
	must(t, zipped.Close())
	sum := sha512.Sum512(buf.Bytes())
	return buf.Bytes(), "sha512-" + base64.StdEncoding.EncodeToString(sum[:])
}

// registry starts an npm registry that serves one tarball at npm's path for it. It
// returns a fetcher that downloads from this registry, and the number of downloads.
func registry(t *testing.T, tarball []byte, integrity string) (*fetcher, *atomic.Int64) {
	t.Helper()
	requests := new(atomic.Int64)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /npm/@embedded-postgres/test-os/-/test-os-17.99.0.tgz", func(w http.ResponseWriter, _ *http.Request) {
		requests.Add(1)
		_, _ = w.Write(tarball)
	})
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	env := map[string]string{"NPM_CONFIG_REGISTRY": srv.URL + "/npm/"}
	return &fetcher{
		log: slog.New(slog.DiscardHandler), dir: filepath.Join(newDir(t), "cache"), shared: filepath.Join(newDir(t), "shared"),
		getenv: func(name string) string { return env[name] },
		pin:    pin{"test-os", "17.99.0", integrity}, known: true, client: srv.Client(),
	}, requests
}

func TestFetch(t *testing.T) {
	t.Parallel()
	tarball, integrity := pack(t, packageFiles())
	f, requests := registry(t, tarball, integrity)
	var group sync.WaitGroup
	for range 4 { // at once, as test processes do
		group.Go(func() {
			bin, err := f.get(t.Context(), nil)
			if err != nil {
				t.Errorf("fetching: %v", err)
				return
			}
			b, err := probe(t.Context(), nil, bin)
			if err != nil || b.version != (version{17, 99}) {
				t.Errorf("the fetched programs: %v, %v", b, err)
			}
		})
	}
	group.Wait()
	if n := requests.Load(); n != 1 {
		t.Errorf("the package was asked for %d times, want once", n)
	}
	tree := filepath.Join(f.dir, "test-os-17.99.0", "native")
	for _, link := range []string{"lib/libpq.so", "lib/deep/libpq.so.5"} {
		raw, err := os.ReadFile(filepath.Join(tree, link))
		if err != nil || string(raw) != "library" {
			t.Errorf("through the link %s: %q, %v", link, raw, err)
		}
	}
	for name, want := range map[string]os.FileMode{"bin/postgres": 0o755, "bin": 0o755, "lib/libpq.so.5.17": 0o644} {
		fi, err := os.Stat(filepath.Join(tree, name))
		must(t, err)
		if fi.Mode().Perm() != want {
			t.Errorf("%s has mode %v, want %v", name, fi.Mode().Perm(), want)
		}
	}
	if _, err := os.Stat(filepath.Join(f.dir, "test-os-17.99.0", "package.json")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that isn't wanted: %v", err)
	}
	wantNoLeftovers(t, f.dir)
}

func TestFetchedProgramsAreFoundLast(t *testing.T) {
	t.Parallel()
	tarball, integrity := pack(t, packageFiles())
	f, _ := registry(t, tarball, integrity)
	find := &finder{log: f.log, getenv: func(string) string { return "" }, fetch: f}
	for _, major := range []int{0, pinnedMajor} {
		b, err := find.find(t.Context(), nil, "/cluster", major)
		if err != nil || b.version.major != 17 {
			t.Errorf("for a cluster of version %d: %v, %v", major, b, err)
		}
	}
}

func TestFetchRefuses(t *testing.T) {
	t.Parallel()
	good, integrity := pack(t, packageFiles())
	link := func(source, target string) []tar.Header {
		return []tar.Header{{Name: "package/native/pg-symlinks.json", Linkname: fmt.Sprintf(`[{"source":%q,"target":%q}]`, source, target)}}
	}
	for name, c := range map[string]struct {
		files     []tar.Header
		tarball   []byte
		integrity string
		want      string
	}{
		"another digest":       {tarball: slices.Concat(good, []byte{0}), integrity: integrity, want: "not the package that Purser knows"},
		"a truncated package":  {tarball: good[:len(good)/2], integrity: integrity, want: "not the package that Purser knows"},
		"a name with dots":     {files: []tar.Header{{Name: "package/native/../../../evil", Linkname: "x"}}, want: "leads out of the package"},
		"an absolute name":     {files: []tar.Header{{Name: "/evil", Linkname: "x"}}, want: "leads out of the package"},
		"a symlink in the tar": {files: []tar.Header{{Name: "package/native/x", Typeflag: tar.TypeSymlink, Linkname: "/etc"}}, want: "not type"},
		"a link from outside":  {files: link("native/a", "../../evil"), want: "leads out of the package"},
		"a link to outside":    {files: link("../../../etc/passwd", "native/a"), want: "leads out of the package"},
		"a file given twice": {files: []tar.Header{
			{Name: "package/native/a", Linkname: "x"}, {Name: "package/native/a", Linkname: "y"},
		}, want: "file exists"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if c.files != nil {
				c.tarball, c.integrity = pack(t, c.files)
			}
			f, _ := registry(t, c.tarball, c.integrity)
			_, err := f.get(t.Context(), nil)
			wantError(t, err, c.want)
			if _, err := os.Stat(filepath.Join(filepath.Dir(f.dir), "evil")); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("outside of the cache: %v", err)
			}
			wantNoLeftovers(t, f.dir)
			if found, _ := filepath.Glob(filepath.Join(f.dir, "test-os*")); len(found) > 0 {
				t.Errorf("put in place all the same: %v", found)
			}
		})
	}
}

func TestFetchThatFails(t *testing.T) {
	t.Parallel()
	tarball, integrity := pack(t, packageFiles())
	f, _ := registry(t, tarball, integrity)
	f.pin.version = "0.0.1"
	_, err := f.get(t.Context(), nil)
	wantError(t, err, "404", "test-os-0.0.1.tgz")

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	f.pin.version = "17.99.0"
	if _, err := f.get(ctx, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("fetching with a cancelled context: %v", err)
	}

	f.known = false
	find := &finder{log: f.log, getenv: func(string) string { return "" }, fetch: f}
	_, err = find.find(t.Context(), nil, "/cluster", 0)
	wantError(t, err, "for this platform", "install PostgreSQL 15 or newer", binVariable)
}

func TestUnfinishedFetchIsRemoved(t *testing.T) {
	t.Parallel()
	tarball, integrity := pack(t, packageFiles())
	f, _ := registry(t, tarball, integrity)
	must(t, os.MkdirAll(filepath.Join(f.dir, fetchPattern+"killed", "tree"), 0o755))
	_, err := f.get(t.Context(), nil)
	must(t, err)
	wantNoLeftovers(t, f.dir)
}

func TestCacheIsWhereTheOtherUserReaches(t *testing.T) {
	t.Parallel()
	tarball, integrity := pack(t, packageFiles())
	f, _ := registry(t, tarball, integrity) // both directories below one of mode 0700
	stranger := &account{uid: 4000000, gid: 4000000, name: "stranger"}
	_, err := f.cacheDir(stranger)
	wantError(t, err, "user stranger can't reach", f.shared, "chmod o+x")

	must(t, os.Chmod(filepath.Dir(filepath.Dir(f.shared)), 0o711))
	must(t, os.Chmod(filepath.Dir(f.shared), 0o711))
	dir, err := f.cacheDir(stranger)
	if err != nil || dir != f.shared {
		t.Errorf("the cache is %s (%v), want %s", dir, err, f.shared)
	}
	dir, err = f.cacheDir(nil)
	if err != nil || dir != f.dir {
		t.Errorf("without another user the cache is %s (%v), want %s", dir, err, f.dir)
	}
}

func TestPinsAreComplete(t *testing.T) {
	t.Parallel()
	if !strings.HasPrefix(pinnedVersion, fmt.Sprintf("%d.", pinnedMajor)) {
		t.Errorf("version %s is not of major %d", pinnedVersion, pinnedMajor)
	}
	seen := map[string]bool{}
	all := maps.Clone(pins)
	for major, older := range olderPins {
		if len(older) != len(pins) || major < oldestMajor || major >= pinnedMajor {
			t.Errorf("version %d has %d packages, want %d", major, len(older), len(pins))
		}
		for platform, p := range older {
			if p.platform != pins[platform].platform || !strings.HasPrefix(p.version, fmt.Sprintf("%d.", major)) {
				t.Errorf("version %d for %s: %+v", major, platform, p)
			}
			all[fmt.Sprint(platform, " ", major)] = p
		}
	}
	for platform, p := range all {
		raw, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(p.integrity, "sha512-"))
		if err != nil || len(raw) != sha512.Size || seen[p.integrity] {
			t.Errorf("%s: bad or repeated integrity %s (%v)", platform, p.integrity, err)
		}
		seen[p.integrity] = true
	}
}

func wantNoLeftovers(t *testing.T, cache string) {
	t.Helper()
	if left, err := filepath.Glob(filepath.Join(cache, fetchPattern+"*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestFetchProgress: the text about a fetch says how much has come, with a bar if the size is known.
func TestFetchProgress(t *testing.T) {
	t.Parallel()
	for want, p := range map[string]progress{
		"fetching its programs, 1.5 MiB so far":                             {done: 3 << 19, total: -1},
		"fetching its programs [....................] 0.0 of 25.0 MiB":      {total: 25 << 20},
		"fetching its programs [##########..........] 12.5 of 25.0 MiB":     {done: 25 << 19, total: 25 << 20},
		"fetching its programs [####################] 25.0 of 25.0 MiB":     {done: 25 << 20, total: 25 << 20},
		"fetching its programs [####################] 30.0 of 25.0 MiB":     {done: 30 << 20, total: 25 << 20},
		"fetching its programs [##################..] 3584.0 of 3840.0 MiB": {done: 3584 << 20, total: 3840 << 20},
	} {
		if got := p.text(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
