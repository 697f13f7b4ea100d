package upstream

import (
	"context"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/purser-registry/purser/internal/oci"
)

// accept are the types of manifests that are asked for. Purser takes none of the last three: with
// them the answer is an error that says so, and not another manifest, which some registries make
// from these.
var accept = strings.Join(append(oci.ManifestTypes(), oci.MediaTypeDockerSchema1Signed, oci.MediaTypeDockerSchema1, oci.MediaTypeArtifactManifest), ", ")

// Manifest is a manifest as the registry has it. It has been checked as one that is pushed.
type Manifest struct {
	Digest  oci.Digest
	Content []byte
	*oci.Manifest
}

// url returns the URL of something in the repository. Its arguments are names, tags or digests
// that were checked, so they need no escaping.
func (p *Repository) url(kind, id string) *url.URL {
	return &url.URL{Scheme: p.registry.scheme(), Host: p.registry.host.RegistryStr(), Path: "/v2/" + p.name + "/" + kind + "/" + id}
}

func (p *Repository) doing(kind, id string) string {
	return "fetching the " + kind + " " + id + " of " + p.registry.host.Name() + "/" + p.name
}

// Resolve returns the digest to which a tag points, with the manifest's kind. The registry's word
// is taken for both, without a look at the manifest, if it gives them.
func (p *Repository) Resolve(ctx context.Context, tag string) (oci.Digest, oci.Kind, error) {
	if err := oci.ValidateTag(tag); err != nil {
		return oci.Digest{}, 0, &Error{text: Printable(err.Error()), err: err}
	}
	res, err := get(ctx, p.client, http.MethodHead, p.url("manifests", tag), accept)
	if err != nil {
		return oci.Digest{}, 0, failed(p.doing("manifest", tag), err)
	}
	res.Body.Close() //nolint:errcheck // there is none
	if res.StatusCode == http.StatusNotFound {
		return oci.Digest{}, 0, refused(p.doing("manifest", tag), res)
	}
	digest, err := oci.ParseDigest(res.Header.Get("Docker-Content-Digest"))
	kind, known := oci.KindOf(mediaType(res))
	if res.StatusCode == http.StatusOK && err == nil && known {
		return digest, kind, nil
	}
	// Some registries know no HEAD, or don't say the digest.
	m, err := p.manifest(ctx, tag, oci.Digest{})
	if err != nil {
		return oci.Digest{}, 0, err
	}
	return m.Digest, m.Kind, nil
}

// Manifest fetches a manifest.
func (p *Repository) Manifest(ctx context.Context, d oci.Digest) (*Manifest, error) {
	return p.manifest(ctx, d.String(), d)
}

// manifest fetches the manifest with a tag, or the digest `want`.
func (p *Repository) manifest(ctx context.Context, reference string, want oci.Digest) (*Manifest, error) {
	doing := p.doing("manifest", reference)
	limit := answer{what: "the manifest", bytes: oci.MaxManifestSize, verified: !want.IsZero()}
	res, err := get(withAnswer(ctx, limit), p.client, http.MethodGet, p.url("manifests", reference), accept)
	if err != nil {
		return nil, failed(doing, err)
	}
	if res.StatusCode != http.StatusOK {
		return nil, refused(doing, res)
	}
	defer res.Body.Close() //nolint:errcheck // only read
	content, err := readAll(res, limit)
	if err != nil {
		return nil, failed(doing, err)
	}
	algorithm := oci.SHA256
	if !want.IsZero() {
		algorithm = want.Algorithm()
	}
	m := &Manifest{Digest: oci.Compute(algorithm, content), Content: content}
	if !want.IsZero() && m.Digest != want {
		return nil, failed(doing, fmt.Errorf("its content has the digest %s", m.Digest))
	}
	sent := mediaType(res)
	if sent == oci.MediaTypeDockerSchema1 || sent == oci.MediaTypeDockerSchema1Signed {
		return nil, failed(doing, errSchema1)
	}
	if _, known := oci.KindOf(sent); !known && sent != oci.MediaTypeArtifactManifest {
		sent = "" // its content says what it is
	}
	if m.Manifest, err = oci.ParseManifest(sent, content); err != nil {
		return nil, failed(doing, err)
	}
	return m, nil
}

