package hold

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
)

// Item is a digest that a reporter holds.
type Item struct {
	Digest oci.Digest `json:"digest"`
	UsedBy string     `json:"used_by,omitempty"` // for people; at most 256 bytes
	// Names are the names, such as a tag's, by which the reporter found the digest: see Unresolved.
	// AnyName stands for more names than there may be.
	Names []string `json:"names,omitempty"`
}

// AnyName is a name of an item that stands for all names.
const AnyName = "*"

// Unresolved is an image in use for which the reporter found no digest, since the registry refused
// to tell or has no such image. What the reporter held under this name stays held.
type Unresolved struct {
	Name   string `json:"name"`
	UsedBy string `json:"used_by,omitempty"` // for people
	Reason string `json:"reason,omitempty"`  // for people
}

// Report is what a reporter runs: the whole list, or the difference to its last report.
type Report struct {
	Kind  string        // of the reporter, for people; "": as before
	Lease time.Duration // 0: as before, DefaultLease for a new reporter
	// Full says that Items is the whole list, so all other digests are dropped. Otherwise
	// Items are added and Remove are dropped.
	Full   bool
	Items  []Item
	Remove []oci.Digest
	// Unresolved are the images of the whole list, or of the difference, that have no item.
	Unresolved []Unresolved
	// Base is the revision to which a difference refers. Nil: any.
	Base *int64
	// Cluster is what the report is of, such as the UID of a cluster, so that two clusters don't
	// end each other's holds under one name. "": the report doesn't say.
	Cluster string
	// ReplaceCluster says that the reporter is now of Cluster, whatever it was of before.
	ReplaceCluster bool
	// AllowEmpty says that a whole list may be empty although the reporter holds something.
	AllowEmpty bool
	By         By
}

// Reported is the outcome of a report.
type Reported struct {
	Reporter string `json:"reporter"`
	Revision int64  `json:"revision" doc:"Rises with each report that changes something: the base of a difference"`
	Digests  int64  `json:"digests" doc:"Digests that the reporter holds now"`
	Added    int64  `json:"added"`
	Removed  int64  `json:"removed"`
	// Ending is how many digests the reporter has left out without the right to end their holds.
	Ending int64 `json:"ending,omitempty" doc:"Digests that the reporter lists no more and that stay held until the lease ends that they had: the account may not delete in the namespace"`
	// Kept is how many digests are held because a name of theirs is unresolved.
	Kept       int64     `json:"kept,omitempty" doc:"Digests of an earlier report that this one lacks and that stay held, since an image under whose name they were held could not be resolved"`
	Unresolved int64     `json:"unresolved,omitempty" doc:"Images of the report that could not be resolved"`
	Expires    time.Time `json:"expires_at" doc:"When the holds end, unless the reporter reports again"`
	// Missing is how many of the digests the registry doesn't have where the holds are in
	// force; nil if that couldn't be told in time.
	Missing        *int64       `json:"missing,omitempty" doc:"How many of these digests no manifest has yet, or any more. Absent if that could not be told in time"`
	MissingDigests []oci.Digest `json:"missing_digests,omitempty" doc:"The first hundred of these"`
}

