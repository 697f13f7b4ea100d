package forecast

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/purser-registry/purser/internal/autoprune/snapshot"
	"github.com/purser-registry/purser/internal/judge"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/policy"
)

// resolveImages finds the manifests that tags belong to, and since when they exist.
func (h *history) resolveImages(ctx context.Context) error {
	if err := h.namedImages(ctx); err != nil {
		return err
	}
	var ids []int64
	for _, id := range h.images {
		ids = append(ids, id)
	}
	for i := range h.manifests {
		ids = append(ids, h.manifests[i].subject)
	}
	slices.Sort(ids)
	ids = slices.DeleteFunc(slices.Compact(ids), func(id int64) bool { return id <= 0 || id > goneManifests })
	for part := range slices.Chunk(ids, 10_000) {
		if err := h.f.alive(ctx); err != nil {
			return err
		}
		err := h.s.Created(ctx, part, func(id int64, created time.Time) { h.imageSince[id] = created })
		if err != nil {
			return err
		}
	}
	return nil
}

// namedImages finds the manifests that names of tags refer to. One that is gone by now has the
// id that resolve gave it, if a tag pointed to it.
func (h *history) namedImages(ctx context.Context) error {
	var list []oci.DigestPrefix
	for i := range h.tags {
		if d, ok := judge.AttachedTo(h.tags[i].name); ok {
			list = append(list, d)
		}
	}
	if len(list) == 0 {
		return nil
	}
	for part := range slices.Chunk(list, 10_000) {
		found, err := h.s.Manifests(ctx, part)
		if err != nil {
			return err
		}
		maps.Copy(h.images, found)
	}
	named := make(map[oci.DigestPrefix]bool, len(list))
	for _, d := range list {
		named[d] = true
	}
	for d, id := range h.digests {
		if id <= goneManifests {
			continue
		}
		prefix, _, ok := oci.CutDigest(d.Algorithm().String() + "-" + d.Hex()[:64])
		if _, there := h.images[prefix]; ok && !there && named[prefix] {
			h.images[prefix] = id
			h.lives[id] = 0
			h.unknown.images++
		}
	}
	return nil
}

// matchNames matches the names of tags with the patterns of policies and of protection rules, since a
// name is the same on all days. The policies of the settings have the pattern of the policy.
func (h *history) matchNames(ctx context.Context) error {
	for i := range h.tags {
		if i%1024 == 0 {
			if err := h.f.alive(ctx); err != nil {
				return err
			}
		}
		t := &h.tags[i]
		for place := range h.rules.Policies {
			if h.rules.Policies[place].Policy.Considers(t.name) {
				t.names = t.names.With(place)
			}
		}
		t.immutable = t.immutable || h.rules.Protects(t.name)
	}
	h.rules.Protection = nil
	return nil
}

