package upstream

import (
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/purser-registry/purser/internal/oci"
)

const (
	pageSize = 1000 // names that are asked for at once; ECR takes no more
	maxDepth = 64   // of JSON
	badShown = 10   // names against the grammar that are returned
)

// Names is a list of repositories or tags.
type Names struct {
	Names []string // each once, in the registry's order
	// Bad are the first of those that aren't names by the grammar, printable, and BadCount how
	// many there are.
	Bad      []string
	BadCount int
}

// Repositories returns the registry's repositories for which keep returns true.
func (r *Registry) Repositories(ctx context.Context, keep func(name string) bool) (Names, error) {
	client, err := r.login(ctx, r.host)
	if err != nil {
		return Names{}, err
	}
	return r.names(ctx, client, "/v2/_catalog", "repositories", oci.ValidateName, keep)
}

// Tags returns the repository's tags for which keep returns true.
func (p *Repository) Tags(ctx context.Context, keep func(tag string) bool) (Names, error) {
	return p.registry.names(ctx, p.client, "/v2/"+p.name+"/tags/list", "tags", oci.ValidateTag, keep)
}

// names reads a list of names: in each page's object, the array with that key.
func (r *Registry) names(ctx context.Context, client *http.Client, path, key string, valid func(string) error, keep func(string) bool) (Names, error) {
	c := r.collect(valid, keep)
	err := r.pages(ctx, client, path, "n="+strconv.Itoa(pageSize), func(_ *http.Response, content io.Reader) error {
		return decodeNames(content, key, c.add)
	})
	return c.list, err
}

// collector collects the names of a list.
type collector struct {
	list  Names
	most  int // names
	count int
	seen  map[string]bool
	valid func(string) error
	keep  func(string) bool
}

func (r *Registry) collect(valid func(string) error, keep func(string) bool) *collector {
	return &collector{most: r.limit.Names, seen: make(map[string]bool), valid: valid, keep: keep}
}

func (c *collector) add(name string) error {
	if c.count++; c.count > c.most {
		return fmt.Errorf("it has more than %d names", c.most)
	}
	if c.valid(name) != nil {
		if c.list.BadCount++; c.list.BadCount <= badShown {
			c.list.Bad = append(c.list.Bad, Printable(name))
		}
		return nil
	}
	if !c.seen[name] && c.keep(name) {
		c.seen[name] = true
		c.list.Names = append(c.list.Names, name)
	}
	return nil
}

// pages requests the pages of a list, one after the other, and passes each to `read`.
func (r *Registry) pages(ctx context.Context, client *http.Client, path, query string, read func(*http.Response, io.Reader) error) error {
	first := &url.URL{Scheme: r.scheme(), Host: r.host.RegistryStr(), Path: path, RawQuery: query}
	return r.follow(ctx, client, first, r.newBudget(), func(res *http.Response, content io.Reader, at *url.URL) (*url.URL, error) {
		if err := read(res, content); err != nil {
			return nil, err
		}
		return r.next(res, at)
	})
}

// budget is what a list may still have: a list may consist of several that are read one after the
// other.
type budget struct {
	pages int
	left  answer
	seen  map[[sha256.Size]byte]bool // URLs by hash: they may be long
}

func (r *Registry) newBudget() *budget {
	return &budget{pages: r.limit.Pages, left: answer{what: "the list", bytes: r.limit.ListBytes}, seen: make(map[[sha256.Size]byte]bool)}
}

// pageReader reads a page of a list, whose URL is `at`. It returns the URL of the next page, nil if there is
// none.
type pageReader func(res *http.Response, content io.Reader, at *url.URL) (*url.URL, error)

// follow requests the pages of a list, one after the other, beginning at `next`.
func (r *Registry) follow(ctx context.Context, client *http.Client, next *url.URL, b *budget, read pageReader) error {
	doing := "reading the list " + r.host.Name() + next.Path
	for next != nil {
		hash := sha256.Sum256([]byte(next.String()))
		switch {
		case b.pages == 0:
			return &Error{text: fmt.Sprintf("%s: it has more than %d pages", doing, r.limit.Pages)}
		case b.seen[hash]:
			return &Error{text: fmt.Sprintf("%s: its pages lead in a circle, to %s", doing, shortURL(next))}
		}
		b.seen[hash] = true
		b.pages--
		var err error
		if next, err = r.page(ctx, client, next, doing, b, read); err != nil {
			return err
		}
	}
	return nil
}

// page reads a page. It returns the next one's URL, nil if there is none.
func (r *Registry) page(ctx context.Context, client *http.Client, u *url.URL, doing string, b *budget, read pageReader) (*url.URL, error) {
	res, err := get(withAnswer(ctx, b.left), client, http.MethodGet, u, "")
	if err != nil {
		return nil, failed(doing, err)
	}
	if res.StatusCode != http.StatusOK {
		return nil, refused(doing, res)
	}
	defer res.Body.Close() //nolint:errcheck // only read
	content, err := plain(res, b.left)
	if err != nil {
		return nil, failed(doing, err)
	}
	next, err := read(res, content, u)
	if err != nil {
		return nil, failed(doing, err)
	}
	b.left.bytes = content.left
	return next, nil
}

