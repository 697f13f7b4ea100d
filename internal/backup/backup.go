// Package backup writes backups of a registry, restores them, and moves a registry to another
// database or blob store.
//
// A backup has the state of the database at one moment, and the names of the objects that this
// state needs or, with Copy, the objects themselves. The registry serves meanwhile.
//
// # Layout
//
//	purser-backup.json             says that the place has backups, and of which registry
//	backups/ID/begun               the first file of a backup; ID is the time of its beginning
//	backups/ID/main/TABLE.N.gz     rows of a table as text, in COPY's format
//	backups/ID/stats/TABLE.N.gz    the same for the statistics of pulls
//	backups/ID/objects.N.gz        key, size and digest of each object, sorted by key
//	backups/ID/lost.N.gz           the same for blobs that are marked as lost
//	backups/ID/manifest.json       the last file, with the hashes of all others
//	objects/1f/1f0c…e2-0           an object, for all backups that need it
//	objects/do/docker/…/data       an object that an import has taken over
//
// The format of rows is text, so that a backup can be loaded into any version of PostgreSQL
// without its programs pg_dump and pg_restore, which the built-in PostgreSQL doesn't have.
//
// # Why a backup is whole
//
// One snapshot. All rows of the metadata are read in one REPEATABLE READ transaction. The
// tables are locked in ACCESS SHARE mode before the snapshot begins, and migrations wait, so no
// definition changes between the catalog's description of a table and its rows.
//
// The objects of the snapshot. Only sweepers delete objects of blobs. Before the snapshot
// begins, the backup pauses them (see gc.PauseSweeps): a sweeper claims a pending deletion only
// while it has a lock that the backup has now. An object that some sweeper can still be deleting
// was claimed earlier, and its blob's row was deleted before that, so the snapshot doesn't have
// this row. All objects that the snapshot needs therefore stay in the store until the backup has
// copied them, whatever garbage collection deletes from the database meanwhile. If the lock's
// connection ends, the sweepers go on; then the backup fails instead of relying on what they
// left. The backup's rows of an object are committed before the snapshot, and an object is
// complete and durable before a row names its key; so the store has all of them.
//
// Pushes. A push that was acknowledged before the snapshot began is in the backup whole. A push
// that is under way is in it as far as its transactions had committed: manifests are committed
// with all references to their blobs, so there is no manifest without its blobs.
//
// Incremental copies. An object never changes under its key, so an object that the target has
// in the right size is not copied again. The target writes whole files only. The content of each
// object is compared with its digest while it is copied.
//
// A killed backup. The manifest is written last, after all other files were durable and after
// every object was found in the target once more. A backup without a manifest is never
// restored. What it has copied serves the next backup. A backup that fails deletes its files, but not
// the objects that it has copied: on a disk that is full, each attempt would take more of it otherwise.
//
// Old backups. Only one backup of a database runs at a time, since it has the lock by which it
// pauses the sweepers, and a target belongs to one registry. So while Prune deletes objects
// that no manifest names, no backup relies on them. If a copy of the registry, which has the
// same identity, uses the same target in spite of that, Prune sees that its backup has begun,
// and deletes no objects.
//
// Lost blobs. A blob whose object the store has lost has no object to copy, but earlier backups may
// have copied it. The backup lists such blobs apart, so that Prune keeps these copies for as long as
// the registry has the blob's row, and a restore takes them and lets the blob be found again.
//
// Statistics in another database. Their snapshot begins before that of the metadata. The audit
// log, which has the pulls, is part of the metadata. So the log in the backup has every pull
// that the statistics in the backup have counted, and the pulls after the statistics' watermark
// are those that they haven't counted: after a restore each is counted once.
//
// # Why a restore is whole
//
// A restore reads all files and all objects and compares their hashes before it changes anything. A
// damaged file of the database ends it. Objects that are damaged or missing don't: the others are
// restored, and the blobs of these are marked as lost in the transaction that loads their rows, so
// that clients are told that they don't exist, and push them again. (With Strict the restore ends.)
// The restore marks no more blobs as lost than it has found damaged or missing before it changed
// anything: if an object is missing later that was there then, the backup's volume may have been
// unmounted, and the restore stops.
//
// Then the restore creates the tables of the backup's version in the empty database and stores there
// that a restore has begun: no server starts on this database until the restore has ended. It copies
// the objects, gives the store its identity, and loads all rows in one transaction. So a killed
// restore leaves either an empty database or a loaded one, with the note of what is to be done;
// the next restore goes on. At the end it applies the newer migrations, and gives the audit log's
// entries new transaction ids, since each server has ids of its own (see pullstats.SyncWorker).
//
// A store that is kept must be the backup's: it has the backup's identity, or it has lost its identity
// and has at least half of a sample of the backup's objects. A store that another database has taken
// over is taken back only if the operator names that database's identity.
//
// # Decisions
//
// A restore leaves out what is damaged, and doesn't end for it. An operator restores on the worst
// day; one flipped bit of a layer is then no reason to have nothing. Blobs have a state for it: a
// lost blob doesn't exist for clients, who push it again. Files of the database have no such state,
// so a damaged one ends the restore.
//
// A restore decides which content is lost before it changes anything. It reads all copies first, which takes
// as long as reading them does, and marks as lost only as many as it found then. A volume that
// disappears while the copies are read once more would otherwise turn a good backup into a registry
// without blobs. For the same reason more than half is refused.
//
// A store without an identity is recognised by its objects. Their keys are random, so another
// registry's store has none of them; half of a sample of 200 is enough, since a store that was
// copied back may lack some. To ask for an identity would be a circle: only a database with rows
// gives one to a store ("store adopt"), and a restore that keeps the store brings these rows.
//
// The age of backups is in the registry's database (standing.go), and not read from the place of
// the backups: a server needs no access to them, and no replica lists a bucket to export a metric.
// By it a backup also recognises the empty directory in which a volume isn't mounted: it would become
// a new place with one backup, while those of the last weeks are away and nobody is told.
package backup

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/gc"
)

