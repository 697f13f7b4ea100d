package distribution

import (
	"context"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/limit"
	"github.com/purser-registry/purser/internal/oci"
)

// openUploads counts, for each client and each account, the open uploads: those that were begun
// in this process and neither finished nor cancelled. Nothing tells this process when another
// process finishes such an upload, or when the reaper deletes it. Therefore, when a limit is
// reached, openUploads asks the database which of the counted uploads still have a row in the
// table uploads, and stops counting the others.
type openUploads struct {
	catalog            *catalog.Catalog
	most, mostOfClient int // 0: no limit; an account may have as many as a client
	metrics            *limit.Metrics

	mu      sync.Mutex
	by      map[uuid.UUID]uploader
	counts  map[whose]int       // without everybody's, which is len(by)
	checked map[whose]time.Time // when the rows of these uploads were last looked for
}

// uploader is who begins an upload.
type uploader struct{ client, account string } // account "": nobody is logged in

// whose names the uploads that are counted together: those of a client, of an account, or of
// everybody.
type whose struct {
	kind byte // 'c' client, 'a' account
	name string
}

var everybody whose

func (u uploader) asClient() whose  { return whose{'c', u.client} }
func (u uploader) asAccount() whose { return whose{'a', u.account} }

// countsFor says whether the uploads of u are counted for w.
func (u uploader) countsFor(w whose) bool {
	return w == everybody || w == u.asClient() || u.account != "" && w == u.asAccount()
}

// checkUploadsEvery is the shortest time between two database queries that look for the rows of
// the uploads of the same client or account, or of everybody.
const checkUploadsEvery = 10 * time.Second

func newOpenUploads(o Options) *openUploads {
	return &openUploads{catalog: o.Catalog, most: o.Uploads, mostOfClient: o.ClientUploads, metrics: o.LimitMetrics,
		by: map[uuid.UUID]uploader{}, counts: map[whose]int{}, checked: map[whose]time.Time{}}
}

// admit returns an error if this client, its account, or all clients together, already have as
// many open uploads as the limits allow.
func (o *openUploads) admit(ctx context.Context, by uploader) error {
	if full, err := o.stillFull(ctx, by.asClient()); full || err != nil {
		return o.refused(limit.ClientUploads, err, oci.Errorf(oci.TooManyRequests,
			"%d uploads from your address are unfinished: finish or cancel some, or wait until they expire", o.mostOfClient))
	}
	if by.account != "" {
		if full, err := o.stillFull(ctx, by.asAccount()); full || err != nil {
			return o.refused(limit.AccountUploads, err, oci.Errorf(oci.TooManyRequests,
				"%d uploads of the account %s are unfinished: finish or cancel some, or wait until they expire", o.mostOfClient, by.account))
		}
	}
	if full, err := o.stillFull(ctx, everybody); full || err != nil {
		return o.refused(limit.Uploads, err, oci.Errorf(oci.Unavailable, "there are too many unfinished uploads: try again later"))
	}
	return nil
}

// refused returns `err`, which says why the limit couldn't be checked. If it is nil, refused
// counts a refusal because of the limit and returns `refusal`.
func (o *openUploads) refused(name string, err error, refusal *oci.Error) error {
	if err != nil {
		return err
	}
	o.metrics.Refused(name)
	return refusal
}

// stillFull says whether the limit of `w` is reached, after check if need be.
func (o *openUploads) stillFull(ctx context.Context, w whose) (bool, error) {
	if !o.full(w) {
		return false, nil
	}
	if err := o.check(ctx, w); err != nil {
		return false, err
	}
	return o.full(w), nil
}

func (o *openUploads) full(w whose) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if w == everybody {
		return o.most > 0 && len(o.by) >= o.most
	}
	return o.mostOfClient > 0 && o.counts[w] >= o.mostOfClient
}

// check asks the database which of the counted uploads of `w` still have a row in the table
// uploads, and stops counting the uploads that have none. It does nothing if it last asked for
// the same `w` less than checkUploadsEvery ago.
func (o *openUploads) check(ctx context.Context, w whose) error {
	ids, due := o.due(w)
	if !due {
		return nil
	}
	alive, err := o.catalog.OpenUploads(ctx, ids)
	if err != nil {
		return err
	}
	is := make(map[uuid.UUID]bool, len(alive))
	for _, id := range alive {
		is[id] = true
	}
	for _, id := range ids {
		if !is[id] {
			o.end(id)
		}
	}
	return nil
}

// due returns the counted uploads of `w` whose rows check should look for. It returns false if
// check has looked for them less than checkUploadsEvery ago.
func (o *openUploads) due(w whose) (ids []uuid.UUID, due bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if time.Since(o.checked[w]) < checkUploadsEvery {
		return nil, false
	}
	o.checked[w] = time.Now()
	for id, by := range o.by {
		if by.countsFor(w) {
			ids = append(ids, id)
		}
	}
	return ids, true
}

// begin counts an upload.
func (o *openUploads) begin(by uploader, id uuid.UUID) {
	if o.most <= 0 && o.mostOfClient <= 0 {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.by[id] = by
	o.counts[by.asClient()]++
	if by.account != "" {
		o.counts[by.asAccount()]++
	}
}

// end stops counting an upload that is finished, cancelled or deleted by the reaper. It does
// nothing for an upload that was begun in another process, since this process doesn't count it.
func (o *openUploads) end(id uuid.UUID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	by, ok := o.by[id]
	if !ok {
		return
	}
	delete(o.by, id)
	o.countLess(by.asClient())
	if by.account != "" {
		o.countLess(by.asAccount())
	}
}

// countLess counts one upload less for `w`. The caller holds mu.
func (o *openUploads) countLess(w whose) {
	if o.counts[w]--; o.counts[w] <= 0 {
		delete(o.counts, w)
		delete(o.checked, w)
	}
}
