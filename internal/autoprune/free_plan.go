package autoprune

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/autoprune/snapshot"
	"github.com/purser-registry/purser/internal/autoprune/warnings"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/hold"
	"github.com/purser-registry/purser/internal/judge"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/policy"
)

// Bounds of a plan to free.
const (
	maxFreed       = 500       // namespaces
	maxFreeTags    = 2_000_000 // tags that are looked at
	defaultFreeAge = "30d"
)

// FreeOptions says what to plan.
type FreeOptions struct {
	Bytes int64
	// UnusedFor is how long a tag must not have been used or pushed. Default 30d.
	UnusedFor string
	// Within limits how long PlanFree looks. Default 1 min.
	Within time.Duration
}

// FreePlan says which tags would be deleted to free bytes.
type FreePlan struct {
	Bytes        int64            `json:"bytes" doc:"How many bytes are to be freed"`
	Freed        int64            `json:"bytes_freed" doc:"How many bytes garbage collection would free: of blobs that no tag of the registry would need any more"`
	Enough       bool             `json:"enough" doc:"Whether these are as many"`
	Complete     bool             `json:"complete" doc:"False: there was no time to find the last tags that are needed. Carry it out, and plan again"`
	Tags         int64            `json:"tags" doc:"Tags that would be deleted"`
	Repositories []FreeRepository `json:"per_repository" nullable:"false" doc:"Where they are: the first 1000 repositories"`
	Notices      []string         `json:"notices" nullable:"false" doc:"Why tags can't be judged"`
	ShortAge     string           `json:"short_age,omitempty" doc:"How long unused_for is, if it is below an hour: m is minutes, and not months"`
	Unproved     string           `json:"last_use_unproved,omitempty" doc:"Why last use proves nothing in some of the namespaces: no reporter of what is deployed is live there"`
	Plan         string           `json:"plan,omitempty" doc:"Send it to carry out the plan. Absent: nothing would be deleted"`
}

// FreeRepository is what would be deleted in a repository.
type FreeRepository struct {
	Repository string    `json:"repository"`
	Tags       int64     `json:"tags"`
	Oldest     time.Time `json:"oldest_use" doc:"When the least recently used of these tags was used, or pushed if no use is known"`
	Newest     time.Time `json:"newest_use" doc:"The same of the most recently used"`
}

// freeable is a repository with what a plan needs to know of its tags.
type freeable struct {
	target catalog.Repository
	places []judge.FreePlace // of the tags that may go
	tags   []freeTag         // all tags
}

// freeTag is a tag in a plan: it goes with the first `place` places of the order of all tags that may
// go; staysAlways: it stays.
type freeTag struct {
	manifest, image int64
	place           int
}

const staysAlways = int(^uint(0) >> 1)

// freePlanner makes a plan.
type freePlanner struct {
	p       *Pruner
	age     policy.Age
	until   time.Time
	list    []*freeable
	order   []judge.FreePlace // of all tags that may go
	tags    int
	since   time.Time
	notices map[string]bool
	names   map[int64]string // of namespaces
	from    []int64          // namespaces of which the plan deletes tags
}

// PlanFree finds the least recently used tags of a namespace, or of the whole registry if `namespace`
// is "", whose deletion frees as many bytes as the options say. It changes nothing. Errors:
// NAME_UNKNOWN; UNSUPPORTED with status 400 if there are too many tags; errors that wrap
// worker.ErrRest while nothing may be deleted for its age.
func (p *Pruner) PlanFree(ctx context.Context, namespace string, o FreeOptions) (*FreePlan, error) {
	age, err := policy.ParseAge(cmp.Or(o.UnusedFor, defaultFreeAge))
	if err != nil {
		return nil, oci.Invalid("unused_for: %v", err)
	}
	if o.Bytes <= 0 {
		return nil, oci.Invalid("bytes: it must be more than 0")
	}
	if err := p.mayDelete(ctx); err != nil {
		return nil, err
	}
	giveBack, err := p.Repositories.TakePlace(ctx)
	if err != nil {
		return nil, err
	}
	defer giveBack()
	f := &freePlanner{p: p, age: age, until: time.Now().Add(cmp.Or(o.Within, time.Minute)), notices: map[string]bool{}, names: map[int64]string{}}
	complete := true
	if err := f.look(ctx, namespace); errors.Is(err, snapshot.ErrTimeOver) {
		return nil, oci.Invalid("there are too many tags to look at in time: name a namespace")
	} else if err != nil {
		return nil, err
	}
	f.sort()
	n, freed, err := f.enough(ctx, o.Bytes)
	if errors.Is(err, snapshot.ErrTimeOver) {
		complete, err = false, nil
	}
	if err != nil {
		return nil, err
	}
	plan, err := f.plan(o.Bytes, n, freed, complete)
	if err != nil {
		return nil, err
	}
	return plan, f.reporters(ctx, plan)
}

