package browse

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
)

// maxHolders is the maximum number of tags, and of indexes, that ManifestDetails names as
// references to the manifest.
const maxHolders = 100

// ManifestDetails describes one manifest.
type ManifestDetails struct {
	catalog.Manifest
	Repository int64 // id
	CreatedAt  time.Time
	// Size is the size in bytes of the manifest together with its configuration and layers.
	// For an index it is the size of the index, of the blobs that it lists, and of its
	// manifests; a layer that several of these manifests share counts several times.
	Size      int64
	Tags      []string      // up to 100 that point to it, by name
	TagCount  catalog.Count // counted up to 1000
	Indexes   []oci.Digest  // the first 100 that list it
	Referrers catalog.Count // manifests whose subject it is, counted up to 1000
	in        repository
}

// DescribeManifest returns the details of a manifest of a repository. Errors: NAME_UNKNOWN,
// MANIFEST_UNKNOWN. Its SQL looks rows up by a range of one id, in the order of this id: only one
// index has this order, so the planner can't choose another one that reads the whole repository.
func (b *Browser) DescribeManifest(ctx context.Context, path string, d oci.Digest) (m ManifestDetails, err error) {
	m.Digest = d
	var r repository
	var id int64
	err = b.db.Pool.QueryRow(ctx, `
		SELECT r.top_level_namespace_id, r.id, COALESCE(m.id, 0)
		FROM live_repositories r
		LEFT JOIN manifests m ON m.top_level_namespace_id = r.top_level_namespace_id
			AND m.repository_id = r.id AND m.digest = $2
		WHERE r.path = $1`, path, d.Bytes()).Scan(&r.namespace, &r.id, &id)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return m, catalog.NameUnknown(path)
	case err != nil:
		return m, fmt.Errorf("describing manifest %s of %s: %w", d, path, err)
	case id == 0:
		return m, catalog.ManifestUnknown(path, d.String())
	}
	m.Repository, m.in = r.id, r
	var tags, referrers int64
	var indexes [][]byte
	err = b.db.Pool.QueryRow(ctx, `
		SELECT m.media_type, m.payload, m.created_at, m.size,
			ARRAY(SELECT name FROM (SELECT name FROM tags
				WHERE top_level_namespace_id = $1 AND repository_id = $2 AND manifest_id BETWEEN m.id AND m.id ORDER BY manifest_id LIMIT $6) pointing
				ORDER BY name LIMIT $5),
			(SELECT count(*) FROM (SELECT FROM tags
				WHERE top_level_namespace_id = $1 AND repository_id = $2 AND manifest_id BETWEEN m.id AND m.id ORDER BY manifest_id LIMIT $6) counted),
			(SELECT count(*) FROM (SELECT FROM manifests
				WHERE top_level_namespace_id = $1 AND repository_id = $2 AND subject_digest = m.digest ORDER BY id LIMIT $6) counted),
			ARRAY(SELECT above.digest FROM (
					SELECT parent_id FROM manifest_references
					WHERE top_level_namespace_id = $1 AND repository_id = $2 AND child_id = m.id
					ORDER BY parent_id LIMIT $5) x
				CROSS JOIN LATERAL (
					SELECT digest FROM manifests
					WHERE top_level_namespace_id = $1 AND repository_id = $2 AND id BETWEEN x.parent_id AND x.parent_id ORDER BY id LIMIT 1) above)
		FROM purser_sized_manifest($1, $2, $3, $4) m`,
		r.namespace, r.id, id, oci.MaxDescriptors, maxHolders, catalog.MostCounted+1).
		Scan(&m.MediaType, &m.Payload, &m.CreatedAt, &m.Size, &m.Tags, &tags, &referrers, &indexes)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return m, catalog.ManifestUnknown(path, d.String())
	case err != nil:
		return m, fmt.Errorf("describing manifest %s of %s: %w", d, path, err)
	}
	m.CreatedAt, m.TagCount, m.Referrers = m.CreatedAt.UTC(), catalog.CountedUpTo(tags), catalog.CountedUpTo(referrers)
	for _, raw := range indexes {
		index, err := oci.DigestFromBytes(raw)
		if err != nil {
			return m, fmt.Errorf("describing manifest %s of %s: %w", d, path, err)
		}
		m.Indexes = append(m.Indexes, index)
	}
	return m, nil
}

// maxExamined is how many manifests one call of UntaggedManifests examines.
const maxExamined = 2000

// UntaggedManifest is a manifest to which no tag points.
type UntaggedManifest struct {
	TagInfo             // without a name; PushedAt is when the manifest was pushed
	Index   *oci.Digest // one of the indexes that list it, nil: none does
	Subject *oci.Digest // that it refers to, if the repository has that
}

