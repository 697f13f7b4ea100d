// Package pullstats counts pulls: for each tag and each manifest it stores how many times it
// was pulled and when it was pulled last.
//
// The statistics may be stored in a database of their own (setting database.stats), on
// another server, so no statement of this package joins them with the catalog's tables. A
// tag or manifest that was not pulled since counting began has no row in the statistics and
// is left out of answers.
//
// Package statsdb adds pulls to the statistics. Package redispulls counts pulls in Redis,
// and flushes them into the statistics. This package counts pulls from the audit log, and
// has what both ways of counting share: the Recorder, which decides which of the two counts
// a pull and sends it there, and the Reader.
//
// # Why each pull counts once
//
// A [SyncWorker] reads pulls from the audit log in the order of (xid, id): the id of the
// transaction that wrote the entry, and the id of the entry itself. It is given each entry once,
// and none that comes before an entry that it was given earlier: see "How the log is followed"
// in package audit.
//
// The watermark is the position (xid, id) up to which the audit log was read. It is stored
// in the statistics' database. The transaction that adds a batch of pulls to the statistics
// also moves the watermark, and only if the watermark is still where it was when the batch
// was read. If two workers read the same entries, the second worker to commit finds the
// watermark moved and adds nothing. A worker that dies before its commit has neither moved
// the watermark nor added pulls; a worker that dies after its commit, or doesn't learn that
// the commit succeeded, has moved the watermark and added the pulls. Each batch begins by
// reading the watermark again. Entries that Redis counted are skipped, and the watermark
// moves over them too.
//
// An entry of the audit log may stand for several pulls; Pull.N is their number.
//
// At each moment the watermark divides the audit log into entries whose pulls are in the
// statistics and entries whose pulls are not. [SyncWorker.Uses] relies on this to find each
// pull either in the statistics or in the audit log. The manager of the audit log's
// partitions relies on it to drop no partition with unread entries.
//
// Some pulls are counted by Redis, in counters: keys that each count the pulls of one tag
// or manifest. [SyncWorker.Uses] reads the repository's counters before it reads the
// statistics. If a counter has expired before Uses looks for it, its pulls are in the
// statistics that Uses reads next.
//
// The SyncWorker locks the repositories of the entries that it counts until the statistics
// are committed. So a repository can be deleted only after that, and the clean-up that
// follows the deletion finds all statistics rows of the repository.
//
// A [Recorder] decides, when a client pulls, whether the SyncWorker or Redis counts the
// pull, and writes the decision into the pull's entry in the audit log (counted_by). If
// Redis refuses a pull, its entry says that the SyncWorker counts it. If Redis doesn't
// answer, the entry says that Redis counted the pull, whether or not Redis has done so. So
// no pull is counted twice, and an operator may switch between counting by the SyncWorker
// and counting in Redis at any time.
//
// # Why a pull in two requests counts for its tag
//
// A client may pull a tag by a HEAD by tag and a GET by digest, and two different processes
// may answer them. The two requests are joined, that is, counted as one pull of the tag, in
// one place: by the SyncWorker if the SyncWorker counts the GET, otherwise by Redis; never
// in a process's memory. The SyncWorker and Redis choose the HEAD for a GET by the same rule
// (function pick).
//
// An entry of the audit log may stand for several GETs or HEADs; it then has the time and
// the client's port of each of them. These requests are joined one by one, as if each had an
// entry of its own. Requests for which it can't be decided yet whether they are joined stay
// stored (in pullstatisticspending).
//
// HEADs are written to the table pullheads beside the audit log, and the SyncWorker reads
// them together with the log's entries, in the same order. It stores each HEAD in the table
// pullstatisticspending. When the worker reads a GET by digest, it counts the GET for the
// manifest at once and stores it in pullstatisticspending too. It joins the GET with a HEAD
// only when no earlier HEAD can be missing: all processes have reported that everything
// before the GET is written (written_to and heads_to, see presence), and the worker has read
// all that was written until then. So the result depends neither on the order of commits, nor on where batches
// end, nor on which process reads: GETs are joined in the order of their times. One
// transaction, which locks the watermark's row, counts a joined GET for the tag and deletes
// it from pullstatisticspending, so the GET counts once. Before that it locks the repositories of
// the GETs. If another worker has joined these GETs meanwhile, the transaction finds others: it
// joins those whose repositories it has locked, and leaves the rest to the next one, so that no GET
// is taken for one of a deleted repository.
//
// If Redis counts, a GET by digest is sent to Redis only when Redis has every HEAD that came
// before it: this process has sent its own, and the other processes have reported (sent_to) that
// they have. If that takes too long (digestPatience), because Redis is slow or hangs for one of
// the processes, the GET is counted from the audit log. Each HEAD and each GET has a name of its
// own in Redis: a HEAD that is sent again is stored once, and a repeated search for a GET's HEAD
// gives the same result.
//
// As soon as one process has GETs by digest counted from the audit log, it says so in its row
// (from_log), and all processes do the same and write to pullheads the HEADs that they had sent
// only to Redis, as well as the GETs that Redis has joined. Each process reports up to when its
// HEADs are in pullheads (heads_to). HEADs in a process's memory, and those that only Redis has,
// aren't. So the SyncWorker waits for them before it joins a GET, and it doesn't matter when
// which process notices that Redis hangs, nor whether Redis executes late what it was sent.
//
// If a HEAD is lost nevertheless, because memory is full or a process has something to write for
// longer than joinLate, uncounted_at moves, and with it Status.Counts.
//
// All times are by the clock of the statistics' database, exact to about a millisecond: each
// process measures the offset of its own clock from that clock and corrects its times.
//
// # Why no use is overlooked
//
// A judge is a worker that deletes a tag because nobody has used it. It must know all uses, also those
// that other processes have in memory. A judge calls [SyncWorker.Settle], then reads
// [SyncWorker.Status], and then [SyncWorker.Uses]. Settle takes a number from the sequence
// pullrecorders_asked, and waits until each row of pullrecorders whose process hasn't ended says
// one of two things: that the process has answered this number or a later one (answered), or that
// it has no unwritten use (written_to is NULL). The claim: Uses then finds each use that a client
// was answered before Settle was called, or Status.Since is later than that use.
//
// A process reports in this way: it reads the newest number N, and after that takes a mark, by its
// own monotonic clock, under a lock that no request holds between its beginning and its queue
// (presence.begin, end). A request that was answered before N was taken is thus in a queue, with
// a time of arrival (Came) before the mark, or written already. The process answers N when no
// queue has such a request any more, and the LastUsedRecorder, to which queues may have passed
// uses, has saved since then. No times of different machines are compared, so it doesn't matter
// what clocks show, or whether one is set meanwhile.
//
// A process with no unwritten use says so (written_to is NULL) and answers the next request only
// after it has changed its row (gate). So a judge that finds the row unchanged knows that the
// process has answered nothing since. A process inserts its row before its first answer
// (Recorder.Open). PostgreSQL may execute a statement late, when the process has given up on it and
// has reported something else. So reports are numbered, and an older one doesn't replace a later
// one; and a report without unwritten uses is executed within quietTimeout or not at all.
//
// These are the places where a use may wait, and why each holds back the judge:
//
//   - Between the request's beginning and a queue: the process's report waits for the lock.
//   - In the audit log's buffer, or in a batch that is being written or whose commit isn't
//     confirmed: an entry leaves the buffer when the commit is (audit.Recorder.Waits). If the log
//     has no room, or PostgreSQL refuses the entry, the use goes to the LastUsedRecorder, or
//     recorded_since moves before the process reports.
//   - In the queue for Redis, or in a batch on its way to Redis (redisQueue.waits). When it moves
//     to the audit log, it keeps its time of arrival, and is in one of the two queues at any time.
//     A pull that waits for a Redis that is away, without a log, holds nobody back once its use is
//     recorded by the LastUsedRecorder (markWaiting).
//   - In Redis: Uses reads the counters of Redis, and fails if it can't.
//   - In the audit log, uncounted: Uses reads the log after the watermark, whether or not older
//     transactions are open.
//   - In a flush or a batch of the SyncWorker that isn't committed yet: Redis keeps the counter,
//     and the log the entry, until Uses finds the pull in the statistics.
//   - In the LastUsedRecorder: a time that is to be written holds back the process's report. A
//     later use of a tag whose stored time is younger than lastUsedRefresh isn't written; Uses adds
//     lastUsedSlack to the stored time, which is more.
//     A time that is stored may be forgotten, so that memory has room for others: then the next use
//     is written at once. So nobody's uses are lost because somebody else asks for very many tags.
//     Only while the database can't be written may memory fill; then recorded_since moves, for all
//     repositories, before the process reports.
//   - As a HEAD that waits to be joined: the use itself is in the LastUsedRecorder.
//
// A process that is killed or hangs doesn't answer. Settle names it, and fails after some seconds,
// so nothing is deleted by last use. When the process's last report is older than a minute (or,
// if it had no unwritten use, ten times idleTick), and stays so for another confirmAfter, it
// counts as killed: its row is ended, and recorded_since moves to the present time in the same
// transaction, if it may have had unwritten uses. So a dead process holds judges back for a
// bounded time. A process that finds its own row ended inserts another one before it answers.
//
// One case is left: a process without unwritten uses that can't reach the statistics' database
// (see gate) answers requests after trustedFor. From trustedSilent on judges wait for it, but
// after ten times idleTick it counts as ended without unwritten uses. What it records then is in
// its memory until it reaches the database again. Serving doesn't depend on the statistics.
//
// # Clocks that are set
//
// If the database's clock was ahead for a while, stored times may be in the future. A mark such as
// recorded_since in the future is set to the present time by the SyncWorker (mendTimes): what it
// stands for has happened by now. A flush in the future counts as if there had been none. Uses in
// the future stay until an operator calls Reset, since they keep tags. A clock that was set
// forward makes all processes look silent; therefore a process counts as killed only if it is
// still silent when it is looked at again.
//
// # Transaction ids
//
// Each PostgreSQL server has its own sequence of transaction ids. After a restore the ids
// may begin anew, below the watermark or below the ids that entries of the audit log have.
// In both cases the SyncWorker notices it and counts nothing ([ErrForeignLog]), until an
// operator calls [SyncWorker.Reset], which gives the entries new positions in a valid
// order.
//
// # Decisions
//
// HEAD requests by tag may be kept in Redis or in the database. If pulls aren't logged, only Redis
// can keep the HEADs; while Redis is down, only the database can. A GET that Redis counts is joined
// with a HEAD in Redis, and a GET that the SyncWorker counts with a HEAD in the database. So each
// process must be able to write its HEADs to both.
//
// The time of a HEAD is stored only to within some minutes, so that not every HEAD is written to
// the database: nodes that ask for the same tag all day would otherwise cause writes all day.
//
// A request waits for a commit of the recorder only if it is the first after a pause: before it is
// answered, the process says in its row of pullrecorders that it may have uses in memory. If the
// recorder can't be sure that a pull will be counted, because a buffer is full or Redis doesn't
// answer, it also sets the last-used time, so that no policy deletes the image as unused.
package pullstats

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/pullstats/redispulls"
)

