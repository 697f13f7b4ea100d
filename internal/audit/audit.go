// Package audit is the audit log: it records who did what.
//
// A transaction that changes data also writes the entry of the change. Callers that know
// the entry's values use [Append]. Some SQL statements, such as those of
// package catalog, learn only while they run what they change; they insert the entries
// into the table auditlog themselves, with the arguments of [Args]. Only this package
// reads that table. A pull changes no data: a [Recorder] collects the entries of pulls in
// memory and writes them in batches. A [Log] lists and exports entries. A
// [PartitionManager] creates and drops the table's monthly partitions.
//
// A transaction locks the table auditlog last: after it has written an entry, it sends no
// statement that asks for further locks. The reason is the [PartitionManager]: now and
// then it locks the table for a moment, and waits for the transactions that have written
// to it. If one of these then waited for a second transaction, and the second waited for
// the table, PostgreSQL would abort one of them as a deadlock. So entries are written by
// the statement that makes the change, or by the last statement of its transaction. This
// costs no additional round trip. Triggers that run after that statement may still lock
// rows of the review queues, so a deadlock remains possible, but rare; the caller runs the
// aborted transaction again.
//
// # Why no entry is lost or written twice
//
// One transaction writes a change and its entry. So either both exist or neither does,
// even if the process dies.
//
// The entry of a pull stays in memory until its batch is committed, which takes about a
// second. A process that is killed loses the entries in memory; a process that stops in
// order writes them (Recorder.Close). No pull fails because its entry can't be written. In
// a running process every pull is in the table, in the recorder's buffer, or counted as
// dropped.
//
// If one client pulls the same manifest or blob several times within a second
// (RecorderOptions.Join), the recorder writes one entry for these pulls, and Entry.Pulls is
// their number. Whoever counts pulls must add up Entry.Pulls. An entry accepts further
// pulls until its batch is assembled; after that it never changes, so a repeated attempt to
// write the batch inserts the same values. An entry of pulls by digest keeps the time and
// the client's port of each pull, because the pull statistics (package pullstats) use both
// to decide which of the pulls belong to earlier HEAD requests. Thus joining pulls into
// entries doesn't change how many such pairs of HEAD and GET the statistics find.
//
// Even a full buffer accepts a pull that can be joined with an entry in it. Then the pull may
// come later than RecorderOptions.Join after the entry's first pull (but at most MaxSpan later,
// if the entry is of pulls by digest). Other pulls wait until a written batch leaves the buffer
// (Recorder.Wait), a second at most. If the database is unreachable, or hasn't answered for a
// second, no pull waits: a pull that doesn't fit into the buffer is dropped, and the recorder
// counts it as dropped.
//
// If PostgreSQL doesn't answer the commit of a batch, the entries may or may not be in the
// table, and the recorder inserts them again. Therefore each entry gets its time and id
// before the first attempt, and (time, id) is the table's primary key: the repeated insert
// skips entries that exist, and waits while the first attempt is still running. The
// entry's time alone decides its partition, so both attempts insert into the same
// partition, and the primary key rejects the duplicate, also when the entry was moved to
// another partition in between.
//
// A HEAD request for a tag is no pull and gets no entry. But the client may continue with a
// GET by digest, and HEAD and GET together are one pull of the tag. Therefore
// Recorder.RecordHead writes the HEAD to the separate table pullheads, where it stays until
// the worker of the pull statistics has read it.
//
// The [PartitionManager] moves a month's entries from the default partition to the month's
// own partition, in the transaction that attaches this partition; a crash undoes both.
// While it attaches the partition, it locks the whole table auditlog, for two reasons. A
// writer that had already chosen the default partition would otherwise fail, since the
// default partition no longer accepts that month. And a reader whose query was planned
// before would look for the moved entries in the default partition only. So each reader
// sees an entry exactly once.
//
// The partition manager drops a month only after the statistics worker has read its pulls.
// In one transaction it detaches the month's partition, for which it waits until no writer
// uses the table, and then searches the partition for unread pulls. If it finds one, it
// rolls back, and the partition stays attached.
//
// # How the log is followed
//
// Two readers follow the log. The worker of the pull statistics (package pullstats) reads pulls and
// HEADs by [Log.Pulls]. The dispatcher of webhooks (package webhook) reads changes by [Changes], and
// counts pulls by [CountPulls]. All three read in the order of (xid, id), where xid is the id of the
// transaction that wrote the entry, and id that of the entry. They read only entries whose xid is
// less than xmin, the least id of a transaction that is open in the statement's snapshot. A reader
// keeps the [Position] of the last entry that it was given, and goes on from there. So it is given
// each committed entry once:
//
//   - All transactions with ids below xmin have ended. What they have committed is visible to the
//     statement, and they write nothing any more. A later transaction gets a greater id. So the
//     entries below xmin are the same for ever, and the statement returns those after the reader's
//     position, the first ones if there are more than its limit. It leaves out none between two.
//   - The reader's new position is below xmin too, so no entry can appear before it later.
//   - The next statement has the same xmin or a greater one. An entry that was left out, because an
//     older transaction was open, comes after the position, and is read when its turn comes.
//
// Order by entry id or by time doesn't have these properties: an entry may be committed after an entry
// with a greater id.
//
// Each reader moves its position in the transaction that uses the entries: it counts pulls or writes
// notices. So both happen or neither, and of two processes that have read the same entries one alone
// moves the position. How a reader makes sure of that is written in its package.
//
// Two functions change the xid of entries: [Log.CountAgain], after Redis has lost pulls, and
// [ResetPulls], after a restore. They give a pull that the statistics lack the id of their own
// transaction. It is open, so the pull comes after the position of every reader. A dispatcher of
// webhooks that has read this pull before reads it again, and tells of it twice.
//
// # Decisions
//
// The two readers share the order, its argument and [Position], and not the loop that reads and moves
// a position. A loop for both would have an option for one of them in each of these points:
//
//   - The position of the statistics is in their database, which may be on another server. So they read
//     the log without a lock, lock the repositories of the pulls in the log's database, and then move
//     the position only if nobody else has moved it. The position of webhooks is beside the log: the
//     dispatcher locks it first, and another process that finds it locked does nothing.
//   - If transaction ids begin anew, the order is lost. The statistics then count nothing until
//     ResetPulls has made a new order, since pulls would be counted twice or not at all. Webhooks tell
//     of what happens from then on.
//   - The statistics read pulls one by one, with the HEADs of another table in the same order, and
//     look at entries that can't be read yet: PullsOf for last uses, OldestUnread for what may be
//     joined. Webhooks read changes by whole transactions, since each transaction is told of at once,
//     and have the database add up as many pulls as it can.
//   - The partition manager waits for the statistics, and not for webhooks.
package audit

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
)

