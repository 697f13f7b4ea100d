// Package storeid keeps a registry off a blob store that isn't its own: an empty
// mount point, another bucket, another registry's directory.
//
// The database and the store carry the same id: the table store_identity and an
// object of the store. Whoever writes to the store compares them first: Establish
// at the start of a process, and from then on the Store, which stands in front of
// the blob store and hands on nothing that an unverified store could spoil:
//
//   - A write, and a delete, is preceded by a look at the identity that is at most
//     a few seconds old. In a directory, where a volume can be unmounted at any
//     time, what was written or deleted is believed only if a look that began
//     afterwards finds the identity too.
//   - "Not found" is handed on only if a look that began afterwards finds the
//     identity: a missing object is then missing from the right store.
//
// The first start of a registry gives both sides an identity, which they must not
// get when they don't belong together. So the id is chosen in the database first,
// unconfirmed, by one process; this one writes it to the store, reads it back and
// confirms it. A process that dies in between leaves an unconfirmed id. If the store
// has it too, any process confirms it; if not, another process chooses anew after a
// pause that is longer than the first could have taken. Two registries that start
// on one store at once are told apart by the store, which takes an identity only
// while it has none. An upgrade is a first start with blobs: the store must have
// most of a sample of them.
//
// After that a missing or another identity is never accepted again, but by Adopt.
// Adopt writes the database's id to the store, so that registries on a database
// that the store belonged to before stop writing.
package storeid

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/db"
)

const (
	// writeTimeout bounds the write of an identity, lease is after how long another
	// process takes the place of one that chose an id and hasn't confirmed it.
	writeTimeout = 10 * time.Second
	lease        = 15 * time.Second
	poll         = 250 * time.Millisecond

	lookTimeout = 10 * time.Second
)

// Options say what belongs together.
type Options struct {
	DB      *db.DB           // required
	Catalog *catalog.Catalog // of the same database; required
	Store   blob.Store       // required
	Place   string           // where the store is, for people
	// Local says that to look at the identity costs next to nothing, and that the
	// store may be taken away and put back by whoever unmounts a volume.
	Local bool
	// Lease replaces the pause after which another process chooses anew.
	Lease time.Duration
	Log   *slog.Logger // default slog.Default()
}

// Store is a blob store that refuses when it isn't the database's. Error:
// blob.ErrWrongStore, with what is wrong and what to do.
type Store struct {
	blob.Store
	opt   Options
	log   *slog.Logger
	fresh time.Duration // how old a look may be that allows a write

	wrong atomic.Bool // as of the last look
	made  time.Time
	// Nanoseconds since made, 0 for never: when Wrong was asked last, when the last look
	// that is over began, and when the one did that is under way.
	used, looked, looking atomic.Int64

	mu      sync.Mutex
	id      string        // that the store must have; "" before Establish
	running chan struct{} // closed when the look that is under way ends; nil: none is
	last    look
}

// look is what became of one look at the store's identity.
type look struct {
	began time.Time
	err   error
}

// New puts a Store in front of o.Store. It refuses all writes until Establish or
// Adopt succeeds.
func New(o Options) (*Store, error) {
	if o.DB == nil || o.Catalog == nil || o.Store == nil {
		return nil, errors.New("storeid: a database, a catalog and a store are required")
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.Lease <= 0 {
		o.Lease = lease
	}
	s := &Store{Store: o.Store, opt: o, log: o.Log, fresh: 10 * time.Second, made: time.Now()}
	if o.Local {
		s.fresh = 0
	}
	return s, nil
}

// Known is what a database knows of its store.
type Known struct {
	ID        string // "" before the first start
	Place     string // where the store was last
	Confirmed bool   // the store was seen to have the ID
	chosen    bool   // longer ago than the lease
}

// Read returns what the database knows of its store.
func Read(ctx context.Context, d *db.DB) (Known, error) { return read(ctx, d, lease) }

func read(ctx context.Context, d *db.DB, lease time.Duration) (Known, error) {
	var k Known
	err := d.Pool.QueryRow(ctx, `
		SELECT id::text, place, confirmed_at IS NOT NULL, chosen_at < now() - $1::interval FROM store_identity`, lease).
		Scan(&k.ID, &k.Place, &k.Confirmed, &k.chosen)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return Known{}, fmt.Errorf("reading which blob store belongs to the database: %w", err)
	}
	return k, nil
}

// State compares a database with a store.
type State struct {
	Place     string `json:"place"`     // of the store
	Store     string `json:"store"`     // the store's identity, "" for none
	Database  string `json:"database"`  // the database's, "" for none
	LastPlace string `json:"lastPlace"` // where the database's store was last
	Sample           // of the blobs of the database, looked for in the store
}

// Same says whether the two belong together.
func (s State) Same() bool { return s.Store != "" && s.Store == s.Database }

// Show compares the database with the store and changes nothing.
func (s *Store) Show(ctx context.Context) (State, error) {
	known, err := read(ctx, s.opt.DB, s.opt.Lease)
	if err != nil {
		return State{}, err
	}
	there, err := s.Store.Identity(ctx)
	if err != nil {
		return State{}, err
	}
	sample, err := s.sample(ctx)
	return State{Place: s.opt.Place, Store: there, Database: known.ID, LastPlace: known.Place, Sample: sample}, err
}
