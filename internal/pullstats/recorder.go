package pullstats

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/pullstats/redispulls"
	"github.com/purser-registry/purser/internal/worker"
)

// RecorderOptions says what counts pulls and where they are logged.
type RecorderOptions struct {
	// Log receives an entry for each pull. Nil: pulls aren't logged, so only Redis can count
	// them.
	Log *audit.Recorder
	// Count says whether pulls are counted. If false they are only logged, so that they can
	// be counted later.
	Count bool
	// Stats is the database of the statistics, where a process that doesn't count pulls tells that
	// it has lost some. Nil: nobody counts them. It isn't used if Count is set.
	Stats *db.DB
	// Redis counts the pulls if Count is set. Nil: the SyncWorker, which reads the audit
	// log, counts them.
	Redis *redispulls.Client
	// LastUsed records the last-used times of tags and manifests: for HEADs and other
	// requests that are no pulls, and for pulls that may stay uncounted. Required if Count
	// is set.
	LastUsed *LastUsedRecorder
	// Ignore selects the clients whose pulls aren't counted.
	Ignore Ignore
	// Join is how long after a HEAD by tag a GET by digest counts as the second half of the
	// same pull. Default DefaultJoin; a negative value switches joining off.
	Join time.Duration
	// Buffer is how many pulls may wait in memory for Redis, besides those of namespaces of which
	// few wait (limit.Buffer). HEADs aren't among them: their number has its own limit, maxHeads.
	// Default 10,000.
	Buffer int
	// Batch is how many pulls are sent to Redis together. Default 1,000.
	Batch   int
	Logger  *slog.Logger    // default slog.Default()
	Metrics *Metrics        // nil: none
	Worker  *worker.Metrics // nil: none
}

// Recorder records the pulls that a process answers, and decides whether Redis or the
// SyncWorker counts them. Its methods may be called concurrently and return no error. Pulled and
// Checked must be called before the client is answered. They wait in two cases: if the audit
// log's buffer is full and being written, for a second at most; and if the process has recorded
// nothing lately, for a commit in the statistics' database (see gate). A nil Recorder records
// nothing.
type Recorder struct {
	opt      RecorderOptions
	queue    *redisQueue // nil: Redis doesn't count
	presence *presence   // nil: pulls aren't counted
	losses   *losses     // nil: pulls are counted, or aren't logged
}

