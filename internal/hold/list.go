package hold

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
)

// Reporter is a reporter and the state of its lease.
type Reporter struct {
	Namespace string     `json:"namespace,omitempty" doc:"Where its holds are in force. Absent: in the whole registry"`
	Name      string     `json:"reporter"`
	Kind      string     `json:"kind,omitempty" doc:"Such as kubernetes"`
	State     string     `json:"state" enum:"live,silent,ended" doc:"silent: no report came for half of the lease; ended: its holds have ended"`
	Digests   int64      `json:"digests"`
	Revision  int64      `json:"revision"`
	Lease     float64    `json:"lease_seconds"`
	Owner     string     `json:"owner,omitempty" doc:"The account that the reporter belongs to. Absent: the account is deleted, or there was no access control when the reporter was made"`
	Account   string     `json:"account,omitempty" doc:"Who sent the last report"`
	Created   time.Time  `json:"created_at"`
	Reported  time.Time  `json:"reported_at"`
	Expires   time.Time  `json:"expires_at"`
	SilentAt  *time.Time `json:"silent_told_at,omitempty" doc:"When it was told that the reporter is silent"`
	Cluster   string     `json:"cluster,omitempty" doc:"What it reports of: of a cluster, the UID of the namespace kube-system. Reports of another one are refused"`
	// Unresolved are the images of the last whole list for which there was no digest.
	Unresolved      int64    `json:"unresolved,omitempty" doc:"How many images of its last whole list could not be resolved, so that only what it held of them before is held"`
	UnresolvedFirst []string `json:"unresolved_first,omitempty" nullable:"false" doc:"The first 20 of them, with the reasons"`
}

// States of a reporter.
const (
	Live   = "live"
	Silent = "silent"
	Ended  = "ended"
)

func scanReporter(c pgx.CollectableRow) (r Reporter, err error) {
	err = c.Scan(&r.Namespace, &r.Name, &r.Kind, &r.State, &r.Digests, &r.Revision, &r.Lease, &r.Owner, &r.Account, &r.Created, &r.Reported, &r.Expires, &r.SilentAt, &r.Cluster, &r.Unresolved, &r.UnresolvedFirst)
	return r, err
}

// MaxPage is how many reporters or digests one page lists at most. It lists fewer if they are long, see
// db.Page.
const MaxPage = 1000

// List lists up to n reporters of a namespace, or of the whole registry if namespace is "", by
// name, after the name `after`. `all` lists those of every namespace instead, in no pages. Error:
// NAME_UNKNOWN.
func (h *Holds) List(ctx context.Context, namespace, after string, n int) (list []Reporter, next string, err error) {
	n = page(n)
	id, err := Place{Namespace: namespace}.namespace(ctx, h.db.Pool, false)
	if err != nil {
		return nil, "", err
	}
	rows, err := h.db.Pool.Query(ctx, `
		SELECT COALESCE(n.name, ''), r.name, r.kind,
			CASE WHEN r.expires_at <= now() THEN 'ended' WHEN r.reported_at + r.lease / 2 <= now() THEN 'silent' ELSE 'live' END,
			r.digests, r.revision, extract(epoch FROM r.lease)::float8, COALESCE((SELECT a.name FROM accounts a WHERE a.id = r.owner_id), ''), COALESCE(r.account, ''), r.created_at, r.reported_at, r.expires_at, r.silent_told_at,
			COALESCE(r.cluster, ''), r.unresolved, r.unresolved_first
		FROM holdreporters r LEFT JOIN live_namespaces n ON n.id = r.namespace_id
		WHERE r.namespace_id IS NOT DISTINCT FROM $1 AND r.name > $2 ORDER BY r.name LIMIT $3`, id, after, n+1)
	list, more, err := db.Page(rows, err, n, scanReporter)
	if err != nil {
		return nil, "", fmt.Errorf("listing reporters: %w", err)
	}
	if more {
		next = list[len(list)-1].Name
	}
	return list, next, nil
}

func page(n int) int {
	if n <= 0 {
		n = 100
	}
	return min(n, MaxPage)
}

// Get returns a reporter. Error: NAME_UNKNOWN.
func (h *Holds) Get(ctx context.Context, p Place) (Reporter, error) {
	_, r, err := h.get(ctx, p)
	return r, err
}

