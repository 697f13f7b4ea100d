// Package mirror copies repositories of other registries into a Purser, over the API that all
// registries have. It copies manifests byte by byte, so that digests and signatures stay, and what
// is attached to images with them.
//
// A copy can be repeated: a tag that points to the same manifest at both ends costs one HEAD at
// each. A tag is written after everything that it needs, so an interrupted copy leaves no tag that
// can't be pulled.
package mirror

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"golang.org/x/sync/errgroup"
)

// Options say what to copy, and where to.
type Options struct {
	// Source is a repository (HOST/REPOSITORY), all repositories with a prefix (HOST/PREFIX/), or
	// all repositories of a registry (HOST). For the last two the registry must have a catalog.
	// The credentials are those of docker's configuration.
	Source    string
	PlainHTTP bool // speak plain http to the source; registries on this machine are spoken to so anyway

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
	Error       string `json:"error,omitempty"`

	manifests []v1.Hash // the tag's own, and those that it lists
}

// Summary counts what was done.
type Summary struct {
	Repositories int `json:"repositories"`
	Copied       int `json:"copied"` // tags; in a dry run those that would be
	UpToDate     int `json:"up_to_date"`
	Attached     int `json:"attached"` // manifests
	Failed       int `json:"failed"`   // tags and repositories
}

// Copy copies what the options select. It goes on after a tag or repository that can't be copied,
// which Options.Told and Summary.Failed tell. It returns an error if it can't begin.
func Copy(ctx context.Context, o Options) (Summary, error) {
	o.Parallel = cmp.Or(o.Parallel, 4)
	c := &copier{Options: o}
	from, err := c.open()
	if err != nil {
		return Summary{}, err
	}
	repositories, err := c.repositories(ctx, from)
	if err != nil {
		return Summary{}, err
	}
	for _, r := range repositories {
		if ctx.Err() != nil {
			break
		}
		c.sum.Repositories++
		c.repository(ctx, r, len(repositories) == 1 && c.single)
	}
	return c.sum, ctx.Err()
}

type copier struct {
	Options
	registry name.Registry // of the source
	prefix   string        // of the source's repositories, or the name of one
	single   bool          // prefix is the name of one
	to       name.Registry
	out, in  []remote.Option // of the source, of the destination
	puller   *remote.Puller
	looker   *remote.Puller // of the destination
	pusher   *remote.Pusher

	mu  sync.Mutex
	sum Summary
}

// open parses the names of both registries and makes their clients.
func (c *copier) open() (name.Registry, error) {
	var scheme []name.Option
	if c.PlainHTTP {
		scheme = append(scheme, name.Insecure)
	}
	host, path, _ := strings.Cut(c.Source, "/")
	from, err := name.NewRegistry(host, scheme...)
	if err != nil || host == "" {
		return from, fmt.Errorf("%q is no source; write it as HOST/REPOSITORY, HOST/PREFIX/ or HOST", c.Source)
	}
	c.registry, c.prefix = from, path
	if path != "" && !strings.HasSuffix(path, "/") {
		r, err := name.NewRepository(c.Source, scheme...)
		if err != nil {
			return from, fmt.Errorf("%q is no repository: %w", c.Source, err)
		}
		c.registry, c.prefix, c.single = r.Registry, r.RepositoryStr(), true
	}
	scheme = nil
	if c.Server.Scheme == "http" {
		scheme = append(scheme, name.Insecure)
	}
	if c.to, err = name.NewRegistry(c.Server.Host, scheme...); err != nil {
		return from, err
	}
	agent := remote.WithUserAgent("purser-copy")
	c.out = []remote.Option{agent, remote.WithAuthFromKeychain(authn.DefaultKeychain)}
	c.in = []remote.Option{agent, remote.WithAuth(authn.Anonymous)}
	if c.User != "" {
		c.in[1] = remote.WithAuth(&authn.Basic{Username: c.User, Password: c.Password})
	}
	if c.puller, err = remote.NewPuller(c.out...); err != nil {
		return from, err
	}
	if c.looker, err = remote.NewPuller(c.in...); err != nil {
		return from, err
	}
	c.pusher, err = remote.NewPusher(c.in...)
	return from, err
}

