package model

import "fmt"

// What the variables of clients are kept in; see also those of workers.
const (
	old  = 4 // manifests that lose a tag
	gone = 5 // manifests that the transaction deletes
	// An upload's, which a rerun keeps.
	attempt = 6
	number  = 7
)

// lockRepository is the first statement of whatever inserts below a repository.
func (w *world) lockRepository(p *program, r int) {
	p.scan("lockRepository: FOR KEY SHARE on the repository", func(x *exec) result {
		if x.m.wrong(noRepositoryLock) {
			return skip
		}
		there, ok := x.find(w.repository(r), keyShare)
		switch {
		case !ok:
			return wait
		case !there:
			return x.answer("NAME_UNKNOWN")
		}
		return next
	})
}

// put is Catalog.PutManifest: put and putAgain, run again by withRepository and
// putManifest.
func (m *machine) put(slot int, tags ...int) *program {
	w, man := &m.world, m.manifests[slot]
	p := newProgram("put " + man.name)
	p.rerun = "put"

	p.label("put")
	w.lockRepository(p, man.repository)
	m.lockContent(p, man)
	m.lockQueue(p, slot, tags)
	p.add("insertManifest: INSERT INTO manifests … ON CONFLICT DO NOTHING, layers, manifest_references", func(x *exec) result {
		generation := x.s.serial[slot] + 1
		if x.me.wrote[w.manifest(slot)] == 0 && int(generation) > generations {
			x.breaks("the scenario puts a manifest more often than the model allows")
			return ended
		}
		inserted, ok := x.insert(w.manifest(slot), generation)
		if !ok {
			return wait
		}
		if !inserted { // the batch commits, and putAgain follows
			x.note += ": it is there"
			x.commit()
			x.me.sets = [maxSets]set{}
			return x.jump("again")
		}
		for b := range w.blobs { // the foreign keys of layers and configuration
			if man.blobs().has(b) && !x.m.wrong(noForeignKeys) {
				if there, ok := x.refer(w.blob(b)); !ok {
					return wait
				} else if !there {
					return x.fails("foreign key of a blob")
				}
			}
		}
		for i, c := range man.children {
			if x.see(w.manifest(c)) == 0 {
				return x.fails("a child is gone")
			}
			x.lock(w.child(slot, i), forUpdate)
			x.write(w.child(slot, i), uint8(identity(c, x.see(w.manifest(c))))+1)
		}
		return next
	})
	w.pointTags(p, slot, tags)
	p.add("gc_track_manifest_uploads: INSERT INTO gc_manifest_review_queue unless tagged", func(x *exec) result {
		id := identity(slot, x.newest(w.manifest(slot)))
		if w.tagged(id, x.newest) || x.m.wrong(noPutTrigger) {
			return skip
		}
		if x.m.wrong(pruneReferrer) && w.subject(id, x.newest) {
			return skip
		}
		if !x.queue(w.review(id), later) {
			return wait
		}
		return next
	})
	w.queueOld(p)
	p.add("commit", func(x *exec) result {
		for i, c := range man.children { // the child's foreign key is checked here
			id := int(x.newest(w.child(slot, i))) - 1
			if x.m.wrong(noForeignKeys) {
				continue
			}
			if there, ok := x.refer(w.manifest(c)); !ok {
				return wait
			} else if !there || !w.there(id, x.newest) {
				return x.fails("foreign key of a child")
			}
		}
		return x.put(slot, tags)
	})

	p.label("again")
	w.lockRepository(p, man.repository)
	p.scan("putAgain: FOR KEY SHARE on the manifest", func(x *exec) result {
		if x.m.wrong(tagNoKeyShare) {
			if x.newest(w.manifest(slot)) == 0 {
				return x.fails("gone")
			}
			return next
		}
		there, ok := x.find(w.manifest(slot), keyShare)
		switch {
		case !ok:
			return wait
		case !there:
			return x.fails("gone")
		}
		return next
	})
	if len(tags) == 0 {
		p.add("putAgain: upsert gc_manifest_review_queue", func(x *exec) result {
			if !x.greatest(w.review(identity(slot, x.see(w.manifest(slot)))), later) {
				return wait
			}
			return next
		})
	} else {
		m.lockQueue(p, slot, tags)
		w.pointTags(p, slot, tags)
		w.queueOld(p)
	}
	p.add("commit", func(x *exec) result { return x.put(slot, tags) })

	p.label("missing")
	p.add("missing: SELECT what isn't there", func(x *exec) result {
		for b := range w.blobs {
			if man.blobs().has(b) && x.see(w.link(w.linkOf(man.repository, b))) == 0 {
				if x.s.told.has(w.linkOf(man.repository, b)) {
					x.breaks("MANIFEST_BLOB_UNKNOWN for blob " + blobName(b) + ", which a client was told exists")
				}
				return x.answer("MANIFEST_BLOB_UNKNOWN")
			}
		}
		for _, c := range man.children {
			if x.see(w.manifest(c)) == 0 {
				return x.answer("MANIFEST_BLOB_UNKNOWN")
			}
		}
		x.rollback()
		return x.jump("put")
	})
	return p
}

