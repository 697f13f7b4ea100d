package snapshot

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/hold"
)

// Garbage collection also deletes manifests that no tag needs already, such as those that were
// pushed by digest or whose tags were moved. They keep no blob for longer than the manifests of
// deleted tags do. So a blob is freed if all its references are of manifests that go, or of
// manifests that no tag needs anyway. What only the latter use isn't freed by a run.

// Bounds of how many references are read to find out whether a blob is freed.
const (
	firstReferences = 4       // of each blob at first; then eight times as many
	maxReferences   = 500_000 // in total; a blob of which not all were read counts as used
)

// sharedBlobs are blobs that have references of other manifests than those that go.
type sharedBlobs struct {
	tx    pgx.Tx
	gone  map[int64]bool // the manifests that go
	needs map[int64]*needed
	read  int // number of references
}

// needed is a manifest that uses a shared blob, or that keeps such a manifest. Its `need` says
// whether a tag needs it, as far as that is known.
type needed struct {
	namespace, repository, id int64
	need                      bool
	asked                     bool // for holds
	keepers                   []int64
}

// blobReferences is how far the references to a blob of one kind, as a layer or as a
// configuration, were read.
type blobReferences struct {
	digest []byte
	layer  bool
	before int64 // the next reference is before this layer's or manifest's id
	using  []int64
	done   bool
}

// freed returns the bytes of those of the given blobs that only manifests use that go, or that no
// tag needs. It reads few references of a blob at first, from the newest on, since one of a
// manifest that stays is enough.
func (s *sharedBlobs) freed(ctx context.Context, digests [][]byte) (bytes int64, err error) {
	var waiting bool
	if err := s.tx.QueryRow(ctx, "SELECT EXISTS (SELECT FROM gc_manifest_review_queue)").Scan(&waiting); err != nil || !waiting {
		return 0, err // a manifest that no tag needs is in the queue, or something above it
	}
	open := make([]*blobReferences, 0, 2*len(digests))
	stays := make(map[string]bool, len(digests))
	for _, d := range digests {
		open = append(open, &blobReferences{digest: d, layer: true, before: 1<<63 - 1}, &blobReferences{digest: d, before: 1<<63 - 1})
	}
	for n := firstReferences; len(open) > 0; n *= 8 {
		if s.read > maxReferences {
			for _, r := range open {
				stays[string(r.digest)] = true
			}
			break
		}
		if err := s.references(ctx, open, n); err != nil {
			return 0, err
		}
		if err := s.judge(ctx, open); err != nil {
			return 0, err
		}
		for _, r := range open {
			if slices.ContainsFunc(r.using, func(id int64) bool { return s.needs[id].need }) {
				stays[string(r.digest)] = true
			}
		}
		open = slices.DeleteFunc(open, func(r *blobReferences) bool { return r.done || stays[string(r.digest)] })
	}
	free := slices.DeleteFunc(slices.Clone(digests), func(d []byte) bool { return stays[string(d)] })
	return sizeOf(ctx, s.tx, free)
}

