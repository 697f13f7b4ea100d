//go:build unix

package builtinpg

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// fakeCluster makes a directory that looks like a cluster.
func fakeCluster(t *testing.T, path, major string) {
	t.Helper()
	must(t, os.MkdirAll(path, 0o700))
	must(t, os.WriteFile(filepath.Join(path, "PG_VERSION"), []byte(major+"\n"), 0o600))
}

func wantMajor(t *testing.T, dataDir string, want int) {
	t.Helper()
	if major, err := ClusterMajor(dataDir); major != want || err != nil {
		t.Errorf("the cluster has version %d (%v), want %d", major, err, want)
	}
}

// An upgrade puts a new cluster in place and keeps the old one. If it is killed in between, no
// server starts on the directory, which would make an empty cluster, until the old one is back.
func TestReplace(t *testing.T) {
	t.Parallel()
	base := newDir(t)
	dir, fresh := filepath.Join(base, "postgres"), filepath.Join(base, "fresh")
	cluster := filepath.Join(dir, clusterName)
	fakeCluster(t, cluster, "15")
	fakeCluster(t, filepath.Join(fresh, clusterName), "17")

	must(t, os.Rename(cluster, filepath.Join(dir, "cluster-15"))) // killed after the first step
	_, err := Start(t.Context(), testOptions(dir))
	wantError(t, err, "cluster-15", "an upgrade was interrupted", "purser postgres upgrade")
	wantMajor(t, dir, 0)
	must(t, UndoReplace(dir))
	wantMajor(t, dir, 15)
	must(t, UndoReplace(dir)) // does nothing
	wantMajor(t, dir, 15)

	l, err := acquire(dir)
	must(t, err)
	if _, err := Replace(dir, fresh); !errors.Is(err, ErrInUse) {
		t.Errorf("replaced while a server runs: %v", err)
	}
	must(t, l.release())
	kept, err := Replace(dir, fresh)
	if err != nil || filepath.Base(kept) != "cluster-15" {
		t.Fatalf("kept %s, %v", kept, err)
	}
	wantMajor(t, dir, 17)
	if old, err := OldClusters(dir); err != nil || len(old) != 1 || old[0] != kept {
		t.Errorf("old clusters: %v, %v", old, err)
	}
	must(t, ForgetOld(dir))
	if _, err := os.Stat(kept); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the old cluster is there: %v", err)
	}
	wantMajor(t, dir, 17)
	// The only cluster is never deleted.
	must(t, os.Rename(cluster, filepath.Join(dir, "cluster-17")))
	if err := ForgetOld(dir); !errors.Is(err, ErrNoCluster) {
		t.Errorf("deleting the only cluster: %v", err)
	}
}
