package registryimport_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/registryimport"
)

// endless is a store in which one file has no end.
type endless struct {
	registryimport.Store
	key   string
	begun chan struct{}
}

func (e *endless) Open(ctx context.Context, key string, off, length int64) (io.ReadCloser, error) {
	if key != e.key {
		return e.Store.Open(ctx, key, off, length)
	}
	close(e.begun)
	return io.NopCloser(zeros{}), nil
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// wrongSize stores an image, with a tag, of whose layer the manifest says a wrong size.
func (o *other) wrongSize(repository, name, layer string) (key string) {
	o.t.Helper()
	content := "the layer of " + name
	size := fmt.Appendf(nil, `"size":%d}`, len(content))
	payload := o.image(name, nil)
	if bytes.Count(payload, size) == 0 {
		o.t.Fatalf("no size %s in %s", size, payload)
	}
	o.manifest(repository, bytes.ReplaceAll(payload, size, []byte(`"size":1}`)), longAgo, name)
	key = o.data(oci.Compute(oci.SHA256, []byte(content)))
	o.put(key, layer, longAgo)
	return key
}

// TestImportEndsWhileItReads expects that an import ends with its context while it reads a large file.
func TestImportEndsWhileItReads(t *testing.T) {
	t.Parallel()
	b, o := catalogtest.Setup(t), newOther(t)
	e := &endless{o.store, o.wrongSize("app", "v1", "something else"), make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := catalogtest.Later(func() error {
		_, err := registryimport.Run(ctx, registryimport.Options{Catalog: b.Catalog, Store: e})
		return err
	})
	select {
	case <-e.begun:
	case err := <-done:
		t.Fatalf("it has ended before: %v", err)
	case <-time.After(20 * time.Second):
		t.Fatal("the file isn't read")
	}
	cancel()
	if err := catalogtest.Soon(t, "the import", done); !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v", err)
	}
}

// opened counts how often a file is opened.
type opened struct {
	registryimport.Store
	key string
	n   atomic.Int64
}

func (c *opened) Open(ctx context.Context, key string, off, length int64) (io.ReadCloser, error) {
	if key == c.key {
		c.n.Add(1)
	}
	return c.Store.Open(ctx, key, off, length)
}

// TestImportReadsOnce expects that a file of another size than the manifests say is read once, however
// many images and repositories have it.
func TestImportReadsOnce(t *testing.T) {
	t.Parallel()
	b, o := catalogtest.Setup(t), newOther(t)
	var key string
	for _, repository := range []string{"one", "two"} {
		key = o.wrongSize(repository, "v1", "something else")
	}
	c := &opened{Store: o.store, key: key}
	o.store = c
	_, skipped := o.run(b, func(o *registryimport.Options) { o.Parallel = 1 })
	names(t, skipped, "one:v1: blob sha256:", "two:v1: blob sha256:")
	if n := c.n.Load(); n != 1 {
		t.Errorf("the file was read %d times", n)
	}
	// It is read again when it has changed.
	o.store = c.Store
	if err := os.WriteFile(filepath.Join(o.dir, key), []byte("the layer of v1"), 0o600); err != nil {
		t.Fatal(err)
	}
	if report, skipped := o.run(b, nil); report.Tags != 2 {
		t.Errorf("when the file is whole: %+v, skipped %q", report, skipped)
	}
}