// next returns the URL of the next page. It must be of the registry too.
func (r *Registry) next(res *http.Response, at *url.URL) (*url.URL, error) {
	link := nextLink(res.Header.Values("Link"))
	if link == "" {
		return nil, nil
	}
	ref, err := url.Parse(link)
	if err != nil {
		return nil, errors.New("the address of its next page can't be read")
	}
	next := at.ResolveReference(ref)
	if next.Scheme != at.Scheme || !r.guard.isSource(next) {
		return nil, fmt.Errorf("its next page is elsewhere, at %s", shortURL(next))
	}
	next.User, next.Fragment = nil, ""
	return next, nil
}

// nextLink returns the target of the link with the relation "next", or without one (RFC 8288).
func nextLink(headers []string) string {
	for _, h := range headers {
		for h != "" {
			_, rest, ok := strings.Cut(h, "<")
			target, rest, closed := strings.Cut(rest, ">")
			if !ok || !closed {
				break
			}
			parameters, rest, _ := strings.Cut(rest, ",")
			parameters = strings.ToLower(strings.NewReplacer(" ", "", `"`, "").Replace(parameters))
			if !strings.Contains(parameters, "rel=") || strings.Contains(parameters, "rel=next") {
				return target
			}
			h = rest
		}
	}
	return ""
}

// get sends a request.
func get(ctx context.Context, client *http.Client, method string, u *url.URL, accept string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, u.String(), nil)
	if err != nil {
		return nil, err
	}
	if accept != "" {
		req.Header.Set("Accept", accept)
	}
	return client.Do(req)
}

// plain returns an answer's content. A registry may compress it although it isn't asked to; the
// limit is then that of what it is decompressed to as well.
func plain(res *http.Response, limit answer) (*limited, error) {
	l := &limited{inner: res.Body, limit: limit, left: limit.bytes}
	switch coding := strings.ToLower(res.Header.Get("Content-Encoding")); coding {
	case "", "identity":
	case "gzip", "x-gzip":
		z, err := gzip.NewReader(res.Body)
		if err != nil {
			return nil, err
		}
		l.inner = z
	default:
		return nil, fmt.Errorf("it comes in the encoding %q, which nobody asked for", Printable(coding))
	}
	return l, nil
}

// limited reads up to a limit, and then returns an error.
type limited struct {
	inner io.Reader
	limit answer
	left  int64
}

func (l *limited) Read(p []byte) (int, error) {
	if int64(len(p)) > l.left+1 {
		p = p[:l.left+1]
	}
	n, err := l.inner.Read(p)
	if l.left -= int64(n); l.left < 0 {
		l.left = -1
		return 0, fmt.Errorf("%s has more than %d bytes", l.limit.what, l.limit.bytes)
	}
	return n, err
}

// decodeNames passes the strings of an array in an object to `add`, as they come: all of them
// together may be more than one wants in memory. An object without the array isn't a list.
func decodeNames(r io.Reader, key string, add func(string) error) error {
	d, seen := json.NewDecoder(r), false
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return notJSON(err)
	}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return notJSON(err)
		}
		if name != key {
			if err := skip(d); err != nil {
				return err
			}
			continue
		}
		seen = true
		err = elements(d, func() error {
			t, err := d.Token()
			text, ok := t.(string)
			if err != nil || !ok {
				return notJSON(err)
			}
			return add(text)
		})
		if err != nil {
			return err
		}
	}
	if _, err := d.Token(); err != nil {
		return notJSON(err)
	}
	if !seen {
		return notJSON(nil)
	}
	return nil
}

// elements calls `each` before each element of an array, which it reads. null is an empty array.
func elements(d *json.Decoder, each func() error) error {
	switch t, err := d.Token(); {
	case err != nil:
		return notJSON(err)
	case t == nil:
		return nil
	case t != json.Delim('['):
		return notJSON(nil)
	}
	for d.More() {
		if err := each(); err != nil {
			return err
		}
	}
	if _, err := d.Token(); err != nil {
		return notJSON(err)
	}
	return nil
}

// skip skips a value.
func skip(d *json.Decoder) error {
	for depth := 0; ; {
		t, err := d.Token()
		if err != nil {
			return notJSON(err)
		}
		switch t {
		case json.Delim('['), json.Delim('{'):
			depth++
		case json.Delim(']'), json.Delim('}'):
			depth--
		}
		if depth == 0 {
			return nil
		}
		if depth > maxDepth {
			return errors.New("its JSON is nested too deeply")
		}
	}
}

func notJSON(err error) error {
	if err == nil {
		return errors.New("it isn't the JSON of a list")
	}
	return fmt.Errorf("reading it: %w", err)
}
