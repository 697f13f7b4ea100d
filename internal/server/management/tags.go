package management

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/catalog/browse"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/protection"
	"github.com/purser-registry/purser/internal/pullstats"
	"github.com/purser-registry/purser/internal/server"
)

func newListedTag(t browse.TagInfo, pulls map[string]pullstats.Pulls) api.ListedTag {
	l := api.ListedTag{
		Name: t.Name, StartTS: t.PushedAt.Unix(), LastModified: quayTime(t.PushedAt), ManifestDigest: t.Digest,
		IsManifestList: t.IsIndex, Size: t.Size, MediaType: t.MediaType, ArtifactType: t.ArtifactType,
		Platforms: t.Platforms, CreatedAt: t.CreatedAt, PushedAt: t.PushedAt, Expiration: quayTime(t.ExpiresAt), Immutable: t.Immutable,
	}
	if !t.ExpiresAt.IsZero() {
		l.EndTS = t.ExpiresAt.Unix()
	}
	// A tag for which clients have sent only HEAD requests has pull statistics too, with a
	// count of 0 and no time of a pull.
	if p := pulls[t.Name]; p.Count > 0 || !p.Last.IsZero() {
		text := pullstats.Display(p.Count)
		l.LastPulledAt, l.PullCount, l.PullDisplay = optional(p.Last), &p.Count, &text
	}
	return l
}

// tagQuery reads the parameters of a list of tags.
func tagQuery(in *api.TagQuery) (q browse.TagQuery, err error) {
	if op, text, ok := strings.Cut(in.Filter, ":"); in.Filter != "" {
		switch {
		case ok && op == "like" && in.Contains == "":
			in.Contains = text
		case ok && op == "eq" && in.Specific == "":
			in.Specific = text
		default:
			return q, badQuery("filter_tag_name", "%.100q should be like:TEXT or eq:TAG, and not beside contains or specificTag", in.Filter)
		}
	}
	if len(in.Names) > 0 {
		return namedTags(in)
	}
	if q.NameFilter, err = nameFilter(in.NameFilter); err != nil {
		return q, err
	}
	if q.Exact = in.Specific; q.Exact != "" {
		if err := oci.ValidateTag(q.Exact); err != nil {
			return q, badQuery("specificTag", "%v", err)
		}
	}
	in.Limit = min(in.Limit, 100)
	sort, descending := strings.CutPrefix(in.Sort, "-")
	q.Order, q.Descending, q.Limit = browse.TagOrder(sort), descending, in.Limit
	if sort == "last_pulled" || sort == "pull_count" {
		q.Order = browse.TagsByRank
	}
	after := new(browse.TagPlace)
	given, err := parseCursor(in.NextPage, "tag "+in.Sort, after)
	if err != nil {
		return q, err
	}
	if given {
		q.After = after
		return q, nil
	}
	if in.Page > browse.MaxSkip || (in.Page-1)*in.Limit > browse.MaxSkip {
		return q, badQuery("page", "there is none behind the first %d tags: use next_page", browse.MaxSkip)
	}
	q.Skip = (in.Page - 1) * in.Limit
	return q, nil
}

// namedTags reads the parameters of a list of tags that the client names.
func namedTags(in *api.TagQuery) (q browse.TagQuery, err error) {
	if in.NameFilter != (api.NameFilter{}) || in.Specific != "" || in.OfHistory() || in.NotPulled.Given || in.Sort != "-pushed" || in.Page > 1 {
		return q, badQuery("names", "leave out other filters and orders: these tags are listed by name")
	}
	for _, name := range in.Names {
		if err := oci.ValidateTag(name); err != nil {
			return q, badQuery("names", "%v", err)
		}
	}
	in.Limit = 100
	return browse.TagQuery{Names: in.Names, Order: browse.TagsByName, Limit: in.Limit}, nil
}

// listTags lists tags, or their history.
func (a *API) listTags(ctx context.Context, in *api.TagQuery) (*api.TagPage, error) {
	if in.OfHistory() {
		page, err := a.history(ctx, in)
		return &page, err
	}
	q, err := tagQuery(in)
	if err != nil {
		return nil, err
	}
	q.Rank = a.rankByPulls(strings.TrimPrefix(in.Sort, "-") == "pull_count")
	if q.Unused, err = a.unused(ctx, in); err != nil {
		return nil, err
	}
	page, err := a.readTags(ctx, in, q)
	if err != nil {
		return nil, err
	}
	pulls := a.pullsOf(ctx, page)
	out := &api.TagPage{Tags: make([]api.ListedTag, 0, len(page.Tags)), Page: in.Page, HasAdditional: page.Next != nil}
	for _, t := range page.Tags {
		out.Tags = append(out.Tags, newListedTag(t, pulls))
	}
	if in.Platforms {
		if err := a.addPlatforms(ctx, in.Repository, out.Tags); err != nil {
			return nil, err
		}
	}
	if page.Next != nil {
		out.NextPage = cursor("tag "+in.Sort, page.Next)
	}
	return out, nil
}

