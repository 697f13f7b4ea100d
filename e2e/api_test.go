package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// api is a client of the OCI Distribution API that uses plain HTTP. Its methods return a
// *statusError if the registry answers with another status than expected; any other error
// means that no complete answer came.
type api struct {
	base   string // http://HOST:PORT
	client *http.Client
}

func newAPI(t testing.TB, base string) *api {
	t.Helper()
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 16
	t.Cleanup(transport.CloseIdleConnections)
	return &api{base: base, client: &http.Client{Transport: transport}}
}

// API returns a client for the address at which the registry listens now. A restart changes
// the address: then API must be called again. Only the test's own goroutine may call API, but
// any goroutine may use the returned client.
func (r *registry) API() *api {
	r.t.Helper()
	if r.api == nil || r.api.base != r.URL() {
		r.api = newAPI(r.t, r.URL())
	}
	return r.api
}

// statusError reports an answer whose status isn't the expected one.
type statusError struct {
	method, url string
	status      int
	header      http.Header
	body        string
}

func (e *statusError) Error() string {
	return fmt.Sprintf("%s %s: %d %s: %s", e.method, e.url, e.status, http.StatusText(e.status), e.body)
}

// isStatus returns whether err reports an answer with this status.
func isStatus(err error, status int) bool {
	var e *statusError
	return errors.As(err, &e) && e.status == status
}

// request is one HTTP request, with the status that its answer should have.
type request struct {
	method string
	path   string // or a Location
	header map[string]string
	body   []byte
	stream io.Reader // instead of body: sent in chunks
	want   int
}

// answer is the response to a request.
type answer struct {
	header http.Header
	body   []byte
}

func (a *api) do(ctx context.Context, r request) (*answer, error) {
	target, err := a.resolve(r.path)
	if err != nil {
		return nil, err
	}
	var body io.Reader = bytes.NewReader(r.body)
	if r.stream != nil {
		body = r.stream
	}
	req, err := http.NewRequestWithContext(ctx, r.method, target, body)
	if err != nil {
		return nil, err
	}
	for name, value := range r.header {
		req.Header.Set(name, value)
	}
	res, err := a.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, fmt.Errorf("%s %s: reading the answer: %w", r.method, target, err)
	}
	if res.StatusCode != r.want {
		return nil, &statusError{r.method, target, res.StatusCode, res.Header, string(text[:min(len(text), 1000)])}
	}
	return &answer{res.Header, text}, nil
}

// resolve returns the URL for a path or a Location header. It replaces the host of a Location
// by that of this client's registry, so that an upload can continue on another replica.
func (a *api) resolve(path string) (string, error) {
	u, err := url.Parse(path)
	if err != nil {
		return "", fmt.Errorf("a Location that is no URL: %w", err)
	}
	return a.base + u.RequestURI(), nil
}

// upload is an upload in progress.
type upload struct {
	location string
	offset   int64
}

// startUpload begins an upload (POST).
func (a *api) startUpload(ctx context.Context, repo string) (*upload, error) {
	res, err := a.do(ctx, request{method: "POST", path: "/v2/" + repo + "/blobs/uploads/", want: http.StatusAccepted})
	if err != nil {
		return nil, err
	}
	return &upload{location: res.header.Get("Location")}, nil
}

// patch sends one chunk of the upload `u`. The chunk's Content-Range begins at u.offset, the
// number of bytes of the upload that the registry already has.
func (a *api) patch(ctx context.Context, u *upload, chunk []byte) error {
	res, err := a.do(ctx, request{method: "PATCH", path: u.location, body: chunk, want: http.StatusAccepted,
		header: map[string]string{
			"Content-Type":  "application/octet-stream",
			"Content-Range": fmt.Sprintf("%d-%d", u.offset, u.offset+int64(len(chunk))-1),
		}})
	if err != nil {
		return err
	}
	return u.follow(res)
}

