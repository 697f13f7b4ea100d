package backup

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/db"
)

// contentTables are the tables that have rows as soon as somebody uses a registry.
var contentTables = []string{"top_level_namespaces", "repositories", "blobs", "manifests", "uploads", "accounts", "tagpullstatistics", "manifestpullstatistics"}

// emptyDatabase is the way out for errors about a database with rows.
const emptyDatabase = "a restore needs an empty one: name a new database in database.main (and database.stats), " +
	"or move the directory \"postgres\" in data_dir away if the registry uses the built-in PostgreSQL"

func (r *restore) requireEmptyDatabase(ctx context.Context) error {
	conns := []*pgx.Conn{r.conn}
	if r.stats != r.conn && !r.statsStay {
		conns = append(conns, r.stats)
	}
	for _, conn := range conns {
		for _, table := range contentTables {
			some, err := hasRows(ctx, conn, table)
			if err != nil {
				return err
			}
			if some {
				return fmt.Errorf("the database of this configuration has rows in table %s: %w; %s", table, ErrNotEmpty, emptyDatabase)
			}
		}
	}
	version, err := db.Current(ctx, r.conn)
	if err == nil && version > r.m.Schema.Main {
		err = fmt.Errorf("the database has the tables of version %d already, and backup %s is of version %d; %s", version, r.m.ID, r.m.Schema.Main, emptyDatabase)
	}
	return err
}

// hasRows says whether a table exists and has rows.
func hasRows(ctx context.Context, q db.Querier, table string) (some bool, err error) {
	there, err := db.Exists(ctx, q, table)
	if err != nil || !there {
		return false, err
	}
	quoted := pgx.Identifier{table}.Sanitize()
	if err := q.QueryRow(ctx, "SELECT EXISTS (SELECT FROM "+quoted+")").Scan(&some); err != nil {
		return false, fmt.Errorf("looking for rows in table %s: %w", table, err)
	}
	return some, nil
}

// requireStore verifies that the store is the backup's, if it is to be kept, or else that it is
// empty. A store whose identity is that of the database counts as one without identity: a server was
// started on both before the restore.
func (r *restore) requireStore(ctx context.Context) error {
	there, err := r.identity(ctx)
	if err != nil {
		return err
	}
	own, err := ownIdentity(ctx, r.conn)
	if err != nil {
		return err
	}
	r.note.From = there
	unclaimed := there == "" || there == own
	switch {
	case r.Keep && there == r.m.Store:
		return nil
	case r.Keep && (unclaimed || r.mayTake(there)):
		return r.requireFit(ctx)
	case r.Keep:
		return fmt.Errorf("the blob store at %s has the identity %s and so belongs to another database, and the backup's store has %s: "+
			"correct the path or bucket. If it is the registry's own store, which was given to another database meanwhile, add --from %[2]s: "+
			"registries on that database stop writing to it", r.Place, there, r.m.Store)
	case !unclaimed:
		return fmt.Errorf("the blob store at %s belongs to a registry (identity %s): %w; name a new directory, bucket or prefix", r.Place, there, ErrNotEmpty)
	}
	if err := r.requireNoObjects(ctx); err != nil {
		return err
	}
	return r.requireNoForeign(ctx)
}

func (r *restore) requireNoObjects(ctx context.Context) error {
	for o, err := range r.Store.List(ctx, "") {
		if err != nil {
			return err
		}
		return fmt.Errorf("the blob store at %s has objects, such as %s: %w; name a new directory, bucket or prefix", r.Place, o.Key, ErrNotEmpty)
	}
	return nil
}

// ownIdentity returns the identity of the database's store, or "" if it has none.
func ownIdentity(ctx context.Context, conn *pgx.Conn) (id string, err error) {
	there, err := db.Exists(ctx, conn, "store_identity")
	if err != nil || !there {
		return "", err
	}
	err = conn.QueryRow(ctx, "SELECT COALESCE((SELECT id::text FROM store_identity), '')").Scan(&id)
	if err != nil {
		return "", fmt.Errorf("reading the identity of the database's store: %w", err)
	}
	return id, nil
}

// requireNoForeign verifies that the store has none of the backup's foreign objects, which List leaves
// out. If it has one, it may be the storage of the other registry, whose files the restored registry
// would take for its own.
func (r *restore) requireNoForeign(ctx context.Context) error {
	return errors.Join(r.requireNoneOf(ctx, r.m), r.requireNoneOf(ctx, r.m.ofLost()))
}

