package operate

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/purser-registry/purser/cmd/purser/internal/backend"
	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/autoprune/warnings"
	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/clock"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/gc"
	"github.com/purser-registry/purser/internal/gc/explain"
	"github.com/purser-registry/purser/internal/policy"
	"github.com/purser-registry/purser/internal/pullstats"
	"github.com/purser-registry/purser/internal/pullstats/redispulls"
	"github.com/purser-registry/purser/internal/pullstats/statsdb"
)

// late is after how long work that is due counts as overdue.
const late = time.Hour

// examineStore compares the identities of store and database, and tries the store.
func (d *doctor) examineStore(ctx context.Context, log *slog.Logger) error {
	store, err := backend.TryStore(ctx, d.cfg.Storage, blob.DirOptions{Path: d.cfg.Storage.Filesystem.Path, Existing: true})
	if err != nil {
		return err
	}
	guarded, err := backend.IdentifiedStore(d.cfg.Storage, d.db, store, log)
	if err != nil {
		return err
	}
	s, err := guarded.Show(ctx)
	if err != nil {
		return err
	}
	switch place := backend.StorageOf(d.cfg.Storage).Place(); {
	case s.Store == "" && s.Database == "": // before the first start
	case !s.Same():
		d.find(levelError, "the blob store at "+place, `mount the right volume or correct storage; "purser store show" compares them, and "purser store adopt --help" says when to adopt`,
			"it isn't the database's: the store has the identity %s, the database's store %s", orNone(s.Store), orNone(s.Database))
	case s.Found+s.Unreadable < s.Sampled:
		d.find(levelError, "the blob store at "+place, `run "purser check"`, "of %d blobs that were drawn at random it lacks %d", s.Sampled, s.Sampled-s.Found-s.Unreadable)
	}
	if s.Unreadable > 0 {
		d.find(levelError, "the blob store at "+backend.StorageOf(d.cfg.Storage).Place(), `let the user that runs Purser read them, or replace the disk; "purser check" names them all`,
			"of %d blobs that were drawn at random it can't read %d: %v", s.Sampled, s.Unreadable, s.Failure())
	}
	return nil
}

// examineRest says why nothing is deleted for its age, if that is so.
func (d *doctor) examineRest(ctx context.Context, clocks *clock.Guard) error {
	err := clocks.Check(ctx)
	doubt, ok := errors.AsType[*clock.Disagreement](err)
	if !ok {
		return err
	}
	way := "set the wrong clock right"
	if doubt.Doubt {
		way = `set the database's clock right if it is wrong; then run "purser clock confirm"`
	}
	d.find(levelError, "the clocks", way, "nothing is deleted for its age: %s", doubt.Text)
	return nil
}

// examinePolicies looks for policies that delete nothing until somebody does something, and for those
// that may delete what runs.
func (d *doctor) examinePolicies(ctx context.Context) error {
	t, err := policies.FindTroubles(ctx, d.db.Pool)
	if err != nil {
		return err
	}
	if t.Unconfirmed > 0 {
		d.find(levelWarning, "policies", `"purser prune status `+t.UnconfirmedIn+`" says why; then confirm with "purser prune confirm", or change the policy`,
			"%d delete nothing until somebody confirms what they surely weren't meant to do, one of them in namespace %s", t.Unconfirmed, t.UnconfirmedIn)
	}
	if t.Unreported > 0 {
		d.find(levelWarning, "policies", `"purser prune status `+t.UnreportedIn+`" names the reporters: let them report again, or change requireReporter`,
			"%d delete nothing since reporters that they require are silent, one of them in namespace %s", t.Unreported, t.UnreportedIn)
	}
	if t.Unproved > 0 {
		d.find(levelNote, "policies", "let each cluster report what it runs: purser report kubernetes",
			"%d select by last use where no reporter is live, one of them in namespace %s; a node that has an image sends nothing when it starts it, so last use is no proof", t.Unproved, t.UnprovedIn)
	}
	return nil
}

// perhapsMeant are warnings of a default policy that may be what it is for. They are notes: in each
// namespace that they are about, the policy rests until somebody confirms them.
var perhapsMeant = []policy.WarningCode{policy.SelectsLatest, policy.SelectsReleases, policy.LastUseUnproved, policy.NotAllJudged}

// examineDefaultPolicy judges the policy of autoprune.default_policy by the tags that there are, as a
// policy is judged that a client saves: the change from the policy that the database has to that of
// this configuration, which may have none. Without a catalog, it judges by the policy alone.
func (d *doctor) examineDefaultPolicy(ctx context.Context, c *catalog.Catalog) error {
	policy, err := command.DefaultPolicy(d.cfg)
	if err != nil || policy == nil && (c == nil || !d.cfg.Autoprune.Enabled) {
		return err
	}
	find := func(level, text string) {
		d.find(level, policies.SettingName, `change the policy, or keep tags from it by a keep rule or "purser protection add"`, "%s", text)
	}
	if c == nil {
		for _, text := range policy.Warnings() {
			find(levelWarning, text)
		}
		return nil
	}
	// Without a store, since the doctor stores nothing of what configurations of images say.
	p, err := autoprune.New(autoprune.Options{DB: d.db, Catalog: c, Log: d.log})
	if err != nil {
		return err
	}
	change := warnings.Change{Policy: policy, Setting: true}
	stored, err := p.Policies.List(ctx, policies.Target{})
	if err != nil {
		return err
	}
	for _, s := range stored {
		if s.Setting {
			change.ID = s.ID
		}
	}
	if policy == nil && change.ID == "" {
		return nil
	}
	found, err := p.Warnings.OfChange(ctx, policies.Target{}, change)
	for _, w := range found {
		level := levelWarning
		if slices.Contains(perhapsMeant, w.Code) {
			level = levelNote
		}
		find(level, w.Sentence())
	}
	return err
}

