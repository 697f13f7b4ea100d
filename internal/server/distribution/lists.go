package distribution

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server"
)

const (
	maxTagPage        = 10_000
	maxRepositoryPage = 1_000
	maxReferrerPage   = 500
)

// page reads the query parameters of a listing: the number `n` of entries in one page, and the
// entry `last` after which the page begins. If the client names no `n`, or a greater one than
// `most`, page returns `most` as `n`. It returns an error with status 400 if `n` isn't a number.
func (c *call) page(most int) (n int, last string, err error) {
	if c.r.URL.RawQuery == "" {
		return most, "", nil
	}
	q := c.r.URL.Query()
	n = most
	if s := q.Get("n"); s != "" {
		if n, err = oci.ParseCount(s); err != nil {
			return 0, "", oci.Errorf(oci.Unsupported, "n: %v", err).WithStatus(http.StatusBadRequest)
		}
	}
	return min(n, most), q.Get("last"), nil
}

// next sets the answer's Link header to the URL of the next page of a listing. The URL consists
// of `path` and the query `q` (RFC 5988).
func (c *call) next(path string, q url.Values) {
	c.Header().Set("Link", fmt.Sprintf(`<%s%s?%s>; rel="next"`, server.Observed(c.r.Context()).Base, path, q.Encode()))
}

// listTags lists a repository's tags in byte order (OCI specification, "Listing Tags").
func (a *API) listTags(c *call) error {
	n, last, err := c.page(maxTagPage)
	if err != nil {
		return err
	}
	give, err := c.holdRows(n+1, oci.MaxTagLength)
	if err != nil {
		return err
	}
	tags, more, err := a.catalog.Tags(c.r.Context(), c.name, last, n)
	if err != nil {
		return err
	}
	give(tagListSize(c.name, tags))
	if more && n > 0 {
		c.next("/v2/"+c.name+"/tags/list", url.Values{"n": {strconv.Itoa(n)}, "last": {tags[n-1]}})
	}
	c.json(http.StatusOK, tagList(c.name, tags))
	return nil
}

// tagListSize returns about how many bytes tagList makes of a list.
func tagListSize(name string, tags []string) int {
	size := len(name) + 32
	for _, t := range tags {
		size += len(t) + 3
	}
	return size
}

// tagList encodes a list of tags as JSON. It needs no escaping, since neither repository names
// nor tags can contain characters that JSON escapes.
func tagList(name string, tags []string) []byte {
	b := append(make([]byte, 0, tagListSize(name, tags)), `{"name":"`...)
	b = append(b, name...)
	b = append(b, `","tags":[`...)
	for i, t := range tags {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(append(b, '"'), t...), '"')
	}
	return append(b, "]}"...)
}

// listRepositories lists the registry's repositories that the client may read. Which these are
// depends on who asks, so a client that sends nothing is asked for credentials first. Otherwise
// clients that wait for status 401 before they log in (regctl, oras) would never see more than
// what is public. A client without an account gets the public ones with an anonymous token.
func (a *API) listRepositories(c *call) error {
	if err := a.server.AskForCredentials(c.r.Context(), auth.List, auth.Registry); err != nil {
		return err
	}
	n, last, err := c.page(maxRepositoryPage)
	if err != nil {
		return err
	}
	viewer, err := a.server.Viewer(c.r.Context())
	if err != nil {
		return err
	}
	give, err := c.holdRows(n+1, oci.MaxNameLength)
	if err != nil {
		return err
	}
	paths, more, err := a.browser.RepositoryPaths(c.r.Context(), viewer, last, n)
	if err != nil {
		return err
	}
	if more && n > 0 {
		c.next("/v2/_catalog", url.Values{"n": {strconv.Itoa(n)}, "last": {paths[n-1]}})
	}
	size := 0
	for _, path := range paths {
		size += len(path) + 3
	}
	give(size)
	body, err := json.Marshal(struct {
		Repositories []string `json:"repositories"`
	}{append([]string{}, paths...)})
	if err != nil {
		return err
	}
	c.json(http.StatusOK, body)
	return nil
}

type referrer struct {
	MediaType    string          `json:"mediaType"`
	Digest       oci.Digest      `json:"digest"`
	Size         int64           `json:"size"`
	ArtifactType string          `json:"artifactType,omitempty"`
	Annotations  json.RawMessage `json:"annotations,omitempty"`
}

