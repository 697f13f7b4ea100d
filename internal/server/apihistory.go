package server

import (
	"context"
	"errors"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/oci"
)

// tagHistoryPlace is where a page of the history begins: the tags that there are, and what
// tags were, are two lists that are merged by time.
type tagHistoryPlace struct {
	Tags      *catalog.TagPlace `json:"t,omitempty"` // nil: from the newest
	TagsEnd   bool              `json:"te,omitempty"`
	Former    string            `json:"f,omitempty"` // "": from the newest
	FormerEnd bool              `json:"fe,omitempty"`
}

// tagHistory is a page of a repository's tags together with what tags were until they were
// moved or deleted. The order is that of the last change, the newest first: of a tag when
// it was pushed, of what it was when that ended.
type tagHistory struct {
	api   *api
	in    *tagListInput
	query catalog.TagQuery
	past  audit.FormerQuery
	place tagHistoryPlace
}

// history reads a page of the history.
func (a *api) history(ctx context.Context, in *tagListInput) (page tagPage, err error) {
	h := tagHistory{api: a, in: in}
	if err := h.prepare(ctx); err != nil {
		return page, err
	}
	if h.query.Skip > 0 {
		if err := h.skip(ctx); err != nil {
			return page, err
		}
	}
	if page.Tags, err = h.page(ctx); err != nil {
		return page, err
	}
	if page.Page, page.HasAdditional = in.Page, !h.place.TagsEnd || !h.place.FormerEnd; page.HasAdditional {
		page.NextPage = cursor("tag history", h.place)
	}
	return page, nil
}

// prepare makes the queries of both lists.
func (h *tagHistory) prepare(ctx context.Context) (err error) {
	in := *h.in
	if in.Sort != "-pushed" || in.unused {
		return badQuery("onlyActiveTags", "the history has one order, that of changes, and no unused tags: leave out sort and not_pulled_for")
	}
	if h.api.server.opt.Audit == nil {
		return errNoLog
	}
	in.NextPage = ""
	if h.query, err = in.query(); err != nil {
		return err
	}
	given, err := parseCursor(h.in.NextPage, "tag history", &h.place)
	if err != nil {
		return err
	}
	if given {
		h.query.Skip = 0
	}
	h.query.After = nil
	h.past = audit.FormerQuery{Tag: h.query.Exact, Prefix: h.query.Prefix, Contains: h.query.Contains}
	h.past.RepositoryID, err = h.api.server.catalog.RepositoryID(ctx, in.Repository)
	return err
}

// historyRounds is how often the log is asked for one page, so that entries which ended
// nothing don't make it short. With a filter of names once is enough to look at many.
const historyRounds = 20

// former reads what tags were.
func (h *tagHistory) former(ctx context.Context, n int, endsOnly bool) (list []audit.FormerTag, next string, err error) {
	if h.place.FormerEnd {
		return nil, "", nil
	}
	q := h.past
	q.EndsOnly, next = endsOnly, h.place.Former
	rounds := historyRounds
	if q.Prefix != "" || q.Contains != "" {
		rounds = 1
	}
	for range rounds {
		var more []audit.FormerTag
		more, next, err = h.api.server.opt.Audit.FormerTags(ctx, q, next, n-len(list))
		if errors.Is(err, audit.ErrCursor) {
			err = badQuery("next_page", "%v", err)
		}
		if list = append(list, more...); err != nil || next == "" || len(list) == n {
			break
		}
	}
	return list, next, err
}

// skip moves the place behind as many as Quay's page asks for.
func (h *tagHistory) skip(ctx context.Context) error {
	n := h.query.Skip
	q := h.query
	q.Skip, q.Limit = 0, n
	tags, next, err := h.api.server.catalog.TagPlaces(ctx, h.in.Repository, q)
	if err != nil {
		return err
	}
	former, nextFormer, err := h.former(ctx, n, true)
	if err != nil {
		return err
	}
	m := historyMerge{tags: len(tags), former: len(former), moreTags: next != nil, moreFormer: nextFormer != ""}
	m.merge(n, func(i, j int) bool { return tags[i].Rank >= former[j].End.UnixMicro() })
	h.advance(m, func(i int) *catalog.TagPlace { return &tags[i] }, next, former, nextFormer)
	return nil
}

