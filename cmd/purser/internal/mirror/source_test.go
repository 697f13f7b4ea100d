package mirror

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"

	"github.com/purser-registry/purser/internal/oci"
)

// source is a registry that does what a test tells it. It has one repository, "app".
type source struct {
	*httptest.Server
	tags      []string
	manifests map[string][]byte // by tag and by digest
	blobs     map[string][]byte // by digest
	referrers map[string][]byte // by digest of the subject
	requests  atomic.Int64
	// answer answers a request and returns true, or leaves it to the source. May be nil.
	answer func(w http.ResponseWriter, r *http.Request) bool
}

func newSource(t *testing.T) *source {
	t.Helper()
	s := &source{manifests: make(map[string][]byte), blobs: make(map[string][]byte), referrers: make(map[string][]byte)}
	s.Server = httptest.NewServer(s)
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	return s
}

func (s *source) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.requests.Add(1)
	if s.answer != nil && s.answer(w, r) {
		return
	}
	_, reference, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/v2/app/"), "/")
	found := func(content []byte, ok bool, mediaType string) {
		if !ok {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", mediaType)
		w.Header().Set("Docker-Content-Digest", digest(content))
		w.Header().Set("Content-Length", fmt.Sprint(len(content)))
		if r.Method == http.MethodGet {
			w.Write(content) //nolint:errcheck // the client may have gone
		}
	}
	switch {
	case r.URL.Path == "/v2/":
	case r.URL.Path == "/v2/_catalog":
		json.NewEncoder(w).Encode(map[string]any{"repositories": []string{"app"}}) //nolint:errcheck // as above
	case strings.HasSuffix(r.URL.Path, "/tags/list"):
		json.NewEncoder(w).Encode(map[string]any{"tags": s.tags}) //nolint:errcheck // as above
	case strings.Contains(r.URL.Path, "/manifests/"):
		content, ok := s.manifests[reference]
		found(content, ok, mediaTypeOf(content))
	case strings.Contains(r.URL.Path, "/blobs/"):
		content, ok := s.blobs[reference]
		found(content, ok, "application/octet-stream")
	case strings.Contains(r.URL.Path, "/referrers/"):
		content, ok := s.referrers[reference]
		if !ok {
			content = index()
		}
		found(content, true, oci.MediaTypeImageIndex)
	default:
		http.NotFound(w, r)
	}
}

func mediaTypeOf(manifest []byte) string {
	var m struct{ MediaType string }
	json.Unmarshal(manifest, &m) //nolint:errcheck // "": none
	return m.MediaType
}

func digest(content []byte) string { return oci.Compute(oci.SHA256, content).String() }

func descriptor(mediaType string, content []byte) string {
	return fmt.Sprintf(`{"mediaType":%q,"digest":%q,"size":%d}`, mediaType, digest(content), len(content))
}

// image adds an image with one layer, and returns its manifest.
func (s *source) image(text string, tags ...string) []byte {
	config := []byte(`{"text":"` + text + `"}`)
	layer := []byte("layer " + text)
	s.blobs[digest(config)], s.blobs[digest(layer)] = config, layer
	return s.manifest(fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":%q,"config":%s,"layers":[%s]}`, oci.MediaTypeImageManifest,
		descriptor("application/vnd.oci.image.config.v1+json", config), descriptor("application/vnd.oci.image.layer.v1.tar", layer)), tags...)
}

// index returns an index of manifests.
func index(manifests ...[]byte) []byte {
	list := make([]string, len(manifests))
	for i, m := range manifests {
		list[i] = descriptor(mediaTypeOf(m), m)
	}
	return fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":%q,"manifests":[%s]}`, oci.MediaTypeImageIndex, strings.Join(list, ","))
}

func (s *source) manifest(content []byte, tags ...string) []byte {
	s.manifests[digest(content)] = content
	for _, tag := range tags {
		s.manifests[tag] = content
		s.tags = append(s.tags, tag)
	}
	return content
}

// host returns the source as an argument of the command.
func (s *source) host() string { return strings.TrimPrefix(s.URL, "http://") }

// destination is the registry to which a test copies.
type destination struct {
	*httptest.Server
	put []string // paths of manifests that were put
}

func newDestination(t *testing.T) *destination {
	t.Helper()
	d := &destination{}
	handler := registry.New(registry.Logger(log.New(io.Discard, "", 0)), registry.WithReferrersSupport(true))
	var lock = make(chan struct{}, 1)
	d.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/manifests/") {
			lock <- struct{}{}
			d.put = append(d.put, r.URL.Path)
			<-lock
		}
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(d.Close)
	return d
}

// copyAll copies what the options say. It fails the test if that doesn't end by itself.
func copyAll(t *testing.T, d *destination, o Options) (Summary, []Tag, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var err error
	if o.Server, err = url.Parse(d.URL); err != nil {
		t.Fatal(err)
	}
	var tags []Tag
	o.Told = func(tag Tag) { tags = append(tags, tag) }
	sum, err := Copy(ctx, o)
	if ctx.Err() != nil {
		t.Fatalf("it didn't end: %+v %v", sum, err)
	}
	return sum, tags, err
}

// problem returns the text of what went wrong, and fails the test if nothing did.
func problem(t *testing.T, tags []Tag, err error) string {
	t.Helper()
	if err != nil {
		return err.Error()
	}
	for _, tag := range tags {
		if tag.Outcome == Failed {
			return tag.Error
		}
	}
	t.Fatalf("nothing went wrong: %+v", tags)
	return ""
}