// Options configures a Reader.
type Options struct {
	DB *db.DB // required: the database of the statistics
	// Redis has pulls that aren't in the statistics' database yet. Nil if no Redis is
	// configured.
	Redis *redispulls.Client
	// Retention is how long the history is kept. 0: for ever.
	Retention time.Duration
}

// Reader reads pull statistics. Its methods may be called concurrently.
type Reader struct {
	stats *db.DB
	q     db.Querier // the pool of stats, or a transaction
	redis *redispulls.Client
	// retention is how long the history is kept. 0: for ever.
	retention time.Duration
	topDays   int64 // 0: MaxTopDays
}

// NewReader makes a reader.
func NewReader(o Options) (*Reader, error) {
	if o.DB == nil {
		return nil, errors.New("pullstats: a database is required")
	}
	return &Reader{stats: o.DB, q: o.DB.Pool, redis: o.Redis, retention: o.Retention}, nil
}

// Pulls are the statistics of one tag or one manifest: how many times and when last it was
// pulled.
type Pulls struct {
	Count int64
	Last  time.Time // zero: the time isn't known
}

// Tags returns the pull statistics of the tags `names` of a repository, as a map from tag
// name to statistics. It leaves out tags that have no statistics. The section "Plans" of
// package db explains OFFSET 0.
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

// Manifest returns the pull statistics of a repository's manifest, or a zero value if the
// manifest has none.
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
