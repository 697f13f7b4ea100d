// Package pullstats counts pulls: for each tag and manifest it keeps how often, and when
// last, it was pulled.
//
// The statistics may live in a database of their own (database.stats), on another server,
// so no statement here joins them with the catalog. A tag or manifest that was never
// pulled, or not since statistics are kept, has no row and is missing in answers.
//
// # Why each pull counts once
//
// A [SyncWorker] reads pulls in the audit log in the order of (xid, id): the id of the
// transaction that wrote the entry, and the entry's own id. It reads only entries of
// transactions below the oldest open one in the reading statement's snapshot. All of these
// have ended, so their entries are visible, and nothing will be added between two entries
// that were read. The order of ids or of times alone doesn't guarantee this: an entry may
// be committed after one with a later id.
//
// The watermark, which says how far the log was read, is a row in the database of the
// statistics. The transaction that adds pulls to the statistics also moves the watermark,
// and does so only if the watermark still is where the reading began. When two workers read
// the same entries, the second finds the watermark moved and adds nothing. A worker that
// dies before its commit has moved and added nothing; a worker that dies after it, or
// doesn't learn of its success, has done both. Each batch begins by reading the watermark
// again. Entries that aren't counted here (because Redis counted them) move it like all
// others.
//
// An entry may stand for several pulls; Pull.N is their number. Processes of an older
// version would count such an entry as one pull. They can't move the watermark: a trigger
// refuses an UPDATE that doesn't set the column reads to the current version.
//
// So the watermark divides the log, at each moment, into entries that are in the statistics
// and entries that are not. [SyncWorker.Uses] relies on this to find each pull in one or
// the other, and the manager of the audit log's partitions to drop no unread entry.
//
// For pulls that Redis counts, Uses reads the repository's counters before it reads the
// statistics: a counter that Uses doesn't find any more is in the statistics.
//
// The worker locks the repositories of the entries that it counts until the statistics are
// committed, so that the clean-up after a repository's deletion comes later and finds the
// rows.
//
// A [Recorder] decides at the pull whether a SyncWorker or Redis counts it, and the entry
// in the log says which (counted_by). A pull that Redis refuses is logged for the
// SyncWorker. A pull that Redis doesn't answer is logged as counted by Redis, whether or
// not Redis has counted it. So no pull is counted by both, and an operator may switch
// between the two at any time.
//
// # Why a pull in two requests counts for its tag
//
// A HEAD by tag and the GET by digest after it are one pull, and two different processes
// may have answered them. They are joined in one place: by the SyncWorker if it counts the
// GET, otherwise by Redis, and never in a process's memory. Both choose by the same rule
// (pick).
//
// One entry may stand for several GETs or HEADs and then has the time and the client's port
// of each: they are joined one by one, as if each had its own entry. Requests of an entry
// that can't be decided yet stay.
//
// HEADs are written to a table beside the log, and read together with the log in its order.
// When the worker reads a GET, it counts it for the manifest at once, and keeps the GET in
// the statistics' database, as it does with the HEADs. The GET is joined when no earlier
// HEAD can be missing: all processes have reported that they have written whatever came
// before the GET (presence), and nothing that was written until then is unread. So neither
// the order of commits, nor the borders of batches, nor which process reads matters: GETs
// are joined in the order of their times. One transaction, which locks the watermark's row,
// counts a joined GET and deletes it from the waiting ones, so it counts once.
//
// In Redis a GET waits for longer than processes take to send their HEADs. HEADs and GETs
// have names there: a HEAD that is sent again is stored once, and a GET that asks again
// gets the same answer. While Redis is away, and for a while after, GETs by digest are
// counted from the log, and each process writes to the log those HEADs that it had sent to
// Redis only.
//
// Times are by the clock of the statistics' database, to about a millisecond: each process
// measures how far its own clock is off.
//
// # Why each pull in Redis counts once
//
// One script adds a pull to one counter. A counter grows as long as it exists. A
// [FlushWorker] adds those pulls of the counter to the statistics that they don't have yet,
// and stores in the same transaction (redispullcounters) that the statistics now have all.
// It takes nothing out of Redis. So if a transaction is rolled back, nothing was counted;
// if its outcome is unknown, a repetition adds the pulls that are missing, if any.
//
// A transaction locks the counters of all repositories before it reads any, until it ends.
// So two workers can't add the same pulls, and of two transactions, the later one has read
// later values. A worker that stalls while it holds the lock holds up the others until
// PostgreSQL ends its idle transaction; after that it can't commit anything.
//
// A counter whose pulls are all in the statistics is settled: it expires in a minute,
// unless another pull comes. The script that settles compares the counter's values with
// those in the statistics, so a late call does nothing. A counter that has expired may be
// made again. It then has a greater born, the sequence number of its first pull, and counts
// from 0. If a worker dies before it settles a counter, the next flush does.
//
// Each flush has a number, the epoch. The flush stores the number in Redis before it reads
// counters, and checks after each read that Redis still has the number. A Redis that was
// emptied or set back doesn't have it. Then no counter is counted until the lost pulls, as
// far as they were logged, are counted from the log: see recount. If only single counters
// were set back (a node of a cluster), they have smaller values than the statistics:
// nothing is added, and statistics are complete only from then on.
//
// If the statistics' database was set back, redispullcounters was set back with the counts,
// so the next flush adds the missing pulls, except those of counters that have expired.
// Redis then knows a greater epoch than the database, which shows that statistics are
// complete only from then on.
//
// The worker locks the repositories of the counters until the statistics are committed, as
// the SyncWorker does. Pulls of deleted repositories are noted as counted in
// redispullcounters, and added to nothing. A row of redispullcounters is deleted a day
// after the last complete flush that found its counter in Redis; a complete flush finds
// every counter that exists.
//
// A set in Redis has the repository's counters that aren't settled. The script that adds a
// pull also adds the counter to the set, and the script that settles removes it.
// [Reader.Live] reads the set and the counters first, and then the statistics and
// redispullcounters, both at one moment. Its comment says why the sum is right.
//
// During an upgrade replicas of the version before count in keys of their own: upgrade.go.
//
// # Transaction ids
//
// Transaction ids belong to a server. After a restore they may begin anew, below the
// watermark or below ids in the entries. Both cases are detected, nothing is counted then
// ([ErrForeignLog]), and [SyncWorker.Reset] gives the log a valid order again.
package pullstats

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
)