// These are the values of Entry.CountedBy, which says where a pull is counted for the pull
// statistics.
const (
	CountedByAudit = "audit" // the statistics worker that reads this log
	CountedByRedis = "redis" // it was counted in Redis
	CountedByNone  = "none"  // nothing is to count it
)

// These are the actors of entries that the registry's own workers write. No account can
// have such a name, since names of accounts contain no space.
const (
	// ActorAutoprune is the actor of deletions by auto-pruning policies. Quay's log has the
	// same name for its own pruning worker.
	ActorAutoprune = "autoprune worker"
	// ActorExpiration is the actor of deletions of tags that have reached their expiration
	// date.
	ActorExpiration = "expiration worker"
	// ActorHolds is the actor of entries about reporters of holds that are silent.
	ActorHolds = "hold watcher"
)

// Entry is one entry of the audit log. A field with its zero value is absent. Texts are cut
// at 1 KiB and made valid UTF-8; otherwise a strange header of a client could make the
// client's push fail, because its entry couldn't be written.
type Entry struct {
	ID int64 `json:"id"` // given by the log
	// Time is when the event happened. If it is zero, the entry gets the time at which the
	// transaction began, by the database's clock. An entry of several pulls has the time
	// of the last pull.
	Time      time.Time `json:"time"`
	Kind      Kind      `json:"kind"`
	Actor     string    `json:"actor,omitempty"` // account, one of the registry's own workers, or "" if unknown
	Address   string    `json:"address,omitempty"`
	UserAgent string    `json:"user_agent,omitempty"`
	RequestID string    `json:"request_id,omitempty"`
	// Namespace is by default the first part of Repository.
	Namespace  string `json:"namespace,omitempty"`
	Repository string `json:"repository,omitempty"` // path; kept after the repository is deleted
	// RepositoryID is 0 once the repository is deleted.
	RepositoryID int64      `json:"repository_id,omitempty"`
	Tag          string     `json:"tag,omitempty"`
	Digest       oci.Digest `json:"digest,omitzero"`
	Policy       uuid.UUID  `json:"policy,omitzero"` // of auto-pruning
	// Run is a run of auto-pruning or, in entries about tags that a client deletes by a pattern or
	// restores after that, the deletion.
	Run uuid.UUID `json:"run,omitzero"`
	// Detail has further facts about the event, as a JSON object. In entries that were
	// read from the table it is a json.RawMessage.
	Detail    any    `json:"detail,omitempty"`
	CountedBy string `json:"counted_by,omitempty"` // for pulls: one of the CountedBy… values
	// Pulls is the number of pulls that an entry of pulls stands for; 0 is written as 1.
	// FirstTime is the time of the first pull, if there are several. In listed entries of
	// other kinds, Pulls is 0.
	Pulls     int       `json:"pulls,omitempty"`
	FirstTime time.Time `json:"first_time,omitzero"`
	// RedisSeq is the sequence number that Redis gave to a pull which Redis counts. It is
	// 0 in listed entries.
	RedisSeq int64 `json:"-"`
	// Port is the client's port on the connection over which the pull came. It is 0 in
	// listed entries.
	Port int `json:"-"`
	// Came is when the request of a pull came, by this process's monotonic clock; of several
	// requests, the first. It isn't written. Recorder.Waits goes by it. Zero: when the entry was
	// given to the Recorder.
	Came time.Time `json:"-"`
	// later is set in an entry that stands for several pulls by digest or several HEADs. It
	// encodes the time and port of all these requests but the first: see Requests.
	later []byte
}

