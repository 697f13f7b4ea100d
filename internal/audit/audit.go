// Package audit is the audit log: it records who did what.
//
// A transaction that changes data also writes the entry of the change: with [Append] or
// [Queue] where the caller has the values. A statement that learns while it runs what it
// changes inserts the entries into the table, auditlog, by itself, with the arguments of
// [Args]; package catalog has such statements. Only this package reads the table. A pull
// changes nothing, so a [Recorder] collects the entries of pulls and writes them in
// batches. A [Log] lists and exports entries. A [PartitionManager] creates and drops the
// monthly partitions.
//
// The log is locked last: a transaction that has written an entry sends no statement that
// asks for further locks. The [PartitionManager] locks the log for a moment now and then,
// and waits for the transactions that have written to it; if one of them waited for another
// transaction, and that one for the log, PostgreSQL would end one of the two as a deadlock.
// So the statement that makes the change also writes the entries, or the last statement of
// its transaction does. This costs no round trip either. Triggers that run after such a
// statement may still lock rows of the review queues, so a deadlock remains possible, but
// rare; the transaction that PostgreSQL ends is run again.
//
// # Why no entry is lost or written twice
//
// The entry of a change exists exactly if the change does, since one transaction writes
// both. A process that dies leaves both or neither.
//
// The entry of a pull stays in memory until its batch is committed, which takes about a
// second. A process that is killed loses that second; a process that is told to stop writes
// it (Recorder.Close). No pull fails because of the log. Every pull is in the log, in the
// buffer, or counted as dropped.
//
// The recorder joins pulls of the same manifest or blob, by the same client, within a
// second (RecorderOptions.Join), into one entry, and Entry.Pulls is their number. An entry
// takes further pulls until its batch is made up. From then on it never changes, so a
// repeated attempt writes the same. A reader that counts pulls adds up these numbers. An
// entry of pulls by digest keeps the time and the client's port of each pull, since these
// tell which of the pulls belong to earlier HEADs: the statistics join as many with HEADs
// as if each pull had its own entry.
//
// A full buffer still takes a pull that can be joined with a waiting entry, however old
// that entry is. Other pulls wait for room (Recorder.Wait) while batches are being written,
// a second at most. While the database is away, or hasn't answered for a second, no pull
// waits: a pull that finds no room is dropped and counted.
//
// When the commit of a batch was sent and not answered, the batch may or may not be in the
// table. Therefore each entry gets its time and its id before its first attempt, and (time,
// id) is the primary key: a repeated insert skips the entries that exist, and waits for an
// attempt that is still under way. An entry's partition depends on its time alone, so a
// repeated insert meets the first one in whichever partition it is by then.
//
// A HEAD of a tag is no pull and has no entry. Where it may be the first half of a pull
// (Recorder.RecordHead), it is written to a table of its own, pullheads, until the
// statistics have read it.
//
// The [PartitionManager] moves entries from the default partition to a month's partition in
// the transaction that attaches the partition, so a crash leaves everything as it was. While
// it attaches the partition, it locks the whole log: otherwise a writer that had chosen the
// default partition earlier would be refused by that partition's new bounds, and a reader
// that had been planned earlier would look for the moved entries in the default partition
// alone. So readers see an entry in one partition, never in both or none. A month is
// dropped only when its pulls have been read: one transaction detaches the month's
// partition, which waits for writers, and then searches it for unread pulls.
package audit

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
)

// CountedBy… are the values of Entry.CountedBy: what counts a pull for the statistics.
const (
	CountedByAudit = "audit" // the statistics worker that reads this log
	CountedByRedis = "redis" // it was counted in Redis
	CountedByNone  = "none"  // nothing is to count it
)

// The registry's own workers as actors. No account can have these names, since names of
// accounts contain no space.
const (
	// ActorAutoprune deletes tags by policies. Quay's worker has this name in its log.
	ActorAutoprune = "autoprune worker"
	// ActorExpiration deletes tags at their expiration date.
	ActorExpiration = "expiration worker"
)

// Entry is one line of the log. Zero values are absent. Texts are cut at 1 KiB and made
// valid UTF-8: a client's header must not fail its push.
type Entry struct {
	ID int64 `json:"id"` // given by the log
	// Time is when the event happened; zero: when the transaction began, by the database's
	// clock. An entry of several pulls has the time of the last.
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
	Run          uuid.UUID  `json:"run,omitzero"`    // of auto-pruning
	// Detail is anything further, as a JSON object. Entries that were read from the log
	// have a json.RawMessage.
	Detail    any    `json:"detail,omitempty"`
	CountedBy string `json:"counted_by,omitempty"` // for pulls: one of the CountedBy… values
	// Pulls is the number of pulls in an entry of pulls, and FirstTime the time of the
	// first if there are several. 0 is written as 1. In listed entries it is 0 for other
	// kinds.
	Pulls     int       `json:"pulls,omitempty"`
	FirstTime time.Time `json:"first_time,omitzero"`
	// RedisSeq is the sequence number that Redis gave to a pull which it counts. Listed
	// entries have 0.
	RedisSeq int64 `json:"-"`
	// Port is the client's port on the connection of the pull. Listed entries have 0.
	Port int `json:"-"`
	// later encodes the requests after the first, for several pulls by digest or HEADs: see
	// Requests.
	later []byte
}

// pulls returns the number of pulls, or of HEADs, in the entry.
func (e *Entry) pulls() int { return max(e.Pulls, 1) }

// Client returns a key of the client that sent the request, as far as the client is known,
// and of the requested manifest: a hash of account, address, User-Agent, repository and
// digest.
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

// WithSource returns a context that carries s: entries written with it get this source,
// unless they name their own.
func WithSource(ctx context.Context, s Source) context.Context {
	return context.WithValue(ctx, sourceKey{}, s)
}

// SourceOf returns the source that a context carries, or the zero Source.
func SourceOf(ctx context.Context) Source {
	s, _ := ctx.Value(sourceKey{}).(Source)
	return s
}

// from fills in those fields of the source that the entry leaves empty.
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

// Append writes entries in the caller's transaction, in one statement regardless of their
// number. They get the context's source.
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

// Queue adds the statement of Append to a batch, for a transaction of one round trip.
func Queue(ctx context.Context, b *pgx.Batch, entries ...Entry) error {
	if len(entries) == 0 {
		return nil
	}
	args, err := arguments(SourceOf(ctx), entries)
	if err != nil {
		return err
	}
	b.Queue(insertEntries, args).Exec(func(pgconn.CommandTag) error { return nil })
	return nil
}

// Args adds the values that identify the requesting client to args, the arguments of a
// statement that inserts entries itself: @actor, @address, @user_agent and @request_id,
// from the context's source. A field that is empty in the source becomes NULL. Args returns
// args.
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

// raw returns an entry's detail as a json.RawMessage, nil if the entry has none.
func raw(b []byte) any {
	if b == nil {
		return nil
	}
	return json.RawMessage(b)
}