// Report takes a report: see the protocol in the package comment. Errors: NAME_UNKNOWN for an
// unknown namespace; DENIED for a reporter of another account, unless r.By may end holds;
// UNSUPPORTED with the status 400 for an invalid field, 409 for a base that isn't the reporter's
// revision, for a report of another cluster or an empty list that nobody allows, or if there are too
// many reporters, 413 for too many digests or too long names; UNAVAILABLE if deletions
// hold the lock for too long; a limit.FullError if the lease of ctx (limit.WithLease) gets no memory.
func (h *Holds) Report(ctx context.Context, p Place, r Report) (Reported, error) {
	began := time.Now()
	items, err := h.check(p, r)
	if err != nil {
		return Reported{}, err
	}
	r.Items = items
	// Only the first report of an account and of a namespace takes memory. It takes no place before it has
	// that: others wait for the places.
	next, err := h.lines.Wait(ctx, sharers(p, r.By)...)
	if err != nil {
		return Reported{}, err
	}
	defer next()
	if err := h.reserve(ctx, p, r); err != nil {
		return Reported{}, err
	}
	ended, err := h.reports.Wait(ctx)
	if err != nil {
		return Reported{}, err
	}
	defer ended()
	var out Reported
	var namespace *int64
	var all []Item
	err = h.db.Tx(ctx, func(tx pgx.Tx) (err error) {
		t := reporting{h: h, tx: tx, place: p, report: r}
		err = t.run(ctx)
		out, namespace, all = t.out, t.namespace, t.all
		return err
	})
	switch {
	case db.Code(err) == db.CodeLockNotAvailable:
		return Reported{}, oci.Errorf(oci.Unavailable, "deletions that are under way took longer than %s: nothing of the report was stored; send it again", h.opt.Patience).
			WithCause(err)
	case err != nil:
		if _, told := errors.AsType[*oci.Error](err); !told {
			err = fmt.Errorf("storing the report of %s: %w", p, err)
		}
		return Reported{}, err
	}
	out.Missing, out.MissingDigests = h.missing(ctx, namespace, all)
	h.metrics.reports.Observe(time.Since(began).Seconds())
	return out, nil
}

// sharers returns whose share of the places a report takes: one account's reports, and those of
// all accounts to one namespace, wait for each other, so that others find a place. Reports for
// the whole registry have no namespace that they share.
func sharers(p Place, by By) (list []string) {
	if by.ID != 0 {
		list = append(list, fmt.Sprint("account ", by.ID))
	}
	if p.Namespace != "" {
		list = append(list, "namespace "+p.Namespace)
	}
	return list
}

// check returns the items of a report without duplicates, in the order of their digests.
func (h *Holds) check(p Place, r Report) ([]Item, error) {
	if err := p.check(); err != nil {
		return nil, err
	}
	switch {
	case r.Lease != 0 && (r.Lease < MinLease || r.Lease > h.opt.MaxLease):
		return nil, invalid("lease", "%s is not between %s and %s", r.Lease, MinLease, h.opt.MaxLease)
	case len(r.Kind) > maxKind || strings.ContainsRune(r.Kind, 0) || !utf8.ValidString(r.Kind):
		return nil, invalid("kind", "it is longer than %d bytes, or no text", maxKind)
	case len(r.Cluster) > maxUsedBy || strings.ContainsRune(r.Cluster, 0) || !utf8.ValidString(r.Cluster):
		return nil, invalid("cluster", "it is longer than %d bytes, or no text", maxUsedBy)
	case len(r.Items) > h.opt.MaxDigests:
		return nil, h.tooMany(len(r.Items))
	case len(r.Unresolved) > h.opt.MaxDigests:
		return nil, h.tooMany(len(r.Unresolved))
	}
	for i := range r.Unresolved {
		if err := checkName(r.Unresolved[i].Name); err != nil {
			return nil, invalid("unresolved", "item %d: %v", i+1, err)
		}
	}
	items := slices.Clone(r.Items)
	for i := range items {
		t := &items[i]
		if t.Digest.IsZero() {
			return nil, invalid("digests", "item %d has no digest", i+1)
		}
		t.UsedBy = strings.ToValidUTF8(strings.ReplaceAll(t.UsedBy, "\x00", ""), "")
		if len(t.UsedBy) > maxUsedBy {
			t.UsedBy = strings.ToValidUTF8(t.UsedBy[:maxUsedBy], "")
		}
		var err error
		if t.Names, err = checkNames(t.Names); err != nil {
			return nil, invalid("digests", "item %d: %v", i+1, err)
		}
	}
	slices.SortStableFunc(items, func(a, b Item) int { return bytes.Compare(a.Digest.Bytes(), b.Digest.Bytes()) })
	return compact(items), nil
}