// pulls returns the number of pulls, or of HEADs, in the entry.
func (e *Entry) pulls() int { return max(e.Pulls, 1) }

// setNamespace sets the entry's namespace, if it has none, to the first part of its repository.
func (e *Entry) setNamespace() {
	if e.Namespace == "" {
		e.Namespace, _, _ = strings.Cut(e.Repository, "/")
	}
}

// Client returns a hash of account, address, User-Agent, repository and digest. It is
// equal for requests that the same client sends for the same manifest, as far as these
// fields tell clients apart.
func (e Entry) Client() ClientKey {
	return clientKey(clean(e.Actor), clean(e.Address), clean(e.UserAgent), e.RepositoryID, e.Digest)
}

// ClientKey is equal for requests of one client for one manifest.
type ClientKey [16]byte

func clientKey(actor, address, agent string, repository int64, d oci.Digest) ClientKey {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %q %d %s", actor, address, agent, repository, d))
	return ClientKey(sum[:len(ClientKey{})])
}

// Source says who sent a request, and from where.
type Source struct {
	Actor     string // account
	Address   string // of the client
	UserAgent string
	RequestID string
}

type sourceKey struct{}

// WithSource returns a context that carries `s`. Entries that are written with this context
// get the account, address, User-Agent and request id of s, unless an entry has its own
// values.
func WithSource(ctx context.Context, s Source) context.Context {
	return context.WithValue(ctx, sourceKey{}, s)
}

// SourceOf returns the source that a context carries, or the zero Source.
func SourceOf(ctx context.Context) Source {
	s, _ := ctx.Value(sourceKey{}).(Source)
	return s
}

// from returns a copy of the entry in which the fields actor, address, User-Agent and
// request id have the values of `s`, each only if the entry has no value of its own.
func (e Entry) from(s Source) Entry {
	for _, f := range []struct {
		field *string
		value string
	}{{&e.Actor, s.Actor}, {&e.Address, s.Address}, {&e.UserAgent, s.UserAgent}, {&e.RequestID, s.RequestID}} {
		if *f.field == "" {
			*f.field = f.value
		}
	}
	return e
}

// Append writes entries in the transaction `tx` of the caller, in one statement regardless
// of their number. Fields that an entry leaves empty are filled from the context's source
// (WithSource).
func Append(ctx context.Context, tx db.Querier, entries ...Entry) error {
	if len(entries) == 0 {
		return nil
	}
	args, err := arguments(SourceOf(ctx), entries)
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, insertEntries, args); err != nil {
		return fmt.Errorf("writing the audit log: %w", err)
	}
	return nil
}

// Args prepares the arguments of an SQL statement that inserts entries itself. It adds
// @actor, @address, @user_agent and @request_id to `args`, from the context's source
// (WithSource), and returns args. A field that is empty in the source becomes NULL.
func Args(ctx context.Context, args db.Args) db.Args {
	s := SourceOf(ctx)
	args["actor"], args["address"] = textOrNull(s.Actor), textOrNull(s.Address)
	args["user_agent"], args["request_id"] = textOrNull(s.UserAgent), textOrNull(s.RequestID)
	return args
}

func textOrNull(s string) any {
	if s == "" {
		return nil
	}
	return clean(s)
}

// raw returns an entry's detail as a json.RawMessage, or nil if the entry has none.
func raw(b []byte) any {
	if b == nil {
		return nil
	}
	return json.RawMessage(b)
}
