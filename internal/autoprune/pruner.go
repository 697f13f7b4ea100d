package autoprune

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/autoprune/snapshot"
	"github.com/purser-registry/purser/internal/autoprune/warnings"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/judge"
	"github.com/purser-registry/purser/internal/policy"
	"github.com/purser-registry/purser/internal/worker"
)

// Options configures a Pruner.
type Options struct {
	DB      *db.DB           // required
	Catalog *catalog.Catalog // required; of the same database
	// Background is the connection pool with which workers read and delete tags. Its
	// db.Options.Replica must be empty: otherwise the database would notify the caches of
	// other processes of the deletions, but not the cache of this process. Its LockTimeout
	// is short. Default DB.
	Background *db.DB
	// Interval is the least time between two runs in the same namespace. Default 30 s.
	Interval time.Duration
	// Lease is how long a worker keeps a namespace's task after it last renewed its lease;
	// then another worker may claim the task. It should be several times as long as the
	// deletion of a batch of tags takes. Default 1 min.
	Lease time.Duration
	// Turn is the length of a time slice: about how long a worker prunes one namespace
	// before it takes the next. Default 10 s.
	Turn time.Duration
	// Batch is how many tags are deleted in a transaction. Default 1,000.
	Batch int
	// Page is how many tags, or repositories, are read from the database at a time. Default
	// 5,000.
	Page int
	// IdleShare is the share of its time that a worker may spend on namespaces in which it
	// has nothing to do; it sleeps for the remainder, unless an unfinished run waits. Default 0.01.
	IdleShare float64
	// KeepRuns is how long runs are remembered. Default 90 days.
	KeepRuns time.Duration
	// Default is the default policy of the configuration, which Run stores in the database.
	// Nil: the configuration has none, and Run deletes the default policy that another
	// configuration has stored.
	Default *policy.Policy
	// MostPolicies is how many policies a repository, a namespace or the registry may have:
	// judge.MaxScopePolicies at most, which is the default.
	MostPolicies int
	// Grace is the grace period of policies that don't have their own. Default none.
	Grace time.Duration
	// JudgeWithin is how long it may take to judge a policy that a client saves. A run judges a
	// policy for this long too, and at least for the length of a time slice. Default 5 s.
	JudgeWithin time.Duration
	// Pulls returns how far the pull statistics can be trusted. Nil: there are no
	// statistics.
	Pulls func(ctx context.Context) (judge.PullRecord, error)
	// Used sets the last-used times of the given tags of a repository. It is called only
	// for tags that a last_pulled policy may select. Nil: last-used times aren't known.
	Used func(ctx context.Context, repository int64, tags []*judge.Tag) error
	// Settle waits until every process has written the uses of tags that it answered before the
	// call to where Used finds them. It returns an error if a process doesn't do so in time; the
	// tags whose last use matters then stay. Nil: Used finds every use at once.
	Settle func(ctx context.Context) error
	// Clock tells whether tags may be deleted for their age now. Nil: they always may.
	Clock Clock
	// Store is where the blobs are, for the configurations of images. Nil: policies with the
	// selectors labels or platforms select nothing.
	Store snapshot.Store
	// Notify queues a notice for webhooks in the given transaction. Nil: no notices are
	// sent.
	Notify func(ctx context.Context, tx db.Querier, event string, data any) error
	// Notified is called when notices were committed.
	Notified func()
	Log      *slog.Logger          // default slog.Default()
	Metrics  prometheus.Registerer // nil: none
	Worker   *worker.Metrics       // nil: none
}

// Clock tells whether the clocks are fit to delete by; see package clock. Its errors that wrap
// worker.ErrRest say why they aren't.
type Clock interface {
	Check(ctx context.Context) error
	// CheckTime is Check for a time that the database has just given.
	CheckTime(ctx context.Context, now time.Time) error
}

// Pruner prunes by policies. Its methods may be called concurrently, and
// any number of processes may have a Pruner on the same database.
type Pruner struct {
	// Policies stores the policies by which the pruner prunes. Repositories reads what they judge. Warnings
	// finds what they surely weren't meant to do. All have the pruner's options.
	Policies     *policies.Store
	Repositories *snapshot.Reader
	Warnings     *warnings.Finder

	opt     Options
	db      *db.DB
	catalog *catalog.Catalog
	log     *slog.Logger
	metrics *metrics
	loop    *worker.Loop

	configured         bool          // used by the loop alone: the default policy of the configuration is stored
	ensured, housekept time.Time     // by the loop alone
	rest               time.Duration // before the next time slice
	clocks             *string       // by the loop alone: what tellClocks has told; nil: it isn't known
	turns              turns
	// logged has the unreadable policies that this process has logged: the text of each
	// policy's problem, by the policy's id.
	logged map[string]string

	lookFor time.Duration // the constant lookFor, except in tests
}

