package acme

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"
)

const (
	// maxAnswer is the largest body of an answer, in bytes. Directories and orders have some
	// KiB, chains of certificates some ten.
	maxAnswer = 1 << 20
	// maxAnswerHeader is the largest header of an answer, in bytes.
	maxAnswerHeader = 64 << 10
	// maxRequests is the number of requests in one attempt. A good one needs about ten, and one
	// more for each second that the authority takes.
	maxRequests = 500
	// mostPoll is how long to wait before an order or an authorization is looked at again, if
	// the authority says longer.
	mostPoll = 5 * time.Second
)

// authority carries the requests of one attempt to the certificate authority, and bounds what
// comes back, since the library (golang.org/x/crypto/acme) reads answers whatever their size,
// and obeys each Retry-After.
type authority struct {
	next http.RoundTripper

	mu       sync.Mutex
	requests int
	answered bool          // it has answered, so that it isn't out of reach
	ahead    time.Duration // of this machine's clock, compared with the last answer; 0: unknown
	broken   error         // ends the attempt
}

func (a *authority) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := a.begin(); err != nil {
		return nil, err
	}
	res, err := a.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	a.mu.Lock()
	a.answered = true
	if date, err := http.ParseTime(res.Header.Get("Date")); err == nil {
		a.ahead = now.Sub(date)
	}
	a.mu.Unlock()
	if res.Header.Get("Retry-After") != "" {
		after := retryAfter(res.Header)
		if res.StatusCode < 400 {
			after = min(max(after, time.Second), mostPoll)
		}
		res.Header.Set("Retry-After", strconv.Itoa(int(after/time.Second)))
	}
	res.Body = &answer{res.Body, maxAnswer, a, r.URL.Path}
	return res, nil
}

func (a *authority) begin() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.requests++
	if a.requests > maxRequests && a.broken == nil {
		a.broken = fmt.Errorf("the authority has needed %d requests without coming to an end", maxRequests)
	}
	return a.broken
}

// state returns whether the authority has answered, and how far its clock is behind.
func (a *authority) state() (answered bool, ahead time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.answered, a.ahead
}

// answer is the body of an answer. If it is too long, the attempt ends.
type answer struct {
	io.ReadCloser
	left int
	of   *authority
	path string
}

func (b *answer) Read(p []byte) (int, error) {
	if b.left == 0 {
		// One byte more shows whether the body ends here.
		n, err := b.ReadCloser.Read(make([]byte, 1))
		if n == 0 {
			return 0, err
		}
		b.of.mu.Lock()
		defer b.of.mu.Unlock()
		b.of.broken = fmt.Errorf("the authority's answer at %.100s has more than %d bytes", b.path, maxAnswer)
		return 0, b.of.broken
	}
	if len(p) > b.left {
		p = p[:b.left]
	}
	n, err := b.ReadCloser.Read(p)
	b.left -= n
	return n, err
}

// retryAfter returns how long the authority asks to wait (RFC 9110, section 10.2.3), but not
// more than maxFailurePause. It returns 0 if the authority doesn't say, or says nonsense.
func retryAfter(h http.Header) time.Duration {
	text := h.Get("Retry-After")
	seconds, err := strconv.ParseInt(text, 10, 64)
	switch {
	case errors.Is(err, strconv.ErrRange) && seconds > 0:
		return maxFailurePause
	case err == nil:
		return time.Duration(min(max(seconds, 0), int64(maxFailurePause/time.Second))) * time.Second
	}
	at, err := http.ParseTime(text)
	if err != nil {
		return 0
	}
	return min(max(time.Until(at), 0), maxFailurePause)
}