// UntaggedManifests lists manifests of a repository to which no tag points, in the order of their
// digests, up to `limit` of those after the digest `after`. It examines maxExamined manifests, so the list may be
// short although more follow: then it returns the digest after which the next page begins, else the zero
// digest. Error: NAME_UNKNOWN. Its SQL looks rows up by a range of one value in the order of the only
// index that has this order, as that of DescribeManifest does.
func (b *Browser) UntaggedManifests(ctx context.Context, path string, after oci.Digest, limit int) (list []UntaggedManifest, next oci.Digest, err error) {
	r, err := b.lookUp(ctx, path)
	if err != nil {
		return nil, next, err
	}
	type examined struct {
		foundTag
		digest []byte
		tagged bool
	}
	from := after.Bytes()
	if from == nil {
		from = []byte{} // which is before all digests
	}
	rows, err := b.db.Pool.Query(ctx, `
		SELECT m.id, m.digest, m.created_at, (
				SELECT name FROM tags
				WHERE top_level_namespace_id = $1 AND repository_id = $2 AND manifest_id BETWEEN m.id AND m.id ORDER BY manifest_id LIMIT 1) IS NOT NULL
		FROM (
			SELECT id, digest, created_at FROM manifests
			WHERE top_level_namespace_id = $1 AND repository_id = $2 AND digest > $3 ORDER BY digest LIMIT $4) m
		ORDER BY m.digest`, r.namespace, r.id, from, maxExamined+1)
	if err != nil {
		return nil, next, fmt.Errorf("listing untagged manifests of %s: %w", path, err)
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (e examined, err error) {
		err = row.Scan(&e.manifest, &e.digest, &e.pushed, &e.tagged)
		return e, err
	})
	if err != nil {
		return nil, next, fmt.Errorf("listing untagged manifests of %s: %w", path, err)
	}
	var found []foundTag
	for i, e := range all {
		if i == maxExamined || len(found) == limit {
			if next, err = oci.DigestFromBytes(all[i-1].digest); err != nil {
				return nil, next, err
			}
			break
		}
		if !e.tagged {
			found = append(found, e.foundTag)
		}
	}
	list, err = b.untaggedInfos(ctx, r, found)
	if err != nil {
		return nil, next, fmt.Errorf("listing untagged manifests of %s: %w", path, err)
	}
	return list, next, nil
}

// untaggedInfos describes manifests, and says which index lists each, and to which subject it refers.
func (b *Browser) untaggedInfos(ctx context.Context, r repository, found []foundTag) ([]UntaggedManifest, error) {
	infos, err := b.tagInfos(ctx, r, found)
	if err != nil || len(infos) == 0 {
		return nil, err
	}
	digests, list := make([][]byte, len(infos)), make([]UntaggedManifest, len(infos))
	for i, info := range infos {
		digests[i], list[i].TagInfo = info.Digest.Bytes(), info
	}
	rows, err := b.db.Pool.Query(ctx, `
		SELECT want.nth, (
				SELECT above.digest FROM (
					SELECT parent_id FROM manifest_references
					WHERE top_level_namespace_id = $1 AND repository_id = $2 AND child_id = m.id ORDER BY parent_id LIMIT 1) x
				CROSS JOIN LATERAL (
					SELECT digest FROM manifests
					WHERE top_level_namespace_id = $1 AND repository_id = $2 AND id BETWEEN x.parent_id AND x.parent_id ORDER BY id LIMIT 1) above),
			(SELECT digest FROM manifests
				WHERE top_level_namespace_id = $1 AND repository_id = $2 AND digest = m.subject_digest)
		FROM unnest($3::bytea[]) WITH ORDINALITY AS want (digest, nth)
		CROSS JOIN LATERAL (
			SELECT id, subject_digest FROM manifests
			WHERE top_level_namespace_id = $1 AND repository_id = $2 AND digest = want.digest OFFSET 0) m`, r.namespace, r.id, digests)
	if err != nil {
		return nil, err
	}
	var nth int
	var index, subject []byte
	_, err = pgx.ForEachRow(rows, []any{&nth, &index, &subject}, func() error {
		for _, of := range []struct {
			raw []byte
			to  **oci.Digest
		}{{index, &list[nth-1].Index}, {subject, &list[nth-1].Subject}} {
			if of.raw == nil {
				continue
			}
			d, err := oci.DigestFromBytes(of.raw)
			if err != nil {
				return err
			}
			*of.to = &d
		}
		return nil
	})
	return list, err
}

// maxOfImage is how many manifests ManifestsOfImage returns at most.
const maxOfImage = 100

// ManifestsOfImage returns the digests of those manifests of a repository whose configuration has
// the given digest, and that of the manifest which has this digest itself; at most 100. Error:
// NAME_UNKNOWN. Like DescribeManifest, it looks up ranges of one value in the order of the only
// index that has this order.
func (b *Browser) ManifestsOfImage(ctx context.Context, path string, id oci.Digest) (list []oci.Digest, err error) {
	r, err := b.catalog.FindRepository(ctx, path)
	if err != nil {
		return nil, err
	}
	rows, err := b.db.Pool.Query(ctx, `
		(SELECT digest FROM manifests WHERE top_level_namespace_id = $1 AND repository_id = $2 AND digest = $3)
		UNION ALL
		(SELECT digest FROM manifests
			WHERE top_level_namespace_id = $1 AND configuration_blob_digest BETWEEN $3 AND $3 AND repository_id = $2
			ORDER BY configuration_blob_digest, repository_id LIMIT $4)`, r.NamespaceID, r.ID, id.Bytes(), maxOfImage-1)
	if err == nil {
		list, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (oci.Digest, error) {
			var raw []byte
			if err := row.Scan(&raw); err != nil {
				return oci.Digest{}, err
			}
			return oci.DigestFromBytes(raw)
		})
	}
	if err != nil {
		return nil, fmt.Errorf("looking for the manifests of image %s in %s: %w", id, path, err)
	}
	return list, nil
}

