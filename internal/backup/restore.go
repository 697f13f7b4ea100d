package backup

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/gc"
	"github.com/purser-registry/purser/internal/pullstats"
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
	// the backup's identity. Without it the backup must have copies of the objects, and the
	// store must be empty.
	Keep bool
	// NewIdentity gives database and store a new identity, for a registry beside the one that
	// was backed up. It isn't possible with Keep.
	NewIdentity bool
	// Partitions is as in db.MigrateOptions.
	Partitions int
	Parallel   int            // objects that are copied at the same time; default 4
	Progress   func(Progress) // may be nil
	Log        *slog.Logger   // default slog.Default()

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
	// Missing counts the objects that the backup hasn't, so that they couldn't be restored.
	Missing int64 `json:"missing"`
	// Uncounted is the number of pulls in the audit log that the statistics will count.
	Uncounted int64 `json:"uncounted_pulls"`
}

// ErrNotEmpty says that a database or blob store has something, so that nothing can be restored
// into it.
var ErrNotEmpty = errors.New("it is not empty")

// note is what a restore stores at its beginning in the database: see db.MarkRestoring.
type note struct {
	Backup   string `json:"backup"`
	Identity string `json:"store"`
	Loaded   bool   `json:"loaded"` // the rows are there
}

func (n note) String() string {
	b, err := json.Marshal(n)
	if err != nil {
		panic(err) // can't happen: it has strings and a bool
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
	r.out = Restored{ID: r.m.ID, Rows: r.m.Rows(), Missing: r.m.Blobs.Missing}
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
	out   Restored
}

// check looks at the options alone.
func (r *restore) check() error {
	switch known := db.Newest(); {
	case r.m.Schema.History == "":
		return fmt.Errorf("backup %s can't be restored: %w", r.m.ID, db.ErrDevelopment)
	case r.m.Schema.Main > known.Main || r.m.Schema.Stats > known.Stats:
		return fmt.Errorf("backup %s was made by Purser %s, whose schema is newer: %w", r.m.ID, r.m.Purser, db.ErrNewerSchema)
	case r.Keep && r.NewIdentity:
		return errors.New("a store that has the registry's objects already keeps its identity")
	case !r.Keep && r.m.Blobs.Which != Copy:
		return fmt.Errorf("backup %s has no copies of the blobs, only their names: they are taken from the registry's blob store, if it is asked to keep what it has", r.m.ID)
	}
	return nil
}

func (r *restore) run(ctx context.Context) error {
	if err := verifyFiles(ctx, r.Target, r.m, r.told); err != nil {
		return err
	}
	if err := r.complete(ctx); err != nil {
		return err
	}
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

// complete verifies that the target has the objects that it is to have.
func (r *restore) complete(ctx context.Context) error {
	if r.Keep {
		return nil
	}
	r.told.step("looking for blobs in the backup")
	n, err := absent(ctx, r.Target, r.m, nil)
	if err == nil && n > r.m.Blobs.Missing {
		err = fmt.Errorf("%w: %s has %d objects fewer than when backup %s was made", ErrDamaged, r.Target.Place(), n-r.m.Blobs.Missing, r.m.ID)
	}
	return err
}

// connect opens the connections, and takes the lock that lets one restore run.
func (r *restore) connect(ctx context.Context) (func(), error) {
	conn, done, err := db.Connect(ctx, r.Main)
	if err != nil {
		return nil, err
	}
	r.conn, r.stats = conn, conn
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
// same backup. It creates the tables, and stores in the database that the restore has begun.
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
		// The rows of an interrupted transfer may be older than the source is now.
		r.note = note{Backup: r.m.ID, Identity: r.m.Store}
		if err := db.MarkRestoring(ctx, r.conn, r.note.String()); err != nil {
			return err
		}
	} else if err := json.Unmarshal([]byte(old), &r.note); err != nil || r.note.Backup != r.m.ID {
		return fmt.Errorf("a restore of backup %s into this database was interrupted: go on with that one, or use another, empty database", r.note.Backup)
	}
	r.out.Identity = r.note.Identity
	there, err := r.Store.Identity(ctx)
	if err != nil {
		return err
	}
	if there != r.note.Identity && (there != "" || r.Keep) {
		return fmt.Errorf("the blob store at %s has the identity %s, and not %s: it isn't the one into which the restore began, or the backup's",
			r.Place, cmp.Or(there, "(none)"), r.note.Identity)
	}
	return nil
}

// first is the beginning of a restore that wasn't begun before.
func (r *restore) first(ctx context.Context) error {
	if err := r.requireEmptyDatabase(ctx); err != nil {
		return err
	}
	if err := r.requireStore(ctx); err != nil {
		return err
	}
	r.told.step("creating the tables")
	if err := db.MigrateTo(ctx, r.Main, r.m.Schema.Main, db.MigrateOptions{Partitions: r.Partitions}); err != nil {
		return err
	}
	r.note = note{Backup: r.m.ID, Identity: r.m.Store}
	if r.NewIdentity {
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
	if !r.statsStay {
		if err := db.MigrateStatsTo(ctx, r.Stats, r.m.Schema.Stats); err != nil {
			return err
		}
	}
	l := loader{t: r.Target, dir: r.m.dir(), told: r.told, again: r.transfer}
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

// objects copies the objects into the store, except those that it has from an earlier attempt.
func (r *restore) objects(ctx context.Context) error {
	to, ok := r.Store.(blob.Putter)
	if !ok {
		return errors.New("the blob store can't take objects under their keys")
	}
	r.told.step("copying blobs")
	r.told.total(r.m.Blobs.Count)
	list := openObjects(ctx, r.Target, r.m)
	defer list.r.Close()
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(r.Parallel)
	for ctx.Err() == nil {
		some, err := list.group()
		if err != nil || len(some) == 0 {
			return errors.Join(err, group.Wait())
		}
		for _, o := range some {
			group.Go(func() error {
				copied, err := r.object(ctx, to, o)
				r.told.change(func(p *Progress) {
					if p.Objects++; copied {
						p.Bytes += o.size
						r.out.Objects++
					}
				})
				return err
			})
		}
	}
	return errors.Join(group.Wait(), ctx.Err())
}

func (r *restore) object(ctx context.Context, to blob.Putter, o object) (copied bool, err error) {
	if err := r.reached("object"); err != nil {
		return false, err
	}
	if wrong, err := blob.Look(ctx, r.Store, o.key, o.size); err != nil || wrong == "" {
		return false, err
	}
	from, err := r.Target.Open(ctx, o.file())
	if errors.Is(err, blob.ErrNotFound) && r.m.Blobs.Missing > 0 {
		return false, nil // complete has compared the number
	}
	if err != nil {
		return false, err
	}
	defer from.Close()
	if err := to.Put(ctx, o.key, o.size, newVerifier(o, from)); err != nil {
		if errors.Is(err, errUnusable) {
			err = fmt.Errorf("%w: object %s: %w", ErrDamaged, o.key, err)
		}
		return false, err
	}
	return true, nil
}

// identify gives the store its identity.
func (r *restore) identify(ctx context.Context) error {
	if err := r.Store.SetIdentity(ctx, r.note.Identity, false); err != nil {
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
	if _, err := db.MigrateStats(ctx, r.Stats); err != nil {
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
// was used meanwhile. (After a transfer there are no such pulls.) It returns the number of pulls
// that are still to be counted.
func beginAnew(ctx context.Context, main, stats *db.DB, transfer bool, log *slog.Logger) (uncounted int64, err error) {
	w, err := pullstats.NewSyncWorker(pullstats.SyncOptions{
		Databases: pullstats.Databases{Log: main, Stats: stats, Alive: catalog.LivingNamespaces}, Logger: log,
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
	if err := pullstats.Unrecorded(ctx, stats, 0); err != nil {
		return 0, err
	}
	if err := pullstats.Unchecked(ctx, stats, 0); err != nil {
		return 0, err
	}
	return uncounted, webhook.BeginAnew(ctx, main)
}

// loader loads parts of a backup.
type loader struct {
	t    Target
	dir  string
	told *teller
	// again says that the rows of an earlier attempt are to be replaced.
	again bool
}

// load replaces the rows of all tables of the parts, and calls `last`, in one transaction.
func (l loader) load(ctx context.Context, conn *pgx.Conn, parts []Part, last func(tx pgx.Tx) error) error {
	if _, err := conn.Exec(ctx, sessionSettings); err != nil {
		return fmt.Errorf("setting up the session: %w", err)
	}
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		triggers, err := disableTriggers(ctx, tx)
		if err != nil {
			return err
		}
		if err := empty(ctx, tx, parts, l.again); err != nil {
			return err
		}
		if err := skipForeignKeys(ctx, tx, true); err != nil {
			return err
		}
		for _, p := range parts {
			if err := l.part(ctx, tx, p); err != nil {
				return err
			}
		}
		if err := skipForeignKeys(ctx, tx, false); err != nil {
			return err
		}
		if last != nil {
			if err := last(tx); err != nil {
				return err
			}
		}
		// Deferred foreign keys are checked now, since a table can't be altered before.
		if _, err := tx.Exec(ctx, "SET CONSTRAINTS ALL IMMEDIATE"); err != nil {
			return fmt.Errorf("checking foreign keys: %w", err)
		}
		return enableTriggers(ctx, tx, triggers)
	})
}

// skipForeignKeys lets the transaction insert rows without checking foreign keys, if the role may
// do that, as a superuser may. The checks would take most of the time of a load, and the rows
// satisfied them in the snapshot from which they come. Where the role may not, PostgreSQL
// checks each row.
func skipForeignKeys(ctx context.Context, tx pgx.Tx, skip bool) error {
	role := "origin"
	if skip {
		role = "replica"
	}
	_, err := tx.Exec(ctx, `
		SELECT set_config('session_replication_role', $1, true)
		WHERE has_parameter_privilege('session_replication_role', 'SET')`, role)
	if err != nil {
		return fmt.Errorf("skipping the checks of foreign keys: %w", err)
	}
	return nil
}

// disableTriggers disables the triggers that an earlier migration has installed, since the rows
// that they would write are in the backup too. It returns the tables that have any. It locks
// them, so that no server writes into them meanwhile.
func disableTriggers(ctx context.Context, tx pgx.Tx) ([]string, error) {
	rows, err := tx.Query(ctx, `
		SELECT DISTINCT format('%I.%I', n.nspname, c.relname) FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
		JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE NOT t.tgisinternal AND t.tgenabled = 'O' AND c.relkind IN ('r', 'p') AND n.nspname IN (current_schema(), 'partitions')
		ORDER BY 1`)
	if err != nil {
		return nil, fmt.Errorf("listing triggers: %w", err)
	}
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("listing triggers: %w", err)
	}
	for _, table := range tables {
		if _, err := tx.Exec(ctx, "ALTER TABLE ONLY "+table+" DISABLE TRIGGER USER"); err != nil {
			return nil, fmt.Errorf("disabling triggers: %w", err)
		}
	}
	return tables, nil
}

func enableTriggers(ctx context.Context, tx pgx.Tx, tables []string) error {
	for _, table := range tables {
		if _, err := tx.Exec(ctx, "ALTER TABLE ONLY "+table+" ENABLE TRIGGER USER"); err != nil {
			return fmt.Errorf("enabling triggers: %w", err)
		}
	}
	return nil
}

// empty deletes the rows that migrations have inserted, except those that describe the
// database itself. Unless `again` is set, it refuses tables with content: a server may have been
// started meanwhile.
func empty(ctx context.Context, tx pgx.Tx, parts []Part, again bool) error {
	var names []string
	settings := false
	for _, p := range parts {
		for _, t := range p.Tables {
			if t.Name == settingsTable {
				settings = true
				continue
			}
			names = append(names, pgx.Identifier{t.Name}.Sanitize())
		}
	}
	if _, err := tx.Exec(ctx, "LOCK TABLE "+strings.Join(names, ", ")+" IN ACCESS EXCLUSIVE MODE"); err != nil {
		return fmt.Errorf("locking the tables: %w", err)
	}
	if settings { // the metadata decides; the statistics may be loaded from an earlier attempt
		for _, table := range contentTables {
			some, err := hasRows(ctx, tx, table)
			if err != nil {
				return err
			}
			if some && !isStats(table) && !again {
				return fmt.Errorf("table %s has got rows since the restore began, so a server is running: %w", table, ErrNotEmpty)
			}
		}
		if _, err := tx.Exec(ctx, "DELETE FROM settings WHERE name NOT IN ('history', 'partitions')"); err != nil {
			return fmt.Errorf("deleting the defaults of settings: %w", err)
		}
	}
	if _, err := tx.Exec(ctx, "TRUNCATE "+strings.Join(names, ", ")); err != nil {
		return fmt.Errorf("deleting the rows of migrations: %w", err)
	}
	return nil
}

func (l loader) part(ctx context.Context, tx pgx.Tx, p Part) error {
	for _, t := range p.Partitions {
		if err := makePartition(ctx, tx, t); err != nil {
			return err
		}
	}
	for _, t := range p.Tables {
		if err := l.table(ctx, tx, t); err != nil {
			return fmt.Errorf("loading table %s: %w", t.Name, err)
		}
	}
	for _, s := range p.Sequences {
		quoted := pgx.Identifier{s.Name}.Sanitize()
		if _, err := tx.Exec(ctx, "SELECT setval($1::regclass, $2, $3)", quoted, s.Value, s.Called); err != nil {
			return fmt.Errorf("setting sequence %s: %w", s.Name, err)
		}
	}
	return nil
}

// makePartition creates a partition that the migrations haven't created.
func makePartition(ctx context.Context, tx pgx.Tx, p Partition) error {
	name, parent := pgx.Identifier{p.Name}.Sanitize(), pgx.Identifier{p.Parent}.Sanitize()
	if p.Schema != "" {
		name = pgx.Identifier{p.Schema, p.Name}.Sanitize()
	}
	bound := p.Bound
	for _, sql := range []string{
		"CREATE TABLE IF NOT EXISTS " + name + " PARTITION OF " + parent + " " + bound,
		"REVOKE ALL ON " + name + " FROM PUBLIC",
	} {
		if _, err := tx.Exec(ctx, sql); err != nil {
			return fmt.Errorf("creating partition %s: %w", p.Name, err)
		}
	}
	return nil
}

func (l loader) table(ctx context.Context, tx pgx.Tx, t Table) error {
	r := newChunkReader(ctx, l.t, l.dir, t.Files)
	defer r.Close()
	list, name := columns(t), pgx.Identifier{t.Name}.Sanitize()
	tag, err := tx.Conn().PgConn().CopyFrom(ctx, tellingReader{r, l.told}, "COPY "+name+" ("+list+") FROM STDIN")
	if err != nil {
		return err
	}
	if tag.RowsAffected() != t.Rows {
		return fmt.Errorf("%w: table %s has %d rows instead of %d", ErrDamaged, t.Name, tag.RowsAffected(), t.Rows)
	}
	return nil
}

// tellingReader tells how many lines were read.
type tellingReader struct {
	r    io.Reader
	told *teller
}

func (t tellingReader) Read(p []byte) (int, error) {
	n, err := t.r.Read(p)
	t.told.rows(int64(bytes.Count(p[:n], []byte{'\n'})), int64(n))
	return n, err
}
