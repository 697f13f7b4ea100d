package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/purser-registry/purser/internal/limit"
	"github.com/purser-registry/purser/internal/oci"
)

// Limits bound what clients may hold. A zero is no limit.
type Limits struct {
	Memory limit.BudgetOptions // for bodies in memory; its Metrics are those below
	// Requests that are answered at once, in all and for a client. Connections have
	// the same limits; with HTTP/2 one connection brings many requests.
	Requests, ClientRequests int
	// Uploads that were begun and neither finished nor cancelled.
	Uploads, ClientUploads int
	// MinBodyRate is how many bytes a second a body brings at least, measured over
	// MinBodyRateWindow of waiting for it.
	MinBodyRate       int64
	MinBodyRateWindow time.Duration
	// AnswerIdleTimeout ends a request whose client takes nothing of the answer.
	AnswerIdleTimeout time.Duration
	Metrics           *limit.Metrics
}

const (
	// drainTime is how long the rest of a body is waited for that nobody will read,
	// so that the client reads the answer before the connection ends.
	drainTime = 2 * time.Second
	// maxHeavy is how many large manifests are parsed and stored at a time, since
	// what is made of one can be ten times as large.
	maxHeavy = 4
	// heavyManifest is how many bytes make a manifest a large one.
	heavyManifest = 256 << 10
	// manifestFactor is how many bytes are counted for each of a manifest: its
	// payload, and what is made of it until it is stored.
	manifestFactor = 2
	// largeAnswer is the length from which an answer that is in memory counts, bytes.
	// What is shorter fits in the connection's buffer.
	largeAnswer = 64 << 10
)

// admit counts the request. It is refused when its client, or all together, have
// more under way than they may.
func (s *Server) admit(client string) error {
	switch s.requests.Add(client) {
	case limit.ClientFull:
		s.opt.Limits.Metrics.Refused(limit.ClientRequests)
		return oci.Errorf(oci.Unavailable, "there are too many requests from your address: try again in a moment")
	case limit.AllFull:
		s.opt.Limits.Metrics.Refused(limit.Requests)
		return oci.Errorf(oci.Unavailable, "there are too many requests: try again in a moment")
	}
	return nil
}

// hold counts an answer of n bytes that is in memory, if it is a large one, until
// the request ends.
func (c *call) hold(n int) error {
	if n <= largeAnswer {
		return nil
	}
	_, err := observed(c.r.Context()).lease.Take(c.r.Context(), int64(n))
	return err
}

// heavy waits for its turn to work on a manifest of n bytes. done ends it.
func (s *Server) heavy(ctx context.Context, n int) (done func(), err error) {
	if n < heavyManifest {
		return func() {}, nil
	}
	select {
	case s.heavyTurns <- struct{}{}:
		return func() { <-s.heavyTurns }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("waiting for other manifests: %w", context.Cause(ctx))
	}
}

// pace measures a body by the time that was spent waiting for it.
type pace struct {
	least  int64 // bytes a second
	window time.Duration
	bytes  int64
	waited time.Duration
}

// tooSlow counts n bytes that were waited for, and tells at the end of each window
// whether it brought too few.
func (p *pace) tooSlow(n int, waited time.Duration) bool {
	p.bytes, p.waited = p.bytes+int64(n), p.waited+waited
	if p.least <= 0 || p.window <= 0 || p.waited < p.window {
		return false
	}
	slow := float64(p.bytes) < float64(p.least)*p.waited.Seconds()
	p.bytes, p.waited = 0, 0
	return slow
}

const (
	minSlice = 64 << 10
	maxSlice = 1 << 20
)

// sending sends an answer in slices, and gives the client a new time for each.
type sending struct {
	control *http.ResponseController
	idle    time.Duration
	end     time.Time // of the request, whatever it does
	slice   int64
	since   time.Time // of the last deadline
	metrics *limit.Metrics
}

func (s *Server) newSending(w http.ResponseWriter) sending {
	idle := s.opt.Limits.AnswerIdleTimeout
	if idle <= 0 {
		idle = s.opt.MaxRequest
	}
	return sending{control: http.NewResponseController(w), idle: idle, end: time.Now().Add(s.opt.MaxRequest),
		slice: 4 * minSlice, metrics: s.opt.Limits.Metrics}
}

// extend moves the deadline on.
func (g *sending) extend() {
	now := time.Now()
	if now.Sub(g.since) < g.idle/8 {
		return
	}
	until := now.Add(g.idle)
	if until.After(g.end) {
		until = g.end
	}
	// A connection without deadlines (in a test, say) just waits.
	g.control.SetWriteDeadline(until) //nolint:errcheck
	g.since = now
}

// took adapts the slices to how fast the client is: a slow one has to take less in
// its time, a fast one costs fewer calls.
func (g *sending) took(d time.Duration) {
	switch {
	case d < 100*time.Millisecond:
		g.slice = min(2*g.slice, maxSlice)
	case d > 2*time.Second:
		g.slice = max(g.slice/2, minSlice)
	}
}

// failed says more of an error that is a client's that took nothing.
func (g *sending) failed(err error) error {
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	g.metrics.Refused(limit.AnswerIdle)
	return fmt.Errorf("the client takes nothing of the answer: %w", err)
}

// write writes p in slices.
func (g *sending) write(w io.Writer, p []byte) (n int, err error) {
	for {
		g.extend()
		began := time.Now()
		m, err := w.Write(p[n:min(int64(len(p)), int64(n)+g.slice)])
		n += m
		if err != nil {
			return n, g.failed(err)
		}
		if n == len(p) {
			return n, nil
		}
		g.took(time.Since(began))
	}
}

// readFrom copies src in slices. A slice of a file is an io.LimitedReader of the
// file itself, which is what package net sends with sendfile.
func (g *sending) readFrom(w io.Writer, src io.Reader) (total int64, err error) {
	whole, limited := src.(*io.LimitedReader)
	for {
		piece := io.LimitedReader{R: src, N: g.slice}
		if limited {
			piece = io.LimitedReader{R: whole.R, N: min(g.slice, whole.N)}
		}
		size := piece.N
		g.extend()
		began := time.Now()
		n, err := copyPiece(w, &piece)
		total += n
		if limited {
			whole.N -= size - piece.N
		}
		if err != nil {
			return total, g.failed(err)
		}
		if piece.N > 0 || limited && whole.N == 0 { // the source ended
			return total, nil
		}
		g.took(time.Since(began))
	}
}

func copyPiece(w io.Writer, piece *io.LimitedReader) (int64, error) {
	if rf, ok := w.(io.ReaderFrom); ok {
		return rf.ReadFrom(piece)
	}
	return io.Copy(struct{ io.Writer }{w}, piece)
}