// put commits and answers 201.
func (x *exec) put(slot int, tags []int) result {
	x.commit()
	if len(tags) == 0 && !x.m.noDelay {
		x.s.toldOf |= one(identity(slot, x.s.rows[x.m.manifest(slot)]))
	}
	return x.answer("201")
}

// lockContent is batch.lockContent.
func (m *machine) lockContent(p *program, man manifest) {
	w := &m.world
	missing := func(x *exec) result {
		x.note += ": missing"
		x.rollback()
		return x.jump("missing")
	}
	man.blobs().each(func(b int) {
		p.scan("lockContent: FOR KEY SHARE on blob "+blobName(b), func(x *exec) result {
			if x.m.wrong(noForeignKeys) {
				if x.newest(w.blob(b)) == 0 {
					return missing(x)
				}
				return next
			}
			there, ok := x.find(w.blob(b), keyShare)
			if !ok {
				return wait
			} else if !there {
				return missing(x)
			}
			return next
		})
	})
	man.blobs().each(func(b int) {
		l := w.linkOf(man.repository, b)
		p.scan("lockContent: FOR KEY SHARE on "+w.linkName(l), func(x *exec) result {
			if x.m.wrong(putNoLinkLock) {
				if x.newest(w.link(l)) == 0 {
					return missing(x)
				}
				return next
			}
			there, ok := x.find(w.link(l), keyShare)
			if !ok {
				return wait
			} else if !there {
				return missing(x)
			}
			return next
		})
	})
	for _, c := range man.children {
		p.scan("lockContent: FOR KEY SHARE on "+m.manifests[c].name, func(x *exec) result {
			if x.m.wrong(childNoKeyShare) || x.m.wrong(noForeignKeys) {
				if x.newest(w.manifest(c)) == 0 {
					return missing(x)
				}
				return next
			}
			there, ok := x.find(w.manifest(c), keyShare)
			if !ok {
				return wait
			} else if !there {
				return missing(x)
			}
			return next
		})
	}
	if man.subject < 0 || m.wrong(subjectNotLocked) {
		return
	}
	p.scan("lockContent: FOR KEY SHARE on the subject "+m.manifests[man.subject].name, func(x *exec) result {
		if _, ok := x.find(w.manifest(man.subject), keyShare); !ok {
			return wait
		}
		return next
	})
}

// lockQueue is batch.lockQueue.
func (m *machine) lockQueue(p *program, slot int, tags []int) {
	w := &m.world
	if !m.wrong(subjectKeyFree) && !m.wrong(tagNoKeyShare) {
		p.scan("lockQueue: FOR KEY SHARE on the manifest, or the advisory lock of its digest", func(x *exec) result {
			there, ok := x.find(w.manifest(slot), keyShare)
			if !ok || !there && !x.lock(w.subjectKey(slot), forUpdate) {
				return wait
			}
			return next
		})
	}
	for _, t := range tags {
		p.scan(fmt.Sprintf("lockQueue: FOR UPDATE on tag %d", t), func(x *exec) result {
			if _, ok := x.find(w.tag(t), forUpdate); !ok {
				return wait
			}
			return next
		})
	}
	p.early("lockQueue: FOR UPDATE on gc_manifest_review_queue, those that lose a tag", func(x *exec) result {
		return x.rows(func() (ids set) {
			for _, t := range tags {
				if id := x.see(w.tag(t)); id != 0 && x.see(w.review(int(id)-1)) != 0 {
					ids |= one(int(id) - 1)
				}
			}
			return ids
		}, func(id int) bool {
			_, ok := x.find(w.review(id), forUpdate)
			return ok
		})
	})
}

