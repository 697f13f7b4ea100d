package api

import (
	"bytes"
	"encoding/json"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/protection"
)

// ListedTag is a tag in Quay's format, with Purser's additional members.
type ListedTag struct {
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
	Platforms      []string   `json:"platforms,omitempty" nullable:"false" doc:"Of an index of up to 64 KiB; of an image in its description, and in a list that was asked for platforms" example:"linux/arm64/v8"`
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

// TagPage is a page of a list of tags.
type TagPage struct {
	Tags          []ListedTag `json:"tags" nullable:"false"`
	Page          int         `json:"page" doc:"The number of the page that was asked for"`
	HasAdditional bool        `json:"has_additional" doc:"Whether there is a next page"`
	NextPage      string      `json:"next_page,omitempty" doc:"Where the next page begins"`
}

// Entries implements Page.
func (p TagPage) Entries() ([]ListedTag, string) { return p.Tags, p.NextPage }

// MovedTag is the body of a request to change a tag.
type MovedTag struct {
	ManifestDigest string         `json:"manifest_digest,omitempty" doc:"The manifest that the tag is to point to" example:"sha256:4bcff63911fcb4448bd4fdacec207030997caf25e9bea4045fa6c8c44de311d1"`
	Expiration     *TagExpiration `json:"expiration,omitempty"`
	Immutable      *bool          `json:"immutable,omitempty" doc:"True: nobody may move or delete the tag any more, and its expiration is removed. False: undoes that. Either needs the access maintain"`
}

// UnmarshalJSON decodes the body. Unlike encoding/json, it also sets Expiration if the member
// "expiration" is null. A client sends null to remove the tag's expiration, and leaves the
// member out to keep the expiration as it is.
func (b *MovedTag) UnmarshalJSON(text []byte) error {
	type plain MovedTag
	if err := json.Unmarshal(text, (*plain)(b)); err != nil {
		return err
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(text, &members); err != nil {
		return err
	}
	if given, ok := members["expiration"]; ok {
		b.Expiration = (*TagExpiration)(&given)
	}
	return nil
}

// TransformSchema adds the read-only members of a tag.
func (MovedTag) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return ReadOnly(s, "name", "reversion", "start_ts", "end_ts", "last_modified", "is_manifest_list", "size", "media_type", "artifact_type",
		"platforms", "created_at", "pushed_at", "ended_by", "manifest_gone", "is_protected", "protected_by", "last_pulled_at", "pull_count", "pull_count_display")
}

// TagExpiration is the date at which a tag is to be deleted, as JSON.
type TagExpiration []byte

// MarshalJSON returns the date.
func (e TagExpiration) MarshalJSON() ([]byte, error) { return e, nil }

// UnmarshalJSON keeps the JSON text of the date. encoding/json doesn't call this method for
// null; therefore MovedTag.UnmarshalJSON sets the field Expiration itself.
func (e *TagExpiration) UnmarshalJSON(b []byte) error {
	*e = bytes.Clone(b)
	return nil
}

// Schema describes the date.
func (TagExpiration) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{
		Description: "When the tag is to be deleted: seconds since 1970, or text such as 2030-01-02T15:04:05Z or as a list of tags writes it. Null: never",
		Examples:    []any{1893596645},
	}
}

// restoreTag is the body of a request to restore a tag. Members that the API doesn't know
// are ignored, as in Quay.
type restoreTag struct {
	_              struct{}   `additionalProperties:"true"`
	ManifestDigest oci.Digest `json:"manifest_digest" minLength:"1" doc:"The manifest that the tag is to point to" example:"sha256:4bcff63911fcb4448bd4fdacec207030997caf25e9bea4045fa6c8c44de311d1"`
}

// RestoredTag is the answer to the restoration of a tag. Quay's has no members.
type RestoredTag struct{}

