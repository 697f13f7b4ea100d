package webhook

import (
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/purser-registry/purser/internal/audit"
)

// Events that webhooks of namespaces can be told of.
const (
	EventPush   = "push"   // a manifest was pushed, with its tags
	EventTag    = "tag"    // a tag was made, moved or restored without a push
	EventPull   = "pull"   // manifests were pulled; the notice has their number
	EventDelete = "delete" // tags, manifests or a repository were deleted, by a client or at their expiration date
	EventPrune  = "prune"  // tags were deleted by policies
	EventGC     = "gc"     // garbage collection deleted manifests; the notice has their number
	// EventPing is the event of the notice that [Sender.Ping] queues. Webhooks can't ask
	// for it.
	EventPing = "ping"
)

// Events returns the events that a webhook may ask for, in the order in which the API lists
// them.
func Events() []string {
	return []string{EventPush, EventTag, EventPull, EventDelete, EventPrune, EventGC}
}

// ofChanges are the events that are made from the audit log's entries of changes. The other
// events are pull, for which the dispatcher has a position of its own, and gc, which is
// made from the table webhookcollected.
var ofChanges = []string{EventPush, EventTag, EventDelete, EventPrune}

// maxNames bounds each list of names in a notice.
const maxNames = 100

// place says in which namespace and repository an event happened. The JSON fields have the
// names that Quay's notices use.
type place struct {
	Namespace  string `json:"namespace"`
	Name       string `json:"name"`
	Repository string `json:"repository"`
}

func placeOf(namespace, repository string) place {
	name, found := strings.CutPrefix(repository, namespace+"/")
	if !found {
		name = repository
	}
	return place{namespace, name, repository}
}

// by says which user or worker caused an event. Its JSON has the form of the notifications
// of the Distribution project.
type by struct {
	Actor   actor     `json:"actor"`
	Request requester `json:"request"`
}

type actor struct {
	Name string `json:"name,omitempty"`
}

type requester struct {
	ID        string `json:"id,omitempty"`
	Address   string `json:"addr,omitempty"`
	UserAgent string `json:"useragent,omitempty"`
}

func byWhom(e audit.Entry) by {
	return by{actor{e.Actor}, requester{e.RequestID, e.Address, e.UserAgent}}
}

// pushed is the data of EventPush and EventTag.
type pushed struct {
	place
	UpdatedTags []string `json:"updated_tags"`
	Digest      string   `json:"digest"`
	Change      string   `json:"change,omitempty"` // of EventTag: the audit log's kind
	by
}

// deleted is the data of EventDelete and EventPrune.
type deleted struct {
	place
	RepositoryDeleted bool       `json:"repository_deleted"`
	TagsDeleted       int        `json:"tags_deleted"`
	DeletedTags       []string   `json:"deleted_tags"` // the first maxNames of them
	ManifestsDeleted  int        `json:"manifests_deleted"`
	DeletedManifests  []string   `json:"deleted_manifests"` // the first maxNames of them
	Run               *uuid.UUID `json:"run,omitempty"`     // of auto-pruning
	by
}

// counted is the data of EventPull and EventGC.
type counted struct {
	place
	Pulls     int64     `json:"pulls,omitempty"`
	Manifests int64     `json:"manifests,omitempty"`
	From      time.Time `json:"from"`
	To        time.Time `json:"to"`
}

// happened is an event in a namespace, before the dispatcher has looked for the webhooks
// that ask for it.
type happened struct {
	namespace int64
	event     string
	at        time.Time
	data      any
}

// happenings converts audit entries to events. It combines entries that one transaction has
// written for one repository into one event, if they belong together: a push with several
// tags, several tags that were moved to the same manifest, the deletion of a manifest with
// its tags, or the tags that one transaction of auto-pruning deleted.
func happenings(list []audit.Change) []happened {
	type key struct {
		xid        uint64
		repository string
		event      string
		digest     string     // of EventTag
		kind       audit.Kind // of EventTag
	}
	var out []happened
	at := make(map[key]int) // index in out
	pushes := make(map[key]bool)
	for _, c := range list {
		if c.Kind == audit.PushRepo {
			pushes[key{xid: c.XID, repository: c.Repository}] = true
		}
	}
	for _, c := range list {
		event := eventOf(c.Kind)
		if event == EventTag && pushes[key{xid: c.XID, repository: c.Repository}] {
			continue // the event of the push includes the tag
		}
		k := key{xid: c.XID, repository: c.Repository, event: event}
		if event == EventTag {
			k.digest, k.kind = c.Digest.String(), c.Kind
		}
		i, ok := at[k]
		if !ok {
			i, at[k] = len(out), len(out)
			out = append(out, happened{c.NamespaceID, event, c.Time, newData(event, c.Entry)})
		}
		switch data := out[i].data.(type) {
		case *pushed:
			if c.Tag != "" && !slices.Contains(data.UpdatedTags, c.Tag) {
				data.UpdatedTags = append(data.UpdatedTags, c.Tag)
			}
		case *deleted:
			data.add(c.Entry)
		}
	}
	return out
}

func eventOf(k audit.Kind) string {
	switch k {
	case audit.PushRepo:
		return EventPush
	case audit.CreateTag, audit.MoveTag, audit.RevertTag:
		return EventTag
	case audit.AutopruneTagDelete:
		return EventPrune
	default:
		return EventDelete
	}
}

// newData returns the data that notices of an event contain; `e` is the event's first audit
// entry.
func newData(event string, e audit.Entry) any {
	where := placeOf(e.Namespace, e.Repository)
	switch event {
	case EventPush:
		return &pushed{place: where, UpdatedTags: []string{}, Digest: e.Digest.String(), by: byWhom(e)}
	case EventTag:
		return &pushed{place: where, UpdatedTags: []string{}, Digest: e.Digest.String(), Change: string(e.Kind), by: byWhom(e)}
	}
	d := &deleted{place: where, DeletedTags: []string{}, DeletedManifests: []string{}, by: byWhom(e)}
	if event == EventPrune && e.Run != uuid.Nil {
		d.Run = &e.Run
	}
	return d
}

func (d *deleted) add(e audit.Entry) {
	switch e.Kind {
	case audit.DeleteRepo:
		d.RepositoryDeleted = true
	case audit.DeleteManifest:
		d.ManifestsDeleted++
		if len(d.DeletedManifests) < maxNames {
			d.DeletedManifests = append(d.DeletedManifests, e.Digest.String())
		}
	default:
		d.TagsDeleted++
		if len(d.DeletedTags) < maxNames {
			d.DeletedTags = append(d.DeletedTags, e.Tag)
		}
	}
}
