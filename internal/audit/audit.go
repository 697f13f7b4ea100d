// Package audit is the log of who did what: the table auditlog, which only this
// package writes and reads.
//
// What changes data writes its entry in the same transaction: [Append] or [Queue]
// for who has the values, [InsertFrom] for a statement that learns them while it
// runs. Pulls change nothing, so a [Recorder] collects them and writes batches. A
// [Log] lists and exports, a [Keeper] looks after the partitions.
//
// # Why no entry is lost or there twice
//
// An entry of a change is there exactly if its change is, since both are one
// transaction. A process that dies leaves both or neither.
//
// An entry of a pull is in memory until its batch is committed, about a second. A
// process that is killed loses that second; one that is told to stop writes it
// (Recorder.Close). No pull fails because of the log. Every pull is in the log, in the
// buffer, or counted as dropped.
//
// Pulls of one thing by one client within a second (RecorderOptions.Join) are one entry,
// which says how many they are: Entry.Pulls. An entry takes pulls until the batch that
// writes it is made; from then on it never changes, so a repeated attempt writes the same.
// A reader that counts pulls adds up these numbers. An entry of pulls by digest has
// the time and the connection of each, since these tell which of them belong to HEADs: as
// many are joined as if each had its own entry.
//
// A full buffer takes pulls that can be joined with a waiting one, however long ago that
// was. Others wait for room (Recorder.Wait), as long as batches are written, a second at
// most. While the database is away, or hasn't answered for a second, nothing waits: what
// finds no room is dropped and counted.
//
// A batch whose commit was sent and not answered may or may not be there. Each
// entry has its time and its id before its first attempt, (time, id) is the
// primary key, and a repeated insert passes over what is there, waiting for an
// attempt that is still under way. Rows move between partitions by their time
// alone, so the repeated one meets the first wherever it is by then.
//
// A HEAD of a tag is no pull and has no entry. Where it may be the first half of one
// (Recorder.RecordHead), it is written beside the entries, in a table of its own, until
// the statistics have read it.
//
// The [Keeper] moves entries from the default partition to that of their month in
// the transaction that attaches it: readers see an entry in one of them, never in
// both or none, and a crash leaves all as it was. It locks out writers for that
// moment: one that had chosen the default partition before would be refused by
// it. A month is dropped only when its pulls have been read: it is detached
// first, which waits for writers, and searched then, in the same transaction.
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

	"github.com/purser-registry/purser/internal/oci"
)

// Who counts a pull, as its entry says.
const (
	CountedByAudit = "audit" // the worker that reads this log
	CountedByRedis = "redis" // it was counted in Redis
	CountedByNone  = "none"  // it isn't to be counted
)

// Actors of the registry's own. No account is called so, since names of accounts have no
// space.
const (
	// ActorAutoprune deletes tags by policies. Quay's worker has this name in its log.
	ActorAutoprune = "autoprune worker"
	// ActorExpiration deletes tags at the date that they have.
	ActorExpiration = "expiration worker"
)

// Entry is one line of the log. Zero values are absent. Texts are kept up to 1 KiB,
// and made valid where they aren't: a client's header must not fail its push.
type Entry struct {
	ID int64 `json:"id"` // given by the log
	// Time is when it happened. Zero: when its transaction began, by the
	// database's clock. Of several pulls it is that of the last.
	Time      time.Time `json:"time"`
	Kind      Kind      `json:"kind"`
	Actor     string    `json:"actor,omitempty"` // account, one of the registry's own, or "" for nobody known
	Address   string    `json:"address,omitempty"`
	UserAgent string    `json:"user_agent,omitempty"`
	RequestID string    `json:"request_id,omitempty"`
	// Namespace is by default the first part of Repository.
	Namespace  string `json:"namespace,omitempty"`
	Repository string `json:"repository,omitempty"` // path; stays when the repository goes
	// RepositoryID is 0 once the repository is gone.
	RepositoryID int64      `json:"repository_id,omitempty"`
	Tag          string     `json:"tag,omitempty"`
	Digest       oci.Digest `json:"digest,omitzero"`
	Policy       uuid.UUID  `json:"policy,omitzero"` // of auto-pruning
	Run          uuid.UUID  `json:"run,omitzero"`    // of auto-pruning
	// Detail is whatever else there is to say, as a JSON object. An entry that was
	// read has a json.RawMessage.
	Detail    any    `json:"detail,omitempty"`
	CountedBy string `json:"counted_by,omitempty"` // of a pull
	// Pulls is how many pulls an entry of pulls is of, and FirstTime when the first of
	// several was. 0 is written as 1; what is listed has 0 where the entry is of no pull.
	Pulls     int       `json:"pulls,omitempty"`
	FirstTime time.Time `json:"first_time,omitzero"`
	// RedisSeq is the number that Redis has given a pull which it counts. It is 0 in what
	// is listed.
	RedisSeq int64 `json:"-"`
	// Port is the client's, of the connection that a pull came by. It is 0 in what is
	// listed.
	Port int `json:"-"`
	// later has the requests behind the first, of several pulls by digest or HEADs: see Requests.
	later []byte
}