// Options configures a Reader.
type Options struct {
	DB *db.DB // required: the database of the statistics
	// Redis has pulls that aren't in the database yet. Nil: there are none.
	Redis *Redis
}

// Reader reads statistics. Its methods may be called concurrently.
type Reader struct {
	stats *db.DB
	q     db.Querier // the pool of stats, or a transaction
	redis *Redis
}

// NewReader makes a reader.
func NewReader(o Options) (*Reader, error) {
	if o.DB == nil {
		return nil, errors.New("pullstats: a database is required")
	}
	return &Reader{o.DB, o.DB.Pool, o.Redis}, nil
}

// Pulls are the statistics of a tag or a manifest.
type Pulls struct {
	Count int64
	Last  time.Time // zero: the time isn't known
}

// Tags returns the statistics of the named tags of a repository, by name. Tags without
// statistics are left out. For OFFSET 0 see "Plans" in package db.
func (r *Reader) Tags(ctx context.Context, repository int64, names []string) (map[string]Pulls, error) {
	if len(names) == 0 {
		return nil, nil
	}
	rows, err := r.q.Query(ctx, `
		SELECT s.* FROM unnest($2::text[]) AS want (name)
		CROSS JOIN LATERAL (
			SELECT tag_name, tag_pull_count, last_tag_pull_date FROM tagpullstatistics
			WHERE repository_id = $1 AND tag_name = want.name OFFSET 0) s`, repository, names)
	if err != nil {
		return nil, fmt.Errorf("reading the pull statistics of tags: %w", err)
	}
	list, err := collect(rows)
	if err != nil {
		return nil, fmt.Errorf("reading the pull statistics of tags: %w", err)
	}
	return list, nil
}

// Manifest returns the statistics of a manifest of a repository; zero: there are none.
func (r *Reader) Manifest(ctx context.Context, repository int64, d oci.Digest) (Pulls, error) {
	rows, err := r.q.Query(ctx, `
		SELECT manifest_digest, total_pull_count, last_pull_date FROM manifestpullstatistics
		WHERE repository_id = $1 AND manifest_digest = $2`, repository, d.String())
	if err != nil {
		return Pulls{}, fmt.Errorf("reading the pull statistics of manifest %s: %w", d, err)
	}
	list, err := collect(rows)
	if err != nil {
		return Pulls{}, fmt.Errorf("reading the pull statistics of manifest %s: %w", d, err)
	}
	return list[d.String()], nil
}

func collect(rows pgx.Rows) (map[string]Pulls, error) {
	list := make(map[string]Pulls)
	var name string
	var count int64
	var last *time.Time
	_, err := pgx.ForEachRow(rows, []any{&name, &count, &last}, func() error {
		p := Pulls{Count: count}
		if last != nil {
			p.Last = last.UTC()
		}
		list[name] = p
		return nil
	})
	return list, err
}
