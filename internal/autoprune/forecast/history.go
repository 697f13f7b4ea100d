package forecast

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/autoprune/snapshot"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/judge"
	"github.com/purser-registry/purser/internal/oci"
)

// history has the tags of a repository over the days of a forecast: what clients did with them,
// without what auto-pruning deleted and its undos restored. On the first day the repository has
// the tags that it really had.
type history struct {
	f       *forecasting
	s       *snapshot.Snapshot
	target  catalog.Repository
	rules   judge.Rules
	tags    []pastTag
	states  int                  // of all tags
	digests map[oci.Digest]int64 // of manifests of the past: their ids, see resolve
	// manifests has what is known of manifests; places has their indexes by id. A manifest that
	// is gone by now has an id above goneManifests.
	manifests []pastManifest
	places    map[int64]int32
	selecting judge.PolicySet            // the policies that look at manifests
	images    map[oci.DigestPrefix]int64 // ids of manifests that names of tags refer to
	// imageSince is since when the repository has a manifest that tags belong to.
	imageSince map[int64]time.Time
	uses       []judge.Tag                 // last-used times: see pastState.use
	parents    map[int64][]judge.Reference // of manifests that were asked for
	held       map[int64]bool              // manifests that were asked for
	heldNames  map[string]bool
	stock      *judge.Stock  // what manifests store, as far as a day has asked for it
	lives      map[int64]int // number of tags of gone manifests that names of tags refer to, on the day that is judged

	days    []ForecastDay
	stay    []int64 // by setting
	current int64   // number of tags that exist now
	levels  map[int64]storedLevel
	blobs   map[string]storedBlob // that these manifests need; nil: see weighStored
	notices []judge.Notice
	unknown unknown
	told    []toldTag // for ForecastOptions.deleted
}

// toldTag is a tag that the policies delete on a day, by its index.
type toldTag struct {
	day int
	tag string
}

// place returns the index of a manifest in history.manifests.
func (h *history) place(id int64) int32 {
	place, ok := h.places[id]
	if !ok {
		place = int32(len(h.manifests))
		h.places[id], h.manifests = place, append(h.manifests, pastManifest{})
	}
	return place
}

// goneManifests is less than the ids that forecasts give to manifests that are gone by now.
const goneManifests = 1 << 62

// pastManifest is a manifest that tags pointed to.
type pastManifest struct {
	subject int64 // as snapshot.TagRow.Subject
	snapshot.Manifest
	snapshot.Matches
}

// pastTag is a tag with its states, in the order of time.
type pastTag struct {
	name   string
	states []pastState
	exists bool // now, in its last state
	// immutable says that nobody may delete the tag, in whichever state: as now, so on all days.
	immutable bool
	named     bool            // its name refers to an image
	names     judge.PolicySet // the policies whose patterns select its name
	// state is the index of the state on the day that is judged, -1 before the first; gone says
	// that the policies deleted the tag in this state, on the day goneDay.
	state   int32
	gone    bool
	goneDay int32 // index in history.days
}

// pastState is what a tag was from a time on, until its next state begins.
type pastState struct {
	from     time.Time // zero: since before the first day
	pushed   time.Time
	manifest int64 // 0: the tag was deleted
	place    int32 // of the manifest in history.manifests
	// use is an index in history.uses: when the tag was last used. unknownUse says that this
	// can't be known, 0 that no policy asks for it.
	use int32
	// usesCounted says that history.unknown counts the tag's uses already.
	usesCounted bool
}

const unknownUse = -1

// read reads the tags' histories since the first day.
func (h *history) read(ctx context.Context) error {
	h.digests = make(map[oci.Digest]int64)
	h.places, h.images = make(map[int64]int32), make(map[oci.DigestPrefix]int64)
	h.imageSince = make(map[int64]time.Time)
	h.parents, h.held, h.heldNames, h.lives = make(map[int64][]judge.Reference), make(map[int64]bool), make(map[string]bool), make(map[int64]int)
	h.stock = judge.NewStock(h.s.WithContents(ctx, judge.Repository{}, h.f.alive))
	h.levels, h.uses = make(map[int64]storedLevel), make([]judge.Tag, 1)
	rows, err := h.readCurrent(ctx)
	if err != nil {
		return err
	}
	events, err := h.readEvents(ctx)
	if err != nil {
		return err
	}
	if err := h.readBefore(ctx, rows, events); err != nil {
		return err
	}
	if err := h.matchNames(ctx); err != nil {
		return err
	}
	if err := h.resolve(ctx); err != nil {
		return err
	}
	if err := h.resolveImages(ctx); err != nil {
		return err
	}
	if err := h.readProperties(ctx); err != nil {
		return err
	}
	return h.readUses(ctx)
}

// first is the time of the first day's run.
func (h *history) first() time.Time { return h.f.out.Since }

