package browse

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/purser-registry/purser/internal/oci"
)

const (
	// maxRanked is the maximum number of tags in a list in the order of rank, and of those in the order of
	// size whose manifests are looked up one by one (see MaxSized). No database index supports these
	// orders, so Tags reads and sorts all these tags for each page.
	maxRanked = 10_000
	// MaxSkip is the maximum of TagQuery.Skip.
	MaxSkip = 10_000
	// platformsWithin is a size in bytes: a list of tags shows the platforms only of image
	// indexes that aren't larger.
	platformsWithin = 64 << 10
	// maxChildren is how many of an image index's manifests a list of tags reads at most to
	// add up the index's size.
	maxChildren = 1000
)

// TagOrder is the order of a list of tags.
type TagOrder string

// Orders of tags. A database index supports TagsByName and TagsByPush.
const (
	TagsByName TagOrder = "name"
	TagsByPush TagOrder = "pushed"
	TagsBySize TagOrder = "size"
	TagsByRank TagOrder = "rank" // by the result of TagQuery.Rank
)

// TagQuery asks for a page of tags.
type TagQuery struct {
	NameFilter
	Exact      string   // one tag; "": all
	Names      []string // only these, by name; nil: all
	Order      TagOrder // default TagsByName
	Descending bool
	// Rank returns the sort key of each of the named tags, for the order TagsByRank. A tag
	// that is missing in the result of Rank has the sort key 0.
	Rank   func(ctx context.Context, repository int64, names []string) (map[string]int64, error)
	Unused *UnusedTags // list only unused tags; can't be combined with Skip. Nil: list all
	After  *TagPlace   // nil: from the beginning
	Skip   int         // leave out that many tags first, at most MaxSkip
	Limit  int
}

// TagPlace is the position of a tag in a list.
type TagPlace struct {
	Name string `json:"n"`
	// Rank is the tag's sort key. In the order of pushes it is when the tag was pushed, in
	// microseconds since 1970; in the order of size, the tag's size in bytes; in the order of
	// rank, the result of TagQuery.Rank; and in the order of names, 0.
	Rank int64 `json:"r,omitempty"`
}

// TagInfo is a tag in a list.
type TagInfo struct {
	Name         string
	Digest       oci.Digest
	MediaType    string
	ArtifactType string // "" for an index
	IsIndex      bool
	// Size is the size in bytes of the manifest together with its configuration and layers.
	// For an index it is the size of the index, of the blobs that it lists, and of its first
	// 1000 manifests; a layer that several of these manifests share counts several times.
	Size      int64
	Platforms []string // of an index up to 64 KiB
	CreatedAt time.Time
	// PushedAt is when the tag was last created, moved or pushed again unchanged.
	PushedAt time.Time
	// ExpiresAt is when the tag is to be deleted, zero: never.
	ExpiresAt time.Time
	// Immutable says that nobody may move or delete the tag (see SetTagImmutable).
	Immutable bool
}

// TagPage is a page of the tags of a repository.
type TagPage struct {
	Repository int64 // id
	Tags       []TagInfo
	Next       *TagPlace // nil: there is no next page
}

// foundTag is a tag that a query found for a page of a list of tags.
type foundTag struct {
	name            string
	manifest        int64
	created, pushed time.Time
	expires         *time.Time // nil: never
	immutable       bool
}

// Tags lists tags of a repository, one page at a time. A page begins after the position
// of the previous page's last tag, so tags that are made or deleted between two requests shift
// no page: a tag that stays unchanged is listed once.
//
// In the order of names or of pushes, a page costs the same in a large repository as in a
// small one, since its query reads a bounded number of names. Therefore with Contains, with
// Unused, or with Prefix in the order of pushes, a page may have fewer than Limit tags
// although there is a next page. In the order of size or rank, Tags reads all tags that
// begin with q.Prefix. If these are more than 10,000 in the order of rank, or MaxSized in the order of
// size, the error is UNSUPPORTED with status 400. Other error: NAME_UNKNOWN.
func (b *Browser) Tags(ctx context.Context, path string, q TagQuery) (page TagPage, err error) {
	r, err := b.lookUp(ctx, path)
	if err != nil {
		return page, err
	}
	q.Skip = min(q.Skip, MaxSkip)
	page.Repository = r.id
	var chosen []foundTag
	switch {
	case q.Order == TagsBySize, q.Order == TagsByRank:
		chosen, page.Next, err = b.rankedTags(ctx, path, r, q)
	case q.Unused != nil:
		chosen, page.Next, err = b.unusedTags(ctx, r, q)
	default:
		chosen, page.Next, err = b.indexedTags(ctx, r, q)
	}
	if err == nil {
		page.Tags, err = b.tagInfos(ctx, r, chosen)
	}
	if err != nil && !oci.IsClientError(err) {
		err = fmt.Errorf("listing tags of %s: %w", path, err)
	}
	return page, err
}