// existing returns the ids of the manifests of all states that still exist, in ascending order.
func (h *history) existing() []int64 {
	var ids []int64
	for i := range h.tags {
		for _, s := range h.tags[i].states {
			if s.manifest != 0 && s.manifest < goneManifests {
				ids = append(ids, s.manifest)
			}
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// readProperties reads what selectors look at, if a policy has selectors. Policies that look at
// manifests can't judge tags whose manifests are gone.
func (h *history) readProperties(ctx context.Context) error {
	sizes, judge := false, snapshot.NewAttributeJudge(h.rules.Policies)
	for i := range h.rules.Policies {
		p := &h.rules.Policies[i].Policy
		if sizes = sizes || p.ReadsManifests(); p.ReadsManifests() || p.ReadsAttributes() || p.ReadsPlatforms() || p.Method == policy.MaxBytes {
			h.selecting = h.selecting.With(i)
		}
	}
	if h.selecting == 0 {
		return nil
	}
	manifests := h.existing()
	if !sizes && judge == nil {
		manifests = nil
	}
	for part := range slices.Chunk(manifests, h.f.r.Page) {
		if err := h.f.alive(ctx); err != nil {
			return err
		}
		if err := h.readPart(ctx, part, sizes, judge); err != nil {
			return err
		}
	}
	for i := range h.tags {
		if slices.ContainsFunc(h.tags[i].states, func(s pastState) bool { return s.manifest > goneManifests }) {
			h.unknown.manifests++
		}
	}
	return nil
}

// readPart reads what selectors look at of some manifests: types and sizes if `sizes` is set,
// attributes if `judge` isn't nil.
func (h *history) readPart(ctx context.Context, manifests []int64, sizes bool, judge *snapshot.AttributeJudge) error {
	if sizes {
		found, err := h.s.Sizes(ctx, manifests)
		if err != nil {
			return err
		}
		for id, row := range found {
			h.manifests[h.place(id)].Manifest = row
		}
	}
	if judge == nil {
		return nil
	}
	found, err := h.s.Attributes(ctx, manifests, judge)
	for id, m := range found {
		h.manifests[h.place(id)].Matches = m
	}
	return err
}

// readUses reads the last-used times of the states that a policy needs them of. Of manifests
// that are gone by now they aren't known, since an index might have listed others.
func (h *history) readUses(ctx context.Context) error {
	if h.f.r.Used == nil {
		return nil
	}
	var states []*pastState
	var tags []*judge.Tag
	ask := func() error {
		if err := h.f.alive(ctx); err != nil || len(tags) == 0 {
			return err
		}
		if err := h.f.r.Used(ctx, h.target.ID, tags); err != nil {
			return err
		}
		for i, t := range tags {
			states[i].use = int32(len(h.uses))
			h.uses = append(h.uses, judge.Tag{Pulled: t.Used()})
		}
		states, tags = states[:0], tags[:0]
		return nil
	}
	for i := range h.tags {
		for j := range h.tags[i].states {
			s := &h.tags[i].states[j]
			if s.manifest == 0 || !h.asksUse(&h.tags[i], s) {
				continue
			}
			if s.manifest > goneManifests {
				s.use = unknownUse
				continue
			}
			states, tags = append(states, s), append(tags, &judge.Tag{Name: h.tags[i].name, Manifest: s.manifest})
			if len(tags) == h.f.r.Page {
				if err := ask(); err != nil {
					return err
				}
			}
		}
	}
	return ask()
}

// asksUse returns whether a policy needs to know when a tag was last used.
func (h *history) asksUse(t *pastTag, s *pastState) bool {
	one := h.tag(t, s, h.f.out.Now)
	for i := range h.rules.Policies {
		own := &h.rules.Policies[i].Policy
		longest := slices.ContainsFunc(h.f.settings, func(f setting) bool { return f.policy.ReadsUse(s.pushed, h.f.out.Now) })
		if (longest || own.ReadsUse(s.pushed, h.f.out.Now)) && (one.ConsideredBy(own, i) || one.InDoubtBy(own, i)) {
			return true
		}
	}
	return false
}

// tag returns a tag in a state as policies see it at a time.
func (h *history) tag(p *pastTag, s *pastState, at time.Time) judge.Tag {
	m := &h.manifests[s.place]
	t := judge.Tag{Name: p.name, Created: s.pushed, Manifest: s.manifest, Image: m.subject, Immutable: p.immutable, Names: p.names, NamesKnown: true}
	if p.named {
		prefix, _ := judge.AttachedTo(p.name)
		image, known := h.images[prefix]
		if lives, counted := h.lives[image]; known && (!counted || lives > 0) {
			t.Image = image
		} else if t.Image == 0 {
			t.Image = judge.MissingImage
		}
	}
	if t.Image > 0 && h.imageSince[t.Image].After(at) {
		t.Image = judge.MissingImage
	}
	t.MediaType, t.ArtifactType, t.Size = m.MediaType, m.ArtifactType, m.Size
	t.Matched, t.Unmatched, t.Platforms = m.Matched, m.Unmatched, m.Platforms
	if h.selecting != 0 && s.manifest > goneManifests {
		t.MediaType, t.Exempt = "unknown", h.selecting
	}
	switch {
	case s.use == 0:
	case s.use == unknownUse, h.uses[s.use].Pulled.After(at):
		t.Pulled, t.UseUnknown = at, true
		if !s.usesCounted && s.pushed.Before(at) {
			s.usesCounted = true
			h.unknown.uses++
		}
	default:
		t.Pulled = h.uses[s.use].Pulled
	}
	if h.s.Holds && (h.held[s.manifest] || t.Image > 0 && h.held[t.Image] || h.heldNames[p.name]) {
		t.Held = "held"
	}
	return t
}
