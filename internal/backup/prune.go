package backup

import (
	"context"
	"slices"
	"time"
)

// Pruned says what was deleted with old backups.
type Pruned struct {
	Backups int   `json:"backups"`
	Objects int64 `json:"objects"`
	Bytes   int64 `json:"bytes"`
	// Waiting says that objects weren't deleted, because a backup in the target has begun
	// within the last day and isn't complete.
	Waiting bool `json:"waiting"`
}

// unfinishedAge is the age from which an incomplete backup counts as killed, and is deleted.
const unfinishedAge = 24 * time.Hour

// prune keeps the `keep` newest complete backups of a target and deletes the others, and the
// objects that no backup needs. The caller has just written the backup `own`, and still has the
// lock that lets only one backup run.
func prune(ctx context.Context, t Target, keep int, own string) (done Pruned, err error) {
	all, err := list(ctx, t)
	if err != nil {
		return done, err
	}
	var kept []*Manifest
	for _, e := range slices.Backward(all) {
		began, err := time.Parse(idLayout, e.ID)
		if err != nil {
			return done, err
		}
		switch {
		case e.Err != nil:
			// It may be readable by another version, or come back; its objects are unknown.
			done.Waiting = true
		case e.complete() && (len(kept) < keep || e.ID == own):
			kept = append(kept, e.Manifest)
		case !e.complete() && time.Since(began) < unfinishedAge:
			done.Waiting = true
		default:
			if err := remove(ctx, t, e); err != nil {
				return done, err
			}
			done.Backups++
		}
	}
	if done.Waiting {
		return done, nil
	}
	return done, pruneObjects(ctx, t, kept, &done)
}

// remove deletes a backup, its manifest first, so that a backup with a manifest is whole.
func remove(ctx context.Context, t Target, e Entry) error {
	manifest := backupsDir + e.ID + "/" + manifestName
	if err := t.Delete(ctx, []string{manifest}); err != nil {
		return err
	}
	return t.Delete(ctx, slices.DeleteFunc(slices.Clone(e.files), func(name string) bool { return name == manifest }))
}

// deletedAtOnce is how many files pruneObjects deletes by one call.
const deletedAtOnce = 1000

// pruneObjects deletes the objects that none of the backups in `kept` has in its lists. A target
// usually lists its files in the order of their keys, which the lists have too, so it reads each once,
// and keeps no names in memory. Where the order differs, the lists are read again from their beginning.
func pruneObjects(ctx context.Context, t Target, kept []*Manifest, done *Pruned) error {
	lists := &keptLists{kept: kept, target: t}
	defer lists.close()
	var gone []string
	flush := func(n int) error {
		if len(gone) < n {
			return nil
		}
		err := t.Delete(ctx, gone)
		gone = gone[:0]
		return err
	}
	for f, err := range t.Files(ctx, objectsDir) {
		if err != nil {
			return err
		}
		key, ok := keyOf(f.Key)
		if !ok {
			continue // not ours
		}
		needed, err := lists.have(ctx, key)
		if err != nil {
			return err
		}
		if needed {
			continue
		}
		gone = append(gone, f.Key)
		done.Objects, done.Bytes = done.Objects+1, done.Bytes+f.Size
		if err := flush(deletedAtOnce); err != nil {
			return err
		}
	}
	return flush(1)
}

// keptLists are the lists of objects of the backups that stay.
type keptLists struct {
	kept   []*Manifest
	target Target
	lists  []*objectList // open
	last   string        // the key that was asked for last
}

// have returns whether one of the lists has the object with a key.
func (k *keptLists) have(ctx context.Context, key string) (found bool, err error) {
	if k.lists == nil || key <= k.last {
		k.close()
		for _, m := range k.kept {
			k.lists = append(k.lists, openObjects(ctx, k.target, m), openObjects(ctx, k.target, m.ofLost()))
		}
	}
	k.last = key
	for _, l := range k.lists {
		one, err := l.has(key)
		if err != nil {
			return false, err
		}
		found = found || one
	}
	return found, nil
}

func (k *keptLists) close() {
	for _, l := range k.lists {
		l.r.Close()
	}
	k.lists = nil
}
