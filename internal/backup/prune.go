package backup

import (
	"context"
	"errors"
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

const (
	// unfinishedAge is the age from which an incomplete backup counts as killed, and is deleted.
	unfinishedAge = 24 * time.Hour
	// dropWithin is how long deleting the files of a failed backup may take.
	dropWithin = time.Minute
)

// killed says whether the backup is incomplete, and so old that no process writes it any more.
func (e Entry) killed() bool {
	began, err := time.Parse(idLayout, e.ID)
	return err == nil && e.Err == nil && !e.complete() && time.Since(began) >= unfinishedAge
}

// removeKilled deletes the backups that were killed, so that this one has their room. It returns how many
// it has deleted. If that fails, the backup goes on: its deletion of old ones comes across them again.
func (b *run) removeKilled(ctx context.Context) (n int) {
	if b.Keep == 0 {
		return 0
	}
	all, err := list(ctx, b.Target)
	for _, e := range all {
		if !e.killed() {
			continue
		}
		if err = remove(ctx, b.Target, e); err != nil {
			break
		}
		n++
	}
	if err != nil {
		b.Log.WarnContext(ctx, "interrupted backups can't be deleted", "error", err)
	}
	return n
}

// drop deletes the files of this backup, which has failed, as far as it can. Objects stay for the next one.
func (b *run) drop(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), dropWithin)
	defer cancel()
	e := Entry{ID: b.m.ID}
	var err error
	for f, listErr := range b.Target.Files(ctx, b.m.dir()) {
		if err = listErr; err == nil {
			e.files = append(e.files, f.Key)
		}
	}
	if err = errors.Join(err, remove(ctx, b.Target, e)); err != nil {
		b.Log.WarnContext(ctx, "the files of a failed backup can't be deleted", "backup", b.m.ID, "error", err)
	}
}

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
		switch {
		case e.Err != nil:
			// It may be readable by another version, or come back; its objects are unknown.
			done.Waiting = true
		case e.complete() && (len(kept) < keep || e.ID == own):
			kept = append(kept, e.Manifest)
		case !e.complete() && !e.killed():
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
