package autoprune

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/autoprune/snapshot"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/judge"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/policy"
)

// PreviewOptions says what to preview.
type PreviewOptions struct {
	// Policy is a policy to try out. The preview then shows what this policy alone would
	// delete. Nil: the preview uses the policies that apply now.
	Policy *policy.Policy
	// Limit is how many tags are listed. Default 100, most 10,000.
	Limit int
	// Within limits how long Preview looks at repositories. Default 1 min.
	Within time.Duration
	// HideBytes leaves out Preview.Bytes, which tells whether other repositories have the same
	// blobs, and takes most of the time.
	HideBytes bool
}

// Preview says what a run would do.
type Preview struct {
	Now          time.Time                `json:"now" doc:"The time at which ages were judged"`
	Complete     bool                     `json:"complete" doc:"False if the preview ran out of time before it had looked at everything"`
	Repositories int64                    `json:"repositories" doc:"Repositories that were looked at"`
	Tags         int64                    `json:"tags" doc:"Tags that were looked at"`
	Deleted      int64                    `json:"tags_deleted" doc:"Tags that would be deleted"`
	Bytes        *int64                   `json:"bytes_freed,omitempty" doc:"Bytes of blobs that nothing would use any more; garbage collection frees them after its delay. Absent for a client that may not pull from every repository, if the bytes weren't asked for, and if there was no time to add them up"`
	Reasons      map[judge.Code]int64     `json:"reasons" doc:"Number of tags that would be deleted or stay, by reason"`
	Per          []PreviewRepository      `json:"per_repository" nullable:"false" doc:"Repositories in which tags would be deleted: the first 1000"`
	Going        []PreviewTag             `json:"going" nullable:"false" doc:"The first tags that would be deleted"`
	Staying      []PreviewTag             `json:"staying" nullable:"false" doc:"The first tags that would stay"`
	WouldDelete  int64                    `json:"tags_would_delete" doc:"Tags that a run would delete in addition if no policy observed or waited"`
	Would        []PreviewTag             `json:"would" nullable:"false" doc:"The first of these tags"`
	Untagged     []PreviewUntagged        `json:"untagged,omitempty" doc:"Untagged manifests that garbage collection will delete, soonest first, if a policy says how long they stay. Only the next 20000 reviews of the registry are looked at"`
	UntaggedMore bool                     `json:"untagged_more,omitempty" doc:"There are more of them than the limit"`
	Asks         []RunAsk                 `json:"asks" nullable:"false" doc:"Policies that would delete nothing and ask, because they would delete more than their cap allows: the first 1000"`
	Policies     []policies.PreviewPolicy `json:"policies" nullable:"false" doc:"The policies that were applied: the first 1000"`
}

// PreviewRepository says what a run would delete in a repository.
type PreviewRepository struct {
	Repository string `json:"repository"`
	Tags       int64  `json:"tags"`
	Deleted    int64  `json:"tags_deleted"`
}

// PreviewTag is a tag and why it is deleted or stays.
type PreviewTag struct {
	Repository string     `json:"repository"`
	Tag        string     `json:"tag"`
	Pushed     time.Time  `json:"pushed_at"`
	Code       judge.Code `json:"code" doc:"A code for the reason"`
	Reason     string     `json:"reason"`
	Policy     string     `json:"policy,omitempty" doc:"uuid of the policy that decided"`
}

// Bounds of a preview.
const (
	defaultPreview = 100
	maxPreview     = 10_000
	maxPreviewed   = 1000 // repositories that are listed
)

