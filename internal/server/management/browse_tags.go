package management

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"github.com/google/uuid"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/pullstats"
	"github.com/purser-registry/purser/internal/server"
)

// listedTag is a tag in Quay's format, with Purser's additional members.
type listedTag struct {
	Name           string     `json:"name" example:"3.22"`
	Reversion      bool       `json:"reversion" doc:"Always false"`
	StartTS        int64      `json:"start_ts,omitempty" doc:"pushed_at in seconds since 1970; of a former tag, when it was last pushed or moved to this manifest. Missing: the audit log no longer says"`
	EndTS          int64      `json:"end_ts,omitempty" doc:"When the tag is deleted, in seconds since 1970, or when it was deleted or moved. Missing: never"`
	Expiration     string     `json:"expiration,omitempty" doc:"The same in Quay's form. Missing: never" example:"Mon, 02 Jan 2006 15:04:05 -0000"`
	LastModified   string     `json:"last_modified,omitempty" doc:"start_ts in Quay's form" example:"Mon, 02 Jan 2006 15:04:05 -0000"`
	ManifestDigest oci.Digest `json:"manifest_digest"`
	IsManifestList bool       `json:"is_manifest_list"`
	Size           int64      `json:"size" doc:"Bytes of the manifest, its configuration and its layers; of an index, the sum of this over its first 1000 manifests"`
	MediaType      string     `json:"media_type" doc:"Empty if the manifest was deleted"`
	ArtifactType   string     `json:"artifact_type,omitempty"`
	Platforms      []string   `json:"platforms,omitempty" nullable:"false" doc:"For an index of up to 64 KiB" example:"linux/amd64"`
	CreatedAt      time.Time  `json:"created_at,omitzero" doc:"When the tag was first pushed. Missing in the history"`
	PushedAt       time.Time  `json:"pushed_at,omitzero" doc:"When the tag was made, moved or pushed again. Missing in the history"`
	EndedBy        string     `json:"ended_by,omitempty" enum:"move_tag,revert_tag,delete_tag,autoprune_tag_delete" doc:"In the history: how the tag came to an end, as a kind of entry of the audit log"`
	ManifestGone   bool       `json:"manifest_gone,omitempty" doc:"In the history: the manifest isn't in the repository any more, so the tag can't be restored, and size is 0"`
	Immutable      bool       `json:"immutable,omitempty" doc:"Nobody may move or delete the tag, by its own setting"`
	IsProtected    bool       `json:"is_protected,omitempty" doc:"The tag is immutable, or a rule protects it from being moved and deleted. Only in the description of one tag"`
	ProtectedBy    string     `json:"protected_by,omitempty" doc:"The rule, for clients that may list the rules" example:"^v[0-9.]+$ of namespace library"`
	LastPulledAt   *time.Time `json:"last_pulled_at" doc:"Null: not pulled since pulls are counted, or the statistics can't be read now"`
	PullCount      *int64     `json:"pull_count" doc:"Null if last_pulled_at is"`
	PullDisplay    *string    `json:"pull_count_display" doc:"pull_count for people" example:"1.7K"`
}

