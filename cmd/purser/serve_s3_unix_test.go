//go:build unix

package main

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/purser-registry/purser/cmd/purser/internal/serve"
	"github.com/purser-registry/purser/cmd/purser/internal/servetest"
	"github.com/purser-registry/purser/internal/blob/blobtest"
	"github.com/purser-registry/purser/internal/db/dbtest"
)

// refusing returns an address that refuses connections until `listen` is called. Nobody else gets its port.
func refusing(t *testing.T) (addr string, listen func() (net.Listener, error)) {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	syscall.CloseOnExec(fd)
	socket := os.NewFile(uintptr(fd), "socket")
	t.Cleanup(func() { socket.Close() }) //nolint:errcheck // nothing is lost
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return "127.0.0.1:" + strconv.Itoa(name.(*syscall.SockaddrInet4).Port), func() (net.Listener, error) {
		if err := syscall.Listen(fd, 128); err != nil {
			return nil, err
		}
		return net.FileListener(socket)
	}
}

// lineWatch is a log that calls `seen` once, at the first line that has all the words.
type lineWatch struct {
	words []string
	seen  func()
	once  sync.Once
}

func (w *lineWatch) Write(line []byte) (int, error) {
	for _, word := range w.words {
		if !strings.Contains(string(line), word) {
			return len(line), nil
		}
	}
	w.once.Do(w.seen)
	return len(line), nil
}

// A server that starts before S3 waits for it: while connections are refused, and while S3 says that it isn't
// available.
func TestServeWaitsForS3(t *testing.T) {
	t.Parallel()
	bucket := blobtest.S3Server(t)
	target, err := url.Parse(bucket.Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	var requests atomic.Int64
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target)
		r.Out.Host = r.In.Host // which is signed
	}}
	front := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if requests.Add(1) <= 8 { // more than one try of the client's library
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(front.Close)
	addr, listen := refusing(t)
	watch := &lineWatch{words: []string{"waiting for the blob store", "connection refused"}, seen: func() {
		l, err := listen()
		if err != nil {
			t.Errorf("listening at %s: %v", addr, err)
			return
		}
		front.Listener.Close() //nolint:errcheck // nobody knows its address
		front.Listener = l
		front.Start()
	}}
	cfg := servetest.Config(t, "PURSER_DATABASE_MAIN="+dbtest.DSN(t), "PURSER_STORAGE_S3_ENDPOINT=http://"+addr, "PURSER_STORAGE_S3_BUCKET="+bucket.Bucket,
		"PURSER_STORAGE_S3_REGION="+bucket.Region, "PURSER_STORAGE_S3_PATH_STYLE=true", "PURSER_STORAGE_S3_ACCESS_KEY="+bucket.AccessKey,
		"PURSER_STORAGE_S3_SECRET_KEY="+bucket.SecretKey)
	log := slog.New(slog.NewTextHandler(watch, nil))
	s := servetest.Start(t, func(ctx context.Context, out io.Writer) error { return serve.Run(ctx, cfg, out, log, nil) })
	if _, code := pushBlob(t, s, strings.Repeat("content", 20_000)); code != http.StatusCreated || requests.Load() <= 8 {
		t.Errorf("push: %d, after %d requests", code, requests.Load())
	}
}
