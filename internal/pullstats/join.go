package pullstats

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/oci"
)

const (
	// DefaultJoin is how long after a HEAD by tag a GET by digest is taken for the rest of
	// the same pull.
	DefaultJoin = 30 * time.Second
	// joinLag is how long a pull by digest waits at least for HEADs of others to be
	// written. A process says within busyTick that it has something to write.
	joinLag = 3 * time.Second
	// joinLate is how much later than its time an entry may be written to be joined.
	joinLate = 2 * time.Minute
)

// head is a HEAD by tag that may be the first half of a pull.
type head struct {
	id   int64
	tag  string
	at   time.Time
	port int
	used bool
}

// pick chooses the HEAD that a GET by digest belongs to: one that came before it, at most
// within ago, and that no other GET has used. One of the same connection is the client's
// own; of those that can't be told apart it is the newest. Nil: there is none. (takeScript
// chooses by the same rule.)
func pick(heads []*head, at time.Time, port int, within time.Duration) (best *head) {
	for _, h := range heads {
		if h.used || h.at.After(at) || at.Sub(h.at) > within {
			continue
		}
		if best == nil || h.before(best, port) {
			best = h
		}
	}
	return best
}

// before says whether a GET of a connection rather belongs to h than to other.
func (h *head) before(other *head, port int) bool {
	own, others := port != 0 && h.port == port, port != 0 && other.port == port
	if own != others {
		return own
	}
	return cmp.Or(h.at.Compare(other.at), cmp.Compare(h.id, other.id)) > 0
}

// pendingGet is a pull by digest that is counted for its manifest, and may be one of a
// tag.
type pendingGet struct {
	id         int64
	client     audit.ClientKey
	repository int64
	digest     string // "": it was counted elsewhere, and uses up a HEAD all the same
	at         time.Time
	port       int
}

// keepPending remembers what may still be joined: HEADs, and pulls by digest that are to
// be counted here.
func keepPending(ctx context.Context, tx pgx.Tx, pulls []audit.Pull) error {
	var list []audit.Pull
	for i := range pulls {
		p := &pulls[i]
		if p.RepositoryID != 0 && (p.Head || p.Tag == "" && countedHere(p)) {
			list = append(list, *p)
		}
	}
	n := len(list)
	if n == 0 {
		return nil
	}
	ids, heads, repositories, ports := make([]int64, n), make([]bool, n), make([]int64, n), make([]int, n)
	clients, tags, digests, times := make([][]byte, n), make([]string, n), make([]string, n), make([]time.Time, n)
	for i := range list {
		p := &list[i]
		ids[i], heads[i], clients[i], repositories[i], tags[i], times[i], ports[i] = p.ID, p.Head, p.Client[:], p.RepositoryID, p.Tag, p.Time, p.Port
		switch {
		case p.Used:
			heads[i] = false
		case !p.Head:
			digests[i] = p.Digest.String()
		}
	}
	if _, err := tx.Exec(ctx, `
		INSERT INTO pullstatisticspending (id, head, client, repository_id, tag, digest, time, port)
		SELECT * FROM unnest(@ids::bigint[], @heads::boolean[], @clients::bytea[], @repositories::bigint[], @tags::text[], @digests::text[],
			@times::timestamptz[], @ports::integer[])
		ON CONFLICT (id) DO NOTHING`, pgx.NamedArgs{
		"ids": ids, "heads": heads, "clients": clients, "repositories": repositories, "tags": tags, "digests": digests, "times": times, "ports": ports,
	}); err != nil {
		return fmt.Errorf("remembering HEAD requests and pulls by digest: %w", err)
	}
	return nil
}

// written is the time before which all processes have written their pulls and HEADs, by
// the clock of the statistics' database. One that is silent holds up nothing for longer
// than joinLate. It is asked for before the log is read.
func (w *SyncWorker) written(ctx context.Context) (at time.Time, err error) {
	err = w.opt.Stats.Pool.QueryRow(ctx, `
		SELECT GREATEST(clock_timestamp() - $2::bigint * interval '1 microsecond', LEAST(clock_timestamp() - $1::bigint * interval '1 microsecond',
			(SELECT min(written_to) FROM pullrecorders WHERE ended_at IS NULL AND seen_at > now() - $3::bigint * interval '1 microsecond')))`,
		w.lag.Microseconds(), joinLate.Microseconds(), goneAfter.Microseconds()).Scan(&at)
	if err != nil {
		return at, fmt.Errorf("asking up to when pulls are written: %w", err)
	}
	return at, nil
}