func (r *restore) requireNoneOf(ctx context.Context, m *Manifest) error {
	list := openObjects(ctx, r.Target, m)
	defer list.r.Close()
	for {
		o, err := list.peek()
		if err != nil || o == nil {
			return err
		}
		list.next = nil
		if !strings.Contains(o.key, "/") {
			continue
		}
		_, err = r.Store.Stat(ctx, o.key)
		switch {
		case err == nil:
			return fmt.Errorf("the blob store at %s has files of another registry, such as %s: %w; name a new directory, bucket or prefix, "+
				"or go on with the store of the registry that was backed up, by --keep-store", r.Place, o.key, ErrNotEmpty)
		case !errors.Is(err, blob.ErrNotFound):
			return err
		}
	}
}

// identity returns the store's identity, or "" if it has none. A damaged one counts as none, if the
// store is to be kept and Force is set.
func (r *restore) identity(ctx context.Context) (string, error) {
	there, err := r.Store.Identity(ctx)
	if errors.Is(err, blob.ErrDamagedIdentity) && r.Keep {
		if r.Force {
			return "", nil
		}
		err = fmt.Errorf("%w: --force writes it anew", err)
	}
	return there, err
}

// mayTake says whether the store may be taken away from the database that has this identity.
func (r *restore) mayTake(identity string) bool {
	return r.Keep && r.From != "" && identity == r.From
}

// sampleSize is how many of the backup's objects requireFit looks for.
const sampleSize = 200

// requireFit verifies that a store without the backup's identity is that of the backup all the same: it
// has at least half of a sample of the backup's objects. Their keys are random, so another registry's
// store has none of them.
func (r *restore) requireFit(ctx context.Context) error {
	if r.Force {
		return nil
	}
	r.told.step("looking for blobs in the store")
	sample, err := r.sample(ctx)
	if err != nil {
		return err
	}
	if len(sample) == 0 { // nothing can show whose store it is
		return r.requireNoObjects(ctx)
	}
	found := 0
	for _, o := range sample {
		wrong, err := blob.Look(ctx, r.Store, o.key, o.size)
		if err != nil {
			return err
		}
		if wrong == "" {
			found++
		}
	}
	if 2*found >= len(sample) {
		return nil
	}
	return fmt.Errorf("the blob store at %s hasn't the identity of the backup's store (%s), and of %d objects of the backup, drawn at random, it has %d: "+
		"it doesn't seem to be the store of the registry that was backed up. Correct the path or bucket; to restore the backup's own copies, "+
		"name an empty store and leave --keep-store out. If it is the right store nevertheless, add --force", r.Place, r.m.Store, len(sample), found)
}

// sample draws up to sampleSize of the backup's objects at random, all with the same probability. It
// leaves out another registry's files, which other stores may have too, unless there are no others.
func (r *restore) sample(ctx context.Context) ([]object, error) {
	list := openObjects(ctx, r.Target, r.m)
	defer list.r.Close()
	var own, foreign []object
	var owns, foreigns int
	for {
		o, err := list.peek()
		if err != nil {
			return nil, err
		}
		if o == nil {
			break
		}
		list.next = nil
		if strings.Contains(o.key, "/") {
			foreigns++
			foreign = draw(foreign, foreigns, *o)
		} else {
			owns++
			own = draw(own, owns, *o)
		}
	}
	if owns > 0 {
		return own, nil
	}
	return foreign, nil
}

// draw adds the n-th object to a sample of the n-1 objects before it.
func draw(sample []object, n int, o object) []object {
	if len(sample) < sampleSize {
		return append(sample, o)
	}
	if i := rand.IntN(n); i < sampleSize {
		sample[i] = o
	}
	return sample
}

// requireSame verifies that a restore goes on as it began. Otherwise it would take a store that it has
// filled in part for the registry's, or what it has found in the registry's store for its own copies. A
// note of an earlier version doesn't say how the restore began, but its identity is the backup's unless
// a new one was asked for.
func (r *restore) requireSame() error {
	if r.note.Keep == nil || r.note.NewIdentity == nil {
		r.NewIdentity = r.note.Identity != r.m.Store
		return nil
	}
	if r.Keep == *r.note.Keep && r.NewIdentity == *r.note.NewIdentity {
		return nil
	}
	return fmt.Errorf("the restore of backup %s into this database began %s: run it again in the same way, and it goes on; "+
		"or use another, empty database and store", r.m.ID, r.note.flags())
}