// examineCollection looks at what garbage collection hasn't done.
func (d *doctor) examineCollection(ctx context.Context, c *gc.Collector) error {
	s, err := c.GCStatus(ctx)
	if err != nil {
		return err
	}
	if n := s.Manifests.Failed.Rows + s.Blobs.Failed.Rows; n > 0 {
		d.find(levelWarning, "garbage collection", `"purser gc status" shows their errors; once the cause is gone, run "purser gc retry"`, "%d reviews have failed too often and aren't tried again", n)
	}
	if overdue := time.Duration(max(s.Manifests.OldestOverdueSeconds, s.Blobs.OldestOverdueSeconds)) * time.Second; overdue > late {
		d.find(levelWarning, "garbage collection", "see that gc.review_blobs and gc.review_manifests are on in a running server, and raise gc.workers", "reviews are overdue by %s", explain.Age(overdue))
	}
	if s.Doomed.FailingSince != nil {
		d.find(levelError, "the blob store", "give the registry the right to delete, and look at the store's own log", "it has failed to delete %d objects, for %s: %s",
			s.Doomed.Failing.Rows, explain.Age(s.AsOf.Sub(*s.Doomed.FailingSince)), s.Doomed.LastError)
	}
	if s.Lost.Rows > 0 {
		d.find(levelError, "blobs", `"purser check" lists them; push their images again, or restore the store`, "the store has lost %d blobs, so images can't be pulled", s.Lost.Rows)
	}
	return nil
}

// examineTasks looks at auto-pruning and at the audit log's partitions.
func (d *doctor) examineTasks(ctx context.Context) error {
	var failing int64
	var name string
	err := d.db.Pool.QueryRow(ctx, `
		SELECT count(*), COALESCE(min(n.name), '') FROM autoprunetaskstatus t JOIN live_namespaces n ON n.id = t.namespace_id
		WHERE t.status LIKE 'failure%'`).Scan(&failing, &name)
	if err != nil {
		return err
	}
	if failing > 0 {
		d.find(levelWarning, "auto-pruning", `"purser prune status `+name+`" says why`, "the last run failed in %d namespaces, one of them %s", failing, name)
	}
	return nil
}

// examineLooseKeys looks for deleted rows whose children wait for long.
func (d *doctor) examineLooseKeys(ctx context.Context, k *backend.LooseKeys) error {
	for i := range k.Databases {
		list, err := k.Databases[i].Pending(ctx)
		if err != nil {
			return err
		}
		for _, p := range list {
			if p.Untracked {
				d.find(levelError, "loose foreign keys", `run "purser loosefk install"`, "%s has no trigger, so the rows that refer to its deleted rows stay for ever", p.Table)
			} else if p.OldestAge > 2*late && p.Count > p.SecondLook {
				d.find(levelWarning, "loose foreign keys", `see that a server runs; "purser loosefk status" says more, "purser loosefk drain" cleans up now`,
					"rows that refer to deleted rows of %s have waited for %s", p.Table, explain.Age(p.OldestAge))
			}
		}
	}
	return nil
}

// examinePulls looks at what keeps pulls from being counted.
func (d *doctor) examinePulls(ctx context.Context, stats *db.DB) error {
	var began bool
	if err := stats.Pool.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pullstatisticsprocessingstate)").Scan(&began); err != nil {
		return err
	}
	if !began || !d.cfg.PullStatistics.Counts() {
		if d.cfg.Redis.URL == "" {
			return nil
		}
		return d.tryRedis(ctx)
	}
	places := statsdb.Databases{Log: d.db, Stats: stats, Alive: catalog.LivingNamespaces}
	var redis *redispulls.Client
	if d.cfg.Redis.URL != "" {
		var err error
		if redis, err = backend.NewRedis(d.cfg, stats); err != nil {
			return err
		}
		defer redis.Close() //nolint:errcheck // nothing was written
		flush, err := redispulls.NewFlushWorker(redispulls.FlushOptions{Databases: places, Redis: redis})
		if err != nil {
			return err
		}
		s, err := flush.Status(ctx)
		if err != nil {
			return err
		}
		for _, problem := range s.Problems {
			d.find(levelWarning, "Redis at "+s.Address, `see docs/pull-statistics.md, "Redis"`, "%s", problem)
		}
	}
	sync, err := pullstats.NewSyncWorker(pullstats.SyncOptions{Databases: places, Redis: redis})
	if err != nil {
		return err
	}
	s, err := sync.Status(ctx)
	if err != nil {
		return err
	}
	switch {
	case s.Foreign:
		d.find(levelError, "pull statistics", `run "purser pulls reset"`, "the database was restored or moved, so no pull is counted")
	case s.Unseen:
		d.find(levelWarning, "pull statistics", "set redis.url here as on the other replicas", "Redis may have pulls that this process can't read, so policies by last pull rest")
	case s.Behind > late:
		d.find(levelWarning, "pull statistics", "see that a server runs with pull_statistics on, and look for old transactions in the database", "they are %s behind, so policies by last pull rest", explain.Age(s.Behind))
	}
	return nil
}
