package server

import (
	"context"
	"net/http"
	"strconv"
	"strings"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/catalog"
)

// clientAddress removes the port from an address.
func clientAddress(remote string) string {
	if i := strings.LastIndexByte(remote, ':'); i >= 0 {
		remote = remote[:i]
	}
	return strings.TrimSuffix(strings.TrimPrefix(remote, "["), "]")
}

// clientPort returns the port of an address, 0 if there is none.
func clientPort(remote string) int {
	port, err := strconv.ParseUint(remote[strings.LastIndexByte(remote, ':')+1:], 10, 16)
	if err != nil {
		return 0
	}
	return int(port)
}

// maxKept limits how many bytes of a client's text are kept in memory for an audit
// entry.
const maxKept = 1024

// bounded returns the first maxKept bytes of a text. A cut text is copied, so that the
// whole one can be freed.
func bounded(s string) string {
	if len(s) <= maxKept {
		return s
	}
	return strings.Clone(s[:maxKept])
}

// changes says whether a request may change something, so that its context needs the
// audit log's source. Pulls, which are the most frequent requests, fill in their own
// entries.
func changes(r *http.Request) bool {
	return r.Method != http.MethodGet && r.Method != http.MethodHead || isManagement(r)
}

// recordPull records that a client has fetched a manifest, or has only checked it: by
// HEAD, or by a GET that was answered with 304.
func (s *Server) recordPull(c *call, m *catalog.Manifest, fetched bool) {
	if s.opt.Recorder == nil {
		return
	}
	e := audit.Entry{
		Kind: audit.PullRepo, Actor: audit.SourceOf(c.r.Context()).Actor,
		Address: clientAddress(c.r.RemoteAddr), UserAgent: bounded(c.r.UserAgent()), RequestID: observed(c.r.Context()).id,
		Repository: c.name, RepositoryID: m.Repository, Digest: m.Digest, Port: clientPort(c.r.RemoteAddr),
	}
	if !strings.Contains(c.ref, ":") {
		e.Tag = c.ref
	}
	if len(c.r.RequestURI) > maxKept { // both are substrings of it, and would keep it in memory
		e.Repository, e.Tag = strings.Clone(e.Repository), strings.Clone(e.Tag)
	}
	if !fetched {
		s.opt.Recorder.Checked(c.r.Context(), e)
		return
	}
	s.opt.Recorder.Pulled(c.r.Context(), e)
}

// logAct writes an audit entry for an operator's action, before it is done. It does
// nothing if there is no audit log.
func (s *Server) logAct(ctx context.Context, kind audit.Kind, detail map[string]any) error {
	if s.opt.Audit == nil {
		return nil
	}
	return s.opt.Audit.Append(ctx, audit.Entry{Kind: kind, Detail: detail})
}

// logRun wraps the work of a run so that it first writes an audit entry. ctx is the
// context of the request that started the run; it says who did.
func logRun[R any](ctx context.Context, s *Server, kind audit.Kind, detail map[string]any,
	work func(ctx context.Context, r *run[R]) error,
) func(ctx context.Context, r *run[R]) error {
	from := audit.SourceOf(ctx)
	return func(ctx context.Context, r *run[R]) error {
		status, _ := r.view()
		detail["task"] = status.ID
		if err := s.logAct(audit.WithSource(ctx, from), kind, detail); err != nil {
			return err
		}
		return work(ctx, r)
	}
}