// pointTags is the part of insertManifest and putAgain that writes tags.
func (w *world) pointTags(p *program, slot int, tags []int) {
	for _, t := range tags {
		p.add(fmt.Sprintf("INSERT INTO tags … ON CONFLICT DO UPDATE: tag %d", t), func(x *exec) result {
			id := identity(slot, x.see(w.manifest(slot)))
			was, ok := x.upsert(w.tag(t), func(uint8) uint8 { return uint8(id) + 1 })
			if !ok {
				return wait
			}
			if was != 0 && int(was) != id+1 {
				x.me.sets[old] |= one(int(was) - 1)
			}
			if there, ok := x.refer(w.manifest(slot)); !ok && !x.m.wrong(tagNoKeyShare) {
				return wait
			} else if !there && !x.m.wrong(tagNoKeyShare) {
				return x.fails("foreign key of a tag")
			}
			return next
		})
	}
}

// queueOld is the trigger on switched tags.
func (w *world) queueOld(p *program) {
	p.add("gc_track_switched_tags: upsert gc_manifest_review_queue", func(x *exec) result {
		return x.rows(func() set { return x.me.sets[old] }, func(id int) bool { return x.queue(w.review(id), soon) })
	})
}

// deleteTag is Catalog.DeleteTag.
func (m *machine) deleteTag(t int) *program {
	w := &m.world
	p := newProgram(fmt.Sprintf("delete tag %d", t))
	p.rerun = "delete"
	p.label("delete")
	p.scan("DeleteTag: DELETE FROM tags", func(x *exec) result {
		there, ok := x.find(w.tag(t), forUpdate)
		if !ok {
			return wait
		} else if !there {
			return x.answer("404")
		}
		x.me.sets[old] = one(int(x.newest(w.tag(t))) - 1)
		x.write(w.tag(t), 0)
		return next
	})
	p.add("gc_track_deleted_tags: upsert gc_manifest_review_queue", func(x *exec) result {
		return x.rows(func() set { return x.me.sets[old] }, func(id int) bool { return x.queue(w.review(id), soon) })
	})
	p.add("commit", func(x *exec) result {
		x.commit()
		return x.answer("202")
	})
	return p
}

// deleteManifest is Catalog.DeleteManifest.
func (m *machine) deleteManifest(slot int) *program {
	w := &m.world
	p := newProgram("delete " + m.manifests[slot].name)
	p.rerun = "delete"
	p.label("delete")
	p.scan("deleteManifest: FOR UPDATE on the manifest", func(x *exec) result {
		there, ok := x.find(w.manifest(slot), forUpdate)
		if !ok {
			return wait
		} else if !there {
			return x.answer("404")
		}
		x.me.sets[gone] = one(identity(slot, x.newest(w.manifest(slot))))
		return next
	})
	p.add("deleteManifest: SELECT an index that holds it", func(x *exec) result {
		if w.parent(x.me.sets[gone].lowest(), x.see) {
			return x.answer("409")
		}
		return next
	})
	pointing := func(x *exec) (tags set) {
		for t := range m.tags {
			if int(x.see(w.tag(t))) == x.me.sets[gone].lowest()+1 {
				tags |= one(t)
			}
		}
		return tags
	}
	p.early("deleteManifest: FOR UPDATE on its tags", func(x *exec) result {
		return x.rows(func() set { return pointing(x) }, func(t int) bool {
			_, ok := x.find(w.tag(t), forUpdate)
			return ok
		})
	})
	p.add("deleteManifest: DELETE FROM tags", func(x *exec) result {
		tags := pointing(x)
		tags.each(func(t int) {
			if x.lock(w.tag(t), forUpdate) {
				x.write(w.tag(t), 0)
			}
		})
		if x.me.blocked != 0 {
			return wait
		}
		if tags != 0 {
			x.me.sets[old] = x.me.sets[gone]
		}
		return skip
	})
	p.add("gc_track_deleted_tags: upsert gc_manifest_review_queue", func(x *exec) result {
		return x.rows(func() set { return x.me.sets[old] }, func(id int) bool { return x.queue(w.review(id), soon) })
	})
	p.add("deleteManifest: upsert gc_blob_review_queue", func(x *exec) result {
		return x.rows(func() set { return m.manifests[slot].blobs() }, func(b int) bool { return x.greatest(w.blobReview(b), soon) })
	})
	m.deleteManifests(p)
	p.add("commit", func(x *exec) result {
		if !x.unreferenced() {
			return x.fails("foreign key of a child")
		}
		x.s.toldOf &^= x.me.sets[gone]
		x.commit()
		return x.answer("202")
	})
	return p
}