// Options says what to back up, and where.
type Options struct {
	Main   string // DSN of the metadata; required
	Stats  string // DSN of the statistics of pulls; default Main
	Target Target // required
	// Store is the registry's blob store, and Identity its identity. They are required.
	Store    blob.Store
	Identity string
	Place    string // of the blob store, for messages
	// Blobs says whether objects are copied. Default Reference.
	Blobs Which
	// Keep is how many complete backups the target keeps; older ones are deleted when this one
	// is complete, and incomplete ones that are older than a day before it begins. 0: all.
	Keep   int
	Purser string // the version of this program
	// Deep reads the copies of objects that the target has, compares them with their digests, and
	// copies those again that are damaged.
	Deep bool
	// NewPlace allows a target that doesn't have the backups which the database knows there, because
	// they are lost.
	NewPlace bool
	// Parallel is how many objects are copied at the same time. Default 4.
	Parallel int
	// Progress is called after each step, from one goroutine at a time. May be nil.
	Progress func(Progress)
	Log      *slog.Logger // default slog.Default()

	// statsStay leaves the statistics out: they are in another database, and stay there.
	statsStay bool

	// paused is called while the sweepers are paused and the snapshot is taken; copied after
	// each object. They are for tests.
	paused func()
	copied func(key string)
}

// Progress says how far a backup, a restore or a verification is.
type Progress struct {
	Step    string // what it does, such as "writing the database"
	Rows    int64
	Objects int64 // of Total that were looked at
	Total   int64
	Bytes   int64 // written or read
}

// Result is the result of a backup.
type Result struct {
	*Manifest
	Pruned Pruned
}

// Run writes a backup. It returns gc.ErrPausing if another backup of the registry runs, and ErrNotThere
// if the target isn't what the database knows, unless NewPlace is set.
func Run(ctx context.Context, o Options) (Result, error) {
	o.Stats = cmp.Or(o.Stats, o.Main)
	o.Blobs = cmp.Or(o.Blobs, Reference)
	o.Parallel = cmp.Or(o.Parallel, 4)
	o.Log = cmp.Or(o.Log, slog.Default())
	if o.Main == "" || o.Target == nil || o.Store == nil || o.Identity == "" {
		return Result{}, errors.New("backup: a database, a target, and a blob store with its identity are required")
	}
	b := &run{Options: o, told: newTeller(o.Progress)}
	return b.run(ctx)
}