func (h *Holds) tooMany(n int) error {
	return oci.Errorf(oci.Unsupported, "%d digests are more than %d, which a reporter may hold: split them between several reporters", n, h.opt.MaxDigests).
		WithStatus(http.StatusRequestEntityTooLarge).WithDetail(map[string]int{"most": h.opt.MaxDigests})
}

// reporting is the transaction of a report.
type reporting struct {
	h         *Holds
	tx        pgx.Tx
	place     Place
	report    Report
	namespace *int64
	id        int64
	owner     *int64
	cluster   string // what the reporter is of; "": no report has said
	revision  int64
	expires   time.Time // when the holds end without this report
	postponed time.Duration
	now       time.Time // by the database's clock
	untrusted bool      // nobody trusts that clock now, so nothing has ended by it
	all       []Item    // what the reporter lists after the report, without the names that stay as they are
	out       Reported
}

// reportBatch is how many rows one statement of a report changes.
const reportBatch = 10_000

func (t *reporting) run(ctx context.Context) error {
	_, err := t.tx.Exec(ctx, "SELECT set_config('lock_timeout', $1, true)", fmt.Sprintf("%dms", t.h.opt.Patience.Milliseconds()))
	if err != nil {
		return err
	}
	if t.namespace, err = t.place.namespace(ctx, t.tx, true); err != nil {
		return err
	}
	if err := t.lock(ctx); err != nil {
		return err
	}
	if t.report.Base != nil && *t.report.Base != t.revision {
		return oci.Errorf(oci.Unsupported, "the report is a difference to revision %d, but the reporter has revision %d: send the whole list",
			*t.report.Base, t.revision).WithStatus(http.StatusConflict).WithDetail(map[string]int64{"revision": t.revision})
	}
	if err := t.sameCluster(); err != nil {
		return err
	}
	changes, err := t.diff(ctx)
	if err != nil {
		return err
	}
	if err := t.notEmptied(changes); err != nil {
		return err
	}
	if n := len(t.all); n > t.h.opt.MaxDigests {
		return t.h.tooMany(n)
	}
	if changes.ending > t.h.opt.MaxDigests {
		return t.h.tooManyEnding(changes.ending, t.expires)
	}
	if err := t.write(ctx, changes); err != nil {
		return err
	}
	if err := t.checkNames(ctx, changes); err != nil {
		return err
	}
	t.out.Reporter, t.out.Digests = t.place.Reporter, int64(len(t.all))
	t.out.Added, t.out.Removed = int64(changes.added), int64(changes.removed)
	t.out.Ending, t.out.Kept, t.out.Unresolved = int64(changes.ending), int64(changes.kept), int64(len(t.report.Unresolved))
	if err := t.renew(ctx, changes); err != nil {
		return err
	}
	if _, err := t.tx.Exec(ctx, "SELECT pg_advisory_xact_lock(1886745447, 0)"); err != nil {
		return err
	}
	if !changes.any() {
		return nil
	}
	return audit.Append(ctx, t.tx, audit.Entry{Kind: audit.ReportHolds, Namespace: t.place.Namespace, Detail: map[string]any{
		"reporter": t.place.Reporter, "revision": t.out.Revision, "digests": t.out.Digests, "added": t.out.Added, "removed": t.out.Removed,
		"ending": t.out.Ending, "kept": t.out.Kept, "unresolved": t.out.Unresolved,
	}})
}

// changes are what a report changes.
type changes struct {
	write   []Item // added, or with another UsedBy or other names
	grown   int    // by so many bytes the names of these are longer than before
	added   int
	removed int
	kept    int      // left out, and held since a name of theirs is unresolved
	end     [][]byte // left out
	ending  int      // these, and those that earlier reports left out and that have not ended
	remove  [][]byte // removed, or ended already
}

func (c *changes) any() bool { return len(c.write)+c.removed+len(c.end) > 0 }

// stored is a hold as it is before the report, without its names: see meet.
type stored struct {
	digest oci.Digest
	usedBy string
	ends   *time.Time // nil: with the lease
	item   *Item      // of the report; nil: it lists the digest not
	// meet sets these.
	renamed bool // the names of item aren't those that are stored
	kept    bool // a stored name is unresolved
}