// deleteManifests is DELETE FROM manifests with its cascades and triggers, for
// the identities in gone. The triggers fire in this order when all rows are
// deleted.
func (m *machine) deleteManifests(p *program) {
	w := &m.world
	blobs := func(x *exec, of func(man manifest) set) (list set) {
		x.me.sets[gone].each(func(id int) { list |= of(m.manifests[slotOf(id)]) })
		return list
	}
	p.add("DELETE FROM manifests, cascading to layers, manifest_references, gc_blobs_*", func(x *exec) result {
		if x.me.sets[gone] == 0 {
			return skip
		}
		x.me.sets[gone].each(func(id int) {
			if w.tagged(id, x.newest) && !x.m.wrong(tagNoKeyShare) {
				x.breaks("a manifest is deleted that a tag points to: the foreign key refuses it")
			}
			x.write(w.manifest(slotOf(id)), 0)
			for i := range m.manifests[slotOf(id)].children {
				x.lock(w.child(slotOf(id), i), forUpdate)
				x.write(w.child(slotOf(id), i), 0)
			}
		})
		return next
	})
	p.scan("gc_track_deleted_manifests: DELETE FROM gc_manifest_review_queue", func(x *exec) result {
		return x.rows(func() (ids set) {
			x.me.sets[gone].each(func(id int) {
				if x.see(w.review(id)) != 0 {
					ids |= one(id)
				}
			})
			return ids
		}, func(id int) bool {
			there, ok := x.find(w.review(id), forUpdate)
			if ok && there {
				x.write(w.review(id), 0)
			}
			return ok
		})
	})
	p.add("gc_track_deleted_manifests: upsert gc_manifest_review_queue for referrers", func(x *exec) result {
		return x.rows(func() (ids set) {
			x.me.sets[gone].each(func(id int) {
				for s, other := range m.manifests {
					if g := x.see(w.manifest(s)); g != 0 && other.subject == slotOf(id) {
						ids |= one(identity(s, g))
					}
				}
			})
			return ids
		}, func(id int) bool { return x.queue(w.review(id), soon) })
	})
	p.add("gc_track_deleted_manifests: upsert gc_blob_review_queue for configurations", func(x *exec) result {
		return x.rows(func() set {
			return blobs(x, func(man manifest) set { man.layers = nil; return man.blobs() })
		}, func(b int) bool { return x.queue(w.blobReview(b), soon) })
	})
	p.add("gc_track_deleted_manifest_lists: upsert gc_manifest_review_queue for children", func(x *exec) result {
		return x.rows(func() (ids set) {
			x.me.sets[gone].each(func(id int) {
				for i, c := range m.manifests[slotOf(id)].children {
					if child := x.s.rows[w.child(slotOf(id), i)]; child != 0 && slotOf(int(child)-1) == c {
						ids |= one(int(child) - 1)
					}
				}
			})
			return ids
		}, func(id int) bool { return x.queue(w.review(id), soon) })
	})
	p.add("gc_track_deleted_layers: upsert gc_blob_review_queue", func(x *exec) result {
		return x.rows(func() set {
			return blobs(x, func(man manifest) set { man.config = -1; return man.blobs() })
		}, func(b int) bool { return x.queue(w.blobReview(b), soon) })
	})
}

