-- purser_sized_manifest returns a manifest with its size, which is that of an image with its
-- layers, or of an index with its children. For an index of more than most_children children
-- the rest isn't counted.
--
-- The size of an index is the length of its payload plus its own blobs, which are its entries
-- that aren't manifests, plus its children. Its total_size isn't used: it includes the lengths
-- of the children's payloads, which the children's sizes include too. If the first release
-- has stored a negative total_size, the length of the payload counts instead.
--
-- The planner inlines the function. For OFFSET 0 see "Plans" in package db.
CREATE OR REPLACE FUNCTION purser_sized_manifest (namespace bigint, repository bigint, manifest bigint, most_children bigint)
    RETURNS TABLE (
        id bigint,
        digest bytea,
        media_type text,
        artifact_type text,
        payload bytea,
        created_at timestamptz,
        is_index boolean,
        size bigint)
    LANGUAGE sql STABLE
    AS $$
    SELECT m.id, m.digest, m.media_type, m.artifact_type, m.payload, m.created_at, m.is_index,
        LEAST(m.size + children.size, 9223372036854775807)::bigint
    FROM (
        SELECT f.*,
            CASE WHEN f.is_index THEN
                octet_length(f.payload) + COALESCE((
                    SELECT sum(b.size) FROM (
                        SELECT l.digest FROM layers l
                        WHERE l.top_level_namespace_id = namespace AND l.repository_id = repository AND l.manifest_id = manifest
                        OFFSET 0) l
                    CROSS JOIN LATERAL (SELECT b.size FROM blobs b WHERE b.digest = l.digest OFFSET 0) b), 0)
            ELSE GREATEST(f.total_size, octet_length(f.payload))
            END AS size
        FROM (
            SELECT *, i.media_type IN ('application/vnd.oci.image.index.v1+json',
                'application/vnd.docker.distribution.manifest.list.v2+json') AS is_index
            FROM manifests i
            WHERE i.top_level_namespace_id = namespace AND i.repository_id = repository AND i.id = manifest
            OFFSET 0) f) m
    CROSS JOIN LATERAL (
        SELECT COALESCE(sum(c.size), 0) AS size FROM (
            SELECT r.child_id FROM manifest_references r
            WHERE r.repository_id = repository AND r.top_level_namespace_id = namespace AND r.parent_id = manifest
            ORDER BY r.child_id LIMIT most_children) x
        CROSS JOIN LATERAL (
            SELECT GREATEST(c.total_size, octet_length(c.payload)) AS size FROM manifests c
            WHERE c.top_level_namespace_id = namespace AND c.repository_id = repository AND c.id = x.child_id
            OFFSET 0) c) children
$$;