// repositories lists the repositories of the source that are to be copied.
func (c *copier) repositories(ctx context.Context, from name.Registry) ([]name.Repository, error) {
	names := []string{c.prefix}
	if !c.single {
		all, err := c.puller.Catalog(ctx, from)
		if err != nil {
			err = fmt.Errorf("listing the repositories of %s: %w", from.Name(), err)
			if _, answered := errors.AsType[*transport.Error](err); answered {
				err = fmt.Errorf("%w; a registry without a catalog gives its repositories only one by one: HOST/REPOSITORY", err)
			}
			return nil, err
		}
		names = slices.DeleteFunc(all, func(n string) bool { return !strings.HasPrefix(n, c.prefix) })
	}
	var list []name.Repository
	for _, n := range names {
		if c.Repositories == nil || c.Repositories.MatchString(n) {
			list = append(list, c.registry.Repo(n))
		}
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%s has no repository that is selected", c.Source)
	}
	return list, nil
}

// destination returns where a repository is copied to. With `renamed` it is the only one.
func (c *copier) destination(from name.Repository, renamed bool) name.Repository {
	path := from.RepositoryStr()
	switch {
	case c.To != "" && renamed:
		path = c.To
	case c.To != "":
		path = strings.Trim(c.To, "/") + "/" + path
	}
	return c.to.Repo(path)
}

// attachedTag is the name of a tag that is attached to an image by its name, such as cosign's.
var attachedTag = regexp.MustCompile(`^sha256-([0-9a-f]{64})(\..*)?$`)

// repository copies the tags of a repository.
func (c *copier) repository(ctx context.Context, from name.Repository, renamed bool) {
	to := c.destination(from, renamed)
	tags, err := c.puller.List(ctx, from)
	if err != nil {
		c.tell(Tag{Source: from.Name(), Destination: to.Name(), Outcome: Failed, Error: "listing its tags: " + err.Error()})
		return
	}
	var chosen, attached []string
	for _, t := range tags {
		switch {
		case c.Tags == nil || c.Tags.MatchString(t):
			chosen = append(chosen, t)
		case attachedTag.MatchString(t):
			attached = append(attached, t)
		}
	}
	var mu sync.Mutex
	digests := make(map[string]bool) // of what the chosen tags have
	c.each(ctx, chosen, func(ctx context.Context, tag string) {
		done := c.tag(ctx, from.Tag(tag), to.Tag(tag))
		mu.Lock()
		defer mu.Unlock()
		for _, d := range done.manifests {
			digests[d.String()] = true
		}
		c.tell(done)
	})
	attached = slices.DeleteFunc(attached, func(t string) bool { return !digests["sha256:"+attachedTag.FindStringSubmatch(t)[1]] })
	c.each(ctx, attached, func(ctx context.Context, tag string) { c.tell(c.tag(ctx, from.Tag(tag), to.Tag(tag))) })
}

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
	if c.Told != nil {
		c.Told(t)
	}
}

