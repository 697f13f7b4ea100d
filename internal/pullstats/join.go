package pullstats

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/pullstats/statsdb"
)

const (
	// DefaultJoin is how long after a HEAD by tag a GET by digest counts as the second half
	// of the same pull.
	DefaultJoin = 30 * time.Second
	// joinLag is the least age at which a pull by digest is joined with a HEAD by tag, that
	// is, counted as a pull of the tag. By then each process has written the HEADs that it
	// answered before the pull, or has reported that it still has some of them to write:
	// processes report every busyTick, which is shorter than joinLag.
	joinLag = 3 * time.Second
	// joinLate is the age at which a pull by digest is joined even if some process still has
	// HEADs to write that it answered before the pull. So a HEAD that is written to the
	// database later than joinLate after it was answered may find no pull to be joined with.
	joinLate = 2 * time.Minute
)

// head is a client's HEAD by tag that may be the first half of a pull, if a GET by digest
// follows.
type head struct {
	id   int64
	tag  string
	at   time.Time
	port int
	used bool
	row  *pendingRow // the row of pullstatisticspending that has this HEAD
}

// pendingRow is a row of pullstatisticspending: HEADs by tag, or GETs by digest, of one
// client and one manifest that may still be joined.
type pendingRow struct {
	id         int64
	client     audit.ClientKey
	repository int64
	tag        string          // of HEADs
	digest     string          // of GETs by digest; "": Redis has counted these GETs, they only use up HEADs
	left       []audit.Request // the requests that may still be joined
	changed    bool            // left has fewer requests than the row in the database
}

// pick returns the HEAD by tag that belongs to a client's GET by digest, which came at `at`
// from the client's port `port`. The HEAD must not be later than the GET, nor earlier by
// more than `within`, and no other GET may have used it. Among several such HEADs, pick
// prefers those from the same port (the same connection), and among these the newest. It
// returns nil if there is no such HEAD. takeScript of package redispulls applies the same rule.
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

// before says whether the HEAD h is a better choice than the HEAD `other` for a GET that
// came from the client's port `port`.
func (h *head) before(other *head, port int) bool {
	own, others := port != 0 && h.port == port, port != 0 && other.port == port
	if own != others {
		return own
	}
	return cmp.Or(h.at.Compare(other.at), cmp.Compare(h.id, other.id)) > 0
}

// pendingGet is a pull by digest that is already counted for its manifest. If it is joined
// with a HEAD, it is also counted for the HEAD's tag.
type pendingGet struct {
	*pendingRow
	at   time.Time
	port int
}

// keepPending stores those of the pulls and HEADs that may still be joined with each other,
// in pullstatisticspending. These are HEADs by tag, GETs by digest that the SyncWorker
// counts, and GETs by digest that Redis has joined, which mark their HEADs as used.
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
	clients, tags, digests, times, later := make([][]byte, n), make([]string, n), make([]string, n), make([]time.Time, n), make([][]byte, n)
	for i := range list {
		p := &list[i]
		ids[i], heads[i], clients[i], repositories[i], tags[i], times[i], ports[i] = p.ID, p.Head, p.Client[:], p.RepositoryID, p.Tag, p.First, p.Port
		later[i] = p.Later
		switch {
		case p.Used:
			heads[i] = false
		case !p.Head:
			digests[i] = p.Digest.String()
		}
	}
	if _, err := tx.Exec(ctx, `
		INSERT INTO pullstatisticspending (id, head, client, repository_id, tag, digest, time, port, later)
		SELECT * FROM unnest(@ids::bigint[], @heads::boolean[], @clients::bytea[], @repositories::bigint[], @tags::text[], @digests::text[],
			@times::timestamptz[], @ports::integer[], @later::bytea[])
		ON CONFLICT (id) DO NOTHING`, db.Args{
		"ids": ids, "heads": heads, "clients": clients, "repositories": repositories, "tags": tags, "digests": digests, "times": times, "ports": ports,
		"later": later,
	}); err != nil {
		return fmt.Errorf("remembering HEAD requests and pulls by digest: %w", err)
	}
	return nil
}

