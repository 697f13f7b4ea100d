package model

// What the variables of reviewers are kept in; gone is what they delete.
const (
	claimed = 2
	open    = 3 // claimed and, at first sight, held by nothing
	kept    = 4 // in use
	held    = 6 // locked by the reviewer
	putOff  = 7
	// Of manifests that may be in circles.
	suspect = 8  // held, not by a tag, and holding something
	listed  = 9  // those of them that an index contains
	members = 10 // the holders of those that are to go
	passed  = 11 // the holders of those that are not
)

// claim is claimBlobs and claimManifests: any due row that nobody holds, or all
// of them.
func (x *exec) claim(n int, row func(i int) int) result {
	var rows set
	for i := range n {
		if x.s.rows[row(i)] == due && (x.free(row(i), forUpdate) || x.m.wrong(claimUnlocked)) {
			rows |= one(i)
		}
	}
	if rows == 0 {
		return idle
	}
	x.choices = rows.size()
	if rows.size() > 1 {
		x.choices++
	}
	if x.choice < rows.size() { // a batch of one
		for range x.choice {
			rows &= rows - 1
		}
		rows &= -rows
	}
	x.me.sets[claimed] = rows
	if !x.m.wrong(claimUnlocked) {
		rows.each(func(i int) { x.lock(row(i), forUpdate) })
	}
	return next
}

// lockSkipping is FOR UPDATE SKIP LOCKED: it returns those that it got.
func (x *exec) lockSkipping(list set, row func(i int) int) (got set) {
	list.each(func(i int) {
		if x.see(row(i)) != 0 && x.me.gone>>row(i)&1 == 0 && x.free(row(i), forUpdate) && x.newest(row(i)) != 0 {
			x.lock(row(i), forUpdate)
			got |= one(i)
		}
	})
	return got
}

// drop removes rows of a queue that the reviewer holds.
func (x *exec) drop(list set, row func(i int) int) bool {
	list.each(func(i int) {
		if x.newest(row(i)) != 0 && x.lock(row(i), forUpdate) {
			x.write(row(i), 0)
		}
	})
	return x.me.blocked == 0
}

// postpone puts rows off that the reviewer holds.
func (x *exec) postpone(list set, row func(i int) int) bool {
	list.each(func(i int) {
		if x.newest(row(i)) != 0 && x.lock(row(i), noKeyUpdate) {
			x.write(row(i), soon)
		}
	})
	return x.me.blocked == 0
}

