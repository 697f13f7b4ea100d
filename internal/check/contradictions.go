package check

import (
	"context"
	"fmt"
	"iter"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/catalog/browse"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
)

// Contradiction describes a manifest that refers to a blob or to another manifest and
// declares a size for it that differs from the stored size.
type Contradiction struct {
	Repository string     `json:"-"`
	Manifest   oci.Digest `json:"-"`
	// Descriptor says where in the manifest the first wrong size is: "config", "layers[2]",
	// "manifests[0]" or "subject".
	Descriptor string     `json:"descriptor"`
	Digest     oci.Digest `json:"digest"`        // of the described content
	Declared   int64      `json:"declared_size"` // bytes
	Stored     int64      `json:"stored_size"`   // bytes
	Others     int        `json:"others"`        // further descriptors of the manifest that are wrong
}

// contradictionsPage is the result of comparing one batch of manifests.
type contradictionsPage struct {
	Compared   int64 // manifests, including unreadable ones
	Unreadable int64 // manifests that can't be parsed
	Found      []Contradiction
}

const (
	// contradictionPageBytes bounds the sum of the manifests' payloads that one batch
	// reads. A batch ends with the manifest that reaches the bound, so it exceeds the bound
	// by less than one manifest.
	contradictionPageBytes = 4 << 20
	// contradictionSizes is how many stored sizes one statement looks up.
	contradictionSizes = 10_000
)

// contradictions compares the sizes that the manifests of all repositories declare with the
// stored sizes. It reads the payload of every manifest, in batches in the order of the
// primary key. Each batch is read in a snapshot of its own, so a manifest that is pushed
// meanwhile may be missed. An error ends the sequence.
//
// Foreign layers, and subjects that haven't been pushed yet, aren't stored in the registry,
// so contradictions doesn't compare their sizes. The sizes of stored manifests and blobs
// never change, so its findings needn't be checked again.
func contradictions(ctx context.Context, c *catalog.Catalog) iter.Seq2[contradictionsPage, error] {
	return func(yield func(contradictionsPage, error) bool) {
		var after manifestKey
		for {
			list, err := payloads(ctx, c.DB(), after)
			if err == nil && len(list) == 0 {
				return
			}
			var page contradictionsPage
			if err == nil {
				after = list[len(list)-1].manifestKey
				page, err = compare(ctx, c, list)
			}
			if err != nil {
				yield(contradictionsPage{}, fmt.Errorf("comparing the sizes that manifests declare: %w", err))
				return
			}
			if !yield(page, nil) {
				return
			}
		}
	}
}

// manifestKey is the primary key of a manifest: id, repository and namespace.
type manifestKey struct {
	id int64
	in catalog.Repository // without its path
}

// storedManifest is a manifest as its row in the table manifests has it.
type storedManifest struct {
	manifestKey
	digest    oci.Digest
	mediaType string
	payload   []byte
}

