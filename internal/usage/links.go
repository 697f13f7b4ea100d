package usage

import (
	"bytes"
	"context"
	"math"
	"time"

	"github.com/jackc/pgx/v5"
)

// link is a link from a repository to a blob. Live says that neither the repository nor its namespace
// was deleted.
type link struct {
	Digest                []byte
	Namespace, Repository int64
	Size                  int64
	Live                  bool
}

// open is what is known of the blob whose links are read: it may have more links than a slice.
type open struct {
	Size int64 `json:"size"`
	// Namespaces and Repositories count those that aren't deleted, up to 2: of the blob the former, of the
	// namespace that is read the latter. One is the last of each.
	Namespaces    int   `json:"namespaces"`
	OneNamespace  int64 `json:"one_namespace"`
	Repositories  int   `json:"repositories"`
	OneRepository int64 `json:"one_repository"`
}

type sum struct {
	namespace         int64 // of a repository
	blobs, bytes, own int64
}

// sums is what a slice adds.
type sums struct {
	repositories, namespaces map[int64]*sum
	trash                    int64
}

func newSums() *sums {
	return &sums{repositories: make(map[int64]*sum), namespaces: make(map[int64]*sum)}
}

func of(list map[int64]*sum, id, namespace int64) *sum {
	s := list[id]
	if s == nil {
		s = &sum{namespace: namespace}
		list[id] = s
	}
	return s
}

// plus adds sizes up to the largest number.
func plus(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// add adds the next link in the order of digest, namespace and repository.
func (s *sums) add(at *position, l link) {
	if !bytes.Equal(at.Digest, l.Digest) {
		s.closeBlob(at)
		at.Open = open{Size: l.Size}
	} else if at.Namespace != l.Namespace {
		s.closeNamespace(at)
	}
	at.Digest, at.Namespace, at.Repository = l.Digest, l.Namespace, l.Repository
	if !l.Live {
		return
	}
	o := &at.Open
	if o.Repositories == 0 {
		n := of(s.namespaces, l.Namespace, 0)
		n.blobs, n.bytes = n.blobs+1, plus(n.bytes, o.Size)
		o.Namespaces, o.OneNamespace = min(o.Namespaces+1, 2), l.Namespace
	}
	r := of(s.repositories, l.Repository, l.Namespace)
	r.blobs, r.bytes = r.blobs+1, plus(r.bytes, o.Size)
	o.Repositories, o.OneRepository = min(o.Repositories+1, 2), l.Repository
}

// closeNamespace ends the blob's links from one namespace.
func (s *sums) closeNamespace(at *position) {
	if at.Open.Repositories == 1 {
		r := of(s.repositories, at.Open.OneRepository, at.Namespace)
		r.own = plus(r.own, at.Open.Size)
	}
	at.Open.Repositories = 0
}

// closeBlob ends the blob's links.
func (s *sums) closeBlob(at *position) {
	if len(at.Digest) == 0 {
		return
	}
	s.closeNamespace(at)
	switch at.Open.Namespaces {
	case 0:
		s.trash = plus(s.trash, at.Open.Size)
	case 1:
		n := of(s.namespaces, at.Open.OneNamespace, 0)
		n.own = plus(n.own, at.Open.Size)
	}
}

// kept are the sums of the slices that were read since the position was stored: of those between the
// positions `from` and `at` of a pass.
type kept struct {
	pass     int64
	from, at position
	sums     *sums // nil: none
	slices   int
	worked   time.Duration
}

// resume returns what is kept, which is nothing if it doesn't begin at the position that is stored.
func (m *Meter) resume(s state) *kept {
	if k := &m.kept; k.sums == nil || k.pass != s.pass || !k.from.equal(s.at) {
		*k = kept{pass: s.pass, from: s.at, at: s.at, sums: newSums()}
	}
	return &m.kept
}

func (p position) equal(other position) bool {
	return bytes.Equal(p.Digest, other.Digest) && p.Namespace == other.Namespace && p.Repository == other.Repository && p.Open == other.Open
}

// full says that what is kept is to be stored.
func (k *kept) full(slices int) bool {
	return k.slices >= slices || len(k.sums.repositories)+len(k.sums.namespaces) >= keptSums
}

// links reads a slice of links. OFFSET 0 makes PostgreSQL look rows up by an index: see "Plans" in
// package db.
func (m *Meter) links(ctx context.Context, tx pgx.Tx, s state) error {
	k, began := m.resume(s), time.Now()
	after := k.at.Digest
	if after == nil {
		after = []byte{}
	}
	rows, err := tx.Query(ctx, `
		SELECT l.blob_digest, l.top_level_namespace_id, l.repository_id, b.size, r.id IS NOT NULL
		FROM (
			SELECT blob_digest, top_level_namespace_id, repository_id FROM repository_blobs
			WHERE (blob_digest, top_level_namespace_id, repository_id) > ($1, $2, $3)
			ORDER BY blob_digest, top_level_namespace_id, repository_id LIMIT $4) l
		CROSS JOIN LATERAL (SELECT size FROM blobs WHERE digest = l.blob_digest OFFSET 0) b
		LEFT JOIN LATERAL (SELECT id FROM live_repositories WHERE id = l.repository_id OFFSET 0) r ON true
		ORDER BY 1, 2, 3`, after, k.at.Namespace, k.at.Repository, m.opt.Slice)
	if err != nil {
		return err
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[link])
	if err != nil {
		return err
	}
	phase := "links"
	for _, l := range list {
		k.sums.add(&k.at, l)
	}
	k.slices++
	if len(list) < m.opt.Slice {
		k.sums.closeBlob(&k.at)
		phase, k.at = "blobs", position{}
	}
	k.worked += time.Since(began)
	if phase == "links" && !k.full(m.opt.Kept) {
		_, err := tx.Exec(ctx, "UPDATE usage_state SET owner = $1, owner_until = now() + $2::interval", m.id, owned)
		return err
	}
	stored := *k
	m.kept = kept{} // whether or not the transaction ends well
	if err := stored.sums.store(ctx, tx, s.pass); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, "UPDATE usage_state SET worked = worked + $1, owner = $2, owner_until = now() + $3::interval",
		stored.worked-time.Since(began), m.id, owned); err != nil {
		return err // move adds the time of this transaction
	}
	return move(ctx, tx, phase, stored.at)
}