// reviewBlobs is Catalog.Review of blobs, again and again.
func (m *machine) reviewBlobs() *program {
	w := &m.world
	p := newProgram("blob reviewer")
	p.worker, p.rerun = true, "claim"
	splitUsed := func(x *exec, list set) (used set) {
		list.each(func(b int) {
			if w.users(b, x.see) != 0 {
				used |= one(b)
			}
		})
		return used
	}
	p.label("claim")
	p.add("claimBlobs: FOR UPDATE SKIP LOCKED on gc_blob_review_queue", func(x *exec) result {
		return x.claim(w.blobs, w.blobReview)
	})
	p.add("splitUsed: SELECT what manifests refer to", func(x *exec) result {
		x.me.sets[kept] = splitUsed(x, x.me.sets[claimed])
		x.me.sets[open] = x.me.sets[claimed] &^ x.me.sets[kept]
		return next
	})
	if m.wrong(lockAndLook) {
		p.early("lockBlobs and splitUsed in one statement", func(x *exec) result {
			if x.me.sets[open] == 0 {
				return skip
			}
			x.me.sets[held] = x.lockSkipping(x.me.sets[open], w.blob)
			used := splitUsed(x, x.me.sets[held])
			x.me.sets[kept], x.me.sets[gone] = x.me.sets[kept]|used, x.me.sets[held]&^used
			return next
		})
	}
	p.add("lockBlobs: FOR UPDATE SKIP LOCKED on blobs", func(x *exec) result {
		if x.m.wrong(lockAndLook) || x.me.sets[open] == 0 {
			return skip
		}
		x.me.sets[held] = x.lockSkipping(x.me.sets[open], w.blob)
		return next
	})
	p.add("splitUsed: look again", func(x *exec) result {
		if x.m.wrong(lockAndLook) || x.me.sets[held] == 0 {
			return skip
		}
		var used set
		if !x.m.wrong(noSecondLook) {
			used = splitUsed(x, x.me.sets[held])
		}
		x.me.sets[kept], x.me.sets[gone] = x.me.sets[kept]|used, x.me.sets[held]&^used
		return next
	})
	if m.wrong(objectFirst) {
		p.store("the store deletes the objects", func(x *exec) result {
			if x.me.sets[gone] == 0 {
				return skip
			}
			x.me.sets[gone].each(func(b int) { x.s.objects[x.newest(w.blob(b))-1] = 0 })
			return next
		})
	}
	m.deleteBlobs(p)
	p.add("heldBlobs: SELECT those that couldn't be locked", func(x *exec) result {
		left := x.me.sets[open] &^ x.me.sets[held]
		if left == 0 || x.m.wrong(dropUnlocked) {
			return skip
		}
		left.each(func(b int) {
			if x.see(w.blob(b)) != 0 || x.m.wrong(goneIsLocked) {
				x.me.sets[putOff] |= one(b)
			}
		})
		return next
	})
	m.unlinkUnused(p)
	p.add("settleBlobs: UPDATE and DELETE FROM gc_blob_review_queue; commit", func(x *exec) result {
		if !x.postpone(x.me.sets[putOff], w.blobReview) || !x.drop(x.me.sets[claimed]&^x.me.sets[putOff], w.blobReview) {
			return wait
		}
		deleted := x.me.sets[gone]
		x.me.sets[gone].each(func(b int) {
			for r := range w.repositories {
				if x.s.told.has(w.linkOf(r, b)) {
					x.breaks("blob " + blobName(b) + " is deleted, which a client was told exists")
				}
			}
		})
		x.commit()
		x.me.sets = [maxSets]set{}
		if x.m.wrong(doomLater) {
			x.me.sets[gone] = deleted
			return x.jump("doom")
		}
		return x.jump("claim")
	})
	if !m.wrong(doomLater) {
		return p
	}
	p.label("doom")
	p.add("INSERT INTO gc_doomed_objects; commit", func(x *exec) result {
		x.me.sets[gone].each(func(int) {
			k := w.orphan(x.s)
			x.lock(w.doomed(k), forUpdate)
			x.write(w.doomed(k), sweepDue)
		})
		x.commit()
		x.me.sets = [maxSets]set{}
		return x.jump("claim")
	})
	return p
}

// orphan is an object that no row owns, for the mutation that dooms in a
// transaction of its own.
func (w *world) orphan(s *state) (key int) {
	for k := range w.keys() {
		if s.objects[k] != 0 && w.owners(k, s.rows[:]) == 0 {
			return k
		}
	}
	return 0
}

// deleteBlobs is the method of that name: the rows go with their links, and their
// objects are doomed by the same statement.
func (m *machine) deleteBlobs(p *program) {
	w := &m.world
	p.add("deleteBlobs: DELETE FROM blobs, cascading to repository_blobs; INSERT INTO gc_doomed_objects", func(x *exec) result {
		if x.me.sets[gone] == 0 {
			return skip
		}
		x.me.sets[gone].each(func(b int) {
			if w.users(b, x.newest) != 0 && !x.m.wrong(noForeignKeys) {
				x.breaks("a blob is deleted that a manifest refers to: the foreign key refuses it")
			}
			for r := range w.repositories {
				if l := w.link(w.linkOf(r, b)); x.newest(l) != 0 && x.lock(l, forUpdate) {
					x.write(l, 0)
				}
			}
		})
		if x.me.blocked != 0 {
			return wait
		}
		x.me.sets[gone].each(func(b int) {
			k := int(x.newest(w.blob(b))) - 1
			x.write(w.blob(b), 0)
			if !x.m.wrong(doomLater) && !x.m.wrong(objectFirst) {
				x.lock(w.doomed(k), forUpdate)
				x.write(w.doomed(k), sweepDue)
			}
		})
		return next
	})
}