// NewRecorder makes a recorder. It sends nothing to Redis until Run or Close is called.
func NewRecorder(o RecorderOptions) *Recorder {
	if o.Buffer <= 0 {
		o.Buffer = 10_000
	}
	if o.Batch <= 0 {
		o.Batch = 1000
	}
	if o.Join == 0 {
		o.Join = DefaultJoin
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	r := &Recorder{opt: o}
	if o.Count && o.Redis != nil {
		r.queue = newRedisQueue(r)
	}
	if o.Count {
		r.presence = newPresence(r)
		o.LastUsed.setClock(r.presence.now)
	} else if o.Log != nil && o.Stats != nil {
		r.losses = newLosses(o)
	}
	return r
}

// oldest returns the time of the oldest request that this process still has to write: a pull
// to the audit log or to Redis, or a HEAD to the table pullheads. It returns zero if there is
// none.
//
// It asks the queue for Redis before the log, since pulls go from there to the log.
func (r *Recorder) oldest() time.Time {
	var queued time.Time
	if r.queue != nil {
		queued = r.queue.oldest()
	}
	return first(queued, r.opt.Log.Oldest())
}

// first returns the earlier of two times; zero stands for no time.
func first(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// waitsSince says whether a pull that came before the time `mark`, by the process's monotonic
// clock, is in a queue, where nobody else sees it.
func (r *Recorder) waitsSince(mark time.Time) bool {
	var queued time.Time
	if r.queue != nil {
		queued = r.queue.waits()
	}
	came := first(queued, r.opt.Log.Waits())
	return !came.IsZero() && !came.After(mark)
}

// CountedBy says who counts the pulls that this process records: "audit" (the SyncWorker,
// from the audit log), "redis" or "none".
func (r *Recorder) CountedBy() string {
	switch {
	case r == nil || !r.opt.Count:
		return audit.CountedByNone
	case r.queue != nil:
		return audit.CountedByRedis
	}
	return audit.CountedByAudit
}

// Open reports that this process records pulls. Call it before the first request is answered;
// from then on requests rely on Run.
func (r *Recorder) Open(ctx context.Context) error {
	if r == nil || r.presence == nil {
		return nil
	}
	r.presence.gate.on.Store(true)
	_, err := r.presence.tick(ctx)
	return err
}

// Run sends pulls to Redis, and reports to the other processes up to which time this
// process's pulls are written. If this process counts no pulls, Run reports those that it couldn't
// log. When ctx ends, Run returns nil; Close sends the pulls that
// are left.
func (r *Recorder) Run(ctx context.Context) error {
	switch {
	case r != nil && r.losses != nil:
		return r.losses.loop.Run(ctx)
	case r == nil || r.presence == nil:
		<-ctx.Done()
		return nil
	}
	var group errgroup.Group
	group.Go(func() error { return r.presence.run(ctx) })
	if r.queue != nil {
		group.Go(func() error { return r.queue.loop.Run(ctx) })
		group.Go(func() error { return r.queue.watch(ctx) })
	}
	return group.Wait()
}

// Close sends the waiting pulls to Redis. Pulls that Redis doesn't take before ctx ends are
// written to the audit log, to be counted from there; if there is no log, they are dropped.
// Call Close when Run is over, and before the log's own Close.
func (r *Recorder) Close(ctx context.Context) {
	if r != nil && r.queue != nil {
		r.queue.close(ctx)
	}
}

// Leave reports that this process records no more pulls and, if `lost` is set, that some of
// its pulls were not written. Call it after the Close of the log and of LastUsed.
func (r *Recorder) Leave(ctx context.Context, lost bool) error {
	switch {
	case r != nil && r.losses != nil:
		return r.losses.tell(ctx, lost)
	case r == nil || r.presence == nil:
		return nil
	}
	return r.presence.close(ctx, lost)
}

// Pulled records that a client pulled a manifest. `e` is the pull's entry for the audit
// log, without time and CountedBy. If the log's buffer is full and being written, Pulled
// waits until the buffer has room, but not for ever: see audit.Recorder.Wait.
func (r *Recorder) Pulled(ctx context.Context, e audit.Entry) {
	if r == nil {
		return
	}
	if e.Tag != "" {
		e.Port = 0
	}
	if r.opt.Count && !r.opt.Ignore.matches(e) {
		r.opt.Metrics.pulled(e.Repository)
	}
	var until time.Time
	for last := false; !r.pulled(ctx, e, last); {
		if until.IsZero() {
			until = time.Now().Add(r.opt.Log.Patience())
		}
		last = !r.opt.Log.Wait(ctx, until)
	}
}

// pulled makes one attempt to record a pull. It returns false if the audit log's buffer is
// full and the caller should wait and try again, otherwise true. With `last` set it always
// returns true: if the log has no room for the pull, it drops the pull, and records it as a
// use if the SyncWorker was to count it.
func (r *Recorder) pulled(ctx context.Context, e audit.Entry, last bool) (over bool) {
	r.presence.begin(ctx)
	defer r.presence.end()
	e.Time, e.Came = r.presence.now(), time.Now()
	switch {
	case !r.opt.Count:
	case r.opt.Ignore.matches(e):
		e.CountedBy = audit.CountedByNone
	case r.queue == nil:
		e.CountedBy = audit.CountedByAudit
	default:
		r.queue.pulled(ctx, e)
		return true
	}
	if r.opt.Log != nil && r.opt.Log.Offer(ctx, e) {
		return true
	}
	if r.opt.Log != nil && !last {
		return false
	}
	r.log(ctx, e)
	return true
}

// Checked records that a client asked about a manifest, by HEAD or by a GET that was
// answered with "not modified". This is a use of the manifest and no pull. If the client
// asked by tag and then fetches the manifest by digest, the two requests together are a pull
// of the tag.
func (r *Recorder) Checked(ctx context.Context, e audit.Entry) {
	if r == nil || !r.opt.Count || r.opt.Ignore.matches(e) {
		return
	}
	r.presence.begin(ctx)
	defer r.presence.end()
	e.Time, e.Came = r.presence.now(), time.Now()
	if e.Tag == "" {
		r.opt.LastUsed.used(e.RepositoryID, "", e.Digest, e.Time)
		return
	}
	r.opt.LastUsed.tagUsed(e.RepositoryID, e.Tag, e.Time)
	switch {
	case r.opt.Join < 0:
	case r.queue != nil:
		r.queue.checked(ctx, e)
	case !r.opt.Log.RecordHead(ctx, e):
		r.opt.LastUsed.markUncounted(e.Time) // a GET by digest that follows won't count for the tag
	}
}

// log writes the entry of a pull to the audit log. If the audit log has no room for the
// entry, and the SyncWorker was to count the pull, log records the pull as a use, so that
// at least its time is known.
func (r *Recorder) log(ctx context.Context, e audit.Entry) {
	if r.opt.Log != nil && r.opt.Log.Record(ctx, e) {
		return
	}
	switch {
	case !r.opt.Count:
		r.losses.wake()
	case e.CountedBy == audit.CountedByAudit:
		r.uncounted(e)
	case e.CountedBy == audit.CountedByRedis && r.opt.Log != nil:
		r.presence.gap.Store(true)
	}
}

// uncounted records a pull that isn't counted, or may not be, as a use of its tag and
// manifest.
func (r *Recorder) uncounted(e audit.Entry) {
	r.opt.LastUsed.markUncounted(e.Time)
	r.used(e)
}

// used records the last-used time of a pull that may stay uncounted, or that stays in this
// process's memory for a while: the other processes can't see it there, and must know that
// the tag was used.
func (r *Recorder) used(e audit.Entry) { r.opt.LastUsed.used(e.RepositoryID, e.Tag, e.Digest, e.Time) }

// Ignore selects the pulls that aren't counted, such as those of scanners and mirrors, by
// User-Agent and by account. A pattern must match the whole text; * matches any part of it.
type Ignore struct {
	UserAgents []string
	Accounts   []string
}

func (i Ignore) matches(e audit.Entry) bool {
	return matchesAny(i.UserAgents, e.UserAgent) || e.Actor != "" && matchesAny(i.Accounts, e.Actor)
}

func matchesAny(patterns []string, text string) bool {
	for _, p := range patterns {
		if matches(p, text) {
			return true
		}
	}
	return false
}

// matches says whether pattern matches the whole text. For each part of the pattern between
// two asterisks it takes the part's first occurrence in the rest of the text, which leaves
// the most text for the parts after it.
func matches(pattern, text string) bool {
	parts := strings.Split(pattern, "*")
	if len(parts) == 1 {
		return pattern == text
	}
	first, last := parts[0], parts[len(parts)-1]
	if len(text) < len(first)+len(last) || !strings.HasPrefix(text, first) || !strings.HasSuffix(text, last) {
		return false
	}
	text = text[len(first) : len(text)-len(last)]
	for _, part := range parts[1 : len(parts)-1] {
		_, after, found := strings.Cut(text, part)
		if !found {
			return false
		}
		text = after
	}
	return true
}
