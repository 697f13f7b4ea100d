package limit

import (
	"context"
	"sync"
	"time"
)

const (
	// slowBodyTime is the default of ListenerOptions.SlowBodyTime.
	slowBodyTime = 5 * time.Second
	// slowBodyTries is how many connections slowBody looks at.
	slowBodyTries = 64
)

// Progress measures how fast a connection brings the bodies of its requests. It counts only the
// time in which every request in progress on the connection waits for bytes of its body. An
// HTTP/2 connection may have several such requests. A nil *Progress measures nothing.
type Progress struct {
	c *conn

	mu       sync.Mutex
	requests int // in progress
	waiting  int // how many of them wait for bytes of their bodies
	listed   bool
	since    time.Time // the time since which all of them wait
	waited   time.Duration
	bytes    int64
}

// ProgressOf returns the Progress of the connection on which the request with this context
// came, nil if a Listener's ConnContext didn't make the context.
func ProgressOf(ctx context.Context) *Progress {
	if c, ok := ctx.Value(connKey{}).(*conn); ok {
		return &c.progress
	}
	return nil
}

// Begin must be called when a handler begins to handle a request, and End when it has ended.
func (p *Progress) Begin() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.requests == 0 {
		p.waited, p.bytes = 0, 0
	} else if p.allWait() {
		p.waited += time.Since(p.since)
	}
	p.requests++
}

// End reverses Begin.
func (p *Progress) End() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.requests--
	if p.allWait() {
		p.since = time.Now()
	}
}

func (p *Progress) allWait() bool { return p.requests > 0 && p.waiting >= p.requests }

// Wait says that a request begins to wait for bytes of its body, and Got that the wait is over
// and brought n bytes.
func (p *Progress) Wait(now time.Time) {
	if p == nil {
		return
	}
	p.mu.Lock()
	p.waiting++
	if p.allWait() {
		p.since = now
	}
	isNew := !p.listed
	p.listed = true
	p.mu.Unlock()
	if isNew {
		p.c.l.listBody(p.c)
	}
}

// Got ends a Wait.
func (p *Progress) Got(n int, now time.Time) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.allWait() {
		p.waited += now.Sub(p.since)
	}
	p.waiting--
	p.bytes += int64(n)
}

// isSlow returns whether the connection's requests have waited for at least `least`, and in
// this time brought less than `rate` bytes a second. If they have waited for so long and brought
// more, isSlow starts a new measurement.
func (p *Progress) isSlow(now time.Time, least time.Duration, rate int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.allWait() {
		return false
	}
	waited := p.waited + now.Sub(p.since)
	if waited < least {
		return false
	}
	if float64(p.bytes) < float64(rate)*waited.Seconds() {
		return true
	}
	p.waited, p.bytes, p.since = 0, 0, now
	return false
}

// listBody adds a connection to those whose requests have bodies.
func (l *Listener) listBody(c *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !c.gone && c.body == nil {
		c.body = l.bodies.PushBack(c)
	}
}

// unlistBody reverses listBody. The caller holds the lock l.mu.
func (l *Listener) unlistBody(c *conn) {
	if c.body == nil {
		return
	}
	l.bodies.Remove(c.body)
	c.body = nil
	c.progress.mu.Lock()
	c.progress.listed = false
	c.progress.mu.Unlock()
}

// slowBody returns a connection that brings the bodies of its requests more slowly than
// ListenerOptions.MinBodyRate. It looks at a few connections and goes on from there at the next
// call; it returns nil if none of the few is slow. The caller holds the lock l.mu.
func (l *Listener) slowBody(now time.Time) *conn {
	for range min(l.bodies.Len(), slowBodyTries) {
		e := l.bodies.Front()
		if c := e.Value.(*conn); c.progress.isSlow(now, l.o.SlowBodyTime, l.o.MinBodyRate) {
			return c
		}
		l.bodies.MoveToBack(e)
	}
	return nil
}