// written returns a time before which all processes have written their pulls and HEADs to
// the database, by the clock of the statistics' database. HEADs that a process has only sent to
// Redis, or has in memory, aren't written. The time is at most joinLate ago: written doesn't wait
// longer for a process that still has older requests to write, nor for one that hasn't reported
// for statsdb.GoneAfter. The caller must call written before it reads the audit log, so that it reads all
// that was written before this time.
//
// If a process may have older requests to write, GETs by digest may be joined too early, without
// their HEADs. Then written records that pulls may be missing in the counts (uncounted_at).
func (w *SyncWorker) written(ctx context.Context) (at time.Time, err error) {
	var late bool
	err = w.opt.Stats.Pool.QueryRow(ctx, `
		SELECT at, COALESCE(least < at, false) AND EXISTS (SELECT FROM pullstatisticspending WHERE NOT head AND time >= least AND time < at)
		FROM (SELECT GREATEST(clock_timestamp() - $2::bigint * interval '1 microsecond',
				LEAST(clock_timestamp() - $1::bigint * interval '1 microsecond', min(LEAST(written_to, heads_to))
					FILTER (WHERE seen_at > now() - $3::bigint * interval '1 microsecond'))) AS at, min(LEAST(written_to, heads_to)) AS least
			FROM pullrecorders WHERE ended_at IS NULL) r`,
		w.lag.Microseconds(), joinLate.Microseconds(), statsdb.GoneAfter.Microseconds()).Scan(&at, &late)
	if err == nil && late {
		_, err = w.opt.Stats.Pool.Exec(ctx,
			"UPDATE pullstatisticsprocessingstate SET uncounted_at = GREATEST(uncounted_at, $1)", at)
	}
	if err != nil {
		return at, fmt.Errorf("asking up to when pulls are written: %w", err)
	}
	return at, nil
}

// joinPending joins the GETs by digest that came before the time `before` with their HEADs
// by tag, in the order of the GETs' times, and adds each joined GET to `sum` as a pull of
// the HEAD's tag. Then it deletes these GETs from pullstatisticspending, and also the HEADs
// that no GET can use any more. `alive` has those of the repositories `asked` that exist; they
// can't be deleted before tx ends. `asked` is in ascending order. `more` says that further GETs
// from before the time `before` are left.
func (w *SyncWorker) joinPending(ctx context.Context, tx pgx.Tx, before time.Time, asked []int64, alive statsdb.Living, sum statsdb.Adder) (more bool, err error) {
	rows, err := ripeGets(ctx, tx, before, w.opt.Batch)
	if err != nil {
		return false, err
	}
	// ripeGets returns rows in the order of their first GETs. If it has left out rows, all
	// of their GETs come at or after the first GET of the last row that it has returned. So
	// only GETs up to that GET are joined now. The added microsecond includes that GET
	// itself, so that each call joins or drops at least one GET.
	settled := before
	if more = len(rows) == w.opt.Batch; more {
		settled = rows[len(rows)-1].left[0].Time.Add(time.Microsecond)
	}
	// Another worker may have joined GETs since the repositories were asked for, so that these are
	// others. A GET whose repository nobody has asked for isn't taken for one of a repository that
	// is gone: it waits with all later GETs for the next call, which asks for it.
	if n := slices.IndexFunc(rows, func(r *pendingRow) bool { return r.unasked(asked) }); n >= 0 {
		rows, settled, more = rows[:n], rows[n].left[0].Time, true
	}
	gets := takeBefore(rows, settled)
	if len(gets) > 0 {
		heads, headRows, err := headsOf(ctx, tx, rows)
		if err != nil {
			return false, err
		}
		rows = append(rows, headRows...)
		if err := joinGets(gets, heads, w.opt.Join, alive, sum); err != nil {
			return false, err
		}
	}
	// A HEAD must stay in pullstatisticspending as long as a GET may be joined with it:
	// until all GETs that came up to opt.Join later have been through joinGets. forget
	// compares only the time of a row's first HEAD, and the row's last HEAD may be later by
	// MaxSpan. So MaxSpan is subtracted too.
	return more, forget(ctx, tx, rows, settled.Add(-w.opt.Join-audit.MaxSpan))
}

// unasked says whether the row's GETs may count for a tag of a repository that isn't among `asked`.
// GETs that Redis has counted only use up HEADs, so nobody needs to know whether their repositories
// exist.
func (r *pendingRow) unasked(asked []int64) bool {
	_, found := slices.BinarySearch(asked, r.repository)
	return r.digest != "" && !found
}

// takeBefore removes from rows the GETs that came before the time `before`, and returns
// them in the order of their times.
func takeBefore(rows []*pendingRow, before time.Time) (gets []pendingGet) {
	for _, row := range rows {
		n := 0
		for n < len(row.left) && row.left[n].Time.Before(before) {
			gets = append(gets, pendingGet{row, row.left[n].Time, row.left[n].Port})
			n++
		}
		row.left, row.changed = row.left[n:], n > 0
	}
	slices.SortStableFunc(gets, func(a, b pendingGet) int {
		return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.id, b.id))
	})
	return gets
}

