package backup

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/gc"
)

// MoveBlobsOptions says from which blob store to which the objects go.
type MoveBlobsOptions struct {
	Main string // DSN of the metadata; required
	// From is the registry's blob store, Identity its identity, and FromPlace says where it is.
	// Required.
	From      blob.Store
	FromPlace string
	Identity  string
	// To is the new store, which must be empty at first, and ToPlace says where it is. To
	// implements blob.Putter. Required.
	To      blob.Store
	ToPlace string
	// Finish makes the new store the registry's. No server may run.
	Finish   bool
	Parallel int            // objects that are copied at the same time; default 4
	Progress func(Progress) // may be nil
	Log      *slog.Logger   // default slog.Default()

	// reached, if it isn't nil, is called at two steps of the last pass. It is for tests.
	reached func(step string)
}

// MovedBlobs says what a pass has done.
type MovedBlobs struct {
	Objects     int64         `json:"objects"`
	Bytes       int64         `json:"bytes"`
	Copied      int64         `json:"copied"` // of Objects, in this pass
	CopiedBytes int64         `json:"copied_bytes"`
	Missing     int64         `json:"missing"` // objects that the old store lacks or that are damaged
	Finished    bool          `json:"finished"`
	Took        time.Duration `json:"-"`
}

// ErrRunning says that a server of the registry is running, or was until some seconds ago.
var ErrRunning = errors.New("a server of this registry is running: stop all of them, and try again after a minute")

// movingSetting is the name of the row in the table settings with the place of the store to
// which the objects are being moved.
const movingSetting = "moving_blobs"

// MoveBlobs copies the objects of all blobs to another store, except those that it has already.
// An object never changes under its key, so the registry may serve during all passes but the
// last one, which Finish asks for and which has to copy only what came since the pass before.
//
// The last pass runs while no server runs. It then gives the new store the registry's identity,
// and after that gives the old store another one, so that a server with the old configuration
// refuses to start. If it is interrupted in between, both stores have all objects and the same
// identity, and the pass can be run again. Rows of unfinished uploads are deleted, since their
// bytes stay behind; pending deletions stay, and are done in the new store.
func MoveBlobs(ctx context.Context, o MoveBlobsOptions) (MovedBlobs, error) {
	began := time.Now()
	o.Parallel = cmp.Or(o.Parallel, 4)
	o.Log = cmp.Or(o.Log, slog.Default())
	put, ok := o.To.(blob.Putter)
	if !ok || o.Main == "" || o.From == nil || o.Identity == "" {
		return MovedBlobs{}, errors.New("moving blobs: a database, a blob store with its identity and another store are required")
	}
	m := &blobMove{MoveBlobsOptions: o, put: put, told: newTeller(o.Progress)}
	err := m.run(ctx)
	m.out.Took = time.Since(began)
	return m.out, err
}

type blobMove struct {
	MoveBlobsOptions
	put  blob.Putter
	told *teller
	mu   sync.Mutex
	out  MovedBlobs
	// servers is what the table of servers had when the last pass began: see recordOfServers.
	servers string
}

func (m *blobMove) run(ctx context.Context) (err error) {
	conn, done, err := db.Connect(ctx, m.Main)
	if err != nil {
		return err
	}
	defer done()
	if err := gc.PauseSweeps(ctx, conn); err != nil { // one pass at a time, and no backup beside it
		return err
	}
	defer gc.ResumeSweeps(ctx, conn)
	if m.Finish {
		if m.servers, err = recordOfServers(ctx, conn); err != nil {
			return err
		}
		if err := requireStopped(ctx, conn); err != nil {
			return err
		}
	}
	if err := m.claim(ctx, conn); err != nil {
		return err
	}
	list, err := m.list(ctx, conn)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, list.Close(), os.Remove(list.Name())) }()
	if err := m.copyAll(ctx, list); err != nil || !m.Finish {
		return err
	}
	m.reach("copied")
	return m.finish(ctx, conn)
}