// columns returns the sums as columns.
func columns(list map[int64]*sum) (ids, namespaces, blobs, bytes, own []int64) {
	for id, s := range list {
		ids, namespaces = append(ids, id), append(namespaces, s.namespace)
		blobs, bytes, own = append(blobs, s.blobs), append(bytes, s.bytes), append(own, s.own)
	}
	return ids, namespaces, blobs, bytes, own
}

// store adds the sums to those of the pass.
func (s *sums) store(ctx context.Context, tx pgx.Tx, pass int64) error {
	b := new(pgx.Batch)
	ids, namespaces, blobs, size, own := columns(s.repositories)
	b.Queue(`
		INSERT INTO usage_repositories AS u (pass, repository_id, namespace_id, blobs, bytes, own_bytes)
		SELECT $1, * FROM unnest($2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[])
		ON CONFLICT (pass, repository_id) DO UPDATE SET blobs = u.blobs + EXCLUDED.blobs,
			bytes = LEAST(u.bytes::numeric + EXCLUDED.bytes, 9223372036854775807)::bigint,
			own_bytes = LEAST(u.own_bytes::numeric + EXCLUDED.own_bytes, 9223372036854775807)::bigint`,
		pass, ids, namespaces, blobs, size, own)
	ids, _, blobs, size, own = columns(s.namespaces)
	b.Queue(`
		INSERT INTO usage_namespaces AS u (pass, namespace_id, blobs, bytes, own_bytes)
		SELECT $1, * FROM unnest($2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[])
		ON CONFLICT (pass, namespace_id) DO UPDATE SET blobs = u.blobs + EXCLUDED.blobs,
			bytes = LEAST(u.bytes::numeric + EXCLUDED.bytes, 9223372036854775807)::bigint,
			own_bytes = LEAST(u.own_bytes::numeric + EXCLUDED.own_bytes, 9223372036854775807)::bigint`,
		pass, ids, blobs, size, own)
	b.Queue("UPDATE usage_registry SET trash_bytes = LEAST(trash_bytes::numeric + $2, 9223372036854775807)::bigint WHERE pass = $1", pass, s.trash)
	return tx.SendBatch(ctx, b).Close()
}

// blobs reads a slice of blobs, and adds up all of them, and those without a link.
func (m *Meter) blobs(ctx context.Context, tx pgx.Tx, s state) error {
	after := s.at.Digest
	if after == nil {
		after = []byte{}
	}
	var read int
	var last []byte
	err := tx.QueryRow(ctx, `
		WITH slice AS MATERIALIZED (
			SELECT digest, size FROM blobs WHERE digest > $1 ORDER BY digest LIMIT $2
		), alone AS MATERIALIZED (
			SELECT size FROM slice
			WHERE NOT EXISTS (SELECT FROM repository_blobs WHERE blob_digest = slice.digest OFFSET 0)
		), added AS (
			UPDATE usage_registry SET blobs = blobs + (SELECT count(*) FROM slice),
				bytes = LEAST(bytes + (SELECT COALESCE(sum(size), 0) FROM slice), 9223372036854775807)::bigint,
				unreferenced_bytes = LEAST(unreferenced_bytes + (SELECT COALESCE(sum(size), 0) FROM alone), 9223372036854775807)::bigint
			WHERE pass = $3
		)
		SELECT count(*), (SELECT digest FROM slice ORDER BY digest DESC LIMIT 1) FROM slice`, after, m.opt.Slice, s.pass).Scan(&read, &last)
	if err != nil {
		return err
	}
	if read < m.opt.Slice {
		return move(ctx, tx, "days", position{})
	}
	return move(ctx, tx, "blobs", position{Digest: last})
}
