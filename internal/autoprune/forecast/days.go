package forecast

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/purser-registry/purser/internal/hold"
	"github.com/purser-registry/purser/internal/judge"
	"github.com/purser-registry/purser/internal/policy"
)

// forecast judges the days of one repository, and the settings.
func (h *history) forecast(ctx context.Context) error {
	h.rules = h.f.rules(h.target)
	if err := h.read(ctx); err != nil {
		return err
	}
	h.days = make([]ForecastDay, len(h.f.out.Days))
	for i := range h.days {
		if err := h.day(ctx, i); err != nil {
			return err
		}
	}
	if err := h.sweep(ctx); err != nil {
		return err
	}
	if err := h.spread(ctx); err != nil {
		return err
	}
	return h.weighStored()
}

// day lets a run take place on a day: it finds the tags that exist then, and deletes those that
// the policies select.
func (h *history) day(ctx context.Context, i int) error {
	at := h.f.out.Days[i].At
	for id := range h.lives {
		h.lives[id] = 0
	}
	for p := range h.tags {
		t := &h.tags[p]
		for int(t.state)+1 < len(t.states) && !t.states[t.state+1].from.After(at) {
			t.state++
			t.gone = false
		}
		if s := t.now(); s != nil {
			h.days[i].Tags++
			if _, counted := h.lives[s.manifest]; counted {
				h.lives[s.manifest]++
			}
		}
	}
	rules := h.rules
	rules.Now = at
	verdict, err := h.judge(ctx, rules, (*pastTag).now, func(t *pastTag) {
		t.gone, t.goneDay = true, int32(i)
		h.days[i].Deleted++
		if h.f.o.deleted != nil {
			h.told = append(h.told, toldTag{i, t.name})
		}
	})
	if err == nil && i == len(h.days)-1 {
		h.notices = verdict.Notices()
	}
	return err
}

// now returns the tag's state on the day that is judged; nil if the tag doesn't exist then.
func (t *pastTag) now() *pastState {
	if t.state < 0 || t.gone || t.states[t.state].manifest == 0 {
		return nil
	}
	return &t.states[t.state]
}

// last returns the state of a tag that exists in reality; nil for others.
func (t *pastTag) last() *pastState {
	if !t.exists {
		return nil
	}
	return &t.states[len(t.states)-1]
}

// judge evaluates the tags in the states that `state` returns, and calls `gone` for each tag
// that the verdict deletes.
func (h *history) judge(ctx context.Context, rules judge.Rules, state func(*pastTag) *pastState, gone func(*pastTag)) (*judge.Verdict, error) {
	repository := h.s.WithContents(ctx, judge.Repository{
		Tags: func(yield func(judge.Tag, error) bool) {
			for i := range h.tags {
				if i%1024 == 0 {
					if err := h.f.alive(ctx); err != nil {
						yield(judge.Tag{}, err)
						return
					}
				}
				t := &h.tags[i]
				if s := state(t); s != nil && !yield(h.tag(t, s, rules.Now), nil) {
					return
				}
			}
		},
		Parents: func(manifests []int64) ([]judge.Reference, error) { return h.parentsOf(ctx, manifests) },
		Stock:   h.stock,
	}, h.f.alive)
	if h.s.Holds {
		repository.Held = func(manifests []int64) ([]int64, error) {
			if err := h.askHolds(ctx, manifests, nil); err != nil {
				return nil, err
			}
			return slices.DeleteFunc(slices.Clone(manifests), func(id int64) bool { return !h.held[id] }), nil
		}
	}
	verdict, err := judge.Evaluate(rules, repository)
	if err != nil || !verdict.HasCandidates() && !verdict.ImagesGo() {
		return verdict, err
	}
	var going []*pastTag
	for i := range h.tags {
		if i%1024 == 0 {
			if err := h.f.alive(ctx); err != nil {
				return nil, err
			}
		}
		t := &h.tags[i]
		if s := state(t); s != nil && verdict.Decide(h.tag(t, s, rules.Now)).Delete {
			going = append(going, t)
		}
	}
	if err := h.fillHolds(ctx, going, rules.Now, state); err != nil {
		return nil, err
	}
	for _, t := range going {
		if !h.s.Holds || verdict.Decide(h.tag(t, state(t), rules.Now)).Delete {
			gone(t)
		}
	}
	return verdict, nil
}

