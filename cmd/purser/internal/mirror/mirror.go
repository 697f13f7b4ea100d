// Package mirror copies repositories of other registries into a Purser, over the API that all
// registries have. It copies manifests byte by byte, so that digests and signatures stay, and what
// is attached to images with them.
//
// A copy can be repeated: a tag that points to the same manifest at both ends costs one HEAD at
// each. A tag is written after everything that it needs, so an interrupted copy leaves no tag that
// can't be pulled.
//
// The source isn't trusted: package upstream reads it. The destination is the user's own registry.
package mirror

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"golang.org/x/sync/errgroup"

	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/upstream"
)

// Options say what to copy, and where to.
type Options struct {
	// Source is a repository (HOST/REPOSITORY), all repositories with a prefix (HOST/PREFIX/), or
	// all repositories of a registry (HOST). For the last two the registry must have a catalog.
	// The credentials are those of docker's configuration.
	Source    string
	Catalog   upstream.Catalog // by which several repositories are listed
	TLS       *tls.Config      // for the source; nil: the system's certificate authorities
	PlainHTTP bool             // speak plain http to the source; registries on this machine are spoken to so anyway
	// Trusted are further hosts to which the source may lead although their addresses aren't public,
	// and which may get its credentials by plain http.
	Trusted []string
	Limits  upstream.Limits // on what the source can make a copy do

	Server         *url.URL // of the registry to which repositories are copied
	User, Password string   // "": nobody
	// To is the repository to which a single one is copied, or the prefix of several. "": the
	// names stay.
	To string

	Repositories, Tags *regexp.Regexp // which ones; nil: all
	NoReferrers        bool           // leave out what is attached by referrers
	DryRun             bool           // copy nothing
	Parallel           int            // tags that are copied at the same time; default 4
	// Told is called for each tag, by one goroutine at a time. May be nil.
	Told func(Tag)
	// Begins is called before each repository, one after the other: it is the nth of as many as there are,
	// and has so many tags. May be nil.
	Begins func(nth, of, tags int)
	// CredentialsTo is called with each other host that gets the source's credentials. It may be
	// called by several goroutines at once. May be nil.
	CredentialsTo func(host string)
}

// Outcomes of a tag.
const (
	Copied   = "copied"
	WouldBe  = "would be copied"
	UpToDate = "up to date"
	Failed   = "failed"
)

// Tag says what became of a tag.
type Tag struct {
	Source      string `json:"source"`
	Destination string `json:"destination"`
	Digest      string `json:"digest,omitempty"`
	Outcome     string `json:"outcome"`
	Attached    int    `json:"attached,omitempty"` // manifests that were copied with it
	Error       string `json:"error,omitempty"`    // printable

	manifests []oci.Digest // the tag's own, and those that it lists
}

// Summary counts what was done.
type Summary struct {
	Repositories int `json:"repositories"`
	Empty        int `json:"empty"`  // of these: the catalog lists them, but their lists of tags are unknown
	Copied       int `json:"copied"` // tags; in a dry run those that would be
	UpToDate     int `json:"up_to_date"`
	Attached     int `json:"attached"` // manifests
	Failed       int `json:"failed"`   // tags and repositories
}

// Copy copies what the options select. It goes on after a tag or repository that can't be copied,
// which Options.Told and Summary.Failed tell. It returns an error if it can't begin.
func Copy(ctx context.Context, o Options) (Summary, error) {
	o.Parallel = cmp.Or(o.Parallel, 4)
	c := &copier{Options: o, fetches: make(chan struct{}, max(4, o.Parallel))}
	if err := c.open(); err != nil {
		return Summary{}, err
	}
	defer c.source.Close()
	repositories, err := c.repositories(ctx)
	if err != nil {
		return Summary{}, err
	}
	for _, r := range repositories {
		if ctx.Err() != nil {
			break
		}
		c.sum.Repositories++
		c.repository(ctx, r, len(repositories))
	}
	return c.sum, ctx.Err()
}

type copier struct {
	Options
	source  *upstream.Registry
	prefix  string        // of the source's repositories, or the name of one
	single  bool          // prefix is the name of one
	from    name.Registry // the source, as references name it
	to      name.Registry
	looker  *remote.Puller // of the destination
	pusher  *remote.Pusher
	fetches chan struct{} // has an element for each blob that is being fetched

	mu  sync.Mutex
	sum Summary
}

