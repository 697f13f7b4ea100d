package catalog

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/purser-registry/purser/internal/worker"
)

const (
	beatEvery = 250 * time.Millisecond
	// If a process hasn't renewed its row in the table replicas for replicaForgotten, the
	// other processes delete the row, and the process is no longer notified of changes.
	// replicaForgotten must be well above heartbeatMaxAge, so that the process has stopped
	// using its caches long before. When it runs again, it registers anew.
	replicaForgotten = time.Minute
	seenEvery        = 10 * time.Second
	// While this process sends heartbeats, it renews its row in replicas every seenEvery;
	// while it sends none, every restSeenEvery.
	restSeenEvery = 20 * time.Second
)

// Listen enables the caches until ctx ends. It registers this process in the table replicas,
// receives other processes' changes by NOTIFY, and sends itself heartbeats by NOTIFY.
// Notifications arrive in the order of their commits. So when a heartbeat is back, this
// process has received every change that committed before the heartbeat was sent. A request
// may use the caches if it begins less than a second after such a heartbeat was sent. When the
// connection is lost, Listen disables the caches, and empties them before it enables them
// again.
//
// The triggers that send notifications read the table replicas, and send one only if a process
// other than the changing one is registered there. A transaction whose trigger read replicas
// before this process was registered sends no notification. So Listen waits for the end of all
// such transactions before it enables the caches.
func (c *Catalog) Listen(ctx context.Context) error {
	if c.opt.CacheOff {
		<-ctx.Done()
		return nil
	}
	pause := beatEvery
	for {
		began := time.Now()
		err := c.listenOnce(ctx)
		c.cache.disable()
		c.interruptions.Add(1)
		if ctx.Err() != nil {
			return c.unregister(context.WithoutCancel(ctx))
		}
		c.log.WarnContext(ctx, "answers aren't cached: the connection that reports other processes' changes is interrupted", "error", err)
		if time.Since(began) > time.Minute {
			pause = beatEvery
		}
		_ = worker.Sleep(ctx, pause)
		pause = min(2*pause, 5*time.Second)
	}
}

// Interruptions returns how often the connection to the database was interrupted on which Listen hears
// of changes. After an interruption the database may be another server, a standby that was promoted,
// which lacks the last transactions. Rows that this process remembers may not exist there.
func (c *Catalog) Interruptions() uint64 { return c.interruptions.Load() }

func (c *Catalog) unregister(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	// Without this deletion, the other processes would needlessly send notifications for this
	// process for up to a minute (replicaForgotten).
	if _, err := c.db.Pool.Exec(ctx, "DELETE FROM replicas WHERE id = $1", c.opt.Replica); err != nil {
		c.log.WarnContext(ctx, "leaving the list of replicas failed", "error", err)
	}
	return nil
}

// channel returns the NOTIFY channel of this process's own heartbeats.
func (c *Catalog) channel() string {
	return "purser_beat_" + strings.ReplaceAll(c.opt.Replica.String(), "-", "")
}

func (c *Catalog) listenOnce(ctx context.Context) error {
	conn, err := c.dial(ctx, "purser listener")
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // the connection isn't used again
	// Heartbeats have a connection of their own, because all connections of the pool may be in
	// use, and that is when requests need the caches most.
	heart, err := c.dial(ctx, "purser heartbeat")
	if err != nil {
		return err
	}
	defer heart.Close(context.WithoutCancel(ctx)) //nolint:errcheck // the connection isn't used again
	if _, err := conn.Exec(ctx, "LISTEN purser_changed; LISTEN "+c.channel()); err != nil {
		return fmt.Errorf("listening: %w", err)
	}
	if err := c.register(ctx); err != nil {
		return err
	}
	c.cache.dropEverything()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return c.beat(ctx, heart) })
	group.Go(func() error { return c.hear(ctx, conn) })
	return group.Wait()
}

