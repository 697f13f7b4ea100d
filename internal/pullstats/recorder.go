package pullstats

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/worker"
)

// RecorderOptions says what counts pulls and where they are logged.
type RecorderOptions struct {
	// Log takes an entry for each pull. Nil: pulls aren't logged, and only Redis can
	// count them.
	Log *audit.Recorder
	// Count says whether pulls are counted. If false they are only logged, so that they can
	// be counted later.
	Count bool
	// Redis counts the pulls, if Count is set. Nil: the worker that reads the log does.
	Redis *Redis
	// LastUsed records last-used times, for requests that use content but are no pulls, and
	// for pulls that may stay uncounted. Required if Count.
	LastUsed *LastUsedRecorder
	// Ignore selects clients whose pulls aren't counted.
	Ignore Ignore
	// Join is how long after a HEAD by tag a GET by digest counts as the second half of the
	// same pull. Default DefaultJoin; below 0 nothing is joined.
	Join time.Duration
	// Buffer is how many pulls, and how many HEADs, may wait for Redis. Default 10,000.
	Buffer int
	// Batch is how many pulls are sent to Redis together. Default 1,000.
	Batch   int
	Logger  *slog.Logger    // default slog.Default()
	Metrics *Metrics        // nil: none
	Worker  *worker.Metrics // nil: none
}

// Recorder records pulls as they happen, and decides what counts each of them. Its methods
// may be called concurrently and never fail. They block for a second at most, while the
// log's buffer is full and being written. A nil Recorder records nothing.
type Recorder struct {
	opt      RecorderOptions
	queue    *redisQueue // nil: Redis doesn't count
	presence *presence   // nil: pulls aren't counted
}

// NewRecorder makes a recorder. Run and Close send the pulls that it has taken for Redis.
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
	}
	return r
}

// oldest returns the time of the oldest pull or HEAD that isn't written yet, neither to the
// log nor to Redis; zero: there is none.
func (r *Recorder) oldest() time.Time {
	at := r.opt.Log.Oldest()
	if r.queue != nil {
		if waits := r.queue.oldest(); at.IsZero() || !waits.IsZero() && waits.Before(at) {
			at = waits
		}
	}
	return at
}

// CountedBy returns what counts the pulls that this process records: audit, redis or none.
func (r *Recorder) CountedBy() string {
	switch {
	case r == nil || !r.opt.Count:
		return audit.CountedByNone
	case r.queue != nil:
		return audit.CountedByRedis
	}
	return audit.CountedByAudit
}

// Run sends pulls to Redis, and reports to other processes up to when pulls are written,
// until ctx ends, and returns nil then. Close handles the pulls that are left.
func (r *Recorder) Run(ctx context.Context) error {
	if r == nil || r.presence == nil {
		<-ctx.Done()
		return nil
	}
	var group errgroup.Group
	group.Go(func() error { return r.presence.loop.Run(ctx) })
	if r.queue != nil {
		group.Go(func() error { return r.queue.loop.Run(ctx) })
		group.Go(func() error { return r.queue.watch(ctx) })
	}
	return group.Wait()
}

// Close sends the waiting pulls to Redis; those that Redis doesn't take before ctx ends are
// logged, to be counted from the log. It must be called before the log's own Close. Run
// should be over.
func (r *Recorder) Close(ctx context.Context) {
	if r != nil && r.queue != nil {
		r.queue.close(ctx)
	}
}

// Leave reports that this process takes no more pulls and, if lost is set, that pulls of it
// are missing. It must be called after the Close of the log and of LastUsed.
func (r *Recorder) Leave(ctx context.Context, lost bool) error {
	if r == nil || r.presence == nil {
		return nil
	}
	return r.presence.close(ctx, lost)
}

// Pulled records that a client was given a manifest. e is the entry for the log, without
// its time and CountedBy. Pulled waits while the log's buffer is full and being written,
// see audit.Recorder.Wait.
func (r *Recorder) Pulled(ctx context.Context, e audit.Entry) {
	if r == nil {
		return
	}
	if e.Tag != "" {
		e.Port = 0
	}
	var until time.Time
	for last := false; !r.pulled(ctx, e, last); {
		if until.IsZero() {
			until = time.Now().Add(r.opt.Log.Patience())
		}
		last = !r.opt.Log.Wait(ctx, until)
	}
}

// pulled makes one attempt to record a pull, and returns true when the caller needn't try
// again. If last is set and the log doesn't take the pull, pulled drops it.
func (r *Recorder) pulled(ctx context.Context, e audit.Entry, last bool) (over bool) {
	r.presence.begin()
	defer r.presence.end()
	e.Time = r.presence.now()
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
// answered with "not modified". That counts as a use of the manifest. If the client asked
// by tag and fetches the manifest by digest next, that GET is a pull of the tag.
func (r *Recorder) Checked(ctx context.Context, e audit.Entry) {
	if r == nil || !r.opt.Count || r.opt.Ignore.matches(e) {
		return
	}
	r.presence.begin()
	defer r.presence.end()
	e.Time = r.presence.now()
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
		r.opt.LastUsed.markUncounted(e.Time) // the GET by digest that may follow won't count for the tag
	}
}

// log writes the entry of a pull. If the log has no room for the entry of a pull that was
// to be counted from the log, log records the last-used time at least.
func (r *Recorder) log(ctx context.Context, e audit.Entry) {
	if r.opt.Log != nil && r.opt.Log.Record(ctx, e) {
		return
	}
	switch {
	case !r.opt.Count:
	case e.CountedBy == audit.CountedByAudit:
		r.uncounted(e)
	case e.CountedBy == audit.CountedByRedis && r.opt.Log != nil:
		r.presence.gap.Store(true)
	}
}

// uncounted records a pull that isn't counted, or may not be, as a use.
func (r *Recorder) uncounted(e audit.Entry) {
	r.opt.LastUsed.markUncounted(e.Time)
	r.used(e)
}

// used records the last-used time of a pull that other processes can't see yet.
func (r *Recorder) used(e audit.Entry) { r.opt.LastUsed.used(e.RepositoryID, e.Tag, e.Digest, e.Time) }

// Ignore selects the pulls that aren't counted, such as those of scanners and mirrors. A
// pattern must match the whole text; * matches any part of it.
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

// matches says whether pattern matches the whole text. It matches each part between
// asterisks at its first occurrence, which leaves the most text for the parts behind it.
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
