-- purser_sized_manifest returns a manifest with its size in bytes: for an image, the
-- manifest's payload, configuration and layers; for an index, its payload and blobs and the
-- sizes of its children. Only the first most_children children of an index are counted.
--
-- For an index the function doesn't use the column total_size. This column includes the lengths
-- of the children's payloads, which the children's own sizes include too. The blobs of an
-- index are its entries that aren't manifests; they are stored as rows of the table layers.
--
-- The planner inlines the function into the statement that calls it. OFFSET 0 in its SQL makes
-- PostgreSQL look rows up by an index: see "Plans" in package db. A manifest is looked up by a range
-- of one id, in the order of ids: only one index has this order. In a registry of many repositories
-- the planner expects one manifest in each, so it might otherwise use the index of digests,
-- and read all manifests of the repository for each one.
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
                        WHERE l.top_level_namespace_id = namespace AND l.repository_id = repository AND l.manifest_id BETWEEN manifest AND manifest
                        ORDER BY l.manifest_id OFFSET 0) l
                    CROSS JOIN LATERAL (SELECT b.size FROM blobs b WHERE b.digest = l.digest OFFSET 0) b), 0)
            ELSE f.total_size
            END AS size
        FROM (
            SELECT *, i.media_type IN ('application/vnd.oci.image.index.v1+json',
                'application/vnd.docker.distribution.manifest.list.v2+json') AS is_index
            FROM manifests i
            WHERE i.top_level_namespace_id = namespace AND i.repository_id = repository AND i.id BETWEEN manifest AND manifest
            ORDER BY i.id LIMIT 1) f) m
    CROSS JOIN LATERAL (
        SELECT COALESCE(sum(c.size), 0) AS size FROM (
            SELECT r.child_id FROM manifest_references r
            WHERE r.repository_id = repository AND r.top_level_namespace_id = namespace AND r.parent_id = manifest
            ORDER BY r.child_id LIMIT most_children) x
        CROSS JOIN LATERAL (
            SELECT c.total_size AS size FROM manifests c
            WHERE c.top_level_namespace_id = namespace AND c.repository_id = repository AND c.id BETWEEN x.child_id AND x.child_id
            ORDER BY c.id LIMIT 1) c) children
$$;

-- purser_trashed_repositories returns the repositories in the trash: those that were deleted, and those
-- of deleted namespaces. item is the id in the trash of what was deleted.
CREATE OR REPLACE FUNCTION purser_trashed_repositories ()
    RETURNS TABLE (top_level_namespace_id bigint, id bigint, path text, item text, purge_after timestamptz)
    LANGUAGE sql STABLE
    AS $$
    SELECT r.top_level_namespace_id, r.id, r.deleted_path, 'repository-' || r.id, r.purge_after
    FROM repositories r WHERE r.deleted_at IS NOT NULL
    UNION ALL
    SELECT n.id, r.id, r.path, 'namespace-' || n.id, n.purge_after
    FROM top_level_namespaces n JOIN repositories r ON r.top_level_namespace_id = n.id AND r.deleted_at IS NULL
    WHERE n.deleted_at IS NOT NULL
$$;
