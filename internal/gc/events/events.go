// Package events has the list of the events that queue a manifest or blob for review by
// garbage collection (All). The settings of review delays, the stored delays and the
// sentences of "purser gc explain" are derived from this list. Tests check that the
// documentation, and the SQL statements that write events, agree with it.
package events

import "time"

// DefaultDelay is the review delay of each event whose delay isn't configured: the time
// between the event and the review that it queues.
const DefaultDelay = 24 * time.Hour

// UndoTime is the review delay after auto-pruning unless it is configured: how long a run can be
// undone.
const UndoTime = 7 * DefaultDelay

// Kind says what an event queues for review.
type Kind string

// Kinds of events. Each kind has a review queue of its own.
const (
	Manifest Kind = "manifest"
	Blob     Kind = "blob"
)

// Event is a reason why a manifest or blob is queued for review.
type Event struct {
	// Name is the value of the column "event" in the review queues, and the event's name in
	// the setting of its delay.
	Name string
	Kind Kind
	// DelayOf names another event, whose delay also applies to this event. It is empty for an
	// event that has a delay, and so a setting, of its own.
	DelayOf string
	// Default is the delay if neither it nor gc.review_after is configured; 0: DefaultDelay.
	Default time.Duration
	// Queues is the documentation's text for what the event queues, such as "the layers of a
	// deleted manifest".
	Queues string
	// Because is the reason that "purser gc explain" gives for the review of a manifest or
	// blob that this event queued. The text calls the manifest or blob "it".
	Because string
}

// All has all events, in the order in which the documentation lists them.
var All = []Event{
	{Name: "blob_upload", Kind: Blob,
		Queues:  "a blob that was uploaded or mounted, or that a client was told exists",
		Because: "it was pushed, or a client was told that it exists"},
	{Name: "manifest_upload", Kind: Manifest,
		Queues:  "a manifest that was uploaded without a tag, or that a client was told exists",
		Because: "it was pushed without a tag, or a client was told that it exists"},
	{Name: "manifest_delete", Kind: Blob,
		Queues:  "the configuration of a deleted manifest",
		Because: "a manifest with it as configuration was deleted"},
	{Name: "layer_delete", Kind: Blob,
		Queues:  "the layers of a deleted manifest",
		Because: "a manifest with it as layer was deleted"},
	{Name: "manifest_list_delete", Kind: Manifest,
		Queues:  "the manifests of a deleted index",
		Because: "an index that contained it was deleted"},
	{Name: "tag_delete", Kind: Manifest,
		Queues:  "the manifest of a deleted tag",
		Because: "a tag of it was deleted"},
	{Name: "tag_prune", Kind: Manifest, Default: UndoTime,
		Queues:  "the manifest of a tag that a policy deleted",
		Because: "a policy deleted a tag of it"},
	{Name: "tag_switch", Kind: Manifest,
		Queues:  "the former manifest of a tag that was moved",
		Because: "a tag of it was moved to another manifest"},
	{Name: "subject_delete", Kind: Manifest,
		Queues:  "the referrers of a deleted subject",
		Because: "its subject was deleted"},
	{Name: "blob_delete", Kind: Blob,
		Queues:  "a blob that a client deleted from a repository",
		Because: "it was deleted from a repository"},
	{Name: "circle", Kind: Manifest, DelayOf: "manifest_list_delete",
		Queues:  "the manifests of a cycle that lost its last tag",
		Because: "a cycle that it is part of lost its last tag"},
	{Name: "keep_untagged", Kind: Manifest, DelayOf: "manifest_upload",
		Queues:  "an unused manifest that a policy keeps",
		Because: "a policy keeps it although nothing uses it"},
}

// DelayUnset returns the delay of an event that isn't configured, if gc.review_after has the value
// reviewAfter.
func DelayUnset(event string, reviewAfter time.Duration) time.Duration {
	for _, e := range All {
		if e.Name == event && e.Default > 0 && reviewAfter == DefaultDelay {
			return e.Default
		}
	}
	return reviewAfter
}

// WithDelay returns the names of the events that have a delay of their own.
func WithDelay() []string {
	var names []string
	for _, e := range All {
		if e.DelayOf == "" {
			names = append(names, e.Name)
		}
	}
	return names
}

// Because returns the text Event.Because of the event `name`, followed by the name in
// parentheses. If All doesn't have the event, because a newer version of Purser has queued
// the row, Because returns "of" and the name.
func Because(name string) string {
	for _, e := range All {
		if e.Name == name {
			return e.Because
		}
	}
	return "of " + name
}
