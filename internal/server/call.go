package server

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/url"
)

// Reply is the answer to a Call.
type Reply struct {
	Status int
	Header http.Header
	Body   []byte
}

// Call sends a request to another interface of this server without a connection, for the client
// that sent the request with the context ctx. The other interface checks the client's access as
// if the client had sent the request itself, and names the client in audit entries. The target is
// an escaped path with an optional query, and a nil body is none; other bodies are JSON. An error
// means that no interface has the target: refusals are Replies.
//
// Calls of one request must not run at the same time, since they share its memory lease.
func (s *Server) Call(ctx context.Context, method, target string, body []byte) (*Reply, error) {
	u, err := url.ParseRequestURI(target)
	if err != nil {
		return nil, err
	}
	o := Observed(ctx)
	reply := &recorded{header: make(http.Header)}
	r := (&http.Request{
		Method: method, URL: u, RequestURI: target, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: make(http.Header), Body: http.NoBody, RemoteAddr: o.Client,
	}).WithContext(ctx)
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	}
	mounted := s.mounted(r)
	if mounted.Handler == nil {
		return nil, NothingAt(r)
	}
	inner := &Observation{
		ResponseWriter: reply, ID: o.ID, Client: o.Client, Base: o.Base, Lease: o.Lease, Principal: o.Principal,
		trips: o.trips, proxy: o.proxy, authErr: o.authErr, mounted: mounted, encrypted: o.encrypted, absoluteBase: o.absoluteBase,
		drained: body == nil, sending: s.newSending(reply),
	}
	inner.sharer.Store(o.sharer.Load())
	if body != nil {
		r.Body = countedBody{r.Body, inner, nil}
	}
	before := o.Lease.Held()
	mounted.Handler.ServeHTTP(inner, r.WithContext(context.WithValue(ctx, observationKey{}, inner)))
	o.Lease.Give(o.Lease.Held() - before)
	if n := int64(reply.body.Len()); n > smallReply {
		if _, err := o.Lease.Take(ctx, replyMemory*n); err != nil {
			return nil, err
		}
	}
	if inner.Err != nil {
		o.Err = inner.Err // for the log
	}
	return &Reply{Status: inner.status, Header: reply.header, Body: reply.body.Bytes()}, nil
}

const (
	// smallReply is the size in bytes of the longest reply that doesn't count in the memory budget.
	smallReply = 16 << 10
	// replyMemory is how many bytes of memory the caller needs for each byte of a longer one: the
	// reply, what it decodes, and the page that it makes of it.
	replyMemory = 4
)

// recorded is the ResponseWriter of a Call. Its answer is kept in memory, so only interfaces
// whose answers are bounded should be called.
type recorded struct {
	header http.Header
	body   bytes.Buffer
}

func (r *recorded) Header() http.Header         { return r.header }
func (r *recorded) WriteHeader(int)             {}
func (r *recorded) Write(p []byte) (int, error) { return r.body.Write(p) }
