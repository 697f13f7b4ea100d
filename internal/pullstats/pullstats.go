// Package pullstats counts how often, and remembers when, tags and manifests were
// pulled, and tells of it.
//
// The statistics may live in a database of their own (database.stats), on another
// server: nothing here is joined with the catalog. What was never pulled, or not
// since statistics are kept, has no row and is left out of an answer.
//
// # Why each pull counts once
//
// A [SyncWorker] reads pulls in the audit log in the order of (xid, id): the id of
// the transaction that wrote the entry, and the entry's own. It reads only entries of
// transactions below the oldest that is open, as the reading statement's snapshot has
// it. All of these are over, so what was written by them is visible, and nothing will
// be added between two entries that were read. Ids or times alone don't have this: an
// entry may be committed after one with a later id.
//
// How far was read, the watermark, is a row in the database of the statistics. It
// moves in the transaction that adds what was read, and only if it still is where the
// reading began. Of two workers with the same entries the second finds it moved and
// adds nothing. A worker that dies before its commit has moved nothing and added
// nothing; one that dies after it, or doesn't hear of it, has done both, and begins
// with a fresh look at the watermark in any case. Entries that aren't to be counted
// here (Redis did) move it like all others.
//
// An entry may be of several pulls, of which it has the number: Pull.N. A process of a
// version that doesn't know these numbers can't move the watermark: a trigger refuses an
// UPDATE that doesn't say it knows them (the column reads). So none is counted as one.
//
// So the watermark divides the log, at each moment, in entries that are in the
// statistics and entries that are not. That is what [SyncWorker.Uses] relies on to
// find a pull in one or the other, and the audit log's keeper to drop nothing unread.
//
// Of pulls in Redis it finds when names were used in keys of their own, which outlive
// a flush.
//
// Repositories of counted entries are kept from being deleted until the statistics are
// committed, so that the clean-up of a deleted one comes after that.
//
// A [Recorder] decides at the pull who counts it, a SyncWorker or Redis, and the
// entry in the log says so (counted_by). What Redis refuses is logged for the
// SyncWorker; what it doesn't answer is logged as Redis's, and counted there or not.
// So no pull is counted by both, and either may be switched on and off at any time.
//
// # Why a pull in two requests counts for its tag
//
// A HEAD by tag and the GET by digest after it are one pull, and any two processes may
// have answered them. They are joined in one place: by the SyncWorker where it counts the
// GET, else by Redis, never in a process's memory. Both choose by one rule (pick).
//
// Several GETs, or HEADs, may be one entry, which has the time and the connection of each:
// they are joined one by one, as if each had its own. What isn't settled of an entry stays.
//
// HEADs are written beside the log, and read with it in its order. Reading a GET counts its
// manifest, and keeps the GET in the statistics' database with the HEADs that were read.
// It is joined when no HEAD before it can be missing: all processes have said that they
// have written what came before it (presence), and nothing that was written before then is
// unread. So the order of commits, the borders of batches, and who reads don't matter:
// GETs are joined in the order of their times. What is joined is counted and forgotten in
// one transaction, which holds the row of the watermark, so it counts once.
//
// In Redis a GET waits for longer than HEADs take to be sent. Both have names there: a HEAD
// that is sent again is there once, and a GET that asks again has the same answer. While
// Redis is away, and for a while after, GETs by digest are counted from the log, and
// processes write to the log the HEADs that only Redis had.
//
// Times are those of the statistics' database, to about a millisecond: each process
// measures how far its own clock is off.
//
// # Why each pull in Redis counts once
//
// A pull adds to one key, by one script. A [FlushWorker] claims keys for a batch,
// which has a number and a state in the statistics' database: open, and then applied or
// abandoned for good. A claim moves a key's count aside under the batch's number. One
// transaction takes the batch from open to applied and adds what was claimed; then
// claims are settled, dropped if their batch is applied, counted again if not.
//
// What a batch claimed it applies as a whole: a claim that stays unanswered ends the
// batch, abandoned, and none is sent twice. So every claim of an applied batch was in
// the transaction, and dropping it loses nothing. No claim of another batch was, and
// only an open batch can be applied, so that putting it back counts nothing twice. The
// state is asked for after the claim was seen, and the batch was made before it was
// claimed: a state is always there, unless the database was set back. Redis is told
// of each batch before it claims (the epoch), so that shows, and the batches that the
// database has lost are abandoned before a new one is made: what they applied is lost
// with them. A key remembers the last batch that is done with it, so that a claim that
// comes late does nothing.
//
// What Redis loses is counted from the log where it was logged, once: see recount.
//
// A claim holds until its batch is over. A worker that dies leaves it open for its
// lease at most; another one abandons it then, and a worker that was only slow finds
// that out when it applies.
//
// # Transaction ids
//
// They are a server's. After a restore they begin anew below the watermark, or below
// those that entries have: both show, nothing is counted then ([ErrForeignLog]), and [SyncWorker.Reset] puts the log in order.
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

// Options says where the statistics are.
type Options struct {
	DB *db.DB // required: the database of the statistics
	// Redis has pulls that aren't in there yet. Nil: none are.
	Redis *Redis
}

// Reader reads statistics. Its methods may be called concurrently.
type Reader struct {
	db    *db.DB
	redis *Redis
}

// NewReader makes a reader.
func NewReader(o Options) (*Reader, error) {
	if o.DB == nil {
		return nil, errors.New("pullstats: a database is required")
	}
	return &Reader{o.DB, o.Redis}, nil
}

// Pulls is what is known of the pulls of a tag or a manifest.
type Pulls struct {
	Count int64
	Last  time.Time // zero: when it was isn't known
}

// Tags are the statistics of those tags of a repository that have any, by name.
func (r *Reader) Tags(ctx context.Context, repository int64, names []string) (map[string]Pulls, error) {
	if len(names) == 0 {
		return nil, nil
	}
	rows, err := r.db.Pool.Query(ctx, `
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

// Manifest is the statistics of a manifest of a repository; zero: there are none.
func (r *Reader) Manifest(ctx context.Context, repository int64, d oci.Digest) (Pulls, error) {
	rows, err := r.db.Pool.Query(ctx, `
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