// status asks the registry how many bytes of the upload it has, and sets u.offset to that.
func (a *api) status(ctx context.Context, u *upload) error {
	res, err := a.do(ctx, request{method: "GET", path: u.location, want: http.StatusNoContent})
	if err != nil {
		return err
	}
	return u.follow(res)
}

// finish ends the upload with a PUT, whose body is the last chunk; it may be empty.
func (a *api) finish(ctx context.Context, u *upload, last []byte, d digest.Digest) error {
	res, err := a.do(ctx, request{method: "PUT", path: u.finishing(d), body: last, want: http.StatusCreated, header: map[string]string{"Content-Type": "application/octet-stream"}})
	if err != nil {
		return err
	}
	if got := res.header.Get("Docker-Content-Digest"); got != "" && got != d.String() {
		return fmt.Errorf("PUT %s: Docker-Content-Digest is %s, want %s", u.location, got, d)
	}
	return nil
}

// finishing returns the URL of the PUT that ends the upload of the blob d.
func (u *upload) finishing(d digest.Digest) string {
	separator := "?"
	if strings.Contains(u.location, "?") {
		separator = "&"
	}
	return u.location + separator + "digest=" + url.QueryEscape(d.String())
}

// follow sets the upload's URL and offset from the headers of an answer. The header Range has
// the offsets of the upload's first and last byte, "0-99" after 100 bytes. For an upload
// without bytes it is "0-0".
func (u *upload) follow(res *answer) error {
	if location := res.header.Get("Location"); location != "" {
		u.location = location
	}
	_, last, ok := strings.Cut(res.header.Get("Range"), "-")
	end, err := strconv.ParseInt(last, 10, 64)
	if !ok || err != nil {
		return fmt.Errorf("the Range of an upload is %q", res.header.Get("Range"))
	}
	if end == 0 && u.offset == 0 {
		return nil
	}
	u.offset = end + 1
	return nil
}

// pushBlob pushes a blob in the given number of chunks and returns its digest.
func (a *api) pushBlob(ctx context.Context, repo string, content []byte, chunks int) (digest.Digest, error) {
	d := digest.FromBytes(content)
	u, err := a.startUpload(ctx, repo)
	if err != nil {
		return "", err
	}
	size := len(content)/max(chunks, 1) + 1
	for ; chunks > 1 && len(content) > size; content = content[size:] {
		if err := a.patch(ctx, u, content[:size]); err != nil {
			return "", err
		}
	}
	return d, a.finish(ctx, u, content, d)
}

// putManifest puts a manifest under a reference, which is a tag or the manifest's digest, and
// returns the digest.
func (a *api) putManifest(ctx context.Context, repo, reference, mediaType string, manifest []byte) (digest.Digest, error) {
	_, err := a.do(ctx, request{method: "PUT", path: "/v2/" + repo + "/manifests/" + reference, body: manifest,
		want: http.StatusCreated, header: map[string]string{"Content-Type": mediaType}})
	return digest.FromBytes(manifest), err
}

// pushImage pushes an image with the given layers under a tag. It returns the manifest's
// digest when the registry has acknowledged the manifest.
func (a *api) pushImage(ctx context.Context, repo, tag string, layers ...[]byte) (digest.Digest, error) {
	config := fmt.Appendf(nil, `{"os":"linux","architecture":"amd64","rootfs":{"type":"layers"},"comment":%q}`, tag)
	manifest := v1.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageManifest,
		Config: descriptor(v1.MediaTypeImageConfig, config)}
	if _, err := a.pushBlob(ctx, repo, config, 1); err != nil {
		return "", fmt.Errorf("pushing the configuration: %w", err)
	}
	for _, layer := range layers {
		if _, err := a.pushBlob(ctx, repo, layer, 2); err != nil {
			return "", fmt.Errorf("pushing a layer: %w", err)
		}
		manifest.Layers = append(manifest.Layers, descriptor(v1.MediaTypeImageLayer, layer))
	}
	text, err := json.Marshal(manifest)
	if err != nil {
		return "", err
	}
	return a.putManifest(ctx, repo, tag, v1.MediaTypeImageManifest, text)
}