func (c *Catalog) dial(ctx context.Context, name string) (*pgx.Conn, error) {
	cfg := c.db.Pool.Config().ConnConfig.Copy()
	cfg.RuntimeParams["application_name"] = name
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("connecting to listen: %w", err)
	}
	return conn, nil
}

// register inserts this process's row into the table replicas. Then it waits until all
// transactions have ended that may have read replicas before the row was there.
func (c *Catalog) register(ctx context.Context) error {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	if _, err := c.db.Pool.Exec(ctx, `
		INSERT INTO replicas (id, name) VALUES ($1, $2)
		ON CONFLICT (id) DO UPDATE SET seen_at = now()`, c.opt.Replica, host); err != nil {
		return fmt.Errorf("registering among the replicas: %w", err)
	}
	// A transaction that has changed rows has a RowExclusiveLock, and its trigger may have
	// read the table replicas before this process was registered. So wait until all
	// transactions that have such a lock now have ended.
	var older []string
	if err := c.db.Pool.QueryRow(ctx, `
		SELECT COALESCE(array_agg(DISTINCT virtualtransaction), '{}') FROM pg_locks
		WHERE database = (SELECT oid FROM pg_database WHERE datname = current_database())
			AND mode = 'RowExclusiveLock' AND pid <> pg_backend_pid()`).Scan(&older); err != nil {
		return fmt.Errorf("registering among the replicas: %w", err)
	}
	for {
		var over bool
		if err := c.db.Pool.QueryRow(ctx,
			"SELECT NOT EXISTS (SELECT FROM pg_locks WHERE virtualtransaction = ANY ($1))", older).Scan(&over); err != nil {
			return fmt.Errorf("waiting for older transactions: %w", err)
		}
		if over {
			return nil
		}
		if err := worker.Sleep(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
}

var errForgotten = errors.New("this process is no longer among the replicas: it was silent for too long")

// beat sends heartbeats as long as this process is registered in replicas. After idleAfter
// without requests it pauses: it sends no heartbeats and only renews the registration. The
// first request after such a pause wakes beat and waits for the next heartbeat.
func (c *Catalog) beat(ctx context.Context, conn *pgx.Conn) error {
	// It does no harm if a crash of PostgreSQL loses a heartbeat, so the commit of a heartbeat
	// doesn't wait for the disk.
	if _, err := conn.Exec(ctx, "SET synchronous_commit = off"); err != nil {
		return fmt.Errorf("setting up the heartbeat: %w", err)
	}
	c.cache.use(time.Now())
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		idle := c.cache.idle()
		send, wait, wake := c.sendBeat, beatEvery, (chan struct{})(nil)
		if idle {
			send, wait, wake = c.renew, restSeenEvery, c.cache.wake
		}
		if registered, err := send(ctx, conn); err != nil {
			return fmt.Errorf("sending a heartbeat: %w", err)
		} else if !registered {
			return errForgotten
		}
		pause.Reset(wait)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-pause.C:
		case <-wake:
		}
	}
}

// sendBeat sends a heartbeat if this process is registered in replicas, and returns whether it
// is. Every 10 s (seenEvery) it also renews this process's row in replicas, and deletes the
// rows of processes that haven't renewed theirs for replicaForgotten.
func (c *Catalog) sendBeat(ctx context.Context, conn *pgx.Conn) (registered bool, err error) {
	now := time.Now()
	b := new(pgx.Batch)
	b.Queue("SELECT pg_notify($2, $3) FROM replicas WHERE id = $1",
		c.opt.Replica, c.channel(), fmt.Sprintf("%d %d", now.Sub(c.cache.started), now.UnixNano()))
	b.Queue(`
		WITH me AS (UPDATE replicas SET seen_at = now() WHERE id = $1 AND seen_at < now() - $2::interval RETURNING id)
		DELETE FROM replicas USING me WHERE seen_at < now() - $3::interval AND replicas.id <> me.id`,
		c.opt.Replica, seenEvery, replicaForgotten)
	results := conn.SendBatch(ctx, b)
	done, err := results.Exec()
	return done.RowsAffected() > 0, errors.Join(err, results.Close())
}