var errSchema1 = errors.New("its manifest has Docker's schema 1, which is no longer in use: build or push the image again with a client of today")

// mediaType returns an answer's Content-Type without parameters.
func mediaType(res *http.Response) string {
	base, _, _ := strings.Cut(res.Header.Get("Content-Type"), ";")
	return strings.ToLower(strings.TrimSpace(base))
}

func readAll(res *http.Response, limit answer) ([]byte, error) {
	r, err := plain(res, limit)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}

// Referrers returns the manifests that are attached to one. The registry's word is taken for that.
func (p *Repository) Referrers(ctx context.Context, d oci.Digest) ([]oci.Descriptor, error) {
	var list []oci.Descriptor
	known := true // what the question means
	u := p.url("referrers", d.String())
	err := p.registry.pages(ctx, p.client, u.Path, "", func(res *http.Response, content io.Reader) error {
		if known = len(list) > 0 || mediaType(res) == oci.MediaTypeImageIndex; !known {
			return errors.New("the registry doesn't know the question")
		}
		text, err := io.ReadAll(io.LimitReader(content, oci.MaxManifestSize+1))
		if err != nil {
			return err
		}
		page, err := oci.ParseManifest(oci.MediaTypeImageIndex, text)
		if err != nil {
			return err
		}
		if list = append(list, page.Manifests...); len(list) > p.registry.limit.Manifests {
			return fmt.Errorf("more than %d manifests are attached to it", p.registry.limit.Manifests)
		}
		return nil
	})
	if e, ok := errors.AsType[*Error](err); ok {
		switch e.Status {
		case http.StatusNotFound, http.StatusBadRequest, http.StatusNotAcceptable:
			known = len(list) > 0
		}
	}
	if known {
		return list, err
	}
	// Before there was the question, a tag listed them (OCI Distribution Specification, "Referrers
	// Tag Schema").
	m, err := p.manifest(ctx, d.Algorithm().String()+"-"+d.Hex(), oci.Digest{})
	switch {
	case Missing(err):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return m.Manifests, nil
}

// Blob fetches a blob. The reader returns an error instead of io.EOF if the content doesn't have
// the descriptor's size and digest.
func (p *Repository) Blob(ctx context.Context, d oci.Descriptor) (io.ReadCloser, error) {
	doing := p.doing("blob", d.Digest.String())
	if d.Size > p.registry.limit.BlobBytes {
		return nil, &Error{text: fmt.Sprintf("%s: it has %d bytes, and at most %d are fetched", doing, d.Size, p.registry.limit.BlobBytes)}
	}
	limit := answer{what: "the blob", bytes: d.Size, verified: true}
	res, err := get(withAnswer(ctx, limit), p.client, http.MethodGet, p.url("blobs", d.Digest.String()), "")
	if err != nil {
		return nil, failed(doing, err)
	}
	if res.StatusCode != http.StatusOK {
		return nil, refused(doing, res)
	}
	if n := res.ContentLength; n >= 0 && n != d.Size {
		res.Body.Close() //nolint:errcheck // of no interest
		return nil, &Error{text: fmt.Sprintf("%s: it has %d bytes, and its manifest says %d", doing, n, d.Size)}
	}
	return &blobReader{inner: res.Body, doing: doing, want: d, hash: d.Digest.Algorithm().New()}, nil
}

// blobReader verifies a blob while it is read.
type blobReader struct {
	inner io.ReadCloser
	doing string
	want  oci.Descriptor
	hash  hash.Hash
	read  int64
}

func (b *blobReader) Read(p []byte) (int, error) {
	n, err := b.inner.Read(p)
	b.hash.Write(p[:n])
	b.read += int64(n)
	switch {
	case err == nil:
		return n, nil
	case err != io.EOF: //nolint:errorlint // the result of an io.Reader
		return n, failed(b.doing, err)
	case b.read != b.want.Size:
		return n, failed(b.doing, fmt.Errorf("it ended after %d of %d bytes: %w", b.read, b.want.Size, io.ErrUnexpectedEOF))
	}
	if sum := oci.FromHash(b.want.Digest.Algorithm(), b.hash); sum != b.want.Digest {
		return n, failed(b.doing, fmt.Errorf("its content has the digest %s", sum))
	}
	return n, io.EOF
}

func (b *blobReader) Close() error { return b.inner.Close() }