// sortTime is how long sorting the tags of a repository may take. It takes half as long for the most tags
// that are sorted by size.
const sortTime = 10 * time.Second

// readTags reads a page of tags. In an order for which it reads all tags, it waits for its turn.
func (a *API) readTags(ctx context.Context, in *api.TagQuery, q browse.TagQuery) (page browse.TagPage, err error) {
	read := func(ctx context.Context) (err error) {
		page, err = a.browser.Tags(ctx, in.Repository, q)
		return err
	}
	if q.Order != browse.TagsBySize && q.Order != browse.TagsByRank {
		err = read(ctx)
		return page, err
	}
	if err = a.runInTurn(ctx, a.turns, sortTime, read); errors.Is(err, errTooLong) {
		err = oci.Errorf(oci.Unavailable, "sorting the tags of %s by %s took longer than %s, so it was ended: sort by name or pushed, list those with a longer prefix, or try again later",
			in.Repository, strings.TrimPrefix(in.Sort, "-"), sortTime)
	}
	return page, err
}

// rankByPulls returns a function that gives tags the numbers by which a listing is sorted: the
// number of a tag's pulls if `count` is true, else the time of its last pull. The function
// returns an error for the client if the pull statistics can't be read, and no numbers if the
// registry has no pull statistics (Options.Pulls is nil).
func (a *API) rankByPulls(count bool) func(ctx context.Context, repository int64, names []string) (map[string]int64, error) {
	return func(ctx context.Context, repository int64, names []string) (map[string]int64, error) {
		if a.opt.Pulls == nil {
			return nil, nil
		}
		pulls, err := a.opt.Pulls.Tags(ctx, repository, names)
		if err != nil {
			a.server.Warn(ctx, "listing tags by their pulls failed", err)
			return nil, oci.Errorf(oci.Unavailable, "the statistics of pulls can't be read now: sort by something else")
		}
		ranks := make(map[string]int64, len(pulls))
		for name, p := range pulls {
			switch {
			case count:
				ranks[name] = p.Count
			case !p.Last.IsZero():
				ranks[name] = p.Last.UnixMicro()
			}
		}
		return ranks, nil
	}
}

// pullsOf reads the pull statistics of the tags on a page of a listing. If they can't be read,
// pullsOf logs the error and returns no statistics, so that the client still gets the listing.
func (a *API) pullsOf(ctx context.Context, page browse.TagPage) map[string]pullstats.Pulls {
	if a.opt.Pulls == nil || len(page.Tags) == 0 {
		return nil
	}
	names := make([]string, len(page.Tags))
	for i, t := range page.Tags {
		names[i] = t.Name
	}
	pulls, err := a.opt.Pulls.Tags(ctx, page.Repository, names)
	if err != nil {
		a.server.Warn(ctx, "listing tags without the statistics of their pulls", err)
	}
	return pulls
}

// expirationTime parses the JSON text of an expiration date. It returns the date, or the zero time for
// null. It returns an error for the client if the text isn't a date, or if the date has passed.
func expirationTime(e api.TagExpiration) (at time.Time, err error) {
	bad := server.Refusal(http.StatusBadRequest, "expiration: %.100s is neither a number of seconds since 1970, nor a time like 2030-01-02T15:04:05Z, nor null", []byte(e)).
		WithDetail(map[string]string{"field": "expiration"})
	var value any
	if json.Unmarshal(e, &value) != nil {
		return at, bad
	}
	switch v := value.(type) {
	case nil:
		return at, nil
	case float64:
		if v > float64(catalog.MaxExpiration.Unix()) || v < 0 {
			v = max(0, min(v, float64(catalog.MaxExpiration.Unix())+1))
		}
		at = time.UnixMilli(int64(v * 1000)).UTC()
	case string:
		if at, err = time.Parse(time.RFC3339, v); err != nil {
			if at, err = time.Parse(time.RFC1123Z, v); err != nil {
				return at, bad
			}
		}
	default:
		return at, bad
	}
	return at, catalog.CheckExpiration(at)
}

