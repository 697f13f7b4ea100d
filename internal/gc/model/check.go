package model

import "fmt"

// The ways in which time passes.
const (
	pause       = iota // LockedPause and the delay of a cascade
	day                // every delay, and with it every promise
	longRequest        // the longest request: nobody writes to the store for an upload that is gone
	lease              // a sweeper's claim
	times
)

// pass lets time pass, where that changes anything.
func (m *machine) pass(s *state, what uint8) (note string, ok bool) {
	switch what {
	case pause:
		return "the short delay passes", m.expire(s, soon)
	case day: // no request takes as long
		for q, p := range m.programs {
			if !p.worker && s.procs[q].begun != 0 {
				return "", false
			}
		}
		if ok = m.expire(s, later); ok {
			s.told, s.toldOf = 0, 0
		}
		return "the delay passes", ok
	case longRequest:
		if s.over != 0 {
			return "", false
		}
		for q, p := range m.programs {
			if !p.worker && s.procs[q].status == running {
				return "", false
			}
		}
		for u := range m.uploads {
			if s.rows[m.doomedUpload(u)]&againSet != 0 {
				s.over, ok = 1, true
			}
		}
		return "the longest request is over", ok
	}
	for row := m.atDoomed; row < m.rows; row++ {
		if s.rows[row]&sweepWhat >= sweepHeld {
			s.rows[row] = s.rows[row]&^sweepWhat | sweepDue
			ok = true
		}
	}
	return "the sweeper's claim runs out", ok
}

// expire makes due what waits for the delay, in transactions under way too: their
// now() is when they began.
func (m *machine) expire(s *state, delay uint8) (any bool) {
	from, to := m.atBlobReview, m.atReview+len(m.manifests)*generations
	for row := from; row < to; row++ {
		if v := s.rows[row]; v > due && v <= delay {
			s.rows[row], any = due, true
		}
	}
	if !any {
		return false
	}
	for q := range m.programs {
		p := &s.procs[q]
		if p.begun == 0 {
			continue
		}
		p.aged = 1
		for row := from; row < to; row++ {
			if w := p.wrote[row]; w > due+1 && w <= delay+1 {
				p.wrote[row] = due + 1
			}
			if v := p.seen[row]; v > due && v <= delay {
				p.seen[row] = due
			}
		}
	}
	return true
}

// owners counts the rows that own an object.
func (w *world) owners(k int, rows []uint8) (n int) {
	for b := range w.blobs {
		if int(rows[w.blob(b)]) == k+1 {
			n++
		}
	}
	if rows[w.doomed(k)] != 0 {
		n++
	}
	u := k / w.perUpload
	if rows[w.upload(u)] != 0 {
		n++
	}
	if d := rows[w.doomedUpload(u)]; d != 0 && int(d>>keepShift) != k%w.perUpload+1 {
		n++
	}
	return n
}

// check returns what is wrong with what has committed.
func (m *machine) check(s *state) string {
	row := func(r int) uint8 { return s.rows[r] }
	for t := range m.tags {
		if id := int(s.rows[m.tag(t)]) - 1; id >= 0 && !m.there(id, row) {
			return fmt.Sprintf("tag %d points to a manifest that isn't there: %s", t, m.idName(id))
		}
	}
	for slot, man := range m.manifests {
		if row(m.manifest(slot)) == 0 {
			continue
		}
		for i := range man.children {
			if id := int(row(m.child(slot, i))) - 1; id < 0 || !m.there(id, row) {
				return "index " + man.name + " has lost a child"
			}
		}
		for b := range m.blobs {
			if !man.blobs().has(b) {
				continue
			}
			if row(m.blob(b)) == 0 {
				return "manifest " + man.name + " has lost blob " + blobName(b)
			}
			if row(m.link(m.linkOf(man.repository, b))) == 0 {
				return "manifest " + man.name + " has lost the link to blob " + blobName(b)
			}
		}
	}
	if problem := m.checkObjects(s); problem != "" {
		return problem
	}
	for l := range m.repositories * m.blobs {
		if s.told.has(l) && (row(m.link(l)) == 0 || row(m.blob(l%m.blobs)) == 0) {
			return "a client was told that a blob exists, and it is gone: " + m.linkName(l)
		}
		if row(m.link(l)) != 0 && row(m.blob(l%m.blobs)) == 0 {
			return "there is a " + m.linkName(l) + ", which isn't there"
		}
	}
	for id := range len(m.manifests) * generations {
		if s.toldOf.has(id) && !m.there(id, row) {
			return "a client was told that a manifest exists, and it is gone: " + m.idName(id)
		}
	}
	return ""
}

func (m *machine) checkObjects(s *state) string {
	for b := range m.blobs {
		if k := int(s.rows[m.blob(b)]) - 1; k >= 0 {
			switch {
			case s.objects[k] == 0:
				return "blob " + blobName(b) + " has lost its object"
			case s.objects[k] != s.content[k]:
				return "the object of blob " + blobName(b) + " was overwritten"
			}
		}
	}
	for k := range m.keys() {
		n := m.owners(k, s.rows[:])
		if n > 1 || n == 0 && s.objects[k] != 0 {
			return fmt.Sprintf("object %d has %d owners", k, n)
		}
	}
	return ""
}

// checkEnd returns what is wrong with a state in which nothing is left to do.
func (m *machine) checkEnd(s *state) string {
	row := func(r int) uint8 { return s.rows[r] }
	for q, p := range m.programs {
		if !p.worker && s.procs[q].status == running {
			return p.name + " is never answered" + m.waiting(s.procs[q].blocked)
		}
	}
	// What tags hold, indexes and subjects hold on.
	var live set
	for t := range m.tags {
		if id := row(m.tag(t)); id != 0 {
			live |= one(slotOf(int(id) - 1))
		}
	}
	for before := set(0); before != live; {
		before = live
		for slot, man := range m.manifests {
			if row(m.manifest(slot)) == 0 {
				continue
			}
			if man.subject >= 0 && live.has(man.subject) {
				live |= one(slot)
			}
			if live.has(slot) {
				for _, c := range man.children {
					live |= one(c)
				}
			}
		}
	}
	for slot, man := range m.manifests {
		if row(m.manifest(slot)) != 0 && !live.has(slot) {
			return "manifest " + man.name + " is left, and nothing holds it"
		}
		if row(m.manifest(slot)) != 0 && row(m.repository(man.repository)) == 0 {
			return "manifest " + man.name + " is left of a repository that is gone"
		}
	}
	for b := range m.blobs {
		if row(m.blob(b)) != 0 && m.users(b, row) == 0 {
			return "blob " + blobName(b) + " is left, and nothing refers to it"
		}
	}
	for l := range m.repositories * m.blobs {
		if row(m.link(l)) != 0 && !m.usedIn(l, row) {
			return m.linkName(l) + " is left, and nothing there uses it"
		}
	}
	for r := m.atBlobReview; r < m.rows; r++ {
		if row(r) != 0 && (r < m.atUpload || m.sweeps()) {
			return m.rowName(r) + " is left"
		}
	}
	for k := range m.keys() {
		if s.objects[k] != 0 && m.owners(k, s.rows[:]) == 0 {
			return fmt.Sprintf("object %d is left, and nobody owns it", k)
		}
	}
	return ""
}

// sweeps says whether somebody deletes doomed objects here.
func (m *machine) sweeps() bool {
	for _, p := range m.programs {
		if p.labels["sweep"] != 0 {
			return true
		}
	}
	return false
}