// New makes a pruner. It prunes nothing before Run.
func New(o Options) (*Pruner, error) {
	if o.DB == nil || o.Catalog == nil {
		return nil, errors.New("autoprune: a database and a catalog are needed")
	}
	o.Background = cmp.Or(o.Background, o.DB)
	o.Interval = cmp.Or(o.Interval, 30*time.Second)
	o.Lease = cmp.Or(o.Lease, time.Minute)
	o.Turn = cmp.Or(o.Turn, 10*time.Second)
	o.JudgeWithin = cmp.Or(o.JudgeWithin, 5*time.Second)
	o.Batch = cmp.Or(o.Batch, 1000)
	o.Page = cmp.Or(o.Page, 5000)
	o.IdleShare = cmp.Or(o.IdleShare, 0.01)
	o.KeepRuns = cmp.Or(o.KeepRuns, 90*24*time.Hour)
	o.Log = cmp.Or(o.Log, slog.Default())
	m := newMetrics(o.Metrics)
	p := &Pruner{opt: o, db: o.DB, catalog: o.Catalog, log: o.Log, metrics: m, logged: make(map[string]string), lookFor: lookFor}
	p.Policies = policies.New(policies.Options{DB: o.DB, Catalog: o.Catalog, MostPolicies: o.MostPolicies, Grace: o.Grace, Pulls: o.Pulls, Log: o.Log})
	p.Repositories = snapshot.New(snapshot.Options{DB: o.DB, Background: o.Background, Page: o.Page, Used: o.Used, Settle: o.Settle, Store: o.Store, Log: o.Log})
	p.Warnings = warnings.New(warnings.Options{Repositories: p.Repositories, Policies: p.Policies, Within: o.JudgeWithin})
	p.loop = worker.New(worker.Options{
		Name: "autoprune", Batch: p.work, Next: p.next, Timeout: time.Hour, // a time slice shares its time
		Log: o.Log, Metrics: o.Worker,
	})
	return p, nil
}

// mayDelete returns an error while no tag may be deleted for its age.
func (p *Pruner) mayDelete(ctx context.Context) error {
	if p.opt.Clock == nil {
		return nil
	}
	return p.opt.Clock.Check(ctx)
}

// mayJudge is mayDelete for tags that are judged at the time `now`, which the database has just given.
func (p *Pruner) mayJudge(ctx context.Context, now time.Time) error {
	if p.opt.Clock == nil {
		return nil
	}
	return p.opt.Clock.CheckTime(ctx, now)
}

// Run prunes until ctx ends, which also cancels the time slice that is under way. It
// returns nil once this time slice has ended, or worker.ErrRunning if Run was already
// running.
func (p *Pruner) Run(ctx context.Context) error { return p.loop.Run(ctx) }

type metrics struct {
	deleted, observed, asks, rests, slices, failures, busy, unsettled, unreadable prometheus.Counter
	runs                                                                          *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	factory := promauto.With(reg)
	counter := func(name, help string) prometheus.Counter {
		return factory.NewCounter(prometheus.CounterOpts{Name: "purser_autoprune_" + name, Help: help})
	}
	m := &metrics{
		deleted:  counter("tags_deleted_total", "Tags deleted by policies."),
		observed: counter("observed_tags_total", "Tags that would be deleted if no policy observed or waited, counted in each run."),
		asks:     counter("asks_total", "Policies that deleted nothing in a run because of their cap and asked for an approval."),
		rests:    counter("rests_total", "Policies that deleted nothing in a run until somebody confirms their warnings, or until a reporter reports."),
		slices:   counter("turns_total", "Time slices that workers have spent on namespaces."),
		failures: counter("repository_failures_total", "Repositories that could not be pruned in a time slice."),
		busy:     counter("busy_total", "Batches that gave way to clients and were tried again."),
		unsettled: counter("unsettled_total",
			"Batches of tags that stayed until the next run, because a process had not written which images it served."),
		unreadable: counter("unreadable_policies_total",
			"Policies that a time slice skipped because this version can't read them."),
		runs: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "purser_autoprune_runs_total", Help: "Runs that have ended, by how.",
		}, []string{"state"}),
	}
	for _, state := range []string{"success", "failure", "stopped"} {
		m.runs.WithLabelValues(state) // so that the series begins with 0, and the first failure is an increase
	}
	return m
}
