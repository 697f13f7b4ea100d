package registries

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// These are the ways of sending a blob (distribution-spec, "Pushing blobs").
const (
	flowPost         = "post"           // POST with the body
	flowPostPut      = "post-put"       // POST, PUT with the body
	flowPostPatchPut = "post-patch-put" // POST, PATCH with the body, PUT: crane, docker
)

var flows = []string{flowPost, flowPostPut, flowPostPatchPut}

// pusher pushes blobs and manifests to one target over one connection.
type pusher struct {
	*conn
	flow string
	buf  []byte
}

func newPusher(t *target, o *options) *pusher {
	return &pusher{conn: newConn(t, o.timeout), flow: o.pushFlow}
}

// exchange sends one request of a push. It returns an error unless the answer has the status
// `want`, else the path of the answer's Location header, or "" without this header. `extra`
// has further header lines.
func (p *pusher) exchange(ctx context.Context, method, path string, body []byte, want int, extra ...string) (string, error) {
	length := len(body)
	if method == http.MethodHead {
		length = -1
	}
	p.buf = p.t.head(p.buf[:0], method, path, length, extra...)
	resp, err := p.do(ctx, &request{head: p.buf, body: body, want: want}, nil)
	if err != nil {
		return "", err
	}
	return p.next(resp)
}

func (p *pusher) next(resp *response) (string, error) {
	if len(resp.location) == 0 {
		return "", nil
	}
	return p.t.resolve(resp.location)
}

// checkDigest returns an error if the answer has a Docker-Content-Digest header that differs
// from `want`. A server may leave the header out.
func checkDigest(resp *response, want string) error {
	if len(resp.digest) > 0 && string(resp.digest) != want {
		return fmt.Errorf("Docker-Content-Digest is %s, want %s", resp.digest, want)
	}
	return nil
}

// blob sends a blob by the requests that p.flow names.
func (p *pusher) blob(ctx context.Context, repo string, b blob) error {
	uploads := "/v2/" + repo + "/blobs/uploads/"
	if p.flow == flowPost {
		return p.postWhole(ctx, uploads, b)
	}
	loc, err := p.exchange(ctx, http.MethodPost, uploads, nil, http.StatusAccepted)
	if err != nil {
		return err
	}
	if p.flow == flowPostPut {
		return p.finish(ctx, loc, b.data, b.digest)
	}
	loc, err = p.exchange(ctx, http.MethodPatch, loc, b.data, http.StatusAccepted, octetStream)
	if err != nil {
		return err
	}
	return p.finish(ctx, loc, nil, b.digest)
}

const octetStream = "Content-Type: application/octet-stream"

// postWhole sends a blob in a single POST. A registry that doesn't support this answers 202,
// as if the POST had no body; then postWhole sends the blob with a PUT.
func (p *pusher) postWhole(ctx context.Context, uploads string, b blob) error {
	_, err := p.exchange(ctx, http.MethodPost, uploads+"?digest="+b.digest, b.data, http.StatusCreated, octetStream)
	var status *statusError
	if !errors.As(err, &status) || status.got != http.StatusAccepted {
		return err
	}
	loc, err := p.next(&p.answer)
	if err != nil {
		return err
	}
	return p.finish(ctx, loc, b.data, b.digest)
}

// finish ends the upload at the path `loc` with a PUT. `body` has those bytes of the blob that
// weren't sent before: all, the rest or none.
func (p *pusher) finish(ctx context.Context, loc string, body []byte, digest string) error {
	if loc == "" {
		return errors.New("the upload's answer has no Location")
	}
	sep := "?"
	if strings.Contains(loc, "?") {
		sep = "&"
	}
	if _, err := p.exchange(ctx, http.MethodPut, loc+sep+"digest="+digest, body, http.StatusCreated, octetStream); err != nil {
		return err
	}
	return checkDigest(&p.answer, digest)
}

// manifest puts a manifest under a tag.
func (p *pusher) manifest(ctx context.Context, repo, tag string, m blob) error {
	path := "/v2/" + repo + "/manifests/" + tag
	_, err := p.exchange(ctx, http.MethodPut, path, m.data, http.StatusCreated, "Content-Type: "+mediaManifest)
	if err != nil {
		return err
	}
	return checkDigest(&p.answer, m.digest)
}

// image pushes an image's blobs, then its manifest.
func (p *pusher) image(ctx context.Context, repo, tag string, img image) error {
	for _, b := range img.blobs {
		if err := p.blob(ctx, repo, b); err != nil {
			return err
		}
	}
	return p.manifest(ctx, repo, tag, img.manifest)
}

// has sends a HEAD request to learn whether a repository has a blob.
func (p *pusher) has(ctx context.Context, repo, digest string) (bool, error) {
	_, err := p.exchange(ctx, http.MethodHead, "/v2/"+repo+"/blobs/"+digest, nil, http.StatusOK)
	if status := (*statusError)(nil); errors.As(err, &status) && status.got == http.StatusNotFound {
		return false, nil
	}
	return err == nil, err
}

// ensure asks the registry for each of the blobs, and pushes those that the repository doesn't
// have.
func (p *pusher) ensure(ctx context.Context, repo string, blobs ...blob) error {
	for _, b := range blobs {
		ok, err := p.has(ctx, repo, b.digest)
		if err == nil && !ok {
			err = p.blob(ctx, repo, b)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// layer pushes a large layer without having it in memory: by a POST, one PATCH that streams
// the layer, and a PUT. `encoding` says how the PATCH gives the layer's length:
// encodingChunked or encodingLength.
func (p *pusher) layer(ctx context.Context, repo string, l layer, encoding string) error {
	loc, err := p.exchange(ctx, http.MethodPost, "/v2/"+repo+"/blobs/uploads/", nil, http.StatusAccepted)
	if err != nil {
		return err
	}
	req := request{want: http.StatusAccepted}
	if encoding == encodingChunked {
		req.head = p.t.head(nil, http.MethodPatch, loc, -1, octetStream, "Transfer-Encoding: chunked")
		req.stream = l.writeChunked
	} else {
		req.head = p.t.head(nil, http.MethodPatch, loc, int(l.size), octetStream)
		req.stream = func(w io.Writer) error { return l.each(func(b []byte) error { return writeAll(w, b) }) }
	}
	resp, err := p.do(ctx, &req, nil)
	if err != nil {
		return err
	}
	if loc, err = p.next(resp); err != nil {
		return err
	}
	return p.finish(ctx, loc, nil, l.digest)
}

func writeAll(w io.Writer, b []byte) error {
	_, err := w.Write(b)
	return err
}
