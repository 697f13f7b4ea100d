// Package upstream reads other registries, and trusts none of them.
//
// All that Purser fetches from a registry that somebody names goes through this package: what
// "purser copy" copies, and what a mirror fetches. Logging in is go-containerregistry's; the
// requests are made here, on an HTTP transport that bounds each of them:
//
//   - Every answer has a limit of bytes, before and after decompression. One that stops, or that
//     comes slower than [Limits].Rate, ends with an error.
//   - Lists have a limit of pages, names and bytes, and each page is read once. Manifests have
//     the limits of those that are pushed to Purser. A [Walk] visits each digest once.
//   - Redirects are counted, and one that leads back ends with an error.
//   - Names, tags and digests are checked by their grammar before they become part of a URL or
//     are returned. What is fetched by a digest is compared with it.
//   - Addresses that aren't public are connected to only for the registry itself, and for others
//     only if the registry is at such an address. Credentials go to other hosts only by https,
//     and [Options].CredentialsTo is told which ones.
//   - The registry is spoken to by https alone, unless it is on this machine or plain http is asked
//     for. What it can make a log-in ask for is bounded.
//   - What a registry says in errors is bounded, and printable.
//
// The APIs of Harbor, Quay, GitLab and Docker Hub, which list repositories where a registry has no
// catalog, are read within the same bounds ([Registry.RepositoriesBy], [API]).
package upstream

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/purser-registry/purser/internal/oci"
)

// Limits bound what a registry can make its client do. The limits of a manifest aren't among
// them: they are those of a manifest that is pushed, [oci.MaxManifestSize] and [oci.MaxDescriptors].
type Limits struct {
	Pages     int           // pages of a list; default 10,000
	Names     int           // names in a list; default 1,000,000
	ListBytes int64         // of all pages of a list; default 64 MiB
	Depth     int           // of manifests that list or are attached to one another; default 8
	Manifests int           // in one Walk; default 100,000
	BlobBytes int64         // of a blob; default 1 TiB
	Redirects int           // of one request; default 10
	Silence   time.Duration // for which nothing may come; default 2 minutes
	Rate      int64         // the fewest bytes a second, over each period of Silence; default 1 KiB
}

// WithDefaults returns the limits with the defaults instead of zeros.
func (l Limits) WithDefaults() Limits {
	return Limits{
		Pages:     cmp.Or(l.Pages, 10_000),
		Names:     cmp.Or(l.Names, 1_000_000),
		ListBytes: cmp.Or(l.ListBytes, 64<<20),
		Depth:     cmp.Or(l.Depth, 8),
		Manifests: cmp.Or(l.Manifests, 100_000),
		BlobBytes: cmp.Or(l.BlobBytes, 1<<40),
		Redirects: cmp.Or(l.Redirects, 10),
		Silence:   cmp.Or(l.Silence, 2*time.Minute),
		Rate:      cmp.Or(l.Rate, 1<<10),
	}
}

// Options say which registry is read, and how.
type Options struct {
	Host      string // HOST or HOST:PORT; required
	PlainHTTP bool   // speak plain http to it; registries on this machine are spoken to so anyway
	// Keychain has the credentials. nil: none.
	Keychain authn.Keychain
	Agent    string // the User-Agent
	// Trusted are further hosts (HOST, or HOST:PORT) that may be at an address that isn't public,
	// and that may get credentials by plain http.
	Trusted []string
	// CredentialsTo is called with each other host that gets the credentials, before it gets
	// them. It may be called by several goroutines at once. May be nil.
	CredentialsTo func(host string)
	// Proxy returns the proxy for a request, as http.ProxyFromEnvironment does. nil: none. The
	// proxy connects, so the addresses of other hosts are then only checked by a look-up of
	// their names here.
	Proxy    func(*http.Request) (*url.URL, error)
	TLS      *tls.Config   // nil: the system's certificate authorities
	Resolver *net.Resolver // nil: the system's
	Limits   Limits
}

// Registry is another registry.
type Registry struct {
	opt   Options
	limit Limits
	host  name.Registry
	guard *guard
}

