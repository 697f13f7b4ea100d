package main

import (
	"context"
	"log/slog"

	"github.com/google/uuid"

	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/db"
)

// pools are the connections of a server, whose databases have their schema.
type pools struct {
	metadata *db.DB // of requests
	reviews  *db.DB // of garbage collection
	prunes   *db.DB // of auto-pruning
	keys     *looseKeys
	stats    *statistics
}

func openPools(ctx context.Context, cfg *config.Config, dsn string, replica uuid.UUID, log *slog.Logger) (_ *pools, err error) {
	p := &pools{}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	if p.metadata, err = openDatabase(ctx, cfg, dsn, replica, log); err != nil {
		return nil, err
	}
	if p.stats, err = openStatistics(ctx, cfg, dsn, log); err != nil {
		return nil, err
	}
	if p.reviews, err = openReviews(ctx, cfg, dsn, log); err != nil {
		return nil, err
	}
	if p.prunes, err = openPrunes(ctx, cfg, dsn, log); err != nil {
		return nil, err
	}
	if p.keys, err = openLooseKeys(ctx, cfg, dsn, log); err != nil {
		return nil, err
	}
	return p, nil
}

// close closes those that were opened.
func (p *pools) close() {
	if p.keys != nil {
		p.keys.close()
	}
	for _, d := range []*db.DB{p.prunes, p.reviews, p.metadata} {
		if d != nil {
			d.Close()
		}
	}
}