// unreferenced is the deferred check of manifest_references.child_id when what is
// gone is committed.
func (x *exec) unreferenced() bool {
	held := false
	x.me.sets[gone].each(func(id int) { held = held || x.m.parent(id, x.newest) })
	return !held || x.m.wrong(noForeignKeys)
}

// deleteBlob is Catalog.DeleteBlob.
func (m *machine) deleteBlob(r, b int) *program {
	w, l := &m.world, m.linkOf(r, b)
	p := newProgram("unlink " + blobName(b))
	p.rerun = "delete"
	p.label("delete")
	queue := func(x *exec) result {
		if !x.greatest(w.blobReview(b), soon) {
			return wait
		}
		return next
	}
	if !m.wrong(linkBeforeQueue) {
		p.add("unlinkBlob: upsert gc_blob_review_queue", queue)
	}
	p.scan("unlinkBlob: FOR UPDATE on the link", func(x *exec) result {
		there, ok := x.find(w.link(l), forUpdate)
		if !ok {
			return wait
		} else if !there {
			return x.answer("404")
		}
		return next
	})
	if m.wrong(linkBeforeQueue) {
		p.add("unlinkBlob: upsert gc_blob_review_queue", queue)
	}
	p.add("unlinkBlob: SELECT a manifest that uses it", func(x *exec) result {
		if w.usedIn(l, x.see) {
			return x.answer("409")
		}
		return next
	})
	p.add("unlinkBlob: DELETE FROM repository_blobs", func(x *exec) result {
		x.write(w.link(l), 0)
		return next
	})
	p.add("commit", func(x *exec) result {
		x.commit()
		x.s.told &^= one(l)
		return x.answer("202")
	})
	return p
}

// headBlob is Catalog.PromiseBlob.
func (m *machine) headBlob(r, b int) *program {
	w, l := &m.world, m.linkOf(r, b)
	p := newProgram("HEAD " + blobName(b))
	p.rerun = "promise"
	p.label("promise")
	p.early("PromiseBlob: INSERT INTO gc_blob_review_queue SELECT the link … ON CONFLICT DO UPDATE", func(x *exec) result {
		if x.see(w.link(l)) == 0 {
			return skip
		}
		if x.m.wrong(promiseReadFirst) || x.m.wrong(promiseInOne) {
			x.me.sets[old] = one(0)
		}
		if x.m.wrong(promiseReadFirst) {
			return next // what it read is the answer; the promise follows
		}
		if x.m.wrong(promiseIfQueued) {
			there, ok := x.find(w.blobReview(b), forUpdate)
			if !ok {
				return wait
			}
			if there {
				x.write(w.blobReview(b), max(x.newest(w.blobReview(b)), x.after(later)))
			}
			return next
		}
		if !x.greatest(w.blobReview(b), later) {
			return wait
		}
		return next
	})
	if m.wrong(promiseReadFirst) {
		w.promiseBlob(p, b)
	}
	p.add("PromiseBlob: SELECT the blob; commit", func(x *exec) result {
		there := x.see(w.link(l)) != 0 && x.see(w.blob(b)) != 0 || x.me.sets[old] != 0
		x.commit()
		if !there {
			return x.answer("404")
		}
		if !x.m.noDelay {
			x.s.told |= one(l)
		}
		return x.answer("200")
	})
	return p
}

// headManifest is Catalog.PromiseManifest.
func (m *machine) headManifest(slot int) *program {
	w := &m.world
	p := newProgram("HEAD " + m.manifests[slot].name)
	p.rerun = "promise"
	p.label("promise")
	p.early("PromiseManifest: INSERT INTO gc_manifest_review_queue SELECT the manifest … ON CONFLICT DO UPDATE", func(x *exec) result {
		g := x.see(w.manifest(slot))
		if g == 0 || x.m.wrong(promiseIfQueued) && x.newest(w.review(identity(slot, g))) == 0 {
			return skip
		}
		if !x.greatest(w.review(identity(slot, g)), later) {
			return wait
		}
		return next
	})
	p.add("PromiseManifest: SELECT the manifest; commit", func(x *exec) result {
		g := x.see(w.manifest(slot))
		x.commit()
		if g == 0 {
			return x.answer("404")
		}
		if !x.m.noDelay {
			x.s.toldOf |= one(identity(slot, g))
		}
		return x.answer("200")
	})
	return p
}

