package distribution

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/purser-registry/purser/internal/catalog"
)

// renewEvery is how often a request renews the promise of room for its upload. Two renewals may
// fail before the promise is over.
const renewEvery = catalog.PromiseAge / 4

// promises has, for each upload that a request of this process writes to, the newest such request.
type promises struct {
	sync.Mutex
	of map[uuid.UUID]*promise
}

// promise is the claim of a running request on its upload, and on the room that the quota has
// promised, which is renewed until the request ends. A request that has lost its upload to another
// one stops storing bytes, since they would count for nobody. It learns that at once if the other
// request is in this process, and otherwise by the next renewal.
type promise struct {
	api    *API
	u      catalog.Upload
	cancel context.CancelFunc
	// lost says that the request may not go on; gone, that the promise was taken back.
	lost, gone atomic.Bool
	// The promise holds for `until` since `began`.
	began time.Time
	until atomic.Int64
}

// promise begins the claim of a request on its upload, for which it asked at `began`. `promised`
// says that it has to be renewed.
func (a *API) promise(ctx context.Context, u catalog.Upload, promised bool, began time.Time) *promise {
	p := &promise{api: a, u: u, began: began}
	p.until.Store(int64(catalog.PromiseAge))
	if !promised {
		p.until.Store(math.MaxInt64)
	}
	ctx, p.cancel = context.WithCancel(ctx)
	if promised {
		timer := time.AfterFunc(renewEvery, func() { p.renew(ctx) })
		context.AfterFunc(ctx, func() { timer.Stop() })
	}
	a.promises.Lock()
	defer a.promises.Unlock()
	other := a.promises.of[u.ID]
	if other != nil && other.u.Attempt > u.Attempt {
		p.lost.Store(true)
		return p
	}
	if other != nil {
		other.lost.Store(true)
	}
	if a.promises.of == nil {
		a.promises.of = make(map[uuid.UUID]*promise)
	}
	a.promises.of[u.ID] = p
	return p
}

// renew renews the promise, and then again until the context ends.
func (p *promise) renew(ctx context.Context) {
	ask, cancel := context.WithTimeout(ctx, renewEvery)
	defer cancel()
	asked := time.Since(p.began)
	state, err := p.api.catalog.RenewUpload(ask, p.u)
	switch {
	case ctx.Err() != nil:
		return
	case err != nil:
		p.api.log.WarnContext(ctx, "couldn't renew the room that an upload was promised: its quota may give the room to others", "upload", p.u.ID, "error", err)
	case state == catalog.PromiseOver:
		p.gone.Store(true)
	case state == catalog.PromiseLost:
		p.lost.Store(true)
		return
	default:
		p.until.Store(int64(asked + catalog.PromiseAge))
	}
	timer := time.AfterFunc(renewEvery, func() { p.renew(ctx) })
	context.AfterFunc(ctx, func() { timer.Stop() })
}

// over says whether the request has to ask for its room again, since others may have got it.
func (p *promise) over() bool {
	now := time.Since(p.began)
	if !p.gone.Load() && int64(now) < p.until.Load() {
		return false
	}
	p.gone.Store(false)
	p.until.Store(int64(now + catalog.PromiseAge))
	return true
}

// end ends the claim with its request.
func (p *promise) end() {
	p.cancel()
	p.api.promises.Lock()
	defer p.api.promises.Unlock()
	if p.api.promises.of[p.u.ID] == p {
		delete(p.api.promises.of, p.u.ID)
	}
}
