package autoprune

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/judge"
	"github.com/purser-registry/purser/internal/oci"
)

// Undone says what an undo did.
type Undone struct {
	Run      string `json:"run"`
	Restored int64  `json:"restored" doc:"Tags that were restored"`
	Exists   int64  `json:"exists" doc:"Tags that were left alone, because a tag of that name was made since or restored before"`
	Gone     int64  `json:"gone" doc:"Tags that can't be restored, because garbage collection has deleted the manifest, or the repository was deleted for good"`
	// GoneTags are the first 100 of the tags that Gone counts.
	GoneTags []string `json:"gone_tags" nullable:"false" doc:"The first 100 tags that can't be restored, as repository:tag@digest"`
	InTrash  int64    `json:"in_trash" doc:"Tags that can't be restored now, because their repository or its namespace is in the trash. Restore it, and undo the run again"`
	// TrashNames are the first 100 repositories of the tags that InTrash counts.
	TrashNames []string `json:"trash_names" nullable:"false" doc:"The first 100 repositories of these tags, under the names that they had"`
	// Next is the cursor with which a client continues the undo. It is "" when Undo has
	// gone through all tags that the run deleted.
	Next string `json:"next,omitempty" doc:"Where to go on: ask again with this as the cursor. Absent when all is done"`
}

const (
	maxGoneTags = 100
	undoPage    = 1000
)

// Undo restores the tags that a run deleted, with their old creation and update times,
// if the manifest still exists and no tag of the same name has been created since. The
// restored tags are exempt from the policies that deleted them, until somebody ends that
// (EndExemptions), the tag is deleted, or the policy gets another rule. A tag's expiration date is
// restored too unless it is over. Undo works in pages of 1,000 tags. After about
// the duration `within` it stops, and returns a cursor with which to continue. It
// returns the error NAME_UNKNOWN with status 404 if the run doesn't exist, and
// UNSUPPORTED with status 409 while the run isn't over.
func (p *Pruner) Undo(ctx context.Context, id, cursor string, within time.Duration) (Undone, error) {
	out := Undone{Run: id, GoneTags: []string{}, TrashNames: []string{}}
	r, err := p.GetRun(ctx, id)
	if err != nil {
		return out, err
	}
	if r.State == "running" {
		return out, oci.Errorf(oci.Unsupported, "run %s is still running: undo it when it has ended, or delete its policies to stop it", id).WithStatus(409)
	}
	run := uuid.MustParse(r.ID)
	if cursor == "" {
		if err := audit.Append(ctx, p.db.Pool, audit.Entry{Kind: audit.UndoAutoprune, Namespace: r.Namespace, Run: run}); err != nil {
			return out, err
		}
	}
	log, began := audit.New(p.db), time.Now()
	filter := audit.Filter{Run: run, Kinds: []audit.Kind{audit.AutopruneTagDelete}}
	for {
		entries, next, err := log.List(ctx, filter, cursor, undoPage)
		if errors.Is(err, audit.ErrCursor) {
			return out, oci.Invalid("the cursor is not valid: begin again without one")
		}
		if err != nil {
			return out, err
		}
		if err := p.undoPage(ctx, run, r.NamespaceID, entries, &out); err != nil {
			return out, err
		}
		cursor = next
		if out.Next = next; next == "" || time.Since(began) >= within {
			return out, nil
		}
	}
}

// undoPage restores the tags of some audit entries, repository by repository.
func (p *Pruner) undoPage(ctx context.Context, run uuid.UUID, namespace int64, entries []audit.Entry, out *Undone) error {
	byRepository := make(map[int64][]audit.Entry)
	var order []int64
	for _, e := range entries {
		if byRepository[e.RepositoryID] == nil {
			order = append(order, e.RepositoryID)
		}
		byRepository[e.RepositoryID] = append(byRepository[e.RepositoryID], e)
	}
	slices.Sort(order)
	for _, id := range order {
		if err := p.undoRepository(ctx, run, namespace, byRepository[id], out); err != nil {
			return err
		}
	}
	return nil
}

func (p *Pruner) undoRepository(ctx context.Context, run uuid.UUID, namespace int64, entries []audit.Entry, out *Undone) error {
	// The repository may have got another name since, and a newer repository its old name. It may be
	// in another namespace by now, in which the client has shown no right.
	target, err := p.catalog.RepositoryByID(ctx, entries[0].RepositoryID)
	if oci.CodeOf(err) == oci.NameUnknown {
		return p.undoDeleted(ctx, entries, out)
	}
	if err == nil && target.NamespaceID != namespace {
		out.lose(entries)
		return nil
	}
	if err != nil {
		return err
	}
	tags, details, err := prunedTags(entries)
	if err != nil {
		return err
	}
	var done []catalog.RestoredTag
	err = p.catalog.ChangeTags(ctx, target, func(ctx context.Context, tx pgx.Tx) (err error) {
		if done, err = catalog.RestoreTags(ctx, tx, target, tags); err != nil {
			return fmt.Errorf("restoring tags of %s: %w", target.Path, err)
		}
		return p.restored(ctx, tx, run, target, done, tags, details)
	})
	if oci.CodeOf(err) == oci.NameUnknown {
		return p.undoDeleted(ctx, entries, out)
	}
	if err != nil {
		return err
	}
	byName := make(map[string]audit.Entry, len(entries))
	for _, e := range entries {
		byName[e.Tag] = e
	}
	for _, d := range done {
		switch {
		case d.Gone:
			out.lose([]audit.Entry{byName[d.Name]})
		case d.Exists:
			out.Exists++
		default:
			out.Restored++
		}
	}
	out.Exists += int64(len(entries) - len(done)) // the run deleted the name twice: the newer tag is restored
	return nil
}

