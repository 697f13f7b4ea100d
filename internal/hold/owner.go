package hold

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
)

// A reporter belongs to the account that has made it. Only this account, and those that may
// delete in the namespace, report under its name. For what a report says about a reporter's
// digests decides what may be deleted: whoever could report for somebody else's cluster could end
// its holds by an empty list.
//
// If a report leaves a digest out, the digest's hold isn't renewed, and ends when the lease ends that
// it had (the column ends_at of holds): a list may lack something by mistake, or be older than one that came before it, if a
// watcher and a job report for one cluster. Ending a hold before its time is a deletion's first half,
// so it needs the same right, and somebody has to say it: by a difference that removes the digest, or
// by deleting the reporter. A shorter lease of an account without this right doesn't end holds earlier
// either.

// By is who sends a report. Its zero value is nobody, who may end no holds.
type By struct {
	ID     int64  // of the account; 0: the registry has no access control
	Name   string // of the account
	MayEnd bool   // whether it may delete where the holds are in force
}

func (b By) id() *int64 {
	if b.ID == 0 {
		return nil
	}
	return &b.ID
}

// Places that reporters take in a namespace, or as reporters of the whole registry.
const (
	// maxReporters is how many places an account may take by default.
	maxReporters = 100
	// fullReporters is how many times as many places there are as one account may take, before an
	// account that has taken its share of them gets no more.
	fullReporters = 10
	// ownShare is that share: so many places an account gets whatever the others have taken.
	ownShare = 10
	// maxHolders is how many reporters a list names for one digest.
	maxHolders = 200
)

// lock locks the reporter's row, and makes it if there is none.
func (t *reporting) lock(ctx context.Context) error {
	found, err := t.find(ctx)
	if err != nil {
		return err
	}
	if !found {
		if err := t.make(ctx); err != nil {
			return err
		}
		if found, err = t.find(ctx); err != nil {
			return err
		}
		if !found {
			return db.ErrLostRace // it was deleted meanwhile
		}
	}
	return t.own(ctx)
}

