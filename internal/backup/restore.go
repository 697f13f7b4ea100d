package backup

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/gc"
	"github.com/purser-registry/purser/internal/hold"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/pullstats"
	"github.com/purser-registry/purser/internal/pullstats/statsdb"
	"github.com/purser-registry/purser/internal/webhook"
)

// RestoreOptions says what to restore, and where to.
type RestoreOptions struct {
	Main   string // DSN of the metadata's database, which must be empty; required
	Stats  string // DSN of the statistics' database; default Main
	Target Target // required
	// Manifest is that of the backup, from Find. Required.
	Manifest *Manifest
	// Store is the blob store of the restored registry, and Place says where it is. Required.
	Store blob.Store
	Place string
	// Keep makes the restored registry use the objects that the store has. The store must have
	// the backup's identity or, with at least half of a sample of the backup's objects, none or
	// that of the database Main. Then it gets the backup's identity. Without Keep the backup must
	// have copies of the objects, and the store must be empty.
	Keep bool
	// From is another identity that the store may have with Keep. It is taken away from the
	// database that has it.
	From string
	// Strict refuses a backup that lacks objects or has damaged ones, those of blobs that were lost
	// before the backup included. Otherwise their blobs are marked as lost.
	Strict bool
	// Force restores although the backup lacks more than half of its objects or, with Keep,
	// although a store without identity does, or its identity is damaged.
	Force bool
	// NewIdentity gives database and store a new identity, for a registry beside the one that
	// was backed up. It isn't possible with Keep.
	NewIdentity bool
	// Partitions is as in db.MigrateOptions.
	Partitions int
	// Room returns an error when the disk of the database Main has less left than its reserve. It is asked
	// before the rows are loaded and while they are. Nil: the disk isn't this machine's, or isn't known.
	Room     func() error
	Parallel int            // objects that are copied at the same time; default 4
	Progress func(Progress) // may be nil
	Log      *slog.Logger   // default slog.Default()

	// transfer says that the rows come from a registry that is stopped, and aren't an old
	// state: see Transfer.
	transfer bool
	// statsStay says that the statistics are in the database Stats already.
	statsStay bool
	// beforeEnd is called when all is done but the end of the note that keeps servers from
	// starting. May be nil.
	beforeEnd func(ctx context.Context) error

	// reached is called before each step. If it returns an error, the restore ends as if the
	// process were killed. It is for tests.
	reached func(step string) error
}

// Restored says what a restore has done.
type Restored struct {
	ID       string `json:"backup"`
	Identity string `json:"store"` // of database and store
	Rows     int64  `json:"rows"`
	Objects  int64  `json:"objects"` // that were copied, in this run
	// Lost counts the blobs that are marked as lost now, because the backup lacks their objects
	// or has other bytes. It includes those that were lost before the backup, unless the place has
	// copies of them. With Keep it is 0.
	Lost int64 `json:"lost"`
	// FirstLost has up to 100 of them.
	FirstLost []LostBlob `json:"first_lost,omitempty"`
	// Uncounted is the number of pulls in the audit log that the statistics will count.
	Uncounted int64 `json:"uncounted_pulls"`
}

// LostBlob is a blob whose object couldn't be restored.
type LostBlob struct {
	Digest       oci.Digest `json:"digest"`
	Size         int64      `json:"size"`                   // bytes
	Repositories []string   `json:"repositories,omitempty"` // up to three of those that have it
}

// ErrNotEmpty says that a database or blob store has something, so that nothing can be restored
// into it.
var ErrNotEmpty = errors.New("it is not empty")

// note is what a restore stores at its beginning in the database: see db.MarkRestoring.
type note struct {
	Backup   string `json:"backup"`
	Identity string `json:"store"`
	Loaded   bool   `json:"loaded"` // the rows are there
	// From is the identity that the store had when the restore began; "" is none.
	From string `json:"from,omitempty"`
	Lost int64  `json:"lost,omitempty"` // see Restored.Lost; known once the rows are there
	// Keep and NewIdentity are the options by which the restore began. They are nil in the note of an
	// earlier version.
	Keep        *bool `json:"keep,omitempty"`
	NewIdentity *bool `json:"new_identity,omitempty"`
}

// flags names the flags by which the restore began, as far as it goes on only with the same.
func (n note) flags() string {
	switch {
	case *n.Keep:
		return "with --keep-store"
	case *n.NewIdentity:
		return "with --new-identity"
	}
	return "without --keep-store and --new-identity"
}

