-- What the review of the queues needs besides the queues themselves.
--
-- The order of the indexes is the order in which rows are claimed. A queue is
-- written and emptied all the time, so it is vacuumed after a number of dead
-- rows and not after a share of them: else each claim walks over what earlier
-- ones have left behind.
--
-- blobs.lost_at says that the store no longer has the blob's content, as a
-- check found out. Clients are told that there is no such blob, so the next push
-- uploads it, and its commit gives the row the new object.
--
-- gc_activity counts what was collected, minute by minute, for all replicas.

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
