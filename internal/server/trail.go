package server

import (
	"context"
	"net/http"
	"strconv"
	"strings"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/catalog"
)

// clientAddress is an address without its port.
func clientAddress(remote string) string {
	if i := strings.LastIndexByte(remote, ':'); i >= 0 {
		remote = remote[:i]
	}
	return strings.TrimSuffix(strings.TrimPrefix(remote, "["), "]")
}

// clientPort is the port of an address, 0 if it has none.
func clientPort(remote string) int {
	port, err := strconv.ParseUint(remote[strings.LastIndexByte(remote, ':')+1:], 10, 16)
	if err != nil {
		return 0
	}
	return int(port)
}

// maxKept is how much of what a client sends is kept in memory for an entry.
const maxKept = 1024

// bounded keeps the beginning of a text, and nothing that it was cut from.
func bounded(s string) string {
	if len(s) <= maxKept {
		return s
	}
	return strings.Clone(s[:maxKept])
}

// changes says whether a request may change something, so that it needs a source.
// Pulls, which are most, write theirs themselves.
func changes(r *http.Request) bool {
	return r.Method != http.MethodGet && r.Method != http.MethodHead || isManagement(r)
}

// recordPull takes note of a manifest that a client has fetched, or has only asked about:
// by HEAD, or by a GET whose answer was that it hasn't changed.
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
	if len(c.r.RequestURI) > maxKept { // both are parts of it
		e.Repository, e.Tag = strings.Clone(e.Repository), strings.Clone(e.Tag)
	}
	if !fetched {
		s.opt.Recorder.Checked(c.r.Context(), e)
		return
	}
	s.opt.Recorder.Pulled(c.r.Context(), e)
}

// logAct writes an entry of something that an operator does, before it is done.
// Without a log it writes nothing.
func (s *Server) logAct(ctx context.Context, kind audit.Kind, detail map[string]any) error {
	if s.opt.Audit == nil {
		return nil
	}
	return s.opt.Audit.Append(ctx, audit.Entry{Kind: kind, Detail: detail})
}

// logRun makes the work of a run begin with an entry of who has asked for it, whose
// request ctx is of.
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
