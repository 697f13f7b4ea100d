package server

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/http"
	"strings"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/catalog/browse"
	"github.com/purser-registry/purser/internal/limit"
	"github.com/purser-registry/purser/internal/oci"
)

// authenticate finds out who sends the request, and returns the request with a context that
// names the client in audit entries. Wrong credentials are no error yet: Authorize refuses them
// when a route needs an access, so that the refusal can say which access that is.
func (s *Server) authenticate(r *http.Request) *http.Request {
	o := Observed(r.Context())
	o.Principal = auth.Everyone
	if s.opt.Auth != nil {
		o.Principal, o.authErr = s.opt.Auth.Authenticate(r, auth.From{Address: ClientAddress(r.RemoteAddr), Tokens: s.mounted(r).Tokens})
	}
	if !s.needsSource(r) {
		return r
	}
	return r.WithContext(audit.WithSource(r.Context(), audit.Source{
		Actor: o.Principal.Name, Address: ClientAddress(r.RemoteAddr), UserAgent: Bounded(r.UserAgent()), RequestID: o.ID}))
}

// Authorize returns an error if the client that sent the request with this context doesn't
// have the access to the resource. The error is for the client: UNAUTHORIZED if logging in may
// help, else DENIED. Authorize also sets the answer's challenge, which says how to log in.
func (s *Server) Authorize(ctx context.Context, a auth.Access, resource auth.Resource) error {
	o := Observed(ctx)
	var err error
	switch {
	case s.opt.Authorize != nil:
		err = s.opt.Authorize(ctx, a, resource)
	case a == auth.Anyone:
	case o.authErr != nil:
		err = o.authErr
	case s.opt.Auth != nil:
		err = s.opt.Auth.Authorize(ctx, o.Principal, a, resource)
	case a == 0:
		err = oci.NewError(oci.Denied).WithCause(errors.New("the route names no access"))
	}
	if e, ok := errors.AsType[*oci.Error](err); ok && e.HTTPStatus() == http.StatusUnauthorized {
		s.challenge(o, a, resource)
	}
	return err
}

// challenge sets the answer's WWW-Authenticate header, which says how to log in.
func (s *Server) challenge(o *Observation, a auth.Access, resource auth.Resource) {
	if o.mounted == nil || o.mounted.Challenge == nil {
		return
	}
	o.Header().Set("WWW-Authenticate", o.mounted.Challenge(Challenge{
		Base: o.absoluteBase, Service: s.service(), Access: a, Resource: resource,
		Invalid: o.authErr != nil, Insufficient: o.authErr == nil && o.Principal.HasToken()}))
}

// SentNothing says whether the client of a registry with access control has sent no credentials
// at all. A registry token counts as credentials, also one that /token gave to nobody.
func (s *Server) SentNothing(ctx context.Context) bool {
	p := Observed(ctx).Principal
	return s.opt.Auth != nil && p.ID == 0 && !p.IsOpen() && !p.HasToken()
}

// AskForCredentials returns an error with status 401 if the client has sent no credentials.
// Many clients send theirs only after such an answer. A client without an account gets a token
// from /token for the same request.
func (s *Server) AskForCredentials(ctx context.Context, a auth.Access, resource auth.Resource) error {
	if !s.SentNothing(ctx) {
		return nil
	}
	s.challenge(Observed(ctx), a, resource)
	return oci.NewError(oci.Unauthorized)
}

// OfferLogIn tells a client without credentials that the list which it gets may be longer with
// them, by a challenge in an answer that is no error (RFC 9110, section 11.6.1).
func (s *Server) OfferLogIn(ctx context.Context, a auth.Access) {
	if s.SentNothing(ctx) {
		s.challenge(Observed(ctx), a, auth.Registry)
	}
}

// Principal returns who sent the request with this context, if that client has the access in the
// registry. Credentials that are wrong are an error, unlike none.
func (s *Server) Principal(ctx context.Context, a auth.Access) (*auth.Principal, error) {
	o := Observed(ctx)
	if o.authErr != nil {
		return nil, s.Authorize(ctx, auth.LoggedIn, auth.Registry)
	}
	return o.Principal, s.Authorize(ctx, a, auth.Registry)
}

// MayRead says whether the client may pull from a repository. Unlike Authorize, it doesn't
// change the answer.
func (s *Server) MayRead(ctx context.Context, repository string) bool {
	if s.opt.Authorize != nil {
		return s.opt.Authorize(ctx, auth.Pull, auth.OfRepository(repository)) == nil
	}
	o := Observed(ctx)
	return s.opt.Auth == nil || o.authErr == nil && s.opt.Auth.MayRead(ctx, o.Principal, repository)
}