func newListedTag(t catalog.TagInfo, pulls map[string]pullstats.Pulls) listedTag {
	l := listedTag{
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

type tagListInput struct {
	NameFilter
	Repository string `path:"repository" doc:"Name of the repository" example:"library/alpine"`
	Specific   string `query:"specificTag" maxLength:"128" doc:"Only this tag"`
	Filter     string `query:"filter_tag_name" maxLength:"255" doc:"like:TEXT is contains=TEXT, eq:TAG is specificTag=TAG"`
	OnlyActive bool   `query:"onlyActiveTags" doc:"False, and not left out: list the history, which has the present tags and the former ones, before they were moved or deleted, as far back as the audit log goes. The latest change is first"`
	NotPulled  string `query:"not_pulled_for" maxLength:"64" doc:"Only tags that weren't pulled, asked for by HEAD or pushed for so long: a number and one of s, m, h, d, w and y. A page looks at 10,000 tags at most, so it may be short, even empty, and have a next one" example:"90d"`
	Sort       string `query:"sort" enum:"name,-name,pushed,-pushed,size,-size,last_pulled,-last_pulled,pull_count,-pull_count" default:"-pushed" doc:"The order; with - in front it is reversed"`
	Limit      int    `query:"limit" minimum:"1" default:"50" doc:"Most entries of a page. More than 100 counts as 100"`
	Page       int    `query:"page" minimum:"1" default:"1" doc:"Quay's way to ask for a page. Tags that come or go meanwhile move the others, and it ends after 10,000 tags: next_page is better"`

	unused      bool // not_pulled_for is given, even if empty
	activeGiven bool // onlyActiveTags is given
}

// Resolve records whether the client's query contains the parameters not_pulled_for and
// onlyActiveTags, because an empty or false parameter means something else than a missing one.
// huma calls Resolve for each request.
func (in *tagListInput) Resolve(ctx huma.Context) []error {
	u := ctx.URL()
	query := u.Query()
	in.unused, in.activeGiven = query.Has("not_pulled_for"), query.Has("onlyActiveTags")
	return nil
}

func (in *tagListInput) query() (q catalog.TagQuery, err error) {
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
	if q.NameFilter, err = in.filter(); err != nil {
		return q, err
	}
	if q.Exact = in.Specific; q.Exact != "" {
		if err := oci.ValidateTag(q.Exact); err != nil {
			return q, badQuery("specificTag", "%v", err)
		}
	}
	in.Limit = min(in.Limit, 100)
	sort, descending := strings.CutPrefix(in.Sort, "-")
	q.Order, q.Descending, q.Limit = catalog.TagOrder(sort), descending, in.Limit
	if sort == "last_pulled" || sort == "pull_count" {
		q.Order = catalog.TagsByRank
	}
	after := new(catalog.TagPlace)
	given, err := parseCursor(in.NextPage, "tag "+in.Sort, after)
	if err != nil {
		return q, err
	}
	if given {
		q.After = after
		return q, nil
	}
	if in.Page > catalog.MaxSkip || (in.Page-1)*in.Limit > catalog.MaxSkip {
		return q, badQuery("page", "there is none behind the first %d tags: use next_page", catalog.MaxSkip)
	}
	q.Skip = (in.Page - 1) * in.Limit
	return q, nil
}

// tagPage is a page of a list of tags.
type tagPage struct {
	Tags          []listedTag `json:"tags" nullable:"false"`
	Page          int         `json:"page" doc:"The number of the page that was asked for"`
	HasAdditional bool        `json:"has_additional" doc:"Whether there is a next page"`
	NextPage      string      `json:"next_page,omitempty" doc:"Where the next page begins"`
}

func (a *API) addTagList() {
	type output struct{ Body tagPage }
	add(a, auth.Pull, huma.Operation{
		OperationID: "listRepoTags", Method: http.MethodGet, Path: "/repository/{repository}/tag", Tags: []string{"tag"},
		Summary: "List tags", Errors: []int{http.StatusNotFound, http.StatusConflict},
		Description: "With next_page a tag that stays as it is gets listed once, whatever comes and goes meanwhile. " +
			"Sorted by name or pushed a page costs the same whatever the size of the repository; by size, last_pulled or pull_count " +
			"up to 10,000 tags can be sorted, and more are refused: prefix narrows them. 409: pulls weren't counted for as " +
			"long as not_pulled_for asks, so nobody can tell.",
	}, func(ctx context.Context, in *tagListInput) (*output, error) {
		if in.historyAsked() {
			page, err := a.history(ctx, in)
			return &output{page}, err
		}
		q, err := in.query()
		if err != nil {
			return nil, err
		}
		q.Rank = a.rankByPulls(strings.TrimPrefix(in.Sort, "-") == "pull_count")
		if q.Unused, err = a.unused(ctx, in); err != nil {
			return nil, err
		}
		page, err := a.catalog.BrowseTags(ctx, in.Repository, q)
		if err != nil {
			return nil, err
		}
		pulls := a.pullsOf(ctx, page)
		out := tagPage{Tags: make([]listedTag, 0, len(page.Tags)), Page: in.Page, HasAdditional: page.Next != nil}
		for _, t := range page.Tags {
			out.Tags = append(out.Tags, newListedTag(t, pulls))
		}
		if page.Next != nil {
			out.NextPage = cursor("tag "+in.Sort, page.Next)
		}
		return &output{out}, nil
	})
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
func (a *API) pullsOf(ctx context.Context, page catalog.TagPage) map[string]pullstats.Pulls {
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

// movedTag is the body of a request to change a tag.
type movedTag struct {
	ManifestDigest string         `json:"manifest_digest,omitempty" doc:"The manifest that the tag is to point to" example:"sha256:4bcff63911fcb4448bd4fdacec207030997caf25e9bea4045fa6c8c44de311d1"`
	Expiration     *tagExpiration `json:"expiration,omitempty"`
	Immutable      *bool          `json:"immutable,omitempty" doc:"True: nobody may move or delete the tag any more, and its expiration is removed. False: undoes that. Either needs the access maintain"`
}

// tagExpiration is the date at which a tag is to be deleted, as the JSON text that the
// client sent.
type tagExpiration []byte

// UnmarshalJSON keeps the JSON text of the date. encoding/json doesn't call this method for
// null; therefore movedTag.UnmarshalJSON sets the field Expiration itself.
func (e *tagExpiration) UnmarshalJSON(b []byte) error {
	*e = bytes.Clone(b)
	return nil
}

// Schema describes the date.
func (tagExpiration) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{
		Description: "When the tag is to be deleted: seconds since 1970, or text such as 2030-01-02T15:04:05Z or as a list of tags writes it. Null: never",
		Examples:    []any{1893596645},
	}
}

// UnmarshalJSON decodes the body. Unlike encoding/json, it also sets Expiration if the member
// "expiration" is null. A client sends null to remove the tag's expiration, and leaves the
// member out to keep the expiration as it is.
func (b *movedTag) UnmarshalJSON(text []byte) error {
	type plain movedTag
	if err := json.Unmarshal(text, (*plain)(b)); err != nil {
		return err
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(text, &members); err != nil {
		return err
	}
	if given, ok := members["expiration"]; ok {
		b.Expiration = (*tagExpiration)(&given)
	}
	return nil
}

// time parses the JSON text of the expiration date. It returns the date, or the zero time for
// null. It returns an error for the client if the text isn't a date, or if the date has passed.
func (e tagExpiration) time() (at time.Time, err error) {
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

// TransformSchema adds the read-only members of a tag.
func (movedTag) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return api.ReadOnly(s, "name", "reversion", "start_ts", "end_ts", "last_modified", "is_manifest_list", "size", "media_type", "artifact_type",
		"platforms", "created_at", "pushed_at", "ended_by", "manifest_gone", "is_protected", "protected_by", "last_pulled_at", "pull_count", "pull_count_display")
}

// TagInput has the path parameters that name a tag. It is exported because huma finds
// parameters only in exported types.
type TagInput struct {
	Repository string `path:"repository" doc:"Name of the repository" example:"library/alpine"`
	Tag        string `path:"tag" doc:"Name of the tag" example:"3.22"`
}

func (a *API) addTag() {
	type getOutput struct{ Body listedTag }
	add(a, auth.Pull, huma.Operation{
		OperationID: "getTag", Method: http.MethodGet, Path: "/repository/{repository}/tag/{tag}", Tags: []string{"tag"},
		Summary: "Describe a tag", Errors: []int{http.StatusNotFound},
	}, func(ctx context.Context, in *TagInput) (*getOutput, error) {
		if err := server.CheckTag(in.Tag); err != nil {
			return nil, err
		}
		page, err := a.catalog.BrowseTags(ctx, in.Repository, catalog.TagQuery{Exact: in.Tag, Limit: 1})
		if err != nil {
			return nil, err
		}
		if len(page.Tags) == 0 {
			return nil, oci.Errorf(oci.ManifestUnknown, "repository %s has no tag %s", in.Repository, in.Tag).
				WithDetail(map[string]string{"name": in.Repository, "tag": in.Tag})
		}
		out := newListedTag(page.Tags[0], a.pullsOf(ctx, page))
		rule, err := a.catalog.ProtectionOf(ctx, in.Repository, in.Tag)
		out.IsProtected = rule != nil || out.Immutable
		if rule != nil && a.may(ctx, auth.Maintain, auth.OfRepository(in.Repository)) {
			out.ProtectedBy = rule.Pattern.String() + " of " + rule.Scope.String()
		}
		return &getOutput{out}, err
	})
	a.addTagChanges()
}

// tagOptions returns the options for a client that points a tag to a manifest.
func (a *API) tagOptions(ctx context.Context, repository string) []catalog.TagOption {
	if a.server.MayOverwrite(ctx, repository) {
		return nil
	}
	return []catalog.TagOption{catalog.KeepTag}
}

// changeTag moves a tag, makes it immutable or undoes that, sets its expiration, or several of
// these. A client that may not move tags may not
// set an expiration either, since that deletes the tag.
func (a *API) changeTag(ctx context.Context, tag TagInput, change movedTag) error {
	options := a.tagOptions(ctx, tag.Repository)
	var expires time.Time
	if change.Expiration != nil {
		if len(options) > 0 {
			return oci.Errorf(oci.Denied, "these credentials may not have a tag of %s deleted: use credentials with the action overwrite", tag.Repository)
		}
		var err error
		if expires, err = change.Expiration.time(); err != nil {
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
	if change.ManifestDigest != "" || change.Expiration == nil && change.Immutable == nil {
		d, err := oci.ParseDigest(change.ManifestDigest)
		if err != nil {
			return server.Refusal(http.StatusBadRequest, "manifest_digest: %v", err)
		}
		if err := a.catalog.PointTag(ctx, tag.Repository, tag.Tag, d, options...); err != nil {
			return err
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
	return a.catalog.SetTagExpiration(ctx, tag.Repository, tag.Tag, expires)
}

// mayMakeImmutable returns an error if the client may not make the tag immutable or undo that. A
// client that sends back what it got changes nothing, and needs no right for it.
func (a *API) mayMakeImmutable(ctx context.Context, tag TagInput, on bool) (changes bool, err error) {
	page, err := a.catalog.BrowseTags(ctx, tag.Repository, catalog.TagQuery{Exact: tag.Tag, Limit: 1})
	if err != nil {
		return false, err
	}
	if now := len(page.Tags) > 0 && page.Tags[0].Immutable; now == on {
		return false, nil
	}
	return true, a.server.Authorize(ctx, auth.Maintain, auth.OfRepository(tag.Repository))
}

type deleteTagInput struct {
	TagInput
	Override bool `query:"override_protection" doc:"Delete the tag even if it is protected"`
	Holds    bool `query:"override_holds" doc:"Delete the tag even if its manifest is deployed"`
	// Deletion is a text, since an absent one is none.
	Deletion string `query:"deletion" maxLength:"36" doc:"The deletion to which the tag is to belong, a UUID that the client has chosen: restoreTags restores all tags of the deletion by it"`

	request *http.Request // for a second access check
}

// Resolve keeps the request. huma calls it for each request.
func (in *deleteTagInput) Resolve(ctx huma.Context) []error {
	in.request, _ = humago.Unwrap(ctx)
	return nil
}

func (a *API) addTagChanges() {
	type moveInput struct {
		TagInput
		Body movedTag
	}
	type moveOutput struct{ Body string }
	add(a, auth.Push, needsBody(huma.Operation{
		OperationID: "changeTag", Method: http.MethodPut, Path: "/repository/{repository}/tag/{tag}", Tags: []string{"tag"},
		Summary: "Create or move a tag, or have it deleted at a date",
		Description: "With manifest_digest: points the tag to a manifest that is in the repository. A protected tag stays where it is: 409. " +
			"With expiration: the tag is deleted at that date, within a minute. Whoever pushes the tag again, or moves it, takes the date away; " +
			"so does a rule that protects the tag by then. With both, the date is that of the tag that was moved. " +
			"With immutable: the tag is protected as if a rule matched it alone.",
		DefaultStatus: http.StatusCreated,
		Errors: []int{http.StatusNotFound, http.StatusConflict, http.StatusRequestEntityTooLarge,
			http.StatusUnsupportedMediaType},
	}, map[string]any{"immutable": true}), func(ctx context.Context, in *moveInput) (*moveOutput, error) {
		if err := server.CheckTag(in.Tag); err != nil {
			return nil, err
		}
		return &moveOutput{"Updated"}, a.changeTag(ctx, in.TagInput, in.Body)
	})
	add(a, auth.Delete, huma.Operation{
		OperationID: "deleteFullTag", Method: http.MethodDelete, Path: "/repository/{repository}/tag/{tag}", Tags: []string{"tag"},
		Summary: "Delete a tag",
		Description: "Garbage collection deletes its manifest after a delay, when nothing else refers to it; until then the tag can be restored. " +
			"A protected tag stays: 409. override_protection deletes it all the same, which needs the access admin. " +
			"A tag of a manifest that a reporter holds stays too: 409, unless override_holds is given. With deletion, restoreTags restores it together with others.",
		DefaultStatus: http.StatusNoContent, Errors: []int{http.StatusNotFound, http.StatusConflict},
	}, func(ctx context.Context, in *deleteTagInput) (*struct{}, error) {
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
		return nil, a.catalog.DeleteTagOf(ctx, deletion, in.Repository, in.Tag, catalog.Condition{}, options...)
	})
}