func (h *Holds) get(ctx context.Context, p Place) (id int64, r Reporter, err error) {
	namespace, err := p.namespace(ctx, h.db.Pool, false)
	if err != nil {
		return 0, r, err
	}
	err = h.db.Pool.QueryRow(ctx, `
		SELECT r.id, COALESCE(n.name, ''), r.name, r.kind,
			CASE WHEN r.expires_at <= now() THEN 'ended' WHEN r.reported_at + r.lease / 2 <= now() THEN 'silent' ELSE 'live' END,
			r.digests, r.revision, extract(epoch FROM r.lease)::float8, COALESCE((SELECT a.name FROM accounts a WHERE a.id = r.owner_id), ''), COALESCE(r.account, ''), r.created_at, r.reported_at, r.expires_at, r.silent_told_at,
			COALESCE(r.cluster, ''), r.unresolved, r.unresolved_first
		FROM holdreporters r LEFT JOIN live_namespaces n ON n.id = r.namespace_id
		WHERE r.namespace_id IS NOT DISTINCT FROM $1 AND r.name = $2`, namespace, p.Reporter).
		Scan(&id, &r.Namespace, &r.Name, &r.Kind, &r.State, &r.Digests, &r.Revision, &r.Lease, &r.Owner, &r.Account, &r.Created, &r.Reported, &r.Expires, &r.SilentAt, &r.Cluster, &r.Unresolved, &r.UnresolvedFirst)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, r, p.unknown()
	}
	if err != nil {
		return 0, r, fmt.Errorf("looking for reporter %s: %w", p, err)
	}
	return id, r, nil
}

// Held is a digest that a reporter holds.
type Held struct {
	Digest oci.Digest `json:"digest"`
	UsedBy string     `json:"used_by,omitempty"`
	Names  []string   `json:"names,omitempty" doc:"Names of images by which the reporter found it, up to 5"`
	Since  time.Time  `json:"since"`
	Ends   *time.Time `json:"ends_at,omitempty" doc:"When this hold ends: the reporter has left it out. Absent: when the lease ends"`
}

// Digests lists up to n digests of a reporter, in the order of their bytes, after `after`, which
// is zero for the first page. Error: NAME_UNKNOWN.
func (h *Holds) Digests(ctx context.Context, p Place, after oci.Digest, n int) (list []Held, next oci.Digest, err error) {
	n = page(n)
	id, _, err := h.get(ctx, p)
	if err != nil {
		return nil, next, err
	}
	last := []byte{}
	if !after.IsZero() {
		last = after.Bytes()
	}
	rows, err := h.db.Pool.Query(ctx, `
		SELECT h.digest, h.used_by, array_remove(h.names[1:5], $4), h.since, h.ends_at + r.postponed
		FROM (SELECT id, postponed FROM holdreporters WHERE id = $1) r JOIN holds h ON h.reporter_id = r.id
		WHERE h.reporter_id = $1 AND h.digest > $2 AND (h.ends_at IS NULL OR h.ends_at + r.postponed > now()) ORDER BY h.digest LIMIT $3`, id, last, n+1, AnyName)
	list, more, err := db.Page(rows, err, n, func(c pgx.CollectableRow) (v Held, err error) {
		var raw []byte
		if err := c.Scan(&raw, &v.UsedBy, &v.Names, &v.Since, &v.Ends); err != nil {
			return v, err
		}
		v.Digest, err = oci.DigestFromBytes(raw)
		return v, err
	})
	if err != nil {
		return nil, next, fmt.Errorf("listing the digests of %s: %w", p, err)
	}
	if more {
		next = list[len(list)-1].Digest
	}
	return list, next, nil
}