// NameFilter is the part of an input that selects a page of a list by names.
type NameFilter struct {
	Prefix   string `query:"prefix" maxLength:"255" doc:"Only names that begin with this"`
	Contains string `query:"contains" maxLength:"255" doc:"Only names that contain this. A page examines 20,000 names at most, so it may be short, even empty, and have a next one"`
	NextPage string `query:"next_page" doc:"The next_page of the page before"`
}

// Inputs of the operations on tags.
type (
	// TagItem is also the part of other inputs that names a tag.
	TagItem struct {
		InRepository
		Tag string `path:"tag" doc:"Name of the tag" example:"3.22"`
	}
	TagQuery struct {
		NameFilter
		InRepository
		Specific   string           `query:"specificTag" maxLength:"128" doc:"Only this tag"`
		Names      []string         `query:"names" maxItems:"100" doc:"Only these tags, by name, with commas between them. Those that don't exist are left out. Other filters and orders can't be given with it" example:"v1,v2"`
		Filter     string           `query:"filter_tag_name" maxLength:"255" doc:"like:TEXT is contains=TEXT, eq:TAG is specificTag=TAG"`
		OnlyActive Optional[bool]   `query:"onlyActiveTags" doc:"False, and not left out: list the history, which has the present tags and the former ones, before they were moved or deleted, as far back as the audit log goes. The latest change is first"`
		NotPulled  Optional[string] `query:"not_pulled_for" maxLength:"64" doc:"Only tags that weren't pulled, asked for by HEAD or pushed for so long: a number and one of s, m, h, d, w and y. A page looks at 10,000 tags at most, so it may be short, even empty, and have a next one" example:"90d"`
		Platforms  bool             `query:"platforms" doc:"Return the platforms of images too, which are in their configurations, as far as these can be read within 0.3 s. Those of indexes are returned anyway"`
		Sort       string           `query:"sort" enum:"name,-name,pushed,-pushed,size,-size,last_pulled,-last_pulled,pull_count,-pull_count" default:"-pushed" doc:"The order; with - in front it is reversed"`
		Limit      int              `query:"limit" minimum:"1" default:"50" doc:"Most entries of a page. More than 100 counts as 100"`
		Page       int              `query:"page" minimum:"1" default:"1" doc:"Quay's way to ask for a page. Tags that come or go meanwhile move the others, and it ends after 10,000 tags: next_page is better"`
	}
	// SeenTag is the part of an input by which a client changes a tag only as it has seen the tag.
	SeenTag struct {
		IfDigest string `query:"if_digest" maxLength:"150" doc:"Only if the tag points to this manifest now; none: only if there is no such tag. Otherwise nothing is changed: 412"`
	}
	TagChange struct {
		TagItem
		SeenTag
		Body MovedTag
	}
	TagRestoration struct {
		TagItem
		SeenTag
		Body restoreTag
	}
	TagDeletion struct {
		TagItem
		SeenTag
		Override bool `query:"override_protection" doc:"Delete the tag even if it is protected"`
		Holds    bool `query:"override_holds" doc:"Delete the tag even if its manifest is deployed"`
		// Deletion is a text, since an absent one is none.
		Deletion string `query:"deletion" maxLength:"36" doc:"The deletion to which the tag is to belong, a UUID that the client has chosen: restoreTags restores all tags of the deletion by it"`
	}
	TagLabelsChange struct {
		InNamespace
		Body protection.TagLabels
	}
)

// Resolve records which parameters the request has, even if they are empty. It implements
// huma.Resolver.
func (in *TagQuery) Resolve(ctx huma.Context) []error {
	u := ctx.URL()
	query := u.Query()
	in.OnlyActive.Given, in.NotPulled.Given = query.Has("onlyActiveTags"), query.Has("not_pulled_for")
	return nil
}

// OfHistory says whether the list is of the history instead of the existing tags: Quay's parameter
// onlyActiveTags has the value false.
func (in *TagQuery) OfHistory() bool { return in.OnlyActive.Given && !in.OnlyActive.Value }