// joinPending adds to sum, for their tags, the pulls by digest that came before a time, in
// the order in which they came, and forgets them and what can't be joined any more. ids are
// the repositories that exist and can't be deleted meanwhile.
func (w *SyncWorker) joinPending(ctx context.Context, tx pgx.Tx, before time.Time, alive map[int64]bool, sum adder) error {
	gets, err := ripeGets(ctx, tx, before, w.opt.Batch)
	if err != nil {
		return err
	}
	done := make([]int64, 0, 2*len(gets))
	if len(gets) > 0 {
		heads, err := headsOf(ctx, tx, gets)
		if err != nil {
			return err
		}
		for _, g := range gets {
			done = append(done, g.id)
			h := pick(heads[g.client], g.at, g.port, w.opt.Join)
			if h == nil {
				continue
			}
			h.used = true
			done = append(done, h.id)
			if g.digest == "" || !alive[g.repository] {
				continue
			}
			d, err := oci.ParseDigest(g.digest)
			if err != nil {
				return fmt.Errorf("pull %d: %w", g.id, err)
			}
			sum.addTag(g.repository, h.tag, d, g.at)
		}
	}
	// A HEAD outlives the pulls that could use it: these are settled before it goes.
	oldest := before
	if len(gets) == w.opt.Batch {
		oldest = gets[len(gets)-1].at
	}
	if _, err := tx.Exec(ctx, `
		DELETE FROM pullstatisticspending WHERE id = ANY ($1) OR (head AND time < $2)`, done, oldest.Add(-w.opt.Join)); err != nil {
		return fmt.Errorf("forgetting what was joined: %w", err)
	}
	return nil
}

// ripeGets are the first n pulls by digest before a time.
func ripeGets(ctx context.Context, tx pgx.Tx, before time.Time, n int) ([]pendingGet, error) {
	rows, err := tx.Query(ctx, `
		SELECT id, client, repository_id, digest, time, port FROM pullstatisticspending
		WHERE NOT head AND time < $1 ORDER BY time, id LIMIT $2`, before, n)
	if err != nil {
		return nil, fmt.Errorf("reading pulls by digest: %w", err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (g pendingGet, err error) {
		var client []byte
		if err = row.Scan(&g.id, &client, &g.repository, &g.digest, &g.at, &g.port); err == nil && len(client) == len(g.client) {
			g.client = audit.ClientKey(client)
		}
		return g, err
	})
	if err != nil {
		return nil, fmt.Errorf("reading pulls by digest: %w", err)
	}
	return list, nil
}

// headsOf are the HEADs of the clients of pulls.
func headsOf(ctx context.Context, tx pgx.Tx, gets []pendingGet) (map[audit.ClientKey][]*head, error) {
	clients := make([]audit.ClientKey, len(gets))
	for i, g := range gets {
		clients[i] = g.client
	}
	slices.SortFunc(clients, func(a, b audit.ClientKey) int { return slices.Compare(a[:], b[:]) })
	clients = slices.Compact(clients)
	keys := make([][]byte, len(clients))
	for i := range clients {
		keys[i] = clients[i][:]
	}
	rows, err := tx.Query(ctx, `
		SELECT h.id, h.client, h.tag, h.time, h.port FROM unnest($1::bytea[]) AS want (client)
		CROSS JOIN LATERAL (SELECT * FROM pullstatisticspending WHERE head AND client = want.client OFFSET 0) h`, keys)
	if err != nil {
		return nil, fmt.Errorf("reading HEAD requests: %w", err)
	}
	out := map[audit.ClientKey][]*head{}
	var h head
	var client []byte
	_, err = pgx.ForEachRow(rows, []any{&h.id, &client, &h.tag, &h.at, &h.port}, func() error {
		one := h
		if len(client) == len(audit.ClientKey{}) {
			out[audit.ClientKey(client)] = append(out[audit.ClientKey(client)], &one)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reading HEAD requests: %w", err)
	}
	return out, nil
}

// pendingRepositories are those of the pulls by digest that may be joined next.
func (w *SyncWorker) pendingRepositories(ctx context.Context, before time.Time) ([]int64, error) {
	rows, err := w.opt.Stats.Pool.Query(ctx, `
		SELECT DISTINCT repository_id FROM (
			SELECT repository_id FROM pullstatisticspending WHERE NOT head AND time < $1 ORDER BY time, id LIMIT $2) first`, before, w.opt.Batch)
	if err != nil {
		return nil, fmt.Errorf("reading pulls by digest: %w", err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return nil, fmt.Errorf("reading pulls by digest: %w", err)
	}
	return ids, nil
}