// currentTag is a tag that exists now.
type currentTag struct {
	snapshot.TagRow
	created time.Time
}

// grow counts states, and returns errTooLarge if there are too many.
func (h *history) grow(n int) error {
	if h.states += n; h.states > maxStates {
		return errTooLarge
	}
	return nil
}

// readCurrent reads the tags that exist now, in the order of their names.
func (h *history) readCurrent(ctx context.Context) (list []currentTag, err error) {
	for last := ""; ; {
		if err := h.f.alive(ctx); err != nil {
			return nil, err
		}
		start := len(list)
		if err := h.s.Tags(ctx, last, h.f.r.Page, func(t snapshot.TagRow) { list = append(list, currentTag{TagRow: t}) }); err != nil {
			return nil, err
		}
		page := list[start:]
		if err := h.grow(len(page)); err != nil {
			return nil, err
		}
		for _, t := range page {
			h.manifests[h.place(t.Manifest)].subject = t.Subject
		}
		h.current += int64(len(page))
		if len(page) < h.f.r.Page {
			break
		}
		last = page[len(page)-1].Name
	}
	i := 0
	err = h.s.CreatedTags(ctx, func(name string, created time.Time) {
		if i < len(list) && list[i].Name == name {
			list[i].created = created
		}
		i++
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

// eventList are the events of one tag since the first day.
type eventList struct {
	tag    string
	events []audit.TagEvent
}

// readEvents reads the audit log since the first day.
func (h *history) readEvents(ctx context.Context) (list []eventList, err error) {
	n := 0
	err = audit.TagEvents(ctx, h.s.Tx, h.target.ID, h.first(), func(e audit.TagEvent) error {
		if n++; n%1000 == 0 {
			if err := h.f.alive(ctx); err != nil {
				return err
			}
		}
		if err := h.grow(1); err != nil {
			return err
		}
		if len(list) == 0 || list[len(list)-1].tag != e.Tag {
			list = append(list, eventList{tag: e.Tag})
		}
		last := &list[len(list)-1]
		last.events = append(last.events, e)
		return nil
	})
	return list, err
}

// readBefore completes the histories: it finds the state of each tag before the first day. Both
// lists are sorted by name.
func (h *history) readBefore(ctx context.Context, rows []currentTag, lists []eventList) error {
	var asked []string
	for i := 0; i < len(lists); i++ {
		place, found := findCurrent(rows, lists[i].tag)
		first := &lists[i].events[0]
		// A push that created the tag's row has the time of the row.
		if first.Kind != audit.CreateTag && !(found && rows[place].created.Equal(first.Time)) {
			asked = append(asked, lists[i].tag)
		}
	}
	before := make(map[string]audit.TagEvent, len(asked))
	for part := range slices.Chunk(asked, 5000) {
		if err := h.f.alive(ctx); err != nil {
			return err
		}
		found, err := audit.LastTagEvents(ctx, h.s.Tx, h.target.ID, part, h.first())
		if err != nil {
			return err
		}
		for tag, e := range found {
			before[tag] = e
		}
	}
	h.tags = make([]pastTag, 0, max(len(rows), len(lists)))
	next := 0
	for _, row := range rows {
		for ; next < len(lists) && lists[next].tag < row.Name; next++ {
			h.addTag(lists[next].tag, nil, lists[next].events, before)
		}
		var events []audit.TagEvent
		if next < len(lists) && lists[next].tag == row.Name {
			events = lists[next].events
			next++
		}
		h.addTag(row.Name, &row, events, before)
	}
	for ; next < len(lists); next++ {
		h.addTag(lists[next].tag, nil, lists[next].events, before)
	}
	return nil
}

func findCurrent(rows []currentTag, name string) (place int, found bool) {
	return slices.BinarySearchFunc(rows, name, func(t currentTag, name string) int { return strings.Compare(t.Name, name) })
}

// addTag adds a tag, whose row is nil if the tag doesn't exist now.
func (h *history) addTag(name string, row *currentTag, events []audit.TagEvent, before map[string]audit.TagEvent) {
	t := pastTag{name: name, exists: row != nil, immutable: row != nil && row.Immutable, state: -1}
	_, t.named = judge.AttachedTo(name)
	if len(events) == 0 {
		s := pastState{pushed: row.Pushed, manifest: row.Manifest}
		if row.Pushed.After(h.first()) {
			if s.from = row.Pushed; row.created.Before(h.first()) {
				h.unknown.pushed++
				t.states = append(t.states, pastState{pushed: row.created, manifest: row.Manifest})
			}
		}
		t.states = append(t.states, s)
		h.tags = append(h.tags, t)
		return
	}
	last, known := before[name]
	var begin *pastState
	if begin = h.initial(events[0], last, known, row); begin != nil {
		t.states = append(t.states, *begin)
	}
	pruned := begin != nil && events[0].Kind == audit.AutopruneTagDelete
	for _, e := range events {
		switch {
		case e.Kind == audit.AutopruneTagDelete:
			pruned = true
		case e.Undone && pruned:
			pruned = false
		case e.Kind == audit.DeleteTag:
			t.states = append(t.states, pastState{from: e.Time})
			pruned = false
		case e.Digest.IsZero():
		default:
			s := pastState{from: e.Time, pushed: e.Time, manifest: h.placeholder(e.Digest)}
			if n := len(t.states); n > 0 && t.states[n-1].from.Equal(e.Time) {
				t.states[n-1] = s // one push has several entries
			} else {
				t.states = append(t.states, s)
			}
			pruned = false
		}
	}
	h.agree(&t, row, pruned, events[len(events)-1].Time)
	h.tags = append(h.tags, t)
}

// initial returns the state of a tag before the first of its events since the first day; nil if
// the tag didn't exist. `last` is the event before that, if `known`.
func (h *history) initial(first, last audit.TagEvent, known bool, row *currentTag) *pastState {
	s := &pastState{}
	switch {
	case first.Kind == audit.CreateTag, row != nil && row.created.Equal(first.Time), first.Undone:
		return nil
	case first.Kind == audit.AutopruneTagDelete && !first.Pushed.IsZero():
		s.manifest, s.pushed = h.placeholder(first.Digest), first.Pushed
		return s
	case !first.Previous.IsZero():
		s.manifest = h.placeholder(first.Previous)
	case first.Kind == audit.DeleteTag && !first.Digest.IsZero(),
		first.Kind == audit.PushRepo && row != nil && row.created.Before(h.first()):
		s.manifest = h.placeholder(first.Digest)
	}
	if known && (last.Kind == audit.DeleteTag || last.Kind == audit.AutopruneTagDelete) {
		return nil
	}
	switch {
	case known && !last.Digest.IsZero():
		s.manifest, s.pushed = h.placeholder(last.Digest), last.Time
		if last.Undone { // the tag was restored with an older push time
			h.unknown.pushed++
		}
	case s.manifest == 0:
		return nil
	default: // the push is older than the log
		h.unknown.pushed++
		s.pushed = h.f.begun
		if row != nil && row.created.After(s.pushed) && row.created.Before(h.first()) {
			s.pushed = row.created
		}
	}
	return s
}

// agree lets the last state of a tag agree with the tag's row. `pruned` says that auto-pruning
// deleted the tag at last.
func (h *history) agree(t *pastTag, row *currentTag, pruned bool, end time.Time) {
	n := len(t.states)
	lives := n > 0 && t.states[n-1].manifest != 0
	switch {
	case row != nil && lives && row.Pushed.After(t.states[n-1].pushed):
		// The log has no entry when the API points a tag to the manifest that it has already.
		t.states = append(t.states, pastState{from: row.Pushed, pushed: row.Pushed, manifest: row.Manifest})
	case row != nil && lives:
		t.states[n-1].manifest, t.states[n-1].pushed = row.Manifest, row.Pushed
	case row != nil:
		t.states = append(t.states, pastState{from: end, pushed: row.Pushed, manifest: row.Manifest})
	case lives && !pruned:
		t.states = append(t.states, pastState{from: end})
	}
}

// placeholder returns the number that stands for the id of a manifest, until resolve.
func (h *history) placeholder(d oci.Digest) int64 {
	id, ok := h.digests[d]
	if !ok {
		id = -int64(len(h.digests)) - 1
		h.digests[d] = id
	}
	return id
}

// resolve replaces placeholders by the manifests' ids.
func (h *history) resolve(ctx context.Context) error {
	ids := make([]int64, len(h.digests)) // by placeholder
	list := make([]oci.Digest, len(h.digests))
	raw := make([][]byte, len(h.digests))
	for d, id := range h.digests {
		place := -id - 1
		list[place], raw[place], ids[place] = d, d.Bytes(), goneManifests-id
	}
	offset := 0
	for part := range slices.Chunk(raw, 10_000) {
		if err := h.f.alive(ctx); err != nil {
			return err
		}
		err := h.s.PastManifests(ctx, part, func(place int, id, subject int64) {
			ids[offset+place] = id
			h.manifests[h.place(id)].subject = subject
		})
		if err != nil {
			return err
		}
		offset += len(part)
	}
	for i, d := range list {
		h.digests[d] = ids[i]
	}
	for i := range h.tags {
		for j := range h.tags[i].states {
			s := &h.tags[i].states[j]
			if s.manifest < 0 {
				s.manifest = ids[-s.manifest-1]
			}
			if s.manifest != 0 {
				s.place = h.place(s.manifest)
			}
		}
	}
	return nil
}