// unlinkUnused is the method of that name.
func (m *machine) unlinkUnused(p *program) {
	w := &m.world
	const links, locked = open, held // not needed any more by then
	unused := func(x *exec) (list set) {
		x.me.sets[kept].each(func(b int) {
			for r := range w.repositories {
				if l := w.linkOf(r, b); x.see(w.link(l)) != 0 && !w.usedIn(l, x.see) {
					list |= one(l)
				}
			}
		})
		return list
	}
	if m.wrong(linkNoLock) {
		p.early("unlinkUnused: DELETE FROM repository_blobs what is unused, in one statement", func(x *exec) result {
			if x.me.sets[kept] == 0 {
				return skip
			}
			return x.rows(func() set { return unused(x) }, func(l int) bool {
				there, ok := x.find(w.link(l), forUpdate)
				if ok && there {
					x.write(w.link(l), 0)
				}
				return ok
			})
		})
	}
	p.add("unlinkUnused: SELECT links that seem unused", func(x *exec) result {
		x.me.sets[links] = 0
		if x.m.wrong(linkNoLock) || x.m.wrong(noUnlink) || x.me.sets[kept] == 0 {
			return skip
		}
		x.me.sets[links] = unused(x)
		return next
	})
	p.add("unlinkUnused: FOR UPDATE SKIP LOCKED on them", func(x *exec) result {
		x.me.sets[locked] = 0
		if x.me.sets[links] == 0 {
			return skip
		}
		x.me.sets[locked] = x.lockSkipping(x.me.sets[links], w.link)
		(x.me.sets[links] &^ x.me.sets[locked]).each(func(l int) { x.me.sets[putOff] |= one(l % w.blobs) })
		return next
	})
	p.add("unlinkUnused: DELETE FROM repository_blobs where still unused", func(x *exec) result {
		if x.me.sets[locked] == 0 {
			return skip
		}
		x.me.sets[locked].each(func(l int) {
			if !w.usedIn(l, x.see) {
				if x.s.told.has(l) {
					x.breaks("a link is removed whose blob a client was told exists")
				}
				x.write(w.link(l), 0)
			}
		})
		return next
	})
}

