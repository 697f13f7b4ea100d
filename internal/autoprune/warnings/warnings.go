package warnings

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/autoprune/snapshot"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/judge"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/policy"
)

// Change is a change of a target's policies that is to be judged before it is made.
type Change struct {
	ID     string         // of the policy that is replaced or deleted; "": a new one
	Policy *policy.Policy // nil: the policy is deleted
	// Setting says that it is the default policy of the configuration, which applies beside the
	// policies of namespaces.
	Setting bool
	// Defaults, if it isn't nil, says that no policy changes, but whether the registry's defaults apply
	// in the namespace.
	Defaults *bool
}

// Bounds of judging a change.
const (
	// maxReached is up to which number the namespaces are counted that a default policy reaches.
	maxReached = 10_000
)

// Options configures a Finder.
type Options struct {
	Repositories *snapshot.Reader // required
	Policies     *policies.Store  // required; of the same database
	// Within is how long a judgement of a change may take. Default 5 s.
	Within time.Duration
}

// Finder finds what policies surely weren't meant to do. It may be used concurrently. Its options must not
// be changed.
type Finder struct{ Options }

// New makes a finder.
func New(o Options) *Finder {
	o.Within = cmp.Or(o.Within, 5*time.Second)
	return &Finder{o}
}

// OfChange returns what a policy surely wasn't meant to do, by the tags that there are: the warnings
// of a change that isn't made yet. It changes nothing, and gives up after a few seconds; what it has
// found by then counts, with a warning that it hasn't looked at everything. It returns NAME_UNKNOWN
// if the target, or the policy that is changed, doesn't exist.
func (f *Finder) OfChange(ctx context.Context, t policies.Target, c Change) ([]policy.Warning, error) {
	o, err := t.Find(ctx, f.Repositories.DB.Pool, false)
	if err != nil {
		return nil, err
	}
	j := &judging{finder: f, target: t, change: c, until: time.Now().Add(f.Within)}
	if c.ID != "" {
		old, err := f.Policies.Get(ctx, t, c.ID)
		if err != nil {
			return nil, err
		}
		j.old = &old
	}
	if c.Policy != nil {
		own := *c.Policy
		j.policy = &own
		j.begin()
		if own.Mode == policy.Off || own.Method == policy.UntaggedManifests { // it deletes no tag
			j.policy = nil
		}
	}
	if c.Defaults != nil {
		if l, err := f.Policies.Load(ctx, o.Namespace); err != nil || j.changed(l) == nil {
			return nil, err
		}
	}
	wait, cancel := context.WithDeadline(ctx, j.until)
	defer cancel()
	giveBack, err := f.Repositories.TakeJudgePlace(wait)
	if err == nil {
		defer giveBack()
		err = j.all(ctx, o)
	} else {
		err = snapshot.ErrTimeOver
	}
	if j.partial = errors.Is(err, snapshot.ErrTimeOver); err != nil && !j.partial {
		return nil, err
	}
	return j.warnings(), ctx.Err()
}

// First is a policy that is about to delete its first tag of a namespace.
type First struct {
	Policy policies.Saved
	Owner  policies.Owner // the namespace
	Set    *policies.Set  // of the namespace
	// Repository is where the policy applies; nil: in the whole namespace.
	Repository *catalog.Repository
	// Within is how long the judgement may take.
	Within time.Duration
	// Pause is called now and then. An error of it ends the judgement.
	Pause func(context.Context) error
}

// BeforeDeletion judges a policy before it deletes its first tag of a namespace, as OfChange does.
func (f *Finder) BeforeDeletion(ctx context.Context, first First) ([]policy.Warning, error) {
	own := first.Policy.Policy
	j := &judging{finder: f, target: policies.Target{Namespace: first.Owner.Name}, old: &first.Policy, policy: &own, until: time.Now().Add(first.Within),
		pause: first.Pause, change: Change{ID: first.Policy.ID, Policy: &own}}
	j.begin()
	if err := j.settle(ctx, first.Set); err != nil {
		return nil, err
	}
	var err error
	if first.Repository != nil {
		err = j.repository(ctx, first.Set, nil, *first.Repository)
	} else {
		err = j.namespace(ctx, first.Owner.Namespace)
	}
	// If the time was too short for all tags, nobody knows what the policy deletes of the others: it
	// rests by NotAllJudged, unless this was confirmed when it was saved.
	if j.partial = errors.Is(err, snapshot.ErrTimeOver); err != nil && !j.partial {
		return nil, err
	}
	return j.warnings(), nil
}