// promiseBlob is the statement of that name.
func (w *world) promiseBlob(p *program, b int) {
	p.add("promiseBlob: upsert gc_blob_review_queue", func(x *exec) result {
		if x.m.wrong(mountNoPromise) {
			return skip
		}
		if !x.greatest(w.blobReview(b), later) {
			return wait
		}
		return next
	})
}

// linkBlob is the statement of that name.
func (w *world) linkBlob(p *program, l int) {
	p.add("linkBlob: INSERT INTO repository_blobs … ON CONFLICT DO UPDATE", func(x *exec) result {
		if _, ok := x.upsert(w.link(l), func(uint8) uint8 { return 1 }); !ok {
			return wait
		}
		if there, ok := x.refer(w.blob(l % w.blobs)); !ok {
			return wait
		} else if !there {
			return x.fails("foreign key of a link")
		}
		return next
	})
}

// tell commits and promises the blob of a link.
func (x *exec) tell(l int) result {
	x.commit()
	if !x.m.noDelay {
		x.s.told |= one(l)
	}
	return x.answer("201")
}

// mount is Catalog.Mount.
func (m *machine) mount(from, to, b int) *program {
	w := &m.world
	p := newProgram("mount " + blobName(b))
	p.rerun = "mount"
	p.label("mount")
	w.lockRepository(p, to)
	w.promiseBlob(p, b)
	p.scan("Mount: FOR KEY SHARE on the blob", func(x *exec) result {
		there, ok := x.find(w.blob(b), keyShare)
		if !ok {
			return wait
		} else if !there {
			return x.answer("202, no such blob")
		}
		return next
	})
	p.add("Mount: SELECT the link of the other repository", func(x *exec) result {
		if x.see(w.link(w.linkOf(from, b))) == 0 {
			return x.answer("202, no such link")
		}
		return next
	})
	w.linkBlob(p, w.linkOf(to, b))
	p.add("commit", func(x *exec) result { return x.tell(w.linkOf(to, b)) })
	return p
}

// push writes object n of an upload and commits it: the store's writer, then
// Catalog.CommitUpload. With claim it takes the number from the row first, as
// Catalog.ClaimUpload does, and commits only while the row is as it left it.
func (m *machine) push(u, r, b int, claim bool) *program {
	w, l := &m.world, m.linkOf(r, b)
	p := newProgram(fmt.Sprintf("push %s (%d)", blobName(b), u))
	p.rerun = "commit"
	key := func(x *exec) int {
		if x.m.wrong(keyReused) {
			return 0 // the content's name, and not the upload's
		}
		return u*w.perUpload + int(x.me.sets[number])
	}
	p.label("start")
	p.scan("ClaimUpload: UPDATE uploads SET attempt, numbers", func(x *exec) result {
		x.me.sets[attempt], x.me.sets[number] = 1, 0
		if !claim {
			return skip
		}
		there, ok := x.find(w.upload(u), noKeyUpdate)
		if !ok {
			return wait
		} else if !there {
			return x.answer("404")
		}
		now := x.newest(w.upload(u))
		if int(now) > w.perUpload {
			return x.answer("416")
		}
		x.me.sets[attempt] = set(now) + 1
		if !x.m.wrong(numberReused) {
			x.me.sets[number] = set(now) - 1
		}
		x.write(w.upload(u), now+1)
		x.commit()
		return next
	})
	p.store("the store writes the object", func(x *exec) result {
		x.s.objects[key(x)] = uint8(x.p) + 1
		return next
	})
	p.label("commit")
	m.commitNew(p, u, l, key)
	m.commitKnown(p, u, l)
	return p
}