// diff compares the report with the reporter's holds. It sets t.all.
func (t *reporting) diff(ctx context.Context) (c changes, err error) {
	before, err := t.stored(ctx)
	if err != nil {
		return c, err
	}
	known := make(map[oci.Digest]*stored, len(before))
	for i := range before {
		known[before[i].digest] = &before[i]
	}
	t.all = slices.Clone(t.report.Items)
	for i := range t.all {
		if s := known[t.all[i].Digest]; s != nil {
			s.item = &t.all[i]
		}
	}
	if c.grown, err = t.meet(ctx, known); err != nil {
		return c, err
	}
	for _, item := range t.all {
		s := known[item.Digest]
		if s == nil || s.ends != nil {
			c.added++
			c.grown += bytesOf(item.Names)
		}
		if s == nil || s.ends != nil || s.usedBy != item.UsedBy || s.renamed {
			c.write = append(c.write, item)
		}
	}
	drop := make(map[oci.Digest]bool, len(t.report.Remove))
	for _, d := range t.report.Remove {
		drop[d] = true
	}
	for _, s := range before {
		switch {
		case s.item != nil:
		case s.kept:
			c.kept++
			t.all = append(t.all, Item{Digest: s.digest, UsedBy: s.usedBy})
		default:
			t.leave(&c, s, t.report.Full || drop[s.digest])
		}
	}
	return c, nil
}

// stored returns the reporter's holds.
func (t *reporting) stored(ctx context.Context) ([]stored, error) {
	rows, err := t.tx.Query(ctx, "SELECT digest, used_by, ends_at + $2::interval FROM holds WHERE reporter_id = $1 ORDER BY digest", t.id, t.postponed)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (s stored, err error) {
		var raw []byte
		if err := row.Scan(&raw, &s.usedBy, &s.ends); err != nil {
			return s, err
		}
		s.digest, err = oci.DigestFromBytes(raw)
		return s, err
	})
}

// write changes the reporter's holds.
func (t *reporting) write(ctx context.Context, c changes) error {
	for items := range slices.Chunk(c.write, reportBatch) {
		digests, used, names := make([][]byte, len(items)), make([]string, len(items)), make([]string, len(items))
		for i, item := range items {
			digests[i], used[i], names[i] = item.Digest.Bytes(), item.UsedBy, strings.Join(item.Names, "\n")
		}
		// PostgreSQL has no arrays of arrays of different lengths, so names come as lines.
		_, err := t.tx.Exec(ctx, `
			INSERT INTO holds (digest, reporter_id, used_by, names)
			SELECT d, $1, u, string_to_array(n, E'\n') FROM unnest($2::bytea[], $3::text[], $4::text[]) AS w (d, u, n)
			ON CONFLICT (digest, reporter_id) DO UPDATE SET used_by = EXCLUDED.used_by, names = EXCLUDED.names, ends_at = NULL`, t.id, digests, used, names)
		if err != nil {
			return err
		}
	}
	for digests := range slices.Chunk(c.end, reportBatch) {
		// Its names would mean nothing any more, see meet.
		_, err := t.tx.Exec(ctx, `
			UPDATE holds h SET ends_at = $3::timestamptz - $4::interval, names = '{}' FROM unnest($2::bytea[]) AS w (d) WHERE h.digest = w.d AND h.reporter_id = $1`, t.id, digests, t.expires, t.postponed)
		if err != nil {
			return err
		}
	}
	for digests := range slices.Chunk(c.remove, reportBatch) {
		_, err := t.tx.Exec(ctx, `
			DELETE FROM holds h USING unnest($2::bytea[]) AS w (d) WHERE h.digest = w.d AND h.reporter_id = $1`, t.id, digests)
		if err != nil {
			return err
		}
	}
	return nil
}