// judging judges a change of policies.
type judging struct {
	finder *Finder
	target policies.Target
	change Change
	old    *policies.Saved // the policy that is changed; nil: it is a new one
	policy *policy.Policy  // as it shall be; nil: it has no effect then
	until  time.Time
	pause  func(context.Context) error // called now and then; nil: nothing

	settled            bool // settle has waited
	partial            bool
	tags, repositories int64 // that were looked at
	selected           int64 // tags that the policy would delete now
	latest, releases   examples
	shell              examples // found by a pattern that looks like a shell's
	inside             []insidePattern
	uncovered          examples
	considered         int64
	keeps              []bool // by keep rule
	matches            []bool // by pattern of repositories
	glob               oci.TagPattern
	reached            examples // namespaces
	strangers          examples // reporters that have never reported
	silent             []string // reporters that aren't live, and that the policy doesn't require any more
	unreported         examples // namespaces in which no reporter is live
}

// insidePattern is a pattern without anchors, with the tags within whose names it is found.
type insidePattern struct {
	oci.TagPattern
	whole oci.TagPattern
	found examples
}

// examples are the number and the first of some names.
type examples struct {
	n     int64
	first []string
}

func (e *examples) add(name string) {
	if e.n++; len(e.first) < policy.MaxExamples {
		e.first = append(e.first, name)
	}
}

func (j *judging) begin() {
	j.keeps, j.matches = make([]bool, len(j.policy.Keep)), make([]bool, len(j.policy.Repositories))
	if pattern := j.policy.TagPattern; !pattern.IsZero() {
		j.glob, _ = pattern.Glob()
	}
	for _, w := range j.policy.Typed() {
		if w.Code == policy.Unanchored {
			j.inside = append(j.inside, insidePattern{TagPattern: w.Pattern, whole: w.Pattern.Whole()})
		}
	}
}

