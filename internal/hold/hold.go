// Package hold keeps what is deployed. A reporter, such as a cluster, a host or a pipeline, tells
// the registry which digests it runs. The registry then deletes none of them, nor anything that
// belongs to them, until the reporter drops them or is silent for longer than its lease.
//
// A [Report] is the whole list of a reporter's digests, or a difference to the last one. The
// lease is in the reporter's row, so a report that renews 100,000 digests changes one row. All
// holds of a reporter end together, by the database's clock, without a worker. A digest may be
// held before the registry has its manifest; [Reported] says which digests are missing.
//
// Auto-pruning, garbage collection and expiration dates don't delete a held manifest. A client
// deletes one only with override_holds. The function purser_held of the database
// (routines/holds.sql) says which manifests are held: those with the digests themselves, and
// their relatives. A push
// may still move a tag away from a held manifest, which then has no tag: garbage collection
// takes a hold for a reference, so it stays and can be pulled by its digest.
//
// # The protocol
//
// A hold that was acknowledged must hold against deletions that are under way. The rules:
//
//  1. Each transaction that deletes tags or manifests takes an advisory lock in shared mode
//     (purser_holds_lock), looks for holds in a later statement (purser_held), and then
//     deletes and commits.
//  2. A report writes its rows, then takes the same lock in exclusive mode, then writes its
//     entry of the audit log, commits, and only then answers. After the commit it looks for
//     the digests that the registry doesn't have.
//
// Transactions are READ COMMITTED, so a later statement sees all that was committed before it
// began. Take a report and a deletion of something that the report holds.
//
//   - If the deletion has the lock first, the report waits until the deletion has committed. So
//     the hold came after the deletion, and the report's answer counts the digest as missing.
//   - If the report has the lock first, the deletion's request for it waits until the report
//     has committed. The deletion's look is a later statement, so it sees the hold.
//   - While a report waits for the lock, further deletions queue behind it, since PostgreSQL
//     grants locks in the order of the requests. So a report waits for the deletions that have
//     begun, and for no others.
//   - A lease that ran out is renewed by a report, so the same holds for renewals. now() is
//     when a transaction began, so a deletion that began before the end of a lease still
//     respects it.
//   - If a deletion's process stalls, its transaction ends by its time limits. Until then
//     reports wait; after [Options.Patience] they fail, and nothing was acknowledged.
//
// A report looks at its reporter before the transaction too, and decides nothing by that: it only
// takes memory for what the transaction will read.
//
// Deletions don't wait for each other, and pushes and pulls take no such lock.
//
// A change of policies that keep untagged manifests follows the second rule too, see package
// autoprune: it takes the lock exclusively after all its other locks.
//
// # Order of locks
//
// The lock comes after every lock on the row of a namespace or a repository, and before the
// locks on all other rows, in transactions of clients as in those of workers (see package
// catalog). A report locks the namespace against deletion (KEY SHARE), its reporter's row, the
// rows of its holds, and last the lock, exclusively. No transaction that has the lock waits for
// a namespace, a reporter or a hold, so there is no cycle. A report that makes a reporter first
// takes a lock of all that make reporters in the namespace, before the reporter's row. Therefore the deletion of a
// repository or a namespace locks its row in a statement of its own before it takes the lock.
// If pruning upgrades its lock on a repository, or garbage collection waits for rows, their
// lock timeout is below deadlock_timeout, so that they are the losers, and not clients.
package hold

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/limit"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/worker"
)

// Bounds of reports.
const (
	DefaultMaxDigests = 200_000
	DefaultMaxLease   = 30 * 24 * time.Hour
	DefaultLease      = 24 * time.Hour
	MinLease          = time.Minute
	maxUsedBy         = 256     // bytes
	maxKind           = 64      // bytes
	maxReports        = 2       // that are handled at once
	maxWaiting        = 1 << 20 // more than ever wait in lines: those have no bound of their own
	// MaxMissing is how many missing digests an answer lists.
	MaxMissing = 100
)

// Options configure Holds.
type Options struct {
	DB *db.DB // required
	// MaxDigests is how many digests a reporter may hold. Default DefaultMaxDigests.
	MaxDigests int
	// MostReporters is how many reporters an account may have in a namespace, and how many for the
	// whole registry. Default 100.
	MostReporters int
	// MaxLease is the longest lease. Default DefaultMaxLease.
	MaxLease time.Duration
	// Patience is how long a report waits for locks, above all for deletions that are under
	// way. Default 20 s.
	Patience time.Duration
	// MayDelete returns an error that wraps worker.ErrRest while no reporter may be deleted for its
	// age (see package clock). Nil: they always may.
	MayDelete func(ctx context.Context) error
	// CheckTime is the same for what is old at a time that the database has given
	// (clock.Guard.CheckTime). Nil: it may.
	CheckTime func(ctx context.Context, now time.Time) error
	// Notify queues a notice in a transaction, and Notified is called after its commit. Nil:
	// there are no notices.
	Notify   func(ctx context.Context, tx db.Querier, event string, data any) error
	Notified func()
	Log      *slog.Logger          // default slog.Default()
	Metrics  prometheus.Registerer // default: a registry of its own
	Worker   *worker.Metrics       // nil: none
}

