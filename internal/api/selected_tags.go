package api

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