// The operations on tags, and on the labels of pushed images that decide about them.
var (
	ListTags = Operation[TagQuery, TagPage]{
		ID: "listRepoTags", Method: http.MethodGet, Path: "/repository/{repository}/tag", Tag: "tag", Access: auth.Pull,
		Summary: "List tags", Errors: []int{http.StatusNotFound, http.StatusConflict},
		Description: "With next_page a tag that stays as it is gets listed once, whatever comes and goes meanwhile. " +
			"Sorted by name or pushed a page costs the same whatever the size of the repository; by last_pulled or pull_count " +
			"up to 10,000 tags can be sorted, by size up to 200,000, and more are refused: prefix narrows them. 409: pulls weren't counted for as " +
			"long as not_pulled_for asks, so nobody can tell.",
	}
	GetTag = Operation[TagItem, ListedTag]{
		ID: "getTag", Method: http.MethodGet, Path: "/repository/{repository}/tag/{tag}", Tag: "tag", Access: auth.Pull,
		Summary: "Describe a tag", Errors: []int{http.StatusNotFound},
	}
	ChangeTag = Operation[TagChange, string]{
		ID: "changeTag", Method: http.MethodPut, Path: "/repository/{repository}/tag/{tag}", Tag: "tag", Access: auth.Push,
		Summary: "Create or move a tag, or have it deleted at a date",
		Description: "With manifest_digest: points the tag to a manifest that is in the repository. A protected tag stays where it is: 409. " +
			"With expiration: the tag is deleted at that date, within a minute. Whoever pushes the tag again, or moves it, takes the date away; " +
			"so does a rule that protects the tag by then. With both, the date is that of the tag that was moved. " +
			"With immutable: the tag is protected as if a rule matched it alone.",
		Status: http.StatusCreated, Errors: []int{http.StatusNotFound, http.StatusConflict, http.StatusPreconditionFailed, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType},
	}.needing(map[string]any{"immutable": true})
	DeleteTag = Operation[TagDeletion, None]{
		ID: "deleteFullTag", Method: http.MethodDelete, Path: "/repository/{repository}/tag/{tag}", Tag: "tag", Access: auth.Delete,
		Summary: "Delete a tag",
		Description: "Garbage collection deletes its manifest after a delay, when nothing else refers to it; until then the tag can be restored. " +
			"A protected tag stays: 409. override_protection deletes it all the same, which needs the access admin. " +
			"A tag of a manifest that a reporter holds stays too: 409, unless override_holds is given. With deletion, restoreTags restores it together with others.",
		Status: http.StatusNoContent, Errors: []int{http.StatusNotFound, http.StatusConflict, http.StatusPreconditionFailed},
	}
	RestoreTag = Operation[TagRestoration, RestoredTag]{
		ID: "restoreTag", Method: http.MethodPost, Path: "/repository/{repository}/tag/{tag}/restore", Tag: "tag", Access: auth.Maintain,
		Summary: "Restore a tag",
		Description: "Points a tag, deleted or not, to a manifest of the repository. That is possible as long as " +
			"garbage collection has not deleted the manifest.",
		Errors: []int{http.StatusNotFound, http.StatusPreconditionFailed, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType},
	}

	GetTagLabels = Operation[InNamespace, protection.TagLabels]{
		ID: "getTagLabels", Method: http.MethodGet, Path: "/organization/{orgname}/taglabels", Tag: "tag", Access: auth.Maintain,
		Summary: "Ask which labels of pushed images decide about the tags of a namespace", Errors: []int{http.StatusNotFound},
	}
	SetTagLabels = Operation[TagLabelsChange, None]{
		ID: "setTagLabels", Method: http.MethodPut, Path: "/organization/{orgname}/taglabels", Tag: "tag", Access: auth.Maintain,
		Summary: "Say which labels of pushed images decide about the tags of a namespace",
		Description: "None do unless this says so, since otherwise everybody who pushes would decide what is deleted. " +
			"It concerns the pushes that begin after it, and changes no tag that exists.",
		Status: http.StatusNoContent, Errors: []int{http.StatusNotFound, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType},
	}
)