func descriptor(mediaType string, content []byte) v1.Descriptor {
	return v1.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(content), Size: int64(len(content))}
}

const manifestTypes = v1.MediaTypeImageManifest + ", " + v1.MediaTypeImageIndex +
	", application/vnd.docker.distribution.manifest.v2+json, application/vnd.docker.distribution.manifest.list.v2+json"

// manifest pulls a manifest. It returns the manifest and its digest, which it computes from
// the body. It returns an error if the header Docker-Content-Digest has another digest.
func (a *api) manifest(ctx context.Context, repo, reference string) ([]byte, digest.Digest, error) {
	res, err := a.do(ctx, request{method: "GET", path: "/v2/" + repo + "/manifests/" + reference,
		want: http.StatusOK, header: map[string]string{"Accept": manifestTypes}})
	if err != nil {
		return nil, "", err
	}
	algorithm := digest.Canonical
	if said, err := digest.Parse(res.header.Get("Docker-Content-Digest")); err == nil {
		algorithm = said.Algorithm()
	}
	d := algorithm.FromBytes(res.body)
	if said := res.header.Get("Docker-Content-Digest"); said != d.String() {
		return nil, "", fmt.Errorf("%s:%s: Docker-Content-Digest is %q, the body's digest %s", repo, reference, said, d)
	}
	return res.body, d, nil
}

// pullWhole pulls a manifest and everything that it names: its configuration and layers, and
// for an index its children in the same way. It compares all content with its digest, and
// returns the manifest's digest.
func (a *api) pullWhole(ctx context.Context, repo, reference string) (digest.Digest, error) {
	text, d, err := a.manifest(ctx, repo, reference)
	if err != nil {
		return "", err
	}
	if want, err := digest.Parse(reference); err == nil && want != d {
		return "", fmt.Errorf("%s@%s: got %s", repo, reference, d)
	}
	var named struct {
		Config    *v1.Descriptor
		Layers    []v1.Descriptor
		Manifests []v1.Descriptor
	}
	if err := json.Unmarshal(text, &named); err != nil {
		return "", fmt.Errorf("%s:%s: %w", repo, reference, err)
	}
	if named.Config != nil {
		named.Layers = append(named.Layers, *named.Config)
	}
	for _, blob := range named.Layers {
		if err := a.pullBlob(ctx, repo, blob); err != nil {
			return "", err
		}
	}
	for _, child := range named.Manifests {
		if _, err := a.pullWhole(ctx, repo, child.Digest.String()); err != nil {
			return "", err
		}
	}
	return d, nil
}

// pullBlob reads a blob and checks its size and digest.
func (a *api) pullBlob(ctx context.Context, repo string, want v1.Descriptor) error {
	res, err := a.do(ctx, request{method: "GET", path: "/v2/" + repo + "/blobs/" + want.Digest.String(), want: http.StatusOK})
	if err != nil {
		return err
	}
	if int64(len(res.body)) != want.Size || want.Digest.Algorithm().FromBytes(res.body) != want.Digest {
		return fmt.Errorf("%s@%s: got %d bytes with another digest, want %d bytes", repo, want.Digest, len(res.body), want.Size)
	}
	return nil
}

// checkWhole fails the test unless `reference` leads to the manifest with the digest `want`,
// and everything that the manifest names can be pulled.
func (a *api) checkWhole(t testing.TB, repo, reference, want string) {
	t.Helper()
	got, err := a.pullWhole(t.Context(), repo, reference)
	if err != nil {
		t.Errorf("pulling %s:%s whole: %v", repo, reference, err)
	} else if got.String() != want {
		t.Errorf("%s:%s is %s, want %s", repo, reference, got, want)
	}
}