// parseNote is the opposite of String.
func parseNote(text string) (n note, err error) {
	err = json.Unmarshal([]byte(text), &n)
	return n, err
}

func (n note) String() string {
	b, err := json.Marshal(n)
	if err != nil {
		panic(err) // can't happen: it has nothing that JSON hasn't
	}
	return string(b)
}

// Restore restores a backup into an empty registry. If a restore of the same backup was
// interrupted, it goes on with that. It returns ErrNotEmpty if the registry isn't empty,
// ErrDamaged if the backup is damaged, and gc.ErrPausing if another restore runs.
func Restore(ctx context.Context, o RestoreOptions) (Restored, error) {
	o.Stats = cmp.Or(o.Stats, o.Main)
	o.Parallel = cmp.Or(o.Parallel, 4)
	o.Log = cmp.Or(o.Log, slog.Default())
	if o.reached == nil {
		o.reached = func(string) error { return nil }
	}
	r := &restore{RestoreOptions: o, m: o.Manifest, told: newTeller(o.Progress)}
	r.out = Restored{ID: r.m.ID, Rows: r.m.Rows()}
	if err := r.check(); err != nil {
		return r.out, err
	}
	if err := r.run(ctx); err != nil {
		return r.out, err
	}
	return r.out, nil
}

type restore struct {
	RestoreOptions
	m     *Manifest
	told  *teller
	conn  *pgx.Conn // to the metadata's database
	stats *pgx.Conn // to the statistics' database; conn if it is the same
	note  note
	lost  lostBlobs
	// expected is the number of objects that inspect has found missing or damaged.
	expected int64
	out      Restored
}

// check looks at the options alone.
func (r *restore) check() error {
	switch known := db.Newest(); {
	case r.m.Schema.History != known.History:
		return fmt.Errorf("backup %s can't be restored: %w", r.m.ID, db.ErrDevelopment)
	case r.m.Schema.Main > known.Main || r.m.Schema.Stats > known.Stats:
		return fmt.Errorf("backup %s was made by Purser %s, whose schema is newer: %w", r.m.ID, r.m.Purser, db.ErrNewerSchema)
	case r.Keep && r.NewIdentity:
		return errors.New("a store that has the registry's objects already keeps its identity")
	case r.Keep && r.Strict:
		return errors.New("the objects of a store that is kept aren't compared with the backup: \"purser check\" does that afterwards")
	case !r.Keep && r.From != "":
		return errors.New("only a store that is kept can be taken away from another database")
	case !r.Keep && r.m.Blobs.Which != Copy:
		return fmt.Errorf("backup %s has no copies of the blobs, only their names: they are taken from the registry's blob store, if it is asked to keep what it has", r.m.ID)
	}
	return nil
}

func (r *restore) run(ctx context.Context) error {
	done, err := r.connect(ctx)
	if err != nil {
		return err
	}
	defer done()
	if err := r.begin(ctx); err != nil {
		return err
	}
	if !r.note.Loaded {
		if err := r.fill(ctx); err != nil {
			return err
		}
	}
	return r.finish(ctx)
}

// connect opens the connections, and takes the lock that lets one restore run.
func (r *restore) connect(ctx context.Context) (func(), error) {
	conn, done, err := db.Connect(ctx, r.Main)
	if err != nil {
		return nil, err
	}
	r.conn, r.stats, r.lost.conn = conn, conn, conn
	if err := gc.PauseSweeps(ctx, conn); err != nil {
		done()
		return nil, err
	}
	if r.Stats == r.Main {
		return done, nil
	}
	stats, doneStats, err := db.Connect(ctx, r.Stats)
	if err != nil {
		done()
		return nil, fmt.Errorf("the statistics' database: %w", err)
	}
	all := func() { doneStats(); done() }
	same, err := gc.SweepsPausedIn(ctx, stats)
	if err != nil {
		all()
		return nil, err
	}
	if !same {
		r.stats = stats
	}
	return all, nil
}

