package server

import (
	"context"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/purser-registry/purser/internal/catalog"
)

const (
	// uploadsAhead is how many uploads are made in one commit.
	uploadsAhead = 16
	// aheadMaxAge is how old an upload that was made ahead may be at most when it is
	// given to a client: see AheadAge.
	aheadMaxAge = 5 * time.Minute
	// maxRemembered bounds the uploads whose rows a process remembers. One that
	// is forgotten costs a query.
	maxRemembered = 4096
	// maxRememberedBytes bounds their tails together.
	maxRememberedBytes = 8 << 20
)

// AheadAge is how old an upload that was made ahead may be when it is given to a
// client, where uploads are given up that nobody has touched for maxAge: the client is
// to have nearly all of that time.
func AheadAge(maxAge time.Duration) time.Duration { return min(aheadMaxAge, maxAge/10) }

// uploads are those that this process knows without asking: made ahead, so
// that the start of one costs no commit, or saved by it last. Each is given to
// one request at a time; whether it is still as it was is for the row to say.
type uploads struct {
	catalog *catalog.Catalog
	names   *uploadNames

	aheadAge time.Duration

	mu    sync.Mutex
	ahead []catalog.Upload
	known map[uuid.UUID]remembered
	bytes int // of tails in known
	// making has room for the one who makes more.
	making chan struct{}
}

// remembered is an upload and since when its ticket is here.
type remembered struct {
	catalog.Upload
	since time.Time
}

func newUploads(c *catalog.Catalog, maxAge time.Duration) *uploads {
	return &uploads{catalog: c, names: &uploadNames{catalog: c}, aheadAge: AheadAge(maxAge),
		known: map[uuid.UUID]remembered{}, making: make(chan struct{}, 1)}
}

// start returns a new upload.
func (m *uploads) start(ctx context.Context) (catalog.Upload, error) {
	if u, ok := m.take(); ok {
		return u, nil
	}
	select {
	case m.making <- struct{}{}:
		defer func() { <-m.making }()
	case <-ctx.Done():
		return catalog.Upload{}, ctx.Err()
	}
	if u, ok := m.take(); ok { // somebody else has made some
		return u, nil
	}
	list, err := m.catalog.StartUploads(ctx, uploadsAhead)
	if err != nil {
		return catalog.Upload{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ahead = append(m.ahead, list[1:]...)
	return list[0], nil
}

func (m *uploads) take() (catalog.Upload, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for len(m.ahead) > 0 {
		u := m.ahead[len(m.ahead)-1]
		m.ahead = m.ahead[:len(m.ahead)-1]
		if time.Since(u.StartedAt) < m.aheadAge {
			return u, true
		}
	}
	return catalog.Upload{}, false
}

// remember keeps an upload for the request that follows.
func (m *uploads) remember(u catalog.Upload) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.bytes += len(u.Tail)
	for id := range m.known { // any will do
		if len(m.known) < maxRemembered && m.bytes <= maxRememberedBytes {
			break
		}
		m.forget(id)
	}
	m.known[u.ID] = remembered{u, time.Now()}
}

func (m *uploads) forget(id uuid.UUID) {
	m.bytes -= len(m.known[id].Tail)
	delete(m.known, id)
}

// recall gives a remembered upload of the repository to the caller alone.
func (m *uploads) recall(path string, id uuid.UUID) (catalog.Upload, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, ok := m.known[id]
	if !ok || r.Repository != path {
		return r.Upload, false
	}
	m.forget(id)
	if time.Since(r.since) > catalog.TicketMaxAge-aheadMaxAge {
		r.Ticket = catalog.NoTicket
	}
	return r.Upload, true
}

// Close cancels what operators have started and waits for its end, as long as
// ctx lasts, and removes the uploads that were made ahead and not used. A server
// that ends without it leaves them to be reaped.
func (s *Server) Close(ctx context.Context) error {
	s.api.close(ctx)
	s.uploads.mu.Lock()
	list := s.uploads.ahead
	s.uploads.ahead = nil
	s.uploads.mu.Unlock()
	if len(list) == 0 {
		return nil
	}
	return s.catalog.DropUploads(ctx, list)
}
