package distribution

import (
	"context"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/purser-registry/purser/internal/catalog"
)

const (
	// uploadsAhead is how many uploads are made in one transaction.
	uploadsAhead = 16
	// aheadMaxAge limits how old an upload that was made in advance may be when a
	// client gets it: see AheadAge.
	aheadMaxAge = 5 * time.Minute
	// maxRemembered limits the uploads whose rows a process remembers. Forgetting a row
	// costs a query.
	maxRemembered = 4096
	// maxRememberedBytes limits the tails of remembered uploads together, in bytes.
	maxRememberedBytes = 8 << 20
)

// AheadAge returns how old an upload that was made in advance may be when a client gets
// it. The reaper deletes uploads that weren't touched for maxAge, and the client should
// have nearly all of that time.
func AheadAge(maxAge time.Duration) time.Duration { return min(aheadMaxAge, maxAge/10) }

// uploads keeps uploads whose rows this process knows without a query. ahead has those
// that were made in advance, so that starting an upload costs no transaction; known has
// those that this process saved last. Each is given to one request at a time. Another
// process may have changed the row since; the next write to the row detects that.
type uploads struct {
	catalog *catalog.Catalog
	names   *uploadNames

	aheadAge time.Duration

	mu    sync.Mutex
	ahead []catalog.Upload
	known map[uuid.UUID]remembered
	bytes int // of the tails in known
	// making serializes the making of uploads: it has room for one element.
	making chan struct{}
}

// remembered is an upload with the time since when this process has its ticket.
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
	if u, ok := m.take(); ok { // another request has made some meanwhile
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

// remember keeps an upload for the next request on it.
func (m *uploads) remember(u catalog.Upload) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.bytes += len(u.Tail)
	for id := range m.known { // evicts arbitrary ones
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

// recall removes a remembered upload of the repository from the memory and returns it,
// so that only this caller has it.
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

// Close deletes the unused uploads that were made in advance. Without Close the reaper
// deletes them later.
func (a *API) Close(ctx context.Context) error {
	a.uploads.mu.Lock()
	list := a.uploads.ahead
	a.uploads.ahead = nil
	a.uploads.mu.Unlock()
	if len(list) == 0 {
		return nil
	}
	return a.catalog.DropUploads(ctx, list)
}