// indexedTags returns a page of tags in the order of names or of pushes, which a database
// index supports, and the position after which the next page begins.
func (b *Browser) indexedTags(ctx context.Context, r repository, q TagQuery) (page []foundTag, next *TagPlace, err error) {
	limit := bound(q.Skip, q.Limit, q.Contains == "" && (q.Order != TagsByPush || q.Prefix == ""))
	found, err := b.finder(q)(ctx, r, q, limit)
	if err != nil {
		return nil, nil, err
	}
	page, last := pick(found, func(t foundTag) bool { return q.selects(t.name) }, q.Skip, q.Limit, limit)
	if last != nil {
		next = q.place(*last)
	}
	return page, next, nil
}

// finder returns the function that reads the tags for q from the database. The function reads
// only the tag q.Exact if q.Exact isn't "", or only those of q.Names if they aren't nil, and otherwise tags in the order of pushes or of
// names.
func (b *Browser) finder(q TagQuery) func(ctx context.Context, r repository, q TagQuery, limit int) ([]foundTag, error) {
	switch {
	case q.Exact != "":
		return b.tagByName
	case q.Names != nil:
		return b.namedTags
	case q.Order == TagsByPush:
		return b.tagsByPush
	}
	return b.tagsByName
}

// place returns the position of a tag in a list in the order of names or of pushes.
func (q TagQuery) place(t foundTag) *TagPlace {
	p := &TagPlace{Name: t.name}
	if q.Order == TagsByPush {
		p.Rank = t.pushed.UnixMicro()
	}
	return p
}

func (b *Browser) tagByName(ctx context.Context, r repository, q TagQuery, limit int) ([]foundTag, error) {
	return b.findTags(ctx, `
		SELECT name, manifest_id, created_at, COALESCE(updated_at, created_at), expires_at, immutable FROM tags
		WHERE repository_id = $2 AND top_level_namespace_id = $1 AND name = $3 LIMIT $4`,
		r.namespace, r.id, q.Exact, limit)
}

func (b *Browser) namedTags(ctx context.Context, r repository, q TagQuery, limit int) ([]foundTag, error) {
	return b.findTags(ctx, `
		SELECT name, manifest_id, created_at, COALESCE(updated_at, created_at), expires_at, immutable FROM tags
		WHERE repository_id = $2 AND top_level_namespace_id = $1 AND name = ANY ($3) ORDER BY name LIMIT $4`,
		r.namespace, r.id, q.Names, limit)
}

func (b *Browser) tagsByName(ctx context.Context, r repository, q TagQuery, limit int) ([]foundTag, error) {
	compare, order, after := ">", "ASC", ""
	if q.Descending {
		compare, order, after = "<", "DESC", afterNames
	}
	if q.After != nil {
		after = q.After.Name
	}
	return b.findTags(ctx, fmt.Sprintf(`
		SELECT name, manifest_id, created_at, COALESCE(updated_at, created_at), expires_at, immutable FROM tags
		WHERE repository_id = $2 AND top_level_namespace_id = $1 AND name %s $3 AND name >= $4 AND name < $5
		ORDER BY name %s LIMIT $6`, compare, order),
		r.namespace, r.id, after, q.Prefix, q.Prefix+afterNames, limit)
}