// run is one backup.
type run struct {
	Options
	told *teller
	m    *Manifest
	// damaged counts the damaged copies in the target for which the store has no whole object.
	damaged int64
}

func (b *run) run(ctx context.Context) (Result, error) {
	conn, done, err := db.Connect(ctx, b.Main)
	if err != nil {
		return Result{}, err
	}
	defer done()
	if err := gc.PauseSweeps(ctx, conn); err != nil {
		return Result{}, err
	}
	defer gc.ResumeSweeps(ctx, conn)
	if err := b.requirePlace(ctx, conn); err != nil {
		return Result{}, err
	}
	if err := prepareTarget(ctx, b.Target, b.Identity); err != nil {
		return Result{}, err
	}
	killed := b.removeKilled(ctx)
	b.m = &Manifest{Format: format, Purser: b.Purser, Began: time.Now().UTC(), Store: b.Identity, Place: b.Place, Schema: db.Newest()}
	b.m.ID = b.m.Began.Format(idLayout)
	if err := b.write(ctx, conn); err != nil {
		b.drop(ctx)
		return Result{}, err
	}
	b.m.Finished = time.Now().UTC()
	// The manifest may be there although an error says that it isn't, so the other files stay then.
	if err := b.m.write(ctx, b.Target); err != nil {
		return Result{}, fmt.Errorf("writing the manifest: %w", err)
	}
	out := Result{Manifest: b.m}
	if b.Keep > 0 {
		b.told.step("deleting old backups")
		out.Pruned, err = prune(ctx, b.Target, b.Keep, b.m.ID)
		out.Pruned.Backups += killed
		if err != nil {
			return out, fmt.Errorf("the backup %s is complete, but deleting older ones failed: %w", b.m.ID, err)
		}
	}
	return out, nil
}

// write writes everything but the manifest.
func (b *run) write(ctx context.Context, conn *pgx.Conn) error {
	if err := putBytes(ctx, b.Target, b.m.dir()+"begun", []byte(b.Purser+"\n")); err != nil {
		return err
	}
	if err := b.database(ctx, conn); err != nil {
		return err
	}
	return b.objects(ctx, conn)
}

// requirePlace verifies that the target is the place that the database knows. NewPlace is refused where
// it isn't needed, so that nobody sets it always.
func (b *run) requirePlace(ctx context.Context, conn *pgx.Conn) error {
	id, err := Recorded(ctx, conn, b.Target.Place())
	if err != nil || id == "" {
		return err
	}
	err = RequireThere(ctx, b.Target, id)
	switch {
	case b.NewPlace && err == nil:
		return fmt.Errorf("%s has the backups that the registry's database knows there: leave --new-place out", b.Target.Place())
	case b.NewPlace && errors.Is(err, ErrNotThere):
		return nil
	}
	return err
}

// database writes the database's part of the backup.
func (b *run) database(ctx context.Context, conn *pgx.Conn) error {
	b.told.step("writing the database")
	if err := db.LockSchema(ctx, conn); err != nil {
		return err
	}
	if err := requireSchema(ctx, conn, db.Newest().Main, db.Current); err != nil {
		return err
	}
	d := dumper{t: b.Target, dir: b.m.dir(), told: b.told.rows}
	stats, done, err := b.otherStats(ctx, conn)
	if err != nil {
		return err
	}
	defer done()
	if stats != nil {
		if b.m.Stats, err = b.dump(ctx, d, stats, "stats", isStats, nil); err != nil {
			return fmt.Errorf("the statistics' database: %w", err)
		}
	}
	b.m.Main, err = b.dump(ctx, d, conn, "main", isMain, func(tx pgx.Tx, s *source) error {
		if b.paused != nil {
			b.paused()
		}
		if b.m.Snapshot, err = takenAt(ctx, tx); err != nil {
			return err
		}
		if err := b.listObjects(ctx, tx); err != nil {
			return err
		}
		if stats == nil && !b.statsStay {
			b.m.Stats, err = d.part(ctx, tx, s, "stats", isStats)
		}
		return err
	})
	if err != nil {
		return err
	}
	return db.UnlockSchema(ctx, conn)
}