// renew renews the lease in the reporter's row, from the last trusted time on if the clock is behind: it
// would otherwise be over when the clock is right again. A shorter lease would end holds, so it shortens
// only that of an account that may, and only if the report leaves nothing out.
func (t *reporting) renew(ctx context.Context, c changes) error {
	var lease *time.Duration
	if t.report.Lease != 0 {
		lease = &t.report.Lease
	}
	err := t.tx.QueryRow(ctx, `
		UPDATE holdreporters SET kind = COALESCE(NULLIF(@kind::text, ''), kind), lease = COALESCE(@lease::interval, lease),
			revision = revision + CASE WHEN @changed::boolean THEN 1 ELSE 0 END, digests = @digests, account = NULLIF(@account::text, ''),
			owner_id = @owner, cluster = COALESCE(NULLIF(@cluster::text, ''), cluster), reported_at = clock_timestamp(),
			expires_at = GREATEST(GREATEST(clock_timestamp(), purser_time()) + COALESCE(@lease::interval, lease), CASE WHEN NOT @shorter::boolean THEN expires_at END),
			silent_told_at = NULL, ended_told_at = NULL,
			unresolved = CASE WHEN @full::boolean THEN @unresolved ELSE unresolved END,
			unresolved_first = CASE WHEN @full::boolean THEN @first::text[] ELSE unresolved_first END
		WHERE id = @id RETURNING revision, expires_at`, db.Args{
		"id": t.id, "kind": t.report.Kind, "lease": lease, "changed": c.any(), "digests": len(t.all) + c.ending, "account": t.report.By.Name,
		"owner": t.owner, "cluster": t.report.Cluster, "shorter": t.report.By.MayEnd && c.ending == 0,
		"full": t.report.Full, "unresolved": len(t.report.Unresolved), "first": firstUnresolved(t.report.Unresolved),
	}).Scan(&t.out.Revision, &t.out.Expires)
	t.out.Expires = t.out.Expires.UTC()
	return err
}

// missingTime limits how long the search for missing digests takes.
const missingTime = time.Second

// missing returns how many of the items no manifest has where the holds are in force, and the
// first of them; nil if it can't tell in time. It reads all digests of the namespace's
// manifests by an index and joins them by a hash of the items: there is no index on digests
// alone, and one would make each push slower.
func (h *Holds) missing(ctx context.Context, namespace *int64, items []Item) (n *int64, first []oci.Digest) {
	digests := make([][]byte, len(items))
	for i, item := range items {
		digests[i] = item.Digest.Bytes()
	}
	ctx, cancel := context.WithTimeout(ctx, 2*missingTime)
	defer cancel()
	present := make(map[oci.Digest]bool)
	o := pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadOnly}
	err := pgx.BeginTxFunc(ctx, h.db.Pool, o, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
			SELECT set_config('statement_timeout', $1, true), set_config('enable_nestloop', 'off', true), set_config('work_mem', '32MB', true)`,
			fmt.Sprintf("%dms", missingTime.Milliseconds()))
		if err != nil {
			return err
		}
		rows, err := tx.Query(ctx, `
			SELECT DISTINCT m.digest FROM manifests m
			JOIN live_repositories r ON r.id = m.repository_id AND r.top_level_namespace_id = m.top_level_namespace_id
			WHERE m.digest IN (SELECT d FROM unnest($1::bytea[]) AS w (d))
				AND ($2::bigint IS NULL OR m.top_level_namespace_id = $2)`, digests, namespace)
		if err != nil {
			return err
		}
		var raw []byte
		_, err = pgx.ForEachRow(rows, []any{&raw}, func() error {
			d, err := oci.DigestFromBytes(raw)
			present[d] = true
			return err
		})
		return err
	})
	if err != nil {
		h.log.InfoContext(ctx, "could not tell which held digests are missing", "error", err)
		return nil, nil
	}
	n = new(int64)
	for _, item := range items {
		if present[item.Digest] {
			continue
		}
		if *n++; *n <= MaxMissing {
			first = append(first, item.Digest)
		}
	}
	return n, first
}