// page reads the entries of the page, and moves the place behind them.
func (h *tagHistory) page(ctx context.Context) ([]listedTag, error) {
	q := h.query
	q.Skip, q.After = 0, h.place.Tags
	var tags catalog.TagPage
	var err error
	if !h.place.TagsEnd {
		if tags, err = h.api.server.catalog.BrowseTags(ctx, h.in.Repository, q); err != nil {
			return nil, err
		}
	}
	former, next, err := h.former(ctx, q.Limit, false)
	if err != nil {
		return nil, err
	}
	m := historyMerge{tags: len(tags.Tags), former: len(former), moreTags: tags.Next != nil, moreFormer: next != ""}
	order := m.merge(q.Limit, func(i, j int) bool { return !tags.Tags[i].PushedAt.Before(former[j].End) })
	described, err := h.manifests(ctx, former[:m.usedFormer])
	if err != nil {
		return nil, err
	}
	pulls := h.api.pullsOf(ctx, tags)
	list, i, j := make([]listedTag, 0, len(order)), 0, 0
	for _, isTag := range order {
		if isTag {
			list = append(list, newListedTag(tags.Tags[i], pulls))
			i++
			continue
		}
		list = append(list, formerTag(former[j], described))
		j++
	}
	h.advance(m, func(i int) *catalog.TagPlace {
		return &catalog.TagPlace{Name: tags.Tags[i].Name, Rank: tags.Tags[i].PushedAt.UnixMicro()}
	}, tags.Next, former, next)
	return list, nil
}

// manifests describes those of the manifests that are still there.
func (h *tagHistory) manifests(ctx context.Context, former []audit.FormerTag) (map[oci.Digest]catalog.TagInfo, error) {
	seen, digests := make(map[oci.Digest]catalog.TagInfo), []oci.Digest(nil)
	for _, f := range former {
		if _, ok := seen[f.Digest]; !ok {
			seen[f.Digest], digests = catalog.TagInfo{}, append(digests, f.Digest)
		}
	}
	list, err := h.api.server.catalog.DescribeManifests(ctx, h.in.Repository, digests)
	clear(seen)
	for _, info := range list {
		seen[info.Digest] = info
	}
	return seen, err
}

// advance moves the place behind what was used of both lists.
func (h *tagHistory) advance(m historyMerge, tag func(int) *catalog.TagPlace, next *catalog.TagPlace, former []audit.FormerTag, nextFormer string) {
	switch {
	case m.usedTags < m.tags && m.usedTags > 0:
		h.place.Tags = tag(m.usedTags - 1)
	case m.usedTags == m.tags:
		h.place.TagsEnd = h.place.TagsEnd || !m.moreTags
		if m.moreTags {
			h.place.Tags = next
		}
	}
	switch {
	case m.usedFormer < m.former && m.usedFormer > 0:
		h.place.Former = former[m.usedFormer-1].Cursor
	case m.usedFormer == m.former:
		h.place.FormerEnd = h.place.FormerEnd || !m.moreFormer
		if m.moreFormer {
			h.place.Former = nextFormer
		}
	}
}

// historyMerge merges two lists of which only the beginnings are known.
type historyMerge struct {
	tags, former         int  // how many are known
	moreTags, moreFormer bool // whether there may be others behind them
	usedTags, usedFormer int
}

// merge takes up to n, and says of each whether it is a tag. It ends where it isn't known
// what comes next.
func (m *historyMerge) merge(n int, tagFirst func(tag, former int) bool) (order []bool) {
	for len(order) < n {
		tagLeft, formerLeft := m.usedTags < m.tags, m.usedFormer < m.former
		if !tagLeft && (m.moreTags || !formerLeft) || !formerLeft && m.moreFormer {
			break
		}
		isTag := tagLeft && (!formerLeft || tagFirst(m.usedTags, m.usedFormer))
		if order = append(order, isTag); isTag {
			m.usedTags++
		} else {
			m.usedFormer++
		}
	}
	return order
}

// formerTag is what a tag was, as Quay tells of it.
func formerTag(f audit.FormerTag, described map[oci.Digest]catalog.TagInfo) listedTag {
	info, there := described[f.Digest]
	l := listedTag{
		Name: f.Tag, EndTS: f.End.Unix(), Expiration: quayTime(f.End), LastModified: quayTime(f.Start), ManifestDigest: f.Digest,
		IsManifestList: info.IsIndex, Size: info.Size, MediaType: info.MediaType, ArtifactType: info.ArtifactType,
		Platforms: info.Platforms, EndedBy: string(f.Kind), ManifestGone: !there,
	}
	if !f.Start.IsZero() {
		l.StartTS = f.Start.Unix()
	}
	return l
}

// historyAsked says whether a list is to have what tags were: where Quay's parameter is
// there and false. Without it the list has the tags that there are.
func (in *tagListInput) historyAsked() bool { return in.activeGiven && !in.OnlyActive }