// undoDeleted counts the tags of a repository that is in the trash, or was deleted for good.
func (p *Pruner) undoDeleted(ctx context.Context, entries []audit.Entry, out *Undone) error {
	path, err := p.catalog.InTrash(ctx, entries[0].RepositoryID)
	switch {
	case err != nil:
		return err
	case path == "" || namespaceOf(path) != namespaceOf(entries[0].Repository):
		out.lose(entries)
		return nil
	}
	out.InTrash += int64(len(entries))
	if len(out.TrashNames) < maxGoneTags && !slices.Contains(out.TrashNames, path) {
		out.TrashNames = append(out.TrashNames, path)
	}
	return nil
}

func namespaceOf(path string) string {
	namespace, _, _ := strings.Cut(path, "/")
	return namespace
}

func (u *Undone) lose(entries []audit.Entry) {
	u.Gone += int64(len(entries))
	for _, e := range entries {
		if len(u.GoneTags) < maxGoneTags {
			u.GoneTags = append(u.GoneTags, fmt.Sprintf("%s:%s@%s", e.Repository, e.Tag, e.Digest))
		}
	}
}

// prunedTags returns the deleted tags that the audit entries describe, newest entry first,
// and the details of these entries by tag name. If several entries are about the same name,
// it uses only the newest.
func prunedTags(entries []audit.Entry) (tags []catalog.DeletedTag, details map[string]prunedDetail, err error) {
	details = make(map[string]prunedDetail, len(entries))
	for _, e := range entries {
		if _, twice := details[e.Tag]; twice {
			continue
		}
		var d prunedDetail
		raw, _ := e.Detail.(json.RawMessage)
		if err := json.Unmarshal(raw, &d); err != nil {
			return nil, nil, fmt.Errorf("entry %d of the audit log: %w", e.ID, err)
		}
		details[e.Tag] = d
		t := catalog.DeletedTag{Name: e.Tag, Digest: e.Digest, Created: d.Created}
		if d.Updated != nil {
			t.Updated = *d.Updated
		}
		if d.Expires != nil {
			t.Expires = *d.Expires
		}
		tags = append(tags, t)
	}
	return tags, details, nil
}

// restored exempts the restored tags from the policies that deleted them, writes audit
// entries for them, and adds their number to the run's row. It uses the transaction that
// restores the tags.
func (p *Pruner) restored(ctx context.Context, tx pgx.Tx, run uuid.UUID, target catalog.Repository, done []catalog.RestoredTag,
	tags []catalog.DeletedTag, details map[string]prunedDetail,
) error {
	digests := make(map[string]oci.Digest, len(tags))
	for _, t := range tags {
		digests[t.Name] = t.Digest
	}
	var ids []int64
	var policies []string
	var entries []audit.Entry
	for _, d := range done {
		if d.ID == 0 {
			continue
		}
		for _, policy := range details[d.Name].Policies {
			ids, policies = append(ids, d.ID), append(policies, policy)
		}
		entries = append(entries, audit.Entry{
			Kind: audit.RevertTag, Repository: target.Path, RepositoryID: target.ID, Tag: d.Name, Digest: digests[d.Name], Run: run,
		})
	}
	if len(entries) == 0 {
		return nil
	}
	// An exemption names the current version of the policy, so it also applies if the
	// policy was saved between the run and the undo. What a request to free deleted, or a policy
	// that is gone, is exempt from freeing.
	_, err := tx.Exec(ctx, `
		INSERT INTO autopruneexemptions (repository_id, tag_id, policy, version)
		SELECT DISTINCT $1::bigint, w.id, COALESCE(p.uuid, $4), COALESCE(p.version, 0)
		FROM unnest($2::bigint[], $3::text[]) AS w (id, policy)
		LEFT JOIN (SELECT uuid, version FROM namespaceautoprunepolicy WHERE uuid = ANY ($3)
			UNION ALL SELECT uuid, version FROM repositoryautoprunepolicy WHERE uuid = ANY ($3)
			UNION ALL SELECT uuid, version FROM defaultautoprunepolicy WHERE uuid = ANY ($3)) p ON p.uuid = w.policy
		ON CONFLICT DO NOTHING`, target.ID, ids, policies, judge.FreeName)
	if err != nil {
		return fmt.Errorf("exempting restored tags: %w", err)
	}
	if _, err := tx.Exec(ctx, "UPDATE autopruneruns SET restored = restored + $2 WHERE id = $1", run, len(entries)); err != nil {
		return fmt.Errorf("recording an undo: %w", err)
	}
	return audit.Append(ctx, tx, entries...)
}