// reviewManifests is Catalog.Review of manifests, again and again, and what a
// reviewer does after it had to give way.
func (m *machine) reviewManifests() *program {
	w := &m.world
	p := newProgram("manifest reviewer")
	p.worker, p.rerun, p.after = true, "claim", "postpone"
	look := func(x *exec, list set) (kept, open, none set) {
		x.me.sets[suspect], x.me.sets[listed] = 0, 0
		list.each(func(id int) {
			switch {
			case !w.there(id, x.see):
				none |= one(id)
			case w.tagged(id, x.see):
				kept |= one(id)
			case !w.parent(id, x.see) && !w.subject(id, x.see):
				open |= one(id)
			case !w.holding(id, x.see) || x.m.wrong(noCircles):
				kept |= one(id)
			default:
				x.me.sets[suspect] |= one(id)
				if w.parent(id, x.see) {
					x.me.sets[listed] |= one(id)
				}
			}
		})
		return kept, open, none
	}
	lockSkipping := func(x *exec, list set) (got set) {
		list.each(func(id int) {
			slot := slotOf(id)
			if w.there(id, x.see) && w.there(id, x.newest) && x.lockSkipping(one(slot), w.manifest) != 0 {
				got |= one(id)
			}
		})
		return got
	}
	p.label("claim")
	p.add("claimManifests: FOR UPDATE SKIP LOCKED on gc_manifest_review_queue", func(x *exec) result {
		return x.claim(len(m.manifests)*generations, w.review)
	})
	p.add("look: SELECT what a tag, an index or a subject holds; drop the rows of those", func(x *exec) result {
		keep, free, none := look(x, x.me.sets[claimed])
		x.me.sets[open], x.me.sets[kept] = free, keep|none
		if x.m.wrong(dropLast) {
			return next
		}
		if !x.drop(keep|none, w.review) {
			return wait
		}
		return next
	})
	p.add("findCircles: SELECT the holders of those that hold something; drop the rows of those that aren't in circles", func(x *exec) result {
		if x.me.sets[suspect] == 0 {
			return skip
		}
		var keep set
		x.me.sets[suspect].each(func(id int) {
			holders, circular := w.circle(id, x.see)
			switch {
			case circular && !x.me.sets[listed].has(id):
				x.me.sets[open] |= one(id)
				x.me.sets[members] |= holders
				return
			case circular:
				x.me.sets[passed] |= holders
			}
			keep |= one(id)
		})
		if x.m.wrong(dropLast) {
			x.me.sets[kept] |= keep
			return next
		}
		if !x.drop(keep, w.review) {
			return wait
		}
		return next
	})
	if m.wrong(lockAndLook) {
		p.early("lockManifests and look in one statement", func(x *exec) result {
			if x.me.sets[open] == 0 {
				return skip
			}
			x.me.sets[held] = lockSkipping(x, x.me.sets[open])
			keep, free, _ := look(x, x.me.sets[held])
			x.me.sets[gone], x.me.sets[suspect] = free, 0
			x.drop(keep, w.review)
			return next
		})
	}
	p.add("lockManifests: FOR UPDATE SKIP LOCKED on manifests, and on the holders of those in circles", func(x *exec) result {
		if x.m.wrong(lockAndLook) || x.me.sets[open] == 0 {
			return skip
		}
		want := x.me.sets[open]
		if !x.m.wrong(circleNotLocked) {
			want |= x.me.sets[members]
		}
		x.me.sets[held] = lockSkipping(x, want) & x.me.sets[open]
		return next
	})
	p.add("lockSubjects: pg_try_advisory_xact_lock_shared of the subjects' digests", func(x *exec) result {
		if x.me.sets[held] == 0 {
			return skip
		}
		x.me.sets[held].each(func(id int) {
			subject := m.manifests[slotOf(id)].subject
			if subject < 0 || x.m.wrong(subjectKeyFree) {
				return
			}
			if !x.free(w.subjectKey(subject), keyShare) {
				x.me.sets[held] &^= one(id)
				return
			}
			x.lock(w.subjectKey(subject), keyShare)
		})
		return next
	})
	p.add("look: again; drop the rows of what is held since", func(x *exec) result {
		if x.m.wrong(lockAndLook) || x.me.sets[held] == 0 {
			return skip
		}
		keep, free, _ := look(x, x.me.sets[held])
		if x.m.wrong(noSecondLook) {
			keep, free, x.me.sets[suspect] = 0, x.me.sets[held], 0
		}
		x.me.sets[gone] = free
		if x.m.wrong(dropLast) {
			x.me.sets[kept] |= keep
			return next
		}
		if !x.drop(keep, w.review) {
			return wait
		}
		return next
	})
	p.add("findCircles: again; drop the rows of those that are held since", func(x *exec) result {
		if x.me.sets[suspect] == 0 {
			return skip
		}
		var keep set
		x.me.sets[suspect].each(func(id int) {
			holders, circular := w.circle(id, x.see)
			locked := true
			holders.each(func(h int) { locked = locked && x.me.locked[w.manifest(slotOf(h))] == forUpdate })
			switch {
			case x.m.wrong(circleSeenOnce) && x.me.sets[members] != 0:
				x.me.sets[gone] |= one(id)
			case !circular:
				keep |= one(id)
			case !x.me.sets[listed].has(id) && (locked || x.m.wrong(circleNotLocked)):
				x.me.sets[gone] |= one(id)
			default:
				x.me.sets[putOff] |= one(id)
			}
		})
		if x.m.wrong(dropLast) {
			x.me.sets[kept] |= keep
			return next
		}
		if !x.drop(keep, w.review) {
			return wait
		}
		return next
	})
	p.add("queueCircles: upsert gc_manifest_review_queue for holders that no index contains", func(x *exec) result {
		return x.rows(func() (ids set) {
			if x.m.wrong(circleNotPassed) {
				return 0
			}
			x.me.sets[passed].each(func(id int) {
				if !w.parent(id, x.see) {
					ids |= one(id)
				}
			})
			return ids
		}, func(id int) bool { return x.queue(w.review(id), soon) })
	})
	m.deleteManifests(p)
	p.add("postponeHeld: SELECT those that couldn't be locked; UPDATE or DELETE FROM gc_manifest_review_queue", func(x *exec) result {
		left := x.me.sets[open] &^ x.me.sets[held]
		if x.m.wrong(dropLast) && !x.drop(x.me.sets[kept], w.review) {
			return wait
		}
		if left|x.me.sets[putOff] == 0 {
			return skip
		}
		var none set
		left.each(func(id int) {
			if !w.there(id, x.see) {
				none |= one(id)
			}
		})
		if x.m.wrong(dropUnlocked) {
			none = left
		}
		if x.m.wrong(goneIsLocked) {
			none = 0
		}
		if !x.drop(none, w.review) || !x.postpone(left&^none|x.me.sets[putOff], w.review) {
			return wait
		}
		return next
	})
	p.add("commit", func(x *exec) result {
		if !x.unreferenced() {
			x.breaks("a manifest is deleted that an index refers to: the foreign key refuses it")
		}
		x.me.sets[gone].each(func(id int) {
			if x.s.toldOf.has(id) {
				x.breaks("manifest " + w.idName(id) + " is deleted, which a client was told exists")
			}
			if !w.subject(id, x.newest) {
				return
			}
			if _, circular := w.circle(id, func(row int) uint8 { return x.s.rows[row] }); !circular {
				x.breaks("manifest " + w.idName(id) + " is deleted while its subject lives")
			}
		})
		x.commit()
		x.me.sets = [maxSets]set{}
		return x.jump("claim")
	})
	p.label("postpone")
	p.scan("PostponeReview: UPDATE gc_manifest_review_queue; commit", func(x *exec) result {
		id := x.me.sets[claimed].lowest()
		there, ok := x.find(w.review(id), noKeyUpdate)
		if !ok {
			return wait
		}
		if there && (x.newest(w.review(id)) == due || x.m.wrong(postponeBlindly)) {
			x.write(w.review(id), soon)
		}
		x.commit()
		x.me.sets = [maxSets]set{}
		return x.jump("claim")
	})
	return p
}