// Open returns the registry that the options name. It doesn't connect to it.
func Open(o Options) (*Registry, error) {
	o.PlainHTTP = o.PlainHTTP || onLoopback(o.Host)
	var scheme []name.Option
	if o.PlainHTTP {
		scheme = append(scheme, name.Insecure)
	}
	host, err := name.NewRegistry(o.Host, scheme...)
	if err != nil || o.Host == "" {
		return nil, fmt.Errorf("%q is no registry; write it as HOST or HOST:PORT", Printable(o.Host))
	}
	r := &Registry{opt: o, limit: o.Limits.WithDefaults(), host: host}
	r.guard = newGuard(o, r.limit, host)
	return r, nil
}

// onLoopback says whether a host, with or without a port, is this machine by its name or address.
func onLoopback(host string) bool {
	name := (&url.URL{Host: host}).Hostname()
	at, err := netip.ParseAddr(name)
	return name == "localhost" || strings.HasSuffix(name, ".localhost") || err == nil && at.IsLoopback()
}

// scheme is the scheme of the registry's URLs. That of go-containerregistry's names is http at private
// addresses too.
func (r *Registry) scheme() string {
	if r.opt.PlainHTTP {
		return "http"
	}
	return "https"
}

// Name returns the registry's host, as it is written in references.
func (r *Registry) Name() string { return r.host.Name() }

// Close closes connections that nothing uses.
func (r *Registry) Close() { r.guard.close() }

// Repository is a repository of another registry, with the log-in for it.
type Repository struct {
	registry *Registry
	name     string
	client   *http.Client
}

// Repository logs in for a repository.
func (r *Registry) Repository(ctx context.Context, path string) (*Repository, error) {
	if err := oci.ValidateName(path); err != nil {
		return nil, &Error{text: Printable(err.Error()), err: err}
	}
	client, err := r.login(ctx, r.host.Repo(path))
	if err != nil {
		return nil, err
	}
	return &Repository{registry: r, name: path, client: client}, nil
}

// Name returns the repository's name, without the registry's host.
func (p *Repository) Name() string { return p.name }

// target is what a log-in is for.
type target interface {
	authn.Resource
	Scope(action string) string
}

// auth returns the credentials for something in the registry.
func (r *Registry) auth(ctx context.Context, of authn.Resource) (authn.Authenticator, error) {
	if r.opt.Keychain == nil {
		return authn.Anonymous, nil
	}
	auth, err := authn.Resolve(ctx, r.opt.Keychain, of)
	if err != nil {
		return nil, fmt.Errorf("finding the credentials for %s: %w", r.host.Name(), err)
	}
	return auth, nil
}

// login returns a client that is logged in. Its requests are bounded by the guard.
func (r *Registry) login(ctx context.Context, of target) (*http.Client, error) {
	auth, err := r.auth(ctx, of)
	if err != nil {
		return nil, err
	}
	under := transport.NewUserAgent(&challenges{inner: r.guard, seen: make(map[string]bool)}, r.opt.Agent)
	logged, err := transport.NewWithContext(ctx, r.host, auth, under, []string{of.Scope(transport.PullScope)})
	if err != nil {
		e := failed("logging in to "+r.host.Name(), err)
		if errors.Is(err, errNotPlain) {
			// At private addresses go-containerregistry tries http too. That the guard refuses it isn't the cause.
			e.text, _, _ = strings.Cut(e.text, `; Get "http:`)
		}
		return nil, e
	}
	return &http.Client{Transport: logged, CheckRedirect: r.redirect}, nil
}

// transport returns the guard, with the name of the agent.
func (r *Registry) transport() http.RoundTripper { return transport.NewUserAgent(r.guard, r.opt.Agent) }

// redirect is the CheckRedirect of clients: it counts redirects, and refuses one that leads back,
// and one from https to http for content that no digest verifies.
func (r *Registry) redirect(next *http.Request, via []*http.Request) error {
	if len(via) > r.limit.Redirects {
		return fmt.Errorf("it was redirected more than %d times", r.limit.Redirects)
	}
	for _, before := range via {
		if before.URL.String() == next.URL.String() {
			return fmt.Errorf("it is redirected in a circle, to %s", shortURL(next.URL))
		}
	}
	if next.URL.Scheme != "https" && via[0].URL.Scheme == "https" && !answerOf(next.Context()).verified {
		return fmt.Errorf("it is redirected from https to %s, which isn't encrypted", shortURL(next.URL))
	}
	return nil
}
