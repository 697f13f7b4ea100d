package forecast

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/autoprune/snapshot"
	"github.com/purser-registry/purser/internal/db"
)

// storedLevel says of a manifest that a tag of now needs how long it would have stayed. `day`
// is the index of the day since which it would be gone; the number of days if it would still be
// stored. `setting` is at how many of the settings, the last first, it would be stored.
type storedLevel struct{ day, setting int32 }

// raise gives a manifest at least a level. It returns whether this changes the manifest's.
func (h *history) raise(manifest int64, level storedLevel) bool {
	old, known := h.levels[manifest]
	level.day, level.setting = max(level.day, old.day), max(level.setting, old.setting)
	h.levels[manifest] = level
	return !known || level != old
}

// spread gives the levels of manifests to what they keep: an index to the manifests that it
// lists, a subject to its referrers.
func (h *history) spread(ctx context.Context) error {
	kept := make(map[int64][]int64)
	asked := make(map[int64]bool, len(h.levels))
	var frontier []int64
	for id := range h.levels {
		frontier, asked[id] = append(frontier, id), true
	}
	for len(frontier) > 0 {
		slices.Sort(frontier)
		if err := h.f.alive(ctx); err != nil {
			return err
		}
		links, err := h.s.Below(ctx, frontier)
		if err != nil {
			return err
		}
		frontier = frontier[:0]
		for _, l := range links {
			kept[l.Keeper] = append(kept[l.Keeper], l.Kept)
			if !asked[l.Kept] {
				frontier, asked[l.Kept] = append(frontier, l.Kept), true
			}
		}
	}
	changed := make([]int64, 0, len(kept))
	for id := range kept {
		if _, known := h.levels[id]; known {
			changed = append(changed, id)
		}
	}
	for len(changed) > 0 {
		id := changed[len(changed)-1]
		changed = changed[:len(changed)-1]
		for _, below := range kept[id] {
			if h.raise(below, h.levels[id]) {
				changed = append(changed, below)
			}
		}
	}
	return nil
}

// storedManifests has the levels of the manifests of all repositories, which are in one namespace.
type storedManifests struct {
	namespace               int64
	repositories, manifests []int64
	days, settings          []int32
	tooMany                 bool
}

func (m *storedManifests) add(h *history) {
	m.namespace = h.target.NamespaceID
	if m.tooMany = m.tooMany || len(m.manifests)+len(h.levels) > maxManifests; m.tooMany {
		return
	}
	for id, level := range h.levels {
		m.repositories, m.manifests = append(m.repositories, h.target.ID), append(m.manifests, id)
		m.days, m.settings = append(m.days, level.day), append(m.settings, level.setting)
	}
}

// addBytes adds the bytes of blobs to the days and the settings. A blob has the highest level of
// the manifests that need it. Without time for that, the bytes are absent.
func (f *forecasting) addBytes(ctx context.Context) error {
	if f.stored.tooMany {
		f.out.Complete = false
		f.note("there are no bytes, since the tags need more than %d manifests", maxManifests)
		return nil
	}
	var stored, freed int64
	days, settings := make([]int64, len(f.out.Days)), make([]int64, len(f.out.Settings))
	err := f.sizes(ctx, func(level storedLevel, size int64) {
		stored += size
		if int(level.day) < len(days) {
			days[level.day] += size
			freed += size
		}
		for i := len(settings) - int(level.setting); i < len(settings); i++ {
			settings[i] += size
		}
	})
	switch {
	case errors.Is(err, snapshot.ErrTimeOver), db.Code(err) == db.CodeQueryCanceled && ctx.Err() == nil:
		f.out.Complete = false
		f.note("there was no time to add up the bytes")
		return nil
	case err != nil:
		return err
	}
	f.out.Bytes, f.out.Freed = &stored, &freed
	for i := range days {
		f.out.Days[i].Freed = &days[i]
	}
	for i := range settings {
		f.out.Settings[i].Bytes = &settings[i]
	}
	return nil
}

// sizes calls `each` with the size of all blobs of a level. Section "Plans" of package db says
// why the query has OFFSET 0.
func (f *forecasting) sizes(ctx context.Context, each func(level storedLevel, size int64)) error {
	if !f.blobs.unknown {
		f.blobs.sizes(each)
		return nil
	}
	return pgx.BeginTxFunc(ctx, f.r.DB.Pool, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if err := f.limit(ctx, tx); err != nil {
			return err
		}
		if err := snapshot.HashInMemory(ctx, tx); err != nil {
			return err
		}
		// PostgreSQL doesn't know how many blobs there are, and would sort them.
		if _, err := tx.Exec(ctx, "SELECT set_config('enable_sort', 'off', true)"); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, `
			WITH stored AS MATERIALIZED (
				SELECT * FROM unnest(@repositories::bigint[], @manifests::bigint[], @days::int[], @settings::int[])
					AS s (repository_id, id, day, setting)
			), needed AS (
				SELECT l.digest, l.blob_size AS size, s.day, s.setting FROM stored s
				CROSS JOIN LATERAL (
					SELECT digest, blob_size FROM layers
					WHERE top_level_namespace_id = @namespace AND repository_id = s.repository_id AND manifest_id = s.id
					ORDER BY digest OFFSET 0) l
				UNION ALL
				SELECT m.digest, m.size, s.day, s.setting FROM stored s
				CROSS JOIN LATERAL (
					SELECT configuration_blob_digest AS digest, configuration_blob_size AS size FROM manifests
					WHERE top_level_namespace_id = @namespace AND repository_id = s.repository_id AND id BETWEEN s.id AND s.id
						AND configuration_blob_digest IS NOT NULL ORDER BY id LIMIT 1) m
			), levels AS (
				SELECT digest, max(day) AS day, max(setting) AS setting, max(size) AS size FROM needed GROUP BY digest
			)
			SELECT l.day, l.setting, LEAST(sum(COALESCE(l.size, (SELECT size FROM blobs WHERE digest = l.digest OFFSET 0))), 9223372036854775807)::bigint
			FROM levels l
			GROUP BY l.day, l.setting`, db.Args{
			"namespace": f.stored.namespace, "repositories": f.stored.repositories, "manifests": f.stored.manifests,
			"days": f.stored.days, "settings": f.stored.settings,
		})
		if err != nil {
			return fmt.Errorf("adding up the blobs of tags: %w", err)
		}
		var level storedLevel
		var size int64
		_, err = pgx.ForEachRow(rows, []any{&level.day, &level.setting, &size}, func() error {
			each(level, size)
			return nil
		})
		if err != nil {
			return fmt.Errorf("adding up the blobs of tags: %w", err)
		}
		return nil
	})
}