// sweep is Sweeper number n; the claims of two differ.
func (m *machine) sweep(n uint8) *program {
	w := &m.world
	p := newProgram("sweeper")
	p.worker, p.rerun = true, "claim"
	const doomed, uploads = claimed, open
	p.label("claim")
	each := func(f func(row int, in *set, i int), x *exec) {
		for k := range w.keys() {
			f(w.doomed(k), &x.me.sets[doomed], k)
		}
		for u := range w.uploads {
			f(w.doomedUpload(u), &x.me.sets[uploads], u)
		}
	}
	mark := sweepHeld + n
	p.add("ClaimDoomed: UPDATE gc_doomed_objects; commit", func(x *exec) result {
		each(func(row int, in *set, i int) {
			value := x.s.rows[row]
			if what := value & sweepWhat; what != sweepDue && (what != sweepAgain || x.s.over == 0) || !x.free(row, forUpdate) {
				return
			}
			if x.s.over != 0 {
				value &^= againSet
			}
			x.lock(row, forUpdate)
			x.write(row, value&^sweepWhat|mark)
			*in |= one(i)
		}, x)
		if x.me.sets[doomed]|x.me.sets[uploads] == 0 {
			return idle
		}
		x.commit()
		return next
	})
	p.label("sweep")
	forget := func(x *exec) result {
		each(func(row int, in *set, i int) {
			value := x.newest(row)
			if !in.has(i) || value&sweepWhat != mark || !x.lock(row, forUpdate) {
				return
			}
			if value&againSet != 0 && !x.m.wrong(sweptOnce) {
				x.write(row, value&^sweepWhat|sweepAgain)
			} else {
				x.write(row, 0)
			}
		}, x)
		if x.me.blocked != 0 {
			return wait
		}
		x.commit()
		return next
	}
	if m.wrong(forgetFirst) {
		p.add("SettleDoomed: DELETE FROM and UPDATE gc_doomed_objects; commit", forget)
	}
	p.store("the store deletes the objects", func(x *exec) result {
		x.me.sets[doomed].each(func(k int) { x.s.objects[k] = 0 })
		x.me.sets[uploads].each(func(u int) {
			for n := range w.perUpload {
				// What to keep is what the row said when it was claimed; it never changes.
				if keep := x.s.rows[w.doomedUpload(u)] >> keepShift; int(keep) != n+1 {
					x.s.objects[u*w.perUpload+n] = 0
				}
			}
		})
		return next
	})
	p.add("SettleDoomed: DELETE FROM and UPDATE gc_doomed_objects; commit", func(x *exec) result {
		if !x.m.wrong(forgetFirst) {
			if r := forget(x); r != next {
				return r
			}
		}
		x.rollback()
		x.me.sets = [maxSets]set{}
		return x.jump("claim")
	})
	return p
}