// begin verifies that database and store are empty, or those of an interrupted restore of the
// same backup, and then that the backup can be restored, which takes long. It creates the tables, and
// stores in the database that the restore has begun.
func (r *restore) begin(ctx context.Context) error {
	old, err := db.Restoring(ctx, r.conn)
	if err != nil {
		return err
	}
	if old == "" {
		if err := r.first(ctx); err != nil {
			return err
		}
	} else if r.transfer {
		if err := r.inspect(ctx, true); err != nil {
			return err
		}
		// The rows of an interrupted transfer may be older than the source is now.
		r.note = r.newNote()
		if err := db.MarkRestoring(ctx, r.conn, r.note.String()); err != nil {
			return err
		}
	} else if r.note, err = parseNote(old); err != nil || r.note.Backup != r.m.ID {
		return fmt.Errorf("a restore of backup %s into this database was interrupted: go on with that one, or use another, empty database", r.note.Backup)
	} else if err := r.requireSame(); err != nil {
		return err
	} else if err := r.inspect(ctx, true); err != nil {
		return err
	}
	r.out.Identity = r.note.Identity
	there, err := r.identity(ctx)
	if err != nil {
		return err
	}
	if there != r.note.Identity && there != r.note.From && !r.mayTake(there) {
		return fmt.Errorf("the blob store at %s has the identity %s, and not %s: it isn't the one into which the restore began, or the backup's",
			r.Place, cmp.Or(there, "(none)"), r.note.Identity)
	}
	if old != "" && r.Keep && there != r.note.Identity {
		return r.requireFit(ctx)
	}
	return nil
}

// newNote is the note of a restore that begins.
func (r *restore) newNote() note {
	return note{Backup: r.m.ID, Identity: r.m.Store, Keep: new(r.Keep), NewIdentity: new(r.NewIdentity)}
}

// first is the beginning of a restore that wasn't begun before.
func (r *restore) first(ctx context.Context) error {
	if err := r.requireEmptyDatabase(ctx); err != nil {
		return err
	}
	if err := r.requireStore(ctx); err != nil {
		return err
	}
	if err := r.inspect(ctx, false); err != nil {
		return err
	}
	r.told.step("creating the tables")
	if err := db.MigrateTo(ctx, r.Main, r.m.Schema.Main, db.MigrateOptions{Partitions: r.Partitions}); err != nil {
		return err
	}
	from := r.note.From
	r.note = r.newNote()
	if r.note.From = from; r.NewIdentity {
		r.note.Identity = uuid.NewString()
	}
	return db.MarkRestoring(ctx, r.conn, r.note.String())
}

// fill copies the objects and then loads the rows, in this order, so that a database with rows
// has its objects.
func (r *restore) fill(ctx context.Context) error {
	if err := r.reached("objects"); err != nil {
		return err
	}
	if !r.Keep {
		if err := r.objects(ctx); err != nil {
			return err
		}
	}
	if err := r.reached("identity"); err != nil {
		return err
	}
	if err := r.identify(ctx); err != nil {
		return err
	}
	if err := r.reached("rows"); err != nil {
		return err
	}
	r.told.step("loading the database")
	if err := roomForRows(r.Room); err != nil {
		return err
	}
	if !r.statsStay {
		if err := db.MigrateStatsTo(ctx, r.Stats, r.m.Schema.Stats); err != nil {
			return err
		}
	}
	l := loader{t: r.Target, dir: r.m.dir(), told: r.told, again: r.transfer, room: r.Room}
	if r.stats != r.conn && !r.statsStay {
		if err := l.load(ctx, r.stats, []Part{r.m.Stats}, nil); err != nil {
			return fmt.Errorf("the statistics' database: %w", err)
		}
	}
	if err := r.reached("metadata"); err != nil {
		return err
	}
	r.note.Loaded = true
	parts := []Part{r.m.Main}
	if r.stats == r.conn && !r.statsStay {
		parts = append(parts, r.m.Stats)
	}
	return l.load(ctx, r.conn, parts, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `
			INSERT INTO store_identity AS i (id, place, confirmed_at) VALUES ($1, $2, now())
			ON CONFLICT (one) DO UPDATE SET id = EXCLUDED.id, place = EXCLUDED.place, confirmed_at = EXCLUDED.confirmed_at`,
			r.note.Identity, r.Place); err != nil {
			return fmt.Errorf("storing the store's identity: %w", err)
		}
		if !r.Keep {
			// Their objects aren't in the new store. The clients of unfinished uploads begin
			// again.
			if _, err := tx.Exec(ctx, "DELETE FROM uploads"); err != nil {
				return fmt.Errorf("deleting unfinished uploads: %w", err)
			}
			if _, err := tx.Exec(ctx, "DELETE FROM gc_doomed_objects"); err != nil {
				return fmt.Errorf("deleting pending deletions: %w", err)
			}
			if err := ownImported(ctx, tx); err != nil {
				return err
			}
		}
		if err := r.lost.mark(ctx, tx); err != nil {
			return err
		}
		if !r.Keep {
			var err error
			if r.note.Lost, err = countLost(ctx, tx); err != nil {
				return err
			}
		}
		if r.NewIdentity { // the backups are the other registry's
			if _, err := tx.Exec(ctx, "DELETE FROM backups"); err != nil {
				return fmt.Errorf("forgetting the other registry's backups: %w", err)
			}
		}
		return db.MarkRestoring(ctx, tx, r.note.String())
	})
}