// tag copies a tag with what is attached to its manifest.
func (c *copier) tag(ctx context.Context, from, to name.Tag) Tag {
	done := Tag{Source: from.Name(), Destination: to.Name(), Outcome: UpToDate}
	fail := func(err error) Tag {
		done.Outcome, done.Error = Failed, err.Error()
		return done
	}
	is, err := look(ctx, c.puller, from)
	if err != nil {
		return fail(err)
	}
	done.Digest = is.Digest.String()
	source := from.Context().Digest(done.Digest)
	if done.manifests, err = c.listed(ctx, from.Context(), is); err != nil {
		return fail(err)
	}
	there, err := look(ctx, c.looker, to)
	if err != nil && !missing(err) {
		return fail(err)
	}
	if err != nil || there.Digest != is.Digest {
		done.Outcome = WouldBe
		if !c.DryRun {
			if err := c.manifest(ctx, source, to); err != nil {
				return fail(err)
			}
			done.Outcome = Copied
		}
	}
	if c.NoReferrers || c.DryRun {
		return done
	}
	for _, m := range done.manifests {
		n, err := c.attached(ctx, from.Context().Digest(m.String()), to.Context(), 0)
		done.Attached += n
		if err != nil {
			return fail(fmt.Errorf("copying what is attached to it: %w", err))
		}
	}
	return done
}

// look returns the digest and the media type of what a reference points to.
func look(ctx context.Context, p *remote.Puller, ref name.Reference) (*v1.Descriptor, error) {
	d, err := p.Head(ctx, ref)
	if err == nil || missing(err) {
		return d, err
	}
	full, err := p.Get(ctx, ref) // some registries know no HEAD, or don't say the digest
	if err != nil {
		return nil, err
	}
	return &full.Descriptor, nil
}

// listed returns the digest of a manifest and, of an index, those of all manifests that it lists:
// to each of them something may be attached.
func (c *copier) listed(ctx context.Context, from name.Repository, d *v1.Descriptor) ([]v1.Hash, error) {
	list := []v1.Hash{d.Digest}
	if !d.MediaType.IsIndex() {
		return list, nil
	}
	full, err := c.puller.Get(ctx, from.Digest(d.Digest.String()))
	if err != nil {
		return nil, err
	}
	index, err := full.ImageIndex()
	if err != nil {
		return nil, err
	}
	content, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	for _, m := range content.Manifests {
		switch {
		case m.MediaType.IsIndex():
			below, err := c.listed(ctx, from, &m)
			if err != nil {
				return nil, err
			}
			list = append(list, below...)
		case m.MediaType.IsImage():
			list = append(list, m.Digest)
		}
	}
	return list, nil
}

func missing(err error) bool {
	answer, ok := errors.AsType[*transport.Error](err)
	return ok && answer.StatusCode == http.StatusNotFound
}

// manifest copies a manifest with its blobs and children to a tag or a digest.
func (c *copier) manifest(ctx context.Context, from name.Digest, to name.Reference) error {
	d, err := c.puller.Get(ctx, from)
	if err != nil {
		return err
	}
	if strings.Contains(string(d.MediaType), "manifest.v1+") && strings.Contains(string(d.MediaType), "docker") {
		return errors.New("its manifest has Docker's schema 1, which is no longer in use: build or push the image again with a client of today")
	}
	return c.pusher.Push(ctx, to, d)
}

// maxDepth is how deep attached manifests may be attached to attached ones.
const maxDepth = 4

// attached copies the referrers of a manifest, and theirs. It returns how many the destination
// didn't have.
func (c *copier) attached(ctx context.Context, subject name.Digest, to name.Repository, depth int) (copied int, err error) {
	if depth == maxDepth {
		return 0, nil
	}
	index, err := remote.Referrers(subject, slices.Concat(c.out, []remote.Option{remote.Reuse(c.puller), remote.WithContext(ctx)})...)
	if err != nil {
		return 0, err
	}
	list, err := index.IndexManifest()
	if err != nil {
		return 0, err
	}
	for _, m := range list.Manifests {
		from, there := subject.Context().Digest(m.Digest.String()), to.Digest(m.Digest.String())
		switch _, err := look(ctx, c.looker, there); {
		case err == nil:
		case !missing(err):
			return copied, err
		default:
			if err := c.manifest(ctx, from, there); err != nil {
				return copied, err
			}
			copied++
		}
		below, err := c.attached(ctx, from, to, depth+1)
		copied += below
		if err != nil {
			return copied, err
		}
	}
	return copied, nil
}