// Delete deletes a reporter with its holds. It is short, however many holds there are: the
// watcher deletes their rows later, and nothing looks at them before. Error: NAME_UNKNOWN.
func (h *Holds) Delete(ctx context.Context, p Place) error {
	err := h.db.Tx(ctx, func(tx pgx.Tx) error {
		namespace, err := p.namespace(ctx, tx, false)
		if err != nil {
			return err
		}
		var digests int64
		err = tx.QueryRow(ctx, `
			DELETE FROM holdreporters WHERE namespace_id IS NOT DISTINCT FROM $1 AND name = $2 RETURNING digests`, namespace, p.Reporter).Scan(&digests)
		if errors.Is(err, pgx.ErrNoRows) {
			return p.unknown()
		}
		if err != nil {
			return err
		}
		return audit.Append(ctx, tx, audit.Entry{Kind: audit.DeleteHoldReporter, Namespace: p.Namespace,
			Detail: map[string]any{"reporter": p.Reporter, "digests": digests}})
	})
	if _, told := errors.AsType[*oci.Error](err); err != nil && !told {
		err = fmt.Errorf("deleting reporter %s: %w", p, err)
	}
	return err
}

// OfDigest returns who holds exactly this digest in a namespace, or in the whole registry if
// namespace is "".
func (h *Holds) OfDigest(ctx context.Context, namespace string, d oci.Digest) ([]Holder, error) {
	id, err := Place{Namespace: namespace}.namespace(ctx, h.db.Pool, false)
	if err != nil {
		return nil, err
	}
	rows, err := h.db.Pool.Query(ctx, `
		SELECT reporter, used_by, digest, expires_at FROM live_holds
		WHERE digest = $1 AND ($2::bigint IS NULL OR namespace_id IS NULL OR namespace_id = $2) ORDER BY reporter LIMIT $3`, d.Bytes(), id, MaxPage)
	return collect(rows, err, "digest "+d.String())
}

// OfManifest returns who holds a manifest of a repository or a relative of it. The list is empty
// if the repository doesn't have the manifest.
func (h *Holds) OfManifest(ctx context.Context, namespace, repository int64, d oci.Digest) ([]Holder, error) {
	var id int64
	err := h.db.Pool.QueryRow(ctx, "SELECT id FROM manifests WHERE top_level_namespace_id = $1 AND repository_id = $2 AND digest = $3",
		namespace, repository, d.Bytes()).Scan(&id)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("looking for manifest %s: %w", d, err)
	}
	found, err := Of(ctx, h.db.Pool, namespace, repository, []int64{id})
	return found[id], err
}

// Repository lists up to n holds of a repository's manifests, in the order of digests, after the
// digest `after`, and of each digest up to maxHolders. A page has all these of its last digest,
// and so may be longer than n.
func (h *Holds) Repository(ctx context.Context, namespace, repository int64, after oci.Digest, n int) (list []Holder, next oci.Digest, err error) {
	n = page(n)
	last := []byte{}
	if !after.IsZero() {
		last = after.Bytes()
	}
	rows, err := h.db.Pool.Query(ctx, `
		SELECT h.reporter, h.used_by, h.digest, h.expires_at FROM (
			SELECT digest FROM manifests
			WHERE top_level_namespace_id = $1 AND repository_id = $2 AND digest > $3 AND purser_any_holds($1) ORDER BY digest OFFSET 0) m
		CROSS JOIN LATERAL (
			SELECT r.name AS reporter, o.used_by, o.digest, LEAST(r.expires_at, o.ends_at + r.postponed) AS expires_at
			FROM (SELECT reporter_id, digest, used_by, ends_at FROM holds WHERE digest = m.digest OFFSET 0) o
			CROSS JOIN LATERAL (
				SELECT name, expires_at, postponed FROM holdreporters
				WHERE id = o.reporter_id AND expires_at > now() AND (namespace_id IS NULL OR namespace_id = $1)
					AND (o.ends_at IS NULL OR o.ends_at + postponed > now()) OFFSET 0) r
			ORDER BY r.name LIMIT $5) h
		ORDER BY h.digest, h.reporter LIMIT $4`, namespace, repository, last, n+maxHolders+1, maxHolders)
	list, more, err := db.Page(rows, err, n+maxHolders, scanHolder)
	if err != nil {
		return nil, next, fmt.Errorf("looking for holds in repository %d: %w", repository, err)
	}
	for i := n; i < len(list); i++ {
		if list[i].Digest != list[i-1].Digest {
			return list[:i], list[i-1].Digest, nil
		}
	}
	if more { // long rows have ended it, maybe within a digest, whose holders take less than a page
		for i := len(list) - 1; i > 0; i-- {
			if list[i].Digest != list[i-1].Digest {
				return list[:i], list[i-1].Digest, nil
			}
		}
	}
	return list, next, nil
}