// reporters looks for namespaces of the plan in which nobody reports what runs.
func (f *freePlanner) reporters(ctx context.Context, plan *FreePlan) error {
	without, err := hold.WithoutLive(ctx, f.p.db.Pool, f.from)
	if err != nil || len(without) == 0 {
		return err
	}
	names := make([]string, len(without))
	for i, id := range without {
		names[i] = f.names[id]
	}
	plan.Unproved = warnings.LastUseUnproved(names).Sentence()
	return nil
}

// look reads the tags of the namespaces.
func (f *freePlanner) look(ctx context.Context, namespace string) error {
	rows, err := f.p.db.Pool.Query(ctx, "SELECT id, name FROM live_namespaces WHERE $1 = '' OR name = $1 ORDER BY id", namespace)
	if err != nil {
		return fmt.Errorf("looking for namespaces: %w", err)
	}
	var ids []int64
	var id int64
	var name string
	if _, err := pgx.ForEachRow(rows, []any{&id, &name}, func() error {
		ids, f.names[id] = append(ids, id), name
		return nil
	}); err != nil {
		return fmt.Errorf("looking for namespaces: %w", err)
	}
	if len(ids) == 0 && namespace != "" {
		return policies.UnknownNamespace(namespace)
	}
	var pulls judge.PullRecord
	for i, id := range ids {
		l, err := f.p.Policies.Load(ctx, id)
		if err != nil {
			return err
		}
		if i == 0 {
			if err := f.p.settleFor(ctx, l); err != nil {
				return err
			}
			pulls = l.Pulls
			pulls.Since = pulls.Since.Truncate(time.Microsecond) // as the database stores it
			f.since = pulls.Since
		}
		l.Pulls = pulls // all tags are compared by one state of the statistics
		v := &previewing{p: f.p}
		if err := v.walk(ctx, id, func(ctx context.Context, t catalog.Repository) error { return f.repository(ctx, l, t) }); err != nil {
			return err
		}
	}
	return nil
}

func (f *freePlanner) alive(ctx context.Context) error {
	if time.Now().After(f.until) {
		return snapshot.ErrTimeOver
	}
	return ctx.Err()
}

// repository finds the tags of a repository that may go.
func (f *freePlanner) repository(ctx context.Context, l *policies.Set, target catalog.Repository) error {
	if l.Excepts(target.ID) {
		f.notices["repositories that are exceptions keep every tag"] = true
		return nil
	}
	rules, _ := l.Of(target)
	for i := range rules.Policies {
		rules.Policies[i].Excepted = true // they only keep
	}
	if len(rules.Policies) >= judge.MaxPolicies {
		f.notices["a repository to which as many policies apply as may keeps every tag"] = true
		return nil
	}
	one := policy.Policy{Method: policy.LastPulled, OlderThan: f.age}
	one.RequireReporter = policies.RequiredReporters(rules.Policies)
	absences := l.Absences(&one)
	for _, text := range absences {
		f.notices["repositories keep every tag whose policies require a reporter: "+text] = true
	}
	if len(absences) > 0 {
		return nil
	}
	place := len(rules.Policies)
	rules.Policies = append(rules.Policies, judge.Applied{ID: judge.FreeName, Scope: policy.NamespaceScope, Policy: one, Uncovered: l.UncoveredIn(target.ID)})
	return snapshot.Read(ctx, f.p.db.Pool, target, func(s *snapshot.Snapshot) error {
		if err := f.p.mayJudge(ctx, s.Now); err != nil {
			return err
		}
		rules.Now = s.Now
		r := f.p.Repositories.Tags(s, rules.Policies, f.alive)
		verdict, err := judge.Evaluate(rules, r.Repository(ctx))
		if err != nil {
			return err
		}
		for _, n := range verdict.Notices() {
			if n.Policy == place {
				f.notices[n.Text] = true
			}
		}
		r.Verdicts = []*judge.Verdict{verdict}
		return f.collect(ctx, r, verdict, rules, &freeable{target: target})
	})
}

func (f *freePlanner) collect(ctx context.Context, r *snapshot.TagReader, verdict *judge.Verdict, rules judge.Rules, one *freeable) error {
	for t, err := range r.Tags(ctx) {
		if err != nil {
			return err
		}
		if f.tags++; f.tags > maxFreeTags {
			return oci.Invalid("there are more than %d tags to look at: name a namespace", maxFreeTags)
		}
		tag := freeTag{manifest: t.Manifest, place: staysAlways}
		switch d := verdict.Decide(t.Judged); {
		case d.Delete && (t.Judged.Attached() || t.Judged.Orphan()):
			tag.image, tag.place = t.Judged.Image, -1
		case d.Delete:
			one.places = append(one.places, judge.FreePlaceOf(one.target.ID, &t.Judged, rules.Pulls.Since))
			tag.place = len(one.places) - 1
		}
		one.tags = append(one.tags, tag)
	}
	if len(one.places) > 0 {
		f.list = append(f.list, one)
	}
	return nil
}

