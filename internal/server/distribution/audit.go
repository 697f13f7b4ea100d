package distribution

import (
	"strings"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/server"
)

// recordPull records that a client has pulled the manifest `m`, if `fetched` is true. Otherwise
// the client has only checked the manifest, with HEAD or with a GET that was answered with 304;
// recordPull then records a use of the manifest that isn't a pull.
func (a *API) recordPull(c *call, m *catalog.Manifest, fetched bool) {
	if a.opt.Recorder == nil {
		return
	}
	e := audit.Entry{
		Kind: audit.PullRepo, Actor: server.Observed(c.r.Context()).Principal.Name,
		Address: server.ClientAddress(c.r.RemoteAddr), UserAgent: server.Bounded(c.r.UserAgent()), RequestID: server.Observed(c.r.Context()).ID,
		Repository: c.name, RepositoryID: m.Repository, Digest: m.Digest, Port: server.ClientPort(c.r.RemoteAddr),
	}
	if !strings.Contains(c.ref, ":") {
		e.Tag = c.ref
	}
	if len(c.r.RequestURI) > server.MaxKept { // both are substrings of it, and would keep it in memory
		e.Repository, e.Tag = strings.Clone(e.Repository), strings.Clone(e.Tag)
	}
	if !fetched {
		a.opt.Recorder.Checked(c.r.Context(), e)
		return
	}
	a.opt.Recorder.Pulled(c.r.Context(), e)
}