// reap is a Reaper: it gives uploads up at any time, and not only old ones.
func (m *machine) reap() *program {
	w := &m.world
	p := newProgram("reaper")
	p.worker, p.rerun = true, "reap"
	p.label("reap")
	p.add("ReapUploads: DELETE FROM uploads SKIP LOCKED, INSERT INTO gc_doomed_objects", func(x *exec) result {
		for u := range w.uploads {
			if x.s.rows[w.upload(u)] != 0 && x.free(w.upload(u), forUpdate) {
				x.lock(w.upload(u), forUpdate)
				x.write(w.upload(u), 0)
				x.lock(w.doomedUpload(u), forUpdate)
				x.write(w.doomedUpload(u), sweepDue|againSet)
			}
		}
		if x.me.wrote == [maxRows]uint8{} {
			return idle
		}
		x.commit()
		return x.jump("reap")
	})
	return p
}

// deleteRepository is what will delete a repository's row, and drain what was
// below it in a transaction that begins after its commit.
func (m *machine) deleteRepository(r int) *program {
	w := &m.world
	p := newProgram("delete repository")
	p.rerun = "delete"
	p.label("delete")
	p.scan("DELETE FROM repositories", func(x *exec) result {
		there, ok := x.find(w.repository(r), forUpdate)
		if !ok {
			return wait
		}
		if there {
			x.write(w.repository(r), 0)
		}
		return next
	})
	p.add("commit", func(x *exec) result {
		x.commit()
		x.s.told &^= (one(w.blobs) - 1) << (r * w.blobs)
		for slot := range m.manifests {
			if m.manifests[slot].repository == r {
				x.s.toldOf &^= (one(generations) - 1) << (slot * generations)
			}
		}
		return next
	})
	p.early("drain: DELETE FROM tags, manifests, repository_blobs", func(x *exec) result {
		x.me.sets[gone] = 0
		for slot, man := range m.manifests {
			if man.repository == r && x.see(w.manifest(slot)) != 0 {
				if there, _ := x.find(w.manifest(slot), forUpdate); there {
					x.me.sets[gone] |= one(identity(slot, x.newest(w.manifest(slot))))
				}
			}
		}
		for t, of := range m.tags {
			if there, _ := x.find(w.tag(t), forUpdate); of == r && there {
				x.write(w.tag(t), 0)
			}
		}
		for b := range w.blobs {
			if there, _ := x.find(w.link(w.linkOf(r, b)), forUpdate); there {
				x.write(w.link(w.linkOf(r, b)), 0)
			}
		}
		if x.me.blocked != 0 {
			return wait
		}
		return next
	})
	p.add("drain: upsert gc_blob_review_queue", func(x *exec) result {
		return x.rows(func() set { return one(w.blobs) - 1 }, func(b int) bool { return x.queue(w.blobReview(b), soon) })
	})
	m.deleteManifests(p)
	p.add("commit", func(x *exec) result {
		x.commit()
		return x.answer("202")
	})
	return p
}