// MaxShortDigest is how many manifests ManifestsByShortDigest returns at most.
const MaxShortDigest = 10

// tagsOfShort is how many tags ManifestsByShortDigest names for each manifest.
const tagsOfShort = 3

// ShortManifest is a manifest whose digest begins as somebody has typed it.
type ShortManifest struct {
	TagInfo          // without the name and the times of a tag
	Tags    []string // up to 3 of those that point to it
}

// ManifestsByShortDigest returns the manifests of a repository whose digests begin so, in the order of
// their digests: at most MaxShortDigest. `more` says that there are further ones. Error: NAME_UNKNOWN.
// Like ManifestsOfImage, it reads a range in the order of the only index that has this order.
func (b *Browser) ManifestsByShortDigest(ctx context.Context, path string, begin oci.ShortDigest) (list []ShortManifest, more bool, err error) {
	r, err := b.lookUp(ctx, path)
	if err != nil {
		return nil, false, err
	}
	first256, last256 := begin.Range(oci.SHA256)
	first512, last512 := begin.Range(oci.SHA512)
	rows, err := b.db.Pool.Query(ctx, `
		SELECT m.digest, ARRAY(SELECT name FROM tags
			WHERE top_level_namespace_id = @namespace AND repository_id = @repository AND manifest_id BETWEEN m.id AND m.id ORDER BY manifest_id LIMIT @tags)
		FROM (
			(SELECT id, digest FROM manifests
				WHERE top_level_namespace_id = @namespace AND repository_id BETWEEN @repository AND @repository AND digest BETWEEN @first256 AND @last256
				ORDER BY repository_id, digest LIMIT @most)
			UNION ALL
			(SELECT id, digest FROM manifests
				WHERE top_level_namespace_id = @namespace AND repository_id BETWEEN @repository AND @repository AND digest BETWEEN @first512 AND @last512
				ORDER BY repository_id, digest LIMIT @most)) m
		ORDER BY m.digest LIMIT @most`,
		db.SharedArgs{
			"namespace": r.namespace, "repository": r.id, "first256": first256, "last256": last256, "first512": first512, "last512": last512,
			"most": MaxShortDigest + 1, "tags": tagsOfShort,
		})
	if err != nil {
		return nil, false, fmt.Errorf("looking for digests that begin with %s in %s: %w", begin, path, err)
	}
	var digests []oci.Digest
	tags := make(map[oci.Digest][]string)
	var raw []byte
	var names []string
	_, err = pgx.ForEachRow(rows, []any{&raw, &names}, func() error {
		d, err := oci.DigestFromBytes(raw)
		digests, tags[d], names = append(digests, d), names, nil
		return err
	})
	if err != nil {
		return nil, false, fmt.Errorf("looking for digests that begin with %s in %s: %w", begin, path, err)
	}
	more = len(digests) > MaxShortDigest
	found, err := b.DescribeManifests(ctx, path, digests[:min(len(digests), MaxShortDigest)])
	for _, m := range found {
		list = append(list, ShortManifest{m, tags[m.Digest]})
	}
	slices.SortFunc(list, func(a, b ShortManifest) int { return cmp.Compare(a.Digest.String(), b.Digest.String()) })
	return list, more, err
}

// DescribeManifests returns the details of the given manifests, without names of tags and in
// no particular order. It leaves out manifests that the repository doesn't have. Error:
// NAME_UNKNOWN. OFFSET 0 in its SQL makes PostgreSQL look rows up by an index: see "Plans" in
// package db.
func (b *Browser) DescribeManifests(ctx context.Context, path string, digests []oci.Digest) ([]TagInfo, error) {
	r, err := b.lookUp(ctx, path)
	if err != nil || len(digests) == 0 {
		return nil, err
	}
	wanted := make([][]byte, len(digests))
	for i, d := range digests {
		wanted[i] = d.Bytes()
	}
	rows, err := b.db.Pool.Query(ctx, `
		SELECT m.id FROM unnest($3::bytea[]) AS want (digest) CROSS JOIN LATERAL (
			SELECT id FROM manifests
			WHERE top_level_namespace_id = $1 AND repository_id = $2 AND digest = want.digest OFFSET 0) m`, r.namespace, r.id, wanted)
	if err != nil {
		return nil, fmt.Errorf("looking for manifests of %s: %w", path, err)
	}
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (t foundTag, err error) {
		err = row.Scan(&t.manifest)
		return t, err
	})
	if err != nil {
		return nil, fmt.Errorf("looking for manifests of %s: %w", path, err)
	}
	list, err := b.tagInfos(ctx, r, found)
	if err != nil {
		return nil, fmt.Errorf("describing manifests of %s: %w", path, err)
	}
	return list, nil
}
