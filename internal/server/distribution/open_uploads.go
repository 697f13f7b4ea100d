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

// openUploads counts, for each client, the open uploads: those that were begun in this process
// and neither finished nor cancelled. Nothing tells this process when another process finishes
// such an upload, or when the reaper deletes it. Therefore, when a client reaches a limit,
// openUploads asks the database which of the counted uploads still have a row in the table
// uploads, and stops counting the others.
type openUploads struct {
	catalog            *catalog.Catalog
	most, mostOfClient int // 0: no limit
	metrics            *limit.Metrics

	mu      sync.Mutex
	client  map[uuid.UUID]string
	counts  map[string]int
	checked map[string]time.Time // when a client's rows were last looked for; "" for all clients'
}

// checkUploadsEvery is the shortest time between two database queries that look for the rows of
// the same client's uploads.
const checkUploadsEvery = 10 * time.Second

func newOpenUploads(o Options) *openUploads {
	return &openUploads{catalog: o.Catalog, most: o.Uploads, mostOfClient: o.ClientUploads, metrics: o.LimitMetrics,
		client: map[uuid.UUID]string{}, counts: map[string]int{}, checked: map[string]time.Time{}}
}

// admit returns an error if this client, or all clients together, already have as many open
// uploads as the limits allow.
func (o *openUploads) admit(ctx context.Context, client string) error {
	full := o.full(client)
	if full == limit.NotFull {
		return nil
	}
	whose := client
	if full == limit.AllFull {
		whose = ""
	}
	if err := o.check(ctx, whose); err != nil {
		return err
	}
	switch o.full(client) {
	case limit.ClientFull:
		o.metrics.Refused(limit.ClientUploads)
		return oci.Errorf(oci.TooManyRequests, "%d uploads from your address are unfinished: finish or cancel some, or wait until they expire", o.mostOfClient)
	case limit.AllFull:
		o.metrics.Refused(limit.Uploads)
		return oci.Errorf(oci.Unavailable, "there are too many unfinished uploads: try again later")
	case limit.NotFull:
	}
	return nil
}

func (o *openUploads) full(client string) limit.Full {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.mostOfClient > 0 && o.counts[client] >= o.mostOfClient:
		return limit.ClientFull
	case o.most > 0 && len(o.client) >= o.most:
		return limit.AllFull
	}
	return limit.NotFull
}

// check asks the database which of the client's counted uploads still have a row in the table
// uploads, and stops counting the uploads that have none. If `client` is "", it does so for the
// uploads of all clients. It does nothing if it last asked for the same `client` less than
// checkUploadsEvery ago.
func (o *openUploads) check(ctx context.Context, client string) error {
	ids, due := o.due(client)
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

// due returns the counted uploads of the client whose rows check should look for; the client ""
// means all clients. It returns false if check has looked for them less than checkUploadsEvery
// ago.
func (o *openUploads) due(client string) (ids []uuid.UUID, due bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if time.Since(o.checked[client]) < checkUploadsEvery {
		return nil, false
	}
	o.checked[client] = time.Now()
	for id, c := range o.client {
		if client == "" || c == client {
			ids = append(ids, id)
		}
	}
	return ids, true
}

// begin counts an upload.
func (o *openUploads) begin(client string, id uuid.UUID) {
	if o.most <= 0 && o.mostOfClient <= 0 {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.client[id] = client
	o.counts[client]++
}

// end stops counting an upload that is finished, cancelled or deleted by the reaper. It does
// nothing for an upload that was begun in another process, since this process doesn't count it.
func (o *openUploads) end(id uuid.UUID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	client, ok := o.client[id]
	if !ok {
		return
	}
	delete(o.client, id)
	if o.counts[client]--; o.counts[client] <= 0 {
		delete(o.counts, client)
		delete(o.checked, client)
	}
}