// joinGets chooses a HEAD by tag for each GET by digest. If it finds a HEAD, it marks the
// HEAD as used and adds the GET to `sum` as a pull of the HEAD's tag. HEADs that no GET has
// used stay in their rows (field `left`).
func joinGets(gets []pendingGet, heads map[audit.ClientKey][]*head, within time.Duration, alive statsdb.Living, sum statsdb.Adder) error {
	for _, g := range gets {
		h := pick(heads[g.client], g.at, g.port, within)
		if h == nil {
			continue
		}
		h.used, h.row.changed = true, true
		if g.digest == "" || !alive.Has(g.repository) {
			continue
		}
		d, err := oci.ParseDigest(g.digest)
		if err != nil {
			return fmt.Errorf("pull %d: %w", g.id, err)
		}
		sum.AddTag(g.repository, h.tag, d, g.at)
	}
	for _, list := range heads {
		for _, h := range list {
			if !h.used {
				h.row.left = append(h.row.left, audit.Request{Time: h.at, Port: h.port})
			}
		}
	}
	return nil
}

// forget writes changes of rows to pullstatisticspending: it updates the rows of which some
// requests are left, and deletes the rows without requests. It also deletes all rows of
// HEADs whose first HEAD came before the time `before`.
func forget(ctx context.Context, tx pgx.Tx, rows []*pendingRow, before time.Time) error {
	var done, ids []int64
	var times []time.Time
	var ports []int
	var later [][]byte
	for _, row := range rows {
		switch {
		case !row.changed:
		case len(row.left) == 0:
			done = append(done, row.id)
		default:
			first := row.left[0]
			ids, times, ports, later = append(ids, row.id), append(times, first.Time), append(ports, first.Port), append(later, audit.EncodeRequests(row.left))
		}
	}
	if _, err := tx.Exec(ctx, `
		DELETE FROM pullstatisticspending WHERE id = ANY ($1) OR (head AND time < $2)`, done, before); err != nil {
		return fmt.Errorf("forgetting what was joined: %w", err)
	}
	if len(ids) == 0 {
		return nil
	}
	if _, err := tx.Exec(ctx, `
		UPDATE pullstatisticspending p SET time = n.time, port = n.port, later = n.later
		FROM unnest($1::bigint[], $2::timestamptz[], $3::integer[], $4::bytea[]) AS n (id, time, port, later) WHERE p.id = n.id`, ids, times, ports, later); err != nil {
		return fmt.Errorf("remembering what wasn't joined: %w", err)
	}
	return nil
}

// ripeGets returns up to n rows of pullstatisticspending with GETs by digest, oldest first.
// The first GET of each row came before the time `before`.
func ripeGets(ctx context.Context, tx pgx.Tx, before time.Time, n int) ([]*pendingRow, error) {
	rows, err := tx.Query(ctx, `
		SELECT id, client, repository_id, tag, digest, time, port, later FROM pullstatisticspending
		WHERE NOT head AND time < $1 ORDER BY time, id LIMIT $2`, before, n)
	if err != nil {
		return nil, fmt.Errorf("reading pulls by digest: %w", err)
	}
	list, err := pgx.CollectRows(rows, scanPending)
	if err != nil {
		return nil, fmt.Errorf("reading pulls by digest: %w", err)
	}
	return list, nil
}

func scanPending(row pgx.CollectableRow) (*pendingRow, error) {
	var r pendingRow
	var client, later []byte
	var first audit.Request
	if err := row.Scan(&r.id, &client, &r.repository, &r.tag, &r.digest, &first.Time, &first.Port, &later); err != nil {
		return nil, err
	}
	if len(client) == len(r.client) {
		r.client = audit.ClientKey(client)
	}
	var err error
	r.left, err = audit.Requests(first, later)
	return &r, err
}

// headsOf returns the HEADs in pullstatisticspending that were sent by the clients of the
// given GETs, by client, and the rows of these HEADs. The section "Plans" of package db
// explains OFFSET 0.
func headsOf(ctx context.Context, tx pgx.Tx, gets []*pendingRow) (map[audit.ClientKey][]*head, []*pendingRow, error) {
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
		SELECT h.* FROM unnest($1::bytea[]) AS want (client)
		CROSS JOIN LATERAL (SELECT id, client, repository_id, tag, digest, time, port, later
			FROM pullstatisticspending WHERE head AND client = want.client OFFSET 0) h`, keys)
	if err != nil {
		return nil, nil, fmt.Errorf("reading HEAD requests: %w", err)
	}
	list, err := pgx.CollectRows(rows, scanPending)
	if err != nil {
		return nil, nil, fmt.Errorf("reading HEAD requests: %w", err)
	}
	out := map[audit.ClientKey][]*head{}
	for _, r := range list {
		for _, q := range r.left {
			out[r.client] = append(out[r.client], &head{id: r.id, tag: r.tag, at: q.Time, port: q.Port, row: r})
		}
		r.left = r.left[:0] // joinGets puts the unused HEADs back
	}
	return out, list, nil
}

// pendingRepositories returns the ids of the repositories of the GETs by digest that
// joinPending will join next, unless another worker joins them first. The caller locks these
// repositories before it calls joinPending.
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