// requireStopped returns ErrRunning if a server runs.
func requireStopped(ctx context.Context, q db.Querier) error {
	var running bool
	err := q.QueryRow(ctx, "SELECT EXISTS (SELECT FROM running_servers)").Scan(&running)
	if err != nil {
		return fmt.Errorf("looking for running servers: %w", err)
	}
	if running {
		return ErrRunning
	}
	return nil
}

// claim verifies that the new store is empty, and notes that the blobs are moving there; or that
// an earlier pass has noted it.
func (m *blobMove) claim(ctx context.Context, conn *pgx.Conn) error {
	var noted string
	err := conn.QueryRow(ctx, "SELECT COALESCE((SELECT value FROM settings WHERE name = $1), '')", movingSetting).Scan(&noted)
	if err != nil {
		return fmt.Errorf("looking for an earlier move: %w", err)
	}
	there, err := m.To.Identity(ctx)
	if err != nil {
		return err
	}
	switch {
	case there == m.Identity && noted == m.ToPlace:
		return nil // interrupted at the end
	case there != "":
		return fmt.Errorf("the blob store at %s belongs to a registry (identity %s): %w; name a new directory, bucket or prefix", m.ToPlace, there, ErrNotEmpty)
	case noted == m.ToPlace:
		return nil
	}
	for o, err := range m.To.List(ctx, "") {
		if err != nil {
			return err
		}
		return fmt.Errorf("the blob store at %s has objects, such as %s: %w; name a new directory, bucket or prefix", m.ToPlace, o.Key, ErrNotEmpty)
	}
	_, err = conn.Exec(ctx, `
		INSERT INTO settings (name, value) VALUES ($1, $2)
		ON CONFLICT (name) DO UPDATE SET value = EXCLUDED.value`, movingSetting, m.ToPlace)
	if err != nil {
		return fmt.Errorf("noting that blobs are moving: %w", err)
	}
	return nil
}

// list writes the list of objects to a temporary file, so that no snapshot is held while they
// are copied.
func (m *blobMove) list(ctx context.Context, conn *pgx.Conn) (*os.File, error) {
	m.told.step("listing blobs")
	f, err := os.CreateTemp("", "purser-blobs-*")
	if err != nil {
		return nil, err
	}
	tag, err := conn.PgConn().CopyTo(ctx, f, `COPY (
		SELECT storage_key, size, encode(digest, 'hex') FROM blobs WHERE lost_at IS NULL ORDER BY storage_key COLLATE "C", digest) TO STDOUT`)
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listing blobs: %w", err), f.Close(), os.Remove(f.Name()))
	}
	m.told.step("copying blobs")
	m.told.total(tag.RowsAffected())
	return f, nil
}

// copyAll copies the listed objects that the new store doesn't have. The list and the store's
// own list are sorted alike.
func (m *blobMove) copyAll(ctx context.Context, list io.Reader) error {
	next, stop := iter.Pull2(m.To.List(ctx, ""))
	defer stop()
	group, copying := errgroup.WithContext(ctx)
	group.SetLimit(m.Parallel)
	there, err, some := next()
	lines := bufio.NewScanner(list)
	for copying.Err() == nil && lines.Scan() {
		o, parseErr := parseObject(lines.Text())
		if parseErr != nil {
			return errors.Join(parseErr, group.Wait())
		}
		for some && err == nil && there.Key < o.key {
			there, err, some = next()
		}
		if err != nil {
			return errors.Join(err, group.Wait())
		}
		m.told.object(0)
		m.out.Objects++
		m.out.Bytes += o.size
		if some && there.Key == o.key && there.Size == o.size {
			continue
		}
		group.Go(func() error { return m.copyOne(copying, o) })
	}
	return errors.Join(lines.Err(), group.Wait(), ctx.Err())
}

