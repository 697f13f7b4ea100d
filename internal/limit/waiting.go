package limit

import (
	"container/heap"
	"container/list"
	"time"
)

// patience is how long a connection waits, at least, before the listener closes it in preference
// to one that sends a body slowly.
const patience = time.Second

// fewWaiting returns how many connections one client may have waiting before the listener
// suspects the client of an attack: a five-hundredth of `most`, the limit for all clients, since
// clients with that few don't fill it.
func fewWaiting(most int) int { return max(1, most/500) }

// client is what a Listener knows about a client with open connections. The lock Listener.mu
// guards it.
type client struct {
	name    string // as Client returns it; "": connections of proxies
	open    int
	waiting list.List // of *conn, see conn.waiting; the one that has waited longest comes first
	few     int       // see fewWaiting
	index   int       // in the clientQueue, if waiting isn't empty
}

// longest returns the connection that has waited longest, nil if none waits.
func (c *client) longest() *conn {
	if e := c.waiting.Front(); e != nil {
		return e.Value.(*conn)
	}
	return nil
}

// rank is the client's number of waiting connections, or c.few if the number is smaller.
// Connections of proxies have the lowest rank, since they carry requests of many clients.
func (c *client) rank() int {
	if c.name == "" {
		return c.few
	}
	return max(c.waiting.Len(), c.few)
}

// clientQueue is a heap of the clients that have waiting connections. The client of the highest
// rank comes first. Among clients of equal rank, the one comes first whose connection has waited
// longest.
type clientQueue []*client

// Len implements heap.Interface.
func (q clientQueue) Len() int { return len(q) }

// Less implements heap.Interface.
func (q clientQueue) Less(i, j int) bool {
	a, b := q[i], q[j]
	if a, b := a.rank(), b.rank(); a != b {
		return a > b
	}
	return a.longest().since.Before(b.longest().since)
}

// Swap implements heap.Interface.
func (q clientQueue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}

// Push implements heap.Interface.
func (q *clientQueue) Push(x any) {
	c := x.(*client)
	c.index = len(*q)
	*q = append(*q, c)
}

// Pop implements heap.Interface.
func (q *clientQueue) Pop() any {
	old := *q
	c := old[len(old)-1]
	old[len(old)-1] = nil
	*q = old[:len(old)-1]
	return c
}

// beginWait notes that a connection has waited for the header of a request since `since`. The
// caller holds the lock l.mu.
func (l *Listener) beginWait(c *conn, since time.Time) {
	l.waiting++
	c.since = since
	c.waiting = c.of.waiting.PushBack(c)
	if c.of.waiting.Len() == 1 {
		heap.Push(&l.queue, c.of)
	} else {
		heap.Fix(&l.queue, c.of.index)
	}
}

// endWait reverses beginWait. It does nothing if the connection doesn't wait. The caller holds
// the lock l.mu.
func (l *Listener) endWait(c *conn) {
	if c.waiting == nil {
		return
	}
	l.waiting--
	c.of.waiting.Remove(c.waiting)
	c.waiting = nil
	if c.of.waiting.Len() == 0 {
		heap.Remove(&l.queue, c.of.index)
	} else {
		heap.Fix(&l.queue, c.of.index)
	}
}