// references reads the next n references to each of the blobs. Section "Plans" of package db says
// why the queries have OFFSET 0.
func (s *sharedBlobs) references(ctx context.Context, open []*blobReferences, n int) error {
	for _, layers := range []bool{true, false} {
		var list []*blobReferences
		var digests [][]byte
		var before []int64
		for _, r := range open {
			if r.layer == layers {
				r.using = nil
				list, digests, before = append(list, r), append(digests, r.digest), append(before, r.before)
			}
		}
		if len(list) == 0 {
			continue
		}
		sql := `
			SELECT w.place - 1, g.top_level_namespace_id, g.repository_id, g.manifest_id, g.manifest_id
			FROM unnest($1::bytea[], $2::bigint[]) WITH ORDINALITY AS w (digest, before, place)
			CROSS JOIN LATERAL (
				SELECT * FROM gc_blobs_configurations WHERE digest = w.digest AND manifest_id < w.before ORDER BY manifest_id DESC LIMIT $3) g`
		if layers {
			sql = `
			SELECT w.place - 1, g.top_level_namespace_id, g.repository_id, l.manifest_id, g.layer_id
			FROM unnest($1::bytea[], $2::bigint[]) WITH ORDINALITY AS w (digest, before, place)
			CROSS JOIN LATERAL (
				SELECT * FROM gc_blobs_layers WHERE digest = w.digest AND layer_id < w.before ORDER BY layer_id DESC LIMIT $3) g
			CROSS JOIN LATERAL (
				SELECT manifest_id FROM layers
				WHERE top_level_namespace_id = g.top_level_namespace_id AND repository_id = g.repository_id AND id BETWEEN g.layer_id AND g.layer_id
				ORDER BY id LIMIT 1) l`
		}
		rows, err := s.tx.Query(ctx, sql, digests, before, n)
		if err != nil {
			return fmt.Errorf("looking what else uses blobs: %w", err)
		}
		found := make([]int, len(list))
		var place int
		var m needed
		var position int64
		_, err = pgx.ForEachRow(rows, []any{&place, &m.namespace, &m.repository, &m.id, &position}, func() error {
			s.read++
			found[place]++
			r := list[place]
			if r.before = min(r.before, position); s.gone[m.id] {
				return nil
			}
			r.using = append(r.using, m.id)
			if s.needs[m.id] == nil {
				s.needs[m.id] = &needed{namespace: m.namespace, repository: m.repository, id: m.id}
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("looking what else uses blobs: %w", err)
		}
		for i, r := range list {
			r.done = found[i] < n
		}
	}
	return nil
}

// judge finds out of the manifests that use the blobs whether a tag needs them: their own, or one of
// an index or subject above them. A hold needs a manifest too, and so does the trash.
func (s *sharedBlobs) judge(ctx context.Context, open []*blobReferences) error {
	asked := make(map[int64]*needed)
	for _, r := range open {
		for _, id := range r.using {
			if m := s.needs[id]; m.keepers == nil {
				asked[id] = m
			}
		}
	}
	for len(asked) > 0 {
		next := make(map[int64]*needed)
		for part := range slices.Chunk(slices.Collect(maps.Values(asked)), 10_000) {
			if err := s.keepers(ctx, part, next); err != nil {
				return err
			}
		}
		asked = next
	}
	s.spread()
	unneeded := make(map[[2]int64][]int64)
	for _, r := range open {
		for _, id := range r.using {
			if m := s.needs[id]; !m.need && !m.asked {
				at := [2]int64{m.namespace, m.repository}
				m.asked, unneeded[at] = true, append(unneeded[at], id)
			}
		}
	}
	for at, ids := range unneeded {
		held, err := hold.Of(ctx, s.tx, at[0], at[1], ids)
		if err != nil {
			return err
		}
		for id := range held {
			s.needs[id].need = true
		}
	}
	return nil
}

// keepers reads what keeps the given manifests, and adds to `next` the keepers that weren't asked
// before. More than a hundred indexes above a manifest aren't looked through: then it counts as
// needed.
func (s *sharedBlobs) keepers(ctx context.Context, list []*needed, next map[int64]*needed) error {
	var namespaces, repositories, ids []int64
	for _, m := range list {
		namespaces, repositories, ids = append(namespaces, m.namespace), append(repositories, m.repository), append(ids, m.id)
	}
	rows, err := s.tx.Query(ctx, `
		SELECT w.place - 1,
			EXISTS (SELECT FROM tags WHERE manifest_id = w.id AND repository_id = w.repository_id AND top_level_namespace_id = w.namespace_id OFFSET 0)
				OR NOT EXISTS (SELECT FROM live_repositories r WHERE r.id = w.repository_id AND r.top_level_namespace_id = w.namespace_id OFFSET 0),
			ARRAY(SELECT parent_id FROM manifest_references
				WHERE child_id = w.id AND repository_id = w.repository_id AND top_level_namespace_id = w.namespace_id LIMIT 101)
			|| ARRAY(SELECT subject.id FROM (
					SELECT subject_digest FROM manifests
					WHERE top_level_namespace_id = w.namespace_id AND repository_id = w.repository_id AND id BETWEEN w.id AND w.id
						AND subject_digest IS NOT NULL ORDER BY id LIMIT 1) m
				CROSS JOIN LATERAL (
					SELECT id FROM manifests
					WHERE top_level_namespace_id = w.namespace_id AND repository_id = w.repository_id AND digest BETWEEN m.subject_digest AND m.subject_digest
					ORDER BY digest LIMIT 1) subject)
		FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) WITH ORDINALITY AS w (namespace_id, repository_id, id, place)`,
		namespaces, repositories, ids)
	if err != nil {
		return fmt.Errorf("looking what keeps manifests: %w", err)
	}
	var place int
	var tagged bool
	var above []int64
	_, err = pgx.ForEachRow(rows, []any{&place, &tagged, &above}, func() error {
		m := list[place]
		m.need, m.keepers = tagged || len(above) > 100, slices.Clone(above)
		if m.keepers == nil {
			m.keepers = []int64{}
		}
		if m.need {
			return nil
		}
		for _, id := range above {
			if s.needs[id] == nil && !s.gone[id] {
				s.needs[id] = &needed{namespace: m.namespace, repository: m.repository, id: id}
				next[id] = s.needs[id]
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("looking what keeps manifests: %w", err)
	}
	return nil
}

// spread gives the need of manifests to those that they keep.
func (s *sharedBlobs) spread() {
	kept := make(map[int64][]int64)
	var needed []int64
	for id, m := range s.needs {
		for _, above := range m.keepers {
			kept[above] = append(kept[above], id)
		}
		if m.need {
			needed = append(needed, id)
		}
	}
	for len(needed) > 0 {
		id := needed[len(needed)-1]
		needed = needed[:len(needed)-1]
		for _, below := range kept[id] {
			if m := s.needs[below]; !m.need {
				m.need = true
				needed = append(needed, below)
			}
		}
	}
}
