package autoprune

import (
	"context"

	"github.com/purser-registry/purser/internal/catalog"
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
