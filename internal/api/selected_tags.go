package api

import (
	"net/http"

	"github.com/purser-registry/purser/internal/auth"
)

// TagSelection is the part that requests to delete tags and to let them expire have in common.
type TagSelection struct {
	Pattern string `json:"pattern" maxLength:"128" doc:"The name of a tag, in which * stands for any characters" example:"pr-7-*"`
	DryRun  bool   `json:"dry_run,omitempty" doc:"Change nothing, and say what is selected"`
	Count   *int   `json:"count,omitempty" minimum:"0" doc:"How many tags the pattern selects, as a dry run has said. 409 if it is another number. It must be given if the pattern selects half of the repository's tags or more, also with after"`
	After   string `json:"after,omitempty" maxLength:"128" doc:"The member next of the answer before: go on after this tag"`
	// Selection is the answer's member of the same name, which somebody has seen.
	Selection string `json:"selection,omitempty" maxLength:"64" doc:"The member selection of the answer before. 409 if the pattern selects other tags since, or one of them was moved"`
}

// SelectedDeletion is the body of a request to delete tags.
type SelectedDeletion struct {
	TagSelection
	OverrideHolds bool   `json:"override_holds,omitempty" doc:"Delete tags too whose manifests are deployed"`
	Deletion      string `json:"deletion,omitempty" maxLength:"36" doc:"The deletion to which the tags are to belong: the member deletion of the answer before, or a UUID of the client's own. Absent: a new one"`
}

// SelectedExpiration is the body of a request to let tags expire.
type SelectedExpiration struct {
	TagSelection
	In string `json:"in,omitempty" maxLength:"64" doc:"Delete them after this time by the database's clock: a number and one of s, m, h, d, w and y" example:"2d"`
	At string `json:"at,omitempty" maxLength:"64" doc:"Delete them at this time" example:"2030-01-02T15:04:05Z"`
	// Never takes the date away. It is a member of its own, so that nobody says it by leaving something out.
	Never bool `json:"never,omitempty" doc:"Take away their dates"`
}

// UndoneDeletion is the body of a request to restore tags.
type UndoneDeletion struct {
	Deletion string `json:"deletion" maxLength:"36" doc:"The member deletion of the answer to the request that deleted the tags"`
	Cursor   string `json:"cursor,omitempty" maxLength:"64" doc:"The member next of the answer before: go on there"`
}

// ChangedTags says what a request did to the tags that a pattern selects.
type ChangedTags struct {
	Selected int      `json:"selected" doc:"How many tags the pattern selects"`
	Half     bool     `json:"half" doc:"These are half of the repository's tags or more, so the number must be repeated as count"`
	Tags     []string `json:"tags" nullable:"false" doc:"The first 100 of these tags"`
	// Selection stands for the selected tags and the manifests that they point to, from where the
	// request went on. After a change it stands for those of them that come after Next.
	Selection string       `json:"selection,omitempty" doc:"Stands for these tags and their manifests, or with next for those after it. A request that sends it back changes no others"`
	Changed   int          `json:"changed" doc:"How many tags this request has deleted or given a date"`
	Refused   []RefusedTag `json:"refused" nullable:"false" doc:"The tags of this request that stay as they were"`
	Next      string       `json:"next,omitempty" doc:"Where to go on: send it as after. Absent when all is done"`
	// Deletion is the id of the deletion to which the deleted tags belong; "" if nothing was deleted.
	Deletion string `json:"deletion,omitempty" format:"uuid" doc:"The deletion to which the deleted tags belong: tags/restore restores them by it. Send it with after, so that the next tags belong to it too"`
}

// RestoredTags says what a request did that restores the tags of a deletion.
type RestoredTags struct {
	Deletion string       `json:"deletion" format:"uuid" doc:"The deletion"`
	Restored int          `json:"restored" doc:"How many tags this request has restored"`
	Refused  []RefusedTag `json:"refused" nullable:"false" doc:"The tags of this request that stay as they are: there is a tag of the name, or garbage collection has deleted the manifest"`
	Next     string       `json:"next,omitempty" doc:"Where to go on: send it as cursor. Absent when all is done"`
}

// RefusedTag is a tag that stays, and why.
type RefusedTag struct {
	Tag    string `json:"tag"`
	Reason string `json:"reason"`
}

// Inputs of the operations on selected tags.
type (
	TagsDeletion struct {
		InRepository
		Body SelectedDeletion
	}
	TagsExpiration struct {
		InRepository
		Body SelectedExpiration
	}
	TagsRestoration struct {
		InRepository
		Body UndoneDeletion
	}
)

// selectedTags describes an operation on the tags of a selection.
func selectedTags[I, O any](id, path string, access auth.Access, summary, description string) Operation[I, O] {
	return Operation[I, O]{
		ID: id, Method: http.MethodPost, Path: "/repository/{repository}/tags/" + path, Tag: "tag", Access: access, Summary: summary, Description: description,
		Errors: []int{http.StatusNotFound, http.StatusConflict, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType},
	}
}

const selectionBounds = " A request changes at most 500 tags: the answer says where to go on. A tag that is refused, such as a protected one or one that was moved meanwhile, is named, and the others are changed. " +
	"At most 10,000 tags may be selected, of 100,000 that begin like the pattern."

// The operations on the tags that a pattern selects, and on those of a deletion.
var (
	DeleteTags = selectedTags[TagsDeletion, ChangedTags]("deleteTags", "delete", auth.Delete, "Delete the tags whose names match a pattern",
		"They can be restored until garbage collection deletes their manifests: restoreTags restores all of them. A tag that is deployed is refused."+selectionBounds)
	ExpireTags = selectedTags[TagsExpiration, ChangedTags]("expireTags", "expire", auth.Push, "Have the tags whose names match a pattern deleted at a date",
		"Exactly one of in, at and never must be given."+selectionBounds)
	RestoreTags = selectedTags[TagsRestoration, RestoredTags]("restoreTags", "restore", auth.Maintain, "Restore the tags of a deletion",
		"Restores exactly the tags that deleteTags, or requests for single tags with the same deletion, have deleted, with their former times. A date of deletion comes back unless it is over. "+
			"A tag that was pushed again since stays as it is and is named, as is one whose manifest garbage collection has deleted. "+
			"A request restores at most 1000 tags: the answer says where to go on. 404: the audit log has no such deletion in the repository. "+
			"409: the namespace's quota has no room for the tags.")
)