// Preview returns what a run would delete now in a namespace or a repository. It uses
// the same code as a run, and changes nothing. Each repository is judged in one
// snapshot. A process makes at most two previews at a time; further calls wait. A single
// preview looks at two repositories at once while there is a place. Preview returns the error NAME_UNKNOWN if the
// target doesn't exist.
func (p *Pruner) Preview(ctx context.Context, t policies.Target, o PreviewOptions) (*Preview, error) {
	if t.Scope() == policy.DefaultScope {
		return nil, oci.Invalid("a preview is of a namespace or of a repository: name one")
	}
	o.Limit = cmp.Or(o.Limit, defaultPreview)
	o.Limit = min(o.Limit, maxPreview)
	o.Within = cmp.Or(o.Within, time.Minute)
	giveBack, err := p.Repositories.TakePlace(ctx)
	if err != nil {
		return nil, err
	}
	defer giveBack()
	found, err := t.Find(ctx, p.db.Pool, false)
	if err != nil {
		return nil, err
	}
	l, err := p.Policies.Load(ctx, found.Namespace)
	if err != nil {
		return nil, err
	}
	if t.Scope() == policy.RepositoryScope && o.Policy != nil {
		l.DropExceptions() // the policy is tried out as one of the repository's own
	}
	if l.ReadUses() || o.Policy != nil && o.Policy.ReadsUses() {
		if err := p.settleFor(ctx, l); err != nil {
			return nil, err
		}
	}
	v := (&previewing{p: p, o: o, policies: l, until: time.Now().Add(o.Within)}).empty()
	if err := v.countCaps(ctx, t, found); err != nil {
		return nil, err
	}
	if err := v.all(ctx, t, found); err != nil {
		return nil, err
	}
	v.out.Complete = v.out.Complete && !v.uncounted
	v.out.Policies = append(v.out.Policies, v.listed.List...)
	if err := v.untagged(ctx, found.Namespace); err != nil {
		return nil, err
	}
	if err := v.warnUntagged(ctx); err != nil {
		return nil, err
	}
	if !o.HideBytes {
		bytes, err := p.Repositories.UnusedBytes(ctx, v.targets, v.manifests)
		switch {
		case db.Code(err) == db.CodeQueryCanceled && ctx.Err() == nil: // the tags are worth showing all the same
			v.out.Complete = false
		case err != nil:
			return nil, err
		default:
			v.out.Bytes = &bytes
		}
	}
	for i := range v.out.Policies {
		v.out.Policies[i].Notice = v.notices[v.out.Policies[i].ID]
	}
	return v.out, nil
}

// settleFor waits until all processes have written the uses that they answered before the call,
// as a run does before it deletes, and reads the state of the statistics again. If a process
// doesn't write its uses, last uses aren't known.
func (p *Pruner) settleFor(ctx context.Context, l *policies.Set) error {
	if p.opt.Settle == nil || p.opt.Pulls == nil {
		return nil
	}
	unsettled := p.opt.Settle(ctx)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var err error
	if l.Pulls, err = p.opt.Pulls(ctx); err != nil {
		return fmt.Errorf("asking how far the pull statistics are: %w", err)
	}
	if unsettled != nil {
		l.Pulls.Unknown = cmp.Or(l.Pulls.Unknown, unsettled.Error())
	}
	return nil
}

// previewing is a preview that is being made. Each repository has one of its own first (target), so that
// two can be looked at at once.
type previewing struct {
	p         *Pruner
	o         PreviewOptions
	policies  *policies.Set
	caps      *caps // nil: no policy has a cap
	until     time.Time
	out       *Preview
	target    catalog.Repository   // of a repository's
	applied   []judge.Applied      // there
	targets   []catalog.Repository // where manifests would be deleted
	manifests [][]int64
	notices   map[string]string // by policy
	listed    policies.Listed
	seen      []catalog.Repository // those that were looked at and in which a policy keeps untagged manifests
	uncounted bool                 // there was no time to count what policies with a cap would delete
}

// empty returns a preview of nothing, to which repositories are to be added.
func (v *previewing) empty() *previewing {
	return &previewing{
		p: v.p, o: v.o, policies: v.policies, caps: v.caps, until: v.until,
		out: &Preview{
			Reasons: make(map[judge.Code]int64), Per: []PreviewRepository{}, Going: []PreviewTag{}, Staying: []PreviewTag{}, Would: []PreviewTag{},
			Asks: []RunAsk{}, Policies: []policies.PreviewPolicy{},
		},
		notices: make(map[string]string),
	}
}