// listReferrers lists the manifests whose subject is the digest in the path (OCI specification,
// "Listing Referrers"). If there are none, the list is empty and the status is still 200.
func (a *API) listReferrers(c *call) error {
	d, err := c.digest()
	if err != nil {
		return err
	}
	n, last, err := c.page(maxReferrerPage)
	if err != nil {
		return err
	}
	var after int64
	if last != "" {
		if after, err = strconv.ParseInt(last, 10, 64); err != nil {
			return oci.Errorf(oci.Unsupported, "last: %q is not from a Link of this list", last).WithStatus(http.StatusBadRequest)
		}
	}
	kind := c.r.URL.Query().Get("artifactType")
	// A client should escape the "+" of a media type in the query. Many clients don't, and
	// url.Query decodes an unescaped "+" to a space.
	kind = strings.ReplaceAll(kind, " ", "+")
	page, err := a.referrers(c, d, kind, after, max(n, 1))
	if err != nil {
		return err
	}
	if kind != "" {
		c.Header().Set("OCI-Filters-Applied", "artifactType")
	}
	if page.more {
		q := url.Values{"n": {strconv.Itoa(max(n, 1))}, "last": {strconv.FormatInt(page.last, 10)}}
		if kind != "" {
			q.Set("artifactType", kind)
		}
		c.next("/v2/"+c.name+"/referrers/"+d.String(), q)
	}
	c.body(http.StatusOK, oci.MediaTypeImageIndex, page.body())
	return nil
}

// maxReferrerBytes limits the size in bytes of one page of the list of referrers. Clients read
// such a page like a manifest, and often limit its size. The client oras, for example, reads at
// most 4 MiB. It would fail on a longer page, and so find none of an image's signatures, which
// are referrers.
const maxReferrerBytes = 3 << 20

// referrerPage is one page of the list of referrers, which is sent as an image index. It is
// encoded entry by entry, so that the page can end before the entry that would make it longer
// than maxReferrerBytes.
type referrerPage struct {
	entries []byte
	n       int
	last    int64 // ID of the last entry
	more    bool
}

const referrerPageHead, referrerPageEnd = `{"schemaVersion":2,"mediaType":"` + oci.MediaTypeImageIndex + `","manifests":[`, `]}`

func (p *referrerPage) body() []byte {
	b := make([]byte, 0, len(referrerPageHead)+len(p.entries)+len(referrerPageEnd))
	return append(append(append(b, referrerPageHead...), p.entries...), referrerPageEnd...)
}

// add appends an entry for the referrer `r` to the page. If this would make the page longer
// than maxReferrerBytes, add appends nothing and returns false. It always appends the first
// entry.
func (p *referrerPage) add(r catalog.Referrer) (bool, error) {
	var entry bytes.Buffer
	e := json.NewEncoder(&entry)
	e.SetEscapeHTML(false) // escaping would write six bytes for each "<"
	err := e.Encode(referrer{
		MediaType: r.MediaType, Digest: r.Digest, Size: r.Size, ArtifactType: r.ArtifactType, Annotations: r.Annotations,
	})
	if err != nil {
		return false, fmt.Errorf("writing referrer %s: %w", r.Digest, err)
	}
	text := bytes.TrimSpace(entry.Bytes())
	if p.n > 0 {
		if len(referrerPageHead)+len(p.entries)+1+len(text)+len(referrerPageEnd) > maxReferrerBytes {
			return false, nil
		}
		p.entries = append(p.entries, ',')
	}
	p.entries = append(p.entries, text...)
	p.n, p.last = p.n+1, r.ID
	return true, nil
}

// referrers returns a page of at most `n` referrers of the subject `d`, beginning after the
// referrer with the id `last`. Unless `kind` is "", the page has only referrers of the artifact
// type `kind`.
func (a *API) referrers(c *call, d oci.Digest, kind string, last int64, n int) (*referrerPage, error) {
	p := &referrerPage{last: last}
	lease := server.Observed(c.r.Context()).Lease
	reading, err := lease.Take(c.r.Context(), referrerRows)
	if err != nil {
		return nil, err
	}
	defer lease.Give(reading)
	for {
		list, more, err := a.catalog.Referrers(c.r.Context(), c.name, d, kind, p.last, n-p.n)
		if err != nil {
			return nil, err
		}
		size := 0
		for _, r := range list {
			size += len(r.Annotations)
		}
		if err := c.hold(2 * size); err != nil { // as entries of the page, and in the answer
			return nil, err
		}
		for _, r := range list {
			if added, err := p.add(r); err != nil || !added {
				p.more = true
				return p, err
			}
		}
		if !more || p.n == n {
			p.more = more
			return p, nil
		}
	}
}
