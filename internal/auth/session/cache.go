package session

import (
	"sync"
	"time"
)

// cacheSize bounds the number of cached sessions.
const cacheSize = 10_000

// cache keeps sessions that were found, each for a fixed time. See the package comment for why
// that is right.
type cache struct {
	life time.Duration
	now  func() time.Time

	mu       sync.Mutex
	sessions map[hash]cached
	removals int // calls of remove
}

type cached struct {
	session Session
	until   time.Time
}

func newCache(life time.Duration, now func() time.Time) *cache {
	return &cache{life: life, now: now, sessions: map[hash]cached{}}
}

// get returns a cached session. If it isn't cached, ok is false; then the caller calls `keep`
// with the session if it finds it. keep does nothing if a session was removed since get: it may
// be this one.
func (c *cache) get(h hash) (s Session, ok bool, keep func(Session)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	if found, ok := c.sessions[h]; ok && now.Before(found.until) {
		return found.session, true, nil
	}
	removals := c.removals
	return Session{}, false, func(s Session) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.removals != removals {
			return
		}
		c.makeRoom()
		c.sessions[h] = cached{s, now.Add(c.life)}
	}
}

// makeRoom makes room for another session. If the cache is full, it drops the sessions whose time
// is over, or all of them if that isn't enough.
func (c *cache) makeRoom() {
	if len(c.sessions) < cacheSize {
		return
	}
	now := c.now()
	for h, found := range c.sessions {
		if !now.Before(found.until) {
			delete(c.sessions, h)
		}
	}
	if len(c.sessions) > cacheSize/2 { // else each new session would go through all of them
		clear(c.sessions)
	}
}

// clear removes all sessions.
func (c *cache) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.removals++
	clear(c.sessions)
}

// remove removes the sessions for which `ended` returns true.
func (c *cache) remove(ended func(Session) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.removals++
	for h, found := range c.sessions {
		if ended(found.session) {
			delete(c.sessions, h)
		}
	}
}