// otherStats returns a connection to the statistics' database if that isn't the database of
// conn, whose sweepers are paused.
func (b *run) otherStats(ctx context.Context, conn *pgx.Conn) (*pgx.Conn, func(), error) {
	if b.statsStay {
		return nil, func() {}, nil
	}
	if b.Stats == b.Main {
		return nil, func() {}, requireSchema(ctx, conn, db.Newest().Stats, db.CurrentStats)
	}
	stats, done, err := db.Connect(ctx, b.Stats)
	if err != nil {
		return nil, nil, fmt.Errorf("the statistics' database: %w", err)
	}
	same, err := gc.SweepsPausedIn(ctx, stats)
	if err == nil {
		err = requireSchema(ctx, stats, db.Newest().Stats, db.CurrentStats)
	}
	if err != nil || same {
		done()
		return nil, func() {}, err
	}
	if err := db.LockSchema(ctx, stats); err != nil {
		done()
		return nil, nil, err
	}
	return stats, done, nil
}

// requireSchema returns an error unless the database has the schema of this program's version.
func requireSchema(ctx context.Context, conn *pgx.Conn, want int64, current func(context.Context, *pgx.Conn) (int64, error)) error {
	is, err := current(ctx, conn)
	switch {
	case err != nil:
		return err
	case is < want:
		return fmt.Errorf(`the database's schema has version %d, and this program needs version %d: run "purser migrate up"`, is, want)
	case is > want:
		return fmt.Errorf("schema %d, known %d: %w", is, want, db.ErrNewerSchema)
	}
	return nil
}

// dump dumps a part in a transaction of its own. It calls `first`, if it isn't nil, in the same
// transaction before.
func (b *run) dump(ctx context.Context, d dumper, conn *pgx.Conn, name string, has func(string) bool, first func(pgx.Tx, *source) error) (p Part, err error) {
	s, err := readSource(ctx, conn)
	if err != nil {
		return p, err
	}
	tx, err := s.begin(ctx)
	if err != nil {
		return p, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, tx.Rollback(context.WithoutCancel(ctx)))
		}
	}()
	if first != nil {
		if err := first(tx, s); err != nil {
			return p, err
		}
	}
	if p, err = d.part(ctx, tx, s, name, has); err != nil {
		return p, err
	}
	if err := tx.Commit(ctx); err != nil {
		return p, fmt.Errorf("ending the snapshot: %w", err)
	}
	return p, nil
}

// listObjects writes the lists of the snapshot's objects.
func (b *run) listObjects(ctx context.Context, tx pgx.Tx) (err error) {
	if b.m.Blobs, err = b.list(ctx, tx, "objects", "lost_at IS NULL"); err != nil {
		return err
	}
	lost, err := b.list(ctx, tx, "lost", "lost_at IS NOT NULL")
	if lost.Count > 0 {
		b.m.Lost, b.m.Format = lost, formatLost
	}
	return err
}

// list writes a list of the objects of those blobs for which an SQL condition holds.
func (b *run) list(ctx context.Context, tx pgx.Tx, name, condition string) (Objects, error) {
	w := newChunkWriter(ctx, b.Target, b.m.dir(), name, func(_, bytes int64) { b.told.rows(0, bytes) })
	sum := &sumWriter{w: w}
	_, err := tx.Conn().PgConn().CopyTo(ctx, sum, `COPY (
		SELECT storage_key, size, encode(digest, 'hex') FROM blobs WHERE `+condition+` ORDER BY storage_key COLLATE "C", digest) TO STDOUT`)
	if err == nil {
		err = w.flush()
	}
	if err != nil {
		return Objects{}, fmt.Errorf("listing the objects: %w", err)
	}
	return Objects{Which: b.Blobs, Count: w.lines, Bytes: sum.bytes, Files: w.files}, nil
}

// sumWriter adds up the sizes in the lines of a list of objects. PostgreSQL sends whole lines.
type sumWriter struct {
	w     *chunkWriter
	bytes int64
}

func (s *sumWriter) Write(p []byte) (int, error) {
	for line := range bytes.Lines(p) {
		o, err := parseObject(string(bytes.TrimSuffix(line, []byte{'\n'})))
		if err != nil {
			return 0, err
		}
		s.bytes += o.size
	}
	return s.w.Write(p)
}