// sort orders the tags that may go, and gives each its place in the order of all. An attached tag
// goes with the last tag of its image.
func (f *freePlanner) sort() {
	for _, one := range f.list {
		f.order = append(f.order, one.places...)
	}
	slices.SortFunc(f.order, judge.FreePlace.Compare)
	for _, one := range f.list {
		last := make(map[int64]int)
		for i := range one.tags {
			t := &one.tags[i]
			if t.place >= 0 && t.place != staysAlways {
				t.place, _ = slices.BinarySearchFunc(f.order, one.places[t.place], judge.FreePlace.Compare)
			}
			if t.place >= 0 {
				last[t.manifest] = max(last[t.manifest], t.place)
			}
		}
		for i := range one.tags {
			if t := &one.tags[i]; t.place < 0 {
				if place, tagged := last[t.image]; tagged {
					t.place = place
				} else { // reached through an index, if at all: the run will tell
					t.place = len(f.order) - 1
				}
			}
		}
	}
}

// enough returns the smallest number of tags, from the least recently used, whose deletion frees the
// bytes, and how many it frees; all of them if that isn't enough. With snapshot.ErrTimeOver, the number is one
// that isn't enough.
func (f *freePlanner) enough(ctx context.Context, bytes int64) (n int, freed int64, err error) {
	if len(f.order) == 0 {
		return 0, 0, nil
	}
	known := map[int]int64{}
	try := func(n int) int64 {
		if err != nil {
			return bytes // ends the search
		}
		var frees int64
		if err = f.alive(ctx); err == nil {
			frees, err = f.frees(ctx, n)
		}
		if err != nil { // nothing is known of n
			return bytes
		}
		known[n] = frees
		return frees
	}
	all := try(len(f.order))
	if err != nil {
		return 0, 0, err
	}
	if all < bytes {
		return len(f.order), all, nil
	}
	n = 1 + sort.Search(len(f.order)-1, func(i int) bool { return try(i+1) >= bytes })
	if err != nil {
		n, freed = 0, 0
		for tried, some := range known {
			if some < bytes && tried > n {
				n, freed = tried, some
			}
		}
		return n, freed, err
	}
	return n, known[n], nil
}

// frees returns how many bytes the deletion of the first n tags frees.
func (f *freePlanner) frees(ctx context.Context, n int) (int64, error) {
	var targets []catalog.Repository
	var manifests [][]int64
	for _, one := range f.list {
		if err := f.alive(ctx); err != nil {
			return 0, err
		}
		if !slices.ContainsFunc(one.tags, func(t freeTag) bool { return t.place < n }) {
			continue
		}
		err := snapshot.Read(ctx, f.p.db.Pool, one.target, func(s *snapshot.Snapshot) error {
			u := snapshot.NewUnused(s)
			for _, t := range one.tags {
				u.Tag(t.manifest, t.place < n)
			}
			free, err := u.Manifests(ctx)
			targets, manifests = append(targets, one.target), append(manifests, free)
			return err
		})
		if err != nil {
			return 0, err
		}
	}
	bytes, err := f.p.Repositories.UnusedBytes(ctx, targets, manifests)
	if db.Code(err) == db.CodeQueryCanceled && ctx.Err() == nil {
		err = snapshot.ErrTimeOver
	}
	return bytes, err
}

// plan describes the deletion of the first n tags.
func (f *freePlanner) plan(bytes int64, n int, freed int64, complete bool) (*FreePlan, error) {
	out := &FreePlan{Bytes: bytes, Freed: freed, Enough: freed >= bytes, Complete: complete, Tags: int64(n),
		Repositories: []FreeRepository{}, Notices: []string{}, ShortAge: f.age.Short()}
	for text := range f.notices {
		out.Notices = append(out.Notices, text)
	}
	slices.Sort(out.Notices)
	if n == 0 {
		return out, nil
	}
	per := make(map[int64]*FreeRepository)
	for _, place := range f.order[:n] {
		one := per[place.Repository]
		if one == nil {
			one = &FreeRepository{Oldest: place.At, Newest: place.At}
			per[place.Repository] = one
		}
		one.Tags++
		if place.At.Before(one.Oldest) {
			one.Oldest = place.At
		}
		if place.At.After(one.Newest) {
			one.Newest = place.At
		}
	}
	request := FreeRequest{Bytes: bytes, UnusedFor: f.age.String(), Bound: f.order[n-1], Since: f.since}
	for _, one := range f.list {
		found := per[one.target.ID]
		if found == nil {
			continue
		}
		if name := f.names[one.target.NamespaceID]; !slices.Contains(request.Namespaces, name) {
			request.Namespaces, f.from = append(request.Namespaces, name), append(f.from, one.target.NamespaceID)
		}
		if found.Repository = one.target.Path; len(out.Repositories) < maxPreviewed {
			out.Repositories = append(out.Repositories, *found)
		}
	}
	if len(request.Namespaces) > maxFreed {
		return nil, oci.Invalid("tags of more than %d namespaces would go: free in single namespaces", maxFreed)
	}
	out.Plan = request.token()
	return out, nil
}