// addTags binds the operations on tags, and on the labels of pushed images that decide about them.
func (a *API) addTags() {
	serve(a, api.ListTags, a.listTags)
	serve(a, api.GetTag, a.getTag)
	serve(a, api.ChangeTag, func(ctx context.Context, in *api.TagChange) (*string, error) {
		if err := server.CheckTag(in.Tag); err != nil {
			return nil, err
		}
		updated := "Updated"
		return &updated, a.changeTag(ctx, in)
	})
	serve(a, api.DeleteTag, a.deleteTag)
	serve(a, api.RestoreTag, func(ctx context.Context, in *api.TagRestoration) (*api.RestoredTag, error) {
		if err := server.CheckTag(in.Tag); err != nil {
			return nil, err
		}
		condition, err := seenTag(in.SeenTag)
		if err != nil {
			return nil, err
		}
		return new(api.RestoredTag), a.catalog.RestoreTagIf(ctx, in.Repository, in.Tag, in.Body.ManifestDigest, condition, a.tagOptions(ctx, in.Repository)...)
	})
	serve(a, api.GetTagLabels, func(ctx context.Context, in *api.InNamespace) (*protection.TagLabels, error) {
		l, err := a.protection.TagLabels(ctx, in.Namespace)
		return &l, err
	})
	serve(a, api.SetTagLabels, func(ctx context.Context, in *api.TagLabelsChange) (*api.None, error) {
		return nil, a.protection.SetTagLabels(ctx, in.Namespace, in.Body)
	})
}

func (a *API) getTag(ctx context.Context, in *api.TagItem) (*api.ListedTag, error) {
	if err := server.CheckTag(in.Tag); err != nil {
		return nil, err
	}
	page, err := a.browser.Tags(ctx, in.Repository, browse.TagQuery{Exact: in.Tag, Limit: 1})
	if err != nil {
		return nil, err
	}
	if len(page.Tags) == 0 {
		return nil, oci.Errorf(oci.ManifestUnknown, "repository %s has no tag %s", in.Repository, in.Tag).
			WithDetail(map[string]string{"name": in.Repository, "tag": in.Tag})
	}
	one := []api.ListedTag{newListedTag(page.Tags[0], a.pullsOf(ctx, page))}
	if err := a.addPlatforms(ctx, in.Repository, one); err != nil {
		return nil, err
	}
	out := one[0]
	rule, err := a.protection.Of(ctx, in.Repository, in.Tag)
	out.IsProtected = rule != nil || out.Immutable
	if rule != nil && a.may(ctx, auth.Maintain, auth.OfRepository(in.Repository)) {
		out.ProtectedBy = rule.Pattern.String() + " of " + rule.Scope.String()
	}
	return &out, err
}

// tagOptions returns the options for a client that points a tag to a manifest.
func (a *API) tagOptions(ctx context.Context, repository string) []catalog.TagOption {
	if a.server.MayOverwrite(ctx, repository) {
		return nil
	}
	return []catalog.TagOption{catalog.KeepTag}
}

// seenTag returns the condition of a client that changes a tag only as it has seen the tag.
func seenTag(in api.SeenTag) (c catalog.Condition, err error) {
	switch in.IfDigest {
	case "":
		return c, nil
	case "none":
		c.IfNoMatch = &catalog.Validators{Any: true}
		return c, nil
	}
	d, err := oci.ParseDigest(in.IfDigest)
	if err != nil {
		return c, badQuery("if_digest", "%v", err)
	}
	c.IfMatch = &catalog.Validators{Digests: []oci.Digest{d}}
	return c, nil
}

// changeTag moves a tag, makes it immutable or undoes that, sets its expiration, or several of
// these. A client that may not move tags may not
// set an expiration either, since that deletes the tag.
func (a *API) changeTag(ctx context.Context, in *api.TagChange) error {
	tag, change := in.TagItem, in.Body
	options := a.tagOptions(ctx, tag.Repository)
	condition, err := seenTag(in.SeenTag)
	if err != nil {
		return err
	}
	if in.IfDigest != "" && (change.Immutable != nil || in.IfDigest == "none" && change.ManifestDigest == "") {
		return badQuery("if_digest", "it is a condition for moving a tag and for setting its expiration, and the latter needs a digest")
	}
	var expires time.Time
	if change.Expiration != nil {
		if len(options) > 0 {
			return oci.Errorf(oci.Denied, "these credentials may not have a tag of %s deleted: use credentials with the action overwrite", tag.Repository)
		}
		if expires, err = expirationTime(*change.Expiration); err != nil {
			return err
		}
	}
	immutable := change.Immutable
	if immutable != nil {
		changes, err := a.mayMakeImmutable(ctx, tag, *immutable)
		if err != nil {
			return err
		}
		if !changes { // somebody else may change it meanwhile, and this client may have no right to undo that
			immutable = nil
		}
	}
	var seen oci.Digest // to which a tag must point that gets an expiration; zero: any
	if condition.IfMatch != nil {
		seen = condition.IfMatch.Digests[0]
	}
	if change.ManifestDigest != "" || change.Expiration == nil && change.Immutable == nil {
		d, err := oci.ParseDigest(change.ManifestDigest)
		if err != nil {
			return server.Refusal(http.StatusBadRequest, "manifest_digest: %v", err)
		}
		if err := a.catalog.PointTagIf(ctx, tag.Repository, tag.Tag, d, condition, options...); err != nil {
			return err
		}
		if in.IfDigest != "" {
			seen = d
		}
	}
	if immutable != nil {
		if err := a.catalog.SetTagImmutable(ctx, tag.Repository, tag.Tag, *immutable); err != nil {
			return err
		}
	}
	if change.Expiration == nil {
		return nil
	}
	return a.catalog.SetTagExpirationOf(ctx, tag.Repository, tag.Tag, seen, expires)
}