// pulls is how many pulls, or HEADs, the entry is of.
func (e *Entry) pulls() int { return max(e.Pulls, 1) }

// Client names who sent a request, as far as that is known, and the manifest that it
// is about: account, address, User-Agent, repository and digest.
func (e Entry) Client() ClientKey {
	return clientKey(clean(e.Actor), clean(e.Address), clean(e.UserAgent), e.RepositoryID, e.Digest)
}

// ClientKey is the same for requests of one client about one manifest.
type ClientKey [16]byte

func clientKey(actor, address, agent string, repository int64, d oci.Digest) ClientKey {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %q %d %s", actor, address, agent, repository, d))
	return ClientKey(sum[:len(ClientKey{})])
}

// Source is who asks, and from where.
type Source struct {
	Actor     string // account
	Address   string // of the client
	UserAgent string
	RequestID string
}

type sourceKey struct{}

// WithSource returns a context whose entries are of this source, unless they name
// their own.
func WithSource(ctx context.Context, s Source) context.Context {
	return context.WithValue(ctx, sourceKey{}, s)
}

// SourceOf is the source that a context carries, or none.
func SourceOf(ctx context.Context) Source {
	s, _ := ctx.Value(sourceKey{}).(Source)
	return s
}

// from fills in what the entry doesn't say of its source.
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

// Execer runs a statement: a transaction, usually.
type Execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// Append writes entries in the caller's transaction, in one statement however many
// they are. The context's source is theirs.
func Append(ctx context.Context, tx Execer, entries ...Entry) error {
	if len(entries) == 0 {
		return nil
	}
	args, err := arguments(SourceOf(ctx), entries)
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, insertEntries, args...); err != nil {
		return fmt.Errorf("writing the audit log: %w", err)
	}
	return nil
}

// Queue adds to a batch what Append does, for a transaction of one round trip.
func Queue(ctx context.Context, b *pgx.Batch, entries ...Entry) error {
	if len(entries) == 0 {
		return nil
	}
	args, err := arguments(SourceOf(ctx), entries)
	if err != nil {
		return err
	}
	b.Queue(insertEntries, args...).Exec(func(pgconn.CommandTag) error { return nil })
	return nil
}

// InsertFrom is a statement that writes an entry for each row of a query, for a
// change that learns only in the database what it changed. The query's columns are
// kind, namespace, repository, repository_id, tag, digest (bytes), policy, run and
// detail (jsonb), by these names and in any order; NULL is absent. The statement's
// first four arguments are those of Who; the query's own begin with $5. It may
// follow a WITH that changes data:
//
//	"WITH gone AS (DELETE … RETURNING …) " + InsertFrom("SELECT … FROM gone")
//
// A package below this one is given both functions by who makes it.
func InsertFrom(query string) string {
	return `INSERT INTO auditlog (actor, address, user_agent, request_id,
			kind, namespace, repository, repository_id, tag, digest, policy, run, detail)
		SELECT NULLIF($1::text, ''), NULLIF($2::text, ''), NULLIF($3::text, ''), NULLIF($4::text, ''),
			e.kind, e.namespace, e.repository, e.repository_id, e.tag, e.digest, e.policy, e.run, e.detail
		FROM (` + query + `) e`
}

// Who are the first four arguments of a statement of InsertFrom: the context's
// source.
func Who(ctx context.Context) []any {
	s := SourceOf(ctx)
	return []any{clean(s.Actor), clean(s.Address), clean(s.UserAgent), clean(s.RequestID)}
}

// raw is the detail of an entry that was read.
func raw(b []byte) any {
	if b == nil {
		return nil
	}
	return json.RawMessage(b)
}