// all goes through the repositories of the target.
func (v *previewing) all(ctx context.Context, t policies.Target, found policies.Owner) error {
	look := func(ctx context.Context, target catalog.Repository) (*previewing, error) {
		one := v.empty()
		one.target = target
		return one, one.repository(ctx, target)
	}
	take := func(one *previewing, err error) error {
		v.add(one)
		return err
	}
	var err error
	if t.Scope() == policy.RepositoryScope {
		err = take(look(ctx, catalog.Repository{NamespaceID: found.Namespace, ID: found.Repository, Path: t.Repository}))
	} else {
		err = snapshot.InOrder(ctx, v.p.Repositories, found.Namespace, look, take)
	}
	if v.out.Complete = err == nil; errors.Is(err, snapshot.ErrTimeOver) {
		err = nil
	}
	return err
}

// add adds the preview of the repository that comes next.
func (v *previewing) add(one *previewing) {
	if !one.out.Now.IsZero() {
		v.out.Now = one.out.Now
	}
	v.out.Repositories += one.out.Repositories
	v.out.Tags += one.out.Tags
	v.out.Deleted += one.out.Deleted
	v.out.WouldDelete += one.out.WouldDelete
	for code, n := range one.out.Reasons {
		v.out.Reasons[code] += n
	}
	v.out.Per = upTo(maxPreviewed, v.out.Per, one.out.Per)
	v.out.Going = upTo(v.o.Limit, v.out.Going, one.out.Going)
	v.out.Staying = upTo(v.o.Limit, v.out.Staying, one.out.Staying)
	v.out.Would = upTo(v.o.Limit, v.out.Would, one.out.Would)
	v.listed.Add(one.target.Path, one.applied)
	maps.Copy(v.notices, one.notices)
	v.targets, v.manifests = append(v.targets, one.targets...), append(v.manifests, one.manifests...)
	v.seen = append(v.seen, one.seen...)
}

// upTo appends to the list until it has n elements.
func upTo[T any](n int, list, more []T) []T {
	return append(list, more[:min(len(more), max(0, n-len(list)))]...)
}

// walk calls fn for all repositories of a namespace.
func (v *previewing) walk(ctx context.Context, namespace int64, fn func(context.Context, catalog.Repository) error) error {
	for after := int64(0); ; {
		list, err := v.p.Repositories.List(ctx, namespace, after, 1000)
		if err != nil || len(list) == 0 {
			return err
		}
		for _, target := range list {
			if err := fn(ctx, target); err != nil {
				return err
			}
			after = target.ID
		}
	}
}

// judged returns the rules by which a run would judge the repository. If
// PreviewOptions.Policy is set, the rules contain this policy alone.
func (v *previewing) judged(t catalog.Repository) (judge.Rules, []policies.Saved) {
	rules, saved := v.policies.Of(t)
	if v.o.Policy == nil {
		return rules, saved
	}
	rules.Policies, saved = nil, nil
	if v.o.Policy.AppliesIn(t.Path) {
		saved = []policies.Saved{{Policy: *v.o.Policy}}
		rules.Policies = []judge.Applied{{Scope: policy.NamespaceScope, Policy: *v.o.Policy, Capped: v.caps.waits(saved[0]), Excepted: v.policies.Excepts(t.ID)}}
	}
	return rules, saved
}

