package distribution

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/limit"
	"github.com/purser-registry/purser/internal/oci"
)

const (
	// uploadsAhead is how many rows of uploads are inserted in one transaction at most. One of
	// the uploads is for the request that needs an upload now. The others are kept for later
	// requests of the same uploader, which then start an upload without a transaction.
	uploadsAhead = 16
	// aheadMaxAge is the greatest age at which a client may get an upload that was made in
	// advance; see AheadAge.
	aheadMaxAge = 5 * time.Minute
	// maxPools limits for how many uploaders uploads are kept.
	maxPools = 4096
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
//
// The limits on open uploads are checked when rows are inserted (catalog.StartUploads), so an
// upload that was made in advance has passed them already.
type uploads struct {
	catalog *catalog.Catalog
	names   *uploadNames
	limits  uploadLimits

	aheadAge time.Duration

	mu      sync.Mutex
	ahead   map[uploader]*pool
	swept   time.Time   // when expired uploads were last removed from ahead
	expired []uuid.UUID // rows of uploads that were removed from ahead and given to no client
	known   map[uuid.UUID]remembered
	bytes   int // of the tails in known
	// interruptions is the number of interruptions of the connection to the database
	// (catalog.Interruptions) before the uploads in ahead and known were made. After another one
	// the database may lack the rows of these uploads.
	interruptions uint64
}

// uploader is who begins an upload. A name whose open uploads aren't limited is left out, so
// that all such uploaders share one.
type uploader struct{ client, account string } // account "": nobody is logged in

// pool has the uploads that were made in advance for an uploader.
type pool struct {
	list []catalog.Upload
	// next is how many rows are inserted next time: at first one, then twice as many each time,
	// since most uploaders start few uploads.
	next int
	// making makes sure that only one request at a time makes uploads in advance: the channel
	// has a buffer of one element, which this request fills.
	making chan struct{}
}

// uploadLimits are the limits on open uploads of all processes. All robots of a namespace together
// may have as many as one client.
type uploadLimits struct {
	all, client, account int // 0: no limit
	metrics              *limit.Metrics
}

// remembered is an upload with the time at which the method remember stored it. From this time
// recall concludes whether the upload's ticket, a reserved object number, can still be used.
type remembered struct {
	catalog.Upload
	since time.Time
}

func newUploads(o Options) *uploads {
	return &uploads{
		catalog: o.Catalog, names: &uploadNames{catalog: o.Catalog}, aheadAge: AheadAge(o.UploadMaxAge),
		limits: uploadLimits{o.Uploads, o.ClientUploads, o.AccountUploads, o.LimitMetrics},
		ahead:  map[uploader]*pool{}, known: map[uuid.UUID]remembered{},
	}
}

// start returns an upload that was made in advance for this uploader. If none is left, start
// makes new uploads and returns one of them. Error: TOOMANYREQUESTS or UNAVAILABLE if a limit
// on open uploads is reached.
func (m *uploads) start(ctx context.Context, by uploader) (catalog.Upload, error) {
	robot := limit.Share(by.account) != by.account
	if m.limits.account <= 0 && (!robot || m.limits.client <= 0) {
		by.account = ""
	}
	if m.limits.client <= 0 {
		by.client = ""
	}
	p, u, ok := m.take(by)
	if ok {
		return u, nil
	}
	select {
	case p.making <- struct{}{}:
		defer func() { <-p.making }()
	case <-ctx.Done():
		return catalog.Upload{}, ctx.Err()
	}
	if _, u, ok = m.take(by); ok { // another request has made some meanwhile
		return u, nil
	}
	return m.make(ctx, by, p.next)
}

// make inserts the rows of uploads into the database, returns one of the uploads, and keeps the
// others for the uploader. The same transaction deletes rows of uploads that no client got in
// time, also if a limit is reached. If the transaction fails, a later one deletes them.
func (m *uploads) make(ctx context.Context, by uploader, n int) (catalog.Upload, error) {
	m.mu.Lock()
	expired := m.expired
	m.expired = nil
	m.mu.Unlock()
	interruptions := m.catalog.Interruptions()
	list, err := m.catalog.StartUploads(ctx, catalog.StartOptions{
		N: n, Client: by.client, Account: by.account, Drop: expired,
		MostOfClient: m.limits.client, MostOfAccount: m.limits.account, MostOfRobots: m.limits.client, Most: m.limits.all,
	})
	if full, ok := errors.AsType[*catalog.UploadLimitError](err); ok {
		return catalog.Upload{}, m.limits.refuse(full.Limit, by)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil {
		m.expired = append(m.expired, expired...)
		return catalog.Upload{}, err
	}
	m.giveUpAfterInterruption()
	p := m.pool(by)
	for _, u := range list[1:] {
		if m.interruptions == interruptions {
			p.list = append(p.list, u)
		} else {
			m.expired = append(m.expired, u.ID)
		}
	}
	p.next = min(2*n, uploadsAhead)
	return list[0], nil
}

// refuse returns the client's error if the limit `full` is reached.
func (l uploadLimits) refuse(full string, by uploader) error {
	l.metrics.Refused(full)
	switch full {
	case limit.ClientUploads:
		return oci.Errorf(oci.TooManyRequests,
			"%d uploads from your address are unfinished: finish or cancel some, or wait until they expire", l.client)
	case limit.AccountUploads:
		return oci.Errorf(oci.TooManyRequests,
			"%d uploads of the account %s are unfinished: finish or cancel some, or wait until they expire", l.account, by.account)
	case limit.RobotUploads:
		return oci.Errorf(oci.TooManyRequests,
			"%d uploads of %s are unfinished: finish or cancel some, or wait until they expire", l.client, limit.ShareOwner(limit.Share(by.account)))
	}
	return oci.Errorf(oci.Unavailable, "there are too many unfinished uploads: try again later")
}

// take returns an upload that was made in advance for this uploader, if there is one. It also
// returns the uploader's pool.
func (m *uploads) take(by uploader) (*pool, catalog.Upload, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.giveUpAfterInterruption()
	m.sweep()
	p := m.pool(by)
	for len(p.list) > 0 {
		u := p.list[len(p.list)-1]
		p.list = p.list[:len(p.list)-1]
		if time.Since(u.StartedAt) < m.aheadAge {
			return p, u, true
		}
		m.expired = append(m.expired, u.ID)
	}
	return p, catalog.Upload{}, false
}

// giveUpAfterInterruption gives up all uploads that this process remembers, if the connection to the
// database was interrupted since it has last looked. Otherwise a client could get an upload whose row
// a promoted standby lacks. The caller holds mu.
func (m *uploads) giveUpAfterInterruption() {
	n := m.catalog.Interruptions()
	if n == m.interruptions {
		return
	}
	m.interruptions = n
	for by := range m.ahead {
		m.expire(by, 0)
	}
	clear(m.known)
	m.bytes = 0
}

// pool returns the uploader's pool. The caller holds mu.
func (m *uploads) pool(by uploader) *pool {
	p := m.ahead[by]
	if p == nil {
		p = &pool{next: 1, making: make(chan struct{}, 1)}
		m.ahead[by] = p
	}
	return p
}

// sweep removes expired uploads, and the pools that are empty then: about once in each aheadAge,
// and whenever there are too many pools, then with all that they have. The caller holds mu.
func (m *uploads) sweep() {
	age := m.aheadAge
	if len(m.ahead) >= maxPools {
		age = 0
	} else if time.Since(m.swept) < age {
		return
	}
	m.swept = time.Now()
	for by := range m.ahead {
		m.expire(by, age)
	}
}

// expire removes the uploads of an uploader that are older than `age`, and its pool if it is
// empty then. A request that is just making uploads for the uploader puts them in a new pool. The
// caller holds mu.
func (m *uploads) expire(by uploader, age time.Duration) {
	p := m.ahead[by]
	p.list = slices.DeleteFunc(p.list, func(u catalog.Upload) bool {
		if time.Since(u.StartedAt) < age {
			return false
		}
		m.expired = append(m.expired, u.ID)
		return true
	})
	if len(p.list) == 0 {
		delete(m.ahead, by)
	}
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
	m.giveUpAfterInterruption()
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
	m := a.uploads
	m.mu.Lock()
	for by := range m.ahead {
		m.expire(by, 0)
	}
	ids := m.expired
	m.expired = nil
	m.mu.Unlock()
	if len(ids) == 0 {
		return nil
	}
	return a.catalog.DropUploads(ctx, ids)
}