func (j *judging) alive(ctx context.Context) error {
	if time.Now().After(j.until) {
		return snapshot.ErrTimeOver
	}
	if j.pause != nil {
		if err := j.pause(ctx); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// settle waits, the first time that last uses decide, until all processes have written the uses that
// they answered before. If one doesn't, a used tag may look unused: the judgement then warns of too much.
func (j *judging) settle(ctx context.Context, l *policies.Set) error {
	if j.settled || j.finder.Repositories.Settle == nil || !l.ReadUses() && (j.policy == nil || !j.policy.ReadsUses()) {
		return nil
	}
	j.settled = true
	within, cancel := context.WithDeadline(ctx, j.until)
	defer cancel()
	if err := j.finder.Repositories.Settle(within); err != nil {
		j.finder.Repositories.Log.DebugContext(ctx, "a policy is judged without the newest uses", "reason", err)
	}
	return ctx.Err()
}

// all judges the change in all repositories in which it has an effect.
func (j *judging) all(ctx context.Context, o policies.Owner) error {
	switch j.target.Scope() {
	case policy.RepositoryScope:
		l, err := j.finder.Policies.Load(ctx, o.Namespace)
		if err != nil {
			return err
		}
		if err := j.settle(ctx, l); err != nil {
			return err
		}
		if err := j.reporters(ctx, o.Namespace); err != nil {
			return err
		}
		return j.repository(ctx, l, j.changed(l), catalog.Repository{NamespaceID: o.Namespace, ID: o.Repository, Path: j.target.Repository})
	case policy.NamespaceScope:
		return j.namespace(ctx, o.Namespace)
	case policy.DefaultScope:
	}
	list, err := j.reach(ctx)
	if err != nil {
		return err
	}
	for _, namespace := range list {
		if err := j.namespace(ctx, namespace); err != nil {
			return err
		}
	}
	return nil
}

// reach finds the namespaces in which a policy of the registry's defaults, or the default policy of the
// configuration, applies.
func (j *judging) reach(ctx context.Context) (ids []int64, err error) {
	rows, err := j.finder.Repositories.DB.Pool.Query(ctx, `
		SELECT id, name FROM live_namespaces n
		WHERE NOT EXISTS (SELECT FROM autoprunewithoutdefaults w WHERE w.namespace_id = n.id)
			AND ($2 OR NOT EXISTS (SELECT FROM namespaceautoprunepolicy o WHERE o.namespace_id = n.id))
		ORDER BY id LIMIT $1`, maxReached, j.change.Setting)
	if err != nil {
		return nil, fmt.Errorf("looking where a default policy applies: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var id int64
		var name string
		if err := rows.Scan(&id, &name); err != nil {
			return nil, fmt.Errorf("looking where a default policy applies: %w", err)
		}
		ids = append(ids, id)
		j.reached.add(name)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("looking where a default policy applies: %w", err)
	}
	return ids, nil
}

func (j *judging) namespace(ctx context.Context, namespace int64) error {
	l, err := j.finder.Policies.Load(ctx, namespace)
	if err != nil {
		return err
	}
	if err := j.settle(ctx, l); err != nil {
		return err
	}
	if err := j.reporters(ctx, namespace); err != nil {
		return err
	}
	after := j.changed(l)
	for last := int64(0); ; {
		list, err := j.finder.Repositories.List(ctx, namespace, last, 1000)
		if err != nil || len(list) == 0 {
			return err
		}
		for _, target := range list {
			if err := j.repository(ctx, l, after, target); err != nil {
				return err
			}
			last = target.ID
		}
	}
}

// repository judges the change in a repository, in one snapshot.
func (j *judging) repository(ctx context.Context, now *policies.Set, after *coverage, target catalog.Repository) error {
	if err := j.alive(ctx); err != nil {
		return err
	}
	applies := false
	if j.policy != nil {
		for i, pattern := range j.policy.Repositories {
			j.matches[i] = j.matches[i] || oci.MatchPath(pattern, target.Path)
		}
		applies = j.policy.AppliesIn(target.Path)
	}
	if !applies && after == nil {
		return nil
	}
	if applies {
		if err := j.finder.Repositories.ConfigurationsUntil(ctx, target, []judge.Applied{{Policy: *j.policy}}, j.until, j.alive); err != nil {
			return err
		}
	}
	j.repositories++
	return snapshot.Read(ctx, j.finder.Repositories.DB.Pool, target, func(s *snapshot.Snapshot) error {
		if applies {
			if err := j.judgeTags(ctx, s, now, target); err != nil {
				return err
			}
		}
		if after == nil {
			return nil
		}
		return j.compare(ctx, s, after, target)
	})
}

// judgeTags looks at what the policy alone selects, now and, if it selects by age, once all tags are
// older than that.
func (j *judging) judgeTags(ctx context.Context, s *snapshot.Snapshot, l *policies.Set, target catalog.Repository) error {
	own := *j.policy
	own.Mode = ""
	rules, _ := l.Of(target)
	rules.Now, rules.Would = s.Now, true
	rules.Policies = []judge.Applied{{Scope: policy.NamespaceScope, Policy: own}}
	r := j.finder.Repositories.Tags(s, rules.Policies, j.alive)
	verdict, err := judge.Evaluate(rules, r.Repository(ctx))
	if err != nil {
		return err
	}
	later := verdict
	if !own.Method.Counts() {
		eventual := own
		eventual.Method = policy.CreationDate // nobody uses the tags either
		rules.Policies = []judge.Applied{{Scope: policy.NamespaceScope, Policy: eventual}}
		rules.Now = s.Now.Add(own.OlderThan.Duration() + time.Second)
		if later, err = judge.Evaluate(rules, r.Repository(ctx)); err != nil {
			return err
		}
	}
	for c, err := range r.Tags(ctx) {
		if err != nil {
			return err
		}
		j.tag(target.Path, &c.Judged, verdict, later)
	}
	return nil
}

// tag looks at one tag of a repository.
func (j *judging) tag(path string, t *judge.Tag, now, later *judge.Verdict) {
	j.tags++
	if now.Decide(*t).Delete {
		j.selected++
	}
	if t.Attached() || !t.ConsideredBy(j.policy, 0) {
		return
	}
	j.considered++
	name := path + ":" + t.Name
	for i := range j.keeps {
		if !j.keeps[i] {
			j.keeps[i] = now.KeptBy(0, i, t)
		}
	}
	if !j.glob.IsZero() && j.glob.Match(t.Name) == j.policy.Excludes() {
		j.shell.add(name)
	}
	for i := range j.inside {
		if p := &j.inside[i]; p.Match(t.Name) && !p.whole.Match(t.Name) {
			p.found.add(name)
		}
	}
	if !later.Decide(*t).Delete {
		return
	}
	if t.Name == "latest" {
		j.latest.add(name)
	}
	if judge.IsRelease(t.Name) {
		j.releases.add(name)
	}
}
