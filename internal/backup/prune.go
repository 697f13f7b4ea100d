package backup

import (
	"context"
	"errors"
	"slices"
	"strings"
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

// pruneObjects deletes the objects that none of the backups in `kept` has in its list. The
// target's files and the lists are sorted by groups of objects, so it reads each once, and keeps
// the names of one group in memory.
func pruneObjects(ctx context.Context, t Target, kept []*Manifest, done *Pruned) error {
	var lists []*objectList
	for _, m := range kept {
		l := openObjects(ctx, t, m)
		defer l.r.Close()
		lists = append(lists, l)
	}
	var group string
	var needed map[string]bool
	var gone []string
	flush := func() error {
		if len(gone) == 0 {
			return nil
		}
		err := t.Delete(ctx, gone)
		gone = nil
		return err
	}
	for f, err := range t.Files(ctx, objectsDir) {
		if err != nil {
			return err
		}
		in, _, ok := strings.Cut(strings.TrimPrefix(f.Key, objectsDir), "/")
		if !ok || len(in) != 2 {
			continue // not ours
		}
		if in < group {
			return errors.New("the target doesn't list its files in the order of their names, so objects of old backups can't be deleted")
		}
		if in != group {
			if err := flush(); err != nil {
				return err
			}
			if needed, err = neededOf(lists, in); err != nil {
				return err
			}
			group = in
		}
		if !needed[f.Key] {
			gone = append(gone, f.Key)
			done.Objects, done.Bytes = done.Objects+1, done.Bytes+f.Size
		}
	}
	return flush()
}

// neededOf returns the names of the objects of a group that are in one of the lists.
func neededOf(lists []*objectList, group string) (map[string]bool, error) {
	needed := make(map[string]bool)
	for _, l := range lists {
		if err := l.skipTo(group); err != nil {
			return nil, err
		}
		o, err := l.peek()
		if err != nil {
			return nil, err
		}
		if o == nil || o.group() != group {
			continue
		}
		some, err := l.group()
		if err != nil {
			return nil, err
		}
		for _, o := range some {
			needed[o.file()] = true
		}
	}
	return needed, nil
}
