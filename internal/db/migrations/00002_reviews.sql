-- This migration adds indexes, columns and a table for the reviews of garbage collection.
--
-- The new indexes of the review queues have the order in which reviewers claim rows. A queue
-- is filled and emptied all the time. Therefore autovacuum is set to vacuum a queue after a
-- fixed number of dead rows, not after a share of its rows: otherwise each reviewer that
-- claims rows would scan the dead rows of earlier reviews.
--
-- blobs.lost_at is when a check found that the store no longer has the blob's content. The
-- registry then tells clients that the blob doesn't exist, so the next client that pushes the
-- blob uploads it again, and the blob's row gets the new object.
--
-- gc_activity counts what garbage collection has deleted, minute by minute, for all replicas
-- together.

-- +goose Up
ALTER TABLE gc_blob_review_queue ADD COLUMN last_error text;
ALTER TABLE gc_manifest_review_queue ADD COLUMN last_error text;

DROP INDEX gc_blob_review_queue_review_after_idx;
CREATE INDEX gc_blob_review_queue_review_after_idx
    ON gc_blob_review_queue (review_after, digest) WHERE set_aside_at IS NULL;
CREATE INDEX gc_blob_review_queue_set_aside_at_idx
    ON gc_blob_review_queue (set_aside_at) WHERE set_aside_at IS NOT NULL;

DROP INDEX gc_manifest_review_queue_review_after_idx;
CREATE INDEX gc_manifest_review_queue_review_after_idx
    ON gc_manifest_review_queue (review_after, top_level_namespace_id, repository_id, manifest_id)
    WHERE set_aside_at IS NULL;
CREATE INDEX gc_manifest_review_queue_set_aside_at_idx
    ON gc_manifest_review_queue (set_aside_at) WHERE set_aside_at IS NOT NULL;

ALTER TABLE gc_blob_review_queue SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000);
ALTER TABLE gc_manifest_review_queue SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000);
ALTER TABLE gc_doomed_objects SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000);

CREATE INDEX gc_doomed_objects_failing_idx ON gc_doomed_objects (doomed_at) WHERE attempts > 0;

ALTER TABLE blobs ADD COLUMN lost_at timestamptz;

CREATE TABLE gc_activity (
    minute             timestamptz PRIMARY KEY,
    manifests_reviewed bigint NOT NULL DEFAULT 0,
    manifests_deleted  bigint NOT NULL DEFAULT 0,
    blobs_reviewed     bigint NOT NULL DEFAULT 0,
    blobs_deleted      bigint NOT NULL DEFAULT 0,
    objects_swept      bigint NOT NULL DEFAULT 0,
    bytes_swept        bigint NOT NULL DEFAULT 0
);

-- A query that looks up a row by digest, name or manifest must not be able to use an index
-- that begins with namespace and repository. The planner assumes that these two columns are
-- independent and multiplies their selectivities. So it takes a pair of namespace and
-- repository to be nearly unique, and may read a whole repository through such an index to
-- find one row. Therefore this statement makes the keys begin with the column that is
-- searched, and adds extended statistics on the pair. It drops foreign keys that reference a
-- changed primary key, and makes them again.
-- +goose StatementBegin
DO $$
DECLARE
    drops text[];
    adds text[];
    sql text;
    t text;
    p regclass;
BEGIN
    SELECT array_agg(format('ALTER TABLE %s DROP CONSTRAINT %I', conrelid::regclass, conname)),
        array_agg(format('ALTER TABLE %s ADD CONSTRAINT %I %s', conrelid::regclass, conname, pg_get_constraintdef(oid)))
    INTO drops, adds
    FROM pg_constraint
    WHERE contype = 'f' AND conparentid = 0 AND confrelid IN ('manifests'::regclass, 'layers'::regclass);

    FOREACH sql IN ARRAY drops LOOP
        EXECUTE sql;
    END LOOP;
    FOREACH t IN ARRAY ARRAY['manifests', 'layers'] LOOP
        EXECUTE format('ALTER TABLE %I DROP CONSTRAINT %I', t, t || '_pkey');
        EXECUTE format('ALTER TABLE %I ADD PRIMARY KEY (id, repository_id, top_level_namespace_id)', t);
    END LOOP;
    FOREACH sql IN ARRAY adds LOOP
        EXECUTE sql;
    END LOOP;

    FOREACH t IN ARRAY ARRAY['manifests', 'layers', 'tags', 'manifest_references', 'repository_blobs'] LOOP
        FOR p IN SELECT inhrelid::regclass FROM pg_inherits WHERE inhparent = t::regclass LOOP
            EXECUTE format('CREATE STATISTICS partitions.%I (ndistinct) ON top_level_namespace_id, repository_id FROM %s',
                replace(p::text, 'partitions.', '') || '_repositories', p);
        END LOOP;
    END LOOP;
END;
$$;
-- +goose StatementEnd

ALTER TABLE gc_manifest_review_queue DROP CONSTRAINT gc_manifest_review_queue_pkey;
ALTER TABLE gc_manifest_review_queue ADD PRIMARY KEY (manifest_id, repository_id, top_level_namespace_id);

DROP INDEX tags_manifest_id_idx;
CREATE INDEX tags_manifest_id_idx ON tags (manifest_id, repository_id, top_level_namespace_id);
DROP INDEX manifest_references_child_id_idx;
CREATE INDEX manifest_references_child_id_idx
    ON manifest_references (child_id, repository_id, top_level_namespace_id);
