// Package storeid prevents a registry from using a blob store that isn't its own, such as an
// empty mount point, another bucket, or another registry's directory.
//
// The database (table store_identity) and the store (one object) have the same id. Every
// process compares them before it writes: Establish does this at the start of the process.
// After that, the type Store, which wraps the blob store, does it for each operation that
// would do harm in a wrong store:
//
//   - Before a write or a delete, Store checks the blob store's identity, or uses the
//     result of the last check if that check began less than 10 s ago. If the blob store is
//     a directory, whose volume can be unmounted at any time, Store makes a new check
//     before every write or delete, and again after a write. After a delete, Store makes a
//     new check for every kind of blob store.
//   - If an operation doesn't find an object, Store checks the identity again, and returns
//     "not found" only if this check succeeds: then the object is missing from the right
//     store.
//
// At the first start of a registry, store and database both get an identity, but only if they
// belong together. One process first stores an id in the database, as unconfirmed; then it
// writes the id to the store, reads it back and confirms it in the database. If this process
// dies in between, the id in the database stays unconfirmed. If the store has this id too, any
// process confirms it; if not, another process chooses a new id, after a pause that is longer
// than the first process could have needed. If two registries start on one store at the same
// time, only one gets it, since the store accepts only the first identity. If neither has an
// identity but the database has blobs, the store must have at least half of a sample of these
// blobs.
//
// After the first start, Store never accepts a blob store with a missing or different
// identity; only Adopt changes identities. Adopt writes the database's id to the blob store.
// If the blob store belonged to another database before, the registries on that database then
// stop writing.
package storeid

import (
	"cmp"
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
	// writeTimeout limits the time for writing an identity. lease is the time after which
	// another process may replace an unconfirmed id.
	writeTimeout = 10 * time.Second
	lease        = 15 * time.Second
	poll         = 250 * time.Millisecond

	lookTimeout = 10 * time.Second
)

// Options names the database and the blob store that must belong together.
type Options struct {
	DB      *db.DB           // required
	Catalog *catalog.Catalog // of the same database; required
	Store   blob.Store       // required
	Place   string           // where the store is, as messages show it
	// Local says that the store is a directory: a check of its identity costs almost nothing,
	// and a volume may be unmounted and mounted again at any time.
	Local bool
	// Lease replaces the default pause (15 s) after which another process may replace an
	// unconfirmed id.
	Lease time.Duration
	Log   *slog.Logger // default slog.Default()
}

// Store wraps a blob store, and refuses operations while this blob store isn't the one that
// belongs to the database: it returns blob.ErrWrongStore, with a text that says what is wrong
// and what the operator can do.
type Store struct {
	blob.Store
	opt   Options
	log   *slog.Logger
	fresh time.Duration // the age up to which a successful check allows a write

	wrong atomic.Bool // the result of the last check
	made  time.Time
	// These are times in nanoseconds since the time `made`; 0 means never. `used` is when
	// Wrong was last called, `looked` is when the last finished check began, and `looking` is
	// when the check that is running began.
	used, looked, looking atomic.Int64

	mu      sync.Mutex
	id      string        // the identity that the store must have; "" before Establish
	running chan struct{} // closed when the running check ends; nil: none is running
	last    look
}

// look is the result of one check of the store's identity, and when the check began.
type look struct {
	began time.Time
	err   error
}

// New returns a Store that wraps o.Store. It refuses all writes until Establish or Adopt has
// succeeded.
func New(o Options) (*Store, error) {
	if o.DB == nil || o.Catalog == nil || o.Store == nil {
		return nil, errors.New("storeid: a database, a catalog and a store are required")
	}
	o.Log = cmp.Or(o.Log, slog.Default())
	o.Lease = cmp.Or(o.Lease, lease)
	s := &Store{Store: o.Store, opt: o, log: o.Log, fresh: 10 * time.Second, made: time.Now()}
	if o.Local {
		s.fresh = 0
	}
	return s, nil
}

// Known is what the database has stored about its blob store.
type Known struct {
	ID        string // "" before the first start
	Place     string // where the store was when it was last confirmed
	Confirmed bool   // a process has read the ID from the store
	chosen    bool   // the ID was chosen longer ago than the lease
}

// Read returns what the database has stored about its blob store.
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
	Sample           // of the database's blobs, looked up in the store
}

// Same returns whether database and store have the same identity.
func (s State) Same() bool { return s.Store != "" && s.Store == s.Database }

// Show returns the identities of database and store, and how many of a sample of the
// database's blobs are in the store. It changes nothing.
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
