package catalog

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
)

// Tags lists up to n tags of the repository whose names come after the name `last`, in byte
// order. `more` says whether there are further tags. Error: NAME_UNKNOWN.
func (c *Catalog) Tags(ctx context.Context, path, last string, n int) (tags []string, more bool, err error) {
	fresh := c.cache.fresh(ctx)
	gen, key := c.cache.tagList(path), listKey{path, last, n}
	tags, ok := get(c.cache, fresh, c.cache.lists, key, gen)
	if !ok {
		r, err := c.lookUp(ctx, path)
		if err != nil {
			return nil, false, err
		}
		// Reading a thousand names as one row with an array takes a third of the time that it
		// takes to read them as a thousand rows.
		err = c.db.Pool.QueryRow(ctx, `
			SELECT COALESCE(array_agg(name), '{}') FROM (
				SELECT name FROM tags
				WHERE top_level_namespace_id = $1 AND repository_id = $2 AND name > $3
				ORDER BY name LIMIT $4) page`, r.namespace, r.id, last, n+1).Scan(&tags)
		if err != nil {
			return nil, false, fmt.Errorf("listing tags of %s: %w", path, err)
		}
		keep(c.cache, c.cache.lists, key, tags, gen)
	}
	if len(tags) > n {
		return tags[:n:n], true, nil
	}
	return tags, false, nil
}

// Referrer describes a manifest that names another as its subject.
type Referrer struct {
	ID           int64 // defines the order of the list; used as its cursor
	Digest       oci.Digest
	MediaType    string
	ArtifactType string // "" where the specification wants it omitted
	Size         int64  // bytes
	Annotations  json.RawMessage
}

// Referrers lists up to n manifests of the repository whose subject is d, in the order of
// their ids, beginning after the id `last`. If artifactType isn't "", Referrers lists only
// manifests of this artifact type. One call returns at most referrerBatch manifests, and fewer if
// their annotations are long (db.Page): each may have MaxAnnotations bytes. `more` says whether
// there are further manifests. For an unknown repository the list is empty.
func (c *Catalog) Referrers(ctx context.Context, path string, d oci.Digest, artifactType string, last int64, n int) (list []Referrer, more bool, err error) {
	n = min(n, referrerBatch)
	rows, err := c.db.Pool.Query(ctx, `
		SELECT m.id, m.digest, m.media_type, COALESCE(m.artifact_type, ''), octet_length(m.payload), m.annotations::text
		FROM live_repositories r
		JOIN manifests m ON m.top_level_namespace_id = r.top_level_namespace_id AND m.repository_id = r.id
		WHERE r.path = $1 AND m.subject_digest = $2 AND m.id > $3 AND ($4 = '' OR m.artifact_type = $4)
		ORDER BY m.id LIMIT $5`, path, d.Bytes(), last, artifactType, n+1)
	list, more, err = db.Page(rows, err, n, func(row pgx.CollectableRow) (r Referrer, err error) {
		var digest []byte
		var annotations *string
		if err := row.Scan(&r.ID, &digest, &r.MediaType, &r.ArtifactType, &r.Size, &annotations); err != nil {
			return r, err
		}
		if annotations != nil && len(*annotations) <= MaxAnnotations {
			r.Annotations = json.RawMessage(*annotations)
		}
		r.Digest, err = oci.DigestFromBytes(digest)
		return r, err
	})
	if err != nil {
		return nil, false, fmt.Errorf("listing referrers of %s in %s: %w", d, path, err)
	}
	return list, more, nil
}

const (
	// MaxAnnotations is the maximum size of a referrer's annotations, as JSON, in bytes.
	// Larger ones are stored only in the manifest's payload, and the list of referrers omits
	// them.
	MaxAnnotations = 64 << 10
	// referrerBatch is the maximum number of referrers that one query reads.
	referrerBatch = 100
)

// referrerAnnotations returns the manifest's annotations as the JSON that is stored for the
// list of referrers. It returns nil if there are none, if they exceed MaxAnnotations bytes, or
// if the manifest has no subject.
func referrerAnnotations(m *oci.Manifest) ([]byte, error) {
	if m.Subject == nil || len(m.Annotations) == 0 {
		return nil, nil
	}
	size := 0
	for key, value := range m.Annotations {
		size += len(key) + len(value)
	}
	if size > MaxAnnotations { // the JSON would be even longer
		return nil, nil
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false) // HTML escaping would write six bytes for each "<"
	if err := e.Encode(m.Annotations); err != nil {
		return nil, fmt.Errorf("writing annotations: %w", err)
	}
	if text := bytes.TrimSpace(b.Bytes()); len(text) <= MaxAnnotations {
		return text, nil
	}
	return nil, nil
}

// Count is a number of rows. Exact is false if there are too many rows to count: then Rows is
// PostgreSQL's estimate (in a GCStatus) or the number at which counting stopped (elsewhere).
type Count struct {
	Rows  int64 `json:"count"`
	Exact bool  `json:"exact"`
}

// MostCounted is the highest exact number of tags of a repository, or of repositories of a
// namespace, in a list. If there are more, the list shows MostCounted, marked as inexact.
const MostCounted = 1000

// CountedUpTo returns the Count for `rows`, the result of a query that stops counting at
// MostCounted + 1. If the query has reached this number, the Count is MostCounted and not exact.
func CountedUpTo(rows int64) Count {
	return Count{Rows: min(rows, MostCounted), Exact: rows <= MostCounted}
}