// ownImported finishes the imports of a database whose objects were copied to a new store: there they
// are no other registry's.
func ownImported(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, "UPDATE imports SET finished_at = now() WHERE finished_at IS NULL")
	if err == nil {
		_, err = tx.Exec(ctx, "DELETE FROM gc_foreign_objects")
	}
	if err != nil {
		return fmt.Errorf("finishing imports: %w", err)
	}
	return nil
}

// identify gives the store its identity.
func (r *restore) identify(ctx context.Context) error {
	replace := r.Keep && (r.From != "" || r.Force) || r.note.From != "" && r.note.From != r.note.Identity
	if err := r.Store.SetIdentity(ctx, r.note.Identity, replace); err != nil {
		return err
	}
	there, err := r.Store.Identity(ctx)
	if err == nil && there != r.note.Identity {
		err = fmt.Errorf("%w: another process has given the store at %s the identity %s meanwhile", blob.ErrWrongStore, r.Place, there)
	}
	return err
}

// finish brings the loaded database up to date, and gives up what belongs to the server from
// which the rows came. It may run again after it was interrupted.
func (r *restore) finish(ctx context.Context) error {
	r.told.step("bringing the database up to date")
	if err := r.reached("migrate"); err != nil {
		return err
	}
	if _, err := db.Migrate(ctx, r.Main, db.MigrateOptions{Partitions: r.Partitions, Restoring: true}); err != nil {
		return err
	}
	if _, err := db.MigrateStats(ctx, r.Stats, db.MigrateOptions{}); err != nil {
		return fmt.Errorf("the statistics' database: %w", err)
	}
	main, err := db.Open(ctx, db.Options{DSN: r.Main, MaxConns: 4, ApplicationName: "purser restore", Log: r.Log})
	if err != nil {
		return err
	}
	defer main.Close()
	stats := main
	if r.stats != r.conn {
		if stats, err = db.Open(ctx, db.Options{DSN: r.Stats, MaxConns: 4, ApplicationName: "purser restore", Log: r.Log}); err != nil {
			return err
		}
		defer stats.Close()
	}
	if err := r.reached("reset"); err != nil {
		return err
	}
	if r.out.Uncounted, err = beginAnew(ctx, main, stats, r.transfer, r.Log); err != nil {
		return err
	}
	if _, err := main.AnalyzeGrown(ctx); err != nil {
		return err
	}
	if r.out.Lost = r.note.Lost; r.out.Lost > 0 {
		if r.out.FirstLost, err = namesOfLost(ctx, main, r.out.Lost); err != nil {
			return err
		}
	}
	if err := r.reached("end"); err != nil {
		return err
	}
	if r.beforeEnd != nil {
		if err := r.beforeEnd(ctx); err != nil {
			return err
		}
	}
	return db.MarkRestored(ctx, main.Pool)
}

// beginAnew gives the pulls in the audit log transaction ids of this server, and lets webhooks
// tell only of what happens from now on. Pulls from between the backup and now are unknown, so
// the statistics count as complete from now on only, and no policy takes a tag for unused that
// was used meanwhile. No reporter of holds counts as live for the same reason. (After a transfer
// there are no such pulls and reports.) It returns the number of pulls
// that are still to be counted.
func beginAnew(ctx context.Context, main, stats *db.DB, transfer bool, log *slog.Logger) (uncounted int64, err error) {
	w, err := pullstats.NewSyncWorker(pullstats.SyncOptions{
		Databases: statsdb.Databases{Log: main, Stats: stats, Alive: catalog.LivingNamespaces}, Logger: log,
	})
	if err != nil {
		return 0, err
	}
	if uncounted, err = w.Reset(ctx); err != nil {
		return 0, err
	}
	if transfer {
		return uncounted, webhook.BeginAnew(ctx, main)
	}
	if err := hold.Unreported(ctx, main); err != nil {
		return 0, err
	}
	if err := statsdb.Unrecorded(ctx, stats, 0); err != nil {
		return 0, err
	}
	if err := statsdb.Unchecked(ctx, stats, 0); err != nil {
		return 0, err
	}
	return uncounted, webhook.BeginAnew(ctx, main)
}