// find locks the reporter's row and reads it.
func (t *reporting) find(ctx context.Context) (bool, error) {
	err := t.tx.QueryRow(ctx, `
		SELECT id, revision, owner_id, COALESCE(cluster, ''), expires_at, postponed, clock_timestamp(),
			COALESCE((SELECT doubt IS NOT NULL OR clock_timestamp() - trusted_at > interval '1 minute' FROM clock), false)
		FROM holdreporters
		WHERE namespace_id IS NOT DISTINCT FROM $1 AND name = $2 FOR UPDATE`, t.namespace, t.place.Reporter).
		Scan(&t.id, &t.revision, &t.owner, &t.cluster, &t.expires, &t.postponed, &t.now, &t.untrusted)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

// make makes the reporter's row, if its account has a place left. The advisory lock lets those
// that make reporters in one namespace count each other's. Nobody waits for it who has locked a
// reporter's row.
func (t *reporting) make(ctx context.Context) error {
	_, err := t.tx.Exec(ctx, "SELECT pg_advisory_xact_lock(1886745448, hashint8(COALESCE($1::bigint, 0)))", t.namespace)
	if err != nil {
		return err
	}
	most := int64(t.h.opt.MostReporters)
	var mine, all int64
	err = t.tx.QueryRow(ctx, `
		SELECT count(*) FILTER (WHERE owner_id IS NOT DISTINCT FROM $2), count(*) FROM holdreporters
		WHERE namespace_id IS NOT DISTINCT FROM $1 AND name <> $3`, t.namespace, t.report.By.id(), t.place.Reporter).Scan(&mine, &all)
	switch {
	case err != nil:
		return err
	case mine >= most:
		return oci.Errorf(oci.Unsupported, "%s", oci.LimitText("the account", int(most), "reporters there", "limits.reporters", "delete one first, or report by another account")).
			WithStatus(http.StatusConflict)
	case all >= fullReporters*most && mine >= ownShare:
		return oci.Errorf(oci.Unsupported, "there are %d reporters already, %d of them yours: delete one first", all, mine).
			WithStatus(http.StatusConflict)
	}
	_, err = t.tx.Exec(ctx, `
		INSERT INTO holdreporters (namespace_id, name, lease, expires_at, owner_id) VALUES ($1, $2, $3, now(), $4)
		ON CONFLICT (namespace_id, name) DO NOTHING`, t.namespace, t.place.Reporter, DefaultLease, t.report.By.id())
	return err
}

// own returns an error unless the account may report under the reporter's name. A reporter whose
// account is gone, or that was made without access control, becomes that of the next account which
// may.
func (t *reporting) own(ctx context.Context) error {
	by := t.report.By
	mine := t.owner != nil && *t.owner == by.ID
	if !mine && !by.MayEnd {
		return oci.Errorf(oci.Denied, "the reporter %s belongs to another account: report under another name, or as one that may delete there", t.place).
			WithDetail(map[string]string{"reporter": t.place.Reporter})
	}
	if mine || by.ID == 0 {
		return nil
	}
	var gone bool
	err := t.tx.QueryRow(ctx, "SELECT NOT EXISTS (SELECT FROM accounts WHERE id = $1)", t.owner).Scan(&gone)
	if err == nil && gone {
		t.owner = by.id()
	}
	return err
}

// leave decides what becomes of a hold that the report doesn't list. dropped says that the report
// drops it; a difference leaves others as they are.
func (t *reporting) leave(c *changes, s stored, dropped bool) {
	removed := dropped && !t.report.Full && t.report.By.MayEnd // somebody says it
	switch {
	case s.ends != nil && t.over(*s.ends):
		c.remove = append(c.remove, s.digest.Bytes())
	case removed, dropped && t.over(t.expires):
		c.remove = append(c.remove, s.digest.Bytes())
		c.removed++
	case s.ends != nil:
		c.ending++
	case dropped:
		c.end = append(c.end, s.digest.Bytes())
		c.ending++
	default:
		t.all = append(t.all, Item{Digest: s.digest, UsedBy: s.usedBy})
	}
}

// over says whether a time has passed. By a clock that nobody trusts it hasn't: package clock may
// postpone it.
func (t *reporting) over(at time.Time) bool { return !t.untrusted && !at.After(t.now) }

// sameCluster returns an error if the reporter is of another cluster than the report, or of one while
// the report doesn't say of which it is.
func (t *reporting) sameCluster() error {
	if t.cluster == "" || t.cluster == t.report.Cluster || t.report.ReplaceCluster {
		return nil
	}
	of := "says of no cluster"
	if t.report.Cluster != "" {
		of = "is of the cluster " + t.report.Cluster
	}
	return oci.Errorf(oci.Unsupported, "the reporter %s is of the cluster %s, and this report %s: report under another name, or, if the other cluster is gone, with replace_cluster (--replace-cluster)",
		t.place, t.cluster, of).WithStatus(http.StatusConflict).WithDetail(map[string]string{"cluster": t.cluster})
}

// notEmptied returns an error if a whole list is empty and ends all that the reporter holds, unless
// the report allows that. The list of a cluster is more often empty by mistake than because nothing
// runs any more.
func (t *reporting) notEmptied(c changes) error {
	if !t.report.Full || t.report.AllowEmpty || len(t.all) > 0 || len(c.end)+c.removed == 0 || t.over(t.expires) {
		return nil
	}
	return oci.Errorf(oci.Unsupported, "the list is empty, and the reporter %s holds %d digests: if nothing runs any more, report with allow_empty (--allow-empty)",
		t.place, len(c.end)+c.removed).WithStatus(http.StatusConflict)
}

// tooManyEnding is the error if more digests were left out than a reporter may hold. Otherwise a
// report a minute, each of other digests, would hold any number of them.
func (h *Holds) tooManyEnding(n int, expires time.Time) error {
	return oci.Errorf(oci.Unsupported, "%d digests that the reporter has left out are still held, of which there may be %d: the last of them until %s, unless an account that may delete removes them by a difference",
		n, h.opt.MaxDigests, expires.UTC().Format(time.RFC3339)).
		WithStatus(http.StatusRequestEntityTooLarge).WithDetail(map[string]int{"most": h.opt.MaxDigests})
}