func (m *blobMove) copyOne(ctx context.Context, o object) error {
	if strings.Contains(o.key, "/") { // List leaves out such a foreign object
		if wrong, err := blob.Look(ctx, m.To, o.key, o.size); err != nil || wrong == "" {
			return err
		}
	}
	r, err := m.From.Open(ctx, o.key, 0, -1)
	if err == nil {
		err = errors.Join(m.put.Put(ctx, o.key, o.size, newVerifier(o, r)), r.Close())
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case (errors.Is(err, blob.ErrNotFound) || errors.Is(err, errUnusable)) && ctx.Err() == nil:
		m.Log.WarnContext(ctx, "an object can't be moved", "key", o.key, "error", err)
		m.out.Missing++
		return nil
	case err != nil:
		return err
	}
	m.out.Copied++
	m.out.CopiedBytes += o.size
	m.told.change(func(p *Progress) { p.Bytes += o.size })
	return nil
}

// finish makes the new store the registry's. Meanwhile it locks the table of servers: a server that
// starts on the old store has written its row before, and is found, or waits for this lock with the
// row, and then looks at the store's identity once more before it serves.
func (m *blobMove) finish(ctx context.Context, conn *pgx.Conn) error {
	other, done, err := db.Connect(ctx, m.Main)
	if err != nil {
		return err
	}
	defer done()
	return pgx.BeginFunc(ctx, other, func(locked pgx.Tx) error {
		if _, err := locked.Exec(ctx, "LOCK TABLE servers IN SHARE MODE"); err != nil {
			return fmt.Errorf("keeping servers from starting: %w", err)
		}
		if err := requireStopped(ctx, locked); err != nil { // again, since the pass may have taken long
			return err
		}
		now, err := recordOfServers(ctx, locked)
		if err != nil {
			return err
		}
		if now != m.servers {
			return errRan
		}
		m.reach("locked")
		return m.handOver(ctx, conn)
	})
}

// recordOfServers returns a text that differs from an earlier one if a server ran in between, whatever
// the database's clock showed: each server has a row with an id of its own.
func recordOfServers(ctx context.Context, q db.Querier) (text string, err error) {
	err = q.QueryRow(ctx, "SELECT COALESCE(string_agg(replica || ' ' || seen_at || ' ' || stopped, ',' ORDER BY replica), '') FROM servers").Scan(&text)
	if err != nil {
		return "", fmt.Errorf("looking for servers that ran meanwhile: %w", err)
	}
	return text, nil
}

// errRan says that the objects of the last pass may not be all.
var errRan = errors.New("a server of this registry ran while the objects were copied, so there may be more by now: run this again")

func (m *blobMove) reach(step string) {
	if m.reached != nil {
		m.reached(step)
	}
}

// handOver gives the registry's identity to the new store, and another one to the old store.
func (m *blobMove) handOver(ctx context.Context, conn *pgx.Conn) error {
	if err := stillPaused(ctx, conn); err != nil {
		return err
	}
	if err := m.To.SetIdentity(ctx, m.Identity, false); err != nil {
		return err
	}
	there, err := m.To.Identity(ctx)
	if err != nil {
		return err
	}
	if there != m.Identity {
		return fmt.Errorf("%w: another process has given the store at %s the identity %s meanwhile", blob.ErrWrongStore, m.ToPlace, there)
	}
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "DELETE FROM uploads"); err != nil {
			return fmt.Errorf("deleting unfinished uploads: %w", err)
		}
		if _, err := tx.Exec(ctx, "UPDATE store_identity SET place = $1", m.ToPlace); err != nil {
			return fmt.Errorf("storing where the blob store is: %w", err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := m.From.SetIdentity(ctx, uuid.NewString(), true); err != nil {
		return fmt.Errorf("taking the registry's identity from the old store at %s: %w", m.FromPlace, err)
	}
	if _, err := conn.Exec(ctx, "DELETE FROM settings WHERE name = $1", movingSetting); err != nil {
		return fmt.Errorf("noting that blobs have moved: %w", err)
	}
	m.out.Finished = true
	return nil
}
