package registries

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
)

// probe is a URL path to read, with the expected properties of the answer.
type probe struct {
	path   string
	accept string
	size   int64 // of the body, or for HEAD as announced; -1: not known yet
	digest string
	check  func(body []byte) error // of a body without a digest
}

func manifestsByTag(b *bench) []probe {
	var ps []probe
	for i, img := range b.fixture.hot {
		ps = append(ps, manifestProbe(b.readRepo(), fixtureTag(i), img.manifest))
	}
	return ps
}

func manifestsByDigest(b *bench) []probe {
	var ps []probe
	for _, img := range b.fixture.hot {
		ps = append(ps, manifestProbe(b.readRepo(), img.manifest.digest, img.manifest))
	}
	return ps
}

func manifestProbe(repo, ref string, m blob) probe {
	path := "/v2/" + repo + "/manifests/" + ref
	return probe{path: path, accept: "Accept: " + mediaManifest, size: int64(len(m.data)), digest: m.digest}
}

func smallBlobs(b *bench) []probe {
	var ps []probe
	for i := range b.fixture.hot {
		ps = append(ps, blobProbe(b.readRepo(), b.fixture.small(i)))
	}
	return ps
}

func bigBlob(b *bench) []probe { return []probe{blobProbe(b.readRepo(), b.fixture.big)} }

func blobProbe(repo string, content blob) probe {
	path := "/v2/" + repo + "/blobs/" + content.digest
	return probe{path: path, accept: "Accept: */*", size: int64(len(content.data)), digest: content.digest}
}

func tagList(b *bench) []probe {
	path := "/v2/" + b.tagsRepo() + "/tags/list"
	if b.tagsN > 0 {
		path += fmt.Sprintf("?n=%d", b.tagsN)
	}
	return []probe{{path: path, accept: "Accept: application/json", size: -1, check: checkTags}}
}

// openReads prepares a workload whose operations read the paths in `ps` in turn, on each
// connection. It reads each path once and compares the content with its digest. The operations
// themselves, which are measured, compare only status, length and digest header.
func openReads(ctx context.Context, o *options, t *target, method string, ps []probe) (*session, error) {
	groups := make([][]probe, len(ps))
	for i := range ps {
		groups[i] = ps[i : i+1]
	}
	return openGroups(ctx, o, t, method, groups)
}

// openGroups is like openReads, but takes groups of paths: one operation reads all paths of a
// group, one after the other.
func openGroups(ctx context.Context, o *options, t *target, method string, groups [][]probe) (*session, error) {
	reqs := make([][]request, len(groups))
	for i, ps := range groups {
		for _, p := range ps {
			reqs[i] = append(reqs[i], request{head: t.head(nil, method, p.path, -1, p.accept), want: http.StatusOK})
		}
	}
	s := &session{}
	for w := range o.conns {
		c, next := newConn(t, o.timeout), w
		s.conns = append(s.conns, c)
		s.ops = append(s.ops, func(ctx context.Context) error {
			i := next % len(groups)
			next++
			for j := range groups[i] {
				resp, err := c.do(ctx, &reqs[i][j], nil)
				if err == nil {
					err = groups[i][j].verify(resp, method)
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	for i, ps := range groups {
		for j := range ps {
			if err := ps[j].verifyContent(ctx, s.conns[0], &reqs[i][j], method); err != nil {
				s.close()
				return nil, err
			}
		}
	}
	return s, nil
}

// verify returns an error unless the answer's length and digest header are the expected ones.
// It doesn't look at the content.
func (p *probe) verify(resp *response, method string) error {
	size := resp.body
	if method == http.MethodHead {
		size = resp.length
	}
	if size != p.size {
		return fmt.Errorf("%s %s: %d bytes, want %d", method, p.path, size, p.size)
	}
	if p.digest == "" {
		return nil
	}
	if err := checkDigest(resp, p.digest); err != nil {
		return fmt.Errorf("%s %s: %w", method, p.path, err)
	}
	return nil
}

// verifyContent reads a path once, and returns an error unless the content is the expected
// one: it has the digest p.digest or, without p.digest, p.check accepts it. If p.size isn't
// known yet (-1), verifyContent sets it.
func (p *probe) verifyContent(ctx context.Context, c *conn, req *request, method string) error {
	var body bytes.Buffer
	resp, err := c.do(ctx, req, &body)
	if err != nil {
		return err
	}
	if p.size < 0 {
		p.size = resp.body
	}
	if err := p.verify(resp, method); err != nil || method == http.MethodHead {
		return err
	}
	if p.check != nil {
		err = p.check(body.Bytes())
	} else if got := digestOf(body.Bytes()); got != p.digest {
		err = fmt.Errorf("the content has digest %s, want %s", got, p.digest)
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, p.path, err)
	}
	return nil
}
