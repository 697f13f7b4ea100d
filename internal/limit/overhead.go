package limit

import (
	"sync"
	"sync/atomic"
	"time"
)

// HTTP/2 has frames that cost the server work and have no limit of their own in net/http: empty
// CONTINUATION frames, of which a header may have any number, empty DATA frames, PING, SETTINGS,
// streams that are reset at once. Three million such frames a second keep a core busy on one
// connection. Behind TLS a Listener can't see frames. But it sees how many bytes a connection
// brings, and is told how many of them were of bodies (Progress.Useful). The rest are frames
// without a body's bytes, headers, and TLS's own bytes; a connection that brings more of them
// than a rate is read more slowly.

const (
	// overheadRate is the default of ListenerOptions.OverheadRate.
	overheadRate = 1 << 20
	// overheadBurst is how many seconds of the rate may come at once. It includes what net/http
	// reads of bodies before handlers do, a MiB at most.
	overheadBurst = 4
	// answerShare is which part of the bytes of answers may come in return: clients announce
	// that they have room for more.
	answerShare = 16
	// longestPause is how long a read is put off at once, so that a connection that is closed
	// meanwhile ends soon.
	longestPause = time.Second
)

// overhead counts what an HTTP/2 connection brings besides bodies.
type overhead struct {
	on   atomic.Bool // the connection is one of HTTP/2
	rate float64     // bytes a second; 0: no limit

	mu   sync.Mutex
	left float64 // bytes that may come now
	at   time.Time
}

// start begins to count, unless that has begun.
func (o *overhead) start(rate int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if rate <= 0 || o.on.Load() {
		return
	}
	o.rate, o.left, o.at = float64(rate), float64(rate*overheadBurst), time.Now()
	o.on.Store(true)
}

// earn adds bytes that may come.
func (o *overhead) earn(n float64) {
	if !o.on.Load() {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.left = min(o.left+n, o.rate*overheadBurst)
}

// spend takes n bytes that have come, and returns how long the next read has to wait.
func (o *overhead) spend(n int) time.Duration {
	if !o.on.Load() {
		return 0
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	o.left = min(o.left+o.rate*now.Sub(o.at).Seconds(), o.rate*overheadBurst) - float64(n)
	o.at = now
	if o.left >= 0 {
		return 0
	}
	return min(time.Duration(-o.left/o.rate*float64(time.Second)), longestPause)
}

// Useful says that a request has read n bytes of its body.
func (p *Progress) Useful(n int) {
	if p != nil && n > 0 {
		p.c.overhead.earn(float64(n))
	}
}