// open parses the names of both registries and makes their clients.
func (c *copier) open() error {
	host, path, _ := strings.Cut(c.Source, "/")
	from, err := name.NewRegistry(host)
	if err != nil || host == "" {
		return fmt.Errorf("%q is no source; write it as HOST/REPOSITORY, HOST/PREFIX/ or HOST", upstream.Printable(c.Source))
	}
	c.from, c.prefix = from, path
	if path != "" && !strings.HasSuffix(path, "/") {
		r, err := name.NewRepository(c.Source)
		if err == nil {
			err = oci.ValidateName(r.RepositoryStr())
		}
		if err != nil {
			return fmt.Errorf("%q is no repository: %w", upstream.Printable(c.Source), err)
		}
		c.from, c.prefix, c.single = r.Registry, r.RepositoryStr(), true
		if c.Catalog.Kind != "" {
			return fmt.Errorf("%s is one repository, for which no catalog is needed; all below it are %[1]s/", upstream.Printable(c.Source))
		}
	}
	c.source, err = upstream.Open(upstream.Options{
		Host: c.from.RegistryStr(), PlainHTTP: c.PlainHTTP, Keychain: authn.DefaultKeychain, Agent: agent,
		Trusted: c.Trusted, CredentialsTo: c.CredentialsTo, Proxy: http.ProxyFromEnvironment, TLS: c.TLS, Limits: c.Limits,
	})
	if err != nil {
		return err
	}
	return c.openDestination(remote.DefaultTransport)
}

// agent is the User-Agent at both registries.
const agent = "purser-copy"

// openDestination makes the clients of the destination, whose requests are sent by `by`.
func (c *copier) openDestination(by http.RoundTripper) (err error) {
	var scheme []name.Option
	if c.Server.Scheme == "http" {
		scheme = append(scheme, name.Insecure)
	}
	if c.to, err = name.NewRegistry(c.Server.Host, scheme...); err != nil {
		return err
	}
	auth := authn.Anonymous
	if c.User != "" {
		auth = &authn.Basic{Username: c.User, Password: c.Password}
	}
	in := []remote.Option{remote.WithUserAgent(agent), remote.WithAuth(auth), remote.WithTransport(&asNamed{by, c.Server})}
	if c.looker, err = remote.NewPuller(in...); err != nil {
		return err
	}
	c.pusher, err = remote.NewPusher(in...)
	return err
}

// asNamed is a transport by which a server that is named with https gets no request by plain http.
// go-containerregistry would try that too at an address of a private network or of this machine, and send
// it the credentials.
type asNamed struct {
	inner  http.RoundTripper
	server *url.URL
}

// RoundTrip implements http.RoundTripper.
func (t *asNamed) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Scheme == "http" && t.server.Scheme == "https" && strings.EqualFold(req.URL.Hostname(), t.server.Hostname()) {
		if req.Body != nil {
			req.Body.Close() //nolint:errcheck // it isn't sent
		}
		return nil, fmt.Errorf("%s isn't asked by plain http, since its name is %s", upstream.Printable(req.URL.Host), t.server.Redacted())
	}
	return t.inner.RoundTrip(req)
}

// repositories lists the repositories of the source that are to be copied.
func (c *copier) repositories(ctx context.Context) ([]string, error) {
	selected := func(n string) bool { return c.Repositories == nil || c.Repositories.MatchString(n) }
	var list upstream.Names
	if !c.single {
		var err error
		if c.Catalog.Kind != "" {
			list, err = c.source.RepositoriesBy(ctx, c.Catalog, c.prefix, selected)
		} else {
			list, err = c.source.Repositories(ctx, func(n string) bool { return strings.HasPrefix(n, c.prefix) && selected(n) })
			if e, ok := errors.AsType[*upstream.Error](err); ok && e.Status != 0 {
				err = fmt.Errorf("%w; a registry without a catalog gives its repositories by its own API (--catalog), or only one by one: HOST/REPOSITORY", err)
			}
		}
		if err != nil {
			return nil, err
		}
	} else if selected(c.prefix) {
		list.Names = []string{c.prefix}
	}
	c.bad(c.from.Name(), "", list, "repositories")
	if len(list.Names) == 0 {
		return nil, fmt.Errorf("%s has no repository that is selected", upstream.Printable(c.Source))
	}
	return list.Names, nil
}

// bad tells of names of a list that aren't copied, since they are none.
func (c *copier) bad(from, to string, list upstream.Names, of string) {
	if list.BadCount > 0 {
		c.tell(Tag{Source: from, Destination: to, Outcome: Failed,
			Error: fmt.Sprintf("%d of the names in its list of %s aren't names, such as %q", list.BadCount, of, list.Bad)})
	}
}

