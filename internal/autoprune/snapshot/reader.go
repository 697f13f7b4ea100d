package snapshot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/judge"
)

// Options configures a Reader.
type Options struct {
	DB *db.DB // required
	// Background is the connection pool of workers. Default DB.
	Background *db.DB
	// Page is how many tags are read from the database at a time. Default 5,000.
	Page int
	// Used sets the last-used times of the given tags of a repository. It is called only
	// for tags that a policy by last use may select. Nil: last-used times aren't known.
	Used func(ctx context.Context, repository int64, tags []*judge.Tag) error
	// Settle waits until every process has written the uses of tags that it answered before the
	// call to where Used finds them. It returns an error if a process doesn't do so in time. Nil: Used
	// finds every use at once.
	Settle func(ctx context.Context) error
	// Store is where the blobs are, for the configurations of images. Nil: policies with the
	// selectors labels or platforms select nothing.
	Store Store
	Log   *slog.Logger // default slog.Default()
}

// Reader reads repositories. Its methods may be called concurrently. Its options must not be changed.
type Reader struct {
	Options
	// previews has the places in which previews and forecasts look at a repository. Each has one place as
	// long as it runs; see InOrder. judges has those in which changes of policies are judged. See places.
	previews, judges chan struct{}
}

// New makes a reader.
func New(o Options) *Reader {
	o.Background = cmp.Or(o.Background, o.DB)
	o.Page = cmp.Or(o.Page, 5000)
	o.Log = cmp.Or(o.Log, slog.Default())
	r := &Reader{Options: o}
	r.previews, r.judges = places(int(o.DB.Pool.Config().MaxConns))
	return r
}

// places returns the places of previews and of judgements for a pool of so many connections: at most two of
// each. Who has a place keeps a connection for a snapshot, and needs a second one now and then, such as to
// read when tags were used. So less than half of the connections are in snapshots: if all were, each
// would wait for the others. If the pool is too small for that, there is one place for both.
func places(conns int) (previews, judges chan struct{}) {
	if n := min(2, (conns-1)/4); n > 0 {
		return make(chan struct{}, n), make(chan struct{}, n)
	}
	one := make(chan struct{}, 1)
	return one, one
}

// TakePlace waits for a place for previews and forecasts, of which there are few. The caller gives it back.
func (r *Reader) TakePlace(ctx context.Context) (giveBack func(), err error) {
	return take(ctx, r.previews)
}

// TakeJudgePlace is TakePlace for changes of policies that are judged.
func (r *Reader) TakeJudgePlace(ctx context.Context) (giveBack func(), err error) {
	return take(ctx, r.judges)
}

func take(ctx context.Context, places chan struct{}) (giveBack func(), err error) {
	select {
	case places <- struct{}{}:
		return func() { <-places }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// ErrTimeOver ends a look at repositories whose time is over.
var ErrTimeOver = errors.New("the preview ran out of time")

// List returns up to n repositories of a namespace whose ids are greater than
// `after`, in the order of their ids.
func (r *Reader) List(ctx context.Context, namespace, after int64, n int) ([]catalog.Repository, error) {
	rows, err := r.Background.Pool.Query(ctx, `
		SELECT top_level_namespace_id, id, path FROM live_repositories
		WHERE top_level_namespace_id = $1 AND id > $2 ORDER BY id LIMIT $3`, namespace, after, n)
	if err != nil {
		return nil, fmt.Errorf("listing the repositories of a namespace: %w", err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[catalog.Repository])
	if err != nil {
		return nil, fmt.Errorf("listing the repositories of a namespace: %w", err)
	}
	return list, nil
}
