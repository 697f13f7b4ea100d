// Package instance starts registries for scenarios that measure the program as users run it.
package instance

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/purser-registry/purser/bench/meter"
)

// Registry is a registry that this program has started.
type Registry struct {
	URL    string
	Basic  string // the Authorization header of the administrator; "" if the registry is open
	Cookie string // sent with each request, unless it is ""
	Meter  *meter.Meter
	cmd    *exec.Cmd
}

// The administrator of registries with access control.
const (
	Administrator = "admin"
	password      = "bench-of-access-control"
)

// Start starts a registry on an empty directory, with access control if `closed` is set, and
// waits until it answers. env has more settings, as NAME=value.
func Start(ctx context.Context, purser, dir string, closed bool, env ...string) (*Registry, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	addr := l.Addr().String()
	if err := l.Close(); err != nil {
		return nil, err
	}
	cmd := exec.Command(purser, "serve")
	cmd.Env = append(os.Environ(), "PURSER_DATA_DIR="+dir, "PURSER_HTTP_ADDR="+addr, "PURSER_HTTP_DEBUG_ADDR=off",
		"PURSER_AUTH_ENABLED="+fmt.Sprint(closed), "PURSER_AUTH_INITIAL_PASSWORD="+password)
	cmd.Env = append(cmd.Env, env...)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	r := &Registry{URL: "http://" + addr, cmd: cmd, Meter: meter.New(meter.Proc{Root: "/proc"}, []int{cmd.Process.Pid})}
	if closed {
		r.Basic = "Basic " + base64.StdEncoding.EncodeToString([]byte(Administrator+":"+password))
	}
	for deadline := time.Now().Add(time.Minute); ; {
		if status, _, err := r.Send(ctx, "GET", "/v2/", nil, r.Basic); err == nil && status == http.StatusOK {
			return r, nil
		} else if time.Now().After(deadline) || ctx.Err() != nil {
			r.Stop()
			return nil, fmt.Errorf("the registry doesn't answer: status %d, %w", status, err)
		}
		sleep(ctx, 100*time.Millisecond)
	}
}

// Stop ends the registry.
func (r *Registry) Stop() {
	r.cmd.Process.Signal(syscall.SIGTERM) //nolint:errcheck // it may have ended
	r.cmd.Wait()                          //nolint:errcheck // its status is of no interest
}

var client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true}, Timeout: time.Minute}

// Send sends a request and returns the status and the body of the answer. A body is sent with
// the Content-Type that its path takes.
func (r *Registry) Send(ctx context.Context, method, path string, body []byte, authorization string) (int, []byte, error) {
	contentType := "application/octet-stream"
	switch {
	case strings.HasPrefix(path, "/api/"):
		contentType = "application/json"
	case strings.Contains(path, "/manifests/"):
		contentType = "application/vnd.oci.image.manifest.v1+json"
	}
	return r.SendAs(ctx, contentType, method, path, body, authorization)
}

// SendAs is like Send, with a Content-Type for the body.
func (r *Registry) SendAs(ctx context.Context, contentType, method, path string, body []byte, authorization string) (int, []byte, error) {
	q, err := http.NewRequestWithContext(ctx, method, r.URL+path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	if authorization != "" {
		q.Header.Set("Authorization", authorization)
	}
	if r.Cookie != "" {
		q.Header.Set("Cookie", r.Cookie)
	}
	if body != nil {
		q.Header.Set("Content-Type", contentType)
	}
	a, err := client.Do(q)
	if err != nil {
		return 0, nil, err
	}
	defer a.Body.Close() //nolint:errcheck // read to its end
	content, err := io.ReadAll(a.Body)
	return a.StatusCode, content, err
}

// Want is like Send with the administrator's credentials. It returns an error unless the status
// is `status`.
func (r *Registry) Want(ctx context.Context, status int, method, path string, body []byte) ([]byte, error) {
	got, content, err := r.Send(ctx, method, path, body, r.Basic)
	if err == nil && got != status {
		err = fmt.Errorf("%s %s: status %d and not %d, %.300s", method, path, got, status, content)
	}
	return content, err
}

// Digest returns the digest of some content.
func Digest(content []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(content)) }

// PushBlob pushes a blob in one request.
func (r *Registry) PushBlob(ctx context.Context, repository string, blob []byte) error {
	_, err := r.Want(ctx, http.StatusCreated, "POST", "/v2/"+repository+"/blobs/uploads/?digest="+Digest(blob), blob)
	return err
}

// Push pushes an image whose layers are given under a tag. Its first layer is its configuration
// too.
func (r *Registry) Push(ctx context.Context, repository, tag string, layers ...[]byte) error {
	var list bytes.Buffer
	for i, l := range layers {
		if err := r.PushBlob(ctx, repository, l); err != nil {
			return err
		}
		if i > 0 {
			list.WriteByte(',')
		}
		fmt.Fprintf(&list, `{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":"%s","size":%d}`, Digest(l), len(l))
	}
	manifest := fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json",
		"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"%s","size":%d},"layers":[%s]}`,
		Digest(layers[0]), len(layers[0]), list.Bytes())
	_, err := r.Want(ctx, http.StatusCreated, "PUT", "/v2/"+repository+"/manifests/"+tag, manifest)
	return err
}

// Load calls `once` again and again from n goroutines for the time `window`, and returns how
// long each call took. `every` is the time from the start of one call to the start of the
// goroutine's next; 0: at once. A goroutine stops at its first error, which Load returns, and when
// ctx ends.
func Load(ctx context.Context, n int, window, every time.Duration, once func() error) ([]time.Duration, error) {
	var mu sync.Mutex
	var all []time.Duration
	var failed error
	var wg sync.WaitGroup
	end := time.Now().Add(window)
	for range n {
		wg.Go(func() {
			var took []time.Duration
			var err error
			for begin := time.Now(); begin.Before(end) && err == nil && ctx.Err() == nil; begin = time.Now() {
				err = once()
				took = append(took, time.Since(begin))
				sleep(ctx, every-time.Since(begin))
			}
			mu.Lock()
			defer mu.Unlock()
			if all = append(all, took...); err != nil {
				failed = err
			}
		})
	}
	wg.Wait()
	return all, failed
}

// sleep waits for some time, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// Run starts an open registry in a directory below `dir`, calls fn with it, and stops and removes
// the registry.
func Run(ctx context.Context, purser, dir string, fn func(ctx context.Context, r *Registry) error) error {
	base, err := os.MkdirTemp(dir, "purser-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(base) //nolint:errcheck // a leftover directory harms nobody
	r, err := Start(ctx, purser, base, false)
	if err != nil {
		return err
	}
	defer r.Stop()
	return fn(ctx, r)
}