// destination returns where a repository is copied to.
func (c *copier) destination(from string) (name.Repository, error) {
	path := from
	switch {
	case c.To != "" && c.single:
		path = c.To
	case c.To != "":
		path = strings.Trim(c.To, "/") + "/" + path
	}
	return c.to.Repo(path), oci.ValidateName(path)
}

// attachedTag is the name of a tag that is attached to an image by its name, such as cosign's.
var attachedTag = regexp.MustCompile(`^sha256-([0-9a-f]{64})(\..*)?$`)

// repository copies the tags of a repository.
func (c *copier) repository(ctx context.Context, path string, of int) {
	source := c.from.Repo(path)
	to, err := c.destination(path)
	var from *upstream.Repository
	if err == nil {
		from, err = c.source.Repository(ctx, path)
	}
	var list upstream.Names
	if err == nil {
		list, err = from.Tags(ctx, func(t string) bool { return c.chosen(t) || attachedTag.MatchString(t) })
	}
	if upstream.NameUnknown(err) && !c.single {
		// Distribution answers so for a repository whose tags were all deleted, and lists it all the same.
		c.sum.Empty++
		return
	}
	if err != nil {
		c.tell(Tag{Source: source.Name(), Destination: to.Name(), Outcome: Failed, Error: printable(err)})
		return
	}
	c.bad(source.Name(), to.Name(), list, "tags")
	var chosen, attached []string
	for _, t := range list.Names {
		if c.chosen(t) {
			chosen = append(chosen, t)
		} else {
			attached = append(attached, t)
		}
	}
	if c.Begins != nil {
		c.Begins(c.sum.Repositories, of, len(chosen))
	}
	r := &repository{copier: c, from: from, source: source, to: to}
	waiting := make(map[string][]string) // attached tags by the hexadecimal digits of their image
	for _, t := range attached {
		hex := attachedTag.FindStringSubmatch(t)[1]
		waiting[hex] = append(waiting[hex], t)
	}
	var mu sync.Mutex
	var found []string // attached tags of images that were chosen
	c.each(ctx, chosen, func(ctx context.Context, tag string) {
		done := r.tag(ctx, tag)
		mu.Lock()
		for _, d := range done.manifests {
			if d.Algorithm() == oci.SHA256 {
				found = append(found, waiting[d.Hex()]...)
				delete(waiting, d.Hex())
			}
		}
		mu.Unlock()
		c.tell(done)
	})
	c.each(ctx, found, func(ctx context.Context, tag string) { c.tell(r.tag(ctx, tag)) })
}

// chosen says whether a tag is selected by the options.
func (c *copier) chosen(tag string) bool { return c.Tags == nil || c.Tags.MatchString(tag) }

func (c *copier) each(ctx context.Context, tags []string, do func(ctx context.Context, tag string)) {
	var group errgroup.Group
	group.SetLimit(c.Parallel)
	for _, t := range tags {
		group.Go(func() error {
			if ctx.Err() == nil {
				do(ctx, t)
			}
			return nil
		})
	}
	group.Wait() //nolint:errcheck // no error is returned
}

// tell counts what became of a tag, and tells it.
func (c *copier) tell(t Tag) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch t.Outcome {
	case Copied, WouldBe:
		c.sum.Copied++
	case UpToDate:
		c.sum.UpToDate++
	case Failed:
		c.sum.Failed++
	}
	c.sum.Attached += t.Attached
	t.manifests = nil // whoever keeps the tags needn't keep these
	if c.Told != nil {
		c.Told(t)
	}
}

// printable returns the text of an error: a registry's words may be in it. It leaves out the query of a
// request's URL, which is long at some registries, and hides the cause behind it.
func printable(err error) string {
	text := err.Error()
	if sent, ok := errors.AsType[*url.Error](err); ok {
		path, _, _ := strings.Cut(sent.URL, "?")
		short := url.Error{Op: sent.Op, URL: path, Err: sent.Err}
		text = strings.Replace(text, sent.Error(), short.Error(), 1)
	}
	return upstream.Printable(text)
}

// missing says whether the destination's answer is that it doesn't have something.
func missing(err error) bool {
	answer, ok := errors.AsType[*transport.Error](err)
	return ok && answer.StatusCode == http.StatusNotFound
}