// MayOverwrite says whether the client may move tags of a repository in which it may push.
func (s *Server) MayOverwrite(ctx context.Context, repository string) bool {
	return s.opt.Auth == nil || s.opt.Auth.MayOverwrite(Observed(ctx).Principal, repository)
}

// Viewer returns what lists and descriptions show to the client.
func (s *Server) Viewer(ctx context.Context) (browse.Viewer, error) {
	if s.opt.Auth == nil {
		return browse.Everyone, nil
	}
	p := Observed(ctx).Principal
	r, err := s.opt.Auth.Readable(ctx, p)
	return browse.Viewer{
		All: r.All, Public: r.Public, PublicByDefault: s.opt.Auth.PublicByDefault(),
		Namespaces: r.Namespaces, Repositories: r.Repositories, Patterns: r.Patterns, Account: p.ID,
	}, err
}

// Forget makes access control forget what it has cached about repositories and namespaces.
func (s *Server) Forget() {
	if s.opt.Auth != nil {
		s.opt.Auth.Forget()
	}
}

// Auth returns the access control, nil if everybody may do everything.
func (s *Server) Auth() *auth.Control { return s.opt.Auth }

// service returns the name of the registry in registry tokens.
func (s *Server) service() string { return serviceOf(s.external) }

// ServiceName returns the name of a registry in registry tokens: the host of its external URL,
// or "purser" if it has none.
func ServiceName(externalURL string) string {
	e, err := parseExternal(externalURL)
	if err != nil {
		e = nil
	}
	return serviceOf(e)
}

func serviceOf(e *external) string {
	if e == nil {
		return "purser"
	}
	return e.host
}

// PublicBase returns the scheme and host under which browsers reach the registry: those of the
// external URL, else those of the request with this context.
func (s *Server) PublicBase(ctx context.Context) string {
	return Observed(ctx).absoluteBase
}

// Challenge is what a client needs to log in.
type Challenge struct {
	Base     string // scheme and host of the registry, as the client reaches it
	Service  string
	Access   auth.Access
	Resource auth.Resource
	Invalid  bool // the client has sent credentials, and they are wrong or have expired
	// Insufficient says that the client has sent a valid registry token, which doesn't allow the
	// access. By this, Docker and containerd tell the user that a log-in is needed, and stop
	// repeating the request.
	Insufficient bool
}

// Basic returns a challenge for HTTP Basic authentication (RFC 7617).
func (c Challenge) Basic() string { return `Basic realm="Purser", charset="UTF-8"` }

// Bearer returns a challenge for Docker's token protocol (distribution specification of
// Docker, "Token Authentication").
func (c Challenge) Bearer() string {
	text := `Bearer realm="` + c.Base + `/token",service="` + c.Service + `"`
	if scope := c.scope(); scope != "" {
		text += `,scope="` + scope + `"`
	}
	switch {
	case c.Invalid:
		text += `,error="invalid_token"`
	case c.Insufficient:
		text += `,error="insufficient_scope"`
	}
	return text
}

func (c Challenge) scope() string {
	if c.Access == auth.List {
		return "registry:catalog:*"
	}
	actions := map[auth.Access]string{auth.Pull: "pull", auth.Push: "pull,push", auth.Delete: "delete"}[c.Access]
	if actions == "" || c.Resource.Repository == "" {
		return ""
	}
	return "repository:" + c.Resource.Repository + ":" + actions
}

// absolute returns scheme and host by which the client reaches the registry, and logs in. It is
// the external URL wherever that is set: a client must not send its password to another host
// because its request named one.
func (s *Server) absolute(r *http.Request, o *Observation) string {
	host := r.Host
	if local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok && host == "" { // HTTP/1.0
		host = local.String()
	}
	base := "http://" + host
	switch {
	case s.external != nil:
		base = s.external.url
	case o.encrypted:
		base = "https://" + host
	}
	if s.opt.Auth != nil && strings.HasPrefix(base, "http:") {
		s.warnOfPlainRealm(r, o, base)
	}
	return base
}

// warnOfPlainRealm warns once if a proxy says that clients use https, and they are told to log
// in over http all the same. They then send passwords that everybody on the way can read.
func (s *Server) warnOfPlainRealm(r *http.Request, o *Observation, base string) {
	header := limit.HTTPSHeader(r)
	if header == "" {
		return
	}
	s.plain.Do(func() {
		remedy := "name the proxy in http.trusted_proxies, or set http.external_url to the https:// URL"
		if s.external != nil {
			remedy = "let http.external_url begin with https://"
		}
		s.log.WarnContext(r.Context(), "a request says that its client uses https, and the client is told to log in over http, so that its password is sent in plain text: "+remedy,
			"header", header, "peer", cmp.Or(o.proxy, r.RemoteAddr), "realm", base+"/token")
	})
}