// Holds keeps the holds of all reporters.
type Holds struct {
	opt     Options
	db      *db.DB
	log     *slog.Logger
	metrics *metrics
	loop    *worker.Loop
	lines   *limit.Turns // of each account's and each namespace's reports: one is the next
	reports *limit.Turns // of the reports that are handled at once
}

// New makes Holds. Run starts the worker that watches the reporters.
func New(o Options) (*Holds, error) {
	if o.DB == nil {
		return nil, errors.New("hold: a database is required")
	}
	o.MaxDigests = cmp.Or(o.MaxDigests, DefaultMaxDigests)
	o.MostReporters = cmp.Or(o.MostReporters, maxReporters)
	o.MaxLease = cmp.Or(o.MaxLease, DefaultMaxLease)
	o.Patience = cmp.Or(o.Patience, 20*time.Second)
	o.Log = cmp.Or(o.Log, slog.Default())
	if o.Metrics == nil {
		o.Metrics = prometheus.NewRegistry()
	}
	h := &Holds{opt: o, db: o.DB, log: o.Log, metrics: newMetrics(o.Metrics), lines: limit.NewTurns(maxWaiting), reports: limit.NewTurns(maxReports)}
	h.loop = worker.New(worker.Options{Name: "hold_watcher", Log: o.Log, Metrics: o.Worker, Batch: h.watch})
	return h, nil
}

// MaxDigests returns how many digests a reporter may hold.
func (h *Holds) MaxDigests() int { return h.opt.MaxDigests }

// Run watches the reporters until ctx ends.
func (h *Holds) Run(ctx context.Context) error { return h.loop.Run(ctx) }

// Place is a reporter's name and where its holds are in force.
type Place struct {
	Namespace string // "": in the whole registry
	Reporter  string
}

func (p Place) String() string {
	if p.Namespace == "" {
		return p.Reporter
	}
	return p.Reporter + " of namespace " + p.Namespace
}

var namePattern = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._/-]{0,127}$`)

func (p Place) check() error {
	if !namePattern.MatchString(p.Reporter) {
		return invalid("reporter", "%q is no name of a reporter: it has up to 128 letters, digits, dots, slashes, dashes and underscores, and begins with a letter or a digit", p.Reporter)
	}
	return nil
}

// invalid returns the client's error for an invalid field.
func invalid(field, format string, args ...any) *oci.Error {
	return oci.Errorf(oci.Unsupported, field+": "+format, args...).WithStatus(http.StatusBadRequest).
		WithDetail(map[string]string{"field": field})
}

// unknown returns the client's error for a reporter that doesn't exist.
func (p Place) unknown() error {
	return oci.Errorf(oci.NameUnknown, "there is no reporter %s", p).WithDetail(map[string]string{"reporter": p.Reporter})
}

// namespace returns the id of the place's namespace, nil for the whole registry. If lock is
// set, it locks the namespace against deletion. Error: NAME_UNKNOWN.
func (p Place) namespace(ctx context.Context, q db.Querier, lock bool) (*int64, error) {
	if p.Namespace == "" {
		return nil, nil
	}
	sql := "SELECT id FROM live_namespaces WHERE name = $1"
	if lock {
		sql += " FOR KEY SHARE"
	}
	var id int64
	err := q.QueryRow(ctx, sql, p.Namespace).Scan(&id)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, oci.Errorf(oci.NameUnknown, "namespace %s is not known to this registry", p.Namespace).
			WithDetail(map[string]string{"name": p.Namespace})
	}
	if err != nil {
		return nil, fmt.Errorf("looking for namespace %s: %w", p.Namespace, err)
	}
	return &id, nil
}

// Holder is a reporter that holds something.
type Holder struct {
	Reporter string     `json:"reporter" doc:"Name of the reporter"`
	UsedBy   string     `json:"used_by,omitempty" doc:"What uses it there, such as a pod"`
	Digest   oci.Digest `json:"digest" doc:"The digest that is held: of the manifest itself, or of a relative, such as its index"`
	Expires  time.Time  `json:"expires_at" doc:"When the reporter's holds end, unless it reports again"`
}

// String describes the holder for people.
func (o Holder) String() string {
	text := o.Reporter
	if o.UsedBy != "" {
		text += " (" + o.UsedBy + ")"
	}
	return text + " until " + o.Expires.UTC().Format(time.RFC3339) + ", unless it reports again"
}
