package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"
)

// client pushes to a registry and pulls from it over the OCI API. Each blob must be pushed to
// its first repository before the client pushes it concurrently to others.
type client struct {
	base string // URL of the registry
	http *http.Client

	mu sync.Mutex
	// blobs has the repositories that have a blob, by the blob's digest.
	blobs map[digest.Digest][]string
	sent  traffic
}

// traffic counts what a client has done, as the registry has acknowledged it.
type traffic struct {
	Tags, Manifests, Blobs, Mounts int
	Bytes                          int64 // of the blobs
}

func newClient(base string) *client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 16
	return &client{base: base, http: &http.Client{Transport: transport}, blobs: make(map[digest.Digest][]string)}
}

// traffic returns what the client has pushed.
func (c *client) traffic() traffic {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sent
}

// note changes what the client knows and has counted.
func (c *client) note(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
}

// answer is the registry's answer to a request.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// do sends a request. It returns an error unless the answer has one of the wanted statuses.
// `target` is a path or, from a Location header, a URL.
func (c *client) do(ctx context.Context, method, target, mediaType string, body []byte, want ...int) (answer, error) {
	if strings.HasPrefix(target, "/") {
		target = c.base + target
	}
	req, err := http.NewRequestWithContext(ctx, method, target, bytes.NewReader(body))
	if err != nil {
		return answer{}, fmt.Errorf("making a request: %w", err)
	}
	req.Header.Set("User-Agent", "purser-demo")
	if mediaType != "" && method == http.MethodGet {
		req.Header.Set("Accept", mediaType)
	} else if mediaType != "" {
		req.Header.Set("Content-Type", mediaType)
	}
	res, err := c.http.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer res.Body.Close() //nolint:errcheck // only read
	a := answer{status: res.StatusCode, header: res.Header}
	if a.body, err = io.ReadAll(res.Body); err != nil {
		return answer{}, fmt.Errorf("%s %s: %w", method, target, err)
	}
	if !slices.Contains(want, a.status) {
		return answer{}, fmt.Errorf("%s %s: %s: %s", method, target, res.Status, a.body[:min(len(a.body), 500)])
	}
	return a, nil
}

// pushBlob pushes a blob to a repository, or mounts it from another repository that has it. If
// the repository has the blob, pushBlob does nothing.
func (c *client) pushBlob(ctx context.Context, repository string, blob content) error {
	var in []string
	c.note(func() { in = c.blobs[blob.Digest] })
	if slices.Contains(in, repository) {
		return nil
	}
	path := "/v2/" + repository + "/blobs/uploads/"
	if len(in) > 0 {
		path += "?" + url.Values{"mount": {blob.Digest.String()}, "from": in[:1]}.Encode()
	}
	begun, err := c.do(ctx, http.MethodPost, path, "", nil, http.StatusAccepted, http.StatusCreated)
	if err != nil {
		return err
	}
	if begun.status == http.StatusAccepted {
		u, err := url.Parse(begun.header.Get("Location"))
		if err != nil {
			return fmt.Errorf("the place of an upload: %w", err)
		}
		query := u.Query()
		query.Set("digest", blob.Digest.String())
		u.RawQuery = query.Encode()
		if _, err := c.do(ctx, http.MethodPut, u.String(), "application/octet-stream", blob.data, http.StatusCreated); err != nil {
			return err
		}
	}
	c.note(func() {
		c.blobs[blob.Digest] = append(c.blobs[blob.Digest], repository)
		if begun.status == http.StatusCreated {
			c.sent.Mounts++
			return
		}
		c.sent.Blobs++
		c.sent.Bytes += blob.Size
	})
	return nil
}

// pushManifest pushes a manifest with the given tags, or by its digest if there are none.
func (c *client) pushManifest(ctx context.Context, repository string, m content, tags ...string) error {
	references := tags
	if len(tags) == 0 {
		references = []string{m.Digest.String()}
	}
	for _, reference := range references {
		if _, err := c.do(ctx, http.MethodPut, "/v2/"+repository+"/manifests/"+reference, m.MediaType, m.data, http.StatusCreated); err != nil {
			return err
		}
	}
	c.note(func() {
		c.sent.Manifests++
		c.sent.Tags += len(tags)
	})
	return nil
}

// pushImage pushes an image: all blobs at once, and then the manifest.
func (c *client) pushImage(ctx context.Context, repository string, i image, tags ...string) error {
	group, groupCtx := errgroup.WithContext(ctx)
	for _, blob := range i.blobs {
		group.Go(func() error { return c.pushBlob(groupCtx, repository, blob) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return c.pushManifest(ctx, repository, i.manifest, tags...)
}

// pull pulls what a tag points to. Of an index, it pulls the image for the platform. It
// returns the number of bytes of the blobs, which are compared with their digests.
func (c *client) pull(ctx context.Context, repository, tag string, p v1.Platform) (bytes int64, err error) {
	var m v1.Manifest
	path := "/v2/" + repository + "/manifests/"
	a, err := c.do(ctx, http.MethodGet, path+tag, v1.MediaTypeImageIndex+", "+v1.MediaTypeImageManifest, nil, http.StatusOK)
	if err != nil {
		return 0, err
	}
	if a.header.Get("Content-Type") == v1.MediaTypeImageIndex {
		var index v1.Index
		if err := json.Unmarshal(a.body, &index); err != nil {
			return 0, fmt.Errorf("reading %s:%s: %w", repository, tag, err)
		}
		i := slices.IndexFunc(index.Manifests, func(d v1.Descriptor) bool {
			return d.Platform != nil && d.Platform.OS == p.OS && d.Platform.Architecture == p.Architecture
		})
		if i < 0 {
			return 0, fmt.Errorf("%s:%s has no image for %s/%s", repository, tag, p.OS, p.Architecture)
		}
		if a, err = c.do(ctx, http.MethodGet, path+index.Manifests[i].Digest.String(), v1.MediaTypeImageManifest, nil, http.StatusOK); err != nil {
			return 0, err
		}
	}
	if err := json.Unmarshal(a.body, &m); err != nil {
		return 0, fmt.Errorf("reading %s:%s: %w", repository, tag, err)
	}
	for _, blob := range append([]v1.Descriptor{m.Config}, m.Layers...) {
		a, err := c.do(ctx, http.MethodGet, "/v2/"+repository+"/blobs/"+blob.Digest.String(), "", nil, http.StatusOK)
		if err != nil {
			return 0, err
		}
		if digest.FromBytes(a.body) != blob.Digest {
			return 0, fmt.Errorf("%s:%s: a blob isn't what its digest %s says", repository, tag, blob.Digest)
		}
		bytes += int64(len(a.body))
	}
	return bytes, nil
}