// payloads returns the next manifests in the order of their keys, those whose keys come
// after the key `after`: at most 500, and at most contradictionPageBytes of payloads, but
// at least one if there is any.
//
// payloads disables sorting and scans of whole tables. PostgreSQL then merges the
// primary-key indexes of the partitions and stops at the limit. Otherwise, with outdated
// statistics, the planner may believe that few manifests follow, and would read and sort all
// of them for each batch.
func payloads(ctx context.Context, pool *db.DB, after manifestKey) (list []storedManifest, err error) {
	err = pool.Tx(ctx, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
			SELECT set_config(name, 'off', true)
			FROM unnest(ARRAY['enable_sort', 'enable_seqscan', 'enable_bitmapscan']) AS name`)
		if err != nil {
			return err
		}
		rows, err := tx.Query(ctx, `
			SELECT id, repository_id, top_level_namespace_id, digest, media_type, payload FROM (
				SELECT *, sum(octet_length(payload)::bigint) OVER (
					ORDER BY id, repository_id, top_level_namespace_id ROWS UNBOUNDED PRECEDING) - octet_length(payload) AS before
				FROM (
					SELECT id, repository_id, top_level_namespace_id, digest, media_type, payload FROM manifests
					WHERE (id, repository_id, top_level_namespace_id) > ($1::bigint, $2::bigint, $3::bigint)
					ORDER BY id, repository_id, top_level_namespace_id LIMIT 500) next) page
			WHERE before < $4::bigint
			ORDER BY id, repository_id, top_level_namespace_id`,
			after.id, after.in.ID, after.in.NamespaceID, contradictionPageBytes)
		if err != nil {
			return err
		}
		list, err = pgx.CollectRows(rows, scanManifest)
		return err
	})
	return list, err
}

func scanManifest(row pgx.CollectableRow) (m storedManifest, err error) {
	var digest []byte
	if err := row.Scan(&m.id, &m.in.ID, &m.in.NamespaceID, &digest, &m.mediaType, &m.payload); err != nil {
		return m, err
	}
	m.digest, err = oci.DigestFromBytes(digest)
	return m, err
}

// compare compares the declared sizes in each manifest of list with the stored sizes.
func compare(ctx context.Context, c *catalog.Catalog, list []storedManifest) (contradictionsPage, error) {
	page := contradictionsPage{Compared: int64(len(list))}
	type parsed struct {
		storedManifest
		content *oci.Manifest
		refers  int // how many entries of wanted belong to this manifest
	}
	var readable []parsed
	var wanted []browse.Reference
	for _, m := range list {
		content, err := oci.ParseManifest(m.mediaType, m.payload)
		if err != nil {
			page.Unreadable++
			continue
		}
		own := browse.References(m.in, content)
		wanted = append(wanted, own...)
		readable = append(readable, parsed{m, content, len(own)})
	}
	var sizes []int64
	browser := browse.New(c)
	for some := range slices.Chunk(wanted, contradictionSizes) {
		found, err := browser.SizesOf(ctx, some)
		if err != nil {
			return page, err
		}
		sizes = append(sizes, found...)
	}
	var in []int64 // for each entry of found, the id of its repository
	for _, m := range readable {
		stored := make(map[oci.Digest]int64, m.refers)
		for i, r := range wanted[:m.refers] {
			if sizes[i] >= 0 {
				stored[r.Digest] = sizes[i]
			}
		}
		wanted, sizes = wanted[m.refers:], sizes[m.refers:]
		if found, wrong := contradiction(m.content, stored); wrong {
			found.Manifest = m.digest
			page.Found, in = append(page.Found, found), append(in, m.in.ID)
		}
	}
	var err error
	page.Found, err = nameRepositories(ctx, c.DB(), page.Found, in)
	return page, err
}

// contradiction compares the size in every descriptor of a manifest, including repeated
// ones, with the stored size. It returns the first wrong descriptor and the number of other
// wrong ones; `wrong` is false if there is none.
func contradiction(m *oci.Manifest, stored map[oci.Digest]int64) (found Contradiction, wrong bool) {
	compare := func(d oci.Descriptor, name string, at int) {
		size, there := stored[d.Digest]
		if !there || d.Foreign() || size == d.Size {
			return
		}
		if wrong {
			found.Others++
			return
		}
		if at >= 0 {
			name = fmt.Sprintf("%s[%d]", name, at)
		}
		found, wrong = Contradiction{Descriptor: name, Digest: d.Digest, Declared: d.Size, Stored: size}, true
	}
	if m.Config != nil {
		compare(*m.Config, "config", -1)
	}
	for i, d := range m.Layers {
		compare(d, "layers", i)
	}
	for i, d := range m.Manifests {
		compare(d, "manifests", i)
	}
	if m.Subject != nil {
		compare(*m.Subject, "subject", -1)
	}
	return found, wrong
}

// nameRepositories sets the path of the repository in each contradiction in `list`; `ids`
// has the repositories' ids in the same order. It leaves out contradictions in deleted
// repositories, whose manifests are being removed.
func nameRepositories(ctx context.Context, pool *db.DB, list []Contradiction, ids []int64) ([]Contradiction, error) {
	if len(list) == 0 {
		return nil, nil
	}
	rows, err := pool.Pool.Query(ctx, "SELECT id, path FROM named_repositories WHERE id = ANY ($1)", ids)
	if err != nil {
		return nil, err
	}
	paths := make(map[int64]string)
	var id int64
	var path string
	if _, err := pgx.ForEachRow(rows, []any{&id, &path}, func() error { paths[id] = path; return nil }); err != nil {
		return nil, err
	}
	var named []Contradiction
	for i, found := range list {
		if found.Repository = paths[ids[i]]; found.Repository != "" {
			named = append(named, found)
		}
	}
	return named, nil
}
