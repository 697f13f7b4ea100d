-- A repository belongs to one namespace. Without knowing that, the planner multiplies what the two
-- columns select. In a registry of many namespaces it then expects less than one row of any
-- repository, so that an index that leads to a whole repository seems as good as the index that
-- leads to a single row, also in checks of foreign keys. With these statistics, which ANALYZE
-- fills, it doesn't multiply. It would then expect the rows of an average repository, which in a
-- registry of very many small repositories is still one; so it is told to expect a hundred. The
-- time of a lookup of a single row doesn't depend on this number.

-- +goose Up
SET LOCAL lock_timeout = '500ms';

-- +goose StatementBegin
DO $$
DECLARE
    part regclass;
BEGIN
    FOR part IN
        SELECT i.inhrelid FROM pg_inherits i
        WHERE i.inhparent IN ('repository_blobs'::regclass, 'manifests'::regclass, 'manifest_references'::regclass, 'layers'::regclass, 'tags'::regclass)
    LOOP
        EXECUTE format('CREATE STATISTICS partitions.%I (dependencies) ON top_level_namespace_id, repository_id FROM %s',
            (SELECT relname FROM pg_class WHERE oid = part) || '_repository_stat', part);
        EXECUTE format('ALTER TABLE %s ALTER COLUMN repository_id SET (n_distinct = -0.01)', part);
    END LOOP;
END;
$$;
-- +goose StatementEnd