// renew does the part of sendBeat that is needed while no heartbeats are sent: it renews this
// process's row in replicas, deletes the rows of processes that haven't renewed theirs for
// replicaForgotten, and returns whether this process is registered. It commits synchronously,
// because an asynchronous commit would wake PostgreSQL's WAL writer process, which then stays
// awake for ten seconds, although nothing else happens.
func (c *Catalog) renew(ctx context.Context, conn *pgx.Conn) (registered bool, err error) {
	b := new(pgx.Batch)
	b.Queue("SELECT set_config('synchronous_commit', 'on', true)")
	b.Queue(`
		WITH me AS (UPDATE replicas SET seen_at = now() WHERE id = $1 RETURNING id),
			gone AS (DELETE FROM replicas USING me WHERE seen_at < now() - $3::interval AND replicas.id <> me.id)
		SELECT $2::text FROM me`, c.opt.Replica, "the heart rests", replicaForgotten)
	results := conn.SendBatch(ctx, b)
	_, err = results.Exec()
	done, err2 := results.Exec()
	return done.RowsAffected() > 0, errors.Join(err, err2, results.Close())
}

// hear receives notifications until the connection fails. It passes this process's heartbeats
// to cache.heard, and other processes' changes to changed.
func (c *Catalog) hear(ctx context.Context, conn *pgx.Conn) error {
	own := c.channel()
	for {
		n, err := conn.WaitForNotification(ctx)
		if err != nil {
			return fmt.Errorf("waiting for notifications of changes: %w", err)
		}
		if n.Channel == own {
			var sent, wall int64
			if _, err := fmt.Sscanf(n.Payload, "%d %d", &sent, &wall); err == nil {
				c.cache.heard(c.cache.started.Add(time.Duration(sent)), time.Unix(0, wall))
			}
			continue
		}
		c.changed(n.Payload)
	}
}

// changed invalidates the cached results of the paths that a notification names. The payload
// is a letter, then the paths: "t" if only tags have changed, "a" if anything may have
// changed. For any other payload, changed invalidates the results of all paths.
func (c *Catalog) changed(payload string) {
	kind, paths, _ := strings.Cut(payload, " ")
	drop := c.cache.dropAll
	switch kind {
	case "t":
		drop = c.cache.dropTags
	case "a":
	default:
		c.cache.dropEverything()
		return
	}
	for p := range strings.FieldsSeq(paths) {
		drop(p)
	}
}

// Caching says whether requests may use the caches now, that is, whether the newest heartbeat
// is recent enough.
func (c *Catalog) Caching() bool {
	now := time.Now()
	c.cache.use(now)
	return !c.cache.off && c.cache.heardBy(now)
}

// Replica is a process that uses the database and its caches.
type Replica struct {
	ID      string    `json:"id"`
	Name    string    `json:"name" doc:"Name of its host"`
	Started time.Time `json:"started_at"`
	Seen    time.Time `json:"seen_at" doc:"When it last said that it runs, by the database's clock"`
}

// maxReplicas is how many processes Replicas lists.
const maxReplicas = 100

// Replicas lists the processes that use the database, those that were seen last first, at most
// 100. Processes that haven't been seen for a while are forgotten.
func (c *Catalog) Replicas(ctx context.Context) ([]Replica, error) {
	rows, err := c.db.Pool.Query(ctx, "SELECT id::text, name, started_at, seen_at FROM replicas ORDER BY seen_at DESC, id LIMIT $1", maxReplicas)
	if err != nil {
		return nil, fmt.Errorf("listing replicas: %w", err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (r Replica, err error) {
		err = row.Scan(&r.ID, &r.Name, &r.Started, &r.Seen)
		return r, err
	})
	if err != nil {
		return nil, fmt.Errorf("listing replicas: %w", err)
	}
	return list, nil
}