func (b *Browser) tagsByPush(ctx context.Context, r repository, q TagQuery, limit int) ([]foundTag, error) {
	compare, order, after := ">", "ASC", TagPlace{Rank: math.MinInt64}
	if q.Descending {
		compare, order, after = "<", "DESC", TagPlace{Name: afterNames, Rank: math.MaxInt64}
	}
	if q.After != nil {
		after = *q.After
	}
	// The client sends the position, so its time may lie outside of the range of PostgreSQL's
	// timestamps. Replace it by -infinity or infinity, which sort before and after all tags.
	moment := pgtype.Timestamptz{Time: time.UnixMicro(after.Rank), Valid: true}
	switch {
	case after.Rank < 0:
		moment.InfinityModifier = pgtype.NegativeInfinity
	case after.Rank > maxMoment:
		moment.InfinityModifier = pgtype.Infinity
	}
	return b.findTags(ctx, fmt.Sprintf(`
		SELECT name, manifest_id, created_at, COALESCE(updated_at, created_at), expires_at, immutable FROM tags
		WHERE repository_id = $2 AND top_level_namespace_id = $1
			AND (COALESCE(updated_at, created_at), name) %[1]s ($3, $4)
		ORDER BY COALESCE(updated_at, created_at) %[2]s, name %[2]s LIMIT $5`, compare, order),
		r.namespace, r.id, moment, after.Name, limit)
}

// maxMoment is the year 10000, in microseconds since 1970.
const maxMoment = 253_402_300_800_000_000

func (b *Browser) findTags(ctx context.Context, sql string, args ...any) ([]foundTag, error) {
	rows, err := b.db.Pool.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (t foundTag, err error) {
		err = row.Scan(&t.name, &t.manifest, &t.created, &t.pushed, &t.expires, &t.immutable)
		return t, err
	})
}

// rankedTags returns a page of tags in the order of size or rank, and the position after which
// the next page begins. No database index supports these orders, so rankedTags reads all tags
// that begin with q.Prefix, sorts those that q selects and cuts out the page.
func (b *Browser) rankedTags(ctx context.Context, path string, r repository, q TagQuery) ([]foundTag, *TagPlace, error) {
	find := b.tagsByName
	if q.Exact != "" {
		find = b.tagByName
	}
	all, err := find(ctx, r, TagQuery{NameFilter: q.NameFilter, Exact: q.Exact}, b.ranked+1)
	if err != nil {
		return nil, nil, err
	}
	if len(all) > b.ranked && q.Order == TagsBySize && q.Unused == nil {
		return b.sizedTags(ctx, path, r, q)
	}
	if len(all) > b.ranked {
		return nil, nil, oci.Errorf(oci.Unsupported,
			"repository %s has more than %d tags to be sorted by %s: sort by name or pushed, or list those with a longer prefix",
			path, b.ranked, q.what()).WithStatus(http.StatusBadRequest)
	}
	if q.Unused != nil {
		all, err = q.unused(ctx, r, all)
	} else {
		all = slices.DeleteFunc(all, func(t foundTag) bool { return !q.selects(t.name) })
	}
	if err != nil {
		return nil, nil, err
	}
	ranks, err := b.rank(ctx, r, q, all)
	if err != nil {
		return nil, nil, err
	}
	compare := func(a, b TagPlace) int {
		d := cmp.Or(cmp.Compare(a.Rank, b.Rank), cmp.Compare(a.Name, b.Name))
		if q.Descending {
			return -d
		}
		return d
	}
	place := func(t foundTag) TagPlace { return TagPlace{t.name, ranks[t.name]} }
	slices.SortFunc(all, func(a, b foundTag) int { return compare(place(a), place(b)) })
	if q.After != nil {
		all = slices.DeleteFunc(all, func(t foundTag) bool { return compare(place(t), *q.After) <= 0 })
	}
	all = all[min(q.Skip, len(all)):]
	if len(all) <= q.Limit {
		return all, nil, nil
	}
	last := place(all[q.Limit-1])
	return all[:q.Limit], &last, nil
}

func (q TagQuery) what() string {
	if q.Order == TagsByRank {
		return "their last pull"
	}
	return string(q.Order)
}

