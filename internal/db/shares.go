package db

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// shares gives the connections of a pool to clients in turn. pgxpool gives them to statements in the
// order in which they come: behind a client with a thousand requests, each other client would wait for
// the whole thousand.
//
// A client may have `most` connections at once, less than all, so that others find one however
// long its statements last. While all are in use, each client that waits gets one in turn. Clients that
// are known come first, since anybody with many addresses is as many strangers; while both kinds wait,
// strangers get each fourth connection. Statements of the process itself, which Options.Share calls
// "", take turns as those of a known client do, but may have all connections.
type shares struct {
	of   func(context.Context) (client string, known bool)
	most int

	mu        sync.Mutex
	free      int
	clients   map[string]*sharer // that have connections or wait for one
	known     []*sharer          // that wait, in the order of their turns
	strangers []*sharer          // likewise
	turns     int                // that were given while strangers waited
	conns     map[*pgx.Conn]*sharer
	waits     int64         // statements that have waited for their turn and got it
	waited    time.Duration // of these
}

// strangerTurns is of how many turns one goes to strangers, while clients of both kinds wait.
const strangerTurns = 4

// sharer is a client with connections, or with statements that wait.
type sharer struct {
	name  string
	known bool // it doesn't change while statements wait
	used  int
	// turns belong to the statements that wait, in the order in which they came. One is closed when it
	// is its statement's turn.
	turns []chan struct{}
}

// share is the part of one statement in a pool's shares.
type share struct {
	of     *sharer
	given  bool // it is counted in of.used
	waited time.Duration
}

type shareKey struct{}

func newShares(of func(context.Context) (client string, known bool), conns int) *shares {
	return &shares{
		of: of, free: conns, clients: map[string]*sharer{}, conns: map[*pgx.Conn]*sharer{},
		most: max(2, conns-max(1, conns/4)), // a request may need a second connection while it has one
	}
}

// TraceAcquireStart implements pgxpool.AcquireTracer: it waits for the turn of the client.
func (s *shares) TraceAcquireStart(ctx context.Context, _ *pgxpool.Pool, _ pgxpool.TraceAcquireStartData) context.Context {
	return context.WithValue(ctx, shareKey{}, s.enter(ctx))
}

// TraceAcquireEnd implements pgxpool.AcquireTracer.
func (s *shares) TraceAcquireEnd(ctx context.Context, _ *pgxpool.Pool, data pgxpool.TraceAcquireEndData) {
	one, ok := ctx.Value(shareKey{}).(*share)
	if !ok || !one.given {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if data.Err != nil {
		s.leave(one.of)
		return
	}
	s.conns[data.Conn] = one.of
	if one.waited > 0 {
		s.waits++
		s.waited += one.waited
	}
}

// TraceRelease implements pgxpool.ReleaseTracer.
func (s *shares) TraceRelease(_ *pgxpool.Pool, data pgxpool.TraceReleaseData) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.conns[data.Conn]; c != nil {
		delete(s.conns, data.Conn)
		s.leave(c)
	}
}

// enter waits until the client of the context may have a connection, or the context ends.
func (s *shares) enter(ctx context.Context) *share {
	name, known := s.of(ctx)
	s.mu.Lock()
	c := s.clients[name]
	if c == nil {
		c = &sharer{name: name}
		s.clients[name] = c
	}
	one := &share{of: c}
	if s.free > 0 && s.mayHave(c) {
		s.free, c.used, one.given = s.free-1, c.used+1, true
		s.mu.Unlock()
		return one
	}
	turn := make(chan struct{})
	if c.turns = append(c.turns, turn); len(c.turns) == 1 {
		c.known = known
		line := s.lineOf(c)
		*line = append(*line, c)
	}
	s.mu.Unlock()
	if w, bounded := ctx.Value(waitKey{}).(*wait); bounded {
		w.turn.Store(true)
		defer w.turn.Store(false)
	}
	began := time.Now()
	select {
	case <-turn:
		one.given, one.waited = true, time.Since(began)
	case <-ctx.Done():
		one.given = !s.giveUp(c, turn)
	}
	return one
}

// giveUp ends the wait of a statement. It returns false if it was its turn at the same moment.
func (s *shares) giveUp(c *sharer, turn chan struct{}) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(c.turns, turn)
	if i < 0 {
		return false
	}
	if c.turns = slices.Delete(c.turns, i, i+1); len(c.turns) == 0 {
		line := s.lineOf(c)
		i := slices.Index(*line, c)
		*line = slices.Delete(*line, i, i+1)
		s.forget(c)
	}
	return true
}

// mayHave says whether a client may have a further connection. The caller holds mu.
func (s *shares) mayHave(c *sharer) bool { return c.used < s.most || c.name == "" }

// leave takes a connection from a client and gives it to the one whose turn it is. The caller holds mu.
func (s *shares) leave(c *sharer) {
	c.used--
	s.free++
	s.forget(c)
	next := s.next()
	if next == nil {
		return
	}
	s.free, next.used = s.free-1, next.used+1
	close(next.turns[0])
	if next.turns = next.turns[1:]; len(next.turns) > 0 {
		line := s.lineOf(next)
		*line = append(*line, next)
	}
}

// lineOf returns the line in which a client waits. The caller holds mu.
func (s *shares) lineOf(c *sharer) *[]*sharer {
	if c.known {
		return &s.known
	}
	return &s.strangers
}

// next takes the client whose turn it is out of its line; nil: none of those that wait may have a
// connection. The caller holds mu.
func (s *shares) next() *sharer {
	first, second := &s.known, &s.strangers
	if len(s.strangers) > 0 {
		if s.turns++; s.turns%strangerTurns == 0 {
			first, second = second, first
		}
	}
	for _, line := range []*[]*sharer{first, second} {
		if i := slices.IndexFunc(*line, s.mayHave); i >= 0 {
			c := (*line)[i]
			*line = slices.Delete(*line, i, i+1)
			return c
		}
	}
	return nil
}

// forget drops a client that has no connection and doesn't wait. The caller holds mu.
func (s *shares) forget(c *sharer) {
	if c.used == 0 && len(c.turns) == 0 {
		delete(s.clients, c.name)
	}
}