// parentsOf returns the references to the given manifests, and remembers them for other days.
func (h *history) parentsOf(ctx context.Context, manifests []int64) (list []judge.Reference, err error) {
	var asked []int64
	for _, id := range manifests {
		if _, known := h.parents[id]; !known {
			h.parents[id] = nil
			if id < goneManifests {
				asked = append(asked, id)
			}
		}
	}
	links, err := h.s.Parents(ctx, asked)
	if err != nil {
		return nil, err
	}
	for _, l := range links {
		h.parents[l.Kept] = append(h.parents[l.Kept], judge.Reference{Parent: l.Keeper, Child: l.Kept})
	}
	for _, id := range manifests {
		list = append(list, h.parents[id]...)
	}
	return list, nil
}

// fillHolds looks for holds on tags that are about to be deleted.
func (h *history) fillHolds(ctx context.Context, going []*pastTag, at time.Time, state func(*pastTag) *pastState) error {
	if !h.s.Holds || len(going) == 0 {
		return nil
	}
	var manifests []int64
	var names []string
	for _, p := range going {
		t := h.tag(p, state(p), at)
		if manifests = append(manifests, t.Manifest); t.Image > 0 {
			manifests = append(manifests, t.Image)
		}
		if p.named {
			names = append(names, p.name)
		}
	}
	return h.askHolds(ctx, manifests, names)
}

// askHolds looks for holds of now on those of the manifests and names that weren't asked for
// yet.
func (h *history) askHolds(ctx context.Context, manifests []int64, names []string) error {
	var asked []int64
	for _, id := range manifests {
		if _, known := h.held[id]; !known && id < goneManifests {
			h.held[id] = false
			asked = append(asked, id)
		}
	}
	var named []string
	for _, name := range names {
		if _, known := h.heldNames[name]; !known {
			h.heldNames[name] = false
			named = append(named, name)
		}
	}
	for part := range slices.Chunk(asked, h.f.r.Page) {
		if err := h.f.alive(ctx); err != nil {
			return err
		}
		found, err := hold.Of(ctx, h.s.Tx, h.target.NamespaceID, h.target.ID, part)
		if err != nil {
			return err
		}
		for id := range maps.Keys(found) {
			h.held[id] = true
		}
	}
	for part := range slices.Chunk(named, h.f.r.Page) {
		found, err := hold.OfNames(ctx, h.s.Tx, h.target.NamespaceID, h.target.ID, part)
		if err != nil {
			return err
		}
		for name := range maps.Keys(found) {
			h.heldNames[name] = true
		}
	}
	return nil
}

// sweep judges the tags that exist now by each setting, and finds for each tag the first
// setting at which it stays.
func (h *history) sweep(ctx context.Context) error {
	settings := h.f.settings
	h.stay = make([]int64, len(settings))
	first := make(map[*pastTag]int, h.current)
	for i := range settings {
		h.stay[i] = h.current
		rules := h.rules
		rules.Now = h.f.out.Now
		if len(rules.Policies) > 0 {
			rules.Policies = []judge.Applied{{Scope: policy.NamespaceScope, Policy: settings[i].policy}}
		}
		_, err := h.judge(ctx, rules, (*pastTag).last, func(t *pastTag) {
			h.stay[i]--
			first[t] = i + 1
		})
		if err != nil {
			return err
		}
	}
	for i := range h.tags {
		t := &h.tags[i]
		s := t.last()
		if s == nil {
			continue
		}
		level := storedLevel{day: int32(len(h.days)), setting: int32(len(settings) - first[t])}
		if t.gone && int(t.state) == len(t.states)-1 {
			level.day = t.goneDay
		}
		h.raise(s.manifest, level)
	}
	return nil
}
