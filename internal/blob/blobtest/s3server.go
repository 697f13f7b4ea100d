package blobtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/blob/s3"
	"github.com/purser-registry/purser/internal/testtool"
)

const (
	gatewayKey    = "purser-test"
	gatewaySecret = "purser-test-secret"
	gatewayRegion = "us-east-1"
)

// S3Server returns options for a store in a new, empty bucket of an S3 server (versitygw). The
// server runs as long as any test of this process uses it. If the server's binary isn't in the
// user's cache directory yet, S3Server builds it, which takes minutes. If it can't be built,
// the test is skipped, or fails if the environment variable CI is set.
func S3Server(t testing.TB) s3.Options {
	t.Helper()
	g, err := gateways.acquire()
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("no S3 server to test with: %v", err)
		}
		t.Skipf("no S3 server to test with: %v", err)
	}
	t.Cleanup(gateways.release)
	o := s3.Options{
		Endpoint: "http://" + g.addr, Bucket: "b-" + blob.NewBase(), Region: gatewayRegion,
		Prefix: "registry", PathStyle: true, AccessKey: gatewayKey, SecretKey: gatewaySecret,
	}
	if err := S3Client(t, o).MakeBucket(t.Context(), o.Bucket, minio.MakeBucketOptions{}); err != nil {
		t.Fatalf("making a bucket: %v", err)
	}
	return o
}

// S3Client returns a client of the S3 server, with which a test reads and writes the bucket
// directly, not through a blob store.
func S3Client(t testing.TB, o s3.Options) *minio.Core {
	t.Helper()
	c, err := minio.NewCore(o.Endpoint[len("http://"):], &minio.Options{
		Creds: credentials.NewStaticV4(o.AccessKey, o.SecretKey, ""), Region: o.Region,
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// gateways starts and stops the one S3 server of this process.
var gateways gatewayPool

type gatewayPool struct {
	mu    sync.Mutex
	users int
	g     *gateway
}

func (p *gatewayPool) acquire() (*gateway, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.g == nil {
		g, err := startGateway()
		if err != nil {
			return nil, err
		}
		p.g = g
	}
	p.users++
	return p.g, nil
}

func (p *gatewayPool) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.users--
	if p.users == 0 {
		p.g.stop()
		p.g = nil
	}
}

type gateway struct {
	addr   string
	dir    string
	cmd    *exec.Cmd
	log    bytes.Buffer
	exited chan struct{}
	err    error // exit error of the process, valid once exited is closed
}

func startGateway() (*gateway, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	binary, err := testtool.Path("versitygw")
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "purser-s3-")
	if err != nil {
		return nil, err
	}
	g := &gateway{dir: dir, exited: make(chan struct{})}
	if err := g.start(binary); err != nil {
		os.RemoveAll(dir)
		return nil, err
	}
	if err := g.ready(ctx); err != nil {
		g.stop()
		return nil, err
	}
	return g, nil
}

func (g *gateway) start(binary string) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	g.addr = l.Addr().String()
	l.Close()
	root, meta := filepath.Join(g.dir, "root"), filepath.Join(g.dir, "meta")
	if err := errors.Join(os.Mkdir(root, 0o700), os.Mkdir(meta, 0o700)); err != nil {
		return err
	}
	// With --sidecar the server keeps metadata in files, so the file system needs no extended
	// attributes.
	g.cmd = exec.Command(binary, "--port", g.addr, "--region", gatewayRegion, "--keep-alive", "--quiet",
		"posix", "--sidecar", meta, root)
	g.cmd.Env = append(os.Environ(), "ROOT_ACCESS_KEY="+gatewayKey, "ROOT_SECRET_KEY="+gatewaySecret)
	g.cmd.Stdout, g.cmd.Stderr = &g.log, &g.log
	g.cmd.SysProcAttr = endsWithParent()
	started := make(chan error)
	go func() {
		// The kernel kills the server's process when the thread that started it ends (see
		// endsWithParent). Therefore this goroutine keeps its thread until the process has
		// ended.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := g.cmd.Start(); err != nil {
			started <- err
			return
		}
		close(started)
		g.err = g.cmd.Wait()
		close(g.exited)
	}()
	return <-started
}

// ready waits until the server accepts connections.
func (g *gateway) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := net.Dial("tcp", g.addr)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-g.exited:
			return fmt.Errorf("versitygw ended: %w\n%s", g.err, g.log.Bytes())
		case <-ctx.Done():
			return fmt.Errorf("versitygw doesn't listen: %w", err)
		case <-tick.C:
		}
	}
}

func (g *gateway) stop() {
	g.cmd.Process.Kill()
	<-g.exited
	os.RemoveAll(g.dir)
}
