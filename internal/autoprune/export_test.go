package autoprune

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/judge"
)

type (
	TagRow      = tagRow
	Link        = link
	TagBatch    = tagBatch
	BatchReason = batchReason
	DeletionTx  = deletionTx
)

var ErrBusy = errBusy

// Work does one time slice of the worker.
func (p *Pruner) Work(ctx context.Context) (more bool, err error) { return p.work(ctx) }

// SetLookFor changes how long after all processes have written their uses tags may be deleted.
func (p *Pruner) SetLookFor(d time.Duration) { p.lookFor = d }

// LookWithin is how long a transaction that deletes looks for uses.
const LookWithin = lookWithin

// Next exports next, the sleep after Work.
func (p *Pruner) Next(ctx context.Context) (time.Duration, error) { return p.next(ctx) }

// Turns exports turns.
type Turns struct{ turns }

func (s *Turns) UnfinishedFirst() bool                     { return s.unfinishedFirst() }
func (s *Turns) Absent()                                   { s.absent() }
func (s *Turns) Spent(unfinished bool, took time.Duration) { s.spent(unfinished, took) }

// Deletion calls fn in a transaction that deletes tags.
func (p *Pruner) Deletion(ctx context.Context, fn func(tx DeletionTx) error) error {
	return p.deletion(ctx, fn)
}

// ReadTags returns the tags of a repository as a snapshot reads them.
func (p *Pruner) ReadTags(ctx context.Context, t catalog.Repository) (page []TagRow, err error) {
	err = readSnapshot(ctx, p.opt.Background.Pool, t, func(s *snapshot) error {
		return s.Tags(ctx, "", 1000, func(row tagRow) { page = append(page, row) })
	})
	return page, err
}

// Told makes the forecast call fn for each tag that it deletes.
func (o ForecastOptions) Told(fn func(day int, repository, tag string)) ForecastOptions {
	o.deleted = fn
	return o
}

// SetMaxForecast changes how many states of tags, and how many manifests, a forecast may have.
func SetMaxForecast(states, manifests int) (restore func()) {
	oldStates, oldManifests := maxForecastStates, maxForecastManifests
	maxForecastStates, maxForecastManifests = states, manifests
	return func() { maxForecastStates, maxForecastManifests = oldStates, oldManifests }
}

// SetMaxForecastBlobs changes how many blobs a forecast may have in memory.
func SetMaxForecastBlobs(n int) (restore func()) {
	old := maxForecastBlobs
	maxForecastBlobs = n
	return func() { maxForecastBlobs = old }
}

// ParseConfiguration parses the configuration of an image, and returns why it can't; "" if it can.
func ParseConfiguration(content []byte) string {
	var c configuration
	c.parse(content)
	return c.problem
}

// Unread returns how many configurations of the repository's images weren't read yet.
func (p *Pruner) Unread(ctx context.Context, t catalog.Repository) (int, error) {
	list, err := unreadConfigurations(ctx, p.db.Pool, t, 0)
	return len(list), err
}

// Unused returns what unusedBytes would return, by look-ups and by a scan.
func (p *Pruner) Unused(ctx context.Context, t catalog.Repository, manifests []int64) (lookedUp, scanned int64, err error) {
	list := manifestList{ids: manifests}
	for range manifests {
		list.namespaces, list.repositories = append(list.namespaces, t.NamespaceID), append(list.repositories, t.ID)
	}
	err = pgx.BeginFunc(ctx, p.db.Pool, func(tx pgx.Tx) error {
		if lookedUp, _, err = lookUpUnused(ctx, tx, list); err != nil {
			return err
		}
		scanned, _, err = scanUnused(ctx, tx, list)
		return err
	})
	return lookedUp, scanned, err
}

// EnoughWithoutTime searches for the tags that free some bytes when there is no time left.
func EnoughWithoutTime(ctx context.Context) (tags int, freed int64, err error) {
	f := &freePlanner{until: time.Now().Add(-time.Second), order: make([]judge.FreePlace, 3)}
	return f.enough(ctx, 10)
}

// LookInOrder exports lookInOrder.
func LookInOrder[T any](ctx context.Context, p *Pruner, namespace int64, look func(context.Context, catalog.Repository) (T, error), take func(T, error) error) error {
	return lookInOrder(ctx, p, namespace, look, take)
}

// TakePlace takes one of the places for previews, and returns a function that gives it back.
func (p *Pruner) TakePlace() (giveBack func()) {
	p.previews <- struct{}{}
	return func() { <-p.previews }
}

// TakenPlaces returns how many of the places for previews are taken.
func (p *Pruner) TakenPlaces() int { return len(p.previews) }
