package backup

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/purser-registry/purser/internal/blob"
)

// TransferOptions says from which database to which the metadata is to go.
type TransferOptions struct {
	From, To string // DSNs; required. No server may run on either, and To must be empty
	// Stats is the DSN of the statistics' database if that is another one than From. The
	// statistics then stay there. Otherwise they go along.
	Stats string
	// Store is the registry's blob store, Identity its identity, and Place says where it is.
	// Required.
	Store    blob.Store
	Identity string
	Place    string
	// Scratch is a directory for the rows on their way. Transfer deletes what is there, creates
	// it with mode 0700, and deletes it at its end. Required.
	Scratch string
	// Room returns an error when the disk of Scratch has less left than its reserve. It is asked while the
	// rows are written there. Nil: nothing is asked.
	Room       func() error
	Partitions int                             // as in db.MigrateOptions
	Purser     string                          // the version of this program
	BeforeEnd  func(ctx context.Context) error // called before servers can start on To; may be nil
	Progress   func(Progress)                  // may be nil
	Log        *slog.Logger                    // default slog.Default()
}

// Transferred says what a transfer has done.
type Transferred struct {
	Rows int64         `json:"rows"`
	Took time.Duration `json:"-"`
}

// Transfer copies all rows of a registry's database, while the registry is stopped, into an
// empty database. The caller guarantees that no server runs. Until Transfer has returned nil, no
// server starts on the new database, and the old one is unchanged unless BeforeEnd changes it.
// If Transfer is interrupted, it can be run again with the same databases: it begins with the
// rows as they are then.
func Transfer(ctx context.Context, o TransferOptions) (done Transferred, err error) {
	began := time.Now()
	if o.From == "" || o.To == "" || o.Scratch == "" {
		return done, errors.New("transfer: two databases and a directory are required")
	}
	if err := os.RemoveAll(o.Scratch); err != nil {
		return done, fmt.Errorf("removing what an interrupted transfer has left: %w", err)
	}
	if err := os.Mkdir(o.Scratch, 0o700); err != nil {
		return done, fmt.Errorf("making a directory for the rows: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(o.Scratch)) }()
	target, err := InDirectory(o.Scratch)
	if err != nil {
		return done, err
	}
	if o.Room != nil {
		target = limitedTarget{target, func() error {
			if err := o.Room(); err != nil {
				return fmt.Errorf("there is no room for the rows on their way, in %s: %w", o.Scratch, err)
			}
			return nil
		}}
	}
	stay := o.Stats != "" && o.Stats != o.From
	b, err := Run(ctx, Options{
		Main: o.From, Target: target, Store: o.Store, Identity: o.Identity, Place: o.Place, Blobs: Reference,
		Purser: o.Purser, Progress: o.Progress, Log: o.Log, statsStay: stay,
	})
	if err != nil {
		return done, err
	}
	r := RestoreOptions{
		Main: o.To, Target: target, Manifest: b.Manifest, Store: o.Store, Place: o.Place, Keep: true, Partitions: o.Partitions,
		Progress: o.Progress, Log: o.Log, transfer: true, statsStay: stay, beforeEnd: o.BeforeEnd,
	}
	if stay {
		r.Stats = o.Stats
	}
	res, err := Restore(ctx, r)
	return Transferred{Rows: res.Rows, Took: time.Since(began)}, err
}
