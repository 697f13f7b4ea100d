package distribution

import (
	"context"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/purser-registry/purser/internal/catalog"
)

const (
	// uploadsAhead is how many rows of uploads are inserted in one transaction. One of the
	// uploads is for the request that needs an upload now. The others are kept for later
	// requests, which then start an upload without a transaction.
	uploadsAhead = 16
	// aheadMaxAge is the greatest age at which a client may get an upload that was made in
	// advance; see AheadAge.
	aheadMaxAge = 5 * time.Minute
	// maxRemembered limits how many rows of uploads a process remembers. If a row was
	// forgotten, the next request on the upload reads the row from the database.
	maxRemembered = 4096
	// maxRememberedBytes limits the size in bytes of the tails of all remembered uploads
	// together. The tail is the content of a small upload, which is kept in the upload's row.
	maxRememberedBytes = 8 << 20
)

// AheadAge returns the age up to which an upload that was made in advance may be given to a
// client: a tenth of maxAge, but at most five minutes. The reaper deletes uploads that get no
// new bytes for maxAge, so the client has at least 90 % of that time.
func AheadAge(maxAge time.Duration) time.Duration { return min(aheadMaxAge, maxAge/10) }

// uploads keeps uploads whose rows this process knows without a query. `ahead` has uploads that
// were made in advance, so that starting an upload takes no transaction. `known` has uploads
// whose rows this process was the last to save, as far as it knows. A request that gets an
// upload removes it from `ahead` or `known`, so no two requests get the same upload. If another
// process has changed the row since, the request's next write to the row fails.
type uploads struct {
	catalog *catalog.Catalog
	names   *uploadNames

	aheadAge time.Duration

	mu    sync.Mutex
	ahead []catalog.Upload
	known map[uuid.UUID]remembered
	bytes int // of the tails in known
	// making makes sure that only one request at a time makes uploads in advance: the channel
	// has a buffer of one element, which this request fills.
	making chan struct{}
}

// remembered is an upload with the time at which the method remember stored it. From this time
// recall concludes whether the upload's ticket, a reserved object number, can still be used.
type remembered struct {
	catalog.Upload
	since time.Time
}

func newUploads(c *catalog.Catalog, maxAge time.Duration) *uploads {
	return &uploads{catalog: c, names: &uploadNames{catalog: c}, aheadAge: AheadAge(maxAge),
		known: map[uuid.UUID]remembered{}, making: make(chan struct{}, 1)}
}

// start returns an upload that was made in advance. If none is left, start makes uploadsAhead
// new uploads and returns one of them.
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

// remember keeps a copy of an upload's row in memory, for the next request on this upload.
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

// recall returns the remembered upload with this id and removes it from m.known, so that no
// other request gets it. It returns false if this process doesn't remember the upload, or if
// the upload belongs to a repository other than `path`.
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

// Close deletes the uploads that were made in advance and that no client got. Without this call
// the reaper would delete them later.
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
