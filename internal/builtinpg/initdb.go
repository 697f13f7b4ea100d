//go:build unix

package builtinpg

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// clusterMajor returns the major version of PostgreSQL that created the cluster, 0 if there is
// no cluster yet. It is an error if the directory has other content.
func clusterMajor(cluster string) (int, error) {
	raw, err := os.ReadFile(filepath.Join(cluster, "PG_VERSION"))
	if err == nil {
		major, err := strconv.Atoi(strings.TrimSpace(string(raw)))
		if err != nil {
			return 0, fmt.Errorf("reading the version of the PostgreSQL cluster %s: %w", cluster, err)
		}
		return major, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("reading the version of the PostgreSQL cluster: %w", err)
	}
	entries, err := os.ReadDir(cluster)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("reading the PostgreSQL cluster: %w", err)
	}
	if len(entries) > 0 {
		return 0, fmt.Errorf("%s holds files but no PG_VERSION, so it is no whole PostgreSQL cluster: restore it from a backup, or move it away to start with an empty one", cluster)
	}
	return 0, nil
}

// initialise creates the cluster in dataDir. It runs initdb in a temporary directory and
// renames that at the end, so a cluster is complete or absent. If `sync` is false, initdb
// doesn't call fsync: then a crash of the machine can leave an incomplete cluster.
func initialise(ctx context.Context, log *slog.Logger, bin binaries, acct *account, dataDir string, sync bool) error {
	began := time.Now()
	tmp, err := os.MkdirTemp(dataDir, initdbPattern)
	if err != nil {
		return fmt.Errorf("making a directory for the new PostgreSQL cluster: %w", err)
	}
	defer func() {
		if err := os.RemoveAll(tmp); err != nil { // does nothing after the rename
			log.WarnContext(ctx, "removing the files of a failed initialisation failed", "dir", tmp, "err", err)
		}
	}()
	if err := acct.own(tmp); err != nil {
		return err
	}
	if err := runInitdb(ctx, bin, acct, tmp, sync); err != nil {
		return err
	}
	cluster := filepath.Join(dataDir, clusterName)
	if err := os.Rename(tmp, cluster); err != nil {
		return fmt.Errorf("putting the new PostgreSQL cluster in place: %w", err)
	}
	if err := syncDir(dataDir); err != nil {
		return err
	}
	log.InfoContext(ctx, "initialised PostgreSQL", "version", bin.version.String(), "dir", cluster, "took", time.Since(began).Round(time.Millisecond))
	return nil
}

// removeHalfDone removes the directories of initialisations that were killed. No cluster is
// among them, since a cluster has its final name. The caller holds the data directory's lock.
func removeHalfDone(ctx context.Context, log *slog.Logger, dataDir string) {
	found, err := filepath.Glob(filepath.Join(escapeGlob(dataDir), initdbPattern+"*"))
	if err != nil {
		log.WarnContext(ctx, "looking for unfinished initialisations failed", "err", err)
	}
	for _, dir := range found {
		log.WarnContext(ctx, "removing a PostgreSQL initialisation that was not finished", "dir", dir)
		if err := os.RemoveAll(dir); err != nil {
			log.WarnContext(ctx, "removing an unfinished PostgreSQL initialisation failed", "err", err)
		}
	}
}

func escapeGlob(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}

func runInitdb(ctx context.Context, bin binaries, acct *account, dir string, sync bool) error {
	cmd := exec.CommandContext(ctx, filepath.Join(bin.dir, "initdb"),
		"--username="+superuser, "--auth-local=peer", "--auth-host=reject",
		"--encoding=UTF8", "--locale=C", "--data-checksums", "--no-instructions")
	if !sync {
		cmd.Args = append(cmd.Args, "--no-sync")
	}
	prepare(cmd, acct, syscall.SIGKILL)
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	held, err := onCluster(cmd, acct, dir)
	if err != nil {
		return err
	}
	defer held.Close()

	runtime.LockOSThread() // for the death signal
	defer runtime.UnlockOSThread()
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		return fmt.Errorf("initialising PostgreSQL in %s: %w", dir, ctx.Err())
	}
	if err != nil {
		return withOutput(fmt.Errorf("initialising PostgreSQL in %s with %s as %s: %w", dir, cmd.Path, acct, err), out)
	}
	return nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("syncing a directory: %w", err)
	}
	return errors.Join(d.Sync(), d.Close())
}