// repository judges a repository, and adds what would be deleted there to an empty preview.
func (v *previewing) repository(ctx context.Context, target catalog.Repository) error {
	rules, saved := v.judged(target)
	v.applied = rules.Policies
	if slices.ContainsFunc(saved, func(s policies.Saved) bool { return s.KeepsUntagged() }) {
		v.seen = append(v.seen, target)
	}
	if err := v.p.Repositories.ConfigurationsUntil(ctx, target, rules.Policies, v.until, v.alive); err != nil {
		return err
	}
	return snapshot.Read(ctx, v.p.db.Pool, target, func(s *snapshot.Snapshot) error {
		rules.Now, v.out.Now = s.Now, s.Now
		r := v.reader(s, rules.Policies)
		repository := r.Repository(ctx)
		repository.Stock = judge.NewStock(repository) // both verdicts add up the same manifests
		verdict, err := judge.Evaluate(rules, repository)
		if err != nil {
			return err
		}
		for _, n := range verdict.Notices() {
			v.notices[saved[n.Policy].ID] = n.Text
		}
		var would *judge.Verdict
		if rules.Undecided() {
			rules.Would = true
			if would, err = judge.Evaluate(rules, repository); err != nil {
				return err
			}
		}
		r.Verdicts = []*judge.Verdict{verdict}
		if would != nil {
			r.Verdicts = append(r.Verdicts, would)
		}
		per := PreviewRepository{Repository: target.Path}
		u := snapshot.NewUnused(s)
		for t, err := range r.Tags(ctx) {
			if err != nil {
				return err
			}
			d := verdict.Decide(t.Judged)
			reason := func() string { return verdict.Reason(t.Judged, d) }
			if would != nil && !d.Delete {
				d, reason = v.tellWould(target, &t, would, d, reason, rules.Policies)
			}
			v.tell(target, &t, d, reason, rules.Policies)
			if !v.o.HideBytes {
				u.Tag(t.Manifest, d.Delete)
			}
			if per.Tags++; d.Delete {
				per.Deleted++
			}
		}
		v.out.Repositories++
		v.out.Tags += per.Tags
		v.out.Deleted += per.Deleted
		if per.Deleted == 0 {
			return nil
		}
		if len(v.out.Per) < maxPreviewed {
			v.out.Per = append(v.out.Per, per)
		}
		if v.o.HideBytes {
			return nil
		}
		manifests, err := u.Manifests(ctx)
		v.targets, v.manifests = append(v.targets, target), append(v.manifests, manifests)
		return err
	})
}

// reader reads the tags of a repository in larger pages than a run does: most repositories then have
// one, which is read once for all passes.
func (v *previewing) reader(s *snapshot.Snapshot, applied []judge.Applied) *snapshot.TagReader {
	r := v.p.Repositories.Tags(s, applied, v.alive)
	r.PageSize = 4 * v.p.opt.Page
	return r
}

func (v *previewing) alive(ctx context.Context) error {
	if time.Now().After(v.until) {
		return snapshot.ErrTimeOver
	}
	return ctx.Err()
}

// tell adds a tag to the preview. It asks for the reason only if the tag is listed.
func (v *previewing) tell(target catalog.Repository, t *snapshot.Tag, d judge.Decision, reason func() string, policies []judge.Applied) {
	v.out.Reasons[d.Code]++
	list := &v.out.Staying
	if d.Delete {
		list = &v.out.Going
	}
	if len(*list) < v.o.Limit {
		*list = append(*list, previewTag(target, t, d, reason(), policies))
	}
}

// tellWould adds a tag that stays, by the decision d, to the tags that would be deleted, if it
// would. It returns the decision and its reason; if only the mode of a policy keeps the tag,
// they say so. Where no policy is on, they are those of the policies that observe.
func (v *previewing) tellWould(target catalog.Repository, t *snapshot.Tag, would *judge.Verdict, d judge.Decision, reason func() string, policies []judge.Applied) (judge.Decision, func() string) {
	w := would.Decide(t.Judged)
	if !w.Delete {
		if d.Code == judge.Inactive {
			return w, func() string { return would.Reason(t.Judged, w) }
		}
		return d, reason
	}
	why := func() string { return would.Reason(t.Judged, w) }
	if v.out.WouldDelete++; len(v.out.Would) < v.o.Limit {
		v.out.Would = append(v.out.Would, previewTag(target, t, w, why(), policies))
	}
	if !d.Code.Waits() {
		d.Code, d.Policy = judge.Observed, w.Policy
		reason = func() string { return "would be deleted by a policy that observes: " + why() }
	}
	return d, reason
}

func previewTag(target catalog.Repository, t *snapshot.Tag, d judge.Decision, reason string, policies []judge.Applied) PreviewTag {
	told := PreviewTag{Repository: target.Path, Tag: t.Name, Pushed: t.Pushed, Code: d.Code, Reason: reason}
	if d.Policy >= 0 {
		told.Policy = policies[d.Policy].ID
	}
	return told
}
