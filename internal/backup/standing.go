package backup

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/db"
)

// retired is for how long after the newest backup of all a place still counts into which no more
// backups are written.
const retired = 30 * 24 * time.Hour

// Standing is what a registry's database knows of its backups in one place.
type Standing struct {
	Place    string
	Backup   string    // ID of the newest complete one
	Snapshot time.Time // the moment whose state it has
	// Verified is when the newest backup of that time was last read and found whole. A verification
	// that doesn't read the copies of blobs leaves it as it is. Zero: never.
	Verified time.Time
	// Problem is what is missing or damaged, as far as anybody has looked. Empty: nothing.
	Problem string
}

// Standings returns what the database knows of backups, the newest first. It leaves out places that
// have got no backup for 30 days while others have.
func Standings(ctx context.Context, q db.Querier) ([]Standing, error) {
	rows, err := q.Query(ctx, `
		SELECT place, backup, snapshot_at, COALESCE(verified_at, 'epoch'), problem FROM backups
		WHERE snapshot_at > least(now(), (SELECT max(snapshot_at) FROM backups)) - $1::interval
		ORDER BY snapshot_at DESC, place LIMIT 100`, retired)
	if err != nil {
		return nil, fmt.Errorf("reading what is known of backups: %w", err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (s Standing, err error) {
		err = row.Scan(&s.Place, &s.Backup, &s.Snapshot, &s.Verified, &s.Problem)
		if s.Verified.Unix() == 0 {
			s.Verified = time.Time{}
		}
		return s, err
	})
	if err != nil {
		return nil, fmt.Errorf("reading what is known of backups: %w", err)
	}
	return list, nil
}

// damagedOnce is the problem of a place in which a reading of all copies has found damage, and whose backups
// were away since. What the reading has said is lost, and the damage may be there still.
const damagedOnce = "copies of objects were missing or damaged when all of them were last read"

// noted is a backup that is known to be complete, or what a verification has found of it.
type noted struct {
	place   string
	backup  *Manifest
	problem string // "": nothing
	// all says that all copies of objects were read, or made. A problem that a reading of all copies has
	// found stays otherwise.
	all      bool
	deep     bool // a reading of all copies has found the problem
	verified bool // all that the backup has was read, and is whole
	own      bool // note it only in the database of the backup's registry
}

// store notes n unless the database knows a newer backup in the place. A backup of the future, from when
// the database's clock was wrong, doesn't count as newer. The text of an absence gives way to that of the
// damage that was known before.
func (n noted) store(ctx context.Context, q db.Querier) (stored bool, err error) {
	tag, err := q.Exec(ctx, `
		INSERT INTO backups AS b (place, backup, snapshot_at, problem, problem_deep, verified_at)
		SELECT @place, @backup, @snapshot, @problem, @deep::boolean, CASE WHEN @verified::boolean THEN now() END
		WHERE NOT @own::boolean OR EXISTS (SELECT FROM store_identity WHERE id = @registry::uuid)
		ON CONFLICT (place) DO UPDATE SET
			backup = EXCLUDED.backup, snapshot_at = EXCLUDED.snapshot_at,
			verified_at = COALESCE(EXCLUDED.verified_at, b.verified_at),
			problem = CASE WHEN EXCLUDED.problem <> '' OR @all::boolean OR NOT b.problem_deep THEN EXCLUDED.problem
				WHEN starts_with(b.problem, @absent::text) THEN @damaged::text ELSE b.problem END,
			problem_deep = EXCLUDED.problem_deep OR b.problem_deep AND NOT @all::boolean
		WHERE b.snapshot_at <= EXCLUDED.snapshot_at OR b.snapshot_at > now()`, db.Args{
		"place": n.place, "backup": n.backup.ID, "snapshot": n.backup.Snapshot, "problem": n.problem, "deep": n.deep, "verified": n.verified,
		"own": n.own, "registry": n.backup.Store, "all": n.all, "absent": ErrNotThere.Error(), "damaged": damagedOnce})
	return err == nil && tag.RowsAffected() > 0, err
}

// Record notes in the registry's database that there is a complete backup at a place, unless it knows a
// newer one there. `deep` says that the backup has read all copies of objects that were there already. One
// that has copied all objects, as in a new place, needn't have done so.
func Record(ctx context.Context, q db.Querier, place string, m *Manifest, deep bool) error {
	problem := ""
	if n := m.Blobs.Missing; n > 0 {
		problem = fmt.Sprintf("it lacks %d of %d objects, which the store has lost", n, m.Blobs.Count)
	}
	anew := m.Blobs.Which == Copy && m.Blobs.Copied+m.Blobs.Missing == m.Blobs.Count
	_, err := noted{place: place, backup: m, problem: problem, deep: deep && problem != "", all: deep || anew}.store(ctx, q)
	if err == nil {
		_, err = q.Exec(ctx, "DELETE FROM backups WHERE snapshot_at < $1::timestamptz - interval '1 year'", m.Snapshot)
	}
	if err != nil {
		return fmt.Errorf("noting the backup in the database: %w", err)
	}
	return nil
}

// ErrNotRecorded says that a verification wasn't noted, since the database is of another registry or
// knows a newer backup at the place.
var ErrNotRecorded = errors.New("the configured database is of another registry, or knows a newer backup at this place")

// ErrNotThere says that a place doesn't have the backup which the registry's database knows there.
var ErrNotThere = errors.New("the newest backup isn't there")

// Recorded returns the ID of the newest complete backup that a registry's database knows at a place, or ""
// if it knows none.
func Recorded(ctx context.Context, q db.Querier, place string) (id string, err error) {
	there, err := db.Exists(ctx, q, "backups")
	if err != nil || !there {
		return "", err
	}
	if err := q.QueryRow(ctx, "SELECT COALESCE((SELECT backup FROM backups WHERE place = $1), '')", place).Scan(&id); err != nil {
		return "", fmt.Errorf("reading what is known of the backups in %s: %w", place, err)
	}
	return id, nil
}

// RequireThere returns ErrNotThere unless a target has the backup `id`, which a registry's database knows
// there, or a newer complete one: a restored database knows backups that may have been deleted since.
// Otherwise it may be the empty directory in which a volume isn't mounted.
func RequireThere(ctx context.Context, t Target, id string) error {
	r, err := t.Open(ctx, backupsDir+id+"/"+manifestName)
	if err == nil {
		return r.Close()
	}
	if !errors.Is(err, blob.ErrNotFound) {
		return err
	}
	for f, err := range t.Files(ctx, backupsDir) {
		if err != nil {
			return err
		}
		other, name, _ := strings.Cut(strings.TrimPrefix(f.Key, backupsDir), "/")
		if _, err := time.Parse(idLayout, other); err == nil && name == manifestName && other > id {
			return nil
		}
	}
	return fmt.Errorf("%w: the registry's database knows backup %s in %s, which has neither this backup nor a newer one. Is its volume mounted? "+
		"If the backups there are lost, \"purser backup --new-place\" begins anew there", ErrNotThere, id, t.Place())
}

// RecordProblem notes in the registry's database that the backup `id`, the newest one that it knows at a
// place, can't be read or isn't there. It returns ErrNotRecorded if the newest one is another.
func RecordProblem(ctx context.Context, q db.Querier, place, id string, found error) error {
	// A problem that a reading of all copies has found stays until somebody reads them again. But nobody can
	// read, or copy again, what isn't there: that comes first, and noted.store brings the problem back.
	tag, err := q.Exec(ctx, `
		UPDATE backups SET problem = CASE WHEN problem_deep AND NOT $4::boolean AND NOT starts_with(problem, $5::text) THEN problem ELSE $3::text END
		WHERE place = $1 AND backup = $2`, place, id, found.Error(), errors.Is(found, ErrNotThere), ErrNotThere.Error())
	if err != nil {
		return fmt.Errorf("noting what is wrong with the backup: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return ErrNotRecorded
	}
	return nil
}

// RecordVerification notes in the registry's database what Verify has returned for a backup at a place.
// The time of the verification counts only if all bytes that the backup has were read, since damage isn't
// seen otherwise: with Deep, or if the backup has no copies of blobs. RecordVerification returns ErrNotRecorded if the backup isn't the newest one of this registry there.
func RecordVerification(ctx context.Context, q db.Querier, place string, m *Manifest, v Verification, found error) error {
	problem := ""
	switch {
	case errors.Is(found, ErrDamaged):
		problem = found.Error()
	case found != nil:
		return nil // nobody knows
	case v.Missing > 0:
		problem = fmt.Sprintf("%d of %d objects are missing or damaged", v.Missing, v.Objects)
	}
	whole := problem == ""
	stored, err := noted{place: place, backup: m, problem: problem, all: v.Deep, deep: v.Deep && !whole,
		verified: whole && (v.Deep || m.Blobs.Which != Copy), own: true}.store(ctx, q)
	if err != nil {
		return fmt.Errorf("noting the verification in the database: %w", err)
	}
	if !stored {
		return ErrNotRecorded
	}
	return nil
}
