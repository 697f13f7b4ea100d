package management

import (
	"context"
	"errors"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/catalog/browse"
	"github.com/purser-registry/purser/internal/oci"
)

// tagHistoryPlace is the position in a repository's tag history at which a page of the history
// begins. The history merges two lists by time: the existing tags, and the former states of
// tags. Therefore the position consists of one position in each list.
type tagHistoryPlace struct {
	Tags      *browse.TagPlace `json:"t,omitempty"` // nil: begin with the newest
	TagsEnd   bool             `json:"te,omitempty"`
	Former    string           `json:"f,omitempty"` // "": begin with the newest
	FormerEnd bool             `json:"fe,omitempty"`
}

// tagHistory builds one page of a repository's tag history. The history is one list, newest
// first, of the existing tags and of the states that tags had until they were moved or deleted.
// The time of an existing tag is its last push. The time of a former state is the moment of the
// move or deletion that ended it.
type tagHistory struct {
	api   *API
	in    *api.TagQuery
	query browse.TagQuery
	past  audit.FormerQuery
	place tagHistoryPlace
}

// history returns a page of the history.
func (a *API) history(ctx context.Context, in *api.TagQuery) (page api.TagPage, err error) {
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

// prepare builds the queries for existing tags and for former states from the client's
// parameters. It returns an error for the client if the history doesn't support one of the
// parameters or its value, or if there is no audit log.
func (h *tagHistory) prepare(ctx context.Context) (err error) {
	in := *h.in
	if in.Sort != "-pushed" || in.NotPulled.Given {
		return badQuery("onlyActiveTags", "the history has one order, that of changes, and no unused tags: leave out sort and not_pulled_for")
	}
	if h.api.opt.Audit == nil {
		return errNoLog
	}
	in.NextPage = ""
	if h.query, err = tagQuery(&in); err != nil {
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
	h.past.RepositoryID, err = h.api.browser.RepositoryID(ctx, in.Repository)
	return err
}

// historyRounds limits how many queries of the audit log are made for one page of the history.
// A query examines a bounded number of audit entries, and may find too few former states for
// the page: the entries about one tag, for example, include its pushes, which end no state. If
// the client filters by name, only one query is made, because it already examines many entries.
const historyRounds = 20

// former reads up to `n` former states of tags from the audit log, beginning at h.place.Former.
// It returns them with the cursor (`next`) at which the states after them begin, "" if there
// are no more. If `endsOnly` is true, the states have no start time, which saves a lookup for
// each tag.
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
		more, next, err = h.api.opt.Audit.FormerTags(ctx, q, next, n-len(list))
		if errors.Is(err, audit.ErrCursor) {
			err = badQuery("next_page", "%v", err)
		}
		if list = append(list, more...); err != nil || next == "" || len(list) == n {
			break
		}
	}
	return list, next, err
}

// skip moves h.place forward over all pages before the page that the client asks for. It is
// used if the client names the page by its number, with Quay's parameter page; h.query.Skip is
// then the number of entries on the earlier pages.
func (h *tagHistory) skip(ctx context.Context) error {
	n := h.query.Skip
	q := h.query
	q.Skip, q.Limit = 0, n
	tags, next, err := h.api.browser.TagPlaces(ctx, h.in.Repository, q)
	if err != nil {
		return err
	}
	former, nextFormer, err := h.former(ctx, n, true)
	if err != nil {
		return err
	}
	m := historyMerge{tags: len(tags), former: len(former), moreTags: next != nil, moreFormer: nextFormer != ""}
	m.merge(n, func(i, j int) bool { return tags[i].Rank >= former[j].End.UnixMicro() })
	h.advance(m, func(i int) *browse.TagPlace { return &tags[i] }, next, former, nextFormer)
	return nil
}

// page reads the entries of one page of the history, and moves h.place behind the last of them.
func (h *tagHistory) page(ctx context.Context) ([]api.ListedTag, error) {
	q := h.query
	q.Skip, q.After = 0, h.place.Tags
	var tags browse.TagPage
	var err error
	if !h.place.TagsEnd {
		if tags, err = h.api.browser.Tags(ctx, h.in.Repository, q); err != nil {
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
	list, i, j := make([]api.ListedTag, 0, len(order)), 0, 0
	for _, isTag := range order {
		if isTag {
			list = append(list, newListedTag(tags.Tags[i], pulls))
			i++
			continue
		}
		list = append(list, formerTag(former[j], described))
		j++
	}
	h.advance(m, func(i int) *browse.TagPlace {
		return &browse.TagPlace{Name: tags.Tags[i].Name, Rank: tags.Tags[i].PushedAt.UnixMicro()}
	}, tags.Next, former, next)
	return list, nil
}

// manifests describes the manifests to which the former states pointed, by their digests. The
// result lacks manifests that have been deleted since.
func (h *tagHistory) manifests(ctx context.Context, former []audit.FormerTag) (map[oci.Digest]browse.TagInfo, error) {
	seen, digests := make(map[oci.Digest]browse.TagInfo), []oci.Digest(nil)
	for _, f := range former {
		if _, ok := seen[f.Digest]; !ok {
			seen[f.Digest], digests = browse.TagInfo{}, append(digests, f.Digest)
		}
	}
	list, err := h.api.browser.DescribeManifests(ctx, h.in.Repository, digests)
	clear(seen)
	for _, info := range list {
		seen[info.Digest] = info
	}
	return seen, err
}

// advance moves h.place behind the entries that were used for the page, in the list of existing
// tags and in the list of former states. `next` is the position in the list of tags behind all
// tags that were read; `nextFormer` is the same for the former states.
func (h *tagHistory) advance(m historyMerge, tag func(int) *browse.TagPlace, next *browse.TagPlace, former []audit.FormerTag, nextFormer string) {
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

// historyMerge merges the two lists of a history, the existing tags and the former states of
// tags, when only the first entries of each list have been read.
type historyMerge struct {
	tags, former         int  // how many entries of each list have been read
	moreTags, moreFormer bool // whether each list continues behind these entries
	usedTags, usedFormer int
}

// merge chooses up to `n` entries, in order, from the list of existing tags and the list of
// former states. It returns for each chosen entry whether it is an existing tag. merge stops
// early when it has used all entries that were read of one list, and this list has more: its
// next entry, which wasn't read, could come before the next entry of the other list.
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

// formerTag returns a former state of a tag in Quay's format. The map `described` has the
// manifests that still exist; if the state's manifest isn't among them, the result has
// ManifestGone set.
func formerTag(f audit.FormerTag, described map[oci.Digest]browse.TagInfo) api.ListedTag {
	info, there := described[f.Digest]
	l := api.ListedTag{
		Name: f.Tag, EndTS: f.End.Unix(), Expiration: quayTime(f.End), LastModified: quayTime(f.Start), ManifestDigest: f.Digest,
		IsManifestList: info.IsIndex, Size: info.Size, MediaType: info.MediaType, ArtifactType: info.ArtifactType,
		Platforms: info.Platforms, EndedBy: string(f.Kind), ManifestGone: !there,
	}
	if !f.Start.IsZero() {
		l.StartTS = f.Start.Unix()
	}
	return l
}
