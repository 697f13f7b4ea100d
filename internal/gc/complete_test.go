package gc_test

import (
	"testing"
)

// nothingDangles is called after all reviews. It checks that a tag keeps every manifest
// that is left, directly or through other manifests, and that manifests use every blob and
// link that is left.
func (b bundle) nothingDangles(t *testing.T) {
	t.Helper()
	for what, sql := range map[string]string{
		"manifests that no tag holds, directly or not": `
			WITH RECURSIVE live (repository_id, id) AS (
				SELECT repository_id, manifest_id FROM tags
				UNION
				SELECT h.* FROM live l CROSS JOIN LATERAL (
					SELECT repository_id, child_id FROM manifest_references
					WHERE repository_id = l.repository_id AND parent_id = l.id
					UNION ALL
					SELECT r.repository_id, r.id FROM manifests s
					JOIN manifests r ON r.repository_id = s.repository_id AND r.subject_digest = s.digest
					WHERE s.repository_id = l.repository_id AND s.id = l.id) h
			)
			SELECT count(*) FROM manifests m
			WHERE NOT EXISTS (SELECT FROM live l WHERE l.repository_id = m.repository_id AND l.id = m.id)`,
		"blobs that nothing refers to": `SELECT count(*) FROM blobs b
			WHERE NOT EXISTS (SELECT FROM layers l WHERE l.digest = b.digest)
			AND NOT EXISTS (SELECT FROM manifests m WHERE m.configuration_blob_digest = b.digest)`,
		"links that no manifest needs": `SELECT count(*) FROM repository_blobs rb
			WHERE NOT EXISTS (SELECT FROM layers l WHERE l.repository_id = rb.repository_id AND l.digest = rb.blob_digest)
			AND NOT EXISTS (SELECT FROM manifests m
				WHERE m.repository_id = rb.repository_id AND m.configuration_blob_digest = rb.blob_digest)`,
	} {
		if n := b.Count(t, sql); n != 0 {
			t.Errorf("%d %s", n, what)
		}
	}
}

// owned checks that each object that clients have ever stored belongs to exactly one row:
// of a blob, an upload or a pending deletion.
func (s *storm) owned(t *testing.T) {
	t.Helper()
	s.a.Owned(t)
	if n := s.a.Count(t, `SELECT count(*) FROM unnest($1::text[]) AS k (key)
			WHERE (SELECT count(*) FROM blobs WHERE storage_key = key)
				+ (SELECT count(*) FROM uploads WHERE key LIKE storage_key || '-%')
				+ (SELECT count(*) FROM gc_doomed_objects
					WHERE storage_key = key OR of_upload AND key LIKE storage_key || '-%' AND keep IS DISTINCT FROM key) <> 1`, s.keys); n != 0 {
		t.Errorf("%d of %d objects don't have one owner", n, len(s.keys))
	}
}