func (m *machine) commitNew(p *program, u, l int, key func(x *exec) int) {
	w, b := &m.world, l%m.blobs
	w.lockRepository(p, l/w.blobs)
	m.takeUpload(p, "commitNew", u)
	p.add("commitNew: INSERT INTO blobs … ON CONFLICT DO NOTHING, repository_blobs, gc_doomed_objects", func(x *exec) result {
		k := key(x)
		inserted, ok := x.insert(w.blob(b), uint8(k)+1)
		if !ok {
			return wait
		}
		if !inserted {
			x.note += ": it is there"
			x.rollback()
			return x.jump("known")
		}
		if _, ok := x.insert(w.link(l), 1); !ok {
			return wait
		}
		if w.perUpload > 1 {
			x.lock(w.doomedUpload(u), forUpdate)
			x.write(w.doomedUpload(u), sweepDue|againSet|uint8(k-u*w.perUpload+1)<<keepShift)
		}
		return next
	})
	p.add("gc_track_blob_uploads: upsert gc_blob_review_queue", func(x *exec) result {
		if !x.queue(w.blobReview(b), later) {
			return wait
		}
		return next
	})
	p.add("commit", func(x *exec) result {
		x.s.content[x.newest(w.blob(b))-1] = uint8(x.p) + 1
		return x.tell(l)
	})
}

func (m *machine) takeUpload(p *program, statement string, u int) {
	w := &m.world
	p.scan(statement+": DELETE FROM uploads", func(x *exec) result {
		there, ok := x.find(w.upload(u), forUpdate)
		if !ok {
			return wait
		} else if !there || x.newest(w.upload(u)) != uint8(x.me.sets[attempt]) {
			return x.answer("416")
		}
		x.write(w.upload(u), 0)
		return next
	})
}

func (m *machine) commitKnown(p *program, u, l int) {
	w, b := &m.world, l%m.blobs
	p.label("known")
	w.lockRepository(p, l/w.blobs)
	w.promiseBlob(p, b)
	p.scan("commitKnown: FOR KEY SHARE on the blob", func(x *exec) result {
		there, ok := x.find(w.blob(b), keyShare)
		if !ok {
			return wait
		} else if !there {
			if x.m.wrong(noRerun) {
				x.breaks("a client is told of a serialization failure")
			}
			return x.fails("serialization failure: it has just been deleted")
		}
		return next
	})
	m.takeUpload(p, "commitKnown", u)
	p.add("commitKnown: INSERT INTO gc_doomed_objects", func(x *exec) result {
		x.lock(w.doomedUpload(u), forUpdate)
		x.write(w.doomedUpload(u), sweepDue|againSet)
		return skip
	})
	w.linkBlob(p, l)
	p.add("commit", func(x *exec) result { return x.tell(l) })
}

// getBlob is a GET: the row, the object, and the row once more where the store
// has none.
func (m *machine) getBlob(r, b int) *program {
	w, l := &m.world, m.linkOf(r, b)
	p := newProgram("GET " + blobName(b))
	p.rerun = "get"
	p.label("get")
	p.add("Blob: SELECT the blob's key", func(x *exec) result {
		key := x.see(w.blob(b))
		x.rollback()
		if x.see(w.link(l)) == 0 || key == 0 {
			return x.answer("404")
		}
		x.me.sets[old] = set(key) - 1
		return next
	})
	p.store("the store reads the object", func(x *exec) result {
		if x.s.objects[x.me.sets[old]] != 0 {
			return x.answer("200")
		}
		if x.m.wrong(readOnce) && x.s.rows[w.blob(b)] != 0 && x.s.rows[w.link(l)] != 0 {
			x.breaks("a client is told that a blob doesn't exist which does")
		}
		return next
	})
	p.add("BlobNow: SELECT the blob's key once more", func(x *exec) result {
		key := x.see(w.blob(b))
		x.rollback()
		if x.see(w.link(l)) == 0 || key == 0 {
			return x.answer("404")
		}
		if set(key)-1 == x.me.sets[old] {
			x.breaks("the object of a blob is gone")
			return x.answer("404")
		}
		return x.jump("get")
	})
	return p
}
