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

// storages has, for each kind of blob store, a function that creates an empty store and
// returns the environment variables that make a registry use it. Several registries may share
// the store.
var storages = map[string]func(t testing.TB) []string{
	"filesystem": func(t testing.TB) []string {
		return []string{"PURSER_STORAGE_FILESYSTEM_PATH=" + newDir(t)}
	},
	"s3": startS3,
}

// startS3 is startS3Server for tests that don't need the server's process.
func startS3(t testing.TB) []string {
	t.Helper()
	env, _ := startS3Server(t)
	return env
}

// startS3Server starts an S3 server, and returns the environment variables that make a registry use its
// bucket purser. It has a second bucket, backups. At the end of the test the server is stopped,
// unless the test has killed it.
func startS3Server(t testing.TB) (env []string, server *process) {
	t.Helper()
	path := toolClient(t, "versitygw").path
	dir := newDir(t)
	root, meta := filepath.Join(dir, "root"), filepath.Join(dir, "meta")
	for _, d := range []string{root, meta, filepath.Join(root, "purser"), filepath.Join(root, "backups")} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	addr := freeAddr(t)
	// With --sidecar the server keeps the objects' metadata in files, so that the file system
	// needs no extended attributes.
	cmd := exec.Command(path, "--port", addr, "--region", "us-east-1", "--keep-alive", "--quiet", "posix", "--sidecar", meta, root)
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
	return []string{
		"PURSER_STORAGE_S3_ENDPOINT=http://" + addr, "PURSER_STORAGE_S3_BUCKET=purser",
		"PURSER_STORAGE_S3_REGION=us-east-1", "PURSER_STORAGE_S3_PATH_STYLE=true",
		"PURSER_STORAGE_S3_ACCESS_KEY=test", "PURSER_STORAGE_S3_SECRET_KEY=test-secret",
	}, p
}

// freeAddr returns a loopback address with a port on which no process listens.
func freeAddr(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
