package server

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/purser-registry/purser/internal/auth/throttle"
	"github.com/purser-registry/purser/internal/limit"
	"github.com/purser-registry/purser/internal/oci"
)

// Limits bound the resources that clients may use. For each limit, 0 means that there is no
// limit. An account may use as much memory and have as many requests as one client, from
// whatever addresses, and so may all robots of a namespace together (see limit.Share).
type Limits struct {
	Memory limit.BudgetOptions // for bodies in memory; its Metrics are replaced by those below
	// Requests limits how many requests are handled at the same time, and ClientRequests how
	// many of them may come from one client. Limits on connections don't suffice, since an
	// HTTP/2 connection carries many requests.
	Requests, ClientRequests int
	// ClientRate limits the rate of requests of each client, and AccountRate that of each
	// account. Nil: no limit.
	ClientRate, AccountRate *throttle.Rates
	// MinBodyRate is the minimum rate, in bytes per second, at which a client must send a body.
	// The server counts only the time that it spends waiting for bytes of the body. Whenever
	// that time reaches MinBodyRateWindow, the server checks the rate and counts anew.
	MinBodyRate       int64
	MinBodyRateWindow time.Duration
	// AnswerIdleTimeout is the time after which a request ends if its client reads nothing of
	// the answer. The time starts anew whenever a slice of the answer has been sent.
	AnswerIdleTimeout time.Duration
	Metrics           *limit.Metrics
}

const (
	// drainTime limits how long the server waits for the rest of a body that the handler hasn't
	// read to its end. net/http reads some of this rest before it sends the answer, because a
	// client that is still sending might otherwise lose the connection before it reads the
	// answer.
	drainTime = 2 * time.Second
)

// admit counts the request as being handled, until the caller calls s.requests.Done. It returns
// an error if the client sends requests too fast, or if this client, or all clients together,
// already have as many requests in progress as Limits allow.
func (s *Server) admit(client string) error {
	if wait := s.opt.Limits.ClientRate.Allow(client); wait > 0 {
		s.opt.Limits.Metrics.Refused(limit.ClientRate)
		return tooFast("your address", wait)
	}
	switch s.requests.Add(client) {
	case limit.ClientFull:
		s.opt.Limits.Metrics.Refused(limit.ClientRequests)
		return oci.Errorf(oci.Unavailable, "there are too many requests from your address: try again in a moment")
	case limit.AllFull:
		s.opt.Limits.Metrics.Refused(limit.Requests)
		return oci.Errorf(oci.Unavailable, "there are too many requests: try again in a moment")
	case limit.NotFull:
	}
	return nil
}

// admitAccount does for the account that is logged in what admit does for the client. Concurrent
// requests and memory are what all clients share, so the robots of a namespace count as one account
// there; the rate is that of each account. It does nothing if nobody is logged in. If there is no
// error, the caller must call `done` when the request is answered.
func (s *Server) admitAccount(o *Observation) (done func(), err error) {
	account := o.Account()
	if account == "" {
		return func() {}, nil
	}
	if wait := s.opt.Limits.AccountRate.Allow(account); wait > 0 {
		s.opt.Limits.Metrics.Refused(limit.AccountRate)
		return nil, tooFast("the account "+account, wait)
	}
	share := o.Share()
	if s.accounts.Add(share) != limit.NotFull {
		s.opt.Limits.Metrics.Refused(limit.AccountRequests)
		return nil, oci.Errorf(oci.Unavailable, "there are too many requests of %s: try again in a moment", limit.ShareOwner(share))
	}
	o.Lease.Account(account)
	if of := o.sharer.Swap(&sharer{share, true}); of != nil && !of.known {
		s.addresses.Set(of.name, struct{}{})
	}
	return func() { s.accounts.Done(share) }, nil
}

// tooFast is the error for a client or account that may send its next request after `wait`.
func tooFast(whose string, wait time.Duration) error {
	return oci.Errorf(oci.TooManyRequests, "requests of %s come too fast: try again in %s", whose, max(wait.Round(time.Second), time.Second)).
		WithRetryAfter(wait)
}

// pace measures the rate at which the bytes of a body arrive. It counts only the time that the
// server spends waiting for these bytes.
type pace struct {
	least  int64 // bytes per second
	window time.Duration
	bytes  int64
	waited time.Duration
}

// tooSlow adds `n` bytes that arrived after the server had waited for the time `waited`. As
// soon as the total of these times reaches p.window, tooSlow returns whether the rate was below
// p.least, and starts a new measurement. Until then it returns false.
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

// sending writes an answer in slices, and renews the connection's write deadline between them
// (extend). Each slice gets at least 7/8 of the idle timeout, and slow clients get small slices
// (took). So only a client that reads nearly nothing for 7/8 of the idle timeout misses the
// deadline.
type sending struct {
	control *http.ResponseController
	idle    time.Duration
	end     time.Time // of the request
	slice   int64
	since   time.Time // when the deadline was last renewed
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

// extend sets the connection's write deadline to g.idle from now, but not later than the end of
// the request. It does nothing if the deadline was renewed less than g.idle/8 ago.
func (g *sending) extend() {
	now := time.Now()
	if now.Sub(g.since) < g.idle/8 {
		return
	}
	until := now.Add(g.idle)
	if until.After(g.end) {
		until = g.end
	}
	g.control.SetWriteDeadline(until) //nolint:errcheck // a connection without deadlines, as in tests, just waits
	g.since = now
}

// took adapts the slice size to `d`, the time that writing the last slice took. A slow client
// gets smaller slices, so that it can read a slice before the deadline. A fast client gets
// larger slices, so that an answer takes fewer system calls.
func (g *sending) took(d time.Duration) {
	switch {
	case d < 100*time.Millisecond:
		g.slice = min(2*g.slice, maxSlice)
	case d > 2*time.Second:
		g.slice = max(g.slice/2, minSlice)
	}
}

// failed returns an error for a failed write. If a write deadline was missed, failed counts
// that in the metrics, and the error says that the client doesn't read the answer. Other errors
// are returned unchanged.
func (g *sending) failed(err error) error {
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	g.metrics.Refused(limit.AnswerIdle)
	return fmt.Errorf("the client doesn't read the answer: %w", err)
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

// readFrom copies `src` to `w` in slices. If `src` is an io.LimitedReader of a file, each slice
// is an io.LimitedReader of the same file, so that package net can send the slice with
// sendfile.
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
		if piece.N > 0 || limited && whole.N == 0 { // src has ended
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