// rank returns the sort key of each of the `tags`, by the tag's name: in the order of rank, the
// result of q.Rank; in the order of size, the tag's size in bytes.
func (b *Browser) rank(ctx context.Context, r repository, q TagQuery, tags []foundTag) (map[string]int64, error) {
	names, manifests := make([]string, len(tags)), make([]int64, len(tags))
	for i, t := range tags {
		names[i], manifests[i] = t.name, t.manifest
	}
	if q.Order == TagsByRank {
		if len(tags) == 0 {
			return nil, nil
		}
		return q.Rank(ctx, r.id, names)
	}
	rows, err := b.db.Pool.Query(ctx, `
		SELECT want.nth, m.size
		FROM unnest($3::bigint[]) WITH ORDINALITY AS want (id, nth)
		CROSS JOIN LATERAL purser_sized_manifest($1, $2, want.id, $4) m`, r.namespace, r.id, manifests, maxChildren)
	if err != nil {
		return nil, err
	}
	ranks := make(map[string]int64, len(tags))
	var nth, size int64
	_, err = pgx.ForEachRow(rows, []any{&nth, &size}, func() error {
		ranks[names[nth-1]] = size
		return nil
	})
	return ranks, err
}

// tagInfos returns the details of `tags`, which an earlier query found. It leaves out a tag
// whose manifest no longer exists, since the tag was deleted or moved after that query.
func (b *Browser) tagInfos(ctx context.Context, r repository, tags []foundTag) ([]TagInfo, error) {
	manifests := make([]int64, len(tags))
	for i, t := range tags {
		manifests[i] = t.manifest
	}
	rows, err := b.db.Pool.Query(ctx, `
		SELECT want.nth, m.digest, m.media_type, COALESCE(m.artifact_type, ''), m.size,
			CASE WHEN m.is_index AND octet_length(m.payload) <= $5 THEN m.payload END
		FROM unnest($3::bigint[]) WITH ORDINALITY AS want (id, nth)
		CROSS JOIN LATERAL purser_sized_manifest($1, $2, want.id, $4) m
		ORDER BY want.nth`, r.namespace, r.id, manifests, maxChildren, platformsWithin)
	if err != nil {
		return nil, err
	}
	list := make([]TagInfo, 0, len(tags))
	var nth, size int64
	var digest, payload []byte
	var mediaType, artifactType string
	_, err = pgx.ForEachRow(rows, []any{&nth, &digest, &mediaType, &artifactType, &size, &payload}, func() error {
		d, err := oci.DigestFromBytes(digest)
		t := tags[nth-1]
		kind, _ := oci.KindOf(mediaType)
		info := TagInfo{
			Name: t.name, Digest: d, MediaType: mediaType, ArtifactType: artifactType, IsIndex: kind == oci.KindIndex,
			Size: size, Platforms: platforms(payload), CreatedAt: t.created.UTC(), PushedAt: t.pushed.UTC(),
			Immutable: t.immutable,
		}
		if t.expires != nil {
			info.ExpiresAt = t.expires.UTC()
		}
		list = append(list, info)
		return err
	})
	return list, err
}

// platforms returns the platforms that an image index names, each as os/architecture/variant.
// It returns nil for an index that can't be parsed.
func platforms(index []byte) []string {
	var content struct {
		Manifests []struct {
			Platform *struct{ OS, Architecture, Variant string }
		}
	}
	if len(index) == 0 || json.Unmarshal(index, &content) != nil {
		return nil
	}
	var list []string
	for _, m := range content.Manifests {
		p := m.Platform
		if p == nil || p.OS == "" || p.OS == "unknown" { // attestations are listed with such platforms
			continue
		}
		text := p.OS + "/" + p.Architecture
		if p.Variant != "" {
			text += "/" + p.Variant
		}
		if !slices.Contains(list, text) {
			list = append(list, text)
		}
	}
	return list
}

// TagPlaces returns the positions of up to q.Limit tags, in the order of names or of pushes.
// `next` is the position after which the next page begins, nil if there is no next page.
// TagPlaces costs less than Tags, for callers that don't need the tags' details. Error:
// NAME_UNKNOWN.
func (b *Browser) TagPlaces(ctx context.Context, path string, q TagQuery) (places []TagPlace, next *TagPlace, err error) {
	r, err := b.lookUp(ctx, path)
	if err != nil {
		return nil, nil, err
	}
	found, next, err := b.indexedTags(ctx, r, q)
	if err != nil {
		return nil, nil, fmt.Errorf("listing tags of %s: %w", path, err)
	}
	for _, t := range found {
		places = append(places, *q.place(t))
	}
	return places, next, nil
}