// mayMakeImmutable returns an error if the client may not make the tag immutable or undo that. A
// client that sends back what it got changes nothing, and needs no right for it.
func (a *API) mayMakeImmutable(ctx context.Context, tag api.TagItem, on bool) (changes bool, err error) {
	page, err := a.browser.Tags(ctx, tag.Repository, browse.TagQuery{Exact: tag.Tag, Limit: 1})
	if err != nil {
		return false, err
	}
	if now := len(page.Tags) > 0 && page.Tags[0].Immutable; now == on {
		return false, nil
	}
	return true, a.server.Authorize(ctx, auth.Maintain, auth.OfRepository(tag.Repository))
}

func (a *API) deleteTag(ctx context.Context, in *api.TagDeletion) (*api.None, error) {
	if err := server.CheckTag(in.Tag); err != nil {
		return nil, err
	}
	deletion := uuid.Nil
	if in.Deletion != "" {
		var err error
		if deletion, err = parseDeletion(in.Deletion); err != nil {
			return nil, err
		}
	}
	options := overridingHolds(in.Holds)
	if in.Override {
		if err := a.server.Authorize(ctx, auth.Administer, auth.OfRepository(in.Repository)); err != nil {
			return nil, err
		}
		options = append(options, catalog.OverrideProtection)
	}
	condition, err := seenTag(in.SeenTag)
	if err != nil {
		return nil, err
	}
	condition.Tag = in.Tag
	return nil, a.catalog.DeleteTagOf(ctx, deletion, in.Repository, in.Tag, condition, options...)
}

// addProtection binds the operations on the rules that protect tags.
func (a *API) addProtection() {
	serve(a, api.ListProtection, a.listProtection)
	serve(a, api.CreateProtection, a.createProtection)
	serve(a, api.DeleteProtection, func(ctx context.Context, in *api.ProtectionItem) (*api.None, error) {
		id, err := pathUUID(in.UUID)
		if err != nil {
			return nil, err
		}
		return nil, a.protection.Delete(ctx, protectionScope(in.At), id)
	})
}

func protectionScope(at api.At) protection.Scope {
	return protection.Scope{Repository: at.Repository, Namespace: at.Namespace}
}

func (a *API) listProtection(ctx context.Context, in *api.ProtectionQuery) (*api.ProtectionList, error) {
	var after protection.Place
	if _, err := parseCursor(in.NextPage, "rule", &after); err != nil {
		return nil, err
	}
	rules, more, err := a.protection.List(ctx, protectionScope(in.At), after, in.Most())
	out := &api.ProtectionList{Rules: []api.ProtectionRule{}}
	for _, r := range rules {
		out.Rules = append(out.Rules, api.ProtectionRule{
			UUID: r.ID.String(), Pattern: r.Pattern.String(), Warnings: r.Pattern.Warnings(), Problem: r.Problem, CreatedAt: r.Created.UTC(),
		})
	}
	if more {
		last := rules[len(rules)-1]
		out.NextPage = cursor("rule", protection.Place{Created: last.Created, ID: last.ID})
	}
	return out, err
}

func (a *API) createProtection(ctx context.Context, in *api.ProtectionNew) (*api.CreatedRule, error) {
	pattern, err := oci.ParseTagPattern(in.Body.Pattern)
	if err != nil {
		return nil, server.Refusal(http.StatusBadRequest, "pattern: %v", err).WithDetail(map[string]string{"field": "pattern"})
	}
	rule, err := a.protection.Create(ctx, protectionScope(in.At), pattern)
	return &api.CreatedRule{UUID: rule.ID.String(), Warnings: pattern.Warnings()}, err
}
