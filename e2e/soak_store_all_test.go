//go:build all

package e2e

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// soakStore is the blob store of the soak's registries. Its functions give the test direct
// access to the store.
type soakStore struct {
	env []string
	// objects returns the keys of all objects, and unfinished the keys of all unfinished
	// multipart uploads.
	objects, unfinished func() ([]string, error)
	remove              func(key string) error
	proxy               *faultyStore // nil for a store that doesn't fail
}

var never troubles

func (s soakStore) troubles() *troubles {
	if s.proxy == nil {
		return &never
	}
	return &s.proxy.window
}

func soakDirectory(t testing.TB, _ uint64) soakStore {
	dir := newDir(t)
	return soakStore{
		env:     []string{"PURSER_STORAGE_FILESYSTEM_PATH=" + dir},
		objects: func() ([]string, error) { return files(filepath.Join(dir, "objects"), filepath.Base) },
		remove:  func(key string) error { return os.Remove(filepath.Join(dir, "objects", key[:2], key)) },
	}
}

// soakS3 starts an S3 server behind a proxy that makes requests fail at random. The server
// keeps objects as files in a directory for the bucket, and multipart uploads below .sgwtmp.
func soakS3(t testing.TB, seed uint64) soakStore {
	t.Helper()
	dir := newDir(t)
	bucket, meta := filepath.Join(dir, "root", "purser"), filepath.Join(dir, "meta")
	for _, d := range []string{bucket, meta} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	addr := startGateway(t, filepath.Dir(bucket), meta)
	proxy := startFaultyStore(t, addr, bucket, seed)
	return soakStore{
		env: []string{
			"PURSER_STORAGE_S3_ENDPOINT=" + proxy.server.URL, "PURSER_STORAGE_S3_BUCKET=purser",
			"PURSER_STORAGE_S3_REGION=us-east-1", "PURSER_STORAGE_S3_PATH_STYLE=true",
			"PURSER_STORAGE_S3_ACCESS_KEY=test", "PURSER_STORAGE_S3_SECRET_KEY=test-secret",
		},
		objects: func() ([]string, error) { return files(bucket, filepath.Base) },
		unfinished: func() ([]string, error) {
			return files(filepath.Join(bucket, ".sgwtmp", "multipart"), func(path string) string { return path })
		},
		remove: func(key string) error { return os.Remove(filepath.Join(bucket, key)) },
		proxy:  proxy,
	}
}

func startGateway(t testing.TB, root, meta string) (addr string) {
	t.Helper()
	addr = freeAddr(t)
	cmd := exec.Command(toolClient(t, "versitygw").path, "--port", addr, "--region", "us-east-1", "--keep-alive", "--quiet",
		"posix", "--sidecar", meta, root)
	cmd.Env = childEnv("ROOT_ACCESS_KEY=test", "ROOT_SECRET_KEY=test-secret")
	p, err := startProcess("versitygw", cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.kill)
	err = p.waitFor(t.Context(), time.Minute, func(ctx context.Context) error {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		if err != nil {
			return err
		}
		return conn.Close()
	})
	if err != nil {
		t.Fatal(err)
	}
	return addr
}
