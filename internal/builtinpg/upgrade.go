//go:build unix

package builtinpg

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// oldPrefix begins the names of clusters that an upgrade has replaced. The major version of
// PostgreSQL follows.
const oldPrefix = clusterName + "-"

// ClusterMajor returns the major version of PostgreSQL of the cluster in a data directory, or 0
// if there is none.
func ClusterMajor(dataDir string) (int, error) {
	return clusterMajor(filepath.Join(dataDir, clusterName))
}

// NewestMajor returns the newest major version of PostgreSQL of which programs are installed, or
// can be downloaded for this platform; 0 if there is none.
func NewestMajor(ctx context.Context, o Options) (int, error) {
	o.Log = cmp.Or(o.Log, slog.Default())
	acct, err := pickAccount(filepath.Join(o.DataDir, clusterName))
	if err != nil {
		return 0, err
	}
	return newFinder(o).newest(ctx, acct), nil
}

// Replace replaces the cluster in dataDir by the one in the data directory `with`, and keeps the
// former under the path that it returns. No server may run on either. If the process dies in
// between, there is no cluster: then Start fails, and [UndoReplace] brings the former back.
func Replace(dataDir, with string) (kept string, err error) {
	dataDir, err = prepareDataDir(dataDir)
	if err != nil {
		return "", err
	}
	if with, err = prepareDataDir(with); err != nil {
		return "", err
	}
	for _, dir := range []string{dataDir, with} {
		l, lockErr := acquire(dir)
		if lockErr != nil {
			return "", lockErr
		}
		defer func() { err = errors.Join(err, l.release()) }()
	}
	major, err := ClusterMajor(dataDir)
	if err != nil {
		return "", err
	}
	if other, err := ClusterMajor(with); err != nil || major == 0 || other == 0 {
		return "", errors.Join(err, fmt.Errorf("replacing the cluster in %s by that in %s: there must be two clusters", dataDir, with))
	}
	kept = filepath.Join(dataDir, oldPrefix+strconv.Itoa(major))
	if _, err := os.Lstat(kept); !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("%s exists: an earlier upgrade has left it. Look whether you need it, and run \"purser postgres forget-old\"", kept)
	}
	if err := os.Rename(filepath.Join(dataDir, clusterName), kept); err != nil {
		return "", fmt.Errorf("putting the old cluster aside: %w", err)
	}
	if err := os.Rename(filepath.Join(with, clusterName), filepath.Join(dataDir, clusterName)); err != nil {
		return "", errors.Join(fmt.Errorf("putting the new cluster in place: %w", err), os.Rename(kept, filepath.Join(dataDir, clusterName)))
	}
	return kept, syncDir(dataDir)
}

// UndoReplace brings back the newest of the clusters that an upgrade has put aside, if there is
// no cluster because Replace was interrupted.
func UndoReplace(dataDir string) error {
	if _, err := os.Stat(dataDir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	major, err := ClusterMajor(dataDir)
	if err != nil || major != 0 {
		return err
	}
	old, err := OldClusters(dataDir)
	if err != nil || len(old) == 0 {
		return err
	}
	l, err := acquire(dataDir)
	if err != nil {
		return err
	}
	err = os.Rename(old[len(old)-1], filepath.Join(dataDir, clusterName))
	if err == nil {
		err = syncDir(dataDir)
	}
	return errors.Join(err, l.release())
}

// OldClusters returns the paths of the clusters that upgrades have put aside, sorted by their
// versions.
func OldClusters(dataDir string) ([]string, error) {
	entries, err := os.ReadDir(dataDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("looking for old clusters: %w", err)
	}
	var list []string
	version := func(path string) int {
		n, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(path), oldPrefix))
		if err != nil {
			return 0
		}
		return n
	}
	for _, e := range entries {
		if path := filepath.Join(dataDir, e.Name()); e.IsDir() && strings.HasPrefix(e.Name(), oldPrefix) && version(path) > 0 {
			list = append(list, path)
		}
	}
	slices.SortFunc(list, func(a, b string) int { return cmp.Compare(version(a), version(b)) })
	return list, nil
}

// ForgetOld deletes the clusters that OldClusters returns. It refuses if there is no other
// cluster.
func ForgetOld(dataDir string) error {
	major, err := ClusterMajor(dataDir)
	if err != nil {
		return err
	}
	if major == 0 {
		return fmt.Errorf("%w: %s", ErrNoCluster, dataDir)
	}
	old, err := OldClusters(dataDir)
	for _, path := range old {
		err = errors.Join(err, os.RemoveAll(path))
	}
	return err
}
