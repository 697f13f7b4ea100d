package backup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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
// empty.
func (r *restore) requireStore(ctx context.Context) error {
	there, err := r.Store.Identity(ctx)
	switch {
	case err != nil:
		return err
	case r.Keep && there == r.m.Store:
		return nil
	case r.Keep:
		return fmt.Errorf("the blob store at %s has the identity %s, and the backup's store has %s: it is not the store of the registry that was backed up",
			r.Place, cmp.Or(there, "(none)"), r.m.Store)
	case there != "":
		return fmt.Errorf("the blob store at %s belongs to a registry (identity %s): %w; name a new directory, bucket or prefix", r.Place, there, ErrNotEmpty)
	}
	for o, err := range r.Store.List(ctx, "") {
		if err != nil {
			return err
		}
		return fmt.Errorf("the blob store at %s has objects, such as %s: %w; name a new directory, bucket or prefix", r.Place, o.Key, ErrNotEmpty)
	}
	return r.requireNoForeign(ctx)
}

// requireNoForeign verifies that the store has none of the backup's foreign objects, which List leaves
// out. If it has one, it may be the storage of the other registry, whose files the restored registry
// would take for its own.
func (r *restore) requireNoForeign(ctx context.Context) error {
	list := openObjects(ctx, r.Target, r.m)
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
